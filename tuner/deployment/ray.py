"""
Deployments on the nodes of a Ray cluster: a placement group for each, an actor for each process and for the load
client. Which node an engine goes to is decided here, because Ray packs or spreads a group as a whole; the group holds
what was decided.

Nothing is retried by Ray, and no environment and no file is shipped.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # would ship the working directory with whatever lies in it
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 would starve an engine beside any other work
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray._private.state import available_resources_per_node
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from tuner.configuration import Configuration
from tuner.deployment import gpus, vllm
from tuner.deployment.launch import Failure, Launch
from tuner.deployment.local import Unit, Units
from tuner.deployment.proof import claim
from tuner.deployment.ray_actors import ClientActor, Failed, InstanceActor, reap_node
from tuner.deployment.ray_cluster import connect
from tuner.deployment.ray_shapes import SLOT, RayNode, alive, home, misfit, pieces
from tuner.deployment.spec import Address, Command, ProcessSpec
from tuner.errors import InfrastructureFailed
from tuner.load.endpoint import Endpoint
from tuner.load.plan import LevelData, LevelPlan
from tuner.slo import Objective

_PENDING_LIMIT_S = 120.0
_CALL_LIMIT_S = 60.0
_STOP_LIMIT_S = 45.0 + gpus.MEMORY_LIMIT_S
#: How long Ray may take to hold what was free a moment ago; longer, and somebody else was faster.
_HOLD_LIMIT_S = 10.0
_NODE_LABEL = "ray.io/node-id"
#: How many calls one actor answers at once: waiting, looking, asking and stopping.
_CALLS = 8


def _get(reference: Any, limit_s: float | None = _CALL_LIMIT_S) -> Any:
    """The value of a remote call; a failure that came as a value is raised, a lost node too."""
    try:
        value = ray.get(reference, timeout=limit_s)
    except ray.exceptions.GetTimeoutError:
        raise InfrastructureFailed("node_lost", f"no answer from a node within {limit_s:g} s") from None
    except (ray.exceptions.RayActorError, ray.exceptions.NodeDiedError, ray.exceptions.WorkerCrashedError) as error:
        first = str(error).strip().splitlines()[0]
        raise InfrastructureFailed("node_lost", f"{type(error).__name__}: {first}") from None
    if isinstance(value, Failed):
        raise value.exception()
    return value


class RayHandle:
    """One process on some node. Fulfils `launch.Handle`."""

    def __init__(self, actor: Any, address: Address, log: Path) -> None:
        self._actor = actor
        self.address = address
        self._log = log
        self._offset = 0
        self._lock = threading.Lock()
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")

    def start(self, command: Command, env: Mapping[str, str], secrets: tuple[str, ...]) -> None:
        """See `Instance.start`."""
        _get(self._actor.start.remote(command, dict(env), secrets))

    def wait_ready(self, model: str, timeout_s: float, cancelled: threading.Event | None = None) -> float:
        """See `Instance.wait_ready`."""
        reference = self._actor.wait_ready.remote(model, timeout_s)
        until = time.monotonic() + timeout_s + _CALL_LIMIT_S
        while time.monotonic() < until:
            done, _ = ray.wait([reference], timeout=0.5)
            if done:
                return float(_get(reference))
            self._pull()
            if cancelled is not None and cancelled.is_set():
                self._actor.cancel.remote()
        raise InfrastructureFailed("node_lost", "a node does not answer")

    def ended(self) -> Failure | None:
        """See `Instance.ended`; a lost node is a death too."""
        try:
            failed, data = _get(self._actor.look.remote(self._offset))
        except InfrastructureFailed as error:
            return error
        with self._lock:
            self._write(data)
        if failed is None:
            return None
        self._pull()
        failure: Failure = failed.exception()
        return failure

    def request(self, method: str, path: str, timeout_s: float = 10.0, body: object = None) -> tuple[int, bytes]:
        """See `Instance.request`."""
        status, answer = _get(self._actor.request.remote(method, path, timeout_s, body), timeout_s + 30)
        return int(status), bytes(answer)

    def pids(self) -> list[int]:
        """Pids of server and guardian on their node."""
        return list(_get(self._actor.pids.remote()))

    def stop(self) -> list[int]:
        """End the process, fetch the rest of its log, end the actor. A node that is lost has its guardian."""
        try:
            left = list(_get(self._actor.stop.remote(), _STOP_LIMIT_S))
            self._pull()
        except InfrastructureFailed:
            left = []
        ray.kill(self._actor, no_restart=True)
        return left

    def _pull(self) -> None:
        with self._lock:
            while True:
                try:
                    data = _get(self._actor.read_log.remote(self._offset))
                except InfrastructureFailed:
                    return
                if not data:
                    return
                self._write(data, at=self._offset)

    def _write(self, data: bytes, at: int | None = None) -> None:
        """Append what was read; a piece that another thread has already written is dropped."""
        if not data or (at is not None and at != self._offset):
            return
        with self._log.open("ab") as file:
            file.write(data)
        self._offset += len(data)


class RayHost:
    """The processes of one deployment in one placement group. Fulfils `launch.Host`."""

    def __init__(
        self, specs: Sequence[ProcessSpec], objective: Objective, study: str, logs: Path, kept: "Kept"
    ) -> None:
        self._loopback = objective.cluster.bind == "loopback"
        self._study = study
        self._logs = logs
        self._kept = kept
        self._actors: list[Any] = []
        self._held: list[tuple[str, dict[str, list[Unit]]]] = []
        self._placement: dict[str, dict[str, object]] = {}
        engines = [spec.name for spec in specs if spec.units]
        #: The bundle of each process: its own, or that of the first engine for those that hold no units.
        self._bundle = {spec.name: engines.index(spec.name) if spec.units else 0 for spec in specs}
        with kept.placing:  # one deployment at a time, or two would each hold half of what both need
            self._group = _reserve(specs, objective)
        try:
            self._client = self._actor(ClientActor, 0, {}, 2).remote()
            self._actors.append(self._client)
        except BaseException:
            remove_placement_group(self._group)
            raise

    def place(self, spec: ProcessSpec) -> RayHandle:
        """An actor on the node of its bundle, with GPUs from Ray or cores from the node's slots."""
        index = self._bundle[spec.name]
        bundle = self._group.bundle_specs[index] if spec.units else {}
        actor = self._actor(InstanceActor, index, bundle, _CALLS).remote(spec, self._study, loopback=self._loopback)
        self._actors.append(actor)
        site = _get(actor.node.remote())
        cores: tuple[int, ...] = ()
        if spec.units and spec.cores:
            held = self._kept.take(site.node, site.cores, spec.cores * spec.units)
            self._held.append((site.node, held))
            cores = tuple(core for units in held.values() for unit in units for core in unit.cores)
        idle = self._kept.idle(site.node, site.used_mib)
        address = _get(actor.place.remote(cores, idle, gpus.MEMORY_LIMIT_S))
        self._placement[spec.name] = {"node": site.address, "gpus": list(site.gpus), "cores": list(cores)}
        return RayHandle(actor, address, self._logs / f"{spec.name}.log")

    def drive(self, endpoint: Endpoint, plan: LevelPlan, should_stop: Callable[[], str]) -> LevelData:
        """Run the load client in its actor."""
        reference = self._client.drive.remote(endpoint, plan)
        told = False
        while not ray.wait([reference], timeout=0.2)[0]:
            reason = "" if told else should_stop()
            if reason:
                self._client.stop.remote(reason)
                told = True
        data: LevelData = _get(reference)
        return data

    def facts(self) -> Mapping[str, object]:
        """Node, GPUs and cores of each process."""
        return {"placement": dict(self._placement), "ray_version": ray.__version__}

    def close(self) -> None:
        """End the actors, give cores and bundles back."""
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        self._actors.clear()
        for node, held in self._held:
            self._kept.give_back(node, held)
        self._held.clear()
        _give_back(self._group)

    def _actor(self, kind: type[Any], index: int, bundle: Mapping[str, float], calls: int) -> Any:
        rest = {name: amount for name, amount in bundle.items() if name not in {"CPU", "GPU"}}
        return ray.remote(kind).options(
            num_cpus=0,
            num_gpus=bundle.get("GPU", 0),
            resources=rest or None,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=calls,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index),
        )


def _misfit(specs: Sequence[ProcessSpec], objective: Objective) -> str | None:
    cluster = objective.cluster
    wanted = pieces(specs, cluster.pools)
    return misfit(wanted, cluster.pools, alive(ray.nodes()), one_node=cluster.bind == "loopback")


def _reserve(specs: Sequence[ProcessSpec], objective: Objective) -> PlacementGroup:
    """
    A placement group with a bundle for each process that holds units, in their order, on the nodes where they belong.

    Raises:
        InfrastructureFailed: `node_lost`, nobody let go of what it needs within the limit, or no living node has it.
    """
    cluster = objective.cluster
    wanted = pieces(specs, cluster.pools)
    until = time.monotonic() + _PENDING_LIMIT_S
    while True:
        homes = home(wanted, cluster.pools, _free(), one_node=cluster.bind == "loopback", spread=cluster.spread)
        if homes is not None:
            group = placement_group(
                [{piece.resource: float(piece.size)} for piece in wanted],
                strategy="PACK",
                bundle_label_selector=[{_NODE_LABEL: node} for node in homes],
            )
            if group.wait(_HOLD_LIMIT_S):
                return group
            remove_placement_group(group)
        refusal = _misfit(specs, objective)
        if refusal is not None:
            raise InfrastructureFailed("node_lost", f"never schedulable: {refusal}")
        if time.monotonic() > until:
            needs = ", ".join(f"{piece.size:g} {piece.resource} for {piece.role}" for piece in wanted)
            raise InfrastructureFailed(
                "node_lost", f"no node had room within {_PENDING_LIMIT_S:g} s for {needs}: others hold it"
            )
        time.sleep(0.5)


def _give_back(group: PlacementGroup) -> None:
    """
    Remove a placement group and wait until no node counts it any more, some 50 ms later: a deployment that is placed
    before would see the GPUs of the last one as taken and be spread over what is left.
    """
    remove_placement_group(group)
    until = time.monotonic() + _HOLD_LIMIT_S
    name = group.id.hex()
    while any(name in each for free in available_resources_per_node().values() for each in free):
        if time.monotonic() > until:
            return
        time.sleep(0.02)


def _free() -> list[RayNode]:
    """The living nodes with what is free on them at the moment."""
    return alive(ray.nodes(), available_resources_per_node())


class Kept:
    """What is known of the nodes from one deployment to the next: free cores, and the memory of idle GPUs."""

    def __init__(self) -> None:
        self.placing = threading.Lock()
        self._nodes: dict[str, Units] = {}
        self._idle_mib: dict[str, dict[str, int]] = {}
        self._lock = threading.Lock()

    def take(self, node: str, cores: tuple[int, ...], count: int) -> dict[str, list[Unit]]:
        """So many cores of a node that has `cores`: Ray counts slots and knows no cores."""
        with self._lock:
            if node not in self._nodes:
                self._nodes[node] = Units({SLOT: [Unit(cores=(core,)) for core in cores]})
        return self._nodes[node].take({SLOT: count}, _PENDING_LIMIT_S)

    def give_back(self, node: str, held: Mapping[str, list[Unit]]) -> None:
        """Make them free."""
        self._nodes[node].give_back(held)

    def idle(self, node: str, used_mib: Mapping[str, int]) -> dict[str, int]:
        """Memory in use on these GPUs of a node when each was first seen: now, if it is the first time."""
        with self._lock:
            known = self._idle_mib.setdefault(node, {})
            return {gpu: known.setdefault(gpu, used) for gpu, used in used_mib.items()}


class RayLauncher:
    """
    Makes deployments on a Ray cluster.

    Args:
        objective: Cluster, engine and workload.
        address: Of a running cluster, such as `10.0.0.1:6379` or `auto`; None starts one on this machine alone.
        study: Names the study; what an earlier tuner of the same study left on any node is ended first.

    Raises:
        InfrastructureFailed: `node_lost`, the cluster cannot be reached, or its versions differ from ours.
    """

    source = "live"

    def __init__(self, objective: Objective, address: str | None = None, *, study: str = "") -> None:
        self._objective = objective
        self._study = study or f"process-{os.getpid()}"
        self._ours = not ray.is_initialized()
        if self._ours:
            connect(objective, address)
        self._kept = Kept()
        self._interrupted = threading.Event()
        self.reaped = self._reap()

    @property
    def parallel(self) -> int:
        """How many deployments of the largest allowed size fit at once; at least 1."""
        units = sum(node.total.get("GPU", 0.0) + node.total.get(SLOT, 0.0) for node in alive(ray.nodes()))
        return max(1, int(units) // max(1, self._objective.cluster.max_gpus))

    def deployment(self, configuration: Configuration, logs: Path) -> Launch:
        """A deployment whose logs are streamed to `logs`; nothing is started yet."""
        specs = vllm.specs(configuration, self._objective)
        host = lambda: RayHost(specs, self._objective, self._study, logs, self._kept)  # noqa: E731
        return Launch(specs, self._objective, host, self._interrupted, claim(configuration))

    def check(self, configuration: Configuration) -> str | None:
        """Why the cluster, with the nodes that live now, can never hold the configuration; or None."""
        return _misfit(vllm.specs(configuration, self._objective), self._objective)

    def interrupt(self) -> None:
        """End whatever runs; see `Launcher`."""
        self._interrupted.set()

    def close(self) -> None:
        """Let go of the cluster; one that we started ends. Idempotent."""
        if self._ours and ray.is_initialized():
            ray.shutdown()

    def _reap(self) -> list[int]:
        task = ray.remote(reap_node)
        references = [
            task.options(
                num_cpus=0,
                max_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            ).remote(self._study)
            for node in ray.nodes()
            if node.get("Alive")
        ]
        return [pid for reference in references for pid in _get(reference)]
