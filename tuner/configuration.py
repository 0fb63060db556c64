"""One point of the search space: canonical key, and the units (GPUs or CPU slots) that each role holds."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tuner.errors import InputError
from tuner.flags import known
from tuner.slo import Cluster, Pool, Scalar

RoleName = Literal["engine", "prefill", "decode"]
Side = Literal["prefill", "decode"]

#: How engines share the work of a request: each does all of it, or some fill the KV cache and others go on from there.
MODES = ("aggregated", "disaggregated")
SIDES: tuple[Side, ...] = ("prefill", "decode")
#: Policies of `vllm-router` that need nothing beside the workers.
ROUTER_POLICIES = ("round_robin", "random", "power_of_two", "cache_aware")
#: How the KV cache gets from prefill to decode; the first one is the default.
KV_TRANSFERS = ("nixl", "mooncake", "lmcache")
#: Where KV blocks go when an engine's own cache has no room: nowhere, host memory of the engine, or a server.
KV_STORES = ("none", "cpu_offload", "lmcache", "mooncake")
#: Where LMCache keeps blocks: in a server that engines share, or in the engines; the first one is the default.
LMCACHE_MODES = ("server", "in_process")
#: What a deployment holds of a store, over all nodes together, and the network bandwidth that it reserves.
AMOUNT_KNOBS = ("kv_store_ram_gib", "kv_store_ssd_gib", "network_gbit")
#: Knobs that shape the deployment; every other knob is a flag of `vllm serve` under the same name, with `prefill_` or
#: `decode_` before it for one side alone.
SHAPE_KNOBS = (
    "mode",
    "replicas",
    "pool",
    "router_policy",
    "kv_store",
    "kv_transfer",
    "lmcache_blending",
    "lmcache_mode",
    "prefill_replicas",
    "decode_replicas",
    "prefill_pool",
    "decode_pool",
    *AMOUNT_KNOBS,
)
#: Flags whose product is the units that one replica holds. They go to the engine as flags too.
PARALLEL_KNOBS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
#: Shape knobs that count engines.
COUNT_KNOBS = ("replicas", "prefill_replicas", "decode_replicas")

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": MODES,
    "router_policy": ROUTER_POLICIES,
    "kv_transfer": KV_TRANSFERS,
    "kv_store": KV_STORES,
    "lmcache_mode": LMCACHE_MODES,
}
_STORE_SIZES = ("kv_store_ram_gib", "kv_store_ssd_gib")
_KINDS: tuple[tuple[tuple[str, ...], type, str], ...] = (
    (("pool", "prefill_pool", "decode_pool"), str, "the name of a pool of the cluster"),
    (("lmcache_blending",), bool, "true or false"),
)


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

    @property
    def caches(self) -> int:
        """KV caches that know nothing of each other: one in each engine, and in each rank of its data parallelism."""
        return self.replicas * _count("data_parallel_size", self.flags.get("data_parallel_size"))


@dataclass(frozen=True)
class Configuration:
    """
    Knobs by name. An absent knob, or one that is None, leaves the engine's default; False is a value of its own.

    In a disaggregated deployment a flag without a prefix goes to both sides, `prefill_<flag>` and `decode_<flag>` to
    one, where they win. Equal keys mean equal commands. A composite value of a flag stands here as its compact JSON
    text.
    """

    knobs: Mapping[str, Scalar]

    @cached_property
    def effective(self) -> Mapping[str, Scalar]:
        """
        The knobs that mean something beside the others, by name; None and the defaults of `mode` and `kv_store` left
        out, floats as they are rendered (1.0 is 1).
        """
        given = {name: plain_number(value) for name, value in sorted(self.knobs.items()) if value is not None}
        idle = set() if self.mode == "disaggregated" else {name for name in given if _of_a_split(name)}
        if self.mode == "disaggregated":
            idle |= {"replicas"}
            idle |= {name for name in given if all(f"{side}_{name}" in given for side in SIDES)}
        if self.kv_store == "none":
            idle |= {"kv_store", *_STORE_SIZES}
        idle |= self._idle_of_lmcache()
        if self.mode == "aggregated":
            idle |= {"mode"}
        return {name: value for name, value in given.items() if name not in idle}

    @cached_property
    def key(self) -> str:
        """Canonical compact JSON of the effective knobs, names sorted."""
        return json.dumps(dict(self.effective), separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    @property
    def mode(self) -> str:
        return str(self._knob("mode", "aggregated"))

    @property
    def router_policy(self) -> str:
        """How the router spreads requests over replicas; of no meaning with one replica."""
        return str(self._knob("router_policy", "round_robin"))

    @property
    def kv_store(self) -> str:
        """One of `KV_STORES`."""
        return str(self._knob("kv_store", "none"))

    @property
    def lossy(self) -> bool:
        """Whether reuse changes the KV cache by design (CacheBlend): to be used with its answers compared alone."""
        return self.effective.get("lmcache_blending") is True

    @property
    def store_in_engines(self) -> bool:
        """Whether engines keep the store themselves, so that none finds what another has put there."""
        return self.kv_store == "cpu_offload" or self.lossy or self.effective.get("lmcache_mode") == "in_process"

    @property
    def kv_transfer(self) -> str | None:
        """One of `KV_TRANSFERS`; None where nothing is transferred."""
        return str(self._knob("kv_transfer", KV_TRANSFERS[0])) if self.mode == "disaggregated" else None

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """
        The engines, by role: `engine` alone, or `prefill` and `decode` in this order.

        Raises:
            InputError: A count is no whole number above 0.
        """
        if self.mode != "disaggregated":
            return (self._role("engine", "replicas", self.effective, "pool"),)
        return tuple(self._side(side) for side in SIDES)

    @property
    def units(self) -> int:
        """GPUs (or CPU slots) of all roles."""
        return sum(role.units for role in self.roles)

    @property
    def storing_role(self) -> RoleName:
        """The role whose engines read and write the store: the one that fills KV caches."""
        return self.roles[0].name

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and other.key == self.key

    def _idle_of_lmcache(self) -> set[str]:
        """Blending works within the engines alone, so beside it the mode says nothing."""
        if self.kv_store != "lmcache":
            return {"lmcache_blending", "lmcache_mode"}
        blending, mode = self.knobs.get("lmcache_blending"), self.knobs.get("lmcache_mode")
        idle = {"lmcache_blending"} if blending is False else set()
        return idle | ({"lmcache_mode"} if blending is True or mode == LMCACHE_MODES[0] else set())

    def _side(self, side: Side) -> Role:
        knobs = self.effective
        own = {name.removeprefix(f"{side}_"): value for name, value in knobs.items() if side_of(name) == side}
        pool = f"{side}_pool" if knobs.get(f"{side}_pool") is not None else "pool"
        return self._role(side, f"{side}_replicas", {**knobs, **own}, pool)

    def _role(self, name: RoleName, replicas: str, knobs: Mapping[str, Scalar], pool: str) -> Role:
        units_each = math.prod(_count(parallel, knobs.get(parallel)) for parallel in PARALLEL_KNOBS)
        flags = {each: value for each, value in knobs.items() if each not in SHAPE_KNOBS and side_of(each) is None}
        where = knobs.get(pool)
        return Role(
            name,
            _count(replicas, knobs.get(replicas)),
            units_each,
            flags,
            None if where is None else str(where),
        )

    def _knob(self, name: str, default: Scalar) -> Scalar:
        value = self.knobs.get(name)
        return default if value is None else value


def side_of(name: str) -> Side | None:
    """
    The side that a knob's flag is for: `prefill_max_num_seqs` is for prefill; None for both, and for shape knobs.

    A flag of the engine's own that begins so, such as `prefill_context_parallel_size`, is for both.
    """
    if name in SHAPE_KNOBS or name in known():
        return None
    return next((side for side in SIDES if name.startswith(f"{side}_") and name != f"{side}_"), None)


def flag_of(name: str) -> str | None:
    """The flag of `vllm serve` that a knob sets: without its side; None for knobs that shape the deployment."""
    if name in SHAPE_KNOBS:
        return None
    side = side_of(name)
    return name if side is None else name.removeprefix(f"{side}_")


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
    if name in COUNT_KNOBS:
        plain = plain_number(value)
        whole = isinstance(plain, int) and not isinstance(plain, bool) and plain >= 1
        return None if whole else f"got {value!r}: a whole number above 0 is needed"
    for names, kind, wanted in _KINDS:
        if name in names:
            return None if isinstance(value, kind) else f"got {value!r}: {wanted} is needed"
    if name in AMOUNT_KNOBS:
        fine = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
        return None if fine else f"got {value!r}: a number of at least 0 is needed"
    options = _CHOICES.get(name, ())
    if value in options:
        return None
    return f"got {value!r}: possible here: {', '.join(options) or 'nothing but null'}"


def _of_a_split(name: str) -> bool:
    """Without a meaning where every engine does all of the work."""
    return name == "kv_transfer" or (name.startswith(tuple(f"{side}_" for side in SIDES)) and name not in known())


def _count(name: str, value: Scalar) -> int:
    plain = plain_number(1 if value is None else value)
    if isinstance(plain, bool) or not isinstance(plain, int) or plain < 1:
        raise InputError(f"configuration: {name}: got {plain!r}: a whole number above 0 is needed")
    return plain
