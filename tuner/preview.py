"""`tuner check`: what a study would do, before it does it."""

import random
from collections import Counter
from dataclasses import dataclass
from itertools import islice

from tuner import cost, feasibility, objective_text, objective_warnings
from tuner.configuration import Configuration
from tuner.level import fewest_requests
from tuner.optimize import Inputs, Request, read
from tuner.report.text import duration
from tuner.slo import Objective
from tuner.verification import planned_requests

#: Points looked at one by one; of a larger or continuous space a sample of this size.
LOOKED_AT = 5_000
#: Assumptions of the estimate, stated beside it.
LEVELS_PER_TRIAL = 6
START_S = 120.0


@dataclass(frozen=True)
class Preview:
    inputs: Inputs
    warnings: tuple[str, ...]
    size: int | None  # points of the space; None = a continuum
    looked_at: int
    excluded: dict[str, int]  # rule → points that it rejects, of those looked at
    examples: dict[str, str]  # rule → one message
    baseline: Configuration
    units: tuple[int, int]  # fewest and most units of a point that is left
    trials: int | None
    seconds: float  # of the whole study, by the assumptions
    unit_hours: float
    currency: float


def preview(request: Request) -> Preview:
    """
    Read the files and look at the space.

    Raises:
        InputError: A file is wrong, or the workload can never be served.
    """
    inputs = read(request)
    objective, space = inputs.objective, inputs.space
    size = space.size()
    points = _points(inputs, size)
    excluded: Counter[str] = Counter()
    examples: dict[str, str] = {}
    left: list[int] = []
    for point in points:
        violations = feasibility.violations(point, objective, inputs.facts, longest=inputs.longest)
        if violations:
            excluded[violations[0].rule] += 1
            examples.setdefault(violations[0].rule, violations[0].message)
        else:
            left.append(point.units)
    baseline = feasibility.baseline(objective, inputs.facts)
    trials = objective.search.budget.trials
    if trials is not None and size is not None:
        trials = min(trials, size + 1)
    seconds, hours = _estimate(inputs, trials, left, baseline)
    hourly = cost.cost_per_hour(baseline, objective).total / max(1, baseline.units)
    return Preview(
        inputs=inputs,
        warnings=(
            *objective_warnings.warnings(objective, rows=inputs.requests),
            *objective_warnings.of_space(objective, space),
        ),
        size=size,
        looked_at=len(points),
        excluded=dict(excluded),
        examples=examples,
        baseline=baseline,
        units=(min(left, default=0), max(left, default=0)),
        trials=trials,
        seconds=seconds,
        unit_hours=hours,
        currency=hours * hourly,
    )


def _points(inputs: Inputs, size: int | None) -> list[Configuration]:
    space = inputs.space
    if size is not None and size <= LOOKED_AT:
        return [Configuration(knobs) for knobs in space.points()]
    if size is not None:
        chosen = set(random.Random(0).sample(range(size), LOOKED_AT))  # noqa: S311  (a sample, no secret)
        return [Configuration(knobs) for index, knobs in enumerate(islice(space.points(), size)) if index in chosen]
    return []


def _estimate(inputs: Inputs, trials: int | None, left: list[int], baseline: Configuration) -> tuple[float, float]:
    """Seconds and unit-hours, where every level lasts as long as the file asks at least."""
    objective = inputs.objective
    measure = objective.workload.measure
    levels = (
        1 if objective.workload.load.kind != "find_capacity" else min(LEVELS_PER_TRIAL, objective.search.max_levels)
    )
    level_s = measure.warmup_s + measure.duration_s
    start_s = 0.0 if inputs.backend == "simulated" else START_S
    trial_s = start_s + levels * level_s
    growth = max(1.0, planned_requests(objective) / max(1, measure.min_requests, fewest_requests(objective.slo)))
    sessions = (1 + objective.search.verify.finalists) * objective.search.verify.repeats
    verify_s = sessions * (start_s + measure.warmup_s + measure.duration_s * growth)
    units = sum(left) / len(left) if left else baseline.units
    searched = (trials or 0) * trial_s
    return searched + verify_s, (searched * units + verify_s * max(units, baseline.units)) / 3600


def _levels(objective: Objective) -> int:
    """Levels of one trial that the estimate assumes."""
    return 1 if objective.workload.load.kind != "find_capacity" else min(LEVELS_PER_TRIAL, objective.search.max_levels)


def as_json(found: Preview) -> dict[str, object]:
    """For `--json`."""
    return {
        "objective": objective_text.resolved(found.inputs.objective),
        "backend": found.inputs.backend,
        "space": {"name": found.inputs.space.name, "size": found.size, "looked_at": found.looked_at},
        "excluded": found.excluded,
        "baseline": dict(found.baseline.knobs),
        "units": {"fewest": found.units[0], "most": found.units[1], "max": found.inputs.objective.cluster.max_gpus},
        "estimate": {
            "trials": found.trials,
            "seconds": found.seconds,
            "gpu_hours": found.unit_hours,
            "currency": found.currency,
            "assumes": {"levels_per_trial": _levels(found.inputs.objective), "start_s": START_S},
        },
        "model_facts": found.inputs.facts is not None,
        "warnings": list(found.warnings),
    }


def text(found: Preview) -> str:
    """For people."""
    objective = found.inputs.objective
    lines = [objective_text.dump(objective).rstrip(), ""]
    size = "continuous" if found.size is None else f"{found.size} points"
    lines.append(f"backend    {found.inputs.backend}")
    lines.append(f"space      {found.inputs.space.name}: {size}, {len(found.inputs.space.knobs)} knobs")
    for rule, count in sorted(found.excluded.items(), key=lambda pair: -pair[1]):
        lines.append(f"excluded   {count} of {found.looked_at} by {rule}, such as: {found.examples[rule]}")
    if not found.excluded:
        lines.append(f"excluded   none of {found.looked_at} points looked at")
    base = ", ".join(f"{name}={value}" for name, value in sorted(found.baseline.knobs.items())) or "engine defaults"
    lines.append(f"baseline   {base}")
    unit = objective.cluster.unit
    lines.append(
        f"size       {found.units[0]} to {found.units[1]} {unit}s a trial, at most {objective.cluster.max_gpus}"
    )
    trials = "no limit on trials" if found.trials is None else f"{found.trials} trials"
    what = "virtual" if found.inputs.backend == "simulated" else "at least"
    lines.append(
        f"estimate   {trials}: {what} {duration(found.seconds)}, {found.unit_hours:.2f} {unit}-hours, "
        f"{found.currency:.2f} {objective.prices.currency} (at {_levels(objective)} levels a trial"
        + ("" if found.inputs.backend == "simulated" else f", {START_S:g} s to start")
        + ")"
    )
    if found.inputs.facts is None:
        lines.append("warning    nothing is known about this model: rules on memory and parallelism are skipped")
    lines.extend(f"warning    {warning}" for warning in found.warnings)
    return "\n".join(lines)
