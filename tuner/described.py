"""One standing → its entry in `result.json`, everything strict JSON. Pure."""

import math
from dataclasses import asdict

from tuner.objective import Score
from tuner.slo import Objective
from tuner.standing import Rung, Standing, cost_per_1k, cost_per_1m


def describe(objective: Objective, standing: Standing) -> dict[str, object]:
    """One configuration with everything known about it: `winner` and `baseline` of the file."""
    outcome, verified, score = standing.outcome, standing.verified, standing.score
    rung = verified.rung if verified is not None else None
    levels = rung.levels if rung is not None else ((outcome.best,) if outcome.best is not None else ())
    closed = closed_loop(objective)
    offered = rung.offered if rung is not None else (levels[0].offered if levels else None)
    interval = verified.interval if verified is not None else None
    return {
        "trial": outcome.trial,
        "state": outcome.state,
        "reason": outcome.reason,
        "cause": outcome.cause,
        "configuration": dict(outcome.configuration.knobs),
        "gpus": outcome.units,
        "cost_per_hour": finite(outcome.cost_per_hour),
        **_figures(standing),
        "attainment": None if score is None else score.attainment,
        "offered": offered,
        "concurrency": offered if closed else None,
        "capacity_rps": None if closed else finite(outcome.capacity),
        "capacity": finite(outcome.capacity),
        "broken_at": finite(outcome.broken_at),
        "metrics": _metrics(score),
        "tails": _tails(objective, score),
        "n": None if score is None else score.n,
        "failed": {} if score is None else dict(score.failed),
        "delivered_input_ratio": None if score is None else score.delivered_input_ratio,
        "delivered_output_ratio": None if score is None else score.delivered_output_ratio,
        "margins": _margins(standing),
        "limits": [] if score is None else [asdict(limit) for limit in score.limits],
        "levels": [level.number for level in levels],
        "verified": verified.verified if verified is not None else False,
        "missing_requests": None if verified is None else verified.missing_requests,
        "interval": None if interval is None else [finite(bound) for bound in interval],
        "repeats": 0 if verified is None else verified.repeats,
        "ladder": [] if verified is None else [_rung(each) for each in verified.rungs],
        "copies": _copies(objective, standing),
        "fleet_cost_per_hour": _fleet_cost(objective, standing),
    }


def row(objective: Objective, rank: int, standing: Standing) -> dict[str, object]:
    full = describe(objective, standing)
    kept = (
        "trial", "state", "configuration", "gpus", "cost_per_hour", "cost_per_1k_good_requests",
        "cost_per_1m_good_output_tokens", "goodput_rps", "attainment", "offered_rps", "offered", "concurrency",
        "capacity_rps", "n", "margins", "verified", "missing_requests", "interval",
    )  # fmt: skip
    measured = standing.outcome.measured_to_capacity
    return {"rank": rank, **{name: full[name] for name in kept}, "measured_to_capacity": measured}


def closed_loop(objective: Objective) -> bool:
    workload = objective.workload
    return workload.arrivals.process == "closed_loop" or workload.load.kind == "concurrency"


def _figures(standing: Standing) -> dict[str, float | None]:
    """Cost and goodput at the highest verified load; else at the best observed level."""
    outcome, verified, score = standing.outcome, standing.verified, standing.score
    if verified is not None:
        return {
            "cost_per_1k_good_requests": finite(verified.cost_per_1k_good_requests),
            "cost_per_1m_good_output_tokens": finite(verified.cost_per_1m_good_output_tokens),
            "goodput_rps": finite(verified.goodput_rps),
            "offered_rps": finite(verified.offered_rps),
        }
    whole = score if outcome.best is not None and outcome.best.stopped == "" else None  # a level cut short yields none
    goodput = whole.goodput_rps if whole is not None else None
    tokens = whole.good_output_tokens_per_s if whole is not None else None
    return {
        "cost_per_1k_good_requests": cost_per_1k(outcome.cost_per_hour, goodput),
        "cost_per_1m_good_output_tokens": cost_per_1m(outcome.cost_per_hour, tokens),
        "goodput_rps": goodput,
        "offered_rps": score.offered_rps if score is not None else None,
    }


def _rung(rung: Rung) -> dict[str, object]:
    pooled = rung.pooled
    return {
        "offered": rung.offered,
        "passed": rung.passed,
        "levels": [level.number for level in rung.levels],
        "n": None if pooled is None else pooled.n,
        "goodput_rps": None if pooled is None else pooled.goodput_rps,
        "attainment": None if pooled is None else pooled.attainment,
        "limits": {} if pooled is None else {limit.name: limit.decision for limit in pooled.limits},
    }


def _metrics(score: Score | None) -> dict[str, object]:
    if score is None:
        return {}
    values: dict[str, object] = {
        name: {statistic: finite(value) for statistic, value in statistics.items()}
        for name, statistics in score.metrics.items()
    }
    return {**values, "stall_share": finite(score.stall_share)}


def _tails(objective: Objective, score: Score | None) -> dict[str, object]:
    """Both views of the inter-token tail: the pooled samples, and the largest chunk gap of each request."""
    limits = {limit.name: limit.threshold_s * 1000 for limit in objective.slo.limits}
    longest = objective.slo.request.itl_max_s
    metrics = {} if score is None else score.metrics
    return {
        "pooled_itl_p99_ms": finite(metrics.get("itl_ms", {}).get("p99")),
        "pooled_itl_p99_limit_ms": limits.get("itl_p99"),
        "request_chunk_gap_max_p50_ms": finite(metrics.get("chunk_gap_max_ms", {}).get("p50")),
        "request_chunk_gap_max_p99_ms": finite(metrics.get("chunk_gap_max_ms", {}).get("p99")),
        "request_chunk_gap_max_limit_ms": None if longest is None else longest * 1000,
    }


def _margins(standing: Standing) -> dict[str, float]:
    if standing.verified is not None and standing.score is not None:
        return standing.score.margins
    return dict(standing.outcome.margins)


def _copies(objective: Objective, standing: Standing) -> int | None:
    """How many copies of the deployment carry `workload.demand`."""
    demand = objective.workload.demand_rps
    goodput = _figures(standing)["goodput_rps"]
    return math.ceil(demand / goodput) if demand is not None and goodput else None


def _fleet_cost(objective: Objective, standing: Standing) -> float | None:
    """Currency per hour of all those copies."""
    copies, hourly = _copies(objective, standing), standing.outcome.cost_per_hour
    return None if copies is None or hourly is None else finite(copies * hourly)


def finite(value: float | None) -> float | None:
    """JSON knows no infinity and no NaN."""
    return value if value is not None and math.isfinite(value) else None
