"""Replicas behind a router, and how requests come to them: on a schedule, or one after another's answer."""

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from math import inf, nextafter
from typing import Literal, Protocol

from tuner.records import OK
from tuner.simulator.engine import Engine, Patience, Totals
from tuner.simulator.scheduler import EngineLimits, Request
from tuner.simulator.steptime import Linear, StepTime
from tuner.simulator.tokens import Chunks

Routing = Literal["round_robin", "least_loaded"]
#: Called with the requests that ended since the last call; True stops the level.
Watch = Callable[[Sequence[Request]], bool]
#: A slot of a closed loop whose request failed waits this long, as the live client's does.
PAUSE_S = 0.05


class AnyEngine(Protocol):
    """The reference or the compiled one; see `engine.Engine`."""

    @property
    def busy(self) -> bool: ...
    @property
    def clock_s(self) -> float: ...
    @property
    def totals(self) -> Totals: ...
    def in_flight(self, now_s: float) -> int: ...
    def add(self, request: Request) -> None: ...
    def advance(self, until_s: float, *, stop_at_end: bool = False) -> list[Request]: ...
    def warm(self, keys: Sequence[int]) -> None: ...
    def chunks(self, request: Request, until_s: float = inf) -> Chunks: ...


def make_engine(
    limits: EngineLimits, step_time: StepTime, patience: Patience | None = None, *, compiled: bool | None = None
) -> AnyEngine:
    """
    An idle engine.

    Args:
        limits: Of it.
        step_time: Of it.
        patience: Of its clients.
        compiled: None = where the kernel knows the form of the step times. Results are the same, to the last bit.

    Raises:
        ValueError: The kernel does not know it, and was demanded.
    """
    if isinstance(step_time, Linear) and compiled is not False:
        from tuner.simulator.compiled import CompiledEngine  # loads numba

        return CompiledEngine(limits, step_time, patience=patience)
    if compiled:
        raise ValueError(f"step times of {type(step_time).__name__} are not compiled: only those of Linear are")
    return Engine(limits, step_time, patience=patience)


class Cluster:
    """
    Engines that do the same work.

    Args:
        engines: At least one.
        routing: `round_robin` takes turns; `least_loaded` takes the engine with the fewest open requests.
        front_end_s: From a request's scheduled time until an engine's scheduler sees it: tokenising, routing, looking
            up. The same for each request; it delays the first token and nothing else.
    """

    def __init__(
        self, engines: Sequence[AnyEngine], *, routing: Routing = "round_robin", front_end_s: float = 0.0
    ) -> None:
        self.engines = tuple(engines)
        self._routing = routing
        self._front_end_s = front_end_s
        self._turn = 0

    def open_loop(self, requests: Iterable[Request], watch: Watch) -> None:
        """
        Serve requests that come at their `scheduled_s`, ascending, until all have ended or `watch` says so.

        A request that has a `status` was refused: it has ended already.

        Engines run ahead of one another; what an engine does before a request arrives does not depend on it. So when
        `watch` stops the level, some engines have gone on for a while; whoever reads the results cuts them at the end.
        """
        for request in requests:
            request.arrival_s = request.scheduled_s + self._front_end_s
            ended = [request] if request.status else []
            if self._routing == "least_loaded":
                for engine in self.engines:
                    ended += engine.advance(request.arrival_s)
            chosen = self._route(request)
            ended += chosen.advance(request.arrival_s)
            if ended and watch(ended):
                return
            if not request.status:
                chosen.add(request)
        for engine in self.engines:
            while engine.busy:
                if watch(engine.advance(inf, stop_at_end=True)):
                    return

    def closed_loop(self, starts_s: Sequence[float], make: Callable[[float], Request | None], watch: Watch) -> None:
        """
        Serve one request after another in each slot, until `watch` says so.

        Args:
            starts_s: When each slot sends its first request, >= 0; their number is the concurrency.
            make: The request that starts at this time; called in order of time. None ends the level. One that has a
                `status` was refused: it has ended already.
            watch: See `Watch`.
        """
        starts = list(starts_s)
        heapify(starts)
        while True:
            arrival_s = starts[0] + self._front_end_s if starts else inf
            clocks = sorted((engine.clock_s, index) for index, engine in enumerate(self.engines) if engine.busy)
            if not clocks or clocks[0][0] >= arrival_s:
                request = make(heappop(starts))
                if request is None:
                    return
                request.arrival_s = arrival_s
                chosen = self._route(request)
                if not request.status:
                    chosen.add(request)
                    continue
                heappush(starts, request.ended_s + PAUSE_S)
                if watch([request]):
                    return
                continue
            engine = self.engines[clocks[0][1]]
            # Another engine may end a request, and so start one here, at any time after its clock.
            horizon_s = min(arrival_s, clocks[1][0] if len(clocks) > 1 else inf)
            ended = engine.advance(max(horizon_s, nextafter(engine.clock_s, inf)), stop_at_end=True)
            for request in ended:
                heappush(starts, request.ended_s + (0.0 if request.status == OK else PAUSE_S))
            if ended and watch(ended):
                return

    def _route(self, request: Request) -> AnyEngine:
        if self._routing == "least_loaded":
            loads = [engine.in_flight(request.arrival_s) for engine in self.engines]
            request.engine = loads.index(min(loads))
        else:
            request.engine = self._turn
            self._turn = (self._turn + 1) % len(self.engines)
        return self.engines[request.engine]
