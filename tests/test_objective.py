"""Scores of measured windows."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.handmade import answers, failures, request

from tuner import metrics, recordfile
from tuner.errors import EmptyWindow
from tuner.objective import Window, score, score_windows
from tuner.slo import Limit, RequestLimits, Slo

COMPLETE = Slo(())
WITHIN_500 = Slo((), RequestLimits(ttft_s=0.5))


def scored(records, slo=COMPLETE, window_s=10.0, start_s=0.0):
    return score(records, slo, window_start_s=start_s, window_s=window_s)


def test_failures_stay_in_the_denominator():
    """10 arrivals in 10 s, 6 good, 2 slow, one 503, one empty: goodput 0.6/s, attainment 0.60, not 6/8."""
    records = [
        *answers([100] * 6 + [900] * 2),
        request(status="http_503", at_ms=810, name="x"),
        request(status="empty", at_ms=820, name="y"),
    ]
    found = scored(records, WITHIN_500)
    assert (found.n, found.good, found.completed) == (10, 6, 8)
    assert dict(found.failed) == {"empty": 1, "http_503": 1}
    assert found.goodput_rps == pytest.approx(0.6)
    assert found.attainment == pytest.approx(0.6)
    assert found.offered_rps == pytest.approx(1.0)


def test_errors_and_slow_answers_in_a_short_window():
    """10 sent in 5 s: 6 good, 2 slow, 2 × HTTP 500 make 1.2 good requests a second and an attainment of 0.60."""
    found = scored(answers([100] * 6 + [900] * 2) + failures(2), WITHIN_500, window_s=5.0)
    assert (found.goodput_rps, found.attainment) == (pytest.approx(1.2), pytest.approx(0.6))


def test_total_failure_is_never_a_fast_answer():
    """500 to all: latencies null, goodput and attainment 0, limits broken."""
    found = scored(failures(200), Slo((Limit("ttft", "p99", 1.0), Limit("itl", "p99", 1.0)), attainment=0.5))
    assert (found.goodput_rps, found.attainment, found.completed) == (0.0, 0.0, 0)
    shown = {value for name, values in found.metrics.items() for key, value in values.items() if key != "n"}
    assert shown == {None}
    assert {limit.observed for limit in found.limits} == {"broken"}
    assert not found.observed_kept
    assert not found.verified_kept


def test_a_missed_attainment_is_a_margin_not_an_error():
    """8 of 10 good under a promise of 0.9: scored, with a positive margin."""
    found = scored(answers([100] * 8 + [900] * 2), replace(WITHIN_500, attainment=0.9))
    assert found.margins == {"attainment": pytest.approx(1 / 9)}
    assert not found.observed_kept


def test_an_empty_window_is_an_error():
    """No arrival would read as "no traffic fits"."""
    with pytest.raises(EmptyWindow, match="no measured request arrived in 10 s"):
        scored([replace(record, phase="warmup") for record in answers([100] * 5)])
    with pytest.raises(EmptyWindow):
        scored([])


def test_two_empty_answers_of_four():
    """2 good, 2 empty 200: good 2, failed 2, attainment 0.5; their latency is infinite, not missing."""
    found = scored(answers([100, 100]) + failures(2, status="empty"))
    assert (found.good, found.attainment, dict(found.failed)) == (2, 0.5, {"empty": 2})
    assert found.metrics["ttft_ms"]["p50"] is None
    assert found.metrics["ttft_ms"]["n"] == 4


def test_warm_up_is_in_no_number():
    """2 requests at 3000 ms, then 8 at 100: with a warm-up of 2 mean and p99 are 100, without 680 and 3000."""
    records = answers([3000] * 2 + [100] * 8)
    slo = Slo((Limit("ttft", "p99", 1.0),))
    warmed = scored([replace(r, phase="warmup") if i < 2 else r for i, r in enumerate(records)], slo)
    cold = scored(records, slo)
    assert [warmed.metrics["ttft_ms"][key] for key in ("mean", "p99", "n")] == pytest.approx([100, 100, 8])
    assert [cold.metrics["ttft_ms"][key] for key in ("mean", "p99", "n")] == pytest.approx([680, 3000, 10])


def test_rates_are_over_the_planned_window():
    """4 answers and one time-out after 30 s in a window of 4 s: 1 good request a second, not 4/33.5."""
    records = [*answers([500] * 4, every_ms=1000), request(at_ms=3000, status="timeout_total", name="late")]
    assert scored(records, window_s=4.0).goodput_rps == pytest.approx(1.0)


def test_requests_cut_off_by_us_are_not_forgotten():
    """10 sent, 8 good, 2 unfinished: attainment 0.8."""
    found = scored(answers([100] * 8) + failures(2, status="unfinished"))
    assert found.attainment == pytest.approx(0.8)
    assert dict(found.failed) == {"unfinished": 2}


def test_a_frozen_server_shows_from_the_scheduled_arrival():
    """
    One FIFO connection, 20 ms of service, one request each 50 ms, 200 of them, frozen from 1 s to 3 s.

    p99 by nearest rank is 1.96 s counted from `scheduled`, and 20 ms counted from `sent`.
    """
    free_ms, records, from_sent = 0.0, [], []
    for index in range(200):
        scheduled = 50.0 * index
        sent = max(scheduled, free_ms)
        begin = 3000.0 if 1000.0 <= sent < 3000.0 else sent
        free_ms = begin + 20.0
        records.append(request([(free_ms - scheduled, 1)], at_ms=scheduled, sent_ms=sent, name=f"r{index:03d}"))
        from_sent.append(free_ms - sent)
    found = scored(records, Slo((Limit("ttft", "p99", 1.0),)))
    assert found.metrics["ttft_ms"]["p99"] == pytest.approx(1960.0)
    assert metrics.percentile(from_sent, 0.99) == pytest.approx(20.0)
    lags = [metrics.send_lag_s(record) for record in records]
    assert metrics.percentile(lags, 0.99) > 0.005


def test_tokens_count_where_they_came_whoever_asked_for_them():
    """Tokens of a warm-up request that come inside the window count; later ones of a measured request do not."""
    records = [
        request([(500, 1), (1500, 2), (2500, 4)], phase="warmup", name="w"),
        request([(100, 8), (1000, 16)], at_ms=1200, name="m"),
    ]
    found = scored(records, window_s=1.0, start_s=1.0)
    assert found.output_tokens_per_s == pytest.approx(2 + 8)
    assert found.good_output_tokens_per_s == pytest.approx(24)


def test_early_ends_show_in_what_was_delivered():
    """10 of 100 tokens asked: a ratio of 0.10; requests that failed otherwise are not in it."""
    records = [request([(10, 10)], asked=100, name="a"), request(asked=100, status="http_500", name="b")]
    found = scored(records)
    assert found.delivered_output_ratio == pytest.approx(0.1)
    assert found.delivered_input_ratio == pytest.approx(1.0)


def test_how_tokens_were_counted_is_said():
    """One source is named, several are `mixed`, and requests without tokens have no say."""
    records = answers([100] * 3)
    guessed = replace(records[0], token_source="chunks")
    assert scored(records).token_source == "usage"
    assert scored([guessed, *records[1:]]).token_source == "mixed"
    assert scored([*records, replace(failures(1)[0], token_source="chunks")]).token_source == "usage"


def test_stalls_are_gaps_far_above_the_median():
    """One gap of 51 ms among 99 of 10 is one stall in a hundred; 50 ms is none."""
    times = np.cumsum([100.0] + [10.0] * 99)
    for last, share in ((51.0, 0.01), (50.0, 0.0)):
        found = scored([request([*((t, 1) for t in times), (times[-1] + last, 1)])])
        assert found.stall_share == pytest.approx(share)
    assert scored(answers([100])).stall_share is None


@pytest.mark.parametrize(
    ("statistic", "value"), [("mean", 50.5), ("p50", 50), ("p95", 95), ("p99", 99), ("p99.9", 100), ("max", 100)]
)
def test_a_limited_statistic_is_the_one_that_was_asked_for(statistic, value):
    """Of 1 … 100 ms each statistic is its own number, by nearest rank."""
    found = scored(answers(range(1, 101)), Slo((Limit("ttft", statistic, 1.0),)))
    assert found.metrics["ttft_ms"][statistic] == pytest.approx(value)
    assert found.limits[0].estimate == pytest.approx(value / 1000)


def test_unlimited_percentiles_are_interpolated():
    """p99 of [100, 200, 300, 400] is 397 for display, 400 beside a limit."""
    records = answers([100, 200, 300, 400])
    assert scored(records).metrics["ttft_ms"]["p99"] == pytest.approx(397.0)
    assert scored(records, Slo((Limit("ttft", "p99", 1.0),))).metrics["ttft_ms"]["p99"] == pytest.approx(400.0)


def test_every_metric_of_a_stream():
    """1 token at 100, 3 at 160, 2 at 200 ms under its names in files, in milliseconds."""
    found = scored([request([(100, 1), (160, 3), (200, 2)])]).metrics
    means = {name: values["mean"] for name, values in found.items()}
    assert means == pytest.approx(
        {"ttft_ms": 100, "itl_ms": 20, "chunk_gap_ms": 50, "chunk_gap_max_ms": 60, "tpot_ms": 20, "e2el_ms": 200}
    )
    assert {name: values["n"] for name, values in found.items()} == {
        "ttft_ms": 1, "itl_ms": 5, "chunk_gap_ms": 2, "chunk_gap_max_ms": 1, "tpot_ms": 1, "e2el_ms": 1,
    }  # fmt: skip


def test_repeats_are_pooled_by_their_requests():
    """Rates are over both windows, percentiles over merged samples."""
    slow, fast = answers([100] * 9 + [1000]), answers([100] * 10)
    found = score_windows([Window(slow, 0.0, 5.0), Window(fast, 0.0, 5.0)], Slo((Limit("ttft", "p95", 1.0),)))
    assert (found.n, found.window_s, found.goodput_rps) == (20, 10.0, 2.0)
    assert found.metrics["ttft_ms"]["p95"] == pytest.approx(100)


def test_a_saved_level_gives_the_same_score_again(tmp_path):
    """The file of records is enough to recompute every number, bit for bit."""
    records = [*answers([100, 250, 90]), *failures(2), request([(7.7, 1), (33.3, 3)], name="s")]
    slo = Slo((Limit("ttft", "p99", 0.2), Limit("itl", "p99", 0.05)), RequestLimits(ttft_s=0.2), 0.9)
    recordfile.write(tmp_path / "records.jsonl.zst", records)
    assert scored(recordfile.read(tmp_path / "records.jsonl.zst"), slo) == scored(records, slo)


STREAMS = st.lists(
    st.tuples(
        st.sampled_from(["ok", "ok", "ok", "http_500", "disconnected", "short", "empty"]),
        st.lists(st.tuples(st.floats(0, 2000), st.integers(0, 4)), max_size=5),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=100, deadline=None)
@given(STREAMS, st.floats(1, 3000), st.randoms(use_true_random=False))
def test_scores_are_sound_whatever_came(streams, limit_ms, random):
    """Strict JSON, no NaN; classes sum to n; attainment = good / n; the order of records changes nothing."""
    records = []
    for index, (status, gaps) in enumerate(streams):
        times = np.cumsum([gap for gap, _ in gaps])
        chunks = [(float(time), tokens) for time, (_, tokens) in zip(times, gaps, strict=True)]
        records.append(request(chunks, at_ms=40.0 * index, status=status, asked=12, name=f"r{index}"))
    slo = Slo(
        (Limit("ttft", "p90", limit_ms / 1000), Limit("itl", "p99", limit_ms / 1000), Limit("tpot", "mean", 1.0)),
        RequestLimits(ttft_s=limit_ms / 1000, itl_max_s=1.0),
        0.8,
    )
    found = scored(records, slo)
    json.dumps(asdict(found), allow_nan=False)
    assert found.completed + sum(found.failed.values()) == found.n == len(records)
    assert found.good <= found.completed
    assert found.attainment == found.good / found.n
    assert all(math.isfinite(margin) for margin in found.margins.values())
    again = scored(random.sample(records, len(records)), slo)
    assert replace(again, metrics={}) == replace(found, metrics={})
    assert again.metrics == found.metrics


def test_a_large_level_agrees_with_each_request_alone():
    """The arrays of a whole window hold exactly what the single-request functions say."""
    generator = np.random.default_rng(2)
    records = [
        request(
            zip(np.cumsum(generator.exponential(20, 30)).tolist(), generator.integers(0, 4, 30).tolist(), strict=True),
            at_ms=10.0 * index,
            name=f"r{index:03d}",
            status="ok" if index % 7 else "disconnected",
            asked=60,
        )
        for index in range(100)
    ]
    for name in ("itl", "chunk_gap", "tpot", "ttft", "e2el"):
        (limit,) = scored(records, Slo((Limit(name, "p90", 0.03),))).limits
        pairs = [metrics.violations(record, name, 0.03) for record in records]
        assert (limit.violations, limit.n) == tuple(map(sum, zip(*pairs, strict=True)))
    for limits in (RequestLimits(ttft_s=0.02), RequestLimits(tpot_s=0.014, itl_max_s=0.08), RequestLimits(e2el_s=0.6)):
        good = sum(metrics.is_good(record, limits) for record in records)
        assert 0 < good < 86
        assert scored(records, Slo((), limits)).good == good
