"""What a night will do, known before anything is started: `tuner nightly --dry-run`, and what the run begins with."""

import datetime as dt
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tuner import feasibility, gate, lock, nightfile, optimize, preview, provenance, window
from tuner.configuration import Configuration
from tuner.errors import InputError
from tuner.level import closed_loop
from tuner.nightfile import Incumbent, Night
from tuner.optimize import Inputs, Request
from tuner.report.text import count, duration
from tuner.units import Amount

#: Share of the window that the tuning may use, its own verification included; the rest is the gate's.
TUNING = 0.75


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

    def study_request(self) -> Request:
        """The request of the night's study, as far as the command line says it."""
        return Request(
            slo=self.slo,
            space=self.space,
            backend=self.backend,
            runs=self.runs,
            trials=self.trials,
            budget=self.budget,
            ray=self.ray,
            mlflow=self.mlflow,
        )


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
    incumbent_is: str  # where it comes from, in words
    nights: tuple[Night, ...]
    number: int


def prepare(request: NightRequest, now: dt.datetime) -> Prepared:
    """
    Read the files; nothing is written.

    Raises:
        InputError: A file is wrong, the workload has a fixed load, or the cluster would be simulated unasked.
        StudyFailed: The incumbent's file is damaged.
    """
    if request.runs.exists() and not request.runs.is_dir():
        raise InputError(f"--runs: got {request.runs}: is no directory")
    inputs = optimize.read(request.study_request())
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
        stop_at=math.inf if until is None else until.timestamp(),
        until=until,
        defaults=defaults,
        incumbent=deployed or Incumbent(dict(first.knobs), 0, stamp, "", None, None, None, f"it is {told}"),
        incumbent_is=f"it is {told}" if deployed is None else _origin(deployed, inputs, first, folder),
        nights=tuple(nightfile.settle(night, deployed, stamp) for night in nightfile.nights(folder)),
        number=number,
    )


def _origin(deployed: Incumbent, inputs: Inputs, first: Configuration, folder: Path) -> str:
    """Where an incumbent comes from, and that the objective file now says something else."""
    since = (
        "it came with the objective file" if deployed.since_night == 0 else f"promoted in night {deployed.since_night}"
    )
    if inputs.objective.baseline is None or dict(first.knobs) == dict(deployed.configuration):
        return since
    return (
        f"{since}; `baseline` of the objective file is not used: remove {folder / nightfile.INCUMBENT} to begin from it"
    )


def known_load(prepared: Prepared) -> float | None:
    """
    Load that the incumbent carried when it was measured last, requests/s; None where nobody knows or in a closed loop.

    A search that begins there needs few levels to see one load kept and another broken.
    """
    if closed_loop(prepared.inputs.objective):
        return None
    for night in reversed(prepared.nights):
        for figures in (night.challenger, night.incumbent):
            if figures is not None and figures.configuration == prepared.incumbent.configuration and figures.capacity:
                return figures.capacity
    return None


def _check(request: NightRequest, inputs: Inputs) -> None:
    objective = inputs.objective
    if inputs.backend == "simulated" and "simulated" not in (request.backend, objective.backend):
        raise InputError(
            f"{objective.path}: backend: got {objective.backend!r}: no GPU was found, and a night on the simulated "
            "cluster must be asked for: give --backend simulated, or write backend: simulated"
        )
    if objective.workload.load.kind != "find_capacity":
        raise InputError(
            f"{objective.path}: workload.load: got a fixed {objective.workload.load.kind}: a night compares costs at "
            "the highest load that is kept; write load: find_capacity"
        )


@dataclass(frozen=True)
class Plan:
    """What would happen; `--dry-run --json`."""

    objective: str
    night: int
    study: str
    backend: str
    incumbent: dict[str, object]
    incumbent_is: str  # where it comes from
    running: bool  # another night of the objective runs at this moment
    defaults: dict[str, object]
    nights: int  # before this one
    warm_start: str | None  # study whose trials are used
    trials: int | None
    tuning_s: float  # incumbent, defaults, search and verification, by the assumptions of `tuner check`
    gate_s: float  # where a challenger is worth it: every pair of sessions that the gate may take
    until: str | None
    window_s: float | None
    fits: bool  # the estimate, without the gate, fits in the window


def plan(request: NightRequest) -> Plan:
    """
    Raises:
        InputError: A file is wrong.
        StudyFailed: The incumbent's file is damaged.
    """
    prepared = prepare(request, dt.datetime.now().astimezone())
    objective = prepared.inputs.objective
    found = preview.preview(request.study_request())
    session_s = (0.0 if prepared.inputs.backend == "simulated" else preview.START_S) + (
        objective.workload.measure.warmup_s + objective.workload.measure.duration_s
    )
    left_s = None if prepared.until is None else prepared.stop_at - time.time()
    return Plan(
        objective=prepared.name,
        night=prepared.number,
        study=nightfile.study_name(prepared.name, prepared.number),
        backend=prepared.inputs.backend,
        incumbent=dict(prepared.incumbent.configuration),
        incumbent_is=prepared.incumbent_is,
        running=lock.is_held(prepared.folder, nightfile.LOCK),
        defaults=dict(prepared.defaults.knobs),
        nights=len(prepared.nights),
        warm_start=warm_start(prepared.nights),
        trials=found.trials,
        tuning_s=found.seconds,
        gate_s=2 * gate.fewest_pairs(objective.gate.confidence) * session_s,
        until=None if prepared.until is None else prepared.until.isoformat(),
        window_s=left_s,
        fits=left_s is None or prepared.inputs.backend == "simulated" or found.seconds <= TUNING * left_s,
    )


def text(found: Plan) -> str:
    """For people."""
    window_told = "no end is given (--until)"
    if found.window_s is not None:
        window_told = f"until {found.until}, in {duration(found.window_s)}; what runs then is stopped"
    virtual = " of virtual time" if found.backend == "simulated" else ""
    busy = "; ANOTHER NIGHT OF IT RUNS NOW" if found.running else ""
    lines = [
        f"night {found.night} of {found.objective}, on the {found.backend} backend; nothing was started{busy}",
        f"1 preflight   the lock, and what `tuner doctor` finds missing{_sim(found)}",
        f"2 measure     incumbent: {_shown(found.incumbent)} ({found.incumbent_is})",
        f"              defaults: {_shown(found.defaults)}",
        f"3 compare     with what counts of the {count(found.nights, 'night')} before",
        f"4 tune        study {found.study}, {found.trials or 'no limit of'} trials, "
        + (f"warm start from {found.warm_start}" if found.warm_start else "cold start"),
        f"5 gate        pairs of sessions where a challenger looks better: {duration(found.gate_s)} at the fewest",
        f"estimate      {duration(found.tuning_s)}{virtual} for 2 to 4"
        + ("" if found.fits else ": MORE than the window holds"),
        f"window        {window_told}",
    ]
    return "\n".join(lines)


def _sim(found: Plan) -> str:
    return " (left out: simulated)" if found.backend == "simulated" else ""


def _shown(knobs: dict[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(knobs.items())) or "engine defaults"


def warm_start(nights: tuple[Night, ...]) -> str | None:
    """Study of the last night that ended with a result; the transfer follows the chain of nights from there."""
    done = ("promoted", "kept", "regressed", "no_feasible")
    return next((night.study for night in reversed(nights) if night.status in done), None)
