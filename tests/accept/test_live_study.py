"""
The main job on a real vLLM: `make accept-live`.

Minutes to an hour on a quiet machine of two cores; figures are printed for whoever closes an issue with them.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.live_engine import left_after, ours

pytestmark = [pytest.mark.accept, pytest.mark.live]

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "objectives" / "cpu-demo.yaml"
TUNER = [sys.executable, "-m", "tuner"]
MINUTES_25 = 25 * 60
GONE_WITHIN_S = 15


@pytest.fixture
def quiet() -> set[int]:
    """What runs before the test, which is not the test's to judge."""
    return {process.pid for process in ours()}


def test_a_real_engine_is_tuned_end_to_end(tmp_path, quiet):
    """Six trials placed by Ray on a real trace: a winner or an honest no_gain within 25 minutes, all on disk."""
    begun = time.monotonic()
    command = [*TUNER, "optimize", "--slo", str(DEMO), "--runs", str(tmp_path), "--study", "demo", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=2 * MINUTES_25)
    seconds = time.monotonic() - begun
    result = json.loads(done.stdout)
    study = tmp_path / "demo"
    trials = sorted((study / "trials").iterdir())
    outcomes = [json.loads((trial / "outcome.json").read_text()) for trial in trials]
    for outcome in outcomes:
        levels = [(round(level["offered"], 2), level["kept"], level["purpose"]) for level in outcome["levels"]]
        print(outcome["trial"], outcome["state"], outcome["reason"], outcome["configuration"], levels)
    named = result["winner"] or result["candidate"]
    print(f"{seconds / 60:.1f} min, {result['status']}, gain {result['gain']}, spent {result['spent']}")
    for name, entry in (("best", named), ("baseline", result["baseline"])):
        tails = {key: entry["tails"][key] for key in ("pooled_itl_p99_ms", "request_chunk_gap_max_p99_ms")}
        print(
            name,
            entry["configuration"],
            entry["goodput_rps"],
            entry["cost_per_1k_good_requests"],
            entry["verified"],
            tails,
        )

    assert done.returncode == 0
    assert result["status"] in {"winner", "no_gain"}
    assert result["source"] == "live"
    assert len(outcomes) >= 6
    assert all(level["requests"] >= 60 or level["stopped"] for o in outcomes for level in o["levels"])
    valid = [[each for each in o["levels"] if each["purpose"] != "verify" and not each["invalid"]] for o in outcomes]
    assert all(len(levels) <= 4 for levels in valid)
    assert seconds < MINUTES_25

    broken = [lv for lv in outcomes[0]["levels"] if lv["kept"] is False and "attainment" in over(lv)]
    assert broken, "the engine's default broke no promise about pauses"
    least = min(level["offered"] for level in broken)
    kept = [o for o in outcomes if (o["configuration"].get("max_num_batched_tokens") or 2048) < 2048 and o["capacity"]]
    assert max(outcome["capacity"] for outcome in kept) >= least
    print(f"default breaks attainment at {least:.2f} req/s; small budgets keep {[o['capacity'] for o in kept]}")

    for trial in trials:
        assert list(trial.glob("levels/*/records.jsonl.zst"))
        assert list(trial.glob("logs/engine-0.log"))
        assert json.loads((trial / "commands.json").read_text())
    assert "pooled" in (page := (study / "report.html").read_text()).lower()
    assert "chunk gap" in page.lower()
    assert mlflow_runs(tmp_path) == 1 + len(outcomes)
    assert left_after(quiet, GONE_WITHIN_S) == []


def over(level: dict) -> list[str]:
    """Names of the limits that a level breaks."""
    score = level["score"]
    return [] if score is None else [limit["name"] for limit in score["limits"] if limit["margin"] > 0]


def mlflow_runs(runs: Path) -> int:
    """Runs in the study's tracking store, the parent included."""
    code = (
        "import mlflow, sys; c = mlflow.MlflowClient('sqlite:///' + sys.argv[1]); "
        "print(sum(len(c.search_runs([e.experiment_id])) for e in c.search_experiments()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(runs / "mlflow.db")], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1])


def small(tmp_path: Path) -> Path:
    """The demo with short levels: the life of a study, not its figures."""
    text = DEMO.read_text()
    for old, new in (
        ("../.venvs", f"{ROOT}/.venvs"),
        ("data/azure", f"{ROOT}/objectives/data/azure"),
        ("trials: 6", "trials: 4"),
        ("max_levels: 4", "max_levels: 2"),
        ("{finalists: 1, repeats: 2, min_requests: 150}", "{finalists: 1, repeats: 1, min_requests: 20}"),
        (
            "measure: {warmup: 3s, duration: 10s, min_requests: 60}",
            "measure: {warmup: 1s, duration: 5s, min_requests: 20}",
        ),
    ):
        assert old in text, old
        text = text.replace(old, new)
    path = tmp_path / "small.yaml"
    path.write_text(text)
    return path


def test_a_killed_study_goes_on(tmp_path, quiet):
    """SIGKILL in the middle of a trial: no orphan after 15 s, and the next start ends with the exact budget."""
    slo = small(tmp_path)
    command = [*TUNER, "optimize", "--slo", str(slo), "--runs", str(tmp_path / "runs"), "--study", "k", "--json"]
    study = tmp_path / "runs" / "k"
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 600
    while not (study / "trials" / "0002" / "attempt.json").exists() or not load_runs():
        assert first.poll() is None
        assert time.monotonic() < until
        time.sleep(0.5)
    first.send_signal(signal.SIGKILL)
    first.wait()
    killed = time.monotonic()
    left = left_after(quiet, GONE_WITHIN_S)
    print(f"left {time.monotonic() - killed:.1f} s after SIGKILL: {left}")
    assert left == []
    finished = {
        trial.name: (trial / "outcome.json").read_bytes()
        for trial in (study / "trials").iterdir()
        if (trial / "outcome.json").exists()
    }
    assert sorted(finished) == ["0000", "0001"]

    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=1500)
    result = json.loads(done.stdout)
    print(done.returncode, result["status"], result["counts"])
    assert result["counts"]["started"] == 4
    assert all((study / "trials" / name / "outcome.json").read_bytes() == was for name, was in finished.items())
    keys = [(trial / "configuration.json").read_text() for trial in sorted((study / "trials").iterdir())]
    assert len(keys) == len(set(keys)) == 4
    assert left_after(quiet, GONE_WITHIN_S) == []


def load_runs() -> bool:
    """A load client is at work: the trial is being measured."""
    return any(
        "tuner.load.client" in " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])
    )
