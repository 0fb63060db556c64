"""
`tuner doctor`: what works on this machine, what does not, and what to do about it. No engine is started.

Checks that ask other programs run side by side, each with a time limit, so that the whole takes seconds.
"""

import json
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

from tuner import doctor_engine, doctor_machine, doctor_objective, objective_file, tracking_uri
from tuner.backend import resolve
from tuner.doctor_check import Check, ask
from tuner.provenance import mask_uri
from tuner.slo import Engine

__all__ = ["Check", "as_json", "examine", "ready", "text"]

_TRACKING_S, _RAY_S, _CONNECT_S = 20.0, 30.0, 3.0
#: Where `tools/accept_gpu.sh` leaves what it found, in the runs directory.
ACCEPTED = "accept-gpu/accept-gpu.json"
#: What no test without a GPU can show.
UNTESTED = (
    "live engines on GPUs, CUDA_VISIBLE_DEVICES of parallel trials, GPU memory after tear-down, "
    "connectors that need CUDA"
)
_ASK_TRACKING = """
import json, sys
from tuner import tracking
found = tracking.check(json.load(sys.stdin))
print(json.dumps([found.ok, found.message]))
"""


def examine(slo: Path | None, mlflow: str | None, runs: Path, *, ray: str | None = None) -> tuple[Check, ...]:
    """
    Look at this machine, and at what an objective file needs.

    Args:
        slo: Objective file; None = the machine alone.
        mlflow: Tracking URI; None = the store in `runs`, "off" = none.
        runs: Directory of all studies.
        ray: Address of a running Ray cluster; None = none is asked for.

    Returns:
        The findings, always in the same order.

    Raises:
        InputError: The objective file is wrong, or the tracking URI is none.
    """
    objective = None if slo is None else objective_file.load(slo)
    uri = tracking_uri.resolve(mlflow, runs)
    backend = "simulated" if objective is None else resolve(objective.backend)
    engine = Engine() if objective is None else objective.engine
    looks: list[Callable[[], Iterable[Check]]] = [
        doctor_machine.python,
        doctor_machine.behaviours,
        doctor_machine.kernel,
        doctor_machine.cpu,
        doctor_machine.gpus,
        doctor_machine.limits,
        doctor_machine.ports,
        partial(doctor_machine.runs_directory, runs),
        partial(doctor_machine.leftovers, runs),
        partial(_tracking, uri, asked=mlflow is not None),
        partial(_ray_cluster, ray),
        partial(doctor_engine.engine, engine, needed=backend != "simulated"),
        doctor_machine.browser,
        partial(_accepted, runs),
    ]
    if objective is not None:
        looks.append(partial(doctor_objective.needs, objective, backend, remote=ray is not None))
    with ThreadPoolExecutor(max_workers=4) as pool:
        return tuple(chain.from_iterable(pool.map(lambda look: tuple(look()), looks)))


def ready(found: Iterable[Check]) -> bool:
    """Whether nothing that was asked for is missing."""
    return all(check.status != "missing" for check in found)


def as_json(found: Iterable[Check]) -> dict[str, object]:
    """For `--json`."""
    checks = [asdict(check) for check in found]
    counts = Counter(str(check["status"]) for check in checks)
    return {"ready": counts["missing"] == 0, "counts": dict(sorted(counts.items())), "checks": checks}


def text(found: Iterable[Check]) -> str:
    """For people: one line for each finding, and one below it where something is to be done."""
    lines: list[str] = []
    counts: Counter[str] = Counter()
    for check in found:
        counts[check.status] += 1
        lines.append(f"{check.status:<9} {check.name:<14} {check.found}")
        if check.remedy:
            lines.append(f"{'':<24} → {check.remedy}")
    told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    lines.append(f"{'not ready' if counts['missing'] else 'ready'}: {told}")
    return "\n".join(lines)


def _tracking(uri: str | None, *, asked: bool) -> Iterator[Check]:
    """A real call of MLflow's API, in a process of its own: drivers hang and import for seconds."""
    if uri is None:
        yield Check("tracking", "ok", "off: nothing is tracked")
        return
    answer = ask([sys.executable, "-P", "-c", _ASK_TRACKING], _TRACKING_S, said=json.dumps(uri))
    try:
        ok, message = json.loads(answer.out.splitlines()[-1])
    except (ValueError, IndexError):
        ok, message = False, f"{mask_uri(uri)}: {answer.last}"
    remedy = "a study runs without it: its ledger has everything, `tuner sync` repeats what is missing"
    if not ok:
        yield Check("tracking", "missing" if asked else "warning", " ".join(message.split()), remedy)
    elif "warning:" in message:
        yield Check("tracking", "warning", message, "use a database on a local disk, or a tracking server")
    else:
        yield Check("tracking", "ok", message)


def _ray_cluster(address: str | None) -> Iterator[Check]:
    """Whether a named cluster answers. Without a name a study starts a cluster of its own, on this machine."""
    if address is None:
        return
    remedy = "start it with `ray start --head`, give its HOST:PORT as --ray, and use the same Ray version there"
    host = urlsplit(address if "//" in address else f"//{address}")
    try:
        port = host.port
    except ValueError:
        port = None
    if not host.hostname or port is None:
        yield Check("ray cluster", "missing", f"{address}: is no HOST:PORT", remedy)
        return
    try:
        socket.create_connection((host.hostname, port), timeout=_CONNECT_S).close()
    except OSError as error:
        yield Check("ray cluster", "missing", f"{address}: {error.strerror or error}", remedy)
        return
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "status", "--address", f"{host.hostname}:{port}"]
    answer = ask(command, _RAY_S)
    if answer.code == 0:
        yield Check("ray cluster", "ok", f"{address}: answers")
    else:
        yield Check("ray cluster", "missing", f"{address}: {answer.last}", remedy)


def _accepted(runs: Path) -> Iterator[Check]:
    """What has been seen to work on this machine's GPUs, by `make accept-gpu`."""
    try:
        told = json.loads((runs / ACCEPTED).read_text(encoding="utf-8"))
        passed, failed, when = int(told["passed"]), int(told["failed"]), str(told["ended"])
    except (OSError, ValueError, KeyError, TypeError):
        remedy = "on a GPU host: make accept-gpu (at most 12 minutes, nothing is downloaded but packages)"
        yield Check("gpu paths", "untested", f"untested on GPU: {UNTESTED}", remedy)
        return
    if failed:
        yield Check("gpu paths", "warning", f"accept-gpu: {failed} of {passed + failed} failed, {when}", "read its log")
    else:
        yield Check("gpu paths", "ok", f"accept-gpu: all {passed} checks passed, {when}")
