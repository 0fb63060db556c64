"""`history.html`: the incumbent over the nights as plots and a table; one file, no script, nothing loaded."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tuner.nightfile import Figures
from tuner.report import history, template, text
from tuner.report.history import History, Row
from tuner.report.svg import Axis, Chart, padded
from tuner.runfiles import replace_bytes

NAME = "history.html"
#: Labels of marks take turns on so many lines, so that those of neighbouring nights do not meet.
_LINES = 3


@dataclass(frozen=True)
class _Plotted:
    """One figure over the nights."""

    title: str
    unit: str
    caption: str
    value: Callable[[Figures], float | None]
    bounds: Callable[[Figures], tuple[float | None, float | None] | None] = lambda _: None
    limit: float | None = None
    defaults: bool = False  # show the engine's defaults as well


def write(found: History) -> Path:
    """
    Write the page into the folder of the nights, and return its path.

    Raises:
        StudyFailed: The folder cannot be written.
    """
    path = found.folder / NAME
    replace_bytes(path, page(found).encode())
    return path


def page(found: History) -> str:
    """The whole page."""
    return template.render(
        "history.html.j2",
        name=found.name,
        simulated=found.simulated,
        headline=history.headline(found),
        deployed=history.deployed(found),
        columns=history.columns(found),
        nights=[(row, history.cells(found, row)) for row in reversed(found.rows)],
        charts=list(_charts(found)),
        events=[(row.night.number, row.night.started[:10], row.marks) for row in reversed(found.rows) if row.marks],
        version=metadata.version("slo-tuner"),
    )


def _charts(found: History) -> Iterator[dict[str, Any]]:
    for plotted in _plotted(found):
        drawn = chart(plotted, found.rows)
        if drawn is not None:
            yield {"title": plotted.title, "svg": Markup(drawn), "caption": plotted.caption}  # noqa: S704  # svg.py escapes


def _plotted(found: History) -> Iterator[_Plotted]:
    yield _Plotted(
        "Cost per 1,000 good requests",
        found.currency,
        "Whiskers are intervals. A line goes on only while configuration, workload, promise and prices stay the same.",
        lambda figures: figures.cost,
        lambda figures: figures.interval,
        defaults=True,
    )
    yield _Plotted(
        "Good requests per second",
        "req/s",
        "Of the whole deployment.",
        lambda figures: figures.goodput_rps,
        defaults=True,
    )
    for metric in ("ttft", "itl"):
        name = found.statistic(metric)
        if name is not None:
            yield _tail(found, metric, name)


def _tail(found: History, metric: str, name: str) -> _Plotted:
    meaning = {"ttft": "From the scheduled arrival to the first token.", "itl": "Token-normalised gaps, pooled."}
    return _Plotted(
        history.statistic_name(found, metric),
        "ms",
        f"{meaning[metric]} At the load of the night's figures; it may rise with the load.",
        lambda figures: figures.tails.get(f"{name}_ms"),
        limit=found.limits_ms.get(name),
    )


def chart(plotted: _Plotted, rows: Sequence[Row]) -> str | None:
    """The figure of each night, with what happened; None where no night has it."""
    points = _points(plotted, rows)
    if not points:
        return None
    others = _defaults(plotted, rows)
    bounds = [bound for row in rows if row.figures for bound in plotted.bounds(row.figures) or () if bound]
    limit = [] if plotted.limit is None else [plotted.limit]
    low, high = padded([*(value for _, value in [*points, *others]), *bounds, *limit], log=False, room=0.25)
    numbers = [row.night.number for row in rows]
    drawn = Chart(
        title=plotted.title,
        description="One dot a night; upright lines mark what happened.",
        x=Axis("night", min(numbers) - 0.5, max(numbers) + 0.5, whole=True),
        y=Axis(plotted.unit, max(0.0, low), high),
    )
    if plotted.limit is not None:
        drawn.level(plotted.limit)
        drawn.note(
            (min(numbers) - 0.5, plotted.limit), f"limit {text.number(plotted.limit)} ms", "note limit-note", dy=14
        )
    _mark(drawn, rows)
    drawn.line(others, "baseline")
    for run in _runs(plotted, rows):
        drawn.line(run, "winner")
    for row in rows:
        _dot(drawn, plotted, row)
    return drawn.render()


def _points(plotted: _Plotted, rows: Sequence[Row]) -> list[tuple[float, float]]:
    found = [(row.night.number, plotted.value(row.figures)) for row in rows if row.figures is not None]
    return [(float(number), value) for number, value in found if value is not None]


def _defaults(plotted: _Plotted, rows: Sequence[Row]) -> list[tuple[float, float]]:
    if not plotted.defaults:
        return []
    found = [(row.night.number, plotted.value(row.night.baseline)) for row in rows if row.night.baseline is not None]
    return [(float(number), value) for number, value in found if value is not None]


def _runs(plotted: _Plotted, rows: Sequence[Row]) -> list[list[tuple[float, float]]]:
    """Points of nights that may be compared, one run after the other."""
    found: list[list[tuple[float, float]]] = [[]]
    for row in rows:
        if row.fresh:
            found.append([])
        found[-1] += _points(plotted, [row])
    return found


def _dot(drawn: Chart, plotted: _Plotted, row: Row) -> None:
    if row.figures is None:
        return
    value = plotted.value(row.figures)
    if value is None:
        return
    x = float(row.night.number)
    bounds = plotted.bounds(row.figures)
    if bounds is not None:
        low, high = bounds
        drawn.line([(x, value if low is None else low), (x, value if high is None else high)], "winner whisker")
    tip = f"night {row.night.number}, {row.night.status}: {text.number(value)} {plotted.unit}"
    drawn.dot((x, value), "winner" if row.figures.verified else "winner hollow", tip)


def _mark(drawn: Chart, rows: Sequence[Row]) -> None:
    place = 0
    for row in rows:
        if not row.marks:
            continue
        drawn.upright(float(row.night.number), "limit dotted" if _bad(row) else "grid")
        labels = ", ".join(dict.fromkeys(mark.label for mark in row.marks))
        kind = "note limit-note" if _bad(row) else "note"
        drawn.note((float(row.night.number), drawn.y.high), labels, kind, dx=4, dy=14 + 15 * (place % _LINES))
        place += 1


def _bad(row: Row) -> bool:
    """Something that somebody should look at."""
    return any(mark.kind == "ended" or mark.label in ("regression", "drift") for mark in row.marks)
