"""When nothing is feasible: the nearest point, the limit that binds, and what relaxing each limit would allow. Pure."""

from collections.abc import Mapping, Sequence

from tuner.described import describe, finite
from tuner.objective import Score
from tuner.outcome import Level
from tuner.slo import Objective
from tuner.standing import Standing, cost_per_1k


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
