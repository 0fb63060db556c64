"""Facts of a model that decide what fits: from its directory's `config.json`, else from `data/models.yaml`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tuner.errors import InputError

GIB = 1024**3
#: Bytes of one element by dtype; the engine serves float32 checkpoints as 16 bit unless told otherwise.
DTYPE_BYTES: Mapping[str, float] = {"float32": 4.0, "float": 4.0, "half": 2.0, "float16": 2.0, "bfloat16": 2.0}
#: Bytes of one quantised weight, scales included, by `quantization_config.quant_method` or `--quantization`.
QUANTISED_BYTES: Mapping[str, float] = {"fp8": 1.0, "mxfp4": 4.25 / 8, "nvfp4": 4.5 / 8, "modelopt": 1.0}
#: Quantisations that the engine can do itself while it loads a 16-bit checkpoint.
ONLINE_QUANTISATIONS = ("fp8", "mxfp8")
_UNGATED = ("gelu", "gelu_new", "gelu_fast", "relu")


@dataclass(frozen=True)
class ModelFacts:
    """Counts are of the whole model, whatever the parallelism."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    params: float  # all of them
    active_params: float  # those that one token meets; the same as `params` for dense models
    weight_bytes: float  # as served at the checkpoint's own precision
    quantised: bool  # the checkpoint is quantised already
    max_model_len: int  # tokens that the model's positions allow, prompt and output together
    kv_layers: int  # attention layers whose cache grows with the whole sequence
    window_layers: int = 0  # attention layers whose cache stops growing at `window` tokens
    window: int = 0
    latent: int | None = None  # multi-head latent attention: cached elements of one token and layer
    source: str = ""
    quantisation: str | None = None  # how the checkpoint is quantised: fp8, fp8_block, mxfp4, nvfp4, or its own word

    @property
    def kv_elements_per_layer(self) -> int:
        """Cached elements of one token in one attention layer."""
        return self.latent if self.latent is not None else 2 * self.kv_heads * self.head_dim

    def kv_bytes_per_token(self, element_bytes: float = 2.0) -> float:
        """2 * layers * kv_heads * head_dim * bytes over every attention layer: an upper bound where windows apply."""
        return (self.kv_layers + self.window_layers) * self.kv_elements_per_layer * element_bytes

    def kv_bytes(self, tokens: int, element_bytes: float = 2.0) -> float:
        """KV cache of one sequence of this many tokens."""
        cached = self.kv_layers * tokens + self.window_layers * min(tokens, self.window)
        return cached * self.kv_elements_per_layer * element_bytes


def facts(model: str) -> ModelFacts | None:
    """
    Facts of a model by directory or name; None where neither a directory nor the table knows it.

    Raises:
        InputError: The directory has no readable `config.json`, or it lacks a shape.
    """
    path = Path(model)
    if path.is_absolute() or path.is_dir():
        return _of_directory(path)
    row = _table().get(model.lower())
    if row is None:
        return None
    return from_config(row, name=model, checkpoint_bytes=_scaled(row.get("checkpoint_gib"), GIB))


def known_models() -> tuple[str, ...]:
    """Names of the shipped table, aliases included, in its order."""
    return tuple(_rows_by_name())


def from_config(config: Mapping[str, Any], *, name: str, checkpoint_bytes: float | None = None) -> ModelFacts:
    """
    Facts from the content of a `config.json`, Hugging Face spelling.

    Args:
        config: The file's content. The table adds `params_b`, `active_b` (both 10^9) and `sliding_layers`.
        name: For messages and reports.
        checkpoint_bytes: Size of the weights on disk; None = computed from the shapes and the dtype.

    Raises:
        InputError: A shape is missing or no positive number.
    """
    text = config.get("text_config")
    shape: Mapping[str, Any] = {**config, **text} if isinstance(text, Mapping) else config
    layers, hidden, heads, vocab = (
        _count(shape, key, name) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    )
    kv_heads = _count(shape, "num_key_value_heads", name, default=heads)
    head_dim = _count(shape, "head_dim", name, default=max(hidden // heads, 1))
    embeddings = vocab * hidden * (1 if shape.get("tie_word_embeddings") else 2)
    attention = layers * (
        hidden * head_dim * 2 * (heads + kv_heads)
        if _latent(shape) is None
        else _latent_attention(shape, hidden, heads)
    )
    all_mlps, active_mlps = _mlp_parameters(shape, layers, hidden)
    total = _scaled(shape.get("params_b"), 1e9) or float(embeddings + attention + all_mlps)
    active = _scaled(shape.get("active_b"), 1e9) or total - all_mlps + active_mlps
    per_weight = _quantised_bytes(shape.get("quantization_config"))
    computed = 2.0 * total if per_weight is None else per_weight * (total - embeddings) + 2.0 * embeddings
    kv_layers, window_layers, window = _attention_layers(shape, layers)
    return ModelFacts(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        params=total,
        active_params=active,
        weight_bytes=computed if checkpoint_bytes is None else checkpoint_bytes,
        quantised=per_weight is not None,
        max_model_len=_positions(shape, name),
        kv_layers=kv_layers,
        window_layers=window_layers,
        window=window,
        latent=_latent(shape),
        source="config.json" if "params_b" not in config else "table",
        quantisation=_quantisation(shape.get("quantization_config")),
    )


def _of_directory(path: Path) -> ModelFacts:
    where = path / "config.json"
    try:
        config = json.loads(where.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"model: {where}: {reason}; name a model directory with a config.json") from error
    if not isinstance(config, dict):
        raise InputError(f"model: {where}: got no mapping; name a model directory with a config.json")
    return from_config(config, name=str(path), checkpoint_bytes=_checkpoint_bytes(path))


def _checkpoint_bytes(path: Path) -> float | None:
    """Size of the weights in a directory, by the index where there is one; None = no weights there."""
    try:
        index = json.loads((path / "model.safetensors.index.json").read_text(encoding="utf-8"))
        return float(index["metadata"]["total_size"])
    except (OSError, ValueError, KeyError, TypeError):
        parts = [part for part in path.glob("*.safetensors") if not part.name.startswith("consolidated")]
        return float(sum(part.stat().st_size for part in parts)) if parts else None


def _mlp_parameters(shape: Mapping[str, Any], layers: int, hidden: int) -> tuple[int, int]:
    """All and active parameters of the layers' MLPs and experts; norms and biases are too few to count."""
    matrices = 2 if shape.get("hidden_act") in _UNGATED else 3
    inner = int(shape.get("intermediate_size") or 4 * hidden)
    experts = _experts(shape)
    dense_layers = int(shape.get("first_k_dense_replace") or 0) if experts else layers
    dense = dense_layers * matrices * hidden * inner
    expert = matrices * hidden * int(shape.get("moe_intermediate_size") or inner)
    shared = int(shape.get("n_shared_experts") or 0)
    routed = int(shape.get("num_experts_per_tok") or 1)
    router = hidden * experts
    sparse_layers = layers - dense_layers
    return (
        dense + sparse_layers * (expert * (experts + shared) + router),
        dense + sparse_layers * (expert * (routed + shared) + router),
    )


def _experts(shape: Mapping[str, Any]) -> int:
    return int(shape.get("num_local_experts") or shape.get("num_experts") or shape.get("n_routed_experts") or 0)


def _latent(shape: Mapping[str, Any]) -> int | None:
    if not shape.get("kv_lora_rank"):
        return None
    return int(shape["kv_lora_rank"]) + int(shape.get("qk_rope_head_dim") or 0)


def _latent_attention(shape: Mapping[str, Any], hidden: int, heads: int) -> int:
    """Projections of multi-head latent attention, as in DeepSeek-V2 (arXiv:2405.04434, section 2.1)."""
    rank, rope = int(shape["kv_lora_rank"]), int(shape.get("qk_rope_head_dim") or 0)
    nope, value = int(shape.get("qk_nope_head_dim") or 128), int(shape.get("v_head_dim") or 128)
    query_rank = int(shape.get("q_lora_rank") or 0)
    query = heads * (nope + rope)
    queries = query_rank * (hidden + query) if query_rank else hidden * query
    return queries + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden


def _attention_layers(shape: Mapping[str, Any], layers: int) -> tuple[int, int, int]:
    """Layers with a growing cache, layers with a window, and the window in tokens."""
    window = int(shape.get("sliding_window") or 0)
    kinds = shape.get("layer_types")
    if isinstance(kinds, list):
        sliding = kinds.count("sliding_attention") if window else 0
        return kinds.count("full_attention") + kinds.count("sliding_attention") - sliding, sliding, window
    if "sliding_layers" in shape:
        return layers - int(shape["sliding_layers"]), int(shape["sliding_layers"]), window
    if window and shape.get("use_sliding_window", True):
        return 0, layers, window
    return layers, 0, 0


def _positions(shape: Mapping[str, Any], name: str) -> int:
    """`max_position_embeddings`, stretched by YaRN as the engine does it."""
    positions = _count(shape, "max_position_embeddings", name)
    scaling = shape.get("rope_scaling") or shape.get("rope_parameters")
    if isinstance(scaling, Mapping) and (scaling.get("rope_type") or scaling.get("type")) == "yarn":
        original = scaling.get("original_max_position_embeddings")
        if original and scaling.get("factor"):
            return int(original * scaling["factor"])
    return positions


def _quantised_bytes(quantisation: object) -> float | None:
    """Bytes of one quantised weight; None = the checkpoint is 16 bit."""
    if not isinstance(quantisation, Mapping):
        return None
    method = str(quantisation.get("quant_method") or "").replace("-", "_")
    if method in QUANTISED_BYTES:
        return 4.5 / 8 if "FP4" in str(quantisation.get("quant_algo")) else QUANTISED_BYTES[method]
    bits = quantisation.get("bits")
    groups = quantisation.get("config_groups")
    if bits is None and isinstance(groups, Mapping):
        first = next(iter(groups.values()), None)
        weights = first.get("weights") if isinstance(first, Mapping) else None
        bits = weights.get("num_bits") if isinstance(weights, Mapping) else None
    return (bits + 0.25) / 8 if isinstance(bits, int) else 1.0


def _quantisation(config: object) -> str | None:
    if not isinstance(config, Mapping):
        return None
    method = str(config.get("quant_method") or "").replace("-", "_")
    if method == "modelopt":
        return "nvfp4" if "FP4" in str(config.get("quant_algo")) else "fp8"
    return "fp8_block" if method == "fp8" and config.get("weight_block_size") else method


def _count(shape: Mapping[str, Any], key: str, name: str, *, default: int | None = None) -> int:
    value = shape.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InputError(f"model: {name}: config.json: {key}: got {value!r}: a whole number above 0 is needed")
    return value


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


@cache
def _rows_by_name() -> dict[str, dict[str, Any]]:
    text = files("tuner").joinpath("data/models.yaml").read_text(encoding="utf-8")
    models = YAML(typ="safe", pure=True).load(text)["models"]
    return {spelling: row for name, row in models.items() for spelling in (name, *row["aliases"])}


@cache
def _table() -> dict[str, dict[str, Any]]:
    return {name.lower(): row for name, row in _rows_by_name().items()}
