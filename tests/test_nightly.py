"""A night: what it measures, what it decides, how it ends, and that nothing is lost when it does not."""

import dataclasses
import datetime as dt
import errno
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support import nights
from support.nights import BETTER, OBJECTIVE, better, equal, run, write
from support.program import finished
from support.scripted import ScriptedLauncher

from tuner import lock, nightfile, nightgate, nightplan, runfiles, tracking, window
from tuner.backend import launcher_until
from tuner.errors import ConfigurationFailed, InfrastructureFailed, InputError, Interrupted, StudyFailed, StudyLocked
from tuner.events import NightStep
from tuner.ledger import Ledger
from tuner.report import nightpage

TESTS = Path(__file__).parent


@pytest.fixture
def home(tmp_path):
    write(tmp_path)
    return tmp_path


def folder(home):
    return nightfile.directory(home / "runs", "chat")


def deployed(home):
    return nightfile.incumbent(folder(home))


# -- decisions ---------------------------------------------------------------------------------------------------------


def test_first_night_measures_what_the_objective_file_starts_from(home):
    """No incumbent: the engine's defaults are it, and stay it where nothing is better."""
    night = run(home)
    assert (night.status, night.comparison.verdict) == ("kept", "new")
    assert deployed(home).configuration == {"tensor_parallel_size": 1, "replicas": 1}
    assert deployed(home).since_night == 0
    assert night.incumbent.cost == pytest.approx(3 / 3.6 / 4, rel=0.15)
    assert Ledger.find(home / "runs", "chat-night-0001").trial(0).outcome.state == "feasible"


def test_objective_files_baseline_is_the_first_incumbent(home):
    """`baseline:` says what is deployed today; the engine's defaults are measured beside it."""
    write(home, OBJECTIVE + "baseline: {max_num_seqs: 64, max_num_batched_tokens: 512}\n")
    night = run(home)
    assert night.incumbent.configuration == {"max_num_seqs": 64, "max_num_batched_tokens": 512}
    assert night.baseline.configuration == {"tensor_parallel_size": 1, "replicas": 1}
    assert night.baseline.state == "feasible"


def test_what_is_proven_better_is_promoted_once(home):
    """Twice the capacity: promoted with its proof; the next night measures it again as the incumbent and keeps it."""
    first = run(home, better)
    assert first.status == "promoted"
    assert first.challenger.configuration == BETTER
    assert first.gain.proven
    assert first.gain.confidence >= 0.995
    assert deployed(home).configuration == BETTER
    assert deployed(home).study == "chat-night-0001"
    second = run(home, better)
    assert (second.status, second.comparison.verdict) == ("kept", "stable")
    assert second.incumbent.configuration == BETTER
    assert second.incumbent.trial == 0
    assert second.baseline.configuration == {"tensor_parallel_size": 1, "replicas": 1}


def test_better_by_less_than_min_gain_is_kept(home):
    """3 % more capacity where 5 % is asked for: kept, and the reason says so."""
    write(home, OBJECTIVE + "gate: {min_gain: 5%}\n")
    night = run(home, lambda c: 4.12 if dict(c.knobs) == BETTER else 4.0)
    assert night.status == "kept"
    assert deployed(home).since_night == 0
    assert "5.0%" in night.reason


def test_defaults_are_measured_to_capacity_though_they_cannot_win(home):
    """After a promotion the defaults cost twice as much; they are not given up at the load that would win."""
    run(home, better)
    night = run(home, better)
    assert night.baseline.capacity == pytest.approx(4.0, rel=0.06)


def test_a_slower_engine_is_a_regression_with_the_likely_cause(home):
    """Everything carries 30 % less: `regressed`, both moved, and what is deployed stays."""
    for _ in range(3):
        run(home)
    night = run(home, lambda _: 2.8)
    assert (night.status, night.comparison.verdict) == ("regressed", "regression")
    assert night.comparison.low < 0.43 < night.comparison.high
    assert night.comparison.causes
    assert run(home, lambda _: 2.8).status == "kept"  # told once: the history begins anew at the new level


def test_another_workload_is_no_regression(home):
    """Longer prompts carry less: recognised by the fingerprint, a new history begins."""
    run(home)
    write(home, OBJECTIVE.replace("input_tokens: 100", "input_tokens: 200"))
    night = run(home, lambda _: 2.0)
    assert (night.status, night.comparison.verdict) == ("kept", "workload_changed")
    assert run(home, lambda _: 2.0).comparison.verdict == "stable"


def test_nothing_feasible_is_said(home):
    """No configuration keeps the SLO: `no_feasible`, and nothing is promoted."""
    night = run(home, lambda _: 0.0)
    assert night.status == "no_feasible"
    assert nightfile.incumbent(folder(home)).since_night == 0


def test_an_incumbent_that_does_not_start_any_more_is_replaced(home):
    """It fails on its own, another keeps the SLO: regression, and the one that works is promoted."""
    run(home, better)

    def capacity(configuration):
        if dict(configuration.knobs) == BETTER:
            raise ConfigurationFailed("bad_flag", "unrecognized arguments")
        return 4.0

    night = run(home, capacity)
    assert night.comparison.verdict == "regression"
    assert night.status == "promoted"
    assert deployed(home).configuration != BETTER


def test_a_broken_cluster_fails_the_night_and_keeps_the_incumbent(home):
    """Nodes are away: `failed`, and the incumbent is what it was."""
    run(home, better)
    before = (folder(home) / "incumbent.json").read_bytes()

    def lost(_):
        raise InfrastructureFailed("node_lost", "no node answers")

    assert run(home, lost).status == "failed"
    assert (folder(home) / "incumbent.json").read_bytes() == before
    assert run(home, better).status == "kept"


def test_every_night_has_schedules_of_its_own(home):
    """No seed of one night is used in another."""
    seen = []
    for _ in range(2):
        launcher = ScriptedLauncher(better)
        run(home, launcher=launcher)
        seen.append({plan.seed for _, plan in launcher.plans})
    assert not seen[0] & seen[1]


def test_an_incumbent_is_measured_again_where_it_ended(home):
    """It carried about 8 req/s: the next night begins there, not at the 4/s of the objective file."""
    run(home, better)
    carried = nightfile.nights(folder(home))[0].challenger.capacity
    launcher = ScriptedLauncher(better)
    run(home, launcher=launcher)
    first = next(plan for _, plan in launcher.plans if plan.number)
    assert first.rate_rps == pytest.approx(carried)


def test_later_nights_reuse_the_trials_of_earlier_ones(home):
    """The second night's study is warm-started from the first one's."""
    run(home)
    night = run(home)
    assert night.warm_start["sources"][0]["study"] == "chat-night-0001"


def test_earlier_points_outside_of_todays_space_make_a_cold_start(home):
    """Nobody named a study, so nothing of use in it is no error: the night says so and goes on."""
    run(home)
    (home / "space.yaml").write_text(
        "description: another\nknobs:\n  max_num_seqs: {choices: [8, 16, 24], source: test}\n"
    )
    night = run(home, space=home / "space.yaml")
    (source,) = night.warm_start["sources"]
    assert night.status == "kept"
    assert (source["told"], source["proposed"]) == (0, 0)
    assert source["outside"] > 0
    assert "outside of today's space" in nightpage.text(night, ())


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [(3, "feasible", 0.5), (0, "feasible", 1.0)],
            "; trial 3 looked 50.0% cheaper than the incumbent in the search",
        ),
        ([(3, "feasible", 0.5), (0, "infeasible", None)], "; trial 3 kept the SLO in the search, not verified"),
        ([(0, "feasible", 1.0), (3, "pruned", None)], "as feasible"),
        ([], "as feasible"),
    ],
)
def test_the_nearest_trial_is_named_where_none_was_verified(rows, said):
    """The reason says how near the search came, as far as it is known."""
    ranking = [{"trial": t, "state": state, "cost_per_1k_good_requests": cost} for t, state, cost in rows]
    assert said in nightgate.nobody({"ranking": ranking}, over=False).reason


def test_a_promotion_says_how_to_roll_it_out(home):
    """Nothing is deployed by a night: the morning view names the command."""
    night = run(home, better)
    shown = nightpage.text(night, ())
    assert f"tuner export chat-night-0001 --trial {night.challenger.trial}" in shown
    assert "TTFT p95 (≤ 2,000 ms)" in shown  # what was promised, not always p99


def test_a_quiet_night_names_what_changed_since_the_one_before(home):
    """Another engine flag and no finding: the sentence says so."""
    run(home)
    write(home, OBJECTIVE + "engine: {flags: {max_model_len: 4096}}\n")
    night = run(home)
    assert night.comparison.verdict == "stable"
    assert "; since night 1: engine command, flags or environment changed" in night.comparison.sentence


def test_a_baseline_that_is_no_longer_the_incumbent_is_told(home):
    """After the first night `baseline` is not read any more: the dry run says so, and what to remove."""
    write(home, OBJECTIVE + "baseline: {max_num_seqs: 64, max_num_batched_tokens: 512}\n")
    run(home)
    write(home, OBJECTIVE + "baseline: {max_num_seqs: 256, max_num_batched_tokens: 512}\n")
    found = nightplan.plan(nights.request(home))
    assert found.incumbent["max_num_seqs"] == 64
    assert re.search(r"`baseline` of the objective file is not used: remove \S+incumbent\.json", found.incumbent_is)


# -- the window --------------------------------------------------------------------------------------------------------


def in_hours(hours: float) -> str:
    """For `--until`, whatever time of day it is."""
    return f"{dt.datetime.now().astimezone() + dt.timedelta(hours=hours):%Y-%m-%dT%H:%M}"


NOON = dt.datetime(2026, 11, 29, 12, 0, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("13:30", "2026-11-29T13:30"),
        ("06:00", "2026-11-30T06:00"),
        ("08:00", "2026-11-30T08:00"),
        ("2026-12-01T06:00", "2026-12-01T06:00"),
    ],
)
def test_until_names_the_next_such_time(text, expected):
    """A time of day that passed long ago is tomorrow's."""
    assert window.until(text, NOON) == dt.datetime.fromisoformat(expected).replace(tzinfo=dt.UTC)


@pytest.mark.parametrize("text", ["6am", "25:00", "2026-11-29T11:00", "", "12:00", "11:59", "08:01"])
def test_until_refuses_what_is_no_time_to_come(text):
    """One line that says how to write it. A night that is late gets no window of a whole day."""
    with pytest.raises(InputError, match="--until"):
        window.until(text, NOON)


def test_the_end_of_the_window_stops_what_runs(home, monkeypatch):
    """It ends during the search: nothing stays deployed, the incumbent is compared, nothing is promoted."""
    launcher = ScriptedLauncher(better)
    launcher.interrupt_after = 14
    monkeypatch.setattr("tuner.nightly._Run._over", lambda self: launcher.interrupt_after <= len(launcher.plans))
    night = run(home, launcher=launcher, until=in_hours(8))
    assert night.status == "kept"
    assert night.incumbent is not None
    assert "window ended" in night.reason
    assert launcher.open == 0


def test_the_window_interrupts_the_launcher(home):
    """`launcher_until` asks the launcher to stop at the moment given, from whatever thread."""
    launcher = ScriptedLauncher(better)
    stopped = threading.Event()
    launcher.interrupt = stopped.set
    with launcher_until(0.0, launcher):
        assert stopped.wait(30)


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_the_simulated_cluster_must_be_asked_for(home, monkeypatch):
    """Without a GPU `auto` would be the simulated cluster: a night refuses, and says what to write."""
    monkeypatch.setattr("tuner.backend.visible_gpus", lambda _: [])
    write(home, OBJECTIVE.replace("backend: simulated\n", ""))
    with pytest.raises(InputError, match="--backend simulated"):
        run(home)
    assert run(home, backend="simulated").status == "kept"


def test_a_fixed_load_has_no_cost_to_compare(home):
    """One rate for all: refused before anything is started."""
    write(home, OBJECTIVE.replace("  measure:", "  load: {rate: 3/s}\n  measure:"))
    with pytest.raises(InputError, match="find_capacity"):
        run(home)


def test_two_nights_never_overlap(home):
    """The second is refused while the first holds the lock, and begins no night."""
    run(home)
    with lock.Lock(folder(home), nightfile.LOCK):
        with pytest.raises(StudyLocked, match="another night of chat") as refused:
            run(home)
        assert "ANOTHER NIGHT OF IT RUNS NOW" in nightplan.text(nightplan.plan(nights.request(home)))
    assert str(refused.value).endswith("wait for it or stop it")
    assert len(nightfile.nights(folder(home))) == 1


def test_runs_must_be_a_directory(home):
    """A file in its place is wrong input, not a crash."""
    (home / "runs").write_text("")
    with pytest.raises(InputError, match=r"--runs: got .*runs: is no directory"):
        run(home)


def test_a_damaged_incumbent_is_never_guessed(home):
    """Nobody can say what is deployed: the night refuses, and names the file."""
    run(home)
    (folder(home) / "incumbent.json").write_text('{"schema": 1, "conf')
    with pytest.raises(StudyFailed, match=r"incumbent\.json"):
        run(home)


# -- killed, full disk, tracking ---------------------------------------------------------------------------------------

POINTS = {
    "begun": None,
    "level 1": None,
    "level 9": None,
    "measured": None,
    "compared": None,
    "in the gate": None,
    "decided": None,
    "replacing incumbent.json": None,
    "promoted": BETTER,
    "replacing night.json": BETTER,
    "ended": BETTER,
    "replacing summary.txt": BETTER,
}


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_the_next_night_works(home, point):
    """SIGKILL: the incumbent is the old one or the new one, never half of one, and the next night goes on from it."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(TESTS / "support" / "nights.py"), str(home), point],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    found = deployed(home)
    assert (None if found is None else found.configuration) == POINTS[point]
    night = run(home, better)
    first = nightfile.nights(folder(home))[0]
    if POINTS[point] is None:
        assert (first.status, night.status) == ("interrupted", "promoted")
        assert deployed(home).since_night == 2
    else:
        assert (first.status, night.status) == ("promoted", "kept")
        assert deployed(home).since_night == 1
    assert not list(folder(home).glob("*.corrupt"))


@pytest.mark.parametrize("name", ["incumbent.json", "night.json", "summary.txt", "result.json", "outcome.json"])
def test_a_full_disk_never_loses_the_incumbent(home, name, monkeypatch):
    """Whatever file cannot be written: the incumbent stays readable, nothing stays deployed, the next night works."""
    run(home)
    armed = []

    def replace_bytes(path, content, real=runfiles.replace_bytes):
        if path.name == name and armed:
            with runfiles.writing(path):
                raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    launcher = ScriptedLauncher(better)
    with monkeypatch.context() as patch:
        for module in ("tuner.runfiles", "tuner.report.nightpage"):
            patch.setattr(f"{module}.replace_bytes", replace_bytes)

        def arm(event):
            if isinstance(event, NightStep) and event.name == "begun":
                armed.append(True)

        night = run(home, launcher=launcher, listen=arm)
    assert launcher.open == 0
    assert night.status == ("promoted" if name == "summary.txt" else "failed")
    assert deployed(home).configuration in (BETTER, {"tensor_parallel_size": 1, "replicas": 1})
    again = run(home, better)
    assert again.status == ("kept" if name == "summary.txt" else "promoted")


def test_interrupted_by_somebody(home):
    """Ctrl-C in the middle: 130 for the caller, the night says so, nothing stays deployed."""
    launcher = ScriptedLauncher(better)
    launcher.interrupt_after = 9
    with pytest.raises(Interrupted, match="incumbent is as it was"):
        run(home, launcher=launcher)
    assert launcher.open == 0
    assert nightfile.nights(folder(home))[0].status == "interrupted"


def test_tracking_that_is_down_changes_nothing(home):
    """The server does not answer: the night is promoted as ever."""
    told = []
    night = run(home, better, mlflow="http://127.0.0.1:9", listen=told.append)
    assert night.status == "promoted"
    assert any("tracking" in getattr(event, "text", "") for event in told)


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:sqlalchemy.exc.SADeprecationWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:(mlflow|google|pydantic).*")
@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
def test_the_incumbent_is_a_tag_of_one_run_and_its_study(home):
    """After a promotion the tag is where it belongs, and nowhere else."""
    run(home, equal, mlflow=None)
    run(home, better, mlflow=None)
    client = tracking.connect(f"sqlite:///{home / 'runs' / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'tuner'")
    tagged = client.search_runs([experiment.experiment_id], "tags.`tuner.incumbent` = 'chat'")
    assert {run.data.tags["tuner.study_id"] for run in tagged} == {
        Ledger.find(home / "runs", "chat-night-0002").study["study_id"]
    }
    assert len(tagged) == 2


# -- files and command line --------------------------------------------------------------------------------------------


def test_nights_are_read_as_they_were_written(home):
    """What is on disk is the night that was returned; the summary names its decision."""
    night = run(home, better)
    assert nightfile.nights(folder(home)) == (night,)
    text = (nightfile.night_directory(folder(home), 1) / "summary.txt").read_text()
    page = (nightfile.night_directory(folder(home), 1) / "night.html").read_text()
    assert text.startswith("night 1 of chat: promoted")
    assert "max_num_seqs=256" in page
    assert "<script" not in page


def test_damaged_nights_are_set_aside(home):
    """A torn night is no history; the next one gets a number of its own."""
    run(home)
    path = nightfile.night_directory(folder(home), 1) / "night.json"
    path.write_text(path.read_text()[:100])
    assert nightfile.nights(folder(home)) == ()
    assert run(home).number == 2


def test_dry_run_writes_nothing(home):
    """It names the night, the incumbent and how long it takes, and leaves no trace."""
    found = nightplan.plan(dataclasses.replace(nights.request(home), until=in_hours(8)))
    assert (found.night, found.backend, found.trials) == (1, "simulated", 5)
    assert found.window_s > 0
    assert "night 1 of chat" in nightplan.text(found)
    assert not (home / "runs").exists()


def test_exit_codes_and_one_json(home):
    """The real program on the simulated cluster: kept or promoted is 0, and the JSON is the night's file."""
    code, out, err = finished("nightly", "--slo", "chat.yaml", "--trials", "3", "--mlflow", "off", "--json", cwd=home)
    assert code == 0, err
    told = json.loads(out)
    assert told["status"] in ("kept", "promoted")
    assert json.loads((folder(home) / "nights/0001/night.json").read_text())["reason"] == told["reason"]
    write(home, OBJECTIVE.replace("backend: simulated", "backend: auto"))
    code, _, err = finished("nightly", "--slo", "chat.yaml", cwd=home, CUDA_VISIBLE_DEVICES="")
    assert code == 2
    assert len(err.strip().splitlines()) == 1
