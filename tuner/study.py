"""
Ask, measure, tell: the loop that ends with a decision.

Trial 0 is the baseline. Workers only measure; everything that decides (what to measure next, what Optuna hears, when
the budget ends) happens in one thread, from the ledger's outcomes alone, so a killed study goes on where it was.
"""

import math
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from tuner import budget as budgets
from tuner import cost, feasibility, levers
from tuner.budget import Spent
from tuner.conclusion import best, figure, value, weight
from tuner.configuration import Configuration
from tuner.deployment import Launcher
from tuner.errors import InputError, StudyFailed
from tuner.events import BudgetChanged, Listener, Note, TrialEnded, TrialStarted
from tuner.guard import Guard
from tuner.ledger import Ledger
from tuner.level import closed_loop, unit
from tuner.load.plan import LevelData
from tuner.model import ModelFacts
from tuner.outcome import Level, Outcome
from tuner.samplers import Proposal, Proposals, Told, derived_seed, told
from tuner.slo import Budget, Objective
from tuner.space import Space
from tuner.tracking import Tracker
from tuner.transfer import Earlier, Transfer
from tuner.trial import Task, run
from tuner.verification import estimated_seconds

#: Attempts of one trial, the first included, before its infrastructure failures are believed.
ATTEMPTS = 3
#: Trials in a row that may end as `infra_failed` before the study gives up.
FAILURES_IN_A_ROW = 3
#: Proposals in a row that may turn out known or impossible before the space is walked through instead.
USELESS_PROPOSALS = 50
#: Points of a space up to which it is walked through when proposals run dry.
WALKABLE = 20_000


@dataclass
class Study:
    """
    One study on one ledger.

    Args:
        objective: The objective file, resolved; its budget is the study's.
        space: The search space.
        facts: Of the model, for the static rules; None = unknown, and the rules that need them are skipped.
        longest: Tokens of the longest request, input and output; None = unknown.
        launcher: Where to deploy; the study interrupts it and never closes it.
        ledger: Locked by the caller.
        proposals: Optuna's side.
        tracker: Is told of every finished trial; never delays.
        seed: Of the study.
        parallel: Trials at once.
        listen: Called with progress, from several threads.
        transfer: What earlier studies gave.
        always: Measured right after the baseline, and to capacity whatever they cost.
        guard: Compares the answers of deployments; None where nothing is answered.
    """

    objective: Objective
    space: Space
    facts: ModelFacts | None
    longest: int | None
    launcher: Launcher
    ledger: Ledger
    proposals: Proposals
    tracker: Tracker
    seed: int
    parallel: int
    listen: Listener
    transfer: Transfer = field(default_factory=Transfer)
    always: tuple[Configuration, ...] = ()
    guard: Guard | None = None
    _outcomes: dict[int, Outcome] = field(default_factory=dict)
    _by_key: dict[str, Outcome] = field(default_factory=dict)
    _running: dict[str, int] = field(default_factory=dict)
    _rejected: set[str] = field(default_factory=set)
    _open: dict[int, Proposal] = field(default_factory=dict)
    _redo: list[tuple[int, int, Configuration]] = field(default_factory=list)
    _inherited: bool = False
    _lost_in_a_row: int = 0
    _begun: float = 0.0
    _before: Spent = field(default_factory=Spent)
    _added: Spent = field(default_factory=Spent)
    ended_by: str = ""  # trials, wall, gpu-hours, currency or space
    measured: int = 0  # trials finished in this session

    @property
    def budget(self) -> Budget:
        return self.objective.search.budget

    def search(self) -> None:
        """
        Measure the baseline, then what Optuna proposes, until a budget ends.

        Raises:
            Interrupted: Somebody asked to stop; everything that was started is gone.
            StudyFailed: Too many infrastructure failures in a row, or nowhere to write.
            InputError: The cluster can never hold the baseline.
        """
        self._begun = time.monotonic()
        self._resume()
        self._search()

    # -- what was measured before ---------------------------------------------------------------------------------

    def _resume(self) -> None:
        entries = self.ledger.trials()
        for entry in entries:
            if entry.outcome is not None and not (entry.outcome.state == "infra_failed" and entry.attempt < ATTEMPTS):
                self._remember(entry.outcome)
            elif entry.configuration is not None:
                self._redo.append((entry.number, self.ledger.next_attempt(entry.number), entry.configuration))
        self._before = self._spent_before()
        finished = {number: self._told(outcome) for number, outcome in self._outcomes.items()}
        self._open = self.proposals.reconcile(finished, [number for number, _, _ in self._redo])
        known = self.proposals.known()
        for number, outcome in self._outcomes.items():
            if number not in known:
                self._add(outcome)
        if entries:
            self.listen(
                Note(f"resumed: {len(self._outcomes)} trials are measured, {len(self._redo)} begun and measured again")
            )

    def _spent_before(self) -> Spent:
        spent = self.ledger.spent()
        hourly = self.objective.cluster.pools[0].price_per_hour
        return Spent(0, spent.wall_s, spent.unit_hours, spent.unit_hours * hourly)

    def _best(self) -> Outcome | None:
        return best(self.objective, self.outcomes())

    # -- the loop -------------------------------------------------------------------------------------------------

    def _search(self) -> None:
        with ThreadPoolExecutor(max_workers=max(1, self.parallel), thread_name_prefix="trial") as pool:
            running: dict[Future[Outcome], tuple[int, Proposal | None]] = {}
            try:
                while True:
                    while len(running) < self._wanted() and (task := self._next(len(running))) is not None:
                        number, attempt, configuration, proposal = task
                        self._running[configuration.key] = number
                        running[pool.submit(self._measure, number, attempt, configuration)] = (number, proposal)
                    if not running:
                        return
                    for done in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                        _, proposal = running.pop(done)
                        self._finish(done.result(), proposal)
            except BaseException:
                self.launcher.interrupt()
                wait(running)
                raise

    def _wanted(self) -> int:
        """The baseline runs alone: everything after it starts from what it showed."""
        return self.parallel if 0 in self._outcomes else 1

    def _next(self, running: int) -> tuple[int, int, Configuration, Proposal | None] | None:
        """Number, attempt, configuration and proposal of the trial to start now; None when there is none."""
        if self._redo:
            number, attempt, configuration = self._redo.pop(0)
            return number, attempt, configuration, self._open.pop(number, None)
        self.ended_by = (
            budgets.ended(self.budget, self.spent(), running=running, verification=self._verification_cost()) or ""
        )
        if self.ended_by:
            return None
        taken = {*self._outcomes, *self._running.values()}
        number = max(taken, default=-1) + 1
        if number == 0:
            return 0, 1, self._baseline(), None
        found = self._propose()
        if found is None:
            self.ended_by = "space"
            return None
        configuration, proposal = found
        if proposal is not None:
            self.proposals.begin(proposal, number)
        return number, 1, configuration, proposal

    def _baseline(self) -> Configuration:
        """
        Trial 0.

        Raises:
            InputError: The cluster as it is can never hold it; nothing could be compared with it.
        """
        configuration = feasibility.baseline(self.objective, self.facts)
        if (unplaceable := self.launcher.check(configuration)) is not None:
            raise InputError(f"{self.objective.path}: baseline: {unplaceable}; name one that fits as `baseline:`")
        return configuration

    def _propose(self) -> tuple[Configuration, Proposal | None] | None:
        for configuration in self._first_points():
            if self._new(configuration):
                return configuration, None
        self._inherit()
        for _ in range(USELESS_PROPOSALS):
            proposal = self.proposals.ask()
            configuration = Configuration(dict(proposal.knobs))
            if configuration.key in self._by_key:
                self.proposals.tell(proposal.number, self._told(self._by_key[configuration.key]))
            elif configuration.key in self._running:
                self.proposals.forget(proposal)
            elif self._impossible(configuration):
                self.proposals.tell(proposal.number, Told(self._worst() or 0.0, dict.fromkeys(self._limits, 1.5)))
            else:
                return configuration, proposal
        return self._walk()

    def _first_points(self) -> Iterator[Configuration]:
        """What is measured before Optuna is asked: the best of earlier studies, then what the space itself names."""
        yield from self.always
        yield from (configuration for _, configuration in self.transfer.proposals)
        points = (self.space.validate(knobs) for knobs in self.space.first)
        yield from (point for point in points if point.key not in self.transfer.measured)

    def _inherit(self) -> None:
        """Tell Optuna what earlier studies measured; a session that goes on tells what was not told yet."""
        if self._inherited:
            return
        self._inherited = True
        told = self.proposals.inherited()
        for each in self._history():
            name = f"{each.study}/{each.outcome.trial}"
            if name not in told:
                self.proposals.add(each.outcome.configuration.knobs, self._told(each.outcome), inherited=name)

    def _history(self) -> tuple[Earlier, ...]:
        """Of earlier studies, as far as it holds for the engine that the baseline ran on."""
        return self.transfer.admitted(self._outcomes.get(0))

    def _walk(self) -> tuple[Configuration, None] | None:
        """The first point of a small space that nobody measured, in a seeded order."""
        size = self.space.size()
        if size is None or size > WALKABLE:
            return None
        points = [Configuration(dict(knobs)) for knobs in self.space.points()]
        points.sort(key=lambda point: derived_seed(self.seed, *point.key.encode()))
        for point in points:
            if self._new(point):
                return point, None
        return None

    def _new(self, configuration: Configuration) -> bool:
        """Neither measured, nor running, nor impossible."""
        known = configuration.key in self._by_key or configuration.key in self._running
        return not known and not self._impossible(configuration)

    def _impossible(self, configuration: Configuration) -> bool:
        """A static rule, or the cluster as it is, rejects it; listed once in the ledger."""
        if configuration.key in self._rejected:
            return True
        broken = feasibility.violations(configuration, self.objective, self.facts, longest=self.longest)
        reason = (broken[0].rule, broken[0].message) if broken else None
        if reason is None and (unplaceable := self.launcher.check(configuration)) is not None:
            reason = ("unplaceable", unplaceable)
        if reason is None:
            return False
        self._rejected.add(configuration.key)
        self.ledger.reject(configuration, *reason)
        return True

    # -- one trial ------------------------------------------------------------------------------------------------

    def _measure(self, number: int, attempt: int, configuration: Configuration) -> Outcome:
        while True:
            if self.guard is not None:
                self.guard.prepare(configuration)
            deployment = self.launcher.deployment(configuration, self.ledger.logs(number, attempt))
            self.ledger.begin(number, attempt, configuration, deployment.commands)
            self.listen(TrialStarted(number, attempt, configuration, baseline=number == 0))

            def keep(level: Level, data: LevelData) -> Level:
                full = self.launcher.source == "live" or number == 0
                return self.ledger.write_level(number, level, data, full=full)

            outcome = run(
                self._task(number, attempt, configuration),
                deployment,
                self.objective,
                keep=keep,
                listen=self.listen,
                expired=lambda: budgets.ended(Budget(wall_s=self.budget.wall_s), self.spent()) is not None,
                check=None if self.guard is None else self.guard.check,
            )
            self.ledger.write_commands(number, deployment.commands)
            self.ledger.finish(outcome)
            self.charge(configuration, outcome.unit_hours)
            if outcome.state != "infra_failed" or attempt >= ATTEMPTS or outcome.reason == "engine_missing":
                return outcome
            self.listen(Note(f"trial {number}: {outcome.reason}: {outcome.cause}; trying again", warning=True))
            attempt += 1

    def _task(self, number: int, attempt: int, configuration: Configuration) -> Task:
        judged = configuration not in self.always and not closed_loop(self.objective)
        bar = levers.to_beat(self.objective, configuration, self.outcomes()) if judged else None
        beat = None if bar is None else weight(self.objective, configuration) / bar
        first = beat or self._first(configuration)
        return Task(number, attempt, configuration, seed=self.seed, first=first, beat=beat)

    def _first(self, configuration: Configuration) -> float | None:
        """Load of the first level where nothing is to be beaten; None = from a probe of the running deployment."""
        best = self._best()
        if best is not None and best.capacity is not None:
            return best.capacity * configuration.units / best.units
        if self.objective.search.first_guess_rps is not None:
            return self.objective.search.first_guess_rps
        broken = [outcome.broken_at for outcome in self._outcomes.values() if outcome.broken_at is not None]
        return min(broken, default=None)

    def _finish(self, outcome: Outcome, proposal: Proposal | None) -> None:
        self._running.pop(outcome.configuration.key, None)
        self._remember(outcome)
        self.measured += 1
        if proposal is not None:
            self.proposals.tell(proposal.number, self._told(outcome))
        else:
            self._add(outcome)
        self.tracker.note()
        found = value(self.objective, outcome)
        shown = "" if found is None else figure(self.objective, found)
        self.listen(TrialEnded(outcome, found, best=outcome is self._best(), figure=shown, unit=unit(self.objective)))
        self.listen(BudgetChanged(budgets.used(self.budget, self.spent())))
        self._give_up(outcome)

    def _give_up(self, outcome: Outcome) -> None:
        if outcome.state != "infra_failed":
            self._lost_in_a_row = 0
            return
        self._lost_in_a_row += 1
        if outcome.reason == "engine_missing" or self._lost_in_a_row >= FAILURES_IN_A_ROW:
            raise StudyFailed(f"trial {outcome.trial}: {outcome.reason}: {outcome.cause}")

    # -- figures --------------------------------------------------------------------------------------------------

    def outcomes(self) -> list[Outcome]:
        """Of every finished trial, by number."""
        return [self._outcomes[trial] for trial in sorted(self._outcomes)]

    @property
    def _limits(self) -> tuple[str, ...]:
        names = tuple(limit.name for limit in self.objective.slo.limits)
        return names if self.objective.slo.attainment is None else (*names, "attainment")

    def _worst(self) -> float | None:
        outcomes = [*self._outcomes.values(), *(each.outcome for each in self._history())]
        values = [value(self.objective, outcome) for outcome in outcomes]
        return max((math.log(found) for found in values if found is not None), default=None)

    def _told(self, outcome: Outcome) -> Told:
        refused = outcome.broken_at or (outcome.best.offered if outcome.best else None)
        bound = weight(self.objective, outcome.configuration) / refused if refused else None
        return told(
            outcome, value=value(self.objective, outcome), bound=bound, limits=self._limits, worst=self._worst()
        )

    def _add(self, outcome: Outcome) -> None:
        """Tell Optuna of a point that it did not propose, where the space holds it."""
        if self.space.holds(outcome.configuration):
            self.proposals.add(outcome.configuration.knobs, self._told(outcome), trial=outcome.trial)

    def _remember(self, outcome: Outcome) -> None:
        self._outcomes[outcome.trial] = outcome
        if outcome.state != "infra_failed":
            self._by_key[outcome.configuration.key] = outcome

    def spent(self) -> Spent:
        """Of this session and all before it."""
        trials = sum(outcome.state != "infra_failed" for outcome in self._outcomes.values())
        wall_s = self._before.wall_s + time.monotonic() - self._begun
        return Spent(
            trials,
            wall_s,
            self._before.unit_hours + self._added.unit_hours,
            self._before.currency + self._added.currency,
        )

    def charge(self, configuration: Configuration, unit_hours: float) -> None:
        """Book what a deployment of this configuration has held."""
        hourly = cost.cost_per_hour(configuration, self.objective).total / max(1, configuration.units)
        self._added += Spent(unit_hours=unit_hours, currency=unit_hours * hourly)

    def _verification_cost(self) -> Spent | None:
        base = self._outcomes.get(0)
        if base is None or base.cost_per_hour is None:
            return None
        return self.held(base, estimated_seconds(self.objective, base))

    def held(self, outcome: Outcome, seconds: float) -> Spent:
        """What its deployment costs in so many seconds (of which a simulated one takes none)."""
        return Spent(
            wall_s=seconds if self.launcher.source == "live" else 0.0,
            unit_hours=outcome.units * seconds / 3600,
            currency=(outcome.cost_per_hour or 0.0) * seconds / 3600,
        )
