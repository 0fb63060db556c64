"""`tuner rescore`: judge a study's records by another objective file, without measuring again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner import objective_file
from tuner.conclusion import figure, weight
from tuner.errors import InputError, MeasurementError
from tuner.ledger import Ledger
from tuner.level import fewest_requests, unit
from tuner.objective import Score, score
from tuner.outcome import Level, Outcome
from tuner.slo import Objective, Slo


def rescore(ledger: Ledger, slo: Path) -> dict[str, object]:
    """
    The highest measured load of each trial that keeps the new limits, and what it costs at the new prices.

    Loads between and above the measured ones are unknown: each row says up to where its trial was measured, and a trial
    that keeps everything that was measured may carry more. Where only summaries of the requests were kept, as of most
    simulated trials, limits on token gaps cannot be judged again: such trials are `unjudged`.

    Raises:
        InputError: The file is wrong, or describes another model or workload than the study measured.
    """
    objective = objective_file.load(slo)
    before = ledger.objective
    if before.get("model") not in (None, objective.model):
        raise InputError(
            f"{slo}: model: got {objective.model}: the study measured {before['model']}; it knows no other"
        )
    outcomes = [entry.outcome for entry in ledger.trials() if entry.outcome]
    found = {outcome.trial: _row(ledger, outcome, objective) for outcome in outcomes}
    rows = [row for row in found.values() if row]
    feasible = sorted((row for row in rows if row["cost"] is not None), key=lambda row: row["cost"])
    return {
        "study": ledger.name,
        "slo": str(slo),
        "currency": objective.prices.currency,
        "unit": unit(objective),
        "best": feasible[0] if feasible else None,
        "trials": rows,
        "unknown": [row["trial"] for row in rows if row["may_carry_more"]],
        "unjudged": [outcome.trial for outcome in outcomes if outcome.levels and found[outcome.trial] is None],
    }


def _row(ledger: Ledger, outcome: Outcome, objective: Objective) -> dict[str, Any] | None:
    judged = list(_levels(ledger, outcome, objective))
    if not judged:
        return None
    kept = [(level, found) for level, found in judged if level.stopped == "" and found.observed_kept]
    broken = [level.offered for level, found in judged if not (level.stopped == "" and found.observed_kept)]
    best = max(kept, key=lambda pair: pair[0].offered, default=None)
    goodput = best[1].goodput_rps if best else 0.0
    cost = weight(objective, outcome.configuration) / goodput if goodput > 0 else None
    return {
        "trial": outcome.trial,
        "configuration": dict(outcome.configuration.knobs),
        "offered": best[0].offered if best else None,
        "n": best[1].n if best else None,
        "goodput_rps": goodput if best else None,
        "cost": cost,
        "figure": None if cost is None else figure(objective, cost),
        "measured_up_to": max(level.offered for level, _ in judged),
        "broken_at": min(broken, default=None),
        "may_carry_more": not broken,
        "margins": dict((best or min(judged, key=lambda pair: pair[0].offered))[1].margins),
    }


def _levels(ledger: Ledger, outcome: Outcome, objective: Objective) -> Iterator[tuple[Level, Score]]:
    """Levels whose records suffice, judged again; a level that was cut short can only be judged as broken."""
    entry = ledger.trial(outcome.trial)
    full = _needs_chunks(objective.slo)
    for level in entry.levels():
        if level.invalid or level.score is None:
            continue
        try:
            if full:
                data = entry.level_data(level.number, objective)
                records, start_s = data.records, data.window_start_s
            else:
                records = entry.records(level.number)
                start_s = min((r.scheduled_s for r in records if r.phase == "measured"), default=0.0)
            found = score(
                records,
                objective.slo,
                window_start_s=start_s,
                window_s=level.score.window_s,
                divide=objective.search.divide_counts,
            )
        except MeasurementError:
            continue
        if found.n >= fewest_requests(objective.slo):
            yield level, found


def _needs_chunks(slo: Slo) -> bool:
    """Whether what is promised cannot be judged by the first and the last token of each request alone."""
    gaps = any(limit.metric in ("itl", "chunk_gap", "tpot") for limit in slo.limits)
    return gaps or slo.request.tpot_s is not None or slo.request.itl_max_s is not None


def text(found: dict[str, object]) -> str:
    """For people."""
    rows = found["trials"]
    assert isinstance(rows, list)  # noqa: S101  (as `rescore` made it)
    load = found["unit"]
    lines = [f"study {found['study']} by {found['slo']}"]
    for row in sorted(rows, key=lambda row: (row["cost"] is None, row["cost"] or 0.0)):
        if row["cost"] is None:
            lines.append(
                f"trial {row['trial']:>3}  no measured load keeps it (broken from {row['broken_at']:.3g} {load} on)"
            )
        else:
            more = ", may carry more" if row["may_carry_more"] else ""
            lines.append(
                f"trial {row['trial']:>3}  {row['figure']} at {row['offered']:.3g} {load} offered, "
                f"{row['goodput_rps']:.3g} good requests/s, n {row['n']}{more}"
            )
    unjudged = found["unjudged"]
    if unjudged:
        assert isinstance(unjudged, list)  # noqa: S101  (as `rescore` made it)
        lines.append(
            f"trials {', '.join(map(str, unjudged))}: only summaries of their requests were kept; "
            "token gaps cannot be judged again"
        )
    elif not rows:
        lines.append("no level of this study was kept with its records")
    return "\n".join(lines)
