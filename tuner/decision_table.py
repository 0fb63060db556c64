"""
Does a lever pay? Outcomes + verification → `levers` of `result.json`. Pure; strict JSON, unknown = None.

For each value of each lever: the best trial with it, the best without it, how every figure differs, and what may be
said of the difference. Something is *shown* by verification sessions alone (`comparison.by_sessions`). Figures of the
search, each with the interval between the load that was kept and the one that was broken, can only point somewhere.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tuner import comparison, levers
from tuner.described import closed_loop, finite
from tuner.outcome import Outcome
from tuner.slo import Objective
from tuner.standing import Verified, cost_per_1k, refuted, stand
from tuner.stats import CONFIDENCE

Verdict = Literal[
    "cheaper",  # shown at `confidence`: `at_least` below the best without, or more
    "dearer",  # shown: `at_least` above it, or more
    "no_difference",  # nothing beyond noise
    "points_to_cheaper",  # the intervals of the search do not meet; not shown
    "points_to_dearer",
    "not_to_capacity",  # every trial with it was pruned: `bound` is what it costs at least
    "not_feasible",  # no trial with it kept the SLO
    "alone",  # no feasible trial without it
]

#: Latencies of the table: key of the entry, metric and statistic of the score. All in ms.
_TAILS = (
    ("ttft_p99_ms", "ttft_ms"),
    ("itl_p99_ms", "itl_ms"),
    ("chunk_gap_max_p99_ms", "chunk_gap_max_ms"),
    ("e2el_p99_ms", "e2el_ms"),
)
#: Figures whose change is given, in the order of the report.
FIGURES = (*(key for key, _ in _TAILS), "goodput_rps", "capacity", "cost_per_1k_good_requests", "cost_per_hour")
#: The values that a question is about, which stand against the rest; of the other levers it is the best trial's.
_ASKED = {"mode": ("disaggregated",), "kv_store": ("mooncake", "lmcache", "cpu_offload")}
#: A bound nearer than this to the best cost of the search says nothing more: a window has its chance of arrivals.
_NEAR = 0.05
Interval = tuple[float | None, float | None]


@dataclass(frozen=True)
class _Finding:
    verdict: Verdict
    at_least: float | None = None  # share of the cost of the best without, > 0; None = not known
    confidence: float | None = None
    sessions: int | None = None


@dataclass(frozen=True)
class _Side:
    """Trials with a value, or without it."""

    group: Sequence[Outcome]
    best: Outcome | None

    @property
    def bound(self) -> float | None:
        """Currency per 1,000 good requests that its pruned trials cost at least, where the best trial costs more."""
        pruned = [outcome for outcome in self.group if outcome.state == "pruned"]
        found = [cost_per_1k(outcome.cost_per_hour, outcome.broken_at) for outcome in pruned]
        least = min((cost for cost in found if cost is not None), default=None)
        level = None if self.best is None else self.best.best
        if self.best is None or level is None or level.score is None or least is None:
            return least
        searched = cost_per_1k(self.best.cost_per_hour, level.score.goodput_rps)
        return least if searched is None or least < searched * (1 - _NEAR) else None


@dataclass(frozen=True)
class _Known:
    """What the rows are made from."""

    objective: Objective
    verified: Mapping[int, Verified]

    def best(self, group: Sequence[Outcome]) -> Outcome | None:
        return levers.best(self.objective, group, self.verified)


def table(
    objective: Objective, outcomes: Sequence[Outcome], verified: Mapping[int, Verified]
) -> list[dict[str, object]]:
    """
    Every lever with a row for each of its values; a lever that was not tried has one row, or none.

    Args:
        objective: The objective file.
        outcomes: The last attempt of each trial.
        verified: By trial.
    """
    known = _Known(objective, verified)
    return [_entry(known, lever, lever.groups(outcomes)) for lever in levers.levers(objective, outcomes, verified)]


def _entry(known: _Known, lever: levers.Lever, groups: Mapping[str, Sequence[Outcome]]) -> dict[str, object]:
    best = {value: known.best(group) for value, group in groups.items()}
    asked, rows = _ASKED.get(lever.name, ()), []
    for value, group in groups.items():
        same = asked if value in asked else (value,)
        others = [outcome for other in groups if other not in same for outcome in groups[other]]
        rivals = [outcome for other, outcome in best.items() if other not in same and outcome is not None]
        rows.append({"value": value, **_row(known, _Side(group, best[value]), _Side(others, known.best(rivals)))})
    return {
        "lever": lever.name,
        "decision": lever.decision,
        "asked": _asked(known, lever, best) if len(groups) > 1 else None,
        "values": rows,
    }


def _asked(known: _Known, lever: levers.Lever, best: Mapping[str, Outcome | None]) -> str | None:
    """The value whose row answers the lever's question; None where nothing is known of any."""
    wanted = _ASKED.get(lever.name)
    asked = {value: outcome for value, outcome in best.items() if wanted is None or value in wanted}
    leader = known.best([outcome for outcome in asked.values() if outcome is not None])
    found = next((value for value, outcome in asked.items() if leader is not None and outcome is leader), None)
    return found if found is not None or wanted is None else next(iter(asked), None)


def _row(known: _Known, own: _Side, rival: _Side) -> dict[str, object]:
    mine = None if own.best is None else _figures(known, own.best)
    other = None if rival.best is None else _figures(known, rival.best)
    compared = own.best is not None and rival.best is not None
    found = _finding(known, own, rival)
    return {
        "trials": len(own.group),
        "endings": dict(sorted(Counter(_ending(each, known.verified.get(each.trial)) for each in own.group).items())),
        "with": mine,
        "without": other,
        "bound": own.bound,
        "bound_without": rival.bound if compared else None,
        "change": {} if mine is None or other is None else {key: _change(mine[key], other[key]) for key in FIGURES},
        "interval": list(_ratio(known, own.best, rival.best)) if own.best and rival.best else None,
        "verdict": found.verdict,
        "at_least": found.at_least,
        "confidence": found.confidence,
        "sessions": found.sessions,
    }


def _figures(known: _Known, outcome: Outcome) -> dict[str, object]:
    """What is known of one trial, each figure at the highest load that it is known to carry."""
    found = stand(known.objective, outcome, known.verified.get(outcome.trial))
    again, score = found.verified, found.score
    goodput = again.goodput_rps if again is not None else None if score is None else score.goodput_rps
    low, high = _costs(known, outcome)
    return {
        "trial": outcome.trial,
        "configuration": dict(outcome.configuration.effective),
        "verified": again is not None and again.verified,
        "sessions": 0 if again is None else again.repeats,
        "n": None if score is None else score.n,
        "gpus": outcome.units,
        "measured_to_capacity": outcome.measured_to_capacity or known.objective.workload.load.kind != "find_capacity",
        **{key: None if score is None else finite(score.metrics.get(metric, {}).get("p99")) for key, metric in _TAILS},
        "goodput_rps": finite(goodput),
        "capacity": finite(outcome.capacity),
        "cost_per_hour": finite(outcome.cost_per_hour),
        "cost_per_1k_good_requests": cost_per_1k(outcome.cost_per_hour, goodput),
        "interval": None if low is None and high is None else [low, high],
    }


def _finding(known: _Known, own: _Side, rival: _Side) -> _Finding:
    """How much is never said where a trial of the dearer side was pruned that may cost less than the side's best."""
    if own.best is None:
        return _Finding("not_feasible" if own.bound is None else "not_to_capacity")
    if rival.best is None:
        return _Finding("alone")
    shown = _shown(known, own.best, rival.best)
    if shown is not None:
        dearer = rival if shown.verdict == "cheaper" else own
        return shown if dearer.bound is None else replace(shown, at_least=None)
    low, high = _ratio(known, own.best, rival.best)
    resolution = known.objective.search.resolution
    if high is not None and high < -resolution:
        return _Finding("points_to_cheaper")
    return _Finding("points_to_dearer" if low is not None and low > resolution else "no_difference")


def _shown(known: _Known, own: Outcome, rival: Outcome) -> _Finding | None:
    """What the sessions of both show, in either direction."""
    for verdict, better, worse in (("cheaper", own, rival), ("dearer", rival, own)):
        found = comparison.by_sessions(
            known.objective, better, worse, known.verified, min_gain=0.0, confidence=CONFIDENCE
        )
        if found.proven and found.lower is not None:
            if verdict == "cheaper":
                return _Finding("cheaper", found.lower, found.confidence, found.n)
            return _Finding("dearer", 1 / (1 - found.lower) - 1, found.confidence, found.n)
    return None


def _ratio(known: _Known, own: Outcome, rival: Outcome) -> Interval:
    """Interval of the change of what is minimised, as a share; None = not bounded on that side."""
    mine, other = _minimised(known, own), _minimised(known, rival)
    low = None if mine[0] is None or other[1] is None else mine[0] / other[1] - 1
    high = None if mine[1] is None or other[0] is None else mine[1] / other[0] - 1
    return low, high


def _minimised(known: _Known, outcome: Outcome) -> Interval:
    low, high = _goodputs(known, outcome)
    weighed = comparison.weight(known.objective, outcome.configuration)
    return (weighed / high if high else None), (weighed / low if low else None)


def _costs(known: _Known, outcome: Outcome) -> Interval:
    low, high = _goodputs(known, outcome)
    return cost_per_1k(outcome.cost_per_hour, high), cost_per_1k(outcome.cost_per_hour, low)


def _goodputs(known: _Known, outcome: Outcome) -> Interval:
    """
    Between which goodputs, in requests/s, the best of this trial lies: what was kept, and what was broken.

    At a fixed load there is nothing to be broken: the goodputs of the sessions are the interval.
    """
    best, again = outcome.best, known.verified.get(outcome.trial)
    kept = [] if again is None else [goodput for goodput in again.kept_rps if goodput]
    if not kept and best is not None and best.score is not None:
        kept = [best.score.goodput_rps]
    if not kept:
        return None, None
    if known.objective.workload.load.kind != "find_capacity":
        return min(kept), max(kept)
    refused = [] if again is None else [goodput for goodput in again.refused_rps if goodput]
    if outcome.broken_at is not None:
        refused.append(_at(known.objective, outcome, outcome.broken_at))
    above = [goodput for goodput in refused if goodput > min(kept)]
    return min(kept), max(min(above), *kept) if above else None


def _at(objective: Objective, outcome: Outcome, load: float) -> float:
    """
    Goodput at a load if everything were good, by the arrivals that the best level really had.

    In a closed loop it grows at most like the requests in flight.
    """
    best = outcome.best
    if best is None or best.score is None or best.offered <= 0:
        return load
    then = best.score.goodput_rps if closed_loop(objective) else best.score.offered_rps
    return then * load / best.offered


def _ending(outcome: Outcome, again: Verified | None) -> str:
    """`feasible`, `refuted` when measured again, `infeasible: ttft_p99`, `config_failed: out_of_memory`."""
    if refuted(again):
        return "refuted"
    return f"{outcome.state}: {outcome.reason}" if outcome.reason else outcome.state


def _change(new: object, old: object) -> float | None:
    if not isinstance(new, int | float) or not isinstance(old, int | float) or not old:
        return None
    return finite(new / old - 1)
