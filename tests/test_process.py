"""Tests of one server process as its owner sees it."""

import json
import os
import sys
import time

import pytest
from support.deployments import SHIM, eventually

from tuner.deployment.process import ManagedProcess, Settings, inherited
from tuner.errors import InfrastructureFailed


def shim(here, mode, **env: str) -> ManagedProcess:
    """The scripted engine in one of its modes."""
    argv = [sys.executable, str(SHIM), "serve", "m", "--port", "0"]
    return ManagedProcess(argv, {"SHIM_MODE": mode, **env}, here / "log", Settings(here / "registry", grace_s=1.0))


@pytest.mark.parametrize(
    ("mode", "env", "code"), [("exit", {"SHIM_CODE": "7"}, 7), ("bad_flag", {}, 2), ("oom", {}, 1)]
)
def test_exit_code_and_log_are_kept(tmp_path, mode, env, code):
    """How a server ended and what it said last are there after it is gone."""
    process = shim(tmp_path, mode, **env)
    process.start()
    assert eventually(lambda: process.poll() is not None, 5)
    assert process.exit.code == code
    assert process.stop() == []
    assert "Error" in process.tail() or "error" in process.tail()


def test_missing_program_is_told_at_once(tmp_path):
    """A program that is not there is the infrastructure's fault, and nothing stays behind."""
    process = ManagedProcess([str(tmp_path / "nothing")], {}, tmp_path / "log", Settings(tmp_path / "registry"))
    with pytest.raises(InfrastructureFailed, match="engine_missing"):
        process.start()
    assert process.stop() == []


def test_a_megabyte_of_log_does_not_stop_the_server(tmp_path):
    """The pipe is always read: a noisy start gets through, and every line of it is in the log."""
    process = shim(tmp_path, "noisy")
    process.start()
    assert eventually(lambda: "shim listens" in process.tail(3))
    process.stop()
    assert process.read_log().count("x" * 100) == 10_000


def test_stop_is_idempotent_and_works_before_start(tmp_path):
    """Whatever the state, stop returns and leaves nothing."""
    process = shim(tmp_path, "ok")
    assert process.stop() == []
    process.start()
    began = time.monotonic()
    assert process.stop() == []
    assert time.monotonic() - began < 10
    assert process.stop() == []


def test_server_gets_exactly_its_environment_and_its_cores(tmp_path):
    """Nothing of the tuner's environment slips in; the cores are those asked for; stdin is closed."""
    core = min(os.sched_getaffinity(0))
    code = (
        "import os,json;"
        "print(json.dumps([sorted(os.environ),sorted(os.sched_getaffinity(0)),os.getsid(0)==os.getpid()]))"
    )
    process = ManagedProcess(
        [sys.executable, "-c", code], {"A": "1"}, tmp_path / "log", Settings(tmp_path / "registry"), cores=[core]
    )
    process.start()
    assert eventually(lambda: process.poll() is not None, 5)
    process.stop()
    names, cores, leader = json.loads(process.read_log())
    assert {"A", "TUNER_GUARDIAN"} <= set(names) <= {"A", "TUNER_GUARDIAN", "LC_CTYPE"}
    assert cores == [core]
    assert leader


def test_inherited_environment_has_paths_and_no_secrets():
    """Cache directories and library settings are passed on; tokens, keys and the tuner's own variables are not."""
    environ = {
        "PATH": "/bin",
        "HF_HOME": "/models",
        "HF_TOKEN": "hf_canary1",
        "VLLM_API_KEY": "canary",
        "OPENAI_API_KEY": "sk-canary2",
        "OMP_NUM_THREADS": "1",
        "MLFLOW_TRACKING_URI": "http://u:p@h",
        "LD_PRELOAD": "/x.so",
    }
    assert inherited(environ) == {"PATH": "/bin", "HF_HOME": "/models"}
