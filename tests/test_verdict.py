"""Is a limit kept: by observation, and with confidence."""

import json
import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.handmade import answers, failures, request

from tuner import metrics
from tuner.sample import Sample
from tuner.slo import Limit, RequestLimits, Slo
from tuner.verdict import MARGIN_CLIP, judge_all, missing_requests


def limited(metric="ttft", statistic="p99", threshold_ms=140.0):
    return Slo((Limit(metric, statistic, threshold_ms / 1000),))


def verdict(records, slo):
    (found,) = judge_all(records, slo)
    return found


def streams(count, gaps_ms, *, at=0):
    """Requests whose tokens come one by one with these gaps."""
    times = [100.0]
    for gap in gaps_ms:
        times.append(times[-1] + gap)
    return [
        request([(time, 1) for time in times], at_ms=100.0 * (at + index), name=f"s{at + index:06d}")
        for index in range(count)
    ]


def test_exactly_the_allowed_share_is_kept():
    """99 × 100 ms and 1 × 5000 ms: p99 by nearest rank is 100, the violating share 1 %, a 140 ms limit is kept."""
    found = verdict(answers([100] * 99 + [5000]), limited())
    assert (found.observed, found.n, found.violations, found.allowed) == ("kept", 100, 1, 0.01)
    assert found.estimate == pytest.approx(0.1)
    assert found.longest == pytest.approx(5.0)
    assert found.margin == pytest.approx((100 - 140) / 140)
    assert found.decision == "undecided"


@pytest.mark.parametrize(("failed", "observed"), [(1, "kept"), (2, "broken")])
def test_failures_are_violations_at_infinity(failed, observed):
    """1 failure in 100 is the 1 % that p99 allows; 2 make the percentile infinite: null, margin clipped."""
    found = verdict(answers([100] * (100 - failed)) + failures(failed), limited())
    assert found.observed == observed
    assert found.estimate == (pytest.approx(0.1) if failed == 1 else None)
    assert found.margin == (MARGIN_CLIP if failed == 2 else pytest.approx(-2 / 7))
    assert found.longest == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("n", "violations", "decision"),
    [(597, 0, "undecided"), (598, 0, "kept"), (945, 1, "undecided"), (946, 1, "kept"), (946, 2, "kept"),
     (946, 3, "undecided"), (1256, 3, "kept"), (1000, 200, "broken")],
)  # fmt: skip
def test_a_verified_p99_needs_about_600_requests(n, violations, decision):
    """Counts are divided by D = 2 before the exact bound: 2 × 299 without, 2 × 473 with one or two violations."""
    spread = [100.0] * n
    for index in range(violations):
        spread[(2 * index + 1) * n // (2 * violations)] = 900.0
    found = verdict(answers(spread), limited())
    assert found.decision == decision
    assert found.design_effect == 2.0
    assert found.method == "clopper-pearson"


@pytest.mark.parametrize(("n", "decision"), [(117, "undecided"), (118, "kept")])
def test_a_verified_p95_needs_about_120_requests(n, decision):
    """59 independent requests without a violation show 5 %; twice that with D = 2."""
    assert verdict(answers([100] * n), limited(statistic="p95")).decision == decision


def test_bursts_make_a_verdict_less_sure():
    """The same 20 violations in 4,000 requests pass when spread out, and do not when they come at once."""
    spread, burst = [100.0] * 4000, [100.0] * 4000
    for index in range(20):
        spread[200 * index] = 900.0
        burst[2000 + index] = 900.0
    calm, stormy = verdict(answers(spread), limited()), verdict(answers(burst), limited())
    assert (calm.decision, calm.design_effect) == ("kept", 2.0)
    assert stormy.decision == "undecided"
    assert stormy.design_effect > 10
    assert stormy.upper > calm.upper


@pytest.mark.parametrize("metric", ["ttft", "itl"])
def test_too_few_requests_leave_a_percentile_undecided(metric):
    """With fewer than 100 requests nothing is said about p99, even where every one violates."""
    found = verdict(failures(99, asked=50), limited(metric))
    assert (found.observed, found.decision) == ("broken", "undecided")
    assert verdict(failures(100, asked=50), limited(metric)).decision == "broken"


@pytest.mark.parametrize("statistic", ["p50", "p99", "mean", "max"])
@pytest.mark.parametrize("metric", ["itl", "chunk_gap", "tpot"])
def test_a_limit_without_a_single_unit_is_broken(metric, statistic):
    """Where every answer has one token no gap was measured, and nothing is promised to be kept."""
    found = verdict(answers([100] * 700), limited(metric, statistic))
    assert (found.n, found.observed, found.decision, found.margin) == (0, "broken", "broken", MARGIN_CLIP)
    assert (found.estimate, found.longest) == (None, None)


def test_answers_to_which_a_metric_does_not_apply_are_no_units():
    """Outputs of 1, 1 and 5 tokens: TPOT has one value."""
    records = [*answers([100, 100]), *streams(1, [10, 10, 10, 10], at=5)]
    assert verdict(records, limited("tpot")).n == 1


def test_the_tail_of_pooled_gaps_is_not_the_mean_of_a_request():
    """98 gaps of 10 ms and 2 of 1000: the request's mean is 29.8 ms, the pooled p99 1000 ms."""
    records = streams(1, [10] * 98 + [1000] * 2)
    assert metrics.tpot_s(records[0]) == pytest.approx(0.0298)
    found = verdict(records, limited("itl", threshold_ms=50))
    assert (found.observed, found.n, found.violations) == ("broken", 100, 2)
    assert found.estimate == pytest.approx(1.0)


def test_pooled_gaps_are_as_sure_as_their_requests():
    """10 requests of 5,000 kept gaps say little; 600 say that at most 1 % violate."""
    few = verdict(streams(10, [10] * 500), limited("itl", threshold_ms=50))
    assert (few.observed, few.violations) == ("kept", 0)
    assert few.decision == "undecided"
    many = verdict(streams(600, [10] * 20), limited("itl", threshold_ms=50))
    assert (many.decision, many.method) == ("kept", "bootstrap over requests")
    assert 0 < many.upper <= 0.01


def test_no_violation_is_never_certainty():
    """A bootstrap of zeros would say 0; the bound says what 300 independent requests can say."""
    found = verdict(streams(600, [10] * 20), limited("itl", threshold_ms=50))
    assert found.upper == pytest.approx(1 - 0.05 ** (1 / 300))


def test_gaps_that_violate_everywhere_are_broken_with_confidence():
    """Every request has 5 % of its gaps above the limit: sure after few requests."""
    found = verdict(streams(120, ([10] * 19 + [100]) * 2), limited("itl", threshold_ms=50))
    assert found.decision == "broken"
    assert found.lower == pytest.approx(0.05)


def test_a_mean_is_judged_by_bootstrap_and_broken_by_any_failure():
    """Kept and broken with bounds in seconds, undecided between, infinite with a failure."""
    values = [90.0, 110.0] * 100
    kept, broken = (verdict(answers(values), limited(statistic="mean", threshold_ms=t)) for t in (105, 95))
    assert (kept.decision, broken.decision) == ("kept", "broken")
    assert kept.estimate == pytest.approx(0.1)
    assert kept.lower < 0.1 < kept.upper
    assert verdict(answers(values), limited(statistic="mean", threshold_ms=100.5)).decision == "undecided"
    assert verdict(answers(values[:18]), limited(statistic="mean", threshold_ms=900)).decision == "undecided"
    failed = verdict(answers(values) + failures(1), limited(statistic="mean", threshold_ms=900))
    assert (failed.observed, failed.decision, failed.estimate, failed.upper) == ("broken", "broken", None, None)


def test_the_mean_of_gaps_is_over_gaps():
    """Requests of one gap of 10 ms and of three of 30: the mean is 25, not 20."""
    records = [*streams(50, [10]), *streams(50, [30, 30, 30], at=50)]
    assert verdict(records, limited("itl", "mean", 26)).estimate == pytest.approx(0.025)


@pytest.mark.parametrize(("worst", "decision"), [(140.0, "kept"), (141.0, "broken")])
def test_a_maximum_is_observed_only(worst, decision):
    """One violation breaks it; none keeps it, and the method says how little that is."""
    found = verdict(answers([100.0] * 9 + [worst]), limited(statistic="max"))
    assert (found.observed, found.decision, found.method) == (decision, decision, "observed only")
    assert found.estimate == pytest.approx(worst / 1000)


@pytest.mark.parametrize(("good", "observed"), [(9, "kept"), (8, "broken")])
def test_attainment_is_the_share_of_arrivals_that_are_good(good, observed):
    """Its margin is (promised − attained) / promised."""
    slo = Slo((), RequestLimits(ttft_s=0.5), attainment=0.9)
    found = verdict(answers([100] * good + [900] * (10 - good)), slo)
    assert (found.name, found.observed, found.violations) == ("attainment", observed, 10 - good)
    assert found.estimate == pytest.approx(good / 10)
    assert found.margin == pytest.approx((0.9 - good / 10) / 0.9)


def test_attainment_with_confidence():
    """99 % of arrivals need 598 good ones of 598; all of 700 pass."""
    slo = Slo((), attainment=0.99)
    assert verdict(answers([100] * 597), slo).decision == "undecided"
    assert verdict(answers([100] * 598), slo).decision == "kept"


@pytest.mark.parametrize(("failed", "decision"), [(0, "kept"), (1, "broken")])
def test_full_attainment_is_observed_only(failed, decision):
    """Not one may miss; no number of requests could prove it."""
    found = verdict(answers([100] * 50) + failures(failed), Slo((), attainment=1.0))
    assert (found.decision, found.method) == (decision, "observed only")


def test_only_measured_requests_count():
    """Slow warm-up and drain requests are in no number."""
    slow = [replace(record, phase=phase) for record in answers([3000] * 2) for phase in ("warmup", "drain")]
    assert verdict(slow + answers([100] * 8), limited()).n == 8


def test_the_same_request_numbers_of_repeats_do_not_hide_bursts():
    """Windows given apart are laid end to end, each by its own clock."""
    first, second = answers([100] * 300), answers([100] * 300)
    (found,) = judge_all(Sample(first, second), limited())
    assert (found.n, found.decision) == (600, "kept")


@pytest.mark.parametrize(
    ("records", "missing"),
    [(answers([100] * 598), 0), (answers([100] * 300), 298), (answers([100] * 299 + [900]), 646)],
)
def test_how_many_requests_a_claim_still_needs(records, missing):
    """298 more make 598; with one violation it takes 946 in all."""
    assert missing_requests(verdict(records, limited()), len(records)) == missing


def test_no_number_of_requests_mends_a_broken_limit():
    """Nor decides a mean."""
    assert missing_requests(verdict(answers([900] * 300), limited()), 300) is None
    assert missing_requests(verdict(answers([100] * 5), limited(statistic="mean")), 5) is None


LATENCIES = st.lists(st.one_of(st.none(), st.floats(0.1, 5000)), min_size=1, max_size=40)
STATISTICS = st.sampled_from(["p50", "p90", "p95", "p99", "p99.9", "mean", "max"])
METRICS = st.sampled_from(["ttft", "itl", "chunk_gap", "tpot", "e2el"])


def level(latencies):
    """Three tokens at one, two and four times each latency; None = a failure after the first token."""
    return [
        request([(5.0, 1)], at_ms=50.0 * i, name=f"r{i}", status="disconnected", asked=4)
        if latency is None
        else request([(latency, 1), (2 * latency, 2), (4 * latency, 1)], at_ms=50.0 * i, name=f"r{i}")
        for i, latency in enumerate(latencies)
    ]


@settings(max_examples=60, deadline=None)
@given(LATENCIES, METRICS, STATISTICS, st.floats(1, 5000), st.floats(1, 4))
def test_a_looser_limit_is_never_worse(latencies, metric, statistic, threshold, factor):
    """What is kept under a limit is kept under a looser one; violations and margins only fall."""
    records = level(latencies)
    tight = verdict(records, limited(metric, statistic, threshold))
    loose = verdict(records, limited(metric, statistic, threshold * factor))
    assert loose.violations <= tight.violations
    assert loose.margin <= tight.margin + 1e-12
    assert tight.observed == "broken" or loose.observed == "kept"
    assert (tight.decision, loose.decision) != ("kept", "broken")


@settings(max_examples=60, deadline=None)
@given(LATENCIES, METRICS, STATISTICS, st.floats(1, 5000), st.randoms(use_true_random=False))
def test_the_order_of_records_changes_nothing(latencies, metric, statistic, threshold, random):
    """Records may come in any order; every number of the verdict is the same."""
    records = level(latencies)
    shuffled = random.sample(records, len(records))
    slo = replace(limited(metric, statistic, threshold), attainment=0.9)
    assert judge_all(records, slo) == judge_all(shuffled, slo)


@settings(max_examples=100, deadline=None)
@given(LATENCIES, METRICS, STATISTICS, st.floats(1, 5000))
def test_estimate_and_share_of_violations_agree(latencies, metric, statistic, threshold):
    """A limit is observed kept if and only if its value is at most the threshold; nothing is NaN or infinite."""
    found = verdict(level(latencies), limited(metric, statistic, threshold))
    json.dumps(asdict(found), allow_nan=False)
    assert (found.observed == "kept") == (found.estimate is not None and found.estimate <= found.threshold)
    assert (found.observed == "kept") == (found.margin <= 0)
    assert not math.isnan(found.lower)
    assert found.upper is None or found.lower <= found.upper
