"""One point of the search space: canonical key, and the units (GPUs or CPU slots) that each role holds."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tuner.errors import InputError
from tuner.slo import Cluster, Pool, Scalar

RoleName = Literal["engine", "prefill", "decode"]

#: How engines share the work of a request.
MODES = ("aggregated",)
#: Policies of `vllm-router` that need nothing beside the workers.
ROUTER_POLICIES = ("round_robin", "random", "power_of_two", "cache_aware")
#: Knobs that shape the deployment; every other knob is a flag of `vllm serve` under the same name.
SHAPE_KNOBS = ("mode", "replicas", "pool", "router_policy", "kv_store", "kv_transfer")
#: Flags whose product is the units that one replica holds. They go to the engine as flags too.
PARALLEL_KNOBS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@dataclass(frozen=True)
class Role:
    """Engines that do the same work."""

    name: RoleName
    replicas: int
    units_each: int  # tp × pp × dp
    flags: Mapping[str, Scalar]  # of `vllm serve`, with underscores; None = the flag is absent
    pool: str | None = None  # name of the pool that it runs on; None = the cluster's first

    @property
    def units(self) -> int:
        return self.replicas * self.units_each


@dataclass(frozen=True)
class Configuration:
    """
    Knobs by name. An absent knob, or one that is None, leaves the engine's default; False is a value of its own.

    Equal keys mean equal commands: two configurations are the same if and only if their keys are. A composite value
    of a flag stands here as its compact JSON text.
    """

    knobs: Mapping[str, Scalar]

    @cached_property
    def key(self) -> str:
        """Canonical compact JSON, names sorted, None left out, floats as they are rendered (1.0 is 1)."""
        known = {name: plain_number(value) for name, value in sorted(self.knobs.items()) if value is not None}
        return json.dumps(known, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    @property
    def mode(self) -> str:
        return str(self._knob("mode", "aggregated"))

    @property
    def router_policy(self) -> str:
        """How the router spreads requests over replicas; of no meaning with one replica."""
        return str(self._knob("router_policy", "round_robin"))

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """
        The engines, by role. Aggregated deployments have the one role `engine`.

        Raises:
            InputError: A count is no whole number above 0.
        """
        units_each = math.prod(self._count(name) for name in PARALLEL_KNOBS)
        flags = {name: value for name, value in self.knobs.items() if name not in SHAPE_KNOBS}
        pool = self.knobs.get("pool")
        return (Role("engine", self._count("replicas"), units_each, flags, None if pool is None else str(pool)),)

    @property
    def units(self) -> int:
        """GPUs (or CPU slots) of all roles."""
        return sum(role.units for role in self.roles)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and other.key == self.key

    def _knob(self, name: str, default: Scalar) -> Scalar:
        value = self.knobs.get(name)
        return default if value is None else value

    def _count(self, name: str) -> int:
        value = plain_number(self._knob(name, 1))
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"configuration: {name}: got {value!r}: a whole number above 0 is needed")
        return value


def pool_of(role: Role, cluster: Cluster) -> Pool:
    """
    The pool that a role runs on: the one it names, else the cluster's first.

    Raises:
        InputError: The cluster has no pool of this name.
    """
    if role.pool is None:
        return cluster.pools[0]
    for pool in cluster.pools:
        if pool.name == role.pool:
            return pool
    names = ", ".join(pool.name for pool in cluster.pools)
    raise InputError(f"configuration: pool: got {role.pool!r}: the cluster has {names}")


def plain_number(value: Scalar) -> Scalar:
    """The value without float noise, so that values which render alike are equal: 1.0 is 1, 0.8500…01 is 0.85."""
    if isinstance(value, float) and math.isfinite(value):
        rounded = float(f"{value:.12g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
    return value


def shape_problem(name: str, value: Scalar) -> str | None:
    """Why this shape knob cannot have this value, with the remedy; None = it can. None as value = the default."""
    if value is None:
        return None
    if name == "replicas":
        plain = plain_number(value)
        whole = isinstance(plain, int) and not isinstance(plain, bool) and plain >= 1
        return None if whole else f"got {value!r}: a whole number above 0 is needed"
    if name == "pool":
        return None if isinstance(value, str) else f"got {value!r}: the name of a pool of the cluster is needed"
    options = {"mode": MODES, "router_policy": ROUTER_POLICIES}.get(name, ())
    if value in options:
        return None
    return f"got {value!r}: possible here: {', '.join(options) or 'nothing but null'}"
