"""
Has the incumbent changed since the nights before? A jump or a drift, with its interval. Pure.

Each night gives the logarithm of what the incumbent costs and, measured the same night, of what the engine's defaults
cost. For every night at which a change may have begun, two shapes are fitted by least squares with an unknown level
before it: a step, and a ramp of so much a night. The clearest fit is a finding where it stands further from zero than
`CLEAR` standard errors. The step needs a single night after the change, the ramp collects what many nights add up to.

Two series are looked at: the incumbent, and the mean of incumbent and defaults, which knows less of one measurement's
noise where machine or engine move both. The noise comes from the differences of neighbouring nights together with what
is expected of any machine, so that two quiet nights do not make a third one an alarm. How often all this cries wolf,
and how soon it sees what is there: `benchmarks/nights.py`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

#: Standard errors beyond which a change is no accident. Set by benchmarks/nights.py.
CLEAR = 4.5
#: How many differences between nights the expected noise weighs.
WEIGHT = 12
#: No machine is believed to be steadier than this share of what is expected.
LEAST_NOISE = 0.5
#: Differences count as noise up to so many standard deviations of what is expected: a jump is none.
MOST_NOISE = 3.5
#: Nights of a ramp, at least; what is shorter is a step.
SHORTEST_RAMP = 3
#: Nights that are looked at, at most.
MEMORY = 30
#: Of the interval, two-sided.
CONFIDENCE = 0.95
_Z95 = 1.96

Array = NDArray[np.float64]
Shape = Literal["step", "ramp"]
Scope = Literal["", "incumbent", "both"]


@dataclass(frozen=True)
class Point:
    """One night of one incumbent under one workload."""

    night: int
    incumbent: float  # natural logarithm of its cost
    baseline: float | None  # of the engine's defaults, the same night


@dataclass(frozen=True)
class Change:
    """What the nights say of the incumbent's cost."""

    shape: Shape | None  # None = nothing is clear; the figures are then those of tonight against the mean before
    share: float | None  # of the cost, > 0 is dearer; of a ramp: since it began. None on a first night
    low: float | None  # of `share`, at `CONFIDENCE`
    high: float | None
    since: int | None  # first night of the change
    nights: int  # nights before tonight
    noise: float  # standard deviation of one night's figure
    scope: Scope  # `both`: the defaults moved by at least half as much


@dataclass(frozen=True)
class _Fit:
    shape: Shape
    begin: int  # index of the first changed night
    score: float  # estimate / standard error
    contrast: Array  # of norm² `weight`, orthogonal to a constant
    noise: float


def change(points: Sequence[Point], expected: float) -> Change:
    """
    Compare the last night with those before.

    Args:
        points: Nights of the same incumbent under the same workload since the last finding, oldest first; at least one.
        expected: Standard deviation of one night's figure, as far as is known without these nights.
    """
    points = points[-MEMORY:]
    own = np.array([point.incumbent for point in points])
    if len(own) == 1:
        return Change(None, None, None, None, None, 0, expected, "")
    others = [point.baseline for point in points]
    base = None if any(each is None for each in others) else np.array(others, dtype=np.float64)
    fits = list(_fits(own, expected)) + ([] if base is None else list(_fits((own + base) / 2, expected)))
    best = max(fits, key=lambda fit: abs(fit.score))
    if abs(best.score) < CLEAR:
        last = next(fit for fit in fits if fit.begin == len(own) - 1 and fit.shape == "step")
        return _described(points, own, base, last, clear=False, expected=expected)
    return _described(points, own, base, best, clear=True, expected=expected)


def noise(values: Array, expected: float, leave_out: int | None = None) -> float:
    """
    Standard deviation of one night's figure, from differences of neighbours and from what is expected.

    Args:
        values: Logarithms, in the order of the nights.
        expected: As in `change`.
        leave_out: Index of a night whose difference to the night before is no noise.
    """
    squares = np.minimum(np.diff(values) ** 2, 2 * (MOST_NOISE * expected) ** 2) / 2
    if leave_out is not None:
        squares = np.delete(squares, leave_out - 1)
    found = (WEIGHT * expected**2 + float(squares.sum())) / (WEIGHT + len(squares))
    return max(LEAST_NOISE * expected, math.sqrt(found))


def _fits(values: Array, expected: float) -> Iterator[_Fit]:
    """Every step, and every ramp that is long enough."""
    nights = np.arange(len(values))
    for begin in range(1, len(values)):
        yield _fit(values, "step", begin, (nights >= begin).astype(np.float64), noise(values, expected, begin))
        if len(values) - begin >= SHORTEST_RAMP:
            yield _fit(values, "ramp", begin, np.maximum(0.0, nights - begin + 1.0), noise(values, expected))


def _fit(values: Array, shape: Shape, begin: int, moved: Array, sigma: float) -> _Fit:
    contrast = moved - moved.mean()
    size = math.sqrt(float(contrast @ contrast))
    return _Fit(shape, begin, float(contrast @ values) / (size * sigma), contrast, sigma)


def _described(
    points: Sequence[Point], own: Array, base: Array | None, fit: _Fit, *, clear: bool, expected: float
) -> Change:
    weight = float(fit.contrast @ fit.contrast)
    reach = 1.0 if fit.shape == "step" else float(len(own) - fit.begin)
    moved = reach * float(fit.contrast @ own) / weight
    half = _Z95 * reach * noise(own, expected, fit.begin if fit.shape == "step" else None) / math.sqrt(weight)
    scope: Scope = ""
    if clear and base is not None:
        alongside = reach * float(fit.contrast @ base) / weight
        scope = "both" if alongside / moved >= 0.5 else "incumbent"
    return Change(
        shape=fit.shape if clear else None,
        share=math.expm1(moved),
        low=math.expm1(moved - half),
        high=math.expm1(moved + half),
        since=None if not clear else points[fit.begin].night,
        nights=len(points) - 1,
        noise=fit.noise,
        scope=scope,
    )
