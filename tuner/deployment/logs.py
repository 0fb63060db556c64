"""
Why a process died, from the whole of its log.

The last line of an engine's log rarely tells: the API server ends with "Engine core initialization failed" while the
cause stands in a worker's traceback far above. So the log is searched for known causes, the strongest kind first.
"""

import re
from dataclasses import dataclass
from typing import Literal

from tuner.deployment.spec import ProcessRole
from tuner.errors import ConfigurationFailed, InfrastructureFailed

_CAUSE_LENGTH = 400  # characters of a cause line at most


@dataclass(frozen=True)
class Cause:
    """Who is to blame, the reason from the closed tables of `outcome`, and one line for people."""

    blame: Literal["configuration", "infrastructure"]
    reason: str
    line: str


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    blame: Literal["configuration", "infrastructure"]
    reason: str


def _rule(blame: Literal["configuration", "infrastructure"], reason: str, *patterns: str) -> _Rule:
    return _Rule(re.compile("|".join(patterns)), blame, reason)


#: In order: the first rule that matches any line wins, with the first line that it matches.
_RULES = (
    _rule(
        "configuration",
        "out_of_memory",
        r"No available memory for the cache blocks",
        r"larger than the available KV cache memory",
        r"Available memory on node .* is less than requested memory",
        r"less than desired GPU memory utilization",
        r"OutOfMemoryError",
        r"(?:CUDA|HIP) out of memory",
        r"CUDA error: out of memory",
        r"DefaultCPUAllocator: (?:can't|not enough)",
        r"Cannot allocate memory",
        r"^(?:\([^)]*\) )?(?:\S+ )*MemoryError\b",
        r"std::bad_alloc",
        r"[Oo]ut of memory",
    ),
    _rule(
        "infrastructure",
        "port_taken",
        r"[Aa]ddress already in use",
        r"EADDRINUSE",
        r"\[Errno 98\]",
    ),
    _rule(
        "configuration",
        "bad_flag",
        r"error: unrecognized arguments",
        r"error: argument ",
        r"error: unexpected argument",
        r"error: invalid value .* for ",
        r"error: the following (?:required )?arguments",
        r"error: ambiguous option",
    ),
    _rule(
        "infrastructure",
        "engine_missing",
        r"ModuleNotFoundError: ",
        r"^(?:\([^)]*\) )?(?:\S+ )*ImportError: ",
        r"^cannot start .*: \[Errno (?:2|8|13)\]",
        r"error while loading shared libraries",
        r"PackageNotFoundError",
        r"RuntimeError: (?:NIXL|Mooncake) is not available",
    ),
    _rule(
        "infrastructure",
        "node_lost",
        r"No space left on device",
        r"CUDA error: (?:uncorrectable ECC|device-side assert triggered by hardware|unspecified launch failure)",
        r"NVIDIA driver .* (?:is too old|not found)",
        r"fallen off the bus",
    ),
)
#: A value that the engine's own validation refuses ends with exit code 1: pydantic's summary, and the line after it.
_VALIDATION = re.compile(r"\d+ validation errors? for \w*(?:Config|Args)\b")
_NAMED_ERROR = re.compile(r"\b[A-Za-z_.]*(?:Error|Exception)\b: \S")
_HARMLESS = re.compile(r"^(?:\([^)]*\)\s*)?(?:INFO|WARNING|DEBUG)\b")
_CONSEQUENCES = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineCore (?:failed|died|encountered)|Executor failed"
    r"|WorkerProc initialization failed"
    r"|leaked \w+ objects|CancelledError|KeyboardInterrupt|BrokenPipeError|ConnectionResetError"
)


def classify(log: str, code: int | None, *, oom_killed: bool = False) -> Cause:
    """
    The cause of a death. Lines of level INFO and WARNING are never one.

    Args:
        log: The whole log.
        code: Exit code, negative for a signal; None while the process still runs.
        oom_killed: The kernel killed a process for lack of memory in the meantime. A worker that dies so leaves no
            word in the log.
    """
    lines = [line for line in log.splitlines() if not _HARMLESS.match(line)]
    for rule in _RULES:
        for line in lines:
            if rule.pattern.search(line):
                return Cause(rule.blame, rule.reason, _clean(line))
    for number, line in enumerate(lines):
        if _VALIDATION.search(line):
            detail = lines[number + 1 : number + 2]
            return Cause("configuration", "bad_flag", _clean(" ".join([line, *detail])))
    if code == 2:
        said = next((line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "")
        return Cause("configuration", "bad_flag", _clean(said) or "exit code 2 without a word")
    best = _best_line(lines) or "nothing in its log"
    if oom_killed:
        return Cause("configuration", "out_of_memory", f"the kernel killed a process for lack of memory; log: {best}")
    return Cause("configuration", "server_died", best)


def failure(
    name: str, role: ProcessRole, log: str, code: int | None, *, under_load: bool = False, oom_killed: bool = False
) -> ConfigurationFailed | InfrastructureFailed:
    """
    The exception for the death of one process.

    A store's death is the infrastructure's fault. One of a pair of prefill and decode that dies under load without a
    better reason is `role_lost`.
    """
    cause = classify(log, code, oom_killed=oom_killed)
    how = "" if code is None else (f"killed by signal {-code}" if code < 0 else f"exit code {code}")
    text = f"{name}: {how}: {cause.line}" if how else f"{name}: {cause.line}"
    if cause.blame == "infrastructure":
        return InfrastructureFailed(cause.reason, text)
    if role == "store":
        return InfrastructureFailed("store_unavailable", text)
    if under_load and cause.reason == "server_died" and role in {"prefill", "decode"}:
        return ConfigurationFailed("role_lost", text)
    return ConfigurationFailed(cause.reason, text)


def _best_line(lines: list[str]) -> str:
    """The first named error that is no mere consequence of another; else the last line that says anything."""
    named = [line for line in lines if _NAMED_ERROR.search(line)]
    chosen = next((line for line in named if not _CONSEQUENCES.search(line)), named[0] if named else "")
    return _clean(chosen or next((line for line in reversed(lines) if line.strip()), ""))


def _clean(line: str) -> str:
    """Without vLLM's prefix of process, level, time and place; one line of bounded length."""
    text = re.sub(r"^(?:\([^)]*pid=\d+\)\s*)?(?:[A-Z]+ [\d-]+ [\d:]+ (?:\[[^\]]*\])?\s*)?", "", line).strip()
    return text if len(text) <= _CAUSE_LENGTH else f"{text[: _CAUSE_LENGTH - 1]}…"
