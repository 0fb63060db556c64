"""Intervals of cost, and gains over a baseline."""

import math

import numpy as np
import pytest

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


def test_a_steady_saving_is_proven():
    """Costs of 2.0 and 1.5 in pairs are a quarter less; the bound follows Student's t with one degree of freedom."""
    found = gain([2.0, 2.02], [1.5, 1.51], 0.02)
    logs = np.log([1.5 / 2.0, 1.51 / 2.02])
    half = 6.3138 * abs(logs[0] - logs[1]) / 2
    assert found.estimate == pytest.approx(1 - math.exp(logs.mean()))
    assert found.lower == pytest.approx(1 - math.exp(logs.mean() + half), rel=1e-4)
    assert found.upper == pytest.approx(1 - math.exp(logs.mean() - half), rel=1e-4)
    assert found.proven


@pytest.mark.parametrize(
    ("candidate", "proven"),
    [([1.9, 1.2], False), ([1.98, 1.98], False), ([1.97, 1.97], False), ([1.9, 1.9], True), ([2.1, 2.1], False)],
    ids=["noisy", "1 %", "1.5 %", "5 %", "dearer"],
)
def test_a_gain_must_clear_noise_and_the_smallest_gain(candidate, proven):
    """Against a baseline of 2.0 twice, with a smallest gain of 2 %."""
    found = gain([2.0, 2.0], candidate, 0.02)
    assert found.proven is proven
    assert found.lower <= found.estimate <= found.upper


def test_one_pair_proves_nothing():
    """The estimate is shown; noise is unknown."""
    found = gain([2.0], [1.0], 0.02)
    assert (found.estimate, found.lower, found.upper, found.n, found.proven) == (0.5, None, None, 1, False)
    assert gain([], [], 0.02).estimate is None


@pytest.mark.parametrize(
    ("baseline", "candidate", "message"),
    [
        ([2.0], [1.0, 1.0], "in pairs"),
        ([0.0], [1.0], "no cost"),
        ([2.0], [math.nan], "no cost"),
        ([2.0], [math.inf], "no cost"),
    ],
)
def test_what_cannot_be_compared_is_an_error(baseline, candidate, message):
    """A baseline that failed is no baseline; nothing is divided by zero."""
    with pytest.raises(MeasurementError, match=message):
        gain(baseline, candidate, 0.02)
