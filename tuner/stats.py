"""
Statistics behind a verdict: exact bounds, bounds over clustered units, and an always-valid test. Pure and seeded.

All bounds are one-sided. Randomness comes from one fixed seed and the data stand in order of arrival, so the same
records give the same bounds in whatever order they are handed over.
"""

import math

import numpy as np
from scipy import special

from tuner.metrics import Floats

CONFIDENCE = 0.95
#: Resamples of a bootstrap: the 5 % quantile of 1,000 is known to about 0.7 points.
DRAWS = 1000
#: Stretches of time into which a window is cut to see whether violations come in bursts.
BLOCKS = 30
_SEED = 20_261_129
_BATCH = 4_000_000  # resampled requests held in memory at once


def share_upper(k: float, n: float, confidence: float = CONFIDENCE) -> float:
    """Upper bound on a share of which `k` of `n` were seen. Source: Clopper and Pearson, Biometrika 26 (1934)."""
    return 1.0 if k >= n else float(special.betaincinv(k + 1, n - k, confidence))


def share_lower(k: float, n: float, confidence: float = CONFIDENCE) -> float:
    """Lower bound of the same kind."""
    return 0.0 if k <= 0 else float(special.betaincinv(k, n - k + 1, 1 - confidence))


def requests_for_pass(allowed: float, k: int, confidence: float = CONFIDENCE) -> int:
    """Smallest n at which `k` violations still show a share of at most `allowed`, in (0, 1): 299 for 0 at 1 %."""
    low, high = k, max(k + 1, 1)
    while share_upper(k, high, confidence) > allowed:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if share_upper(k, middle, confidence) <= allowed else (middle, high)
    return high


def design_effect(counts: Floats, sizes: Floats) -> float:
    """
    Factor by which bursts in time widen the variance of `sum(counts) / sum(sizes)`; 1 = independent requests.

    Args:
        counts: Violating units of each request, in order of arrival.
        sizes: Units of each request.

    Source: ratio of the block-to-block variance to that of independent draws, Kish, Survey Sampling (1965), 8.2.
    """
    n = len(counts)
    blocks = min(BLOCKS, n // 2)
    total = float(sizes.sum())
    if blocks < 2 or total == 0:
        return 1.0
    residuals = counts - counts.sum() / total * sizes
    variance = float(np.mean(residuals**2))
    if variance == 0:
        return 1.0
    starts = np.arange(blocks) * n // blocks
    lengths = np.diff(np.append(starts, n))
    between = float(np.mean(np.add.reduceat(residuals, starts) ** 2 / lengths)) * blocks / (blocks - 1)
    return max(between / variance, 1.0)


def ratio_bounds(
    numerators: Floats, denominators: Floats, size: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """
    Lower and upper bound on a ratio of sums, by resampling `size` requests with replacement.

    With `size` = requests / D the spread is that of bursts of D. Alone it would be too sure of what it has not seen
    (no violation at all → an upper bound of 0): the caller adds what an exact bound says about unseen requests.

    Args:
        numerators: One for each request, in order of arrival: violating units, or the sum of its values.
        denominators: Units of each request, > 0.
        size: Requests in each resample, >= 1.
        confidence: Of each bound.
    """
    generator = np.random.default_rng(_SEED)
    batch = max(1, min(DRAWS, _BATCH // size))
    ratios: list[Floats] = []
    for done in range(0, DRAWS, batch):
        rows = generator.integers(0, len(numerators), (min(batch, DRAWS - done), size), dtype=np.int32)
        ratios.append(numerators[rows].sum(axis=1) / denominators[rows].sum(axis=1))
    low, high = np.quantile(np.concatenate(ratios), [1 - confidence, confidence])
    return float(low), float(high)


def log_e_value(k: Floats | float, n: Floats | float, allowed: float) -> Floats:
    """
    Natural log of the evidence that the share of violations exceeds `allowed`, after k of n.

    Under a share of at most `allowed` and independent violations, the chance that it ever reaches 1/alpha is at most
    alpha, however often one looks. k and n need not be whole: counts of bursts are divided by their size first.

    Source: one-sided beta mixture, Robbins, Ann. Math. Stat. 41 (1970); Howard et al., Ann. Stat. 49 (2021), with a
    Beta(0.5, 10) cut off below `allowed`.
    """
    prior_k, prior_rest = 0.5, 10.0
    a, b = k + prior_k, n - k + prior_rest
    with np.errstate(divide="ignore"):
        above = np.log(special.betaincc(a, b, allowed)) - math.log(special.betaincc(prior_k, prior_rest, allowed))
    evidence: Floats = (
        special.betaln(a, b)
        - special.betaln(prior_k, prior_rest)
        + above
        - k * math.log(allowed)
        - (n - k) * math.log1p(-allowed)
    )
    return evidence
