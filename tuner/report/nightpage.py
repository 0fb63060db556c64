"""The morning view: what one night found, as text and as one HTML file without scripts."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from tuner import nightfile
from tuner.nightfile import Comparison, Figures, Gain, Night
from tuner.report.text import UNKNOWN, duration, number
from tuner.runfiles import replace_bytes

#: Nights before that are shown.
SHOWN = 7
_COLUMNS = ("", "cost per 1,000", "interval", "goodput", "TTFT p99", "ITL p99", "n", "verified")


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
    table = [_COLUMNS, *_rows(night)]
    widths = [max(len(row[column]) for row in table) for column in range(len(_COLUMNS))]
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
        f"<table><thead>{_html_row('th', _COLUMNS)}</thead><tbody>{rows}</tbody></table>"
        f"<h2>What it rests on</h2><table><tbody>{facts}</tbody></table>"
        f"<h2>Nights before</h2><ul>{past}</ul></main></body></html>\n"
    )


def _html_row(cell: str, values: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape(value)}</{cell}>" for value in values) + "</tr>"


def _rows(night: Night) -> Iterator[tuple[str, ...]]:
    named = (("incumbent", night.incumbent), ("challenger", night.challenger), ("defaults", night.baseline))
    for name, figures in named:
        if figures is not None:
            yield name, *_figures(figures, night.currency)


def _figures(figures: Figures, currency: str) -> tuple[str, ...]:
    if figures.state != "feasible":
        return (f"{figures.state}: {figures.reason}", *[UNKNOWN] * (len(_COLUMNS) - 2))
    low, high = figures.interval or (None, None)
    return (
        f"{number(figures.cost)} {currency}",
        f"{number(low)} to {number(high)}" if figures.interval else UNKNOWN,
        f"{number(figures.goodput_rps)} req/s",
        f"{number(figures.tails.get('ttft_p99_ms'))} ms",
        f"{number(figures.tails.get('itl_p99_ms'))} ms",
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
    yield "warm start", _warm(night.warm_start)
    yield (
        "spent",
        (
            f"{number(night.spent.get('gpu_hours'))} GPU-hours (or slot-hours), {duration(night.spent.get('wall_s'))}, "
            f"{number(night.spent.get('requests'), 12)} requests"
        ),
    )
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
        why = f", its trials only proposed: {', '.join(each['differs'])} differ" if each["differs"] else ""
        told.append(f"{each['study']}: {each['told']} trials reused, {each['proposed']} proposed{why}")
    return "; ".join(told) or "cold"


def _past(before: Sequence[Night]) -> list[str]:
    lines = []
    for night in reversed(before[-SHOWN:]):
        verdict = night.comparison.verdict if night.comparison is not None else UNKNOWN
        cost = f"{number(night.incumbent.cost)} {night.currency}" if night.incumbent is not None else UNKNOWN
        lines.append(f"{night.number:>4}  {night.started[:10]}  {night.status:<11}  {verdict:<16}  {cost}")
    return lines
