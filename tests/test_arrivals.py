"""Schedules: true draws, seeded, stretched by the rate alone; and the window of a level."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.load import level_plan

from tuner.errors import InputError
from tuner.load.arrivals import DRAIN, MEASURED, WARMUP, Window, grid_of, phases, replay_times, unit_times, window_of
from tuner.load.shape import Rows, level_requests
from tuner.slo import Arrivals, Synthetic, Trace

PROCESSES = [Arrivals("constant"), Arrivals("poisson"), Arrivals("gamma", burstiness=0.25)]


def test_every_level_of_a_replay_offers_the_rate_it_says():
    """A trace twice as dense at one end: wherever a level enters it, its measured window has the offered rate."""
    dense, thin = np.linspace(0, 50, 200), np.linspace(50.5, 200, 200)
    rows = Rows(
        timestamp_s=np.concatenate([dense, thin]),
        input_tokens=np.full(400, 8),
        output_tokens=np.full(400, 2),
        block_tokens=0,
        block_offsets=np.zeros(401, dtype=np.int64),
        block_ids=np.zeros(0, dtype=np.int64),
    )
    source = Trace(path="/t.csv", format="azure")
    for number in range(1, 9):
        plan = level_plan(
            source, arrivals=Arrivals("replay"), rate_rps=4.0, number=number, min_requests=60, warmup_s=3.0
        )
        shapes = level_requests(plan, rows)
        inside = int(np.sum(shapes.phase == MEASURED))
        assert inside / shapes.window.length_s == pytest.approx(4.0, rel=0.03)


@pytest.mark.parametrize("arrivals", PROCESSES, ids=lambda arrivals: arrivals.process)
def test_the_same_seed_gives_the_same_schedule_however_long(arrivals: Arrivals):
    """The first 100 arrivals do not depend on how many follow."""
    short = unit_times(arrivals, 100, seed=3, number=2)
    assert np.array_equal(short, unit_times(arrivals, 5000, seed=3, number=2)[:100])


def test_seeds_and_levels_have_schedules_of_their_own():
    """Neither another seed nor another level repeats a draw."""
    poisson = Arrivals("poisson")
    draws = [unit_times(poisson, 50, seed=seed, number=number) for seed in (0, 1) for number in (0, 1)]
    assert len({tuple(draw) for draw in draws}) == 4


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gaps_have_the_mean_and_the_variation_of_their_process(burstiness: float, variation: float):
    """A gamma process of shape k has gaps of mean 1 and a coefficient of variation of 1/sqrt(k)."""
    gaps = np.diff(unit_times(Arrivals("gamma", burstiness), 40_000, seed=1, number=1))
    assert gaps.mean() == pytest.approx(1.0, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.04)


def test_a_poisson_schedule_is_a_true_draw():
    """Counts in disjoint windows scatter as they should: their variance equals their mean, nothing is rescaled."""
    times = unit_times(Arrivals("poisson"), 60_000, seed=5, number=1)
    counts = np.bincount((times[times < 50_000] // 50).astype(int))
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("rate_rps", [0.425, 1.0, 37.5])
def test_any_rate_is_delivered(rate_rps: float):
    """Rates below one, or fractional, are neither rounded nor refused: constant arrivals have exactly that rate."""
    plan = level_plan(rate_rps=rate_rps, duration_s=20.0, min_requests=1, arrivals=Arrivals("constant"))
    shapes = level_requests(plan, None)
    assert shapes.arrival_s is not None
    assert np.diff(shapes.arrival_s) == pytest.approx(1 / rate_rps)


def test_levels_that_differ_in_the_rate_alone_see_the_same_process_stretched():
    """Twice the rate, half the times; lengths and order stay."""
    slow, fast = (level_requests(level_plan(rate_rps=rate, min_requests=50), None) for rate in (10.0, 20.0))
    assert slow.arrival_s is not None
    assert fast.arrival_s is not None
    assert slow.arrival_s[:50] == pytest.approx(2 * fast.arrival_s[:50])


def test_the_window_lasts_until_time_and_count_are_both_reached():
    """One arrival a second: 10 s hold 10; where 15 are wanted, it ends at the 16th and holds exactly 15."""
    times = np.arange(100.0)
    assert window_of(times, warmup_s=5, duration_s=10, min_requests=3) == Window(5, 10)
    longer = window_of(times, warmup_s=5, duration_s=10, min_requests=15)
    assert longer == Window(5, 15.0)
    codes = phases(times, longer)
    assert [int((codes == code).sum()) for code in (WARMUP, MEASURED, DRAIN)] == [5, 15, 80]


def test_a_schedule_too_short_to_tell_has_no_window():
    """Neither the count nor the end of the window is in sight."""
    assert window_of(np.arange(5.0), warmup_s=0, duration_s=1, min_requests=10) is None
    assert window_of(np.arange(5.0), warmup_s=0, duration_s=60, min_requests=1) is None


def test_the_drain_lasts_as_long_as_the_last_request_may_take():
    """Arrivals go on for `timeout.total` behind the window, so the last measured request sees a loaded system."""
    plan = level_plan(rate_rps=20.0, duration_s=2.0, min_requests=10)
    shapes = level_requests(plan, None)
    assert shapes.arrival_s is not None
    assert shapes.window is not None
    last = shapes.window.end_s + plan.workload.timeout.total_s
    assert last - 1.0 < shapes.arrival_s[-1] <= last


def test_a_window_that_ends_by_count_estimates_the_rate_without_bias():
    """Over many Poisson schedules of 20 requests, arrivals / length has the offered rate as its mean."""
    rates = []
    for number in range(2000):
        times = unit_times(Arrivals("poisson"), 60, seed=1, number=number)
        window = window_of(times, warmup_s=1.0, duration_s=0.1, min_requests=20)
        assert window is not None
        rates.append(20 / window.length_s)
    assert np.mean(rates) == pytest.approx(1.0, abs=0.02)


def test_replay_keeps_the_gaps_and_normalises_their_mean():
    """Gaps of 1, 1 and 4 s become 0.5, 0.5 and 2, from wherever the trace is entered; a round ends with a mean gap."""
    unit, rows = replay_times(np.array([10.0, 11.0, 12.0, 16.0]), 9, grid_s=0.0, seed=0, number=0)
    gap_after = {0: 0.5, 1: 0.5, 2: 2.0, 3: 1.0}
    assert unit[0] == 0
    assert np.diff(unit) == pytest.approx([gap_after[row % 4] for row in rows[:-1]])
    assert np.array_equal(np.diff(rows), np.ones(8))


def test_timestamps_on_a_grid_are_spread_over_their_cell():
    """Four requests at each of 0, 3 and 6 s arrive at twelve times, each within its own three seconds."""
    stamps = np.repeat([0.0, 3.0, 6.0], 4)
    assert grid_of(stamps, 0.0) == 3.0
    unit, rows = replay_times(stamps, 12, grid_s=3.0, seed=1, number=1)
    assert (np.diff(unit) > 0).all()
    assert set(rows % 12) == set(range(12))


def test_fine_timestamps_are_taken_as_they_are():
    """A trace without repeated timestamps has no grid; a stated one wins."""
    assert grid_of(np.array([0.0, 0.4, 1.1]), 0.0) == 0.0
    assert grid_of(np.array([0.0, 0.4, 1.1]), 0.5) == 0.5


@pytest.mark.parametrize("stamps", [[], [1.0], [2.0, 2.0]], ids=["none", "one", "all at once"])
def test_a_trace_without_gaps_cannot_be_replayed(stamps: list[float]):
    """The error says what was received and what to use instead."""
    with pytest.raises(InputError, match="no gaps; use poisson"):
        replay_times(np.array(stamps), 3, grid_s=0.0, seed=0, number=0)


def test_replay_of_a_synthetic_source_is_refused():
    """Only a trace has gaps of its own."""
    with pytest.raises(InputError, match="only a trace"):
        level_requests(level_plan(Synthetic(8, 2), arrivals=Arrivals("replay")), None)


@given(
    rate_rps=st.floats(0.05, 500),
    warmup_s=st.floats(0, 5),
    duration_s=st.floats(0.1, 20),
    wanted=st.integers(1, 200),
    seed=st.integers(0, 2**32),
)
def test_every_window_reaches_both_of_its_aims(
    rate_rps: float, warmup_s: float, duration_s: float, wanted: int, seed: int
):
    """Whatever the rate: at least the wanted requests and the wanted time, in ascending arrivals."""
    plan = level_plan(rate_rps=rate_rps, warmup_s=warmup_s, duration_s=duration_s, min_requests=wanted, seed=seed)
    shapes = level_requests(plan, None)
    assert shapes.arrival_s is not None
    assert shapes.phase is not None
    assert shapes.window is not None
    assert shapes.window.length_s >= duration_s
    assert (shapes.phase == MEASURED).sum() >= wanted
    assert (np.diff(shapes.arrival_s) >= 0).all()
    assert (np.diff(shapes.phase.astype(int)) >= 0).all()
