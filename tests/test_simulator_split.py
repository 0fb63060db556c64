"""Prefill and decode apart: a life by hand, then what must hold whatever is sent; reference and kernel alike."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated import fitted, limits_strategy, workloads

from tuner.simulator.engine import Patience
from tuner.simulator.fleet import Fleet, Group, make_engine
from tuner.simulator.router import POLICIES, Policy, Router
from tuner.simulator.scheduler import EngineLimits, Link, Request
from tuner.simulator.split import SplitCluster
from tuner.simulator.steptime import Linear

STEP = Linear(0.31, token_s=0.013, weights_s=0.05, pair_s=0.0007, context_s=0.0011, extra_token_s=0.003)
SECOND = Linear(1.0)
LINK = Link(latency_s=0.5, token_s=0.1)
TINY = EngineLimits(max_num_batched_tokens=8, max_num_seqs=8, blocks=100, block_size=4)


def split(
    limits: EngineLimits = TINY,
    decode_limits: EngineLimits | None = None,
    *,
    counts: tuple[int, int] = (1, 1),
    step_time: Linear = SECOND,
    patience: Patience | None = None,
    policy: Policy = "round_robin",
    compiled: bool = False,
    link: Link = LINK,
) -> SplitCluster:
    """XPyD of tiny engines."""
    return SplitCluster(
        [make_engine(limits, step_time, patience, compiled=compiled) for _ in range(counts[0])],
        [
            make_engine(decode_limits or limits, step_time, patience, link=link, compiled=compiled)
            for _ in range(counts[1])
        ],
        prefill_router=Router(policy, limits.block_size),
        decode_router=Router(policy, limits.block_size),
    )


def times(cluster: SplitCluster, request: Request) -> list[float]:
    return [time for time, _ in cluster.engines[request.engine].chunks(request)]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_request_waits_for_its_prompt_the_transfer_and_a_step(compiled):
    """
    The prompt is computed at 1; four of its five tokens take 0.5 + 0.4 s over the link; the last one is computed again.
    """
    cluster = split(compiled=compiled)
    request = Request(0, 5, 3)
    cluster.open_loop([request], lambda _: False)
    assert times(cluster, request) == pytest.approx([2.9, 3.9, 4.9])
    totals = cluster.prefill[0].totals, cluster.engines[0].totals
    assert (totals[0].computed_tokens, totals[1].loaded_tokens, totals[1].computed_tokens) == (5, 4, 3)


@pytest.mark.parametrize("compiled", [False, True])
def test_transfers_to_one_engine_follow_one_another(compiled):
    """Both prompts are computed at 1; the second transfer starts when the first has ended, at 1.8, and takes 0.8."""
    cluster = split(compiled=compiled, decode_limits=replace(TINY, max_num_seqs=2))
    requests = [Request(0, 4, 2), Request(1, 4, 2)]
    cluster.open_loop(requests, lambda _: False)
    assert times(cluster, requests[0]) == pytest.approx([2.8, 3.8])
    assert times(cluster, requests[1]) == pytest.approx([3.8, 4.8])


@pytest.mark.parametrize("compiled", [False, True])
def test_decode_takes_blocks_before_it_fetches_and_prefill_keeps_its_own_until_then(compiled):
    """
    Room for one request on either side. The second prompt can only start when the first one's KV has been fetched, at
    1.8, and the third when the second's has: which decode asks for when the first answer, of five tokens, is there.
    """
    requests = [Request(0, 4, 5), Request(1, 4, 5), Request(2, 4, 5)]
    cluster = split(replace(TINY, blocks=2), replace(TINY, blocks=3), compiled=compiled)
    cluster.open_loop(requests, lambda _: False)
    firsts = [times(cluster, request)[0] for request in requests]
    assert firsts[0] == pytest.approx(2.8)
    assert firsts == sorted(firsts)
    assert all(request.status == "ok" for request in requests)
    assert cluster.prefill[0].totals.least_free == 0


@pytest.mark.parametrize("compiled", [False, True])
def test_a_client_that_hangs_up_during_the_transfer_leaves_nothing(compiled):
    """It gives up at 2, the KV comes at 1 + 0.5 + 4 × 10: blocks on both sides are free in the end."""
    cluster = split(compiled=compiled, link=Link(0.5, 10.0), patience=Patience(first_token_s=2.0))
    requests = [Request(0, 5, 3), Request(1, 5, 3, scheduled_s=100.0)]
    cluster.open_loop(requests, lambda _: False)
    assert [(request.status, request.ended_s) for request in requests] == [
        ("timeout_first_token", 2.0),
        ("timeout_first_token", 102.0),
    ]
    cluster.settle()
    assert cluster.prefill[0].totals.free == cluster.engines[0].totals.free == TINY.blocks


def test_groups_are_checked():
    """A fleet is one group of engines, or prefill and decode with a link and blocks of one size."""
    prefill, decode = Group("prefill", 1, TINY, SECOND), Group("decode", 1, TINY, SECOND, link=LINK)
    assert Fleet((prefill, decode), 100).split
    for groups in (
        (prefill,),
        (decode, prefill),
        (prefill, replace(decode, link=None)),
        (prefill, replace(decode, limits=replace(TINY, block_size=8))),
    ):
        with pytest.raises(ValueError, match=r"groups|link|blocks"):
            Fleet(groups, 100)


def outcome(cluster: SplitCluster, requests: Sequence[Request]) -> list[object]:
    """All that anybody could see of a run."""
    seen: list[object] = [(r.status, r.ended_s, r.engine, cluster.engines[r.engine].chunks(r)) for r in requests]
    seen += [(r.preemptions, r.hit_tokens, r.loaded_tokens, r.emitted) for r in requests if r.status == "ok"]
    return seen + [(e.totals, list(e.ends), e.busy) for e in (*cluster.prefill, *cluster.engines)]


links_strategy = st.builds(Link, st.sampled_from([0.001, 0.01, 0.7]), st.sampled_from([0.0, 0.001, 0.3]))


@settings(max_examples=200, deadline=None)
@given(
    workloads(),
    st.tuples(limits_strategy, limits_strategy),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    links_strategy,
    st.tuples(st.sampled_from([inf, 9.0, 3.0]), st.sampled_from(POLICIES)),
)
def test_both_engines_agree_to_the_last_bit(workload, sides, counts, link, manners):
    """Of whatever is sent to whatever deployment, in an open loop; and in the end every block is free."""
    (limits, other), (patience, policy), seen = sides, manners, []
    for compiled in (False, True):
        requests, fitting = fitted(workload, limits)
        _, decoding = fitted(workload, replace(other, block_size=limits.block_size))
        cluster = split(
            fitting,
            decoding,
            counts=counts,
            step_time=STEP,
            patience=Patience(patience, patience, 2 * patience),
            policy=policy,
            compiled=compiled,
            link=link,
        )
        cluster.open_loop(requests, lambda _: False)
        cluster.settle()
        assert all(request.status for request in requests)
        assert [e.totals.free for e in cluster.prefill] == [fitting.blocks] * counts[0]
        assert [e.totals.free for e in cluster.engines] == [decoding.blocks] * counts[1]
        seen.append(outcome(cluster, requests))
    assert seen[0] == seen[1]


@settings(max_examples=60, deadline=None)
@given(workloads(), limits_strategy, st.tuples(st.integers(1, 2), st.integers(1, 2)), links_strategy, st.integers(1, 6))
def test_both_engines_agree_in_a_closed_loop(workload, limits, counts, link, slots):
    """The same, where each end starts the next request."""
    seen = []
    for compiled in (False, True):
        requests, fitting = fitted(workload, limits)
        left = iter(requests)
        sent: list[Request] = []

        def make(now_s: float, left=left, sent=sent) -> Request | None:
            request = next(left, None)
            if request is not None:
                request.scheduled_s = now_s
                sent.append(request)
            return request

        cluster = split(fitting, counts=counts, step_time=STEP, compiled=compiled, link=link)
        cluster.closed_loop([0.0] * slots, make, lambda _: False)
        starts = [request.scheduled_s for request in sent]
        assert starts == sorted(starts)
        seen.append(outcome(cluster, requests))
    assert seen[0] == seen[1]


@settings(max_examples=100, deadline=None)
@given(workloads(), limits_strategy, st.tuples(st.integers(1, 2), st.integers(1, 2)), links_strategy)
def test_no_request_no_token_and_no_block_is_lost(workload, limits, counts, link):
    """Prompts are computed once at prefill, answers once at decode, unless preempted; times are in order."""
    requests, fitting = fitted(workload, limits)
    cluster = split(fitting, counts=counts, step_time=STEP, compiled=True, link=link)
    cluster.open_loop(requests, lambda _: False)
    cluster.settle()
    assert all(request.status == "ok" and request.emitted == request.output for request in requests)
    prefill, decode = ([e.totals for e in engines] for engines in (cluster.prefill, cluster.engines))
    prompts = sum(request.prompt for request in requests)
    hits = sum(e.prefix_hits for e in prefill)
    assert sum(e.computed_tokens for e in prefill) >= prompts - hits
    if not any(e.preemptions for e in prefill):
        assert sum(e.computed_tokens for e in prefill) == prompts - hits
    kept = sum(r.prompt + r.output - 1 - r.hit_tokens - r.loaded_tokens for r in requests)
    assert sum(e.computed_tokens for e in decode) == kept + sum(e.preempted_tokens for e in decode)
    assert all(e.least_free >= 0 for e in (*prefill, *decode))
    for request in requests:
        found = times(cluster, request)
        assert len(found) == request.output
        assert found == sorted(set(found))
        assert found[0] > request.arrival_s > request.scheduled_s
        assert request.ended_s == found[-1]
    for engine in (*cluster.prefill, *cluster.engines):
        assert list(engine.ends) == sorted(set(engine.ends))
