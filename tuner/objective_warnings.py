"""What is allowed in an objective file but looks like a slip, in sentences for people."""

import math
from collections.abc import Iterator
from pathlib import Path

from tuner.slo import Limit, Objective, RequestLimits, Scalar, Synthetic, Trace
from tuner.space import Space
from tuner.units import format_time

#: Limits outside of these, in seconds, are more likely a slip of the unit than a wish.
USUAL_S = {
    "ttft": (0.001, 600.0),
    "itl": (0.0002, 10.0),
    "chunk_gap": (0.0002, 60.0),
    "tpot": (0.0002, 10.0),
    "e2el": (0.01, 7200.0),
    "itl_max": (0.0002, 60.0),
}
_CONFIDENCE = 0.95


def warnings(objective: Objective, *, rows: int | None = None) -> list[str]:
    """
    Sentences that name the key; empty where nothing looks odd. Looks for the model's directory on this machine.

    Args:
        objective: What is asked for.
        rows: Requests that its trace or prompts file holds; None = not known, or made up as they are needed.
    """
    return [
        *repeats(objective, rows),
        *_unusual(objective),
        *_never_binding(objective),
        *_timeouts(objective),
        *_sizes(objective),
        *_rest(objective),
    ]


def of_space(objective: Objective, space: Space) -> list[str]:
    """Sentences about prices that the space asks for and the file does not have."""
    prices, free = objective.prices, []
    stores = [str(store) for store in _options(space, "kv_store") if store not in (None, "none")]
    if stores and prices.ram_gib_hour == 0:
        free.append(("ram_gib_hour", f"kv_store {', '.join(stores)}", "memory"))
    if any(_options(space, "kv_store_ssd_gib")) and prices.ssd_gib_hour == 0:
        free.append(("ssd_gib_hour", "kv_store_ssd_gib", "SSD"))
    return [
        f"prices.kv_store.{key} is 0 and the space tries {what}: the store's {kind} costs nothing, so a store that "
        "helps a little always pays; say what it costs"
        for key, what, kind in free
    ]


def _options(space: Space, name: str) -> list[Scalar]:
    """What the space can choose for a knob; the ends of a range."""
    found = next((knob for knob in space.knobs if knob.name == name), None)
    if found is None:
        return []
    return list(found.options) if found.kind == "categorical" else [found.low, found.high]


def repeats(objective: Objective, rows: int | None) -> Iterator[str]:
    """That a trace or prompts file ends before a level does."""
    measure, load, source = objective.workload.measure, objective.workload.load, objective.workload.source
    at_rate = 0.0 if load.rate_rps is None else load.rate_rps * measure.duration_s
    needed = max(measure.min_requests, objective.search.verify.min_requests or 0, math.ceil(at_rate))
    if rows is None or isinstance(source, Synthetic) or rows >= needed:
        return
    again = "with fresh prompts" if isinstance(source, Trace) else "so that prefix caches know its prompts"
    yield (
        f"workload.source: {source.path} has {rows} requests to use and a level measures at least {needed}: it begins "
        f"again at its end, {again}; use a longer one, or lower min_requests"
    )


def _thresholds(objective: Objective) -> Iterator[tuple[str, str, float]]:
    """Key, metric and seconds of every time that is promised."""
    for limit in objective.slo.limits:
        yield f"slo.{limit.metric}.{limit.statistic}", limit.metric, limit.threshold_s
    request = objective.slo.request
    times = {"ttft": request.ttft_s, "tpot": request.tpot_s, "e2el": request.e2el_s, "itl_max": request.itl_max_s}
    for name, seconds in times.items():
        if seconds is not None:
            yield f"slo.request.{name}", name, seconds


def _unusual(objective: Objective) -> Iterator[str]:
    for key, metric, seconds in _thresholds(objective):
        low, high = USUAL_S[metric]
        if not low <= seconds <= high:
            usual = f"{format_time(low)} to {format_time(high)}"
            yield f"{key} is {format_time(seconds)}, usual is {usual}: is the unit right?"


def _never_binding(objective: Objective) -> Iterator[str]:
    """A limit on a lower percentile that is looser than one on a higher percentile of the same metric."""
    limits = objective.slo.limits
    for loose in limits:
        for tight in limits:
            if loose.metric == tight.metric and _rank(loose) < _rank(tight) and loose.threshold_s >= tight.threshold_s:
                yield f"slo.{loose.metric}.{loose.statistic} can never break before {tight.statistic} does"


def _rank(limit: Limit) -> float:
    """Order of percentiles; a mean is never compared."""
    if limit.statistic == "max":
        return 1.0
    return math.nan if limit.quantile is None else limit.quantile


def _timeouts(objective: Objective) -> Iterator[str]:
    timeout = objective.workload.timeout
    longest = {
        "ttft": ("first_token", timeout.first_token_s),
        "itl": ("between_tokens", timeout.between_tokens_s),
        "chunk_gap": ("between_tokens", timeout.between_tokens_s),
        "itl_max": ("between_tokens", timeout.between_tokens_s),
        "tpot": ("between_tokens", timeout.between_tokens_s),
        "e2el": ("total", timeout.total_s),
    }
    for key, metric, seconds in _thresholds(objective):
        name, limit_s = longest[metric]
        if limit_s < seconds:
            yield f"{key} is longer than workload.timeout.{name} ({format_time(limit_s)}), which ends requests first"


def _sizes(objective: Objective) -> Iterator[str]:
    slo, measure, verify = objective.slo, objective.workload.measure, objective.search.verify
    shares = [(limit.name, limit.quantile) for limit in slo.limits] + [("attainment", slo.attainment)]
    for name, share in shares:
        if share is None or share >= 1:
            continue
        if name == "attainment" and measure.min_requests * (1 - share) < 1 - 1e-9:
            yield (
                f"workload.measure.min_requests is {measure.min_requests}: one bad request breaks an attainment of "
                f"{share:.4g}; at least {math.ceil(1 / (1 - share) - 1e-9)} tell more"
            )
        if verify.min_requests is not None:
            needed = math.ceil(objective.search.divide_counts * math.ceil(math.log(1 - _CONFIDENCE) / math.log(share)))
            if verify.min_requests * verify.repeats < needed:
                yield (
                    f"search.verify: {verify.repeats} x {verify.min_requests} requests cannot verify {name} "
                    f"with 95 % confidence, {needed} can: the winner will be called unverified"
                )


def _rest(objective: Objective) -> Iterator[str]:
    model = Path(objective.model)
    if model.is_absolute() and not model.is_dir():
        yield f"model: there is no directory {model} on this machine"
    if objective.engine.trust_remote_code:
        pinned = "" if objective.model_revision else "; pin model_revision"
        yield f"engine.trust_remote_code runs code from the model's repository{pinned}"
    if objective.cluster.bind == "node":
        yield "cluster.bind: node lets servers without a password be reached from the network of the nodes"
    if objective.slo.request != RequestLimits() and objective.slo.attainment is None:
        yield "slo.request decides which requests are good, but nothing asks for a share of them (slo.attainment)"
