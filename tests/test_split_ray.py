"""A split deployment with a store through Ray: the same specs, an actor for each process, the same proof."""

import os
from dataclasses import replace

import pytest
from support.deployments import eventually, level, shim_objective, shims

from tuner.configuration import Configuration
from tuner.deployment.ray import RayLauncher
from tuner.slo import Pool

BOTH = Configuration({"mode": "disaggregated", "kv_store": "lmcache", "kv_store_ram_gib": 1})


def test_ray_places_sides_router_and_store(tmp_path):
    """Each side has a slot of its own, router and store none; the transfer is proven; too large a shape is refused."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two engines need two cores")
    record = tmp_path / "record"
    record.mkdir()
    goal = shim_objective({"SHIM_RECORD": str(record)}, max_gpus=2)
    launcher = RayLauncher(goal, study=str(tmp_path))
    try:
        with launcher.deployment(BOTH, tmp_path / "logs") as running:
            data = running.drive(level(goal))
            cores = {name: tuple(place["cores"]) for name, place in running.facts["placement"].items()}
        too_large = replace(BOTH, knobs={**BOTH.knobs, "decode_replicas": 2})
        assert "needs 3 slot" in launcher.check(too_large)
    finally:
        launcher.close()
    assert data.counters["kv_transfer_share"] == 1
    assert set(cores) == {"store-0", "prefill-0", "decode-0", "router-0"}
    assert len(cores["prefill-0"]) == len(cores["decode-0"]) == 1
    assert cores["prefill-0"] != cores["decode-0"]
    assert cores["router-0"] == cores["store-0"] == ()
    assert (tmp_path / "logs" / "store-0.log").exists()
    assert eventually(lambda: not shims(record))


def test_slots_without_cores_hold_more_engines_than_there_are_cores(tmp_path):
    """2P1D on any machine: each engine has a slot, none is pinned, the transfer is proven."""
    record = tmp_path / "record"
    record.mkdir()
    goal = shim_objective({"SHIM_RECORD": str(record)}, pool=Pool("cpu", "cpu", "slot", 1, 3, 0.1, 0), max_gpus=3)
    launcher = RayLauncher(goal, study=str(tmp_path))
    try:
        shape = Configuration({"mode": "disaggregated", "prefill_replicas": 2})
        with launcher.deployment(shape, tmp_path / "logs") as running:
            data = running.drive(level(goal))
            cores = {name: place["cores"] for name, place in running.facts["placement"].items()}
    finally:
        launcher.close()
    assert data.counters["kv_transfer_share"] == 1
    assert cores == {name: [] for name in ("prefill-0", "prefill-1", "decode-0", "router-0")}
    assert eventually(lambda: not shims(record))
