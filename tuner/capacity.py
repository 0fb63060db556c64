"""
The highest load that one deployment carries within the SLO: which load to try next, given what was seen so far.

A geometric bracket from a first guess, then bisection (on the logarithm) until the bracket is as narrow as asked. Pure:
the trial runs the levels, this module only chooses them, so a resumed or replayed history gives the same next load.

Noise: a broken level that ended the bracket by its point estimate alone is measured once more before it is believed,
because one unlucky level at a low load would otherwise halve the capacity for good. A kept level is not repeated here:
the verification of finalists is what catches a lucky one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Below this mean number of requests in flight they hardly meet: a lower load cannot help any more.
ALONE = 0.5


@dataclass(frozen=True)
class Rules:
    resolution: float  # relative width at which bisection ends: 0.05 = capacity known to 5 %
    max_levels: int
    whole: bool  # loads are whole numbers (closed loop)
    growth: float = 2.0  # factor of the geometric bracket


@dataclass(frozen=True)
class Step:
    """One load that was tried."""

    load: float
    kept: bool
    certain: bool = True  # a broken level: by the always-valid test, or by the confidence bound
    in_flight: float | None = None  # mean requests in flight; None = unknown


@dataclass(frozen=True)
class Bracket:
    kept: float | None  # highest load that was kept, below every broken one
    broken: float | None  # lowest load that stands as broken

    def closed(self, rules: Rules) -> bool:
        """Nothing lies between that is worth a level."""
        if self.kept is None or self.broken is None:
            return False
        if rules.whole and self.broken - self.kept <= 1:
            return True
        return self.broken <= self.kept * (1 + rules.resolution)


def bracket(steps: Sequence[Step]) -> Bracket:
    """
    What the history says. A load that was tried twice goes by its last verdict.

    A kept load above a broken one does not count: more load never makes a deployment faster, so one of the two is
    noise, and the lower one is the safer reading.
    """
    last = {step.load: step.kept for step in steps}
    broken = min((load for load, kept in last.items() if not kept), default=None)
    kept = max((load for load, kept in last.items() if kept and (broken is None or load < broken)), default=None)
    return Bracket(kept, broken)


def next_load(steps: Sequence[Step], rules: Rules, first: float) -> float | None:
    """
    The load of the next level, or None when the capacity is known as well as asked, or nothing more can be done.

    Args:
        steps: What was tried on this deployment, in order.
        rules: Resolution and limits.
        first: Load of the first level, > 0, in requests/s or concurrent requests.
    """
    if len(steps) >= rules.max_levels:
        return None
    if not steps:
        return _whole(first, rules)
    seen = bracket(steps)
    if seen.broken is None:
        return _whole(max(step.load for step in steps) * rules.growth, rules)
    return _below(steps, seen.broken, rules) if seen.kept is None else _between(steps, seen.kept, seen.broken, rules)


def _below(steps: Sequence[Step], broken: float, rules: Rules) -> float | None:
    """Nothing was kept yet: lower, until requests hardly meet."""
    lowest = [step for step in steps if step.load == broken]
    if (rules.whole and broken <= 1) or any(s.in_flight is not None and s.in_flight < ALONE for s in lowest):
        return _confirm(lowest)
    return _whole(broken / rules.growth, rules)


def _between(steps: Sequence[Step], kept: float, broken: float, rules: Rules) -> float | None:
    """The middle of the bracket; at its end the broken load again, if its verdict may be bad luck."""
    if Bracket(kept, broken).closed(rules):
        return _confirm([step for step in steps if step.load == broken])
    middle = math.sqrt(kept * broken)
    if rules.whole:
        middle = min(max(round(middle), kept + 1), broken - 1)
    return middle


def finished(steps: Sequence[Step], rules: Rules) -> bool:
    """Whether the capacity is known to the resolution asked for, rather than given up."""
    return bracket(steps).closed(rules)


def _confirm(at_broken: Sequence[Step]) -> float | None:
    """The broken load again, once, where its verdict may be bad luck."""
    if len(at_broken) == 1 and not at_broken[0].certain:
        return at_broken[0].load
    return None


def _whole(load: float, rules: Rules) -> float:
    return float(max(1, round(load))) if rules.whole else load
