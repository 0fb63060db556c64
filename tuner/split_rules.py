"""
Static rules about what engines share: KV transfer between prefill and decode, and KV stores. Pure.

Source of the engine's own rules: vLLM 0.32, `v1/nixl/base_worker.py` (_validate_remote_agent_handshake,
compute_nixl_compatibility_hash), `v1/mooncake/mooncake_connector.py`, `v1/kv_offload/cpu/spec.py`.
"""

import math
from collections.abc import Iterator

from tuner.configuration import Configuration, Role
from tuner.model import ModelFacts
from tuner.slo import Objective, Pool, Scalar
from tuner.static_rules import Violation

#: Flags whose values decide the content or the layout of a KV block, so that both sides need the same.
AGREED = (
    "attention_backend",
    "block_size",
    "disable_hybrid_kv_cache_manager",
    "dtype",
    "hf_overrides",
    "kv_cache_dtype",
    "load_format",
    "max_model_len",
    "prefix_caching_hash_algo",
    "quantization",
    "speculative_config",
)
#: Flags by which a user could connect engines himself, beside what the tuner does.
CONNECTORS = ("kv_transfer_config", "kv_offloading_size", "kv_offloading_backend")
#: Transfers that `vllm-router` cannot drive, and why. Source: LMCache 0.5.6, `integration/vllm/vllm_v1_adapter.py` and
#: `v1/storage_backend/pd_backend.py`; `vllm-router --help`, 0.1.17.
UNROUTED = {
    "lmcache": "prefill sends where kv_transfer_params.disagg_spec of each request says, and vllm-router writes none; "
    "use nixl, with kv_store lmcache beside it where prefill should reuse"
}


def shared(
    configuration: Configuration, objective: Objective, placed: list[tuple[Role, Pool]], facts: ModelFacts | None
) -> Iterator[Violation]:
    """Broken rules about transfer and stores, over all roles together."""
    if configuration.mode == "disaggregated":
        yield from _sides(configuration, objective, placed, facts)
    if configuration.kv_store != "none":
        yield from _store(configuration, objective, placed)
    if configuration.mode == "disaggregated" or configuration.kv_store != "none":
        given = [*objective.engine.flags, *(name for role, _ in placed for name in role.flags)]
        for name in CONNECTORS:
            if name in given:
                yield Violation("connector", f"{name} is set, and so is mode or kv_store; keep one of the two")


def _sides(
    configuration: Configuration, objective: Objective, placed: list[tuple[Role, Pool]], facts: ModelFacts | None
) -> Iterator[Violation]:
    (prefill, prefill_pool), (decode, decode_pool) = placed
    for name in AGREED:
        values = prefill.flags.get(name), decode.flags.get(name)
        if values[0] != values[1]:
            yield Violation(
                "sides_agree",
                f"{name} is {_shown(values[0])} for prefill and {_shown(values[1])} for decode; set {name}",
            )
    if prefill_pool.unit != decode_pool.unit:
        yield Violation(
            "sides_agree", f"prefill runs on {prefill_pool.unit.upper()}s and decode on {decode_pool.unit.upper()}s"
        )
    transfer = str(configuration.kv_transfer)
    if transfer in UNROUTED:
        yield Violation("transfer_router", f"kv_transfer {transfer}: {UNROUTED[transfer]}")
    message = _parallelism(transfer, prefill, decode, facts)
    if message is not None:
        yield Violation("sides_parallel", message)
    if transfer == "mooncake" and not objective.engine.connector_module:
        for role, pool in placed:
            if pool.unit == "cpu":
                yield Violation("transfer_device", f"kv_transfer mooncake needs GPUs, {role.name} runs on {pool.name}")


def _parallelism(transfer: str, prefill: Role, decode: Role, facts: ModelFacts | None) -> str | None:
    tensor = _size(prefill, "tensor_parallel_size"), _size(decode, "tensor_parallel_size")
    stages = _size(prefill, "pipeline_parallel_size"), _size(decode, "pipeline_parallel_size")
    if max(tensor) % min(tensor):
        return f"tensor_parallel_size {tensor[0]} for prefill and {tensor[1]} for decode: one must divide the other"
    if transfer == "nixl" and max(stages) > 1:
        return f"kv_transfer nixl takes no pipeline stages, pipeline_parallel_size is {max(stages)}"
    if transfer == "mooncake" and stages[0] != stages[1]:
        return f"kv_transfer mooncake needs equal pipeline_parallel_size, got {stages[0]} and {stages[1]}"
    if transfer != "nixl" or facts is None or facts.latent is not None or tensor[0] <= tensor[1]:
        return None
    if tensor[0] <= facts.kv_heads:
        return None
    return (
        f"tensor_parallel_size {tensor[0]} for prefill repeats the {facts.kv_heads} KV heads; nixl then needs as much "
        f"for decode, which has {tensor[1]}"
    )


def _store(configuration: Configuration, objective: Objective, placed: list[tuple[Role, Pool]]) -> Iterator[Violation]:
    store, knobs = configuration.kv_store, configuration.effective
    ram_gib, ssd_gib = (_amount(knobs.get(f"kv_store_{tier}_gib")) for tier in ("ram", "ssd"))
    if ram_gib <= 0:
        yield Violation("store_size", f"kv_store {store} needs kv_store_ram_gib above 0")
    in_process = store == "lmcache" and configuration.store_in_engines and not configuration.lossy
    if ssd_gib > 0 and store != "mooncake" and not in_process:
        yield Violation("store_size", f"kv_store {store} keeps nothing on SSD within a size; remove kv_store_ssd_gib")
    role, pool = placed[0]
    if store == "cpu_offload" and pool.unit == "cpu":
        yield Violation("store_device", f"kv_store cpu_offload copies from GPUs, {role.name} runs on {pool.name}")
    if in_process and pool.unit == "cpu":
        yield Violation(
            "store_device",
            f"lmcache_mode in_process needs GPUs: on {pool.name} it starts, looks healthy and never finds a block; use "
            "lmcache_mode: server",
        )
    if configuration.lossy:
        yield from _blending(configuration, objective, role, pool)
    elif store == "lmcache" and not in_process and ram_gib != math.floor(ram_gib):
        yield Violation("store_size", f"LMCache's server takes whole GiB, kv_store_ram_gib is {ram_gib:g}")
    yield from _host_memory(configuration, ram_gib, role, pool)


def _blending(configuration: Configuration, objective: Objective, role: Role, pool: Pool) -> Iterator[Violation]:
    """LMCache's blender runs the model's layers itself. Source: `examples/blend_kv_v1`, LMCache#2639 (no graphs)."""
    flags = {**objective.engine.flags, **role.flags}
    if pool.unit == "cpu":
        yield Violation("store_device", f"lmcache_blending needs GPUs, {role.name} runs on {pool.name}")
    if flags.get("enable_prefix_caching") is not False:
        yield Violation(
            "blending", "lmcache_blending and vLLM's prefix cache exclude each other; set enable_prefix_caching: false"
        )
    if flags.get("enforce_eager") is not True:
        yield Violation("blending", "lmcache_blending does not work inside of CUDA graphs; set enforce_eager: true")
    if configuration.mode == "disaggregated":
        yield Violation("blending", "lmcache_blending is not known to work beside a KV transfer; use mode: aggregated")


def _host_memory(configuration: Configuration, ram_gib: float, role: Role, pool: Pool) -> Iterator[Violation]:
    """The part of the store on one node: all of it for a server, else the shares of the engines there."""
    if pool.host_memory_gib is None:
        return
    engines = min(role.replicas, max(1, pool.per_node // role.units_each))
    there = ram_gib / role.replicas * engines if configuration.store_in_engines else ram_gib
    if there > pool.host_memory_gib:
        yield Violation(
            "store_memory",
            f"the store takes {there:g} GiB of one node, which has {pool.host_memory_gib:g}; lower kv_store_ram_gib",
        )


def _size(role: Role, name: str) -> int:
    value = role.flags.get(name)
    return 1 if value is None else int(value)


def _amount(value: Scalar) -> float:
    return 0.0 if value is None or isinstance(value, str) else float(value)


def _shown(value: Scalar) -> str:
    return "not set" if value is None else str(value)
