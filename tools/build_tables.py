"""
Builds the simulator's step-time tables from the kernel measurements of `aiconfigurator-core` (NVIDIA, Apache-2.0).

    pip install "aiconfigurator-core==0.12.*"            # in an environment of its own; it works offline
    python tools/build_tables.py                         # every shipped table
    python tools/build_tables.py --model Qwen/Qwen3-14B-FP8 --device H100-80GB --out tables   # any that it knows
    TUNER_STEPTIMES=tables tuner optimize …              # and a study that uses it

One file for each model and device. What its numbers mean stands in `tuner/simulator/tables.py`, which reads them.
"""

import argparse
import contextlib
import datetime as dt
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGE = "aiconfigurator-core"
SCHEMA = 1
#: Name of a table file → the model's name in the package.
MODELS: Mapping[str, str] = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "gpt-oss-120b": "openai/gpt-oss-120b",
}
#: Name in `tuner/data/devices.yaml` → the system's name in the package.
DEVICES: Mapping[str, str] = {
    "H100-80GB": "h100_sxm",
    "H200-141GB": "h200_sxm",
    "B200-180GB": "b200_sxm",
    "A100-80GB": "a100_sxm",
    "L40S": "l40s",
}
TENSOR_PARALLEL = (1, 2, 4, 8)
#: Weights: as they are, quantised while they are loaded (activations scaled in each step), quantised in the checkpoint.
PRECISIONS: Mapping[str, str] = {
    "bf16": "bfloat16",
    "fp8": "fp8",
    "fp8_static": "fp8_static",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
}
#: Of models whose experts are 4 bit and the rest 16 bit, that is all there is.
MIXED: Mapping[str, str] = {"mxfp4": "bfloat16"}
CACHES: Mapping[str, str] = {"bf16": "bfloat16", "fp8": "fp8"}
#: Where the products were measured, as far as their time bends there: it jumps where one more tile is begun.
TOKENS = (
    *(1, 2, 4, 8, 12, 16, 17, 32, 48, 64, 65, 80, 96, 112, 128, 129, 160, 192, 224, 256, 257),
    *(256 * tiles + more for tiles in range(2, 18) for more in (0, 1)),
    *(8192, 16384, 32768),
)
BATCH = tuple(2**power for power in range(11))
CONTEXT = tuple(2**power for power in range(4, 18))
CHUNK = tuple(2**power for power in range(15))
PREFIX = (0, *(2**power for power in range(9, 18)))
DIGITS, FEWER_DIGITS = 4, 3  # significant; fewer where the measurement has no more


def main() -> int:
    """Build what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help=f"{', '.join(MODELS)}, or a name that the package knows")
    parser.add_argument("--device", choices=sorted(DEVICES), action="append")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "tuner" / "data" / "steptimes")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    options.out.mkdir(parents=True, exist_ok=True)
    for model in options.model or MODELS:
        for device in options.device or DEVICES:
            path = options.out / f"{model.rpartition('/')[2].lower()}-{device.lower()}.json"
            content = table(MODELS.get(model, model), DEVICES[device], device)
            if not (content["shared"] and content["attention"]):
                sys.stdout.write(f"{path.name}: nothing was measured\n")
                continue
            path.write_text(dump(content), encoding="utf-8")
            sys.stdout.write(f"{path.name}: {path.stat().st_size} bytes, {len(content['shared'])} step tables\n")
    return 0


def table(model: str, system: str, device: str) -> dict[str, Any]:
    """The content of one file; what was not measured there (no 8-bit units, no room for the experts) is left out."""
    from aiconfigurator_core.sdk.engine import EngineHandle

    config = config_of(model)
    mixed = (config.get("quantization_config") or {}).get("quant_method") == "mxfp4"

    def engine(size: int, precision: str, cache: str) -> Any:
        more: dict[str, Any] = {"moe_tp_size": size} if experts_of(config) > 1 else {}
        if more and not mixed:
            more["moe_quant_mode"] = "fp8" if precision == "fp8_static" else precision
        return EngineHandle.compile(
            model, system, "vllm", tp_size=size, gemm_quant_mode=precision, kvcache_quant_mode=cache, **more
        )

    shared, attention = [], []
    for size in TENSOR_PARALLEL:
        for precision, name in (MIXED if mixed else PRECISIONS).items():
            with suppressed():
                made = engine(size, name, "bfloat16")
                values = rounded(rising([1000 * shared_ms(made, tokens) for tokens in TOKENS]))
                shared.append({"tensor_parallel": size, "precision": precision, "shared_us": values})
        for cache, name in CACHES.items():
            with suppressed():
                made = engine(size, "bfloat16", name)
                attention.append({"tensor_parallel": size, "cache": cache, **attention_of(made)})
    return {
        "schema": SCHEMA,
        "model": model,
        "shape": shape_of(config),
        "device": device,
        "origin": {
            "package": PACKAGE,
            "version": metadata.version(PACKAGE),
            "system": system,
            "engine": f"vllm {engine_version(system)}",
            "licence": "Apache-2.0",
            "notice": "Derived from performance data of aiconfigurator-core, "
            "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.",
            "built": dt.datetime.now(dt.UTC).date().isoformat(),
        },
        "tokens": TOKENS,
        "batch": BATCH,
        "context": CONTEXT,
        "chunk": CHUNK,
        "prefix": PREFIX,
        "shared": shared,
        "attention": attention,
    }


def attention_of(engine: Any) -> dict[str, Any]:
    """Of decodes, and of prompt chunks."""
    base_ms = prefill_ms(engine, 1, 0)
    decodes = [rising([1000 * decode_ms(engine, batch, context) for context in CONTEXT]) for batch in BATCH]
    columns = [rising(column) for column in zip(*decodes, strict=True)]
    return {
        "decode_us": [rounded(row) for row in zip(*columns, strict=True)],
        "prefill_us": rounded([1000 * base_ms])[0],
        "pair_ns": [
            rounded([1e6 * rate_ms(engine, chunk, prefix, base_ms) for prefix in PREFIX], FEWER_DIGITS)
            for chunk in CHUNK
        ],
    }


def suppressed() -> contextlib.AbstractContextManager[None]:
    """The package's words for what it has no data of, and for experts that cannot be split over so many GPUs."""
    from aiconfigurator_core.sdk.errors import MissingSystemFlopsError, PerfDataNotAvailableError

    return contextlib.suppress(MissingSystemFlopsError, PerfDataNotAvailableError, ValueError)


def shared_ms(engine: Any, tokens: int) -> float:
    """Everything but attention in a step of so many tokens."""
    return float(engine.mixed_step_breakdown(tokens, 0, tokens, 1, 0)[1])


def decode_ms(engine: Any, batch: int, context: int) -> float:
    """Attention of `batch` decodes, each behind `context` tokens."""
    return float(engine.mixed_step_breakdown(0, batch, context, 2, 0)[3])


def prefill_ms(engine: Any, chunk: int, prefix: int) -> float:
    """Attention of one prompt chunk behind `prefix` cached tokens."""
    return float(engine.mixed_step_breakdown(chunk, 0, chunk + prefix, 1, prefix)[2])


def rate_ms(engine: Any, chunk: int, prefix: int, base_ms: float) -> float:
    """Of each (token, earlier token or itself) pair, beyond what the least chunk takes."""
    pairs = chunk * (prefix + (chunk + 1) / 2)
    return max(prefill_ms(engine, chunk, prefix) - base_ms, 0.0) / pairs


def config_of(model: str) -> dict[str, Any]:
    """The model's own `config.json`."""
    import aiconfigurator_core

    root = Path(aiconfigurator_core.__file__).parent / "model_configs"
    return dict(json.loads((root / f"{model.replace('/', '--')}_config.json").read_text(encoding="utf-8")))


def experts_of(config: Mapping[str, Any]) -> int:
    """1 of a model without."""
    return int(config.get("num_local_experts") or config.get("num_experts") or 1)


def shape_of(config: Mapping[str, Any]) -> dict[str, int]:
    """What a served model is recognised by: its sizes, and how many parameters it has in all."""
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    kv_heads, head_dim = config["num_key_value_heads"], config.get("head_dim") or hidden // heads
    attention = hidden * head_dim * 2 * (heads + kv_heads)
    embeddings = config["vocab_size"] * hidden * (1 if config.get("tie_word_embeddings") else 2)
    mlp = 3 * hidden * (config.get("moe_intermediate_size") or config["intermediate_size"])
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "parameters": embeddings + layers * (attention + experts_of(config) * mlp),
    }


def engine_version(system: str) -> str:
    """The engine whose kernels were measured."""
    import aiconfigurator_core

    root = Path(aiconfigurator_core.__file__).parent / "systems" / "data" / system / "gemm" / "vllm"
    return max((path.name for path in root.iterdir()), key=_numbers)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]


def rising(values: Sequence[float]) -> list[float]:
    """
    What so much work or more takes at least: more work never takes less time.

    A product of 257 rows may take longer than one of 512. An engine that pads its batches avoids most of these steps;
    with them the times of Llama-3.1-70B in fp8 on B200 are 10.5 % off instead of 5.7 %.
    """
    found = list(values)
    for index in reversed(range(len(found) - 1)):
        found[index] = min(found[index], found[index + 1])
    return found


def rounded(values: Sequence[float], digits: int = DIGITS) -> list[float]:
    """To significant digits, whole numbers as such."""
    cut = [float(f"{value:.{digits}g}") for value in values]
    return [int(value) if value.is_integer() else value for value in cut]


def dump(content: Mapping[str, Any]) -> str:
    """JSON with one row of numbers a line."""

    def lines(value: Any, indent: str) -> str:
        if isinstance(value, Mapping):
            inner = [f"{indent} {json.dumps(key)}: {lines(item, indent + ' ')}" for key, item in value.items()]
            return "{\n" + ",\n".join(inner) + "\n" + indent + "}"
        if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping | list | tuple):
            return "[\n" + ",\n".join(f"{indent} {lines(item, indent + ' ')}" for item in value) + "\n" + indent + "]"
        return json.dumps(value, separators=(",", ":"), allow_nan=False)

    return lines(content, "") + "\n"


if __name__ == "__main__":
    sys.exit(main())
