"""Pairs of sessions that decide a promotion, and the load that a night's levels point at."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner import gate
from tuner.carried import carried
from tuner.gate import Pair, evidence, fewest_pairs, loads
from tuner.outcome import Level

WIN, LOSS, BOTH, NEITHER = Pair(True, False), Pair(False, True), Pair(True, True), Pair(False, False)


def level(load, kept):
    return Level(1, "verify", load, None, kept, "", "", "", 0.0, 0)


@pytest.mark.parametrize(("confidence", "pairs"), [(0.95, 4), (0.99, 5), (0.995, 6), (0.999, 8)])
def test_pairs_that_all_speak_for_it_prove_it(confidence, pairs):
    """2.56 a pair: 4 of them are 42.9, so 97.7 % sure; one fewer is not enough."""
    assert fewest_pairs(confidence) == pairs
    assert evidence([WIN] * pairs, confidence).state == "proven"
    assert evidence([WIN] * (pairs - 1), confidence).state == "open"


def test_evidence_is_the_product_of_the_pairs():
    """Five wins, one tie: 2.56^5 × 0.64 = 70.4, so 98.6 % sure."""
    assert evidence([WIN] * 5 + [BOTH], 0.999).confidence == pytest.approx(1 - 1 / (2.56**5 * 0.64))


@pytest.mark.parametrize("pairs", [[LOSS, LOSS], [BOTH] * 7, [NEITHER] * 7, [WIN, LOSS] * 15])
def test_a_challenger_that_does_not_win_is_given_up(pairs):
    """Two losses, seven ties, or the most pairs that are measured."""
    assert evidence(pairs, 0.995).state == "given_up"


@given(keeps=st.floats(0, 1), more=st.floats(0, 1))
def test_a_challenger_that_is_no_better_gains_nothing_on_average(keeps, more):
    """Its chance to keep its load is at most the incumbent's: the expected factor of a pair is at most 1."""
    holds = keeps + (1 - keeps) * more
    chances = {
        (mine, theirs): (keeps if mine else 1 - keeps) * (holds if theirs else 1 - holds)
        for mine, theirs in product((True, False), repeat=2)
    }
    assert sum(chance * math.exp(gate._ADDS[pair]) for pair, chance in chances.items()) <= 1 + 1e-9


def test_loads_cost_min_gain_apart_in_the_middle():
    """8 req/s against 4 at equal weights: 5.714 and 5.6, whose costs are 2 % apart, geometrically between the two."""
    mine, theirs = loads((1.0, 8.0), (1.0, 4.0), 0.02)
    assert (1 / mine) / (1 / theirs) == pytest.approx(0.98)
    assert math.sqrt(mine * theirs) == pytest.approx(math.sqrt(8.0 * 4.0))


def test_a_carried_load_lies_between_what_was_kept_and_what_was_broken():
    """Kept at 9, broken at 10: about 9.5, more certain with every level near it; the far ones say nothing."""
    two = carried([level(9.0, True), level(10.0, False)], 0.04)
    assert two.load == pytest.approx(9.49, abs=0.05)
    far = carried([level(9.0, True), level(10.0, False), level(1.0, True), level(40.0, False)], 0.04)
    assert far.load == pytest.approx(two.load, rel=0.02)
    more = carried([level(9.0, True), level(10.0, False)] * 4, 0.04)
    assert more.spread < two.spread


def test_levels_that_contradict_each_other_leave_more_open():
    """Broken at 5 and kept at 11, more than once: the load between them is known ten times less well."""
    agreeing = carried([level(7.5, True), level(8.5, False)] * 3, 0.04)
    torn = carried([level(5.0, False), level(11.0, True), level(7.5, True), level(8.5, False)] * 2, 0.04)
    assert torn.spread > 5 * agreeing.spread


def test_nothing_kept_carries_nothing_and_nothing_broken_has_no_upper_end():
    """None; and the highest load kept, of unknown error. Levels that were not judged do not count."""
    assert carried([level(3.0, False), level(2.0, None)], 0.04) is None
    found = carried([level(3.0, True), level(4.0, True), level(5.0, None)], 0.04)
    assert found.load == pytest.approx(4.0)
    assert found.spread is None


def test_carried_loads_follow_the_truth():
    """40 noisy levels around 20 req/s at 4 % noise: within 3 % of it."""
    random = np.random.default_rng(1)
    tried = 20.0 * np.exp(random.uniform(-0.1, 0.1, 40))
    found = carried([level(float(load), bool(20.0 * math.exp(random.normal(0, 0.04)) > load)) for load in tried], 0.04)
    assert found.load == pytest.approx(20.0, rel=0.03)
