"""Split deployments over several nodes of a Ray cluster on one machine, with GPUs that are not there."""

import dataclasses
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster
from support.bench import Bench
from support.deployments import eventually, level, shim_objective, shims, told

from tuner.configuration import Configuration
from tuner.deployment import gpus
from tuner.deployment.ray import RayLauncher
from tuner.errors import InfrastructureFailed
from tuner.slo import Arrivals, Budget, Load, Measure, Objective, Pool, Verification
from tuner.space import Knob, Space

H100 = Pool("h100", "gpu", "H100-80GB", 3, 2, 4.0)
L4 = Pool("l4", "gpu", "L4", 2, 2, 1.0)
#: Two points that fit on four H100, and one that fits on the six of the objective file alone.
SPACE = Space(
    "split",
    (
        Knob("mode", "categorical", options=("disaggregated",)),
        Knob("decode_pool", "categorical", options=("l4",)),
        Knob("decode_replicas", "categorical", options=(2,)),
        Knob("prefill_replicas", "categorical", options=(1, 2, 6)),
    ),
)
SPLIT = {"mode": "disaggregated", "decode_pool": "l4"}
_SMALL = {"num_cpus": 1, "object_store_memory": 100 << 20}


@pytest.fixture(scope="module")
def used(tmp_path_factory) -> Path:
    """File with the MiB that a scripted `nvidia-smi` calls used, on every GPU of every node."""
    folder = tmp_path_factory.mktemp("bin")
    file = folder / "used"
    file.write_text("100\n100\n")
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\ncat {file}\n")
    (folder / "nvidia-smi").chmod(0o755)
    return file


@pytest.fixture(scope="module")
def cluster(used) -> Iterator[RayCluster]:
    """A head without GPUs, two nodes with two H100 each and one with two L4, each at an address of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_health_check_period_ms", "1000")  # a lost node is known in seconds
        patch.setenv("PATH", f"{used.parent}:{os.environ['PATH']}")
        made = RayCluster(initialize_head=True, head_node_args={**_SMALL, "num_gpus": 0, "include_dashboard": False})
        for address, kind in (("127.0.0.2", "H100"), ("127.0.0.3", "H100"), ("127.0.0.4", "L4")):
            add(made, address, kind)
        made.wait_for_nodes()
        ray.init(address=made.address, namespace="slo-tuner", log_to_driver=False, logging_level="ERROR")
        yield made
        ray.shutdown()
        made.shutdown()


def add(cluster: RayCluster, address: str, kind: str) -> object:
    """One more node with two GPUs of a type."""
    types = {f"accelerator_type:{kind}": 1}
    return cluster.add_node(**_SMALL, num_gpus=2, node_ip_address=address, resources=types, wait=False)


@pytest.fixture
def record(tmp_path) -> Path:
    """Directory in which shims write down what they got."""
    path = tmp_path / "record"
    path.mkdir()
    return path


@pytest.fixture
def launch(cluster, tmp_path, record):
    """Makes a launcher on the cluster of the module, and its objective."""

    def make(*, spread=(), bind="node", **env) -> tuple[RayLauncher, Objective]:
        goal = shim_objective({"SHIM_RECORD": str(record), **env}, pool=H100)
        pools = dataclasses.replace(goal.cluster, pools=(H100, L4), max_gpus=8, bind=bind, spread=spread)
        goal = dataclasses.replace(goal, cluster=pools)
        return RayLauncher(goal, study=str(tmp_path)), goal

    return make


def nodes(running) -> dict[str, str]:
    """The address of each process's node."""
    return {name: place["node"] for name, place in running.facts["placement"].items()}


def test_each_role_goes_to_its_pool_and_is_found_at_its_nodes_address(launch, tmp_path, record):
    """PD-04: prefill on an H100, decode on an L4; servers, side channels and the router have routable addresses."""
    launcher, goal = launch()
    with launcher.deployment(Configuration(SPLIT), tmp_path / "logs") as running:
        assert running.drive(level(goal)).counters["kv_transfer_share"] == 1
        where, (router,) = nodes(running), [each for each in running.commands if each["role"] == "router"]
        shown = {each["argv"][each["argv"].index("--host") + 1]: each["env"] for each in told(record)}
    assert where["prefill-0"] in {"127.0.0.2", "127.0.0.3"}
    assert where["decode-0"] == "127.0.0.4"
    assert where["router-0"] == where["prefill-0"]
    assert set(shown) == {where["prefill-0"], where["decode-0"]}
    assert all(env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == host for host, env in shown.items())
    for side in ("prefill", "decode"):
        url = router["argv"][router["argv"].index(f"--{side}") + 1]
        assert url.startswith(f"http://{where[f'{side}-0']}:")


@pytest.mark.parametrize(("spread", "different"), [((), 1), (("prefill",), 2)])
def test_a_role_is_packed_or_spread(launch, tmp_path, record, spread, different):
    """
    Two prefill engines share a node with two GPUs, or take one on each; decode is not asked to spread. What was held is
    free for the next deployment at once, or that would be spread over what is left.
    """
    launcher, _ = launch(spread=spread)
    shape = Configuration({**SPLIT, "prefill_replicas": 2, "decode_replicas": 2})
    with launcher.deployment(shape, tmp_path / "logs") as running:
        where = nodes(running)
        answered = [(record / f"{each['pid']}.requests").read_text().count("POST /v1/comp") for each in told(record)]
    assert min(answered) >= 2  # more than the token of its own readiness: every prefill engine has met a decode engine
    assert ray.available_resources()["GPU"] == ray.cluster_resources()["GPU"]
    assert len({where["prefill-0"], where["prefill-1"]}) == different
    assert where["decode-0"] == where["decode-1"] == "127.0.0.4"


@pytest.mark.parametrize(
    ("knobs", "bind", "said"),
    [
        ({**SPLIT, "decode_replicas": 3}, "node", "pool l4: needs 3 GPU, the cluster has 2"),
        ({**SPLIT, "prefill_tensor_parallel_size": 4}, "node", "pool h100: needs 4 GPU on one node"),
        (SPLIT, "loopback", "pools h100 and l4 have no node in common (cluster.bind is loopback); use `bind: node`"),
        ({**SPLIT, "decode_pool": "h100", "decode_replicas": 2}, "loopback", "use `bind: node` to spread"),
    ],
)
def test_what_does_not_fit_is_refused_before_launch(launch, record, knobs, bind, said):
    """RAY-04: per pool and per node, with the reason; nothing is started."""
    launcher, _ = launch(bind=bind)
    assert said in launcher.check(Configuration(knobs))
    with (
        pytest.raises(InfrastructureFailed, match="never schedulable"),
        launcher.deployment(Configuration(knobs), record),
    ):
        pass
    assert list(record.iterdir()) == []


@pytest.mark.parametrize("released", [True, False])
def test_memory_of_the_trial_before_is_waited_for(launch, tmp_path, used, monkeypatch, released):
    """SRV-10: a GPU of a node that stays full after its trial is the infrastructure's failure."""
    monkeypatch.setattr(gpus, "MEMORY_LIMIT_S", 3.0)
    launcher, _ = launch()
    one = Configuration({"pool": "l4", "tensor_parallel_size": 2})  # both GPUs of the one L4 node, each time
    with launcher.deployment(one, tmp_path / "logs"):
        used.write_text("20000\n20000\n")
    timer = threading.Timer(0.7, used.write_text, ["100\n100\n"])
    try:
        if released:
            timer.start()
            with launcher.deployment(one, tmp_path / "logs"):
                assert used.read_text().startswith("100")
            return
        with (
            pytest.raises(InfrastructureFailed, match=r"node_lost: .*GPU \d has 20000 MiB in use after 3 s"),
            launcher.deployment(one, tmp_path / "logs"),
        ):
            pass
        assert eventually(lambda: ray.available_resources().get("GPU") == ray.cluster_resources()["GPU"])
    finally:
        timer.cancel()
        used.write_text("100\n100\n")


def test_a_node_lost_in_a_study_costs_an_attempt_and_no_trial(launch, cluster, tmp_path, record):
    """
    RAY-06: a node of a split deployment goes away under load. The trial is measured elsewhere as its second attempt,
    the budget of trials is exact, what does not fit is rejected, and nothing is left on any node.
    """
    doomed = add(cluster, "127.0.0.5", "L4")
    cluster.wait_for_nodes()
    launcher, goal = launch(spread=("decode",), SHIM_TOKEN_S="0.03")
    goal = dataclasses.replace(
        goal,
        workload=dataclasses.replace(
            goal.workload,
            arrivals=Arrivals("closed_loop"),
            load=Load("concurrency", concurrency=8),
            measure=Measure(warmup_s=0.1, duration_s=0.5, min_requests=80),
        ),
        search=dataclasses.replace(goal.search, budget=Budget(trials=2), verify=Verification(1, 1)),
        baseline={"replicas": 1},
    )
    bench = Bench(tmp_path / "runs", goal, launcher, SPACE)
    killed = threading.Event()

    def kill() -> None:
        while not killed.wait(0.2):
            if busy(record, "127.0.0.5"):
                cluster.remove_node(doomed, allow_graceful=False)
                killed.set()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        result = bench.go()
    finally:
        lost = killed.is_set()
        killed.set()
        killer.join()
    assert lost
    counts = result["counts"]
    assert (counts["started"], counts["infra_failed"], counts["infra_failed_attempts"]) == (2, 0, 1)
    assert counts["rejected"] == 1
    entries = bench.ledger().trials()
    (again,) = [entry for entry in entries if entry.attempt == 2]
    assert again.outcome.state == "feasible"
    assert {again.outcome.facts["placement"][f"decode-{number}"]["node"] for number in (0, 1)} == {"127.0.0.4"}
    (refused,) = bench.ledger().rejected()
    assert "pool h100: needs 6 GPU, the cluster has 4" in str(refused)
    assert eventually(lambda: not shims(record))
    assert eventually(lambda: ray.available_resources().get("GPU") == 6)


def busy(record: Path, address: str) -> bool:
    """Whether the engine at an address has answered ten requests."""
    for each in told(record):
        requests = record / f"{each['pid']}.requests"
        if address in each["argv"] and requests.exists() and requests.read_text().count("POST /v1") >= 10:
            return True
    return False
