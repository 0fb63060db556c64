"""The report's charts as SVG: latency tails against their limits, attainment against load, cost against margin. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.outcome import Level, Outcome
from tuner.report import text
from tuner.report.svg import Axis, Chart, padded
from tuner.report.tails import survival
from tuner.sample import Units


@dataclass(frozen=True)
class Boundary:
    """A limit on a tail: at most the share `allowed` of units above `threshold_ms`; None = a limit of each request."""

    label: str
    threshold_ms: float
    allowed: float | None


@dataclass(frozen=True)
class Curve:
    label: str  # "winner, trial 7"
    kind: str  # "winner" or "baseline": its class in the style sheet
    units: Units


def tail(title: str, unit: str, curves: Sequence[Curve], boundaries: Sequence[Boundary]) -> str | None:
    """
    Share of units above each value, both axes logarithmic; None without a single finite value.

    A curve that enters the shaded zone right of and above a limit's corner breaks that limit.
    """
    points = {curve.label: survival(curve.units) for curve in curves}
    values = [value for each in points.values() for value, _ in each if value > 0]
    if not values:
        return None
    most = max(curve.units.total for curve in curves)
    floor = 10 ** math.floor(math.log10(0.5 / most)) if most > 1 else 0.1
    low, high = padded([*values, *(boundary.threshold_ms for boundary in boundaries)], log=True, room=0.05)
    chart = Chart(
        title=title,
        description=f"Share of {unit} above a latency, on logarithmic axes; the shaded zone breaks a limit.",
        x=Axis("latency (ms)", low, high, log=True),
        y=Axis(f"share of {unit} above", max(floor, 1e-6), 1.0, log=True, percent=True),
    )
    for boundary in boundaries:
        _boundary(chart, boundary)
    for curve in sorted(curves, key=lambda curve: curve.kind == "winner"):
        _survival(chart, curve, points[curve.label], low, high)
    for place, boundary in enumerate(boundaries):
        at = boundary.allowed if boundary.allowed is not None else 1.0
        chart.note((boundary.threshold_ms, at), boundary.label, kind="note limit-note", dy=14 + 16 * place)
    return chart.render()


def attainment(
    outcomes: Sequence[Outcome], highlighted: Mapping[int, str], promised: float | None, unit: str
) -> str | None:
    """
    Good share against offered load: a line for each trial, a dot for each scored level (hollow = a limit is broken).

    Args:
        outcomes: Last attempts.
        highlighted: Trial number → `winner` or `baseline`.
        promised: The attainment limit; None = there is none.
        unit: Of the load.

    Returns:
        None when no level was scored.
    """
    lines = {outcome.trial: scored(outcome.levels) for outcome in outcomes}
    points = [(level.offered, level.score.attainment) for line in lines.values() for level in line if level.score]
    if not points:
        return None
    low, high = padded([load for load, _ in points], log=True)
    lowest = min([share for _, share in points] + ([promised] if promised is not None else []))
    chart = Chart(
        title="Good share against offered load",
        description="One line for each trial; a hollow dot is a level at which some limit is broken.",
        x=Axis(f"offered load ({unit})", low, high, log=True),
        y=Axis("good requests / arrivals", max(0.0, lowest - max(0.02, (1 - lowest) * 0.15)), 1.0, percent=True),
    )
    if promised is not None:
        chart.level(promised)
        chart.note((low, promised), f"promised {text.share(promised, 5)}", kind="note limit-note", dy=14)
    for trial in sorted(lines, key=lambda trial: trial in highlighted):
        _attained(chart, trial, lines[trial], highlighted.get(trial, "other"))
    return chart.render()


def cost_margin(ranking: Sequence[Mapping[str, Any]], highlighted: Mapping[int, str], currency: str) -> str | None:
    """Cost per 1,000 good requests against the worst margin of each scored trial; None without a cost."""
    rows = [row for row in ranking if row["cost_per_1k_good_requests"] is not None and row["margins"]]
    if not rows:
        return None
    worst = [max(row["margins"].values()) for row in rows]
    low, high = padded([*worst, 0.0], log=False)
    costs = [row["cost_per_1k_good_requests"] for row in rows]
    bottom, top = padded([*costs, *(bound for row in rows for bound in row["interval"] or () if bound)], log=True)
    chart = Chart(
        title="Cost against margin",
        description="Each scored trial by its worst margin and its cost; left of the line every limit is kept.",
        x=Axis("worst margin (0 % = at the limit, right of it = broken)", low, high, percent=True),
        y=Axis(f"{currency} per 1,000 good requests", bottom, top, log=True),
    )
    chart.zone((0.0, bottom))
    chart.upright(0.0)
    for row, margin in sorted(zip(rows, worst, strict=True), key=lambda pair: pair[0]["trial"] in highlighted):
        _priced(chart, row, margin, highlighted.get(row["trial"], "other"), currency)
    return chart.render()


def scored(levels: Sequence[Level]) -> list[Level]:
    """Levels of a search with a score, by load; one that was stopped early has no attainment to show."""
    found = [level for level in levels if level.score is not None and not level.stopped and level.purpose != "verify"]
    return sorted(found, key=lambda level: level.offered)


def _boundary(chart: Chart, boundary: Boundary) -> None:
    if boundary.allowed is not None:
        chart.zone((boundary.threshold_ms, boundary.allowed))
    chart.upright(boundary.threshold_ms, "limit" if boundary.allowed is not None else "limit dotted")


def _survival(chart: Chart, curve: Curve, points: Sequence[tuple[float, float]], low: float, high: float) -> None:
    """As a staircase from 100 % on the left; failures leave it on their share up to the right edge."""
    stairs, before = [(low, 1.0)], 1.0
    for value, share in points:
        stairs.extend([(value, before), (value, share)])
        before = share
    if before > 0:
        stairs.append((high, before))
    chart.line(stairs, curve.kind)


def _attained(chart: Chart, trial: int, levels: Sequence[Level], kind: str) -> None:
    points = [(level.offered, level.score.attainment) for level in levels if level.score is not None]
    chart.line(points, kind)
    for level, point in zip(levels, points, strict=True):
        n = level.score.n if level.score is not None else 0
        tip = f"trial {trial}: {text.share(point[1])} good at {text.number(point[0])}, n = {n:,}"
        chart.dot(point, kind if level.kept else f"{kind} hollow", tip, 4 if kind == "other" else 5)
    if kind != "other" and points:
        chart.note(points[-1], f"{kind}, trial {trial}", kind=f"note {kind}-note", dx=8, dy=18)


def _priced(chart: Chart, row: Mapping[str, Any], margin: float, kind: str, currency: str) -> None:
    cost = row["cost_per_1k_good_requests"]
    bounds = row["interval"]
    if bounds and None not in bounds:
        chart.line([(margin, bounds[0]), (margin, bounds[1])], f"{kind} whisker")
    tip = f"trial {row['trial']}: {text.money(cost, currency)} per 1,000, worst margin {text.signed_share(margin)}"
    filled = kind if row["state"] == "feasible" else f"{kind} hollow"
    chart.dot((margin, cost), filled, tip, 5 if kind == "other" else 7)
    words = str(row["trial"]) if kind == "other" else f"{kind}, trial {row['trial']}"
    chart.note((margin, cost), words, kind="note" if kind == "other" else f"note {kind}-note", dx=9, dy=4)
