"""One offered load on one running deployment: plan it, run it, judge it."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Literal

from tuner.deployment import Running
from tuner.errors import EmptyWindow, InfrastructureFailed, Interrupted
from tuner.load.plan import LevelData, LevelPlan
from tuner.objective import Score, score
from tuner.outcome import Level
from tuner.slo import Objective, Slo
from tuner.validity import invalid_reason

Purpose = Literal["challenge", "search", "fixed", "verify"]
#: Stores a finished level at once, so that a crash loses at most the level that runs; returns it as stored.
Keep = Callable[[Level, LevelData], Level]


def closed_loop(objective: Objective) -> bool:
    """Loads are concurrent requests rather than requests per second."""
    return objective.workload.arrivals.process == "closed_loop" or objective.workload.load.kind == "concurrency"


def unit(objective: Objective) -> str:
    """Unit of a load in messages."""
    return "concurrent" if closed_loop(objective) else "req/s"


def fewest_requests(slo: Slo) -> int:
    """Requests below which a percentile limit says nothing: 1 / (1 − p) for the strictest p."""
    quantiles = [limit.quantile for limit in slo.limits if limit.quantile is not None]
    if slo.attainment is not None and slo.attainment < 1:
        quantiles.append(slo.attainment)
    return max((math.ceil(1 / (1 - q) - 1e-9) for q in quantiles), default=1)


def plan(
    objective: Objective,
    *,
    number: int,
    seed: int,
    load: float,
    min_requests: int | None = None,
    stop_early: bool = True,
) -> LevelPlan:
    """
    The level that offers `load`, in requests/s or concurrent requests as the objective file asks.

    Args:
        objective: The objective file.
        number: Of the level within the server's life, from 1; 0 = the probe.
        seed: Of schedule and prompts.
        load: > 0.
        min_requests: Measured requests at least; None = as the file says. Raised to what the limits need.
        stop_early: End the level as soon as a limit is certainly broken.
    """
    closed = closed_loop(objective)
    wanted = objective.workload.measure.min_requests if min_requests is None else min_requests
    return LevelPlan(
        model=objective.model,
        workload=objective.workload,
        slo=objective.slo,
        number=number,
        seed=seed,
        rate_rps=None if closed else load,
        concurrency=max(1, round(load)) if closed else None,
        min_requests=max(wanted, fewest_requests(objective.slo)),
        stop_early=stop_early,
        divide_counts=objective.search.divide_counts,
    )


def judge(data: LevelData, *, purpose: Purpose, seconds: float) -> Level:
    """
    What the level says. A level that was stopped early for the SLO is broken; one that is invalid says nothing.

    Args:
        data: As it came from the deployment.
        purpose: Why it was run.
        seconds: It took, wall time or virtual time.
    """
    invalid = invalid_reason(data)
    judged: Score | None = None
    if not invalid:
        try:
            judged = score(
                data.records,
                data.plan.slo,
                window_start_s=data.window_start_s,
                window_s=data.window_s,
                divide=data.plan.divide_counts,
            )
        except EmptyWindow as error:
            invalid = f"empty window: {error}"
    kept = None if judged is None else data.stopped == "" and judged.observed_kept
    return Level(
        number=data.plan.number,
        purpose=purpose,
        offered=offered(data.plan),
        score=judged,
        kept=kept,
        stopped=data.stopped,
        stop_detail=data.stop_detail,
        invalid=invalid,
        seconds=seconds,
        requests=sum(record.sent_s is not None for record in data.records),
        counters=data.counters,
        client=dataclasses.asdict(data.health),
    )


def offered(plan: LevelPlan) -> float:
    """The load of a plan, in the unit of its loop."""
    if plan.rate_rps is not None:
        return plan.rate_rps
    assert plan.concurrency is not None  # noqa: S101  (a plan has one of the two)
    return float(plan.concurrency)


def certain(level: Level) -> bool:
    """A broken level is broken beyond doubt: by the always-valid test, or by the bounds of some limit."""
    if level.stopped == "slo":
        return True
    return level.score is not None and any(limit.decision == "broken" for limit in level.score.limits)


def in_flight(data: LevelData) -> float | None:
    """Mean number of requests in flight, by Little's law over the answered requests; None where none was answered."""
    times = [r.last_token_s - r.scheduled_s for r in data.records if r.last_token_s is not None]
    if not times or data.plan.rate_rps is None:
        return None
    return data.plan.rate_rps * sum(times) / len(times)


def measure(running: Running, planned: LevelPlan, *, purpose: Purpose, keep: Keep) -> tuple[Level, LevelData]:
    """
    Run one level; repeat it once on a fresh schedule where the client or the machine spoilt it.

    Raises:
        InfrastructureFailed: `client_saturated`: invalid twice.
        ConfigurationFailed: A process of the deployment died.
        Interrupted: Somebody asked to stop.
    """
    for repeat in (0, 1):
        attempt = dataclasses.replace(planned, number=planned.number + repeat)
        begun = time.monotonic()
        data = running.drive(attempt)
        if data.stopped == "interrupted":
            raise Interrupted(data.stop_detail or "interrupted")
        level = judge(data, purpose=purpose, seconds=data.counters.get("level_seconds", time.monotonic() - begun))
        level = keep(level, data)
        if not level.invalid:
            return level, data
    raise InfrastructureFailed("client_saturated", f"the level was invalid twice: {level.invalid}")
