"""Exported scripts run: they start what was measured, token by token, serve, and leave nothing."""

import json
import os

import pytest
from support.deployments import shim_objective
from support.exports import command_line, deployed, measured

from tuner.deployment.readiness import request
from tuner.export import export

SHAPES = {
    "aggregated": {},
    "split": {"mode": "disaggregated"},
    "split-with-a-store": {"mode": "disaggregated", "kv_store": "lmcache", "kv_store_ram_gib": 1},
}


def exported(study, directory):
    """The script of the only trial."""
    return export(study, "shell", "0").save(directory)


@pytest.mark.parametrize("knobs", SHAPES.values(), ids=SHAPES)
def test_a_script_starts_what_was_measured_and_leaves_nothing(tmp_path, knobs):
    """Command lines as the kernel shows them are those of the trial; a completion is served; all of it ends."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two engines need two cores")
    study, shown = measured(tmp_path / "runs", shim_objective(max_gpus=2), knobs)
    commands = json.loads((study / "trials/0000/commands.json").read_text())
    with deployed(exported(study, tmp_path), tmp_path / "logs", 60) as pids:
        assert {name: command_line(pid) for name, pid in pids.items()} == shown
        front = next(each for each in commands if each["name"] in ("router-0", "engine-0"))["argv"]
        port = int(front[front.index("--port") + 1])
        body = {"model": "shim-model", "prompt": "Hello", "max_tokens": 3}
        status, answer = request("POST", "127.0.0.1", port, "/v1/completions", body=body)
        assert (status, json.loads(answer)["choices"][0]["text"]) == (200, " x x x")
