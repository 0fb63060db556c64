"""Exported scripts run: they start what was measured, token by token, serve, and leave nothing."""

import json
import os
import socket
import subprocess
from dataclasses import replace

import pytest
from support.deployments import eventually, shim_objective, shims
from support.exports import command_line, deployed, measured, planned
from support.objectives import H100, objective

from tuner.deployment.readiness import request
from tuner.export import export
from tuner.export.formats import render

SHAPES = {
    "aggregated": {},
    "split": {"mode": "disaggregated"},
    "split-with-a-store": {"mode": "disaggregated", "kv_store": "lmcache", "kv_store_ram_gib": 1},
}


@pytest.fixture
def script(tmp_path):
    """Makes a script of the scripted engine, whose defaults nobody has measured."""

    def make(knobs=None, **env):
        found = render(planned(shim_objective({"SHIM_RECORD": str(tmp_path), **env}), knobs or {}), "shell")
        return found.save(tmp_path)

    yield make
    assert eventually(lambda: not shims(tmp_path))


def run(path, *names, **environ):
    """A script to its end: exit code and what it said."""
    done = subprocess.run(
        [str(path), *names], env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr


def free_port():
    """One that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


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


def test_addresses_can_be_set_from_outside(script, tmp_path):
    """The measured port is a default."""
    port = free_port()
    with deployed(script(), tmp_path / "logs", 60, ENGINE_0_PORT=port) as pids:
        assert command_line(pids["engine-0"])[-5:-2] == ["127.0.0.1", "--port", port]


def test_one_process_alone_can_be_started(script, tmp_path):
    """What is not named is expected elsewhere: nothing else starts, and nothing is waited for."""
    path = script({"replicas": 2})
    place = {"ENGINE_1_PORT": free_port(), "ENGINE_1_CORES": "0"}
    with deployed(path, tmp_path / "logs", 60, names=["engine-1"], until="engine-1 is ready", **place) as pids:
        assert set(pids) == {"engine-1"}


def test_an_engine_that_dies_ends_the_script(script):
    """Exit code 1, the name of the process, and nothing is left."""
    code, said = run(script(SHIM_MODE="exit"), ENGINE_0_PORT=free_port())
    assert (code, "engine-0 has ended" in said) == (1, True)


def test_a_signal_while_it_starts_is_heard_at_once(script, tmp_path):
    """An engine that answers nothing does not keep the script from ending all of it."""
    place = {"ENGINE_0_PORT": free_port(), "ENGINE_0_CORES": "0"}
    with deployed(script(SHIM_MODE="silent_engine"), tmp_path / "logs", 60, until="engine-0 started", **place) as pids:
        asked = tmp_path / f"{pids['engine-0']}.requests"
        assert eventually(lambda: asked.exists() and "POST /v1/completions" in asked.read_text())


def test_a_taken_port_is_told_before_anything_starts(script):
    """A stranger on the port would answer in the engine's place."""
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        code, said = run(script(), ENGINE_0_PORT=str(port))
    assert (code, f"port {port} of 127.0.0.1 is in use already" in said) == (1, True)
    assert "started" not in said


def test_a_missing_secret_is_named(script):
    """The script stops before anything starts, and says which variable it needs."""
    code, said = run(script(HF_TOKEN="$MY_TOKEN"), ENGINE_0_PORT=free_port())
    assert (code, "MY_TOKEN: set it" in said) == (1, True)
    assert "started" not in said


def test_an_unknown_process_is_refused(script):
    """With the names that there are."""
    code, said = run(script(), "engine-9")
    assert (code, "there is no process engine-9; there are engine-0" in said) == (1, True)


def test_several_machines_need_a_choice(tmp_path):
    """Where processes ran on several machines, starting all of them on one is no repetition."""
    made = objective(pools=(replace(H100, nodes=2),), max_gpus=16, bind="node")
    path = render(planned(made, {"replicas": 16}), "shell").save(tmp_path)
    hosts = {f"ENGINE_{place}_HOST": f"10.0.0.{place}" for place in range(16)}
    code, said = run(path, ROUTER_0_HOST="10.0.0.99", **hosts)
    assert (code, "several machines" in said) == (1, True)
    code, said = run(path)
    assert (code, "set it to the address of engine-0" in said) == (1, True)
