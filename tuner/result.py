"""
Outcomes + verification → the mapping that becomes `result.json`. Pure; every value is strict JSON, unknown = None.

The values that go into it are `Verified` (one finalist, measured again) and `Gain` (winner against baseline).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from tuner import assumed, decision_table
from tuner.described import closed_loop, describe, finite, row
from tuner.nearest import no_feasible
from tuner.outcome import Outcome, State
from tuner.slo import Objective, Prompts
from tuner.standing import (
    Rung,
    Standing,
    Verified,
    cost_per_1k,
    cost_per_1m,
    last_attempts,
    stand,
    standings,
)

__all__ = [
    "Gain",
    "Rung",
    "Standing",
    "Status",
    "Verified",
    "assemble",
    "cost_per_1k",
    "cost_per_1m",
    "counts",
    "last_attempts",
    "standings",
]

Status = Literal["winner", "no_feasible", "no_gain", "interrupted", "failed"]

SCHEMA = 1
#: How the percentiles in the file were taken: statistics with a limit agree with the limit's share of violations.
PERCENTILE_METHOD = {"limited": "nearest_rank", "others": "linear"}
#: Share by which delivered tokens may deviate from what was asked before a trial counts as not comparable.
MOST_LENGTH_DEVIATION = 0.05
_STATES: tuple[State, ...] = ("feasible", "infeasible", "pruned", "rejected", "config_failed", "infra_failed")


@dataclass(frozen=True)
class Gain:
    """
    Winner against baseline: `estimate` = 1 − cost of the winner / cost of the baseline, > 0 is cheaper.

    `lower` and `upper` are one-sided bounds at `confidence`; None (or infinite) = not bounded, as with one repeat.
    """

    estimate: float
    lower: float | None
    upper: float | None
    confidence: float  # such as 0.95
    n: int  # sessions of both
    proven: bool  # `lower` is above `search.min_gain`


def assemble(  # noqa: PLR0917  # the contract's order
    objective: Objective,
    study: str,
    outcomes: Sequence[Outcome],
    verified: Mapping[int, Verified],
    gain: Gain | None,
    status: Status,
    spent: Mapping[str, float | None],
    source: str,
    engine: Mapping[str, object],
    *,
    winner: int | None = None,
    baseline: int = 0,
    warnings: Sequence[str] = (),
    rejected: Sequence[Mapping[str, object]] = (),
    ended_by: str = "",
    warm_start: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """
    The content of `result.json`.

    Args:
        objective: The resolved objective file.
        study: Name of the study.
        outcomes: All of the ledger, retried attempts included.
        verified: By trial number: finalists and baseline.
        gain: Winner against baseline; None when the baseline has no cost.
        status: How the study ended.
        spent: `gpu_hours`, `wall_s`, `requests`, and whatever else was counted.
        source: `live` or `simulated`.
        engine: Versions and other facts of the engine.
        winner: Trial number; None = the best finalist. Named `winner` in the file when the status is `winner`, else
            `candidate`.
        baseline: Trial number of the baseline.
        warnings: Further sentences for people.
        rejected: Points that a static rule or the cluster rejected before launch, as the ledger lists them.
        ended_by: What ended the search: a budget (`trials`, `wall`, `gpu-hours`, `currency`) or `space`.
        warm_start: What came from earlier studies (`transfer.summary`); None = nothing was asked for.
    """
    ranked = standings(objective, outcomes, verified)
    best = _best(ranked, winner, baseline, status)
    if best is not None:
        ranked = (best, *(standing for standing in ranked if standing is not best))
    base = next((outcome for outcome in last_attempts(outcomes) if outcome.trial == baseline), None)
    named = None if best is None else describe(objective, best)
    return {
        "schema": SCHEMA,
        "study": study,
        "source": source,
        "status": status,
        "model": objective.model,
        "objective": objective.objective,
        "load": _load(objective),
        "unit": objective.cluster.unit,
        "slo": _promise(objective),
        "currency": objective.prices.currency,
        "winner": named if status == "winner" else None,
        "candidate": None if status == "winner" else named,
        "baseline": None if base is None else describe(objective, stand(objective, base, verified.get(baseline))),
        "gain": None if gain is None else _gain(gain, objective.search.min_gain),
        "ranking": [row(objective, rank, standing) for rank, standing in enumerate(ranked, start=1)],
        "counts": {**counts(outcomes), "rejected": len(rejected)},
        "levers": decision_table.table(objective, last_attempts(outcomes), verified),
        "rejected": [dict(each) for each in rejected],
        "ended_by": ended_by or None,
        "warm_start": warm_start,
        "spent": {"gpu_hours": None, "wall_s": None, "requests": None, **spent},
        "no_feasible": no_feasible(objective, ranked) if status == "no_feasible" else None,
        "warnings": [
            *_caveats(outcomes, source),
            *_warnings(best, base, status),
            *_lengths(objective, ranked),
            *warnings,
        ],
        "engine": dict(engine),
        "percentile_method": PERCENTILE_METHOD,
        "divide_counts": objective.search.divide_counts,
        "resolution": objective.search.resolution,
    }


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Trials by the outcome of their last attempt; every state is listed, and `started` = all of them."""
    states = Counter(outcome.state for outcome in last_attempts(outcomes))
    attempts = sum(1 for outcome in outcomes if outcome.state == "infra_failed")
    return {
        **{state: states[state] for state in _STATES},
        "started": sum(states.values()),
        "infra_failed_attempts": attempts,
    }


def _best(ranked: Sequence[Standing], winner: int | None, baseline: int, status: Status) -> Standing | None:
    if winner is not None:
        return next((standing for standing in ranked if standing.outcome.trial == winner), None)
    feasible = [standing for standing in ranked if standing.feasible and standing.cost is not None]
    if status == "no_gain":
        feasible = [standing for standing in feasible if standing.outcome.trial != baseline]
    finalists = [standing for standing in feasible if standing.verified is not None]
    proven = [standing for standing in finalists if standing.verified is not None and standing.verified.verified]
    return next(iter(proven or finalists or feasible), None)


def _load(objective: Objective) -> dict[str, object]:
    closed = closed_loop(objective)
    return {"kind": objective.workload.load.kind, "unit": "concurrent requests" if closed else "requests/s"}


def _gain(gain: Gain, min_gain: float) -> dict[str, object]:
    bounds = {"lower": finite(gain.lower), "upper": finite(gain.upper), "estimate": finite(gain.estimate)}
    return {**asdict(gain), **bounds, "min_gain": min_gain}


def _promise(objective: Objective) -> dict[str, object]:
    """The limits in seconds, as in the objective file; what makes one request good; the promised share of good ones."""
    slo = objective.slo
    return {
        "limits": [{**asdict(limit), "name": limit.name, "quantile": limit.quantile} for limit in slo.limits],
        "request": asdict(slo.request),
        "attainment": slo.attainment,
    }


def _caveats(outcomes: Sequence[Outcome], source: str) -> list[str]:
    return assumed.caveats(outcome.facts for outcome in outcomes) if source == "simulated" else []


def _warnings(best: Standing | None, base: Outcome | None, status: Status) -> list[str]:
    found = []
    if best is not None and status in ("winner", "no_gain"):
        if best.verified is None:
            found.append(f"trial {best.outcome.trial} was not measured again on a fresh schedule")
        elif not best.verified.verified:
            more = best.verified.missing_requests
            found.append(f"trial {best.outcome.trial} is not verified: {more} more requests would have been needed")
    if base is None:
        found.append("no baseline was measured")
    elif base.state != "feasible":
        why = base.reason.replace(",", ", ") or base.cause
        found.append(f"no baseline cost: the baseline ended as {base.state} ({why})")
    if status == "interrupted":
        found.append("the study was interrupted; the same command with the same study name goes on")
    return found


def _lengths(objective: Objective, ranked: Sequence[Standing]) -> list[str]:
    """Trials that are not comparable: prompts or answers had other lengths than were asked for."""
    scores = {each.outcome.trial: each.score for each in ranked if each.score is not None}
    told = {trial: score.delivered_input_ratio for trial, score in scores.items()}
    found = _deviating("prompts", told, "do model, tokenizer and chat template belong together?")
    if not isinstance(objective.workload.source, Prompts):  # whose answers end where the model ends them
        told = {trial: score.delivered_output_ratio for trial, score in scores.items()}
        found += _deviating("answers", told, "the engine did other work than was asked for")
    return found


def _deviating(what: str, ratios: Mapping[int, float | None], meaning: str) -> list[str]:
    off = {
        trial: ratio
        for trial, ratio in sorted(ratios.items())
        if ratio is not None and abs(ratio - 1) > MOST_LENGTH_DEVIATION + 1e-9
    }
    if not off:
        return []
    worst = max(off.values(), key=lambda ratio: abs(ratio - 1))
    trials = f"trial{'s' if len(off) > 1 else ''} {', '.join(map(str, off))}"
    return [f"{trials}: not comparable: {what} had {worst:.0%} of the tokens that were asked for; {meaning}"]
