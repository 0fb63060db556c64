"""One point of the search space: canonical key, and the units (GPUs or CPU slots) that each role holds."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tuner.slo import Scalar

RoleName = Literal["engine", "prefill", "decode"]

#: Knobs that shape the deployment; every other knob is a flag of `vllm serve` under the same name.
SHAPE_KNOBS = ("mode", "replicas", "kv_store", "kv_transfer")
#: Flags whose product is the units that one replica holds. They go to the engine as flags too.
PARALLEL_KNOBS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@dataclass(frozen=True)
class Role:
    """Engines that do the same work."""

    name: RoleName
    replicas: int
    units_each: int  # tp × pp × dp
    flags: Mapping[str, Scalar]  # of `vllm serve`, with underscores; None = the flag is absent

    @property
    def units(self) -> int:
        return self.replicas * self.units_each


@dataclass(frozen=True)
class Configuration:
    """
    Knobs by name. An absent knob, or one that is None, leaves the engine's default; False is a value of its own.

    Equal keys mean equal commands: two configurations are the same if and only if their keys are.
    """

    knobs: Mapping[str, Scalar]

    @cached_property
    def key(self) -> str:
        """Canonical compact JSON, names sorted, None left out."""
        known = {name: value for name, value in sorted(self.knobs.items()) if value is not None}
        return json.dumps(known, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    @property
    def mode(self) -> str:
        return str(self.knobs.get("mode") or "aggregated")

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """The engines, by role. Aggregated deployments have the one role `engine`."""
        units_each = 1
        for name in PARALLEL_KNOBS:
            units_each *= int(self.knobs.get(name) or 1)
        flags = {name: value for name, value in self.knobs.items() if name not in SHAPE_KNOBS}
        return (Role("engine", int(self.knobs.get("replicas") or 1), units_each, flags),)

    @property
    def units(self) -> int:
        """GPUs (or CPU slots) of all roles."""
        return sum(role.units for role in self.roles)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and other.key == self.key
