"""Tests of a real KV store behind a real engine: Mooncake's master and segment, its blocks found again."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.live_engine import VLLM, live_objective

from tuner.configuration import Configuration
from tuner.deployment.launch import Launch
from tuner.deployment.local import LocalLauncher
from tuner.load.plan import LevelPlan
from tuner.slo import Cache, Objective, Synthetic

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("engine_environment")]

#: The engine's own prefix cache is off, so that whatever is found was in the store.
STORED = Configuration({"kv_store": "mooncake", "kv_store_ram_gib": 1, "enable_prefix_caching": False})


def store_objective() -> Objective:
    """Prompts of 600 tokens, of which 512 are the same for all."""
    made = live_objective()
    return replace(
        made,
        workload=replace(made.workload, source=Synthetic(600, 8, shared_prefix_tokens=512)),
        engine=replace(made.engine, stores={"mooncake": (str(VLLM.with_name("mooncake_master")),)}),
    )


def plan_for(number: int, cache: Cache) -> LevelPlan:
    """About 30 measured requests at a low rate."""
    objective = store_objective()
    workload = replace(objective.workload, cache=cache)
    return LevelPlan(objective.model, workload, objective.slo, number, 1, 3.0, None, 30)


@pytest.fixture(scope="module")
def stored(engine_environment, tmp_path_factory) -> Iterator[Launch]:
    """One engine and a store of its own."""
    directory = tmp_path_factory.mktemp("stored")
    launcher = LocalLauncher(store_objective(), registry=directory / "registry")
    with launcher.deployment(STORED, directory / "logs") as running:
        yield running
    assert list((directory / "registry").iterdir()) == []


def test_shared_beginnings_come_from_the_store(stored):
    """The first request computes the prefix, the others take whole blocks of it from the store."""
    data = stored.drive(plan_for(1, Cache("cold")))
    assert {record.status for record in data.records if record.phase == "measured"} == {"ok"}
    assert data.counters["store_hit_share"] > 0.5
    assert data.counters["mooncake_store_operation_bytes_total.get"] > 0
    assert data.counters.get("store_failed_keys", 0) == 0


def test_a_cold_level_empties_the_store_and_a_steady_one_does_not(stored):
    """KV-04: the same prompts again: all blocks are found when the store is left alone, fewer after it was emptied."""
    warm = stored.drive(plan_for(1, Cache("steady")))
    cold = stored.drive(plan_for(1, Cache("cold")))
    assert warm.counters["store_hit_tokens"] > cold.counters["store_hit_tokens"] > 0


def test_commands_are_kept_whole(stored):
    """Engine and store stand in commands.json with the addresses that they really had."""
    commands = {str(each["name"]): each for each in stored.commands}
    assert set(commands) == {"engine-0", "store-0", "store-1"}
    assert "${" not in json.dumps(commands)
