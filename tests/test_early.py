"""Early failure: sound, quick, and in the order of arrival."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.handmade import answers, failures, request

from tuner.early import EarlyFailure, InOrder
from tuner.slo import Limit, RequestLimits, Slo

P99 = Slo((Limit("ttft", "p99", 0.14),))


def fails_after(records, slo, **settings):
    """Requests after which the level fails, or None."""
    early = EarlyFailure(slo, **settings)
    return next((index for index, record in enumerate(records, 1) if early.update(record) is not None), None)


@pytest.mark.parametrize(("divide", "needed"), [(1.0, 2), (2.0, 3), (5.0, 8)])
def test_all_violating_fails_after_few_requests(divide, needed):
    """Under a limit of 1 % two independent failures in a row are certain; counts divided by D take longer."""
    assert fails_after(failures(50), P99, divide=divide) == needed


def test_a_level_that_keeps_its_limit_never_fails():
    """Ten thousand kept requests, one violation in each 200: no failure."""
    values = ([100] * 199 + [900]) * 50
    assert fails_after(answers(values), P99) is None


def test_the_broken_limit_is_named_and_stays():
    """The answer names the first limit that is certain, and is the same from then on."""
    early = EarlyFailure(Slo((Limit("e2el", "p99", 60.0), Limit("ttft", "p95", 0.14))))
    for record in answers([900] * 100):
        early.update(record)
    assert early.broken == "ttft_p95"
    assert early.update(answers([1])[0]) == "ttft_p95"


def test_only_measured_requests_are_evidence():
    """Failures of the warm-up do not end a level."""
    assert fails_after([replace(record, phase="warmup") for record in failures(100)], P99) is None


@pytest.mark.parametrize(
    ("slo", "record"),
    [
        (Slo((Limit("ttft", "max", 0.14),)), answers([150])[0]),
        (Slo((Limit("chunk_gap", "max", 0.14),)), request([(1, 1), (200, 1)])),
        (Slo((Limit("ttft", "mean", 9.0),)), failures(1)[0]),
        (Slo((Limit("itl", "mean", 9.0),)), failures(1)[0]),
        (Slo((), attainment=1.0), failures(1)[0]),
    ],
    ids=["max", "max of gaps", "mean", "mean of gaps", "full attainment"],
)
def test_where_one_request_is_certain_it_ends_the_level(slo, record):
    """A maximum exceeded, a failure under a mean, a miss of full attainment cannot be made good."""
    assert fails_after([record], slo) == 1


def test_a_mean_never_fails_for_slow_answers():
    """A slow answer may be outweighed by later ones."""
    assert fails_after(answers([5000] * 100), Slo((Limit("ttft", "mean", 0.1),))) is None


def test_attainment_fails_early_by_request_limits():
    """Half of the requests miss their own limit under a promise of 90 %."""
    slo = Slo((), RequestLimits(ttft_s=0.14), attainment=0.9)
    assert fails_after(answers([100, 900] * 50), slo) < 40


@pytest.mark.parametrize("metric", ["itl", "chunk_gap"])
def test_pooled_gaps_fail_early(metric):
    """Answers with a fifth of their gaps above the limit are certain soon; with 1 of 200 never."""
    slo = Slo((Limit(metric, "p99", 0.05),))

    def stream(slow, kept):
        gaps = [100.0] * slow + [10.0] * kept
        times = [100.0, *(100.0 + sum(gaps[: index + 1]) for index in range(len(gaps)))]
        return request([(time, 1) for time in times])

    assert fails_after([stream(10, 40)] * 60, slo) < 30
    assert fails_after([stream(1, 199)] * 2000, slo) is None


def test_pooled_gaps_of_unequal_answers_are_not_failed_wrongly():
    """Short bad answers and long good ones that violate 1 % of all gaps together: at most 5 % of levels fail."""
    slo = Slo((Limit("itl", "p99", 0.05),))
    generator = np.random.default_rng(8)
    bad = request([(float(t), 1) for t in range(0, 100 * 11, 100)])  # ten gaps of 100 ms
    good = request([(float(t), 1) for t in range(0, 10 * 111, 10)])  # 110 gaps of 10 ms
    rate = 0.1  # 0.1 × 10 violating of 0.1 × 10 + 0.9 × 110 = 100 gaps a request
    failed = sum(
        fails_after((bad if draw < rate else good for draw in generator.random(300)), slo) is not None
        for _ in range(120)
    )
    assert failed <= 6


@given(st.permutations(range(12)))
def test_what_comes_in_any_order_goes_out_in_order(order):
    """Each is handed out once, as soon as all before it have come."""
    buffer, out = InOrder(), []
    for count, index in enumerate(order, 1):
        out += buffer.push(index, str(index))
        arrived = set(order[:count])
        assert out == [str(i) for i in range(next(i for i in range(13) if i not in arrived))]
    assert buffer.next == 12


def test_an_index_comes_once():
    """Deciding a request twice is a fault of the caller."""
    buffer = InOrder(first=5)
    assert buffer.push(6, "b") == []
    with pytest.raises(ValueError, match="6 came twice"):
        buffer.push(6, "b")
    assert buffer.push(5, "a") == ["a", "b"]
    with pytest.raises(ValueError, match="5 came twice"):
        buffer.push(5, "a")


def test_the_verdict_does_not_depend_on_the_order_of_completion():
    """Fed through the buffer, completions in any order fail the level at the same arrival."""
    records = answers([100, 100, 900, 900] * 60)
    expected = fails_after(records, P99)
    shuffled = list(enumerate(records))
    random.Random(3).shuffle(shuffled)
    early, buffer = EarlyFailure(P99), InOrder()
    for index, record in shuffled:
        for ready in buffer.push(index, record):
            early.update(ready)
    assert early.requests == expected
