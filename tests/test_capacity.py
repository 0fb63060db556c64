"""The highest load within the SLO: bracket, bisection, and what noise may not do to them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.capacity import Bracket, Rules, Step, bracket, finished, next_load

OPEN = Rules(resolution=0.05, max_levels=40, whole=False)
CLOSED = Rules(resolution=0.05, max_levels=40, whole=True)


def climb(capacity: float, first: float, rules: Rules) -> list[Step]:
    """Every level of a deployment that keeps exactly the loads up to `capacity`."""
    steps: list[Step] = []
    while (load := next_load(steps, rules, first)) is not None:
        steps.append(Step(load, load <= capacity))
    return steps


@given(capacity=st.floats(0.01, 500), first=st.floats(0.01, 500))
def test_open_loop_capacity_is_found_to_the_resolution(capacity, first):
    """Wherever the search starts, the true capacity lies in a bracket of 5 %."""
    steps = climb(capacity, first, OPEN)
    found = bracket(steps)
    assert finished(steps, OPEN)
    assert found.kept <= capacity < found.broken <= found.kept * 1.05 * (1 + 1e-9)


@given(capacity=st.integers(1, 500), first=st.integers(1, 500))
def test_closed_loop_capacity_is_a_whole_number(capacity, first):
    """Concurrency is bracketed by neighbours, or to 5 %, and every load tried is a whole number of at least 1."""
    steps = climb(capacity, first, CLOSED)
    found = bracket(steps)
    assert all(step.load == int(step.load) >= 1 for step in steps)
    assert found.kept <= capacity < found.broken
    assert found.broken - found.kept <= max(1, 0.05 * found.kept)


def test_knee_at_4_2_is_found_from_8():
    """COST-06: with a knee at 4.2 req/s the answer is 4.x, not the highest rate tried."""
    assert bracket(climb(4.2, 8, OPEN)).kept == pytest.approx(4.1, abs=0.15)


def test_level_limit_ends_the_search_without_a_claim():
    """Four levels from far away leave the bracket open, and `finished` says so."""
    rules = Rules(resolution=0.05, max_levels=4, whole=False)
    steps = climb(100, 1, rules)
    assert [step.load for step in steps] == [1, 2, 4, 8]
    assert not finished(steps, rules)


def test_nothing_is_kept_when_requests_hardly_meet():
    """Descending stops once fewer than half a request is in flight: a lower load cannot help."""
    steps = [Step(2, kept=False, in_flight=1.6), Step(1, kept=False, in_flight=0.4)]
    assert next_load(steps, OPEN, 2) is None
    assert bracket(steps) == Bracket(None, 1)


def test_doubtful_break_at_the_end_is_measured_again():
    """A bracket closed by a point estimate alone is confirmed once, and overturned by the second look."""
    closed = [Step(4, kept=True), Step(4.1, kept=False, certain=False)]
    assert next_load(closed, OPEN, 4) == 4.1
    assert next_load([*closed, Step(4.1, kept=False, certain=False)], OPEN, 4) is None
    assert next_load([*closed, Step(4.1, kept=True)], OPEN, 4) == pytest.approx(8.2)


def test_certain_break_is_believed_at_once():
    """What the always-valid test has shown needs no second look."""
    assert next_load([Step(4, kept=True), Step(4.1, kept=False, certain=True)], OPEN, 4) is None


def test_kept_load_above_a_broken_one_does_not_count():
    """More load never makes a deployment faster: the lower of two contradicting levels is believed."""
    assert bracket([Step(8, kept=True), Step(4, kept=False), Step(2, kept=True)]) == Bracket(2, 4)


@given(
    st.lists(
        st.builds(Step, load=st.sampled_from([1.0, 2.0, 3.0, 4.0]), kept=st.booleans(), certain=st.booleans()),
        max_size=12,
    )
)
def test_any_history_gives_a_load_that_makes_sense(steps):
    """The next load is above every load kept and at most the lowest one broken, whatever noise did before."""
    found = bracket(steps)
    load = next_load(steps, OPEN, 1.0)
    if load is not None and steps:
        assert found.broken is None or load <= found.broken
        assert found.kept is None or load > found.kept
