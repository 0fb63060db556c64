"""
The engine's steps, compiled: decisions and arithmetic of `scheduler`, `blocks` and `engine`, in arrays.

Those three are what this is meant to do, and tests compare every bit. Names are theirs. All functions lie in one file
because a compiled function is cached until its own file changes, whatever becomes of the functions that it calls.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
F = TypeVar("F", bound=Callable[..., Any])

#: What `advance` returns: done, or an array is full and wants to be made larger.
DONE, MORE_ENDS, MORE_SPANS = range(3)
#: Code of a request's status; index of `compiled.STATUSES`.
LIVE, ENDED_OK, TIMEOUT_FIRST, TIMEOUT_GAP, TIMEOUT_TOTAL = range(5)

#: More tokens than any request has.
FAR = 1 << 62

# Columns of `State.requests`. KEYS_AT and HELD_AT are places in `keys` and `held`, SPAN is a row of `spans`.
(
    NUMBER,
    PROMPT,
    OUTPUT,
    KEYS_AT,
    KEYS,
    HELD_AT,
    REMOTE,
    PARK,
    HELD,
    BLOCKS,
    COMPUTED,
    EMITTED,
    HIT,
    LOADED,
    PREEMPTED,
    STATUS,
    SPAN,
) = range(17)
REQUEST_COLUMNS = 17
# Columns of `State.times`; READY_S is when its KV is there, or when its blocks are released.
(SCHEDULED_S, ENDED_S, READY_S) = range(3)
TIME_COLUMNS = 3
# Columns of `State.spans`: steps [first, past), and the row of the request's span before.
(FIRST, PAST, BEFORE) = range(3)
SPAN_COLUMNS = 3
# Columns of `State.queue`, a ring of free blocks around node 0; nodes from 1 to RUN_NODES are runs, then come keys.
(PREVIOUS, NEXT) = range(2)
QUEUE_COLUMNS = 2

# Places in `State.ints`.
(
    MAX_TOKENS,
    MAX_SEQS,
    BLOCK_SIZE,
    CHUNKED,
    CACHING,
    THRESHOLD,
    RUNNING,
    WAITING,
    WAITING_HEAD,
    ENDS,
    SPANS,
    ENDED,
    JUST_ENDED,
    PREEMPTIONS,
    COMPUTED_TOKENS,
    PREEMPTED_TOKENS,
    QUERIES,
    HITS,
    FREE,
    LEAST_FREE,
    EVICTIONS,
    RUN_NODES,
    SPARE_NODE,
    USED_NODES,
    STEADY,
    CHUNKS,  # of prompts in the current step
    LOADING,
    RELEASED,
    TRANSFERS,
    LOADED_TOKENS,
    STORE_QUERIES,
    LEFT,  # tokens that every request still needs at least, after `advance`
    TABLED,  # step times lie in `State.points`
    CORRECTED,
    PARTS,  # where each part of `points` begins, and where the last one ends
) = range(35)
# Parts of `points`, in the words of `tables.Tabled`.
(TOKENS, SHARED_S, BATCH, CONTEXT, DECODE_S, CHUNK, PREFIX, PAIR_S) = range(8)
PART_COUNT = 9
INTS = PARTS + PART_COUNT

# Places in `State.floats`.
(
    CLOCK_S,
    EXPIRY_S,
    FIRST_TOKEN_S,
    BETWEEN_TOKENS_S,
    TOTAL_S,
    STEP_FIXED_S,
    STEP_TOKEN_S,
    STEP_WEIGHTS_S,
    STEP_PAIR_S,
    STEP_CONTEXT_S,
    STEP_EXTRA_TOKEN_S,
    STEP_FACTOR,
    NEXT_S,
    LINK_FREE_S,
    LINK_LATENCY_S,
    LINK_TOKEN_S,
    STEP_PREFILL_S,
    SCALE_PREFILL,
    SCALE_DECODE,
    EVERY_STEP_S,
    EVERY_REQUEST_S,
    FACTOR,
    STORE_FREE_S,
) = range(23)
FLOATS = 23

# Places in `State.store`: tiers (0 = no store), runs that there can be, a spare run, runs used so far; then for each
# tier its room and what is used of it. In `store_links` the ring of tier t is around node t; then come runs, then keys.
(TIERS, STORE_RUNS, STORE_SPARE, STORE_USED_RUNS, ROOM) = range(5)
# Places in `State.store_times`, for each tier.
(TIER_LATENCY_S, TIER_TOKEN_S) = range(2)


class State(NamedTuple):
    """One engine."""

    ints: Ints
    floats: Floats
    requests: Ints
    times: Floats
    waiting: Ints  # a ring; its length is a power of two
    running: Ints
    step: Ints  # who is in the current step, and behind them how many tokens each gets
    wanted: Ints  # scratch, one for each token of a block
    ended: Ints
    ends: Floats
    spans: Ints
    keys: Ints
    held: Ints
    holders: Ints  # by key; −1 = not cached
    queue: Ints
    lengths: Ints  # of the runs
    loading: Ints
    released: Ints  # parked requests whose blocks may go, in any order
    transfers: Ints
    points: Floats  # of tables of step times
    store: Ints  # this and the following may belong to several engines
    store_times: Floats
    store_links: Ints
    store_lengths: Ints  # of the runs
    store_tiers: Ints  # by key; −1 = nowhere


#: No function here makes an array, so none needs to count references to them (numba refuses to compile one that does):
#: that halves the time of a call, and of compiling.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}


def _inner(function: F) -> F:
    """Compiled as part of whoever calls it."""
    return cast("F", njit(no_cpython_wrapper=True, **_OPTIONS)(function))


def _compiled(function: F) -> F:
    """Compiled at the first call; kept on disk for later runs, unless nothing can be written anywhere."""
    try:
        return cast("F", njit(cache=True, **_OPTIONS)(function))
    except RuntimeError:
        return cast("F", njit(**_OPTIONS)(function))


@_inner
def _unlink(s: State, node: int) -> None:
    before, after = s.queue[node, PREVIOUS], s.queue[node, NEXT]
    s.queue[before, NEXT] = after
    s.queue[after, PREVIOUS] = before


@_inner
def _append(s: State, node: int) -> None:
    last = s.queue[0, PREVIOUS]
    s.queue[last, NEXT] = node
    s.queue[node, PREVIOUS] = last
    s.queue[node, NEXT] = 0
    s.queue[0, PREVIOUS] = node


@_inner
def _append_run(s: State, length: int) -> None:
    """Unnamed blocks at the end of the queue; the run that lies there already grows."""
    s.ints[FREE] += length
    last = s.queue[0, PREVIOUS]
    if 0 < last <= s.ints[RUN_NODES]:
        s.lengths[last] += length
        return
    node = s.ints[SPARE_NODE]
    if node:
        s.ints[SPARE_NODE] = s.queue[node, NEXT]
    else:
        s.ints[USED_NODES] += 1
        node = s.ints[USED_NODES]
    s.lengths[node] = length
    _append(s, node)


@_inner
def _take(s: State, count: int) -> None:
    """As `BlockPool.take`."""
    s.ints[FREE] -= count
    while count > 0:
        node = s.queue[0, NEXT]
        if node > s.ints[RUN_NODES]:
            _unlink(s, node)
            s.holders[node - s.ints[RUN_NODES] - 1] = -1
            s.ints[EVICTIONS] += 1
            count -= 1
            continue
        length = s.lengths[node]
        if length > count:
            s.lengths[node] = length - count
            return
        _unlink(s, node)
        s.queue[node, NEXT] = s.ints[SPARE_NODE]
        s.ints[SPARE_NODE] = node
        count -= length


@_inner
def _let_go(s: State, key: int) -> None:
    s.holders[key] -= 1
    if s.holders[key] == 0:
        _append(s, key + s.ints[RUN_NODES] + 1)
        s.ints[FREE] += 1


@_inner
def _free(s: State, r: int) -> None:
    """As `Scheduler._free` and `BlockPool.give_back`."""
    held = s.requests[r, HELD]
    unnamed = s.requests[r, BLOCKS] - held
    if unnamed:
        _append_run(s, unnamed)
    at = s.requests[r, HELD_AT]
    for place in range(at + held - 1, at - 1, -1):
        _let_go(s, s.held[place])
    s.requests[r, HELD] = 0
    s.requests[r, BLOCKS] = 0


@_inner
def _leave(s: State) -> None:
    """As `Scheduler.leave`."""
    stay = 0
    for place in range(s.ints[RUNNING]):
        r = s.running[place]
        if not s.requests[r, STATUS]:
            s.running[stay] = r
            stay += 1
        elif not (s.requests[r, PARK] and s.requests[r, STATUS] == ENDED_OK):
            _free(s, r)
    s.ints[RUNNING] = stay


@_inner
def _capped(s: State, tokens: int) -> int:
    threshold = s.ints[THRESHOLD]
    return min(tokens, threshold) if threshold else tokens


@_inner
def _make_room(s: State, r: int, tokens: int) -> bool:
    """As `Scheduler._make_room`."""
    size = s.ints[BLOCK_SIZE]
    needed = (s.requests[r, COMPUTED] + tokens + size - 1) // size - s.requests[r, BLOCKS]
    while needed > s.ints[FREE]:
        s.ints[RUNNING] -= 1
        victim = s.running[s.ints[RUNNING]]
        _free(s, victim)
        s.ints[PREEMPTED_TOKENS] += s.requests[victim, COMPUTED] - s.requests[victim, HIT] - s.requests[victim, LOADED]
        s.requests[victim, COMPUTED] = 0
        s.requests[victim, HIT] = 0
        s.requests[victim, LOADED] = 0
        s.requests[victim, REMOTE] = 0
        s.requests[victim, PREEMPTED] += 1
        s.ints[PREEMPTIONS] += 1
        s.ints[WAITING_HEAD] = (s.ints[WAITING_HEAD] - 1) & (len(s.waiting) - 1)
        s.waiting[s.ints[WAITING_HEAD]] = victim
        s.ints[WAITING] += 1
        if victim == r:
            return False
    return True


@_inner
def _take_for(s: State, r: int, tokens: int) -> None:
    """As `Scheduler._take`."""
    more = (tokens + s.ints[BLOCK_SIZE] - 1) // s.ints[BLOCK_SIZE] - s.requests[r, BLOCKS]
    if more > 0:
        _take(s, more)
        s.requests[r, BLOCKS] += more


@_inner
def _publish(s: State, r: int, start: int, end: int) -> None:
    """As `Scheduler._publish`."""
    size = s.ints[BLOCK_SIZE]
    if s.ints[CACHING] and start < s.requests[r, KEYS] * size:
        at, held_at = s.requests[r, KEYS_AT], s.requests[r, HELD_AT]
        for place in range(start // size, min(end // size, s.requests[r, KEYS])):
            key = s.keys[at + place]
            if s.holders[key] < 0:
                s.holders[key] = 1
                s.held[held_at + s.requests[r, HELD]] = key
                s.requests[r, HELD] += 1


@_inner
def _compute(s: State, r: int, tokens: int) -> None:
    """As `Scheduler._compute`."""
    start = s.requests[r, COMPUTED]
    s.requests[r, COMPUTED] = start + tokens
    s.ints[COMPUTED_TOKENS] += tokens
    _take_for(s, r, start + tokens)
    _publish(s, r, start, start + tokens)


@_inner
def _cached(s: State, r: int) -> tuple[int, int]:
    """Blocks of the request that the prefix cache holds, and how many of them nobody uses."""
    if not s.ints[CACHING]:
        return 0, 0
    usable = min(s.requests[r, KEYS], (s.requests[r, PROMPT] + s.requests[r, EMITTED] - 1) // s.ints[BLOCK_SIZE])
    at, idle = s.requests[r, KEYS_AT], 0
    for place in range(usable):
        holders = s.holders[s.keys[at + place]]
        if holders < 0:
            return place, idle
        idle += holders == 0
    return usable, idle


@_inner
def _hold(s: State, r: int, count: int) -> None:
    """The request uses the first `count` of its keys, all cached."""
    at, held_at = s.requests[r, KEYS_AT], s.requests[r, HELD_AT]
    for place in range(count):
        key = s.keys[at + place]
        if s.holders[key] == 0:
            _unlink(s, key + s.ints[RUN_NODES] + 1)
            s.ints[FREE] -= 1
        s.holders[key] += 1
        s.held[held_at + place] = key
    s.requests[r, HELD] = s.requests[r, BLOCKS] = count


@_inner
def _settle(s: State, now_s: float) -> None:
    """As `Scheduler.settle`."""
    while s.ints[RELEASED]:
        first = 0
        for place in range(1, s.ints[RELEASED]):
            r, other = s.released[place], s.released[first]
            if s.times[r, READY_S] < s.times[other, READY_S] or (
                s.times[r, READY_S] == s.times[other, READY_S] and s.requests[r, NUMBER] < s.requests[other, NUMBER]
            ):
                first = place
        r = s.released[first]
        if s.times[r, READY_S] > now_s:
            break
        s.ints[RELEASED] -= 1
        s.released[first] = s.released[s.ints[RELEASED]]
        _free(s, r)
    stay = 0
    for place in range(s.ints[LOADING]):
        r = s.loading[place]
        if s.requests[r, STATUS] and s.times[r, READY_S] <= now_s:
            _free(s, r)
        else:
            s.loading[stay] = r
            stay += 1
    s.ints[LOADING] = stay


@_inner
def _next_event_s(s: State, now_s: float) -> float:
    """As `Scheduler.next_event_s`."""
    event_s = np.inf
    for place in range(s.ints[LOADING]):
        ready_s = s.times[s.loading[place], READY_S]
        if ready_s > now_s:
            event_s = min(event_s, ready_s)
    for place in range(s.ints[RELEASED]):
        event_s = min(event_s, s.times[s.released[place], READY_S])
    return event_s


@_inner
def _someone_waits(s: State, now_s: float) -> bool:
    """As `Scheduler.someone_waits`."""
    waiting: int = s.ints[WAITING]
    for place in range(s.ints[LOADING]):
        waiting += s.times[s.loading[place], READY_S] <= now_s
    return waiting > 0


@_inner
def _store_unlink(s: State, node: int) -> None:
    before, after = s.store_links[node, PREVIOUS], s.store_links[node, NEXT]
    s.store_links[before, NEXT] = after
    s.store_links[after, PREVIOUS] = before


@_inner
def _store_link(s: State, tier: int, node: int) -> None:
    last = s.store_links[tier, PREVIOUS]
    s.store_links[last, NEXT] = node
    s.store_links[node, PREVIOUS] = last
    s.store_links[node, NEXT] = tier
    s.store_links[tier, PREVIOUS] = node


@_inner
def _store_append(s: State, tier: int, length: int) -> None:
    """As `Store._append`."""
    store, tiers = s.store, s.store[TIERS]
    store[ROOM + 2 * tier + 1] += length
    last = s.store_links[tier, PREVIOUS]
    if tiers <= last < tiers + store[STORE_RUNS]:
        s.store_lengths[last - tiers] += length
        return
    run = store[STORE_SPARE]
    if run >= 0:
        store[STORE_SPARE] = s.store_lengths[run]
    else:
        run = store[STORE_USED_RUNS]
        store[STORE_USED_RUNS] += 1
    s.store_lengths[run] = length
    _store_link(s, tier, run + tiers)


@_inner
def _store_shrink(s: State, tier: int) -> None:
    """As `Store._shrink`."""
    store, tiers = s.store, s.store[TIERS]
    first_key = tiers + store[STORE_RUNS]
    room, used = ROOM + 2 * tier, ROOM + 2 * tier + 1
    while store[used] > store[room]:
        node = s.store_links[tier, NEXT]
        if node >= first_key:
            _store_unlink(s, node)
            store[used] -= 1
            s.store_tiers[node - first_key] = -1
            if tier + 1 < tiers:
                s.store_tiers[node - first_key] = tier + 1
                store[used + 2] += 1
                _store_link(s, tier + 1, node)
            continue
        run = node - tiers
        moved = min(s.store_lengths[run], store[used] - store[room])
        store[used] -= moved
        if moved == s.store_lengths[run]:
            _store_unlink(s, node)
            s.store_lengths[run] = store[STORE_SPARE]
            store[STORE_SPARE] = run
        else:
            s.store_lengths[run] -= moved
        if tier + 1 < tiers:
            _store_append(s, tier + 1, moved)


@_inner
def _store_put(s: State, at: int, count: int, unnamed: int) -> None:
    """As `Store.put`, of `count` keys from a place in `keys` on."""
    store = s.store
    first_key = store[TIERS] + store[STORE_RUNS]
    if unnamed:
        _store_append(s, 0, unnamed)
    for place in range(at + count - 1, at - 1, -1):
        key = s.keys[place]
        tier = s.store_tiers[key]
        if tier >= 0:
            _store_unlink(s, key + first_key)
            store[ROOM + 2 * tier + 1] -= 1
        s.store_tiers[key] = 0
        _store_link(s, 0, key + first_key)
        store[ROOM + 1] += 1
    for tier in range(store[TIERS]):
        _store_shrink(s, tier)


@_inner
def _stored(s: State, r: int, hit: int) -> int:
    """As `Scheduler._stored`, but all tiers together."""
    if not s.store[TIERS] or s.requests[r, REMOTE]:
        return 0
    total = s.requests[r, PROMPT] + s.requests[r, EMITTED]
    usable = min(s.requests[r, KEYS], (total - 1) // s.ints[BLOCK_SIZE])
    at, count = s.requests[r, KEYS_AT], 0
    for place in range(hit, usable):
        if s.store_tiers[s.keys[at + place]] < 0:
            break
        count += 1
    return count


@_inner
def _read(s: State, r: int, hit: int, count: int, now_s: float) -> None:
    """As `Scheduler._read` and `Store.read_s`."""
    at, seconds = s.requests[r, KEYS_AT] + hit, 0.0
    for tier in range(s.store[TIERS]):
        blocks = 0
        for place in range(at, at + count):
            blocks += s.store_tiers[s.keys[place]] == tier
        if blocks:
            tokens = blocks * s.ints[BLOCK_SIZE]
            seconds += s.store_times[2 * tier + TIER_LATENCY_S] + tokens * s.store_times[2 * tier + TIER_TOKEN_S]
    ready_s = max(now_s, s.floats[STORE_FREE_S]) + seconds
    s.floats[STORE_FREE_S] = s.times[r, READY_S] = ready_s
    _store_put(s, at, count, 0)
    _load(s, r, count * s.ints[BLOCK_SIZE])


@_inner
def _fetch(s: State, r: int, tokens: int, now_s: float) -> None:
    """As `Scheduler._fetch`."""
    s.times[r, READY_S] = now_s
    if tokens:
        begun_s = max(now_s, s.floats[LINK_FREE_S])
        ready_s = begun_s + (s.floats[LINK_LATENCY_S] + tokens * s.floats[LINK_TOKEN_S])
        s.floats[LINK_FREE_S] = s.times[r, READY_S] = ready_s
        _load(s, r, tokens)
    s.transfers[s.ints[TRANSFERS]] = r
    s.ints[TRANSFERS] += 1


@_inner
def _load(s: State, r: int, tokens: int) -> None:
    """As `Scheduler._load`."""
    _take_for(s, r, s.requests[r, PROMPT] + s.requests[r, EMITTED])
    s.loading[s.ints[LOADING]] = r
    s.ints[LOADING] += 1
    s.requests[r, COMPUTED] += tokens
    s.requests[r, LOADED] = tokens
    s.ints[LOADED_TOKENS] += tokens


@_inner
def _start(s: State, r: int, tokens: int, scheduled: int) -> None:
    """As `Scheduler._start`."""
    s.running[s.ints[RUNNING]] = r
    s.ints[RUNNING] += 1
    _compute(s, r, tokens)
    s.step[scheduled] = r
    s.step[len(s.running) + scheduled] = tokens


@_inner
def _admit_loaded(s: State, budget: int, scheduled: int, now_s: float) -> tuple[int, int, bool]:
    """The first half of `Scheduler._admit`: budget and requests in the step now, and whether others may follow."""
    place = 0
    while place < s.ints[LOADING]:
        r = s.loading[place]
        if s.times[r, READY_S] > now_s:
            place += 1
            continue
        rest = _capped(s, s.requests[r, PROMPT] + s.requests[r, EMITTED] - s.requests[r, COMPUTED])
        if budget <= 0 or s.ints[RUNNING] >= s.ints[MAX_SEQS] or (rest > budget and not s.ints[CHUNKED]):
            return budget, scheduled, False
        s.ints[LOADING] -= 1
        for later in range(place, s.ints[LOADING]):
            s.loading[later] = s.loading[later + 1]
        _publish(s, r, s.requests[r, HIT], s.requests[r, COMPUTED])
        tokens = min(rest, budget)
        _start(s, r, tokens, scheduled)
        scheduled += 1
        budget -= tokens
    return budget, scheduled, True


@_inner
def _from_outside(s: State, r: int, hit: int, stored: int, outside: int, now_s: float) -> bool:  # noqa: PLR0917
    """Ask for KV; False where there is none to ask for."""
    if s.store[TIERS] and not s.requests[r, REMOTE]:
        s.ints[STORE_QUERIES] += s.requests[r, PROMPT] + s.requests[r, EMITTED] - hit * s.ints[BLOCK_SIZE]
    s.requests[r, LOADED] = 0
    if s.requests[r, REMOTE]:
        _fetch(s, r, outside, now_s)
    elif outside:
        _read(s, r, hit, stored, now_s)
    return outside > 0


@_inner
def _admit(s: State, budget: int, scheduled: int, now_s: float) -> int:
    """As `Scheduler._admit`; returns how many requests are in the step now."""
    size = s.ints[BLOCK_SIZE]
    if s.ints[LOADING]:
        budget, scheduled, more = _admit_loaded(s, budget, scheduled, now_s)
        if not more:
            return scheduled
    while s.ints[WAITING] and budget > 0 and s.ints[RUNNING] < s.ints[MAX_SEQS]:
        r = s.waiting[s.ints[WAITING_HEAD]]
        hit, idle = _cached(s, r)
        total = s.requests[r, PROMPT] + s.requests[r, EMITTED]
        stored = _stored(s, r, hit)
        outside = total - 1 - hit * size if s.requests[r, REMOTE] else stored * size
        rest = _capped(s, total - hit * size)
        if not outside and rest > budget and not s.ints[CHUNKED]:
            break
        if (total + size - 1) // size - hit + idle > s.ints[FREE]:
            break
        s.ints[WAITING_HEAD] = (s.ints[WAITING_HEAD] + 1) & (len(s.waiting) - 1)
        s.ints[WAITING] -= 1
        _hold(s, r, hit)
        s.requests[r, COMPUTED] = s.requests[r, HIT] = hit * size
        if s.ints[CACHING]:
            s.ints[QUERIES] += total
        s.ints[HITS] += hit * size
        if _from_outside(s, r, hit, stored, outside, now_s):
            continue
        tokens = min(rest, budget)
        _start(s, r, tokens, scheduled)
        scheduled += 1
        budget -= tokens
    return scheduled


@_inner
def _schedule(s: State) -> int:
    """As `Scheduler.schedule`; `step` gets requests, and behind them their tokens; returns how many there are."""
    ints, requests, step, now_s = s.ints, s.requests, s.step, s.floats[CLOCK_S]
    if ints[RELEASED] or ints[LOADING]:
        _settle(s, now_s)
    size, half = ints[BLOCK_SIZE], len(s.running)
    budget, before, position = ints[MAX_TOKENS], ints[PREEMPTIONS], 0
    while position < ints[RUNNING] and budget > 0:
        r = s.running[position]
        computed, total = requests[r, COMPUTED], requests[r, PROMPT] + requests[r, EMITTED]
        if requests[r, EMITTED] and computed % size and computed + 1 == total:
            requests[r, COMPUTED] = total
            ints[COMPUTED_TOKENS] += 1
            tokens = 1
        else:
            tokens = min(_capped(s, total - computed), budget)
            if not _make_room(s, r, tokens):
                break
            _compute(s, r, tokens)
        step[position] = r
        step[half + position] = tokens
        budget -= tokens
        position += 1
    if ints[PREEMPTIONS] == before:
        position = _admit(s, budget, position, now_s)
    ints[LEAST_FREE] = min(ints[LEAST_FREE], ints[FREE])
    return position


@_inner
def _linear(floats: Floats, tokens: int, pairs: float, read: int) -> float:
    """As `Linear.step`."""
    seconds: float = floats[STEP_FACTOR] * (
        floats[STEP_FIXED_S]
        + max(tokens * floats[STEP_TOKEN_S], floats[STEP_WEIGHTS_S])
        + pairs * floats[STEP_PAIR_S]
        + read * floats[STEP_CONTEXT_S]
        + tokens * floats[STEP_EXTRA_TOKEN_S]
    )
    return seconds


@_inner
def _cell(points: Floats, begin: int, end: int, value: float) -> tuple[int, float]:
    """As `tables._cell`, of the points from `begin` to `end`; the place counts from the start of the array."""
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        if value < points[middle]:
            high = middle
        else:
            low = middle + 1
    at = min(max(low - 1, begin), end - 2)
    return at, (value - points[at]) / (points[at + 1] - points[at])


@_inner
def _plane(  # noqa: PLR0917  (compiled functions know no keywords)
    points: Floats, ints: Ints, rows: int, columns: int, table: int, row: float, column: float
) -> float:
    """As `tables._plane`; rows, columns and table are parts of `points`."""
    rows, columns = rows + PARTS, columns + PARTS
    i, down = _cell(points, ints[rows], ints[rows + 1], row)
    j, right = _cell(points, ints[columns], ints[columns + 1], column)
    wide = ints[columns + 1] - ints[columns]
    upper = ints[table + PARTS] + (i - ints[rows]) * wide + j - ints[columns]
    lower = upper + wide
    above = points[upper] + right * (points[upper + 1] - points[upper])
    below = points[lower] + right * (points[lower + 1] - points[lower])
    seconds: float = above + down * (below - above)
    return seconds


@_inner
def _shared_s(points: Floats, ints: Ints, seconds: float, tokens: int) -> float:
    """What tokens of a step share, on top of `seconds`."""
    at, share = _cell(points, ints[PARTS + TOKENS], ints[PARTS + TOKENS + 1], tokens)
    at += ints[PARTS + SHARED_S] - ints[PARTS + TOKENS]
    total: float = seconds + points[at] + share * (points[at + 1] - points[at])
    return total


@_inner
def _decodes_s(ints: Ints, floats: Floats, points: Floats, decodes: int, context: int) -> float:
    """As `Linear.step` or `Tabled.step`, of decodes alone; at least one."""
    if not ints[TABLED]:
        return _linear(floats, decodes, 0.0, context)
    seconds = floats[STEP_FIXED_S] + _plane(points, ints, BATCH, CONTEXT, DECODE_S, decodes, context / decodes)
    return _shared_s(points, ints, seconds, decodes)


@_inner
def _decode_step_s(ints: Ints, floats: Floats, points: Floats, decodes: int, context: int) -> float:
    """The same, corrected."""
    seconds = _decodes_s(ints, floats, points, decodes, context)
    if ints[CORRECTED]:
        seconds = floats[EVERY_STEP_S] + floats[EVERY_REQUEST_S] * decodes + floats[SCALE_DECODE] * seconds
    corrected: float = floats[FACTOR] * seconds
    return corrected


@_inner
def _is_decode(s: State, place: int) -> bool:
    r = s.step[place]
    emitted = s.requests[r, EMITTED]
    if s.step[len(s.running) + place] > 1 or not emitted:
        return False
    whole: bool = s.requests[r, COMPUTED] == s.requests[r, PROMPT] + emitted
    return whole


@_inner
def _mixed_s(s: State, count: int, decodes: int, context: int) -> float:
    """As `Linear.step` or `Tabled.step`, of the first `count` in `step`, prompt chunks among them."""
    half, tokens, pairs, read = len(s.running), decodes, 0.0, context
    ints, points, seconds = s.ints, s.points, s.floats[STEP_FIXED_S]
    if ints[TABLED] and decodes:
        seconds += _plane(points, ints, BATCH, CONTEXT, DECODE_S, decodes, context / decodes)
    seconds += s.floats[STEP_PREFILL_S]
    for place in range(count):
        if _is_decode(s, place):
            continue
        chunk = s.step[half + place]
        before = s.requests[s.step[place], COMPUTED] - chunk
        tokens += chunk
        own = chunk * (before + (chunk + 1) / 2)
        pairs += own
        read += before
        if ints[TABLED]:
            seconds += own * _plane(points, ints, CHUNK, PREFIX, PAIR_S, chunk, before)
    return _shared_s(points, ints, seconds, tokens) if ints[TABLED] else _linear(s.floats, tokens, pairs, read)


@_inner
def _mixed_step_s(s: State, count: int, decodes: int, context: int) -> float:
    """The same, corrected."""
    floats = s.floats
    seconds = _mixed_s(s, count, decodes, context)
    if s.ints[CORRECTED]:
        alone = _decodes_s(s.ints, floats, s.points, decodes, context) if decodes else 0.0
        before_s = floats[EVERY_STEP_S] + floats[EVERY_REQUEST_S] * count + floats[SCALE_DECODE] * alone
        seconds = before_s + floats[SCALE_PREFILL] * (seconds - alone)
    corrected: float = floats[FACTOR] * seconds
    return corrected


@_inner
def _seconds(s: State, count: int) -> float:
    """Of the step with the first `count` in `step`."""
    decodes, context = 0, 0
    for place in range(count):
        if _is_decode(s, place):
            decodes += 1
            context += s.requests[s.step[place], COMPUTED]
    s.ints[CHUNKS] = count - decodes
    if count > decodes:
        return _mixed_step_s(s, count, decodes, context)
    return _decode_step_s(s.ints, s.floats, s.points, decodes, context)


@_inner
def _deadline(s: State, r: int) -> tuple[float, int]:
    """As `Engine._deadline`."""
    total_s = s.times[r, SCHEDULED_S] + s.floats[TOTAL_S]
    if s.requests[r, EMITTED]:
        gap_s = s.ends[s.spans[s.requests[r, SPAN], PAST] - 1] + s.floats[BETWEEN_TOKENS_S]
        return (gap_s, TIMEOUT_GAP) if gap_s <= total_s else (total_s, TIMEOUT_TOTAL)
    first_s = s.times[r, SCHEDULED_S] + s.floats[FIRST_TOKEN_S]
    return (first_s, TIMEOUT_FIRST) if first_s <= total_s else (total_s, TIMEOUT_TOTAL)


@_inner
def _end(s: State, r: int, status: int, at_s: float) -> None:
    s.requests[r, STATUS] = status
    s.times[r, ENDED_S] = at_s
    s.ended[s.ints[ENDED]] = r
    s.ints[ENDED] += 1


@_inner
def _hang_ups(s: State) -> None:
    """As `Engine._hang_ups`."""
    clock_s, least_s = s.floats[CLOCK_S], np.inf
    for place in range(s.ints[RUNNING]):
        r = s.running[place]
        deadline_s, status = _deadline(s, r)
        if deadline_s < clock_s:
            _end(s, r, status, deadline_s)
        else:
            least_s = min(least_s, deadline_s)
    head, mask, stay = s.ints[WAITING_HEAD], len(s.waiting) - 1, 0
    for place in range(s.ints[WAITING]):
        r = s.waiting[(head + place) & mask]
        deadline_s, status = _deadline(s, r)
        if deadline_s < clock_s:
            _end(s, r, status, deadline_s)
        else:
            least_s = min(least_s, deadline_s)
            s.waiting[(head + stay) & mask] = r
            stay += 1
    s.ints[WAITING] = stay
    for place in range(s.ints[LOADING]):
        r = s.loading[place]
        if s.requests[r, STATUS]:
            continue
        deadline_s, status = _deadline(s, r)
        if deadline_s < clock_s:
            _end(s, r, status, deadline_s)
        else:
            least_s = min(least_s, deadline_s)
    _leave(s)
    s.floats[EXPIRY_S] = least_s


@_inner
def _prompt_done(s: State, r: int) -> None:
    """As `Scheduler.prompt_done`."""
    if s.store[TIERS]:
        full = s.requests[r, PROMPT] // s.ints[BLOCK_SIZE]
        named = min(full, s.requests[r, KEYS])
        _store_put(s, s.requests[r, KEYS_AT], named, full - named)


@_inner
def _emit(s: State, count: int) -> None:
    """As `Engine._emit`, to the first `count` in `step`."""
    requests, spans, index, before = s.requests, s.spans, s.ints[ENDS], s.ints[ENDED]
    clock_s = s.floats[CLOCK_S]
    s.ends[index] = clock_s
    s.ints[ENDS] += 1
    for place in range(count):
        r = s.step[place]
        emitted = requests[r, EMITTED]
        if requests[r, COMPUTED] < requests[r, PROMPT] + emitted or requests[r, STATUS]:
            continue
        if not emitted:
            _prompt_done(s, r)
        requests[r, EMITTED] = emitted + 1
        last = requests[r, SPAN]
        if last >= 0 and spans[last, PAST] == index:
            spans[last, PAST] = index + 1
        else:
            new = s.ints[SPANS]
            s.ints[SPANS] += 1
            spans[new, FIRST], spans[new, PAST], spans[new, BEFORE] = index, index + 1, last
            requests[r, SPAN] = new
            s.floats[EXPIRY_S] = min(s.floats[EXPIRY_S], clock_s + s.floats[BETWEEN_TOKENS_S])
        if emitted + 1 == requests[r, OUTPUT]:
            _end(s, r, ENDED_OK, clock_s)
    if s.ints[ENDED] > before:
        _leave(s)


@_inner
def _is_steady(s: State, ended: int, preemptions: int, started_s: float) -> bool:
    """Whether the next step is like the last one, in which `ended` requests ended."""
    if not s.ints[RUNNING] or preemptions != s.ints[PREEMPTIONS]:
        return False
    if (s.ints[CHUNKS] or ended) and _someone_waits(s, started_s):
        return False
    if _next_event_s(s, started_s) <= s.floats[CLOCK_S]:
        return False
    for place in range(s.ints[RUNNING]):
        last = s.requests[s.running[place], SPAN]
        if last < 0 or s.spans[last, PAST] != s.ints[ENDS]:
            return False
    return True


@_inner
def _run(s: State, until_s: float) -> None:
    """As `Engine._run`."""
    ints, floats, requests, wanted, size = s.ints, s.floats, s.requests, s.wanted, s.ints[BLOCK_SIZE]
    batch, context, left = ints[RUNNING], 0, len(s.ends) - ints[ENDS]
    wanted[:] = 0
    for place in range(batch):
        r = s.running[place]
        computed = requests[r, COMPUTED]
        wanted[(size - computed % size) % size] += 1
        context += computed + 1
        left = min(left, requests[r, OUTPUT] - requests[r, EMITTED])
    clock_s, expiry_s, free, steps = floats[CLOCK_S], floats[EXPIRY_S], ints[FREE], 0
    event_s = _next_event_s(s, clock_s)
    for index in range(left):
        free -= wanted[index % size]
        if clock_s >= until_s or clock_s >= event_s or free < 0:
            break
        end_s = clock_s + _decode_step_s(ints, floats, s.points, batch, context)
        if end_s > expiry_s:
            break
        clock_s = end_s
        s.ends[ints[ENDS] + index] = end_s
        context += batch
        steps += 1
    ints[STEADY] = clock_s < event_s and (clock_s >= until_s or steps == left)
    if not steps:
        return
    floats[CLOCK_S] = floats[NEXT_S] = clock_s
    ints[ENDS] += steps
    _take(s, steps // size * batch + wanted[: steps % size].sum())
    ints[LEAST_FREE] = min(ints[LEAST_FREE], ints[FREE])
    ints[COMPUTED_TOKENS] += steps * batch
    before = ints[ENDED]
    for place in range(batch):
        r = s.running[place]
        requests[r, COMPUTED] += steps
        requests[r, BLOCKS] = (requests[r, COMPUTED] + size - 1) // size
        requests[r, EMITTED] += steps
        s.spans[requests[r, SPAN], PAST] += steps
        if requests[r, EMITTED] == requests[r, OUTPUT]:
            _end(s, r, ENDED_OK, clock_s)
    ints[JUST_ENDED] = ints[ENDED] - before
    if ints[JUST_ENDED]:
        _leave(s)
        if not ints[RUNNING] or _someone_waits(s, clock_s):
            ints[STEADY] = 0


@_inner
def _idle(s: State) -> None:
    """As `Engine._idle`."""
    before = s.ints[ENDED]
    if s.floats[CLOCK_S] > s.floats[EXPIRY_S]:
        _hang_ups(s)
    s.ints[JUST_ENDED] = s.ints[ENDED] - before
    if not s.ints[JUST_ENDED] and (s.ints[WAITING] or s.ints[LOADING]):
        s.floats[NEXT_S] = _next_event_s(s, s.floats[CLOCK_S])


@_inner
def _step(s: State) -> None:
    """As `Engine._step`."""
    preemptions, before = s.ints[PREEMPTIONS], s.ints[ENDED]
    started_s = s.floats[CLOCK_S]
    count = _schedule(s)
    if not count:
        if preemptions == s.ints[PREEMPTIONS]:
            _idle(s)
        return
    s.floats[CLOCK_S] += _seconds(s, count)
    s.floats[NEXT_S] = s.floats[CLOCK_S]
    if s.floats[CLOCK_S] > s.floats[EXPIRY_S]:
        _hang_ups(s)
    _emit(s, count)
    s.ints[JUST_ENDED] = s.ints[ENDED] - before
    s.ints[STEADY] = _is_steady(s, s.ints[JUST_ENDED], preemptions, started_s)


@_inner
def _left(s: State) -> int:
    """As `Engine.left`."""
    left = FAR
    for place in range(s.ints[RUNNING]):
        r = s.running[place]
        left = min(left, s.requests[r, OUTPUT] - s.requests[r, EMITTED])
    for place in range(s.ints[LOADING]):
        r = s.loading[place]
        left = min(left, s.requests[r, OUTPUT] - s.requests[r, EMITTED])
    return min(left, 1) if s.ints[WAITING] else left


@_compiled
def advance(until_s: float, stop_at_end: bool, *arrays: Any) -> int:
    """
    As `Engine.advance`; who ended stands in `ended`.

    Args:
        until_s: Exclusive.
        stop_at_end: Return after the first step in which a request ends.
        arrays: A `State`, taken apart: arrays are handed over faster than a tuple of them.

    Returns:
        DONE, or which array must be made larger before it can go on.
    """
    s = State(*arrays)
    before = s.ints[ENDED]
    while (s.ints[RUNNING] or s.ints[WAITING] or s.ints[LOADING]) and s.floats[NEXT_S] < until_s:
        if s.ints[ENDS] == len(s.ends):
            return MORE_ENDS
        if s.ints[SPANS] + len(s.running) > len(s.spans):
            return MORE_SPANS
        s.floats[CLOCK_S] = s.floats[NEXT_S]
        if s.ints[STEADY]:
            _run(s, until_s)
        else:
            _step(s)
        if stop_at_end and s.ints[ENDED] > before:
            break
    s.ints[LEFT] = _left(s)
    return DONE


@_compiled
def settle(*arrays: Any) -> None:
    """As `Engine.settle`."""
    _settle(State(*arrays), np.inf)


@_compiled
def fill(r: int, *arrays: Any) -> None:
    """As `Scheduler.fill`."""
    s = State(*arrays)
    hit, _ = _cached(s, r)
    _hold(s, r, hit)
    _take_for(s, r, s.requests[r, PROMPT] + s.requests[r, OUTPUT] - 1)
    _publish(s, r, hit * s.ints[BLOCK_SIZE], s.requests[r, PROMPT])
    _prompt_done(s, r)
    _free(s, r)


def is_compiled() -> bool:
    """Whether an earlier process left this kernel compiled; True also where that cannot be told."""
    index = getattr(getattr(getattr(advance, "_cache", None), "_cache_file", None), "_load_index", None)
    return index is None or bool(index())
