"""
Records + SLO → Score: what one measured window, or several pooled, say.

Pure: the same records under another SLO give what that SLO would have said (`tuner rescore`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from tuner import metrics
from tuner.errors import EmptyWindow
from tuner.records import OK, Record
from tuner.sample import Sample
from tuner.slo import Slo
from tuner.verdict import LimitVerdict, judge_all

#: Metrics whose distribution stands in `Score.metrics`, by the name of their key.
_SHOWN_METRICS = ("ttft", "itl", "chunk_gap", "chunk_gap_max", "tpot", "e2el")


@dataclass(frozen=True)
class Score:
    """
    One measured window, judged.

    In `metrics` a limited statistic goes by the nearest rank, as its limit does; the others by linear interpolation.
    Failed requests count as infinite in all of them, so a mean over any failure is None.
    """

    n: int  # requests that arrived in the window
    good: int
    completed: int
    failed: Mapping[str, int]  # class → how many
    window_s: float
    goodput_rps: float
    attainment: float
    offered_rps: float  # arrivals / window
    output_tokens_per_s: float  # all tokens that came inside the window
    good_output_tokens_per_s: float
    metrics: Mapping[str, Mapping[str, float | None]]  # "ttft_ms" → {"p50": …, "n": units}; None = infinite or none
    stall_share: float | None  # share of pooled ITL samples above the stall threshold (see metrics.STALL_FACTOR)
    delivered_input_ratio: float | None  # delivered / asked input tokens
    delivered_output_ratio: float | None
    token_source: str  # "usage", "tokenizer", "chunks" or "mixed"
    limits: tuple[LimitVerdict, ...]

    @property
    def margins(self) -> dict[str, float]:
        """Signed relative margin of each limit, in the order of the objective file; <= 0 is kept."""
        return {limit.name: limit.margin for limit in self.limits}

    @property
    def observed_kept(self) -> bool:
        """Every limit is kept by its point estimate."""
        return all(limit.observed == "kept" for limit in self.limits)

    @property
    def verified_kept(self) -> bool:
        """Every limit is kept with confidence."""
        return all(limit.decision == "kept" for limit in self.limits)


@dataclass(frozen=True)
class Window:
    """
    The records of one level and its measured window, in seconds from the start of that level.

    `records` may hold every phase: only measured ones are judged, but all deliver tokens inside the window.
    """

    records: Sequence[Record]
    start_s: float
    length_s: float


def score(records: Sequence[Record], slo: Slo, *, window_start_s: float, window_s: float, divide: float = 2.0) -> Score:
    """
    Goodput, distributions and limits of one measured window.

    A request counts by its arrival, so one that failed, or never got a token, is a miss rather than a gap.

    Args:
        records: Of the level, in any order, whatever their phase; see `Window`.
        slo: What is promised.
        window_start_s: Start of the measured window.
        window_s: Its length, > 0.
        divide: Smallest D by which counts are divided before anything is said with confidence.

    Raises:
        EmptyWindow: No request arrived. Zero would read as "no traffic fits".

    Source: goodput as in DistServe (Zhong et al., OSDI 2024).
    """
    return score_windows([Window(records, window_start_s, window_s)], slo, divide=divide)


def score_windows(windows: Sequence[Window], slo: Slo, *, divide: float = 2.0) -> Score:
    """
    Several windows at the same load, such as repeats, as one: raw records are merged, never percentiles.

    Raises:
        EmptyWindow: No request arrived in any of them, or they have no length.
    """
    sample = Sample(*(window.records for window in windows))
    window_s = sum(window.length_s for window in windows)
    if not len(sample) or window_s <= 0:
        raise EmptyWindow(f"no measured request arrived in {window_s:g} s: lengthen the window or raise the load")
    good = list(compress(sample.records, sample.good(slo.request)))
    classes = Counter(metrics.outcome_class(record) for record in sample.records)
    completed = classes.pop(OK, 0)
    return Score(
        n=len(sample),
        good=len(good),
        completed=completed,
        failed=dict(sorted(classes.items())),
        window_s=window_s,
        goodput_rps=len(good) / window_s,
        attainment=len(good) / len(sample),
        offered_rps=len(sample) / window_s,
        output_tokens_per_s=sum(_tokens_inside(window) for window in windows) / window_s,
        good_output_tokens_per_s=sum(record.output_tokens for record in good) / window_s,
        metrics={f"{name}_ms": _distribution(sample, name, slo) for name in _SHOWN_METRICS},
        stall_share=sample.itl.share_above(metrics.STALL_FACTOR),
        delivered_input_ratio=_ratio(
            (record.input_tokens, record.asked_input_tokens)
            for record in sample.records
            if record.input_tokens is not None
        ),
        delivered_output_ratio=_ratio(
            (record.output_tokens, record.asked_output_tokens)
            for record in sample.records
            if metrics.outcome_class(record) in (OK, "short")
        ),
        token_source=_token_source(sample.records),
        limits=judge_all(sample, slo, divide),
    )


def _tokens_inside(window: Window) -> int:
    """Tokens of chunks that came in [start, start + length), whichever request they belong to."""
    end_s = window.start_s + window.length_s
    total = 0
    for record in window.records:
        if record.last_token_s is None or record.last_token_s < window.start_s or record.scheduled_s >= end_s:
            continue
        if record.first_token_s is not None and window.start_s <= record.first_token_s and record.last_token_s < end_s:
            total += record.output_tokens
        else:
            total += sum(tokens for time_s, tokens in record.chunks if window.start_s <= time_s < end_s)
    return total


def _distribution(sample: Sample, metric: str, slo: Slo) -> dict[str, float | None]:
    """Statistics in milliseconds, and `n`, the units they are taken over."""
    units = sample.units(metric)
    limited = [limit.statistic for limit in slo.limits if limit.metric == metric]
    shown: dict[str, float | None] = {}
    for name in (*metrics.SHOWN, *limited):
        value = units.statistic(name, "nearest_rank" if name in limited else "linear")
        shown[name] = value * 1000 if value is not None and math.isfinite(value) else None
    shown["n"] = units.total
    return shown


def _ratio(pairs: Iterable[tuple[int | None, int]]) -> float | None:
    """Delivered over asked, summed; None where nothing was asked."""
    sums = np.array([pair for pair in pairs if pair[0] is not None], float).reshape(-1, 2).sum(axis=0)
    return float(sums[0] / sums[1]) if sums[1] > 0 else None


def _token_source(records: Sequence[Record]) -> str:
    """How output tokens were counted, over the requests that had any; over all if none had."""
    sources = {record.token_source for record in records if record.output_tokens} or {
        record.token_source for record in records
    }
    return sources.pop() if len(sources) == 1 else "mixed"
