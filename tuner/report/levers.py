"""
What each lever is worth, in words: one sentence and the changes for each question, one row for each value.

Two configurations that are compared may differ in other knobs as well; what is said was measured, and is not what would
follow from turning one knob alone. Pure; reads `levers` of `result.json`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.report import text, words
from tuner.report.limits import limit_name

Row = Mapping[str, Any]
#: What stands above the answers.
ABOUT_ANSWERS = (
    "The best configuration with a value beside the best without it, each at the highest load that it carries; the two "
    "may differ in other knobs too. Below 0 is lower with it."
)
_TITLES = {
    "mode": "Disaggregation",
    "split": "Split, prefill : decode",
    "kv_store": "KV store",
    "max_num_batched_tokens": "Token budget of a step",
    "max_num_seqs": "Sequences at once",
}
#: Levers that ask whether something pays; the others ask which value is best.
_PAYING = ("mode", "kv_store")
_SAID = {
    True: {
        "cheaper": "pays",
        "dearer": "does not pay",
        "no_difference": "makes no difference beyond noise",
        "points_to_cheaper": "looks better, which is not shown",
        "points_to_dearer": "looks worse, which is not shown",
        "alone": "is needed: nothing else that was tried keeps the limits",
    },
    False: {
        "cheaper": "is best",
        "dearer": "is worse than the best other",
        "no_difference": "makes no difference beyond noise",
        "points_to_cheaper": "looks best, which is not shown",
        "points_to_dearer": "looks worse, which is not shown",
        "alone": "is needed: nothing else that was tried keeps the limits",
    },
}
#: Changes that round to less than one percent are not given in digits.
_LITTLE = 0.005
_CHANGES = {
    "cost_per_1k_good_requests": "cost per 1,000",
    "cost_per_hour": "cost per hour",
    "goodput_rps": "goodput",
    "capacity": "capacity",
    "ttft_p99_ms": "TTFT p99",
    "itl_p99_ms": "ITL p99",
    "chunk_gap_max_p99_ms": "largest gap p99",
    "e2el_p99_ms": "E2EL p99",
}


@dataclass(frozen=True)
class Side:
    """One of the two configurations that are compared."""

    who: str  # "with disaggregated"
    basis: str  # "trial 3, verified in 2 sessions, n = 600"
    cost: str  # with its interval
    distinct: str  # the knobs in which it differs from the other


@dataclass(frozen=True)
class Answer:
    """One question of the decision table."""

    title: str
    said: str  # a sentence
    sides: tuple[Side, ...]  # with, without; () where nothing is compared
    changes: tuple[tuple[str, str], ...]  # (figure, with against without such as `−30 %`)
    tried: bool


@dataclass(frozen=True)
class Lever:
    """One value of one lever. Costs are currency per 1,000 good requests."""

    knob: str
    value: str
    trials: int
    trial: int | None  # best feasible one with this value
    cost: str  # "0.0123", "≥ 0.02, not measured to capacity", or why there is none
    n: str
    verified: bool
    difference: str  # against the best with another value


def answers(result: words.Result) -> list[Answer]:
    """One for each question, tried or not; [] of a result that has no table."""
    return [_answer(result, entry) for entry in result.get("levers", ()) if entry["decision"]]


def levers(result: words.Result) -> list[Lever]:
    """One row for each value of each lever of which at least two were tried."""
    tried = [entry for entry in result.get("levers", ()) if len(entry["values"]) > 1]
    return [_value(result, entry["lever"], row) for entry in tried for row in entry["values"]]


def not_tried(result: words.Result) -> list[str]:
    """Levers that had one value in every trial, as `mode: only aggregated`."""
    single = [entry for entry in result.get("levers", ()) if len(entry["values"]) == 1]
    return [f"{entry['lever']}: only {entry['values'][0]['value']}" for entry in single]


def _title(result: words.Result, lever: str) -> str:
    return f"{result['unit']}s" if lever == "gpus" else _TITLES.get(lever, lever)


def _answer(result: words.Result, entry: Mapping[str, Any]) -> Answer:
    title, values = _title(result, entry["lever"]), entry["values"]
    row = next((each for each in values if each["value"] == entry["asked"]), None)
    if row is None:
        only = f"only {values[0]['value']}" if len(values) == 1 else "no trial has it"
        if len(values) > 1:
            return Answer(title, f"{title}: no trial kept the limits.", (), (), tried=True)
        return Answer(title, f"{title}: not tried ({only}).", (), (), tried=False)
    subject = title if entry["lever"] == "mode" else f"{title}: {row['value']}"
    said = f"{subject} {_said(result, row, paying=entry['lever'] in _PAYING)}."
    sides: tuple[Side, ...] = ()
    changes: tuple[tuple[str, str], ...] = ()
    if row["with"] is not None and row["without"] is not None:
        without = _value_of(values, row["without"]["trial"])
        sides = (
            _side(result, f"with {row['value']}", row["with"], row["without"]),
            _side(result, f"with {without}", row["without"], row["with"]),
        )
        changes = tuple((name, _changed(row["change"][key])) for key, name in _CHANGES.items())
    return Answer(title, said, sides, changes, tried=True)


def _changed(share: float | None) -> str:
    """`−21 %`; of less than one percent no more than that."""
    if share is None or abs(share) >= _LITTLE or share == 0:
        return text.signed_share(None if share is None else round(share, 2))
    return "under 1 %"


def _said(result: words.Result, row: Row, *, paying: bool) -> str:
    if row["verdict"] == "not_feasible":
        return f"keeps the limits nowhere ({_endings(row)})"
    if row["verdict"] == "not_to_capacity":
        bound = text.money(row["bound"], str(result["currency"]))
        other = "" if row["without"] is None else f"; the best without it costs {_figure(result, row['without'])}"
        return f"is not measured to capacity: it costs ≥ {bound} per 1,000 good requests{other}"
    said = _SAID[paying][row["verdict"]]
    if row["without"] is None:
        return f"{said} ({_figure(result, row['with'])})"
    pair = f"{_figure(result, row['with'], bare=True)} against {_figure(result, row['without'])}"
    return f"{said}: {pair}, {_difference(result, row)}{_caveats(result, row)}"


def _caveats(result: words.Result, row: Row) -> str:
    """What keeps the figures from being the last word."""
    found = ""
    for name, key in (("with", "bound"), ("without", "bound_without")):
        if row[key] is not None:
            least = text.money(row[key], str(result["currency"]))
            found += f"; a trial {name} it that was cut short may cost as little as {least}"
    for name in ("with", "without"):
        entry = row[name]
        if not entry["verified"] and not entry["measured_to_capacity"] and not (entry["interval"] or [None])[0]:
            found += f"; trial {entry['trial']} was not measured to capacity"
    return found


def _difference(result: words.Result, row: Row) -> str:
    """`43 % lower, at least 40 % lower at 96 % confidence (5 sessions)`, or the interval between two searches."""
    said = text.change(words.optimised(result, row["with"]), words.optimised(result, row["without"]))
    if row["confidence"] is not None:
        sure = f"{text.share(row['confidence'])} confidence ({text.count(row['sessions'], 'session')})"
        if row["at_least"] is None:
            return f"{said}, shown at {sure}"
        ratio = 1 - row["at_least"] if row["verdict"] == "cheaper" else 1 + row["at_least"]
        return f"{said}, at least {text.change(_shown(result, ratio), 1.0)} at {sure}"
    return f"{said} ({_interval(result, row)})"


def _interval(result: words.Result, row: Row) -> str:
    """Of the change, in the direction of what was optimised."""
    ends = [None if end is None else _shown(result, 1 + end) - 1 for end in row["interval"] or (None, None)]
    if _grows(result):
        ends.reverse()
    low, high = ends
    if low is None and high is None:
        return "not bounded"
    if low is None or high is None:
        return f"at most {text.signed_share(high)}" if low is None else f"at least {text.signed_share(low)}"
    if text.signed_share(low) == text.signed_share(high):
        return f"{text.signed_share(low)} in what was measured"
    return f"between {text.signed_share(low)} and {text.signed_share(high)}"


def _grows(result: words.Result) -> bool:
    return result["objective"] in ("goodput", "goodput_per_gpu")


def _shown(result: words.Result, ratio: float) -> float:
    """A ratio of what is minimised, as the ratio of what is shown."""
    return 1 / ratio if _grows(result) else ratio


def _figure(result: words.Result, entry: Row, *, bare: bool = False) -> str:
    """With its trial; `bare` without the unit of a cost, where it follows."""
    value = words.optimised(result, entry)
    plain = bare and value is not None and not _grows(result)
    return f"{text.amount(value) if plain else words.figure(result, entry)} (trial {entry['trial']})"


def _side(result: words.Result, who: str, entry: Row, other: Row) -> Side:
    sure = "verified" if entry["verified"] else "observed"
    if entry["sessions"]:
        sure += f" in {text.count(entry['sessions'], 'session')}"
    n = text.UNKNOWN if entry["n"] is None else f"{entry['n']:,}"
    cost = text.money(entry["cost_per_1k_good_requests"], str(result["currency"]))
    return Side(
        who=who,
        basis=f"trial {entry['trial']}, {sure}, n = {n}",
        cost=f"{cost} per 1,000 ({words.interval(result, entry)})",
        distinct=text.knobs({name: entry["configuration"].get(name) for name in _differing(entry, other)}),
    )


def _differing(entry: Row, other: Row) -> list[str]:
    """Names of the knobs in which two configurations differ."""
    mine, theirs = entry["configuration"], other["configuration"]
    return sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))


def _value_of(values: list[Row], trial: int) -> str:
    return next(str(row["value"]) for row in values if row["with"] is not None and row["with"]["trial"] == trial)


def _value(result: words.Result, knob: str, row: Row) -> Lever:
    own = row["with"]
    return Lever(
        knob=knob,
        value=str(row["value"]),
        trials=row["trials"],
        trial=None if own is None else own["trial"],
        cost=_bounded(row) if own is None else _cost(own),
        n=text.UNKNOWN if own is None or own["n"] is None else f"{own['n']:,}",
        verified=own is not None and own["verified"],
        difference=_short(result, row),
    )


def _cost(own: Row) -> str:
    shown = text.amount(own["cost_per_1k_good_requests"])
    return shown if own["measured_to_capacity"] or own["verified"] else f"≤ {shown}, not measured to capacity"


def _bounded(row: Row) -> str:
    """Without a feasible trial: the least that a pruned one would cost, else how they ended."""
    if row["bound"] is not None:
        return f"≥ {text.amount(row['bound'])}, not measured to capacity"
    return _endings(row)


def _short(result: words.Result, row: Row) -> str:
    if row["with"] is None or row["without"] is None:
        return text.UNKNOWN
    if row["verdict"] == "no_difference":
        return "no difference beyond noise"
    said = text.change(words.optimised(result, row["with"]), words.optimised(result, row["without"]))
    return f"{said} (observed)" if row["verdict"].startswith("points_to") else said


def _endings(row: Row) -> str:
    return "; ".join(_ending(*each.partition(": ")[::2]) for each in row["endings"])


def _ending(state: str, reason: str) -> str:
    if state == "refuted":
        return "not kept when it was measured again"
    if state == "infeasible":
        reason = ", ".join(limit_name(name) for name in reason.split(",") if name)
    return f"{words.outcome(state)}: {reason}" if reason else words.outcome(state)
