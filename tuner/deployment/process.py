"""One server process as its owner sees it: start, what became of it, its log, its end."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.deployment import guardian
from tuner.errors import InfrastructureFailed

#: What a server inherits from the tuner's own environment; whatever else it needs stands in its spec.
_INHERITED = frozenset({"HOME", "LANG", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"})
_INHERITED_PREFIXES = ("CUDA_", "HF_", "LC_", "NVIDIA_", "ROCM_", "VLLM_", "XDG_")
_SECRET_PARTS = ("TOKEN", "SECRET", "PASSW", "CREDENTIAL", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY")


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that servers get: paths, locale and library settings, nothing that looks secret."""
    return {
        name: value
        for name, value in environ.items()
        if (name in _INHERITED or name.startswith(_INHERITED_PREFIXES))
        and not any(part in name.upper() for part in _SECRET_PARTS)
    }


def oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory since boot, in this container where it has one."""
    for source in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        with contextlib.suppress(OSError):
            for line in Path(source).read_text(encoding="ascii").splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


@dataclass(frozen=True)
class Exit:
    """How a process ended; `code` is negative for the number of the signal that killed it."""

    code: int

    def __str__(self) -> str:
        return f"killed by signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


@dataclass(frozen=True)
class Settings:
    """What the guardian keeps to."""

    registry: Path  # directory of this study on this machine; see guardian.reap_orphans
    grace_s: float = 5.0  # between SIGTERM and SIGKILL
    log_cap_bytes: int = 16 << 20  # of the log's first part, and of each half of its last part
    detach: bool = False  # not a child of the owner: for owners whose children get killed with them, as in Ray


@dataclass
class ManagedProcess:
    """
    A server that a guardian runs and ends.

    Args:
        argv: Program and arguments.
        env: The whole environment of the server.
        log: File that takes stdout and stderr.
        settings: Registry directory and limits.
        secrets: Values that are masked in the log.
        cores: CPU cores that the server may use; empty = all.
        cwd: Working directory; empty = the log's directory.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    settings: Settings
    secrets: Sequence[str] = ()
    cores: Sequence[int] = ()
    cwd: str = ""
    pid: int | None = None  # of the server
    guardian_pid: int | None = None
    exit: Exit | None = None
    left: list[int] = field(default_factory=list)  # pids that could not be ended
    _gone: bool = False
    _missing: str | None = None
    _rest: bytes = b""

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._child: subprocess.Popen[bytes] | None = None
        self._oom_kills = oom_kills()

    @property
    def oom_killed(self) -> bool:
        """Whether the kernel has killed a process for lack of memory since this one was made."""
        return oom_kills() > self._oom_kills

    def start(self) -> None:
        """
        Start the guardian and through it the server; returns once the server runs.

        Raises:
            InfrastructureFailed: `engine_missing`, the program cannot be started.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.settings.registry.mkdir(parents=True, exist_ok=True)
        job = {
            "argv": list(self.argv),
            "env": dict(self.env),
            "cwd": self.cwd or str(self.log.parent),
            "log": str(self.log),
            "log_cap": self.settings.log_cap_bytes,
            "registry": str(self.settings.registry),
            "secrets": list(self.secrets),
            "cores": list(self.cores),
            "grace_s": self.settings.grace_s,
            "detach": self.settings.detach,
        }
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(guardian.__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
        )
        self._child = child
        if child.stdin is None or child.stdout is None:
            raise AssertionError
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(job).encode() + b"\n")
            child.stdin.flush()
        os.set_blocking(child.stdout.fileno(), False)
        until = time.monotonic() + 30
        while self.pid is None and not self._gone and time.monotonic() < until:
            self._read(timeout_s=0.2)
        if self.pid is None:
            self.stop()
            raise InfrastructureFailed("engine_missing", self._missing or f"{self.argv[0]} could not be started")

    def poll(self) -> Exit | None:
        """How the server ended, or None while it runs."""
        self._read(timeout_s=0)
        return self.exit

    def stop(self) -> list[int]:
        """
        End the server and all its descendants. Idempotent; takes the grace period and 8 s at most.

        Returns:
            Pids that are still alive: empty unless the kernel holds them.
        """
        with self._lock:
            child = self._child
            if child is None:
                return self.left
            if child.stdin is not None and not child.stdin.closed:
                with contextlib.suppress(OSError):
                    child.stdin.close()
            until = time.monotonic() + self.settings.grace_s + 10
            while not self._gone and time.monotonic() < until:
                self._read(timeout_s=0.1)
            if not self._gone and self.guardian_pid is not None:
                self.left = [self.guardian_pid]
            if child.stdout is not None:
                child.stdout.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=2)
            self._child = None
            return self.left

    def tail(self, lines: int = 20) -> str:
        """The last lines of the log."""
        return "\n".join(self.read_log().splitlines()[-lines:])

    def read_log(self) -> str:
        """All that is kept of the log so far."""
        parts = (self.log, Path(f"{self.log}.tail.old"), Path(f"{self.log}.tail"))
        texts = []
        for part in parts:
            with contextlib.suppress(OSError):
                texts.append(part.read_bytes())
        return b"".join(texts).decode("utf-8", "replace")

    def owns(self, pids: set[int]) -> bool:
        """Whether one of the pids belongs to the server or a descendant of it."""
        if self.guardian_pid is None:
            return False
        return any(process.pid in pids for process in guardian.descendants(self.guardian_pid))

    def _read(self, timeout_s: float) -> None:
        with self._lock:
            child = self._child
            if child is None or child.stdout is None or self._gone:
                return
            with selectors.DefaultSelector() as waiting:
                waiting.register(child.stdout, selectors.EVENT_READ)
                if not waiting.select(timeout_s):
                    return
            data = child.stdout.read(65536)
            if data is None:
                return
            if not data:  # the guardian is gone without a word: killed
                self._gone = True
                self.exit = self.exit or Exit(-9)
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "started":
                self.pid, self.guardian_pid = event["pid"], event["guardian"]
            case "failed":
                self._missing = f"{self.argv[0]}: {event['error']}"
            case "exited":
                self.exit = Exit(event["code"])
            case "gone":
                self._gone, self.left = True, event["left"]
