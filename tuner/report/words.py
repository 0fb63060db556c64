"""
What a study found, in sentences and table rows that terminal, HTML and plain text share. Pure; reads `result.json`.

Everything of a simulated study says so; a difference is "25 % lower", never a bare sign.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tuner.report import text
from tuner.report.limits import limit_name, limit_rows, limit_threshold, limit_value

Result = Mapping[str, Any]

_OUTCOMES = {
    "feasible": "feasible",
    "infeasible": "infeasible",
    "pruned": "pruned",
    "rejected": "rejected",
    "config_failed": "configuration failed",
    "infra_failed": "infrastructure failed",
}


def headline(result: Result) -> str:
    """The verdict in one sentence."""
    match result["status"]:
        case "winner":
            said = _winner(result)
        case "no_gain":
            said = _no_gain(result)
        case "no_feasible":
            said = _no_feasible(result)
        case "interrupted":
            said = _interrupted(result)
        case _:
            said = "The study failed; nothing can be said about the best deployment."
    return f"Simulated: {said[0].lower()}{said[1:]}" if result["source"] == "simulated" else said


def named(result: Result) -> dict[str, Any] | None:
    """The configuration that the report is about: the winner, else the best candidate, else the nearest point."""
    nearest = (result.get("no_feasible") or {}).get("nearest")
    return result.get("winner") or result.get("candidate") or nearest


def role_of_named(result: Result) -> str:
    """What to call `named`."""
    if result.get("winner"):
        return "winner"
    return "nearest point" if result.get("status") == "no_feasible" else "best candidate"


def figure(result: Result, entry: Mapping[str, Any] | None) -> str:
    """What the study optimised, at this configuration, with its unit."""
    value, kind = optimised(result, entry), result.get("objective")
    if kind == "goodput":
        return text.UNKNOWN if value is None else f"{text.number(value)} good requests/s"
    if kind == "goodput_per_gpu":
        return text.UNKNOWN if value is None else f"{text.number(value)} good requests/s per {result['unit']}"
    if value is None:
        return "no cost (nothing good was served)"
    return f"{text.money(value, str(result.get('currency')))} per 1,000 good requests"


def comparison(result: Result) -> str:
    """Winner or candidate against the baseline: `31 % lower than the baseline (95 %: at least 24 % lower)`."""
    entry, base = named(result), result.get("baseline")
    if entry is None:
        return ""
    why = no_baseline(result)
    if why or base is None:
        return why
    if entry["trial"] == base["trial"]:
        return "it is the baseline itself"
    difference = text.change(optimised(result, entry), optimised(result, base))
    against = "the same as" if difference == "the same" else f"{difference} than"
    return f"{against} the baseline{_bound(result)}"


def no_baseline(result: Result) -> str:
    """Why there is no baseline cost to compare with; "" when there is one."""
    base = result.get("baseline")
    if base is None:
        return "no baseline: none was measured"
    if base["state"] == "infeasible":
        broken = ", ".join(limit_name(name) for name, margin in base["margins"].items() if margin > 0)
        return (
            f"no baseline cost: the baseline is infeasible (breaks {broken or 'its limits'} at the lowest load tried)"
        )
    if base["state"] != "feasible":
        why = base.get("cause") or base.get("reason") or "no reason given"
        return f"no baseline: it ended as {outcome(base['state'])} ({why})"
    return "" if optimised(result, base) is not None else "no baseline cost: it served nothing good"


def load(entry: Mapping[str, Any] | None) -> str:
    """`4.2 requests/s`, or `32 concurrent requests`."""
    if entry is None:
        return text.UNKNOWN
    if entry.get("concurrency") is not None:
        return f"{text.number(entry['concurrency'])} concurrent requests"
    return f"{text.number(entry['offered_rps'])} requests/s" if entry.get("offered_rps") is not None else text.UNKNOWN


def standing(entry: Mapping[str, Any]) -> str:
    """`verified at 4.2 requests/s, n = 612`, or what is missing."""
    n = "–" if entry.get("n") is None else f"{entry['n']:,}"
    at = f"at {load(entry)}, n = {n}"
    if entry.get("verified"):
        return f"verified {at}"
    missing = entry.get("missing_requests")
    need = f"; {text.count(missing, 'more request')} needed" if missing else ""
    return f"not verified, observed {at}{need}"


def interval(result: Result, entry: Mapping[str, Any]) -> str:
    """Interval of the cost per 1,000 good requests; unknown without one."""
    bounds = entry.get("interval")
    if not bounds:
        return text.UNKNOWN
    if bounds[0] is None:
        return f"at most {text.money(bounds[1], str(result.get('currency')))}; no load was seen broken"
    return f"{text.amount(bounds[0])} to {text.money(bounds[1], str(result.get('currency')))}"


def outcome(state: str) -> str:
    return _OUTCOMES.get(state, state)


def counts(result: Result) -> str:
    """`12 trials started: 7 feasible, 2 infeasible, …`; the parts add up to the whole."""
    known = result.get("counts") or {}
    parts = [f"{known[s]} {words}" for s, words in _OUTCOMES.items() if known.get(s) and s != "rejected"]
    retried = known.get("infra_failed_attempts", 0) - known.get("infra_failed", 0)
    retries = f"; {text.count(retried, 'attempt')} repeated after a fault of the infrastructure" if retried > 0 else ""
    rejected = known.get("rejected", 0)
    refused = f"; {text.count(rejected, 'further point')} rejected before launch" if rejected else ""
    started = text.count(known.get("started", 0), "trial")
    return f"{started}: {', '.join(parts)}{retries}{refused}" if parts else f"{started}{refused}"


def spent(result: Result) -> str:
    """
    `3.2 GPU-hours, 41 min, 12,345 requests`; GPU-hours are CPU slot-hours on a CPU pool.

    Of a simulated study: `3.2 simulated GPU-hours, 41 s of real time, 12,345 simulated requests`.
    """
    used = result.get("spent") or {}
    hours = used.get("gpu_hours")
    sim, real = ("simulated ", " of real time") if result["source"] == "simulated" else ("", "")
    parts = [f"{text.number(hours)} {sim}{result['unit']}-hours"] if hours is not None else []
    if used.get("wall_s") is not None:
        parts.append(f"{text.duration(used['wall_s'])}{real}")
    if used.get("requests") is not None:
        parts.append(text.count(int(used["requests"]), f"{sim}request"))
    return ", ".join(parts) or text.UNKNOWN


def relaxations(result: Result) -> Iterator[str]:
    """For a study without a feasible point: what relaxing each limit alone, then all broken ones, would allow."""
    found = result.get("no_feasible") or {}
    for each in found.get("relax", ()):
        name = limit_name(each["limit"])
        if each["needed"] is not None:
            yield f"{_relaxed(each)}: {_allowed(result, each)}"
        elif each["limit"] in found["broken"]:
            yield f"{name}: relaxing it alone helps nowhere; wherever it breaks, another limit breaks too"
    together = found.get("together")
    if together and len(together["limits"]) > 1:
        if all(each["needed"] is not None for each in together["limits"]):
            yield f"{' and '.join(_relaxed(each) for each in together['limits'])}: {_allowed(result, together)}"
        else:
            yield "relaxing all broken limits helps nowhere: failed requests reach a limited percentile"


def warm_start(found: Mapping[str, Any] | None) -> Iterator[str]:
    """What came from earlier studies, one sentence each; nothing for a cold start."""
    if found is None:
        return
    if not found["sources"]:
        yield f"Warm start from {found['wanted']}: no finished study of this model and space yet, so a cold start."
    for each in found["sources"]:
        parts = [
            f"{text.count(each['proposed'], 'point')} proposed first",
            f"{text.count(each['told'], 'outcome')} told to the sampler",
        ]
        if each["outside"]:
            parts.append(f"{text.count(each['outside'], 'point')} outside of this space dropped")
        why = f"; not comparable in {', '.join(each['differs'])}" if each["differs"] else ""
        yield f"From study {each['study']}: {', '.join(parts)}{why}."


def summary(result: Result) -> str:
    """Plain lines for where there is no terminal."""
    lines = [headline(result), f"{counts(result)}. Spent: {spent(result)}."]
    lines.extend(warm_start(result.get("warm_start")))
    lines.extend(f"Warning: {sentence(warning)}" for warning in result.get("warnings", ()))
    entry = named(result)
    if entry is not None:
        lines.append(f"{role_of_named(result).capitalize()}: {text.knobs(entry['configuration'])}")
        lines.extend(f"  {row.name}: {row.value} ({row.limit}), {row.decision}" for row in limit_rows(entry))
    lines.extend(f"  {sentence(line)}" for line in relaxations(result))
    return "\n".join(lines)


def sentence(words: str) -> str:
    """With a capital first letter and a full stop; "" stays empty."""
    return f"{words[0].upper()}{words[1:].rstrip('.')}." if words else ""


def _winner(result: Result) -> str:
    entry = named(result)
    if entry is None:
        return "A winner is claimed, but the file names none."
    against = comparison(result)
    return f"Winner: trial {entry['trial']} at {figure(result, entry)}, {against}, {standing(entry)}."


def _no_gain(result: Result) -> str:
    entry = named(result)
    if entry is None:
        return "No gain over the baseline: no other configuration keeps the limits."
    if entry["trial"] == (result.get("baseline") or {}).get("trial"):
        return f"No gain: the baseline alone keeps the limits, at {figure(result, entry)}."
    least = text.share((result.get("gain") or {}).get("min_gain"))
    return (
        f"No proven gain over the baseline: the best candidate, trial {entry['trial']}, is at "
        f"{figure(result, entry)}, {comparison(result)}; {least} was asked for. Keep the baseline."
    )


def _no_feasible(result: Result) -> str:
    found = result.get("no_feasible")
    if not found:
        return "No configuration was measured, so none is known to keep the limits."
    entry, binding = found["nearest"], found["binding"]
    limit = next((limit for limit in entry["limits"] if limit["name"] == binding), None)
    if limit is None:
        return f"No configuration keeps every limit; the nearest is trial {entry['trial']}."
    return (
        f"No configuration keeps every limit. The nearest, trial {entry['trial']}, is held back by "
        f"{limit_name(binding)}: {limit_value(limit)} against {limit_threshold(limit)} at {load(entry)}."
    )


def _interrupted(result: Result) -> str:
    entry = named(result)
    if entry is None:
        return "Interrupted before any configuration kept the limits."
    return f"Interrupted. Best so far: trial {entry['trial']} at {figure(result, entry)}, {standing(entry)}."


def optimised(result: Result, entry: Mapping[str, Any] | None) -> float | None:
    if entry is None:
        return None
    goodput, kind = entry.get("goodput_rps"), result.get("objective")
    if kind == "goodput":
        return goodput
    if kind == "goodput_per_gpu":
        return goodput / entry["gpus"] if goodput is not None and entry.get("gpus") else None
    return entry.get("cost_per_1k_good_requests")


def _bound(result: Result) -> str:
    """The one-sided bound on the gain, in the direction of what was optimised."""
    gain = result.get("gain")
    if gain is None:
        return ""
    if gain["lower"] is None:
        return f" (how sure is not known: the {text.count(gain['n'], 'session')} of both do not show it)"
    ratio = 1 - gain["lower"]
    if result.get("objective") in ("goodput", "goodput_per_gpu"):
        ratio = 1 / ratio if ratio > 0 else 1.0
    worst = text.change(ratio, 1.0)
    how = f"at least {worst}" if gain["lower"] > 0 else f"at worst {worst}"
    return f" ({text.share(gain['confidence'])} confidence: {how})"


def _relaxed(each: Mapping[str, Any]) -> str:
    name, needed = each["limit"], _plain(each["limit"], each["needed"])
    return f"{limit_name(name)} relaxed from {_plain(name, each['threshold'])} to {needed}"


def _allowed(result: Result, each: Mapping[str, Any]) -> str:
    cost = text.money(each["cost_per_1k_good_requests"], str(result["currency"]))
    goodput = text.number(each["goodput_rps"])
    n = f"observed, n = {each['n']:,}"
    return f"trial {each['trial']} would serve {goodput} good requests/s for {cost} per 1,000 ({n})"


def _plain(name: str, value: float | None) -> str:
    if value is None:
        return text.UNKNOWN
    return text.share(value, 5) if name == "attainment" else f"{text.number(value * 1000, 5)} ms"
