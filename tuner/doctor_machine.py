"""What `tuner doctor` looks at on the machine itself: Python, packages, kernel, CPU, GPUs, limits, disk, leftovers."""

import fcntl
import json
import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from tuner import naming, tracking_uri
from tuner.deployment import guardian
from tuner.deployment.ports import Reservation
from tuner.deployment.spec import PortNeed
from tuner.doctor_check import Check, ask
from tuner.errors import InfrastructureFailed
from tuner.load.gauges import NICENESS
from tuner.lock import is_held

DISTRIBUTION = "slo-tuner"
GIB = 1024**3
#: Streams that the load client is made for, and as many descriptors.
_STREAMS = 4096
_FREE_LOW_GIB, _FREE_LEAST_GIB = 5.0, 0.2
_PROBE_S = 20.0
_GPU_IN_USE_MIB = 1024
_INSTALL = "reinstall the tuner: make env, or pip install slo-tuner"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: What is relied on beyond a version: package → program that fails where it does not hold.
_BEHAVIOURS = {
    "optuna": """
import optuna
optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.create_study()
trial = study.ask()
trial.suggest_int("knob", 1, 4)
trial.set_constraint("limit", -0.5)
study.tell(trial, 1.0)
if study.trials[0].constraints != {"limit": -0.5}:
    raise SystemExit("a constraint that was told is not kept")
""",
    "ray": """
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
""",
    "mlflow": """
import os
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient
""",
}


def python() -> Iterator[Check]:
    """Version of Python, and of every package that the distribution names."""
    found = f"Python {platform.python_version()}"
    try:
        wanted = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        yield Check("python", "warning", f"{found}; {DISTRIBUTION} is not installed as a package", _INSTALL)
        return
    wrong, right = [], []
    for each in wanted:
        if each.marker is not None and not each.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(each.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{each.name} is not installed")
            continue
        if each.specifier.contains(version, prereleases=True):
            right.append(f"{each.name} {version}")
        else:
            wrong.append(f"{each.name} {version}, needed {each.specifier}")
    yield Check("python", "ok", f"{found} at {sys.executable}")
    if wrong:
        yield Check("packages", "missing", "; ".join(wrong), _INSTALL)
    else:
        yield Check("packages", "ok", ", ".join(right))


def behaviours() -> Iterator[Check]:
    """Whether packages do what is relied on, each in a process of its own."""
    for package, program in _BEHAVIOURS.items():
        answer = ask([sys.executable, "-P", "-c", program], _PROBE_S)
        if answer.code == 0:
            yield Check(package, "ok", f"{package} {_version(package)} does what is relied on")
        elif answer.code is None:
            yield Check(package, "warning", answer.err, "the machine may be busy: run `tuner doctor` again")
        else:
            yield Check(package, "missing", f"{package} {_version(package)}: {answer.last}", _INSTALL)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def kernel() -> Iterator[Check]:
    """What the tear-down of processes needs: Linux with /proc and pidfds."""
    found = f"{platform.system()} {platform.release()}"
    if guardian.identify(os.getpid()) is None or not hasattr(os, "pidfd_open"):
        yield Check("kernel", "missing", f"{found}, without /proc or pidfds", "run on Linux 5.3 or later")
        return
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        remedy = "run on Linux 5.3 or later, or allow pidfd_open in the sandbox"
        yield Check("kernel", "missing", f"{found}: pidfd_open: {error.strerror}", remedy)
        return
    yield Check("kernel", "ok", f"{found}: processes can be followed and ended for certain")


def cpu() -> Iterator[Check]:
    """Cores and memory that this process may use."""
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory()
    found = f"{cores} of {os.cpu_count()} cores, {memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    if cores < 2:
        yield Check("cpu", "warning", found, "load client and server share one core: times will be wrong, use two")
    elif memory.available < 4 * GIB:
        yield Check("cpu", "warning", found, "a vLLM engine on CPU takes about 3 GiB: end other programs")
    else:
        yield Check("cpu", "ok", found)


def gpus() -> Iterator[Check]:
    """GPUs as nvidia-smi tells them; others are not looked for."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,memory.used,driver_version", "--format=csv,noheader,nounits"]
    answer = ask(query, _PROBE_S)
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.out.splitlines() if line.count(",") == 3]
    if answer.code != 0 or not rows:
        why = "nvidia-smi is not installed" if shutil.which("nvidia-smi") is None else answer.last or "no GPU listed"
        remedy = "studies run on the simulated cluster (the default), or on CPU slots: objectives/cpu-demo.yaml"
        yield Check("gpus", "warning", f"none: {why}", remedy)
        return
    kinds = sorted({f"{name} of {total} MiB" for name, total, _, _ in rows})
    yield Check("gpus", "ok", f"{len(rows)}: {', '.join(kinds)}, driver {rows[0][3]}")
    busy = [f"GPU {index}: {row[2]} MiB" for index, row in enumerate(rows) if float(row[2] or 0) > _GPU_IN_USE_MIB]
    if busy:
        remedy = "nvidia-smi names the programs: end them, or hide these GPUs with CUDA_VISIBLE_DEVICES"
        yield Check("gpus", "warning", f"in use by others: {', '.join(busy)}", remedy)


def limits() -> Iterator[Check]:
    """Open files and priority, for the load client."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _STREAMS:
        remedy = f"raise it for thousands of streams: ulimit -Hn {_STREAMS}, or LimitNOFILE= of the service"
        yield Check("open files", "warning", f"at most {hard} (hard limit)", remedy)
    else:
        shown = "unlimited" if hard == resource.RLIM_INFINITY else f"up to {hard}"
        yield Check("open files", "ok", f"{shown}; the load client raises its own limit")
    program = f"import os; os.setpriority(os.PRIO_PROCESS, 0, {NICENESS})"
    if ask([sys.executable, "-I", "-S", "-c", program], _PROBE_S).code == 0:
        yield Check("priority", "ok", f"the load client may raise its own to nice {NICENESS}")
    else:
        remedy = "grant CAP_SYS_NICE or a nice limit (ulimit -e 30) where servers and client share cores"
        yield Check("priority", "warning", "the load client runs at normal priority", remedy)


def ports() -> Iterator[Check]:
    """Whether servers can listen on loopback."""
    try:
        with Reservation("127.0.0.1", [PortNeed("http", 8)]) as held:
            yield Check("ports", "ok", f"127.0.0.1 has free ports, such as {held.ports['http']}")
    except InfrastructureFailed as error:
        yield Check("ports", "missing", error.cause, "end programs that hold ports 20000 to 32000")


def runs_directory(runs: Path) -> Iterator[Check]:
    """Whether studies can be written there: rights, locks, space."""
    here = runs.absolute()
    place = next(path for path in (here, *here.parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".doctor-") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        remedy = "choose another --runs, on a local disk that you may write"
        yield Check("runs", "missing", f"{place}: {error.strerror}", remedy)
        return
    free = shutil.disk_usage(place).free / GIB
    found = f"{here}: {free:.1f} GiB free" + ("" if place == here else ", made by the first study")
    network = tracking_uri.on_network(place)
    if free < _FREE_LEAST_GIB:
        yield Check("runs", "missing", found, "free disk space, or choose another --runs")
    elif free < _FREE_LOW_GIB:
        yield Check("runs", "warning", found, "records and logs of a long study may take gigabytes: free disk space")
    elif network is not None:
        remedy = "SQLite's locks are not reliable there: put --runs on a local disk, or give --mlflow and --storage"
        yield Check("runs", "warning", f"{found}; on {network}", remedy)
    else:
        yield Check("runs", "ok", found)


def leftovers(runs: Path) -> Iterator[Check]:
    """Processes that a study has written down and that live although nobody works on it."""
    found = False
    for name in naming.studies(runs):
        pids = sorted({pid for entry in (runs / name / "processes").glob("*.json") for pid in _alive(entry)})
        if pids and not is_held(runs / name):
            found = True
            listed = ", ".join(map(str, pids))
            remedy = f"going on with it ends them: tuner optimize --slo … --study {name}; or: kill {listed}"
            yield Check("leftovers", "warning", f"study {name}: processes {listed} of a killed tuner still run", remedy)
    if not found:
        yield Check("leftovers", "ok", f"no process of an earlier study in {runs} is left")


def _alive(entry: Path) -> list[int]:
    try:
        told = json.loads(entry.read_text(encoding="utf-8"))
        listed = [guardian.Process(*each) for each in (*told["processes"], told["guardian"])]
        here = told["machine"] == guardian.machine()
    except (OSError, ValueError, TypeError, KeyError):
        return []
    return [each.pid for each in listed if guardian.identify(each.pid) == each] if here else []


def browser() -> Iterator[Check]:
    """Headless browsers are for the project's own tests of pages."""
    path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if path is None:
        yield Check("browser", "warning", "none", "optional: tests of report pages need Chromium (make system-deps)")
    else:
        yield Check("browser", "ok", path)
