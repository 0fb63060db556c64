"""
Does a lever pay? Outcomes + verification → `levers` of `result.json`. Pure; strict JSON, unknown = None.

For each value of each lever: the best trial with it, the best without it, how every figure differs, and what may be
said of the difference. Something is *shown* by verification sessions alone (`comparison.by_sessions`). Figures of the
search, each with the interval between the load that was kept and the one that was broken, can only point somewhere.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tuner import comparison, levers
from tuner.described import closed_loop, finite
from tuner.outcome import Outcome
from tuner.slo import Objective
from tuner.standing import Verified, cost_per_1k, refuted, stand
from tuner.stats import CONFIDENCE

Verdict = Literal[
    "cheaper",  # shown: at least `at_least` below the best without, at `confidence`
    "dearer",  # shown: at least `at_least` above it
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
#: The value that a question is about; of the other levers it is the best trial's.
_ASKED = {"mode": ("disaggregated",), "kv_store": ("mooncake", "lmcache", "cpu_offload")}
Interval = tuple[float | None, float | None]


@dataclass(frozen=True)
class _Finding:
    verdict: Verdict
    at_least: float | None = None  # share of the cost of the best without, > 0
    confidence: float | None = None
    sessions: int | None = None


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
    return [_entry(objective, lever, outcomes, verified) for lever in levers.levers(objective, outcomes, verified)]


def _entry(
    objective: Objective, lever: levers.Lever, outcomes: Sequence[Outcome], verified: Mapping[int, Verified]
) -> dict[str, object]:
    groups = lever.groups(outcomes)
    best = {value: levers.best(objective, group, verified) for value, group in groups.items()}
    rows = []
    for value, group in groups.items():
        others = [outcome for other, outcome in best.items() if other != value and outcome is not None]
        rival = levers.best(objective, others, verified)
        rows.append(_row(objective, value, group, best[value], rival, verified))
    return {
        "lever": lever.name,
        "decision": lever.decision,
        "asked": _asked(objective, lever, best, verified) if len(groups) > 1 else None,
        "values": rows,
    }


def _asked(
    objective: Objective, lever: levers.Lever, best: Mapping[str, Outcome | None], verified: Mapping[int, Verified]
) -> str | None:
    """The value whose row answers the lever's question; None where nothing is known of any."""
    known = {value: outcome for value, outcome in best.items() if outcome is not None}
    wanted = _ASKED.get(lever.name)
    if wanted is not None:
        known = {value: outcome for value, outcome in known.items() if value in wanted}
    leader = levers.best(objective, list(known.values()), verified)
    found = next((value for value, outcome in known.items() if outcome is leader), None)
    return found or next((value for value in best if wanted is not None and value in wanted), None)


def _row(
    objective: Objective,
    value: str,
    group: Sequence[Outcome],
    own: Outcome | None,
    rival: Outcome | None,
    verified: Mapping[int, Verified],
) -> dict[str, object]:
    bound = _bound(group, own)
    mine = None if own is None else _figures(objective, own, verified)
    other = None if rival is None else _figures(objective, rival, verified)
    found = _finding(objective, own, rival, verified, bounded=bound is not None)
    return {
        "value": value,
        "trials": len(group),
        "endings": dict(sorted(Counter(_ending(each, verified.get(each.trial)) for each in group).items())),
        "with": mine,
        "without": other,
        "bound": bound,
        "change": {} if mine is None or other is None else {key: _change(mine[key], other[key]) for key in FIGURES},
        "interval": None if own is None or rival is None else list(_ratio(objective, own, rival, verified)),
        "verdict": found.verdict,
        "at_least": found.at_least,
        "confidence": found.confidence,
        "sessions": found.sessions,
    }


def _figures(objective: Objective, outcome: Outcome, verified: Mapping[int, Verified]) -> dict[str, object]:
    """What is known of one trial, each figure at the highest load that it is known to carry."""
    found = stand(objective, outcome, verified.get(outcome.trial))
    again, score = found.verified, found.score
    goodput = again.goodput_rps if again is not None else None if score is None else score.goodput_rps
    low, high = _costs(objective, outcome, again)
    return {
        "trial": outcome.trial,
        "configuration": dict(outcome.configuration.effective),
        "verified": again is not None and again.verified,
        "sessions": 0 if again is None else again.repeats,
        "n": None if score is None else score.n,
        "gpus": outcome.units,
        "measured_to_capacity": outcome.measured_to_capacity,
        **{key: None if score is None else finite(score.metrics.get(metric, {}).get("p99")) for key, metric in _TAILS},
        "goodput_rps": finite(goodput),
        "capacity": finite(outcome.capacity),
        "cost_per_hour": finite(outcome.cost_per_hour),
        "cost_per_1k_good_requests": cost_per_1k(outcome.cost_per_hour, goodput),
        "interval": None if low is None and high is None else [low, high],
    }


def _finding(
    objective: Objective,
    own: Outcome | None,
    rival: Outcome | None,
    verified: Mapping[int, Verified],
    *,
    bounded: bool,
) -> _Finding:
    if own is None:
        return _Finding("not_to_capacity" if bounded else "not_feasible")
    if rival is None:
        return _Finding("alone")
    forward = comparison.by_sessions(objective, own, rival, verified, min_gain=0.0, confidence=CONFIDENCE)
    if forward.proven and forward.lower is not None:
        return _Finding("cheaper", forward.lower, forward.confidence, forward.n)
    backward = comparison.by_sessions(objective, rival, own, verified, min_gain=0.0, confidence=CONFIDENCE)
    if backward.proven and backward.lower is not None:
        return _Finding("dearer", 1 / (1 - backward.lower) - 1, backward.confidence, backward.n)
    low, high = _ratio(objective, own, rival, verified)
    resolution = objective.search.resolution
    if high is not None and high < -resolution:
        return _Finding("points_to_cheaper")
    if low is not None and low > resolution:
        return _Finding("points_to_dearer")
    return _Finding("no_difference")


def _ratio(objective: Objective, own: Outcome, rival: Outcome, verified: Mapping[int, Verified]) -> Interval:
    """Interval of the change of what is minimised, as a share; None = not bounded on that side."""
    mine = _minimised(objective, own, verified.get(own.trial))
    other = _minimised(objective, rival, verified.get(rival.trial))
    low = None if mine[0] is None or other[1] is None else mine[0] / other[1] - 1
    high = None if mine[1] is None or other[0] is None else mine[1] / other[0] - 1
    return low, high


def _minimised(objective: Objective, outcome: Outcome, again: Verified | None) -> Interval:
    """From the cost, which differs from what is minimised by a factor that the configuration alone decides."""
    low, high = _goodputs(objective, outcome, again)
    weighed = comparison.weight(objective, outcome.configuration)
    return (weighed / high if high else None), (weighed / low if low else None)


def _costs(objective: Objective, outcome: Outcome, again: Verified | None) -> Interval:
    low, high = _goodputs(objective, outcome, again)
    return cost_per_1k(outcome.cost_per_hour, high), cost_per_1k(outcome.cost_per_hour, low)


def _goodputs(objective: Objective, outcome: Outcome, again: Verified | None) -> Interval:
    """
    Between which goodputs, in requests/s, the best of this trial lies: what was kept, and what was broken.

    At a fixed load there is nothing to be broken: the goodputs of the sessions are the interval.
    """
    best = outcome.best
    kept = [] if again is None else [goodput for goodput in again.kept_rps if goodput]
    if not kept and best is not None and best.score is not None:
        kept = [best.score.goodput_rps]
    if not kept:
        return None, None
    if objective.workload.load.kind != "find_capacity":
        return min(kept), max(kept)
    refused = [] if again is None else [goodput for goodput in again.refused_rps if goodput]
    if outcome.broken_at is not None:
        refused.append(_at(objective, outcome, outcome.broken_at))
    above = [goodput for goodput in refused if goodput > min(kept)]
    return min(kept), max(min(above), *kept) if above else None


def _at(objective: Objective, outcome: Outcome, load: float) -> float:
    """Goodput at a load if everything were good; in a closed loop it grows at most like the requests in flight."""
    best = outcome.best
    if not closed_loop(objective) or best is None or best.score is None or best.offered <= 0:
        return load
    return best.score.goodput_rps * load / best.offered


def _bound(group: Sequence[Outcome], own: Outcome | None) -> float | None:
    """Currency per 1,000 good requests that the pruned trials cost at least, where that says more than `own` does."""
    found = [cost_per_1k(outcome.cost_per_hour, outcome.broken_at) for outcome in group if outcome.state == "pruned"]
    least = min((cost for cost in found if cost is not None), default=None)
    known = None
    if own is not None and own.best is not None and own.best.score is not None:
        known = cost_per_1k(own.cost_per_hour, own.best.score.goodput_rps)
    return least if known is None or (least is not None and least < known) else None


def _ending(outcome: Outcome, again: Verified | None) -> str:
    """`feasible`, `refuted` when measured again, `infeasible: ttft_p99`, `config_failed: out_of_memory`."""
    if refuted(again):
        return "refuted"
    return f"{outcome.state}: {outcome.reason}" if outcome.reason else outcome.state


def _change(new: object, old: object) -> float | None:
    if not isinstance(new, int | float) or not isinstance(old, int | float) or not old:
        return None
    return finite(new / old - 1)
