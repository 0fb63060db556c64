"""The MLflow UI on a mirrored study, as a person sees it; and a real tracking server."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import pytest
from support import synthetic_study as synthetic

from tuner import tracking, tracking_uri
from tuner.tracking import Mirror

pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:sqlalchemy.exc.SADeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def serving(command, directory, port):
    """A server in a process group of its own, from its first healthy answer to its end."""
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
        )
    try:
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None, (directory / "server.log").read_text()
            assert time.monotonic() < deadline, (directory / "server.log").read_text()
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                break
            time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def browse(tmp_path, url, *options):
    """What headless Chromium makes of a page once its scripts have run."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={tmp_path / 'browser'}", "--virtual-time-budget=30000", "--window-size=1600,1500"]
    done = subprocess.run([*command, *options, url], capture_output=True, text=True, timeout=150, check=True)
    return done.stdout


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (`make system-deps` installs it)")
def test_the_compare_view_tells_two_trials_apart(tmp_path):
    """
    Names, differing knobs and key metrics of both trials are on the page of `tuner ui` without scrolling its tables.
    """
    mirror = Mirror(tracking_uri.default(tmp_path))
    mirror.sync(synthetic.five_trials(tmp_path))
    client = tracking.connect(mirror.uri)
    experiment = client.get_experiment_by_name(mirror.experiment).experiment_id
    found = {run.data.tags.get("tuner.trial"): run for run in client.search_runs([experiment])}
    chosen = json.dumps([found["0"].info.run_id, found["1"].info.run_id])
    query = urllib.parse.urlencode({"runs": chosen, "experiments": json.dumps([experiment])})
    port = free_port()
    with serving(tracking_uri.ui_command(mirror.uri, port), tmp_path, port) as address:
        page = browse(tmp_path, f"{address}/#/compare-runs?{query}", "--dump-dom")
    assert "000 baseline tp1x2: 1.056 USD/1k" in page
    assert "001 tp2x1 mnbt512 seqs128: 0.5684 USD/1k" in page
    for name in ("max_num_batched_tokens", "cost_per_1k_good_requests", "chunk_gap_max_p99_ms", "attainment"):
        assert name in page
    assert page.index(">cost_per_1k_good_requests<") < page.index(">attainment<")  # the plot above the tables shows it


def test_a_tracking_server_receives_everything(tmp_path):
    """
    Over HTTP the same runs, params and artifacts arrive as in a local file; a second sync has nothing to do.
    """
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{tmp_path}/server.db",
        "--artifacts-destination",
        str(tmp_path / "a"),
    ]
    ledger = synthetic.five_trials(tmp_path / "runs")
    with serving(command, tmp_path, port) as address:
        assert tracking.check(address).ok
        assert Mirror(address).sync(ledger).created == 5
        assert Mirror(address).sync(ledger).unchanged == 5
        client = tracking.connect(address)
        experiment = client.get_experiment_by_name("tuner").experiment_id
        (run,) = client.search_runs([experiment], "tags.`tuner.trial` = '1'")
        assert run.data.params["max_num_batched_tokens"] == "512"
        assert {item.path for item in client.list_artifacts(run.info.run_id)} >= {"outcome.json", "tails.png", "levels"}
