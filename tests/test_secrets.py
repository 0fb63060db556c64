"""Canaries in every place where a secret may stand, and a sweep of everything that a study leaves."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.deployments import SHIM, eventually, shims
from support.program import finished, started, write_live_objective

CANARIES = {
    "MY_HUB_TOKEN": "hf_canary1aa01",  # handed to the engine as HF_TOKEN
    "OPENAI_API_KEY": "sk-canary2bb02",  # of the tuner's surroundings
    "AWS_SECRET_ACCESS_KEY": "canary3cc03",
}
#: Prints its secret in several ways, then is the scripted engine, or fails.
ENGINE = f"""#!/bin/sh
echo "HF_TOKEN=$HF_TOKEN"
echo "Authorization: Bearer $HF_TOKEN" >&2
test "$SHIM_MODE" = leave && {{ echo "ValueError: cannot log in with $HF_TOKEN" >&2; exit 1; }}
exec {sys.executable} {SHIM} "$@"
"""


def content(path: Path) -> bytes:
    """Of a file that may vanish meanwhile."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def sweep(*places: Path) -> list[Path]:
    """Files that hold a canary, databases and logs included."""
    files = [path for place in places for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    return [path for path in files if b"canary" in content(path)]


@pytest.fixture
def home(tmp_path):
    """A working directory with an engine that talks too much, and a `.env` that nobody asked for."""
    engine = tmp_path / "engine"
    engine.write_text(ENGINE, encoding="utf-8")
    engine.chmod(0o755)
    (tmp_path / ".env").write_text("PASSWORD=canary9zz09\n", encoding="utf-8")
    (tmp_path / "record").mkdir()
    return tmp_path


def arranged(home, mode, **more):
    """Writes an objective whose engine gets the token and behaves as `mode` says."""
    env = {"HF_TOKEN": "$MY_HUB_TOKEN", "SHIM_MODE": mode, "SHIM_RECORD": str(home / "record")}
    write_live_objective(home / "slo.yaml", env=env, command=("./engine", "serve"), **more)


@pytest.mark.parametrize("mode", ["ok", "leave"])
def test_no_secret_is_in_anything_that_a_study_writes(home, mode):
    """SEC-01: a study that runs, and one whose engine fails with the token in its last words: nothing holds it."""
    arranged(home, mode)
    code, out, err = finished("optimize", "--slo", "slo.yaml", "--study", "s", "--json", cwd=home, **CANARIES)
    assert code in (0, 3, 4), err  # 4 where the machine is too busy for a valid level
    report = finished("report", "s", cwd=home, **CANARIES)
    logs = [path.read_text() for path in (home / "runs").rglob("*.log")]
    assert any("HF_TOKEN=" in text for text in logs)
    assert (home / "runs/mlflow.db").is_file()
    assert sweep(home / "runs") == []
    assert "canary" not in out + err + "".join(map(str, report))
    if mode == "ok":
        told = [json.loads(path.read_text()) for path in (home / "record").glob("*.json")]
        assert {each["env"]["HF_TOKEN"] for each in told} == {CANARIES["MY_HUB_TOKEN"]}
        assert not any("canary" in word for each in told for word in each["argv"])
        assert not any(name in each["env"] for each in told for name in ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY"))
    else:
        outcome = json.loads((home / "runs/s/trials/0000/outcome.json").read_text())
        assert "cannot log in with" in outcome["cause"]


def test_no_secret_is_left_by_a_study_that_was_killed(home):
    """SEC-01: in the middle of a level, and after a SIGKILL there, no file holds a secret."""
    arranged(home, "ok", measure="{warmup: 0s, duration: 300s, min_requests: 20}")
    with started("optimize", "--slo", "slo.yaml", "--study", "s", cwd=home, **CANARIES) as process:
        try:
            assert eventually(lambda: any((home / "record").glob("*.requests")), 60)
            assert any((home / "runs/s/processes").iterdir())
            assert sweep(home / "runs") == []
        finally:
            process.send_signal(signal.SIGKILL)
            out, err = process.communicate(timeout=60)
    assert eventually(lambda: not shims(home / "record") and not any((home / "runs/s/processes").iterdir()))
    assert sweep(home / "runs") == []
    assert "canary" not in out + err


@pytest.mark.parametrize("address", ["postgresql://u:canary4dd04@127.0.0.1:1/db", "postgresql:/u:canary4dd04@db"])
@pytest.mark.parametrize("option", ["--storage", "--mlflow"])
def test_the_password_of_a_database_is_not_shown(home, option, address):
    """SEC-01: a database that cannot be reached is named without its password, wherever it is told."""
    arranged(home, "ok")
    code, out, err = finished("optimize", "--slo", "slo.yaml", "--study", "s", option, address, cwd=home, **CANARIES)
    assert code != 0 or option == "--mlflow"  # an outage of tracking ends no study
    assert "canary" not in out + err
    assert "Traceback" not in err
    assert sweep(home / "runs") == []


CLUSTER = """
import sys
from pathlib import Path
import ray
from support.deployments import shim_objective
from tuner.configuration import Configuration
from tuner.deployment.ray import RayLauncher
objective = shim_objective({"SHIM_RECORD": sys.argv[1], "HF_TOKEN": "$MY_HUB_TOKEN"})
launcher = RayLauncher(objective, study=sys.argv[2])
with launcher.deployment(Configuration({}), Path(sys.argv[2])):
    made = ray.get_runtime_context().runtime_env
    print(dict(made), ray._private.worker.global_worker.node.get_session_dir_path(), sep="\\n")
launcher.close()
"""


def test_nothing_is_shipped_to_the_cluster(home):
    """SEC-08: no working directory, no `.env` and no variable travels; Ray's own files hold no secret."""
    code = (sys.executable, "-c", CLUSTER, str(home / "record"), str(home / "study"))
    environment = {**os.environ, **CANARIES, "PYTHONPATH": str(SHIM.parents[1])}
    done = subprocess.run(code, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    runtime_env, session = done.stdout.splitlines()
    assert runtime_env == "{}"
    assert sweep(Path(session), home / "study") == []
    (told,) = [json.loads(path.read_text()) for path in (home / "record").glob("*.json")]
    assert told["env"]["HF_TOKEN"] == CANARIES["MY_HUB_TOKEN"]
    assert "OPENAI_API_KEY" not in told["env"]
    assert "PASSWORD" not in told["env"]
