"""Tests of a real KV store behind a real engine: Mooncake's master and segment, its blocks found again."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.live_engine import live_objective, stored, with_store

from tuner.deployment.launch import Launch
from tuner.deployment.local import LocalLauncher
from tuner.load.plan import LevelPlan
from tuner.slo import Cache, Objective, Synthetic

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("engine_environment")]


def store_objective(kind: str) -> Objective:
    """Prompts of 600 tokens, of which 512 are the same for all."""
    made = live_objective()
    return with_store(
        replace(made, workload=replace(made.workload, source=Synthetic(600, 8, shared_prefix_tokens=512))), kind
    )


def plan_for(number: int, cache: Cache) -> LevelPlan:
    """About 30 measured requests at a low rate."""
    objective = store_objective("mooncake")
    workload = replace(objective.workload, cache=cache)
    return LevelPlan(objective.model, workload, objective.slo, number, 1, 3.0, None, 30)


@pytest.fixture(scope="module")
def running(engine_environment, tmp_path_factory) -> Iterator[Launch]:
    """One engine and a store of its own."""
    directory = tmp_path_factory.mktemp("stored")
    launcher = LocalLauncher(store_objective("mooncake"), registry=directory / "registry")
    with launcher.deployment(stored("mooncake"), directory / "logs") as made:
        yield made
    assert list((directory / "registry").iterdir()) == []


def test_shared_beginnings_come_from_the_store(running):
    """The first request computes the prefix, the others take whole blocks of it from the store."""
    data = running.drive(plan_for(1, Cache("cold")))
    assert {record.status for record in data.records if record.phase == "measured"} == {"ok"}
    assert data.counters["store_hit_share"] > 0.5
    assert data.counters["mooncake_store_operation_bytes_total.load_get"] > 0
    assert data.counters.get("store_failed_keys", 0) == 0


def test_a_cold_level_empties_the_store_and_a_steady_one_does_not(running):
    """KV-04: the same prompts again: all blocks are found when the store is left alone, fewer after it was emptied."""
    warm = running.drive(plan_for(1, Cache("steady")))
    cold = running.drive(plan_for(1, Cache("cold")))
    assert warm.counters["store_hit_tokens"] > cold.counters["store_hit_tokens"] > 0


def test_commands_are_kept_whole(running):
    """Engine and store stand in commands.json with the addresses that they really had."""
    commands = {str(each["name"]): each for each in running.commands}
    assert set(commands) == {"engine-0", "store-0", "store-1"}
    assert "${" not in json.dumps(commands)


@pytest.mark.accept
def test_lmcache_is_filled_and_hit_in_every_level(tmp_path):
    """The server that a deployment starts; it has no reset, and yet each cold level has to fill it again itself."""
    launcher = LocalLauncher(store_objective("lmcache"), registry=tmp_path / "registry")
    with launcher.deployment(stored("lmcache"), tmp_path / "logs") as made:
        levels = [made.drive(plan_for(number, Cache("cold"))) for number in (1, 2)]
        facts = made.facts
    shares = [level.counters["store_hit_share"] for level in levels]
    print(f"\nlmcache: ready in {facts['ready_s_by_process']} s, {[round(share, 3) for share in shares]} of tokens hit")
    for level in levels:
        assert {record.status for record in level.records if record.phase == "measured"} == {"ok"}
        computed = level.counters["prompt_tokens_by_source_total.local_compute"]
        assert 600 <= computed < 600 * len(level.records)
    assert min(shares) > 0.5
    assert list((tmp_path / "registry").iterdir()) == []
