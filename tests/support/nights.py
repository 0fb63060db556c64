"""
Nights on scripted deployments: real files, real study, no engine.

As a program: one night that kills itself at a named point, `python nights.py FOLDER POINT`.
"""

import os
import signal
import sys
from pathlib import Path

from support.scripted import ScriptedDeployment, ScriptedLauncher

from tuner.events import LevelEnded, NightStep, silent
from tuner.nightly import nightly
from tuner.nightplan import NightRequest

OBJECTIVE = """\
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft: {p95: 2s}}
workload:
  source: {synthetic: {input_tokens: 100, output_tokens: 10}}
  measure: {warmup: 0s, duration: 1s, min_requests: 100}
cluster: {gpu: H100-80GB, nodes: 1, gpus_per_node: 1}
prices: {currency: USD, gpu_hour: 3.00}
search: {space: ./space.yaml, trials: 5, first_guess: 4/s, verify: {finalists: 1, repeats: 2, min_requests: 200}}
backend: simulated
"""
SPACE = """\
knobs:
  max_num_seqs: {choices: [64, 256], source: "a test"}
  max_num_batched_tokens: {choices: [512, 2048], source: "a test"}
"""
#: The configuration that the tests make better than the engine's defaults.
BETTER = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}


def write(folder: Path, objective: str = OBJECTIVE) -> Path:
    """An objective file named `chat.yaml` with its space."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "space.yaml").write_text(SPACE)
    (folder / "chat.yaml").write_text(objective)
    return folder / "chat.yaml"


def equal(_):
    """Nothing is better than anything else."""
    return 4.0


def better(configuration):
    """One point carries twice as much."""
    return 8.0 if dict(configuration.knobs) == BETTER else 4.0


def request(folder: Path, **changes) -> NightRequest:
    return NightRequest(**{"slo": folder / "chat.yaml", "runs": folder / "runs", "mlflow": "off"} | changes)


def run(folder: Path, capacity=equal, *, listen=silent, launcher=None, **changes):
    """One night; returns it."""
    made = launcher or ScriptedLauncher(capacity)
    return nightly(request(folder, **changes), listen, launch=lambda *_: made)[0]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(folder: Path, point: str) -> None:
    """A night in which `better` would be promoted, killed at a step, a level, or while a file is being replaced."""
    levels = 0

    def listen(event) -> None:
        nonlocal levels
        levels += isinstance(event, LevelEnded)
        if point == f"level {levels}" or (isinstance(event, NightStep) and event.name == point):
            die()

    replace = Path.replace

    def replaced(self, target):
        if point == f"replacing {Path(target).name}" and (point != "replacing night.json" or ready()):
            die()
        return replace(self, target)

    def ready() -> bool:
        return (folder / "runs/nightly/chat/incumbent.json").exists()

    Path.replace = replaced
    drive = ScriptedDeployment.drive

    def driven(self, plan):
        if point == "in the gate" and plan.seed >= 1500 and self.launcher.plans[-1][1].seed >= 1500:
            die()
        return drive(self, plan)

    ScriptedDeployment.drive = driven
    run(folder, better, listen=listen)


if __name__ == "__main__":
    kill_at(Path(sys.argv[1]), sys.argv[2])
