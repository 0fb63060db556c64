"""Tests of deployments on Ray: one machine, several nodes with GPUs that are not there."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster
from support.deployments import SHIM, alive, eventually, level, shim_objective, shims, told

from tuner.configuration import Configuration
from tuner.deployment import guardian
from tuner.deployment.ray import RayLauncher
from tuner.deployment.ray_actors import node_registry
from tuner.errors import ConfigurationFailed, InfrastructureFailed
from tuner.slo import Pool

ONE = Configuration({})
GPUS = Pool("gpus", "gpu", "H100-80GB", 2, 2, 3.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A node with two GPUs that are not there; tests add others."""
    made = RayCluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "num_gpus": 2, "include_dashboard": False, "object_store_memory": 100 << 20},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init(address=made.address, namespace="slo-tuner", log_to_driver=False, logging_level="ERROR")
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def record(tmp_path) -> Path:
    """Directory in which shims write down what they got."""
    path = tmp_path / "record"
    path.mkdir()
    return path


def launch(tmp_path, record, *, max_gpus=2, **env) -> tuple[RayLauncher, object]:
    """A launcher on the cluster of the module, and its objective."""
    objective = shim_objective({"SHIM_RECORD": str(record), **env}, pool=GPUS, max_gpus=max_gpus)
    return RayLauncher(objective, study=str(tmp_path)), objective


def test_roles_of_parallel_trials_see_disjoint_gpus(cluster, tmp_path, record):
    """Each engine sees the GPUs that Ray gave to it, no other; threads are not cut to one by Ray."""
    launcher, _ = launch(tmp_path, record)
    with launcher.deployment(ONE, tmp_path / "a"), launcher.deployment(ONE, tmp_path / "b"):
        seen = [each["env"]["CUDA_VISIBLE_DEVICES"] for each in told(record)]
        assert all("OMP_NUM_THREADS" not in each["env"] for each in told(record))
    assert len(seen) == 2
    assert all(len(each.split(",")) == 1 and each in {"0", "1"} for each in seen)


def test_loopback_deployment_stays_on_one_node_and_listens_there_only(cluster, tmp_path, record):
    """Every server is told to listen on 127.0.0.1; what does not fit on one node is refused at once."""
    launcher, _ = launch(tmp_path, record, max_gpus=4)
    assert launcher.parallel == 1
    assert "needs 4 GPU on one node" in launcher.check(Configuration({"tensor_parallel_size": 4}))
    began = time.monotonic()
    with (
        pytest.raises(InfrastructureFailed, match="never schedulable"),
        launcher.deployment(Configuration({"tensor_parallel_size": 8}), tmp_path),
    ):
        pass
    assert time.monotonic() - began < 5
    with launcher.deployment(Configuration({"tensor_parallel_size": 2}), tmp_path):
        (only,) = told(record)
    assert only["argv"][only["argv"].index("--host") + 1] == "127.0.0.1"
    assert sorted(only["env"]["CUDA_VISIBLE_DEVICES"].split(",")) == ["0", "1"]


def test_log_is_streamed_into_the_study(cluster, tmp_path, record):
    """The whole log of a noisy engine arrives, in order and once."""
    launcher, _ = launch(tmp_path, record, SHIM_MODE="noisy")
    with launcher.deployment(ONE, tmp_path / "logs"):
        pass
    text = (tmp_path / "logs" / "engine-0.log").read_text()
    numbers = [line.split()[0] for line in text.splitlines() if line.endswith("x" * 100)]
    assert numbers == [f"{number:06}" for number in range(10_000)]


@pytest.mark.parametrize(
    ("mode", "reason"), [("oom", "out_of_memory"), ("bad_flag", "bad_flag"), ("wrong_model", "bad_flag")]
)
def test_failed_start_has_its_cause_from_the_node(cluster, tmp_path, record, mode, reason):
    """The reason found on the node reaches the study as it is, and all units are free again."""
    launcher, _ = launch(tmp_path, record, SHIM_MODE=mode)
    with pytest.raises(ConfigurationFailed) as caught, launcher.deployment(ONE, tmp_path):
        pass
    assert caught.value.reason == reason
    assert shims(record) == []
    assert eventually(lambda: ray.available_resources().get("GPU") == ray.cluster_resources()["GPU"])


@pytest.mark.parametrize("how", ["ray.kill", "SIGKILL"])
def test_killed_actor_leaves_no_server(cluster, tmp_path, record, how):
    """ray.kill or SIGKILL of the actor: its stubborn engine is gone in 15 s, and the level ends as node_lost."""
    launcher, objective = launch(tmp_path, record, SHIM_MODE="stubborn")
    with launcher.deployment(ONE, tmp_path) as running:
        handle = running._handles["engine-0"]
        family = [*shims(record), *guardian.descendants(handle.pids()[1])]
        actor_pid = next(
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if b"ray::InstanceActor" in (path / "cmdline").read_bytes()
        )
        act = (lambda: ray.kill(handle._actor)) if how == "ray.kill" else (lambda: os.kill(actor_pid, signal.SIGKILL))
        timer = threading.Timer(1.0, act)
        timer.start()
        with pytest.raises((InfrastructureFailed, ConfigurationFailed)) as caught:
            running.drive(level(objective, rate_rps=5.0, requests=5000))
        assert caught.value.reason == "node_lost"
        assert eventually(lambda: not alive(family))
    assert eventually(lambda: list(node_registry(str(tmp_path)).iterdir()) == [])


def test_lost_node_is_the_infrastructures_fault_and_the_next_attempt_goes_elsewhere(cluster, tmp_path, record):
    """A node that goes away under load ends the level as node_lost; entering again uses what is left."""
    launcher, objective = launch(tmp_path, record)
    node = cluster.add_node(num_cpus=1, num_gpus=4, object_store_memory=100 << 20)
    cluster.wait_for_nodes()
    deployment = launcher.deployment(Configuration({"tensor_parallel_size": 4}), tmp_path)
    with pytest.raises(InfrastructureFailed) as caught, deployment as running:  # noqa: PT012
        timer = threading.Timer(1.0, cluster.remove_node, [node])
        timer.start()
        try:
            running.drive(level(objective, rate_rps=5.0, requests=5000))
        finally:
            timer.join()
    assert caught.value.reason == "node_lost"
    assert eventually(lambda: not shims(record))
    assert launcher.check(Configuration({"tensor_parallel_size": 4})) is not None
    with launcher.deployment(ONE, tmp_path) as running:
        assert running.drive(level(objective)).records


def test_wrong_address_is_told_within_seconds():
    """An address where nobody listens is a clear error, long before Ray gives up."""
    code = (
        "import sys;from support.deployments import shim_objective;from tuner.deployment.ray import RayLauncher\n"
        "from tuner.errors import InfrastructureFailed\n"
        "try:\n    RayLauncher(shim_objective(), address='127.0.0.1:1')\n"
        "except InfrastructureFailed as error:\n    print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SHIM.parents[1])}
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "node_lost: no Ray cluster at 127.0.0.1:1" in done.stdout
    assert time.monotonic() - began < 30


TUNER = """
import os, sys
from pathlib import Path
from support.deployments import level, shim_objective
from tuner.configuration import Configuration
from tuner.deployment.ray import RayLauncher
from tuner.slo import Pool
pool = Pool("gpus", "gpu", "L4", 1, 2, 1.0)
objective = shim_objective({"SHIM_RECORD": sys.argv[1], "SHIM_MODE": "stubborn"}, pool=pool)
launcher = RayLauncher(objective, study=sys.argv[2])
with launcher.deployment(Configuration({}), Path(sys.argv[2])) as running:
    import psutil
    here = psutil.Process()
    family = [here, *here.children(recursive=True)]
    listening = {c.laddr.ip for p in family for c in p.net_connections("tcp") if c.status == "LISTEN"}
    print("ready", *sorted(listening), flush=True)
    running.drive(level(objective, rate_rps=5.0, requests=10_000))
"""


def test_sigkill_of_the_tuner_leaves_nothing_on_the_nodes(tmp_path, record):
    """Its driver dies: servers, children and guardians go. All had listened on loopback, on GPUs of the driver."""
    command = [sys.executable, "-c", TUNER, str(record), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(SHIM.parents[1]), "CUDA_VISIBLE_DEVICES": "3,5"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd=tmp_path
    ) as tuner:
        said, *listening = tuner.stdout.readline().decode().split()
        assert said == "ready"
        assert listening
        assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
        assert len(shims(record)) >= 3
        assert {each["env"]["CUDA_VISIBLE_DEVICES"] for each in told(record)} <= {"3", "5"}
        tuner.kill()
        assert eventually(lambda: not shims(record), 15)
    assert eventually(lambda: list(node_registry(str(tmp_path)).iterdir()) == [])
