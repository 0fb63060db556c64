"""Has the incumbent changed? Steps and drifts among nights, and how seldom quiet ones are called one."""

import numpy as np
import pytest

from tuner import drift
from tuner.drift import Point, change

QUIET = (0.01, -0.015, 0.02, -0.01, 0.005, -0.02, 0.015, 0.0)


def points(own, base=None):
    return [Point(number, value, None if base is None else base[number - 1]) for number, value in enumerate(own, 1)]


def test_first_night_has_nothing_to_compare_with():
    """One night: no change, no figure, no night before."""
    found = change(points([0.3]), 0.02)
    assert (found.shape, found.share, found.nights) == (None, None, 0)


def test_quiet_nights_are_no_change():
    """Noise of 1.4 % around a level, whatever that level is; tonight's difference is told with its interval."""
    found = change(points([3.0 + each for each in QUIET]), 0.02)
    assert found.shape is None
    assert found.since is None
    assert found.low < found.share < found.high


@pytest.mark.parametrize("before", [2, 3, 7])
def test_regression_is_found_on_its_night(before):
    """15 % more expensive at once, defaults included: a step that began tonight, with an interval around 15 %."""
    own = [*QUIET[:before], 0.14 + QUIET[before]]
    found = change(points(own, own), 0.015)
    assert (found.shape, found.since, found.scope) == ("step", before + 1, "both")
    assert found.low < np.expm1(0.14) < found.high


def test_a_change_of_the_incumbent_alone_is_told_apart():
    """The engine's defaults stay where they were: it is this configuration."""
    own = [*QUIET[:6], 0.3]
    found = change(points(own, list(QUIET[:7])), 0.02)
    assert (found.shape, found.scope) == ("step", "incumbent")


def test_drift_is_seen_by_what_it_adds_up_to():
    """1 % a night after six quiet nights: no night stands out from the one before, the ramp does."""
    own = [*QUIET[:6], *(0.01 * (k + 1) + QUIET[k] / 2 for k in range(8))]
    found = change(points(own, own), 0.02)
    assert found.shape == "ramp"
    assert found.since in (6, 7, 8)
    assert found.share == pytest.approx(0.08, abs=0.03)


def test_cheaper_nights_are_a_change_below_zero():
    """An engine that became faster is a step with a negative share."""
    found = change(points([*QUIET[:5], -0.2], None), 0.02)
    assert (found.shape, found.scope) == ("step", "")
    assert found.share == pytest.approx(-0.18, abs=0.02)


def test_noise_follows_what_is_seen_and_a_jump_is_none():
    """40 differences of 4 % weigh more than the 2 % expected; one jump of 50 % counts as 7 % at most."""
    wide = np.array([0.04 * (-1) ** k / np.sqrt(2) for k in range(41)])
    assert 0.03 < drift.noise(wide, 0.02) < 0.045
    assert drift.noise(np.array([0.0, 0.5, 0.5, 0.5]), 0.02) < 0.03
    assert drift.noise(np.array([0.0, 0.5, 0.5, 0.5]), 0.02, 1) < 0.02


def test_no_machine_is_believed_to_be_without_noise():
    """A simulated cluster repeats itself to the last digit: a change of 3 % is still within what is expected."""
    assert change(points([1.0] * 12 + [1.03]), 0.02).shape is None


def test_quiet_nights_seldom_alarm():
    """2 % noise, 60 fortnights: no alarm (the benchmark looks at more of them)."""
    random = np.random.default_rng(3)
    alarms = 0
    for _ in range(60):
        own, base = random.normal(0, 0.02, (2, 14))
        alarms += any(change(points(own[:n], base[:n]), 0.02).shape is not None for n in range(2, 15))
    assert alarms == 0
