"""`study.json` and `objective.yaml`: what a study was begun with, and when it was worked on."""

import difflib
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner import provenance
from tuner.errors import InputError, StudyFailed
from tuner.runfiles import TornFileError, read_json, replace_bytes, sync_directory, write_json, writing

SCHEMA = 1
STUDY, OBJECTIVE = "study.json", "objective.yaml"
_SHOWN_DIFFERENCES = 12


def create(
    path: Path, objective_yaml: str, facts: Mapping[str, object], files: Mapping[str, object] | None = None
) -> Path:
    """
    Begin the study in `path`. It appears complete or not at all.

    Args:
        path: Of the study; its parent is made if missing.
        objective_yaml: The resolved objective file.
        facts: Entries of `study.json` beside name, id, machine and times.
        files: Further JSON files, by name.

    Raises:
        InputError: There is something of that name.
        StudyFailed: The parent cannot be written.
    """
    taken = InputError(f"--study: got {path.name!r}: {path} exists already; resume it, or choose another name")
    if path.exists() or path.is_symlink():
        raise taken
    study = {
        "schema": SCHEMA,
        "study": path.name,
        "study_id": uuid.uuid4().hex,
        **facts,
        "machine": provenance.machine(),
        "started": provenance.now(),
        "ended": None,
        "sessions": [],
    }
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
        try:
            new.chmod(0o755)
            (new / "trials").mkdir()
            replace_bytes(new / OBJECTIVE, objective_yaml.encode())
            for name, content in (files or {}).items():
                write_json(new / name, content)
            write_json(new / STUDY, study)
            try:
                new.rename(path)
            except OSError as error:
                if path.exists():  # somebody else was faster
                    raise taken from error
                raise
            sync_directory(path.parent)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return path


def read(path: Path) -> dict[str, Any]:
    """
    `study.json` of the study in `path`.

    Raises:
        InputError: There is none, or a later version wrote it.
        StudyFailed: It is damaged.
    """
    file = path / STUDY
    try:
        found = read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: is not a study: it has no {STUDY}") from None
    except TornFileError as error:
        raise StudyFailed(f"{error}; restore it from a copy, or begin a new --study") from error
    if not isinstance(found, dict):
        raise StudyFailed(f"{file}: is not a study's; restore it from a copy, or begin a new --study")
    if found.get("schema") != SCHEMA:
        raise InputError(f"{file}: got schema {found.get('schema')!r}: this version reads {SCHEMA}; use a newer tuner")
    return found


def differences(
    before: Mapping[str, str], now: Mapping[str, str], yaml_before: str | None, yaml_now: str | None
) -> list[str]:
    """
    Names of fingerprints that differ, with both values, and the differing lines of the objective file, if given.

    Returns:
        [] when every fingerprint is the same.
    """
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    found = [f"{name}: was {before.get(name, 'absent')}, is {now.get(name, 'absent')}" for name in names]
    if names and yaml_before is not None and yaml_now is not None:
        lines = difflib.unified_diff(yaml_before.splitlines(), yaml_now.splitlines(), n=0, lineterm="")
        marks = {"-": "was", "+": "is "}
        shown = [f"{marks[line[0]]} {line[1:]}" for line in list(lines)[2:] if line[0] in marks]
        found += [f"{OBJECTIVE}: {line}" for line in shown[:_SHOWN_DIFFERENCES]]
    return found


def begin_session(path: Path) -> None:
    """Note that a tuner works on the study from now on. Its caller holds the lock."""
    study, stamp = read(path), provenance.now()
    session = {"started": stamp, "last_seen": stamp, "ended": None, "pid": os.getpid()}
    write_json(path / STUDY, study | {"ended": None, "sessions": [*study["sessions"], session]})


def seen(path: Path, *, ended: bool) -> None:
    """Note that the session still lives, or ends. Without an open session nothing happens."""
    study, stamp = read(path), provenance.now()
    if not study["sessions"] or study["sessions"][-1]["ended"] is not None:
        return
    *earlier, last = study["sessions"]
    last = last | {"last_seen": stamp, "ended": stamp if ended else None}
    write_json(path / STUDY, study | {"sessions": [*earlier, last], "ended": stamp if ended else None})
