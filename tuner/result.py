"""
Outcomes + verification → the mapping that becomes `result.json`. Pure; every value is strict JSON, unknown = None.

The values that go into it are `Verified` (one finalist, measured again) and `Gain` (winner against baseline).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from tuner.described import closed_loop, describe, finite, row
from tuner.nearest import no_feasible
from tuner.outcome import Outcome, State
from tuner.slo import Objective
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
_STATES: tuple[State, ...] = ("feasible", "infeasible", "pruned", "rejected", "config_failed", "infra_failed")


@dataclass(frozen=True)
class Rung:
    """One offered load of the verification ladder, over all its repeats."""

    offered: float  # in the unit of the load: requests/s, or concurrency in a closed loop
    levels: tuple[Level, ...]  # one per repeat
    passed: bool
    pooled: Score | None  # over all repeats; None when nothing was scored


@dataclass(frozen=True)
class Verified:
    """
    What the verification of one finalist (or of the baseline) said.

    With `verified` False the values are those of the highest observed level, and `missing_requests` says how many
    more requests the claim would have needed.
    """

    trial: int
    configuration: Configuration
    verified: bool
    rungs: tuple[Rung, ...]  # in the order measured
    offered_rps: float | None  # of the highest verified rung; in a closed loop the arrivals/s it led to
    goodput_rps: float | None
    cost_per_1k_good_requests: float | None  # in the objective file's currency
    cost_per_1m_good_output_tokens: float | None
    interval: tuple[float | None, float] | None  # of the cost per 1,000 good requests; low None = not bounded below
    missing_requests: int
    repeats: int

    @property
    def rung(self) -> Rung | None:
        """The highest rung that passed; else the highest whose every repeat was kept; else the lowest scored one."""
        scored = [rung for rung in self.rungs if rung.pooled is not None]
        passed = [rung for rung in scored if rung.passed]
        kept = [rung for rung in scored if all(level.kept for level in rung.levels)]
        if passed or kept:
            return max(passed or kept, key=lambda rung: rung.offered)
        return min(scored, key=lambda rung: rung.offered, default=None)


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
    n: int  # paired repeats
    proven: bool  # `lower` is above `search.min_gain`


@dataclass(frozen=True)
class Rung:
    """One offered load of the verification ladder, over all its repeats."""

    offered: float  # in the unit of the load: requests/s, or concurrency in a closed loop
    levels: tuple[Level, ...]  # one per repeat
    passed: bool
    pooled: Score | None  # over all repeats; None when nothing was scored


@dataclass(frozen=True)
class Verified:
    """
    What the verification of one finalist (or of the baseline) said.

    With `verified` False the values are those of the highest observed level, and `missing_requests` says how many
    more requests the claim would have needed.
    """

    trial: int
    configuration: Configuration
    verified: bool
    rungs: tuple[Rung, ...]  # in the order measured
    offered_rps: float | None  # of the highest verified rung; in a closed loop the arrivals/s it led to
    goodput_rps: float | None
    cost_per_1k_good_requests: float | None  # in the objective file's currency
    cost_per_1m_good_output_tokens: float | None
    interval: tuple[float | None, float] | None  # of the cost per 1,000 good requests; low None = not bounded below
    missing_requests: int
    repeats: int

    @property
    def rung(self) -> Rung | None:
        """The highest rung that passed; else the highest whose every repeat was kept; else the lowest scored one."""
        scored = [rung for rung in self.rungs if rung.pooled is not None]
        passed = [rung for rung in scored if rung.passed]
        kept = [rung for rung in scored if all(level.kept for level in rung.levels)]
        if passed or kept:
            return max(passed or kept, key=lambda rung: rung.offered)
        return min(scored, key=lambda rung: rung.offered, default=None)


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
    n: int  # paired repeats
    proven: bool  # `lower` is above `search.min_gain`


@dataclass(frozen=True)
class Standing:
    """One scored trial with the figures it is ranked by: the verified ones where there are any."""

    outcome: Outcome
    verified: Verified | None
    score: Score | None
    cost: float | None  # lower is better: cost per 1,000 good requests, or −goodput (per unit); None = no goodput

    @property
    def feasible(self) -> bool:
        return self.outcome.state == "feasible"

    @property
    def worst_margin(self) -> float:
        """Largest signed margin; <= 0 means that every limit is kept."""
        return max(self.outcome.margins.values(), default=math.inf)


def cost_per_1k(cost_per_hour: float | None, goodput_rps: float | None) -> float | None:
    """Currency per 1,000 good requests; None when either is unknown or nothing was good."""
    if cost_per_hour is None or goodput_rps is None:
        return None
    return cost.per_1k_good_requests(cost_per_hour, goodput_rps)


def cost_per_1m(cost_per_hour: float | None, good_output_tokens_per_s: float | None) -> float | None:
    """Currency per million output tokens of good requests; None when either is unknown or there are none."""
    if cost_per_hour is None or good_output_tokens_per_s is None:
        return None
    return cost.per_1m_good_output_tokens(cost_per_hour, good_output_tokens_per_s)


def standings(
    objective: Objective, outcomes: Sequence[Outcome], verified: Mapping[int, Verified]
) -> tuple[Standing, ...]:
    """
    Scored trials, best first: feasible before infeasible, feasible ones by cost, infeasible ones by worst margin.

    A finalist that failed its verification stands behind every other feasible trial. Ties in cost go to the larger
    margin, then to the earlier trial.
    """
    scored = [outcome for outcome in last_attempts(outcomes) if outcome.state in ("feasible", "infeasible")]
    found = [stand(objective, outcome, verified.get(outcome.trial)) for outcome in scored]
    return tuple(sorted(found, key=_order))


def last_attempts(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The last attempt of each trial, by trial number."""
    last: dict[int, Outcome] = {}
    for outcome in outcomes:
        if outcome.trial not in last or outcome.attempt >= last[outcome.trial].attempt:
            last[outcome.trial] = outcome
    return tuple(last[trial] for trial in sorted(last))


def assemble(
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
        "unit": _unit(objective),
        "slo": _promise(objective),
        "currency": objective.prices.currency,
        "winner": named if status == "winner" else None,
        "candidate": None if status == "winner" else named,
        "baseline": None if base is None else describe(objective, stand(objective, base, verified.get(baseline))),
        "gain": None if gain is None else _gain(gain, objective.search.min_gain),
        "ranking": [row(objective, rank, standing) for rank, standing in enumerate(ranked, start=1)],
        "counts": {**counts(outcomes), "rejected": len(rejected)},
        "rejected": [dict(each) for each in rejected],
        "ended_by": ended_by or None,
        "spent": {"gpu_hours": None, "wall_s": None, "requests": None, **spent},
        "no_feasible": no_feasible(objective, ranked) if status == "no_feasible" else None,
        "warnings": [*_warnings(best, base, source, status), *warnings],
        "engine": dict(engine),
        "percentile_method": PERCENTILE_METHOD,
        "divide_counts": objective.search.divide_counts,
        "resolution": objective.search.resolution,
    }


@dataclass(frozen=True)
class Rung:
    """One offered load of the verification ladder, over all its repeats."""

    offered: float  # in the unit of the load: requests/s, or concurrency in a closed loop
    levels: tuple[Level, ...]  # one per repeat
    passed: bool
    pooled: Score | None  # over all repeats; None when nothing was scored


@dataclass(frozen=True)
class Verified:
    """
    What the verification of one finalist (or of the baseline) said.

    With `verified` False the values are those of the highest observed level, and `missing_requests` says how many
    more requests the claim would have needed.
    """

    trial: int
    configuration: Configuration
    verified: bool
    rungs: tuple[Rung, ...]  # in the order measured
    offered_rps: float | None  # of the highest verified rung; in a closed loop the arrivals/s it led to
    goodput_rps: float | None
    cost_per_1k_good_requests: float | None  # in the objective file's currency
    cost_per_1m_good_output_tokens: float | None
    interval: tuple[float | None, float] | None  # of the cost per 1,000 good requests; low None = not bounded below
    missing_requests: int
    repeats: int

    @property
    def rung(self) -> Rung | None:
        """The highest rung that passed; else the highest whose every repeat was kept; else the lowest scored one."""
        scored = [rung for rung in self.rungs if rung.pooled is not None]
        passed = [rung for rung in scored if rung.passed]
        kept = [rung for rung in scored if all(level.kept for level in rung.levels)]
        if passed or kept:
            return max(passed or kept, key=lambda rung: rung.offered)
        return min(scored, key=lambda rung: rung.offered, default=None)


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
    n: int  # paired repeats
    proven: bool  # `lower` is above `search.min_gain`


@dataclass(frozen=True)
class Standing:
    """One scored trial with the figures it is ranked by: the verified ones where there are any."""

    outcome: Outcome
    verified: Verified | None
    score: Score | None
    cost: float | None  # lower is better: cost per 1,000 good requests, or −goodput (per unit); None = no goodput

    @property
    def feasible(self) -> bool:
        return self.outcome.state == "feasible"

    @property
    def worst_margin(self) -> float:
        """Largest signed margin; <= 0 means that every limit is kept."""
        return max(self.outcome.margins.values(), default=math.inf)


def cost_per_1k(cost_per_hour: float | None, goodput_rps: float | None) -> float | None:
    """Currency per 1,000 good requests; None when either is unknown or nothing was good."""
    if cost_per_hour is None or goodput_rps is None:
        return None
    return cost.per_1k_good_requests(cost_per_hour, goodput_rps)


def cost_per_1m(cost_per_hour: float | None, good_output_tokens_per_s: float | None) -> float | None:
    """Currency per million output tokens of good requests; None when either is unknown or there are none."""
    if cost_per_hour is None or good_output_tokens_per_s is None:
        return None
    return cost.per_1m_good_output_tokens(cost_per_hour, good_output_tokens_per_s)


def standings(
    objective: Objective, outcomes: Sequence[Outcome], verified: Mapping[int, Verified]
) -> tuple[Standing, ...]:
    """
    Scored trials, best first: feasible before infeasible, feasible ones by cost, infeasible ones by worst margin.

    A finalist that failed its verification stands behind every other feasible trial. Ties in cost go to the larger
    margin, then to the earlier trial.
    """
    scored = [outcome for outcome in last_attempts(outcomes) if outcome.state in ("feasible", "infeasible")]
    found = [stand(objective, outcome, verified.get(outcome.trial)) for outcome in scored]
    return tuple(sorted(found, key=_order))


def last_attempts(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The last attempt of each trial, by trial number."""
    last: dict[int, Outcome] = {}
    for outcome in outcomes:
        if outcome.trial not in last or outcome.attempt >= last[outcome.trial].attempt:
            last[outcome.trial] = outcome
    return tuple(last[trial] for trial in sorted(last))


def assemble(
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
        "unit": _unit(objective),
        "slo": _promise(objective),
        "currency": objective.prices.currency,
        "winner": named if status == "winner" else None,
        "candidate": None if status == "winner" else named,
        "baseline": None if base is None else describe(objective, stand(objective, base, verified.get(baseline))),
        "gain": None if gain is None else _gain(gain, objective.search.min_gain),
        "ranking": [row(objective, rank, standing) for rank, standing in enumerate(ranked, start=1)],
        "counts": {**counts(outcomes), "rejected": len(rejected)},
        "rejected": [dict(each) for each in rejected],
        "ended_by": ended_by or None,
        "spent": {"gpu_hours": None, "wall_s": None, "requests": None, **spent},
        "no_feasible": no_feasible(objective, ranked) if status == "no_feasible" else None,
        "warnings": [*_warnings(best, base, source, status), *warnings],
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


@dataclass(frozen=True)
class Rung:
    """One offered load of the verification ladder, over all its repeats."""

    offered: float  # in the unit of the load: requests/s, or concurrency in a closed loop
    levels: tuple[Level, ...]  # one per repeat
    passed: bool
    pooled: Score | None  # over all repeats; None when nothing was scored


@dataclass(frozen=True)
class Verified:
    """
    What the verification of one finalist (or of the baseline) said.

    With `verified` False the values are those of the highest observed level, and `missing_requests` says how many
    more requests the claim would have needed.
    """

    trial: int
    configuration: Configuration
    verified: bool
    rungs: tuple[Rung, ...]  # in the order measured
    offered_rps: float | None  # of the highest verified rung; in a closed loop the arrivals/s it led to
    goodput_rps: float | None
    cost_per_1k_good_requests: float | None  # in the objective file's currency
    cost_per_1m_good_output_tokens: float | None
    interval: tuple[float | None, float] | None  # of the cost per 1,000 good requests; low None = not bounded below
    missing_requests: int
    repeats: int

    @property
    def rung(self) -> Rung | None:
        """The highest rung that passed; else the highest whose every repeat was kept; else the lowest scored one."""
        scored = [rung for rung in self.rungs if rung.pooled is not None]
        passed = [rung for rung in scored if rung.passed]
        kept = [rung for rung in scored if all(level.kept for level in rung.levels)]
        if passed or kept:
            return max(passed or kept, key=lambda rung: rung.offered)
        return min(scored, key=lambda rung: rung.offered, default=None)


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
    n: int  # paired repeats
    proven: bool  # `lower` is above `search.min_gain`


@dataclass(frozen=True)
class Standing:
    """One scored trial with the figures it is ranked by: the verified ones where there are any."""

    outcome: Outcome
    verified: Verified | None
    score: Score | None
    cost: float | None  # lower is better: cost per 1,000 good requests, or −goodput (per unit); None = no goodput

    @property
    def feasible(self) -> bool:
        return self.outcome.state == "feasible"

    @property
    def worst_margin(self) -> float:
        """Largest signed margin; <= 0 means that every limit is kept."""
        return max(self.outcome.margins.values(), default=math.inf)


def cost_per_1k(cost_per_hour: float | None, goodput_rps: float | None) -> float | None:
    """Currency per 1,000 good requests; None when either is unknown or nothing was good."""
    if cost_per_hour is None or goodput_rps is None:
        return None
    return cost.per_1k_good_requests(cost_per_hour, goodput_rps)


def cost_per_1m(cost_per_hour: float | None, good_output_tokens_per_s: float | None) -> float | None:
    """Currency per million output tokens of good requests; None when either is unknown or there are none."""
    if cost_per_hour is None or good_output_tokens_per_s is None:
        return None
    return cost.per_1m_good_output_tokens(cost_per_hour, good_output_tokens_per_s)


def standings(
    objective: Objective, outcomes: Sequence[Outcome], verified: Mapping[int, Verified]
) -> tuple[Standing, ...]:
    """
    Scored trials, best first: feasible before infeasible, feasible ones by cost, infeasible ones by worst margin.

    A finalist that failed its verification stands behind every other feasible trial. Ties in cost go to the larger
    margin, then to the earlier trial.
    """
    scored = [outcome for outcome in last_attempts(outcomes) if outcome.state in ("feasible", "infeasible")]
    found = [stand(objective, outcome, verified.get(outcome.trial)) for outcome in scored]
    return tuple(sorted(found, key=_order))


def last_attempts(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The last attempt of each trial, by trial number."""
    last: dict[int, Outcome] = {}
    for outcome in outcomes:
        if outcome.trial not in last or outcome.attempt >= last[outcome.trial].attempt:
            last[outcome.trial] = outcome
    return tuple(last[trial] for trial in sorted(last))


def assemble(
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
        "unit": _unit(objective),
        "slo": _promise(objective),
        "currency": objective.prices.currency,
        "winner": named if status == "winner" else None,
        "candidate": None if status == "winner" else named,
        "baseline": None if base is None else describe(objective, stand(objective, base, verified.get(baseline))),
        "gain": None if gain is None else _gain(gain, objective.search.min_gain),
        "ranking": [row(objective, rank, standing) for rank, standing in enumerate(ranked, start=1)],
        "counts": {**counts(outcomes), "rejected": len(rejected)},
        "rejected": [dict(each) for each in rejected],
        "ended_by": ended_by or None,
        "spent": {"gpu_hours": None, "wall_s": None, "requests": None, **spent},
        "no_feasible": no_feasible(objective, ranked) if status == "no_feasible" else None,
        "warnings": [*_warnings(best, base, source, status), *warnings],
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
        "margins": _margins(standing),
        "limits": [] if score is None else [asdict(limit) for limit in score.limits],
        "levels": [level.number for level in levels],
        "verified": verified.verified if verified is not None else False,
        "missing_requests": None if verified is None else verified.missing_requests,
        "interval": None if interval is None else [finite(bound) for bound in interval],
        "repeats": 0 if verified is None else verified.repeats,
        "ladder": [] if verified is None else [_rung(each) for each in verified.rungs],
        "copies": _copies(objective, standing),
    }


def stand(objective: Objective, outcome: Outcome, verified: Verified | None) -> Standing:
    rung = verified.rung if verified is not None else None
    observed = outcome.best.score if outcome.best is not None else None
    score = rung.pooled if rung is not None else observed
    goodput = verified.goodput_rps if verified is not None else (observed.goodput_rps if observed else None)
    return Standing(outcome, verified, score, _minimised(objective, outcome, goodput))


def _minimised(objective: Objective, outcome: Outcome, goodput_rps: float | None) -> float | None:
    if not goodput_rps:
        return None
    if objective.objective == "goodput":
        return -goodput_rps
    if objective.objective == "goodput_per_gpu":
        return -goodput_rps / outcome.units if outcome.units else None
    return cost_per_1k(outcome.cost_per_hour, goodput_rps)


def _order(standing: Standing) -> tuple[bool, bool, float, float, int]:
    if not standing.feasible:
        return True, False, standing.worst_margin, 0.0, standing.outcome.trial
    price = math.inf if standing.cost is None else standing.cost
    return False, _refuted(standing.verified), price, standing.worst_margin, standing.outcome.trial


def _refuted(verified: Verified | None) -> bool:
    """Measured again, and no load of the ladder was kept by every repeat."""
    rungs = [rung for rung in verified.rungs if rung.pooled is not None] if verified is not None else []
    return bool(rungs) and not any(all(level.kept for level in rung.levels) for rung in rungs)


def _best(ranked: Sequence[Standing], winner: int | None, baseline: int, status: Status) -> Standing | None:
    if winner is not None:
        return next((standing for standing in ranked if standing.outcome.trial == winner), None)
    feasible = [standing for standing in ranked if standing.feasible and standing.cost is not None]
    if status == "no_gain":
        feasible = [standing for standing in feasible if standing.outcome.trial != baseline]
    finalists = [standing for standing in feasible if standing.verified is not None]
    proven = [standing for standing in finalists if standing.verified is not None and standing.verified.verified]
    return next(iter(proven or finalists or feasible), None)


@dataclass(frozen=True)
class Rung:
    """One offered load of the verification ladder, over all its repeats."""

    offered: float  # in the unit of the load: requests/s, or concurrency in a closed loop
    levels: tuple[Level, ...]  # one per repeat
    passed: bool
    pooled: Score | None  # over all repeats; None when nothing was scored


@dataclass(frozen=True)
class Verified:
    """
    What the verification of one finalist (or of the baseline) said.

    With `verified` False the values are those of the highest observed level, and `missing_requests` says how many
    more requests the claim would have needed.
    """

    trial: int
    configuration: Configuration
    verified: bool
    rungs: tuple[Rung, ...]  # in the order measured
    offered_rps: float | None  # of the highest verified rung; in a closed loop the arrivals/s it led to
    goodput_rps: float | None
    cost_per_1k_good_requests: float | None  # in the objective file's currency
    cost_per_1m_good_output_tokens: float | None
    interval: tuple[float | None, float] | None  # of the cost per 1,000 good requests; low None = not bounded below
    missing_requests: int
    repeats: int

    @property
    def rung(self) -> Rung | None:
        """The highest rung that passed; else the highest whose every repeat was kept; else the lowest scored one."""
        scored = [rung for rung in self.rungs if rung.pooled is not None]
        passed = [rung for rung in scored if rung.passed]
        kept = [rung for rung in scored if all(level.kept for level in rung.levels)]
        if passed or kept:
            return max(passed or kept, key=lambda rung: rung.offered)
        return min(scored, key=lambda rung: rung.offered, default=None)


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
    n: int  # paired repeats
    proven: bool  # `lower` is above `search.min_gain`


@dataclass(frozen=True)
class Standing:
    """One scored trial with the figures it is ranked by: the verified ones where there are any."""

    outcome: Outcome
    verified: Verified | None
    score: Score | None
    cost: float | None  # lower is better: cost per 1,000 good requests, or −goodput (per unit); None = no goodput

    @property
    def feasible(self) -> bool:
        return self.outcome.state == "feasible"

    @property
    def worst_margin(self) -> float:
        """Largest signed margin; <= 0 means that every limit is kept."""
        return max(self.outcome.margins.values(), default=math.inf)


def cost_per_1k(cost_per_hour: float | None, goodput_rps: float | None) -> float | None:
    """Currency per 1,000 good requests; None when either is unknown or nothing was good."""
    if cost_per_hour is None or goodput_rps is None:
        return None
    return cost.per_1k_good_requests(cost_per_hour, goodput_rps)


def cost_per_1m(cost_per_hour: float | None, good_output_tokens_per_s: float | None) -> float | None:
    """Currency per million output tokens of good requests; None when either is unknown or there are none."""
    if cost_per_hour is None or good_output_tokens_per_s is None:
        return None
    return cost.per_1m_good_output_tokens(cost_per_hour, good_output_tokens_per_s)


def standings(
    objective: Objective, outcomes: Sequence[Outcome], verified: Mapping[int, Verified]
) -> tuple[Standing, ...]:
    """
    Scored trials, best first: feasible before infeasible, feasible ones by cost, infeasible ones by worst margin.

    A finalist that failed its verification stands behind every other feasible trial. Ties in cost go to the larger
    margin, then to the earlier trial.
    """
    scored = [outcome for outcome in last_attempts(outcomes) if outcome.state in ("feasible", "infeasible")]
    found = [stand(objective, outcome, verified.get(outcome.trial)) for outcome in scored]
    return tuple(sorted(found, key=_order))


def last_attempts(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The last attempt of each trial, by trial number."""
    last: dict[int, Outcome] = {}
    for outcome in outcomes:
        if outcome.trial not in last or outcome.attempt >= last[outcome.trial].attempt:
            last[outcome.trial] = outcome
    return tuple(last[trial] for trial in sorted(last))


def assemble(
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
        "unit": _unit(objective),
        "slo": _promise(objective),
        "currency": objective.prices.currency,
        "winner": named if status == "winner" else None,
        "candidate": None if status == "winner" else named,
        "baseline": None if base is None else describe(objective, stand(objective, base, verified.get(baseline))),
        "gain": None if gain is None else _gain(gain, objective.search.min_gain),
        "ranking": [row(objective, rank, standing) for rank, standing in enumerate(ranked, start=1)],
        "counts": {**counts(outcomes), "rejected": len(rejected)},
        "rejected": [dict(each) for each in rejected],
        "ended_by": ended_by or None,
        "spent": {"gpu_hours": None, "wall_s": None, "requests": None, **spent},
        "no_feasible": no_feasible(objective, ranked) if status == "no_feasible" else None,
        "warnings": [*_warnings(best, base, source, status), *warnings],
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
        "margins": _margins(standing),
        "limits": [] if score is None else [asdict(limit) for limit in score.limits],
        "levels": [level.number for level in levels],
        "verified": verified.verified if verified is not None else False,
        "missing_requests": None if verified is None else verified.missing_requests,
        "interval": None if interval is None else [finite(bound) for bound in interval],
        "repeats": 0 if verified is None else verified.repeats,
        "ladder": [] if verified is None else [_rung(each) for each in verified.rungs],
        "copies": _copies(objective, standing),
    }


def stand(objective: Objective, outcome: Outcome, verified: Verified | None) -> Standing:
    rung = verified.rung if verified is not None else None
    observed = outcome.best.score if outcome.best is not None else None
    score = rung.pooled if rung is not None else observed
    goodput = verified.goodput_rps if verified is not None else (observed.goodput_rps if observed else None)
    return Standing(outcome, verified, score, _minimised(objective, outcome, goodput))


def _minimised(objective: Objective, outcome: Outcome, goodput_rps: float | None) -> float | None:
    if not goodput_rps:
        return None
    if objective.objective == "goodput":
        return -goodput_rps
    if objective.objective == "goodput_per_gpu":
        return -goodput_rps / outcome.units if outcome.units else None
    return cost_per_1k(outcome.cost_per_hour, goodput_rps)


def _order(standing: Standing) -> tuple[bool, bool, float, float, int]:
    if not standing.feasible:
        return True, False, standing.worst_margin, 0.0, standing.outcome.trial
    price = math.inf if standing.cost is None else standing.cost
    return False, _refuted(standing.verified), price, standing.worst_margin, standing.outcome.trial


def _refuted(verified: Verified | None) -> bool:
    """Measured again, and no load of the ladder was kept by every repeat."""
    rungs = [rung for rung in verified.rungs if rung.pooled is not None] if verified is not None else []
    return bool(rungs) and not any(all(level.kept for level in rung.levels) for rung in rungs)


def _best(ranked: Sequence[Standing], winner: int | None, baseline: int, status: Status) -> Standing | None:
    if winner is not None:
        return next((standing for standing in ranked if standing.outcome.trial == winner), None)
    feasible = [standing for standing in ranked if standing.feasible and standing.cost is not None]
    if status == "no_gain":
        feasible = [standing for standing in feasible if standing.outcome.trial != baseline]
    finalists = [standing for standing in feasible if standing.verified is not None]
    proven = [standing for standing in finalists if standing.verified is not None and standing.verified.verified]
    return next(iter(proven or finalists or feasible), None)


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
    goodput = score.goodput_rps if score is not None else None
    tokens = score.good_output_tokens_per_s if score is not None else None
    return {
        "cost_per_1k_good_requests": cost_per_1k(outcome.cost_per_hour, goodput),
        "cost_per_1m_good_output_tokens": cost_per_1m(outcome.cost_per_hour, tokens),
        "goodput_rps": goodput,
        "offered_rps": score.offered_rps if score is not None else None,
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


def _load(objective: Objective) -> dict[str, object]:
    closed = closed_loop(objective)
    return {"kind": objective.workload.load.kind, "unit": "concurrent requests" if closed else "requests/s"}


@dataclass(frozen=True)
class Rung:
    """One offered load of the verification ladder, over all its repeats."""

    offered: float  # in the unit of the load: requests/s, or concurrency in a closed loop
    levels: tuple[Level, ...]  # one per repeat
    passed: bool
    pooled: Score | None  # over all repeats; None when nothing was scored


@dataclass(frozen=True)
class Verified:
    """
    What the verification of one finalist (or of the baseline) said.

    With `verified` False the values are those of the highest observed level, and `missing_requests` says how many
    more requests the claim would have needed.
    """

    trial: int
    configuration: Configuration
    verified: bool
    rungs: tuple[Rung, ...]  # in the order measured
    offered_rps: float | None  # of the highest verified rung; in a closed loop the arrivals/s it led to
    goodput_rps: float | None
    cost_per_1k_good_requests: float | None  # in the objective file's currency
    cost_per_1m_good_output_tokens: float | None
    interval: tuple[float | None, float] | None  # of the cost per 1,000 good requests; low None = not bounded below
    missing_requests: int
    repeats: int

    @property
    def rung(self) -> Rung | None:
        """The highest rung that passed; else the highest whose every repeat was kept; else the lowest scored one."""
        scored = [rung for rung in self.rungs if rung.pooled is not None]
        passed = [rung for rung in scored if rung.passed]
        kept = [rung for rung in scored if all(level.kept for level in rung.levels)]
        if passed or kept:
            return max(passed or kept, key=lambda rung: rung.offered)
        return min(scored, key=lambda rung: rung.offered, default=None)


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
    n: int  # paired repeats
    proven: bool  # `lower` is above `search.min_gain`


@dataclass(frozen=True)
class Standing:
    """One scored trial with the figures it is ranked by: the verified ones where there are any."""

    outcome: Outcome
    verified: Verified | None
    score: Score | None
    cost: float | None  # lower is better: cost per 1,000 good requests, or −goodput (per unit); None = no goodput

    @property
    def feasible(self) -> bool:
        return self.outcome.state == "feasible"

    @property
    def worst_margin(self) -> float:
        """Largest signed margin; <= 0 means that every limit is kept."""
        return max(self.outcome.margins.values(), default=math.inf)


def cost_per_1k(cost_per_hour: float | None, goodput_rps: float | None) -> float | None:
    """Currency per 1,000 good requests; None when either is unknown or nothing was good."""
    if cost_per_hour is None or goodput_rps is None:
        return None
    return cost.per_1k_good_requests(cost_per_hour, goodput_rps)


def cost_per_1m(cost_per_hour: float | None, good_output_tokens_per_s: float | None) -> float | None:
    """Currency per million output tokens of good requests; None when either is unknown or there are none."""
    if cost_per_hour is None or good_output_tokens_per_s is None:
        return None
    return cost.per_1m_good_output_tokens(cost_per_hour, good_output_tokens_per_s)


def standings(
    objective: Objective, outcomes: Sequence[Outcome], verified: Mapping[int, Verified]
) -> tuple[Standing, ...]:
    """
    Scored trials, best first: feasible before infeasible, feasible ones by cost, infeasible ones by worst margin.

    A finalist that failed its verification stands behind every other feasible trial. Ties in cost go to the larger
    margin, then to the earlier trial.
    """
    scored = [outcome for outcome in last_attempts(outcomes) if outcome.state in ("feasible", "infeasible")]
    found = [stand(objective, outcome, verified.get(outcome.trial)) for outcome in scored]
    return tuple(sorted(found, key=_order))


def last_attempts(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The last attempt of each trial, by trial number."""
    last: dict[int, Outcome] = {}
    for outcome in outcomes:
        if outcome.trial not in last or outcome.attempt >= last[outcome.trial].attempt:
            last[outcome.trial] = outcome
    return tuple(last[trial] for trial in sorted(last))


def assemble(
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
        "unit": _unit(objective),
        "slo": _promise(objective),
        "currency": objective.prices.currency,
        "winner": named if status == "winner" else None,
        "candidate": None if status == "winner" else named,
        "baseline": None if base is None else describe(objective, stand(objective, base, verified.get(baseline))),
        "gain": None if gain is None else _gain(gain, objective.search.min_gain),
        "ranking": [row(objective, rank, standing) for rank, standing in enumerate(ranked, start=1)],
        "counts": {**counts(outcomes), "rejected": len(rejected)},
        "rejected": [dict(each) for each in rejected],
        "ended_by": ended_by or None,
        "spent": {"gpu_hours": None, "wall_s": None, "requests": None, **spent},
        "no_feasible": no_feasible(objective, ranked) if status == "no_feasible" else None,
        "warnings": [*_warnings(best, base, source, status), *warnings],
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
        "margins": _margins(standing),
        "limits": [] if score is None else [asdict(limit) for limit in score.limits],
        "levels": [level.number for level in levels],
        "verified": verified.verified if verified is not None else False,
        "missing_requests": None if verified is None else verified.missing_requests,
        "interval": None if interval is None else [finite(bound) for bound in interval],
        "repeats": 0 if verified is None else verified.repeats,
        "ladder": [] if verified is None else [_rung(each) for each in verified.rungs],
        "copies": _copies(objective, standing),
    }


def stand(objective: Objective, outcome: Outcome, verified: Verified | None) -> Standing:
    rung = verified.rung if verified is not None else None
    observed = outcome.best.score if outcome.best is not None else None
    score = rung.pooled if rung is not None else observed
    goodput = verified.goodput_rps if verified is not None else (observed.goodput_rps if observed else None)
    return Standing(outcome, verified, score, _minimised(objective, outcome, goodput))


def _minimised(objective: Objective, outcome: Outcome, goodput_rps: float | None) -> float | None:
    if not goodput_rps:
        return None
    if objective.objective == "goodput":
        return -goodput_rps
    if objective.objective == "goodput_per_gpu":
        return -goodput_rps / outcome.units if outcome.units else None
    return cost_per_1k(outcome.cost_per_hour, goodput_rps)


def _order(standing: Standing) -> tuple[bool, bool, float, float, int]:
    if not standing.feasible:
        return True, False, standing.worst_margin, 0.0, standing.outcome.trial
    price = math.inf if standing.cost is None else standing.cost
    return False, _refuted(standing.verified), price, standing.worst_margin, standing.outcome.trial


def _refuted(verified: Verified | None) -> bool:
    """Measured again, and no load of the ladder was kept by every repeat."""
    rungs = [rung for rung in verified.rungs if rung.pooled is not None] if verified is not None else []
    return bool(rungs) and not any(all(level.kept for level in rung.levels) for rung in rungs)


def _best(ranked: Sequence[Standing], winner: int | None, baseline: int, status: Status) -> Standing | None:
    if winner is not None:
        return next((standing for standing in ranked if standing.outcome.trial == winner), None)
    feasible = [standing for standing in ranked if standing.feasible and standing.cost is not None]
    if status == "no_gain":
        feasible = [standing for standing in feasible if standing.outcome.trial != baseline]
    finalists = [standing for standing in feasible if standing.verified is not None]
    proven = [standing for standing in finalists if standing.verified is not None and standing.verified.verified]
    return next(iter(proven or finalists or feasible), None)


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
    goodput = score.goodput_rps if score is not None else None
    tokens = score.good_output_tokens_per_s if score is not None else None
    return {
        "cost_per_1k_good_requests": cost_per_1k(outcome.cost_per_hour, goodput),
        "cost_per_1m_good_output_tokens": cost_per_1m(outcome.cost_per_hour, tokens),
        "goodput_rps": goodput,
        "offered_rps": score.offered_rps if score is not None else None,
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


def _load(objective: Objective) -> dict[str, object]:
    closed = closed_loop(objective)
    return {"kind": objective.workload.load.kind, "unit": "concurrent requests" if closed else "requests/s"}


def _gain(gain: Gain, min_gain: float) -> dict[str, object]:
    bounds = {"lower": finite(gain.lower), "upper": finite(gain.upper), "estimate": finite(gain.estimate)}
    return {**asdict(gain), **bounds, "min_gain": min_gain}


@dataclass(frozen=True)
class Rung:
    """One offered load of the verification ladder, over all its repeats."""

    offered: float  # in the unit of the load: requests/s, or concurrency in a closed loop
    levels: tuple[Level, ...]  # one per repeat
    passed: bool
    pooled: Score | None  # over all repeats; None when nothing was scored


@dataclass(frozen=True)
class Verified:
    """
    What the verification of one finalist (or of the baseline) said.

    With `verified` False the values are those of the highest observed level, and `missing_requests` says how many
    more requests the claim would have needed.
    """

    trial: int
    configuration: Configuration
    verified: bool
    rungs: tuple[Rung, ...]  # in the order measured
    offered_rps: float | None  # of the highest verified rung; in a closed loop the arrivals/s it led to
    goodput_rps: float | None
    cost_per_1k_good_requests: float | None  # in the objective file's currency
    cost_per_1m_good_output_tokens: float | None
    interval: tuple[float | None, float] | None  # of the cost per 1,000 good requests; low None = not bounded below
    missing_requests: int
    repeats: int

    @property
    def rung(self) -> Rung | None:
        """The highest rung that passed; else the highest whose every repeat was kept; else the lowest scored one."""
        scored = [rung for rung in self.rungs if rung.pooled is not None]
        passed = [rung for rung in scored if rung.passed]
        kept = [rung for rung in scored if all(level.kept for level in rung.levels)]
        if passed or kept:
            return max(passed or kept, key=lambda rung: rung.offered)
        return min(scored, key=lambda rung: rung.offered, default=None)


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
    n: int  # paired repeats
    proven: bool  # `lower` is above `search.min_gain`


@dataclass(frozen=True)
class Standing:
    """One scored trial with the figures it is ranked by: the verified ones where there are any."""

    outcome: Outcome
    verified: Verified | None
    score: Score | None
    cost: float | None  # lower is better: cost per 1,000 good requests, or −goodput (per unit); None = no goodput

    @property
    def feasible(self) -> bool:
        return self.outcome.state == "feasible"

    @property
    def worst_margin(self) -> float:
        """Largest signed margin; <= 0 means that every limit is kept."""
        return max(self.outcome.margins.values(), default=math.inf)


def cost_per_1k(cost_per_hour: float | None, goodput_rps: float | None) -> float | None:
    """Currency per 1,000 good requests; None when either is unknown or nothing was good."""
    if cost_per_hour is None or goodput_rps is None:
        return None
    return cost.per_1k_good_requests(cost_per_hour, goodput_rps)


def cost_per_1m(cost_per_hour: float | None, good_output_tokens_per_s: float | None) -> float | None:
    """Currency per million output tokens of good requests; None when either is unknown or there are none."""
    if cost_per_hour is None or good_output_tokens_per_s is None:
        return None
    return cost.per_1m_good_output_tokens(cost_per_hour, good_output_tokens_per_s)


def standings(
    objective: Objective, outcomes: Sequence[Outcome], verified: Mapping[int, Verified]
) -> tuple[Standing, ...]:
    """
    Scored trials, best first: feasible before infeasible, feasible ones by cost, infeasible ones by worst margin.

    A finalist that failed its verification stands behind every other feasible trial. Ties in cost go to the larger
    margin, then to the earlier trial.
    """
    scored = [outcome for outcome in last_attempts(outcomes) if outcome.state in ("feasible", "infeasible")]
    found = [stand(objective, outcome, verified.get(outcome.trial)) for outcome in scored]
    return tuple(sorted(found, key=_order))


def last_attempts(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The last attempt of each trial, by trial number."""
    last: dict[int, Outcome] = {}
    for outcome in outcomes:
        if outcome.trial not in last or outcome.attempt >= last[outcome.trial].attempt:
            last[outcome.trial] = outcome
    return tuple(last[trial] for trial in sorted(last))


def assemble(
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
        "unit": _unit(objective),
        "slo": _promise(objective),
        "currency": objective.prices.currency,
        "winner": named if status == "winner" else None,
        "candidate": None if status == "winner" else named,
        "baseline": None if base is None else describe(objective, stand(objective, base, verified.get(baseline))),
        "gain": None if gain is None else _gain(gain, objective.search.min_gain),
        "ranking": [row(objective, rank, standing) for rank, standing in enumerate(ranked, start=1)],
        "counts": {**counts(outcomes), "rejected": len(rejected)},
        "rejected": [dict(each) for each in rejected],
        "ended_by": ended_by or None,
        "spent": {"gpu_hours": None, "wall_s": None, "requests": None, **spent},
        "no_feasible": no_feasible(objective, ranked) if status == "no_feasible" else None,
        "warnings": [*_warnings(best, base, source, status), *warnings],
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
        "margins": _margins(standing),
        "limits": [] if score is None else [asdict(limit) for limit in score.limits],
        "levels": [level.number for level in levels],
        "verified": verified.verified if verified is not None else False,
        "missing_requests": None if verified is None else verified.missing_requests,
        "interval": None if interval is None else [finite(bound) for bound in interval],
        "repeats": 0 if verified is None else verified.repeats,
        "ladder": [] if verified is None else [_rung(each) for each in verified.rungs],
        "copies": _copies(objective, standing),
    }


def stand(objective: Objective, outcome: Outcome, verified: Verified | None) -> Standing:
    rung = verified.rung if verified is not None else None
    observed = outcome.best.score if outcome.best is not None else None
    score = rung.pooled if rung is not None else observed
    goodput = verified.goodput_rps if verified is not None else (observed.goodput_rps if observed else None)
    return Standing(outcome, verified, score, _minimised(objective, outcome, goodput))


def _minimised(objective: Objective, outcome: Outcome, goodput_rps: float | None) -> float | None:
    if not goodput_rps:
        return None
    if objective.objective == "goodput":
        return -goodput_rps
    if objective.objective == "goodput_per_gpu":
        return -goodput_rps / outcome.units if outcome.units else None
    return cost_per_1k(outcome.cost_per_hour, goodput_rps)


def _order(standing: Standing) -> tuple[bool, bool, float, float, int]:
    if not standing.feasible:
        return True, False, standing.worst_margin, 0.0, standing.outcome.trial
    price = math.inf if standing.cost is None else standing.cost
    return False, _refuted(standing.verified), price, standing.worst_margin, standing.outcome.trial


def _refuted(verified: Verified | None) -> bool:
    """Measured again, and no load of the ladder was kept by every repeat."""
    rungs = [rung for rung in verified.rungs if rung.pooled is not None] if verified is not None else []
    return bool(rungs) and not any(all(level.kept for level in rung.levels) for rung in rungs)


def _best(ranked: Sequence[Standing], winner: int | None, baseline: int, status: Status) -> Standing | None:
    if winner is not None:
        return next((standing for standing in ranked if standing.outcome.trial == winner), None)
    feasible = [standing for standing in ranked if standing.feasible and standing.cost is not None]
    if status == "no_gain":
        feasible = [standing for standing in feasible if standing.outcome.trial != baseline]
    finalists = [standing for standing in feasible if standing.verified is not None]
    proven = [standing for standing in finalists if standing.verified is not None and standing.verified.verified]
    return next(iter(proven or finalists or feasible), None)


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
    goodput = score.goodput_rps if score is not None else None
    tokens = score.good_output_tokens_per_s if score is not None else None
    return {
        "cost_per_1k_good_requests": cost_per_1k(outcome.cost_per_hour, goodput),
        "cost_per_1m_good_output_tokens": cost_per_1m(outcome.cost_per_hour, tokens),
        "goodput_rps": goodput,
        "offered_rps": score.offered_rps if score is not None else None,
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


def _load(objective: Objective) -> dict[str, object]:
    closed = closed_loop(objective)
    return {"kind": objective.workload.load.kind, "unit": "concurrent requests" if closed else "requests/s"}


def _gain(gain: Gain, min_gain: float) -> dict[str, object]:
    bounds = {"lower": finite(gain.lower), "upper": finite(gain.upper), "estimate": finite(gain.estimate)}
    return {**asdict(gain), **bounds, "min_gain": min_gain}


def _unit(objective: Objective) -> str:
    """What `gpus` counts."""
    kinds = {pool.unit for pool in objective.cluster.pools}
    if len(kinds) > 1:
        return "GPU or CPU slot"
    return "CPU slot" if kinds == {"cpu"} else "GPU"


@dataclass(frozen=True)
class Rung:
    """One offered load of the verification ladder, over all its repeats."""

    offered: float  # in the unit of the load: requests/s, or concurrency in a closed loop
    levels: tuple[Level, ...]  # one per repeat
    passed: bool
    pooled: Score | None  # over all repeats; None when nothing was scored


@dataclass(frozen=True)
class Verified:
    """
    What the verification of one finalist (or of the baseline) said.

    With `verified` False the values are those of the highest observed level, and `missing_requests` says how many
    more requests the claim would have needed.
    """

    trial: int
    configuration: Configuration
    verified: bool
    rungs: tuple[Rung, ...]  # in the order measured
    offered_rps: float | None  # of the highest verified rung; in a closed loop the arrivals/s it led to
    goodput_rps: float | None
    cost_per_1k_good_requests: float | None  # in the objective file's currency
    cost_per_1m_good_output_tokens: float | None
    interval: tuple[float | None, float] | None  # of the cost per 1,000 good requests; low None = not bounded below
    missing_requests: int
    repeats: int

    @property
    def rung(self) -> Rung | None:
        """The highest rung that passed; else the highest whose every repeat was kept; else the lowest scored one."""
        scored = [rung for rung in self.rungs if rung.pooled is not None]
        passed = [rung for rung in scored if rung.passed]
        kept = [rung for rung in scored if all(level.kept for level in rung.levels)]
        if passed or kept:
            return max(passed or kept, key=lambda rung: rung.offered)
        return min(scored, key=lambda rung: rung.offered, default=None)


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
    n: int  # paired repeats
    proven: bool  # `lower` is above `search.min_gain`


@dataclass(frozen=True)
class Standing:
    """One scored trial with the figures it is ranked by: the verified ones where there are any."""

    outcome: Outcome
    verified: Verified | None
    score: Score | None
    cost: float | None  # lower is better: cost per 1,000 good requests, or −goodput (per unit); None = no goodput

    @property
    def feasible(self) -> bool:
        return self.outcome.state == "feasible"

    @property
    def worst_margin(self) -> float:
        """Largest signed margin; <= 0 means that every limit is kept."""
        return max(self.outcome.margins.values(), default=math.inf)


def cost_per_1k(cost_per_hour: float | None, goodput_rps: float | None) -> float | None:
    """Currency per 1,000 good requests; None when either is unknown or nothing was good."""
    if cost_per_hour is None or goodput_rps is None:
        return None
    return cost.per_1k_good_requests(cost_per_hour, goodput_rps)


def cost_per_1m(cost_per_hour: float | None, good_output_tokens_per_s: float | None) -> float | None:
    """Currency per million output tokens of good requests; None when either is unknown or there are none."""
    if cost_per_hour is None or good_output_tokens_per_s is None:
        return None
    return cost.per_1m_good_output_tokens(cost_per_hour, good_output_tokens_per_s)


def standings(
    objective: Objective, outcomes: Sequence[Outcome], verified: Mapping[int, Verified]
) -> tuple[Standing, ...]:
    """
    Scored trials, best first: feasible before infeasible, feasible ones by cost, infeasible ones by worst margin.

    A finalist that failed its verification stands behind every other feasible trial. Ties in cost go to the larger
    margin, then to the earlier trial.
    """
    scored = [outcome for outcome in last_attempts(outcomes) if outcome.state in ("feasible", "infeasible")]
    found = [stand(objective, outcome, verified.get(outcome.trial)) for outcome in scored]
    return tuple(sorted(found, key=_order))


def last_attempts(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The last attempt of each trial, by trial number."""
    last: dict[int, Outcome] = {}
    for outcome in outcomes:
        if outcome.trial not in last or outcome.attempt >= last[outcome.trial].attempt:
            last[outcome.trial] = outcome
    return tuple(last[trial] for trial in sorted(last))


def assemble(
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
        "unit": _unit(objective),
        "slo": _promise(objective),
        "currency": objective.prices.currency,
        "winner": named if status == "winner" else None,
        "candidate": None if status == "winner" else named,
        "baseline": None if base is None else describe(objective, stand(objective, base, verified.get(baseline))),
        "gain": None if gain is None else _gain(gain, objective.search.min_gain),
        "ranking": [row(objective, rank, standing) for rank, standing in enumerate(ranked, start=1)],
        "counts": {**counts(outcomes), "rejected": len(rejected)},
        "rejected": [dict(each) for each in rejected],
        "ended_by": ended_by or None,
        "spent": {"gpu_hours": None, "wall_s": None, "requests": None, **spent},
        "no_feasible": no_feasible(objective, ranked) if status == "no_feasible" else None,
        "warnings": [*_warnings(best, base, source, status), *warnings],
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
        "margins": _margins(standing),
        "limits": [] if score is None else [asdict(limit) for limit in score.limits],
        "levels": [level.number for level in levels],
        "verified": verified.verified if verified is not None else False,
        "missing_requests": None if verified is None else verified.missing_requests,
        "interval": None if interval is None else [finite(bound) for bound in interval],
        "repeats": 0 if verified is None else verified.repeats,
        "ladder": [] if verified is None else [_rung(each) for each in verified.rungs],
        "copies": _copies(objective, standing),
    }


def stand(objective: Objective, outcome: Outcome, verified: Verified | None) -> Standing:
    rung = verified.rung if verified is not None else None
    observed = outcome.best.score if outcome.best is not None else None
    score = rung.pooled if rung is not None else observed
    goodput = verified.goodput_rps if verified is not None else (observed.goodput_rps if observed else None)
    return Standing(outcome, verified, score, _minimised(objective, outcome, goodput))


def _minimised(objective: Objective, outcome: Outcome, goodput_rps: float | None) -> float | None:
    if not goodput_rps:
        return None
    if objective.objective == "goodput":
        return -goodput_rps
    if objective.objective == "goodput_per_gpu":
        return -goodput_rps / outcome.units if outcome.units else None
    return cost_per_1k(outcome.cost_per_hour, goodput_rps)


def _order(standing: Standing) -> tuple[bool, bool, float, float, int]:
    if not standing.feasible:
        return True, False, standing.worst_margin, 0.0, standing.outcome.trial
    price = math.inf if standing.cost is None else standing.cost
    return False, _refuted(standing.verified), price, standing.worst_margin, standing.outcome.trial


def _refuted(verified: Verified | None) -> bool:
    """Measured again, and no load of the ladder was kept by every repeat."""
    rungs = [rung for rung in verified.rungs if rung.pooled is not None] if verified is not None else []
    return bool(rungs) and not any(all(level.kept for level in rung.levels) for rung in rungs)


def _best(ranked: Sequence[Standing], winner: int | None, baseline: int, status: Status) -> Standing | None:
    if winner is not None:
        return next((standing for standing in ranked if standing.outcome.trial == winner), None)
    feasible = [standing for standing in ranked if standing.feasible and standing.cost is not None]
    if status == "no_gain":
        feasible = [standing for standing in feasible if standing.outcome.trial != baseline]
    finalists = [standing for standing in feasible if standing.verified is not None]
    proven = [standing for standing in finalists if standing.verified is not None and standing.verified.verified]
    return next(iter(proven or finalists or feasible), None)


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
    goodput = score.goodput_rps if score is not None else None
    tokens = score.good_output_tokens_per_s if score is not None else None
    return {
        "cost_per_1k_good_requests": cost_per_1k(outcome.cost_per_hour, goodput),
        "cost_per_1m_good_output_tokens": cost_per_1m(outcome.cost_per_hour, tokens),
        "goodput_rps": goodput,
        "offered_rps": score.offered_rps if score is not None else None,
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


def _load(objective: Objective) -> dict[str, object]:
    closed = closed_loop(objective)
    return {"kind": objective.workload.load.kind, "unit": "concurrent requests" if closed else "requests/s"}


def _gain(gain: Gain, min_gain: float) -> dict[str, object]:
    bounds = {"lower": finite(gain.lower), "upper": finite(gain.upper), "estimate": finite(gain.estimate)}
    return {**asdict(gain), **bounds, "min_gain": min_gain}


def _unit(objective: Objective) -> str:
    """What `gpus` counts."""
    kinds = {pool.unit for pool in objective.cluster.pools}
    if len(kinds) > 1:
        return "GPU or CPU slot"
    return "CPU slot" if kinds == {"cpu"} else "GPU"


def _promise(objective: Objective) -> dict[str, object]:
    """The limits in seconds, as in the objective file; what makes one request good; the promised share of good ones."""
    slo = objective.slo
    return {
        "limits": [{**asdict(limit), "name": limit.name, "quantile": limit.quantile} for limit in slo.limits],
        "request": asdict(slo.request),
        "attainment": slo.attainment,
    }


@dataclass(frozen=True)
class Rung:
    """One offered load of the verification ladder, over all its repeats."""

    offered: float  # in the unit of the load: requests/s, or concurrency in a closed loop
    levels: tuple[Level, ...]  # one per repeat
    passed: bool
    pooled: Score | None  # over all repeats; None when nothing was scored


@dataclass(frozen=True)
class Verified:
    """
    What the verification of one finalist (or of the baseline) said.

    With `verified` False the values are those of the highest observed level, and `missing_requests` says how many
    more requests the claim would have needed.
    """

    trial: int
    configuration: Configuration
    verified: bool
    rungs: tuple[Rung, ...]  # in the order measured
    offered_rps: float | None  # of the highest verified rung; in a closed loop the arrivals/s it led to
    goodput_rps: float | None
    cost_per_1k_good_requests: float | None  # in the objective file's currency
    cost_per_1m_good_output_tokens: float | None
    interval: tuple[float | None, float] | None  # of the cost per 1,000 good requests; low None = not bounded below
    missing_requests: int
    repeats: int

    @property
    def rung(self) -> Rung | None:
        """The highest rung that passed; else the highest whose every repeat was kept; else the lowest scored one."""
        scored = [rung for rung in self.rungs if rung.pooled is not None]
        passed = [rung for rung in scored if rung.passed]
        kept = [rung for rung in scored if all(level.kept for level in rung.levels)]
        if passed or kept:
            return max(passed or kept, key=lambda rung: rung.offered)
        return min(scored, key=lambda rung: rung.offered, default=None)


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
    n: int  # paired repeats
    proven: bool  # `lower` is above `search.min_gain`


@dataclass(frozen=True)
class Standing:
    """One scored trial with the figures it is ranked by: the verified ones where there are any."""

    outcome: Outcome
    verified: Verified | None
    score: Score | None
    cost: float | None  # lower is better: cost per 1,000 good requests, or −goodput (per unit); None = no goodput

    @property
    def feasible(self) -> bool:
        return self.outcome.state == "feasible"

    @property
    def worst_margin(self) -> float:
        """Largest signed margin; <= 0 means that every limit is kept."""
        return max(self.outcome.margins.values(), default=math.inf)


def cost_per_1k(cost_per_hour: float | None, goodput_rps: float | None) -> float | None:
    """Currency per 1,000 good requests; None when either is unknown or nothing was good."""
    if cost_per_hour is None or goodput_rps is None:
        return None
    return cost.per_1k_good_requests(cost_per_hour, goodput_rps)


def cost_per_1m(cost_per_hour: float | None, good_output_tokens_per_s: float | None) -> float | None:
    """Currency per million output tokens of good requests; None when either is unknown or there are none."""
    if cost_per_hour is None or good_output_tokens_per_s is None:
        return None
    return cost.per_1m_good_output_tokens(cost_per_hour, good_output_tokens_per_s)


def standings(
    objective: Objective, outcomes: Sequence[Outcome], verified: Mapping[int, Verified]
) -> tuple[Standing, ...]:
    """
    Scored trials, best first: feasible before infeasible, feasible ones by cost, infeasible ones by worst margin.

    A finalist that failed its verification stands behind every other feasible trial. Ties in cost go to the larger
    margin, then to the earlier trial.
    """
    scored = [outcome for outcome in last_attempts(outcomes) if outcome.state in ("feasible", "infeasible")]
    found = [stand(objective, outcome, verified.get(outcome.trial)) for outcome in scored]
    return tuple(sorted(found, key=_order))


def last_attempts(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The last attempt of each trial, by trial number."""
    last: dict[int, Outcome] = {}
    for outcome in outcomes:
        if outcome.trial not in last or outcome.attempt >= last[outcome.trial].attempt:
            last[outcome.trial] = outcome
    return tuple(last[trial] for trial in sorted(last))


def assemble(
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
        "unit": _unit(objective),
        "slo": _promise(objective),
        "currency": objective.prices.currency,
        "winner": named if status == "winner" else None,
        "candidate": None if status == "winner" else named,
        "baseline": None if base is None else describe(objective, stand(objective, base, verified.get(baseline))),
        "gain": None if gain is None else _gain(gain, objective.search.min_gain),
        "ranking": [row(objective, rank, standing) for rank, standing in enumerate(ranked, start=1)],
        "counts": {**counts(outcomes), "rejected": len(rejected)},
        "rejected": [dict(each) for each in rejected],
        "ended_by": ended_by or None,
        "spent": {"gpu_hours": None, "wall_s": None, "requests": None, **spent},
        "no_feasible": no_feasible(objective, ranked) if status == "no_feasible" else None,
        "warnings": [*_warnings(best, base, source, status), *warnings],
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
        "margins": _margins(standing),
        "limits": [] if score is None else [asdict(limit) for limit in score.limits],
        "levels": [level.number for level in levels],
        "verified": verified.verified if verified is not None else False,
        "missing_requests": None if verified is None else verified.missing_requests,
        "interval": None if interval is None else [finite(bound) for bound in interval],
        "repeats": 0 if verified is None else verified.repeats,
        "ladder": [] if verified is None else [_rung(each) for each in verified.rungs],
        "copies": _copies(objective, standing),
    }


def stand(objective: Objective, outcome: Outcome, verified: Verified | None) -> Standing:
    rung = verified.rung if verified is not None else None
    observed = outcome.best.score if outcome.best is not None else None
    score = rung.pooled if rung is not None else observed
    goodput = verified.goodput_rps if verified is not None else (observed.goodput_rps if observed else None)
    return Standing(outcome, verified, score, _minimised(objective, outcome, goodput))


def _minimised(objective: Objective, outcome: Outcome, goodput_rps: float | None) -> float | None:
    if not goodput_rps:
        return None
    if objective.objective == "goodput":
        return -goodput_rps
    if objective.objective == "goodput_per_gpu":
        return -goodput_rps / outcome.units if outcome.units else None
    return cost_per_1k(outcome.cost_per_hour, goodput_rps)


def _order(standing: Standing) -> tuple[bool, bool, float, float, int]:
    if not standing.feasible:
        return True, False, standing.worst_margin, 0.0, standing.outcome.trial
    price = math.inf if standing.cost is None else standing.cost
    return False, _refuted(standing.verified), price, standing.worst_margin, standing.outcome.trial


def _refuted(verified: Verified | None) -> bool:
    """Measured again, and no load of the ladder was kept by every repeat."""
    rungs = [rung for rung in verified.rungs if rung.pooled is not None] if verified is not None else []
    return bool(rungs) and not any(all(level.kept for level in rung.levels) for rung in rungs)


def _best(ranked: Sequence[Standing], winner: int | None, baseline: int, status: Status) -> Standing | None:
    if winner is not None:
        return next((standing for standing in ranked if standing.outcome.trial == winner), None)
    feasible = [standing for standing in ranked if standing.feasible and standing.cost is not None]
    if status == "no_gain":
        feasible = [standing for standing in feasible if standing.outcome.trial != baseline]
    finalists = [standing for standing in feasible if standing.verified is not None]
    proven = [standing for standing in finalists if standing.verified is not None and standing.verified.verified]
    return next(iter(proven or finalists or feasible), None)


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
    goodput = score.goodput_rps if score is not None else None
    tokens = score.good_output_tokens_per_s if score is not None else None
    return {
        "cost_per_1k_good_requests": cost_per_1k(outcome.cost_per_hour, goodput),
        "cost_per_1m_good_output_tokens": cost_per_1m(outcome.cost_per_hour, tokens),
        "goodput_rps": goodput,
        "offered_rps": score.offered_rps if score is not None else None,
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


def _load(objective: Objective) -> dict[str, object]:
    closed = closed_loop(objective)
    return {"kind": objective.workload.load.kind, "unit": "concurrent requests" if closed else "requests/s"}


def _gain(gain: Gain, min_gain: float) -> dict[str, object]:
    bounds = {"lower": finite(gain.lower), "upper": finite(gain.upper), "estimate": finite(gain.estimate)}
    return {**asdict(gain), **bounds, "min_gain": min_gain}


def _unit(objective: Objective) -> str:
    """What `gpus` counts."""
    kinds = {pool.unit for pool in objective.cluster.pools}
    if len(kinds) > 1:
        return "GPU or CPU slot"
    return "CPU slot" if kinds == {"cpu"} else "GPU"


def _promise(objective: Objective) -> dict[str, object]:
    """The limits in seconds, as in the objective file; what makes one request good; the promised share of good ones."""
    slo = objective.slo
    return {
        "limits": [{**asdict(limit), "name": limit.name, "quantile": limit.quantile} for limit in slo.limits],
        "request": asdict(slo.request),
        "attainment": slo.attainment,
    }


def closed_loop(objective: Objective) -> bool:
    workload = objective.workload
    return workload.arrivals.process == "closed_loop" or workload.load.kind == "concurrency"


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


def no_feasible(objective: Objective, ranked: Sequence[Standing]) -> dict[str, object] | None:
    """The nearest point, the limit that binds there, and what relaxing each limit alone would allow."""
    if not ranked:
        return None
    nearest = ranked[0]
    broken = {name: margin for name, margin in nearest.outcome.margins.items() if margin > 0}
    names = [limit.name for limit in nearest.score.limits] if nearest.score is not None else []
    return {
        "nearest": describe(objective, nearest),
        "binding": max(broken, key=lambda name: broken[name]) if broken else None,
        "broken": broken,
        "relax": [_relaxed(name, ranked) for name in names],
        "together": _together(nearest, broken),
    }


def _together(nearest: Standing, broken: Mapping[str, float]) -> dict[str, object] | None:
    """What relaxing every limit that the nearest point breaks, to what was measured there, would allow."""
    score = nearest.score
    if score is None or not broken:
        return None
    return {
        "limits": [
            {"limit": limit.name, "threshold": limit.threshold, "needed": finite(limit.estimate)}
            for limit in score.limits
            if limit.name in broken
        ],
        "trial": nearest.outcome.trial,
        "n": score.n,
        "goodput_rps": score.goodput_rps,
        "cost_per_1k_good_requests": cost_per_1k(nearest.outcome.cost_per_hour, score.goodput_rps),
    }


def _relaxed(name: str, ranked: Sequence[Standing]) -> dict[str, object]:
    """The measured level that breaks `name` alone, by the least: what the limit would have to be, and the cost then."""
    found: tuple[float, Standing, Level, Score] | None = None
    threshold: float | None = None
    for standing in ranked:
        for level in standing.outcome.levels:
            if level.score is None:
                continue
            threshold = next((limit.threshold for limit in level.score.limits if limit.name == name), threshold)
            over = [limit for limit in level.score.limits if limit.observed == "broken"]
            if [limit.name for limit in over] != [name] or over[0].estimate is None or level.score.good == 0:
                continue
            if found is None or over[0].margin < found[0]:
                found = (over[0].margin, standing, level, level.score)
    if found is None:
        return {"limit": name, "threshold": threshold, "needed": None, "trial": None, "cost_per_1k_good_requests": None}
    margin, standing, level, score = found
    return {
        "limit": name,
        "threshold": threshold,
        "needed": next(limit.estimate for limit in score.limits if limit.name == name),
        "margin": margin,
        "trial": standing.outcome.trial,
        "offered": level.offered,
        "n": score.n,
        "goodput_rps": score.goodput_rps,
        "cost_per_1k_good_requests": cost_per_1k(standing.outcome.cost_per_hour, score.goodput_rps),
    }


def _warnings(best: Standing | None, base: Outcome | None, source: str, status: Status) -> list[str]:
    found = []
    if source == "simulated":
        found.append("simulated: no engine ran; every time and every cost comes from a model of the engine")
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
