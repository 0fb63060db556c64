"""
What each lever is worth: for every knob, the best measured configuration with each value, beside the best without it.

Two such configurations may differ in other knobs as well; the table says what was measured, not what would follow from
turning one knob alone. Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.outcome import Outcome
from tuner.report import text, words
from tuner.report.limits import limit_name
from tuner.result import cost_per_1k

_Value = bool | int | float | str | None
#: Levers of every study, tried or not: name and how to read the value off an outcome.
_STANDING: tuple[tuple[str, Callable[[Outcome], _Value]], ...] = (
    ("GPUs or CPU slots", lambda outcome: outcome.units),
    ("mode", lambda outcome: outcome.configuration.mode),
    ("kv_store", lambda outcome: outcome.configuration.knobs.get("kv_store") or "none"),
)


@dataclass(frozen=True)
class Lever:
    """One value of one knob. Costs are currency per 1,000 good requests."""

    knob: str
    value: str
    trials: int
    trial: int | None  # best feasible one with this value
    cost: str  # "0.0123", "≥ 0.02, not measured to capacity", or why there is none
    n: str
    verified: bool
    difference: str  # against the best with another value


def levers(result: Mapping[str, Any], outcomes: Sequence[Outcome], *, resolution: float = 0.05) -> list[Lever]:
    """
    One row for each value of each knob with at least two values among the trials.

    Args:
        result: `result.json`; its `ranking` holds the costs.
        outcomes: Last attempt of each trial.
        resolution: Relative width at which the search for the capacity ends: smaller differences mean nothing.
    """
    ranking = {row["trial"]: row for row in result["ranking"]}
    rows: list[Lever] = []
    for knob, read in _knobs(outcomes):
        by_value: dict[_Value, list[Outcome]] = {}
        for outcome in outcomes:
            by_value.setdefault(read(outcome), []).append(outcome)
        if len(by_value) > 1:
            best = {value: _best(group, ranking) for value, group in by_value.items()}
            rows.extend(_row(knob, value, by_value[value], best, resolution) for value in sorted(best, key=_natural))
    return rows


def not_tried(outcomes: Sequence[Outcome]) -> list[str]:
    """Levers that had one value in every trial, as `mode: only aggregated`."""
    found = []
    for knob, read in _knobs(outcomes):
        values = {read(outcome) for outcome in outcomes}
        if len(values) == 1:
            found.append(f"{knob}: only {text.flag_value(values.pop())}")
    return found


def _knobs(outcomes: Sequence[Outcome]) -> list[tuple[str, Callable[[Outcome], _Value]]]:
    standing = {name for name, _ in _STANDING}
    names = sorted({name for outcome in outcomes for name in outcome.configuration.knobs} - standing)
    return [*_STANDING, *((name, _reader(name)) for name in names)]


def _reader(name: str) -> Callable[[Outcome], _Value]:
    return lambda outcome: outcome.configuration.knobs.get(name)


def _natural(value: _Value) -> tuple[int, float, str]:
    """Defaults first, then numbers by size, then words."""
    if value is None:
        return 0, 0.0, ""
    return (1, float(value), "") if isinstance(value, int | float) else (2, 0.0, str(value))


def _best(group: Sequence[Outcome], ranking: Mapping[int, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Ranking row of the cheapest feasible trial."""
    rows = [ranking[outcome.trial] for outcome in group if outcome.state == "feasible" and outcome.trial in ranking]
    costed = [row for row in rows if row["cost_per_1k_good_requests"] is not None]
    return min(costed, key=lambda row: (not row["verified"], row["cost_per_1k_good_requests"])) if costed else None


def _row(
    knob: str,
    value: _Value,
    group: Sequence[Outcome],
    best: Mapping[_Value, Mapping[str, Any] | None],
    resolution: float,
) -> Lever:
    own = best[value]
    others = [row for other, row in best.items() if other != value and row is not None]
    rival = min(others, key=lambda row: row["cost_per_1k_good_requests"]) if others else None
    return Lever(
        knob=knob,
        value=text.flag_value(value),
        trials=len(group),
        trial=None if own is None else own["trial"],
        cost=_bounded(group) if own is None else _cost(own),
        n=text.UNKNOWN if own is None else f"{own['n']:,}",
        verified=own is not None and own["verified"],
        difference=_difference(own, rival, resolution),
    )


def _cost(row: Mapping[str, Any]) -> str:
    shown = text.amount(row["cost_per_1k_good_requests"])
    return shown if row["measured_to_capacity"] or row["verified"] else f"≤ {shown}, not measured to capacity"


def _bounded(group: Sequence[Outcome]) -> str:
    """Without a feasible trial: the least that a pruned one would cost, else how they ended."""
    bounds = [cost_per_1k(outcome.cost_per_hour, outcome.broken_at) for outcome in group if outcome.state == "pruned"]
    known = [bound for bound in bounds if bound is not None]
    if known:
        return f"≥ {text.amount(min(known))}, not measured to capacity"
    return "; ".join(sorted({_ending(outcome) for outcome in group}))


def _ending(outcome: Outcome) -> str:
    reason = outcome.reason
    if outcome.state == "infeasible":
        reason = ", ".join(limit_name(name) for name in reason.split(",") if name)
    return f"{words.outcome(outcome.state)}: {reason}" if reason else words.outcome(outcome.state)


def _difference(own: Mapping[str, Any] | None, rival: Mapping[str, Any] | None, resolution: float) -> str:
    if own is None or rival is None:
        return text.UNKNOWN
    mine, other = own["cost_per_1k_good_requests"], rival["cost_per_1k_good_requests"]
    if _overlap(own, rival) or abs(mine / other - 1) < resolution:
        return "no difference beyond noise"
    said = text.change(mine, other)
    return said if own["verified"] and rival["verified"] else f"{said} (observed)"


def _overlap(own: Mapping[str, Any], rival: Mapping[str, Any]) -> bool:
    """Both have an interval, and these meet."""
    first, second = own["interval"], rival["interval"]
    if not first or not second:
        return False
    return bool((first[0] or 0.0) <= second[1] and (second[0] or 0.0) <= first[1])
