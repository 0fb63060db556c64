"""Nights on disk with made-up figures: a fortnight in which everything happens that a history can show."""

import json
import random
from dataclasses import replace
from pathlib import Path

from tuner import nightfile
from tuner.nightfile import Comparison, Figures, Gain, Incumbent, Night

NAME = "chat"
PRINTS = dict.fromkeys(("model", "slo", "workload", "engine", "cluster", "search", "space"), "a")
OLD = {"tensor_parallel_size": 1, "replicas": 4}
NEW = {"tensor_parallel_size": 1, "replicas": 4, "max_num_batched_tokens": 2048}
REGRESSED, CHANGED, PROMOTED, FAILED = 5, 8, 11, 13


def figures(number: int, configuration: dict, cost: float, *, trial: int = 0, verified: bool = True) -> Figures:
    """A feasible configuration at this cost per 1,000 good requests."""
    goodput = 4 * 3.99 / 3.6 / cost
    return Figures(
        study=nightfile.study_name(NAME, number),
        trial=trial,
        configuration=configuration,
        units=4,
        state="feasible",
        reason="",
        cost_per_hour=15.96,
        cost=cost,
        interval=(cost * 0.97, cost * 1.03),
        goodput_rps=goodput,
        offered_rps=goodput * 1.01,
        attainment=0.99,
        n=1800,
        verified=verified,
        tails={"ttft_p50_ms": 120.0, "ttft_p99_ms": 430.0 + 3 * number, "itl_p99_ms": 38.0 + number / 3},
        capacity=goodput,
        spread=0.01,
    )


def compared(verdict: str, change: float | None, sentence: str, *causes: str) -> Comparison:
    return Comparison(verdict, change, None, None, 0.95, 3, None, 0.02, causes=causes, sentence=sentence)  # type: ignore[arg-type]


def fortnight(runs: Path) -> Path:
    """Fourteen nights: a regression with an engine upgrade, a workload change, a promotion, a failure."""
    folder = nightfile.directory(runs, NAME)
    rng = random.Random(3)
    gain = Gain(0.081, 0.03, 0.996, 9, 0.02, 0.995, proven=True)
    for number in range(1, 15):
        level = (0.062 if number < REGRESSED else 0.071) * (1.12 if number >= CHANGED else 1)
        level *= 0.92 if number > PROMOTED else 1
        cost = level * (1 + 0.012 * rng.gauss(0, 1))
        night = Night(
            number=number,
            objective=NAME,
            study=nightfile.study_name(NAME, number),
            status="kept",
            started=f"2026-11-{number:02d}T22:00:00.000000Z",
            seed=number,
            backend="simulated",
            source="simulated",
            currency="USD",
            fingerprints=PRINTS | ({"workload": "b"} if number >= CHANGED else {}),
            versions={"engine": "0.31.0" if number < REGRESSED else "0.32.0", "tuner": "0.1.0"},
            ended=f"2026-11-{number + 1:02d}T01:00:00.000000Z",
            incumbent=figures(number, NEW if number > PROMOTED else OLD, cost),
            baseline=figures(number, {}, cost * 1.1, trial=1),
            comparison=compared("new", None, "nothing to compare with")
            if number == 1
            else compared("stable", 0.004, ""),
        )
        folder_night = _eventful(night, gain)
        nightfile.write_night(folder, folder_night)
    deployed = Incumbent(
        NEW, PROMOTED, "2026-11-11T23:00:00Z", "chat-night-0011", 7, figures(PROMOTED, NEW, 0.072), gain, "cheaper"
    )
    nightfile.write_incumbent(folder, deployed)
    last = runs / nightfile.study_name(NAME, 14)
    last.mkdir(parents=True)
    limits = [{"name": "ttft_p99", "threshold_s": 0.5}, {"name": "itl_p99", "threshold_s": 0.05}]
    (last / "result.json").write_text(json.dumps({"slo": {"limits": limits}}))
    return folder


def _eventful(night: Night, gain: Gain) -> Night:
    match night.number:
        case 5:
            found = compared(
                "regression", 0.151, "the incumbent became 15.1% dearer, at once in night 5", "engine: 0.31.0 → 0.32.0"
            )
            return replace(night, status="regressed", comparison=found)
        case 8:
            return replace(night, comparison=compared("workload_changed", None, "a new history begins"))
        case 11:
            assert night.incumbent is not None
            return replace(night, status="promoted", gain=gain, challenger=figures(11, NEW, 0.072, trial=7))
        case 13:
            return replace(night, status="failed", incumbent=None, baseline=None, comparison=None, reason="node lost")
        case _:
            return night
