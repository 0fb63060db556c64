"""
The directory of one trial: `configuration.json`, `commands.json`, `levels/`, `logs/`, `outcome.json`.

Its top is the last attempt; earlier ones lie in `attempts/<n>/` in the same form. `attempt.json` says which attempt
the top is. A level counts once its `level.json` is there, an attempt once its `outcome.json` is: both are written last.
"""

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tuner import provenance, recordfile, serial
from tuner.configuration import Configuration
from tuner.errors import MeasurementError, StudyFailed
from tuner.load.plan import ClientHealth, LevelData, LevelPlan
from tuner.outcome import Level, Outcome
from tuner.records import Record
from tuner.runfiles import TornFileError, append_lines, quarantine, read_json, sync_directory, write_json, writing
from tuner.slo import Objective

ATTEMPT, CONFIGURATION, COMMANDS, OUTCOME = "attempt.json", "configuration.json", "commands.json", "outcome.json"
LEVEL, RECORDS, ENGINE_METRICS = "level.json", "records.jsonl.zst", "engine_metrics.jsonl"


@dataclass(frozen=True)
class AttemptFiles:
    """One attempt on disk, for reading."""

    path: Path
    number: int  # from 1

    @cached_property
    def info(self) -> dict[str, Any]:
        """`attempt.json`: trial, attempt, units, started; `interrupted_s` once found interrupted. {} when damaged."""
        found = _read_or_quarantine(self.path / ATTEMPT)
        return found if isinstance(found, dict) else {}

    @cached_property
    def outcome(self) -> Outcome | None:
        """None: not finished, or the file was damaged and has been set aside."""
        path = self.path / OUTCOME
        found = _read_or_quarantine(path)
        if found is None:
            return None
        try:
            return serial.outcome_from_json(found)
        except (KeyError, TypeError, AttributeError) as error:
            quarantine(path, f"not an outcome ({error!r})")
            return None

    @property
    def ended(self) -> str | None:
        """When the outcome was stored, ISO 8601 in UTC; None without one."""
        found = _read_or_quarantine(self.path / OUTCOME)
        return str(found["ended"]) if isinstance(found, dict) and "ended" in found else None

    @cached_property
    def configuration(self) -> Configuration | None:
        found = _read_or_quarantine(self.path / CONFIGURATION)
        return Configuration(found) if isinstance(found, dict) else None

    @property
    def units(self) -> int:
        """GPUs or CPU slots held."""
        return int(self.info.get("units") or (self.configuration.units if self.configuration else 0))

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def level_numbers(self) -> list[int]:
        """Directories with a finished level, ascending."""
        found = (path.parent.name for path in (self.path / "levels").glob(f"*/{LEVEL}"))
        return sorted(int(name) for name in found if name.isdecimal())

    def level_directory(self, number: int) -> Path:
        return self.path / "levels" / f"{number:02d}"

    def levels(self) -> list[Level]:
        """Finished levels in order, verification included; damaged ones are set aside and left out."""
        found: list[Level] = []
        for number in self.level_numbers():
            path = self.level_directory(number) / LEVEL
            data = _read_or_quarantine(path)
            try:
                found.append(serial.level_from_json(data))
            except (KeyError, TypeError, AttributeError) as error:
                if data is not None:
                    quarantine(path, f"not a level ({error!r})")
        return found

    def records(self, number: int) -> tuple[Record, ...]:
        """
        What the client saw in level `number`.

        Raises:
            MeasurementError: The file is missing or damaged.
        """
        path = self.level_directory(number) / RECORDS
        level = _read_or_quarantine(self.level_directory(number) / LEVEL)
        try:
            found = recordfile.read(path)
            if level is not None and len(found) != level["record_count"]:
                raise MeasurementError(f"{path}: has {len(found)} of {level['record_count']} records: it was cut off")
        except FileNotFoundError:
            raise MeasurementError(f"{path}: there are no records of this level") from None
        except MeasurementError as error:
            quarantine(path, str(error))
            raise
        return found

    def level_data(self, number: int, objective: Objective) -> LevelData:
        """
        Level `number` as it came from the deployment, except that workload and limits are those of `objective`.

        Raises:
            MeasurementError: The level is missing or damaged, or summaries only were kept of its requests.
        """
        path = self.level_directory(number) / LEVEL
        data = _read_or_quarantine(path)
        if data is None:
            raise MeasurementError(f"{path}: there is no such level")
        if data["records"] != "full":
            raise MeasurementError(
                f"{path}: only summaries of the requests were kept; token gaps cannot be judged again"
            )
        return LevelData(
            plan=LevelPlan(model=objective.model, workload=objective.workload, slo=objective.slo, **data["plan"]),
            records=self.records(number),
            health=ClientHealth(**data["client"]),
            stopped=data["stopped"],
            stop_detail=data["stop_detail"],
            counters=data["counters"],
            **data["window"],
        )

    def spent_s(self) -> float:
        """
        Seconds that the attempt held its units.

        Of an attempt that was interrupted: until the last change of one of its files (the engines' logs grow as long
        as they live), frozen as `interrupted_s` when the study is taken up again.
        """
        if self.outcome is not None:
            return self.outcome.seconds
        known = self.info.get("interrupted_s")
        if known is not None:
            return float(known)
        if "started" not in self.info:
            return 0.0
        last = max((path.stat().st_mtime for path in _own_files(self.path)), default=0.0)
        return max(0.0, last - provenance.seconds(self.info["started"]))


@dataclass(frozen=True)
class TrialEntry(AttemptFiles):
    """One trial: its last attempt, and the earlier ones. `number` is the trial's."""

    attempt: int  # the last one, from 1
    earlier: tuple[AttemptFiles, ...]

    @property
    def interrupted(self) -> bool:
        """Begun and not finished. Of a study that nobody works on: to be done again as the next attempt."""
        return self.outcome is None

    @property
    def attempts(self) -> tuple[AttemptFiles, ...]:
        """All, the last one last."""
        return (*self.earlier, AttemptFiles(self.path, self.attempt))


def read_entry(path: Path) -> TrialEntry:
    """The trial in `path` (`trials/0007`)."""
    numbers = (child for child in (path / "attempts").glob("*") if child.name.isdecimal() and child.is_dir())
    earlier = tuple(
        AttemptFiles(child, int(child.name)) for child in sorted(numbers, key=lambda child: int(child.name))
    )
    info = _read_or_quarantine(path / ATTEMPT)
    after = earlier[-1].number + 1 if earlier else 1
    attempt = int(info.get("attempt", after)) if isinstance(info, dict) else after
    return TrialEntry(path, int(path.name), attempt=attempt, earlier=earlier)


def last_attempt(path: Path) -> int:
    """Number of the last attempt that left anything in `path`; 0 without one."""
    if not path.is_dir():
        return 0
    entry = read_entry(path)
    return entry.attempt if _own_names(path) else entry.attempt - 1


def begin(path: Path, attempt: int, configuration: Configuration, commands: Sequence[Mapping[str, object]]) -> None:
    """
    Start an attempt: what lies in `path` from the previous one moves to `attempts/<n>/`.

    Repeatable after a crash at any point: `attempt.json` moves last and is written last.

    Raises:
        ValueError: `attempt` is not above the previous one.
        StudyFailed: The directory cannot be written.
    """
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    previous = last_attempt(path)
    if attempt <= previous:
        raise ValueError(f"{path}: attempt {attempt} after attempt {previous}")
    if _own_names(path):
        freeze(read_entry(path))
        _archive(path, path / "attempts" / str(previous))
    with writing(path):
        (path / "logs").mkdir(exist_ok=True)
    write_json(path / CONFIGURATION, configuration.knobs)
    write_json(path / COMMANDS, list(commands))
    write_json(
        path / ATTEMPT,
        {"trial": int(path.name), "attempt": attempt, "units": configuration.units, "started": provenance.now()},
    )


def freeze(entry: TrialEntry) -> None:
    """Write down how long an interrupted attempt held its units, before its files change again."""
    last = entry.attempts[-1]
    if last.outcome is None and last.info and "interrupted_s" not in last.info:
        write_json(last.path / ATTEMPT, {**last.info, "interrupted_s": last.spent_s()})


def _archive(path: Path, target: Path) -> None:
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
        for name in sorted(_own_names(path), key=lambda name: name == ATTEMPT):
            if (target / name).exists():  # a crash fell between two moves of directories of the same name
                shutil.move(path / name, target / f"{name}.again")
            else:
                (path / name).rename(target / name)
        sync_directory(path)


def _own_names(path: Path) -> list[str]:
    return [child.name for child in path.iterdir() if child.name != "attempts" and not child.name.endswith(".tmp")]


def _own_files(path: Path) -> list[Path]:
    own = (path / name for name in _own_names(path))
    return [file for top in own for file in (top, *top.rglob("*")) if file.is_file() and not file.is_symlink()]


def write_level(path: Path, number: int, level: Level, data: LevelData, *, full: bool) -> Level:
    """
    Store one finished level as `levels/<number>/`.

    Args:
        path: Of the trial.
        number: Of the directory; also the number that the level is stored and returned under.
        level: The judgement.
        data: The facts.
        full: False keeps of each request its times, counts and status, without its chunks.
    """
    directory = path / "levels" / f"{number:02d}"
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        records = data.records if full else tuple(dataclasses.replace(record, chunks=()) for record in data.records)
        recordfile.write(directory / RECORDS, records)
    if data.samples:
        with writing(path / "logs"):
            (path / "logs").mkdir(exist_ok=True)
        append_lines(path / "logs" / ENGINE_METRICS, [{"level": number, **sample} for sample in data.samples])
    stored = dataclasses.replace(level, number=number)
    skipped = ("model", "workload", "slo")
    plan = {f.name: getattr(data.plan, f.name) for f in dataclasses.fields(data.plan) if f.name not in skipped}
    window = {"window_start_s": data.window_start_s, "window_s": data.window_s, "realised_rps": data.realised_rps}
    facts = {
        "plan": plan,
        "window": window,
        "records": "full" if full else "summary",
        "record_count": len(records),
        "ended": provenance.now(),
    }
    write_json(directory / LEVEL, serial.level_to_json(stored) | facts)
    return stored


def finish(path: Path, outcome: Outcome) -> bool:
    """
    Store how the attempt ended. Repeating it changes nothing.

    Returns:
        False: this attempt had its outcome already, which stays.

    Raises:
        StudyFailed: No such attempt was begun, or the directory cannot be written.
    """
    entry = read_entry(path) if path.is_dir() else None
    if entry is None or entry.attempt != outcome.attempt:
        raise StudyFailed(f"{path}: attempt {outcome.attempt} of trial {outcome.trial} was never begun")
    if entry.outcome is not None:
        return False
    write_json(path / OUTCOME, serial.outcome_to_json(outcome) | {"ended": provenance.now()})
    return True


def _read_or_quarantine(path: Path) -> Any:
    """Content of a JSON file; None when it is missing or damaged, in which case it is set aside."""
    try:
        return read_json(path)
    except FileNotFoundError:
        return None
    except TornFileError as error:
        quarantine(path, str(error))
        return None
