"""Search spaces as values: grids, sizes, conditions, validation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.configuration import Configuration
from tuner.errors import InputError
from tuner.space import Condition, Knob, Space

SEQS = Knob("max_num_seqs", "int", low=1, high=10)
CACHE = Knob("enable_prefix_caching", "categorical", options=(True, False, None))
MODE = Knob("mode", "categorical", options=("aggregated", "disaggregated"))
PREFILL = Knob("prefill_replicas", "int", low=1, high=3, when=(Condition("mode", ("disaggregated",)),))
UTILISATION = Knob("gpu_memory_utilization", "float", low=0.9, high=0.95, step=0.01)


@pytest.mark.parametrize(
    ("low", "high", "step", "grid"),
    [
        (0.90, 0.95, 0.01, (0.90, 0.91, 0.92, 0.93, 0.94, 0.95)),
        (0.80, 0.90, 0.05, (0.80, 0.85, 0.90)),
        (0.80, 0.95, 0.05, (0.80, 0.85, 0.90, 0.95)),
        (1e-3, 3e-3, 1e-3, (0.001, 0.002, 0.003)),
    ],
    ids=["six", "three", "no-noise", "exponent"],
)
def test_float_grids_lose_neither_end_nor_round_values(low, high, step, grid):
    """CFG-08: steps are counted in decimal arithmetic."""
    knob = Knob("x", "float", low=low, high=high, step=step)
    assert knob.grid() == grid
    assert knob.choices == grid
    assert knob.count == len(grid)


def test_int_grids_have_whole_numbers():
    """Both ends are in it, and every value is an int."""
    grid = Knob("x", "int", low=1024, high=4096, step=1024).grid()
    assert grid == (1024, 2048, 3072, 4096)
    assert all(type(value) is int for value in grid)


def test_a_continuum_has_no_grid():
    """Size and grid say so rather than inventing a resolution."""
    knob = Knob("x", "float", low=0.5, high=0.9)
    assert (knob.count, knob.choices) == (None, ())
    assert Space("s", (knob, SEQS)).size() is None
    with pytest.raises(InputError, match="step"):
        knob.grid()


def test_size_and_points_leave_inactive_knobs_out():
    """OPT-11: prefill_replicas exists only where the mode is disaggregated."""
    space = Space("s", (MODE, PREFILL, CACHE))
    points = list(space.points())
    assert space.size() == len(points) == (1 + 3) * 3
    assert len({Configuration(point).key for point in points}) == len(points)
    assert all(("prefill_replicas" in point) == (point["mode"] == "disaggregated") for point in points)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
)
def test_size_counts_the_points(counts, parents):
    """With any conditions between knobs, size() is the length of points()."""
    knobs = []
    for index, count in enumerate(counts):
        when = (Condition(f"k{parents[index]}", (0,)),) if parents[index] < index else ()
        knobs.append(Knob(f"k{index}", "categorical", options=tuple(range(count)), when=when))
    space = Space("s", tuple(knobs))
    assert space.size() == sum(1 for _ in space.points())


def test_a_condition_on_an_inactive_knob_does_not_hold():
    """Grandchildren vanish with their parents."""
    child = Knob("x", "categorical", options=(1, 2), when=(Condition("prefill_replicas", (1,)),))
    space = Space("s", (MODE, PREFILL, child))
    assert space.active({"mode": "aggregated", "prefill_replicas": 1}) == ("mode",)
    assert space.active({"mode": "disaggregated", "prefill_replicas": 1}) == ("mode", "prefill_replicas", "x")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"max_num_seqs": 999}, "max_num_seqs: got 999: outside of 1 to 10"),
        ({"max_num_sequs": 4}, "did you mean 'max_num_seqs'"),
        ({"max_num_seqs": True}, "a number"),
        ({"max_num_seqs": 1.5}, "not on the grid"),
        ({"enable_prefix_caching": 1}, "one of true, false, null"),
        ({"gpu_memory_utilization": 0.925}, "not on the grid"),
        ({"mode": "aggregated", "prefill_replicas": 2}, "needs mode = disaggregated"),
        ({"certainly_no_flag": 2}, "no such knob"),
        ({"host": "x"}, "may not be set"),
    ],
    ids=["range", "typo", "bool", "fraction", "type", "grid", "inactive", "unknown", "forbidden"],
)
def test_points_that_somebody_wrote_are_checked(knobs, message):
    """OPT-09: out of range or misspelt is an error at load, not a random trial."""
    space = Space("s", (SEQS, CACHE, UTILISATION, MODE, PREFILL))
    with pytest.raises(InputError, match=message):
        space.validate(knobs)


def test_an_incumbent_may_have_flags_outside_of_the_space():
    """Known flags of the engine pass; what is left out stays at the engine's default."""
    space = Space("s", (SEQS,))
    assert space.validate({"enforce_eager": True, "max_num_seqs": None}).knobs == {"enforce_eager": True}


def test_a_space_holds_its_points_and_no_others():
    """An absent knob counts as null, an unknown or inactive one is a stranger."""
    space = Space("s", (SEQS, CACHE, UTILISATION, MODE, PREFILL))
    good = {"max_num_seqs": 3, "gpu_memory_utilization": 0.91, "mode": "aggregated"}
    assert space.holds(Configuration(good))
    assert space.holds(Configuration({**good, "enable_prefix_caching": False}))
    for stranger in ({"enforce_eager": True}, {"prefill_replicas": 1}, {"max_num_seqs": 11}, {"max_num_seqs": None}):
        assert not space.holds(Configuration({**good, **stranger}))


def test_the_fingerprint_is_of_the_points_alone():
    """Order, names of files and sources do not matter; a range, an option or its type does."""
    base = Space("s", (SEQS, CACHE)).fingerprint
    assert Space("t", (CACHE, Knob("max_num_seqs", "int", low=1, high=10, source="a book"))).fingerprint == base
    assert Space("s", (Knob("max_num_seqs", "int", low=1, high=11), CACHE)).fingerprint != base
    assert Space("s", (SEQS, Knob("enable_prefix_caching", "categorical", options=(1, 0, None)))).fingerprint != base


def test_flags_and_shapes_are_told_apart():
    """A knob names the flag that it sets; one that shapes the deployment sets none."""
    assert SEQS.flag == "max_num_seqs"
    assert MODE.flag is None
    assert Knob("enforce_eager", "categorical", options=(True,)).fixed
