"""
One engine's scheduler, as in vLLM 0.32 (`vllm/v1/core/sched/scheduler.py`, `schedule()`), in the order of its steps.

There are no phases: each step gives every request up to as many tokens as it has not computed yet, within one budget.

1. Running requests first, in list order. A half-prefilled request ahead in the list takes budget before later decodes.
2. Where no block is free, the last running request is preempted, which may be the one that asks: its blocks are freed,
   it starts again from nothing, at the head of the waiting queue.
3. Waiting requests, first come first served, only if nothing was preempted in this step, while budget and sequences
   last. A request is admitted when free blocks suffice for its whole prompt, though not for its answer.
4. The prefix cache is asked when a request starts: full blocks only, and never the last token, which must be computed.
5. KV from outside (from the engine that computed the prompt, or from a store) is loaded beside the steps: the
   request takes blocks for all of its prompt, lets others go ahead until its KV is there, and goes on from the first
   token that is not. The engine's name for that is WAITING_FOR_REMOTE_KVS. A store is asked for what the engine's own
   cache does not hold: for everything where `enable_prefix_caching` is off.
6. An engine that only computes prompts keeps the blocks of each until they have been fetched.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from tuner.records import OK
from tuner.simulator.blocks import BlockPool
from tuner.simulator.store import Store


@dataclass(frozen=True)
class EngineLimits:
    """Flags of the engine under their own names, resolved; `blocks` is the KV cache in blocks."""

    max_num_batched_tokens: int
    max_num_seqs: int
    blocks: int
    block_size: int  # tokens
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0  # 0 = not limited


@dataclass(frozen=True)
class Link:
    """What KV comes over, one transfer after the other, in the order in which they were asked for."""

    latency_s: float  # of each transfer, > 0: what is asked for in a step is never there in the same one
    token_s: float  # of each token of KV: its bytes / the bandwidth

    def __post_init__(self) -> None:
        if self.latency_s <= 0 or self.token_s < 0:
            raise ValueError(f"got {self}: latency_s > 0 and token_s >= 0 are needed")


@dataclass(slots=True, eq=False)
class Request:
    """
    One request in an engine; times in seconds from the start of the level.

    `spans` are the engine's steps, [first, past the last), in each of which it got one token. `status` is "" while it
    lives, then as in `records`.
    """

    number: int
    prompt: int  # tokens
    output: int  # tokens, >= 1; generation always goes on to this length
    keys: Sequence[int] = ()  # of the prompt's first full blocks, as far as others may share them; each >= 0
    scheduled_s: float = 0.0  # patience counts from here
    arrival_s: float = 0.0  # the engine sees it from here on, when the front end is done with it
    engine: int = 0  # which engine serves it
    place: int = -1  # in the arrays of a compiled engine
    remote: bool = False  # another engine has computed its prompt; the KV comes over the link, until it is preempted
    park: bool = False  # its blocks stay when it ends, until they are released
    computed: int = 0  # tokens whose KV lies in the cache, or will after the current step
    emitted: int = 0  # tokens generated
    held: list[int] = field(default_factory=list)  # keys of the named blocks that it holds
    spans: list[list[int]] = field(default_factory=list)
    blocks: int = 0  # that it holds, named ones included
    hit_tokens: int = 0  # found in the cache when it last started
    loaded_tokens: int = 0  # that came from outside when it last started
    ready_s: float = inf  # when they are there
    preemptions: int = 0
    status: str = ""
    ended_s: float = inf

    @property
    def tokens(self) -> int:
        """Prompt and what was generated so far."""
        return self.prompt + self.emitted


class Scheduler:
    """
    Waiting queue, running list and blocks of one engine.

    Totals: `computed_tokens` counts every scheduled token, `preempted_tokens` those of them that preemption threw away.

    Args:
        limits: Of the engine.
        pool: Its blocks, where they are not all free.
        link: Over which KV comes; needed for requests that are `remote`.
        store: That the engine reads prefixes from and writes prompts to; several engines may have the same one.
    """

    def __init__(
        self,
        limits: EngineLimits,
        pool: BlockPool | None = None,
        link: Link | None = None,
        store: Store | None = None,
    ) -> None:
        self.limits = limits
        self.link, self.store = link, store
        self.link_free_s = self.store_free_s = 0.0  # when the last transfer so far ends
        self.store_queries = 0  # tokens asked for: those that the engine's own cache did not hold
        self.loading: list[Request] = []  # their KV is under way, in the order in which it was asked for
        self.transfers: list[tuple[Request, float]] = []  # whose KV was asked for, and when it will be there
        self.loaded_tokens = 0
        self._releases: list[tuple[float, int, Request]] = []  # parked requests by the time from which they may go
        self.pool = BlockPool(limits.blocks) if pool is None else pool
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = 0
        self.computed_tokens = 0
        self.preempted_tokens = 0
        self.prefix_queries = 0  # tokens asked for
        self.prefix_hits = 0  # tokens found
        self.least_free = self.pool.free

    def schedule(self, now_s: float = 0.0) -> list[tuple[Request, int]]:
        """
        Requests and tokens of the next step, in order; `computed` of each is already advanced by its tokens.

        Args:
            now_s: When the step starts.
        """
        self.settle(now_s)
        budget = self.limits.max_num_batched_tokens
        before = self.preemptions
        step: list[tuple[Request, int]] = []
        position = 0
        size = self.limits.block_size
        while position < len(self.running) and budget > 0:
            request = self.running[position]
            if request.emitted and request.computed % size and request.computed + 1 == request.prompt + request.emitted:
                # The usual case, as below but for its cost: the next token has room in the request's last block.
                request.computed += 1
                self.computed_tokens += 1
                step.append((request, 1))
                budget -= 1
                position += 1
                continue
            tokens = min(self._cap(request.tokens - request.computed), budget)
            if not self._make_room(request, tokens):
                break
            self._compute(request, tokens)
            step.append((request, tokens))
            budget -= tokens
            position += 1
        if self.preemptions == before:
            self._admit(step, budget, now_s)
        self.least_free = min(self.least_free, self.pool.free)
        return step

    def leave(self) -> None:
        """Free the blocks of running requests that have got a `status`, but for those that are parked."""
        for request in self.running:
            if request.status and not (request.park and request.status == OK):
                self._free(request)
        self.running = [request for request in self.running if not request.status]

    def fill(self, request: Request) -> None:
        """What a request leaves in cache and store, as if it had come to the idle engine and gone; it takes no time."""
        hit = self._cached(request)
        self.pool.hold(hit)
        request.held.extend(hit)
        request.blocks = len(hit)
        self._take(request, request.prompt + request.output - 1)
        self._publish(request, len(hit) * self.limits.block_size, request.prompt)
        self.prompt_done(request)
        self._free(request)

    def release(self, request: Request, at_s: float) -> None:
        """The blocks of a parked request may go, in the first step that starts at this time or later."""
        heappush(self._releases, (at_s, request.number, request))

    def settle(self, now_s: float) -> None:
        """Free what is released by now, and what was loaded for clients that have hung up meanwhile."""
        while self._releases and self._releases[0][0] <= now_s:
            self._free(heappop(self._releases)[2])
        if self.loading:
            for request in self.loading:
                if request.status and request.ready_s <= now_s:
                    self._free(request)
            self.loading = [each for each in self.loading if not (each.status and each.ready_s <= now_s)]

    def next_event_s(self, now_s: float) -> float:
        """When, after now, KV will be there or blocks will be released; infinite if nothing is under way."""
        times = [request.ready_s for request in self.loading if request.ready_s > now_s]
        return min([*times, self._releases[0][0] if self._releases else inf])

    def someone_waits(self, now_s: float) -> bool:
        """For a place in the next step, that is, not only for KV."""
        return bool(self.waiting) or any(request.ready_s <= now_s for request in self.loading)

    def _admit(self, step: list[tuple[Request, int]], budget: int, now_s: float) -> None:
        limits, pool = self.limits, self.pool
        left = self._admit_loaded(step, budget, now_s)
        if left is None:
            return
        while self.waiting and left > 0 and len(self.running) < limits.max_num_seqs:
            request = self.waiting[0]
            hit = self._cached(request)
            found, outside = self._outside(request, len(hit))
            rest = self._cap(request.tokens - len(hit) * limits.block_size)
            if not outside and rest > left and not limits.enable_chunked_prefill:
                return
            if self._blocks(request.tokens) - len(hit) + pool.idle(hit) > pool.free:
                return
            self.waiting.popleft()
            pool.hold(hit)
            request.held.extend(hit)
            request.blocks = len(hit)
            request.computed = request.hit_tokens = len(hit) * limits.block_size
            request.loaded_tokens = 0
            self.prefix_queries += request.tokens if limits.enable_prefix_caching else 0
            self.prefix_hits += request.hit_tokens
            if request.remote:
                self._fetch(request, outside, now_s)
            elif self.store is not None:
                self._read(request, found, now_s)
            if not outside:
                left -= self._start(step, request, min(rest, left))

    def _admit_loaded(self, step: list[tuple[Request, int]], budget: int, now_s: float) -> int | None:
        """Those whose KV has come go first; what is left of the budget, or None if nobody may follow."""
        limits = self.limits
        for request in [each for each in self.loading if each.ready_s <= now_s]:
            rest = self._cap(request.tokens - request.computed)
            if budget <= 0 or len(self.running) >= limits.max_num_seqs:
                return None
            if rest > budget and not limits.enable_chunked_prefill:
                return None
            self.loading.remove(request)
            self._publish(request, request.hit_tokens, request.computed)
            budget -= self._start(step, request, min(rest, budget))
        return budget

    def _start(self, step: list[tuple[Request, int]], request: Request, tokens: int) -> int:
        self.running.append(request)
        self._compute(request, tokens)
        step.append((request, tokens))
        return tokens

    def _outside(self, request: Request, hit: int) -> tuple[Sequence[int], int]:
        """
        What can come from outside behind the first `hit` blocks: blocks of the store by tier, and tokens in all.
        """
        size = self.limits.block_size
        if request.remote:
            return (), request.tokens - 1 - hit * size
        if self.store is None:
            return (), 0
        found = self.store.find(request.keys[hit : (request.tokens - 1) // size])
        return found, sum(found) * size

    def _fetch(self, request: Request, tokens: int, now_s: float) -> None:
        """Ask the engine that has computed the prompt for the KV of `tokens` tokens."""
        request.ready_s = now_s
        if tokens:
            if self.link is None:
                raise ValueError("a remote request needs a link")
            begun_s = max(now_s, self.link_free_s)
            request.ready_s = self.link_free_s = begun_s + (self.link.latency_s + tokens * self.link.token_s)
            self._load(request, tokens)
        self.transfers.append((request, request.ready_s))

    def _read(self, request: Request, found: Sequence[int], now_s: float) -> None:
        """Ask the store for the blocks found there."""
        if self.store is None:
            raise AssertionError("found in no store")
        self.store_queries += request.tokens - request.hit_tokens
        hit, count = len(request.held), sum(found)
        if count:
            begun_s = max(now_s, self.store_free_s)
            request.ready_s = self.store_free_s = begun_s + self.store.read_s(found, self.limits.block_size)
            self.store.put(request.keys[hit : hit + count], 0)
            self._load(request, count * self.limits.block_size)

    def _load(self, request: Request, tokens: int) -> None:
        """The next `tokens` tokens are under way; blocks for all of the prompt are taken."""
        self._take(request, request.tokens)
        self.loading.append(request)
        request.computed += tokens
        request.loaded_tokens = tokens
        self.loaded_tokens += tokens

    def prompt_done(self, request: Request) -> None:
        """The first token of an answer: the whole prompt is computed, and written to the store."""
        if self.store is not None:
            full = request.prompt // self.limits.block_size
            keys = request.keys[:full]
            self.store.put(keys, full - len(keys))

    def _cached(self, request: Request) -> Sequence[int]:
        """The keys that the prefix cache holds for a request that starts."""
        if not self.limits.enable_prefix_caching or not request.keys:
            return ()
        usable = request.keys[: (request.tokens - 1) // self.limits.block_size]
        return usable[: self.pool.cached(usable)]

    def _make_room(self, request: Request, tokens: int) -> bool:
        """Preempt from the end of the list until the blocks suffice; False: the request itself had to go."""
        needed = self._blocks(request.computed + tokens) - request.blocks
        while needed > self.pool.free:
            victim = self.running.pop()
            self._free(victim)
            self.preempted_tokens += victim.computed - victim.hit_tokens - victim.loaded_tokens
            victim.computed = victim.hit_tokens = victim.loaded_tokens = 0
            victim.remote = False  # whoever had its KV has let it go
            victim.preemptions += 1
            self.preemptions += 1
            self.waiting.appendleft(victim)
            if victim is request:
                return False
        return True

    def _compute(self, request: Request, tokens: int) -> None:
        """Blocks for the next `tokens` tokens; full blocks of a shared prefix can be hit from now on."""
        start = request.computed
        request.computed += tokens
        self.computed_tokens += tokens
        self._take(request, request.computed)
        self._publish(request, start, request.computed)

    def _take(self, request: Request, tokens: int) -> None:
        """As many more blocks as the request needs to hold this many tokens in all."""
        more = self._blocks(tokens) - request.blocks
        if more > 0:
            self.pool.take(more)
            request.blocks += more

    def _publish(self, request: Request, start: int, end: int) -> None:
        """The tokens from `start` to `end` are there now."""
        size = self.limits.block_size
        if self.limits.enable_prefix_caching and start < len(request.keys) * size:
            for key in request.keys[start // size : end // size]:
                if self.pool.publish(key):
                    request.held.append(key)

    def _free(self, request: Request) -> None:
        self.pool.give_back(request.blocks - len(request.held), request.held)
        request.held, request.blocks = [], 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    def _cap(self, tokens: int) -> int:
        return min(tokens, self.limits.long_prefill_token_threshold or tokens)
