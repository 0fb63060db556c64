"""The KV store: tiers by hand, what a hit is worth, then reference and kernel alike whatever is sent."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.objectives import H100, objective
from support.simulated import fitted, limits_strategy, workloads

from tuner.configuration import Configuration
from tuner.simulator import storing
from tuner.simulator.cluster import Cluster
from tuner.simulator.engine import Patience
from tuner.simulator.filling import fill
from tuner.simulator.fleet import Fleet, Group, StoreKind, make_engines
from tuner.simulator.router import POLICIES, Router
from tuner.simulator.scheduler import EngineLimits, Link, Request
from tuner.simulator.split import SplitCluster
from tuner.simulator.steptime import Linear
from tuner.simulator.store import Store, Tier

STEP = Linear(0.31, token_s=0.013, weights_s=0.05, pair_s=0.0007, context_s=0.0011, extra_token_s=0.003)
TINY = EngineLimits(max_num_batched_tokens=16, max_num_seqs=8, blocks=100, block_size=4)
RAM = Tier("ram", 4, 0.5, 0.01)
SSD = Tier("ssd", 3, 1.0, 0.1)


def test_the_end_of_the_oldest_prompt_goes_first():
    """Room for four blocks: the unnamed ones of a prompt go first, then its last named one; a use makes it young."""
    store = Store([RAM])
    store.put((1, 2), 1)
    store.put((3,), 0)
    assert store.find((1, 2)) == [2]
    store.put((4,), 0)
    assert (store.find((1, 2)), store.used) == ([2], [4])
    store.put((5,), 0)
    assert (store.find((1, 2)), store.find((2,))) == ([1], [0])
    store.put((1,), 0)
    store.put((6, 7, 8), 0)
    assert [store.find((key,)) for key in (1, 3, 6, 8)] == [[1], [0], [1], [1]]


def test_a_full_tier_hands_down_and_a_used_block_comes_back_up():
    """What RAM has no room for goes to the SSD, and from there away; a block that is read is in RAM again."""
    store = Store([RAM, SSD])
    store.put((1, 2, 3), 3)
    assert store.used == [4, 2]
    store.put((4, 5, 6, 7), 0)
    assert (store.used, store.find((1, 2, 3))) == ([4, 3], [0, 3])
    store.put((2,), 0)
    assert store.find((2,)) == [1, 0]
    assert store.used == [4, 3]
    assert store.read_s((2, 1), 4) == pytest.approx(0.5 + 8 * 0.01 + 1.0 + 4 * 0.1)


@pytest.mark.parametrize("compiled", [False, True])
def test_stored_blocks_are_loaded_before_the_rest_is_computed(compiled):
    """
    The engine's cache has forgotten the prompt, the store has not: 12 of 14 tokens come in 0.5 + 12 × 0.01 s, and a
    step computes the other two.
    """
    group = Group("engine", 1, replace(TINY, blocks=6), Linear(1.0), store=StoreKind((replace(RAM, blocks=99),), False))
    (engine,) = make_engines(group, compiled=compiled)
    requests = [
        Request(0, 14, 1, keys=(1, 2, 3)),
        Request(1, 20, 1, keys=(), scheduled_s=10.0),
        Request(2, 14, 1, keys=(1, 2, 3), scheduled_s=20.0),
    ]
    Cluster([engine]).open_loop(requests, lambda _: False)
    assert [request.loaded_tokens for request in requests] == [0, 0, 12 - requests[2].hit_tokens]
    assert engine.chunks(requests[2])[0][0] == pytest.approx(20.0 + 0.5 + 0.01 * requests[2].loaded_tokens + 1.0)
    assert engine.totals.store_queries == 14 + 20 + 14 - requests[2].hit_tokens


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("shared", "loaded"), [(True, 12), (False, 0)])
def test_a_shared_store_serves_what_another_engine_has_computed(compiled, shared, loaded):
    """The second engine never saw the prompt."""
    group = Group("engine", 2, TINY, STEP, store=StoreKind((replace(RAM, blocks=99),), shared))
    requests = [Request(0, 14, 3, keys=(1, 2, 3)), Request(1, 14, 3, keys=(1, 2, 3), scheduled_s=10.0)]
    Cluster(make_engines(group, compiled=compiled), coupled=shared).open_loop(requests, lambda _: False)
    assert requests[1].loaded_tokens == loaded


@pytest.mark.parametrize(("mode", "shared", "blocks"), [("server", True, 64), ("in_process", False, 32)])
def test_lmcache_in_process_is_each_engines_own(mode, shared, blocks):
    """64 blocks of RAM: one store across the network for both engines, or half of it beside each, which is nearer."""
    knobs = {"kv_store": "lmcache", "lmcache_mode": mode, "kv_store_ram_gib": 1, "replicas": 2}
    configuration = Configuration(knobs)
    (role,) = configuration.roles
    found = storing.store_of(configuration, role, objective(), H100, token_bytes=2**20, block_size=16)
    assert found is not None
    (tier,) = found.tiers
    assert (found.shared, tier.blocks) == (shared, blocks)
    assert (tier.latency_s > storing.HOST_LATENCY_S) is shared
    assert (tier.token_s > 2**20 / storing.HOST_BYTES_PER_S["gpu"]) is shared


@pytest.mark.parametrize("compiled", [False, True])
def test_a_store_serves_engines_without_a_prefix_cache(compiled):
    """The engine keeps nothing of the first prompt; the store is asked for all of the second, and has 12 tokens."""
    limits = replace(TINY, enable_prefix_caching=False)
    group = Group("engine", 1, limits, Linear(1.0), store=StoreKind((replace(RAM, blocks=99),), shared=False))
    (engine,) = make_engines(group, compiled=compiled)
    requests = [Request(0, 14, 1, keys=(1, 2, 3)), Request(1, 14, 1, keys=(1, 2, 3), scheduled_s=10.0)]
    Cluster([engine]).open_loop(requests, lambda _: False)
    assert [(request.hit_tokens, request.loaded_tokens) for request in requests] == [(0, 0), (0, 12)]
    assert engine.chunks(requests[1])[0][0] == pytest.approx(10.0 + 0.5 + 12 * 0.01 + 1.0)
    assert (engine.totals.store_queries, engine.totals.prefix_queries) == (28, 0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("caching", [False, True])
def test_filling_reaches_the_store_too(compiled, caching):
    """
    Three prompts of 5 blocks fill an engine that has room for 10 and a store that has for 14: of the first one, the
    engine has nothing and the store the beginning, whose own part went first.
    """
    limits = replace(TINY, blocks=10, enable_prefix_caching=caching)
    group = Group("engine", 1, limits, STEP, store=StoreKind((replace(RAM, blocks=14),), shared=False))
    (engine,) = make_engines(group, compiled=compiled)
    for family in (10, 20, 30):
        engine.warm(Request(family, 21, 2, keys=(family, family + 1, family + 2)))
    assert engine.totals.store_queries == engine.totals.loaded_tokens == 0
    request = Request(0, 14, 1, keys=(10, 11, 12))
    Cluster([engine]).open_loop([request], lambda _: False)
    assert (request.hit_tokens, request.loaded_tokens) == (0, 12)


def test_caches_are_filled_through_the_router():
    """Four at a time, by the least load: both engines get two of four beginnings, and the router knows which."""
    engines, router = make_engines(Group("engine", 2, TINY, STEP)), Router("prefix_aware", 4)
    fill([Request(n, 13, 2, keys=(10 * n, 10 * n + 1, 10 * n + 2)) for n in range(4)], engines, router, concurrency=4)
    requests = [Request(n, 13, 2, keys=(10 * n, 10 * n + 1, 10 * n + 2), scheduled_s=9.0 * n) for n in (3, 1, 0, 2)]
    Cluster(engines, router=router).open_loop(requests, lambda _: False)
    assert [request.hit_tokens for request in requests] == [12] * 4
    assert [request.engine for request in requests] == [1, 1, 0, 0]


def test_routing_by_prefix_keeps_a_family_on_its_engine():
    """Two families on two engines: by prefix each meets its own blocks; at random it often does not."""
    hits = {}
    for policy in ("prefix_aware", "random"):
        requests = [
            Request(number, 13, 2, keys=tuple(10 * (number % 2) + place for place in range(3)), scheduled_s=number)
            for number in range(40)
        ]
        engines = make_engines(Group("engine", 2, replace(TINY, blocks=8), STEP))
        Cluster(engines, router=Router(policy, 4)).open_loop(requests, lambda _: False)
        hits[policy] = sum(request.hit_tokens for request in requests)
    assert hits["prefix_aware"] == 38 * 12
    assert hits["random"] < hits["prefix_aware"]


def test_routing_by_prefix_gives_way_when_loads_are_far_apart():
    """A hundred at once of one family: past 64 more than the other has, the other gets some."""
    engines = make_engines(Group("engine", 2, TINY, STEP))
    requests = [Request(number, 13, 2, keys=(1, 2, 3)) for number in range(100)]
    Cluster(engines, router=Router("prefix_aware", 4)).open_loop(requests, lambda _: False)
    served = [sum(request.engine == index for request in requests) for index in (0, 1)]
    assert min(served) > 0
    assert max(served) >= 65


tiers_strategy = st.lists(
    st.builds(Tier, st.just("x"), st.integers(0, 12), st.sampled_from([0.01, 0.8]), st.sampled_from([0.0, 0.002, 0.2])),
    min_size=1,
    max_size=3,
)


def outcome(engines: Sequence, answering: Sequence, requests: Sequence[Request]) -> list[object]:
    """All that anybody could see of a run."""
    seen: list[object] = [(r.status, r.ended_s, r.engine, answering[r.engine].chunks(r)) for r in requests]
    seen += [(r.preemptions, r.hit_tokens, r.loaded_tokens, r.emitted) for r in requests if r.status == "ok"]
    return seen + [(e.totals, list(e.ends), e.busy) for e in engines]


def filled(requests: Sequence[Request], *, answered: bool = True) -> list[Request]:
    """Others like them, to fill caches with; at prefill engines they are not answered."""
    return [Request(each.number, each.prompt, each.output if answered else 1, each.keys) for each in requests]


@settings(max_examples=200, deadline=None)
@given(
    workloads(),
    limits_strategy,
    st.builds(StoreKind, tiers_strategy.map(tuple), st.booleans()),
    st.tuples(st.sampled_from([inf, 9.0, 3.0]), st.sampled_from(POLICIES), st.integers(0, 6)),
)
def test_both_engines_agree_to_the_last_bit(workload, limits, store, manners):
    """Times, hits and loads of whatever is sent; no request is lost, and every token is computed or loaded once."""
    (patience, policy, warm), seen = manners, []
    for compiled in (False, True):
        requests, fitting = fitted(workload, limits)
        group = Group("engine", 2, fitting, STEP, store=store)
        engines = make_engines(group, Patience(patience, patience, 2 * patience), compiled=compiled)
        router = Router(policy, fitting.block_size)
        fill(filled(requests[:warm]), engines, router, concurrency=2)
        Cluster(engines, router=router, coupled=store.shared).open_loop(requests, lambda _: False)
        for engine in engines:
            engine.settle()
        assert all(request.status for request in requests)
        assert [engine.totals.free for engine in engines] == [fitting.blocks] * 2
        if patience == inf:
            kept = sum(r.prompt + r.output - 1 - r.hit_tokens - r.loaded_tokens for r in requests)
            totals = [engine.totals for engine in engines]
            assert sum(e.computed_tokens - e.preempted_tokens for e in totals) == kept
        seen.append(outcome(engines, engines, requests))
    assert seen[0] == seen[1]


@settings(max_examples=100, deadline=None)
@given(
    workloads(),
    limits_strategy,
    st.builds(StoreKind, tiers_strategy.map(tuple), st.booleans()),
    st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(0, 6)),
)
def test_both_engines_agree_where_prefill_has_a_store(workload, limits, store, counts):
    """The same with the store at the prefill engines of a split deployment."""
    seen = []
    for compiled in (False, True):
        requests, fitting = fitted(workload, limits)
        prefill = Group("prefill", counts[0], fitting, STEP, store=store)
        decode = Group("decode", counts[1], fitting, STEP, link=Link(0.02, 0.001))
        assert Fleet((prefill, decode), 1000).split
        engines = [make_engines(group, compiled=compiled) for group in (prefill, decode)]
        for each, answered in zip(engines, (False, True), strict=True):
            fill(filled(requests[: counts[2]], answered=answered), each, Router(), concurrency=4)
        cluster = SplitCluster(*engines, coupled=store.shared)
        cluster.open_loop(requests, lambda _: False)
        cluster.settle()
        assert all(request.status == "ok" for request in requests)
        assert all(engine.totals.free == fitting.blocks for engine in (*engines[0], *engines[1]))
        seen.append(outcome([*engines[0], *engines[1]], engines[1], requests))
    assert seen[0] == seen[1]


@settings(max_examples=60, deadline=None)
@given(workloads(), limits_strategy, st.builds(StoreKind, tiers_strategy.map(tuple), st.booleans()), st.integers(1, 5))
def test_both_engines_agree_in_a_closed_loop(workload, limits, store, slots):
    """The same, where each end starts the next request."""
    seen = []
    for compiled in (False, True):
        requests, fitting = fitted(workload, limits)
        left = iter(requests)

        def make(now_s: float, left=left) -> Request | None:
            request = next(left, None)
            if request is not None:
                request.scheduled_s = now_s
            return request

        engines = make_engines(Group("engine", 2, fitting, STEP, store=store), compiled=compiled)
        Cluster(engines, coupled=store.shared).closed_loop([0.0] * slots, make, lambda _: False)
        seen.append(outcome(engines, engines, requests))
    assert seen[0] == seen[1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 15), max_size=6, unique=True), st.integers(0, 5))), tiers_strategy)
def test_a_store_never_holds_more_than_it_has_room_for(puts, tiers):
    """Nor one block twice; and what was put last is there, as far as there is room at all."""
    store = Store(tiers)
    for keys, unnamed in puts:
        store.put(keys, unnamed)
        assert all(used <= tier.blocks for used, tier in zip(store.used, store.tiers, strict=True))
        assert store.used == [sum(queue.values()) for queue in store._queues]
        assert sum(len(queue.keys() & set(range(16))) for queue in store._queues) == len(
            {key for queue in store._queues for key in queue if key >= 0}
        )
        assert sum(store.find(keys)) >= min(len(keys), tiers[0].blocks)
