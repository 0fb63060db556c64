"""
`runs/<study>/`: everything that a study did, append-only. The source of truth; tracking and reports only read it.

One writer, which holds `lock()`; any number of readers at any time. What is on disk survives any crash: files are
replaced whole, finished trials are never touched again, damaged files are set aside as `*.corrupt` and the trial they
belonged to counts as interrupted.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tuner import flat, lock, naming, provenance, studyfile, trialfiles
from tuner.configuration import Configuration
from tuner.errors import InputError, StudyFailed, TunerError
from tuner.load.plan import LevelData
from tuner.outcome import Level, Outcome
from tuner.records import Record
from tuner.runfiles import TornFileError, append_lines, quarantine, read_json, read_lines, write_json
from tuner.trialfiles import TrialEntry

if TYPE_CHECKING:
    import pandas as pd

CHARGES, REJECTED = "charges.jsonl", "rejected.jsonl"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Spent:
    """What a study has used so far, all attempts and sessions together."""

    trials: int  # finished outcomes of every kind but infra_failed
    unit_hours: float  # GPU-hours, or slot-hours of a CPU pool: failed and interrupted attempts and verification too
    wall_s: float  # over the sessions; of one that was killed, until it last wrote
    trial_s: float  # of all attempts (virtual time when simulated)
    requests: int  # sent, warm-up, drain and verification included


class Ledger:
    """One study on disk. Make it with `create`, `open` or `find`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing = threading.Lock()  # of study.json, for parallel trials

    @classmethod
    def create(
        cls,
        runs: Path,
        name: str,
        *,
        objective_yaml: str,
        fingerprints: Mapping[str, str],
        seed: int,
        source: str,
        versions: Mapping[str, str] | None = None,
        git_sha: str | None = None,
        extra: Mapping[str, object] | None = None,
        files: Mapping[str, object] | None = None,
    ) -> Self:
        """
        Begin a study. It appears under its name complete or not at all.

        Args:
            runs: Directory of all studies; made if missing.
            name: Checked by `naming.check_name`.
            objective_yaml: The resolved objective file.
            fingerprints: Of SLO, workload, space, engine …: what a resume is compared with.
            seed: Of the study.
            source: `live` or `simulated`.
            versions: None = those of this environment.
            git_sha: Commit of the tree that the study was started from, if any.
            extra: Further entries of `study.json`.
            files: Further JSON files at the study's top, by name.

        Raises:
            InputError: The name is invalid or taken.
            StudyFailed: `runs` cannot be written.
        """
        path = studyfile.create(
            naming.study_directory(runs, name),
            objective_yaml,
            {
                "fingerprints": dict(fingerprints),
                "versions": provenance.versions() if versions is None else dict(versions),
                "git_sha": git_sha,
                "seed": seed,
                "source": source,
                **(extra or {}),
            },
            files,
        )
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """
        The study in this directory.

        Raises:
            InputError: There is none, or a later version wrote it.
            StudyFailed: `study.json` is damaged.
        """
        studyfile.read(path)
        return cls(path)

    @classmethod
    def find(cls, runs: Path, study: str) -> Self:
        """
        A study by name under `runs`, or by path.

        Raises:
            InputError: There is none; the message lists the nearest names.
        """
        return cls.open(naming.find(runs, study))

    @property
    def study(self) -> dict[str, Any]:
        """
        `study.json`, read afresh.

        Raises:
            InputError: There is none.
            StudyFailed: It is damaged.
        """
        return studyfile.read(self.path)

    @property
    def name(self) -> str:
        return str(self.study["study"])

    @property
    def objective_yaml(self) -> str:
        """The resolved objective file that the study was begun with."""
        return (self.path / studyfile.OBJECTIVE).read_text(encoding="utf-8")

    @property
    def objective(self) -> dict[str, Any]:
        """The resolved objective file as plain values; {} where it cannot be read."""
        try:
            found = YAML(typ="safe", pure=True).load(self.objective_yaml)
        except (OSError, UnicodeDecodeError, YAMLError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def currency(self) -> str:
        """ISO code of the study's prices; "" where the file names none."""
        return str((self.objective.get("prices") or {}).get("currency", ""))

    @property
    def closed_loop(self) -> bool:
        """Loads are concurrent requests rather than requests/s."""
        workload = self.objective.get("workload") or {}
        return "closed_loop" in (workload.get("arrivals") or "") or "concurrency" in (workload.get("load") or "")

    def changed(self, fingerprints: Mapping[str, str], objective_yaml: str | None = None) -> list[str]:
        """
        What differs from the inputs that the study was begun with, one line each; [] when nothing does.

        Args:
            fingerprints: Of the inputs now.
            objective_yaml: The resolved objective file now: with it the differing lines themselves are shown.
        """
        before = None if objective_yaml is None else self.objective_yaml
        return studyfile.differences(self.study["fingerprints"], fingerprints, before, objective_yaml)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """
        The exclusive right to write, and one entry in `sessions` of `study.json`.

        Attempts that an earlier, killed session left behind get their spent time written down.

        Raises:
            StudyLocked: Another tuner holds it; the message names its process.
            StudyFailed: The study cannot be written.
        """
        with lock.Lock(self.path) as held:
            if held.previous is not None:
                _log.warning("%s: %s ended without letting go; taking over", self.path, lock.describe(held.previous))
            for entry in self.trials():
                trialfiles.freeze(entry)
            studyfile.begin_session(self.path)
            try:
                yield
            except BaseException:
                with contextlib.suppress(TunerError):  # the first error is the one to tell
                    self._seen(ended=True)
                raise
            self._seen(ended=True)

    @property
    def live(self) -> bool:
        """Whether a living tuner works on this study."""
        return lock.is_held(self.path)

    def _seen(self, *, ended: bool = False) -> None:
        with self._writing:
            studyfile.seen(self.path, ended=ended)

    def trial_directory(self, trial: int) -> Path:
        """`trials/0007`; never outside the study, links followed."""
        path = self.path / "trials" / f"{trial:04d}"
        if not naming.is_inside(path, self.path):
            raise StudyFailed(f"{path}: is a link that leads out of the study; remove it")
        return path

    def logs(self, trial: int, attempt: int | None = None) -> Path:
        """Where the processes of an attempt log to; None = the last, or the one that is about to begin."""
        path = self.trial_directory(trial)
        earlier = attempt is not None and attempt < trialfiles.last_attempt(path)
        return (path / "attempts" / str(attempt) if earlier else path) / "logs"

    def next_attempt(self, trial: int) -> int:
        """Number for the next attempt of a trial: 1 if it was never begun."""
        return trialfiles.last_attempt(self.trial_directory(trial)) + 1

    def begin(
        self, trial: int, attempt: int, configuration: Configuration, commands: Sequence[Mapping[str, object]] = ()
    ) -> Path:
        """
        Start an attempt; an earlier one of the same trial is kept in `attempts/`.

        Returns:
            The trial's directory.

        Raises:
            ValueError: `attempt` is not above the previous one.
            StudyFailed: Nowhere to write.
        """
        path = self.trial_directory(trial)
        trialfiles.begin(path, attempt, configuration, commands)
        self._seen()
        return path

    def write_commands(self, trial: int, commands: Sequence[Mapping[str, object]]) -> None:
        """Replace `commands.json` of the last attempt, where the commands are known later than `begin`."""
        write_json(self.trial_directory(trial) / trialfiles.COMMANDS, list(commands))

    def write_level(self, trial: int, level: Level, data: LevelData, *, full: bool = True) -> Level:
        """
        Store a finished level of the last attempt under its own number.

        Args:
            trial: Its number.
            level: The judgement.
            data: The facts.
            full: False drops the chunks of each request (simulated levels that are not needed in full).

        Returns:
            The level as stored.
        """
        stored = trialfiles.write_level(self.trial_directory(trial), level.number, level, data, full=full)
        self._seen()
        return stored

    def append_level(self, trial: int, level: Level, data: LevelData) -> Level:
        """
        Store a further level (`verify`) of a finished trial under the next free number.

        Returns:
            The level with the number that it got.
        """
        path = self.trial_directory(trial)
        number = max(trialfiles.read_entry(path).level_numbers(), default=0) + 1
        stored = trialfiles.write_level(path, number, level, data, full=True)
        self._seen()
        return stored

    def finish(self, outcome: Outcome) -> bool:
        """
        Store how an attempt ended; from then on it survives anything. Repeating it changes nothing.

        Returns:
            False: the attempt had its outcome already, which stays.
        """
        done = trialfiles.finish(self.trial_directory(outcome.trial), outcome)
        self._seen()
        return done

    def charge(self, what: str, trial: int, *, unit_hours: float, seconds: float) -> None:
        """
        Book time that belongs to no attempt: a deployment that was started again for verification.

        Call it after each verification level with what was spent since the last call, so that a crash loses little.
        """
        line = {"what": what, "trial": trial, "unit_hours": unit_hours, "seconds": seconds, "at": provenance.now()}
        append_lines(self.path / CHARGES, [line])
        self._seen()

    def reject(self, configuration: Configuration, rule: str, message: str) -> None:
        """List a configuration that a static rule, or the cluster, excluded before it became a trial."""
        line = {"configuration": configuration.knobs, "rule": rule, "message": message, "at": provenance.now()}
        append_lines(self.path / REJECTED, [line])

    def rejected(self) -> list[dict[str, Any]]:
        """What `reject` listed, in order: `configuration`, `rule`, `message`, `at`."""
        return read_lines(self.path / REJECTED)

    def trials(self) -> list[TrialEntry]:
        """Every trial that was ever begun, by number. Links and foreign names are passed over."""
        root = self.path / "trials"
        found = root.iterdir() if root.is_dir() else ()
        paths = (path for path in found if path.name.isdecimal() and path.is_dir() and not path.is_symlink())
        begun = (path for path in paths if trialfiles.last_attempt(path))
        return [trialfiles.read_entry(path) for path in sorted(begun, key=lambda path: int(path.name))]

    def trial(self, number: int) -> TrialEntry:
        """
        Raises:
            InputError: There is no such trial.
        """
        for entry in self.trials():
            if entry.number == number:
                return entry
        raise InputError(f"{self.path}: there is no trial {number}")

    def outcomes(self) -> list[Outcome]:
        """Of every finished attempt, retried ones included, by trial and attempt."""
        found = (attempt.outcome for entry in self.trials() for attempt in entry.attempts)
        return [outcome for outcome in found if outcome is not None]

    def level_records(self, trial: int, level: int) -> tuple[Record, ...]:
        """
        Records of one level of a trial's last attempt.

        Raises:
            MeasurementError: They are missing or damaged.
        """
        return self.trial(trial).records(level)

    def spent(self) -> Spent:
        """What was used so far. Of attempts and sessions that were killed, until they last wrote."""
        entries = self.trials()
        attempts = [attempt for entry in entries for attempt in entry.attempts]
        charges = read_lines(self.path / CHARGES)
        hours = sum(a.outcome.unit_hours if a.outcome is not None else a.units * a.spent_s() / 3600 for a in attempts)
        finished = [entry.outcome for entry in entries if entry.outcome is not None]
        sessions = self.study["sessions"]
        wall = (provenance.seconds(s["ended"] or s["last_seen"]) - provenance.seconds(s["started"]) for s in sessions)
        return Spent(
            trials=sum(outcome.state != "infra_failed" for outcome in finished),
            unit_hours=hours + sum(float(charge["unit_hours"]) for charge in charges),
            wall_s=sum(wall),
            trial_s=sum(a.spent_s() for a in attempts) + sum(float(charge["seconds"]) for charge in charges),
            requests=sum(level.requests for a in attempts for level in a.levels()),
        )

    def write_json(self, name: str, value: object) -> None:
        """
        Replace a file at the study's top (`result.json`, `verification.json`), atomically.

        Raises:
            StudyFailed: Nowhere to write.
        """
        write_json(self.path / self._top_name(name), value)

    def read_json(self, name: str) -> Any:
        """Content of a file at the study's top; None when it is missing, or was damaged and is now set aside."""
        path = self.path / self._top_name(name)
        try:
            return read_json(path)
        except FileNotFoundError:
            return None
        except TornFileError as error:
            quarantine(path, str(error))
            return None

    @staticmethod
    def _top_name(name: str) -> str:
        if Path(name).name != name or not name.endswith(".json"):
            raise ValueError(f"{name!r} is not the name of a JSON file at the study's top")
        return name

    def table(self) -> "pd.DataFrame":
        """One row per trial: number, attempts, outcome, reason, knobs, figures. Missing values are NaN."""
        import pandas as pd

        rows: list[dict[str, object]] = []
        for entry in self.trials():
            row: dict[str, object] = {"trial": entry.number, "attempts": entry.attempt}
            outcome = entry.outcome
            if outcome is None:
                row |= {"outcome": "interrupted"}
            else:
                row |= {"outcome": outcome.state, "reason": outcome.reason, "cause": outcome.cause}
                row |= {**flat.knobs(outcome), **flat.figures(outcome, closed=self.closed_loop)}
            rows.append(row)
        return pd.DataFrame(rows, columns=None if rows else ["trial", "attempts", "outcome", "reason", "cause"])
