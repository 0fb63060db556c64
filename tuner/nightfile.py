"""
`runs/nightly/<objective>/`: the incumbent, and what each night found. Values, and how they are read and written.

    lock                      held while a night runs
    incumbent.json            replaced whole: the one place that says what is deployed, and since which night
    nights/0001/night.json    one night; `running` until it ends
    nights/0001/summary.txt, night.html

What a night measured lies in an ordinary study, `runs/<objective>-night-0001/`. Replacing `incumbent.json` is the
moment of a promotion: a night that was killed before it has promoted nothing, and one that was killed after it has.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from tuner import naming
from tuner.errors import InputError, StudyFailed
from tuner.runfiles import TornFileError, quarantine, read_json, write_json, writing
from tuner.slo import Scalar

FOLDER, NIGHTS = "nightly", "nights"
LOCK, INCUMBENT, NIGHT, SUMMARY, PAGE = "lock", "incumbent.json", "night.json", "summary.txt", "night.html"
SCHEMA = 1
#: Characters that a study's name adds to the objective's.
_ADDED = len("-night-0001")

Status = Literal["running", "promoted", "kept", "regressed", "no_feasible", "failed", "interrupted"]
Verdict = Literal["new", "stable", "regression", "drift", "improved", "workload_changed", "unmeasured"]


@dataclass(frozen=True)
class Figures:
    """One configuration as one night measured it."""

    study: str
    trial: int
    configuration: Mapping[str, Scalar]
    units: int  # GPUs or CPU slots held
    state: str  # of the trial's outcome
    reason: str  # "" where it is feasible
    cost_per_hour: float | None
    cost: float | None  # currency per 1,000 good requests
    interval: tuple[float | None, float | None] | None  # of `cost`
    goodput_rps: float | None
    offered_rps: float | None
    attainment: float | None
    n: int | None  # requests behind the figures
    verified: bool
    tails: Mapping[str, float | None] = field(default_factory=dict)  # ttft_p99_ms, itl_p99_ms, … in milliseconds
    capacity: float | None = None  # load carried, from all levels of the night; requests/s or concurrent requests
    spread: float | None = None  # standard error of the logarithm of `capacity`


@dataclass(frozen=True)
class Comparison:
    """The incumbent's night against its nights before."""

    verdict: Verdict
    change: float | None  # of its cost as a share, > 0 is dearer; of drift: over all nights since it began
    low: float | None  # of `change`, at `confidence`
    high: float | None
    confidence: float
    nights: int  # nights that it was compared with
    since: int | None  # first night of the change
    noise: float | None  # standard deviation of one night's figure, as a share
    scope: Literal["", "incumbent", "both"] = ""  # `both`: the engine-default baseline moved as well
    causes: tuple[str, ...] = ()  # likely ones, most likely first
    sentence: str = ""


@dataclass(frozen=True)
class Gain:
    """The challenger over the incumbent, as a share of the incumbent's cost; > 0 is cheaper."""

    estimate: float | None
    lower: float | None  # bound at `confidence`
    confidence: float  # that the sessions reached
    sessions: int
    min_gain: float  # that the gate asks for
    asked: float  # confidence that the gate asks for
    proven: bool


@dataclass(frozen=True)
class Night:
    """`night.json`."""

    number: int
    objective: str  # name, as in the folder
    study: str  # where everything of this night was measured
    status: Status
    started: str  # UTC, ISO 8601
    seed: int
    backend: str
    source: str  # live or simulated
    currency: str
    fingerprints: Mapping[str, str]  # of model, slo, workload, engine, cluster, search, space
    versions: Mapping[str, str | None] = field(default_factory=dict)  # engine, driver, machine, model_revision, tuner
    ended: str | None = None
    incumbent: Figures | None = None  # as measured this night, before any promotion
    baseline: Figures | None = None  # the engine's defaults
    comparison: Comparison | None = None
    challenger: Figures | None = None
    gain: Gain | None = None
    reason: str = ""  # why it ended as it did: one sentence
    warm_start: Mapping[str, object] = field(default_factory=dict)  # where earlier trials came from, and how many
    spent: Mapping[str, float | None] = field(default_factory=dict)  # gpu_hours, wall_s, requests
    window: Mapping[str, object] = field(default_factory=dict)  # until, budget
    notes: tuple[str, ...] = ()
    promised: Mapping[str, float] = field(default_factory=dict)  # limits on tails, such as ttft_p95: seconds


@dataclass(frozen=True)
class Incumbent:
    """`incumbent.json`."""

    configuration: Mapping[str, Scalar]
    since_night: int  # that promoted it; 0 = it came with the objective file
    since: str  # UTC, ISO 8601
    study: str  # that proved it; "" where none did
    trial: int | None
    figures: Figures | None  # of its promotion
    gain: Gain | None
    reason: str
    fingerprints: Mapping[str, str] = field(default_factory=dict)


def objective_name(slo: Path) -> str:
    """Name of the folder, from the objective file's own name."""
    return naming.slug(naming.slug(slo.stem)[: naming.LONGEST - _ADDED])


def directory(runs: Path, name: str) -> Path:
    """Folder of one objective's nights; it need not exist."""
    return runs / FOLDER / naming.check_name(name)


def study_name(name: str, number: int) -> str:
    """Name of a night's study."""
    return f"{name}-night-{number:04d}"


def night_directory(folder: Path, number: int) -> Path:
    return folder / NIGHTS / f"{number:04d}"


def objectives(runs: Path) -> list[str]:
    """Names of objectives that have nights, sorted."""
    root = runs / FOLDER
    found = root.iterdir() if root.is_dir() else ()
    return sorted(each.name for each in found if (each / NIGHTS).is_dir() and naming.why_invalid(each.name) is None)


def nights(folder: Path) -> tuple[Night, ...]:
    """Every night, by number; damaged files are set aside with a warning."""
    root = folder / NIGHTS
    found = root.iterdir() if root.is_dir() else ()
    numbers = sorted(int(each.name) for each in found if each.name.isdecimal())
    read = (_night(night_directory(folder, number) / NIGHT) for number in numbers)
    return tuple(night for night in read if night is not None)


def unreadable(folder: Path) -> tuple[int, ...]:
    """Numbers of nights whose file was set aside as damaged."""
    root = folder / NIGHTS
    found = root.iterdir() if root.is_dir() else ()
    return tuple(
        sorted(
            int(each.name)
            for each in found
            if each.name.isdecimal() and not (each / NIGHT).exists() and any(each.glob(f"{NIGHT}*.corrupt"))
        )
    )


def next_number(folder: Path) -> int:
    """One above every night that was ever begun, damaged ones included."""
    root = folder / NIGHTS
    found = root.iterdir() if root.is_dir() else ()
    return max((int(each.name) for each in found if each.name.isdecimal()), default=0) + 1


def write_night(folder: Path, night: Night) -> Path:
    """
    Write or replace a night.

    Raises:
        StudyFailed: Nowhere to write.
    """
    path = night_directory(folder, night.number)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    write_json(path / NIGHT, {"schema": SCHEMA, **asdict(night)})
    return path


def incumbent(folder: Path) -> Incumbent | None:
    """
    What is deployed; None before the first night.

    Raises:
        StudyFailed: The file is damaged: nobody can say what is deployed, and guessing would promote by accident.
        InputError: A later version wrote it.
    """
    path = folder / INCUMBENT
    try:
        data = read_json(path)
    except FileNotFoundError:
        return None
    except TornFileError as error:
        raise StudyFailed(f"{error}; restore it from a copy, or remove it to begin from the objective file") from error
    try:
        _check_schema(path, data)
        made: Incumbent = _value(Incumbent, data, figures=_figures(data["figures"]), gain=_gain(data["gain"]))
    except (KeyError, TypeError) as error:
        raise StudyFailed(f"{path}: is no incumbent ({error}); restore it from a copy, or remove it") from error
    return made


def write_incumbent(folder: Path, found: Incumbent) -> None:
    """
    Replace the incumbent: the old one or the new one is there at any time, also after a power cut.

    Raises:
        StudyFailed: Nowhere to write; the old one stays.
    """
    write_json(folder / INCUMBENT, {"schema": SCHEMA, **asdict(found)})


def settle(night: Night, deployed: Incumbent | None, now: str) -> Night:
    """A night that never ended, as it must be read: promoted where the incumbent says so, else interrupted."""
    if night.status != "running":
        return night
    if deployed is not None and deployed.since_night == night.number:
        told = f"{deployed.reason}; the run was killed after the promotion"
        return replace(
            night, status="promoted", ended=now, challenger=deployed.figures, gain=deployed.gain, reason=told
        )
    return replace(night, status="interrupted", ended=now, reason="the run was killed; the incumbent is as it was")


def _night(path: Path) -> Night | None:
    try:
        data = read_json(path)
        _check_schema(path, data)
        compared = data["comparison"]
        made: Night = _value(
            Night,
            data,
            incumbent=_figures(data["incumbent"]),
            baseline=_figures(data["baseline"]),
            challenger=_figures(data["challenger"]),
            gain=_gain(data["gain"]),
            comparison=None
            if compared is None
            else _value(Comparison, compared, causes=tuple(compared.get("causes", ()))),
            notes=tuple(data.get("notes", ())),
        )
        if made.status not in get_args(Status):
            raise TypeError(f"status {made.status!r}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (TornFileError, KeyError, TypeError) as error:
        quarantine(path, str(error))
        return None
    return made


def _check_schema(path: Path, data: Any) -> None:
    if not isinstance(data, dict):
        raise TypeError("it holds no object")
    if data.get("schema") != SCHEMA:
        raise InputError(f"{path}: got schema {data.get('schema')!r}: this version reads {SCHEMA}; use a newer tuner")


def _figures(data: Mapping[str, Any] | None) -> Figures | None:
    if data is None:
        return None
    interval = data["interval"]
    made: Figures = _value(Figures, data, interval=None if interval is None else tuple(interval))
    return made


def _gain(data: Mapping[str, Any] | None) -> Gain | None:
    return None if data is None else _value(Gain, data)


def _value(kind: type[Any], data: Mapping[str, Any], **parsed: Any) -> Any:
    """`kind` from its fields in `data`; unknown keys are ignored, so that later versions' files can be read."""
    names = {each.name for each in fields(kind)}
    return kind(**{name: value for name, value in data.items() if name in names} | parsed)
