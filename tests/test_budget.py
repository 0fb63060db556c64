"""What may be spent, and what is kept back for the verification."""

import dataclasses

import pytest

from tuner.budget import Spent, ended, exceeded, merged, used
from tuner.errors import InputError
from tuner.slo import Budget
from tuner.units import parse_budget


def test_trials_end_the_search_exactly():
    """Ten trials are ten: those that run count, and nothing is kept back for finalists."""
    budget = Budget(trials=10)
    assert ended(budget, Spent(trials=9)) is None
    assert ended(budget, Spent(trials=9), running=1) == "trials"
    assert ended(budget, Spent(trials=10)) == "trials"


@pytest.mark.parametrize(
    ("spent_h", "verification_h", "expected"),
    [(4.4, 0, None), (4.5, 0, "gpu-hours"), (3.9, 2, None), (4.0, 2, "gpu-hours")],
    ids=["below 75 %", "a quarter is kept", "below 6-2", "the dearer verification is kept"],
)
def test_money_is_kept_back_for_the_verification(spent_h, verification_h, expected):
    """The search ends at 75 % of the budget, or earlier where the verification will cost more."""
    need = Spent(unit_hours=verification_h)
    assert ended(Budget(gpu_hours=6), Spent(unit_hours=spent_h), verification=need) == expected


def test_whatever_ends_first():
    """Several limits: the first one that is reached ends the search."""
    budget = Budget(trials=10, wall_s=3600, currency=50)
    assert ended(budget, Spent(trials=3, wall_s=100, currency=40)) == "currency"
    assert used(budget, Spent(trials=5, wall_s=360, currency=25)) == {"trials": 0.5, "wall": 0.1, "currency": 0.5}


def test_verification_may_use_the_reserve():
    """Only a budget that is wholly spent stops the verification; trials never do."""
    assert exceeded(Budget(trials=1, wall_s=100), Spent(trials=5, wall_s=99)) is None
    assert exceeded(Budget(wall_s=100), Spent(wall_s=100)) == "wall"


def test_command_line_replaces_the_file_but_keeps_its_trials(objective):
    """`--budget 2h` replaces 6 GPU-hours; `--trials` replaces the number of trials."""
    search = dataclasses.replace(objective.search, budget=Budget(trials=40, gpu_hours=6))
    file = dataclasses.replace(objective, search=search)
    assert merged(file, parse_budget("2h"), None) == Budget(trials=40, wall_s=7200)
    assert merged(file, None, 12) == Budget(trials=12, gpu_hours=6)


def test_budget_in_a_foreign_currency_is_refused(objective):
    """Prices in USD say nothing about a budget in JPY."""
    with pytest.raises(InputError, match="prices are in USD"):
        merged(objective, parse_budget("50 JPY"), None)
