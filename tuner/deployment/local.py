"""Deployments on this machine, without Ray."""

import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.configuration import Configuration
from tuner.deployment import gpus, vllm
from tuner.deployment.guardian import reap_orphans
from tuner.deployment.instance import Instance, Place
from tuner.deployment.launch import Launch
from tuner.deployment.process import Settings
from tuner.deployment.proof import claim
from tuner.deployment.spec import ProcessSpec
from tuner.errors import InfrastructureFailed
from tuner.load import process as load_process
from tuner.load.endpoint import Endpoint
from tuner.load.plan import LevelData, LevelPlan
from tuner.slo import Objective, Pool

LOOPBACK = "127.0.0.1"
_UNITS_LIMIT_S = 600.0


@dataclass(frozen=True)
class Unit:
    """A GPU, or a CPU slot with its cores."""

    gpu: str = ""
    cores: tuple[int, ...] = ()


def units_here(pools: tuple[Pool, ...], gpus: tuple[str, ...], cores: tuple[int, ...]) -> dict[str, list[Unit]]:
    """Units of each pool, by name, as far as this machine has them; no GPU and no core is in two units."""
    left_gpus, left_cores = list(gpus), list(cores)
    found: dict[str, list[Unit]] = {}
    for pool in pools:
        units: list[Unit] = []
        for _ in range(pool.units):
            if pool.unit == "gpu" and left_gpus:
                units.append(Unit(gpu=left_gpus.pop(0)))
            elif pool.unit == "cpu" and len(left_cores) >= pool.cores:
                units.append(Unit(cores=tuple(left_cores[: pool.cores])))
                del left_cores[: pool.cores]
        found[pool.name] = units
    return found


class Units:
    """Which units are free. A unit is held by one deployment at a time."""

    def __init__(self, units: Mapping[str, list[Unit]]) -> None:
        self._free = {name: list(each) for name, each in units.items()}
        self._changed = threading.Condition()
        self.idle_mib: dict[str, int] = {}  # memory in use on each GPU before it was first taken

    def take(self, needs: Mapping[str, int], limit_s: float) -> dict[str, list[Unit]]:
        """
        All units of one deployment at once, by pool.

        Raises:
            InfrastructureFailed: They did not become free within `limit_s`.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: all(len(self._free.get(name, ())) >= count for name, count in needs.items()), limit_s
            ):
                raise InfrastructureFailed("node_lost", f"units {dict(needs)} did not become free in {limit_s:g} s")
            return {name: [self._free[name].pop(0) for _ in range(count)] for name, count in needs.items()}

    def give_back(self, units: Mapping[str, list[Unit]]) -> None:
        """Make them free for others."""
        with self._changed:
            for name, each in units.items():
                self._free[name] = sorted([*self._free[name], *each], key=lambda unit: (unit.cores, unit.gpu))
            self._changed.notify_all()


def needs_by_pool(specs: Sequence[ProcessSpec]) -> dict[str, int]:
    """Units that a deployment holds of each pool."""
    needs: dict[str, int] = {}
    for spec in specs:
        if spec.units:
            needs[spec.pool] = needs.get(spec.pool, 0) + spec.units
    return needs


class LocalHost:
    """The processes of one deployment on this machine. Fulfils `launch.Host`."""

    def __init__(self, specs: Sequence[ProcessSpec], units: Units, logs: Path, settings: Settings) -> None:
        self._units = units
        self._logs = logs
        self._settings = settings
        self._held = units.take(needs_by_pool(specs), _UNITS_LIMIT_S)
        self._left = {name: list(each) for name, each in self._held.items()}
        self._gpus = tuple(unit.gpu for each in self._held.values() for unit in each if unit.gpu)
        self._places: dict[str, Place] = {}
        for gpu, used in gpus.memory_used_mib(self._gpus).items():
            units.idle_mib.setdefault(gpu, used)
        held = self._wait_for_memory()
        if held:
            self._units.give_back(self._held)
            raise InfrastructureFailed("node_lost", f"{held} after {gpus.MEMORY_LIMIT_S:g} s: somebody else holds it")

    def place(self, spec: ProcessSpec) -> Instance:
        """Units, ports and a directory for one process."""
        mine = [self._left[spec.pool].pop(0) for _ in range(spec.units)] if spec.units else []
        place = Place(
            host=LOOPBACK,
            gpus=tuple(unit.gpu for unit in mine if unit.gpu),
            cores=tuple(core for unit in mine for core in unit.cores),
        )
        self._places[spec.name] = place
        return Instance(spec, place, self._logs / f"{spec.name}.log", self._settings)

    def drive(self, endpoint: Endpoint, plan: LevelPlan, should_stop: Callable[[], str]) -> LevelData:
        """Run the load client in a process of its own."""
        return load_process.drive(endpoint, plan, should_stop=should_stop)

    def facts(self) -> Mapping[str, object]:
        """Where each process runs."""
        node = os.uname().nodename
        return {
            "placement": {
                name: {"node": node, "gpus": list(place.gpus), "cores": list(place.cores)}
                for name, place in self._places.items()
            }
        }

    def _wait_for_memory(self) -> str:
        return gpus.wait_for_memory(self._gpus, self._units.idle_mib, gpus.MEMORY_LIMIT_S)

    def close(self) -> None:
        """Wait until the GPUs' memory is free again, then give the units back."""
        if self._held:
            self._wait_for_memory()
        held, self._held = self._held, {}
        self._units.give_back(held)


class LocalLauncher:
    """
    Makes deployments on this machine.

    Args:
        objective: Cluster, engine and workload.
        registry: Directory of the study in which running processes are written down; what an earlier tuner of the same
            study left is ended first. None: a directory of this process alone.
    """

    source = "live"

    def __init__(self, objective: Objective, *, registry: Path | None = None) -> None:
        self._objective = objective
        self._temporary = None if registry is not None else tempfile.TemporaryDirectory(prefix="tuner-registry-")
        self._settings = Settings(registry or Path(self._temporary.name if self._temporary else ""))
        self.reaped = reap_orphans(self._settings.registry)
        pools = tuple(replace(pool, nodes=1, per_node=pool.units) for pool in objective.cluster.pools)
        here = units_here(pools, gpus.visible_gpus(os.environ), tuple(sorted(os.sched_getaffinity(0))))
        self._have = {name: len(units) for name, units in here.items()}
        self._units = Units(here)
        self._interrupted = threading.Event()

    @property
    def parallel(self) -> int:
        """How many deployments of the largest allowed size fit at once; at least 1."""
        return max(1, sum(self._have.values()) // max(1, self._objective.cluster.max_gpus))

    def deployment(self, configuration: Configuration, logs: Path) -> Launch:
        """A deployment whose logs go to `logs`; nothing is started yet."""
        specs = vllm.specs(configuration, self._objective)
        host = lambda: LocalHost(specs, self._units, logs, self._settings)  # noqa: E731
        return Launch(specs, self._objective, host, self._interrupted, claim(configuration))

    def check(self, configuration: Configuration) -> str | None:
        """Why this machine can never hold the configuration, or None."""
        for pool, count in needs_by_pool(vllm.specs(configuration, self._objective)).items():
            have = self._have.get(pool, 0)
            if count > have:
                return f"needs {count} units of pool {pool}, this machine has {have}"
        return None

    def interrupt(self) -> None:
        """End whatever runs; see `Launcher`."""
        self._interrupted.set()

    def close(self) -> None:
        """Let go of the registry. Idempotent."""
        if self._temporary is not None:
            self._temporary.cleanup()
