"""The charts as SVG: latency tails against their limits, attainment against load, cost against margin. Pure."""

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
    low, high = padded([*values, *(boundary.threshold_ms * 5 for boundary in boundaries)], log=True, room=0.05)
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
        chart.note((boundary.threshold_ms, 1.0), boundary.label, kind="note limit-note", dy=18 + 17 * place)
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
    room = max(0.01, (1 - lowest) * 0.15)
    chart = Chart(
        title="Good share against offered load",
        description="One line for each trial; a hollow dot is a level at which some limit is broken.",
        x=Axis(f"offered load ({unit})", low, high, log=True),
        y=Axis("good requests / arrivals", max(0.0, lowest - room), 1.0 + room, percent=True, most=1.0),
    )
    if promised is not None:
        chart.level(promised)
        chart.note((low, promised), f"promised {text.share(promised, 5)}", kind="note limit-note", dy=14)
    for trial in sorted(lines, key=lambda trial: trial in highlighted):
        _attained(chart, trial, lines[trial], highlighted.get(trial, "other"))
    return chart.render()


def cost_margin(
    ranking: Sequence[Mapping[str, Any]], highlighted: Mapping[int, str], currency: str
) -> tuple[str, list[int]] | None:
    """
    Cost per 1,000 good requests against the worst margin of each scored trial; None without a cost.

    Returns:
        The chart, and the trials left out of it: broken ones so far off that the others would shrink to a spot.
    """
    rows = [row for row in ranking if row["cost_per_1k_good_requests"] is not None and row["margins"]]
    shown = [row for row in rows if not _far(row, rows)]
    if not shown:
        return None
    worst = [max(row["margins"].values()) for row in shown]
    low, high = padded([*worst, 0.0], log=False, room=0.15)
    costs = [row["cost_per_1k_good_requests"] for row in shown]
    bounds = [bound for row in shown for bound in row["interval"] or () if bound]
    bottom, top = padded([*costs, *bounds], log=False, room=0.15)
    chart = Chart(
        title="Cost against margin",
        description="Each scored trial by its worst margin and its cost; left of the line every limit is kept.",
        x=Axis("worst margin (right of 0 % a limit is broken)", low, high, percent=True),
        y=Axis(f"{currency} per 1,000 good requests", max(0.0, bottom), top),
    )
    chart.zone((0.0, max(0.0, bottom)))
    chart.upright(0.0)
    for row, margin in sorted(zip(shown, worst, strict=True), key=lambda pair: pair[0]["trial"] in highlighted):
        _priced(chart, row, margin, highlighted.get(row["trial"], "other"), currency)
    return chart.render(), [row["trial"] for row in rows if _far(row, rows)]


def _far(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Infeasible, and over 25 % beyond a limit or three times as dear as every feasible trial."""
    costs = [each["cost_per_1k_good_requests"] for each in rows if each["state"] == "feasible"]
    if row["state"] == "feasible" or not costs:
        return False
    return bool(max(row["margins"].values()) > 0.25 or row["cost_per_1k_good_requests"] > 3 * max(costs))


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
        place = -11 if kind == "winner" else 22
        chart.note(points[-1], f"trial {trial}", kind=f"note {kind}-note", dx=-20, dy=place)


def _priced(chart: Chart, row: Mapping[str, Any], margin: float, kind: str, currency: str) -> None:
    cost = row["cost_per_1k_good_requests"]
    bounds = row["interval"]
    if bounds:
        chart.line([(margin, bounds[0] or cost), (margin, bounds[1])], f"{kind} whisker")
    tip = f"trial {row['trial']}: {text.money(cost, currency)} per 1,000, worst margin {text.signed_share(margin)}"
    filled = kind if row["state"] == "feasible" else f"{kind} hollow"
    chart.dot((margin, cost), filled, tip, 5 if kind == "other" else 7)
    chart.note(
        (margin, cost), f"trial {row['trial']}", kind="note" if kind == "other" else f"note {kind}-note", dx=9, dy=4
    )
