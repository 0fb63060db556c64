"""Intervals of cost, and gains over a baseline."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import MeasurementError
from tuner.gain import cost_interval, gain


def test_the_capacity_lies_between_verified_and_broken():
    """12.00/h, verified at 2/s and broken at 2.5/s: between 1.3333 and 1.6667 per 1,000."""
    found = cost_interval(12.0, [2.0, 2.0], 2.5)
    assert (found.low, found.high) == pytest.approx((12 / 9, 12 / 7.2))
    assert (found.n, found.spread) == (2, 1.0)


def test_the_spread_of_repeats_widens_both_ends():
    """Two repeats at 2.0 and 2.1: t(1, 95 %) = 6.314 times half their log distance."""
    found = cost_interval(12.0, [2.0, 2.1], 2.5)
    half = 6.3138 * abs(math.log(2.1 / 2.0)) / 2
    middle = math.sqrt(2.0 * 2.1)
    assert found.spread == pytest.approx(math.exp(half), rel=1e-4)
    assert found.high == pytest.approx(12 / (3.6 * middle) * math.exp(half), rel=1e-4)
    assert found.low == pytest.approx(12 / (3.6 * 2.5) / math.exp(half), rel=1e-4)


def test_unknown_ends_stay_unknown():
    """Without a broken load there is no lower end; without goodput no interval; one repeat is not widened."""
    assert cost_interval(12.0, [2.0], None).low is None
    assert cost_interval(12.0, [2.0], 2.5).spread == 1.0
    assert cost_interval(12.0, [2.0, 0.0], 2.5) is None
    assert cost_interval(12.0, [], 2.5) is None


def test_the_interval_is_never_upside_down():
    """Goodput above the load that broke, by chance, leaves a point."""
    found = cost_interval(12.0, [2.6, 2.6], 2.5)
    assert found.low == pytest.approx(found.high)


def test_two_sessions_against_three_show_a_gain():
    """Kept twice at 1.5, the baseline broken three times at 1.9: at least 1 − 1.5/1.9, at 1 − (2/5)²(3/5)³."""
    found = gain([1.5, 1.4], [2.0, 2.1], [1.95, 1.9, 1.93], min_gain=0.02)
    assert found.lower == pytest.approx(1 - 1.5 / 1.9)
    assert found.confidence == pytest.approx(1 - 0.16 * 0.216)
    assert (found.n, found.proven) == (5, True)
    assert found.estimate == pytest.approx(1 - math.sqrt(1.5 * 1.4) / math.sqrt(2.0 * 2.1))


@pytest.mark.parametrize(
    ("kept", "refused"),
    [
        ([1.5, 1.5], [1.9, 1.9]),
        ([1.5], [1.9, 1.9, 1.9, 1.9]),
        ([1.5, None], [1.9, 1.9, 1.9]),
        ([1.5, 1.5], [1.9, None, 1.9]),
        ([], [1.9, 1.9, 1.9]),
        ([1.5, 1.5], []),
    ],
    ids=["two and two are 94 %", "one session", "one kept nothing", "one broke nothing", "no candidate", "no baseline"],
)
def test_too_few_sessions_show_nothing(kept, refused):
    """The estimate is shown where there is one; a lower bound is not."""
    found = gain(kept, [2.0, 2.0], refused, min_gain=0.02)
    assert found.lower is None
    assert not found.proven


@pytest.mark.parametrize(
    ("candidate", "proven"), [(1.95, False), (1.9, True), (2.1, False)], ids=["1.5 %", "4 %", "dearer"]
)
def test_a_gain_must_clear_the_smallest_gain(candidate, proven):
    """Against a baseline that broke everything from a cost of 1.98 on down, with a smallest gain of 2 %."""
    assert gain([candidate] * 2, [2.0] * 2, [1.98] * 3, min_gain=0.02).proven is proven


@given(p=st.floats(0.01, 0.99), a=st.integers(1, 6), b=st.integers(1, 6))
def test_the_confidence_holds_for_any_noise(p, a, b):
    """However often an equal baseline keeps the load, the chance of the whole pattern is below what is claimed."""
    found = gain([1.0] * a, [1.0], [2.0] * b, min_gain=0.02, confidence=0.0)
    assert p**a * (1 - p) ** b <= 1 - found.confidence + 1e-12


@pytest.mark.parametrize("cost", [0.0, math.nan, math.inf])
def test_what_cannot_be_compared_is_an_error(cost):
    """Nothing is divided by zero."""
    with pytest.raises(MeasurementError, match="no cost"):
        gain([cost], [1.0], [1.0], min_gain=0.02)
