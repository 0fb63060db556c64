"""The morning view: what one night found, as text and as one HTML file without scripts."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from tuner import nightfile
from tuner.nightfile import Comparison, Figures, Gain, Night
from tuner.report.limits import limit_name
from tuner.report.text import UNKNOWN, duration, milliseconds, number
from tuner.runfiles import replace_bytes

#: Nights before that are shown.
SHOWN = 7
_TAILS = ("ttft", "itl")
_STATISTICS = ("p99", "p95", "p50")  # that a night keeps of a tail


def write(folder: Path, night: Night, before: Sequence[Night]) -> None:
    """
    Write `summary.txt` and `night.html` of a night.

    Raises:
        StudyFailed: Nowhere to write.
    """
    place = nightfile.night_directory(folder, night.number)
    replace_bytes(place / nightfile.SUMMARY, text(night, before).encode())
    replace_bytes(place / nightfile.PAGE, page(night, before).encode())


def text(night: Night, before: Sequence[Night]) -> str:
    """For a terminal and for mail."""
    lines = [f"night {night.number} of {night.objective}: {night.status}", night.reason, ""]
    if night.source == "simulated":
        lines[1:1] = ["simulated: no engine ran"]
    rows = list(_rows(night))
    table = [_columns(night), *rows] if rows else []
    widths = [max(len(row[column]) for row in table) for column in range(len(_columns(night)) if table else 0)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    lines += ["", *(f"{name:<11} {value}" for name, value in _facts(night))]
    lines += ["", "nights before", *_past(before)] if before else []
    return "\n".join(lines) + "\n"


def page(night: Night, before: Sequence[Night]) -> str:
    """One file; every value is escaped."""
    style = (resources.files("tuner.report") / "page.css").read_text(encoding="utf-8")
    head = f"night {night.number} of {escape(night.objective)}"
    simulated = '<p class="warning">simulated: no engine ran</p>' if night.source == "simulated" else ""
    rows = "".join(_html_row("td", row) for row in _rows(night))
    facts = "".join(_html_row("td", (name, value)) for name, value in _facts(night))
    past = "".join(f"<li>{escape(line)}</li>" for line in _past(before))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{head}</title><style>{style}</style></head>'
        f"<body><main><h1>{head}: {escape(night.status)}</h1>{simulated}<p>{escape(night.reason)}</p>"
        f"<table><thead>{_html_row('th', _columns(night))}</thead><tbody>{rows}</tbody></table>"
        f"<h2>What it rests on</h2><table><tbody>{facts}</tbody></table>"
        f"<h2>Nights before</h2><ul>{past}</ul></main></body></html>\n"
    )


def _html_row(cell: str, values: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape(value)}</{cell}>" for value in values) + "</tr>"


def _rows(night: Night) -> Iterator[tuple[str, ...]]:
    named = (("incumbent", night.incumbent), ("challenger", night.challenger), ("defaults", night.baseline))
    for name, figures in named:
        if figures is not None:
            yield name, *_figures(night, figures)


def _columns(night: Night) -> tuple[str, ...]:
    tails = (limit_name(name) + (f" (≤ {milliseconds(limit)})" if limit else "") for name, limit in _shown(night))
    return "", "cost per 1,000", "interval", "goodput", *tails, "n", "verified"


def _shown(night: Night) -> Iterator[tuple[str, float | None]]:
    """The statistic of each tail that is shown, and its limit: the promised one, else p99."""
    for metric in _TAILS:
        names = [f"{metric}_{each}" for each in _STATISTICS]
        name = next((each for each in names if each in night.promised), names[0])
        yield name, night.promised.get(name)


def _figures(night: Night, figures: Figures) -> tuple[str, ...]:
    if figures.state != "feasible":
        return (f"{figures.state}: {figures.reason}", *[UNKNOWN] * (len(_columns(night)) - 2))
    low, high = figures.interval or (None, None)
    tails = [figures.tails.get(f"{name}_ms") for name, _ in _shown(night)]
    return (
        f"{number(figures.cost)} {night.currency}",
        f"{number(low)} to {number(high)}" if figures.interval else UNKNOWN,
        f"{number(figures.goodput_rps)} req/s",
        *(UNKNOWN if value is None else f"{number(value)} ms" for value in tails),
        UNKNOWN if figures.n is None else f"{figures.n}",
        "yes" if figures.verified else "no",
    )


def _facts(night: Night) -> Iterator[tuple[str, str]]:
    if night.comparison is not None:
        yield "history", _history(night.comparison)
        yield from (("likely", cause) for cause in night.comparison.causes)
    if night.gain is not None:
        yield "gate", _gate(night.gain)
    for name, figures in (("incumbent", night.incumbent), ("challenger", night.challenger)):
        if figures is not None:
            yield name, f"{figures.study} trial {figures.trial}: {_knobs(figures.configuration)}"
    if night.status == "promoted" and night.challenger is not None:
        yield "roll out", f"tuner export {night.challenger.study} --trial {night.challenger.trial} --format FORMAT"
    if night.incumbent is not None:
        yield "warm start", _warm(night.warm_start)
    if night.spent:
        hours = (
            f"{number(night.spent.get('gpu_hours'))} GPU-hours (or slot-hours), {duration(night.spent.get('wall_s'))}"
        )
        yield "spent", f"{hours}, {number(night.spent.get('requests'), 12)} requests"
    yield "versions", ", ".join(f"{name} {value}" for name, value in night.versions.items() if value) or UNKNOWN
    yield "study", f"tuner report {night.study}"
    yield from (("note", note) for note in night.notes)


def _history(found: Comparison) -> str:
    return f"{found.verdict}: {found.sentence}"


def _gate(gain: Gain) -> str:
    word = "passed" if gain.proven else "not passed"
    return (
        f"{word}: {gain.confidence:.2%} sure of more than {gain.min_gain:.1%} after {gain.sessions} sessions by turns, "
        f"{gain.asked:.2%} asked for"
    )


def _knobs(configuration: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(configuration.items())) or "engine defaults"


def _warm(found: Mapping[str, object]) -> str:
    sources = found.get("sources")
    told = []
    for each in sources if isinstance(sources, list) else []:
        why = f" (no trial counts here: other {', '.join(each['differs'])})" if each["differs"] else ""
        outside = f", {each['outside']} outside of today's space" if each["outside"] else ""
        told.append(f"{each['study']}: {each['told']} trials reused, {each['proposed']} proposed{outside}{why}")
    return "; ".join(told) or "cold"


def _past(before: Sequence[Night]) -> list[str]:
    lines = []
    for night in reversed(before[-SHOWN:]):
        verdict = night.comparison.verdict if night.comparison is not None else UNKNOWN
        cost = f"{number(night.incumbent.cost)} {night.currency}" if night.incumbent is not None else UNKNOWN
        lines.append(f"{night.number:>4}  {night.started[:10]}  {night.status:<11}  {verdict:<16}  {cost}")
    return lines
