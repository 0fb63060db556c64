"""
One engine in virtual time: the scheduler's steps one after the other, each as long as its tokens take.

A step in which every running request gets one more token, and nobody can be admitted, is followed by more of the same
until a request arrives, ends or needs a block that is not there. Such runs are taken at once, with the same arithmetic
per step, so that results do not depend on it (`compress=False` takes every step singly; tests compare the two).
"""

from collections import deque
from dataclasses import dataclass
from math import inf

from tuner.records import OK
from tuner.simulator.blocks import BlockPool
from tuner.simulator.scheduler import EngineLimits, Link, Request, Scheduler
from tuner.simulator.steptime import StepTime
from tuner.simulator.store import Store
from tuner.simulator.tokens import Chunks, StepChunks


@dataclass(frozen=True)
class Patience:
    """How long clients wait, in seconds, before they hang up."""

    first_token_s: float = inf
    between_tokens_s: float = inf
    total_s: float = inf


@dataclass(frozen=True)
class Totals:
    """What an engine has done so far; see `Scheduler` and `BlockPool`."""

    preemptions: int
    computed_tokens: int
    preempted_tokens: int
    prefix_queries: int
    prefix_hits: int
    free: int
    least_free: int
    evictions: int
    loaded_tokens: int
    store_queries: int


def check_fits(request: Request, limits: EngineLimits) -> None:
    """
    Raises:
        ValueError: The request can never run on such an engine.
    """
    longest = request.prompt + request.output
    if longest > limits.blocks * limits.block_size:
        raise ValueError(f"{longest} tokens never fit into {limits.blocks} blocks of {limits.block_size}")
    if longest > limits.max_num_batched_tokens and not limits.enable_chunked_prefill:
        raise ValueError(f"{longest} tokens never fit into a budget of {limits.max_num_batched_tokens}")


class Engine:
    """
    One engine, step by step in the open: the reference for `compiled.CompiledEngine`.

    `clock_s` is when its last step ended, `next_s` when its next one can start: later, if nothing can be done before KV
    comes or blocks are released. `ends` are the ends of its steps, which `Request.spans` refer to.
    """

    def __init__(
        self,
        limits: EngineLimits,
        step_time: StepTime,
        *,
        pool: BlockPool | None = None,
        patience: Patience | None = None,
        link: Link | None = None,
        store: Store | None = None,
        compress: bool = True,
    ) -> None:
        self.scheduler = Scheduler(limits, pool, link, store)
        self.clock_s = self.next_s = 0.0
        self.limits = limits
        self.ends: list[float] = []
        self.just_ended = 0  # requests that ended in the last step
        self._step_time = step_time
        self._patience = patience or Patience()
        self._compress = compress
        self._steady = False  # the next step is like the last one unless something happens
        self._expiry_s = inf  # no client hangs up before
        self._chunks = StepChunks(lambda first: self.ends[first:])

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting or self.scheduler.loading)

    @property
    def queued(self) -> bool:
        """Whether a request waits to be admitted, or to be asked for its KV."""
        return bool(self.scheduler.waiting)

    @property
    def left(self) -> int:
        """Tokens that every request still needs at least."""
        if self.scheduler.waiting:
            return 1
        return min(each.output - each.emitted for each in (*self.scheduler.running, *self.scheduler.loading))

    @property
    def quiet_until_s(self) -> float:
        """No request ends before this; infinite where there is none."""
        if not self.busy:
            return inf
        return min(self._expiry_s, self.next_s + self.left * self._step_time.floor_s)

    def in_flight(self, now_s: float) -> int:
        """Requests that a router knows to be open: what ends in a step is open until that step has ended."""
        live = len(self.scheduler.running) + len(self.scheduler.waiting) + len(self.scheduler.loading)
        return live + (self.just_ended if self.clock_s > now_s else 0)

    def add(self, request: Request) -> None:
        """
        A request arrives at `request.arrival_s`; every step that starts before then must have been taken.

        Raises:
            ValueError: The request can never run here.
        """
        check_fits(request, self.limits)
        if not self.busy or self.next_s > self.clock_s:
            self.next_s = max(self.clock_s, min(request.arrival_s, self.next_s if self.busy else inf))
        if not self.scheduler.waiting:
            self._steady = False  # else it stands behind one that cannot be admitted either
        self.scheduler.waiting.append(request)
        self._expiry_s = min(self._expiry_s, self._deadline(request)[0])

    def advance(self, until_s: float, *, stop_at_end: bool = False) -> list[Request]:
        """
        Take every step that starts before `until_s`; return the requests that ended, in order of their ends.

        Args:
            until_s: Exclusive; may be infinite.
            stop_at_end: Return after the first step in which a request ends.
        """
        ended: list[Request] = []
        while self.busy and self.next_s < until_s:
            self.clock_s = self.next_s
            now = self._run(until_s) if self._steady and self._compress else self._step()
            ended += now
            if now and stop_at_end:
                break
        return ended

    def release(self, request: Request, at_s: float) -> None:
        """The KV of a parked request is fetched at this time: its blocks may go."""
        self.scheduler.release(request, at_s)
        if self.busy and self.next_s > self.clock_s:
            self.next_s = max(self.clock_s, min(self.next_s, at_s))

    def take_transfers(self) -> list[tuple[Request, float]]:
        """Requests whose KV was asked for since the last call, and when it is there."""
        transfers, self.scheduler.transfers = self.scheduler.transfers, []
        return transfers

    def settle(self) -> None:
        """At the end of a run: give back what is released, at whatever time."""
        self.scheduler.settle(inf)

    def warm(self, request: Request) -> None:
        """
        Before its first step: cache and store are as after this request, and nothing else is.

        Raises:
            ValueError: The request can never run here.
        """
        check_fits(request, self.limits)
        self.scheduler.fill(request)

    def chunks(self, request: Request, until_s: float = inf) -> Chunks:
        """When the request got its tokens, each a chunk of its own, up to and including `until_s`."""
        return self._chunks.of(request.spans, until_s)

    @property
    def totals(self) -> Totals:
        scheduler = self.scheduler
        return Totals(
            preemptions=scheduler.preemptions,
            computed_tokens=scheduler.computed_tokens,
            preempted_tokens=scheduler.preempted_tokens,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            free=scheduler.pool.free,
            least_free=scheduler.least_free,
            evictions=scheduler.pool.evictions,
            loaded_tokens=scheduler.loaded_tokens,
            store_queries=scheduler.store_queries,
        )

    def _step(self) -> list[Request]:
        """One step as the scheduler decides it."""
        preemptions = self.scheduler.preemptions
        step = self.scheduler.schedule(self.clock_s)
        if not step:
            return self._idle(preempted=preemptions != self.scheduler.preemptions)
        prefills: list[tuple[int, int]] = []
        decodes = context = 0
        for request, tokens in step:
            if tokens == 1 and request.emitted and request.computed == request.prompt + request.emitted:
                decodes += 1
                context += request.computed
            else:
                prefills.append((tokens, request.computed - tokens))
        started_s = self.clock_s
        self.clock_s += self._step_time.step(prefills, decodes, context)
        self.next_s = self.clock_s
        ended = self._hang_ups() if self.clock_s > self._expiry_s else []
        ended += self._emit(step)
        self.just_ended = len(ended)
        # Nobody waits, or whoever waits was refused beside the same decodes and would be again.
        alike = not self.scheduler.someone_waits(started_s) or not (prefills or ended)
        alike = alike and self.scheduler.next_event_s(started_s) > self.clock_s
        now = len(self.ends)
        running = self.scheduler.running
        served = bool(running) and all(request.emitted and request.spans[-1][1] == now for request in running)
        self._steady = alike and served and preemptions == self.scheduler.preemptions
        return ended

    def _idle(self, *, preempted: bool) -> list[Request]:
        """A step without a token: everything was preempted and is admitted again, or there is nothing to do for now."""
        if preempted:
            return []
        ended = self._hang_ups() if self.clock_s > self._expiry_s else []
        self.just_ended = len(ended)
        if self.busy and not ended:
            self.next_s = self.scheduler.next_event_s(self.clock_s)
        return ended

    def _emit(self, step: list[tuple[Request, int]]) -> list[Request]:
        """Tokens at the end of a step, for whoever has no more to compute."""
        index = len(self.ends)
        self.ends.append(self.clock_s)
        ended: list[Request] = []
        for request, _ in step:
            if request.computed < request.prompt + request.emitted or request.status:
                continue
            if not request.emitted:
                self.scheduler.prompt_done(request)
            request.emitted += 1
            spans = request.spans
            if spans and spans[-1][1] == index:
                spans[-1][1] = index + 1
            else:
                spans.append([index, index + 1])
                self._expiry_s = min(self._expiry_s, self.clock_s + self._patience.between_tokens_s)
            if request.emitted == request.output:
                ended.append(self._end(request, OK, self.clock_s))
        if ended:
            self.scheduler.leave()
        return ended

    def _run(self, until_s: float) -> list[Request]:
        """Steps like the last one: one token for each running request, nobody admitted."""
        running, pool, size = self.scheduler.running, self.scheduler.pool, self.scheduler.limits.block_size
        batch, left, context = len(running), running[0].output, 0
        wanted = [0] * size  # blocks that step i of the run takes, at i modulo the block size
        for request in running:
            wanted[-request.computed % size] += 1
            context += request.computed + 1
            left = min(left, request.output - request.emitted)
        event_s = self.scheduler.next_event_s(self.clock_s)
        clock, ends, step_time, expiry = self.clock_s, self.ends, self._step_time.step, self._expiry_s
        before, free = len(ends), pool.free
        for index in range(left):
            free -= wanted[index % size]
            if clock >= until_s or clock >= event_s or free < 0:
                break
            end = clock + step_time((), batch, context)
            if end > expiry:
                break
            clock = end
            ends.append(end)
            context += batch
        steps = len(ends) - before
        # Else something has to be decided.
        self._steady = clock < event_s and (clock >= until_s or steps == left)
        if not steps:
            return []
        self.clock_s = self.next_s = clock
        rounds, rest = divmod(steps, size)
        pool.take(rounds * batch + sum(wanted[:rest]))
        self.scheduler.least_free = min(self.scheduler.least_free, pool.free)
        self.scheduler.computed_tokens += steps * batch
        for request in running:
            request.computed += steps
            request.blocks = -(-request.computed // size)
            request.emitted += steps
            request.spans[-1][1] += steps
        ended = [self._end(request, OK, clock) for request in running if request.emitted == request.output]
        self.just_ended = len(ended)
        if ended:
            self.scheduler.leave()
            if not self.scheduler.running or self.scheduler.someone_waits(clock):
                self._steady = False
        return ended

    def _hang_ups(self) -> list[Request]:
        """Clients whose patience ended before this step did."""
        gone: list[Request] = []
        least = inf
        for queue in (self.scheduler.running, self.scheduler.waiting, self.scheduler.loading):
            for request in queue:
                deadline_s, status = self._deadline(request)
                if request.status:
                    continue
                if deadline_s < self.clock_s:
                    gone.append(self._end(request, status, deadline_s))
                else:
                    least = min(least, deadline_s)
        waiting = self.scheduler.waiting
        if any(request.status for request in waiting):
            self.scheduler.waiting = deque(request for request in waiting if not request.status)
        self.scheduler.leave()
        self._expiry_s = least
        return gone

    def _deadline(self, request: Request) -> tuple[float, str]:
        patience = self._patience
        total = request.scheduled_s + patience.total_s
        if request.emitted:
            gap = self.ends[request.spans[-1][1] - 1] + patience.between_tokens_s
            return min((gap, "timeout_gap"), (total, "timeout_total"))
        first = request.scheduled_s + patience.first_token_s
        return min((first, "timeout_first_token"), (total, "timeout_total"))

    def _end(self, request: Request, status: str, at_s: float) -> Request:
        request.status = status
        request.ended_s = at_s
        return request
