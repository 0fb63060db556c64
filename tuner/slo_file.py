"""The block `slo` of an objective file."""

import re
from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import cast, get_args

from tuner.slo import Limit, LimitedMetric, RequestLimits, Slo, Synthetic, Workload
from tuner.units import parse_share
from tuner.workload_file import positive_time
from tuner.yamlfile import Node, near

METRICS = get_args(LimitedMetric)
_GAP_METRICS = ("itl", "chunk_gap", "tpot")

#: Keys of each block, by its dotted path.
KEYS: Mapping[str, tuple[str, ...]] = {
    "slo": (*METRICS, "request", "attainment"),
    "slo.request": ("ttft", "tpot", "e2el", "itl_max"),
}


def slo(node: Node, min_requests: int) -> Slo:
    """
    The promise.

    Args:
        node: The block `slo`.
        min_requests: Requests that a level measures at least; limits that this can never decide are errors.
    """
    _hint_at_metric(node)
    members = node.mapping(KEYS["slo"])
    limits = tuple(
        limit for name, member in members.items() if name in METRICS for limit in _limits(name, member, min_requests)
    )
    request = _request(members["request"]) if "request" in members else RequestLimits()
    attainment = members["attainment"].convert(parse_share) if "attainment" in members else None
    if attainment == 0:
        members["attainment"].fail("got 0: must be above 0; remove the key where nothing is promised")
    if not members or (not limits and attainment is None and request == RequestLimits()):
        node.fail("nothing is promised: give a limit such as ttft: {p99: 2s}, or attainment: 99%")
    return Slo(limits, request, attainment)


def _hint_at_metric(node: Node) -> None:
    """`ttft_p99: 500ms`, or `tfft_p99`, is answered by the spelling that is meant."""
    flat = {f"{metric}_p99": metric for metric in METRICS}
    for name, member in node.items():
        match = re.fullmatch(r"([a-z_]+?)_(p[0-9.]+|mean|max)(_ms|_s)?", name)
        close = near(f"{match[1]}_p99", list(flat)) if match and name not in KEYS["slo"] else ""
        if match and close:
            metric = flat[close.split("'")[1]]
            member.fail_key(f"unknown key {name!r}; did you mean {metric}: {{{match[2]}: 500ms}}?")


def _limits(name: str, node: Node, min_requests: int) -> list[Limit]:
    limits: dict[str, Limit] = {}
    for written, member in node.items():
        statistic = _statistic(written, member)
        if statistic in limits:
            member.fail_key(f"{statistic} is limited twice: remove one")
        threshold_s = positive_time(member)
        if statistic.startswith("p"):
            needed = ceil(1 / (1 - Fraction(statistic[1:]) / 100))
            if min_requests < needed:
                member.fail_key(
                    f"a level of {min_requests} requests cannot decide {statistic}: "
                    f"raise workload.measure.min_requests to at least {needed}, or limit a lower percentile"
                )
        limits[statistic] = Limit(cast("LimitedMetric", name), statistic, threshold_s)
    if not limits:
        node.fail("no limit is given: write {p99: 2s} or remove the key")
    return list(limits.values())


def _statistic(written: str, node: Node) -> str:
    """`p99.0` → `p99`."""
    if written in ("mean", "max"):
        return written
    match = re.fullmatch(r"p([5-9][0-9])(?:\.([0-9]))?", written)
    if match is None:
        node.fail_key(f"unknown statistic {written!r}: write p50 … p99.9, mean or max")
    return f"p{match[1]}" if match[2] in (None, "0") else f"p{match[1]}.{match[2]}"


def _request(node: Node) -> RequestLimits:
    members = node.mapping(KEYS["slo.request"])
    if not members:
        node.fail("no limit is given: write {ttft: 3s} or remove the key")
    return RequestLimits(**{f"{name}_s": positive_time(member) for name, member in members.items()})


def check_together(node: Node, promise: Slo, traffic: Workload) -> None:
    """
    Rules between promise and traffic.

    Args:
        node: The block `slo`, where errors are shown.
        promise: What it says.
        traffic: The block `workload`.
    """
    if traffic.load.kind == "find_capacity" and not promise.limits and promise.attainment is None:
        node.fail(
            "find_capacity raises the load until a limit breaks, but no limit is given: "
            "add one such as ttft: {p99: 2s}, or attainment: 99%"
        )
    if isinstance(traffic.source, Synthetic) and traffic.source.output_tokens == 1:
        for name, member in node.items():
            if name in _GAP_METRICS:
                member.fail_key(
                    "answers of one token have no gaps to limit: remove this, or ask for more output_tokens"
                )
