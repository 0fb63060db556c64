"""Whether the counters of a level prove what its configuration claims."""

from dataclasses import replace

import pytest
from support.deployments import shim_objective

from tuner.configuration import Configuration
from tuner.deployment import proof
from tuner.deployment.proof import Claim
from tuner.load.plan import LevelData, LevelPlan
from tuner.load.shape import level_requests
from tuner.records import Record
from tuner.slo import Synthetic

SPLIT = Claim(transfer=True)
STORED = Claim(store="mooncake")
BOTH = Claim(transfer=True, store="mooncake", storing_role="prefill")
SOURCE = "decode.prompt_tokens_by_source_total"


def level(counters, *, shared=0, prefixes=1, count=40, status="ok"):
    """A level of `count` requests of 600 tokens, `shared` of them the same for all, and what the engines counted."""
    goal = shim_objective()
    workload = replace(goal.workload, source=Synthetic(600, 4, shared, prefixes))
    plan = LevelPlan("m", workload, goal.slo, 1, 1, 10.0, None, 10)
    record = Record("r", 0.0, 0.0, 0.1, 0.2, 600, 600, 4, 4, "usage", (), status, "", "measured")
    return LevelData(plan, (record,) * count, 0.0, 1.0, 10.0, counters=counters)


def refuted(claimed, data):
    """Reason of the failure, or None."""
    shapes = level_requests(data.plan, None, len(data.records))
    failure = proof.refuted(claimed, data, shapes)
    return None if failure is None else failure.reason


def split(moved, computed, cached=0):
    """Decode's prompt tokens by source."""
    return {
        f"{SOURCE}.external_kv_transfer": moved,
        f"{SOURCE}.local_compute": computed,
        f"{SOURCE}.local_cache_hit": cached,
    }


@pytest.mark.parametrize(
    ("counters", "reason"),
    [
        (split(1000.0, 0.0), None),
        (split(950.0, 50.0), None),
        (split(949.0, 51.0), "pd_not_effective"),
        (split(0.0, 1000.0), "pd_not_effective"),
        (split(10.0, 0.0, 990.0), None),
        (split(0.0, 0.0, 1000.0), None),
        (split(0.0, 0.0), "pd_not_effective"),
        ({}, "pd_not_effective"),
    ],
    ids=["all", "95-percent", "below", "none", "cached", "all-cached", "decode-unused", "no-counters"],
)
def test_a_transfer_is_proven_by_where_decode_has_its_prompts_from(counters, reason):
    """At least 95 % of what decode did not have already came by transfer; what it had already is no recomputation."""
    assert refuted(SPLIT, level(counters)) == reason


def test_a_level_without_an_answer_proves_nothing():
    """Where every request failed, the records tell; the transfer is not blamed."""
    assert refuted(SPLIT, level({}, status="http_502")) is None


@pytest.mark.parametrize(
    ("shared", "hits", "own", "reason"),
    [
        (512, 0, 0, "store_not_effective"),
        (512, 256, 0, None),
        (512, 0, 39 * 512, None),
        (512, 0, 30 * 512, "store_not_effective"),
        (200, 0, 0, None),
        (0, 0, 0, None),
    ],
    ids=["never-hit", "hit", "engine-had-all", "engine-had-some", "less-than-a-block", "nothing-shared"],
)
def test_a_store_is_proven_by_hits_where_there_can_be_some(shared, hits, own, reason):
    """No hits are a fault only if requests share whole blocks that the engine's own cache did not have."""
    counters = {"external_prefix_cache_hits_total": hits, "prefix_cache_hits_total": own}
    assert refuted(STORED, level(counters, shared=shared)) == reason


def test_too_few_requests_prove_nothing_against_a_store():
    """A probe of five requests, or forty prefixes that come once each, are no evidence."""
    assert refuted(STORED, level({}, shared=512, count=5)) is None
    assert refuted(STORED, level({}, shared=512, prefixes=40)) is None


def test_beside_a_transfer_the_store_is_that_of_prefill():
    """What decode was given by transfer counts as external too, and is no hit of the store."""
    moved = {**split(1000.0, 0.0), "external_prefix_cache_hits_total": 1000.0}
    assert refuted(BOTH, level({**moved, "prefill.external_prefix_cache_hits_total": 0.0}, shared=512)) == (
        "store_not_effective"
    )
    assert refuted(BOTH, level({**moved, "prefill.external_prefix_cache_hits_total": 512.0}, shared=512)) is None


def test_reusable_tokens_are_whole_blocks_seen_before():
    """Forty requests with two prefixes of 512 tokens in turn: 38 meet one again, 2 blocks of 256 each time."""
    data = level({}, shared=512, prefixes=2)
    assert proof.reusable(level_requests(data.plan, None, 40)) == (38, 38 * 512)


@pytest.mark.parametrize(("stores", "requests"), [(1, 38), (2, 36), (20, 0)])
def test_stores_that_engines_do_not_share_hit_less(stores, requests):
    """Two prefixes come twenty times each: however they are routed, all but one for each store meet one again."""
    shapes = level_requests(level({}, shared=512, prefixes=2).plan, None, 40)
    assert proof.reusable(shapes, stores) == (requests, requests * 512)


def test_engines_without_a_common_store_are_not_blamed_for_prefixes_that_come_once_to_each():
    """Twenty prefixes come twice: two engines may have had each once, while a store for both must have hit."""
    missed = level({}, shared=512, prefixes=20)
    assert refuted(STORED, missed) == "store_not_effective"
    assert refuted(replace(STORED, stores=2), missed) is None


def test_claims_follow_the_configuration():
    """An aggregated engine claims nothing; a store is used by the engines that prefill."""
    assert proof.claim(Configuration({})) == Claim()
    assert proof.claim(Configuration({"kv_store": "none", "kv_store_ram_gib": 4})) == Claim()
    knobs = {"mode": "disaggregated", "kv_store": "mooncake", "kv_store_ram_gib": 4}
    assert proof.claim(Configuration(knobs)) == BOTH
    knobs = {"kv_store": "lmcache", "replicas": 2, "data_parallel_size": 2, "tensor_parallel_size": 2}
    assert proof.claim(Configuration(knobs)) == Claim(store="lmcache")
    assert proof.claim(Configuration({**knobs, "lmcache_mode": "in_process"})) == Claim(store="lmcache", stores=4)


def test_figures_have_units_and_leave_out_what_was_not_counted():
    """10 transfers of 20 ms and 64 MiB together: 2 ms and 6.4 MiB each; no counter, no figure."""
    counters = {
        **split(900.0, 100.0),
        "decode.nixl_xfer_time_seconds_sum": 0.02,
        "decode.nixl_xfer_time_seconds_count": 10.0,
        "decode.nixl_bytes_transferred_sum": 64.0 * 2**20,
        "decode.nixl_bytes_transferred_count": 10.0,
        "prefill.external_prefix_cache_hits_total": 25.0,
        "prefill.external_prefix_cache_queries_total": 100.0,
        "mooncake_store_operation_time_seconds_sum.load_get": 0.5,
        "mooncake_store_operation_time_seconds_count.load_get": 5.0,
    }
    found = proof.figures(BOTH, counters)
    assert found == pytest.approx(
        {
            "kv_transfer_share": 0.9,
            "kv_transfer_mean_ms": 2.0,
            "kv_transfer_mean_mib": 6.4,
            "store_hit_share": 0.25,
            "store_hit_tokens": 25.0,
            "store_load_mean_ms": 100.0,
        }
    )
    assert proof.figures(Claim(), counters) == {}
    assert proof.figures(BOTH, {}) == {}
