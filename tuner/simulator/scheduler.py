"""
One engine's scheduler, as in vLLM 0.32 (`vllm/v1/core/sched/scheduler.py`, `schedule()`), in the order of its steps.

There are no phases: each step gives every request up to as many tokens as it has not computed yet, within one budget.

1. Running requests first, in list order. A half-prefilled request ahead in the list takes budget before later decodes.
2. Where no block is free, the last running request is preempted, which may be the one that asks: its blocks are freed,
   it starts again from nothing, at the head of the waiting queue.
3. Waiting requests, first come first served, only if nothing was preempted in this step, while budget and sequences
   last. A request is admitted when free blocks suffice for its whole prompt, though not for its answer.
4. The prefix cache is asked when a request starts: full blocks only, and never the last token, which must be computed.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from tuner.simulator.blocks import BlockPool


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
    computed: int = 0  # tokens whose KV lies in the cache, or will after the current step
    emitted: int = 0  # tokens generated
    held: list[int] = field(default_factory=list)  # keys of the named blocks that it holds
    spans: list[list[int]] = field(default_factory=list)
    hit_tokens: int = 0  # found in the cache when it last started
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
    """

    def __init__(self, limits: EngineLimits, pool: BlockPool | None = None) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.blocks) if pool is None else pool
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = 0
        self.computed_tokens = 0
        self.preempted_tokens = 0
        self.prefix_queries = 0  # tokens asked for
        self.prefix_hits = 0  # tokens found
        self.least_free = self.pool.free

    def schedule(self) -> list[tuple[Request, int]]:
        """Requests and tokens of the next step, in order; `computed` of each is already advanced by its tokens."""
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
            self._admit(step, budget)
        self.least_free = min(self.least_free, self.pool.free)
        return step

    def leave(self) -> None:
        """Free the blocks of running requests that have got a `status`."""
        for request in self.running:
            if request.status:
                self._free(request)
        self.running = [request for request in self.running if not request.status]

    def _admit(self, step: list[tuple[Request, int]], budget: int) -> None:
        limits, pool = self.limits, self.pool
        while self.waiting and budget > 0 and len(self.running) < limits.max_num_seqs:
            request = self.waiting[0]
            hit = self._cached(request)
            rest = self._cap(request.tokens - len(hit) * limits.block_size)
            if rest > budget and not limits.enable_chunked_prefill:
                return
            if self._blocks(request.tokens) - len(hit) + pool.idle(hit) > pool.free:
                return
            self.waiting.popleft()
            self.running.append(request)
            pool.hold(hit)
            request.held.extend(hit)
            request.computed = request.hit_tokens = len(hit) * limits.block_size
            self.prefix_queries += request.tokens if limits.enable_prefix_caching else 0
            self.prefix_hits += request.hit_tokens
            tokens = min(rest, budget)
            self._compute(request, tokens)
            step.append((request, tokens))
            budget -= tokens

    def _cached(self, request: Request) -> Sequence[int]:
        """The keys that the prefix cache holds for a request that starts."""
        if not self.limits.enable_prefix_caching or not request.keys:
            return ()
        usable = request.keys[: (request.tokens - 1) // self.limits.block_size]
        return usable[: self.pool.cached(usable)]

    def _make_room(self, request: Request, tokens: int) -> bool:
        """Preempt from the end of the list until the blocks suffice; False: the request itself had to go."""
        needed = self._blocks(request.computed + tokens) - self._blocks(request.computed)
        while needed > self.pool.free:
            victim = self.running.pop()
            self._free(victim)
            self.preempted_tokens += victim.computed - victim.hit_tokens
            victim.computed = victim.hit_tokens = 0
            victim.preemptions += 1
            self.preemptions += 1
            self.waiting.appendleft(victim)
            if victim is request:
                return False
        return True

    def _compute(self, request: Request, tokens: int) -> None:
        """Blocks for the next `tokens` tokens; full blocks of a shared prefix can be hit from now on."""
        start, end = request.computed, request.computed + tokens
        self.pool.take(self._blocks(end) - self._blocks(start))
        request.computed = end
        self.computed_tokens += tokens
        if self.limits.enable_prefix_caching and start < len(request.keys) * self.limits.block_size:
            size = self.limits.block_size
            for key in request.keys[start // size : end // size]:
                if self.pool.publish(key):
                    request.held.append(key)

    def _free(self, request: Request) -> None:
        self.pool.give_back(self._blocks(request.computed) - len(request.held), request.held)
        request.held = []

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    def _cap(self, tokens: int) -> int:
        return min(tokens, self.limits.long_prefill_token_threshold or tokens)
