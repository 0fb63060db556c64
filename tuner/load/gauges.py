"""What the load client can say about itself and its machine."""

import contextlib
import math
import os
import resource
from collections.abc import Sequence
from pathlib import Path

#: Priority of the load client where the system allows it.
NICENESS = -10
#: Descriptors of the client beside its streams.
SPARE_DESCRIPTORS = 64


def cpu_s() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def machine_jiffies() -> tuple[int, int]:
    """CPU time of this machine so far: taken by its host, and in all (idle included), in clock ticks."""
    cells = [int(cell) for cell in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return cells[7], sum(cells)


def steal_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Share of the machine's CPU time between two `machine_jiffies` that its host took."""
    total = after[1] - before[1]
    return (after[0] - before[0]) / total if total > 0 else 0.0


def p99(values: Sequence[float]) -> float:
    """Nearest rank; 0.0 of nothing."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1] if values else 0.0


def raise_priority() -> None:
    """
    Real-time scheduling, else a lower niceness, as far as allowed; quietly not where refused.

    An engine that computes on every core of the machine makes a client of ordinary priority late by tens of
    milliseconds. The client itself needs a few per cent of a core.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
        return
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one; the limit from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 30
