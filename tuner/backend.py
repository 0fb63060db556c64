"""Which kind of deployment a study uses: live through Ray, live on this machine, or simulated."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.deployment import Launcher
from tuner.deployment.gpus import visible_gpus
from tuner.simulator.calibrated import Calibration
from tuner.slo import Objective


def resolve(wanted: str) -> str:
    """`auto` is Ray where this machine has GPUs, else the simulated cluster."""
    if wanted != "auto":
        return wanted
    return "ray" if visible_gpus(os.environ) else "simulated"


def check_simulated(objective: Objective) -> None:
    """
    Whether the simulator can stand in for this objective, before a study is made for it.

    Raises:
        InputError: The simulator does not know the model or the device.
    """
    from tuner.deployment.simulated import SimulatedLauncher

    SimulatedLauncher(objective)


def first_use(backend: str) -> str | None:
    """What somebody who waits for the first level should know; None where there is nothing to say."""
    if backend != "simulated":
        return None
    from tuner.simulator import kernel

    return None if kernel.is_compiled() else "compiling the simulator, once: 15 to 30 s"


def launcher_for(
    backend: str, objective: Objective, *, ray: str | None, registry: Path, calibration: Calibration | None = None
) -> Launcher:
    """
    The launcher of a backend.

    Args:
        backend: "simulated", "local" or "ray".
        objective: The objective file.
        ray: Address of a running cluster; None = a local one of our own.
        registry: Directory of the study in which running processes are written down, and the study's name to the nodes
            of a cluster; what an earlier tuner of the same study left is ended first.
        calibration: For the simulator: constants fitted to measured levels.

    Raises:
        InputError: The simulator does not know the model or the device.
        InfrastructureFailed: There is no such cluster.
    """
    match backend:
        case "simulated":
            from tuner.deployment.simulated import SimulatedLauncher

            return SimulatedLauncher(objective, calibration=calibration)
        case "local":
            from tuner.deployment.local import LocalLauncher

            return LocalLauncher(objective, registry=registry)
        case "ray":
            from tuner.deployment.ray import RayLauncher

            return RayLauncher(objective, address=ray, study=str(registry.resolve()))
        case _:
            raise ValueError(backend)


@contextmanager
def launcher_until(stop_at: float, launcher: Launcher) -> Iterator[Launcher]:
    """A launcher that is interrupted at a time (as of `time.time`), and closed at the end of the block."""
    timer = threading.Timer(min(stop_at - time.time(), threading.TIMEOUT_MAX), launcher.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield launcher
    finally:
        timer.cancel()
        launcher.close()
