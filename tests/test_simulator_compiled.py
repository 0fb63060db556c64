"""The compiled engine against the reference: every bit, on workloads and limits of every kind."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated import fitted, limits_strategy, workloads

from tuner.simulator import kernel
from tuner.simulator.cluster import Cluster
from tuner.simulator.compiled import CompiledEngine
from tuner.simulator.engine import Engine, Patience
from tuner.simulator.fleet import make_engine
from tuner.simulator.router import POLICIES, Router
from tuner.simulator.scheduler import EngineLimits, Request
from tuner.simulator.steptime import Calibrated, Linear, Scaled
from tuner.simulator.tables import Tabled

STEP = Linear(0.31, token_s=0.013, weights_s=0.05, pair_s=0.0007, context_s=0.0011, extra_token_s=0.003, factor=1.01)
TABLED = Tabled(
    tokens=(1, 5, 20),
    shared_s=(0.3, 0.33, 0.71),
    batch=(1, 3, 8),
    context=(2, 9),
    decode_s=((0.01, 0.017), (0.011, 0.02), (0.05, 0.13)),
    chunk=(1, 7),
    prefix=(0, 3, 11),
    prefill_s=0.013,
    pair_s=((0.001, 0.0013, 0.0017), (0.0007, 0.0011, 0.0003)),
    fixed_s=0.003,
)
STEP_TIMES = (STEP, TABLED, Calibrated(STEP, 1.3, 0.7, 0.01), Scaled(Calibrated(TABLED, 0.9, 1.1, 0.02, 0.003), 1.07))
TINY = EngineLimits(max_num_batched_tokens=8, max_num_seqs=8, blocks=100, block_size=4)


def outcome(requests: Sequence[Request], engines: Sequence[Engine | CompiledEngine]) -> list[object]:
    """All that anybody could see of a run."""
    seen: list[object] = [(r.status, r.ended_s, r.engine, engines[r.engine].chunks(r)) for r in requests]
    seen += [(r.preemptions, r.hit_tokens, r.emitted) for r in requests if r.status]
    return seen + [(engine.totals, list(engine.ends), engine.clock_s, engine.busy) for engine in engines]


@settings(max_examples=200, deadline=None)
@given(
    workloads(),
    limits_strategy,
    st.sampled_from([inf, 9.0, 3.0]),
    st.sampled_from(POLICIES),
    st.sampled_from(STEP_TIMES),
)
def test_both_engines_agree_to_the_last_bit(workload, limits, patience, routing, step_time):
    """Token times, ends, preemptions, cache hits, blocks: of whatever is sent, in an open loop."""
    seen = []
    for compiled in (False, True):
        requests, fitting = fitted(workload, limits)
        engines = [
            make_engine(fitting, step_time, Patience(patience, patience, 2 * patience), compiled=compiled)
            for _ in range(2)
        ]
        Cluster(engines, router=Router(routing, fitting.block_size), front_end_s=0.1).open_loop(
            requests, lambda _: False
        )
        seen.append(outcome(requests, engines))
    assert seen[0] == seen[1]


@settings(max_examples=60, deadline=None)
@given(workloads(), limits_strategy, st.integers(1, 5))
def test_both_engines_agree_in_a_closed_loop(workload, limits, slots):
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

        engines = [make_engine(fitting, STEP, compiled=compiled) for _ in range(2)]
        Cluster(engines).closed_loop([0.0] * slots, make, lambda _: False)
        seen.append(outcome(requests, engines))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_warm_cache_is_used_by_both(compiled):
    """Blocks 1 to 3 lie there before the first request comes; a second filling changes nothing, and nothing counts."""
    engine = make_engine(TINY, STEP, compiled=compiled)
    for number in range(2):
        engine.warm(Request(number, 14, 5, keys=(1, 2, 3)))
    assert (engine.totals.prefix_queries, engine.totals.computed_tokens, engine.busy) == (0, 0, False)
    request = Request(0, 13, 2, keys=(1, 2, 3))
    Cluster([engine]).open_loop([request], lambda _: False)
    assert request.hit_tokens == 12
    assert engine.totals.free == TINY.blocks


@pytest.mark.parametrize("compiled", [False, True])
def test_the_oldest_of_what_fills_a_cache_goes_first(compiled):
    """Room for 10 blocks, three prompts of 5 with what is their own: the first one's beginning is gone."""
    engine = make_engine(replace(TINY, blocks=10), STEP, compiled=compiled)
    for family in (10, 20, 30):
        engine.warm(Request(family, 17, 2, keys=(family, family + 1)))
    requests = [Request(0, 9, 1, keys=(30, 31)), Request(1, 9, 1, keys=(10, 11), scheduled_s=10.0)]
    Cluster([engine]).open_loop(requests, lambda _: False)
    assert [request.hit_tokens for request in requests] == [8, 0]


@pytest.mark.parametrize("compiled", [False, True])
def test_what_can_never_run_fills_nothing(compiled):
    """As for requests that come."""
    with pytest.raises(ValueError, match="never fit"):
        make_engine(TINY, STEP, compiled=compiled).warm(Request(0, 400, 1))


def test_arrays_grow_with_what_they_hold():
    """More requests, steps, keys and interruptions than there is room for at first: still the same as the reference."""
    limits = replace(TINY, blocks=60, max_num_seqs=6, long_prefill_token_threshold=3)
    seen = []
    for compiled in (False, True):
        requests = [
            Request(number, 40, 90, keys=tuple(range(10 * (number % 200), 10 * (number % 200) + 10)))
            for number in range(600)
        ]
        engines = [make_engine(limits, STEP, compiled=compiled)]
        Cluster(engines).open_loop(requests, lambda _: False)
        seen.append(outcome(requests, engines))
    assert seen[0] == seen[1]


def test_the_kernel_is_taken_where_it_knows_the_step_times():
    """Other step times run on the reference, unless the kernel was demanded."""

    class Seconds:
        floor_s = 1.0

        def step(self, prefills, decodes, context):
            return 1.0

    assert isinstance(make_engine(TINY, STEP), CompiledEngine)
    assert isinstance(make_engine(TINY, STEP, compiled=False), Engine)
    assert isinstance(make_engine(TINY, Seconds()), Engine)
    with pytest.raises(ValueError, match="Seconds are not known"):
        make_engine(TINY, Seconds(), compiled=True)


def test_what_is_compiled_is_kept_for_later_runs(monkeypatch):
    """On disk; and where nothing can be written it is compiled all the same."""
    assert kernel.advance.stats.cache_path

    def njit(*, cache=False, **options):
        if cache:
            raise RuntimeError("no locator available")
        return lambda function: function

    monkeypatch.setattr(kernel, "njit", njit)
    assert kernel._compiled(outcome) is outcome
