"""
Every metric: declared in one table, then computed by pure functions. `docs/metrics.md` is made from the table.

All latencies count from the scheduled arrival. Two values stand for what is no number: `math.inf` is a failed request
(it never finished), None is "not applicable" (a one-token answer has no gap). Neither is ever 0, neither is ever NaN.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import sub
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tuner.records import OK, Record
from tuner.slo import LimitedMetric, RequestLimits

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

#: A token-normalised gap above this many times the median gap of its window is a stall.
STALL_FACTOR = 5.0
Method = Literal["nearest_rank", "linear"]
#: Statistics of each latency in `Score.metrics`, beside the limited ones.
SHOWN = ("p50", "p90", "p95", "p99", "mean")
#: Limited metrics whose unit is the gap, not the request.
POOLED = ("itl", "chunk_gap")
#: Lies between the noise of `quantile × n` in floating point and the smallest true distance from a whole number.
_RANK_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Metric:
    """One row of the table. `limited` metrics may stand in `slo:`; `per_request` ones in `slo.request:`."""

    name: str
    unit: str
    direction: Literal["lower", "higher", "neither"]
    needs: str
    formula: str
    statistics: str
    limited: bool = False
    per_request: bool = False


_TAILS = "p50, p90, p95, p99, mean, each limited percentile"

METRICS: tuple[Metric, ...] = (
    Metric("ttft", "ms", "lower", "requests", "first token-bearing chunk − scheduled", _TAILS, True, True),
    Metric(
        "itl", "ms", "lower", "gaps",
        "gap before a chunk of n tokens ÷ n, counted n times; pooled over requests", _TAILS, True,
    ),
    Metric("chunk_gap", "ms", "lower", "gaps", "gap between token-bearing chunks; pooled over requests", _TAILS, True),
    Metric(
        "chunk_gap_max", "ms", "lower", "requests with a gap",
        "largest chunk gap of the request (`request.itl_max` limits it)", _TAILS, per_request=True,
    ),
    Metric(
        "tpot", "ms", "lower", "requests with a token after the first chunk",
        "(last token − first token) ÷ (tokens − tokens in the first chunk)", _TAILS, True, True,
    ),
    Metric("e2el", "ms", "lower", "requests", "last token-bearing chunk − scheduled", _TAILS, True, True),
    Metric("send_lag", "ms", "lower", "sent requests", "sent − scheduled", "p99"),
    Metric(
        "stall_share", "share", "lower", "gaps",
        f"itl samples above {STALL_FACTOR:g} × their median ÷ itl samples", "one value a window",
    ),
    Metric("goodput_rps", "requests/s", "higher", "arrivals", "good arrivals ÷ window length", "one value a window"),
    Metric("attainment", "share", "higher", "arrivals", "good arrivals ÷ arrivals", "one value a window", True),
    Metric("offered_rps", "requests/s", "neither", "arrivals", "arrivals ÷ window length", "one value a window"),
    Metric(
        "output_tokens_per_s", "tokens/s", "higher", "all requests of the level",
        "tokens that came inside the window ÷ window length, whoever asked for them", "one value a window",
    ),
    Metric(
        "good_output_tokens_per_s", "tokens/s", "higher", "good arrivals",
        "output tokens of good arrivals ÷ window length", "one value a window",
    ),
    Metric(
        "delivered_input_ratio", "share", "neither", "requests with known input",
        "input tokens as served ÷ input tokens asked", "one value a window",
    ),
    Metric(
        "delivered_output_ratio", "share", "higher", "requests whose stream ended by itself",
        "output tokens ÷ output tokens asked", "one value a window",
    ),
    Metric(
        "cost_per_1k_good_requests", "currency", "lower", "goodput > 0",
        "currency per hour of everything held ÷ (goodput × 3600) × 1,000; null at zero goodput", "one value a load",
    ),
    Metric(
        "cost_per_1m_good_output_tokens", "currency", "lower", "good output tokens > 0",
        "currency per hour ÷ (good output tokens/s × 3600) × 1,000,000; null at zero", "one value a load",
    ),
)  # fmt: skip


def table() -> str:
    """The table in Markdown, as it stands in `docs/metrics.md`."""
    rows = ["| metric | unit | better | over | formula | statistics | limit |", "|---|---|---|---|---|---|---|"]
    for metric in METRICS:
        places = [place for place, holds in (("slo", metric.limited), ("request", metric.per_request)) if holds]
        cells = (f"`{metric.name}`", metric.unit, metric.direction, metric.needs, metric.formula, metric.statistics)
        rows.append(f"| {' | '.join(cells)} | {', '.join(places) or '–'} |")
    return "\n".join(rows) + "\n"


# One request -----------------------------------------------------------------------------------------------------


def outcome_class(record: Record) -> str:
    """The one class of the request. `ok` without a token is `empty`, whatever the client called it."""
    return "empty" if record.status == OK and not has_token(record) else record.status


def has_token(record: Record) -> bool:
    return record.first_token_s is not None and record.last_token_s is not None and record.output_tokens > 0


def is_complete(record: Record) -> bool:
    """The answer came whole: class `ok`."""
    return outcome_class(record) == OK


def send_lag_s(record: Record) -> float | None:
    """How late the request was sent; None if it never was."""
    return None if record.sent_s is None else record.sent_s - record.scheduled_s


def ttft_s(record: Record) -> float | None:
    """Time to the first token; None if none came. It is there for failed requests that got one."""
    return None if record.first_token_s is None else record.first_token_s - record.scheduled_s


def e2el_s(record: Record) -> float | None:
    """Time to the last token-bearing chunk; None if none came."""
    return None if record.last_token_s is None else record.last_token_s - record.scheduled_s


def tpot_s(record: Record) -> float | None:
    """Time per token after the first chunk; None for one-token answers and those that came in one chunk."""
    if len(record.chunks) < 2 or record.first_token_s is None or record.last_token_s is None:
        return None
    later = record.output_tokens - record.chunks[0][1]
    return (record.last_token_s - record.first_token_s) / later if later > 0 else None


def chunk_gaps_s(record: Record) -> Floats:
    """Gaps between token-bearing chunks in seconds, shape (chunks − 1,)."""
    return np.diff(_columns(record.chunks)[0])


def itl_s(record: Record) -> tuple[Floats, Counts]:
    """
    Token-normalised gaps in seconds, and how many samples each stands for: g/n, n times.

    A chunk whose tokens were not yet counted (n = 0) lends its gap to the next one. The first chunk is where the first
    gap begins, however many tokens it held.
    """
    times, tokens = _columns(record.chunks)
    if not tokens[1:].all():
        counted = tokens > 0
        counted[0] = True
        times, tokens = times[counted], tokens[counted]
    return np.diff(times) / tokens[1:], tokens[1:]


def chunk_gap_max_s(record: Record) -> float | None:
    """The longest freeze between two chunks of this answer; None without a gap."""
    times = [time for time, _ in record.chunks]
    return max(map(sub, times[1:], times), default=None)


def _columns(chunks: Sequence[tuple[float, int]]) -> tuple[Floats, Counts]:
    """Times in seconds and tokens of the chunks, each of shape (chunks,)."""
    pairs = np.fromiter(chain.from_iterable(chunks), float, 2 * len(chunks)).reshape(-1, 2)  # counts are exact
    return pairs[:, 0], pairs[:, 1].astype(np.int64)


def undelivered(record: Record) -> int:
    """Tokens that a failed request still owes: each is a violating unit of pooled metrics. 0 if it is complete."""
    return 0 if is_complete(record) else max(record.asked_output_tokens - record.output_tokens, 0)


def request_value_s(record: Record, metric: Literal["ttft", "tpot", "e2el", "chunk_gap_max"]) -> float | None:
    """The request's value in seconds; infinite if it failed, None if the metric does not apply to it."""
    if not is_complete(record):
        return math.inf
    return {"ttft": ttft_s, "tpot": tpot_s, "e2el": e2el_s, "chunk_gap_max": chunk_gap_max_s}[metric](record)


def violations(record: Record, metric: LimitedMetric, threshold_s: float) -> tuple[int, int]:
    """(violating units, units) of one request: itself, or its gaps for `itl` and `chunk_gap`."""
    if metric == "ttft" or metric == "tpot" or metric == "e2el":  # noqa: PLR1714  # narrows the type
        value = request_value_s(record, metric)
        return (0, 0) if value is None else (int(value > threshold_s), 1)
    values, weights = itl_s(record) if metric == "itl" else (chunk_gaps_s(record), None)
    owed = undelivered(record)
    if weights is None:
        return int(np.count_nonzero(values > threshold_s)) + owed, len(values) + owed
    return int(weights[values > threshold_s].sum()) + owed, int(weights.sum()) + owed


def is_good(record: Record, limits: RequestLimits) -> bool:
    """Complete, and within every per-request limit; a metric that does not apply is kept."""
    if not is_complete(record):
        return False
    return not (
        _above(ttft_s(record), limits.ttft_s)
        or _above(e2el_s(record), limits.e2el_s)
        or (limits.tpot_s is not None and _above(tpot_s(record), limits.tpot_s))
        or (limits.itl_max_s is not None and _above(chunk_gap_max_s(record), limits.itl_max_s))
    )


def _above(value_s: float | None, limit_s: float | None) -> bool:
    """False where the metric does not apply, or nothing limits it."""
    return value_s is not None and limit_s is not None and value_s > limit_s


# Percentiles -----------------------------------------------------------------------------------------------------


def nearest_rank(n: int, quantile: float) -> int:
    """Rank, from 1, of the smallest of `n` sorted values that at least the share `quantile` does not exceed."""
    return min(n, max(1, math.ceil(quantile * n - _RANK_TOLERANCE)))


def percentile(values: Sequence[float], quantile: float, method: Method = "nearest_rank") -> float | None:
    """
    A percentile of finite or infinite values; None of nothing.

    Args:
        values: In any order; without NaN.
        quantile: In [0, 1]; 0.99 for p99.
        method: `nearest_rank` beside limits, because it agrees with the share of violations; `linear` between
            neighbours for display elsewhere, infinite as soon as the upper neighbour is.
    """
    ordered = sorted(values)
    return percentile_of(len(ordered), lambda rank: ordered[rank - 1], quantile, method)


def percentile_of(n: int, at_rank: Callable[[int], float], quantile: float, method: Method) -> float | None:
    """As `percentile`, of `n` values that are known by their rank from 1 in ascending order."""
    if n == 0:
        return None
    if method == "nearest_rank":
        return at_rank(nearest_rank(n, quantile))
    position = quantile * (n - 1)
    below = math.floor(position + _RANK_TOLERANCE)
    share = max(position - below, 0.0)
    low = at_rank(below + 1)
    if share <= _RANK_TOLERANCE:
        return low
    high = at_rank(below + 2)
    return low if low == high else low + share * (high - low)


if __name__ == "__main__":
    sys.stdout.write(table())
