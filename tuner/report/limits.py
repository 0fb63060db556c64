"""Limits and their verdicts in words; a value is never rounded across its limit. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.report import text

#: Abbreviations of metrics as the report writes them, with what one unit is.
METRICS: Mapping[str, tuple[str, str]] = {
    "ttft": ("TTFT", "requests"),
    "itl": ("ITL, pooled", "tokens"),
    "chunk_gap": ("chunk gap, pooled", "gaps"),
    "tpot": ("TPOT", "requests"),
    "e2el": ("E2EL", "requests"),
}


@dataclass(frozen=True)
class LimitRow:
    """One limit at one configuration."""

    name: str
    value: str  # never rounded across the limit
    limit: str
    margin: str
    kept: bool  # observed
    decision: str  # kept | broken | undecided, with how sure
    counts: str  # "3 of 612 requests over; 1 % allowed"


def limit_name(name: str) -> str:
    """`ttft_p99` → `TTFT p99`."""
    if name == "attainment":
        return "attainment"
    metric, _, statistic = name.rpartition("_")
    return f"{METRICS.get(metric, (metric, ''))[0]} {statistic}"


def limit_value(limit: Mapping[str, Any]) -> str:
    """The value beside its limit, on the right side of it; failures that reach the percentile give `> longest`."""
    threshold, estimate = limit["threshold"], limit["estimate"]
    if limit["name"] == "attainment":
        return text.share_beside(estimate, threshold)
    if estimate is None:
        return "no finite value" if limit["longest"] is None else f"> {text.milliseconds(limit['longest'])}"
    return f"{text.beside(estimate * 1000, threshold * 1000)} ms"


def limit_threshold(limit: Mapping[str, Any]) -> str:
    if limit["name"] == "attainment":
        return f"≥ {text.share(limit['threshold'], 6)}"
    return f"≤ {text.number(limit['threshold'] * 1000, 6)} ms"


def limit_rows(entry: Mapping[str, Any] | None) -> list[LimitRow]:
    """Every limit of a configuration, in the order of the objective file."""
    return [_limit_row(limit) for limit in (entry or {}).get("limits", ())]


def _limit_row(limit: Mapping[str, Any]) -> LimitRow:
    kept = limit["observed"] == "kept"
    sure = {"kept": "kept, 95 % sure", "broken": "broken, 95 % sure"}
    decision = sure.get(limit["decision"], f"{'kept' if kept else 'broken'} as observed, undecided at 95 %")
    if limit["method"] == "observed only":
        decision = f"{'kept' if kept else 'broken'}, observed only"
    unit = METRICS.get(limit["name"].rpartition("_")[0], ("", "requests"))[1]
    over = "not good" if limit["name"] == "attainment" else "over"
    return LimitRow(
        name=limit_name(limit["name"]),
        value=limit_value(limit),
        limit=limit_threshold(limit),
        margin=text.signed_share(limit["margin"]),
        kept=kept,
        decision=decision,
        counts=f"{limit['violations']:,} of {limit['n']:,} {unit} {over}; {text.share(limit['allowed'])} allowed",
    )
