"""What a person sees while a study runs: one live line on a terminal, plain lines elsewhere. Always on stderr."""

import textwrap
import threading
import time
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tuner.configuration import Configuration
from tuner.events import BudgetChanged, Event, LevelEnded, LevelStarted, NightStep, Note, TrialEnded, TrialStarted
from tuner.outcome import Level

#: Characters of a line about a trial or a level, elapsed time included; notes are shown in full.
WIDTH = 160
_MARKS = {True: "kept", False: "broken", None: "invalid"}


class Plain:
    """One line per event; safe to call from several threads."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self._baseline: Configuration | None = None

    def __call__(self, event: Event) -> None:
        """Show an event."""
        with self._lock:
            self.show(event)

    def show(self, event: Event) -> None:
        """Show an event; the caller holds the lock."""
        if isinstance(event, TrialStarted) and event.baseline:
            self._baseline = event.configuration
        text = describe(event, self._baseline)
        if text is not None:
            line = f"[{time.monotonic() - self._begun:7.1f} s] {text}"
            if not isinstance(event, Note):
                line = line[:12] + textwrap.shorten(line[12:], WIDTH - 12, placeholder=" …")
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class Live(Plain):
    """Finished trials as lines, and below them what is going on now."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._row = self._progress.add_task("starting", total=None)
        self._now: dict[int, str] = {}
        self._best = ""
        self._budget = ""

    def show(self, event: Event) -> None:
        """Show an event; the caller holds the lock."""
        match event:
            case TrialStarted(trial=trial):
                self._now[trial] = f"trial {trial} starting"
            case LevelStarted(trial=trial):
                self._now[trial] = (
                    f"trial {trial}, level {event.number} ({event.purpose}): {event.offered:.3g} {event.unit}"
                )
            case TrialEnded():
                self._now.pop(event.outcome.trial, None)
                if event.best and event.value is not None:
                    self._best = f"best {event.figure} (trial {event.outcome.trial})"
                super().show(event)
            case BudgetChanged(used=used):
                self._budget = "budget " + ", ".join(f"{name} {share:.0%}" for name, share in used.items())
            case Note():
                super().show(event)
            case LevelEnded() | NightStep():
                pass
        parts = [*self._now.values(), self._best, self._budget]
        self._progress.update(self._row, description=" · ".join(part for part in parts if part))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def listener(console: Console) -> Plain:
    """The display that suits the console."""
    return Live(console) if console.is_terminal else Plain(console)


def describe(event: Event, baseline: Configuration | None = None) -> str | None:
    """
    One line for people, or None where there is nothing to say.

    Args:
        event: What happened.
        baseline: Knobs that are as in it are left out; None = all are shown.
    """
    match event:
        case TrialStarted():
            again = f" (attempt {event.attempt})" if event.attempt > 1 and event.phase == "search" else ""
            what = "verifying " if event.phase == "verify" else ""
            name = "baseline" if event.baseline or event.configuration == baseline else None
            name = name or knobs(event.configuration, baseline)
            return f"{what}trial {event.trial}{again}: {name}"
        case LevelEnded():
            return f"trial {event.trial}, level {event.level.number}: {_level(event.level, event.unit)}"
        case TrialEnded():
            return _trial(event)
        case BudgetChanged(used=used):
            return "budget used: " + ", ".join(f"{name} {share:.0%}" for name, share in used.items()) if used else None
        case Note():
            return f"warning: {event.text}" if event.warning else event.text
        case _:
            return None


def knobs(configuration: Configuration, baseline: Configuration | None = None) -> str:
    """
    `max_num_seqs=64 tensor_parallel_size=2`; "engine defaults" where nothing is set.

    Beside a baseline only what differs from it, `default` where the baseline alone sets a knob.
    """
    before = {} if baseline is None else _set(baseline)
    mine = _set(configuration)
    names = sorted(name for name in {*mine, *before} if mine.get(name) != before.get(name))
    parts = [f"{name}={_shown(mine.get(name))}" for name in names]
    return " ".join(parts) or ("as the baseline" if before else "engine defaults")


def _set(configuration: Configuration) -> dict[str, object]:
    return {name: value for name, value in configuration.knobs.items() if value is not None}


def _shown(value: object) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _level(level: Level, unit: str) -> str:
    judged = level.score
    text = f"{level.offered:.3g} {unit} {_MARKS[level.kept]}"
    if judged is not None:
        worst = max(judged.limits, key=lambda limit: limit.margin, default=None)
        text += f", n {judged.n}, good {judged.attainment:.1%}"
        if worst is not None:
            text += f", {worst.name} {abs(worst.margin):.0%} {'over' if worst.margin > 0 else 'within'} its limit"
    if level.stopped == "slo":
        text += f", stopped early ({level.stop_detail})"
    return text + (f", {level.invalid}" if level.invalid else "")


def _trial(event: TrialEnded) -> str:
    outcome = event.outcome
    text = f"trial {outcome.trial} {outcome.state}"
    if outcome.capacity is not None:
        text += f": keeps the SLO up to {outcome.capacity:.3g} {event.unit}".rstrip()
    if event.figure:
        text += f", {event.figure}" + (", best so far" if event.best else "")
    why = " ".join(part for part in (outcome.reason, outcome.cause) if part)
    return f"{text} ({why})" if why else text
