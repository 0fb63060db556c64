"""Is a level fit to be scored: did the load client itself keep up? Pure."""

from tuner.load.plan import LevelData
from tuner.records import UNFINISHED
from tuner.slo import Slo

#: Lags above this spoil a level whatever its limits are.
MOST_LAG_S = 0.005
#: … and so do lags above this share of the tightest limit.
MOST_LAG_SHARE = 0.05
#: Share of the measured arrivals by which sending may deviate from the schedule.
MOST_DEVIATION = 0.01


def lag_limit_s(slo: Slo) -> float:
    """The largest tolerable p99 of send lag and loop lag: min(5 ms, 5 % of the tightest limit)."""
    request = slo.request
    limits = [limit.threshold_s for limit in slo.limits]
    limits += [
        limit for limit in (request.ttft_s, request.tpot_s, request.e2el_s, request.itl_max_s) if limit is not None
    ]
    return min([MOST_LAG_S, *(MOST_LAG_SHARE * limit for limit in limits)])


def invalid_reason(data: LevelData) -> str:
    """
    Why the level must not be scored, such as `client_saturated: send lag p99 7.1 ms > 5 ms`; "" where it may be.

    A level that was stopped on purpose is judged by its lags alone.
    """
    health = data.health
    limit_s = lag_limit_s(data.plan.slo)
    for name, lag_s in (("send lag", health.send_lag_p99_s), ("loop lag", health.loop_lag_p99_s)):
        if lag_s > limit_s:
            return f"client_saturated: {name} p99 {1000 * lag_s:.3g} ms > {1000 * limit_s:.3g} ms"
    if health.connections_dropped > 0:
        return f"client_saturated: the client dropped {health.connections_dropped} connections by itself"
    if data.stopped:
        return ""
    measured = [record for record in data.records if record.phase == "measured"]
    cut = sum(record.status == UNFINISHED for record in measured)
    if cut:
        return f"client_saturated: {cut} measured requests were cut off in a level that was not stopped"
    return _deviation(data)


def _deviation(data: LevelData) -> str:
    """Whether as many requests left during the window as the schedule has in it; requests never sent are counted."""
    end_s = data.window_start_s + data.window_s
    scheduled = sent = 0
    for record in data.records:
        scheduled += record.phase == "measured"
        left_s = record.scheduled_s if record.sent_s is None else record.sent_s
        sent += data.window_start_s <= left_s < end_s
    if scheduled and abs(sent - scheduled) > max(1.0, MOST_DEVIATION * scheduled):
        return f"client_saturated: {sent} requests left in the window, {scheduled} were scheduled (over 1 % apart)"
    return ""
