"""
Are nights right? Full studies of fortnights with known events, and the rules alone over many quiet nights.

A fortnight on the simulated cluster, every run with 2 % noise on its step times: an improvement of 8 % from night 3 on
(one knob becomes faster), a drift of 1 % a night from night 6 to night 11, another workload from night 12 on, an engine
that is 15 % slower from night 13 on. All points of the space are equally good otherwise, so that every promotion but
one is false. The rules alone see 100 quiet fortnights, and as many with a drift and a regression.

    python benchmarks/nights.py [--fortnights N] [--rules N] [--noise FILE] [--json FILE]

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

NIGHTS = 14
NOISE = 0.02
IMPROVED, IMPROVEMENT = 3, 0.08
DRIFTS, DRIFT = range(6, 12), 0.01
WORKLOAD = 12
REGRESSED, REGRESSION = 13, 0.15

OBJECTIVE = """
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft: {p95: 500ms}, itl: {p95: 25ms}}
workload:
  source: {synthetic: {input_tokens: TOKENS, output_tokens: 32}}
  measure: {warmup: 1s, duration: 3s, min_requests: 150}
cluster: {gpu: H100-80GB, nodes: 1, gpus_per_node: 1}
prices: {currency: USD, gpu_hour: 3.99}
search: {space: ./space.yaml, trials: 6, resolution: 2%, verify: {finalists: 1, repeats: 2, min_requests: 600}}
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
    drifting = [number for number in alarming if number in range(DRIFTS.start, DRIFTS.start + 8)]
    late = [number for number in alarming if number in (REGRESSED, REGRESSED + 1)]
    false = [number for number in alarming if number < DRIFTS.start]
    changed = [number for number, verdict in alarms.items() if verdict == "workload_changed"]
    return [
        Line("improvement of 8 % promoted", f"night {true}", f"{IMPROVED} or {IMPROVED + 1}",
             true[:1] in ([IMPROVED], [IMPROVED + 1])),
        Line("promotions beside it", f"{len(promoted) - len(true[:1])}", "0", len(promoted) == len(true[:1])),
        Line("drift of 1 % a night", f"night {drifting}", f"{DRIFTS.start} to {DRIFTS.start + 7}",
             bool([n for n in drifting if n < WORKLOAD])),
        Line("workload change", f"night {changed}", f"{WORKLOAD}", changed == [WORKLOAD]),
        Line("regression of 15 %", f"night {late}", f"{REGRESSED} or {REGRESSED + 1}", bool(late)),
        Line("false alarms", f"night {false}", "none", not false),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fortnights", type=int, default=3)
    parser.add_argument("--rules", type=int, default=100)
    parser.add_argument("--noise", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    for seed in range(asked.fortnights):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            nights = fortnight(seed, Path(folder))
        for night in nights:
            own, base = night.incumbent, night.baseline
            print(
                f"{night.number:>3} {night.status:<10} {night.comparison.verdict if night.comparison else '':<16} "
                f"{own.capacity if own and own.capacity else 0:.2f} {own.spread if own and own.spread else 0:.4f} "
                f"{base.capacity if base and base.capacity else 0:.2f} {night.reason}"
            )
        for line in judged(nights):
            print(f"{'pass' if line.holds else 'FAIL'}  {line.question:<30} {line.value:<20} {line.bound}")
        print(f"fortnight {seed}: {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
