"""The reference cases keep their shape; the page and the figures come from the same command."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def cases():
    path = ROOT / "benchmarks" / "reference_cases.py"
    spec = importlib.util.spec_from_file_location("reference_cases", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def points(cases):
    return {(point.deployment, point.concurrency): point for point in cases.case_a(cases.CONCURRENCY, rounds=4)}


def test_the_tail_of_one_engine_grows_and_that_of_a_split_stays_flat(cases, points):
    """ITL p99 and p99.9 from 1 to 64 at a time: over 20-fold in one engine, under threefold where prefill is apart."""
    for tail in ("itl_p99_ms", "itl_p999_ms"):
        whole, split = (
            [getattr(points[name, load], tail) for load in cases.CONCURRENCY]
            for name in (cases.AGGREGATED, cases.SPLIT)
        )
        assert whole == sorted(whole)
        assert whole[-1] > 20 * whole[0]
        assert max(split) < 3 * split[0]
        assert whole[-1] > 5 * split[-1]


def test_a_small_budget_lies_in_between(cases, points):
    """By ITL p99.9 wherever requests meet; by p99 from 16 requests at a time on."""
    for load in cases.CONCURRENCY[1:]:
        three = [points[name, load] for name in (cases.SPLIT, cases.SMALL, cases.AGGREGATED)]
        assert [each.itl_p999_ms for each in three] == sorted(each.itl_p999_ms for each in three)
        if load >= 16:
            assert [each.itl_p99_ms for each in three] == sorted(each.itl_p99_ms for each in three)


def test_where_p99_misses_the_stalls_the_largest_gap_does_not(cases, points):
    """At 8 at a time fewer than 1 % of the gaps of the large budget stall, more of the small one, each shorter."""
    whole, small, split = (points[name, 8] for name in (cases.AGGREGATED, cases.SMALL, cases.SPLIT))
    assert whole.stalled < 0.01 < small.stalled
    assert split.largest_gap_p50_ms < small.largest_gap_p50_ms < 0.5 * whole.largest_gap_p50_ms


def test_a_split_takes_somewhat_longer_in_all(cases, points):
    """Mean time to the last token at 32 requests at a time: longer, by less than a third."""
    whole, split = (points[name, 32].e2el_mean_s for name in (cases.AGGREGATED, cases.SPLIT))
    assert whole < split < 1.33 * whole


def test_first_tokens_come_the_sooner_the_more_the_store_holds(cases):
    """Monotone in the hit; a full one is worth 1.75× ± 0.25, and loading is near a quarter of what is left."""
    found = cases.case_b()
    times = [point.ttft_ms for point in found]
    assert times == sorted(times, reverse=True)
    assert found[-1].speed_up == pytest.approx(1.75, abs=0.25)
    assert found[-1].load_ms / found[-1].ttft_ms == pytest.approx(0.25, abs=0.05)


def test_files_are_written_alike_each_time(cases, points, tmp_path):
    """Page and figures are functions of the points."""
    first, second = list(points.values()), cases.case_b()
    for name in ("one", "two"):
        cases.figures(first, second, tmp_path / name)
    for figure in ("reference-case-a.svg", "reference-case-b.svg"):
        assert (tmp_path / "one" / figure).read_bytes() == (tmp_path / "two" / figure).read_bytes()
    page = cases.page(first, second)
    assert "figures/reference-case-a.svg" in page
    assert cases.table_b(second) in page
