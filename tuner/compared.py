"""The incumbent's night beside its nights before: which count, what has changed, and what it may come from. Pure."""

import math
from collections.abc import Mapping, Sequence

from tuner import drift
from tuner.nightfile import Comparison, Figures, Night

#: Fingerprints that begin a new history where they differ: other traffic, promises or prices have other costs.
NEW_HISTORY = ("workload", "slo", "cluster")
_NAMES = {
    "engine": "engine version",
    "driver": "driver",
    "machine": "machine",
    "model_revision": "model revision",
    "tuner": "tuner version",
}
_FLAGS = {"engine": "engine command, flags or environment", "model": "model or its revision"}


def compare(tonight: Night, before: Sequence[Night], expected_noise: float) -> Comparison:
    """
    What tonight says beside the nights before.

    Args:
        tonight: With the incumbent's figures.
        before: All earlier nights, oldest first.
        expected_noise: Standard deviation of one night's cost, as far as is known without these nights.
    """
    if tonight.incumbent is None or tonight.incumbent.state == "infra_failed":
        return _plain("unmeasured", 0, "the incumbent was not measured")
    earlier = history(tonight, before)
    if tonight.incumbent.capacity is None:
        return _broken(tonight, tonight.incumbent, earlier)
    if not earlier:
        return _first(tonight, before)
    if tonight.incumbent.spread is None:
        return _plain("unmeasured", len(earlier), "no load was seen broken: its cost is known from above alone")
    points = [_point(tonight.number, tonight.incumbent, tonight.baseline)]
    points = [*(_point(number, own, base) for number, own, base in earlier), *points]
    found = drift.change(points, max(expected_noise, _spread([tonight.incumbent, *(own for _, own, _ in earlier)])))
    changed = [night for night in before if night.number < (found.since or tonight.number)]
    after = [night for night in before if night.number >= (found.since or tonight.number)]
    causes = () if found.shape is None else _causes([*changed[-1:]], [*after, tonight][0], found.scope)
    lately = [change for night in before[-1:] for change in _changes(night, tonight)]
    return _worded(found, causes, "" if found.shape else _since(lately, before))


def history(tonight: Night, before: Sequence[Night]) -> list[tuple[int, Figures, Figures | None]]:
    """
    Earlier nights of the same incumbent under the same traffic, promises and prices, oldest first.

    A finding begins a new history: a step with the first night after it, a drift with the night that found it.

    Returns:
        Number of the night, the incumbent's figures, those of the engine's defaults.
    """
    assert tonight.incumbent is not None  # noqa: S101  (the caller has looked)
    wanted = dict(tonight.incumbent.configuration)
    found: list[tuple[int, Figures, Figures | None]] = []
    first = 0
    for night in reversed(before):
        if night.number < first or _changed_inputs(night, tonight):
            break
        if night.status == "promoted" and night.challenger is not None:
            if dict(night.challenger.configuration) == wanted and night.challenger.spread is not None:
                found.append((night.number, night.challenger, night.baseline))
            break
        if night.incumbent is None or dict(night.incumbent.configuration) != wanted:
            if night.incumbent is not None:
                break
            continue
        if night.incumbent.spread is not None:
            found.append((night.number, night.incumbent, night.baseline))
        if night.comparison is not None and night.comparison.since is not None:
            gradual = night.comparison.verdict == "drift"
            first = max(first, night.number if gradual else night.comparison.since)
    return found[::-1]


def _changed_inputs(night: Night, tonight: Night) -> list[str]:
    return [part for part in NEW_HISTORY if night.fingerprints.get(part) != tonight.fingerprints.get(part)]


def _point(number: int, own: Figures, base: Figures | None) -> drift.Point:
    cost = _log_cost(own)
    assert cost is not None  # noqa: S101  (only nights with a capacity are taken)
    return drift.Point(number, cost, None if base is None else _log_cost(base))


def _log_cost(figures: Figures) -> float | None:
    if not figures.capacity or not figures.cost_per_hour or figures.spread is None:
        return None
    return math.log(figures.cost_per_hour / figures.capacity)


def _spread(figures: Sequence[Figures]) -> float:
    """Standard error of a figure, over these; a search of few levels leaves much open."""
    return math.sqrt(sum((each.spread or 0.0) ** 2 for each in figures) / len(figures))


def _first(tonight: Night, before: Sequence[Night]) -> Comparison:
    last = next((night for night in reversed(before) if night.incumbent is not None), None)
    parts = [] if last is None else _changed_inputs(last, tonight)
    if parts:
        what = ", ".join("prices or cluster" if part == "cluster" else part for part in parts)
        told = f"{what} changed since night {_number(last)}: a new history begins"
        return _plain("workload_changed", 0, told, causes=(f"{what} changed",))
    return _plain("new", 0, "the first night of this incumbent: nothing to compare with")


def _broken(tonight: Night, figures: Figures, earlier: Sequence[tuple[int, Figures, Figures | None]]) -> Comparison:
    why = f"{figures.state}: {figures.reason}" if figures.reason else figures.state
    told = f"the incumbent keeps the SLO at no load ({why})"
    if not earlier:
        return _plain("new", 0, told)
    base = tonight.baseline
    both = base is not None and base.capacity is None
    causes = (
        ("machine, driver or engine: the engine's defaults fail as well",) if both else ("this configuration alone",)
    )
    return Comparison(
        "regression", None, None, None, drift.CONFIDENCE, len(earlier), tonight.number, None,
        "both" if both else "incumbent", causes, told,
    )  # fmt: skip


def _plain(verdict: str, nights: int, sentence: str, causes: tuple[str, ...] = ()) -> Comparison:
    return Comparison(
        verdict, None, None, None, drift.CONFIDENCE, nights, None, None, causes=causes, sentence=sentence  # type: ignore[arg-type]
    )  # fmt: skip


def _since(changes: Sequence[str], before: Sequence[Night]) -> str:
    """What a night that found nothing must be read with."""
    return f"; since night {_number(before[-1])}: {', '.join(changes)}" if changes else ""


def _worded(found: drift.Change, causes: tuple[str, ...], lately: str = "") -> Comparison:
    assert found.share is not None  # noqa: S101  (there is a night before)
    assert found.low is not None  # noqa: S101
    assert found.high is not None  # noqa: S101
    nights = f"{found.nights} night{'s' if found.nights > 1 else ''} before"
    interval = f"{found.low:+.1%} to {found.high:+.1%} at {drift.CONFIDENCE:.0%}"
    if found.shape is None:
        clear = found.low > 0 or found.high < 0
        word = (
            f"not clear of the noise (an alarm needs {drift.CLEAR:g} standard errors)" if clear else "within the noise"
        )
        verdict, told = "stable", f"cost {found.share:+.1%} ({interval}) beside the {nights}: {word}{lately}"
    else:
        dearer = found.share > 0
        verdict = ("drift" if found.shape == "ramp" else "regression") if dearer else "improved"
        how = "little by little since" if found.shape == "ramp" else "at once in"
        word = "dearer" if dearer else "cheaper"
        told = f"the incumbent became {abs(found.share):.1%} {word} ({interval}), {how} night {found.since}"
    return Comparison(
        verdict, found.share, found.low, found.high, drift.CONFIDENCE, found.nights, found.since, found.noise,  # type: ignore[arg-type]
        found.scope, causes, told,
    )  # fmt: skip


def _changes(one: Night, other: Night) -> list[str]:
    """Versions and inputs that differ between two nights, in words."""
    flags = [
        f"{name} changed" for part, name in _FLAGS.items() if one.fingerprints.get(part) != other.fingerprints.get(part)
    ]
    return [*_differing(_NAMES, one.versions, other.versions), *flags]


def _causes(last: Sequence[Night], first: Night, scope: str) -> tuple[str, ...]:
    """What differs between the last night before a change and the first one after it."""
    found = [change for night in last for change in _changes(night, first)]
    if found:
        return tuple(found)
    if scope == "both":
        return ("machine or its surroundings: the engine's defaults changed as well, no version did",)
    if scope == "incumbent":
        return ("this configuration alone: the engine's defaults did not change, nor did a version",)
    return ("unknown: no version changed",)


def _differing(names: Mapping[str, str], was: Mapping[str, str | None], now: Mapping[str, str | None]) -> list[str]:
    return [
        f"{name}: {was.get(key) or 'unknown'} → {now.get(key) or 'unknown'}"
        for key, name in names.items()
        if was.get(key) != now.get(key)
    ]


def _number(night: Night | None) -> int:
    return 0 if night is None else night.number
