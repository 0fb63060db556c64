"""Replicas behind a router, and how requests come to them: on a schedule, or one after another's answer."""

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from math import inf, nextafter

from tuner.records import OK
from tuner.simulator.fleet import AnyEngine
from tuner.simulator.router import Router
from tuner.simulator.scheduler import Request

#: Called with the requests that ended since the last call; True stops the level.
Watch = Callable[[Sequence[Request]], bool]
#: A slot of a closed loop whose request failed waits this long, as the live client's does.
PAUSE_S = 0.05


class Cluster:
    """
    Engines that do the same work.

    Args:
        engines: At least one.
        router: Chooses among them; None = they take turns.
        coupled: They share a store: none may run ahead of another by more than a step.
        front_end_s: From a request's scheduled time until an engine's scheduler sees it: tokenising, routing, looking
            up. The same for each request; it delays the first token and nothing else.
    """

    def __init__(
        self,
        engines: Sequence[AnyEngine],
        *,
        router: Router | None = None,
        front_end_s: float = 0.0,
        coupled: bool = False,
    ) -> None:
        self.engines = tuple(engines)
        self._router = router or Router()
        self._front_end_s = front_end_s
        self._coupled = coupled and len(self.engines) > 1

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
            ended += self._catch_up(request.arrival_s)
            chosen = self._route(request)
            ended += chosen.advance(request.arrival_s)
            if ended and watch(ended):
                return
            if not request.status:
                chosen.add(request)
        while (now := self._follow(inf)) is not None:
            if now and watch(now):
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
            behind = self._behind()
            if behind is None or behind.next_s >= arrival_s:
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
            horizon_s = self._horizon_s(behind, arrival_s)
            ended = behind.advance(max(horizon_s, nextafter(behind.next_s, inf)), stop_at_end=True)
            for request in ended:
                heappush(starts, request.ended_s + (0.0 if request.status == OK else PAUSE_S))
            if ended and watch(ended):
                return

    def _behind(self) -> AnyEngine | None:
        """The engine whose next step comes first."""
        if len(self.engines) == 1:
            return self.engines[0] if self.engines[0].busy else None
        return min((each for each in self.engines if each.busy), key=_next_s, default=None)

    def _horizon_s(self, behind: AnyEngine, arrival_s: float) -> float:
        """How far an engine of a closed loop may go: another one may end a request, and so start one here."""
        horizon_s = arrival_s
        for engine in self.engines:
            if engine is not behind and engine.busy:
                horizon_s = min(horizon_s, engine.quiet_until_s + self._front_end_s)
                if self._coupled:
                    horizon_s = min(horizon_s, engine.next_s)
        return horizon_s

    def _catch_up(self, now_s: float) -> list[Request]:
        """Whoever must have come to a moment to be routed to, or to be read by others, does."""
        ended: list[Request] = []
        if self._coupled:
            while (now := self._follow(now_s)) is not None:
                ended += now
        elif self._router.looks:
            for engine in self.engines:
                ended += engine.advance(now_s)
        return ended

    def _follow(self, until_s: float) -> list[Request] | None:
        """Steps of the engine that is furthest behind, to a first end at most; None if it is not before `until_s`."""
        busy = sorted((each for each in self.engines if each.busy), key=_next_s)
        if not busy or busy[0].next_s >= until_s:
            return None
        if self._coupled and len(busy) > 1:
            until_s = min(until_s, max(busy[1].next_s, nextafter(busy[0].next_s, inf)))
        return busy[0].advance(until_s, stop_at_end=True)

    def _route(self, request: Request) -> AnyEngine:
        request.engine = self._router.choose(request, self.engines, request.arrival_s)
        return self.engines[request.engine]


def _next_s(engine: AnyEngine) -> float:
    return engine.next_s
