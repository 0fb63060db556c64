"""How sure is a cost, and is one deployment really cheaper than another? From interleaved sessions. Pure."""

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

    `lower` holds with `confidence`; None where the sessions do not show one.
    """

    estimate: float | None
    lower: float | None
    confidence: float
    n: int  # sessions of both together
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
    kept: Sequence[float | None],
    held: Sequence[float | None],
    refused: Sequence[float | None],
    *,
    min_gain: float,
    confidence: float = CONFIDENCE,
) -> GainVerdict:
    """
    Is the candidate cheaper by more than `min_gain`? A test without assumptions on the noise of a session.

    All figures are costs. If every session of the candidate kept a load that costs at most L, and every session of the
    baseline broke the load at which it would cost U, then a candidate that is no better than U / L says has a chance of
    at most p^a (1 − p)^b, p being its chance to keep that load in one of a sessions, and the baseline's to break it at
    most 1 − p in one of b. The largest value over p is (a/n)^a (b/n)^b, n = a + b: 3.5 % for two and three sessions.

    Args:
        kept: Of each session of the candidate, the cost at the load that it kept; None = it kept none.
        held: Of each session of the baseline, likewise.
        refused: Of each session of the baseline, the cost that it would have had at the lowest load that it broke, had
            everything been good there; None = it broke none.
        min_gain: Share of the baseline's cost, such as 0.02.
        confidence: That `lower` must have.

    Raises:
        MeasurementError: A cost is not a finite number > 0.
    """
    mine, theirs = [c for c in kept if c is not None], [c for c in held if c is not None]
    broken = [c for c in refused if c is not None]
    if not all(math.isfinite(cost) and cost > 0 for cost in (*mine, *theirs, *broken)):
        raise MeasurementError("a session without goodput has no cost: it cannot be compared")
    estimate = 1 - math.exp(float(np.mean(np.log(mine)) - np.mean(np.log(theirs)))) if mine and theirs else None
    sessions = len(kept) + len(refused)
    whole = bool(kept) and bool(refused) and len(mine) == len(kept) and len(broken) == len(refused)
    if not whole:
        return GainVerdict(estimate, None, confidence, sessions, proven=False)
    sure = 1 - (len(kept) / sessions) ** len(kept) * (len(refused) / sessions) ** len(refused)
    lower = 1 - max(mine) / min(broken)
    if sure < confidence:
        return GainVerdict(estimate, None, sure, sessions, proven=False)
    return GainVerdict(estimate, lower, sure, sessions, proven=lower > min_gain)


def _half_width(values: np.ndarray[tuple[int], np.dtype[np.float64]], confidence: float) -> float | None:
    """Distance from the mean to a one-sided bound, by Student's t; None of a single value."""
    n = len(values)
    if n < 2:
        return None
    return float(special.stdtrit(n - 1, confidence) * values.std(ddof=1) / math.sqrt(n))
