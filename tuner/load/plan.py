"""One level of load, as the client and the simulator both receive it, and what comes back from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tuner.records import Record
from tuner.slo import Arrivals, Slo, Workload

#: The level of number `FILL_LEVELS + n` fills the caches for level n: with its shared prefixes, and prompts of its own.
FILL_LEVELS = 1_000_000
_FILL_CONCURRENCY = 4


@dataclass(frozen=True)
class LevelPlan:
    """
    Everything that determines the requests of one level.

    Two plans that differ in the load alone have the same unit-rate schedule, the same prompts and the same lengths in
    the same order: schedule and prompts come from (`seed`, `number`).
    """

    model: str  # name or directory, as in the objective file; the served model name
    workload: Workload
    slo: Slo
    number: int  # of the level within the server's life: prompts are never used twice in it
    seed: int
    rate_rps: float | None  # open loop; None in a closed loop
    concurrency: int | None  # closed loop; None in an open loop
    min_requests: int  # measured requests at least
    stop_early: bool = True  # end the level as soon as a limit is certainly broken
    alpha: float = 0.05  # of that test, per limit and level
    divide_counts: float = 2.0  # D of that test


def filling(plan: LevelPlan) -> LevelPlan | None:
    """The level that fills caches and stores before this one, as `workload.cache` asks; None where it asks for none."""
    workload, cache = plan.workload, plan.workload.cache
    if cache.policy != "warm" or not cache.requests:
        return None
    return replace(
        plan,
        workload=replace(
            workload,
            arrivals=Arrivals("closed_loop"),
            measure=replace(workload.measure, warmup_s=0.0, duration_s=0.001, min_requests=cache.requests),
        ),
        number=FILL_LEVELS + plan.number,
        rate_rps=None,
        concurrency=min(_FILL_CONCURRENCY, cache.requests),
        min_requests=cache.requests,
        stop_early=False,
    )


@dataclass(frozen=True)
class ClientHealth:
    """Whether the load client itself kept up. Of a simulated level: all zero."""

    send_lag_p99_s: float = 0.0  # from scheduled to sent, over all sent requests
    loop_lag_p99_s: float = 0.0  # how late the event loop woke up
    cpu_s: float = 0.0  # user + system, during the load
    steal_share: float = 0.0  # of the machine's CPU time during the load, taken by its host
    peak_streams: int = 0
    connections_dropped: int = 0  # closed by the client itself although not asked to


@dataclass(frozen=True)
class LevelData:
    """
    What one level yielded: facts, before any judgement.

    `window_s` is the length of the measured window, which starts at `window_start_s`. A level that was `stopped`
    early has `unfinished` records and never yields goodput.
    """

    plan: LevelPlan
    records: tuple[Record, ...]  # warm-up, measured and drain, in order of arrival
    window_start_s: float
    window_s: float
    realised_rps: float  # arrivals in the window / window length
    health: ClientHealth = ClientHealth()
    stopped: Literal["", "slo", "server_died", "interrupted"] = ""
    stop_detail: str = ""  # name of the limit that was certainly broken, or the cause of the death
    counters: Mapping[str, float] = field(default_factory=dict)  # engine counters, differences over the level, by name
    input_lengths: Literal["exact", "estimated"] = "exact"  # estimated: the served model's tokenizer is not known here
    samples: tuple[Mapping[str, float], ...] = ()  # engine gauges each second: `t_s` and the metric names
