"""
A trial as MLflow shows it: run name, params, metrics and tags. Pure; knows MLflow's rules for names, not MLflow.

Names: letters, digits, `_`, `-`, `.`; anything else is replaced and a hash of the original is added, so that two
names never fall together. Metrics are finite; where a figure has no finite value, a tag lists it.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tuner import assumed, flat
from tuner.configuration import COUNT_KNOBS, PARALLEL_KNOBS, SHAPE_KNOBS, SIDES, Configuration, flag_of, side_of
from tuner.outcome import Level, Outcome
from tuner.slo import Scalar

RunStatus = Literal["FINISHED", "FAILED", "KILLED", "RUNNING"]
LONGEST_KEY = 200
LONGEST_VALUE = 500
LONGEST_NAME = 120

#: Short forms in run names, in this order; other knobs are shortened to the first letters of their words.
SHORT = {
    "max_num_batched_tokens": "mnbt",
    "max_num_seqs": "seqs",
    "gpu_memory_utilization": "mem",
    "block_size": "blk",
    "enable_chunked_prefill": "chunk",
    "enable_prefix_caching": "prefix",
    "kv_store": "store",
    "kv_store_ram_gib": "ram",
    "kv_store_ssd_gib": "ssd",
    "kv_transfer": "via",
}
#: Written first: the compare page plots the first metric that its runs share.
FIRST = (flat.COST, "goodput_rps", "attainment")
#: Percentiles that are no metrics of a run unless they are limited: thirty rows hide the six that matter.
_LEFT_OUT = ("_p90_ms", "_p95_ms", "_mean_ms")


@dataclass(frozen=True)
class RunCard:
    """Everything that one run shows besides its artifacts."""

    name: str
    status: RunStatus
    params: Mapping[str, str]
    metrics: Mapping[str, float]  # finite
    by_level: Mapping[str, Mapping[int, float]]  # metric → level number → value
    tags: Mapping[str, str]


def key(name: str) -> str:
    """A name that MLflow accepts for params, metrics and tags; valid names stay as they are."""
    made = re.sub(r"[^A-Za-z0-9_.\-]", "_", name)[:LONGEST_KEY]
    if made == name and made.strip("."):
        return made
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{made.strip('.') or 'name'}_{digest}"


def text(value: object, longest: int = LONGEST_VALUE) -> str:
    """`value` as text; a longer one is cut and carries the hash of the whole, which is among the artifacts."""
    whole = str(value).encode("utf-8", "replace").decode()
    if len(whole) <= longest:
        return whole
    return f"{whole[: longest - 30]}... sha256:{hashlib.sha256(whole.encode()).hexdigest()[:16]}"


def shape(configuration: Configuration) -> str:
    """`tp1x2` for two replicas of tensor parallelism 1; roles of a disaggregated deployment joined by `+`."""
    parts = []
    for role in configuration.roles:
        sizes = "".join(
            f"{name.split('_')[0][0]}p{role.flags[name]}"
            for name in PARALLEL_KNOBS
            if role.flags.get(name) not in (None, 1)
        )
        prefix = "" if role.name == "engine" else f"{role.name[0].upper()}:"
        parts.append(f"{prefix}{sizes or 'tp1'}x{role.replicas}")
    return "+".join(parts)


def short(configuration: Configuration) -> str:
    """The knobs in a few letters: `tp2x1 mnbt512 seqs128 nochunk`. ASCII."""
    shown = dict(configuration.effective)
    for name in (*PARALLEL_KNOBS, *SHAPE_KNOBS[:2], *COUNT_KNOBS):
        shown.pop(name, None)
    for side in SIDES:
        for name in PARALLEL_KNOBS:
            shown.pop(f"{side}_{name}", None)
    ordered = [name for name in SHORT if name in shown] + sorted(name for name in shown if name not in SHORT)
    words = [_word(_abbreviated(name), shown[name]) for name in ordered]
    return " ".join([shape(configuration), *words])


def _abbreviated(name: str) -> str:
    """`seqs` for `max_num_seqs`, `Dseqs` for that of decode."""
    side, flag = side_of(name), flag_of(name) or name
    known = SHORT.get(flag) or "".join(part[0] for part in flag.split("_") if part)
    return known if side is None else side[0].upper() + known


def _word(name: str, value: Scalar) -> str:
    if isinstance(value, bool):
        return name if value else f"no{name}"
    return f"{name}{value:g}" if isinstance(value, float) else f"{name}{value}"


def run_name(outcome: Outcome, currency: str) -> str:
    """
    `007 tp2x1 mnbt512: 0.5684 USD/1k`, or how it ended instead of the cost; tells trials apart at a glance.

    The number comes first, so that sorting by name sorts by trial; trial 0 is called the baseline.
    """
    cost = flat.figures(outcome).get(flat.COST)
    reached = f"{cost:.4g} {currency}/1k".replace("  ", " ") if cost is not None else ended(outcome)
    start = f"{outcome.trial:03d}{' baseline' if outcome.trial == 0 else ''} {short(outcome.configuration)}"
    room = LONGEST_NAME - len(reached) - 2
    return f"{start if len(start) <= room else start[: room - 3] + '...'}: {reached}"


def ended(outcome: Outcome) -> str:
    """`infeasible itl_p99`, `config_failed out_of_memory`, `pruned`."""
    return " ".join(word for word in (outcome.state, outcome.reason) if word)


def status(outcome: Outcome | None) -> RunStatus:
    """Infeasible and pruned are answers; failed is what could not be measured; without an outcome it was cut off."""
    if outcome is None:
        return "KILLED"
    return "FAILED" if outcome.state in ("config_failed", "infra_failed") else "FINISHED"


def params(configuration: Configuration) -> dict[str, str]:
    """Knobs under the names of their flags, with `mode`, `replicas` and `units` always there."""
    known = {"mode": configuration.mode, "replicas": configuration.roles[0].replicas, "units": configuration.units}
    if len(configuration.roles) > 1:
        del known["replicas"]
        known |= {f"{role.name}_replicas": role.replicas for role in configuration.roles}
    known |= {name: value for name, value in configuration.effective.items() if value is not None}
    return {key(name): text(value) for name, value in known.items()}


def card(outcome: Outcome, *, currency: str, source: str, closed: bool) -> RunCard:
    """
    The run of one finished attempt.

    Args:
        outcome: How it ended.
        currency: ISO code of its costs.
        source: `live` or `simulated`.
        closed: Loads are concurrent requests rather than requests/s.
    """
    known = flat.figures(outcome, closed=closed)
    ordered = [*(name for name in FIRST if name in known), *(name for name in known if name not in FIRST)]
    limited = {f"{name}_ms" for name in outcome.margins}
    ordered = [name for name in ordered if name in limited or not name.endswith(_LEFT_OUT)]
    figures = {key(name): known[name] for name in ordered}
    finite = {name: float(v) for name, v in figures.items() if v is not None and math.isfinite(v)}
    unknown = sorted(name for name in figures if name not in finite)
    tags = {
        "tuner.outcome": outcome.state,
        "tuner.reason": outcome.reason,
        "tuner.cause": outcome.cause,
        "tuner.mode": outcome.configuration.mode,
        "tuner.engine_version": str(outcome.facts.get("engine_version", "")),
        "tuner.source": source,
        **{f"tuner.{name}": value for name, value in assumed.tags(outcome.facts).items()},
        "tuner.currency": currency,
        "tuner.measured_to_capacity": str(outcome.measured_to_capacity).lower(),
        "tuner.configuration_sha256": hashlib.sha256(outcome.configuration.key.encode()).hexdigest()[:16],
        "tuner.no_finite_value": ", ".join(unknown),
        "mlflow.note.content": note(outcome, currency, source),
    }
    return RunCard(
        name=run_name(outcome, currency),
        status=status(outcome),
        params=params(outcome.configuration),
        metrics=finite,
        by_level=by_level(outcome.levels),
        tags={name: text(value, 5000) for name, value in tags.items() if value},
    )


def by_level(levels: tuple[Level, ...]) -> dict[str, dict[int, float]]:
    """
    Curves over the levels of a trial, for a chart each: offered load, attainment, goodput and the tails.

    Their names sort behind the figures of the trial itself, because pages that compare runs sort by name.
    """
    found: dict[str, dict[int, float]] = {}
    for level in levels:
        values: dict[str, float | None] = {"offered": level.offered}
        if level.score is not None:
            tails = flat.percentiles(level.score.metrics)
            values |= {"attainment": level.score.attainment, "goodput_rps": level.score.goodput_rps}
            values |= {name: tails.get(name) for name in ("ttft_p99_ms", "itl_p99_ms", "chunk_gap_max_p99_ms")}
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                found.setdefault(f"vs_level_{name}", {})[level.number] = value
    return found


def note(outcome: Outcome, currency: str, source: str) -> str:
    """A few lines of Markdown for the run's page."""
    figures = flat.figures(outcome)
    lines = [f"**{ended(outcome)}**" + (f": {outcome.cause}" if outcome.cause else "")]
    lines.append(f"- configuration: `{text(outcome.configuration.key, 2000)}`")
    lines.append(f"- source: {source}; {outcome.units} units; {outcome.seconds:.0f} s")
    cost = figures.get(flat.COST)
    if cost is not None and outcome.best is not None and outcome.best.score is not None:
        score = outcome.best.score
        lines.append(
            f"- {cost:.4g} {currency} per 1,000 good requests at {score.offered_rps:.3g} requests/s "
            f"(observed, n = {score.n}, attainment {score.attainment:.2%})"
        )
    lines += [f"- margin {name}: {value:+.1%} (<= 0 is kept)" for name, value in outcome.margins.items()]
    return "\n".join(lines)
