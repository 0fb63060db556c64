"""`tuner optimize`: open everything that a study needs, run it, and write down what it found."""

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tuner import (
    calibration,
    canary,
    conclusion,
    feasibility,
    levers,
    model,
    naming,
    objective_file,
    objective_text,
    objective_warnings,
    presets,
    provenance,
    result,
    space_file,
    transfer,
)
from tuner.backend import check_simulated, first_use, launcher_for, launcher_until, resolve
from tuner.budget import exceeded, fits, merged
from tuner.configuration import Configuration
from tuner.deployment import Launcher
from tuner.errors import InputError, Interrupted, StudyChanged, StudyFailed
from tuner.events import Listener, Note
from tuner.guard import Guard
from tuner.ledger import Ledger
from tuner.level import Keep
from tuner.load import tokenizer, traces
from tuner.load.plan import LevelData
from tuner.model import ModelFacts
from tuner.outcome import Level, Outcome
from tuner.report import words
from tuner.result import Gain, Status, Verified
from tuner.samplers import Proposals
from tuner.simulator.calibrated import Calibration
from tuner.slo import Objective
from tuner.space import Space
from tuner.study import Study
from tuner.tracking import Tracker
from tuner.transfer import Transfer
from tuner.units import Amount
from tuner.verification import Verification, sessions_seconds

RESULT = "result.json"
DATABASE = "optuna.db"


@dataclass(frozen=True)
class Request:
    """What the user asked for on the command line; None = as the objective file says."""

    slo: Path
    space: Path | None = None
    backend: str | None = None
    study: str | None = None
    runs: Path = Path("runs")
    trials: int | None = None
    budget: Amount | None = None
    parallel: int | None = None
    seed: int = 0
    ray: str | None = None
    mlflow: str | None = None  # tracking URI; "off" = none
    storage: str | None = None  # of Optuna; None = a file of the study
    warm_start: str | None = None  # a study, or `latest`; None = a cold start, or as the study was begun
    insist: bool = True  # nothing to be had from `warm_start` is an error


@dataclass(frozen=True)
class Inputs:
    """The files behind a request, read and checked."""

    objective: Objective
    space: Space
    facts: ModelFacts | None
    longest: int | None  # tokens of the longest request, input and output
    requests: int | None  # that the trace or prompts file holds; None = made up as they are needed
    backend: str  # simulated, local or ray
    calibration: Calibration | None = None  # of the simulator, for this model and device

    def fingerprints(self) -> dict[str, str]:
        """What a resume is compared with. Budgets may change; promises, traffic, prices and knobs may not."""
        parts = objective_text.fingerprint(self.objective)
        found = {**parts, "space": self.space.fingerprint, "backend": self.backend}
        if self.calibration is not None:
            found["calibration"] = provenance.fingerprint(calibration.as_json(self.calibration))
        return found


#: Makes a launcher for a study in a directory.
Launch = Callable[[Request, Inputs, Path], Launcher]


def read(request: Request) -> Inputs:
    """
    Read and check the files of a request.

    Raises:
        InputError: One of them is wrong, or the workload can never be served.
    """
    objective = objective_file.load(request.slo)
    budget = merged(objective, request.budget, request.trials)
    path = space_path(request.space) if request.space else Path(objective.search.space)
    objective = replace(objective, search=replace(objective.search, budget=budget, space=str(path)))
    facts = model.facts(objective.model)
    longest, requests = traffic(objective)
    space = space_file.load(path)
    if objective.baseline is not None:
        space.validate(objective.baseline, what=f"{objective.path}: baseline")
    problem = feasibility.workload_problem(objective, facts, longest=longest)
    problem = problem or feasibility.space_problem(space, objective)
    if problem is not None:
        raise InputError(f"{objective.path}: {problem}")
    backend = resolve(request.backend or objective.backend)
    if backend == "simulated":
        check_simulated(objective)
    fitted = calibration.find(request.runs, objective) if backend == "simulated" else None
    return Inputs(objective, space, facts, longest, requests, backend, fitted)


def optimize(request: Request, listen: Listener) -> tuple[Path, dict[str, object]]:
    """
    Run a study, or go on with one of the same name.

    Returns:
        Directory of the study, and the content of its `result.json`.

    Raises:
        InputError: Wrong input, or the study was begun with other inputs.
        StudyLocked: Another tuner works on it.
        Interrupted: Somebody asked to stop; `result.json` says so, and the same command goes on.
        StudyFailed: It cannot go on; `result.json` says so.
    """
    return run(request, read(request), listen)


def run(
    request: Request,
    inputs: Inputs,
    listen: Listener,
    *,
    always: Sequence[Configuration] = (),
    launch: Launch | None = None,
    stop_at: float = math.inf,
) -> tuple[Path, dict[str, object]]:
    """
    As `optimize`, on files that were read before.

    Args:
        request: What was asked for.
        inputs: The files behind it.
        listen: Called with progress.
        always: Configurations that are measured after the baseline, to capacity whatever they cost.
        launch: Makes the launcher; None = that of the backend.
        stop_at: Time (as of `time.time`) at which whatever runs is stopped, as if somebody had interrupted it.
    """
    ledger = _ledger(request, inputs)
    start = transfer.read(ledger)
    odd = objective_warnings.warnings(inputs.objective, rows=inputs.requests)
    for warning in odd + objective_warnings.of_space(inputs.objective, inputs.space):
        listen(Note(warning, warning=True))
    listen(Note(f"study {ledger.name}: {ledger.path}"))
    if (note := first_use(inputs.backend)) is not None:
        listen(Note(note))
    for line in words.warm_start(transfer.summary(start)):
        listen(Note(line))
    with ExitStack() as stack:
        stack.enter_context(ledger.lock())
        tracker = stack.enter_context(Tracker(request.runs, request.mlflow, ledger))
        launcher = stack.enter_context(launcher_until(stop_at, (launch or launcher_of)(request, inputs, ledger.path)))
        space = inputs.space
        proposals = Proposals(
            space,
            storage=request.storage or ledger.path / DATABASE,
            name=ledger.name,
            kind=inputs.objective.search.sampler,
            seed=int(ledger.study["seed"]),
        )
        study = Study(
            objective=inputs.objective,
            space=space,
            facts=inputs.facts,
            longest=inputs.longest,
            launcher=launcher,
            ledger=ledger,
            proposals=proposals,
            tracker=tracker,
            seed=int(ledger.study["seed"]),
            parallel=min(request.parallel or launcher.parallel, launcher.parallel),
            listen=listen,
            transfer=start,
            always=tuple(always),
        )
        if launcher.source == "live":
            study.guard = _guard(inputs, study)
        return ledger.path, Run(study, launcher, ledger, tracker, listen, inputs.backend).go()


def launcher_of(request: Request, inputs: Inputs, study: Path) -> Launcher:
    """The launcher of the request's backend."""
    return launcher_for(
        inputs.backend,
        inputs.objective,
        ray=request.ray,
        registry=study / "processes",
        calibration=inputs.calibration,
    )


def _guard(inputs: Inputs, study: Study) -> Guard:
    """The study's answer guard; the plain engine is one replica of the baseline that the tuner would choose itself."""
    objective, ledger = inputs.objective, study.ledger
    knobs = dict(feasibility.baseline(replace(objective, baseline=None), inputs.facts).knobs)
    knobs.pop("replicas", None)

    def charge(plain: Configuration, seconds: float) -> None:
        hours = plain.units * seconds / 3600
        ledger.charge("canary", 0, unit_hours=hours, seconds=seconds)
        study.charge(plain, hours)

    def make() -> canary.Questions:
        known = tokenizer.load(objective.model)
        return canary.questions(objective, known, seed=study.seed, longest=inputs.longest)

    return Guard(ledger, study.launcher, Configuration(knobs), make, charge, study.listen)


def traffic(objective: Objective) -> tuple[int | None, int | None]:
    """
    Tokens of the longest request, input and output, and how many requests there are in the trace or prompts file, which
    is read for it; no number of requests where they are made up.
    """
    rows = traces.read(objective.workload.source)
    if rows is None:
        return feasibility.longest_request(objective.workload), None
    return int((rows.input_tokens + rows.output_tokens).max()), len(rows)


def space_path(wanted: Path) -> Path:
    """A space file by path, or a shipped one by name."""
    return wanted if wanted.suffix in (".yaml", ".yml") else presets.space_path(str(wanted))


def _ledger(request: Request, inputs: Inputs) -> Ledger:
    now = dt.datetime.now(dt.UTC)
    name = request.study or f"{naming.slug(Path(inputs.objective.path).stem)}-{now:%Y%m%d-%H%M%S}"
    path = naming.study_directory(request.runs, name)
    text = objective_text.dump(inputs.objective)
    if not path.exists():
        start = _transfer(request, inputs)
        return Ledger.create(
            request.runs,
            name,
            objective_yaml=text,
            fingerprints=inputs.fingerprints(),
            seed=request.seed,
            source=_source(inputs),
            git_sha=provenance.git_sha(Path(inputs.objective.path).parent),
            extra={
                "space": inputs.space.name,
                "backend": inputs.backend,
                "warm_start": [each.study for each in start.sources],
            },
            files={transfer.FILE: transfer.as_json(start)} if start.wanted else {},
        )
    ledger = Ledger.open(path)
    changed = ledger.changed(inputs.fingerprints(), text)
    if changed:
        raise StudyChanged(
            f"--study {name}: it was begun with other inputs ({'; '.join(changed)}): "
            "a study keeps its SLO, workload, prices and space; give another --study, or the old files"
        )
    transfer.same(ledger, request.warm_start)
    return ledger


def _transfer(request: Request, inputs: Inputs) -> Transfer:
    """What a new study starts with."""
    if request.warm_start is None:
        return Transfer()
    today = transfer.Today(
        objective=inputs.objective,
        space=inputs.space,
        fingerprints=inputs.fingerprints(),
        source=_source(inputs),
        cpu=transfer.cpu_of(inputs.backend, inputs.objective),
        baseline=feasibility.baseline(inputs.objective, inputs.facts),
    )
    return transfer.plan(request.runs, request.warm_start, today, insist=request.insist)


def _source(inputs: Inputs) -> str:
    return "simulated" if inputs.backend == "simulated" else "live"


@dataclass
class Run:
    study: Study
    launcher: Launcher
    ledger: Ledger
    tracker: Tracker
    listen: Listener
    backend: str

    def go(self) -> dict[str, object]:
        try:
            self.study.search()
            done = self.ledger.read_json(RESULT)
            if done is not None and done["status"] in ("winner", "no_gain", "no_feasible") and not self.study.measured:
                self.listen(Note("nothing is left to measure: the budget of this study is spent; raise it to go on"))
                return dict(done)
            return self._conclude()
        except (Interrupted, KeyboardInterrupt) as stop:
            self._write("interrupted", {}, None, None)
            slo, runs = self.study.objective.path, self.ledger.path.parent
            trials = self.study.budget.trials
            raise Interrupted(
                "interrupted; everything that was started is gone and what was measured is kept; go on with: "
                f"tuner optimize --slo {slo} --study {self.ledger.name} --runs {runs} --backend {self.backend}"
                + ("" if trials is None else f" --trials {trials}")
            ) from stop
        except StudyFailed as error:
            self._write("failed", {}, None, None, warnings=[str(error)])
            raise

    def _conclude(self) -> dict[str, object]:
        objective = self.study.objective
        outcomes = self.study.outcomes()
        chosen = self._chosen(outcomes)
        self.listen(
            Note(f"search ended ({self.study.ended_by}); measuring {len(chosen)} trials again on fresh schedules")
        )
        verified = Verification(
            objective=objective,
            launcher=self.launcher,
            seed=self.study.seed,
            keeper=self._keeper,
            logs=self._logs,
            charge=self._charge,
            weigh=lambda outcome: conclusion.weight(objective, outcome.configuration),
            listen=self.listen,
            expired=lambda: exceeded(objective.search.budget, self.study.spent()) is not None,
            check=None if self.study.guard is None else self.study.guard.check,
            matched={0, *(outcome.trial for outcome in levers.representatives(objective, outcomes))},
        ).run(chosen)
        decision = conclusion.decide(objective, outcomes, verified)
        return self._write(decision.status, verified, decision.gain, decision.winner)

    def _chosen(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The finalists, and the best with each mode and each store as far as the budget carries them too."""
        objective = self.study.objective
        chosen = conclusion.finalists(objective, outcomes)
        for outcome in levers.representatives(objective, outcomes):
            wanted = [*chosen, outcome]
            cost = (self.study.held(each, sessions_seconds(objective, each)) for each in wanted)
            if outcome not in chosen and fits(objective.search.budget, self.study.spent(), *cost):
                chosen = wanted
        return chosen

    def _keeper(self, outcome: Outcome) -> Keep:
        def keep(level: Level, data: LevelData) -> Level:
            return self.ledger.append_level(outcome.trial, level, data)

        return keep

    def _logs(self, outcome: Outcome, session: int) -> Path:
        return self.ledger.logs(outcome.trial) / f"verify-{session}"

    def _charge(self, outcome: Outcome, seconds: float) -> None:
        hours = outcome.units * seconds / 3600
        self.ledger.charge("verify", outcome.trial, unit_hours=hours, seconds=seconds)
        self.study.charge(outcome.configuration, hours)

    def _warm_start(self, outcomes: Sequence[Outcome]) -> Mapping[str, object] | None:
        """What came from earlier studies; how much of it the sampler heard is known once the baseline ran."""
        base = next((outcome for outcome in outcomes if outcome.trial == 0), None)
        return transfer.summary(self.study.transfer, base)

    def _write(
        self,
        status: Status,
        verified: Mapping[int, Verified],
        gain: Gain | None,
        winner: int | None,
        *,
        warnings: list[str] | None = None,
    ) -> dict[str, object]:
        outcomes = self.study.outcomes()
        spent = self.ledger.spent()
        rejected = self.ledger.rejected()
        found = result.assemble(
            self.study.objective,
            self.ledger.name,
            self.ledger.outcomes(),
            verified,
            gain,
            status,
            {"gpu_hours": spent.unit_hours, "wall_s": self.study.spent().wall_s, "requests": spent.requests},
            self.launcher.source,
            next((outcome.facts for outcome in outcomes if outcome.facts), {}),
            winner=winner,
            warnings=warnings or [],
            rejected=rejected,
            ended_by=self.study.ended_by,
            warm_start=self._warm_start(outcomes),
        )
        self.ledger.write_json(RESULT, found)
        self.tracker.note()
        return found
