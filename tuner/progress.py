"""What a person sees while a study runs: one live line on a terminal, plain lines elsewhere. Always on stderr."""

import threading
import time

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tuner.configuration import Configuration
from tuner.events import BudgetChanged, Event, LevelEnded, LevelStarted, Note, TrialEnded, TrialStarted
from tuner.outcome import Level

_MARKS = {True: "kept", False: "broken", None: "invalid"}


class Plain:
    """One line per event; safe to call from several threads."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Show an event."""
        with self._lock:
            self.show(event)

    def show(self, event: Event) -> None:
        """Show an event; the caller holds the lock."""
        text = describe(event)
        if text is not None:
            elapsed = time.monotonic() - self._begun
            self._console.print(f"[{elapsed:7.1f} s] {text}", markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> "Plain":
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
                    self._best = f"best {event.value:.4g} (trial {event.outcome.trial})"
                super().show(event)
            case BudgetChanged(used=used):
                self._budget = "budget " + ", ".join(f"{name} {share:.0%}" for name, share in used.items())
            case Note():
                super().show(event)
            case LevelEnded():
                pass
        parts = [*self._now.values(), self._best, self._budget]
        self._progress.update(self._row, description=" · ".join(part for part in parts if part))

    def __enter__(self) -> "Live":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def listener(console: Console) -> Plain:
    """The display that suits the console."""
    return Live(console) if console.is_terminal else Plain(console)


def describe(event: Event) -> str | None:
    """One line for people, or None where there is nothing to say."""
    match event:
        case TrialStarted():
            again = f" (attempt {event.attempt})" if event.attempt > 1 and event.phase == "search" else ""
            what = "verifying " if event.phase == "verify" else ""
            name = "baseline" if event.baseline else knobs(event.configuration)
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


def knobs(configuration: Configuration) -> str:
    """`max_num_seqs=64 tensor_parallel_size=2`; "engine defaults" where nothing is set."""
    parts = [f"{name}={value}" for name, value in sorted(configuration.knobs.items()) if value is not None]
    return " ".join(parts) or "engine defaults"


def _level(level: Level, unit: str) -> str:
    judged = level.score
    text = f"{level.offered:.3g} {unit} {_MARKS[level.kept]}"
    if judged is not None:
        worst = max(judged.limits, key=lambda limit: limit.margin, default=None)
        text += f", n {judged.n}, good {judged.attainment:.1%}"
        if worst is not None:
            text += f", {worst.name} {worst.margin:+.0%} of its limit"
    if level.stopped == "slo":
        text += f", stopped early ({level.stop_detail})"
    return text + (f", {level.invalid}" if level.invalid else "")


def _trial(event: TrialEnded) -> str:
    outcome = event.outcome
    text = f"trial {outcome.trial} {outcome.state}"
    if outcome.capacity is not None:
        text += f": capacity {outcome.capacity:.3g}"
    if event.value is not None:
        text += f", {event.value:.4g} per objective unit" + (", best so far" if event.best else "")
    why = " ".join(part for part in (outcome.reason, outcome.cause) if part)
    return f"{text} ({why})" if why else text
