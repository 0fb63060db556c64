"""An outcome as one flat row: the figures that tables, notebooks and tracking show, with their units in the names."""

from collections.abc import Mapping

from tuner.outcome import Outcome
from tuner.slo import Scalar


def knobs(outcome: Outcome) -> dict[str, Scalar]:
    """The configuration with its shape spelled out: `mode` and `replicas` are always there. None is left out."""
    known = {name: value for name, value in outcome.configuration.knobs.items() if value is not None}
    return {"mode": outcome.configuration.mode, "replicas": outcome.configuration.roles[0].replicas, **known}


def figures(outcome: Outcome) -> dict[str, float | None]:
    """
    Figures of the level that stands for the trial, by name. None = unknown, not applicable or infinite.

    `cost_per_1k_good_requests` is cost per hour / (goodput * 3600) * 1000, `cost_per_1m_good_output_tokens` likewise
    over good output tokens, in the objective file's currency; None unless the trial is feasible, because a load at
    which a promise is broken buys nothing.
    """
    found: dict[str, float | None] = {
        "units": float(outcome.units),
        "cost_per_hour": outcome.cost_per_hour,
        "capacity": outcome.capacity,
        "broken_at": outcome.broken_at,
        "seconds": outcome.seconds,
        "unit_hours": outcome.unit_hours,
        "ready_s": outcome.ready_s,
        "levels": float(len(outcome.levels)),
        "requests": float(sum(level.requests for level in outcome.levels)),
    }
    level = outcome.best
    score = None if level is None else level.score
    if level is not None:
        found["offered"] = level.offered
    if score is not None:
        feasible = outcome.state == "feasible"
        found |= {
            "offered_rps": score.offered_rps,
            "goodput_rps": score.goodput_rps,
            "attainment": score.attainment,
            "n": float(score.n),
            "good": float(score.good),
            "output_tokens_per_s": score.output_tokens_per_s,
            "stall_share": score.stall_share,
            "cost_per_1k_good_requests": _cost(outcome, score.goodput_rps, 1_000) if feasible else None,
            "cost_per_1m_good_output_tokens": (
                _cost(outcome, score.good_output_tokens_per_s, 1_000_000) if feasible else None
            ),
        }
        found |= _percentiles(score.metrics)
    return found | {f"margin_{name}": value for name, value in outcome.margins.items()}


def _cost(outcome: Outcome, per_s: float, of: int) -> float | None:
    if outcome.cost_per_hour is None or per_s <= 0:
        return None
    return outcome.cost_per_hour / (per_s * 3600) * of


def _percentiles(metrics: Mapping[str, Mapping[str, float | None]]) -> dict[str, float | None]:
    """`{"ttft_ms": {"p99": 812.0}}` → `{"ttft_p99_ms": 812.0}`; a name without `_ms` keeps the statistic at its end."""
    found: dict[str, float | None] = {}
    for metric, statistics in metrics.items():
        stem, unit = (metric[: -len("_ms")], "_ms") if metric.endswith("_ms") else (metric, "")
        found |= {f"{stem}_{statistic}{unit}": value for statistic, value in statistics.items()}
    return found
