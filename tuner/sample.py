"""A measured window as arrays: what every request, and every gap, contributes to each metric. Pure."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tuner import metrics
from tuner.metrics import Counts, Floats
from tuner.records import Record
from tuner.slo import RequestLimits


@dataclass(frozen=True, eq=False)
class Units:
    """
    What one metric is judged on. Units are requests, or, if `pooled`, gaps that belong to requests.

    Args:
        values: In seconds, finite or infinite (a failed request), never NaN.
        weights: How many units each value stands for.
        owner: Index of the request that each value belongs to; requests are numbered in order of arrival.
        owed: For each request, units that never came: tokens asked of a failed request and not delivered.
        pooled: Whether one request can own many units.
    """

    values: Floats
    weights: Counts
    owner: NDArray[np.intp]
    owed: Counts
    pooled: bool

    @property
    def requests(self) -> int:
        return len(self.owed)

    @cached_property
    def total(self) -> int:
        """All units."""
        return int(self.weights.sum()) + int(self.owed.sum())

    @cached_property
    def per_request(self) -> Floats:
        """Units of each request."""
        return self._by_request(self.owner, self.weights) + self.owed

    def violations(self, threshold_s: float) -> Floats:
        """Units above the threshold, for each request."""
        above = self.values > threshold_s
        return self._by_request(self.owner[above], self.weights[above]) + self.owed

    def sums(self) -> Floats:
        """Sum of the units' values for each request; infinite where one is."""
        sums = self._by_request(self.owner, self.values * self.weights)
        sums[self.owed > 0] = math.inf
        return sums

    def _by_request(self, owner: NDArray[np.intp], amounts: Floats | Counts) -> Floats:
        return np.bincount(owner, amounts, self.requests).astype(float)

    @cached_property
    def _sorted(self) -> tuple[Floats, Counts]:
        """Finite values in ascending order, and how many units lie at or below each."""
        finite = np.isfinite(self.values)
        if (self.weights == 1).all():  # most levels: no need to carry weights along
            return np.sort(self.values[finite]), np.arange(1, np.count_nonzero(finite) + 1)
        order = np.argsort(self.values[finite], kind="stable")
        return self.values[finite][order], np.cumsum(self.weights[finite][order])

    @property
    def longest(self) -> float | None:
        """The largest finite value."""
        values, _ = self._sorted
        return float(values[-1]) if len(values) else None

    def at_rank(self, rank: int) -> float:
        """The unit at this rank, from 1, in ascending order; infinite where failures reach it."""
        values, up_to = self._sorted
        position = int(np.searchsorted(up_to, rank))
        return float(values[position]) if position < len(values) else math.inf

    def percentile(self, quantile: float, method: metrics.Method = "nearest_rank") -> float | None:
        """Over all units; infinite where failures reach it, None of nothing."""
        return metrics.percentile_of(self.total, self.at_rank, quantile, method)

    def mean(self) -> float | None:
        """Infinite with any failure, None of nothing."""
        return float(self.sums().sum()) / self.total if self.total else None

    def statistic(self, name: str, method: metrics.Method = "nearest_rank") -> float | None:
        """`p50` … `p99.9`, `mean` or `max`."""
        if name == "mean":
            return self.mean()
        return self.percentile(1.0 if name == "max" else float(name[1:]) / 100, method)

    def share_above(self, factor: float) -> float | None:
        """Share of the delivered units above `factor` times their median; None without any."""
        values, up_to = self._sorted
        if not len(values) or up_to[-1] == 0:
            return None
        median = values[np.searchsorted(up_to, metrics.nearest_rank(int(up_to[-1]), 0.5))]
        within = int(np.searchsorted(values, factor * median, side="right"))
        return 1.0 - float(up_to[within - 1]) / float(up_to[-1]) if within else 1.0


class Sample:
    """
    The requests that arrived in one measured window, or in several, by order of arrival.

    Args:
        windows: The records of each window, in any order. Those of another phase are left out.
    """

    def __init__(self, *windows: Iterable[Record]) -> None:
        ordered = [sorted((r for r in window if r.phase == "measured"), key=_arrival) for window in windows]
        self.records: tuple[Record, ...] = tuple(chain.from_iterable(ordered))
        self._complete = [metrics.is_complete(record) for record in self.records]

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def ttft(self) -> Units:
        return self._requests(metrics.ttft_s)

    @cached_property
    def e2el(self) -> Units:
        return self._requests(metrics.e2el_s)

    @cached_property
    def tpot(self) -> Units:
        return self._requests(metrics.tpot_s)

    @cached_property
    def chunk_gap_max(self) -> Units:
        """The largest chunk gap of each request that has one."""
        times, _, owner = self._chunks
        largest: list[float | None] = [None] * len(self)
        within = owner[1:] == owner[:-1]
        gaps, whose = np.diff(times)[within], owner[1:][within]  # those of one request lie side by side
        if len(gaps):
            starts = np.flatnonzero(np.diff(whose, prepend=-1))
            for index, gap in zip(whose[starts].tolist(), np.maximum.reduceat(gaps, starts).tolist(), strict=True):
                largest[index] = gap
        return self._from_values(largest)

    @cached_property
    def chunk_gap(self) -> Units:
        times, _, owner = self._chunks
        within = owner[1:] == owner[:-1]
        gaps = np.diff(times)[within]
        return Units(gaps, np.ones(len(gaps), np.int64), owner[1:][within], self._owed, pooled=True)

    @cached_property
    def itl(self) -> Units:
        """As `metrics.itl_s`, of all requests at once."""
        times, tokens, owner = self._chunks
        first = np.ones(len(owner), bool)
        first[1:] = owner[1:] != owner[:-1]
        counted = first | (tokens > 0)
        times, tokens, owner = times[counted], tokens[counted], owner[counted]
        within = owner[1:] == owner[:-1]
        weights = tokens[1:][within]
        return Units(np.diff(times)[within] / weights, weights, owner[1:][within], self._owed, pooled=True)

    def units(self, metric: str) -> Units:
        """Of a metric that a limit may name, or of `chunk_gap_max`."""
        units: Units = getattr(self, metric)
        return units

    def good(self, limits: RequestLimits) -> NDArray[np.bool_]:
        """As `metrics.is_good`, of each request."""
        good = np.array(self._complete, bool)
        for metric, limit_s in (
            ("ttft", limits.ttft_s),
            ("tpot", limits.tpot_s),
            ("e2el", limits.e2el_s),
            ("chunk_gap_max", limits.itl_max_s),
        ):
            if limit_s is not None:
                good &= self.units(metric).violations(limit_s) == 0
        return good

    @cached_property
    def _owed(self) -> Counts:
        return np.array([metrics.undelivered(record) for record in self.records], np.int64)

    @cached_property
    def _chunks(self) -> tuple[Floats, Counts, NDArray[np.intp]]:
        """Times, tokens and request of all chunks of all requests; the costly step, done once."""
        lengths = [len(record.chunks) for record in self.records]
        flat = chain.from_iterable(chain.from_iterable(record.chunks for record in self.records))
        pairs = np.fromiter(flat, float, 2 * sum(lengths)).reshape(-1, 2)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        return pairs[:, 0].copy(), pairs[:, 1].astype(np.int64), owner

    def _requests(self, value_s: Callable[[Record], float | None]) -> Units:
        return self._from_values([value_s(record) for record in self.records])

    def _from_values(self, values: Sequence[float | None]) -> Units:
        """One unit a request: infinite if it failed, none if the metric does not apply to it."""
        pairs = [
            (index, value if complete else math.inf)
            for index, (value, complete) in enumerate(zip(values, self._complete, strict=True))
            if value is not None or not complete
        ]
        owner = np.array([index for index, _ in pairs], np.intp)
        found = np.array([value for _, value in pairs], float)
        nothing = np.zeros(len(self), np.int64)
        return Units(found, np.ones(len(found), np.int64), owner, nothing, pooled=False)


def _arrival(record: Record) -> tuple[float, str]:
    return record.scheduled_s, record.id
