"""Which trials are measured again, and what follows from it: a winner, no gain, or nothing feasible. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.comparison import by_sessions, ranked, value, weight
from tuner.outcome import Outcome
from tuner.result import Gain, Status, Verified
from tuner.slo import Objective
from tuner.standing import refuted

__all__ = ["CONFIDENCE", "Decision", "best", "decide", "figure", "finalists", "ranked", "value", "weight"]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Decision:
    status: Status
    winner: int | None  # trial to deploy, or the best candidate where the status is `no_gain`; None = nothing feasible
    gain: Gain | None  # over the baseline; None where the baseline has no cost


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
    standing = [outcome for outcome in standing if not refuted(verified.get(outcome.trial))]
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


def _place(objective: Objective, outcome: Outcome, verified: Verified | None) -> tuple[bool, float, int]:
    """Measured again first, then by value."""
    figure = value(objective, outcome)
    if verified is not None and verified.goodput_rps:
        figure = weight(objective, outcome.configuration) / verified.goodput_rps
    return verified is None, math.inf if figure is None else figure, outcome.trial


def _gain(objective: Objective, candidate: Outcome, baseline: Outcome, verified: Mapping[int, Verified]) -> Gain:
    """Of the candidate over the baseline, from the sessions of their verification and the baseline's own search."""
    found = by_sessions(
        objective, candidate, baseline, verified, min_gain=objective.search.min_gain, confidence=CONFIDENCE
    )
    estimate = found.estimate
    if estimate is None:
        now, then = value(objective, candidate), value(objective, baseline)
        assert now is not None  # noqa: S101  (both stand)
        assert then is not None  # noqa: S101
        estimate = 1 - now / then
    return Gain(estimate, found.lower, None, found.confidence, found.n, proven=found.proven)
