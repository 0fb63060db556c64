"""
`tuner nightly`: measure the incumbent again, compare it with its history, look for something better, gate, promote.

One run is one night. What it measures is an ordinary study whose baseline is the incumbent; the engine's defaults are
measured right after it. Nothing is promoted but by replacing `incumbent.json`, once, when everything is decided.
"""

import contextlib
import datetime as dt
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner import (
    carried,
    compared,
    conclusion,
    doctor,
    duel,
    feasibility,
    lock,
    nightfigures,
    nightfile,
    optimize,
    provenance,
    result,
    window,
)
from tuner.carried import Carried
from tuner.configuration import Configuration
from tuner.errors import InfrastructureFailed, InputError, Interrupted, StudyFailed, StudyLocked, TunerError
from tuner.events import Listener, NightStep, Note
from tuner.ledger import Ledger
from tuner.nightfile import Gain, Incumbent, Night, Status
from tuner.optimize import Inputs, Launch, Request
from tuner.outcome import Outcome
from tuner.report import nightpage
from tuner.tracking import mark_incumbent
from tuner.units import Amount

#: Share of the window that the tuning may use, its own verification included; the rest is the gate's and the clean-up's.
TUNING = 0.75
#: Seeds of two nights lie so far apart that no schedule of one is used in the other.
_SEEDS = 1000
#: Verdicts that are told as `regressed` where nothing was promoted.
ALARMS = ("regression", "drift")


@dataclass(frozen=True)
class NightRequest:
    """What the user asked for on the command line; None = as the objective file says."""

    slo: Path
    until: str | None = None
    budget: Amount | None = None
    space: Path | None = None
    backend: str | None = None
    runs: Path = Path("runs")
    trials: int | None = None
    ray: str | None = None
    mlflow: str | None = None


@dataclass(frozen=True)
class Prepared:
    """Everything that is known before anything is started."""

    inputs: Inputs
    name: str  # of the objective
    folder: Path
    stop_at: float  # as of `time.time`; infinite = no window
    until: dt.datetime | None
    defaults: Configuration
    incumbent: Incumbent
    nights: tuple[Night, ...]
    number: int


def prepare(request: NightRequest, now: dt.datetime) -> Prepared:
    """
    Read the files; nothing is written.

    Raises:
        InputError: A file is wrong, the workload has a fixed load, or the cluster would be simulated unasked.
        StudyFailed: The incumbent's file is damaged.
    """
    asked = Request(
        slo=request.slo,
        space=request.space,
        backend=request.backend,
        runs=request.runs,
        trials=request.trials,
        budget=request.budget,
    )
    inputs = optimize.read(asked)
    _check(request, inputs)
    until = None if request.until is None else window.until(request.until, now)
    name = nightfile.objective_name(request.slo)
    folder = nightfile.directory(request.runs, name)
    defaults = feasibility.baseline(replace(inputs.objective, baseline=None), inputs.facts)
    first = feasibility.baseline(inputs.objective, inputs.facts)
    told = "the objective file's baseline" if inputs.objective.baseline is not None else "the engine's defaults"
    deployed = nightfile.incumbent(folder)
    stamp = provenance.now()
    number = nightfile.next_number(folder)
    while (request.runs / nightfile.study_name(name, number)).exists():
        number += 1
    return Prepared(
        inputs=inputs,
        name=name,
        folder=folder,
        stop_at=_infinite() if until is None else until.timestamp(),
        until=until,
        defaults=defaults,
        incumbent=deployed or Incumbent(dict(first.knobs), 0, stamp, "", None, None, None, f"it is {told}"),
        nights=tuple(nightfile.settle(night, deployed, stamp) for night in nightfile.nights(folder)),
        number=number,
    )


def nightly(request: NightRequest, listen: Listener, *, launch: Launch | None = None) -> Night:
    """
    Run one night to its end.

    Args:
        request: What was asked for.
        listen: Called with progress.
        launch: Makes the launcher; None = that of the backend.

    Raises:
        InputError: Wrong input.
        StudyLocked: Another night of this objective runs.
        Interrupted: Somebody asked to stop; the night says so, and the incumbent is as it was.
        StudyFailed: Nowhere to write.
    """
    prepared = prepare(request, dt.datetime.now().astimezone())
    prepared.folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.Lock(prepared.folder, nightfile.LOCK))
        except StudyLocked as error:
            raise StudyLocked(f"another night of {prepared.name} is running: {error}") from error
        prepared = prepare(request, dt.datetime.now().astimezone())  # what the night before us wrote until it let go
        return _Run(request, prepared, listen, launch).go()


@dataclass
class _Run:
    request: NightRequest
    prepared: Prepared
    listen: Listener
    launch: Launch | None
    night: Night = field(init=False)

    def go(self) -> Night:
        for night in self.prepared.nights:
            nightfile.write_night(self.prepared.folder, night)
        self._begin()
        try:
            self._preflight()
            self._measure()
            return self._end()
        except (Interrupted, KeyboardInterrupt) as stop:
            self._conclude("interrupted", "somebody stopped it; the incumbent is as it was", warn=False)
            raise Interrupted(
                f"night {self.night.number} was interrupted; everything that was started is gone and the incumbent is "
                "as it was"
            ) from stop
        except TunerError as error:
            self._conclude("failed", str(error), warn=True)
            if isinstance(error, InputError):
                raise
            return self.night

    # -- steps ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        prepared, inputs = self.prepared, self.prepared.inputs
        self.night = Night(
            number=prepared.number,
            objective=prepared.name,
            study=nightfile.study_name(prepared.name, prepared.number),
            status="running",
            started=provenance.now(),
            seed=prepared.number * _SEEDS,
            backend=inputs.backend,
            source="simulated" if inputs.backend == "simulated" else "live",
            currency=inputs.objective.prices.currency,
            fingerprints=inputs.fingerprints(),
            versions=nightfigures.versions(inputs.objective, {}),
            window={"until": None if prepared.until is None else prepared.until.isoformat()},
        )
        self._save()
        self.listen(Note(f"night {self.night.number} of {prepared.name}: {prepared.incumbent.reason}"))
        self.listen(NightStep("begun"))

    def _preflight(self) -> None:
        """What the doctor says is missing ends the night before anything is started; tracking alone never does."""
        if self.night.source == "simulated" or self.launch is not None:
            return
        found = doctor.examine(self.request.slo, None, self.request.runs, ray=self.request.ray)
        missing = [check for check in found if check.status == "missing" and check.name != "tracking"]
        if missing:
            raise StudyFailed("; ".join(f"{check.name}: {check.found}; {check.remedy}" for check in missing))

    def _measure(self) -> None:
        """Incumbent, defaults and the search, in one study; the end of the window ends it with what is known."""
        prepared = self.prepared
        search = prepared.inputs.objective.search
        left_s = prepared.stop_at - time.time()
        wall = [each for each in (search.budget.wall_s, TUNING * left_s) if each is not None and each != _infinite()]
        budget = replace(search.budget, wall_s=min(wall, default=None))
        objective = replace(
            prepared.inputs.objective,
            baseline=dict(prepared.incumbent.configuration),
            search=replace(search, budget=budget),
        )
        self.inputs = replace(prepared.inputs, objective=objective)
        self.asked = Request(
            slo=self.request.slo,
            study=self.night.study,
            runs=self.request.runs,
            seed=self.night.seed,
            ray=self.request.ray,
            mlflow=self.request.mlflow,
            backend=self.night.backend,
        )
        try:
            optimize.run(
                self.asked,
                self.inputs,
                self.listen,
                always=(prepared.defaults,),
                launch=self.launch,
                stop_at=prepared.stop_at,
            )
        except Interrupted:
            if not self._over():
                raise
            self.listen(Note("the window has ended: what ran was stopped", warning=True))
        self.ledger = Ledger.find(self.request.runs, self.night.study)
        self._read()
        self.listen(NightStep("measured"))

    def _read(self) -> None:
        """Figures of the night from its ledger: whatever was measured, and nothing else."""
        objective = self.inputs.objective
        self.result: Mapping[str, object] = self.ledger.read_json(optimize.RESULT) or {}
        self.outcomes = {each.trial: each for each in result.last_attempts(self.ledger.outcomes())}
        self.carried: dict[int, Carried | None] = {
            entry.number: carried.carried(entry.levels(), objective.gate.noise) for entry in self.ledger.trials()
        }
        base = next((o for o in self.outcomes.values() if o.configuration == self.prepared.defaults), None)
        own = self.outcomes.get(0)
        facts = next((dict(each.facts) for each in self.outcomes.values() if each.facts), {})
        spent = self.ledger.spent()
        self.night = replace(
            self.night,
            incumbent=self._figures(own),
            baseline=self._figures(base),
            versions=nightfigures.versions(objective, facts),
            warm_start=dict(nightfigures.mapping(self.result.get("warm_start"))),
            spent={"gpu_hours": spent.unit_hours, "wall_s": spent.wall_s, "requests": spent.requests},
        )

    def _figures(self, outcome: Outcome | None) -> nightfile.Figures | None:
        if outcome is None:
            return None
        return nightfigures.figures(self.night.study, outcome, self.result, self.carried.get(outcome.trial))

    def _end(self) -> Night:
        """Compare, gate, promote."""
        own = self.outcomes.get(0)
        told = compared.compare(self.night, self.prepared.nights, self.inputs.objective.gate.noise)
        self.night = replace(self.night, comparison=told)
        self._save()
        self.listen(NightStep("compared"))
        if own is None or own.state == "infra_failed":
            why = "the window ended before it was measured" if own is None else f"{own.reason}: {own.cause}"
            return self._conclude("failed", f"nothing is known of the incumbent: {why}", warn=True)
        challenger = self._challenger()
        promoted, reason = self._gate(own, challenger)
        self._read()
        shown = None if challenger is None else self._figures(self.outcomes[challenger.trial])
        self.night = replace(self.night, challenger=shown)
        self._save()
        self.listen(NightStep("decided"))
        if promoted:
            self._promote(reason)
            return self._conclude("promoted", reason, warn=False)
        if self.night.incumbent is not None and self.night.incumbent.capacity is None and challenger is None:
            return self._conclude("no_feasible", f"no configuration keeps the SLO; {reason}", warn=True)
        status: Status = "regressed" if told.verdict in ALARMS else "kept"
        alarm = f"{told.sentence}; " if status == "regressed" else ""
        return self._conclude(status, alarm + reason, warn=status == "regressed")

    def _challenger(self) -> Outcome | None:
        """The best trial that the study verified and that is not the incumbent; None = there is none."""
        for row in nightfigures.rows(self.result):
            outcome = self.outcomes.get(int(row["trial"]))
            if outcome is not None and outcome.trial != 0 and row["state"] == "feasible" and row["verified"]:
                return outcome
        return None

    def _gate(self, own: Outcome, challenger: Outcome | None) -> tuple[bool, str]:
        """Whether the challenger is promoted, and why or why not."""
        if challenger is None:
            if self._over():
                return False, "the window ended before a challenger was verified"
            return False, "no challenger was verified as feasible"
        mine, theirs = self.carried[challenger.trial], self.carried[0]
        if theirs is None:
            return True, f"trial {challenger.trial} keeps the SLO, verified; the incumbent keeps it at no load"
        assert mine is not None  # noqa: S101  (a feasible trial kept a level)
        rule = self.inputs.objective.gate
        weights = [conclusion.weight(self.inputs.objective, each.configuration) for each in (challenger, own)]
        estimate = 1 - weights[0] / mine.load / (weights[1] / theirs.load)
        name = f"trial {challenger.trial}"
        if estimate <= rule.min_gain:
            return (
                False,
                f"{name}, the best challenger, is {_than(estimate)} the incumbent; {rule.min_gain:.1%} is asked for",
            )
        try:
            found, pairs = self._duel((challenger, weights[0], mine), (own, weights[1], theirs))
        except Interrupted:
            if not self._over():
                raise
            return False, f"{name} looks {_than(estimate)} the incumbent, but the window ended before the gate decided"
        proven = found.state == "proven"
        self.night = replace(
            self.night,
            gain=Gain(
                estimate=estimate,
                lower=rule.min_gain if proven else None,
                confidence=found.confidence,
                sessions=2 * pairs,
                min_gain=rule.min_gain,
                asked=rule.confidence,
                proven=proven,
            ),
        )
        more = f"cheaper by more than {rule.min_gain:.1%}"
        if proven:
            return True, (
                f"{name} is {more} than the incumbent ({found.confidence:.2%} sure, {2 * pairs} sessions by turns; "
                f"estimate {estimate:.1%})"
            )
        return False, (
            f"{name} looked {_than(estimate)} the incumbent, but {2 * pairs} sessions by turns did not show that it is "
            f"{more} ({found.confidence:.1%} sure, {rule.confidence:.1%} is asked for)"
        )

    def _duel(
        self, challenger: tuple[Outcome, float, Carried], incumbent: tuple[Outcome, float, Carried]
    ) -> tuple[duel.Evidence, int]:
        objective = self.inputs.objective
        mine, theirs = duel.loads(objective, (challenger[1], challenger[2].load), (incumbent[1], incumbent[2].load))
        make = self.launch or optimize.launcher_of
        with (
            self.ledger.lock(),
            optimize.launcher_until(self.prepared.stop_at, make(self.asked, self.inputs, self.ledger.path)) as launcher,
        ):
            fight = duel.Duel(objective, launcher, self.ledger, self.night.seed, self.listen)
            return fight.fight((challenger[0], mine), (incumbent[0], theirs)), len(fight.pairs)

    def _promote(self, reason: str) -> None:
        found = self.night.challenger
        assert found is not None  # noqa: S101  (only a challenger is promoted)
        nightfile.write_incumbent(
            self.prepared.folder,
            Incumbent(
                configuration=found.configuration,
                since_night=self.night.number,
                since=provenance.now(),
                study=found.study,
                trial=found.trial,
                figures=found,
                gain=self.night.gain,
                reason=reason,
                fingerprints=self.night.fingerprints,
            ),
        )
        self.listen(NightStep("promoted"))

    # -- the end --------------------------------------------------------------------------------------------------

    def _conclude(self, status: Status, reason: str, *, warn: bool) -> Night:
        """Write the night down. A disk that is full must not turn the real reason into another one."""
        self.night = replace(self.night, status=status, reason=reason, ended=provenance.now())
        if status in ("failed", "interrupted"):
            with contextlib.suppress(TunerError):
                self._save()
        else:
            self._save()
            if status != "promoted" and self.prepared.incumbent.since_night == 0:
                self._keep_first()
        self.listen(NightStep("ended"))
        with contextlib.suppress(StudyFailed):
            nightpage.write(self.prepared.folder, self.night, self.prepared.nights)
        self._track()
        self.listen(Note(f"night {self.night.number}: {status}: {reason}", warning=warn))
        return self.night

    def _keep_first(self) -> None:
        """The incumbent that came with the objective file, once it was measured."""
        nightfile.write_incumbent(
            self.prepared.folder, replace(self.prepared.incumbent, fingerprints=self.night.fingerprints)
        )

    def _track(self) -> None:
        """Mark the incumbent's run in MLflow. Whatever goes wrong there is told and changes nothing."""
        found = nightfile.incumbent(self.prepared.folder)
        study = found.study if found is not None and found.study else self.night.study
        trial = found.trial if found is not None and found.trial is not None else 0
        try:
            mark_incumbent(self.request.runs, self.request.mlflow, self.prepared.name, study, trial)
        except Exception as error:  # noqa: BLE001  (tracking never harms a night)
            self.listen(Note(f"tracking: {error}", warning=True))

    def _save(self) -> None:
        nightfile.write_night(self.prepared.folder, self.night)

    def _over(self) -> bool:
        return time.time() >= self.prepared.stop_at


def _check(request: NightRequest, inputs: Inputs) -> None:
    objective = inputs.objective
    if inputs.backend == "simulated" and "simulated" not in (request.backend, objective.backend):
        raise InputError(
            f"{objective.path}: backend: got {objective.backend!r}: no GPU was found, and a night on the simulated cluster "
            "must be asked for: give --backend simulated, or write backend: simulated"
        )
    if objective.workload.load.kind != "find_capacity":
        raise InputError(
            f"{objective.path}: workload.load: got a fixed {objective.workload.load.kind}: a night compares costs at the "
            "highest load that is kept; write load: find_capacity"
        )


def _than(estimate: float) -> str:
    return f"{abs(estimate):.1%} {'cheaper' if estimate > 0 else 'dearer'} than"


def _infinite() -> float:
    return float("inf")
