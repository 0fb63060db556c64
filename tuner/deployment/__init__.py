"""
A configuration becomes an endpoint, and is gone afterwards.

The seam is `Deployment`: three kinds stand behind it (`local`, `ray`, `simulated`) and pass one contract suite
(`tests/contract/`). Use it as

    with deployment as running:
        data = running.drive(plan)

Entering raises `ConfigurationFailed` or `InfrastructureFailed`; so does `drive` when a process dies under load. On
every way out, nothing that was started is left.
"""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, runtime_checkable

from tuner.configuration import Configuration
from tuner.load.plan import LevelData, LevelPlan


class Running(Protocol):
    """A deployment that answered a real token from the right model."""

    @property
    def source(self) -> str:
        """`live`, or `simulated`."""

    @property
    def facts(self) -> Mapping[str, object]:
        """Versions, node names, seconds to ready: whatever is worth keeping, JSON-able."""

    def drive(self, plan: LevelPlan) -> LevelData:
        """
        Run one level of load to its end, or until it is certainly broken.

        Caches are brought into the state that `plan.workload.cache` asks for before the load starts.

        Raises:
            ConfigurationFailed: A process died under the load (`server_died`, `role_lost`, `out_of_memory`).
            InfrastructureFailed: The node was lost, or the client could not run.
        """


@runtime_checkable
class Answering(Protocol):
    """A running deployment that can be asked single questions outside of any level: what the tuner started itself."""

    def ask(self, body: Mapping[str, object]) -> tuple[int, bytes]:
        """
        Status and body of one completion, from the endpoint; status 0 stands for no response.

        Raises:
            ConfigurationFailed, InfrastructureFailed: A process died.
            Interrupted: Somebody asked to stop.
        """

    def forget(self) -> None:
        """Empty the engines' own prefix caches; a store keeps what it has."""

    def counters(self) -> Mapping[str, float]:
        """Counters of the engines since they started."""


class Deployment(Protocol):
    """Not started yet. Entering starts everything and waits for a real token; leaving removes everything."""

    @property
    def commands(self) -> list[dict[str, object]]:
        """Role, argv and env (secrets masked) of each process, for `commands.json`; templates until it was started."""

    def __enter__(self) -> Running: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Launcher(Protocol):
    """Makes deployments of one kind: `local.LocalLauncher`, `ray.RayLauncher`, `simulated.SimulatedLauncher`."""

    @property
    def source(self) -> str:
        """`live`, or `simulated`."""

    @property
    def parallel(self) -> int:
        """How many deployments of `Cluster.max_gpus` units fit at once; at least 1."""

    def deployment(self, configuration: Configuration, logs: Path) -> Deployment:
        """
        A deployment of this configuration whose process logs go to `logs`. Starts nothing yet."""

    def check(self, configuration: Configuration) -> str | None:
        """Why this configuration can never be placed on the cluster as it is now, or None."""

    def interrupt(self) -> None:
        """
        End whatever runs, from any thread: waiting deployments and levels raise `Interrupted` within seconds.

        Nothing can be deployed afterwards.
        """

    def close(self) -> None:
        """Let go of the cluster. Idempotent."""
