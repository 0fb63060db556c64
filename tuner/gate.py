"""
Is the challenger cheaper than the incumbent by more than `min_gain`? A test on pairs of sessions. Pure.

Each pair starts both deployments anew, one after the other, and offers each of them one load: the challenger the load
at which it costs (1 − min_gain) × K, the incumbent the load at which it costs K. A challenger that is better by less
than `min_gain` keeps its load at most as often as the incumbent keeps its own, whatever the noise of the machine. The
evidence against that is a product over pairs with an expectation of at most 1 (Turner and Grünwald, Safe testing for
two-sample binomial data, 2021): it exceeds 1 / (1 − confidence) with a chance of at most 1 − confidence, however often
one looks, so the pairs end as soon as it does. The loads of a pair may depend on all pairs before it. Both sessions of
a pair get the same schedule: chance that falls on both alike only makes the test more careful.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: Chance of keeping the load that the evidence is built for; the incumbent's is one minus it.
HOPED = 0.8
#: Pairs at most.
MOST_PAIRS = 30
#: Evidence below which a challenger is given up.
HOPELESS = 0.05

#: Logarithm of what one pair adds, by (challenger kept, incumbent kept).
_ADDS = {
    (True, False): math.log(HOPED * HOPED / 0.25),
    (True, True): math.log(HOPED * (1 - HOPED) / 0.25),
    (False, False): math.log(HOPED * (1 - HOPED) / 0.25),
    (False, True): math.log((1 - HOPED) * (1 - HOPED) / 0.25),
}


@dataclass(frozen=True)
class Pair:
    """Which of the two kept its load."""

    challenger: bool
    incumbent: bool


@dataclass(frozen=True)
class Evidence:
    """What the pairs say."""

    confidence: float  # 1 − 1 / evidence, at least 0
    state: Literal["open", "proven", "given_up"]


def evidence(pairs: Sequence[Pair], confidence: float) -> Evidence:
    """
    The evidence after these pairs, in the order in which they were measured.

    Args:
        pairs: All of them.
        confidence: That is asked for.
    """
    total = sum(_ADDS[pair.challenger, pair.incumbent] for pair in pairs)
    reached = max(0.0, -math.expm1(-total))
    if reached >= confidence:
        return Evidence(reached, "proven")
    out = total <= math.log(HOPELESS) or len(pairs) >= MOST_PAIRS
    return Evidence(reached, "given_up" if out else "open")


def fewest_pairs(confidence: float) -> int:
    """Pairs that prove a gain where every one of them speaks for it."""
    return math.ceil(-math.log1p(-confidence) / _ADDS[True, False])


def loads(challenger: tuple[float, float], incumbent: tuple[float, float], min_gain: float) -> tuple[float, float]:
    """
    Loads of a pair: their costs lie `min_gain` apart, in the middle between the two estimated costs.

    Args:
        challenger: Its weight (cost = weight / load) and the load that it is estimated to carry.
        incumbent: Likewise.
        min_gain: Share of the incumbent's cost, such as 0.02.

    Returns:
        Load of the challenger and of the incumbent.
    """
    costs = (challenger[0] / challenger[1], incumbent[0] / incumbent[1])
    middle = math.sqrt(costs[0] * costs[1] / (1 - min_gain))
    return challenger[0] / ((1 - min_gain) * middle), incumbent[0] / middle
