"""What the study minimises, of one trial, and whether one trial is really better than another. Pure."""

from collections.abc import Mapping, Sequence

from tuner import cost, gain
from tuner.configuration import Configuration
from tuner.gain import GainVerdict
from tuner.outcome import Outcome
from tuner.slo import Objective
from tuner.standing import Verified


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


def ranked(objective: Objective, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Feasible trials, best first; ties go to the larger margin, then to the earlier trial."""
    valued = [(value(objective, outcome), outcome) for outcome in outcomes]
    return [
        outcome
        for _, _, _, outcome in sorted(
            (found, max(outcome.margins.values(), default=0.0), outcome.trial, outcome)
            for found, outcome in valued
            if found is not None
        )
    ]


def by_sessions(
    objective: Objective,
    candidate: Outcome,
    rival: Outcome,
    verified: Mapping[int, Verified],
    *,
    min_gain: float,
    confidence: float,
) -> GainVerdict:
    """
    Is the candidate better than the rival by more than `min_gain`? From the sessions of their verification.

    The search of the rival counts as a session of its own where it broke a load: whoever is chosen for being the best
    of many is chosen for having broken late, so that what it broke speaks against it all the more. What the candidate
    kept in its search does not count, for the same reason. See `gain.gain`.
    """
    mine, theirs = verified.get(candidate.trial), verified.get(rival.trial)
    ours, other = weight(objective, candidate.configuration), weight(objective, rival.configuration)
    kept = _costs(ours, mine.kept_rps if mine is not None else ())
    held = _costs(other, theirs.kept_rps if theirs is not None else ())
    refused = _costs(other, theirs.refused_rps if theirs is not None else ())
    if refused and rival.broken_at is not None and objective.workload.load.kind == "find_capacity":
        refused = (*refused, *_costs(other, _in_search(rival)))
    return gain.gain(kept, held, refused, min_gain=min_gain, confidence=confidence)


def _in_search(rival: Outcome) -> tuple[float, ...]:
    """Goodput that the rival would have had at the lowest load that it broke in the search."""
    best = rival.best
    if best is None or best.score is None or rival.broken_at is None or best.offered <= 0:
        return ()
    return (best.score.offered_rps * rival.broken_at / best.offered,)


def _costs(weighed: float, goodputs: Sequence[float | None]) -> tuple[float | None, ...]:
    return tuple(weighed / goodput if goodput else None for goodput in goodputs)
