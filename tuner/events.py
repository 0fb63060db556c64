"""What a study tells while it runs; whoever shows progress listens."""

from collections.abc import Callable
from dataclasses import dataclass

from tuner.configuration import Configuration
from tuner.outcome import Level, Outcome


@dataclass(frozen=True)
class TrialStarted:
    trial: int
    attempt: int
    configuration: Configuration
    baseline: bool
    phase: str = "search"  # or "verify"


@dataclass(frozen=True)
class LevelStarted:
    trial: int
    number: int
    purpose: str
    offered: float  # requests/s, or concurrent requests
    unit: str  # "req/s" or "concurrent"


@dataclass(frozen=True)
class LevelEnded:
    trial: int
    level: Level
    unit: str


@dataclass(frozen=True)
class TrialEnded:
    outcome: Outcome
    value: float | None  # of the objective, lower is better; None where there is none
    best: bool  # it is the best so far
    figure: str = ""  # `value` for people, with its unit
    unit: str = ""  # of the outcome's capacity: "req/s" or "concurrent"


@dataclass(frozen=True)
class BudgetChanged:
    """Shares of the budget used, by name (`trials`, `wall`, `gpu-hours`, a currency), each in [0, 1]."""

    used: dict[str, float]


@dataclass(frozen=True)
class Note:
    """A line for people."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class NightStep:
    """A night has come to a step of its own: `begun`, `measured`, `compared`, `decided`, `promoted` or `ended`."""

    name: str


Event = NightStep | TrialStarted | LevelStarted | LevelEnded | TrialEnded | BudgetChanged | Note
Listener = Callable[[Event], None]


def silent(_: Event) -> None:
    """Listen to nothing."""
