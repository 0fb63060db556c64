"""
How long one step of an engine takes.

`StepTime` is the seam: the scheduler's model knows nothing else of a model or a device. The roofline below needs a data
sheet only. The defaults of `Machine` were set by hand on one model (Llama-3.1-70B in fp8 on 1 to 8 H100 and H200,
`benchmarks/simulator.py`), so its error there says little about other models and devices. Sources of the form: Williams
et al., Roofline (CACM 2009); the ring all-reduce: Patarasuk and Yuan (JPDC 2009).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol


class StepTime(Protocol):
    """Pure: equal arguments, equal seconds."""

    @property
    def floor_s(self) -> float:
        """No step takes less, in seconds; the nearer to the shortest one, the faster a simulation of many engines."""

    def step(self, prefills: Sequence[tuple[int, int]], decodes: int, context: int) -> float:
        """
        Seconds of one step, > 0.

        Args:
            prefills: (tokens to compute, tokens before them in the cache) of each prompt chunk.
            decodes: Requests that get one token.
            context: Tokens that these attend to, their own included, summed.
        """


@dataclass(frozen=True)
class ModelShape:
    """Of a decoder-only transformer. Bytes are those of the served precision, over all GPUs."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    weight_bytes: float
    active_parameters: float  # that one token passes through; less than all in a mixture of experts
    kv_bytes_per_token: float
    compute_bytes: float  # of one operand of a matrix product: 2 = bf16, 1 = fp8


@dataclass(frozen=True)
class Machine:
    """One GPU (or CPU slot) of an engine; peaks, and the share of them that kernels reach."""

    flops: float  # FLOP/s at the model's precision
    memory_bytes_per_s: float
    link_bytes_per_s: float  # to the other GPUs of the engine, one direction
    step_s: float  # of every step: scheduling, launching, sampling
    layer_s: float = 15e-6  # of every layer of a step: kernels whose time no size explains
    compute_share: float = 0.52
    memory_share: float = 0.88
    attention_share: float = 0.40
    all_reduce_s: float = 14e-6  # of every all-reduce, whatever its size
    link_share: float = 0.60
    token_s: float = 0.0  # of every token in a step


@dataclass(frozen=True)
class Linear:
    """
    A step as a sum of shares of its tokens, in seconds each.

    seconds = factor × (fixed + max(tokens × token, weights) + pairs × pair + read × context + tokens × extra_token)

    with all tokens of the step, (token, earlier token or itself) pairs of its prompt chunks, and tokens whose KV is
    read. The compiled engine knows this form, so these numbers are all that it needs of a model and a device.
    """

    fixed_s: float
    token_s: float = 0.0
    weights_s: float = 0.0
    pair_s: float = 0.0
    context_s: float = 0.0
    extra_token_s: float = 0.0
    factor: float = 1.0

    @property
    def floor_s(self) -> float:
        """See `StepTime`."""
        return self.factor * (self.fixed_s + self.weights_s)

    def step(self, prefills: Sequence[tuple[int, int]], decodes: int, context: int) -> float:
        """See `StepTime`."""
        tokens, pairs, read = decodes, 0.0, context
        for count, before in prefills:
            tokens += count
            pairs += count * (before + (count + 1) / 2)
            read += before
        linear = tokens * self.token_s
        return self.factor * (
            self.fixed_s
            + (linear if linear > self.weights_s else self.weights_s)  # noqa: FURB136  (max() is several times slower)
            + pairs * self.pair_s
            + read * self.context_s
            + tokens * self.extra_token_s
        )


def roofline(shape: ModelShape, machine: Machine, tensor_parallel: int = 1) -> Linear:
    """
    Step times of one model on `tensor_parallel` GPUs.

    step = fixed + max(2·P·n / (TP·F·share), W / (TP·BW·share)) + prompt attention / (TP·F·share)
           + KV bytes read / (TP·BW·share) + two all-reduces a layer

    with n tokens in the step, P parameters that a token passes, W bytes of weights. Prompt attention of a chunk of n
    tokens behind p is 4·n·(p + (n + 1) / 2)·heads·head_dim FLOPs a layer.
    """
    memory = tensor_parallel * machine.memory_bytes_per_s * machine.memory_share
    compute = tensor_parallel * machine.flops
    copies = max(1.0, tensor_parallel / shape.kv_heads)  # a KV head that several GPUs need is read by each
    fixed_s = machine.step_s + shape.layers * machine.layer_s
    extra_token_s = machine.token_s
    if tensor_parallel > 1:
        fixed_s += 2 * shape.layers * machine.all_reduce_s
        sent = 2 * shape.layers * shape.hidden * 2 * 2 * (tensor_parallel - 1) / tensor_parallel
        extra_token_s += sent / (machine.link_bytes_per_s * machine.link_share)
    return Linear(
        fixed_s=fixed_s,
        token_s=2 * shape.active_parameters / (compute * machine.compute_share),
        weights_s=shape.weight_bytes / memory,
        pair_s=4 * shape.heads * shape.head_dim * shape.layers / (compute * machine.attention_share),
        context_s=shape.kv_bytes_per_token * copies / memory,
        extra_token_s=extra_token_s,
    )


@dataclass(frozen=True)
class Calibrated:
    """
    Step times of another model of the engine, corrected.

    Args:
        inner: The step times that were fitted.
        scale_prefill: Factor on what prompt chunks add to a step.
        scale_decode: Factor on what a step's decodes take alone, the fixed part of such a step included.
        c0_s: Seconds added to every step.
        request_s: Seconds added for each request in a step: sampling it, sending its token.
    """

    inner: StepTime
    scale_prefill: float
    scale_decode: float
    c0_s: float
    request_s: float = 0.0

    @property
    def floor_s(self) -> float:
        """See `StepTime`."""
        return self.c0_s + self.request_s + min(self.scale_prefill, self.scale_decode) * self.inner.floor_s

    def step(self, prefills: Sequence[tuple[int, int]], decodes: int, context: int) -> float:
        """See `StepTime`."""
        alone = self.inner.step((), decodes, context) if decodes else 0.0
        corrected = self.c0_s + self.request_s * (decodes + len(prefills)) + self.scale_decode * alone
        if not prefills:
            return corrected
        return corrected + self.scale_prefill * (self.inner.step(prefills, decodes, context) - alone)


@dataclass(frozen=True)
class Scaled:
    """Every step takes `factor` times as long."""

    inner: StepTime
    factor: float

    @property
    def floor_s(self) -> float:
        """See `StepTime`."""
        return self.factor * self.inner.floor_s

    def step(self, prefills: Sequence[tuple[int, int]], decodes: int, context: int) -> float:
        """See `StepTime`."""
        return self.factor * self.inner.step(prefills, decodes, context)


def scaled(inner: StepTime, factor: float) -> StepTime:
    """Step times of an unusually slow or fast run."""
    return replace(inner, factor=factor * inner.factor) if isinstance(inner, Linear) else Scaled(inner, factor)
