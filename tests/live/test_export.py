"""The shell export of a trial on a real engine starts the same commands again, serves, and leaves nothing."""

import json

import pytest
from support.exports import command_line, deployed, measured
from support.live_engine import live_objective

from tuner.deployment.readiness import request
from tuner.export import export

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("engine_environment")]


def test_a_live_trial_comes_back_token_by_token(tmp_path):
    """Measured with the engine's own processes, exported, started by its script: equal command lines, real tokens."""
    objective = live_objective()
    study, shown = measured(tmp_path / "runs", objective, {"max_num_seqs": 16, "enable_prefix_caching": False})
    (command,) = json.loads((study / "trials/0000/commands.json").read_text())
    script = export(study, "shell", "0").save(tmp_path)
    with deployed(script, tmp_path / "logs", 300) as pids:
        found = command_line(pids["engine-0"])
        assert found == shown["engine-0"]
        assert found[-len(command["argv"]) :] == command["argv"]
        port = int(command["argv"][command["argv"].index("--port") + 1])
        body = {"model": objective.model, "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}
        status, answer = request("POST", "127.0.0.1", port, "/v1/completions", body=body, timeout_s=60)
        assert status == 200, answer
        assert json.loads(answer)["usage"]["completion_tokens"] == 4
