"""An engine whose steps are taken by the compiled kernel: `engine.Engine`, to the last bit, many times as fast."""

from collections.abc import Sequence
from math import inf
from typing import Any, TypeVar

import numpy as np

from tuner.records import OK
from tuner.simulator import forms, kernel
from tuner.simulator.engine import Patience, Totals, check_fits
from tuner.simulator.forms import Form
from tuner.simulator.scheduler import EngineLimits, Link, Request
from tuner.simulator.store import Tier
from tuner.simulator.tokens import Chunks, StepChunks

#: Status of a request by the kernel's code.
STATUSES = ("", OK, "timeout_first_token", "timeout_gap", "timeout_total")
_REQUESTS, _STEPS, _KEYS = 256, 4096, 1024  # sizes to begin with


Array = TypeVar("Array", kernel.Ints, kernel.Floats)


class CompiledStore:
    """
    A store of compiled engines: `store.Store`, to the last bit. Its engines number their keys alike.

    Args:
        tiers: As of `Store`; none = there is no store.
    """

    def __init__(self, tiers: Sequence[Tier]) -> None:
        runs = sum(tier.blocks + 2 for tier in tiers)  # each is at least a block long, and one may be too many
        store = np.array([len(tiers), runs, -1, 0, *(n for tier in tiers for n in (tier.blocks, 0))], np.int64)
        links = np.empty((len(tiers) + runs, kernel.QUEUE_COLUMNS), np.int64)
        links[: len(tiers)] = np.arange(len(tiers))[:, None]
        self.numbers: dict[int, int] = {}
        self.version = 0  # of `arrays`: they are made anew when they grow
        self.arrays: dict[str, Any] = {
            "store": store,
            "store_times": np.array([t for tier in tiers for t in (tier.latency_s, tier.token_s)], np.float64),
            "store_links": links,
            "store_lengths": np.empty(runs, np.int64),
            "store_tiers": np.empty(0, np.int64),
        }

    def make_room(self, keys: int) -> None:
        """For so many keys in all."""
        tiers, links = self.arrays["store_tiers"], self.arrays["store_links"]
        if keys > len(tiers):
            more = max(len(tiers), keys - len(tiers), _KEYS)
            self.arrays["store_tiers"] = np.concatenate((tiers, np.full(more, -1, np.int64)))
            self.arrays["store_links"] = np.concatenate((links, np.empty((more, kernel.QUEUE_COLUMNS), np.int64)))
            self.version += 1


class CompiledEngine:
    """
    One engine; see `engine.Engine` for what its methods mean.

    A `Request` gets its state back when it ends; until then the arrays have it.
    """

    def __init__(
        self,
        limits: EngineLimits,
        form: Form,
        *,
        patience: Patience | None = None,
        link: Link | None = None,
        store: CompiledStore | None = None,
    ) -> None:
        self.limits = limits
        self._link = link
        patience = patience or Patience()
        ints = np.zeros(kernel.INTS, np.int64)
        ints[kernel.MAX_TOKENS] = limits.max_num_batched_tokens
        ints[kernel.MAX_SEQS] = limits.max_num_seqs
        ints[kernel.BLOCK_SIZE] = limits.block_size
        ints[kernel.CHUNKED] = limits.enable_chunked_prefill
        ints[kernel.CACHING] = limits.enable_prefix_caching
        ints[kernel.THRESHOLD] = limits.long_prefill_token_threshold
        ints[kernel.FREE] = ints[kernel.LEAST_FREE] = limits.blocks
        ints[kernel.RUN_NODES] = limits.blocks + 1
        floats = np.zeros(kernel.FLOATS)
        floats[kernel.EXPIRY_S] = inf
        floats[kernel.FIRST_TOKEN_S] = patience.first_token_s
        floats[kernel.BETWEEN_TOKENS_S] = patience.between_tokens_s
        floats[kernel.TOTAL_S] = patience.total_s
        points = forms.write(form, ints, floats)
        if link is not None:
            floats[kernel.LINK_LATENCY_S], floats[kernel.LINK_TOKEN_S] = link.latency_s, link.token_s
        self._state = kernel.State(
            ints=ints,
            floats=floats,
            requests=np.empty((_REQUESTS, kernel.REQUEST_COLUMNS), np.int64),
            times=np.empty((_REQUESTS, kernel.TIME_COLUMNS)),
            waiting=np.empty(_REQUESTS, np.int64),
            running=np.empty(limits.max_num_seqs, np.int64),
            step=np.empty(2 * limits.max_num_seqs, np.int64),
            wanted=np.empty(limits.block_size, np.int64),
            ended=np.empty(_REQUESTS, np.int64),
            ends=np.empty(_STEPS),
            spans=np.empty((limits.max_num_seqs + _REQUESTS, kernel.SPAN_COLUMNS), np.int64),
            keys=np.empty(_KEYS, np.int64),
            held=np.empty(_KEYS, np.int64),
            holders=np.full(_KEYS, -1, np.int64),
            queue=np.empty((limits.blocks + 2 + _KEYS, kernel.QUEUE_COLUMNS), np.int64),
            lengths=np.empty(limits.blocks + 2, np.int64),
            loading=np.empty(_REQUESTS, np.int64),
            released=np.empty(_REQUESTS, np.int64),
            transfers=np.empty(_REQUESTS, np.int64),
            points=points,
            **CompiledStore(()).arrays,
        )
        # One run of all blocks lies between both ends of the ring.
        self._state.queue[:2] = 1 - np.arange(2)[:, None]
        self._state.lengths[1] = limits.blocks
        ints[kernel.USED_NODES] = 1
        self.next_s = 0.0
        self.busy = self.queued = False
        self._left = kernel.FAR
        self._floor_s = form.floor_s
        self._requests: list[Request] = []
        self._store = store
        self._numbers: dict[int, int] = {} if store is None else store.numbers  # of keys, in the arrays
        self._store_version = -1
        self._places: dict[int, tuple[Sequence[int], int]] = {}  # where the keys of a request lie, by their list
        self._keys = self._held = 0  # used so far
        self._chunks = StepChunks(self._ends_from)

    @property
    def clock_s(self) -> float:
        return float(self._state.floats[kernel.CLOCK_S])

    @property
    def ends(self) -> list[float]:
        return self._ends_from(0)

    @property
    def totals(self) -> Totals:
        ints = self._state.ints.tolist()
        return Totals(
            preemptions=ints[kernel.PREEMPTIONS],
            computed_tokens=ints[kernel.COMPUTED_TOKENS],
            preempted_tokens=ints[kernel.PREEMPTED_TOKENS],
            prefix_queries=ints[kernel.QUERIES],
            prefix_hits=ints[kernel.HITS],
            free=ints[kernel.FREE],
            least_free=ints[kernel.LEAST_FREE],
            evictions=ints[kernel.EVICTIONS],
            loaded_tokens=ints[kernel.LOADED_TOKENS],
            store_queries=ints[kernel.STORE_QUERIES],
        )

    def in_flight(self, now_s: float) -> int:
        ints = self._state.ints
        live = int(ints[kernel.RUNNING] + ints[kernel.WAITING] + ints[kernel.LOADING])
        return live + (int(ints[kernel.JUST_ENDED]) if self.clock_s > now_s else 0)

    @property
    def quiet_until_s(self) -> float:
        if not self.busy:
            return inf
        return min(float(self._state.floats[kernel.EXPIRY_S]), self.next_s + self._left * self._floor_s)

    def add(self, request: Request) -> None:
        check_fits(request, self.limits)
        if request.remote and self._link is None:
            raise ValueError("a remote request needs a link")
        place = request.place = self._written(request)
        self._requests.append(request)
        state = self._state
        ints, floats = state.ints, state.floats
        clock_s = self.clock_s
        if not self.busy or self.next_s > clock_s:
            self.next_s = max(clock_s, min(request.arrival_s, self.next_s if self.busy else inf))
            floats[kernel.NEXT_S] = self.next_s
        self.busy = self.queued = True
        self._left = 1
        state.waiting[(ints[kernel.WAITING_HEAD] + ints[kernel.WAITING]) & (len(state.waiting) - 1)] = place
        if not ints[kernel.WAITING]:
            ints[kernel.STEADY] = 0
        ints[kernel.WAITING] += 1
        patience_s = min(floats[kernel.FIRST_TOKEN_S], floats[kernel.TOTAL_S])
        floats[kernel.EXPIRY_S] = min(floats[kernel.EXPIRY_S], request.scheduled_s + patience_s)

    def advance(self, until_s: float, *, stop_at_end: bool = False) -> list[Request]:
        self._follow_store()
        while True:
            outcome = kernel.advance(until_s, stop_at_end, *self._state)
            if outcome == kernel.DONE:
                break
            state = self._state
            if outcome == kernel.MORE_ENDS:
                self._state = state._replace(ends=_doubled(state.ends))
            else:
                self._state = state._replace(spans=_doubled(state.spans))
        ints = self._state.ints
        running, waiting, loading = ints[kernel.RUNNING], ints[kernel.WAITING], ints[kernel.LOADING]
        self.busy, self.queued = bool(running or waiting or loading), bool(waiting)
        self.next_s, self._left = float(self._state.floats[kernel.NEXT_S]), int(ints[kernel.LEFT])
        count = int(ints[kernel.ENDED])
        if not count:
            return []
        self._state.ints[kernel.ENDED] = 0
        return [self._finished(place) for place in self._state.ended[:count].tolist()]

    def release(self, request: Request, at_s: float) -> None:
        state = self._state
        state.times[request.place, kernel.READY_S] = at_s
        state.released[state.ints[kernel.RELEASED]] = request.place
        state.ints[kernel.RELEASED] += 1
        clock_s = self.clock_s
        if self.busy and self.next_s > clock_s:
            self.next_s = max(clock_s, min(self.next_s, at_s))
            state.floats[kernel.NEXT_S] = self.next_s

    def take_transfers(self) -> list[tuple[Request, float]]:
        count = int(self._state.ints[kernel.TRANSFERS])
        if not count:
            return []
        self._state.ints[kernel.TRANSFERS] = 0
        places = self._state.transfers[:count].tolist()
        return [(self._requests[place], float(self._state.times[place, kernel.READY_S])) for place in places]

    def settle(self) -> None:
        kernel.settle(*self._state)

    def warm(self, request: Request) -> None:
        check_fits(request, self.limits)
        held = self._held
        place = self._written(request)
        self._follow_store()
        kernel.fill(place, *self._state)
        self._held = held  # the next request takes its place

    def chunks(self, request: Request, until_s: float = inf) -> Chunks:
        if request.place < 0:
            return ()  # it was refused
        spans, row = [], int(self._state.requests[request.place, kernel.SPAN])
        while row >= 0:
            first, past, row = self._state.spans[row].tolist()
            spans.append((first, past))
        return self._chunks.of(reversed(spans), until_s)

    def _ends_from(self, first: int) -> list[float]:
        ends: list[float] = self._state.ends[first : self._state.ints[kernel.ENDS]].tolist()
        return ends

    def _finished(self, place: int) -> Request:
        request = self._requests[place]
        row = self._state.requests[place].tolist()
        request.computed, request.emitted = row[kernel.COMPUTED], row[kernel.EMITTED]
        request.hit_tokens, request.preemptions = row[kernel.HIT], row[kernel.PREEMPTED]
        request.loaded_tokens = row[kernel.LOADED]
        request.status = STATUSES[row[kernel.STATUS]]
        request.ended_s = float(self._state.times[place, kernel.ENDED_S])
        return request

    def _follow_store(self) -> None:
        """Its arrays may have been made anew, by whatever engine."""
        if self._store is not None and self._store.version != self._store_version:
            self._state = self._state._replace(**self._store.arrays)
            self._store_version = self._store.version

    def _written(self, request: Request) -> int:
        """The request's row in the arrays: the first free one, which stays free until `_requests` has it."""
        place = len(self._requests)
        if place == len(self._state.requests):
            self._more_requests()
        keys_at, held_at = self._placed(request.keys)
        head = (request.number, request.prompt, request.output, keys_at, len(request.keys), held_at)
        self._state.requests[place] = (*head, request.remote, request.park, *(0,) * 8, -1)
        self._state.times[place] = (request.scheduled_s, inf, inf)
        return place

    def _more_requests(self) -> None:
        state = self._state
        size, head = len(state.waiting), int(state.ints[kernel.WAITING_HEAD])
        waiting = np.empty(2 * size, np.int64)
        waiting[:size] = np.roll(state.waiting, -head)
        state.ints[kernel.WAITING_HEAD] = 0
        self._state = state._replace(
            requests=_doubled(state.requests),
            times=_doubled(state.times),
            waiting=waiting,
            ended=_doubled(state.ended),
            loading=_doubled(state.loading),
            released=_doubled(state.released),
            transfers=_doubled(state.transfers),
        )

    def _placed(self, keys: Sequence[int]) -> tuple[int, int]:
        """Where the keys of a request lie, and where those that it holds may: equal lists lie in one place."""
        count = len(keys)
        if not count:
            return 0, 0
        held_at = self._held
        self._held += count
        while self._held > len(self._state.held):
            self._state = self._state._replace(held=_doubled(self._state.held))
        known = self._places.get(id(keys))
        if known is not None:
            return known[1], held_at
        at = self._keys
        self._keys += count
        while self._keys > len(self._state.keys):
            self._state = self._state._replace(keys=_doubled(self._state.keys))
        self._state.keys[at : self._keys] = [self._number(key) for key in keys]
        self._places[id(keys)] = (keys, at)
        return at, held_at

    def _number(self, key: int) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            if self._store is not None:
                self._store.make_room(number + 1)
        size = len(self._state.holders)
        if number >= size:
            more = max(size, number + 1 - size)
            holders = np.full(size + more, -1, np.int64)
            holders[:size] = self._state.holders
            queue = np.empty((len(self._state.queue) + more, kernel.QUEUE_COLUMNS), np.int64)
            queue[: len(self._state.queue)] = self._state.queue
            self._state = self._state._replace(holders=holders, queue=queue)
        return number


def _doubled(array: Array) -> Array:
    """Twice as long; what is new is not set."""
    larger = np.empty((2 * len(array), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
