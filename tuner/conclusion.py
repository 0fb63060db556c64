"""Which trials are measured again, and what follows from it: a winner, no gain, or nothing feasible. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner import cost, gain
from tuner.configuration import Configuration
from tuner.outcome import Outcome
from tuner.result import Gain, Status, Verified
from tuner.slo import Objective

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Decision:
    status: Status
    winner: int | None  # trial to deploy, or the best candidate where the status is `no_gain`; None = nothing feasible
    gain: Gain | None  # over the baseline; None where the baseline has no cost


def weight(objective: Objective, configuration: Configuration) -> float:
    """What the objective minimises, times the goodput in requests/s: `value` = `weight` / goodput."""
    return cost.weight(objective.objective, cost.cost_per_hour(configuration, objective))


def value(objective: Objective, outcome: Outcome) -> float | None:
    """
    What the objective minimises, > 0; None where the outcome is not feasible or nothing was good.

    Currency per 1,000 good requests, unit-seconds per good request, or seconds per good request.
    """
    if outcome.state != "feasible" or outcome.best is None or outcome.best.score is None:
        return None
    held = cost.cost_per_hour(outcome.configuration, objective)
    return cost.objective_value(objective.objective, held, outcome.best.score)


def figure(objective: Objective, found: float) -> str:
    """A `value` for people: `0.0708 USD per 1,000 good requests`, or the goodput that it is the inverse of."""
    match objective.objective:
        case "cost_per_goodput":
            return f"{found:.3g} {objective.prices.currency} per 1,000 good requests"
        case "goodput_per_gpu":
            cpu = all(pool.unit == "cpu" for pool in objective.cluster.pools)
            return f"{1 / found:.3g} good requests/s per {'CPU slot' if cpu else 'GPU'}"
        case _:
            return f"{1 / found:.3g} good requests/s"


def best(objective: Objective, outcomes: Sequence[Outcome]) -> Outcome | None:
    """The feasible trial with the lowest value; ties go to the larger margin, then to the earlier trial."""
    return next(iter(ranked(objective, outcomes)), None)


def ranked(objective: Objective, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Feasible trials, best first."""
    valued = [(value(objective, outcome), outcome) for outcome in outcomes]
    return [
        outcome
        for _, _, _, outcome in sorted(
            (found, max(outcome.margins.values(), default=0.0), outcome.trial, outcome)
            for found, outcome in valued
            if found is not None
        )
    ]


def finalists(objective: Objective, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """
    The baseline and the best candidates, the best *aggregated* one on as many GPUs as the leader among them.

    Infeasible baselines are left out: there is nothing to verify.
    """
    order = ranked(objective, outcomes)
    baseline = [outcome for outcome in order if outcome.trial == 0]
    candidates = [outcome for outcome in order if outcome.trial != 0]
    chosen = candidates[: objective.search.verify.finalists]
    if chosen:
        same = [o for o in order if o.configuration.mode == "aggregated" and o.units == chosen[0].units]
        chosen += [outcome for outcome in same[:1] if outcome not in chosen and outcome.trial != 0]
    return [*baseline, *chosen]


def decide(objective: Objective, outcomes: Sequence[Outcome], verified: Mapping[int, Verified]) -> Decision:
    """
    The status of a study that ran to its end.

    A winner needs a gain over the baseline that is above `search.min_gain` with confidence; without a baseline that
    keeps the SLO, the best candidate that stood its verification wins.
    """
    standing = [outcome for outcome in outcomes if value(objective, outcome) is not None]
    standing = [outcome for outcome in standing if outcome.trial not in verified or _stood(verified[outcome.trial])]
    if not standing:
        return Decision("no_feasible", None, None)
    order = sorted(standing, key=lambda outcome: _place(objective, outcome, verified.get(outcome.trial)))
    candidates = [outcome for outcome in order if outcome.trial != 0]
    baseline = next((outcome for outcome in order if outcome.trial == 0), None)
    if baseline is None:
        return Decision("winner", candidates[0].trial, None)
    if not candidates:
        return Decision("no_gain", 0, None)
    found = _gain(objective, candidates[0], baseline, verified)
    return Decision("winner" if found.proven else "no_gain", candidates[0].trial, found)


def _stood(verified: Verified) -> bool:
    """Not shown to break the SLO at every load of the ladder."""
    rungs = [rung for rung in verified.rungs if rung.pooled is not None]
    return not rungs or any(all(level.kept for level in rung.levels) for rung in rungs)


def _place(objective: Objective, outcome: Outcome, verified: Verified | None) -> tuple[bool, float, int]:
    """Measured again first, then by value."""
    figure = value(objective, outcome)
    if verified is not None and verified.goodput_rps:
        figure = weight(objective, outcome.configuration) / verified.goodput_rps
    return verified is None, math.inf if figure is None else figure, outcome.trial


def _gain(objective: Objective, candidate: Outcome, baseline: Outcome, verified: Mapping[int, Verified]) -> Gain:
    """Of the candidate over the baseline, from the sessions of their verification and the baseline's own search."""
    mine, theirs = verified.get(candidate.trial), verified.get(baseline.trial)
    ours, base = weight(objective, candidate.configuration), weight(objective, baseline.configuration)
    kept = _costs(ours, mine.kept_rps if mine is not None else ())
    held = _costs(base, theirs.kept_rps if theirs is not None else ())
    refused = _costs(base, theirs.refused_rps if theirs is not None else ())
    if refused and baseline.broken_at is not None and objective.workload.load.kind == "find_capacity":
        refused = (*refused, *_costs(base, _in_search(baseline)))
    found = gain.gain(kept, held, refused, min_gain=objective.search.min_gain, confidence=CONFIDENCE)
    estimate = found.estimate
    if estimate is None:
        now, then = value(objective, candidate), value(objective, baseline)
        assert now is not None  # noqa: S101  (both stand)
        assert then is not None  # noqa: S101
        estimate = 1 - now / then
    return Gain(estimate, found.lower, None, found.confidence, found.n, proven=found.proven)


def _in_search(baseline: Outcome) -> tuple[float, ...]:
    """Goodput that the baseline would have had at the lowest load that it broke in the search; nobody chose it."""
    best = baseline.best
    if best is None or best.score is None or baseline.broken_at is None or best.offered <= 0:
        return ()
    return (best.score.offered_rps * baseline.broken_at / best.offered,)


def _costs(weighed: float, goodputs: Sequence[float | None]) -> tuple[float | None, ...]:
    return tuple(weighed / goodput if goodput else None for goodput in goodputs)
