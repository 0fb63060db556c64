"""Prefill and decode apart: engines that compute prompts, engines that answer, and the way from one to the other."""

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from math import inf, nextafter

from tuner.records import OK
from tuner.simulator.cluster import PAUSE_S, Watch
from tuner.simulator.fleet import AnyEngine
from tuner.simulator.router import Router
from tuner.simulator.scheduler import Request


class SplitCluster:
    """
    A request's way: the router sends its prompt to a prefill engine, which computes it and one token that nobody sees;
    then to a decode engine, which takes blocks for the prompt, fetches its KV over its link, computes the prompt's last
    token again and answers. The prefill engine keeps its blocks until the KV is fetched. Every token that the client
    sees comes from the decode engine, so the first one waits for both engines and the transfer.

    Engines act on each other only through these messages, so whoever is furthest behind runs on as far as no message
    can reach it.

    Args:
        prefill: At least one.
        decode: At least one, with links.
        prefill_router: Chooses among the prefill engines; None = they take turns.
        decode_router: Chooses among the decode engines, when the prompt is computed.
        front_end_s: See `Cluster`.
        coupled: The prefill engines share a store.
        hand_over_s: From a computed prompt until the decode engine's scheduler sees it.
    """

    def __init__(
        self,
        prefill: Sequence[AnyEngine],
        decode: Sequence[AnyEngine],
        *,
        prefill_router: Router | None = None,
        decode_router: Router | None = None,
        front_end_s: float = 0.0,
        hand_over_s: float = 0.0,
        coupled: bool = False,
    ) -> None:
        self.prefill, self.engines = tuple(prefill), tuple(decode)
        self._prefill_router, self._decode_router = prefill_router or Router(), decode_router or Router()
        self._front_end_s, self._hand_over_s = front_end_s, hand_over_s
        self._coupled = coupled
        self._prompts: dict[int, Request] = {}  # at prefill engines, by number
        self._clients: dict[int, Request] = {}  # the same requests as the client knows them
        self._computed: list[tuple[float, int]] = []  # (when, number) of prompts on their way to decode; a heap

    def open_loop(self, requests: Iterable[Request], watch: Watch) -> None:
        """See `Cluster.open_loop`."""
        for request in requests:
            request.arrival_s = request.scheduled_s + self._front_end_s
            ended = [request] if request.status else []
            while (now := self._advance(request.arrival_s)) is not None:
                ended += now
            if ended and watch(ended):
                return
            if not request.status:
                self._send(request)
        while (now := self._advance(inf)) is not None:
            if now and watch(now):
                return

    def closed_loop(self, starts_s: Sequence[float], make: Callable[[float], Request | None], watch: Watch) -> None:
        """See `Cluster.closed_loop`."""
        starts = list(starts_s)
        heapify(starts)
        while True:
            arrival_s = starts[0] + self._front_end_s if starts else inf
            ended = self._advance(arrival_s, closed=True)
            if ended is None:
                request = make(heappop(starts))
                if request is None:
                    return
                request.arrival_s = arrival_s
                if not request.status:
                    self._send(request)
                    continue
                ended = [request]
            for each in ended:
                heappush(starts, each.ended_s + (0.0 if each.status == OK else PAUSE_S))
            if ended and watch(ended):
                return

    def settle(self) -> None:
        """At the end of a run: give back what is released."""
        for engine in (*self.prefill, *self.engines):
            engine.settle()

    def _send(self, request: Request) -> None:
        """A client's request goes to a prefill engine."""
        prompt = Request(
            request.number,
            request.prompt,
            1,
            request.keys,
            scheduled_s=request.scheduled_s,
            arrival_s=request.arrival_s,
            park=True,
        )
        prompt.engine = self._prefill_router.choose(prompt, self.prefill, request.arrival_s)
        self._prompts[request.number], self._clients[request.number] = prompt, request
        self.prefill[prompt.engine].add(prompt)

    def _advance(self, until_s: float, *, closed: bool = False) -> list[Request] | None:
        """
        The next thing that happens before `until_s`: some steps of one engine, or a prompt that gets to decode.

        Args:
            until_s: When the next request arrives; exclusive.
            closed: Whether the end of a request may start another.

        Returns:
            Requests of clients that ended; None where nothing happens before then.
        """
        event_s = min(until_s, self._computed[0][0] if self._computed else inf)
        computing, prefill_s = _furthest_behind(self.prefill)
        answering, decode_s = _furthest_behind(self.engines)
        if min(prefill_s, decode_s) >= event_s:
            if event_s >= until_s:
                return None
            self._hand_over(*heappop(self._computed))
            return []
        if computing is not None and prefill_s <= decode_s:
            # Blocks may be released while a decode engine asks for KV; a client that ends may send the next prompt.
            asking = min((each.next_s for each in self.engines if each.queued), default=inf)
            if self._coupled:
                others = (each.next_s for each in self.prefill if each.busy and each is not computing)
                asking = min(asking, *others, inf)
            return self._compute(computing, min(event_s, asking, self._next_prompt_s(None) if closed else inf))
        if answering is None:
            raise AssertionError("an engine is behind, and there is none")
        sent_s = self._next_prompt_s(answering) + self._hand_over_s if closed else inf
        return self._answer(answering, min(event_s, prefill_s, sent_s), stop_at_end=closed)

    def _next_prompt_s(self, besides: AnyEngine | None) -> float:
        """No prompt of a closed loop comes before this, but for the one that follows an answer of `besides`."""
        quiet_s = min((each.quiet_until_s for each in self.engines if each is not besides), default=inf)
        return quiet_s + self._front_end_s

    def _compute(self, engine: AnyEngine, horizon_s: float) -> list[Request]:
        """Steps of a prefill engine, to the first prompt that is computed."""
        ended: list[Request] = []
        for prompt in engine.advance(_beyond(engine, horizon_s), stop_at_end=True):
            if prompt.status == OK:
                heappush(self._computed, (prompt.ended_s + self._hand_over_s, prompt.number))
                continue
            del self._prompts[prompt.number]
            client = self._clients.pop(prompt.number)
            client.status, client.ended_s = prompt.status, prompt.ended_s
            ended.append(client)
        return ended

    def _hand_over(self, now_s: float, number: int) -> None:
        """A computed prompt gets to a decode engine."""
        client = self._clients.pop(number)
        client.arrival_s, client.remote = now_s, True
        client.engine = self._decode_router.choose(client, self.engines, now_s)
        self.engines[client.engine].add(client)

    def _answer(self, engine: AnyEngine, horizon_s: float, *, stop_at_end: bool) -> list[Request]:
        """Steps of a decode engine; prefill engines hear until when they must keep blocks."""
        ended = engine.advance(_beyond(engine, horizon_s), stop_at_end=stop_at_end)
        for client, ready_s in engine.take_transfers():
            self._release(client.number, ready_s)
        for client in ended:
            self._release(client.number, client.ended_s)  # it hung up before its KV was asked for
        return ended

    def _release(self, number: int, at_s: float) -> None:
        prompt = self._prompts.pop(number, None)
        if prompt is not None:
            self.prefill[prompt.engine].release(prompt, at_s)


def _furthest_behind(engines: Sequence[AnyEngine]) -> tuple[AnyEngine | None, float]:
    """The engine whose next step comes first, and when."""
    found, found_s = None, inf
    for engine in engines:
        if engine.busy and engine.next_s < found_s:
            found, found_s = engine, engine.next_s
    return found, found_s


def _beyond(engine: AnyEngine, horizon_s: float) -> float:
    """At least one step is safe for the engine that is furthest behind."""
    return max(horizon_s, nextafter(engine.next_s, inf))
