"""
`tuner nightly`: measure the incumbent again, compare it with its history, look for something better, gate, promote.

One run is one night. What it measures is an ordinary study whose baseline is the incumbent; the engine's defaults are
measured right after it. Nothing is promoted but by replacing `incumbent.json`, once, when everything is decided.
"""

import contextlib
import datetime as dt
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tuner import (
    carried,
    compared,
    doctor,
    lock,
    nightfigures,
    nightfile,
    nightgate,
    optimize,
    provenance,
    result,
)
from tuner.backend import launcher_until
from tuner.carried import Carried
from tuner.duel import Rival, Sessions
from tuner.errors import InputError, Interrupted, StudyFailed, StudyLocked, TunerError
from tuner.events import Listener, NightStep, Note
from tuner.ledger import Ledger
from tuner.nightfile import Incumbent, Night, Status
from tuner.nightgate import Decision
from tuner.nightplan import TUNING, NightRequest, Prepared, known_load, prepare, warm_start
from tuner.optimize import Inputs, Launch
from tuner.outcome import Level, Outcome
from tuner.report import nightpage
from tuner.runfiles import writing
from tuner.tracking import mark_incumbent

#: Seeds of two nights lie so far apart that no schedule of one is used in the other.
_SEEDS = 1000
#: Verdicts that are told as `regressed` where nothing was promoted.
ALARMS = ("regression", "drift")


def nightly(
    request: NightRequest, listen: Listener, *, launch: Launch | None = None
) -> tuple[Night, tuple[Night, ...]]:
    """
    Run one night to its end.

    Returns:
        The night, and those before it.

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
    with writing(prepared.folder):
        prepared.folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.Lock(prepared.folder, nightfile.LOCK, remedy="wait for it or stop it"))
        except StudyLocked as error:
            raise StudyLocked(f"another night of {prepared.name} is running: {error}") from error
        prepared = prepare(request, dt.datetime.now().astimezone())  # what the night before us wrote until it let go
        return _Run(request, prepared, listen, launch).go(), prepared.nights


@dataclass
class _Run:
    request: NightRequest
    prepared: Prepared
    listen: Listener
    launch: Launch | None
    night: Night = field(init=False)
    inputs: Inputs = field(init=False)  # with the incumbent as baseline

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
            promised={limit.name: limit.threshold_s for limit in inputs.objective.slo.limits},
            window={"until": None if prepared.until is None else prepared.until.isoformat()},
        )
        self._save()
        self.listen(Note(f"night {self.night.number} of {prepared.name}; the incumbent: {prepared.incumbent_is}"))
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
        wall = [each for each in (search.budget.wall_s, TUNING * left_s) if each is not None and each != math.inf]
        budget = replace(search.budget, wall_s=min(wall, default=None))
        objective = replace(
            prepared.inputs.objective,
            baseline=dict(prepared.incumbent.configuration),
            search=replace(search, budget=budget, first_guess_rps=known_load(prepared) or search.first_guess_rps),
        )
        self.inputs = replace(prepared.inputs, objective=objective)
        self.asked = replace(
            self.request.study_request(),
            study=self.night.study,
            seed=self.night.seed,
            backend=self.night.backend,
            warm_start=warm_start(prepared.nights),
            insist=False,
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
        self._repeat()
        self.listen(NightStep("measured"))

    def _read(self) -> None:
        """Figures of the night from its ledger: whatever was measured, and nothing else."""
        objective = self.inputs.objective
        self.result: Mapping[str, object] = self.ledger.read_json(optimize.RESULT) or {}
        self.outcomes = {each.trial: each for each in result.last_attempts(self.ledger.outcomes())}
        self.carried: dict[int, Carried | None] = {
            entry.number: carried.carried(entry.levels(), carried.RUNS * objective.gate.noise)
            for entry in self.ledger.trials()
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
        challenger = nightgate.challenger(self.outcomes, self.result)
        decision = self._gate(own, challenger)
        reason = decision.reason
        self._read()
        shown = None if challenger is None else self._figures(self.outcomes[challenger.trial])
        self.night = replace(self.night, challenger=shown, gain=decision.gain)
        self._save()
        self.listen(NightStep("decided"))
        alarm = f"{told.sentence}; " if told.verdict in ALARMS else ""
        if decision.promoted:
            self._promote(reason)
            return self._conclude("promoted", alarm + reason, warn=bool(alarm))
        if self.night.incumbent is not None and self.night.incumbent.capacity is None and challenger is None:
            return self._conclude("no_feasible", f"no configuration keeps the SLO; {reason}", warn=True)
        return self._conclude("regressed" if alarm else "kept", alarm + reason, warn=bool(alarm))

    def _gate(self, own: Outcome, challenger: Outcome | None) -> Decision:
        """Measured on a launcher of its own: the study's has ended, or was stopped by the end of the window."""
        if challenger is None:
            return nightgate.nobody(self.result, over=self._over())
        mine, theirs = (challenger, self.carried[challenger.trial]), (own, self.carried[0])
        rivals = nightgate.rivals(self.inputs.objective, mine, theirs)
        if not rivals.worth_it:
            return nightgate.without_sessions(rivals)
        try:
            with self._sessions() as sessions:
                evidence = sessions.fight(
                    Rival(challenger, rivals.weights[0], self._levels(challenger)),
                    Rival(own, rivals.weights[1], self._levels(own)),
                )
        except Interrupted:
            if not self._over():
                raise
            return nightgate.cut_short(rivals)
        self._read()
        mine, theirs = (challenger, self.carried[challenger.trial]), (own, self.carried[0])
        return nightgate.decided(nightgate.rivals(self.inputs.objective, mine, theirs), evidence, len(sessions.pairs))

    @contextlib.contextmanager
    def _sessions(self) -> Iterator[Sessions]:
        """On a launcher of their own: the study's is gone."""
        make = self.launch or optimize.launcher_of
        launcher = make(self.asked, self.inputs, self.ledger.path)
        with self.ledger.lock(), launcher_until(self.prepared.stop_at, launcher) as running:
            yield Sessions(self.inputs.objective, running, self.ledger, self.night.seed, self.listen)

    def _levels(self, outcome: Outcome) -> list[Level]:
        return self.ledger.trial(outcome.trial).levels()

    def _repeat(self) -> None:
        """Further sessions of incumbent and defaults; without a level that was broken there is no load to aim at."""
        known = [trial for trial, found in self.carried.items() if found is not None and found.spread is not None]
        wanted = [each for each in self.outcomes.values() if each.trial in known and self._remeasured(each)]
        if not wanted or self._over() or not self.inputs.objective.gate.sessions:
            return
        try:
            with self._sessions() as sessions:
                rivals = [Rival(each, 1.0, self._levels(each)) for each in wanted]
                sessions.repeat(rivals, self.inputs.objective.gate.sessions)
        except Interrupted:
            if not self._over():
                raise
        self._read()

    def _remeasured(self, outcome: Outcome) -> bool:
        return outcome.trial == 0 or outcome.configuration == self.prepared.defaults

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
        """
        Write the night down.

        A disk that is full must not turn the real reason into another one, and whatever fails after a promotion does
        not undo it: such a night stays as it was begun, and is settled when the next one begins.
        """
        self.night = replace(self.night, status=status, reason=reason, ended=provenance.now())
        if status in ("failed", "interrupted"):
            with contextlib.suppress(TunerError):
                deployed = nightfile.incumbent(self.prepared.folder)
                if deployed is None or deployed.since_night != self.night.number:
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
        try:
            found = nightfile.incumbent(self.prepared.folder)
            study = found.study if found is not None and found.study else self.night.study
            trial = found.trial if found is not None and found.trial is not None else 0
            mark_incumbent(self.request.runs, self.request.mlflow, self.prepared.name, study, trial)
        except Exception as error:  # noqa: BLE001  (tracking never harms a night)
            self.listen(Note(f"tracking: {error}", warning=True))

    def _save(self) -> None:
        nightfile.write_night(self.prepared.folder, self.night)

    def _over(self) -> bool:
        return time.time() >= self.prepared.stop_at
