"""
When requests arrive: seeded schedules at unit rate, and the phases of a level. Pure.

A schedule is determined by (seed, level number) alone. Divided by the offered rate it gives arrival times, so two
levels that differ in the rate alone see the same process, stretched.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.errors import InputError
from tuner.records import Phase
from tuner.slo import Arrivals

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

WARMUP, MEASURED, DRAIN = 0, 1, 2
#: Index = code in `phase` arrays, value = `records.Phase`.
PHASES: tuple[Phase, ...] = ("warmup", "measured", "drain")

#: What a random stream is for; streams of different purposes are independent.
GAPS, ROTATION, JITTER, TOKENS, ORDER = range(5)


def generator(seed: int, number: int, purpose: int, *more: int) -> np.random.Generator:
    """A random stream of its own for (`seed`, level `number`, `purpose`, …), each >= 0."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, number, purpose, *more])))


def unit_times(arrivals: Arrivals, count: int, *, seed: int, number: int) -> FloatArray:
    """
    Times of the first `count` arrivals at a mean of one per second, ascending.

    The first n times do not depend on `count`. Poisson and gamma schedules are true draws: neither clipped nor rescaled
    to their mean. A constant schedule starts at 0. `replay` comes from `replay_times`.

    Args:
        arrivals: `constant`, `poisson` or `gamma`.
        count: >= 0.
        seed: Of the study, >= 0.
        number: Of the level, >= 0.
    """
    if arrivals.process == "constant":
        return np.arange(count, dtype=np.float64)
    random = generator(seed, number, GAPS)
    if arrivals.process == "poisson":
        return np.cumsum(random.standard_exponential(count))
    if arrivals.process == "gamma":
        shape = arrivals.burstiness
        return np.cumsum(random.standard_gamma(shape, count) / shape)
    raise InputError(f"workload.arrivals: got {arrivals.process}: it has no schedule of its own at a unit rate")


def grid_of(timestamps_s: FloatArray, stated_s: float) -> float:
    """
    Width in seconds of the grid on which recorded timestamps lie; 0 = fine enough to be taken as they are.

    A stated width wins. Otherwise timestamps of which at least half repeat the one before lie on a grid as wide as
    their smallest step.
    """
    if stated_s > 0:
        return stated_s
    gaps = np.diff(np.sort(timestamps_s))
    steps = gaps[gaps > 0]
    if len(steps) == 0 or 2 * len(steps) > len(gaps):
        return 0.0
    return float(steps.min())


def replay_times(
    timestamps_s: FloatArray, count: int, *, grid_s: float, seed: int, number: int
) -> tuple[FloatArray, IntArray]:
    """
    Times of the first `count` arrivals with a trace's own gaps at a mean of one per second, and the row of each.

    The trace is entered at a row drawn from (seed, number) and goes round: row index // rows counts the rounds.
    Timestamps on a grid are spread evenly over their cell first.

    Args:
        timestamps_s: Of the trace's rows, in any order.
        count: >= 0.
        grid_s: From `grid_of`.
        seed: Of the study, >= 0.
        number: Of the level, >= 0.

    Returns:
        Times, ascending from 0; and positions in the endlessly repeated trace (row = position % rows).

    Raises:
        InputError: Fewer than two rows, or all at one time: there are no gaps to replay.
    """
    rows = len(timestamps_s)
    times = timestamps_s + generator(seed, number, JITTER).uniform(0.0, grid_s, rows) if grid_s > 0 else timestamps_s
    order = np.argsort(times, kind="stable")
    times = times[order]
    span = float(times[-1] - times[0]) if rows else 0.0
    if span <= 0:
        raise InputError(f"workload.arrivals: got replay of {rows} rows within 0 s: there are no gaps; use poisson")
    mean_gap = span / (rows - 1)
    first = entry_row(rows, seed=seed, number=number)
    place = first + np.arange(count, dtype=np.int64)
    rounds, within = np.divmod(place, rows)
    unit = (times[within] + rounds * (span + mean_gap) - times[first]) / mean_gap
    return unit, order[within] + rounds * rows


def levelled(unit: FloatArray, *, warmup: float, measured: int) -> FloatArray:
    """
    A replayed schedule whose warm-up and whose measured part each have a mean of one arrival per second.

    A recorded trace wanders: a stretch of it may be twice as dense as the whole, and a level is such a stretch. Levels
    that offer the same load must offer it, or the goodput of one would not compare with that of another. Bursts within
    a part are kept; what follows the measured part has its scale.

    Args:
        unit: Times at a mean of one per second over the whole trace, ascending from 0.
        warmup: Length of the warm-up in unit time, >= 0; the arrivals that it holds on average are moved into it.
        measured: Arrivals of the measured part, >= 1.
    """
    first = round(warmup)
    if first + measured >= len(unit):
        return unit
    begin, end = float(unit[first]), float(unit[first + measured])
    if end <= begin:
        return unit
    scaled = warmup + (unit - begin) * (measured / (end - begin))
    if begin > 0:
        scaled[:first] = unit[:first] * (warmup / begin)
    else:
        scaled[:first] = 0.0
    return scaled


def entry_row(rows: int, *, seed: int, number: int) -> int:
    """The row at which level `number` enters a trace of `rows` rows."""
    return int(generator(seed, number, ROTATION).integers(rows))


@dataclass(frozen=True)
class Window:
    """The measured window, in seconds from the start of the level: start inclusive, end exclusive."""

    start_s: float
    length_s: float

    @property
    def end_s(self) -> float:
        return self.start_s + self.length_s


def window_of(arrival_s: FloatArray, *, warmup_s: float, duration_s: float, min_requests: int) -> Window | None:
    """
    The window that starts after the warm-up and lasts until `duration_s` and `min_requests` are both reached.

    Where the count decides, it ends with the arrival after the last counted one, so that arrivals / length estimates
    the rate without bias.

    Returns:
        None where the schedule is too short to tell.
    """
    first = int(np.searchsorted(arrival_s, warmup_s, side="left"))
    if first + min_requests >= len(arrival_s):
        return None
    length_s = max(duration_s, float(arrival_s[first + min_requests]) - warmup_s)
    return Window(warmup_s, length_s) if arrival_s[-1] >= warmup_s + length_s else None


def phases(arrival_s: FloatArray, window: Window) -> NDArray[np.uint8]:
    """The phase of each arrival, as an index into `PHASES`."""
    codes = np.full(len(arrival_s), MEASURED, dtype=np.uint8)
    codes[arrival_s < window.start_s] = WARMUP
    codes[arrival_s >= window.end_s] = DRAIN
    return codes


def enough(rate_rps: float, seconds: float, extra: int) -> int:
    """A first guess at how many arrivals fill `seconds` and hold `extra` more."""
    mean = rate_rps * seconds
    return math.ceil(mean + 6 * math.sqrt(mean)) + extra + 16
