"""How sure is a cost, and is one deployment really cheaper than another? From paired, interleaved repeats. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from tuner.cost import per_1k_good_requests
from tuner.errors import MeasurementError
from tuner.stats import CONFIDENCE


@dataclass(frozen=True)
class CostInterval:
    """Currency per 1,000 good requests. The true capacity lies between the verified load and the lowest broken one."""

    low: float | None  # None = not bounded: no load was seen broken
    high: float
    n: int  # repeats; of one repeat the spread is unknown and the interval is not widened
    spread: float  # factor, >= 1, by which both ends were widened


@dataclass(frozen=True)
class GainVerdict:
    """
    Candidate against baseline: shares of the baseline's cost that are saved, negative where it costs more.

    `lower` and `upper` are one-sided bounds at `confidence`; None where one pair, or none, says nothing about noise.
    """

    estimate: float | None
    lower: float | None
    upper: float | None
    confidence: float
    n: int  # pairs
    proven: bool  # `lower` is above the smallest gain asked for


def cost_interval(
    per_hour: float, goodputs_rps: Sequence[float], broken_rps: float | None, confidence: float = CONFIDENCE
) -> CostInterval | None:
    """
    Interval of the cost per 1,000 good requests; None if a repeat has no goodput.

    Args:
        per_hour: Currency per hour of the deployment.
        goodputs_rps: Of each repeat at the highest verified load, in requests/s.
        broken_rps: The lowest load seen broken, in requests/s; None = none was.
        confidence: Of each end.
    """
    if not goodputs_rps or min(goodputs_rps) <= 0:
        return None
    logs = np.log(goodputs_rps)
    mean_rps = math.exp(float(logs.mean()))
    spread = math.exp(_half_width(logs, confidence) or 0.0)
    high = per_1k_good_requests(per_hour, mean_rps)
    low = None if broken_rps is None else per_1k_good_requests(per_hour, max(broken_rps, mean_rps))
    if high is None:
        return None
    return CostInterval(None if low is None else low / spread, high * spread, len(goodputs_rps), spread)


def gain(
    baseline: Sequence[float], candidate: Sequence[float], min_gain: float, confidence: float = CONFIDENCE
) -> GainVerdict:
    """
    Is the candidate cheaper by more than `min_gain`? A t-test on the log cost ratio of pairs.

    Args:
        baseline: Cost per good request of each repeat, > 0, in any one currency.
        candidate: Of the repeat that was interleaved with it, in the same order.
        min_gain: Share of the baseline's cost, such as 0.02.
        confidence: Of each one-sided bound.

    Raises:
        MeasurementError: The two have different numbers of repeats, or a cost is not a number > 0.
    """
    if len(baseline) != len(candidate):
        raise MeasurementError(f"got {len(baseline)} baseline and {len(candidate)} candidate repeats: they go in pairs")
    if not all(math.isfinite(cost) and cost > 0 for cost in (*baseline, *candidate)):
        raise MeasurementError("a repeat without goodput has no cost: it cannot be compared")
    if not baseline:
        return GainVerdict(None, None, None, confidence, 0, proven=False)
    ratios = np.log(candidate) - np.log(baseline)
    mean, half = float(ratios.mean()), _half_width(ratios, confidence)
    if half is None:
        return GainVerdict(1 - math.exp(mean), None, None, confidence, len(ratios), proven=False)
    lower = 1 - math.exp(mean + half)
    return GainVerdict(
        1 - math.exp(mean), lower, 1 - math.exp(mean - half), confidence, len(ratios), proven=lower > min_gain
    )


def _half_width(values: np.ndarray[tuple[int], np.dtype[np.float64]], confidence: float) -> float | None:
    """Distance from the mean to a one-sided bound, by Student's t; None of a single value."""
    n = len(values)
    if n < 2:
        return None
    return float(special.stdtrit(n - 1, confidence) * values.std(ddof=1) / math.sqrt(n))
