"""
Step times from measured kernels: the shipped tables, and how they are read between their points.

A step takes what all its tokens share (products, norms, activations, all-reduces: a function of their number), plus
the attention of its decodes (of their number and their mean context), plus the attention of each prompt chunk (of its
length and of what lies before it). `tools/build_tables.py` makes the files; each names origin and licence. Arrays only,
so that a compiled step can read them too.
"""

import json
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from tuner.model import ModelFacts

SCHEMA = 1
DIRECTORY = "data/steptimes"
#: Environment variable that names a directory of further tables; they go before the shipped ones.
MORE = "TUNER_STEPTIMES"
Precision = Literal["bf16", "fp8", "fp8_static", "fp8_block", "mxfp4", "nvfp4"]
Cache = Literal["bf16", "fp8"]
#: Quantisation of a checkpoint → precision of its table.
PRECISIONS: Mapping[str, Precision] = {
    "fp8": "fp8_static",
    "fp8_block": "fp8_block",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
}
_SHAPE = ("layers", "hidden", "heads", "kv_heads", "head_dim")
#: Share by which the parameters of a model may differ from those of a table's: a longer vocabulary, not another MLP.
_SAME_SIZE = 0.02


@dataclass(frozen=True, eq=False)
class Tabled:
    """
    Step times of one model on one engine, between the points of tables; linear beyond their ends.

    Rows of `decode_s` go with `batch`, columns with `context`; rows of `pair_s` go with `chunk`, columns with `prefix`.
    All points ascend, and there are at least two of each.
    """

    tokens: tuple[float, ...]  # in the step
    shared_s: tuple[float, ...]
    batch: tuple[float, ...]  # decodes in the step
    context: tuple[float, ...]  # tokens that a decode attends to, on average
    decode_s: tuple[tuple[float, ...], ...]
    chunk: tuple[float, ...]  # tokens of a prompt chunk
    prefix: tuple[float, ...]  # tokens before it
    prefill_s: float  # attention of the least chunk, once a step
    pair_s: tuple[tuple[float, ...], ...]  # of each (token, earlier token or itself) pair of a chunk, beyond that
    fixed_s: float = 0.0  # of every step: what no kernel does

    @property
    def floor_s(self) -> float:
        """See `StepTime`. Half of what the products take: attention adds to that, noise between points does not."""
        return 0.5 * (self.fixed_s + min(self.shared_s))

    def step(self, prefills: Sequence[tuple[int, int]], decodes: int, context: int) -> float:
        """See `StepTime`."""
        tokens = decodes
        seconds = self.fixed_s
        if decodes:
            seconds += _plane(self.batch, self.context, self.decode_s, decodes, context / decodes)
        if prefills:
            seconds += self.prefill_s
        for count, before in prefills:
            tokens += count
            pairs = count * (before + (count + 1) / 2)
            seconds += pairs * _plane(self.chunk, self.prefix, self.pair_s, count, before)
        at, share = _cell(self.tokens, tokens)
        return seconds + self.shared_s[at] + share * (self.shared_s[at + 1] - self.shared_s[at])


def _cell(points: Sequence[float], value: float) -> tuple[int, float]:
    """The points that a value lies between, and how far; 0 or 1 and beyond outside."""
    at = min(max(bisect_right(points, value) - 1, 0), len(points) - 2)
    return at, (value - points[at]) / (points[at + 1] - points[at])


def _plane(
    rows: Sequence[float], columns: Sequence[float], table: Sequence[Sequence[float]], row: float, column: float
) -> float:
    """Bilinear between four points."""
    i, down = _cell(rows, row)
    j, right = _cell(columns, column)
    upper, lower = table[i], table[i + 1]
    above = upper[j] + right * (upper[j + 1] - upper[j])
    return above + down * (lower[j] + right * (lower[j + 1] - lower[j]) - above)


def find(
    facts: ModelFacts, device: str, tensor_parallel: int, precision: Precision, cache: Cache
) -> tuple[str, Tabled] | None:
    """
    The table of a model of this shape on this device, and its version; None without one.

    Args:
        facts: Of the model: whatever its name, a table serves every model of the same shape.
        device: Name in the device table.
        tensor_parallel: GPUs of an engine.
        precision: Of the weights; `fp8` = quantised while they are loaded, `fp8_static` and `fp8_block` = in the
            checkpoint, with one scale or one for each block, `mxfp4` = of the experts alone.
        cache: Of the KV cache.
    """
    more = os.environ.get(MORE)
    shipped = _read(Path(str(files("tuner").joinpath(DIRECTORY))), device)
    for content in (*(_read(Path(more), device) if more else ()), *shipped):
        if not _alike(facts, content["shape"]):
            continue
        shared = _entry(content["shared"], tensor_parallel=tensor_parallel, precision=precision)
        attention = _entry(content["attention"], tensor_parallel=tensor_parallel, cache=cache)
        if shared is not None and attention is not None:
            return version(content), _tabled(content, shared, attention)
    return None


def version(content: Mapping[str, Any]) -> str:
    """Such as `aiconfigurator-core 0.12.0, vllm 0.24.0, table 1`."""
    origin = content["origin"]
    return f"{origin['package']} {origin['version']}, {origin['engine']}, table {content['schema']}"


@cache
def _read(directory: Path, device: str) -> tuple[dict[str, Any], ...]:
    paths = sorted(directory.glob(f"*-{device.lower()}.json"))
    found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return tuple(content for content in found if content["device"] == device and content["schema"] == SCHEMA)


def _alike(facts: ModelFacts, shape: Mapping[str, float]) -> bool:
    if any(getattr(facts, name) != shape[name] for name in _SHAPE):
        return False
    return abs(facts.params / shape["parameters"] - 1) < _SAME_SIZE


def _entry(rows: Sequence[Mapping[str, Any]], **wanted: object) -> Mapping[str, Any] | None:
    return next((row for row in rows if all(row[name] == value for name, value in wanted.items())), None)


def _tabled(content: Mapping[str, Any], shared: Mapping[str, Any], attention: Mapping[str, Any]) -> Tabled:
    def scaled(values: Sequence[float], unit: float) -> tuple[float, ...]:
        return tuple(value * unit for value in values)

    return Tabled(
        tokens=tuple(content["tokens"]),
        shared_s=scaled(shared["shared_us"], 1e-6),
        batch=tuple(content["batch"]),
        context=tuple(content["context"]),
        decode_s=tuple(scaled(row, 1e-6) for row in attention["decode_us"]),
        chunk=tuple(content["chunk"]),
        prefix=tuple(content["prefix"]),
        prefill_s=attention["prefill_us"] * 1e-6,
        pair_s=tuple(scaled(row, 1e-9) for row in attention["pair_ns"]),
    )
