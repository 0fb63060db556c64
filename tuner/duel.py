"""The gate's sessions: challenger and incumbent started anew by turns, each at one load, until it is decided."""

import math
import time
from dataclasses import dataclass, field

from tuner import gate
from tuner.deployment import Launcher
from tuner.errors import ConfigurationFailed, InfrastructureFailed
from tuner.events import LevelEnded, LevelStarted, Listener, Note, TrialStarted
from tuner.gate import Evidence, Pair
from tuner.ledger import Ledger
from tuner.level import closed_loop, measure, plan, unit
from tuner.load.plan import LevelData
from tuner.outcome import Level, Outcome
from tuner.slo import Objective

#: Sessions that may be lost for want of infrastructure, or because the incumbent fails, before there is no verdict.
MOST_LOST = 3
#: Seeds of the pairs begin so far above the study's, beyond those of its verification.
_SEEDS = 500


@dataclass
class Duel:
    """
    Measures pairs of sessions, and stores their levels in the study's ledger.

    Args:
        objective: SLO, workload and gate.
        launcher: Where to deploy.
        ledger: Of the night's study, locked by the caller.
        seed: Of the study.
        listen: Called with progress.
    """

    objective: Objective
    launcher: Launcher
    ledger: Ledger
    seed: int
    listen: Listener
    pairs: list[Pair] = field(default_factory=list)
    lost: int = 0

    def fight(self, challenger: tuple[Outcome, float], incumbent: tuple[Outcome, float]) -> Evidence:
        """
        Measure pairs until the gain is shown, or given up.

        Args:
            challenger: Its trial, and the load at which it is tried.
            incumbent: Likewise.

        Raises:
            Interrupted: Somebody asked to stop, or the window has ended.
        """
        found = gate.evidence(self.pairs, self.objective.gate.confidence)
        while found.state == "open" and self.lost < MOST_LOST:
            turn = len(self.pairs) + self.lost
            order = [challenger, incumbent] if turn % 2 == 0 else [incumbent, challenger]
            kept = {each[0].trial: self._session(*each, turn) for each in order}
            mine, theirs = kept[challenger[0].trial], kept[incumbent[0].trial]
            if mine is None or theirs is None:
                self.lost += 1
                continue
            self.pairs.append(Pair(mine, theirs))
            found = gate.evidence(self.pairs, self.objective.gate.confidence)
            self.listen(Note(f"gate: pair {len(self.pairs)}: {found.confidence:.1%} sure"))
        return found

    def _session(self, outcome: Outcome, load: float, turn: int) -> bool | None:
        """Whether the load was kept; None = the session says nothing."""
        self.listen(TrialStarted(outcome.trial, turn + 1, outcome.configuration, baseline=False, phase="verify"))
        logs = self.ledger.logs(outcome.trial) / f"gate-{turn + 1}"
        begun = time.monotonic()
        level: Level | None = None

        def keep(level: Level, data: LevelData) -> Level:
            return self.ledger.append_level(outcome.trial, level, data)

        planned = plan(self.objective, number=1, seed=self.seed + _SEEDS + turn, load=load)
        try:
            with self.launcher.deployment(outcome.configuration, logs) as running:
                self.listen(LevelStarted(outcome.trial, 1, "verify", load, unit(self.objective)))
                level, _ = measure(running, planned, purpose="verify", keep=keep)
                self.listen(LevelEnded(outcome.trial, level, unit(self.objective)))
        except (ConfigurationFailed, InfrastructureFailed) as error:
            self.listen(Note(f"gate: trial {outcome.trial}: {error.reason}: {error.cause}", warning=True))
        finally:
            seconds = (
                time.monotonic() - begun if level is None else level.counters.get("level_seconds") or level.seconds
            )
            self.ledger.charge("gate", outcome.trial, unit_hours=outcome.units * seconds / 3600, seconds=seconds)
        return None if level is None else bool(level.kept)


def loads(objective: Objective, challenger: tuple[float, float], incumbent: tuple[float, float]) -> tuple[float, float]:
    """Loads of challenger and incumbent, as `gate.loads`; in a closed loop whole, rounded against the challenger."""
    mine, theirs = gate.loads(challenger, incumbent, objective.gate.min_gain)
    if closed_loop(objective):
        return float(math.ceil(mine)), float(max(1, math.floor(theirs)))
    return mine, theirs
