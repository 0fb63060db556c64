"""Which kind of deployment a study uses: live through Ray, live on this machine, or simulated."""

import shutil
from pathlib import Path

from tuner.deployment import Launcher
from tuner.model import ModelFacts
from tuner.slo import Objective


def resolve(wanted: str) -> str:
    """`auto` is Ray where this machine has GPUs, else the simulated cluster."""
    if wanted != "auto":
        return wanted
    return "ray" if shutil.which("nvidia-smi") is not None else "simulated"


def launcher_for(
    backend: str, objective: Objective, *, facts: ModelFacts | None, ray: str | None, state: Path
) -> Launcher:
    """
    The launcher of a backend.

    Args:
        backend: "simulated", "local" or "ray".
        objective: The objective file.
        facts: Of the model; the simulator needs them.
        ray: Address of a running cluster; None = a local one of our own.
        state: Directory where started processes are registered, so that a later start can clean up after a crash.

    Raises:
        InputError: The simulator does not know the model or the device.
        InfrastructureFailed: There is no such cluster.
    """
    match backend:
        case "simulated":
            from tuner.deployment.simulated import SimulatedLauncher

            return SimulatedLauncher(objective)
        case "local":
            from tuner.deployment.local import LocalLauncher

            return LocalLauncher(objective, state=state)
        case "ray":
            from tuner.deployment.ray import RayLauncher

            return RayLauncher(objective, address=ray, state=state)
        case _:
            raise ValueError(backend)
