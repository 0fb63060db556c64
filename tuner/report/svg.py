"""
A small writer of inline SVG charts: two axes, a grid, and marks in data coordinates. Pure.

Colours, fonts and strokes come from the page's style sheet by class name, so that a chart follows light and dark.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from tuner.report.text import number

WIDTH, HEIGHT = 520, 340
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 36, 52

Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """
    One axis in data units. `low` < `high`; on a log axis both are > 0.

    `unit` is written after the label in brackets; ticks are bare numbers, or per cent with `percent`.
    """

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False  # values are shares, ticks are written in per cent
    whole: bool = False  # no tick between whole numbers
    most: float | None = None  # the largest possible value: no tick above it, though the axis may leave room

    def at(self, value: float) -> float:
        """Position of a value: 0 at `low`, 1 at `high`; clipped to the axis."""
        if self.log:
            value = max(value, self.low)
            place = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, place))

    def ticks(self) -> list[float]:
        """Round values inside the axis: 1-2-5 steps when linear; on a log axis decades, with 2 and 5 between few."""
        if not self.log:
            ticks = _linear_ticks(self.low, self.high)
            ticks = [tick for tick in ticks if not self.whole or float(tick).is_integer()]
            return [tick for tick in ticks if self.most is None or tick <= self.most * 1.001]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1, 2, 5) if len(decades) <= 4 and not self.percent else (1,)
        values = [step * 10.0**decade for decade in decades for step in steps]
        return [value for value in values if self.low * 0.999 <= value <= self.high * 1.001]

    def written(self, value: float) -> str:
        return f"{number(value * 100)} %" if self.percent else number(value)


@dataclass
class Chart:
    """Marks drawn in order. `title` and `description` are what a screen reader says."""

    title: str
    description: str
    x: Axis
    y: Axis
    marks: list[str] = field(default_factory=list)

    def px(self, value: float) -> float:
        return LEFT + self.x.at(value) * (WIDTH - LEFT - RIGHT)

    def py(self, value: float) -> float:
        return HEIGHT - BOTTOM - self.y.at(value) * (HEIGHT - TOP - BOTTOM)

    def line(self, points: Sequence[Point], kind: str) -> None:
        """A polyline; fewer than two points draw nothing."""
        if len(points) > 1:
            path = " ".join(f"{self.px(x):.1f},{self.py(y):.1f}" for x, y in points)
            self.marks.append(f'<polyline class="line {kind}" points="{path}"/>')

    def dot(self, point: Point, kind: str, tip: str, radius: float = 4) -> None:
        """A circle with a tooltip."""
        x, y = self.px(point[0]), self.py(point[1])
        circle = f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"'
        self.marks.append(f"{circle}><title>{escape(tip)}</title></circle>")

    def zone(self, corner: Point, kind: str = "zone") -> None:
        """Everything right of and above a corner."""
        x, y = self.px(corner[0]), self.py(corner[1])
        self.marks.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{TOP}" width="{WIDTH - RIGHT - x:.1f}" height="{y - TOP:.1f}"/>'
        )

    def upright(self, value: float, kind: str = "limit") -> None:
        """A vertical line over the whole height."""
        x = self.px(value)
        self.marks.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')

    def level(self, value: float, kind: str = "limit") -> None:
        """A horizontal line over the whole width."""
        y = self.py(value)
        self.marks.append(f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')

    def note(self, point: Point, words: str, kind: str = "note", dx: float = 6, dy: float = -6) -> None:
        """Text beside a point, turned to its left where it would leave the chart on the right."""
        x, y = self.px(point[0]), self.py(point[1])
        room = WIDTH - RIGHT - x - dx
        anchor, x = ("start", x + dx) if room > 7.5 * len(words) else ("end", x - dx)
        y = min(max(y + dy, TOP + 12), HEIGHT - BOTTOM - 4)
        self.marks.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>')

    def render(self) -> str:
        """The `<svg>` element."""
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title, quote=True)}">',
            f"<title>{escape(self.title)}</title><desc>{escape(self.description)}</desc>",
            *self._grid(),
            *self.marks,
            "</svg>",
        ]
        return "".join(parts)

    def _grid(self) -> list[str]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        parts = []
        for value in self.x.ticks():
            x = self.px(value)
            parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
            words = escape(self.x.written(value))
            parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{words}</text>')
        for value in self.y.ticks():
            y = self.py(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            words = escape(self.y.written(value))
            parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{words}</text>')
        middle = (LEFT + right) / 2
        words = escape(self.x.label)
        parts.append(f'<text class="label" text-anchor="middle" x="{middle:.1f}" y="{HEIGHT - 8}">{words}</text>')
        parts.append(f'<text class="label" x="4" y="{TOP - 18}">{escape(self.y.label)}</text>')
        return parts


def padded(values: Sequence[float], *, log: bool, room: float = 0.08) -> Point:
    """Ends of an axis that shows all values with some room; values are finite, > 0 on a log axis, and may be few."""
    low, high = min(values), max(values)
    if log:
        factor = (high / low) ** room if high > low else 2.0
        return low / max(factor, 1.05), high * max(factor, 1.05)
    span = (high - low) * room or abs(high) * 0.2 or 1.0
    return low - span, high + span


def _linear_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]
