"""
Do disaggregation and a KV store pay on this machine? A live study that searches both, and what its report says.

At most twenty minutes on a quiet machine of two cores. The honest answer may be no; what is tested is that one is
given.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tuner.report.levers import answers

pytestmark = [pytest.mark.accept, pytest.mark.live]

ROOT = Path(__file__).resolve().parents[2]
SLO = Path(__file__).with_name("split-study.yaml")
BUDGET_S = 20 * 60
#: A trial or a session that is running when the budget ends is finished.
SPARE_S = 5 * 60
#: How a trial may honestly end; whatever else happened is a fault of this machine or of the tuner.
HONEST = {"feasible", "infeasible", "pruned"}
GONE_WITHIN_S = 15


def ours() -> set[int]:
    """Engines, routers, stores and load clients of this checkout that run now."""
    marks = (str(ROOT / ".venvs"), "tuner.load.client", "mooncake_master")
    return {
        process.pid
        for process in psutil.process_iter(["pid", "cmdline"])
        if any(mark in " ".join(process.info["cmdline"] or []) for mark in marks) and process.pid != os.getpid()
    }


def left_after(before: set[int], limit_s: float) -> set[int]:
    until = time.monotonic() + limit_s
    while (left := ours() - before) and time.monotonic() < until:
        time.sleep(0.5)
    return left


def counted(outcomes: list[dict], name: str, **knobs: str) -> list[float]:
    """A counter of every level of the trials with these knobs, where it was counted."""
    chosen = [each for each in outcomes if all(each["configuration"].get(key) == knobs[key] for key in knobs)]
    return [level["counters"][name] for each in chosen for level in each["levels"] if name in level["counters"]]


def test_a_study_answers_whether_the_split_and_the_store_pay(tmp_path):
    """Aggregated, prefill and decode, store on and off: each measured, each proven by counters, each answered."""
    before = ours()
    begun = time.monotonic()
    command = [sys.executable, "-m", "tuner", "optimize", "--slo", str(SLO), "--runs", str(tmp_path), "--study", "s"]
    environment = {**os.environ, "TUNER_TEST_CONNECTORS": "1"}
    done = subprocess.run(
        [*command, "--json"], stdout=subprocess.PIPE, text=True, check=False, env=environment, timeout=2 * BUDGET_S
    )
    seconds = time.monotonic() - begun
    result = json.loads(done.stdout)
    trials = sorted((tmp_path / "s" / "trials").iterdir())
    outcomes = [json.loads((trial / "outcome.json").read_text()) for trial in trials]
    for outcome in outcomes:
        levels = [(round(level["offered"], 2), level["kept"], level["purpose"]) for level in outcome["levels"]]
        print(outcome["trial"], outcome["state"], outcome["reason"], outcome["cause"], outcome["configuration"], levels)
    said = {answer.title: answer.said for answer in answers(result)}
    print("\n".join(said.values()))
    print(f"{seconds / 60:.1f} min, {result['status']}, gain {result['gain']}, spent {result['spent']}")

    assert done.returncode == 0
    assert result["status"] in {"winner", "no_gain"}
    assert seconds < BUDGET_S + SPARE_S
    assert left_after(before, GONE_WITHIN_S) == set()

    tried = {(each["configuration"].get("mode"), each["configuration"].get("kv_store", "none")) for each in outcomes}
    assert {("disaggregated", "none"), ("aggregated", "mooncake"), ("aggregated", "none")} <= tried
    assert {outcome["state"] for outcome in outcomes} <= HONEST
    moved = counted(outcomes, "kv_transfer_share", mode="disaggregated")
    hits = counted(outcomes, "store_hit_share", kv_store="mooncake")
    print(f"transferred shares {moved}; hit shares {hits}")
    assert min(moved) >= 0.95
    assert max(hits) > 0

    for lever, value in (("mode", "disaggregated"), ("kv_store", "mooncake")):
        entry = next(each for each in result["levers"] if each["lever"] == lever)
        assert entry["asked"] == value
        row = next(each for each in entry["values"] if each["value"] == value)
        assert row["verdict"] != "alone"
        assert row["with"] or row["bound"] or row["endings"]
    report = subprocess.run(
        [*command[:3], "report", str(tmp_path / "s")], stdout=subprocess.PIPE, text=True, check=True
    )
    shown = " ".join(report.stdout.split())
    assert all(" ".join(said[title].split()) in shown for title in ("Disaggregation", "KV store"))
