"""
Fits the constants of a calibration to measured levels.

The loss has jumps: a request that comes a moment earlier joins another step. So a descent from several starts is
followed by a simplex search.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner import metrics
from tuner.configuration import Configuration
from tuner.deployment.simulated import SimulatedLauncher
from tuner.load.plan import LevelData
from tuner.simulator.calibrated import STATISTICS, Calibration, Residual

#: What is fitted, by metric: percentiles, and the mean. A single p95 may lie on a cliff (5 % of the tokens wait for
#: another's prompt, or 4 %), which tells a search nothing; its neighbours and the mean do.
FITTED: Mapping[str, tuple[int, ...]] = {"ttft": (10, 50, 90, 95), "itl": (50, 90, 95, 99)}
#: What an error counts, 1 where nothing is said. Steps of a real engine vary by themselves, those of the simulator do
#: not: a high percentile of the gaps is always somewhat above what any constants give, and must not outvote the median.
WEIGHTS: Mapping[str, float] = {"ttft_p50": 2.0, "itl_p50": 3.0, "itl_mean": 2.0, "itl_p95": 0.7, "itl_p99": 0.3}
#: How the statistics that are paces begin.
PACE = "pace_"
#: What a pace counts, and the gaps that one needs.
PACE_WEIGHT, FEWEST_GAPS = 2.0, 100
#: How often a descent may look for a better point; each look simulates the levels five times.
MOST_STEPS = 10
#: Where it starts: how much of the median TTFT is front end. From the best end simplexes go on, one after the other,
#: each for so many looks, until two together gain less than this share.
STARTS = (0.1, 0.3, 0.5)
MOST_LOOKS, MOST_PAIRS, LEAST_GAIN = 150, 4, 0.03
_START_C0, _START_REQUEST = 0.05, 0.02  # of the median ITL
#: Weight of the prior: a factor e on a scale counts as much as an error of this share in one statistic.
PRIOR = 0.02
#: A statistic that a simulated level does not have (no request finished) counts as wrong by this factor.
MISSING = 10.0
#: Errors beyond this share count in proportion, not squared: a level that was measured while something else ran on the
#: machine does not outweigh the others.
TOLERANCE = 0.1
#: Scales are looked for within this factor of 1.
WIDEST = 30.0
_STEP = 0.02  # of the numerical derivative: large enough to look past the jumps of a discrete schedule
_LOW = np.array([-math.log(WIDEST), -math.log(WIDEST), 0.0, 0.0, 0.0])
_HIGH = np.array([math.log(WIDEST), math.log(WIDEST), 1.0, 1.0, 1.0])
#: Of the first simplex; the second goes the other way: each scale, then what trades a scale for a fixed part, and the
#: fixed part of a step for that of its requests.
_SIMPLEX = np.array(
    [
        [0.1, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.1, 0.0, 0.0, 0.0],
        [0.0, -0.15, 0.15, 0.0, 0.0],
        [-0.05, 0.0, 0.0, 0.1, 0.0],
        [0.0, -0.1, 0.0, 0.0, 0.05],
    ]
)
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """One level of a live study, to be met by the simulator."""

    trial: int
    configuration: Configuration
    data: LevelData
    offered: float
    device: str
    base: str  # version of the uncalibrated step times
    front_end_s: float  # uncalibrated
    engine_version: str | None
    values_s: Mapping[str, float]  # statistic → measured


def statistics(data: LevelData) -> dict[str, float]:
    """
    What is fitted, in seconds, of the complete measured requests (`ttft_p50`, `itl_mean` …); what does not exist is
    left out.

    Percentiles are linear between neighbours; gaps are pooled over the requests and count once for each token.
    """
    complete = [record for record in data.records if record.phase == "measured" and metrics.is_complete(record)]
    first = np.array([value for record in complete if (value := metrics.ttft_s(record)) is not None])
    gaps = [np.repeat(*metrics.itl_s(record)) for record in complete]
    found: dict[str, float] = {}
    for name, values in (("ttft", first), ("itl", np.concatenate(gaps) if gaps else np.empty(0))):
        if len(values):
            percentiles = np.percentile(values, FITTED[name])
            found |= {
                f"{name}_p{percent}": float(value) for percent, value in zip(FITTED[name], percentiles, strict=True)
            }
            found[f"{name}_mean"] = float(values.mean())
    return {name: value for name, value in found.items() if value > 0}


def paces(data: LevelData, fewest: int = FEWEST_GAPS) -> dict[str, float]:
    """
    How fast an answer goes on beside how many others, in seconds: the median gap per token of the complete measured
    requests while 1, 2, up to 4, up to 8 … answers were under way (`pace_1`, `pace_2`, `pace_4`, `pace_8` …).

    Answers count wherever in the deployment they run. Percentiles over a whole level mix the steps with how many
    requests happened to meet in them. These do not, so they tell what a step takes from what each request adds to it,
    whatever the load.

    Args:
        data: One level.
        fewest: Gaps that a median needs; with fewer it is left out.
    """
    answered = [record for record in data.records if record.chunks]
    starts, ends = (np.sort([record.chunks[place][0] for record in answered]) for place in (0, -1))
    beside: list[_Floats] = []
    gaps: list[_Floats] = []
    for record in answered:
        if record.phase == "measured" and metrics.is_complete(record) and len(record.chunks) > 1:
            times = np.array([time_s for time_s, _ in record.chunks])
            tokens = np.array([max(1, count) for _, count in record.chunks[1:]])
            middles = (times[1:] + times[:-1]) / 2
            beside.append(np.searchsorted(starts, middles, "right") - np.searchsorted(ends, middles, "left"))
            gaps.append(np.diff(times) / tokens)
    if not gaps:
        return {}
    values, bins = np.concatenate(gaps), np.ceil(np.log2(np.maximum(1, np.concatenate(beside)))).astype(int)
    found = {f"{PACE}{2**each}": values[bins == each] for each in range(int(bins.max()) + 1)}
    medians = {name: float(np.median(mine)) for name, mine in found.items() if len(mine) >= fewest}
    return {name: value for name, value in medians.items() if value > 0}


def _error(name: str, measured: float, found: Mapping[str, float]) -> float:
    """Weighted logarithm of simulated over measured; a pace that the simulated level has no gaps for says nothing."""
    pace = name.startswith(PACE)
    if name not in found:
        return 0.0 if pace else math.log(MISSING)
    return (PACE_WEIGHT if pace else WEIGHTS.get(name, 1.0)) * math.log(found[name] / measured)


def _cost(residuals: _Floats) -> float:
    """As `least_squares` counts with `loss="soft_l1"`."""
    return float(np.sum(TOLERANCE**2 * (np.sqrt(1 + (residuals / TOLERANCE) ** 2) - 1)))


class Fit:
    """
    Least squares over [log scale_prefill, log scale_decode, c0 / ITL, ttft_fixed / TTFT, request / ITL]; the last three
    are at least 0.

    ITL and TTFT are the medians of the measured p50s: all unknowns are then of the order of 1.
    """

    def __init__(self, launcher: SimulatedLauncher, levels: Sequence[Measured], blank: Calibration) -> None:
        self._launcher, self._levels, self._blank = launcher, levels, blank
        self._gap_s = self._median("itl_p50") or self._median("ttft_p50")
        self._first_s = self._median("ttft_p50")
        self._default = blank.ttft_fixed_s / self._first_s
        self._known: dict[bytes, list[dict[str, float]]] = {}

    def run(self) -> Calibration:
        ends = [self._descend(self._start(share)) for share in STARTS]
        cost, best = min(ends, key=lambda end: end[0])
        for _ in range(MOST_PAIRS):
            for way in (1.0, -1.0):
                best = self._refine(best, way * _SIMPLEX)
            before, cost = cost, _cost(self._residuals(best))
            if cost > (1 - LEAST_GAIN) * before:
                break
        residuals = tuple(
            Residual(level.trial, level.data.plan.number, level.offered, name, level.values_s[name], found[name])
            for level, found in zip(self._levels, self._simulate(best), strict=True)
            for name in STATISTICS
            if name in found and name in level.values_s
        )
        known = {name for level in self._levels for name in level.values_s if name.startswith(PACE)}
        return dataclasses.replace(self._calibration(best), residuals=residuals, paces=len(known))

    def _descend(self, start: _Floats) -> tuple[float, _Floats]:
        """Cost and place of the nearest minimum."""
        from scipy.optimize import least_squares

        done = least_squares(
            self._residuals,
            np.clip(start, _LOW + 1e-4, _HIGH - 1e-4),
            jac=self._jacobian,
            bounds=(_LOW, _HIGH),
            loss="soft_l1",
            f_scale=TOLERANCE,
            xtol=1e-3,
            ftol=1e-3,
            max_nfev=MOST_STEPS,
        )
        return float(done.cost), done.x

    def _refine(self, start: _Floats, steps: _Floats) -> _Floats:
        """The jumps of a discrete schedule end a descent early; a simplex steps over them."""
        from scipy.optimize import minimize

        corners = np.clip(start + np.vstack([np.zeros(len(start)), steps]), _LOW, _HIGH)
        done = minimize(  # type: ignore[call-overload]  # its stubs know no initial simplex
            lambda x: _cost(self._residuals(np.clip(x, _LOW, _HIGH))),
            start,
            method="Nelder-Mead",
            options={"initial_simplex": corners, "maxfev": MOST_LOOKS, "xatol": 1e-3, "fatol": 1e-5},
        )
        return np.clip(np.asarray(done.x, dtype=np.float64), _LOW, _HIGH)

    def _median(self, statistic: str) -> float:
        found = [level.values_s[statistic] for level in self._levels if statistic in level.values_s]
        return float(np.median(found)) if found else 0.0

    def _calibration(self, x: _Floats) -> Calibration:
        return dataclasses.replace(
            self._blank,
            scale_prefill=math.exp(x[0]),
            scale_decode=math.exp(x[1]),
            c0_s=float(x[2]) * self._gap_s,
            ttft_fixed_s=float(x[3]) * self._first_s,
            request_s=float(x[4]) * self._gap_s,
        )

    def _simulate(self, x: _Floats) -> list[dict[str, float]]:
        key = x.tobytes()
        if key not in self._known:
            launcher = self._launcher.recalibrated(self._calibration(x))
            found: list[dict[str, float]] = []
            for level in self._levels:
                plan = dataclasses.replace(level.data.plan, stop_early=False)
                with launcher.deployment(level.configuration, Path()) as running:
                    data = running.drive(plan)
                found.append(statistics(data) | paces(data, fewest=1))
            self._known[key] = found
        return self._known[key]

    def _start(self, front_end: float) -> _Floats:
        """Scales that meet the median level, found one after the other: what decodes take first, then prompts."""
        x = np.array([0.0, 0.0, _START_C0, front_end, _START_REQUEST])
        for index, met in ((1, ("pace_1", "pace_2", "pace_4", "itl_p50")), (0, ("ttft_p50",))):
            ratios = [
                level.values_s[statistic] / found[statistic]
                for level, found in zip(self._levels, self._simulate(x), strict=True)
                for statistic in met
                if statistic in found and statistic in level.values_s
            ]
            if ratios:
                shift = math.log(float(np.median(ratios)))
                x[index] += shift
                if index == 1:
                    x[0] += shift
        return x

    def _residuals(self, x: _Floats) -> _Floats:
        errors = [
            _error(name, measured, found)
            for level, found in zip(self._levels, self._simulate(x), strict=True)
            for name, measured in level.values_s.items()
        ]
        prior = [x[0], x[1], x[2], x[3] - self._default, x[4]]
        return np.array([*errors, *(PRIOR * each for each in prior)])

    def _jacobian(self, x: _Floats) -> _Floats:
        here = self._residuals(x)
        columns = []
        for index in range(len(x)):
            moved = x.copy()
            moved[index] += _STEP
            columns.append((self._residuals(moved) - here) / _STEP)
        return np.stack(columns, axis=1)
