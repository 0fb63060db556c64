"""A configuration, as the engine would resolve it on this model and these devices: limits, memory and step times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tuner import devices, model
from tuner.configuration import Configuration, Role
from tuner.configuration import pool_of as configuration_pool
from tuner.devices import Device
from tuner.errors import ConfigurationFailed, InputError
from tuner.model import GIB, ModelFacts
from tuner.simulator import tables
from tuner.simulator.fleet import Fleet, Group
from tuner.simulator.memory import kv_tokens
from tuner.simulator.router import Policy
from tuner.simulator.scheduler import EngineLimits, Link
from tuner.simulator.steptime import Machine, ModelShape, StepTime, roofline
from tuner.simulator.storing import store_of
from tuner.slo import Objective, Pool, Scalar

#: Version of the constants below and of the roofline's form: results of two versions are not comparable.
ROOFLINE = "roofline-3"
#: Flags that the model of the engine understands. Any other changes nothing here.
MODELLED_FLAGS = (
    "tensor_parallel_size",
    "data_parallel_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "long_prefill_token_threshold",
    "block_size",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "kv_cache_dtype",
    "quantization",
)
#: Seconds from a request's arrival until a scheduler sees it, where nothing was calibrated: HTTP, tokenising, routing.
FRONT_END_S = {"gpu": 0.015, "cpu": 0.008}
#: Each step of a GPU engine: scheduling, launching, sampling.
GPU_STEP_S = 0.0025
#: One core of a CPU slot, after a model of 26M parameters (8 layers) on vLLM's CPU build: 2,048 prompt tokens take
#: about 1 s of a core, a decode step 9 ms.
CPU_CORE_FLOPS = 2.4e11
CPU_CORE_BYTES_PER_S = 1.0e10
CPU_STEP_S, CPU_LAYER_S, CPU_TOKEN_S = 0.0045, 0.0005, 0.00005
#: KV cache of a CPU engine where `VLLM_CPU_KVCACHE_SPACE` does not say.
CPU_KV_GIB = 4.0


#: Where `cluster.interconnect` says nothing: what KV crosses between engines, bytes per second and seconds of each
#: transfer. 50 GB/s is one 400 Gbit/s port; 0.5 ms is what Mooncake's documentation implies for RDMA.
LINK_BYTES_PER_S = {"gpu": 50e9, "cpu": 2e9}
LINK_LATENCY_S = {"gpu": 0.0005, "cpu": 0.005}
#: Kinds of deployment by their roles.
ROLES = (("engine",), ("prefill", "decode"))
#: Policies of the router by what comes nearest to them here.
ROUTING: Mapping[str, Policy] = {
    "round_robin": "round_robin",
    "random": "random",
    "power_of_two": "least_loaded",
    "cache_aware": "prefix_aware",
}


@dataclass(frozen=True)
class Setup:
    """What the engines of a configuration are like, and how many there are. `pools` go with the groups of `fleet`."""

    fleet: Fleet
    pools: tuple[Pool, ...]
    ignored_flags: tuple[str, ...]
    step_times: str  # version of the groups' step times: `ROOFLINE`, or that of a table

    @property
    def first(self) -> Group:
        """The group that clients talk to: all engines, or those that compute prompts."""
        return self.fleet.groups[0]

    @property
    def unit(self) -> Literal["gpu", "cpu"]:
        return self.pools[0].unit

    @property
    def device(self) -> str:
        """Of the first group."""
        return device_name(self.pools[0])

    @property
    def step_time(self) -> StepTime:
        """Of the first group."""
        return self.first.step_time

    @property
    def front_end_s(self) -> float:
        return self.fleet.front_end_s


def resolve(configuration: Configuration, objective: Objective, *, roofline_only: bool = False) -> Setup:
    """
    The engines of a configuration.

    Args:
        configuration: With its roles and flags.
        objective: Model, cluster and engine.
        roofline_only: Take no table of measured step times.

    Raises:
        InputError: Model or device are unknown here.
        ConfigurationFailed: `out_of_memory`, `bad_flag`: what the engine itself would refuse at its start.
    """
    pools = placed(configuration, objective) or tuple(
        configuration_pool(role, objective.cluster) for role in configuration.roles
    )
    each_role = zip(configuration.roles, pools, strict=True)
    made = [_group(configuration, role, objective, pool, roofline_only=roofline_only) for role, pool in each_role]
    groups = tuple(each.group for each in made)
    if len({group.limits.block_size for group in groups}) > 1:
        raise ConfigurationFailed("bad_flag", "block_size: prefill and decode need the same one")
    front_end_s = FRONT_END_S[pools[0].unit]
    fleet = Fleet(
        groups,
        max_model_len=min(each.max_model_len for each in made),
        front_end_s=front_end_s,
        hand_over_s=front_end_s,
        routing=ROUTING[configuration.router_policy],
    )
    return Setup(
        fleet,
        pools,
        tuple(sorted({name for each in made for name in each.ignored_flags})),
        " + ".join(dict.fromkeys(each.step_times for each in made)),
    )


@dataclass(frozen=True)
class _Made:
    """What a role comes to."""

    group: Group
    max_model_len: int  # tokens of the longest request that it takes
    ignored_flags: list[str]  # that change nothing here
    step_times: str


def _group(configuration: Configuration, role: Role, objective: Objective, pool: Pool, *, roofline_only: bool) -> _Made:
    flags = {name: value for name, value in {**objective.engine.flags, **role.flags}.items() if value is not None}
    facts = known_model(objective.model)
    tensor_parallel = _whole(flags, "tensor_parallel_size", 1)
    max_model_len = _whole(flags, "max_model_len", facts.max_model_len)
    shape = _shape(facts, flags, pool)
    block_size = _whole(flags, "block_size", 16 if pool.unit == "gpu" else 128)
    tokens = _kv_tokens(flags, objective, pool, shape, tensor_parallel)
    blocks = _whole(flags, "num_gpu_blocks_override", max(0, tokens) // block_size, least=0)
    if blocks * block_size < max_model_len:
        raise ConfigurationFailed(
            "out_of_memory",
            f"{max(0, tokens)} tokens of KV cache fit beside the weights, max_model_len needs {max_model_len}",
        )
    found = None if roofline_only else _table(facts, flags, pool, tensor_parallel)
    step_times, step_time = found or (
        ROOFLINE,
        roofline(shape, machine_of(pool, fp8=shape.compute_bytes == 1), tensor_parallel),
    )
    group = Group(
        role=role.name,
        engines=role.replicas * _whole(flags, "data_parallel_size", 1),
        limits=_limits(flags, pool, blocks, block_size, max_model_len),
        step_time=step_time,
        link=_link(objective, pool, shape) if role.name == "decode" else None,
        store=store_of(
            configuration, role, objective, pool, token_bytes=shape.kv_bytes_per_token, block_size=block_size
        ),
    )
    return _Made(group, max_model_len, [name for name in flags if name not in MODELLED_FLAGS], step_times)


def _table(
    facts: ModelFacts, flags: Mapping[str, Scalar], pool: Pool, tensor_parallel: int
) -> tuple[str, StepTime] | None:
    """Measured step times and their version, where there are any."""
    device, precision = devices.of_pool(pool), _precision(facts, flags)
    if device is None or precision is None:
        return None
    cache: tables.Cache = "fp8" if _eight_bit_cache(flags) else "bf16"
    return tables.find(facts, device.name, tensor_parallel, precision, cache)


def _precision(facts: ModelFacts, flags: Mapping[str, Scalar]) -> tables.Precision | None:
    """Of the weights as they are served, in the words of the tables; None where those have no word for it."""
    if facts.quantised:
        return tables.PRECISIONS.get(facts.quantisation or "")
    online = flags.get("quantization")
    return "bf16" if online is None else "fp8" if online == "fp8" else None


def _eight_bit_cache(flags: Mapping[str, Scalar]) -> bool:
    return str(flags.get("kv_cache_dtype", "auto")).startswith("fp8")


def _link(objective: Objective, pool: Pool, shape: ModelShape) -> Link:
    """What KV comes over to an engine of this pool."""
    stated = objective.cluster.interconnect_bytes_per_s
    bytes_per_s = LINK_BYTES_PER_S[pool.unit] if stated is None else stated
    return Link(LINK_LATENCY_S[pool.unit], shape.kv_bytes_per_token / bytes_per_s)


def known_model(name: str) -> ModelFacts:
    """
    Raises:
        InputError: No directory, and not in the shipped table.
    """
    facts = model.facts(name)
    if facts is None:
        raise InputError(
            f"model: got {name}: its shape is not known here, so it cannot be simulated; give a model directory, "
            f"or one of {', '.join(model.known_models())}"
        )
    return facts


def placed(configuration: Configuration, objective: Objective) -> tuple[Pool, ...] | None:
    """
    The pool of each role, such that all engines find room; None where they do not.

    An instance never spans nodes; instances may lie on different ones. A role that names no pool takes the first one
    that has room for all of it.
    """
    cluster = objective.cluster
    free = {pool.name: [pool.per_node] * pool.nodes for pool in cluster.pools}
    chosen: dict[str, Pool] = {}
    for role in sorted(configuration.roles, key=lambda each: -each.units_each):
        pools = cluster.pools if role.pool is None else (configuration_pool(role, cluster),)
        for pool in pools:
            left = _fill(free[pool.name], role)
            if left is not None:
                free[pool.name], chosen[role.name] = left, pool
                break
        else:
            return None
    return tuple(chosen[role.name] for role in configuration.roles)


def _fill(nodes: Sequence[int], role: Role) -> list[int] | None:
    """Free units of each node once the role's instances lie there, fullest nodes first; None where they do not fit."""
    left = sorted(nodes)
    for _ in range(role.replicas):
        place = next((index for index, units in enumerate(left) if units >= role.units_each), None)
        if place is None:
            return None
        left[place] -= role.units_each
    return left


def device_name(pool: Pool) -> str:
    """What a unit of the pool is called wherever its speed matters: one name for all spellings of a GPU."""
    device = devices.of_pool(pool)
    if device is not None:
        return device.name
    return pool.device if pool.unit == "gpu" else f"{pool.cores}-core CPU slot"


def machine_of(pool: Pool, *, fp8: bool = False) -> Machine:
    """
    What one unit of the pool can do.

    Args:
        pool: Of the units.
        fp8: Matrix products run in 8 bit, where the device has units for it.

    Raises:
        InputError: A GPU that the device table does not hold.
    """
    if pool.unit == "cpu":
        return Machine(
            flops=CPU_CORE_FLOPS * pool.cores,
            memory_bytes_per_s=CPU_CORE_BYTES_PER_S * pool.cores,
            link_bytes_per_s=CPU_CORE_BYTES_PER_S,
            step_s=CPU_STEP_S,
            layer_s=CPU_LAYER_S,
            token_s=CPU_TOKEN_S,
        )
    device = _device(pool)
    return Machine(
        flops=device.fp8_flops if fp8 and device.fp8_flops is not None else device.bf16_flops,
        memory_bytes_per_s=device.memory_bytes_per_s,
        link_bytes_per_s=device.link_bytes_per_s,
        step_s=GPU_STEP_S,
    )


def _device(pool: Pool) -> Device:
    device = devices.of_pool(pool)
    if device is None:
        raise InputError(
            f"cluster.pools: got gpu {pool.device}: its speed is not known here, so it cannot be simulated; known are "
            f"{', '.join(devices.devices())}"
        )
    return device


def _shape(facts: ModelFacts, flags: Mapping[str, Scalar], pool: Pool) -> ModelShape:
    quantization = flags.get("quantization")
    online = quantization in model.ONLINE_QUANTISATIONS and not facts.quantised
    device = devices.of_pool(pool)
    fp8 = (online or facts.quantised) and device is not None and device.fp8_flops is not None
    return ModelShape(
        layers=facts.layers,
        hidden=facts.hidden,
        heads=facts.heads,
        kv_heads=facts.kv_heads if facts.latent is None else 1,
        head_dim=facts.head_dim,
        weight_bytes=facts.params if online else facts.weight_bytes,
        active_parameters=max(facts.active_params - facts.vocab * facts.hidden, 0.5 * facts.active_params),
        kv_bytes_per_token=facts.kv_bytes_per_token(1.0 if _eight_bit_cache(flags) else 2.0),
        compute_bytes=1.0 if fp8 else 2.0,
    )


def _kv_tokens(
    flags: Mapping[str, Scalar], objective: Objective, pool: Pool, shape: ModelShape, tensor_parallel: int
) -> int:
    if pool.unit == "cpu":
        stated = objective.engine.env.get("VLLM_CPU_KVCACHE_SPACE", "")
        space = float(stated) if stated.isdecimal() else CPU_KV_GIB
        return int(space * GIB * tensor_parallel // shape.kv_bytes_per_token)
    given = flags.get("kv_cache_memory_bytes")
    if isinstance(given, int | float) and not isinstance(given, bool):
        return int(given * tensor_parallel // (shape.kv_bytes_per_token * max(1.0, tensor_parallel / shape.kv_heads)))
    utilization = flags.get("gpu_memory_utilization", 0.9)
    if isinstance(utilization, bool) or not isinstance(utilization, int | float) or not 0 < utilization <= 1:
        raise ConfigurationFailed(
            "bad_flag", f"gpu_memory_utilization: got {utilization!r}: a share in (0, 1] is needed"
        )
    memory_gib = devices.unit_memory_gib(pool)
    memory_bytes = (_device(pool).memory_gib if memory_gib is None else memory_gib) * GIB
    return kv_tokens(shape, memory_bytes=memory_bytes, utilization=utilization, tensor_parallel=tensor_parallel)


def _limits(flags: Mapping[str, Scalar], pool: Pool, blocks: int, block_size: int, max_model_len: int) -> EngineLimits:
    default_tokens, default_seqs = _default_batch(pool)
    chunked = flags.get("enable_chunked_prefill", True) is not False
    if not chunked:
        default_tokens = max(default_tokens, max_model_len)
    tokens = _whole(flags, "max_num_batched_tokens", default_tokens)
    sequences = _whole(flags, "max_num_seqs", min(default_seqs, tokens))
    if not chunked and tokens < max_model_len:
        raise ConfigurationFailed(
            "bad_flag", f"max_num_batched_tokens {tokens} < max_model_len {max_model_len} without chunked prefill"
        )
    if tokens < sequences:
        raise ConfigurationFailed("bad_flag", f"max_num_batched_tokens {tokens} < max_num_seqs {sequences}")
    return EngineLimits(
        max_num_batched_tokens=tokens,
        max_num_seqs=sequences,
        blocks=blocks,
        block_size=block_size,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=flags.get("enable_prefix_caching", True) is not False,
        long_prefill_token_threshold=_whole(flags, "long_prefill_token_threshold", 0, least=0),
    )


def _default_batch(pool: Pool) -> tuple[int, int]:
    """`max_num_batched_tokens` and `max_num_seqs` of `vllm serve` 0.32 by memory of the device."""
    memory_gib = devices.unit_memory_gib(pool) if pool.unit == "gpu" else None
    if memory_gib is None or memory_gib < 70 or "a100" in pool.device.lower():
        return 2048, 256
    return (16384, 1024) if memory_gib >= 160 else (8192, 1024)


def _whole(flags: Mapping[str, Scalar], name: str, default: int, *, least: int = 1) -> int:
    value = flags.get(name, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationFailed("bad_flag", f"{name}: got {value!r}: a whole number of at least {least} is needed")
    return value
