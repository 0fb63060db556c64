"""
One tuner per study: an exclusive lock on `study.lock`, held by the kernel for as long as its process lives.

The lock of a dead process is free at once, whatever the file still says about its owner. Reading needs no lock.
"""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tuner import provenance
from tuner.errors import StudyFailed, StudyLocked
from tuner.runfiles import writing

FILE = "study.lock"
_PATIENCE, _PAUSE_S = 5, 0.02
_held: dict[int, "Lock"] = {}


def _release_in_child() -> None:
    """A forked child shares the open file: it must not keep the lock when its parent dies."""
    for handle in list(_held):
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_release_in_child)


def _owner(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def describe(owner: Mapping[str, object]) -> str:
    """`process 4711 on host a since 2026-11-29T18:00:00Z`; says so where nothing is known."""
    if "pid" not in owner:
        return "an unknown process"
    return f"process {owner['pid']} on host {owner.get('host', '?')} since {owner.get('started', '?')}"


def _take(handle: int) -> None:
    """Exclusive, or OSError. A reader's look at the lock (`is_held`) lasts microseconds and is waited out."""
    for _ in range(_PATIENCE):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        else:
            return
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Lock:
    """
    Exclusive right to write one study. A context manager; not re-entrant.

    Attributes:
        previous: Owner of an earlier lock that ended without letting go (killed), else None. Known once entered.
    """

    def __init__(
        self, directory: Path, name: str = FILE, *, remedy: str = "wait for it, stop it, or choose another --study"
    ) -> None:
        self._path = directory / name
        self._remedy = remedy
        self._handle: int | None = None
        self.previous: dict[str, object] | None = None

    def __enter__(self) -> Self:
        """
        Take the lock or fail at once.

        Raises:
            StudyLocked: Another process, or another lock of this one, holds it; the message names the owner.
            StudyFailed: The directory cannot be written, or its file system has no locks.
        """
        with writing(self._path):
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            _take(handle)
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise StudyLocked(
                    f"{self._path.parent}: {describe(_owner(self._path))} works on this study; {self._remedy}"
                ) from None
            raise StudyFailed(
                f"{self._path}: this file system has no locks ({error.strerror}); put --runs on a local disk"
            ) from error
        self._handle = handle
        _held[handle] = self
        self.previous = _owner(self._path) or None
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "started": provenance.now()}
        try:
            self._write(json.dumps(owner))
        except StudyFailed:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        _held.pop(handle, None)
        try:
            os.ftruncate(handle, 0)
        except OSError:  # a full or vanished disk: the kernel's lock is what counts
            pass
        finally:
            os.close(handle)

    def _write(self, text: str) -> None:
        if self._handle is None:
            return
        with writing(self._path):
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, text.encode(), 0)


def is_held(directory: Path, name: str = FILE) -> bool:
    """Whether a living tuner works on the study in `directory`. False where that cannot be found out."""
    try:
        handle = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(handle)
