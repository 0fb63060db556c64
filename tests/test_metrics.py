"""Metrics of single requests, and percentiles, against values computed by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.handmade import request

from tuner import metrics
from tuner.slo import RequestLimits

SPECULATIVE = request([(100, 1), (160, 3), (200, 2)])


def ms(value_s):
    return pytest.approx(value_s / 1000)


def itl_ms(record):
    values, counts = metrics.itl_s(record)
    return (np.repeat(values, counts) * 1000).round(6).tolist()


def test_several_tokens_in_a_chunk_are_so_many_samples():
    """1 token at 100, 3 at 160, 2 at 200 ms: TTFT 100, E2EL 200, TPOT 20, five samples of 20 ms."""
    assert metrics.ttft_s(SPECULATIVE) == ms(100)
    assert metrics.e2el_s(SPECULATIVE) == ms(200)
    assert metrics.tpot_s(SPECULATIVE) == ms(20)
    assert itl_ms(SPECULATIVE) == [20.0] * 5
    assert (metrics.chunk_gaps_s(SPECULATIVE) * 1000).round(6).tolist() == [60.0, 40.0]
    assert SPECULATIVE.output_tokens == 6


def test_tokens_of_the_first_chunk_have_no_gap():
    """4 tokens at 200, 4 at 400 ms: TPOT 200/4 = 50, not 200/7; four samples of 50."""
    record = request([(200, 4), (400, 4)])
    assert metrics.tpot_s(record) == ms(50)
    assert itl_ms(record) == [50.0] * 4


def test_time_to_first_token_is_no_gap():
    """Tokens at 500, 510 and 520 ms give two gaps of 10."""
    assert itl_ms(request([(500, 1), (510, 1), (520, 1)])) == [10.0, 10.0]


def test_latencies_count_from_the_scheduled_arrival():
    """A request sent 300 ms late has those in its TTFT; the send lag stands beside it."""
    record = request([(400, 1), (500, 1)], at_ms=1000, sent_ms=1300)
    assert metrics.ttft_s(record) == ms(400)
    assert metrics.e2el_s(record) == ms(500)
    assert metrics.send_lag_s(record) == ms(300)


@pytest.mark.parametrize("chunks", [[(100, 1)], [(100, 8)]], ids=["one token", "one chunk"])
def test_where_no_gap_is_no_gap_metric_applies(chunks):
    """An answer of one token, or of one chunk, has no TPOT and no gap; neither is ever 0."""
    record = request(chunks)
    assert metrics.tpot_s(record) is None
    assert metrics.chunk_gap_max_s(record) is None
    assert itl_ms(record) == []
    assert metrics.violations(record, "tpot", 0.001) == (0, 0)
    assert metrics.is_good(record, RequestLimits(tpot_s=0.001, itl_max_s=0.001))


def test_a_chunk_without_a_counted_token_lends_its_gap_to_the_next():
    """Token counts that lag behind the text lose no time: 1@100, 0@150, 2@200 is two samples of 50."""
    record = request([(100, 1), (150, 0), (200, 2)])
    assert itl_ms(record) == [50.0, 50.0]
    assert metrics.chunk_gap_max_s(record) == ms(50)


def test_a_stall_delivered_as_one_chunk_shows_in_the_chunk_gap_only():
    """648 ms for 4 tokens is 162 ms each, but the request froze for 648."""
    record = request([(100, 1), (748, 4)])
    assert itl_ms(record) == [162.0] * 4
    assert metrics.chunk_gap_max_s(record) == ms(648)
    assert not metrics.is_good(record, RequestLimits(itl_max_s=0.5))
    assert metrics.is_good(record, RequestLimits(itl_max_s=0.648 + 1e-9))


def test_ok_without_a_token_is_empty():
    """An empty 200 is a failure, never a fast answer."""
    record = request()
    assert metrics.outcome_class(record) == "empty"
    assert not metrics.is_complete(record)
    assert not metrics.is_good(record, RequestLimits())
    assert metrics.request_value_s(record, "ttft") == math.inf


@pytest.mark.parametrize("metric", ["ttft", "tpot", "e2el", "chunk_gap_max"])
def test_a_failed_request_is_infinitely_late(metric):
    """Fast tokens before the failure do not help."""
    assert metrics.request_value_s(request([(1, 1), (2, 1)], status="disconnected"), metric) == math.inf


@pytest.mark.parametrize("metric", ["itl", "chunk_gap"])
def test_a_failed_request_owes_the_tokens_it_did_not_deliver(metric):
    """2 of 10 tokens came, 10 ms apart: one kept gap and eight violating units."""
    record = request([(100, 1), (110, 1)], status="stream_error", asked=10)
    assert metrics.undelivered(record) == 8
    assert metrics.violations(record, metric, 0.05) == (8, 9)


def test_a_complete_request_owes_nothing():
    """An early end that the model chose is no failure."""
    assert metrics.undelivered(request([(100, 1)], asked=10)) == 0


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        (RequestLimits(), True),
        (RequestLimits(ttft_s=0.1), True),
        (RequestLimits(ttft_s=0.099), False),
        (RequestLimits(tpot_s=0.021), True),
        (RequestLimits(tpot_s=0.019), False),
        (RequestLimits(e2el_s=0.2), True),
        (RequestLimits(e2el_s=0.199), False),
        (RequestLimits(itl_max_s=0.061), True),
        (RequestLimits(itl_max_s=0.059), False),
        (RequestLimits(ttft_s=0.0), False),
    ],
)
def test_good_means_within_every_limit(limits, good):
    """A value at its limit is kept; a limit of zero is a limit."""
    assert metrics.is_good(SPECULATIVE, limits) is good


@pytest.mark.parametrize(
    ("values", "quantile", "linear", "nearest"),
    [
        ([100, 200, 300, 400], 0.99, 397.0, 400),
        ([100, 200, 300, 400], 0.5, 250.0, 200),
        ([7], 0.99, 7, 7),
        ([100] * 99 + [5000], 0.99, 149.0, 100),
        ([100] * 98 + [5000] * 2, 0.99, 5000, 5000),
        ([100] * 99 + [math.inf], 0.99, math.inf, 100),
        ([100] * 98 + [math.inf] * 2, 0.99, math.inf, math.inf),
        ([100] * 999 + [5000], 0.999, 104.9, 100),
        ([], 0.5, None, None),
    ],
)
def test_percentiles_by_both_methods(values, quantile, linear, nearest):
    """Both are never NaN, infinite where failures reach them, and null of nothing."""
    assert metrics.percentile(values, quantile) == nearest
    found = metrics.percentile(values, quantile, "linear")
    assert found == (linear if linear is None else pytest.approx(linear))


def test_percentiles_are_taken_of_the_merged_samples():
    """p95 of two replicas is 100 pooled, not the mean of their 1000 and 100."""
    first, second = [100] * 9 + [1000], [100] * 10
    assert metrics.percentile(first, 0.95) == 1000
    assert metrics.percentile(first + second, 0.95) == 100


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.floats(0, 1))
def test_linear_percentiles_are_those_of_numpy(values, quantile):
    """For finite values linear interpolation is NumPy's default."""
    assert metrics.percentile(values, quantile, "linear") == pytest.approx(
        float(np.percentile(values, quantile * 100)), abs=2e-6 * max(values) + 1e-12
    )


def test_every_limited_metric_is_in_the_table():
    """The names that an objective file may limit are declared, each once."""
    names = [metric.name for metric in metrics.METRICS]
    assert len(names) == len(set(names))
    assert {metric.name for metric in metrics.METRICS if metric.limited} == {
        "ttft", "itl", "chunk_gap", "tpot", "e2el", "attainment",
    }  # fmt: skip


def test_the_page_shows_the_table_as_it_is():
    """docs/metrics.md holds the table that the code declares; `python -m tuner.metrics` prints it."""
    page = Path(__file__).parents[1].joinpath("docs/metrics.md").read_text(encoding="utf-8")
    begin, end = "<!-- table of tuner.metrics -->\n", "<!-- end of table -->"
    assert page.split(begin)[1].split(end)[0] == metrics.table()
