"""Rows of the report's tables as text, for the terminal and the page alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.outcome import Outcome
from tuner.report import text, words
from tuner.report.evidence import Entry, Evidence, Measured
from tuner.report.limits import limit_name
from tuner.report.tails import share_above

_LATENCIES = (("TTFT", "ttft_ms"), ("ITL, pooled", "itl_ms"), ("TPOT", "tpot_ms"), ("E2EL", "e2el_ms"))
_SHOWN = ("p50", "p99")


@dataclass(frozen=True)
class Pair:
    """One figure of the named configuration beside the baseline's; `change` is how it differs from it."""

    name: str
    named: str
    baseline: str
    change: str


@dataclass(frozen=True)
class TailRow:
    """One view of the inter-token tail for one configuration."""

    view: str
    who: str
    value: str
    limit: str
    over: str  # share of units above the limit, with n


@dataclass(frozen=True)
class TrialRow:
    """One trial; `cost` in currency per 1,000 good requests, `goodput` per second, `load` in the unit of the load."""

    trial: str
    mark: str  # "winner", "baseline" or ""
    outcome: str
    reason: str
    configuration: str
    distinct: str  # the same without the knobs that all trials share
    gpus: str
    cost: str
    goodput: str
    load: str
    margin: str
    sure: str
    n: str


def pairs(evidence: Evidence) -> list[Pair]:
    """Cost, goodput and latencies of the named configuration and of the baseline."""
    named, base, currency = evidence.named, evidence.baseline, evidence.currency
    if named is None:
        return []

    def pair(name: str, key: str, unit: str) -> Pair:
        mine, theirs = named[key], None if base is None else base[key]
        written = text.money if unit.startswith(currency) else _with
        return Pair(name, written(mine, unit), written(theirs, unit), text.change(mine, theirs))

    rows = [
        pair("cost per 1,000 good requests", "cost_per_1k_good_requests", currency),
        Pair(
            "… its interval", words.interval(evidence.result, named),
            text.UNKNOWN if base is None else words.interval(evidence.result, base), "",
        ),
        pair("cost per million good output tokens", "cost_per_1m_good_output_tokens", currency),
        pair("cost per hour", "cost_per_hour", f"{currency}/h"),
        pair(f"{evidence.result['unit']}s", "gpus", ""),
        pair("goodput", "goodput_rps", "good requests/s"),
        pair("offered load", "offered_rps", "requests/s"),
        pair("highest load kept in the search", "capacity", str(evidence.result["load"]["unit"])),
    ]  # fmt: skip
    if named.get("copies") is not None:
        rows.append(pair("copies that carry the demand", "copies", ""))
        rows.append(pair("cost per hour of these copies", "fleet_cost_per_hour", f"{currency}/h"))
    promised = evidence.result["slo"]["attainment"]
    rows.append(Pair("good requests / arrivals", _attainment(named, promised), _attainment(base, promised), ""))
    for label, metric in _LATENCIES:
        rows.extend(_latency(named, base, label, metric, statistic) for statistic in _SHOWN)
    rows.append(
        Pair("requests measured (n)", _with(named["n"], ""), _with(None if base is None else base["n"], ""), "")
    )
    return [row for row in rows if (row.named, row.baseline) != (text.UNKNOWN, text.UNKNOWN)]


def tail_rows(measured: Measured) -> list[TailRow]:
    """
    Both views of the inter-token tail, view by view: the pooled one is blind to rare freezes, the other is not.

    Args:
        measured: See `evidence.measured`.
    """
    rows = []
    for who, (entry, _) in measured.items():
        known, limit = entry["tails"], entry["tails"]["pooled_itl_p99_limit_ms"]
        judged = next((each for each in entry["limits"] if each["name"] == "itl_p99" and each["n"]), None)
        over = text.UNKNOWN
        if judged is not None:
            over = f"{text.share(judged['violations'] / judged['n'])} of {judged['n']:,} tokens (1 % allowed)"
        value = known["pooled_itl_p99_ms"]
        rows.append(TailRow("p99 ITL, all tokens pooled", who, _value(value, limit), _limit(limit), over))
    for who, (entry, found) in measured.items():
        known, limit = entry["tails"], entry["tails"]["request_chunk_gap_max_limit_ms"]
        over = text.UNKNOWN
        if found is not None and found.chunk_gap_max.total and limit is not None:
            share = share_above(found.chunk_gap_max, limit / 1000)
            over = f"{text.share(share)} of {found.chunk_gap_max.total:,} requests"
        value = known["request_chunk_gap_max_p99_ms"]
        rows.append(TailRow("largest chunk gap of a request, p99", who, _value(value, limit), _limit(limit), over))
    return rows


def trial_rows(evidence: Evidence) -> list[TrialRow]:
    """Every trial: scored ones best first, then the others by number."""
    ranking = {row["trial"]: row for row in evidence.result["ranking"]}
    by_number = {outcome.trial: outcome for outcome in evidence.outcomes}
    ordered = [trial for trial in ranking if trial in by_number]
    ordered += [trial for trial in by_number if trial not in ranking]
    marks, same = highlighted(evidence), shared(evidence.outcomes)
    return [_trial(by_number[trial], ranking.get(trial), marks.get(trial, ""), same) for trial in ordered]


def shared(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Knobs that every trial sets to the same value; {} of a single trial."""
    first, *others = (outcome.configuration.knobs for outcome in outcomes) if outcomes else ({},)
    if not others:
        return {}
    return {name: value for name, value in first.items() if all((name, value) in each.items() for each in others)}


def highlighted(evidence: Evidence) -> dict[int, str]:
    """Trial number → `winner`, `best candidate`, `nearest point` or `baseline`."""
    found = {}
    if evidence.result["baseline"] is not None:
        found[evidence.result["baseline"]["trial"]] = "baseline"
    if evidence.named is not None:
        found[evidence.named["trial"]] = words.role_of_named(evidence.result)
    return found


def changed_knobs(named: Entry, base: Entry | None) -> list[tuple[str, str, str]]:
    """(knob, value, baseline's value) of every knob that either sets, by name."""
    mine, theirs = named["configuration"], {} if base is None else base["configuration"]
    names = sorted({*mine, *theirs})
    return [(name, text.flag_value(mine.get(name)), text.flag_value(theirs.get(name))) for name in names]


def scripts(commands: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(process, its command for a shell) in start order, secrets as names of variables."""
    return [
        (
            str(command.get("name") or command.get("role") or "process"),
            text.shell(command["argv"], command.get("env"), lines=True),
        )
        for command in commands
    ]


def rejected(point: Mapping[str, Any]) -> str:
    """A point that was never started, with the rule that it breaks."""
    why = point.get("message") or point.get("rule") or "no reason given"
    return f"{text.knobs(point.get('configuration') or {})}: {why}"


def good_means(evidence: Evidence) -> str:
    """What makes one request good, in words."""
    names = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2el_s": "E2EL", "itl_max_s": "largest chunk gap"}
    limits = evidence.result["slo"]["request"]
    parts = [f"{names[key]} ≤ {text.number(value * 1000, 6)} ms" for key, value in limits.items() if value is not None]
    return f"complete, {', '.join(parts)}" if parts else "complete"


def _trial(outcome: Outcome, row: Entry | None, mark: str, same: Mapping[str, object]) -> TrialRow:
    cost = text.UNKNOWN if row is None else text.amount(row["cost_per_1k_good_requests"])
    worst = max(row["margins"].values(), default=None) if row is not None else None
    why = outcome.cause if outcome.state in ("config_failed", "infra_failed", "rejected", "pruned") else ""
    reason = ": ".join(part for part in (outcome.reason, why) if part)
    if outcome.state == "infeasible":
        reason = f"breaks {', '.join(limit_name(name) for name in outcome.reason.split(',') if name)}"
    elif row is not None and not row["measured_to_capacity"]:
        reason = "not measured to capacity"
    sure = "" if row is None else "verified" if row["verified"] else "observed"
    return TrialRow(
        trial=str(outcome.trial),
        mark=mark,
        outcome=words.outcome(outcome.state),
        reason=reason,
        configuration=text.knobs(outcome.configuration.knobs),
        distinct=_distinct(outcome, same),
        gpus=str(outcome.units),
        cost=cost,
        goodput=text.UNKNOWN if row is None else text.number(row["goodput_rps"]),
        load=text.UNKNOWN if row is None else text.number(row["offered"]),
        margin=text.signed_share(worst),
        sure=sure,
        n=text.UNKNOWN if row is None or row["n"] is None else f"{row['n']:,}",
    )


def _distinct(outcome: Outcome, same: Mapping[str, object]) -> str:
    own = {name: value for name, value in outcome.configuration.knobs.items() if name not in same}
    return text.knobs(own) if own or not same else "nothing beyond what is the same in all"


def _latency(named: Entry, base: Entry | None, label: str, metric: str, statistic: str) -> Pair:
    limit = _limits_ms(named).get((metric, statistic))
    mine = named["metrics"].get(metric, {}).get(statistic)
    theirs = None if base is None else base["metrics"].get(metric, {}).get(statistic)
    return Pair(f"{label} {statistic}", _value(mine, limit), _value(theirs, limit), text.change(mine, theirs))


def _limits_ms(entry: Entry) -> dict[tuple[str, str], float]:
    """("ttft_ms", "p99") → limit in ms."""
    found = {}
    for limit in entry["limits"]:
        metric, _, statistic = limit["name"].rpartition("_")
        found[f"{metric}_ms", statistic] = limit["threshold"] * 1000
    return found


def _attainment(entry: Entry | None, promised: float | None) -> str:
    if entry is None or entry["attainment"] is None:
        return text.UNKNOWN
    if promised is None:
        return text.share(entry["attainment"])
    return text.share_beside(entry["attainment"], promised)


def _value(value_ms: float | None, limit_ms: float | None) -> str:
    if value_ms is None:
        return text.UNKNOWN
    return f"{text.number(value_ms) if limit_ms is None else text.beside(value_ms, limit_ms)} ms"


def _limit(limit_ms: float | None) -> str:
    return "no limit" if limit_ms is None else f"≤ {text.number(limit_ms, 6)} ms"


def _with(value: float | None, unit: str) -> str:
    return text.UNKNOWN if value is None else f"{text.number(value) if unit else f'{value:,}'} {unit}".strip()
