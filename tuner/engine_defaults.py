"""
What `vllm serve` makes of its flags: given values, else the defaults that it derives from the device.

Source: vLLM 0.32, `engine/arg_utils.py` (get_batch_defaults, _set_default_max_num_seqs_and_batched_tokens_args).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tuner import devices
from tuner.configuration import Role
from tuner.model import DTYPE_BYTES, GIB, ONLINE_QUANTISATIONS, ModelFacts
from tuner.slo import Engine, Pool, Scalar

#: Default of `--gpu-memory-utilization`.
MEMORY_SHARE = 0.92
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@dataclass(frozen=True)
class EngineSettings:
    """Of one engine; None = unknown, or left to the engine."""

    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    max_model_len: int | None  # tokens
    stretched: bool  # the positions may have been changed by other flags
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    chunked_prefill: bool
    block_size: int | None  # as given; None = the engine's choice
    memory_share: float | None  # as given; None = MEMORY_SHARE on GPUs
    kv_bytes: float | None  # of each unit, where it is set aside by number
    kv_element_bytes: float
    weight_element_bytes: float | None  # where flags change it; None = the checkpoint's own
    offloaded_bytes: float  # weights kept in host memory, per unit

    @property
    def weight_shards(self) -> int:
        """Into how many parts the weights are split at most."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    def kv_shards(self, facts: ModelFacts) -> int:
        """Into how many parts one sequence's KV cache is split: KV heads are repeated beyond their number."""
        heads = 1 if facts.latent is not None else min(self.tensor_parallel, facts.kv_heads)
        return heads * self.pipeline_parallel

    def weight_bytes(self, facts: ModelFacts) -> float:
        """Of the whole model as it is loaded."""
        whole = facts.weight_bytes if self.weight_element_bytes is None else facts.params * self.weight_element_bytes
        return max(0.0, whole - self.offloaded_bytes * self.weight_shards)


def batch_defaults(pool: Pool, world_size: int) -> tuple[int, int] | None:
    """
    `max_num_batched_tokens` and `max_num_seqs` that `vllm serve` chooses; None = the device is unknown.

    Args:
        pool: Where the engine runs.
        world_size: Tensor times pipeline parallelism; matters on CPUs alone.
    """
    if pool.unit == "cpu":
        return 2048 * world_size, 128 * world_size
    memory_gib = devices.unit_memory_gib(pool)
    if memory_gib is None:
        return None
    if memory_gib >= 160:
        return 16384, 1024
    if memory_gib >= 70 and "a100" not in pool.device.lower():
        return 8192, 1024
    return 2048, 256


def resolve(role: Role, pool: Pool, engine: Engine, facts: ModelFacts | None) -> EngineSettings:
    """Settings of the engines of one role, `engine.flags` included."""
    given = {name: value for name, value in {**engine.flags, **role.flags}.items() if value is not None}
    tensor, pipeline, data = (
        token_count(given.get(f"{kind}_parallel_size")) or 1 for kind in ("tensor", "pipeline", "data")
    )
    length = token_count(given.get("max_model_len"))
    if length is None and "max_model_len" not in given and facts is not None:
        length = facts.max_model_len
    chunked = given.get("enable_chunked_prefill") is not False
    tokens, sequences = _batch(given, pool, tensor * pipeline, length, chunked=chunked)
    quantization = given.get("quantization")
    online = quantization in ONLINE_QUANTISATIONS and facts is not None and not facts.quantised
    wide = DTYPE_BYTES.get(str(given.get("dtype"))) == 4.0
    kv_dtype = str(given.get("kv_cache_dtype", "auto"))
    return EngineSettings(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        data_parallel=data,
        max_model_len=length,
        stretched="hf_overrides" in given or engine.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1",
        max_num_batched_tokens=tokens,
        max_num_seqs=sequences,
        chunked_prefill=chunked,
        block_size=token_count(given.get("block_size")),
        memory_share=_number(given.get("gpu_memory_utilization", given.get("device_memory_utilization"))),
        kv_bytes=_kv_bytes(given, pool, engine),
        kv_element_bytes=1.0 if kv_dtype.startswith("fp8") else 4.0 if wide and kv_dtype == "auto" else 2.0,
        weight_element_bytes=1.0 if online else 4.0 if wide else None,
        offloaded_bytes=(_number(given.get("cpu_offload_gb")) or 0.0) * GIB,
    )


def token_count(value: Scalar) -> int | None:
    """A count as the engine reads it: 8192, "8k" (8,000), "8K" (8,192); None for None, "auto" and -1."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)([kKmMgGtT]?)\s*", value)
        if found is None:
            return None
        return int(float(found[1]) * {**_BINARY, **_DECIMAL, "": 1}[found[2]])
    number = _number(value)
    return int(number) if number is not None and number > 0 else None


def _batch(
    given: Mapping[str, Scalar], pool: Pool, world_size: int, length: int | None, *, chunked: bool
) -> tuple[int | None, int | None]:
    """Token budget and sequences. A default budget covers max_model_len where prompts are not cut into chunks."""
    defaults = batch_defaults(pool, world_size)
    factor = 2 if given.get("performance_mode") == "throughput" else 1
    tokens, sequences = (token_count(given.get(name)) for name in ("max_num_batched_tokens", "max_num_seqs"))
    if tokens is None and defaults is not None:
        tokens = defaults[0] * factor
        most = sequences if sequences is not None else defaults[1] * factor
        if length is not None:
            tokens = min(tokens if chunked else max(tokens, length), most * length)
    if sequences is None and defaults is not None and tokens is not None:
        sequences = min(defaults[1] * factor, tokens)
    return tokens, sequences


def _kv_bytes(given: Mapping[str, Scalar], pool: Pool, engine: Engine) -> float | None:
    """KV cache of one unit where it is given by number; on CPUs the environment wins over the flag, in whole GiB."""
    space = token_count(engine.env.get("VLLM_CPU_KVCACHE_SPACE")) if pool.unit == "cpu" else None
    if space is not None:
        return float(space * GIB)
    stated = token_count(given.get("kv_cache_memory_bytes"))
    return None if stated is None else float(stated)


def _number(value: Scalar) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)
