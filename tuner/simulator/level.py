"""One level of load on simulated engines: the same requests, phases and stop rules as under the live client."""

from collections.abc import Iterator, Mapping, Sequence

from tuner.early import EarlyFailure, InOrder
from tuner.load.arrivals import DRAIN, MEASURED, WARMUP, Window
from tuner.load.plan import LevelData, LevelPlan, filling
from tuner.load.shape import RequestShapes, Rows, level_requests
from tuner.records import OK, UNFINISHED, Phase, Record
from tuner.simulator.cluster import Cluster
from tuner.simulator.engine import Patience
from tuner.simulator.filling import fill
from tuner.simulator.fleet import AnyEngine, Fleet, Group, make_engines
from tuner.simulator.router import Router
from tuner.simulator.scheduler import Request
from tuner.simulator.split import SplitCluster

#: Status of a request that the engine refuses because it is longer than `max_model_len`.
TOO_LONG = "http_400"
_ERRORS = {
    TOO_LONG: "prompt and answer are longer than max_model_len",
    "timeout_first_token": "no token in time",
    "timeout_gap": "no further token in time",
    "timeout_total": "not finished in time",
}
_PHASES: Mapping[int, Phase] = {WARMUP: "warmup", MEASURED: "measured", DRAIN: "drain"}
#: A closed loop's requests are made in portions, the first of at least this many.
_PORTION = 256


class Level:
    """
    One level of load, from empty caches and stores, or filled ones, to the end of its last measured request.

    Args:
        plan: Of the level.
        rows: Of its source; None for a synthetic one.
        fleet: The engines that serve.
        compiled: See `make_engine`.
    """

    def __init__(
        self,
        plan: LevelPlan,
        rows: Rows | None,
        *,
        fleet: Fleet,
        compiled: bool | None = None,
    ) -> None:
        self._plan, self._rows, self._fleet = plan, rows, fleet
        self._limits = fleet.groups[0].limits
        self._compiled = compiled
        self._groups = [self._made(group) for group in fleet.groups]
        routers = self._routers = [Router(fleet.routing, self._limits.block_size) for _ in fleet.groups]
        store = fleet.groups[0].store
        coupled = store is not None and store.shared
        self._cluster: Cluster | SplitCluster
        if fleet.split:
            self._cluster = SplitCluster(
                *self._groups,
                prefill_router=routers[0],
                decode_router=routers[1],
                front_end_s=fleet.front_end_s,
                hand_over_s=fleet.hand_over_s,
                coupled=coupled,
            )
        else:
            self._cluster = Cluster(self._groups[0], router=routers[0], front_end_s=fleet.front_end_s, coupled=coupled)
        self._early = EarlyFailure(plan.slo, plan.alpha, plan.divide_counts) if plan.stop_early else None
        self._order: InOrder[Request] | None = None  # from the first measured request on
        self._requests: list[Request] = []  # in order of arrival
        self._phases: list[int] = []
        self._records: dict[int, Record] = {}  # those that the early stop has seen
        self._measured = self._open = 0
        self._draining = False
        self._last_s = 0.0  # when the last measured request so far ended
        self._decided_s = 0.0  # the same, of those that the early stop has seen
        self._window: Window | None = None  # None = not over yet (closed loop)
        self._end_s: float | None = None
        self._broken = ""
        self._keys: dict[bytes, list[int]] = {}

    def run(self) -> LevelData:
        """The level to its end; once."""
        concurrency = self._plan.concurrency
        self._shapes = level_requests(self._plan, self._rows, None if concurrency is None else _PORTION)
        self._warm()
        if concurrency is None:
            self._window = self._shapes.window
            self._cluster.open_loop(self._scheduled(), self._watch)
        else:
            self._cluster.closed_loop([0.0] * concurrency, self._next, self._watch)
        return self._data()

    def _made(self, group: Group) -> list[AnyEngine]:
        timeout = self._plan.workload.timeout
        patience = Patience(timeout.first_token_s, timeout.between_tokens_s, timeout.total_s)
        return make_engines(group, patience, compiled=self._compiled)

    def _scheduled(self) -> Iterator[Request]:
        """Requests of an open loop, in order, until the level is over."""
        arrival_s, phase = self._shapes.arrival_s, self._shapes.phase
        if arrival_s is None or phase is None:
            raise ValueError("an open loop has a schedule")
        for scheduled_s, code in zip(arrival_s.tolist(), phase.tolist(), strict=True):
            if code == DRAIN and not self._open:
                self._end_s = self._last_s
                return
            yield self._arrive(scheduled_s, code)

    def _next(self, scheduled_s: float) -> Request | None:
        """The request of a closed loop that starts now; its lengths do not depend on who answers when."""
        measure = self._plan.workload.measure
        end_s = measure.warmup_s + measure.duration_s
        if len(self._requests) >= len(self._shapes):
            self._shapes = level_requests(self._plan, self._rows, 2 * len(self._shapes))
        if scheduled_s < measure.warmup_s:
            return self._arrive(scheduled_s, WARMUP)
        if self._window is None and (self._measured < self._plan.min_requests or scheduled_s < end_s):
            return self._arrive(scheduled_s, MEASURED)
        if self._window is None:
            # Where the count decides, the window ends with the arrival after the last counted one, as in an open loop.
            end_s = scheduled_s if self._measured == self._plan.min_requests else end_s
            self._window = Window(measure.warmup_s, end_s - measure.warmup_s)
        if not self._open:
            self._end_s = self._last_s
            return None
        return self._arrive(scheduled_s, DRAIN)

    def _arrive(self, scheduled_s: float, phase: int) -> Request:
        index = len(self._requests)
        request = Request(
            index,
            int(self._shapes.input_tokens[index]),
            int(self._shapes.output_tokens[index]),
            self._shared(self._shapes, index),
            scheduled_s=scheduled_s,
        )
        if request.prompt + request.output > self._fleet.max_model_len:
            request.status, request.ended_s = TOO_LONG, scheduled_s + self._fleet.front_end_s
        self._requests.append(request)
        self._phases.append(phase)
        self._draining = phase == DRAIN
        if phase == MEASURED:
            self._measured += 1
            self._open += 1
            if self._order is None:
                self._order = InOrder(index)
        return request

    def _shared(self, shapes: RequestShapes, index: int) -> Sequence[int]:
        """Keys of the full engine blocks that the request may share with others."""
        size = self._limits.block_size
        count = shapes.shared_tokens(index) // size
        if not count:
            return ()
        blocks = shapes.blocks(index)
        name = blocks.tobytes()
        found = self._keys.get(name)
        if found is None or len(found) != count:
            found = self._keys[name] = shapes.cache_keys(index, size)[:count].tolist()
        return found

    def _warm(self) -> None:
        """`cache: warm` fills caches and stores with the same requests as live."""
        plan = filling(self._plan)
        if plan is None or plan.concurrency is None:
            return
        shapes = level_requests(plan, self._rows, plan.min_requests)
        for group, engines, router in zip(self._fleet.groups, self._groups, self._routers, strict=True):
            requests: list[Request] = []
            for index in range(len(shapes)):
                prompt, output = int(shapes.input_tokens[index]), int(shapes.output_tokens[index])
                if prompt + output <= self._fleet.max_model_len:
                    output = 1 if group.role == "prefill" else output
                    requests.append(Request(index, prompt, output, self._shared(shapes, index)))
            fill(requests, engines, router, concurrency=plan.concurrency)

    def _watch(self, ended: Sequence[Request]) -> bool:
        """The level is over: every measured request is decided, or a limit is certainly broken."""
        if self._end_s is not None:
            return True
        for request in ended:
            if self._phases[request.number] != MEASURED:
                continue
            self._open -= 1
            self._last_s = max(self._last_s, request.ended_s)
            if self._early is None or self._order is None:
                continue
            for decided in self._order.push(request.number, request):
                self._decided_s = max(self._decided_s, decided.ended_s)
                record = self._records[decided.number] = self._record(decided)
                self._broken = self._early.update(record) or ""
                if self._broken:
                    self._end_s = self._decided_s
                    return True
        if self._draining and not self._open:
            self._end_s = self._last_s
        return self._end_s is not None

    def _record(self, request: Request) -> Record:
        """What a client would have seen of a request until the end of the level."""
        end_s = request.ended_s if self._end_s is None else self._end_s
        decided = request.ended_s <= end_s
        if decided and request.number in self._records:
            return self._records[request.number]
        chunks = self._cluster.engines[request.engine].chunks(request, end_s)
        return Record(
            id=str(request.number),
            scheduled_s=request.scheduled_s,
            sent_s=request.scheduled_s,
            first_token_s=chunks[0][0] if chunks else None,
            last_token_s=chunks[-1][0] if chunks else None,
            asked_input_tokens=request.prompt,
            input_tokens=request.prompt if chunks else None,
            asked_output_tokens=request.output,
            output_tokens=len(chunks),
            token_source="usage",  # noqa: S106
            chunks=chunks,
            status=(request.status or OK) if decided else UNFINISHED,
            error=_ERRORS.get(request.status) if decided else None,
            phase=_PHASES[self._phases[request.number]],
        )

    def _data(self) -> LevelData:
        end_s = self._last_s if self._end_s is None else self._end_s
        self._end_s = end_s
        start_s = self._plan.workload.measure.warmup_s
        window = self._window or Window(start_s, self._plan.workload.measure.duration_s)
        elapsed_s = min(window.length_s, end_s - start_s) if self._broken else window.length_s
        sent = [request for request in self._requests if request.scheduled_s < end_s]
        arrived = sum(1 for request in sent if self._phases[request.number] == MEASURED)
        return LevelData(
            plan=self._plan,
            records=tuple(self._record(request) for request in sent),
            window_start_s=start_s,
            window_s=window.length_s,
            realised_rps=arrived / elapsed_s if elapsed_s > 0 else 0.0,
            stopped="slo" if self._broken else "",
            stop_detail=self._broken,
            counters=self._counters(end_s),
        )

    def _counters(self, end_s: float) -> dict[str, float]:
        """
        Names as the engine's own at /metrics, or as the live deployments' figures, where they have them;
        `level_seconds` is the level's virtual duration.
        """
        pairs = zip(self._fleet.groups, self._groups, strict=True)
        totals = [(group.limits.blocks, engine.totals) for group, engines in pairs for engine in engines]
        computing = [engine.totals for engine in self._groups[0]]  # they look for prefixes
        counters = {
            "level_seconds": end_s,
            "num_preemptions_total": float(sum(each.preemptions for _, each in totals)),
            "prefix_cache_queries_total": float(sum(each.prefix_queries for each in computing)),
            "prefix_cache_hits_total": float(sum(each.prefix_hits for each in computing)),
            "kv_cache_usage_peak": max(1 - each.least_free / blocks for blocks, each in totals),
        }
        if self._fleet.groups[0].store is not None:
            asked, found = (
                sum(getattr(each, name) for each in computing) for name in ("store_queries", "loaded_tokens")
            )
            counters["external_prefix_cache_queries_total"] = float(asked)
            counters["external_prefix_cache_hits_total"] = counters["store_hit_tokens"] = float(found)
            counters |= {"store_hit_share": found / asked} if asked else {}
        if self._fleet.split:
            answering = [engine.totals for engine in self._groups[1]]
            moved = sum(each.loaded_tokens for each in answering)
            missing = sum(each.prefix_queries - each.prefix_hits for each in answering)
            counters |= {"kv_transfer_share": moved / missing} if missing else {}
        return counters
