"""
Static rules: what the engine or the placer would certainly refuse. Pure.

Whatever needs a figure that is unknown (a model without facts, a GPU without a memory size) passes. Source of the
engine's own rules: vLLM 0.32, `config/scheduler.py`, `config/model.py` and `v1/core/kv_cache_utils.py`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tuner import devices, engine_defaults
from tuner.configuration import Configuration, Role
from tuner.engine_defaults import EngineSettings
from tuner.model import GIB, ModelFacts
from tuner.placement import Piece, Room, place
from tuner.slo import Cluster, Pool

#: Every rule by its id, which is the reason of a `rejected` outcome.
RULES: Mapping[str, str] = {
    "unknown_pool": "a role runs on a pool that the cluster has",
    "max_gpus": "all roles together hold at most cluster.max_gpus",
    "node": "an instance never spans nodes",
    "cluster": "the nodes hold all instances at once",
    "router": "a router policy needs more than one replica",
    "sides_agree": "prefill and decode agree on whatever decides content and layout of a KV block",
    "sides_parallel": "the parallelism of prefill and decode is one that the KV transfer can map onto each other",
    "transfer_device": "the KV transfer works on the devices of both sides",
    "transfer_router": "the router can tell the engines what the KV transfer has to know",
    "store_size": "a KV store has RAM, and SSD only where it keeps to a size",
    "store_device": "the KV store works on the devices of the engines that fill it",
    "blending": "blending has the prompt to itself: no prefix cache, no graphs, one engine for all of the work",
    "store_memory": "the part of a KV store on one node fits the host memory of the pool",
    "connector": "engines are connected by the tuner or by flags, not by both",
    "given_twice": "a flag is set by engine.flags or by the configuration, not by both",
    "heads": "tensor parallelism divides the attention heads",
    "kv_heads": "tensor parallelism divides the KV heads, or is a multiple of them",
    "layers": "pipeline stages hold at least one layer each",
    "positions": "max_model_len stays within the positions that the model knows",
    "model_len": "the longest request of the workload fits max_model_len",
    "prefill_budget": "without chunked prefill, max_num_batched_tokens is at least max_model_len",
    "batch_budget": "max_num_batched_tokens is at least max_num_seqs",
    "block_size": "block_size is a multiple of what the attention kernels take",
    "memory_share": "gpu_memory_utilization is above 0 and at most 1, and has no meaning on CPU slots",
    "memory": "weights and the KV cache of one sequence of max_model_len fit the units' memory",
}
#: CUDA context, communication buffers and activations are never below this on a GPU; GiB.
LEAST_OVERHEAD_GIB = 1.0
#: What the baseline leaves free beside weights and one sequence: activations and graphs of common models; GiB.
USUAL_OVERHEAD_GIB = 4.0


@dataclass(frozen=True)
class Violation:
    """A broken rule: its id in `RULES`, and what was received with the remedy in one line."""

    rule: str
    message: str


@dataclass(frozen=True)
class Case:
    """One role under the rules."""

    role: Role
    pool: Pool
    settings: EngineSettings
    facts: ModelFacts | None
    longest: int | None  # tokens of the longest request, input and output together


def placement(configuration: Configuration, cluster: Cluster, placed: list[tuple[Role, Pool]]) -> Iterator[Violation]:
    """Broken rules about units, nodes and routers, over all roles together."""
    if configuration.units > cluster.max_gpus:
        yield Violation(
            "max_gpus", f"needs {configuration.units} {cluster.unit}s, cluster.max_gpus is {cluster.max_gpus}"
        )
    for role, pool in placed:
        if role.units_each > pool.per_node:
            yield Violation(
                "node", f"one instance needs {role.units_each} units, a node of pool {pool.name} has {pool.per_node}"
            )
    for pool in {pool.name: pool for _, pool in placed}.values():
        sizes = [role.units_each for role, where in placed if where == pool for _ in range(role.replicas)]
        if max(sizes) <= pool.per_node and not _fit(sizes, pool):
            yield Violation(
                "cluster", f"{len(sizes)} instances do not fit {pool.nodes} x {pool.per_node} units of {pool.name}"
            )
    if configuration.knobs.get("router_policy") is not None and sum(role.replicas for role, _ in placed) == 1:
        yield Violation("router", "router_policy is set, but one replica has no router; remove it or add replicas")


def _fit(sizes: list[int], pool: Pool) -> bool:
    pieces = [Piece("engine", pool.name, size) for size in sizes]
    rooms = [Room((pool.name,), {"unit": pool.per_node})] * min(pool.nodes, len(pieces))
    return place(pieces, rooms) is not None


def _heads(case: Case) -> str | None:
    parallel = case.settings.tensor_parallel
    if case.facts is None or case.facts.heads % parallel == 0:
        return None
    return f"tensor_parallel_size {parallel} does not divide the {case.facts.heads} attention heads"


def _kv_heads(case: Case) -> str | None:
    parallel, facts = case.settings.tensor_parallel, case.facts
    if facts is None or facts.latent is not None or 0 in (facts.kv_heads % parallel, parallel % facts.kv_heads):
        return None
    return f"tensor_parallel_size {parallel} neither divides the {facts.kv_heads} KV heads nor is a multiple of them"


def _layers(case: Case) -> str | None:
    stages = case.settings.pipeline_parallel
    if case.facts is None or stages <= case.facts.layers:
        return None
    return f"pipeline_parallel_size {stages} exceeds the {case.facts.layers} layers"


def _positions(case: Case) -> str | None:
    length, facts = case.settings.max_model_len, case.facts
    if facts is None or length is None or length <= facts.max_model_len or case.settings.stretched:
        return None
    return f"max_model_len {length} exceeds the model's {facts.max_model_len} positions"


def _model_len(case: Case) -> str | None:
    length = case.settings.max_model_len
    if length is None or case.longest is None or case.longest <= length:
        return None
    return f"the longest request has {case.longest} tokens, max_model_len is {length}; raise it or shorten the workload"


def _prefill_budget(case: Case) -> str | None:
    settings = case.settings
    if settings.chunked_prefill or settings.max_model_len is None or settings.max_num_batched_tokens is None:
        return None
    if settings.max_num_batched_tokens >= settings.max_model_len:
        return None
    return (
        f"max_num_batched_tokens {settings.max_num_batched_tokens} is below max_model_len {settings.max_model_len}; "
        "raise it, lower engine.flags.max_model_len, or turn enable_chunked_prefill on"
    )


def _batch_budget(case: Case) -> str | None:
    tokens, sequences = case.settings.max_num_batched_tokens, case.settings.max_num_seqs
    if tokens is None or sequences is None or tokens >= sequences:
        return None
    return f"max_num_batched_tokens {tokens} is below max_num_seqs {sequences}; raise one or lower the other"


def _block_size(case: Case) -> str | None:
    size, unit = case.settings.block_size, 32 if case.pool.unit == "cpu" else 16
    if size is None or (size > 0 and size % unit == 0):
        return None
    return f"block_size {size} is no multiple of {unit}, which the kernels of a {case.pool.unit.upper()} need"


def _memory_share(case: Case) -> str | None:
    share = case.settings.memory_share
    if share is None:
        return None
    if case.pool.unit == "cpu":
        return "gpu_memory_utilization has no meaning on CPU slots; set engine.env.VLLM_CPU_KVCACHE_SPACE (GiB)"
    return None if 0 < share <= 1 else f"gpu_memory_utilization {share:g} is not above 0 and at most 1"


def memory(case: Case, *, overhead_gib: float = LEAST_OVERHEAD_GIB) -> str | None:
    """
    Per unit: weights / (tp * pp * dp) + overhead + KV of one sequence <= memory * share, or KV <= what is set aside.

    Data-parallel ranks hold their own attention weights; dividing them too keeps the rule on the safe side.
    """
    facts, settings = case.facts, case.settings
    if facts is None:
        return None
    length = settings.max_model_len if settings.max_model_len is not None else case.longest
    sequence = facts.kv_bytes(length or 0, settings.kv_element_bytes) / settings.kv_shards(facts)
    shape = f"one sequence of {length} tokens needs {sequence / GIB:.1f} GiB of KV cache in each unit"
    if settings.kv_bytes is not None and sequence > settings.kv_bytes:
        return f"{shape}, {settings.kv_bytes / GIB:.1f} GiB are set aside; set engine.flags.max_model_len lower"
    memory_gib = devices.unit_memory_gib(case.pool)
    if memory_gib is None:
        return None
    share = 1.0 if case.pool.unit == "cpu" else (settings.memory_share or engine_defaults.MEMORY_SHARE)
    weights = settings.weight_bytes(facts) / settings.weight_shards
    room = memory_gib * share * GIB - weights - overhead_gib * GIB
    if room >= (settings.kv_bytes or sequence):
        return None
    return (
        f"weights take {weights / GIB:.1f} GiB of each unit and {shape}, {memory_gib * share:.1f} GiB are usable; "
        "raise tensor_parallel_size or set engine.flags.max_model_len lower"
    )


#: The rules about one role: each answers with what was received and the remedy, or None.
CHECKS: Mapping[str, Callable[[Case], str | None]] = {
    "heads": _heads,
    "kv_heads": _kv_heads,
    "layers": _layers,
    "positions": _positions,
    "model_len": _model_len,
    "prefill_budget": _prefill_budget,
    "batch_budget": _batch_budget,
    "block_size": _block_size,
    "memory_share": _memory_share,
    "memory": memory,
}
