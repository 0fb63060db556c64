"""The mirror in MLflow: complete, repeatable, and never in the way of a study."""

import dataclasses
import json
import logging
import math
import socket
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from support import synthetic_study as synthetic

from tuner import flat, runcard, tracking, tracking_uri
from tuner.configuration import Configuration
from tuner.errors import InputError, TrackingFailed
from tuner.records import Record
from tuner.tracking import Mirror, Tracker

pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:sqlalchemy.exc.SADeprecationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(mlflow|google|pydantic).*"),
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
]


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    """An MLflow database with its tables and nothing in them: making one takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    tracking.connect(f"sqlite:///{path}").search_experiments(max_results=1)
    return path.read_bytes()


@pytest.fixture
def mirror(tmp_path, empty_store):
    (tmp_path / "mlflow.db").write_bytes(empty_store)
    return Mirror(tracking_uri.default(tmp_path))


def runs(mirror):
    """Runs by name; the parent under its study's name."""
    client = tracking.connect(mirror.uri)
    experiment = client.get_experiment_by_name(mirror.experiment)
    found = client.search_runs([experiment.experiment_id], max_results=1000)
    assert len({run.info.run_name for run in found}) == len(found)
    return {run.info.run_name: run for run in found}


def children(mirror):
    return {int(r.data.tags["tuner.trial"]): r for r in runs(mirror).values() if "tuner.trial" in r.data.tags}


def artifacts(mirror, run, folder=None):
    return {item.path for item in tracking.connect(mirror.uri).list_artifacts(run.info.run_id, folder)}


def test_a_study_is_one_parent_and_a_child_for_every_trial(mirror, tmp_path):
    """
    Statuses say whether there was an answer; every child names its parent.
    """
    ledger = synthetic.five_trials(tmp_path)
    ledger.write_json("result.json", {"status": "winner", "winner": {"trial": 1, "verified": True}})
    report = mirror.sync(ledger)
    assert (report.created, report.updated) == (5, 0)
    parent = runs(mirror)["chat"]
    found = children(mirror)
    assert parent.info.status == "FINISHED"
    assert {run.data.tags["mlflow.parentRunId"] for run in found.values()} == {parent.info.run_id}
    assert [found[n].info.status for n in range(5)] == ["FINISHED"] * 4 + ["FAILED"]
    assert [found[n].data.tags["tuner.outcome"] for n in range(5)] == [
        "feasible",
        "feasible",
        "infeasible",
        "pruned",
        "config_failed",
    ]


def test_a_run_shows_knobs_figures_and_evidence(mirror, tmp_path):
    """
    Params have the flags' names, metrics their units, artifacts the files of the ledger and a plot.
    """
    mirror.sync(synthetic.five_trials(tmp_path))
    run = children(mirror)[1]
    assert run.data.params == {
        "mode": "aggregated",
        "replicas": "1",
        "units": "2",
        "tensor_parallel_size": "2",
        "max_num_batched_tokens": "512",
        "max_num_seqs": "128",
    }
    wanted = {
        "ttft_p99_ms": 1210.0,
        "itl_p99_ms": 42.0,
        "chunk_gap_max_p99_ms": 190.0,
        "tpot_p50_ms": 22.0,
        "goodput_rps": 3.9,
        "attainment": 0.99,
        "capacity_rps": 4.0,
        "cost_per_hour": 7.98,
        "cost_per_1k_good_requests": pytest.approx(0.568376, abs=1e-6),
    }
    assert wanted.items() <= run.data.metrics.items()
    assert run.data.tags["tuner.source"] == "simulated"
    assert run.data.tags["tuner.engine_version"] == "0.32.0"
    assert run.data.tags["tuner.mode"] == "aggregated"
    assert {"outcome.json", "commands.json", "configuration.json", "tails.png"} <= artifacts(mirror, run)
    assert artifacts(mirror, run, "levels/01") == {"levels/01/level.json", "levels/01/records.jsonl.zst"}
    assert "logs/engine-0.log" in artifacts(mirror, run, "logs")


def test_levels_are_steps(mirror, tmp_path):
    """
    Attainment over the levels of a trial is a curve.
    """
    ledger = synthetic.create(tmp_path)
    done = synthetic.outcome(0)
    levels = (synthetic.level(1, offered=2.0), synthetic.level(2, offered=4.0))
    done = type(done)(**{**vars(done), "levels": levels})
    synthetic.run_trial(ledger, done)
    mirror.sync(ledger)
    run = children(mirror)[0]
    history = tracking.connect(mirror.uri).get_metric_history(run.info.run_id, "vs_level_offered")
    assert [(point.step, point.value) for point in history] == [(1, 2.0), (2, 4.0)]


def test_sync_repeats_nothing(mirror, tmp_path):
    """
    The second time there is nothing to do, also for another process's mirror.
    """
    ledger = synthetic.five_trials(tmp_path)
    mirror.sync(ledger)
    before = {name: dict(run.data.tags) for name, run in runs(mirror).items()}
    report = Mirror(mirror.uri).sync(ledger)
    assert (report.created, report.updated, report.unchanged) == (0, 0, 5)
    assert {name: dict(run.data.tags) for name, run in runs(mirror).items()} == before


def test_a_sync_that_was_cut_off_is_completed(mirror, tmp_path, monkeypatch):
    """
    Whatever call fails in the middle, the next sync leaves one complete run for each trial.
    """
    ledger = synthetic.five_trials(tmp_path)
    real, calls = tracking._MlflowStore.upload, []

    def upload(self, run_id, name, path):
        calls.append(name)
        if len(calls) == 12:
            raise ConnectionResetError("gone")
        real(self, run_id, name, path)

    with monkeypatch.context() as patch:
        patch.setattr(tracking._MlflowStore, "upload", upload)
        with pytest.raises(TrackingFailed, match="gone"):
            mirror.sync(ledger)
    mirror.sync(ledger)
    found = children(mirror)
    assert len(found) == 5
    assert all("tuner.digest" in run.data.tags for run in found.values())
    assert {run.info.status for run in found.values()} == {"FINISHED", "FAILED"}


def test_verification_updates_the_run(mirror, tmp_path):
    """
    Levels and results that come after the outcome join the same run.
    """
    ledger = synthetic.five_trials(tmp_path)
    mirror.sync(ledger)
    ledger.append_level(1, synthetic.level(purpose="verify"), synthetic.level_data(2))
    winner = {"trial": 1, "verified": True, "cost_per_1k_good_requests": 0.61, "goodput_rps": 3.6}
    ledger.write_json("result.json", {"status": "winner", "winner": winner, "baseline": {"trial": 0}})
    report = mirror.sync(ledger)
    assert (report.created, report.updated, report.unchanged) == (0, 2, 3)
    run = children(mirror)[1]
    assert run.data.metrics["verified_cost_per_1k_good_requests"] == 0.61
    assert (run.data.tags["tuner.role"], run.data.tags["tuner.verified"]) == ("winner", "true")
    assert "levels/02" in artifacts(mirror, run, "levels")


def test_a_study_names_the_studies_it_started_from(mirror, tmp_path):
    """A tag of the parent; a cold start has none, whether a warm one was asked for or not."""
    ledger = synthetic.create(tmp_path)
    mirror.sync(ledger)
    ledger.write_json("result.json", {"status": "no_gain", "warm_start": {"wanted": "latest", "sources": []}})
    mirror.sync(ledger)
    assert "tuner.warm_start" not in runs(mirror)["chat"].data.tags
    sources = [{"study": "chat-1102"}, {"study": "chat-1101"}]
    ledger.write_json("result.json", {"status": "no_gain", "warm_start": {"wanted": "latest", "sources": sources}})
    mirror.sync(ledger)
    assert runs(mirror)["chat"].data.tags["tuner.warm_start"] == "chat-1102, chat-1101"


def test_a_retried_trial_is_a_run_for_each_measured_attempt(mirror, tmp_path):
    """
    No param is ever written twice: another attempt is another run.
    """
    ledger = synthetic.create(tmp_path)
    synthetic.run_trial(ledger, synthetic.outcome(0, state="infra_failed", reason="node_lost"))
    mirror.sync(ledger)
    synthetic.run_trial(ledger, synthetic.outcome(0, attempt=2, knobs={"tensor_parallel_size": 4}))
    mirror.sync(ledger)
    found = [run for run in runs(mirror).values() if "tuner.trial" in run.data.tags]
    assert sorted((run.data.tags["tuner.attempt"], run.info.status) for run in found) == [
        ("1", "FAILED"),
        ("2", "FINISHED"),
    ]


def test_a_run_left_running_by_a_killed_study_is_closed(mirror, tmp_path):
    """
    While the study lives its open trial is RUNNING; after a kill the resumed study closes it.
    """
    ledger = synthetic.create(tmp_path)
    with ledger.lock():
        ledger.begin(0, 1, Configuration({"tensor_parallel_size": 2}))
        mirror.sync(ledger)
        assert runs(mirror)["000 tp2x1: running"].info.status == "RUNNING"
        assert runs(mirror)["chat"].info.status == "RUNNING"
    with ledger.lock():
        synthetic.run_trial(ledger, synthetic.outcome(0, attempt=2))
        assert mirror.sync(ledger).closed == 1
    assert mirror.sync(ledger, live=False).closed == 0
    assert {run.info.status for run in runs(mirror).values()} == {"KILLED", "FINISHED"}


def test_no_value_is_ever_infinite_or_nan(mirror, tmp_path):
    """
    What has no finite value is no metric; a tag lists it.
    """
    ledger = synthetic.five_trials(tmp_path)
    mirror.sync(ledger)
    for run in runs(mirror).values():
        assert all(math.isfinite(value) and abs(value) < 1e300 for value in run.data.metrics.values())
    assert children(mirror)[1].data.tags["tuner.no_finite_value"] == "tpot_p99_ms"
    assert "cost_per_1k_good_requests" in children(mirror)[2].data.tags["tuner.no_finite_value"]


def test_a_long_value_is_cut_with_its_hash_and_kept_whole_as_an_artifact(mirror, tmp_path, caplog):
    """
    MLflow cuts silently; we do it visibly.
    """
    ledger = synthetic.create(tmp_path)
    value = json.dumps({"x": "y" * 9000})
    synthetic.run_trial(ledger, synthetic.outcome(0, knobs={"kv_transfer_config": value}))
    with caplog.at_level(logging.WARNING):
        mirror.sync(ledger)
    assert "truncated" not in caplog.text
    run = children(mirror)[0]
    assert len(run.data.params["kv_transfer_config"]) <= runcard.LONGEST_VALUE
    assert "sha256:" in run.data.params["kv_transfer_config"]
    path = tracking.connect(mirror.uri).download_artifacts(run.info.run_id, "configuration.json", str(tmp_path))
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        assert json.load(file)["kv_transfer_config"] == value


STRANGE = ["p99%", "p99_", "m@x", "m_x", "/abs", "..", ".", "", "k" * 300, "k" * 301, "a/b", "a b", "ü", "p99.9"]


def test_strange_names_are_accepted_and_never_fall_together(mirror, tmp_path):
    """
    MLflow refuses `%`, `@`, leading slashes, dots and long names; ours are made valid and stay apart.
    """
    assert len({runcard.key(name) for name in STRANGE}) == len(STRANGE)
    assert runcard.key("ttft_p99.9_ms") == "ttft_p99.9_ms"
    ledger = synthetic.create(tmp_path)
    synthetic.run_trial(ledger, synthetic.outcome(0, knobs=dict.fromkeys(STRANGE, 1)))
    mirror.sync(ledger)
    assert len(children(mirror)[0].data.params) == len(STRANGE) + 3


def test_four_studies_at_once_do_not_mix(tmp_path, mirror, monkeypatch):
    """
    Parallel studies on one store, with a foreign MLFLOW_RUN_ID in the environment: each child under its own parent.
    """
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    ledgers = [synthetic.five_trials(tmp_path, f"study-{number}") for number in range(4)]
    mirror.sync(synthetic.create(tmp_path, "first"))  # makes the experiment
    threads = [threading.Thread(target=Mirror(mirror.uri).sync, args=(ledger,)) for ledger in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client = tracking.connect(mirror.uri)
    found = client.search_runs([client.get_experiment_by_name("tuner").experiment_id], max_results=1000)
    parents = {
        run.info.run_id: run.data.tags["tuner.study_id"] for run in found if run.data.tags["tuner.kind"] == "study"
    }
    kids = [run for run in found if run.data.tags["tuner.kind"] == "trial"]
    assert (len(parents), len(kids)) == (5, 20)
    assert all(parents[run.data.tags["mlflow.parentRunId"]] == run.data.tags["tuner.study_id"] for run in kids)


def test_no_text_of_a_request_reaches_the_store(mirror, tmp_path):
    """
    What is uploaded is the ledger's own files, and the records among them have no field that could hold a prompt.
    """
    mirror.sync(synthetic.five_trials(tmp_path))
    uploaded = {path.name for path in (tmp_path / "mlflow-artifacts").rglob("*") if path.is_file()}
    assert uploaded == {
        "attempt.json",
        "commands.json",
        "configuration.json",
        "engine-0.log",
        "engine_metrics.jsonl",
        "level.json",
        "objective.yaml",
        "outcome.json",
        "records.jsonl.zst",
        "study.json",
        "tails.png",
    }
    texts = {
        field.name for field in dataclasses.fields(Record) if "str" in str(field.type) or "Literal" in str(field.type)
    }
    assert texts == {"id", "token_source", "status", "error", "phase"}


# -- outages ------------------------------------------------------------------------------------------------------


@pytest.fixture
def hanging():
    """A server that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)
        yield f"http://user:canary@127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def dead():
    """An address where nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    return f"http://user:canary@127.0.0.1:{port}"


@pytest.mark.parametrize("server", ["dead", "hanging"])
def test_an_outage_neither_delays_nor_fails_the_study(server, request, tmp_path, monkeypatch, caplog):
    """
    Notes return at once, closing is bounded, one warning says what to do, and no password is shown.
    """
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    uri = request.getfixturevalue(server)
    ledger = synthetic.create(tmp_path)
    tracker = Tracker(tmp_path, uri, ledger)
    longest = 0.0
    for number in range(3):
        synthetic.run_trial(ledger, synthetic.outcome(number))
        begun = time.monotonic()
        tracker.note()
        longest = max(longest, time.monotonic() - begun)
    begun = time.monotonic()
    assert not tracker.close(timeout_s=1.0)
    assert time.monotonic() - begun < 5
    assert longest < 0.5
    tracker._thread.join(60)
    assert len(ledger.trials()) == 3
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING and "tracking" in record.name]
    assert len(warnings) == 1
    assert "tuner sync" in tracker.problem
    assert "canary" not in caplog.text + tracker.problem


def test_what_an_outage_missed_is_made_up_for_by_sync(dead, tmp_path, mirror):
    """
    The ledger is the spool: the first sync that gets through brings everything.
    """
    ledger = synthetic.five_trials(tmp_path)
    with pytest.raises(TrackingFailed, match="tuner sync"):
        Mirror(dead).sync(ledger)
    assert mirror.sync(ledger).created == 5


def test_a_tracker_mirrors_in_the_background(tmp_path, mirror):
    """
    Trials appear while the study runs; after closing everything is there.
    """
    ledger = synthetic.create(tmp_path)
    with ledger.lock():
        tracker = Tracker(tmp_path, None, ledger)
        for number in range(3):
            synthetic.run_trial(ledger, synthetic.outcome(number))
            tracker.note()
        ledger.write_json("result.json", {"status": "no_gain"})
        assert tracker.close(timeout_s=60)
    assert tracker.problem == ""
    assert sorted(children(mirror)) == [0, 1, 2]
    assert runs(mirror)["chat"].info.status == "FINISHED"


def test_tracking_can_be_off(tmp_path):
    """
    Nothing is written and nothing is missing.
    """
    with Tracker(tmp_path, "off", synthetic.create(tmp_path)) as tracker:
        tracker.note()
        assert tracker.close()
    assert not (tmp_path / "mlflow.db").exists()


def test_a_second_sync_of_the_same_study_waits_for_its_turn(tmp_path, mirror):
    """
    Two mirrors at once would make every run twice.
    """
    ledger = synthetic.five_trials(tmp_path)
    with tracking.lock.Lock(ledger.path, tracking.LOCK), pytest.raises(TrackingFailed, match="another process tracks"):
        mirror.sync(ledger)


# -- addresses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["mlruns", "/data/mlruns", "file:///data/mlruns", "./x", "ftp://h/x"])
def test_a_plain_folder_is_refused_with_the_remedy(tmp_path, uri):
    """
    MLflow 3.17 keeps no runs in folders.
    """
    with pytest.raises(InputError, match=r"use sqlite:///.*mlflow\.db"):
        tracking_uri.resolve(uri, tmp_path)


@pytest.mark.parametrize("uri", ["http://h:5000", "https://h", "sqlite:////x/y.db", "postgresql+psycopg2://u@h/d"])
def test_addresses_that_mlflow_knows_pass(tmp_path, uri):
    """
    Servers and databases are taken as they are.
    """
    assert tracking_uri.resolve(uri, tmp_path) == uri


def test_the_default_store_lies_in_the_runs_directory(tmp_path):
    """
    Without an address everything stays in one place; `off` means none.
    """
    assert tracking_uri.resolve(None, tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    assert tracking_uri.resolve("off", tmp_path) is None


def test_check_makes_a_real_call(tmp_path, mirror, dead):
    """
    A store that answers, one that is not there yet, one that nobody serves.
    """
    assert tracking.check(mirror.uri).ok
    later = tracking.check(tracking_uri.default(tmp_path / "later"))
    assert later.ok
    assert "first study" in later.message
    assert not (tmp_path / "later").exists()
    gone = tracking.check(dead)
    assert not gone.ok
    assert "mlflow server" in gone.message
    assert "canary" not in gone.message


def test_a_server_that_refuses_the_host_name_is_explained():
    """
    A health page that answers 200 says nothing; the remedy names the server's option.
    """

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(403)
            self.end_headers()
            self.wfile.write(b"Invalid Host header - possible DNS rebinding attack detected")

        do_GET = do_POST  # noqa: N815

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        found = tracking.check(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()
    assert not found.ok
    assert f"--allowed-hosts 127.0.0.1:{server.server_port}" in found.message


def test_optuna_and_mlflow_never_share_a_database(tmp_path):
    """
    Their tables and locks would meet.
    """
    uri = tracking_uri.default(tmp_path)
    assert not tracking.check(uri, storage=tmp_path / "mlflow.db").ok
    assert not tracking.check(uri, storage=f"sqlite:///{tmp_path}/x/../mlflow.db").ok
    assert not tracking_uri.same_database(uri, tmp_path / "optuna.db")
    assert tracking_uri.same_database("postgresql://h/d", "postgresql://h/d")
    assert not tracking_uri.same_database("postgresql://h/d", "postgresql://h/e")


def test_the_ui_listens_on_loopback_only(tmp_path):
    """
    The command names the store and 127.0.0.1; a server has a UI of its own.
    """
    command = tracking_uri.ui_command(tracking_uri.default(tmp_path), 5111)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--backend-store-uri") + 1] == f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.raises(InputError, match="UI of its own"):
        tracking_uri.ui_command("http://h:5000", 5111)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://u:canary4@h/db", "postgresql://u:***@h/db"),
        ("http://u:p@ss@h:5000/x?token=abc&y=1", "http://u:***@h:5000/x?token=***&y=1"),
        ("postgresql:/u:canary4@h/db", "postgresql:/u:***@h/db"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("https://h?api_key=zz", "https://h?api_key=***"),
    ],
)
def test_passwords_in_addresses_are_masked(uri, shown):
    """
    An address may be shown anywhere.
    """
    assert tracking.mask_uri(uri) == shown


def test_an_error_does_not_show_the_password_of_its_address():
    """
    Drivers like to quote the address they were given.
    """
    password = urllib.parse.quote("canary@1")
    uri = f"postgresql://u:{password}@h/db"
    said = tracking_uri.explain(ValueError(f"cannot reach {uri} with canary@1 {password}"), uri)
    assert "canary" not in said


def test_a_port_is_no_status_code():
    """
    An address that happens to hold 403 is not a refused host name.
    """
    said = tracking_uri.explain(TimeoutError("127.0.0.1:48403 timed out"), "http://127.0.0.1:48403")
    assert "tuner sync" in said


# -- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"trial": 0}, "000 baseline tp1x2: 0.5684 USD/1k"),
        (
            {"trial": 7, "knobs": {"tensor_parallel_size": 2, "max_num_batched_tokens": 512}},
            "007 tp2x1 mnbt512: 0.5684 USD/1k",
        ),
        (
            {"trial": 8, "knobs": {"enable_chunked_prefill": False, "enable_prefix_caching": True}},
            "008 tp1x1 nochunk prefix: 0.5684 USD/1k",
        ),
        (
            {"trial": 9, "state": "infeasible", "reason": "itl_p99", "knobs": {"async_scheduling": True}},
            "009 tp1x1 as: infeasible itl_p99",
        ),
        ({"trial": 10, "state": "config_failed", "reason": "out_of_memory"}, "010 tp1x2: config_failed out_of_memory"),
        ({"trial": 11, "knobs": {"pipeline_parallel_size": 2, "replicas": 2}}, "011 pp2x2: 0.5684 USD/1k"),
        (
            {
                "trial": 12,
                "knobs": {
                    "mode": "disaggregated",
                    "prefill_tensor_parallel_size": 4,
                    "decode_replicas": 3,
                    "decode_max_num_seqs": 64,
                    "kv_store": "mooncake",
                    "kv_store_ram_gib": 8,
                },
            },
            "012 P:tp4x1+D:tp1x3 storemooncake ram8 Dseqs64: 0.5684 USD/1k",
        ),
    ],
)
def test_run_names_tell_trials_apart(changes, name):
    """
    Number, shape, knobs and how it ended, in ASCII.
    """
    assert runcard.run_name(synthetic.outcome(**changes), "USD") == name
    assert name.isascii()


def test_what_transfer_and_store_did_are_figures_of_the_trial():
    """
    Counters of the best level under their names; those of the engines themselves stay in the level's file.
    """
    made = synthetic.outcome(4)
    counters = {"kv_transfer_share": 1.0, "store_hit_share": 0.5, "num_preemptions_total": 3.0}
    found = flat.figures(dataclasses.replace(made, best=dataclasses.replace(made.best, counters=counters)))
    assert (found["kv_transfer_share"], found["store_hit_share"]) == (1.0, 0.5)
    assert "num_preemptions_total" not in found


def test_a_run_name_stays_short():
    """
    Thirty knobs do not push the result out of sight.
    """
    knobs = {f"flag_number_{number}": number for number in range(30)}
    name = runcard.run_name(synthetic.outcome(3, knobs=knobs), "USD")
    assert len(name) <= runcard.LONGEST_NAME
    assert name.endswith("...: 0.5684 USD/1k")
