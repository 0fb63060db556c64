"""Tests of a deployment's life on this machine, with the scripted engine."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.deployments import SHIM, eventually, level, shim_objective, shims

from tuner.configuration import Configuration
from tuner.deployment import gpus, guardian
from tuner.deployment import instance as instance_module
from tuner.deployment.gpus import visible_gpus
from tuner.deployment.launch import DiedUnderLoad
from tuner.deployment.local import LocalLauncher, Unit, Units, units_here
from tuner.errors import ConfigurationFailed, InfrastructureFailed
from tuner.slo import Cache, Pool

ONE = Configuration({})


@pytest.fixture
def record(tmp_path) -> Path:
    """Directory in which shims write down what they got."""
    path = tmp_path / "record"
    path.mkdir()
    return path


def deploy(tmp_path, record, configuration=ONE, **env):
    """A deployment of the shim, and its objective."""
    objective = shim_objective({"SHIM_RECORD": str(record), **env})
    launcher = LocalLauncher(objective, registry=tmp_path / "registry")
    return launcher.deployment(configuration, tmp_path / "logs"), objective


def asked(record: Path) -> list[str]:
    """Every request that any shim got."""
    return [line for path in sorted(record.glob("*.requests")) for line in path.read_text().splitlines()]


def test_cold_cache_is_reset_before_each_level_and_steady_is_not(tmp_path, record):
    """`cold` resets once a level; `steady` leaves the cache alone; `warm: 6` resets and fills with six requests."""
    deployment, objective = deploy(tmp_path, record)

    def run(number: int, cache: Cache) -> tuple[int, int]:
        before = asked(record)
        plan = level(objective, number)
        data = running.drive(replace(plan, workload=replace(plan.workload, cache=cache)))
        new = asked(record)[len(before) :]
        completions = sum("/v1/completions" in line for line in new)
        return sum("/reset_prefix_cache" in line for line in new), completions - len(data.records)

    with deployment as running:
        resets, extra = run(1, Cache("cold"))
        assert (resets, extra <= 0) == (1, True)  # fewer where a request was cut off in the drain
        resets, extra = run(2, Cache("steady"))
        assert (resets, extra <= 0) == (0, True)
        resets, extra = run(3, Cache("warm", 6))
        assert (resets, extra >= 3) == (1, True)


def test_cache_that_cannot_be_reset_is_an_error(tmp_path, record):
    """A cold level on an engine that offers no reset is refused, not measured warm."""
    deployment, objective = deploy(tmp_path, record, SHIM_RESET="missing")
    with deployment as running, pytest.raises(InfrastructureFailed, match="VLLM_SERVER_DEV_MODE"):
        running.drive(level(objective))


def test_death_under_load_stops_the_level_and_keeps_what_was_seen(tmp_path, record):
    """An engine that dies after 20 requests ends the level in seconds, not in one time-out for each request."""
    deployment, objective = deploy(tmp_path, record, SHIM_DIE_AFTER="20")
    with deployment as running:
        began = time.monotonic()
        with pytest.raises(DiedUnderLoad) as caught:
            running.drive(level(objective, rate_rps=20.0, requests=2000))
        assert time.monotonic() - began < 10
    assert caught.value.reason == "server_died"
    assert caught.value.data.stopped == "server_died"
    assert sum(each.status == "ok" for each in caught.value.data.records) >= 15
    assert shims(record) == []


@pytest.mark.parametrize("mode", ["exit", "wrong_model", "never_bind"])
def test_failed_start_leaves_nothing(tmp_path, record, mode):
    """Whatever goes wrong at the start, processes, registry and units are free afterwards."""
    objective = shim_objective({"SHIM_RECORD": str(record), "SHIM_MODE": mode}, start_timeout_s=1.5)
    launcher = LocalLauncher(objective, registry=tmp_path / "registry")
    for _ in range(2):  # the second one gets the units back
        with pytest.raises(ConfigurationFailed), launcher.deployment(ONE, tmp_path / "logs"):
            pass
    assert shims(record) == []
    assert list((tmp_path / "registry").iterdir()) == []


def test_lost_port_is_tried_again_with_another(tmp_path, record, monkeypatch):
    """A start that loses its port in a race is repeated elsewhere, at most three times."""
    real, attempts = instance_module.wait_ready, []

    def raced(process, expected, cancelled=None):
        attempts.append(expected.ports["http"])
        if len(attempts) < 3:
            raise InfrastructureFailed("port_taken", "somebody was faster")
        return real(process, expected, cancelled)

    monkeypatch.setattr(instance_module, "wait_ready", raced)
    deployment, _ = deploy(tmp_path, record)
    with deployment as running:
        assert running.facts["attempts"] == 3
    attempts.clear()
    monkeypatch.setattr(instance_module, "wait_ready", lambda *_: raced_always())
    with pytest.raises(InfrastructureFailed, match="port_taken"), deployment:
        pass


def raced_always() -> float:
    """Every port is lost."""
    raise InfrastructureFailed("port_taken", "somebody was faster")


def test_missing_engine_is_told_before_anything_starts(tmp_path):
    """An engine command that is no program is engine_missing, with the command in the message."""
    objective = shim_objective(command=(str(tmp_path / "vllm"), "serve"))
    deployment = LocalLauncher(objective, registry=tmp_path / "registry").deployment(ONE, tmp_path)
    with pytest.raises(InfrastructureFailed, match=r"engine_missing.*engine\.command"), deployment:
        pass


def test_secret_reaches_the_server_and_no_file(tmp_path, record, monkeypatch):
    """A secret named by the objective file is in the server's environment, and masked in commands and log."""
    monkeypatch.setenv("MY_HUB_TOKEN", "hf_canary1")
    code = "import os,sys;print(os.environ['HF_TOKEN']);sys.exit(3)"
    objective = shim_objective({"HF_TOKEN": "$MY_HUB_TOKEN"}, command=(sys.executable, "-c", code))
    deployment = LocalLauncher(objective, registry=tmp_path / "registry").deployment(ONE, tmp_path / "logs")
    with pytest.raises(ConfigurationFailed), deployment:
        pass
    assert (tmp_path / "logs" / "engine-0.log").read_text().strip() == "[masked]"
    assert "canary" not in json.dumps(deployment.commands)
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"canary" not in path.read_bytes()


def test_parallel_deployments_share_neither_cores_nor_ports(tmp_path, record):
    """Two deployments at once have disjoint cores and ports."""
    objective = shim_objective({"SHIM_RECORD": str(record)})
    launcher = LocalLauncher(objective, registry=tmp_path / "registry")
    if launcher.parallel < 2:
        pytest.skip("this machine has one core")
    with launcher.deployment(ONE, tmp_path / "a"), launcher.deployment(ONE, tmp_path / "b"):
        told = [json.loads(path.read_text()) for path in record.glob("*.json")]
    assert len({each["env"]["VLLM_CPU_OMP_THREADS_BIND"] for each in told}) == 2
    assert len({each["argv"][each["argv"].index("--port") + 1] for each in told}) == 2
    assert {each["env"]["CUDA_VISIBLE_DEVICES"] for each in told} == {""}


TUNER = """
import signal
import sys
from pathlib import Path
from support.deployments import level, shim_objective
from tuner.configuration import Configuration
from tuner.deployment.local import LocalLauncher
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
objective = shim_objective({"SHIM_RECORD": sys.argv[1], "SHIM_MODE": "stubborn"})
launcher = LocalLauncher(objective, registry=Path(sys.argv[2]))
with launcher.deployment(Configuration({}), Path(sys.argv[2]).parent / "logs") as running:
    print("ready", flush=True)
    running.drive(level(objective, rate_rps=5.0, requests=10_000))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_tuner(tmp_path, record, number):
    """SIGKILL or Ctrl-C of the tuner under load: engine, its stubborn children and the load client are gone in 15 s."""
    command = [sys.executable, "-c", TUNER, str(record), str(tmp_path / "registry")]
    environment = {**os.environ, "PYTHONPATH": str(SHIM.parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as tuner:
        assert tuner.stdout.readline() == b"ready\n"
        assert eventually(lambda: any("/v1/completions" in line for line in asked(record)[3:]))
        family = guardian.descendants(tuner.pid)
        assert len(family) >= 4  # guardian, shim and two children, load client
        tuner.send_signal(number)
        assert eventually(lambda: not shims(record))
        assert eventually(lambda: not [each for each in family if guardian.identify(each.pid) == each])
    assert list((tmp_path / "registry").iterdir()) == []


def test_closing_from_another_thread_ends_the_level(tmp_path, record):
    """A deployment that is left while a level runs ends the level."""
    deployment, objective = deploy(tmp_path, record)
    ended: list[object] = []

    def drive() -> None:
        try:
            ended.append(running.drive(level(objective, rate_rps=5.0, requests=10_000)).stopped)
        except (ConfigurationFailed, InfrastructureFailed) as error:
            ended.append(error)

    with deployment as running:
        thread = threading.Thread(target=drive)
        thread.start()
        assert eventually(lambda: any("/v1/completions" in line for line in asked(record)[3:]))
    thread.join(timeout=20)
    assert ended
    assert ended[0] == "interrupted" or isinstance(ended[0], ConfigurationFailed | InfrastructureFailed)
    assert shims(record) == []


def test_shape_that_never_fits_is_refused():
    """More slots than the machine has is a reason, not a wait."""
    launcher = LocalLauncher(shim_objective(pool=Pool("cpu", "cpu", "slot", 1, 64, 0.1, cores=64)))
    try:
        assert "this machine has 0" in launcher.check(ONE)
        assert launcher.parallel == 1
    finally:
        launcher.close()


def test_units_are_taken_from_what_is_visible():
    """GPU ids come from CUDA_VISIBLE_DEVICES; pools share neither GPUs nor cores."""
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3,5"}) == ("3", "5")
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == ()
    pools = (
        Pool("a", "gpu", "L4", 1, 1, 1.0),
        Pool("b", "gpu", "L4", 1, 4, 1.0),
        Pool("c", "cpu", "slot", 1, 2, 1.0, 2),
    )
    found = units_here(pools, ("3", "5"), (0, 1, 2))
    assert found == {"a": [Unit("3")], "b": [Unit("5")], "c": [Unit("", (0, 1))]}


def test_slots_without_cores_are_as_many_as_the_file_says():
    """Slots of no core of their own fit on any machine, and are pinned nowhere."""
    assert units_here((Pool("c", "cpu", "slot", 1, 3, 1.0, 0),), (), (0,)) == {"c": [Unit(), Unit(), Unit()]}


def test_units_are_held_by_one_at_a_time():
    """What is taken is gone until it is given back; a wait that is too long is the infrastructure's fault."""
    units = Units({"a": [Unit("0"), Unit("1")]})
    held = units.take({"a": 2}, 1.0)
    with pytest.raises(InfrastructureFailed, match="did not become free"):
        units.take({"a": 1}, 0.05)
    units.give_back(held)
    assert units.take({"a": 1}, 1.0) == {"a": [Unit("0")]}


@pytest.mark.parametrize("released", [True, False])
def test_memory_of_the_trial_before_is_waited_for(tmp_path, record, monkeypatch, released):
    """SRV-10: a GPU that stays full after its trial is the infrastructure's failure, not the next configuration's."""
    used = tmp_path / "used"
    used.write_text("100")
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ncat {used}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(gpus, "MEMORY_LIMIT_S", 2.0)
    objective = shim_objective({"SHIM_RECORD": str(record)}, pool=Pool("gpus", "gpu", "L4", 1, 1, 1.0))
    launcher = LocalLauncher(objective, registry=tmp_path / "registry")
    with launcher.deployment(ONE, tmp_path / "logs"):
        used.write_text("20000")
    if released:
        timer = threading.Timer(0.7, used.write_text, ["100"])
        timer.start()
        with launcher.deployment(ONE, tmp_path / "logs"):
            assert used.read_text() == "100"
        timer.join()
        return
    for _ in range(2):  # the units are free for another attempt
        with (
            pytest.raises(InfrastructureFailed, match="node_lost: GPU 0 has 20000 MiB in use"),
            launcher.deployment(ONE, tmp_path / "logs"),
        ):
            pass
    assert len(list(record.glob("*.json"))) == 1
