"""How scored trials stand to each other: what verification said of each, and their order. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuner import cost
from tuner.configuration import Configuration
from tuner.objective import Score
from tuner.outcome import Level, Outcome
from tuner.slo import Objective


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
    kept_rps: tuple[float | None, ...] = ()  # goodput of each session at the load that it kept; None = kept none
    refused_rps: tuple[float | None, ...] = ()  # goodput that each session would have had at the lowest load it broke

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


def stand(objective: Objective, outcome: Outcome, verified: Verified | None) -> Standing:
    """The figures of one trial: of its verification where there was one, else of its best level."""
    rung = verified.rung if verified is not None else None
    observed = outcome.best.score if outcome.best is not None else None
    score = rung.pooled if rung is not None else observed
    whole = observed if outcome.best is not None and outcome.best.stopped == "" else None
    goodput = verified.goodput_rps if verified is not None else (whole.goodput_rps if whole else None)
    price = _minimised(objective, outcome, goodput)
    if price is not None and objective.objective == "cost_per_goodput" and verified is not None:
        price = verified.cost_per_1k_good_requests
    return Standing(outcome, verified, score, price)


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
    return False, refuted(standing.verified), price, standing.worst_margin, standing.outcome.trial


def refuted(verified: Verified | None) -> bool:
    """Measured again, and no load of the ladder was kept by every repeat."""
    rungs = [rung for rung in verified.rungs if rung.pooled is not None] if verified is not None else []
    return bool(rungs) and not any(all(level.kept for level in rung.levels) for rung in rungs)
