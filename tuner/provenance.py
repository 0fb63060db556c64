"""Where a study comes from: versions, commit, machine, fingerprints of its inputs, and time stamps."""

import datetime as dt
import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import orjson
import psutil

from tuner.runfiles import plain

_PACKAGES = ("slo-tuner", "optuna", "ray", "mlflow", "numpy", "scipy", "pandas")
_GIT_TIMEOUT_S = 5.0


def now() -> str:
    """The time in UTC to the microsecond, ISO 8601 with a Z."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds(stamp: str) -> float:
    """Seconds since 1970 of a stamp made by `now`."""
    return dt.datetime.fromisoformat(stamp).timestamp()


def fingerprint(value: object) -> str:
    """Sixteen hex digits of SHA-256 over the value's canonical JSON (keys sorted), or over bytes as they are."""
    content = value if isinstance(value, bytes) else orjson.dumps(plain(value), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(content).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Python and the packages that a study depends on, without importing them; absent ones are left out."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_sha(directory: Path) -> str | None:
    """Commit of the work tree around `directory`, with `-dirty` when tracked files differ from it; None outside one."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(directory), *arguments],
                capture_output=True,
                text=True,
                timeout=_GIT_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    sha = git("rev-parse", "HEAD")
    if sha is None:
        return None
    changed = git("status", "--porcelain", "--untracked-files=no")
    return f"{sha}-dirty" if changed else sha


def machine() -> Mapping[str, object]:
    """Host name, processor, cores, memory and kernel of this machine."""
    model = re.search(r"^model name\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    return {
        "host": platform.node(),
        "cpu": model.group(1) if model else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
    }


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""


def mask_uri(uri: str) -> str:
    """
    `uri` without passwords: `postgresql://u:***@h/db`. Keys and tokens in its query are masked as well.

    Meant for every message, file and tag in which an address appears.
    """
    masked = re.sub(r"(?<=:/)(/?[^/?#@]*?):[^/?#]*@", r"\1:***@", uri)  # also where somebody forgot a slash
    named = r"([?&][^=&#]*(?:pass|pwd|token|secret|key|sig|credential)[^=&#]*=)[^&#]*"
    return re.sub(named, r"\1***", masked, flags=re.IGNORECASE)
