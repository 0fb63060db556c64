"""The validity gate: a level that the client spoilt is never scored."""

from dataclasses import replace

import pytest
from support.fake_openai import FakeOpenAI, steady
from support.load import endpoint_of, level_plan, run_level

from tuner.load.plan import ClientHealth, LevelData
from tuner.records import Record
from tuner.slo import Limit, RequestLimits, Slo
from tuner.validity import invalid_reason, lag_limit_s


def record(index: int, *, lag_s: float = 0.0, sent: bool = True, status: str = "ok") -> Record:
    at_s = 0.05 * index
    return Record(
        id=str(index),
        scheduled_s=at_s,
        sent_s=at_s + lag_s if sent else None,
        first_token_s=at_s + lag_s + 0.02,
        last_token_s=at_s + lag_s + 0.02,
        asked_input_tokens=8,
        input_tokens=8,
        asked_output_tokens=1,
        output_tokens=1,
        token_source="usage",
        chunks=((at_s + lag_s + 0.02, 1),),
        status=status,
        error=None,
        phase="measured",
    )


def level(records: list[Record], health: ClientHealth | None = None, slo: Slo | None = None) -> LevelData:
    return LevelData(
        plan=level_plan(slo=slo),
        records=tuple(records),
        window_start_s=0.0,
        window_s=0.05 * len(records),
        realised_rps=20.0,
        health=health or ClientHealth(),
    )


def test_a_client_that_kept_up_is_valid():
    """No lag, every arrival sent in time."""
    assert invalid_reason(level([record(index) for index in range(200)])) == ""


@pytest.mark.parametrize(
    ("slo", "limit_s"),
    [
        (Slo(()), 0.005),
        (Slo((Limit("ttft", "p99", 2.0),)), 0.005),
        (Slo((Limit("ttft", "p99", 2.0), Limit("itl", "p99", 0.06))), 0.003),
        (Slo((Limit("ttft", "p99", 2.0),), RequestLimits(itl_max_s=0.04)), 0.002),
    ],
    ids=["no limit", "loose limit", "tight percentile", "tight request limit"],
)
def test_the_tolerable_lag_follows_the_tightest_limit(slo: Slo, limit_s: float):
    """min(5 ms, 5 % of the tightest limit), limits of a request included."""
    assert lag_limit_s(slo) == pytest.approx(limit_s)


@pytest.mark.parametrize(
    ("health", "reason"),
    [
        (ClientHealth(send_lag_p99_s=0.0071), "client_saturated: send lag p99 7.1 ms > 5 ms"),
        (ClientHealth(loop_lag_p99_s=0.02), "client_saturated: loop lag p99 20 ms > 5 ms"),
        (ClientHealth(connections_dropped=3), "client_saturated: the client dropped 3 connections by itself"),
    ],
    ids=["send lag", "loop lag", "dropped"],
)
def test_each_way_of_falling_behind_is_named(health: ClientHealth, reason: str):
    """The reason carries the figure and the bound."""
    assert invalid_reason(level([record(0)], health)) == reason


def test_a_lag_at_the_bound_is_tolerable():
    """The bound itself is still fine: zero and the limit are values."""
    assert invalid_reason(level([record(0)], ClientHealth(send_lag_p99_s=0.005))) == ""


def test_arrivals_off_the_schedule_spoil_a_level():
    """
    A server frozen from 1 s to 3 s behind one connection: 40 of 200 requests leave late, half of them past the window.
    """
    records = [record(index, lag_s=2.0 if index >= 180 else 0.0) for index in range(200)]
    assert "180 requests left in the window, 200 were scheduled" in invalid_reason(level(records))


def test_a_server_that_refuses_connections_does_not_make_the_client_invalid():
    """Requests that could not be sent are the server's failures, not the client's lag."""
    records = [record(index, sent=False, status="disconnected") for index in range(200)]
    assert invalid_reason(level(records)) == ""


def test_measured_requests_cut_off_without_a_stop_spoil_a_level():
    """`unfinished` has no place in the window of a level that ran to its end; in a stopped one it has."""
    cut = level([record(0), record(1, status="unfinished")])
    assert "1 measured requests were cut off" in invalid_reason(cut)
    assert invalid_reason(replace(cut, stopped="slo")) == ""


def test_a_client_held_up_in_earnest_is_found_out():
    """Real sleep on the client's loop in a real level: called `client_saturated`, not a slow server."""
    import time

    with FakeOpenAI(steady(first_ms=5)) as fake:
        data = run_level(
            level_plan(rate_rps=100.0, duration_s=0.5), endpoint_of(fake), during=lambda session: time.sleep(0.15)
        )
    assert invalid_reason(data).startswith("client_saturated: send lag p99")
