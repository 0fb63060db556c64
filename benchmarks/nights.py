"""
Are nights right? Full studies of fortnights with known events, and the rules alone over many quiet nights.

A fortnight on the simulated cluster, every run with 2 % noise on its step times: an engine that is 15 % slower from
night 2 on, an improvement of 8 % from night 3 on (one knob becomes faster), a drift of 1 % a night from night 6 to 13,
another workload on night 14. All points of the space are equally good otherwise, so that every promotion but one is
false. The rules alone see 100 quiet fortnights, and as many with a drift and a regression.

    python benchmarks/nights.py [--fortnights N] [--rules N] [--seed N] [--noise FILE] [--json FILE]

`--noise FILE`: what `benchmarks/noise.py` wrote; the rules are tried at the noise that it measured, too.
"""

import argparse
import json
import math
import platform
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from tuner import drift, gate, provenance
from tuner.carried import RUNS, carried
from tuner.configuration import Configuration
from tuner.deployment import Launcher
from tuner.deployment.simulated import SimulatedLauncher
from tuner.drift import Point
from tuner.events import silent
from tuner.gate import Pair
from tuner.nightfile import Night
from tuner.nightly import nightly
from tuner.nightplan import NightRequest
from tuner.optimize import Inputs, Request
from tuner.outcome import Level
from tuner.slo import Gate

NIGHTS = 14
NOISE = 0.02
REGRESSED, REGRESSION = 2, 0.15
IMPROVED, IMPROVEMENT = 3, 0.08
DRIFTS, DRIFT = range(6, 14), 0.01
WORKLOAD = 14

OBJECTIVE = """
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft: {p95: 500ms}, itl: {p95: 60ms}}
workload:
  source: {synthetic: {input_tokens: TOKENS, output_tokens: 32}}
  measure: {warmup: 1s, duration: 3s, min_requests: 500}
cluster: {gpu: H100-80GB, nodes: 1, gpus_per_node: 1}
prices: {currency: USD, gpu_hour: 3.99}
search: {space: ./space.yaml, trials: 6, resolution: 2%, verify: {finalists: 1, repeats: 2, min_requests: 2000}}
gate: {sessions: 12}
backend: simulated
"""
SPACE = """
description: knobs that change nothing on the simulated cluster
knobs:
  enable_prefix_caching: {choices: [true, false], source: "of no effect without shared prefixes"}
  scheduling_policy: {choices: [fcfs, priority], source: "not simulated"}
  async_scheduling: {choices: [true, false], source: "not simulated"}
"""


@dataclass(frozen=True)
class Line:
    """One line of the table; `bound` says what must hold."""

    question: str
    value: str
    bound: str
    holds: bool


def slowdown(night: int, configuration: Configuration) -> float:
    """Factor on all step times."""
    drifted = (1 + DRIFT) ** max(0, min(night, DRIFTS.stop - 1) - DRIFTS.start + 1)
    engine = 1 + REGRESSION if night >= REGRESSED else 1.0
    better = night >= IMPROVED and configuration.knobs.get("scheduling_policy") == "priority"
    return drifted * engine * (1 - IMPROVEMENT if better else 1.0)


def fortnight(seed: int, folder: Path) -> list[Night]:
    """Fourteen nights with full studies."""
    (folder / "space.yaml").write_text(SPACE)
    slo = folder / "fortnight.yaml"
    found = []
    for night in range(1, NIGHTS + 1):
        slo.write_text(OBJECTIVE.replace("TOKENS", "600" if night >= WORKLOAD else "500"))

        def launch(_: Request, inputs: Inputs, __: Path, night: int = night) -> Launcher:
            return SimulatedLauncher(
                inputs.objective,
                seed_noise=1000 * seed + night,
                variation=NOISE,
                slowdown=lambda configuration: slowdown(night, configuration),
            )

        ended, _ = nightly(NightRequest(slo=slo, runs=folder / "runs", mlflow="off"), silent, launch=launch)
        found.append(ended)
    return found


def judged(nights: list[Night]) -> list[Line]:
    """What was found when, in one fortnight."""
    alarms = {n.number: n.comparison.verdict for n in nights if n.comparison is not None and n.status != "failed"}
    alarming = [number for number, verdict in alarms.items() if verdict in ("regression", "drift")]
    promoted = {night.number: night.challenger for night in nights if night.status == "promoted"}
    true = [
        n for n, c in promoted.items() if n >= IMPROVED and c and c.configuration["scheduling_policy"] == "priority"
    ]
    drifting = [number for number in alarming if number in DRIFTS]
    late = [number for number in alarming if number in (REGRESSED, REGRESSED + 1)]
    false = [number for number in alarming if number not in DRIFTS and number not in late]
    changed = [number for number, verdict in alarms.items() if verdict == "workload_changed"]
    return [
        Line("improvement of 8 % promoted", f"night {true}", f"{IMPROVED} or {IMPROVED + 1}",
             true[:1] in ([IMPROVED], [IMPROVED + 1])),
        Line("promotions beside it", f"{len(promoted) - len(true[:1])}", "0", len(promoted) == len(true[:1])),
        Line("drift of 1 % a night", f"night {drifting}", f"{DRIFTS.start} to {DRIFTS.stop - 1}",
             bool(drifting)),
        Line("workload change", f"night {changed}", f"{WORKLOAD}", changed == [WORKLOAD]),
        Line("regression of 15 %", f"night {late}", f"{REGRESSED} or {REGRESSED + 1}", bool(late)),
        Line("false alarms", f"night {false}", "none", not false),
    ]  # fmt: skip


def quiet_figures(random: np.random.Generator, noise: float, nights: int) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of what incumbent and defaults cost, in nights in which nothing happens."""
    return random.normal(0, noise, nights), random.normal(0, noise, nights)


def alarms(own: np.ndarray, base: np.ndarray, expected: float) -> list[int]:
    """Indices of the nights on which a dearer incumbent is told; each finding begins a new history, as in a night."""
    found, first = [], 0
    for night in range(1, len(own)):
        seen = [Point(k, own[k], base[k]) for k in range(first, night + 1)]
        change = drift.change(seen, expected)
        if change.shape is not None and change.share is not None:
            if change.share > 0:
                found.append(night)
            first = night if change.shape == "ramp" or change.since is None else change.since
    return found


def level(load: float, *, kept: bool) -> Level:
    """A level, as far as the estimate of a capacity looks at it."""
    return Level(1, "verify", load, None, kept, "", "", "", 0.0, 0)


def promoted(random: np.random.Generator, noise: float, gain: float, rule: Gate) -> bool:
    """Whether a challenger with this true gain passes: the best of five that a search saw, then the gate's pairs."""
    true = (1 / (1 - gain), 1.0)  # load carried at equal weights
    levels: tuple[list[Level], list[Level]] = ([], [])
    for index in (0, 1):
        tried = 5 if index == 0 else 1  # the luckiest of five configurations is the challenger
        runs = true[index] * np.exp(random.normal(0, noise, tried)).max() * np.array([0.97, 1.0, 1.03])
        levels[index].extend(level(load, kept=k < 2) for k, load in enumerate(runs))
    pairs: list[Pair] = []
    while (found := gate.evidence(pairs, rule.confidence)).state == "open":
        guesses = [carried(each, RUNS * rule.noise) for each in levels]
        held = [1.0, 1.0] if None in guesses else [guess.load for guess in guesses if guess is not None]
        if not pairs and 1 - held[1] / held[0] <= rule.min_gain:
            return False
        loads = gate.loads((1.0, held[0]), (1.0, held[1]), rule.min_gain)
        kept = [bool(true[k] * math.exp(random.normal(0, noise)) >= loads[k]) for k in (0, 1)]
        for index in (0, 1):
            levels[index].append(level(loads[index], kept=kept[index]))
        pairs.append(Pair(*kept))
    return found.state == "proven"


def rules(fortnights: int, noise: float, expected: float, seed: int) -> list[Line]:
    """The rules without studies: what they do in quiet nights, and how soon they see what happens."""
    random = np.random.default_rng(seed)
    rule = replace(Gate(), noise=expected)
    nights = fortnights * NIGHTS
    false = sum(len(alarms(*quiet_figures(random, noise, NIGHTS), expected)) for _ in range(fortnights))
    wrong = [sum(promoted(random, noise, gain, rule) for _ in range(nights)) for gain in (0.0, rule.min_gain)]
    right = np.mean([promoted(random, noise, IMPROVEMENT, rule) for _ in range(200)])
    jumps, ramps = [], []
    for _ in range(fortnights):
        own, base = quiet_figures(random, noise, 8)
        moved = np.where(np.arange(8) >= 6, math.log1p(REGRESSION), 0.0)
        jumps.append([night for night in alarms(own + moved, base + moved, expected) if night >= 6])
        own, base = quiet_figures(random, noise, 14)
        moved = np.maximum(0, np.arange(14) - 5) * math.log1p(DRIFT)
        ramps.append([night for night in alarms(own + moved, base + moved, expected) if night >= 6])
    soon = np.mean([bool(each) for each in jumps])
    seen = np.mean([bool(each) for each in ramps])
    lengths = [each[0] - 5 for each in ramps if each]
    after = f", after {np.mean(lengths):.1f} on average" if lengths else ""
    at = f"{noise:.1%} noise"
    asked = noise <= NOISE  # what the rules promise; with more noise the power is what it is
    return [
        Line(f"{at}: false alarms", f"{false} in {nights} nights", "at most 1 in 1,400" if asked else "information",
             not asked or false <= 1),
        Line(f"{at}: promoted, true gain 0", f"{wrong[0]} in {nights}", "0", wrong[0] == 0),
        Line(f"{at}: promoted, gain = min_gain", f"{wrong[1]} in {nights}", "0.5 %, give or take",
             wrong[1] <= 0.005 * nights + 3 * math.sqrt(0.005 * nights)),
        Line(f"{at}: gain of 8 % on its night", f"{right:.0%}", "information", holds=True),
        Line(f"{at}: regression within 2 nights", f"{soon:.0%}", "100 %" if asked else "information",
             not asked or bool(soon == 1)),
        Line(f"{at}: drift within 8 nights", f"{seen:.0%}{after}", "90 %" if asked else "information",
             not asked or bool(seen >= 0.9)),
    ]  # fmt: skip


def run_length(noise: float, expected: float, seed: int, nights: int = 20_000) -> Line:
    """Nights between false alarms where nothing ever happens."""
    random = np.random.default_rng(seed)
    found = sum(len(alarms(*quiet_figures(random, noise, 40), expected)) for _ in range(nights // 40))
    told = f"{found} in {nights} nights" if found else f"none in {nights} nights"
    return Line(f"{noise:.1%} noise: run length", told, "information", holds=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fortnights", type=int, default=3)
    parser.add_argument("--rules", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    lines = []
    if asked.rules:
        lines += rules(asked.rules, NOISE, NOISE, asked.seed)
        lines += rules(asked.rules, 1.5 * NOISE, 1.5 * NOISE, asked.seed)
        lines.append(run_length(NOISE, NOISE, asked.seed))
        if asked.noise is not None:
            measured = float(json.loads(asked.noise.read_text())["spread"])
            lines += rules(asked.rules, measured, measured, asked.seed)
        show(lines)
    for number in range(asked.fortnights):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            nights = fortnight(asked.seed + number, Path(folder))
        for night in nights:
            print(shown(night), flush=True)
        found = [replace(line, question=f"fortnight {number}: {line.question}") for line in judged(nights)]
        show(found)
        lines += found
        print(f"fortnight {number}: {time.monotonic() - begun:.0f} s")
    if asked.json is not None:
        told: dict[str, object] = {
            "machine": provenance.machine(),
            "python": platform.python_version(),
            "at": provenance.now(),
        }
        told |= {"commit": provenance.git_sha(Path(__file__).parent), "lines": [asdict(line) for line in lines]}
        asked.json.write_text(json.dumps(told, indent=2) + "\n")
    raise SystemExit(0 if all(line.holds for line in lines) else 1)


def show(lines: list[Line]) -> None:
    for line in lines:
        print(f"{'pass' if line.holds else 'FAIL'}  {line.question:<48} {line.value:<34} {line.bound}", flush=True)


def shown(night: Night) -> str:
    """One line of a fortnight."""
    verdict = night.comparison.verdict if night.comparison is not None else ""
    loads = [each.capacity for each in (night.incumbent, night.baseline) if each is not None and each.capacity]
    told = " ".join(f"{load:.1f}" for load in loads)
    return f"{night.number:>4} {night.status:<10} {verdict:<16} {told:<10} req/s  {night.reason}"


if __name__ == "__main__":
    main()
