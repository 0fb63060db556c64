"""
Is a limit kept, broken or undecided, and how sure?

"p99 X <= T" means that the share of violating units is at most 1 %. A failed request violates at infinity. What is said
with confidence allows for bursts: counts are divided by D before an exact bound, and a bootstrap draws n/D requests.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tuner import metrics, stats
from tuner.early import EarlyFailure, InOrder
from tuner.metrics import Floats
from tuner.records import Record
from tuner.sample import Sample, Units
from tuner.slo import Limit, Slo

__all__ = [
    "EarlyFailure",
    "InOrder",
    "LimitVerdict",
    "judge",
    "judge_all",
    "judge_attainment",
    "missing_requests",
]

Decision = Literal["kept", "broken", "undecided"]
EXACT, BOOTSTRAP, OBSERVED = "clopper-pearson", "bootstrap over requests", "observed only"

#: Margins are cut here, on both sides, so that one failure does not drown every other limit.
MARGIN_CLIP = 1.5
#: Fewer independent requests than this say nothing about a mean.
MEAN_MINIMUM = 10


@dataclass(frozen=True)
class LimitVerdict:
    """
    One limit over one measured window (or over several, pooled).

    `observed` goes by the point estimate; `decision` by the one-sided bounds on the share of violating units.
    `margin` = (estimate − threshold) / threshold clipped to ±1.5, <= 0 kept; for attainment (promised − attained) /
    promised. Estimate None = infinite, because failures reach this percentile ("> longest"), or nothing was there to
    judge (n = 0).

    Of a `mean` limit, `lower` and `upper` bound the mean itself, in seconds, and `allowed` is 1: its violations are
    units above the threshold, which decide nothing unless they are failures.
    """

    name: str  # "ttft_p99", "itl_p99", "attainment" …
    threshold: float  # seconds; a share for attainment
    estimate: float | None  # in the unit of the threshold, nearest rank
    longest: float | None  # the largest finite value
    n: int  # units: requests, or gaps for itl and chunk_gap
    violations: int
    allowed: float  # share of violating units that the limit allows: 0.01 for p99
    lower: float  # one-sided 95 % bounds on the true share of violating units
    upper: float | None  # None = unbounded: a `mean` with a failure, or of too few requests
    observed: Literal["kept", "broken"]
    decision: Decision
    margin: float
    method: str  # "clopper-pearson", "bootstrap over requests", "observed only"
    design_effect: float  # D by which counts were divided


def judge_all(records: Iterable[Record] | Sample, slo: Slo, divide: float = 2.0) -> tuple[LimitVerdict, ...]:
    """
    Every limit, in the order of the objective file, attainment last.

    Args:
        records: Of one window, or of several pooled; in any order. Only those of phase `measured` count. Pass a
            `Sample` of windows to keep repeats apart in time.
        slo: The promise.
        divide: Smallest D: bursts of up to so many violations are allowed for even where none are seen.
    """
    sample = records if isinstance(records, Sample) else Sample(records)
    verdicts = [judge(limit, sample.units(limit.metric), divide=divide) for limit in slo.limits]
    if slo.attainment is not None:
        verdicts.append(judge_attainment(slo.attainment, sample.good(slo.request), divide=divide))
    return tuple(verdicts)


def judge(limit: Limit, units: Units, *, divide: float = 2.0) -> LimitVerdict:
    """
    One limit on what its metric is judged on.

    A limit without a single unit is broken. With fewer requests than 1/(1−p) a limit on percentile p is undecided. The
    number of requests alone bounds what a pooled metric can claim: that many could hide a request all of whose gaps
    violate.
    """
    counts = units.violations(limit.threshold_s)
    observation = _observe(limit, units, int(counts.sum()))
    if units.total == 0:
        return _verdict(limit, units, observation, _Claim((0.0, 1.0), "broken", OBSERVED, divide))
    if limit.statistic == "mean":
        return _judge_mean(limit, units, observation, divide)
    present = units.per_request > 0
    sizes = units.per_request[present]
    effect = max(divide, stats.design_effect(counts[present], sizes))
    if units.pooled:
        bounds = _pooled_bounds(counts[present], sizes, effect)
    else:
        bounds = _exact_bounds(observation.violations, units.total, effect)
    if limit.quantile is None:
        decision: Decision = observation.observed
        return _verdict(limit, units, observation, _Claim(bounds, decision, OBSERVED, effect))
    decision = _decide(bounds, observation.allowed, enough=len(sizes) * observation.allowed >= 1 - 1e-9)
    return _verdict(limit, units, observation, _Claim(bounds, decision, BOOTSTRAP if units.pooled else EXACT, effect))


def judge_attainment(promised: float, good: NDArray[np.bool_], *, divide: float = 2.0) -> LimitVerdict:
    """
    The promise that a share of the arriving requests is good; exact bounds on the share of those that are not.

    Args:
        promised: In (0, 1]. With 1, one miss breaks it and no miss keeps it, by observation alone.
        good: Of each request, in order of arrival.
        divide: As in `judge_all`.
    """
    n, misses = len(good), int(len(good) - good.sum())
    allowed = round(1 - promised, 12)
    effect = max(divide, stats.design_effect((~good).astype(float), np.ones(n)))
    kept = n > 0 and misses <= n - metrics.nearest_rank(n, promised)
    attained = (n - misses) / n if n else 0.0
    margin = (promised - attained) / promised
    bounds = _exact_bounds(misses, n, effect)
    observed: Literal["kept", "broken"] = "kept" if kept else "broken"
    certain = allowed <= 0 or n == 0
    return LimitVerdict(
        name="attainment",
        threshold=promised,
        estimate=attained if n else None,
        longest=None,
        n=n,
        violations=misses,
        allowed=allowed,
        lower=bounds[0],
        upper=bounds[1],
        observed=observed,
        decision=observed if certain else _decide(bounds, allowed, enough=True),
        margin=min(margin, 0.0) if kept else margin,
        method=OBSERVED if certain else EXACT,
        design_effect=effect,
    )


def missing_requests(verdict: LimitVerdict, requests: int) -> int | None:
    """
    How many more requests the claim "kept" would need if no further one violated; 0 if it is kept.

    None = none help: the limit is observed broken, or no number decides it (`mean`).

    Args:
        verdict: Of a limit over one or several windows.
        requests: Measured so far.
    """
    if verdict.decision == "kept":
        return 0
    if verdict.observed == "broken" or not 0 < verdict.allowed < 1:
        return None
    share = verdict.violations / verdict.n * requests  # requests' worth of violating units
    effective = math.ceil(share / verdict.design_effect - 1e-9)
    needed = math.ceil(stats.requests_for_pass(verdict.allowed, effective) * verdict.design_effect)
    return max(needed - requests, 1)


@dataclass(frozen=True)
class _Observation:
    """The point estimate of a limit."""

    estimate: float | None  # seconds, infinite or None
    violations: int
    allowed: float
    observed: Literal["kept", "broken"]


def _observe(limit: Limit, units: Units, violations: int) -> _Observation:
    """By the share of violations. The nearest rank says the same: above it lie the violations that are allowed."""
    estimate = units.statistic(limit.statistic)
    if limit.statistic == "mean":
        allowed, kept = 1.0, estimate is not None and estimate <= limit.threshold_s
    elif limit.quantile is None:
        allowed, kept = 0.0, violations == 0
    else:
        allowed = round(1 - limit.quantile, 12)
        kept = violations <= units.total - metrics.nearest_rank(units.total, limit.quantile)
    return _Observation(estimate, violations, allowed, "kept" if kept and estimate is not None else "broken")


def _judge_mean(limit: Limit, units: Units, observation: _Observation, divide: float) -> LimitVerdict:
    """By bootstrap over requests; any failure breaks it."""
    if observation.estimate is None or math.isinf(observation.estimate):
        return _verdict(limit, units, observation, _Claim((0.0, None), "broken", BOOTSTRAP, divide))
    present = units.per_request > 0
    sums, sizes = units.sums()[present], units.per_request[present]
    effect = max(divide, stats.design_effect(sums, sizes))
    size = math.floor(len(sums) / effect)
    if size < MEAN_MINIMUM:
        return _verdict(limit, units, observation, _Claim((0.0, None), "undecided", BOOTSTRAP, effect))
    bounds = stats.ratio_bounds(sums, sizes, size)
    return _verdict(limit, units, observation, _Claim(bounds, _decide(bounds, limit.threshold_s), BOOTSTRAP, effect))


def _exact_bounds(violations: int, n: int, effect: float) -> tuple[float, float]:
    """Bounds on counts divided by the design effect, each rounded to the side that claims less."""
    upper = stats.share_upper(math.ceil(violations / effect - 1e-9), math.floor(n / effect + 1e-9))
    lower = stats.share_lower(math.floor(violations / effect + 1e-9), math.ceil(n / effect - 1e-9))
    return lower, upper


def _pooled_bounds(counts: Floats, sizes: Floats, effect: float) -> tuple[float, float]:
    """Bootstrap over requests, never surer than so many requests can be of what they have not shown."""
    size = math.floor(len(sizes) / effect + 1e-9)
    if size < 1:
        return 0.0, 1.0
    lower, upper = stats.ratio_bounds(counts, sizes, size)
    return min(lower, stats.share_lower(size, size)), max(upper, stats.share_upper(0, size))


def _decide(bounds: tuple[float, float], allowed: float, *, enough: bool = True) -> Decision:
    if not enough:
        return "undecided"
    lower, upper = bounds
    if upper <= allowed:
        return "kept"
    return "broken" if lower > allowed else "undecided"


@dataclass(frozen=True)
class _Claim:
    """What is said with confidence."""

    bounds: tuple[float, float | None]
    decision: Decision
    method: str
    effect: float


def _verdict(limit: Limit, units: Units, observation: _Observation, claim: _Claim) -> LimitVerdict:
    estimate = observation.estimate
    finite = estimate is not None and math.isfinite(estimate)
    return LimitVerdict(
        name=limit.name,
        threshold=limit.threshold_s,
        estimate=estimate if finite else None,
        longest=units.longest,
        n=units.total,
        violations=observation.violations,
        allowed=observation.allowed,
        lower=claim.bounds[0],
        upper=claim.bounds[1],
        observed=observation.observed,
        decision=claim.decision,
        margin=_margin(estimate, limit.threshold_s),
        method=claim.method,
        design_effect=claim.effect,
    )


def _margin(estimate: float | None, threshold_s: float) -> float:
    """Relative distance to the threshold, > 0 beyond it, within ±MARGIN_CLIP; MARGIN_CLIP where nothing was seen."""
    if estimate is None:
        return MARGIN_CLIP
    if threshold_s <= 0:
        return 0.0 if estimate <= threshold_s else MARGIN_CLIP
    return max(-MARGIN_CLIP, min(MARGIN_CLIP, (estimate - threshold_s) / threshold_s))
