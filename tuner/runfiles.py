"""
Files of a study: strict JSON, atomic replacement, append-only lines, quarantine of what is torn.

Nothing here knows what the files mean. A write that fails raises `StudyFailed` with the path and the remedy, so that a
full disk stops a study with a message instead of a wrong result.
"""

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from tuner.errors import StudyFailed

_log = logging.getLogger(__name__)
_PRETTY = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_LINE = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


class TornFileError(ValueError):
    """A file whose content is not what was written: cut off, damaged, or of another kind."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an `OSError` of the block (disk full, read-only, directory gone) into a `StudyFailed` that names `path`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StudyFailed(
            f"{path}: cannot write: {reason}. Finished trials are safe; free space or make the directory writable, "
            "then start the same command again to resume"
        ) from error


def plain(value: object) -> object:
    """`value` with every mapping a dict and every tuple a list: what orjson accepts."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def encode(value: object) -> bytes:
    """Strict JSON, indented. NaN and infinities become null: unknown = null."""
    return orjson.dumps(plain(value), option=_PRETTY)


def replace_bytes(path: Path, content: bytes) -> None:
    """
    Write the whole file or nothing: a reader sees the old content or the new, also after a power cut.

    Raises:
        StudyFailed: The disk is full, read-only or gone. The old file is untouched and no temporary file is left.
    """
    with writing(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a rename inside `path` durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: object) -> None:
    """Replace `path` by `value` as strict JSON, atomically."""
    replace_bytes(path, encode(value))


def read_json(path: Path) -> Any:
    """
    The content of a strict JSON file.

    Raises:
        FileNotFoundError: There is none.
        TornFileError: It is cut off or damaged. NaN and Infinity count as damage.
    """
    try:
        return orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise TornFileError(f"{path}: not valid JSON ({error})") from error


def append_lines(path: Path, values: list[Mapping[str, object]]) -> None:
    """
    Append one JSON object per line and make them durable.

    A line that a crash cut off is closed first, so that it cannot swallow the next one.
    """
    content = b"".join(orjson.dumps(plain(value), option=_LINE) for value in values)
    with writing(path), path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Objects of a JSON-lines file, in order; [] without the file. Torn lines are skipped with a warning."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            value = None
        if isinstance(value, dict):
            found.append(value)
        elif line.strip():
            _log.warning("%s:%d: torn line skipped", path, number)
    return found


def quarantine(path: Path, why: str) -> Path:
    """
    Set a damaged file aside as `<name>.corrupt`, with a warning; where that is not allowed it stays and is ignored.

    Returns:
        Where the file is now.
    """
    target = path.with_name(f"{path.name}.corrupt")
    count = 1
    while target.exists():
        count += 1
        target = path.with_name(f"{path.name}.{count}.corrupt")
    try:
        path.rename(target)
    except OSError:
        _log.warning("%s is damaged and is ignored: %s", path, why)
        return path
    _log.warning("%s is damaged and was set aside as %s: %s", path, target.name, why)
    return target
