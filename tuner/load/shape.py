"""
What the requests of a level look like, without their text: arrival, phase, lengths and shared prefixes. Pure.

The simulator works on this alone; `prompts` turns the same shapes into what the live client sends. So both see the same
arrivals, lengths and prefix blocks.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.errors import InputError
from tuner.load.arrivals import (
    ORDER,
    FloatArray,
    IntArray,
    Window,
    enough,
    entry_row,
    generator,
    grid_of,
    levelled,
    phases,
    replay_times,
    unit_times,
    window_of,
)
from tuner.load.plan import LevelPlan
from tuner.slo import Synthetic, Trace


@dataclass(frozen=True)
class Rows:
    """
    Rows of a trace or of a prompts file, cut and scaled as the source asks.

    Row i has the prefix blocks `block_ids[block_offsets[i]:block_offsets[i + 1]]`, each `block_tokens` long except that
    the prompt may end within the last. A block id stands for the block and everything before it.
    """

    timestamp_s: FloatArray  # from the first row; all zero for a prompts file
    input_tokens: IntArray  # of a prompts file: estimated
    output_tokens: IntArray
    block_tokens: int  # 0 = no blocks are known
    block_offsets: IntArray  # rows + 1
    block_ids: IntArray

    def __len__(self) -> int:
        return len(self.input_tokens)


@dataclass(frozen=True)
class RequestShapes:
    """
    The requests of one level in order of arrival; index i is the same request for the client and the simulator.

    The first tokens of request i are those of its prefix blocks, as in `Rows`; whatever lies behind them is unique to
    the request. In a closed loop arrivals are not known beforehand: `arrival_s`, `phase` and `window` are None.
    """

    arrival_s: FloatArray | None  # ascending, seconds from the start of the level
    phase: NDArray[np.uint8] | None  # index into `arrivals.PHASES`
    window: Window | None
    input_tokens: IntArray
    output_tokens: IntArray
    row: IntArray | None  # row of the source file; None for synthetic
    block_tokens: int  # 0 = nothing is shared
    block_offsets: IntArray
    block_ids: IntArray

    def __len__(self) -> int:
        return len(self.input_tokens)

    def blocks(self, index: int) -> IntArray:
        """Prefix block ids of one request; equal ids mean equal tokens up to the end of the block."""
        return self.block_ids[self.block_offsets[index] : self.block_offsets[index + 1]]

    def shared_tokens(self, index: int) -> int:
        """How many leading tokens of the request come from prefix blocks; the others are unique to it."""
        count = int(self.block_offsets[index + 1] - self.block_offsets[index])
        return min(count * self.block_tokens, int(self.input_tokens[index]))

    def cache_keys(self, index: int, size: int) -> IntArray:
        """
        Identity of each full engine block of `size` tokens of the prompt, in order.

        Two keys are equal exactly when the prompts agree on all tokens up to the end of that block. Keys of blocks that
        reach beyond the shared prefix are negative and unique within the level.
        """
        full = int(self.input_tokens[index]) // size
        place = np.arange(full, dtype=np.int64)
        keys = -1 - (place + (np.int64(index) << 24))
        shared = self.shared_tokens(index) // size
        if shared:
            ends = (place[:shared] + 1) * size
            keys[:shared] = (self.blocks(index)[(ends - 1) // self.block_tokens] << 24) + place[:shared]
        return keys


def level_requests(plan: LevelPlan, rows: Rows | None, count: int | None = None) -> RequestShapes:
    """
    The requests of one level.

    An open loop gets as many as can arrive until the last measured request is decided at the latest (window, then
    `timeout.total_s` of drain): the load goes on during the drain, so take them in order and stop when every measured
    request is decided.

    Args:
        plan: Of the level.
        rows: `traces.read(source)` or `traces.read_prompts(source)`; None for a synthetic source.
        count: How many to make; needed in a closed loop, where the first n do not depend on it.

    Raises:
        InputError: A source without its rows, an empty one, or gaps that cannot be replayed.
    """
    source = plan.workload.source
    if not isinstance(source, Synthetic) and (rows is None or len(rows) == 0):
        raise InputError(f"workload.source: got {source.path} without a single row: nothing to send")
    if plan.rate_rps is None:
        if count is None:
            raise InputError("workload.load: a closed loop has no schedule: say how many requests to make")
        return _shapes(plan, rows, None, None, _positions(plan, rows, count))
    window, arrival_s, positions = _schedule(plan, rows, plan.rate_rps)
    end = int(np.searchsorted(arrival_s, window.end_s + plan.workload.timeout.total_s)) if count is None else count
    return _shapes(plan, rows, arrival_s[:end], window, positions[:end])


def _schedule(plan: LevelPlan, rows: Rows | None, rate_rps: float) -> tuple[Window, FloatArray, IntArray]:
    measure = plan.workload.measure
    drain_s = plan.workload.timeout.total_s
    count = enough(rate_rps, measure.warmup_s + measure.duration_s + drain_s, plan.min_requests)
    while True:
        times, positions = _unit(plan, rows, count)
        if plan.workload.arrivals.process == "replay":
            measured = max(plan.min_requests, round(measure.duration_s * rate_rps))
            times = levelled(times, warmup=measure.warmup_s * rate_rps, measured=measured) * _stretch(plan)
        arrival_s = times / rate_rps
        window = window_of(
            arrival_s, warmup_s=measure.warmup_s, duration_s=measure.duration_s, min_requests=plan.min_requests
        )
        if window is not None and arrival_s[-1] >= window.end_s + drain_s:
            return window, arrival_s, positions
        count *= 2


def _unit(plan: LevelPlan, rows: Rows | None, count: int) -> tuple[FloatArray, IntArray]:
    arrivals, source = plan.workload.arrivals, plan.workload.source
    if arrivals.process != "replay":
        times = unit_times(arrivals, count, seed=plan.seed, number=plan.number)
        return times, _positions(plan, rows, count)
    if not isinstance(source, Trace) or rows is None:
        raise InputError(f"workload.arrivals: got replay with a {source.kind} source: only a trace has gaps of its own")
    grid_s = grid_of(rows.timestamp_s, source.grid_s)
    times, positions = replay_times(rows.timestamp_s, count, grid_s=grid_s, seed=plan.seed, number=plan.number)
    return times, positions


def _stretch(plan: LevelPlan) -> float:
    """Factor on a trace's gaps beside the offered rate."""
    source = plan.workload.source
    return source.scale_time if isinstance(source, Trace) and plan.workload.load.kind == "rate" else 1.0


def _positions(plan: LevelPlan, rows: Rows | None, count: int) -> IntArray:
    """Place of each request in the endlessly repeated source; a prompts file is shuffled anew in every level."""
    place = np.arange(count, dtype=np.int64)
    if rows is None:
        return place
    if isinstance(plan.workload.source, Trace):
        return place + entry_row(len(rows), seed=plan.seed, number=plan.number)
    order: IntArray = generator(plan.seed, plan.number, ORDER).permutation(len(rows))
    rounds, within = np.divmod(place, len(rows))
    positions: IntArray = order[within] + rounds * len(rows)
    return positions


def _shapes(
    plan: LevelPlan, rows: Rows | None, arrival_s: FloatArray | None, window: Window | None, positions: IntArray
) -> RequestShapes:
    source = plan.workload.source
    codes = None if arrival_s is None or window is None else phases(arrival_s, window)
    count = len(positions)
    if isinstance(source, Synthetic):
        shared = source.shared_prefix_tokens > 0
        return RequestShapes(
            arrival_s=arrival_s,
            phase=codes,
            window=window,
            input_tokens=np.full(count, source.input_tokens, dtype=np.int64),
            output_tokens=np.full(count, source.output_tokens, dtype=np.int64),
            row=None,
            block_tokens=source.shared_prefix_tokens,
            block_offsets=np.arange(count + 1, dtype=np.int64) * shared,
            block_ids=positions % source.prefixes if shared else np.empty(0, dtype=np.int64),
        )
    if rows is None:
        raise InputError(f"workload.source: got {source.path} without its rows")
    rounds, row = np.divmod(positions, len(rows))
    offsets, ids = _gather_blocks(rows, row, rounds)
    return RequestShapes(
        arrival_s=arrival_s,
        phase=codes,
        window=window,
        input_tokens=rows.input_tokens[row],
        output_tokens=rows.output_tokens[row],
        row=row,
        block_tokens=rows.block_tokens,
        block_offsets=offsets,
        block_ids=ids,
    )


def _gather_blocks(rows: Rows, row: IntArray, rounds: IntArray) -> tuple[IntArray, IntArray]:
    """Blocks of the chosen rows. A trace that goes round starts with fresh blocks: nothing is warm by accident."""
    lengths = np.diff(rows.block_offsets)[row]
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    if len(rows.block_ids) == 0:
        return offsets, np.empty(0, dtype=np.int64)
    within = np.arange(offsets[-1], dtype=np.int64) - np.repeat(offsets[:-1], lengths)
    ids = rows.block_ids[np.repeat(rows.block_offsets[:-1][row], lengths) + within]
    return offsets, ids + np.repeat(rounds, lengths) * (int(rows.block_ids.max()) + 1)
