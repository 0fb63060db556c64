"""Who challenges the incumbent, whether it is worth the sessions, and what is said of the decision. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner import conclusion, nightfigures
from tuner.carried import Carried
from tuner.gate import Evidence
from tuner.nightfile import Gain
from tuner.outcome import Outcome
from tuner.slo import Gate, Objective

_COST = "cost_per_1k_good_requests"


@dataclass(frozen=True)
class Decision:
    """Of the gate."""

    promoted: bool
    reason: str
    gain: Gain | None = None


@dataclass(frozen=True)
class Rivals:
    """Challenger and incumbent with the load that each is estimated to carry, and its weight: cost = weight / load."""

    challenger: Outcome
    incumbent: Outcome
    weights: tuple[float, float]
    carried: tuple[float, float | None]  # None: the incumbent keeps the SLO at no load
    rule: Gate

    @property
    def estimate(self) -> float | None:
        """Share of the incumbent's cost that the challenger saves."""
        if self.carried[1] is None:
            return None
        return 1 - self.weights[0] / self.carried[0] * self.carried[1] / self.weights[1]

    @property
    def worth_it(self) -> bool:
        """Whether sessions could show a gain."""
        return self.estimate is not None and self.estimate > self.rule.min_gain

    @property
    def name(self) -> str:
        return f"trial {self.challenger.trial}"


def challenger(outcomes: Mapping[int, Outcome], result: Mapping[str, object]) -> Outcome | None:
    """The best trial that the study verified and that is not the incumbent (trial 0); None = there is none."""
    for row in nightfigures.rows(result):
        outcome = outcomes.get(int(row["trial"]))
        if outcome is not None and outcome.trial != 0 and row["state"] == "feasible" and row["verified"]:
            return outcome
    return None


def rivals(
    objective: Objective, mine: tuple[Outcome, Carried | None], theirs: tuple[Outcome, Carried | None]
) -> Rivals:
    """Challenger and incumbent; the challenger is feasible, so it carries something."""
    assert mine[1] is not None  # noqa: S101  (a feasible trial kept a level)
    weights = [conclusion.weight(objective, outcome.configuration) for outcome, _ in (mine, theirs)]
    held = None if theirs[1] is None else theirs[1].load
    return Rivals(mine[0], theirs[0], (weights[0], weights[1]), (mine[1].load, held), objective.gate)


def nobody(result: Mapping[str, object], *, over: bool) -> Decision:
    """No challenger: why, and how near the best trial of the search came."""
    why = "the window ended before a challenger was verified" if over else "no challenger was verified as feasible"
    return Decision(promoted=False, reason=why + _nearest(result))


def _nearest(result: Mapping[str, object]) -> str:
    """The best trial of the search that nothing more is known of."""
    known = {int(row["trial"]): row for row in nightfigures.rows(result) if row["state"] == "feasible"}
    own = known.pop(0, {}).get(_COST)
    best = next(iter(known.values()), None)
    if best is None:
        return ""
    cost = best.get(_COST)
    than = f" looked {_than(1 - cost / own)} the incumbent" if cost and own else " kept the SLO"
    return f"; trial {best['trial']}{than} in the search, not verified"


def without_sessions(pair: Rivals) -> Decision:
    """Where nothing has to be measured to decide."""
    if pair.estimate is None:
        why = f"{pair.name} keeps the SLO, verified; the incumbent keeps it at no load"
        return Decision(promoted=True, reason=why)
    asked = f"{pair.rule.min_gain:.1%} is asked for"
    why = f"{pair.name}, the best challenger, is {_than(pair.estimate)} the incumbent; {asked}"
    return Decision(promoted=False, reason=why)


def cut_short(pair: Rivals) -> Decision:
    """The window ended during the sessions."""
    why = f"{pair.name} looks {_than(pair.estimate)} the incumbent, but the window ended before the gate decided"
    return Decision(promoted=False, reason=why)


def decided(pair: Rivals, found: Evidence, pairs: int) -> Decision:
    """What the sessions say."""
    proven, rule = found.state == "proven", pair.rule
    more = f"cheaper by more than {rule.min_gain:.1%}"
    if proven:
        why = (
            f"{pair.name} is {more} than the incumbent ({found.confidence:.2%} sure, {2 * pairs} sessions by turns; "
            f"estimate {pair.estimate:.1%})"
        )
    else:
        why = (
            f"{pair.name} looked {_than(pair.estimate)} the incumbent, but {2 * pairs} sessions by turns did not show "
            f"that it is {more} ({found.confidence:.1%} sure, {rule.confidence:.1%} is asked for)"
        )
    gain = Gain(
        estimate=pair.estimate,
        lower=rule.min_gain if proven else None,
        confidence=found.confidence,
        sessions=2 * pairs,
        min_gain=rule.min_gain,
        asked=rule.confidence,
        proven=proven,
    )
    return Decision(proven, why, gain)


def _than(estimate: float | None) -> str:
    found = estimate or 0.0
    return f"{abs(found):.1%} {'cheaper' if found > 0 else 'dearer'} than"
