"""The model of vLLM's scheduler: tiny schedules by hand, then what must hold for every workload."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated import fitted, limits_strategy, workloads

from tuner.load.plan import LevelData, LevelPlan
from tuner.simulator.blocks import BlockPool
from tuner.simulator.cluster import Cluster
from tuner.simulator.engine import Engine, Patience
from tuner.simulator.fleet import Fleet, Group
from tuner.simulator.level import Level
from tuner.simulator.router import Router
from tuner.simulator.scheduler import EngineLimits, Link, Request, Scheduler
from tuner.simulator.setup import machine_of
from tuner.simulator.steptime import ModelShape, roofline
from tuner.slo import Arrivals, Limit, Load, Measure, Pool, Slo, Synthetic, Workload

H100 = machine_of(Pool("h100", "gpu", "H100-80GB", 1, 8, 1.0))
LLAMA_8B = ModelShape(
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    weight_bytes=16e9,
    active_parameters=7.5e9,
    kv_bytes_per_token=131072,
    compute_bytes=2,
)
GPU = EngineLimits(max_num_batched_tokens=8192, max_num_seqs=1024, blocks=20_000, block_size=16)
TINY = EngineLimits(max_num_batched_tokens=8, max_num_seqs=8, blocks=100, block_size=4)


@dataclass(frozen=True)
class Seconds:
    """Every step takes `fixed` and `each` for every token."""

    fixed: float = 1.0
    each: float = 0.0

    @property
    def floor_s(self) -> float:
        return self.fixed

    def step(self, prefills: Sequence[tuple[int, int]], decodes: int, context: int) -> float:
        return self.fixed + self.each * (decodes + sum(count for count, _ in prefills))


def times_of(engine, request: Request) -> list[float]:
    return [time for time, _ in engine.chunks(request)]


def serve(
    requests: Sequence[Request], limits: EngineLimits = TINY, *, compress: bool = True, patience: Patience | None = None
) -> tuple[Engine, dict[int, list[float]]]:
    """All requests on one engine with steps of one second; the times of each one's tokens."""
    engine = Engine(limits, Seconds(), patience=patience, compress=compress)
    Cluster([engine]).open_loop(requests, lambda _: False)
    return engine, {request.number: times_of(engine, request) for request in requests}


def three() -> list[Request]:
    return [Request(0, 5, 3), Request(1, 6, 2), Request(2, 4, 2)]


def test_three_requests_share_a_budget_of_eight_tokens():
    """
    Step 1: 5 tokens of the first and 3 of the second. Step 2: a decode, the other 3, and all 4 of the third.
    """
    _, times = serve(three())
    assert times == {0: [1, 2, 3], 1: [2, 3], 2: [2, 3]}


def test_without_chunks_a_prompt_waits_for_a_budget_that_holds_it_whole():
    """The second does not fit beside the first, nor the third beside the second."""
    _, times = serve(three(), replace(TINY, enable_chunked_prefill=False))
    assert times == {0: [1, 2, 3], 1: [2, 3], 2: [3, 4]}


def test_sequences_are_limited():
    """With one sequence at a time the requests follow one another."""
    _, times = serve(three(), replace(TINY, max_num_seqs=1))
    assert times == {0: [1, 2, 3], 1: [4, 5], 2: [6, 7]}


def test_a_half_prefilled_request_ahead_in_the_list_takes_the_budget_of_later_decodes():
    """Decodes come first only because they usually stand first."""
    scheduler = Scheduler(replace(TINY, max_num_batched_tokens=4, long_prefill_token_threshold=2))
    long, short = Request(0, 10, 2), Request(1, 2, 3)
    scheduler.waiting.extend([long, short])
    assert scheduler.schedule() == [(long, 2), (short, 2)]
    short.emitted = 1
    scheduler.limits = replace(scheduler.limits, max_num_batched_tokens=2)
    assert scheduler.schedule() == [(long, 2)]


def test_the_last_running_request_is_preempted_and_computed_again():
    """
    Both prompts fill the four blocks; the first one's second token needs a fifth. The second loses 7 tokens and comes
    back when the first has gone, with its first token as part of its prompt.
    """
    limits = replace(TINY, max_num_batched_tokens=16, blocks=4)
    engine, times = serve([Request(0, 8, 4), Request(1, 7, 5)], limits)
    assert times == {0: [1, 2, 3, 4], 1: [1, 5, 6, 7, 8]}
    assert (engine.scheduler.preemptions, engine.scheduler.preempted_tokens) == (1, 7)


def test_a_request_that_is_last_preempts_itself():
    """The first one's next token fits into its block; the one that asks for a block is the one that goes."""
    scheduler = Scheduler(replace(TINY, max_num_batched_tokens=16, blocks=3))
    first, last = Request(0, 3, 2), Request(1, 8, 2)
    scheduler.waiting.extend([first, last])
    assert scheduler.schedule() == [(first, 3), (last, 8)]
    first.emitted = last.emitted = 1
    assert scheduler.schedule() == [(first, 1)]
    assert list(scheduler.waiting) == [last]
    assert (last.computed, scheduler.pool.free) == (0, 2)


def test_nobody_is_admitted_in_a_step_that_preempted():
    """Blocks were freed, yet the waiting request stays where it is until the next step."""
    scheduler = Scheduler(replace(TINY, max_num_batched_tokens=16, blocks=4))
    first, second, third = Request(0, 8, 4), Request(1, 7, 5), Request(2, 1, 1)
    scheduler.waiting.extend([first, second])
    scheduler.schedule()
    first.emitted = second.emitted = 1
    scheduler.waiting.append(third)
    assert scheduler.schedule() == [(first, 1)]
    assert list(scheduler.waiting) == [second, third]


def test_a_prompt_is_admitted_only_when_blocks_for_all_of_it_are_free():
    """Its first chunk would fit, the whole does not: it waits, and so does the short one behind it."""
    scheduler = Scheduler(replace(TINY, blocks=4))
    first, long, short = Request(0, 4, 4), Request(1, 14, 2), Request(2, 1, 1)
    scheduler.waiting.extend([first, long, short])
    assert scheduler.schedule() == [(first, 4)]
    assert list(scheduler.waiting) == [long, short]


@pytest.mark.parametrize(
    ("prompt", "hit"),
    [
        pytest.param(9, 8, id="both full blocks"),
        pytest.param(8, 4, id="the last token is always computed"),
        pytest.param(5, 4, id="only the blocks that it has"),
    ],
)
def test_a_shared_prefix_is_found_by_block(prompt, hit):
    """The second request finds what the first has computed, in full blocks."""
    scheduler = Scheduler(replace(TINY, max_num_batched_tokens=100))
    first, second = Request(0, 12, 1, keys=(10, 11, 12)), Request(1, prompt, 1, keys=(10, 11, 12)[: prompt // 4])
    scheduler.waiting.append(first)
    scheduler.schedule()
    scheduler.waiting.append(second)
    scheduler.schedule()
    assert second.hit_tokens == hit
    assert second.computed == prompt
    assert (scheduler.prefix_queries, scheduler.prefix_hits) == (12 + prompt, hit)


def test_without_prefix_caching_nothing_is_found():
    """The same two requests, each computed whole."""
    scheduler = Scheduler(replace(TINY, max_num_batched_tokens=100, enable_prefix_caching=False))
    scheduler.waiting.extend([Request(0, 12, 1, keys=(1, 2, 3)), Request(1, 12, 1, keys=(1, 2, 3))])
    scheduler.schedule()
    assert (scheduler.computed_tokens, scheduler.prefix_queries) == (24, 0)


def test_the_end_of_a_prefix_is_evicted_before_its_start():
    """Blocks never used go first, then the last block of what was given back."""
    pool = BlockPool(4)
    pool.take(3)
    assert [pool.publish(key) for key in (1, 2, 3)] == [True] * 3
    pool.give_back(0, (1, 2, 3))
    pool.take(1)
    assert pool.cached((1, 2, 3)) == 3
    pool.take(1)
    assert pool.cached((1, 2, 3)) == 2
    assert (pool.free, pool.evictions) == (2, 1)


def test_a_block_in_use_is_not_evicted():
    """Held by a second request, the prefix outlives the first and all new content."""
    pool = BlockPool(4)
    pool.take(2)
    pool.publish(1)
    pool.publish(2)
    pool.hold((1, 2))
    pool.give_back(0, (1, 2))
    assert pool.free == 2
    pool.take(2)
    assert pool.cached((1, 2)) == 2


def test_a_request_that_can_never_run_is_an_error():
    """More tokens than all blocks hold: waiting would last for ever."""
    with pytest.raises(ValueError, match="never fit"):
        serve([Request(0, 400, 1)])


def test_a_client_hangs_up_before_its_first_token():
    """The second waits behind the first for longer than its patience; its end is the deadline, and nothing is left."""
    requests = [Request(0, 4, 10), Request(1, 4, 1, scheduled_s=0.5)]
    engine, times = serve(requests, replace(TINY, max_num_seqs=1), patience=Patience(first_token_s=5))
    assert (requests[1].status, requests[1].ended_s, times[1]) == ("timeout_first_token", 5.5, [])
    assert requests[0].status == "ok"
    assert engine.scheduler.pool.free == TINY.blocks


def test_a_client_hangs_up_between_tokens():
    """The preempted request gets no second token in time; the other one does not notice."""
    requests = [Request(0, 8, 4), Request(1, 7, 5)]
    limits = replace(TINY, max_num_batched_tokens=16, blocks=4)
    engine, times = serve(requests, limits, patience=Patience(between_tokens_s=2.5))
    assert (requests[1].status, requests[1].ended_s, times[1]) == ("timeout_gap", 3.5, [1])
    assert times[0] == [1, 2, 3, 4]
    assert engine.scheduler.pool.free == limits.blocks


def test_a_client_hangs_up_after_its_total():
    """A running request is cut and its blocks are freed."""
    requests = [Request(0, 4, 100)]
    engine, times = serve(requests, patience=Patience(total_s=7.5))
    assert (requests[0].status, requests[0].ended_s, times[0]) == ("timeout_total", 7.5, [1, 2, 3, 4, 5, 6, 7])
    assert engine.scheduler.pool.free == TINY.blocks


def test_an_arrival_waits_for_the_step_that_runs():
    """It comes in the middle of a step and is scheduled at the next one's start."""
    _, times = serve([Request(0, 4, 4), Request(1, 4, 1, scheduled_s=1.25)])
    assert times[1] == [3]


def test_the_front_end_delays_every_request_by_the_same():
    """An idle engine starts when the front end is done."""
    engine = Engine(TINY, Seconds())
    request = Request(0, 4, 2, scheduled_s=1.0)
    Cluster([engine], front_end_s=0.25).open_loop([request], lambda _: False)
    assert times_of(engine, request) == [2.25, 3.25]


def test_round_robin_takes_turns():
    """Whatever the load, request i goes to engine i modulo their number."""
    requests = [Request(number, 4, 2 + 8 * (number == 0)) for number in range(7)]
    Cluster([Engine(TINY, Seconds()) for _ in range(3)]).open_loop(requests, lambda _: False)
    assert [request.engine for request in requests] == [0, 1, 2, 0, 1, 2, 0]


def test_least_loaded_avoids_the_busy_engine():
    """The first engine is busy with a long answer; what comes later, one at a time, goes to the other."""
    requests = [Request(0, 4, 50)] + [Request(number, 4, 2, scheduled_s=5.0 * number) for number in range(1, 6)]
    engines = [Engine(TINY, Seconds()) for _ in range(2)]
    Cluster(engines, router=Router("least_loaded")).open_loop(requests, lambda _: False)
    assert [request.engine for request in requests] == [0, 1, 1, 1, 1, 1]


def test_a_request_that_ends_in_the_running_step_still_counts_as_load():
    """The router cannot know before the step has ended."""
    engine = Engine(TINY, Seconds())
    engine.add(Request(0, 4, 1))
    engine.advance(0.5)
    assert (engine.in_flight(0.5), engine.in_flight(1.0)) == (1, 0)


@settings(max_examples=150, deadline=None)
@given(workloads(), limits_strategy, st.floats(0.0, 0.2))
def test_whatever_the_workload_no_token_and_no_block_is_lost(workload, limits, each):
    """Every token is computed once unless preempted, every request ends with all its tokens, in order of time."""
    requests, limits = fitted(workload, limits)
    engine = Engine(limits, Seconds(0.5, each))
    Cluster([engine]).open_loop(requests, lambda _: False)
    scheduler = engine.scheduler
    assert all(request.status == "ok" and request.emitted == request.output for request in requests)
    kept = sum(request.prompt + request.output - 1 - request.hit_tokens for request in requests)
    assert scheduler.computed_tokens == kept + scheduler.preempted_tokens
    assert scheduler.pool.free == limits.blocks
    assert scheduler.least_free >= 0
    assert engine.ends == sorted(set(engine.ends))
    for request in requests:
        times = times_of(engine, request)
        assert len(times) == request.output
        assert times == sorted(set(times))
        assert times[0] > request.arrival_s
        assert request.ended_s == times[-1]


@settings(max_examples=100, deadline=None)
@given(workloads(), limits_strategy)
def test_an_engine_rests_only_when_it_has_nothing_to_do(workload, limits):
    """Every step starts when the last one ends, or when a request comes to an engine from which all others are gone."""
    requests, limits = fitted(workload, limits)
    engine = Engine(limits, Seconds(0.5))
    Cluster([engine]).open_loop(requests, lambda _: False)
    for before, end in pairwise([0.0, *engine.ends]):
        if end - 0.5 > before:
            assert end - 0.5 in {request.arrival_s for request in requests}
            assert all(r.ended_s <= before or r.arrival_s >= end - 0.5 for r in requests)


@settings(max_examples=150, deadline=None)
@given(workloads(), limits_strategy, st.sampled_from([inf, 6.0]))
def test_taking_equal_steps_at_once_changes_no_bit(workload, limits, patience):
    """Runs of decode steps are a shortcut in the program, not in the model."""
    outcomes = []
    for compress in (True, False):
        requests, fitting = fitted(workload, limits)
        engines = [
            Engine(fitting, Seconds(0.3, 0.07), patience=Patience(patience, patience, inf), compress=compress)
            for _ in range(2)
        ]
        Cluster(engines, router=Router("least_loaded")).open_loop(requests, lambda _: False)
        outcomes.append(
            [(r.status, r.ended_s, r.engine, r.preemptions, times_of(engines[r.engine], r)) for r in requests]
            + [(e.scheduler.computed_tokens, e.scheduler.least_free, e.scheduler.prefix_hits, e.ends) for e in engines]
        )
    assert outcomes[0] == outcomes[1]


def run_level(
    source: Synthetic,
    *,
    rate: float | None = None,
    concurrency: int | None = None,
    limits: EngineLimits = GPU,
    engines: int = 1,
    decode: int = 0,
    compiled: bool | None = None,
    requests: int = 200,
) -> LevelData:
    """One level of Llama-8B on H100s, never stopped early."""
    closed = concurrency is not None
    slo = Slo((Limit("ttft", "p99", 1.0),))
    workload = Workload(
        source,
        Arrivals("closed_loop" if closed else "poisson"),
        Load("concurrency" if closed else "rate", rate, concurrency),
        Measure(warmup_s=5, duration_s=10, min_requests=requests),
    )
    plan = LevelPlan("x", workload, slo, 1, 0, rate, concurrency, requests, stop_early=False)
    group = Group("prefill" if decode else "engine", engines, limits, roofline(LLAMA_8B, H100))
    groups = (group, replace(group, role="decode", engines=decode, link=Link(0.001, 2e-6)))[: 2 if decode else 1]
    level = Level(plan, None, fleet=Fleet(groups, max_model_len=100_000), compiled=compiled)
    return level.run()


def measured(data: LevelData) -> list:
    return [record for record in data.records if record.phase == "measured"]


def mean_ttft(data: LevelData) -> float:
    times = [record.first_token_s - record.scheduled_s for record in measured(data)]
    return sum(times) / len(times)


def gaps(data: LevelData) -> list[float]:
    return sorted(
        later[0] - earlier[0]
        for record in measured(data)
        for earlier, later in zip(record.chunks, record.chunks[1:], strict=False)
    )


@pytest.mark.parametrize(("engines", "decode"), [(1, 0), (3, 0), (1, 1), (2, 2)])
def test_a_closed_loop_keeps_its_concurrency_and_littles_law(engines, decode):
    """Requests in flight are always as many as slots; throughput times mean latency is that number within 1 %."""
    data = run_level(Synthetic(600, 120), concurrency=12, engines=engines, decode=decode, requests=2000)
    start, end = data.window_start_s, data.window_start_s + data.window_s
    spans = [(r.scheduled_s, inf if r.status == "unfinished" else r.last_token_s) for r in data.records]
    overlap = sum(max(0.0, min(last, end) - max(first, start)) for first, last in spans)
    assert overlap / data.window_s == pytest.approx(12, rel=1e-9)
    done = [last - first for first, last in spans if start <= last < end]
    assert len(done) / data.window_s * (sum(done) / len(done)) == pytest.approx(12, rel=0.01)


@pytest.mark.parametrize(("engines", "decode"), [(1, 0), (2, 0), (1, 2)])
def test_a_closed_loop_is_the_same_compiled_and_step_by_step(engines, decode):
    """Requests start where others end, so whoever looked too far ahead would show here."""
    results = [
        run_level(Synthetic(600, 60), concurrency=7, engines=engines, decode=decode, requests=100, compiled=compiled)
        for compiled in (True, False)
    ]
    assert results[0].records == results[1].records


def test_kv_exhaustion_shows_by_itself():
    """With a tenth of the blocks the same load preempts; first tokens and gaps jump."""
    load = {"source": Synthetic(1000, 400), "rate": 10.0}
    roomy, tight = run_level(**load), run_level(**load, limits=replace(GPU, blocks=2000))
    assert roomy.counters["num_preemptions_total"] == 0
    assert tight.counters["num_preemptions_total"] > 0
    assert tight.counters["kv_cache_usage_peak"] > 0.95 > roomy.counters["kv_cache_usage_peak"]
    assert mean_ttft(tight) > 5 * mean_ttft(roomy)
    assert gaps(tight)[-1] > 3 * gaps(roomy)[-1]


def test_a_large_token_budget_lets_long_prompts_stall_answers():
    """The longest gap grows with the budget: whole prompts of 8,000 tokens against slices of 1,024."""
    load = {"source": Synthetic(8000, 200), "rate": 1.5}
    large = gaps(run_level(**load))
    small = gaps(run_level(**load, limits=replace(GPU, max_num_batched_tokens=1024)))
    assert large[-1] > 3 * small[-1]


def test_first_tokens_come_sooner_the_more_of_the_prompt_is_cached():
    """Shared prefixes of 0, 1k, 2k, 4k and 7.9k of 8k tokens."""
    shares = (0, 1000, 2000, 4000, 7900)
    times = [mean_ttft(run_level(Synthetic(8000, 50, shared), rate=1.0)) for shared in shares]
    assert times == sorted(times, reverse=True)
    assert times[0] > 5 * times[-1]


def test_nobody_starves_in_a_burst():
    """Four hundred at once on an engine for a few dozen: all end, first tokens in order of arrival."""
    requests = [Request(number, 500, 50) for number in range(400)]
    engine = Engine(replace(GPU, blocks=2000, max_num_batched_tokens=2048), roofline(LLAMA_8B, H100))
    Cluster([engine]).open_loop(requests, lambda _: False)
    assert {request.status for request in requests} == {"ok"}
    first = [times_of(engine, request)[0] for request in requests]
    assert first == sorted(first)


def test_twice_the_engines_carry_twice_the_load_alike():
    """Round robin over two engines at twice the rate leaves the mean first token where it was, within a fifth."""
    one = mean_ttft(run_level(Synthetic(1000, 100), rate=8.0))
    two = mean_ttft(run_level(Synthetic(1000, 100), rate=16.0, engines=2))
    assert two == pytest.approx(one, rel=0.2)
