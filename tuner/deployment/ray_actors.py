"""
What runs on the nodes of a Ray cluster: one actor for each process, one for the load client.

Failures travel as plain values, because an exception with several arguments does not survive Ray's transport.
"""

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.deployment.gpus import memory_used_mib, wait_for_memory
from tuner.deployment.guardian import reap_orphans
from tuner.deployment.instance import Instance, Place
from tuner.deployment.process import Settings
from tuner.deployment.spec import Address, Command, ProcessSpec
from tuner.errors import ConfigurationFailed, InfrastructureFailed, InputError
from tuner.load import process as load_process
from tuner.load.endpoint import Endpoint
from tuner.load.plan import LevelData, LevelPlan


@dataclass(frozen=True)
class Failed:
    """A failure as a value; `exception` makes it one again."""

    kind: str
    reason: str
    cause: str

    def exception(self) -> ConfigurationFailed | InfrastructureFailed | InputError:
        """The exception that it stands for."""
        if self.kind == "input":
            return InputError(self.cause)
        if self.kind == "configuration":
            return ConfigurationFailed(self.reason, self.cause)
        return InfrastructureFailed(self.reason, self.cause)


def as_value(error: ConfigurationFailed | InfrastructureFailed | InputError) -> Failed:
    """The value that stands for an exception."""
    if isinstance(error, InputError):
        return Failed("input", "", str(error))
    kind = "configuration" if isinstance(error, ConfigurationFailed) else "infrastructure"
    return Failed(kind, error.reason, error.cause)


def attempt(act: Callable[[], Any]) -> Any:
    """What `act` returns, or its failure as a value."""
    try:
        return act()
    except (ConfigurationFailed, InfrastructureFailed, InputError) as error:
        return as_value(error)


@dataclass(frozen=True)
class Site:
    """Where an actor is, and what it may use there."""

    node: str  # Ray's id
    address: str
    cores: tuple[int, ...]  # all that its process may use
    gpus: tuple[str, ...]  # given to it by Ray
    used_mib: Mapping[str, int]  # memory in use on these, by whomever


def node_registry(study: str) -> Path:
    """Where the guardians of a study write down what they run, on each node."""
    name = hashlib.sha256(study.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"slo-tuner-{os.getuid()}" / name


def reap_node(study: str) -> list[int]:
    """End what an earlier tuner of this study left on this node."""
    return reap_orphans(node_registry(study))


class InstanceActor:
    """One process on its node. Its methods are those of `Instance`."""

    def __init__(self, spec: ProcessSpec, study: str, *, loopback: bool) -> None:
        import ray

        self._spec = spec
        self._host = "127.0.0.1" if loopback else ray.util.get_node_ip_address()
        self._settings = Settings(node_registry(study), detach=True)
        self._directory = tempfile.TemporaryDirectory(prefix="tuner-log-")
        self._log = Path(self._directory.name) / f"{spec.name}.log"
        self._instance: Instance | None = None
        self._cancelled = threading.Event()
        self._gpus = tuple(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")) if ray.get_gpu_ids() else ()
        self._idle_mib: Mapping[str, int] = {}
        self._memory_limit_s = 0.0

    def node(self) -> Site:
        """Where it is, and what it may use there."""
        import ray

        cores = tuple(sorted(os.sched_getaffinity(0)))
        node = ray.get_runtime_context().get_node_id()
        return Site(node, ray.util.get_node_ip_address(), cores, self._gpus, memory_used_mib(self._gpus))

    def place(self, cores: tuple[int, ...], idle_mib: Mapping[str, int], memory_limit_s: float) -> Address | Failed:
        """
        Wait until the memory of its GPUs is free, and reserve ports on this node.

        Args:
            cores: That it is pinned to; () = not pinned.
            idle_mib: Memory in use on each of its GPUs before the study first took it.
            memory_limit_s: How long it may take, now and when it ends, until no more than that is in use.
        """
        self._idle_mib, self._memory_limit_s = idle_mib, memory_limit_s

        def act() -> Address:
            held = wait_for_memory(self._gpus, idle_mib, memory_limit_s)
            if held:
                raise InfrastructureFailed(
                    "node_lost", f"{os.uname().nodename}: {held} after {memory_limit_s:g} s: somebody else holds it"
                )
            self._instance = Instance(self._spec, Place(self._host, self._gpus, cores), self._log, self._settings)
            return self._instance.address

        return attempt(act)  # type: ignore[no-any-return]

    def start(self, command: Command, env: Mapping[str, str], secrets: tuple[str, ...]) -> Failed | None:
        """Start the process."""
        return attempt(lambda: self._made.start(command, env, secrets))  # type: ignore[no-any-return]

    def wait_ready(self, model: str, timeout_s: float) -> float | Failed:
        """Seconds until it is ready."""
        return attempt(lambda: self._made.wait_ready(model, timeout_s, self._cancelled))  # type: ignore[no-any-return]

    def cancel(self) -> None:
        """Give up waiting."""
        self._cancelled.set()

    def look(self, offset: int) -> tuple[Failed | None, bytes]:
        """How it died, if it did, and what its log holds from `offset` on: 1 MiB at most."""
        failure = self._made.ended()
        return (None if failure is None else as_value(failure)), self.read_log(offset)

    def read_log(self, offset: int) -> bytes:
        """1 MiB of the log from `offset` on."""
        try:
            with self._log.open("rb") as file:
                file.seek(offset)
                return file.read(1 << 20)
        except OSError:
            return b""

    def request(self, method: str, path: str, timeout_s: float, body: object = None) -> tuple[int, bytes]:
        """Ask its `http` port."""
        return self._made.request(method, path, timeout_s, body)

    def pids(self) -> list[int]:
        """Pids of server and guardian."""
        return self._made.pids()

    def stop(self) -> list[int]:
        """End it, and wait until its GPUs' memory is free again."""
        self._cancelled.set()
        left = [] if self._instance is None else self._instance.stop()
        if self._instance is not None:
            wait_for_memory(self._gpus, self._idle_mib, self._memory_limit_s)
        return left

    @property
    def _made(self) -> Instance:
        if self._instance is None:
            raise AssertionError(f"{self._spec.name} has no place yet")
        return self._instance


class ClientActor:
    """The load client, near the endpoint."""

    def __init__(self) -> None:
        self._reason = ""

    def drive(self, endpoint: Endpoint, plan: LevelPlan) -> LevelData | Failed:
        """One level of load."""
        self._reason = ""
        return attempt(  # type: ignore[no-any-return]
            lambda: load_process.drive(endpoint, plan, should_stop=lambda: self._reason)
        )

    def stop(self, reason: str) -> None:
        """End the level."""
        self._reason = reason
