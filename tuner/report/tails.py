"""
The distributions behind the report's curves and its two views of the inter-token tail.

A failed request is a value of +infinity, and so is every token that it still owes: a curve ends at their share.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tuner.records import UNFINISHED, Record
from tuner.sample import Sample, Units

_MOST_POINTS = 400


@dataclass(frozen=True)
class Tails:
    """The measured requests of one configuration at one load."""

    ttft: Units  # unit: request
    itl: Units  # unit: output token after the first chunk
    chunk_gap_max: Units  # unit: request with a gap
    e2el: Units  # unit: request
    requests: int


def tails(windows: Iterable[Iterable[Record]]) -> Tails | None:
    """Over the requests that arrived in the measured windows, those cut off by us left out; None without any."""
    sample = Sample(*([record for record in window if record.status != UNFINISHED] for window in windows))
    if len(sample) == 0:
        return None
    return Tails(sample.ttft, sample.itl, sample.chunk_gap_max, sample.e2el, len(sample))


def share_above(units: Units, threshold_s: float) -> float | None:
    """Share of all units above the threshold, failures included; None without any unit."""
    return float(units.violations(threshold_s).sum()) / units.total if units.total else None


def survival(units: Units) -> list[tuple[float, float]]:
    """
    (value in ms, share of units above it) in ascending order: about 400 points, the longest values in full.

    With failures the last share is theirs and not 0.
    """
    finite = np.isfinite(units.values)
    order = np.argsort(units.values[finite], kind="stable")
    values = units.values[finite][order] * 1000
    shares = 1 - np.cumsum(units.weights[finite][order]) / max(1, units.total)
    half = _MOST_POINTS // 2
    tail = max(0, len(values) - half)
    places = [*range(0, tail, max(1, tail // half)), *range(tail, len(values))]
    return [(float(values[place]), max(0.0, float(shares[place]))) for place in places]
