"""
How many trials does a warm start save after the workload changed?

The simulated cluster is measured once at every point of a small space, for the chat objective as it is and with all
lengths 20 % longer and shorter: that is the truth. On it, for each seed: a study of the first night, and for each
change a cold and a warm-started study of the second. A trial's capacity is the true one times log-normal noise of 2 %.
Counted are the trials, baseline included, until the best trial so far is within 2 % of that night's true optimum.

    python benchmarks/warm_start.py [--seeds N] [--json FILE]
"""

import argparse
import hashlib
import json
import math
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from tuner import conclusion, objective_file, objective_text, study, transfer, trial
from tuner.configuration import Configuration
from tuner.deployment.simulated import SimulatedLauncher
from tuner.events import Event, TrialEnded, silent
from tuner.ledger import Ledger
from tuner.outcome import Outcome
from tuner.result import assemble
from tuner.samplers import Proposals
from tuner.slo import Budget, Measure, Objective, Synthetic
from tuner.space import Knob, Space
from tuner.trial import Task

OBJECTIVE = Path(__file__).parent.parent / "objectives" / "chat.yaml"
#: 50 points on one GPU or two; the optimum moves with the lengths.
SPACE = Space(
    "warm-start",
    (
        Knob("tensor_parallel_size", "categorical", options=(1, 2)),
        Knob("max_num_batched_tokens", "categorical", options=(512, 1024, 2048, 4096, 8192)),
        Knob("max_num_seqs", "categorical", options=(32, 64, 128, 256, 512)),
    ),
)
CHANGES = (0.8, 1.2)
NOISE = 0.02
NEAR = 0.02  # of the optimum
#: Of a first night; of a second one, at most.
TRIALS = {"first": 24, "second": 48}
TARGET = 0.5  # share of the cold start's trials


class Found(Exception):  # noqa: N818  (an end, no error)
    """The best trial so far is near the optimum: there is nothing more to count."""


class Silent:
    """A tracker that mirrors nothing."""

    def note(self) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Night:
    """The truth of one workload: every point's outcome without noise."""

    objective: Objective
    outcomes: Mapping[str, Outcome]  # by key

    def cost(self, key: str) -> float:
        """What the objective minimises; infinite where the point keeps no limit."""
        found = conclusion.value(self.objective, self.outcomes[key])
        return math.inf if found is None else found

    @property
    def optimum(self) -> float:
        return min(self.cost(key) for key in self.outcomes)

    def near(self, key: str) -> bool:
        """Whether a point is within `NEAR` of the optimum."""
        return self.cost(key) <= self.optimum * (1 + NEAR)


def night(factor: float) -> Night:
    """Measure every point of the space with all lengths times `factor`."""
    base = objective_file.load(OBJECTIVE)
    source = base.workload.source
    assert isinstance(source, Synthetic)  # noqa: S101  (of the file that ships)
    lengths = Synthetic(round(source.input_tokens * factor), round(source.output_tokens * factor))
    workload = replace(base.workload, source=lengths, measure=Measure(2.0, 10.0, 300))
    objective = replace(base, workload=workload, search=replace(base.search, resolution=0.01, max_levels=12))
    launcher = SimulatedLauncher(objective)
    points = [Configuration(dict(point)) for point in SPACE.points()]
    outcomes: dict[str, Outcome] = {}
    first: dict[object, float] = {}  # a guess by the size of the engine
    for point in points:
        size = point.knobs["tensor_parallel_size"]
        task = Task(1, 1, point, seed=1, first=first.get(size, 20.0), beat=None)
        deployment = launcher.deployment(point, Path())
        found = trial.run(
            task, deployment, objective, keep=lambda level, _: level, listen=silent, expired=lambda: False
        )
        first[size] = found.capacity or first.get(size, 20.0)
        outcomes[point.key] = found
    return Night(objective, outcomes)


def noisy(found: Outcome, task: Task, seed: int) -> Outcome:
    """What one trial sees of the truth: other luck, and pruned where it cannot win."""
    if found.state != "feasible" or found.best is None or found.best.score is None or found.capacity is None:
        return replace(found, trial=task.number, attempt=task.attempt)
    digest = hashlib.sha256(f"{seed} {task.number} {task.configuration.key}".encode()).digest()
    factor = math.exp(NOISE * np.random.default_rng(int.from_bytes(digest[:8], "little")).standard_normal())
    score = replace(
        found.best.score,
        goodput_rps=found.best.score.goodput_rps * factor,
        offered_rps=found.best.score.offered_rps * factor,
    )
    best = replace(found.best, offered=found.best.offered * factor, score=score)
    capacity = found.capacity * factor
    seen = replace(found, trial=task.number, attempt=task.attempt, best=best, capacity=capacity)
    if task.beat is not None and capacity < task.beat:
        return replace(seen, state="pruned", capacity=None, broken_at=task.beat, measured_to_capacity=False)
    return replace(seen, broken_at=capacity * 1.05)


@contextmanager
def in_memory() -> Iterator[None]:
    """Optuna's working copy in memory: the ledger is the truth, and no study here is taken up again."""
    create = optuna.create_study
    optuna.create_study = lambda **settings: create(**{**settings, "storage": None})
    try:
        yield
    finally:
        optuna.create_study = create


def run(runs: Path, name: str, truth: Night, seed: int, *, second: bool = True, warm: str | None = None) -> int:
    """
    One study on the truth, kept under its name.

    Args:
        runs: Of the seed.
        name: Of the study.
        truth: What it measures.
        seed: Of proposals and noise.
        second: Stop as soon as the best trial is near the optimum.
        warm: Study to start from.

    Returns:
        Its trials; of a second night that never came near, one more than it had.
    """
    trials = TRIALS["second" if second else "first"]
    search = replace(truth.objective.search, budget=Budget(trials=trials))
    objective = replace(truth.objective, search=search)
    launcher = SimulatedLauncher(objective)
    prints = {**objective_text.fingerprint(objective), "space": SPACE.fingerprint}
    baseline = Configuration({"tensor_parallel_size": 1, "max_num_batched_tokens": 8192, "max_num_seqs": 512})
    objective = replace(objective, baseline=dict(baseline.knobs))
    today = transfer.Today(objective, SPACE, prints, "simulated", None, baseline)
    start = transfer.Transfer() if warm is None else transfer.plan(runs, warm, today)
    ledger = Ledger.create(
        runs,
        name,
        objective_yaml=objective_text.dump(objective),
        fingerprints=prints,
        seed=seed,
        source="simulated",
        files={transfer.FILE: transfer.as_json(start)},
    )

    def measured(task: Task, *_: object, **__: object) -> Outcome:
        return noisy(truth.outcomes[task.configuration.key], task, seed)

    def near(event: Event) -> None:
        if second and isinstance(event, TrialEnded):
            best = conclusion.best(objective, session.outcomes())
            if best is not None and truth.near(best.configuration.key):
                raise Found

    # The table in place of the simulator: the same truth, a thousand times as fast.
    study.run = measured  # type: ignore[attr-defined]
    with ledger.lock():
        session = study.Study(
            objective=objective,
            space=SPACE,
            facts=None,
            longest=None,
            launcher=launcher,
            ledger=ledger,
            proposals=Proposals(SPACE, storage="", name=name, kind="tpe", seed=seed),
            tracker=Silent(),  # type: ignore[arg-type]  # it has all that a study uses
            seed=seed,
            parallel=1,
            listen=near,
            transfer=start,
        )
        try:
            session.search()
        except Found:
            return len(session.outcomes())
    outcomes = session.outcomes()
    result = assemble(objective, name, outcomes, {}, None, "no_gain", {}, "simulated", {})
    ledger.write_json("result.json", result)
    return len(outcomes) + 1


@dataclass(frozen=True)
class Row:
    """One change of the workload, over all seeds."""

    change: str
    cold: float  # median trials
    warm: float
    share: float  # median of the seeds' warm / cold
    slower: int  # seeds in which the warm start needed more trials
    bound: float

    @property
    def holds(self) -> bool:
        return self.share <= self.bound


def row(change: str, pairs: list[tuple[int, int]]) -> Row:
    cold, warm = zip(*pairs, strict=True)
    share = statistics.median(each / other for other, each in pairs)
    slower = sum(each > other for other, each in pairs)
    return Row(change, statistics.median(cold), statistics.median(warm), share, slower, TARGET)


def measure(seeds: int) -> dict[str, Any]:
    began = time.monotonic()
    before, *after = (night(factor) for factor in (1.0, *CHANGES))
    truth_s = time.monotonic() - began
    print(f"truth of {len(before.outcomes)} points and {1 + len(after)} workloads in {truth_s:.0f} s", flush=True)
    for factor, truth in zip((1.0, *CHANGES), (before, *after), strict=True):
        near = sum(truth.near(key) for key in truth.outcomes)
        best = min(truth.outcomes, key=truth.cost)
        print(f"lengths × {factor:g}: optimum {truth.optimum:.4f} at {best}; {near} points within {NEAR:.0%}")
    pairs: dict[str, list[tuple[int, int]]] = {f"{factor - 1:+.0%}": [] for factor in CHANGES}
    with in_memory(), tempfile.TemporaryDirectory() as place:
        for seed in range(seeds):
            runs = Path(place) / str(seed)
            run(runs, "first", before, seed, second=False)
            for change, truth in zip(pairs, after, strict=True):
                sign = "up" if change.startswith("+") else "down"
                second = seed + 1000
                cold = run(runs, f"cold-{sign}", truth, second)
                warm = run(runs, f"warm-{sign}", truth, second, warm="first")
                pairs[change].append((cold, warm))
                print(f"seed {seed}, {change}: cold {cold}, warm {warm}", flush=True)
    rows = [row(change, each) for change, each in pairs.items()]
    rows.append(row("both", [pair for each in pairs.values() for pair in each]))
    return {
        "benchmark": "warm_start",
        "seeds": seeds,
        "seconds": round(time.monotonic() - began, 1),
        "machine": platform.platform(),
        "python": platform.python_version(),
        "commit": _commit(),
        "pairs": pairs,
        "rows": [{**asdict(each), "holds": each.holds} for each in rows],
    }


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def main() -> int:
    """Print the table, write the JSON; 1 if the target is missed."""
    parser = argparse.ArgumentParser(description="How many trials does a warm start save?")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    found = measure(arguments.seeds)
    print(f"{'lengths':>8}{'cold':>8}{'warm':>8}{'warm/cold':>11}{'slower':>8}")
    for each in found["rows"]:
        mark = "" if each["holds"] else "  <-- above one half"
        print(f"{each['change']:>8}{each['cold']:>8g}{each['warm']:>8g}{each['share']:>11.2f}{each['slower']:>8}{mark}")
    print(f"median trials of {found['seeds']} seeds, {found['seconds']:.0f} s")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return 0 if all(each["holds"] for each in found["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
