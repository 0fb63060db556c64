"""Split deployments and stores from start to end, with scripted engines, routers and stores on this machine."""

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.deployments import alive, eventually, level, shim_objective, shims

from tuner.configuration import Configuration
from tuner.deployment import guardian, vllm
from tuner.deployment.instance import Instance, Place
from tuner.deployment.launch import DiedUnderLoad
from tuner.deployment.local import LocalLauncher
from tuner.deployment.process import Settings
from tuner.errors import ConfigurationFailed, InfrastructureFailed
from tuner.slo import Cache, Pool, Synthetic

SPLIT = Configuration({"mode": "disaggregated"})
STORED = Configuration({"kv_store": "lmcache", "kv_store_ram_gib": 1})
BOTH = Configuration({"mode": "disaggregated", "kv_store": "lmcache", "kv_store_ram_gib": 1})
#: Every request shares 512 of its 600 tokens with all others.
SHARED = Synthetic(input_tokens=600, output_tokens=4, shared_prefix_tokens=512)


@pytest.fixture
def record(tmp_path) -> Path:
    """Directory in which engines write down what they got."""
    path = tmp_path / "record"
    path.mkdir()
    return path


@pytest.fixture
def deploy(tmp_path, record):
    """Makes a deployment and its objective; at the end nothing of it may be left."""

    def make(configuration, *, source=None, start_timeout_s=20.0, router="ok", store="ok", **env):
        if len(os.sched_getaffinity(0)) < 2:
            pytest.skip("two engines need two cores")
        made = shim_objective(
            {"SHIM_RECORD": str(record), **env},
            max_gpus=2,
            start_timeout_s=start_timeout_s,
            router=router,
            store=store,
        )
        if source is not None:
            made = replace(made, workload=replace(made.workload, source=source))
        launcher = LocalLauncher(made, registry=tmp_path / "registry")
        return launcher.deployment(configuration, tmp_path / "logs"), made

    yield make
    assert eventually(lambda: not shims(record))
    assert list((tmp_path / "registry").iterdir()) == []


def order(running, record) -> list[str]:
    """Names of the processes by the pid of their servers."""
    return sorted(running._handles, key=lambda name: running._handles[name].pids()[0])


def test_a_split_is_driven_through_its_router_and_proven(deploy, record):
    """Prefill got every prompt, decode took it over; transfer times are among the level's counters."""
    deployment, goal = deploy(SPLIT)
    with deployment as running:
        data = running.drive(level(goal))
        assert {each.status for each in data.records if each.phase == "measured"} == {"ok"}
        assert set(running._handles) == {"prefill-0", "decode-0", "router-0"}
    assert data.counters["kv_transfer_share"] == 1
    assert data.counters["kv_transfer_mean_ms"] == pytest.approx(2)
    assert data.counters["prefill.prompt_tokens_by_source_total.external_kv_transfer"] == 0


def test_store_then_engines_then_router(deploy, record):
    """KV-06: what others depend on is ready before they start."""
    deployment, _ = deploy(BOTH)
    with deployment as running:
        names = order(running, record)
    assert names[0] == "store-0"
    assert names[-1] == "router-0"
    assert next(iter(running.facts["ready_s_by_process"])) == "store-0"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"SHIM_MODE_DECODE": "recompute"}, "0 of"),
        ({"router": "skip"}, "0 of"),
        ({"router": "prefill_only"}, "no prompt token"),
    ],
    ids=["decode-recomputes", "prefill-left-out", "decode-left-out"],
)
def test_a_transfer_that_does_not_happen_is_never_scored(deploy, settings, said):
    """PD-01: answers are fine and fast, and nothing went over: pd_not_effective, with the counters."""
    deployment, goal = deploy(SPLIT, **settings)
    with deployment as running, pytest.raises(ConfigurationFailed) as caught:
        running.drive(level(goal))
    assert caught.value.reason == "pd_not_effective"
    assert said in caught.value.cause


def test_sides_that_disagree_are_known_at_the_start(deploy, monkeypatch):
    """PD-05: each side answers alone, nothing answers through the router: pd_not_effective, with decode's own words."""
    monkeypatch.setattr(vllm, "_ROUTER_LIMIT_S", 2.0)
    deployment, _ = deploy(SPLIT, SHIM_MODE_DECODE="disagree")
    began = time.monotonic()
    with pytest.raises(ConfigurationFailed) as caught, deployment:
        pass
    assert caught.value.reason == "pd_not_effective"
    assert "block size 32" in caught.value.cause
    assert time.monotonic() - began < 15


def test_a_side_channel_that_is_taken_is_tried_elsewhere(deploy):
    """PD-03: a bind that fails is the infrastructure's fault and repeated with other ports, three times at most."""
    deployment, _ = deploy(SPLIT, SHIM_MODE_PREFILL="port_taken")
    with pytest.raises(InfrastructureFailed) as caught, deployment:
        pass
    assert caught.value.reason == "port_taken"


@pytest.mark.parametrize(
    ("victim", "kind", "reason"),
    [
        ("prefill-0", ConfigurationFailed, "role_lost"),
        ("decode-0", ConfigurationFailed, "role_lost"),
        ("router-0", ConfigurationFailed, "server_died"),
        ("store-0", InfrastructureFailed, "store_unavailable"),
    ],
)
def test_any_death_under_load_ends_the_level_in_seconds(deploy, victim, kind, reason):
    """PD-09, KV-03: noticed within 5 s, named, and nothing of the half that is left goes on."""
    deployment, goal = deploy(BOTH)
    killed: list[float] = []

    def kill(pid):
        killed.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)

    with deployment as running:
        server, keeper = running._handles[victim].pids()
        family = [each for handle in running._handles.values() for each in guardian.descendants(handle.pids()[1])]
        assert keeper
        timer = threading.Timer(1.0, kill, [server])
        timer.start()
        with pytest.raises(kind) as caught:
            running.drive(level(goal, rate_rps=20.0, requests=2000))
        assert time.monotonic() - killed[0] < 5
    assert caught.value.reason == reason
    assert victim in caught.value.cause
    if kind is ConfigurationFailed:
        assert isinstance(caught.value, DiedUnderLoad)
        assert caught.value.data.stopped == "server_died"
    assert eventually(lambda: not alive(family))


def test_a_dying_prefill_reaches_the_records_as_failed_requests(deploy):
    """PD-02: whatever prefill could not do is an error for its client, not an empty answer."""
    deployment, goal = deploy(SPLIT, SHIM_DIE_AFTER_PREFILL="20")
    with deployment as running, pytest.raises(DiedUnderLoad) as caught:
        running.drive(level(goal, rate_rps=40.0, requests=2000))
    assert caught.value.reason == "role_lost"
    classes = {each.status for each in caught.value.data.records}
    assert "empty" not in classes
    assert classes - {"ok", "unfinished"}


@pytest.mark.parametrize(("store", "limit_s"), [("hang", 1.5), ("exit", 20.0)])
def test_a_store_that_does_not_come_up_is_no_fault_of_the_configuration(deploy, store, limit_s):
    """KV-03: store_unavailable within its limit, and no engine was started for it."""
    deployment, _ = deploy(STORED, store=store, start_timeout_s=limit_s)
    began = time.monotonic()
    with pytest.raises(InfrastructureFailed) as caught, deployment:
        pass
    assert caught.value.reason == "store_unavailable"
    assert "store-0" in caught.value.cause
    assert time.monotonic() - began < 10


def test_a_store_lost_while_engines_start_ends_the_start(deploy):
    """KV-06: engines that wait for a store that is gone are not waited for until their own limit."""
    deployment, _ = deploy(STORED, SHIM_MODE="never_bind", start_timeout_s=60.0)

    def kill():
        assert eventually(lambda: "engine-0" in deployment._commands)
        os.kill(deployment._handles["store-0"].pids()[0], signal.SIGKILL)

    threading.Thread(target=kill).start()
    began = time.monotonic()
    with pytest.raises(InfrastructureFailed) as caught, deployment:
        pass
    assert caught.value.reason == "store_unavailable"
    assert time.monotonic() - began < 20


def test_a_store_without_hits_is_not_scored_where_there_could_be_some(deploy):
    """KV-01: every request shares its beginning, neither the engine nor the store had it: store_not_effective."""
    deployment, goal = deploy(STORED, source=SHARED)
    with deployment as running, pytest.raises(ConfigurationFailed) as caught:
        running.drive(level(goal))
    assert caught.value.reason == "store_not_effective"
    assert "lmcache" in caught.value.cause


def test_a_store_with_hits_is_scored_and_so_is_one_that_could_have_none(deploy):
    """Hits are told as a share of what was asked; unique prompts prove nothing against a store."""
    deployment, goal = deploy(STORED, source=SHARED, SHIM_HITS="0.5")
    with deployment as running:
        assert running.drive(level(goal)).counters["store_hit_share"] == pytest.approx(0.5)
    deployment, goal = deploy(STORED)
    with deployment as running:
        assert running.drive(level(goal)).counters["store_hit_share"] == 0


def test_a_cold_level_resets_engines_and_store(deploy, record):
    """KV-04: with a store its content goes too; without one only the engines' own cache."""
    deployment, goal = deploy(BOTH)
    with deployment as running:
        running.drive(level(goal))
        running.drive(replace(level(goal, 2), workload=replace(goal.workload, cache=Cache("steady"))))
    asked = [line for path in record.glob("*.requests") for line in path.read_text().splitlines()]
    resets = [line for line in asked if "reset_prefix_cache" in line]
    assert resets == ["POST /reset_prefix_cache?reset_external=true"] * 2


def test_port_blocks_of_many_engines_are_disjoint(tmp_path):
    """PD-03: 2 prefill and 2 decode engines of two ranks each reserve blocks that share no port."""
    pool = Pool("cpu", "cpu", "slot", 1, 8, 0.1)
    goal = shim_objective(pool=pool, max_gpus=8)
    knobs = {"mode": "disaggregated", "tensor_parallel_size": 2, "prefill_replicas": 2, "decode_replicas": 2}
    settings, place = Settings(tmp_path / "r"), Place("127.0.0.1")
    instances = [
        (spec, Instance(spec, place, tmp_path / spec.name, settings)) for spec in vllm.specs(Configuration(knobs), goal)
    ]
    try:
        used = [
            port
            for spec, instance in instances
            for need in spec.ports
            for port in range(instance.address.ports[need.name], instance.address.ports[need.name] + need.count)
        ]
        assert len(used) == len(set(used)) == 4 * (1 + 2) + 2
    finally:
        for _, instance in instances:
            instance.stop()
