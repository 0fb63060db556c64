"""Two nights in a row on a real vLLM: `make accept-live`. Figures are printed for whoever closes an issue with them."""

import datetime as dt
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.live_engine import left_after, ours

pytestmark = [pytest.mark.accept, pytest.mark.live]

ROOT = Path(__file__).resolve().parents[2]
TUNER = [sys.executable, "-m", "tuner"]
MINUTES_40 = 40 * 60
#: Of each night. A gate of two configurations that are nearly alike may take half an hour more.
WINDOW = dt.timedelta(minutes=19)
GONE_WITHIN_S = 15

#: The demo with few trials and short levels; the gate asks for what four pairs of sessions can show.
CHANGES = (
    ("../.venvs", f"{ROOT}/.venvs"),
    ("data/azure", f"{ROOT}/objectives/data/azure"),
    ("trials: 6", "trials: 4"),
    ("budget: 25min", "budget: 12min"),
    ("max_levels: 4", "max_levels: 3"),
    ("repeats: 2, min_requests: 150}", "repeats: 2, min_requests: 60}"),
    ("measure: {warmup: 3s, duration: 10s, min_requests: 60}", "measure: {warmup: 2s, duration: 8s, min_requests: 40}"),
    ("backend: ray", "backend: local\ngate: {min_gain: 5%, confidence: 95%, noise: 4%, sessions: 1}"),
)


@pytest.fixture
def quiet() -> set[int]:
    """What runs before the test, which is not the test's to judge."""
    return {process.pid for process in ours()}


def objective(folder: Path) -> Path:
    text = (ROOT / "objectives" / "cpu-demo.yaml").read_text()
    for old, new in CHANGES:
        assert old in text, old
        text = text.replace(old, new)
    path = folder / "staging.yaml"
    path.write_text(text)
    return path


def night(slo: Path, runs: Path) -> tuple[dict, float]:
    """`tuner nightly` as a user starts it; its JSON, and how long it took in seconds."""
    begun = time.monotonic()
    until = f"{dt.datetime.now().astimezone() + WINDOW:%Y-%m-%dT%H:%M}"
    command = [*TUNER, "nightly", "--slo", str(slo), "--runs", str(runs), "--until", until, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=MINUTES_40)
    told = json.loads(done.stdout)
    seconds = time.monotonic() - begun
    print(f"night {told['number']}: exit {done.returncode}, {seconds / 60:.1f} min, {told['status']}: {told['reason']}")
    print(f"  history {told['comparison']}")
    print(f"  incumbent {told['incumbent']['configuration']} carries {told['incumbent']['capacity']}")
    print(f"  gain {told['gain']}, warm start {told['warm_start']}, spent {told['spent']}")
    assert done.returncode in (0, 5)
    return told, seconds


def test_two_nights_in_a_row(tmp_path, quiet):
    """The second measures the incumbent again, reuses the first one's trials, and says why it promoted or kept."""
    slo, runs = objective(tmp_path), tmp_path / "runs"
    first, took = night(slo, runs)
    second, more = night(slo, runs)

    assert took + more < MINUTES_40
    assert first["source"] == second["source"] == "live"
    assert first["status"] in ("promoted", "kept")
    assert second["reason"]
    deployed = first["challenger"] if first["status"] == "promoted" else first["incumbent"]
    assert second["incumbent"]["configuration"] == deployed["configuration"]
    assert second["incumbent"]["study"] == second["study"] != first["study"]
    assert second["incumbent"]["n"] > 0
    assert second["comparison"]["sentence"]
    assert second["comparison"]["verdict"] not in ("workload_changed", "unmeasured")
    assert second["warm_start"]["sources"][0]["study"] == first["study"]
    assert second["versions"]["engine"]
    assert (runs / "nightly" / "staging" / "nights" / "0002" / "summary.txt").read_text().startswith("night 2")
    assert left_after(quiet, GONE_WITHIN_S) == []
