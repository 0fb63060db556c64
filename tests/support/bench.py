"""A study on scripted deployments: real ledger, real Optuna, no engine."""

from dataclasses import dataclass, field
from pathlib import Path

from support.scripted import ScriptedLauncher

from tuner.events import Event
from tuner.guard import Guard
from tuner.ledger import Ledger
from tuner.optimize import Run
from tuner.samplers import Proposals
from tuner.slo import Objective
from tuner.space import Knob, Space
from tuner.study import Study
from tuner.transfer import FILE, Transfer, as_json, read

#: 2 × 3 × 2 = 12 points; one GPU each, so that capacity alone decides.
SPACE = Space(
    name="small",
    knobs=(
        Knob("max_num_seqs", "categorical", options=(64, 256)),
        Knob("max_num_batched_tokens", "categorical", options=(512, 2048, 8192)),
        Knob("enable_prefix_caching", "categorical", options=(None, True)),
    ),
)


@dataclass
class Silent:
    """A tracker that only counts."""

    notes: int = 0

    def note(self) -> None:
        self.notes += 1


@dataclass
class Bench:
    """Everything of one study, opened as `optimize` opens it."""

    runs: Path
    objective: Objective
    launcher: ScriptedLauncher
    space: Space = SPACE
    seed: int = 7
    parallel: int = 1
    name: str = "s"
    transfer: Transfer = field(default_factory=Transfer)
    guard: Guard | None = None
    events: list[Event] = field(default_factory=list)

    def ledger(self) -> Ledger:
        path = self.runs / self.name
        if path.exists():
            return Ledger.open(path)
        return Ledger.create(
            self.runs,
            self.name,
            objective_yaml="currency: USD\n",
            fingerprints={},
            seed=self.seed,
            source="simulated",
            files={FILE: as_json(self.transfer)},
        )

    def go(self) -> dict[str, object]:
        """Run the study, or go on with it; returns `result.json`."""
        ledger = self.ledger()
        with ledger.lock():
            study = Study(
                objective=self.objective,
                space=self.space,
                facts=None,
                longest=None,
                launcher=self.launcher,
                ledger=ledger,
                proposals=Proposals(
                    self.space, storage=ledger.path / "optuna.db", name=self.name, kind="tpe", seed=self.seed, startup=4
                ),
                tracker=Silent(),
                seed=self.seed,
                parallel=self.parallel,
                listen=self.events.append,
                transfer=read(ledger),
                guard=self.guard,
            )
            return Run(study, self.launcher, ledger, Silent(), self.events.append, "simulated").go()
