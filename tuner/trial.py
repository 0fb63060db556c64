"""One configuration, from nothing to its outcome: deploy, challenge, climb or descend, tear down."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tuner import capacity
from tuner.configuration import Configuration
from tuner.cost import cost_per_hour
from tuner.deployment import Deployment, Running
from tuner.errors import ConfigurationFailed, InfrastructureFailed, Interrupted
from tuner.events import LevelEnded, LevelStarted, Listener
from tuner.level import Keep, Purpose, certain, closed_loop, in_flight, measure, plan, unit
from tuner.load.plan import LevelData
from tuner.outcome import Level, Outcome, State
from tuner.records import OK
from tuner.slo import Arrivals, Load, Measure, Objective, Slo

#: Margins are clipped to ± this, and it is what a missing measurement counts.
WORST_MARGIN = 1.5
#: Requests of the probe, and how many of them one unit is guessed to carry at once.
PROBE_REQUESTS = 5
PROBE_FACTOR = 4
#: Its number: none of a measured level, so that its prompts are not theirs, and these begin at 1 in every trial.
_PROBE_LEVEL = 0


#: Facts of a deployment that is fit to be measured; raises what its outcome is where it is not.
Check = Callable[[Configuration, Running], Mapping[str, object]]


@dataclass(frozen=True)
class Task:
    """What a trial is asked to find out."""

    number: int
    attempt: int
    configuration: Configuration
    seed: int
    first: float | None  # load of the first level, requests/s or concurrent requests; None = from a probe
    beat: float | None  # open-loop load at which it would beat the best so far; None = nothing to beat


@dataclass
class _Progress:
    """What happened so far; survives the exception that ends a trial."""

    begun: float
    levels: list[Level] = field(default_factory=list)
    steps: list[capacity.Step] = field(default_factory=list)
    ready_s: float | None = None
    facts: dict[str, object] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)  # of what ended the trial
    pruned: bool = False


def run(
    task: Task,
    deployment: Deployment,
    objective: Objective,
    *,
    keep: Keep,
    listen: Listener,
    expired: Callable[[], bool],
    check: Check | None = None,
) -> Outcome:
    """
    Deploy the configuration, measure it and remove it.

    Args:
        task: Which configuration, and from which load on.
        deployment: Of this configuration, not started.
        objective: SLO, workload and prices.
        keep: Called with each finished level.
        listen: Called with progress.
        expired: Asked between levels; True ends the trial with what is known.
        check: Called once the deployment is ready, before its first level; its facts are the trial's.

    Raises:
        Interrupted: Somebody asked to stop; the deployment is gone.
    """
    progress = _Progress(begun=time.monotonic())
    try:
        with deployment as running:
            progress.ready_s = time.monotonic() - progress.begun
            progress.facts = dict(running.facts)
            if check is not None:
                progress.facts |= check(task.configuration, running)
            _climb(task, running, objective, progress, keep=keep, listen=listen, expired=expired)
    except ConfigurationFailed as error:
        progress.counters = error.counters
        return _outcome(task, objective, progress, failed=("config_failed", error.reason, error.cause))
    except InfrastructureFailed as error:
        return _outcome(task, objective, progress, failed=("infra_failed", error.reason, error.cause))
    return _outcome(task, objective, progress)


def _climb(
    task: Task,
    running: Running,
    objective: Objective,
    progress: _Progress,
    *,
    keep: Keep,
    listen: Listener,
    expired: Callable[[], bool],
) -> None:
    search = objective.search
    fixed = objective.workload.load.kind != "find_capacity"
    rules = capacity.Rules(search.resolution, 1 if fixed else search.max_levels, whole=closed_loop(objective))
    number = 1

    def kept(level: Level, data: LevelData) -> Level:
        nonlocal number
        number = data.plan.number + 1
        stored = keep(level, data)
        progress.levels.append(stored)
        listen(LevelEnded(task.number, stored, unit(objective)))
        return stored

    first = _fixed_load(objective) if fixed else task.first
    if first is None:
        first = _probe(task, running, objective)
        progress.facts["first_guess"] = first
    while (load := capacity.next_load(progress.steps, rules, first)) is not None and not (progress.steps and expired()):
        challenged = not progress.steps and task.beat is not None and not fixed
        purpose: Purpose = "fixed" if fixed else "challenge" if challenged else "search"
        listen(LevelStarted(task.number, number, purpose, load, unit(objective)))
        planned = plan(objective, number=number, seed=task.seed, load=load)
        level, data = measure(running, planned, purpose=purpose, keep=kept)
        progress.steps.append(capacity.Step(load, bool(level.kept), certain(level), in_flight(data)))
        if challenged and task.beat is not None and load <= task.beat and not level.kept and certain(level):
            progress.pruned = True
            return


def _probe(task: Task, running: Running, objective: Objective) -> float:
    """
    A cheap first guess: a few requests, one after the other, and their mean time.

    A deployment batches, so it carries more than one request at a time: the guess is the load at which `PROBE_FACTOR`
    requests per unit would be in flight at that time. The bracket corrects it either way.
    """
    closed = closed_loop(objective)
    alone = dataclasses.replace(
        objective.workload,
        arrivals=Arrivals("closed_loop"),
        load=Load("concurrency", concurrency=1),
        measure=Measure(warmup_s=0.0, duration_s=0.0, min_requests=PROBE_REQUESTS),
    )
    asked = dataclasses.replace(objective, workload=alone, slo=Slo(limits=()))
    data = running.drive(plan(asked, number=_PROBE_LEVEL, seed=task.seed, load=1, stop_early=False))
    if data.stopped == "interrupted":
        raise Interrupted(data.stop_detail or "interrupted")
    times = [r.last_token_s - r.scheduled_s for r in data.records if r.status == OK and r.last_token_s is not None]
    at_once = PROBE_FACTOR * task.configuration.units
    return float(at_once) if closed or not times else at_once * len(times) / sum(times)


def _fixed_load(objective: Objective) -> float:
    load = objective.workload.load
    value = load.rate_rps if load.kind == "rate" else load.concurrency
    assert value is not None  # noqa: S101  (the objective file was checked)
    return float(value)


def _outcome(
    task: Task, objective: Objective, progress: _Progress, failed: tuple[State, str, str] | None = None
) -> Outcome:
    found = capacity.bracket(progress.steps)
    rules = capacity.Rules(objective.search.resolution, objective.search.max_levels, whole=closed_loop(objective))
    usable = [level for level in progress.levels if not level.invalid]
    best: Level | None = None
    if found.kept is not None:
        best = next(level for level in reversed(usable) if level.offered == found.kept and level.kept)
    elif usable:
        best = min(usable, key=lambda level: level.offered)
    if failed is not None:
        state, reason, cause = failed
        best = None
    elif progress.pruned:
        state, reason, cause = "pruned", "cannot_beat_best", _why_broken(progress.levels[-1])
        best = progress.levels[-1]
    elif found.kept is not None:
        state, reason, cause = "feasible", "", ""
    else:
        state, reason, cause = "infeasible", ",".join(_broken(best)) or "no_level", _why_broken(best)
    virtual = sum(level.counters.get("level_seconds", 0.0) for level in progress.levels)
    seconds = virtual or time.monotonic() - progress.begun
    units = task.configuration.units
    return Outcome(
        trial=task.number,
        attempt=task.attempt,
        state=state,
        reason=reason,
        cause=cause,
        configuration=task.configuration,
        units=units,
        cost_per_hour=cost_per_hour(task.configuration, objective).total,
        best=best,
        capacity=found.kept if state == "feasible" else None,
        broken_at=found.broken,
        measured_to_capacity=state == "feasible" and capacity.finished(progress.steps, rules),
        levels=tuple(progress.levels),
        margins=margins(best),
        seconds=seconds,
        unit_hours=units * seconds / 3600,
        ready_s=progress.ready_s,
        facts=progress.facts,
        counters=progress.counters if best is None else best.counters,
    )


def margins(level: Level | None) -> dict[str, float]:
    """Signed relative margins; the limit that ended the level early counts as broken even if its estimate was not."""
    if level is None or level.score is None:
        return {}
    found = dict(level.score.margins)
    if level.stopped == "slo" and level.stop_detail in found and found[level.stop_detail] <= 0:
        found[level.stop_detail] = WORST_MARGIN
    return found


def _broken(level: Level | None) -> list[str]:
    return [name for name, margin in margins(level).items() if margin > 0]


def _why_broken(level: Level | None) -> str:
    """One line: which limits, by how much, at which load."""
    if level is None:
        return "no level was measured"
    parts = [f"{name} {margin:.0%} over its limit" for name, margin in margins(level).items() if margin > 0]
    if level.stopped == "slo":
        parts.append(f"certain after {level.requests} requests")
    return f"at {level.offered:g}: " + ("; ".join(parts) or "kept")
