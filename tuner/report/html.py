"""`report.html`: one file, no script, nothing loaded from anywhere; every value from the study is escaped."""

from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tuner.report import plots, rows, template, text, words
from tuner.report.evidence import Entry, Evidence, Measured, read
from tuner.report.levers import ABOUT_ANSWERS, answers, levers, not_tried
from tuner.report.limits import limit_name, limit_rows
from tuner.report.plots import Boundary, Curve
from tuner.runfiles import replace_bytes

NAME = "report.html"


def write(study: Path | Evidence) -> Path:
    """
    Write the report of a study, given by its directory or as read, and return its path.

    Raises:
        InputError: It is no study, or nothing was measured yet.
        StudyFailed: The directory cannot be written.
    """
    evidence = read(study)
    path = evidence.ledger.path / NAME
    replace_bytes(path, page(evidence).encode())
    return path


def page(evidence: Evidence) -> str:
    """The whole page."""
    return template.render("page.html.j2", **_context(evidence))


def _context(evidence: Evidence) -> dict[str, Any]:
    result, named, base = evidence.result, evidence.named, evidence.baseline
    tails = evidence.measured
    return {
        "study": str(result["study"]),
        "model": str(result["model"]),
        "simulated": result["source"] == "simulated",
        "date": _date(evidence.study),
        "headline": words.headline(result),
        "warnings": [words.sentence(warning) for warning in result["warnings"]],
        "tiles": _tiles(evidence),
        "no_feasible": _no_feasible(result),
        "named": named,
        "base": base,
        "role": words.role_of_named(result),
        "knobs": [] if named is None else rows.changed_knobs(named, base),
        "commands": [] if named is None else rows.scripts(evidence.commands(named["trial"])),
        "comparison": words.sentence(words.comparison(result)),
        "basis": "" if named is None else _basis(result, named, base),
        "pairs": rows.pairs(evidence),
        "limits": [(who, limit_rows(entry), _n(entry)) for who, (entry, _) in tails.items()],
        "good": rows.good_means(evidence),
        "tails": rows.tail_rows(tails),
        "charts": list(_charts(evidence, tails)),
        "about_answers": ABOUT_ANSWERS,
        "answers": answers(result),
        "levers": levers(result),
        "not_tried": not_tried(result),
        "ladder": [(who, _ladder(entry)) for who, (entry, _) in tails.items() if entry["ladder"]],
        "load_unit": result["load"]["unit"],
        "unit": result["unit"],
        "currency": evidence.currency,
        "counts": words.counts(result),
        "trials": rows.trial_rows(evidence),
        "rejected": [rows.rejected(each) for each in result.get("rejected", ())],
        "method": _method(evidence),
        "reproduce": _reproduce(evidence),
        "objective_yaml": evidence.ledger.objective_yaml,
        "version": metadata.version("slo-tuner"),
    }


def _tiles(evidence: Evidence) -> list[dict[str, Any]]:
    """The four figures at the top."""
    result, named, base, currency = evidence.result, evidence.named, evidence.baseline, evidence.currency
    if named is None:
        return []

    def tile(name: str, key: str, unit: str, *lines: str) -> dict[str, Any]:
        written = text.amount if unit == currency else text.number
        value = text.UNKNOWN if named[key] is None else f"{written(named[key])} {unit}".strip()
        beside = "" if base is None else f"baseline {written(base[key])}"
        change = "" if base is None else text.change(named[key], base[key])
        compared = ", ".join(part for part in (beside, change) if part and part != text.UNKNOWN)
        return {"name": name, "value": value, "lines": [line for line in (compared, *lines) if line]}

    interval = words.interval(result, named)
    copies = named["copies"]
    return [
        tile(
            "Cost per 1,000 good requests", "cost_per_1k_good_requests", currency,
            "" if interval == text.UNKNOWN else f"interval {interval}",
        ),
        tile("Cost per million good output tokens", "cost_per_1m_good_output_tokens", currency),
        tile("Good requests per second", "goodput_rps", "/s", words.standing(named)),
        tile(
            "Cost per hour", "cost_per_hour", currency, text.count(named["gpus"], result["unit"]),
            "" if copies is None else f"the demand takes this {copies} ×",
        ),
    ]  # fmt: skip


def _charts(evidence: Evidence, tails: Measured) -> Iterator[dict[str, Any]]:
    result = evidence.result
    slo = result["slo"]
    pooled = {limit["name"]: limit for limit in slo["limits"]}
    each = slo["request"]
    wanted = (
        ("TTFT", "ttft", "requests", "time to first token, from the scheduled arrival", each["ttft_s"]),
        ("ITL, pooled", "itl", "tokens", "token-normalised gaps of all requests together", None),
        ("Largest chunk gap of each request", "chunk_gap_max", "requests", "the longest freeze", each["itl_max_s"]),
        ("E2EL", "e2el", "requests", "time to the last token, from the scheduled arrival", each["e2el_s"]),
    )
    for title, metric, unit, meaning, per_request_s in wanted:
        curves = [
            Curve(who, "baseline" if who == "baseline" else "winner", getattr(found, metric))
            for who, (_, found) in tails.items()
            if found is not None
        ]
        limits = [
            Boundary(f"{limit['statistic']} ≤ {text.number(limit['threshold_s'] * 1000, 6)} ms",
                     limit["threshold_s"] * 1000, 1 - limit["quantile"])
            for limit in pooled.values()
            if limit["metric"] == metric and limit["quantile"] is not None
        ]  # fmt: skip
        if per_request_s is not None:
            label = f"each request ≤ {text.number(per_request_s * 1000, 6)} ms"
            allowed = None if slo["attainment"] is None else 1 - slo["attainment"]
            limits.append(Boundary(label, per_request_s * 1000, allowed))
        drawn = plots.tail(title, unit, curves, limits) if curves else None
        if drawn is not None:
            yield _chart(title, drawn, f"Share of {unit} above each value: {meaning}. {_sizes(curves, unit)}")
    colours = {
        trial: "baseline" if mark == "baseline" else "winner" for trial, mark in rows.highlighted(evidence).items()
    }
    drawn = plots.attainment(evidence.outcomes, colours, slo["attainment"], result["load"]["unit"])
    if drawn is not None:
        caption = (
            "Levels of the search, one line a trial; a hollow dot breaks a limit. Levels stopped early are not shown."
        )
        yield _chart("Good share against offered load", drawn, caption)
    priced = plots.cost_margin(result["ranking"], colours, evidence.currency)
    if priced is not None:
        drawn, far = priced
        caption = "Scored trials; whiskers are intervals of verified costs, hollow dots break a limit."
        outside = f" Too far off to show: {', '.join(f'trial {trial}' for trial in far)}." if far else ""
        yield _chart("Cost against margin", drawn, caption + outside)


def _chart(title: str, svg: str, caption: str) -> dict[str, Any]:
    return {"title": title, "svg": Markup(svg), "caption": caption}  # noqa: S704  # svg.py escapes all text


def _sizes(curves: list[Curve], unit: str) -> str:
    return "; ".join(f"{curve.label}: n = {curve.units.total:,} {unit}" for curve in curves) + "."


def _ladder(entry: Entry) -> list[dict[str, str]]:
    return [
        {
            "offered": text.number(rung["offered"]),
            "result": "verified" if rung["passed"] else "not verified",
            "repeats": str(len(rung["levels"])),
            "n": text.UNKNOWN if rung["n"] is None else f"{rung['n']:,}",
            "goodput": text.number(rung["goodput_rps"]),
            "limits": ", ".join(f"{limit_name(name)} {how}" for name, how in rung["limits"].items()),
        }
        for rung in entry["ladder"]
    ]


def _no_feasible(result: Mapping[str, Any]) -> dict[str, Any] | None:
    found = result["no_feasible"]
    if found is None:
        return None
    intro = (
        f"Nearest point: trial {found['nearest']['trial']} at {words.load(found['nearest'])}. "
        "Each line below relaxes one limit alone, to what was measured; all other limits were kept there."
    )
    return {"intro": intro, "relax": [words.sentence(line) for line in words.relaxations(result)]}


def _basis(result: Mapping[str, Any], named: Entry, base: Entry | None) -> str:
    mine = f"{words.role_of_named(result).capitalize()} {words.standing(named)}"
    return mine if base is None else f"{mine}; baseline {words.standing(base)}"


def _method(evidence: Evidence) -> list[tuple[str, str]]:
    """Terms and their definitions, then where the study comes from."""
    result, study = evidence.result, evidence.study
    live = "live: real engines under real requests"
    cost = (
        f"{evidence.currency} per hour of everything the deployment holds ÷ (goodput × 3,600), at the highest verified "
        "load; its interval reaches to the lowest load seen broken, widened by the spread of the repeats"
    )
    times = (
        "from the scheduled arrival to the first token (TTFT) and to the last (E2EL), between tokens (ITL, "
        "token-normalised) and between chunks; failed requests count as +∞ and stay in every denominator"
    )
    kept = (
        "observed: by its share of violations; verified: by one-sided 95 % bounds, with counts divided by "
        f"D ≥ {text.number(result['divide_counts'])} because violations come in bursts"
    )
    return [
        ("Source", "simulated: a model of the engine, no engine ran" if result["source"] == "simulated" else live),
        ("Good request", rows.good_means(evidence)),
        ("Goodput", "good requests that arrived in the measured window ÷ length of the window"),
        ("Cost", cost),
        ("Times", times),
        ("Percentiles", "nearest rank where there is a limit, linear interpolation elsewhere"),
        ("A limit is kept", kept),
        ("Fresh schedules", "finalists and baseline are measured again with other arrivals and prompts, interleaved"),
        ("Warm start", " ".join(words.warm_start(result.get("warm_start"))) or "none: a cold start"),
        ("Spent", words.spent(result)),
        ("Seed", str(study.get("seed", text.UNKNOWN))),
        ("Fingerprints", _listed(study.get("fingerprints"))),
        ("Engine", _listed(result["engine"])),
        ("Versions", _listed(study.get("versions"))),
        ("Commit", str(study.get("git_sha") or text.UNKNOWN)),
        ("Machine", _listed(study.get("machine"))),
        ("Started, ended", f"{study.get('started')}, {study.get('ended') or 'not ended'}"),
    ]


def _listed(values: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (values or {}).items()) or text.UNKNOWN


def _reproduce(evidence: Evidence) -> str:
    study = evidence.study
    backend = ["--backend", "simulated"] if evidence.result["source"] == "simulated" else []
    seed = ["--seed", str(study["seed"])] if "seed" in study else []
    again = ["tuner", "optimize", "--slo", "objective.yaml", "--study", f"{study['study']}-again", *seed, *backend]
    named = evidence.named
    lines = [text.shell(again)]
    if named is not None:
        configuration = f"trials/{named['trial']:04d}/configuration.json"
        lines.append(text.shell(["tuner", "measure", "--slo", "objective.yaml", "--configuration", configuration]))
    return "\n".join(lines)


def _date(study: Mapping[str, Any]) -> str:
    return str(study.get("started", ""))[:16].replace("T", " ") + " UTC"


def _n(entry: Entry) -> str:
    return text.UNKNOWN if entry["n"] is None else f"{entry['n']:,}"
