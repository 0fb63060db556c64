"""Exact bounds, clustered bounds and the always-valid test, against published or closed-form values."""

import math

import numpy as np
import pytest
from scipy import stats as reference

from tuner import stats


@pytest.mark.parametrize(
    ("k", "n"), [(0, 299), (1, 473), (2, 628), (3, 773), (5, 1049), (10, 1693)]
)  # fmt: skip
def test_requests_that_support_a_p99(k, n):
    """The smallest n at which k violations show at most 1 % with 95 % confidence."""
    assert stats.requests_for_pass(0.01, k) == n
    assert stats.share_upper(k, n) <= 0.01 < stats.share_upper(k, n - 1)


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (1, 500), (250, 500)])
def test_bounds_are_those_of_clopper_and_pearson(k, n):
    """Both bounds agree with SciPy's exact interval at twice the error."""
    exact = reference.binomtest(k, n).proportion_ci(0.90, method="exact")
    assert stats.share_lower(k, n) == pytest.approx(exact.low)
    assert stats.share_upper(k, n) == pytest.approx(exact.high)


def test_nothing_seen_says_nothing():
    """No trial leaves the whole range."""
    assert (stats.share_lower(0, 0), stats.share_upper(0, 0)) == (0.0, 1.0)


@pytest.mark.parametrize("burst", [1, 2, 5])
def test_the_design_effect_finds_the_size_of_bursts(burst):
    """Averaged over many windows it is the size of the bursts, within its upward bias."""
    generator = np.random.default_rng(4)
    found = []
    for _ in range(200):
        counts = np.repeat(generator.random(3000 // burst) < 0.05, burst).astype(float)
        found.append(stats.design_effect(counts, np.ones(len(counts))))
    assert burst * 0.85 <= np.mean(found) <= burst * 1.25


@pytest.mark.parametrize(
    ("counts", "sizes"),
    [([0.0] * 40, [1.0] * 40), ([1.0] * 40, [1.0] * 40), ([1.0], [1.0]), ([], []), ([0.0] * 40, [0.0] * 40)],
    ids=["none", "all", "one", "empty", "no units"],
)
def test_without_variation_there_is_no_design_effect(counts, sizes):
    """A window without contrast yields 1, never NaN."""
    assert stats.design_effect(np.array(counts), np.array(sizes)) == 1.0


def test_a_bootstrap_is_the_same_each_time_and_brackets_the_ratio():
    """The seed is fixed; the interval holds the ratio of sums and shrinks with more requests."""
    generator = np.random.default_rng(5)
    counts, sizes = generator.poisson(2, 400).astype(float), np.full(400, 100.0)
    low, high = stats.ratio_bounds(counts, sizes, 200)
    assert (low, high) == stats.ratio_bounds(counts, sizes, 200)
    assert low < counts.sum() / sizes.sum() < high
    wide = stats.ratio_bounds(counts, sizes, 20)
    assert wide[1] - wide[0] > 2 * (high - low)


def test_the_evidence_is_the_ratio_of_mixture_to_null_by_integration():
    """The closed form equals the integral of the likelihood over the cut-off beta prior."""
    from scipy.integrate import quad

    k, n, allowed = 4, 60, 0.01
    above = reference.beta.sf(allowed, 0.5, 10)

    def weighted(p):
        return reference.beta.pdf(p, 0.5, 10) / above * p**k * (1 - p) ** (n - k)

    mixture, _ = quad(weighted, allowed, 1, epsabs=0, epsrel=1e-10, limit=200)
    expected = math.log(mixture) - k * math.log(allowed) - (n - k) * math.log(1 - allowed)
    assert float(stats.log_e_value(k, n, allowed)) == pytest.approx(expected, rel=1e-6)


def test_evidence_starts_at_nothing_and_falls_without_violations():
    """No request is no evidence; kept requests only lower it; huge counts stay finite or fall to -inf."""
    assert float(stats.log_e_value(0, 0, 0.01)) == pytest.approx(0)
    falling = stats.log_e_value(np.zeros(5), np.array([1, 10, 100, 1000, 100_000]), 0.01)
    assert (np.diff(falling) < 0).all()
    assert float(stats.log_e_value(5000, 10_000, 0.01)) > 1000
