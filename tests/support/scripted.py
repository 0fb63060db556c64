"""
Deployments with a known capacity, in no time: what the study's tests need of the world.

A request is good while the offered load is at most the configuration's capacity, and late beyond it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tuner.configuration import Configuration
from tuner.errors import Interrupted
from tuner.load.plan import LevelData, LevelPlan
from tuner.records import Record

Capacity = Callable[[Configuration], float]


@dataclass
class ScriptedLauncher:
    """
    Fulfils `Launcher`.

    `capacity` gives requests/s that a configuration carries, or raises what its deployment raises. `entered` lists the
    configurations in the order in which they were started; `level_s` is how long a level takes in virtual seconds.
    """

    capacity: Capacity
    parallel: int = 1
    source: str = "simulated"
    level_s: float = 10.0
    impossible: Callable[[Configuration], str | None] = lambda _: None
    interrupt_after: int | None = None  # levels
    entered: list[str] = field(default_factory=list)
    plans: list[tuple[str, LevelPlan]] = field(default_factory=list)
    open: int = 0
    interrupted: bool = False

    def deployment(self, configuration: Configuration, logs: Path) -> "ScriptedDeployment":
        return ScriptedDeployment(self, configuration)

    def check(self, configuration: Configuration) -> str | None:
        return self.impossible(configuration)

    def interrupt(self) -> None:
        self.interrupted = True

    def close(self) -> None: ...


@dataclass
class ScriptedDeployment:
    launcher: ScriptedLauncher
    configuration: Configuration
    source: str = "simulated"

    @property
    def commands(self) -> list[dict[str, object]]:
        return [{"role": "engine", "argv": ["serve", self.configuration.key], "env": {}}]

    @property
    def facts(self) -> Mapping[str, object]:
        return {"engine": "scripted"}

    def __enter__(self) -> Self:
        self.launcher.entered.append(self.configuration.key)
        self.carried = self.launcher.capacity(self.configuration)
        self.launcher.open += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.launcher.open -= 1

    def drive(self, plan: LevelPlan) -> LevelData:
        if self.launcher.interrupt_after is not None and len(self.launcher.plans) >= self.launcher.interrupt_after:
            raise Interrupted("scripted")
        self.launcher.plans.append((self.configuration.key, plan))
        load = plan.rate_rps if plan.rate_rps is not None else float(plan.concurrency or 1)
        fine = load <= self.carried
        ttft_s = 0.1 if fine else 100.0
        n = plan.min_requests
        gap_s = 1 / load
        records = tuple(_record(index, index * gap_s, ttft_s) for index in range(n))
        return LevelData(
            plan=plan,
            records=records,
            window_start_s=0.0,
            window_s=n * gap_s,
            realised_rps=load,
            stopped="" if fine or not plan.stop_early or not plan.slo.limits else "slo",
            stop_detail="" if fine or not plan.slo.limits else plan.slo.limits[0].name,
            counters={"level_seconds": self.launcher.level_s},
        )


def _record(index: int, at_s: float, ttft_s: float) -> Record:
    first = at_s + ttft_s
    return Record(
        id=str(index),
        scheduled_s=at_s,
        sent_s=at_s,
        first_token_s=first,
        last_token_s=first + 0.09,
        asked_input_tokens=100,
        input_tokens=100,
        asked_output_tokens=10,
        output_tokens=10,
        token_source="usage",
        chunks=tuple((first + 0.01 * k, 1) for k in range(10)),
        status="ok",
        error=None,
        phase="measured",
    )
