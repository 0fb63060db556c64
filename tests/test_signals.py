"""Ctrl-C and SIGTERM in every phase of a study with a real process as its engine."""

import json
import os
import signal
import sqlite3
import subprocess
import time

import pytest
from support.deployments import alive, eventually, shims
from support.program import started, write_live_objective

from tuner.deployment import guardian

LONG = "{warmup: 0s, duration: 300s, min_requests: 20}"
WARMUP = "{warmup: 300s, duration: 1s, min_requests: 20}"
SHORT = "{warmup: 0s, duration: 1s, min_requests: 20}"


def completions(record):
    """Requests for tokens that the engine got."""
    return sum(path.read_text().count("/v1/completions") for path in record.glob("*.requests"))


def engine_is_gone_and_its_children_are_not(record):
    """The server has left; what it started has not."""
    servers = {int(path.stem) for path in record.glob("*.json")}
    left = {each.pid for each in shims(record)}
    return bool(servers) and bool(left) and not servers & left


PHASES = {
    "start": ("never_bind", LONG, lambda record, _: any(record.glob("*.json"))),
    "warm-up": ("ok", WARMUP, lambda record, _: completions(record) > 5),
    "load": ("ok", LONG, lambda record, _: completions(record) > 5),
    "teardown": ("stubborn", SHORT, lambda record, _: engine_is_gone_and_its_children_are_not(record)),
    "verification": ("ok", SHORT, lambda _, home: any(home.glob("runs/s/trials/0000/**/verify-1"))),
}


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("start", signal.SIGINT),
        ("warm-up", signal.SIGTERM),
        ("load", signal.SIGINT),
        ("load", signal.SIGTERM),
        ("teardown", signal.SIGINT),
        ("verification", signal.SIGTERM),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else value,
)
def test_a_stopped_study_leaves_nothing_whatever_it_was_doing(tmp_path, phase, number):
    """SRV-11: 130 within 30 s, also when the signal is repeated; no process is left, and the study can go on."""
    mode, measure, reached = PHASES[phase]
    record = tmp_path / "record"
    record.mkdir()
    write_live_objective(tmp_path / "slo.yaml", env={"SHIM_RECORD": str(record), "SHIM_MODE": mode}, measure=measure)
    mlflow = ("--mlflow", "off") if phase != "warm-up" else ()
    arguments = ("optimize", "--slo", "slo.yaml", "--study", "s", *mlflow)
    with started(*arguments, cwd=tmp_path, session=True) as process:
        try:
            assert eventually(lambda: reached(record, tmp_path) or process.poll() is not None, 90)
            assert process.poll() is None, process.communicate()
            family = guardian.descendants(process.pid)
            began = time.monotonic()
            # A terminal's Ctrl-C reaches the whole group, `kill` the program alone.
            send = os.killpg if number is signal.SIGINT else os.kill
            for _ in range(3):
                send(process.pid, number)
                time.sleep(0.2)
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert (process.returncode, out) == (130, ""), err
    assert time.monotonic() - began < 30
    assert "Traceback" not in err
    assert "--study s" in err.splitlines()[-1]
    assert eventually(lambda: not alive(family) and not shims(record))
    assert list((tmp_path / "runs/s/processes").iterdir()) == []
    assert json.loads((tmp_path / "runs/s/result.json").read_text(encoding="utf-8"))["status"] == "interrupted"
    if not mlflow:
        with sqlite3.connect(tmp_path / "runs/mlflow.db") as database:
            statuses = {status for (status,) in database.execute("select status from runs")}
        database.close()
        assert statuses == {"KILLED"}
