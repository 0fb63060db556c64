"""Joining a Ray cluster, or starting one on this machine alone."""

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import ray
from ray._private import ray_constants

from tuner.deployment.gpus import visible_gpus
from tuner.deployment.ray_shapes import MARK, SLOT
from tuner.errors import InfrastructureFailed
from tuner.slo import Objective

_OBJECT_STORE_BYTES = 256 << 20


def connect(objective: Objective, address: str | None) -> None:
    """
    To the cluster at `address`, or to a new one of this machine with as many units as the pools and it have.

    Raises:
        InfrastructureFailed: `node_lost`, the cluster cannot be reached, or its versions differ from ours.
    """
    common: dict[str, Any] = {
        "namespace": "slo-tuner",
        "log_to_driver": False,
        "logging_level": "ERROR",
        "runtime_env": {},
    }
    try:
        if address is not None:
            _preflight(address)
            ray.init(address=address, **common)
            return
        cores = len(os.sched_getaffinity(0))
        sliced = [pool for pool in objective.cluster.pools if pool.unit == "cpu"]
        slots = sum(min(pool.units, cores // pool.cores) for pool in sliced)
        marks = {f"{MARK}{pool.name}": 1.0 for pool in sliced} if len(sliced) > 1 else {}
        with _on_loopback() if objective.cluster.bind == "loopback" else contextlib.nullcontext():
            ray.init(
                address="local",
                include_dashboard=False,
                num_cpus=cores,
                num_gpus=len(visible_gpus(os.environ)),
                resources={SLOT: float(slots), **marks} if slots else None,
                object_store_memory=_OBJECT_STORE_BYTES,
                **common,
            )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InfrastructureFailed("node_lost", f"no Ray cluster at {address or 'this machine'}: {first}") from error


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """
    Makes the cluster that starts meanwhile listen on loopback alone.

    Ray listens on every address of a Linux machine and turns a loopback address that it is given into the node's.
    What keeps it on loopback is the switch meant for laptops, read from the environment by whatever it starts.
    """
    name = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    before, enabled = os.environ.get(name), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[name], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _preflight(address: str) -> None:
    """A quick answer whether anybody listens there: Ray itself keeps trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        with socket.create_connection((host, int(port)), timeout=10):
            return
