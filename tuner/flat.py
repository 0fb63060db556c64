"""An outcome as one flat row: the figures that tables, notebooks and tracking show, with their units in the names."""

from collections.abc import Mapping

from tuner.cost import per_1k_good_requests, per_1m_good_output_tokens
from tuner.outcome import Outcome
from tuner.slo import Scalar

COST = "cost_per_1k_good_requests"
#: Counters of a level that are figures of the trial: what KV transfer and store did, see `deployment.proof.figures`.
COUNTED = ("kv_transfer_", "store_")


def knobs(outcome: Outcome) -> dict[str, Scalar]:
    """The configuration with its shape spelled out: `mode`, replicas and `units` are always there. None is left out."""
    made = outcome.configuration
    known = {name: value for name, value in made.knobs.items() if value is not None}
    shape: dict[str, Scalar] = {"mode": made.mode}
    shape |= {"replicas" if role.name == "engine" else f"{role.name}_replicas": role.replicas for role in made.roles}
    return {**shape, "units": outcome.units, **known}


def figures(outcome: Outcome, *, closed: bool = False) -> dict[str, float | None]:
    """
    Figures of the level that stands for the trial, by name. None = unknown, not applicable or infinite.

    Costs are in the objective file's currency; None unless the trial is feasible, because a load at which a promise is
    broken buys nothing.

    Args:
        outcome: Of the trial.
        closed: Loads are concurrent requests (`capacity_concurrency`) rather than requests/s (`capacity_rps`).
    """
    unit = "concurrency" if closed else "rps"
    found: dict[str, float | None] = {
        "cost_per_hour": outcome.cost_per_hour,
        f"capacity_{unit}": outcome.capacity,
        f"broken_at_{unit}": outcome.broken_at,
        "seconds": outcome.seconds,
        "unit_hours": outcome.unit_hours,
        "ready_s": outcome.ready_s,
        "levels": float(len(outcome.levels)),
        "requests_sent": float(sum(level.requests for level in outcome.levels)),
    }
    level = outcome.best
    score = None if level is None else level.score
    if level is not None and closed:
        found["offered_concurrency"] = level.offered
    if level is not None:
        found |= {name: value for name, value in level.counters.items() if name.startswith(COUNTED)}
    if score is not None:
        per_hour = outcome.cost_per_hour if outcome.state == "feasible" else None
        tokens = score.good_output_tokens_per_s
        found |= {
            "offered_rps": score.offered_rps,
            "goodput_rps": score.goodput_rps,
            "attainment": score.attainment,
            "requests_measured": float(score.n),
            "requests_good": float(score.good),
            "output_tokens_per_s": score.output_tokens_per_s,
            "stall_share": score.stall_share,
            COST: None if per_hour is None else per_1k_good_requests(per_hour, score.goodput_rps),
            "cost_per_1m_good_output_tokens": (
                None if per_hour is None else per_1m_good_output_tokens(per_hour, tokens)
            ),
        }
        found |= percentiles(score.metrics)
    return found | {f"margin_{name}": value for name, value in outcome.margins.items()}


def percentiles(metrics: Mapping[str, Mapping[str, float | None]]) -> dict[str, float | None]:
    """`{"ttft_ms": {"p99": 812.0}}` → `{"ttft_p99_ms": 812.0}`; a name without `_ms` keeps the statistic at its end."""
    found: dict[str, float | None] = {}
    for metric, statistics in metrics.items():
        stem, unit = (metric[: -len("_ms")], "_ms") if metric.endswith("_ms") else (metric, "")
        found |= {f"{stem}_{statistic}{unit}": value for statistic, value in statistics.items()}
    return found
