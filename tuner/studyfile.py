"""`study.json` and `objective.yaml`: what a study was begun with, and when it was worked on."""

import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tuner import provenance
from tuner.errors import InputError, StudyFailed
from tuner.objective_text import COMPARED, COMPARED_SEARCH
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
    What differs, value by value: `slo.itl.p99 60ms → 50ms`; where no value of the objective file tells, by name alone.

    Args:
        before: Fingerprints of the study.
        now: Fingerprints of the inputs.
        yaml_before: The resolved objective file of the study; None = unknown.
        yaml_now: The resolved objective file now.

    Returns:
        [] when every fingerprint is the same.
    """
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    values = _leaves(yaml_before or ""), _leaves(yaml_now or "")
    found: list[str] = []
    for name in names:
        told = [path for path in {**values[0], **values[1]} if _prints(name, path)]
        lines = [
            f"{path} {values[0].get(path, 'absent')} → {values[1].get(path, 'absent')}"
            for path in told
            if values[0].get(path) != values[1].get(path)
        ]
        found += lines[:_SHOWN_DIFFERENCES] or [_by_name(name, before.get(name), now.get(name))]
    return found


def _prints(name: str, path: str) -> bool:
    """Whether the value at a path of the objective file counts for this fingerprint."""
    top, *rest = re.split(r"[.\[]", path)
    if top == "search":
        return name == "search" and rest[0] in COMPARED_SEARCH
    return top in COMPARED.get(name, (name,))


def _by_name(name: str, before: str | None, now: str | None) -> str:
    if before is None or now is None:
        return f"{name} {'is new' if before is None else 'is gone'}"
    hashed = re.compile(r"[0-9a-f]{64}")
    plain = not (hashed.fullmatch(before) or hashed.fullmatch(now))
    return f"{name} {before} → {now}" if plain else f"{name}: its content differs"


def _leaves(text: str) -> dict[str, str]:
    """Every value of an objective file by its dotted path; {} for what cannot be read."""
    try:
        content = YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        return {}
    found: dict[str, str] = {}

    def walk(value: object, path: str) -> None:
        if isinstance(value, Mapping) and value:
            for name, item in value.items():
                walk(item, f"{path}.{name}" if path else str(name))
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                walk(item, f"{path}[{number}]")
        else:
            found[path] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)

    if isinstance(content, Mapping):
        walk(content, "")
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
