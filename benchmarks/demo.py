"""
Where does the time of `make demo` go? One study of the simulated cluster, each phase timed where it is called.

Phases nest (a level holds its simulation, its judgement and its writing) and the mirror runs beside the rest, so shares
of the wall time do not add up to one. Processor time is that of the whole process, imports included.

    python benchmarks/demo.py [--slo FILE] [--trials N] [--no-mlflow] [--json FILE]
"""

import argparse
import functools
import io
import json
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from tuner import level, optimize, recordfile, studyruns, tracking, trialfiles
from tuner.events import silent
from tuner.report import evidence, html, terminal
from tuner.samplers import Proposals
from tuner.simulator.level import Level

#: Owner, attribute and name of each timed call.
PHASES: tuple[tuple[Any, str, str], ...] = (
    (Level, "run", "simulate"),
    (level, "judge", "judge"),
    (trialfiles, "write_level", "write levels"),
    (recordfile, "read", "read records"),
    (Proposals, "ask", "propose"),
    (Proposals, "tell", "tell"),
    (tracking.Mirror, "sync", "mirror"),
    (studyruns, "tails_png", "pictures of the mirror"),
    (tracking.Tracker, "close", "wait for the mirror"),
    (html, "write", "report.html"),
    (terminal, "render", "terminal report"),
)
#: What `make demo` may take, by the clock.
MOST_S = 60


class Stopwatch:
    """Seconds and calls of each phase, over all threads."""

    def __init__(self) -> None:
        self.wall_s: dict[str, float] = {name: 0.0 for _, _, name in PHASES}
        self.cpu_s: dict[str, float] = dict(self.wall_s)
        self.calls: dict[str, int] = dict.fromkeys(self.wall_s, 0)
        self._lock = threading.Lock()

    def timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(call)
        def timing(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                with self._lock:
                    self.wall_s[name] += time.perf_counter() - wall
                    self.cpu_s[name] += time.thread_time() - cpu
                    self.calls[name] += 1

        return timing


def measure(slo: Path, trials: int, *, mlflow: bool) -> dict[str, Any]:
    """Run the study in a directory that is thrown away."""
    watch = Stopwatch()
    for owner, attribute, name in PHASES:
        setattr(owner, attribute, watch.timed(getattr(owner, attribute), name))
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as runs:
        request = optimize.Request(
            slo=slo, backend="simulated", trials=trials, runs=Path(runs), mlflow=None if mlflow else "off"
        )
        path, result = optimize.optimize(request, silent)
        found = evidence.read(path)
        html.write(found)
        terminal.render(found, Console(file=io.StringIO(), width=80))
    wall_s, cpu_s = time.perf_counter() - begun, time.process_time()
    phases = {
        name: {
            "calls": watch.calls[name],
            "wall_s": round(watch.wall_s[name], 2),
            "cpu_s": round(watch.cpu_s[name], 2),
            "share_of_cpu": round(watch.cpu_s[name] / cpu_s, 3),
        }
        for _, _, name in PHASES
    }
    spent = result["spent"]
    assert isinstance(spent, dict)  # noqa: S101  (the contract of `result.json`)
    return {
        "slo": slo.name,
        "trials": trials,
        "mlflow": mlflow,
        "requests": spent["requests"],
        "wall_s": round(wall_s, 1),
        "cpu_s": round(cpu_s, 1),
        "phases": phases,
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "commit": _commit(),
    }


def _commit() -> str:
    command = ("git", "rev-parse", "--short", "HEAD")
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slo", type=Path, default=Path("objectives/demo.yaml"))
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--no-mlflow", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.slo, options.trials, mlflow=not options.no_mlflow)
    lines = [f"{found['wall_s']} s wall, {found['cpu_s']} s of processor time, {found['requests']:,.0f} requests"]
    lines += [
        f"{name:24} {phase['calls']:6} calls {phase['wall_s']:7.2f} s wall {phase['cpu_s']:7.2f} s cpu "
        f"{phase['share_of_cpu']:6.1%}"
        for name, phase in found["phases"].items()
    ]
    kept = found["wall_s"] <= MOST_S
    lines.append(f"{'kept  ' if kept else 'BROKEN'} at most {MOST_S} s, on a machine that does nothing else")
    sys.stdout.write("\n".join(lines) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
