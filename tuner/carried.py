"""
How much load a configuration carries, judged by all levels of a night together. Pure.

A level at load L is kept with the chance that the deployment's capacity, which differs a little from run to run, is
above L: a probit curve. Its middle is the estimate, which the 5 % steps of the search would round. Levels that
contradict each other show that the curve is wider than expected, and leave more of it open.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from tuner.outcome import Level

#: A level's own chance adds to the noise of the run: its limit is judged by some hundred requests.
RUNS = 2.0
#: Grid of the estimate beyond the lowest and the highest load, as a factor, and its points.
_BEYOND, _POINTS = 1.25, 801
#: Widths that are thought possible, each twice the one before.
_WIDTHS = 5


@dataclass(frozen=True)
class Carried:
    """The load that a configuration carries."""

    load: float  # in the unit of the levels: requests/s or concurrent requests
    spread: float | None  # standard error of its logarithm; None = only one side was seen


def carried(levels: Sequence[Level], width: float) -> Carried | None:
    """
    The load that the levels point at; None where none was kept.

    Args:
        levels: Of one configuration; invalid and undecided ones are left out.
        width: Standard deviation of the logarithm of a run's capacity, at the least; twice as much is believed to be a
            quarter as likely beforehand.
    """
    seen = [(math.log(level.offered), bool(level.kept)) for level in levels if level.kept is not None]
    kept = [load for load, good in seen if good]
    if not kept:
        return None
    if len(kept) == len(seen):
        return Carried(math.exp(max(kept)), None)
    loads = np.array([load for load, _ in seen])
    signs = np.array([1.0 if good else -1.0 for _, good in seen])
    grid = np.linspace(loads.min() - math.log(_BEYOND), loads.max() + math.log(_BEYOND), _POINTS)
    factors = 2.0 ** np.arange(_WIDTHS)
    chance = special.log_ndtr(signs * (grid[:, None, None] - loads) / (width * factors[:, None])).sum(axis=2)
    chance -= 2 * np.log(factors)
    shares = np.exp(chance - chance.max())
    weights = shares.sum(axis=1) / shares.sum()
    middle = float(weights @ grid)
    return Carried(math.exp(middle), math.sqrt(float(weights @ (grid - middle) ** 2)))
