"""
One level of load against one endpoint, on the running event loop.

Open loop: requests leave when the schedule says so, whatever became of the earlier ones. Closed loop: each slot sends
its next request when its answer has ended. Either way the load goes on until every measured request is decided.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

from tuner.early import EarlyFailure, InOrder
from tuner.load import gauges
from tuner.load.answer import Answer, CountTokens
from tuner.load.arrivals import MEASURED, PHASES
from tuner.load.endpoint import Endpoint
from tuner.load.http import Pool
from tuner.load.plan import ClientHealth, LevelData, LevelPlan
from tuner.load.shape import RequestShapes
from tuner.load.supply import Supply
from tuner.load.timer import Timer
from tuner.load.wire import Progress, Stopped
from tuner.records import OK, Phase, Record

#: Seconds between two looks at the loop's own lag; requests are made ahead in the same rhythm.
TICK_S = 0.02
PROGRESS_S = 0.5
#: A slot of a closed loop whose request failed waits this long, or a dead server would be hammered.
PAUSE_S = 0.05
#: Requests are made ahead only where the next send is further away than this.
_SLACK_S = 0.002
_MOST_MAKING_S = 0.001
#: Slots of a closed loop open one after the other, this far apart: thousands of connections at once would lag.
_SLOT_GAP_S = 0.002
_LEAD_S = 0.05  # from the start of the clock to the first arrival


class Session:
    """
    One level. `run` once.

    Args:
        plan: Of the level.
        endpoint: Where to send.
        shapes: `level_requests` of the plan; in a closed loop a few are enough.
        supply: The same level's requests.
        count_tokens: Of the served model's tokenizer, where it is known.
        on_progress: Called every `PROGRESS_S`.
    """

    def __init__(
        self,
        plan: LevelPlan,
        endpoint: Endpoint,
        shapes: RequestShapes,
        supply: Supply,
        *,
        count_tokens: CountTokens | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._plan, self._supply, self._count_tokens = plan, supply, count_tokens
        self._on_progress = on_progress
        path = "/v1/chat/completions" if plan.workload.api == "chat" else "/v1/completions"
        self._pool = Pool(endpoint, path, self._decided)
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[tuple[Stopped, str]] = self._loop.create_future()
        self._start_s = 0.0  # monotonic time of the level's start
        self._sent = 0
        self._flying: dict[int, Answer] = {}
        self._peak = 0
        self._records: dict[int, Record] = {}
        self._measured = self._undecided = self._failed = 0
        self._order: InOrder[Record] = InOrder()
        self._places: dict[int, int] = {}  # index of a measured request → its place among the measured
        self._opened = 0  # slots of a closed loop
        self._early = _early_failure(plan, shapes) if plan.stop_early else None
        self._lags: list[float] = []
        self._next_tick = self._next_progress = 0.0
        self._counted_s = 0.0  # when the last request arrived that `min_requests` asks for; closed loop
        if shapes.arrival_s is None or shapes.phase is None or shapes.window is None:
            self._arrivals: list[float] | None = None
            self._codes = b""
            self._window_end_s: float | None = None
        else:
            self._arrivals = shapes.arrival_s.tolist()
            self._codes = shapes.phase.tobytes()
            self._window_end_s = shapes.window.end_s
            self._undecided = self._codes.count(MEASURED)
        self._pacer: Timer
        self._sweeper: asyncio.TimerHandle
        self._sweep_s: float

    async def run(self) -> LevelData:
        """The level, to its end or until it is stopped. Every connection is closed afterwards."""
        self._pacer, ticker = Timer(self._due), Timer(self._tick)
        limits = self._plan.workload.timeout
        shortest = min(limits.first_token_s, limits.between_tokens_s, limits.total_s)
        self._sweep_s = min(0.25, max(0.01, shortest / 20))
        self._loop.set_exception_handler(self._faulted)
        cpu, jiffies = gauges.cpu_s(), gauges.machine_jiffies()
        try:
            self._start_s = monotonic() + _LEAD_S
            self._next_tick = self._start_s
            ticker.set(self._start_s, TICK_S)
            self._pacer.set(self._start_s + (0.0 if self._arrivals is None else self._arrivals[0]))
            self._sweeper = self._loop.call_later(self._sweep_s, self._sweep)
            stopped, detail = await self._end
            stopped_s = monotonic() - self._start_s
        finally:
            self._pacer.close()
            ticker.close()
            self._sweeper.cancel()
            left, self._flying = self._flying, {}
            await self._pool.close()
        for index, answer in left.items():
            self._records[index] = answer.record(self._start_s, self._count_tokens)
        return self._data(stopped, detail, stopped_s, gauges.cpu_s() - cpu, jiffies)

    def stop(self, stopped: Stopped, detail: str) -> None:
        """End the level now; the first call counts."""
        if not self._end.done():
            self._end.set_result((stopped, detail))

    def _faulted(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A fault of ours inside a callback ends the level with its traceback: waiting on would never end."""
        error = context.get("exception")
        if isinstance(error, Exception) and not self._end.done():
            self._end.set_exception(error)
        else:
            loop.default_exception_handler(context)

    def _data(
        self, stopped: Stopped, detail: str, stopped_s: float, cpu_s: float, jiffies: tuple[int, int]
    ) -> LevelData:
        records = tuple(self._records[index] for index in sorted(self._records))
        measure = self._plan.workload.measure
        end_s = measure.warmup_s + measure.duration_s if self._window_end_s is None else self._window_end_s
        window_s = end_s - measure.warmup_s
        # A level whose requests are all decided may end before its window: nothing more was to arrive in it.
        elapsed_s = min(window_s, stopped_s - measure.warmup_s) if stopped else window_s
        lags = [record.sent_s - record.scheduled_s for record in records if record.sent_s is not None]
        return LevelData(
            plan=self._plan,
            records=records,
            window_start_s=measure.warmup_s,
            window_s=window_s,
            realised_rps=self._measured / elapsed_s if elapsed_s > 0 else 0.0,
            health=ClientHealth(
                send_lag_p99_s=gauges.p99(lags),
                loop_lag_p99_s=gauges.p99(self._lags),
                cpu_s=cpu_s,
                steal_share=gauges.steal_share(jiffies, gauges.machine_jiffies()),
                peak_streams=self._peak,
                connections_dropped=self._pool.dropped,
            ),
            stopped=stopped,
            stop_detail=detail,
        )

    def _due(self) -> None:
        """Send everything whose time has come; in a closed loop, open the slots."""
        arrivals = self._arrivals
        if arrivals is None:
            while self._opened < (self._plan.concurrency or 0):
                scheduled = self._start_s + self._opened * _SLOT_GAP_S
                if scheduled > monotonic():
                    self._pacer.set(scheduled)
                    return
                self._opened += 1
                self._send_slot(scheduled)
            return
        while self._sent < len(arrivals):
            scheduled = self._start_s + arrivals[self._sent]
            if scheduled > monotonic():
                self._pacer.set(scheduled)
                return
            self._send(scheduled, PHASES[self._codes[self._sent]])
        if self._undecided == 0:
            self.stop("", "")

    def _send_slot(self, scheduled: float) -> None:
        """Send the next request of a slot; closed loop. The window ends as in `arrivals.window_of`."""
        if self._end.done():
            return
        measure = self._plan.workload.measure
        at_s = scheduled - self._start_s
        phase: Phase = "measured"
        if at_s < measure.warmup_s:
            phase = "warmup"
        elif self._window_end_s is not None:
            phase = "drain"
        elif at_s >= measure.warmup_s + measure.duration_s and self._measured >= self._plan.min_requests:
            enough_early = self._counted_s < measure.warmup_s + measure.duration_s
            self._window_end_s = measure.warmup_s + measure.duration_s if enough_early else at_s
            phase = "drain"
        else:
            self._undecided += 1
            if self._measured < self._plan.min_requests:
                self._counted_s = at_s
        self._send(scheduled, phase)

    def _send(self, scheduled: float, phase: Phase) -> None:
        index = self._sent
        self._sent += 1
        if phase == "measured":
            self._places[index] = self._measured
            self._measured += 1
        answer = Answer(self._supply.take(), scheduled, phase)
        self._flying[index] = answer
        self._peak = max(self._peak, len(self._flying))
        self._pool.send(answer)

    def _decided(self, answer: Answer) -> None:
        index = answer.request.index
        if self._flying.pop(index, None) is None:
            return
        record = self._records[index] = answer.record(self._start_s, self._count_tokens)
        self._failed += record.status != OK
        if answer.phase == "measured":
            self._undecided -= 1
            self._watch(index, record)
        if self._undecided == 0 and self._window_end_s is not None:
            self.stop("", "")
        elif self._arrivals is None and not self._end.done():
            now = monotonic()
            if record.status == OK:
                self._send_slot(now)
            else:
                self._loop.call_later(PAUSE_S, lambda: self._send_slot(monotonic()))

    def _watch(self, index: int, record: Record) -> None:
        if self._early is None:
            return
        for ready in self._order.push(self._places[index], record):
            broken = self._early.update(ready)
            if broken is not None:
                self.stop("slo", broken)
                return

    def _sweep(self) -> None:
        """Decide what is overdue."""
        self._sweeper = self._loop.call_later(self._sweep_s, self._sweep)
        now = monotonic()
        limits = self._plan.workload.timeout
        overdue = []
        for answer in self._flying.values():
            if now - answer.scheduled > limits.total_s:
                overdue.append((answer, "timeout_total", limits.total_s))
            elif answer.first is None:
                if now - answer.scheduled > limits.first_token_s:
                    overdue.append((answer, "timeout_first_token", limits.first_token_s))
            elif now - answer.last > limits.between_tokens_s:
                overdue.append((answer, "timeout_gap", limits.between_tokens_s))
        for answer, status, limit_s in overdue:
            if answer.finish is not None:
                answer.end(complete=True)  # the answer is whole; only its close is late
            else:
                answer.fail(status, f"nothing for {limit_s:g} s")
            if answer.carrier is not None:
                answer.carrier.abandon()
            self._decided(answer)
        self._pool.close_idle(now)

    def _tick(self) -> None:
        now = monotonic()
        self._lags.append(now - self._next_tick)
        self._next_tick += TICK_S * max(1, int((now - self._next_tick) / TICK_S) + 1)
        if self._on_progress is not None and now >= self._next_progress:
            self._next_progress = now + PROGRESS_S
            self._on_progress(
                Progress(
                    t_s=now - self._start_s,
                    sent=self._sent,
                    in_flight=len(self._flying),
                    measured=self._measured,
                    undecided=self._undecided,
                    failed=self._failed,
                )
            )
        if self._arrivals is not None or self._supply.waiting < 4 * (self._plan.concurrency or 1):
            while monotonic() - now < _MOST_MAKING_S and self._slack() and self._supply.top_up():
                pass

    def _slack(self) -> bool:
        """Whether the next send is far enough away to make a request before it."""
        if self._arrivals is None or self._sent >= len(self._arrivals):
            return True
        return self._start_s + self._arrivals[self._sent] - monotonic() > _SLACK_S


def _early_failure(plan: LevelPlan, shapes: RequestShapes) -> EarlyFailure:
    longest = int(shapes.output_tokens.max(initial=1))
    return EarlyFailure(plan.slo, plan.alpha, plan.divide_counts, longest_output_tokens=longest)
