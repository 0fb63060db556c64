"""`measurement.json` for people: one deployment, its figures and its limits."""

from collections.abc import Mapping
from typing import Any

from tuner.report.text import UNKNOWN, beside, count, number


def text(found: Mapping[str, Any]) -> str:
    """A few lines: verdict, load, requests, limits, cost."""
    simulated = " (simulated)" if found["source"] == "simulated" else ""
    verdict = "keeps the SLO" if found["kept"] else f"breaks the SLO: {found['reason']} {found['cause']}".rstrip()
    lines = [f"{found['model']}{simulated} {verdict}"]
    if found["requests"] is not None:
        requests = found["requests"]
        failed = ", ".join(f"{count} {name}" for name, count in requests["failed"].items()) or "none failed"
        lines.append(
            f"load       {number(found['offered_rps'])} req/s offered, {number(found['goodput_rps'])} good/s "
            f"(attainment {number(100 * found['attainment'])} %)"
        )
        lines.append(
            f"requests   {requests['measured']} measured of {requests['sent']} sent: "
            f"{requests['completed']} completed, {requests['good']} good, {failed}"
        )
    lines.extend(_limit(limit) for limit in found["limits"])
    if found["cost_per_1k_good_requests"] is not None:
        lines.append(
            f"cost       {number(found['cost_per_1k_good_requests'])} {found['currency']} per 1,000 good requests, "
            f"{number(found['cost_per_hour'])} {found['currency']}/h for {count(found['gpus'], found['unit'])}"
        )
    return "\n".join(lines)


def _limit(limit: Mapping[str, Any]) -> str:
    share = limit["name"] == "attainment"
    scale, unit = (100, "%") if share else (1000, "ms")
    threshold = limit["threshold"] * scale
    if limit["estimate"] is not None:
        measured = beside(limit["estimate"] * scale, threshold)
    else:
        measured = UNKNOWN if limit["longest"] is None else f"> {number(limit['longest'] * scale)}"
    return (
        f"{limit['name']:<10} {measured} {unit} (limit {number(threshold)} {unit}): {limit['observed']}, "
        f"with 95 % confidence {limit['decision']}; n {limit['n']}, {limit['violations']} violations"
    )
