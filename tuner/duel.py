"""
Sessions of a night beside its study: two deployments started anew by turns, each at one load.

The gate's go on until it is decided which is cheaper; those that know a cost better end after a number.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner import carried, gate
from tuner.deployment import Launcher
from tuner.errors import ConfigurationFailed, InfrastructureFailed
from tuner.events import LevelEnded, LevelStarted, Listener, Note, TrialStarted
from tuner.gate import Evidence, Pair
from tuner.ledger import Ledger
from tuner.level import closed_loop, measure, plan, unit
from tuner.load.plan import LevelData
from tuner.outcome import Level, Outcome
from tuner.slo import Objective
from tuner.verification import planned_requests

#: Sessions that may be lost for want of infrastructure, or because the incumbent fails, before there is no verdict.
MOST_LOST = 3
#: Seeds of the pairs, and of repeats, begin so far above the study's, beyond those of its verification.
_SEEDS, _REPEATS = 500, 200


@dataclass(frozen=True)
class Rival:
    """One of the two."""

    outcome: Outcome
    weight: float  # cost = weight / load
    levels: list[Level]  # of this night; what the sessions measure is added


@dataclass
class Sessions:
    """
    Measures by turns, and stores their levels in the study's ledger.

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

    def fight(self, challenger: Rival, incumbent: Rival) -> Evidence:
        """
        Measure pairs until the gain is shown, or given up. Each pair's loads come from all that was measured before.

        Raises:
            Interrupted: Somebody asked to stop, or the window has ended.
        """
        found = gate.evidence(self.pairs, self.objective.gate.confidence)
        while found.state == "open" and self.lost < MOST_LOST:
            turn = len(self.pairs) + self.lost
            mine, theirs = self._loads(challenger, incumbent)
            order = [(challenger, mine), (incumbent, theirs)]
            kept = {each.outcome.trial: self._session(each, load, turn) for each, load in order[:: 1 - 2 * (turn % 2)]}
            won, held = kept[challenger.outcome.trial], kept[incumbent.outcome.trial]
            if won is None or held is None:
                self.lost += 1
                continue
            self.pairs.append(Pair(won, held))
            found = gate.evidence(self.pairs, self.objective.gate.confidence)
            self.listen(Note(f"gate: pair {len(self.pairs)}: {found.confidence:.1%} sure"))
        return found

    def repeat(self, rivals: Sequence[Rival], sessions: int) -> None:
        """
        Measure each at the load that it is estimated to carry, where a session says most.

        Raises:
            Interrupted: Somebody asked to stop, or the window has ended.
        """
        for turn in range(sessions):
            for each in rivals if turn % 2 == 0 else rivals[::-1]:
                found = load(self.objective, each.levels)
                self._session(
                    each, float(max(1, round(found))) if closed_loop(self.objective) else found, turn, _REPEATS
                )

    def _loads(self, challenger: Rival, incumbent: Rival) -> tuple[float, float]:
        """As `gate.loads`; in a closed loop whole ones, rounded against the challenger."""
        found = [(each.weight, load(self.objective, each.levels)) for each in (challenger, incumbent)]
        mine, theirs = gate.loads(found[0], found[1], self.objective.gate.min_gain)
        if closed_loop(self.objective):
            return float(math.ceil(mine)), float(max(1, math.floor(theirs)))
        return mine, theirs

    def _session(self, rival: Rival, load: float, turn: int, seeds: int = _SEEDS) -> bool | None:
        """Whether the load was kept; None = the session says nothing."""
        outcome = rival.outcome
        self.listen(TrialStarted(outcome.trial, turn + 1, outcome.configuration, baseline=False, phase="verify"))
        logs = self.ledger.logs(outcome.trial) / f"session-{seeds + turn + 1}"
        begun = time.monotonic()
        level: Level | None = None

        def keep(level: Level, data: LevelData) -> Level:
            return self.ledger.append_level(outcome.trial, level, data)

        wanted = planned_requests(self.objective)
        planned = plan(self.objective, number=1, seed=self.seed + seeds + turn, load=load, min_requests=wanted)
        try:
            with self.launcher.deployment(outcome.configuration, logs) as running:
                self.listen(LevelStarted(outcome.trial, 1, "verify", load, unit(self.objective)))
                level, _ = measure(running, planned, purpose="verify", keep=keep)
                self.listen(LevelEnded(outcome.trial, level, unit(self.objective)))
        except (ConfigurationFailed, InfrastructureFailed) as error:
            self.listen(Note(f"session of trial {outcome.trial}: {error.reason}: {error.cause}", warning=True))
        finally:
            seconds = (
                time.monotonic() - begun if level is None else level.counters.get("level_seconds") or level.seconds
            )
            self.ledger.charge("gate", outcome.trial, unit_hours=outcome.units * seconds / 3600, seconds=seconds)
        if level is None:
            return None
        rival.levels.append(level)
        return bool(level.kept)


def load(objective: Objective, levels: Sequence[Level]) -> float:
    """The load that the levels of a rival point at; of none that was kept, half the lowest that was tried."""
    found = carried.carried(levels, carried.RUNS * objective.gate.noise)
    return found.load if found is not None else min(level.offered for level in levels) / 2
