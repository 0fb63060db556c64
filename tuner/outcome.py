"""How a level and a trial can end: states, never magic numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tuner.configuration import Configuration
from tuner.objective import Score

State = Literal["feasible", "infeasible", "rejected", "pruned", "config_failed", "infra_failed"]

#: Reasons of `config_failed` (closed).
CONFIG_REASONS = (
    "out_of_memory",
    "bad_flag",
    "start_timeout",
    "server_died",
    "role_lost",
    "pd_not_effective",
    "store_not_effective",
    "output_mismatch",
)
#: Reasons of `infra_failed` (closed).
INFRA_REASONS = ("node_lost", "port_taken", "store_unavailable", "engine_missing", "client_saturated")


@dataclass(frozen=True)
class Level:
    """One offered load on one running deployment, judged. Directory `levels/<number>` of the trial."""

    number: int  # within the trial, from 1
    purpose: Literal["challenge", "search", "fixed", "verify"]
    offered: float  # requests/s in an open loop, concurrency in a closed loop
    score: Score | None  # None: nothing arrived, or the level was invalid
    kept: bool | None  # observed; None = invalid or undecided
    stopped: str  # "" or why it ended early, see LevelData.stopped
    stop_detail: str
    invalid: str  # "" or why the level is not scored (client_saturated …)
    seconds: float  # wall time (virtual when simulated)
    requests: int  # sent, warm-up and drain included
    counters: Mapping[str, float] = field(default_factory=dict)
    client: Mapping[str, float] = field(default_factory=dict)  # ClientHealth as a mapping


@dataclass(frozen=True)
class Outcome:
    """How one trial ended. `outcome.json`."""

    trial: int
    attempt: int  # from 1; grows with each retry after `infra_failed`
    state: State
    reason: str  # from the closed tables; for `infeasible` the broken limits joined by ","; for `rejected` the rule
    cause: str  # one line for people
    configuration: Configuration
    units: int  # GPUs or CPU slots held
    cost_per_hour: float | None
    best: Level | None  # feasible: the highest level kept; infeasible: the lowest level tried
    capacity: float | None  # highest load kept, in the unit of the load; None unless feasible
    broken_at: float | None  # lowest load seen broken
    measured_to_capacity: bool  # False: pruned, budget ended, or the level limit was reached before the bracket closed
    levels: tuple[Level, ...]
    margins: Mapping[str, float]  # of the best level
    seconds: float  # start-up included
    unit_hours: float  # units × wall time
    ready_s: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)  # of the level that refuted a proof, else of `best`
    facts: Mapping[str, object] = field(default_factory=dict)
