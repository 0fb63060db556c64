"""Which step times the kernel knows, and how they are told to it."""

from dataclasses import dataclass
from itertools import chain

import numpy as np

from tuner.simulator import kernel
from tuner.simulator.steptime import Calibrated, Linear, Scaled, StepTime
from tuner.simulator.tables import Tabled


@dataclass(frozen=True)
class Form:
    """Step times taken apart: factor × corrections (inner)."""

    inner: Linear | Tabled
    corrections: Calibrated | None = None
    factor: float = 1.0
    floor_s: float = 0.0  # see `StepTime`


def form_of(step_time: StepTime) -> Form | None:
    """None where the kernel does not know it."""
    factor, floor_s = 1.0, step_time.floor_s
    if isinstance(step_time, Scaled):
        factor, step_time = step_time.factor, step_time.inner
    corrections = step_time if isinstance(step_time, Calibrated) else None
    inner = step_time if corrections is None else corrections.inner
    return Form(inner, corrections, factor, floor_s) if isinstance(inner, Linear | Tabled) else None


def write(form: Form, ints: kernel.Ints, floats: kernel.Floats) -> kernel.Floats:
    """Put the numbers of a form into an engine's state; what is returned are its `points`."""
    floats[kernel.FACTOR] = form.factor
    if form.corrections is not None:
        ints[kernel.CORRECTED] = 1
        floats[kernel.SCALE_PREFILL] = form.corrections.scale_prefill
        floats[kernel.SCALE_DECODE] = form.corrections.scale_decode
        floats[kernel.EVERY_STEP_S] = form.corrections.c0_s
        floats[kernel.EVERY_REQUEST_S] = form.corrections.request_s
    inner = form.inner
    floats[kernel.STEP_FIXED_S] = inner.fixed_s
    if isinstance(inner, Linear):
        floats[kernel.STEP_TOKEN_S] = inner.token_s
        floats[kernel.STEP_WEIGHTS_S] = inner.weights_s
        floats[kernel.STEP_PAIR_S] = inner.pair_s
        floats[kernel.STEP_CONTEXT_S] = inner.context_s
        floats[kernel.STEP_EXTRA_TOKEN_S] = inner.extra_token_s
        floats[kernel.STEP_FACTOR] = inner.factor
        return np.empty(0)
    ints[kernel.TABLED] = 1
    floats[kernel.STEP_PREFILL_S] = inner.prefill_s
    parts = (
        inner.tokens,
        inner.shared_s,
        inner.batch,
        inner.context,
        tuple(chain.from_iterable(inner.decode_s)),
        inner.chunk,
        inner.prefix,
        tuple(chain.from_iterable(inner.pair_s)),
    )
    begins = np.cumsum([0, *(len(part) for part in parts)])
    ints[kernel.PARTS : kernel.PARTS + kernel.PART_COUNT] = begins
    return np.array(list(chain.from_iterable(parts)), np.float64)
