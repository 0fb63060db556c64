"""The incumbent over the nights, and what changed when: rows for text, JSON and page. Reads `runs/nightly/`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tuner import lock, nightfile, provenance
from tuner.errors import InputError
from tuner.nightfile import Figures, Incumbent, Night
from tuner.report import text
from tuner.runfiles import TornFileError, read_json

#: Statistics of a latency that are shown, best first.
_STATISTICS = ("p99", "p95", "p90", "p50")
_VERSIONS = {"engine": "engine", "driver": "driver", "model_revision": "model revision", "tuner": "tuner"}
_INPUTS = {
    "workload": "workload",
    "slo": "promise",
    "cluster": "prices or cluster",
    "engine": "engine command or flags",
    "model": "model",
    "space": "space",
}
_FOUND = {"regression": "regression", "drift": "drift", "improved": "improved"}
_ENDED_BADLY = {"failed": "failed", "interrupted": "interrupted", "no_feasible": "nothing feasible"}
_COLUMNS = ("night", "date", "ended", "verdict", "cost", "interval", "good/s", "TTFT", "ITL")
_LEFT = 4  # columns of words, in front


@dataclass(frozen=True)
class Mark:
    """Something that happened in a night."""

    kind: str  # promoted, changed, found or ended
    label: str  # a word or two, for charts
    words: str  # one sentence


@dataclass(frozen=True)
class Row:
    """One night."""

    night: Night
    marks: tuple[Mark, ...]
    fresh: bool  # another incumbent, or other inputs than the night before: figures do not go on from there

    @property
    def figures(self) -> Figures | None:
        """The incumbent's, where it was measured and kept its limits."""
        found = self.night.incumbent
        return found if found is not None and found.cost is not None else None

    @property
    def verdict(self) -> str:
        return "" if self.night.comparison is None else self.night.comparison.verdict.replace("_", " ")


@dataclass(frozen=True)
class History:
    """All nights of one objective file."""

    name: str
    folder: Path
    nights: tuple[Night, ...]  # by number; at least one
    incumbent: Incumbent | None
    limits_ms: Mapping[str, float]  # of the last night that has a result, such as `ttft_p99`
    unreadable: tuple[int, ...] = ()  # nights whose file was damaged

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return tuple(_rows(self.nights))

    @property
    def simulated(self) -> bool:
        return any(night.source == "simulated" for night in self.nights)

    @property
    def currency(self) -> str:
        return self.nights[-1].currency

    def statistic(self, metric: str) -> str | None:
        """Which statistic of `ttft` or `itl` to show: the one with a limit, else the highest that was measured."""
        names = [f"{metric}_{each}" for each in _STATISTICS]
        measured = {name for row in self.rows if row.figures is not None for name in row.figures.tails}
        known = [name for name in names if f"{name}_ms" in measured]
        return next((name for name in known if name in self.limits_ms), next(iter(known), None))


def read(runs: Path, wanted: str | None) -> History:
    """
    The nights of one objective file, given by the file, by its name, or None where there is only one.

    Raises:
        InputError: There are none, or several to choose among.
        StudyFailed: `incumbent.json` is damaged.
    """
    names = nightfile.objectives(runs)
    name = None if wanted is None else wanted if wanted in names else nightfile.objective_name(Path(wanted))
    if not names:
        raise InputError(f"--runs {runs}: there are no nights yet; start with `tuner nightly --slo FILE`")
    if name is None and len(names) > 1:
        raise InputError(f"--slo: there are nights of {', '.join(names)}; name one of them")
    if name is not None and name not in names:
        raise InputError(f"--slo: got {wanted}: there are no nights of it; there are nights of {', '.join(names)}")
    found = name or names[0]
    folder = nightfile.directory(runs, found)
    deployed, nights = nightfile.incumbent(folder), nightfile.nights(folder)
    if not lock.is_held(folder, nightfile.LOCK):
        nights = tuple(nightfile.settle(night, deployed, provenance.now()) for night in nights)
    if not nights:
        raise InputError(f"{folder}: no night can be read; damaged files were set aside beside them")
    return History(found, folder, nights, deployed, _limits(runs, nights), nightfile.unreadable(folder))


def marks(before: Night | None, versions: Mapping[str, str | None], night: Night) -> Iterator[Mark]:
    """What changed since the night before and since the last known versions, and what this night found."""
    if before is not None:
        for key, word in _VERSIONS.items():
            was, now = versions.get(key), night.versions.get(key)
            if was and now and was != now:
                yield Mark("changed", word, f"{word}: {was} → {now}")
        for key, word in _INPUTS.items():
            if before.fingerprints.get(key) != night.fingerprints.get(key):
                yield Mark("changed", word, f"{word} changed")
    found = night.comparison
    if found is not None and found.verdict in _FOUND:
        causes = f"; likely: {', '.join(found.causes)}" if found.causes else ""
        yield Mark("found", _FOUND[found.verdict], f"{found.sentence}{causes}")
    if night.status == "promoted":
        yield Mark("promoted", "promoted", _promoted(night))
    if night.status in _ENDED_BADLY:
        yield Mark("ended", _ENDED_BADLY[night.status], night.reason or _ENDED_BADLY[night.status])


def as_json(history: History) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "schema": 1,
        "objective": history.name,
        "simulated": history.simulated,
        "incumbent": None if history.incumbent is None else asdict(history.incumbent),
        "nights": [_night_json(row) for row in history.rows],
    }


def as_text(history: History) -> str:
    """For a terminal: a line a night, and below it what happened."""
    lines = [headline(history), deployed(history), ""]
    table = [_heads(history), *(cells(history, row) for row in history.rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_COLUMNS))]
    for line, row in zip(table, (None, *history.rows), strict=True):
        shown = (
            cell.ljust(width) if 0 < place < _LEFT else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        lines.append("  ".join(shown).rstrip())
        lines += [f"{'':>{widths[0]}}  {mark.words}" for mark in (() if row is None else row.marks)]
    return "\n".join(lines)


def headline(history: History) -> str:
    """Which nights these are, in one sentence."""
    last = history.nights[-1]
    when = " to ".join(dict.fromkeys(night.started[:10] for night in (history.nights[0], last)))
    sim = "Simulated: " if history.simulated else ""
    ended = last.status.replace("_", " ")
    missing = ", ".join(str(number) for number in history.unreadable)
    damaged = f" Damaged and left out: night {missing}." if missing else ""
    return f"{sim}{text.count(len(history.nights), 'night')} of {history.name}, {when}; the last one: {ended}.{damaged}"


def deployed(history: History) -> str:
    """What is deployed, and since when."""
    found = history.incumbent
    if found is None:
        known = any(night.status not in ("running", "failed", "interrupted") for night in history.nights)
        if known:
            place = history.folder / nightfile.INCUMBENT
            return f"What is deployed is not known: {place} is gone; the next night begins from the objective file."
        return "No incumbent yet: no night has ended well."
    since = "as the objective file came with" if found.since_night == 0 else f"since night {found.since_night}"
    proof = f"; proven in study {found.study}, trial {found.trial}" if found.study else ""
    return f"Incumbent {since}: {text.knobs(found.configuration)}{proof}."


def cells(history: History, row: Row) -> tuple[str, ...]:
    """One night's cells, in the order of `columns`."""
    night, figures = row.night, row.figures
    shown = (str(night.number), night.started[:10], night.status.replace("_", " "), row.verdict or text.UNKNOWN)
    if figures is None:
        return (*shown, *[text.UNKNOWN] * (len(_COLUMNS) - _LEFT))
    return (
        *shown,
        text.amount(figures.cost),
        interval(figures),
        text.number(figures.goodput_rps),
        *(_tail(history, figures, metric) for metric in ("ttft", "itl")),
    )


def _heads(history: History) -> tuple[str, ...]:
    return tuple(name for name, _ in columns(history))


def columns(history: History) -> list[tuple[str, str]]:
    """Head and class of each column."""
    named = {"cost": f"{history.currency} per 1,000 good"}
    for metric in ("ttft", "itl"):
        named[metric.upper()] = statistic_name(history, metric)
    return [(named.get(each, each), "" if place < _LEFT else "num") for place, each in enumerate(_COLUMNS)]


def statistic_name(history: History, metric: str) -> str:
    """`TTFT p99`; the bare metric where nothing was measured."""
    found = history.statistic(metric)
    return metric.upper() if found is None else f"{metric.upper()} {found.removeprefix(f'{metric}_')}"


def interval(figures: Figures) -> str:
    if figures.interval is None:
        return text.UNKNOWN
    low, high = figures.interval
    return f"{'0' if low is None else text.amount(low)} to {text.amount(high) if high is not None else '∞'}"


def _tail(history: History, figures: Figures, metric: str) -> str:
    name = history.statistic(metric)
    value = None if name is None else figures.tails.get(f"{name}_ms")
    return text.UNKNOWN if value is None else text.milliseconds(value / 1000)


def _promoted(night: Night) -> str:
    gain = night.gain
    if gain is None or gain.estimate is None:
        return night.reason or "another configuration was promoted"
    cheaper = f"promoted: {text.share(gain.estimate)} cheaper than the incumbent"
    sure = f", {text.share(gain.confidence, 4)} sure of more than {text.share(gain.min_gain)}"
    return cheaper + sure


def _rows(nights: Sequence[Night]) -> Iterator[Row]:
    before: Night | None = None
    measured: Night | None = None
    versions: dict[str, str | None] = {}
    for night in nights:
        yield Row(night, tuple(marks(before, versions, night)), _fresh(measured, night))
        before, measured = night, night if night.incumbent is not None else measured
        versions |= {name: value for name, value in night.versions.items() if value}


def _fresh(before: Night | None, night: Night) -> bool:
    """Whether a night's figures stand apart from those of the last night that measured the incumbent."""
    if before is None or before.incumbent is None:
        return True
    if night.incumbent is None:
        return False
    same = dict(before.incumbent.configuration) == dict(night.incumbent.configuration)
    return not same or any(
        before.fingerprints.get(part) != night.fingerprints.get(part) for part in ("workload", "slo", "cluster")
    )


def _limits(runs: Path, nights: Sequence[Night]) -> dict[str, float]:
    """Promised latencies in milliseconds, from the last study that wrote them down."""
    for night in reversed(nights):
        try:
            result = read_json(runs / night.study / "result.json")
            return {limit["name"]: limit["threshold_s"] * 1000 for limit in result["slo"]["limits"]}
        except (FileNotFoundError, NotADirectoryError, TornFileError, KeyError, TypeError):
            continue
    return {}


def _night_json(row: Row) -> dict[str, Any]:
    night = row.night
    return {
        "night": night.number,
        "started": night.started,
        "status": night.status,
        "reason": night.reason,
        "study": night.study,
        "source": night.source,
        "incumbent": None if night.incumbent is None else asdict(night.incumbent),
        "baseline": None if night.baseline is None else asdict(night.baseline),
        "challenger": None if night.challenger is None else asdict(night.challenger),
        "comparison": None if night.comparison is None else asdict(night.comparison),
        "versions": dict(night.versions),
        "marks": [asdict(mark) for mark in row.marks],
    }
