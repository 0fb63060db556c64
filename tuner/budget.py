"""What a study may spend, what it has spent, and what it must keep for the verification. Pure."""

from dataclasses import dataclass, replace

from tuner.errors import InputError
from tuner.slo import Budget, Objective
from tuner.units import Amount

#: Share of a budget that the verification of finalists may always count on.
RESERVED = 0.25
#: Share that it gets at most: a budget that cannot verify should at least search.
MOST_RESERVED = 0.5


@dataclass(frozen=True)
class Spent:
    trials: int = 0  # finished outcomes of every kind but infra_failed, baseline included
    wall_s: float = 0.0
    unit_hours: float = 0.0  # GPU-hours, or slot-hours of a CPU pool
    currency: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.trials + other.trials,
            self.wall_s + other.wall_s,
            self.unit_hours + other.unit_hours,
            self.currency + other.currency,
        )


def used(budget: Budget, spent: Spent) -> dict[str, float]:
    """Share of each limited quantity that is spent; may exceed 1."""
    pairs = {
        "trials": (spent.trials, budget.trials),
        "wall": (spent.wall_s, budget.wall_s),
        "gpu-hours": (spent.unit_hours, budget.gpu_hours),
        "currency": (spent.currency, budget.currency),
    }
    return {name: have / limit if limit else 1.0 for name, (have, limit) in pairs.items() if limit is not None}


def ended(budget: Budget, spent: Spent, *, running: int = 0, verification: Spent | None = None) -> str | None:
    """
    Name of the limit that ends the search now, or None.

    Args:
        budget: What may be spent.
        spent: What is spent.
        running: Trials that run and are not in `spent`.
        verification: What verifying baseline and two finalists will cost; None = unknown. The larger of it and a
            quarter of the budget is kept back, but never more than half. A budget in trials keeps nothing back:
            re-measured finalists are no trials.
    """
    if budget.trials is not None and spent.trials + running >= budget.trials:
        return "trials"
    need = verification or Spent()
    for name, have, reserve, limit in (
        ("wall", spent.wall_s, need.wall_s, budget.wall_s),
        ("gpu-hours", spent.unit_hours, need.unit_hours, budget.gpu_hours),
        ("currency", spent.currency, need.currency, budget.currency),
    ):
        if limit is not None and have >= limit - max(RESERVED * limit, min(reserve, MOST_RESERVED * limit)):
            return name
    return None


def fits(budget: Budget, spent: Spent, *wanted: Spent) -> bool:
    """Whether what is wanted stays within the budget, the reserve included. Trials do not count."""
    total = sum(wanted, spent)
    pairs = (
        (total.wall_s, budget.wall_s),
        (total.unit_hours, budget.gpu_hours),
        (total.currency, budget.currency),
    )
    return all(limit is None or have <= limit for have, limit in pairs)


def exceeded(budget: Budget, spent: Spent) -> str | None:
    """Name of a limit that is wholly spent, the reserve included, or None. Trials do not count."""
    return next((name for name, share in used(budget, spent).items() if name != "trials" and share >= 1), None)


def merged(objective: Objective, asked: Amount | None, trials: int | None) -> Budget:
    """
    The file's budget, with what the command line asks for in its place: `--budget` replaces every limit but the trials.

    Raises:
        InputError: A budget in another currency than the prices.
    """
    found = objective.search.budget
    if asked is not None:
        if asked.currency not in (None, objective.prices.currency):
            raise InputError(
                f"--budget: got {asked.value:g} {asked.currency}: prices are in {objective.prices.currency}; "
                f"give the budget in {objective.prices.currency}"
            )
        limit = {asked.kind: int(asked.value) if asked.kind == "trials" else asked.value}
        found = replace(Budget(trials=found.trials), **limit)  # type: ignore[arg-type]
    return found if trials is None else replace(found, trials=trials)
