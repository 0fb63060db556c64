"""Figures of one night, from the outcomes and the result of its study. Pure but for the versions of this machine."""

from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from tuner import provenance
from tuner.carried import Carried
from tuner.nightfile import Figures
from tuner.outcome import Outcome
from tuner.slo import Objective

_DRIVER = Path("/proc/driver/nvidia/version")


def figures(study: str, outcome: Outcome, result: Mapping[str, object], found: Carried | None) -> Figures:
    """
    One trial: the verified figures of the study's result where there are any, else those of its best level.

    Args:
        study: Name of the night's study.
        outcome: Of the trial.
        result: `result.json`; {} where the study never got so far.
        found: The load that all levels of the night point at.
    """
    entries = [mapping(result.get(name)) for name in ("winner", "candidate", "baseline")]
    entry: Mapping[str, Any] = next(
        (each for each in (*entries, *rows(result)) if each and each["trial"] == outcome.trial), {}
    )
    score = outcome.best.score if outcome.best is not None else None
    metrics = {name: dict(values) for name, values in score.metrics.items()} if score is not None else {}
    metrics |= {
        name: dict(values) for name, values in mapping(entry.get("metrics")).items() if isinstance(values, dict)
    }
    interval = entry.get("interval")
    feasible = outcome.state == "feasible"
    goodput = entry.get("goodput_rps", score.goodput_rps if score is not None else None)
    cost = entry.get("cost_per_1k_good_requests")
    return Figures(
        study=study,
        trial=outcome.trial,
        configuration=dict(outcome.configuration.knobs),
        units=outcome.units,
        state=outcome.state,
        reason=outcome.reason,
        cost_per_hour=outcome.cost_per_hour,
        cost=cost if feasible else None,
        interval=(interval[0], interval[1]) if interval and feasible else None,
        goodput_rps=goodput if feasible else None,
        offered_rps=entry.get("offered_rps", score.offered_rps if score is not None else None),
        attainment=entry.get("attainment", score.attainment if score is not None else None),
        n=entry.get("n", score.n if score is not None else None),
        verified=bool(entry.get("verified")),
        tails=_tails(metrics),
        capacity=found.load if found is not None and feasible else None,
        spread=found.spread if found is not None and feasible else None,
    )


def _tails(metrics: Mapping[str, Mapping[str, float | None]]) -> dict[str, float | None]:
    """`ttft_p99_ms` and the like: p95 and p99 of what users feel."""
    return {
        f"{name.removesuffix('_ms')}_{statistic}_ms": metrics[name].get(statistic)
        for name in ("ttft_ms", "itl_ms", "chunk_gap_max_ms", "e2el_ms")
        for statistic in ("p50", "p95", "p99")
        if name in metrics
    }


def rows(result: Mapping[str, object]) -> Sequence[Mapping[str, Any]]:
    """The ranking of a result, best first."""
    found = result.get("ranking")
    return found if isinstance(found, list) else []


def mapping(value: object) -> Mapping[str, Any]:
    """`value` where it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def versions(objective: Objective, facts: Mapping[str, object]) -> dict[str, str | None]:
    """What may explain a change: of the engine, the driver, the model, the machine and the tuner; None = unknown."""
    engine = facts.get("engine_version") or facts.get("table_version")
    cpu = all(pool.unit == "cpu" for pool in objective.cluster.pools)
    return {
        "engine": None if engine is None else str(engine),
        "driver": _driver(),
        "model_revision": objective.model_revision,
        "machine": str(provenance.machine()["cpu"]) if cpu else None,
        "tuner": metadata.version("slo-tuner"),
    }


def _driver() -> str | None:
    """First line of what the NVIDIA kernel module says of itself."""
    try:
        return _DRIVER.read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return None
