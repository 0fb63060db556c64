"""The ledger: what is written survives, what is damaged harms nothing else."""

import dataclasses
import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support import synthetic_study as synthetic

from tuner import recordfile, runfiles, serial, trialfiles
from tuner.configuration import Configuration
from tuner.errors import InputError, MeasurementError, StudyFailed
from tuner.ledger import Ledger
from tuner.slo import Cluster, Objective, Pool, Prices, Search, Slo

PLAIN = Configuration({"tensor_parallel_size": 2})


@pytest.fixture
def ledger(tmp_path):
    return synthetic.create(tmp_path / "runs")


def names(path: Path) -> set[str]:
    return {str(found.relative_to(path)) for found in path.rglob("*") if found.is_file()}


def objective(slo: Slo = synthetic.SLO) -> Objective:
    pool = Pool("h100", "gpu", "H100-80GB", 1, 4, 3.99)
    return Objective("o.yaml", "m", slo, synthetic.WORKLOAD, Cluster((pool,), 4), Prices("USD"), Search("vllm"))


@pytest.mark.parametrize("state", ["feasible", "infeasible", "pruned", "rejected", "config_failed", "infra_failed"])
def test_an_outcome_comes_back_as_it_was_written(ledger, state):
    """
    Every field of every outcome survives the file.
    """
    done = synthetic.outcome(3, state=state)
    synthetic.run_trial(ledger, done)
    assert Ledger.open(ledger.path).trial(3).outcome == done


def test_a_trial_has_the_files_of_the_contract(ledger):
    """
    Names and places of the files are what other programs rely on.
    """
    synthetic.run_trial(ledger, synthetic.outcome(7))
    assert names(ledger.path) == {
        "study.json",
        "objective.yaml",
        "trials/0007/attempt.json",
        "trials/0007/configuration.json",
        "trials/0007/commands.json",
        "trials/0007/outcome.json",
        "trials/0007/levels/01/records.jsonl.zst",
        "trials/0007/levels/01/level.json",
        "trials/0007/logs/engine-0.log",
        "trials/0007/logs/engine_metrics.jsonl",
    }
    written = json.loads((ledger.path / "trials/0007/configuration.json").read_text())
    assert written == {"tensor_parallel_size": 1, "replicas": 2}


def test_study_json_says_where_the_study_comes_from(ledger):
    """
    Fingerprints, versions, seed, source, machine and times are there from the start.
    """
    study = json.loads((ledger.path / "study.json").read_text())
    assert study["fingerprints"] == synthetic.PRINTS
    assert study["versions"]["python"] == sys.version.split()[0]
    assert study["seed"] == 0
    assert study["source"] == "simulated"
    assert study["machine"]["cores"] == os.cpu_count()
    assert study["ended"] is None


def test_numbers_that_are_not_finite_are_null(ledger):
    """
    NaN and infinities never reach a file, whatever the parts hand over.
    """
    done = synthetic.outcome(1, facts={"nan": float("nan"), "deep": [float("inf")]})
    synthetic.run_trial(ledger, dataclasses.replace(done, capacity=float("inf")))
    text = (ledger.path / "trials/0001/outcome.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    read = ledger.trial(1).outcome
    assert read.capacity is None
    assert read.facts == {"nan": None, "deep": [None]}


def test_counters_that_are_not_finite_are_left_out(ledger):
    """
    Counters stay plain floats when they are read back.
    """
    level = dataclasses.replace(synthetic.level(), counters={"a": float("nan"), "b": 0.0})
    assert serial.level_from_json(serial.level_to_json(level)).counters == {"b": 0.0}


def test_a_retried_attempt_keeps_the_earlier_one(ledger):
    """
    The directory's top is the last attempt; the first lies in attempts/1 with all its files.
    """
    synthetic.run_trial(ledger, synthetic.outcome(2, state="infra_failed", reason="node_lost"))
    synthetic.run_trial(ledger, synthetic.outcome(2, attempt=2))
    entry = ledger.trial(2)
    assert (entry.attempt, entry.outcome.state) == (2, "feasible")
    assert [(a.number, a.outcome.reason) for a in entry.earlier] == [(1, "node_lost")]
    assert (ledger.path / "trials/0002/attempts/1/logs/engine-0.log").is_file()
    assert [done.attempt for done in ledger.outcomes()] == [1, 2]


def test_an_attempt_number_is_never_used_twice(ledger):
    """
    A second attempt 1 would overwrite evidence.
    """
    ledger.begin(0, 1, PLAIN)
    assert ledger.next_attempt(0) == 2
    with pytest.raises(ValueError, match="attempt 1 after attempt 1"):
        ledger.begin(0, 1, PLAIN)


@pytest.mark.parametrize("fall_at", range(1, 5))
def test_a_crash_while_an_attempt_is_set_aside_loses_nothing(ledger, monkeypatch, fall_at):
    """
    Moving the earlier attempt can stop anywhere and is completed by the next begin.
    """
    synthetic.run_trial(ledger, synthetic.outcome(0, state="infra_failed", reason="node_lost"))
    before = names(ledger.path / "trials/0000")
    moved, real = [], Path.rename

    def rename(self, target):
        if "attempts" in str(target):
            moved.append(self.name)
            if len(moved) == fall_at:
                raise KeyboardInterrupt
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            ledger.begin(0, 2, PLAIN)
    ledger.begin(0, 2, PLAIN)
    assert names(ledger.path / "trials/0000/attempts/1") == before
    assert ledger.trial(0).attempt == 2


def test_finish_is_idempotent(ledger):
    """
    A result that is stored again after a crash before the optimiser heard of it changes nothing and costs nothing.
    """
    done = synthetic.outcome(0)
    synthetic.run_trial(ledger, done)
    spent = ledger.spent()
    assert not ledger.finish(dataclasses.replace(done, state="infeasible"))
    assert ledger.trial(0).outcome == done
    assert ledger.spent() == spent


def test_an_outcome_without_a_begun_attempt_is_refused(ledger):
    """
    An outcome of nothing would be a made-up measurement.
    """
    with pytest.raises(StudyFailed, match="attempt 1 of trial 4 was never begun"):
        ledger.finish(synthetic.outcome(4))


KILLED = """
import os, sys, signal
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from support import synthetic_study as synthetic
from tuner.ledger import Ledger
ledger = Ledger.open(Path(sys.argv[1]))
with ledger.lock():
    synthetic.run_trial(ledger, synthetic.outcome(0))
    done = synthetic.outcome(1)
    ledger.begin(1, 1, done.configuration)
    ledger.write_level(1, done.levels[0], synthetic.level_data())
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_tuner_leaves_every_finished_trial_and_an_exact_budget(ledger):
    """
    SIGKILL in the middle of trial 1: trial 0 is whole, trial 1 is to be done again, and what it spent stays counted.
    """
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(ledger.path), str(here), str(here.parent)], check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    entries = ledger.trials()
    assert [(entry.number, entry.interrupted) for entry in entries] == [(0, False), (1, True)]
    assert [level.number for level in entries[1].levels()] == [1]
    with ledger.lock():
        before = ledger.spent()
        os.utime(ledger.path / "trials/0001/levels/01/level.json", (4e9, 4e9))  # later changes do not count any more
        assert ledger.spent().unit_hours == before.unit_hours
        synthetic.run_trial(ledger, synthetic.outcome(1, attempt=2))
    after = ledger.spent()
    assert (before.trials, after.trials) == (1, 2)
    assert after.unit_hours == pytest.approx(before.unit_hours + 2 * 120 / 3600, abs=1e-9)
    assert after.requests == 3 * 330
    assert len(ledger.study["sessions"]) == 2


def test_spent_counts_every_attempt_and_what_was_charged(ledger):
    """
    Infrastructure failures cost hours but no trial; verification costs hours of its own.
    """
    synthetic.run_trial(ledger, synthetic.outcome(0, state="infra_failed", reason="node_lost"))
    synthetic.run_trial(ledger, synthetic.outcome(0, attempt=2))
    synthetic.run_trial(ledger, synthetic.outcome(1, state="infra_failed", reason="node_lost"))
    ledger.append_level(0, synthetic.level(purpose="verify"), synthetic.level_data(2))
    ledger.charge("verify", 0, unit_hours=0.5, seconds=900.0)
    spent = ledger.spent()
    assert spent.trials == 1
    assert spent.unit_hours == pytest.approx(3 * 2 * 120 / 3600 + 0.5)
    assert spent.trial_s == 3 * 120 + 900
    assert spent.requests == 2 * 330


def test_a_torn_charge_costs_only_itself(ledger, caplog):
    """
    A line that a crash cut off neither hides the earlier ones nor swallows the next.
    """
    ledger.charge("verify", 0, unit_hours=0.5, seconds=1.0)
    with (ledger.path / "charges.jsonl").open("ab") as file:
        file.write(b'{"what": "ver')
    ledger.charge("verify", 0, unit_hours=0.25, seconds=1.0)
    assert ledger.spent().unit_hours == 0.75
    assert "torn line" in caplog.text


def test_verification_levels_are_numbered_on(ledger):
    """
    A finalist's later levels join its trial without touching its outcome.
    """
    done = synthetic.outcome(0)
    synthetic.run_trial(ledger, done)
    stored = ledger.append_level(0, synthetic.level(1, purpose="verify"), synthetic.level_data(1, seed=9))
    assert stored.number == 2
    entry = ledger.trial(0)
    assert [(level.number, level.purpose) for level in entry.levels()] == [(1, "search"), (2, "verify")]
    assert entry.outcome == done
    assert ledger.level_records(0, 2) == synthetic.level_data(1, seed=9).records


def test_a_level_can_be_judged_again_under_other_limits(ledger):
    """
    Records, window and plan come back as measured; workload and limits are those of the new objective.
    """
    synthetic.run_trial(ledger, synthetic.outcome(0))
    before = synthetic.level_data(1)
    assert ledger.trial(0).level_data(1, objective()) == dataclasses.replace(before, samples=(), counters={})
    other = Slo(limits=synthetic.SLO.limits[:1])
    assert ledger.trial(0).level_data(1, objective(other)).plan.slo == other


def test_a_level_of_summaries_says_that_it_cannot_be_judged_again(ledger):
    """
    Records without their chunks would pass every limit on token gaps.
    """
    ledger.begin(0, 1, PLAIN)
    ledger.write_level(0, synthetic.level(), synthetic.level_data(), full=False)
    assert {record.chunks for record in ledger.level_records(0, 1)} == {()}
    with pytest.raises(MeasurementError, match="summaries"):
        ledger.trial(0).level_data(1, objective())


@pytest.mark.parametrize("damage", [b"", b'{"trial": 1, "st', b"[1]", b"{}", b'{"capacity": NaN}'])
def test_a_damaged_outcome_is_set_aside_and_the_others_stay(ledger, damage, caplog):
    """
    A torn result file costs its own trial only, which counts as interrupted.
    """
    for number in range(3):
        synthetic.run_trial(ledger, synthetic.outcome(number))
    path = ledger.path / "trials/0001/outcome.json"
    path.write_bytes(damage)
    assert [entry.interrupted for entry in ledger.trials()] == [False, True, False]
    assert path.with_name("outcome.json.corrupt").read_bytes() == damage
    assert "set aside" in caplog.text


def test_every_cut_of_the_files_of_a_trial_is_survived(ledger):
    """
    Any file of a trial may lose its tail; reading the study goes on.
    """
    synthetic.run_trial(ledger, synthetic.outcome(0))
    synthetic.run_trial(ledger, synthetic.outcome(1))
    for name in sorted(names(ledger.path / "trials/0001")):
        path = ledger.path / "trials/0001" / name
        path.write_bytes(path.read_bytes()[:-10])
    entry = ledger.trials()[0]
    assert entry.outcome == synthetic.outcome(0)
    assert len(ledger.table()) == 2
    ledger.spent()


def test_cut_records_are_refused_and_set_aside(ledger):
    """
    Half the requests of a level would be a wrong answer.
    """
    synthetic.run_trial(ledger, synthetic.outcome(0))
    path = ledger.path / "trials/0000/levels/01/records.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(MeasurementError, match=r"records\.jsonl\.zst"):
        ledger.level_records(0, 1)
    assert path.with_name("records.jsonl.zst.corrupt").exists()
    assert ledger.trial(0).outcome == synthetic.outcome(0)


class Trap:
    """Leaves a trace if anybody unpickles it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("name", ["outcome.json", "attempt.json", "configuration.json", "levels/01/level.json"])
def test_a_pickle_in_place_of_a_file_is_never_loaded(ledger, tmp_path, name):
    """
    Files of a study are data, whoever wrote them.
    """
    synthetic.run_trial(ledger, synthetic.outcome(0))
    (ledger.path / "trials/0000" / name).write_bytes(pickle.dumps(Trap(str(tmp_path / "sprung"))))
    for entry in ledger.trials():
        entry.levels()
    assert not (tmp_path / "sprung").exists()


def test_a_full_disk_stops_with_the_path_and_leaves_the_old_file(ledger, monkeypatch):
    """
    No half file, no success: the message names the path and the way on.
    """
    ledger.write_json("result.json", {"status": "winner"})

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runfiles.os, "fsync", full)
    with pytest.raises(StudyFailed, match=r"result\.json: cannot write: No space left on device.*resume"):
        ledger.write_json("result.json", {"status": "no_gain"})
    assert ledger.read_json("result.json") == {"status": "winner"}
    assert not list(ledger.path.glob(".*"))


def test_records_on_a_full_disk_stop_too(ledger, monkeypatch):
    """
    The level does not exist until its records do.
    """
    ledger.begin(0, 1, PLAIN)

    def full(path, records):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(recordfile, "write", full)
    with pytest.raises(StudyFailed, match="levels/01: cannot write"):
        ledger.write_level(0, synthetic.level(), synthetic.level_data())
    assert ledger.trial(0).levels() == []


def test_a_vanished_directory_stops_with_a_message(ledger):
    """
    Somebody removed the study while it ran.
    """
    ledger.begin(0, 1, PLAIN)
    ledger.path.rename(ledger.path.with_name("gone"))
    with pytest.raises(StudyFailed, match=r"trials/0000: attempt 1 of trial 0 was never begun"):
        ledger.finish(synthetic.outcome(0))
    with pytest.raises(StudyFailed, match=r"result\.json: cannot write"):
        ledger.write_json("result.json", {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_stops_with_a_message(tmp_path):
    """
    Nowhere to write is known before anything is started.
    """
    tmp_path.chmod(0o500)
    with pytest.raises(StudyFailed, match="cannot write"):
        synthetic.create(tmp_path / "runs")
    tmp_path.chmod(0o700)


def test_runs_that_is_a_file_stops_with_a_message(tmp_path):
    """
    `--runs` names something that can hold no study.
    """
    (tmp_path / "runs").write_text("")
    with pytest.raises(StudyFailed, match="cannot write"):
        synthetic.create(tmp_path / "runs")


def test_a_study_is_created_once(ledger):
    """
    The same name means resume, never overwrite.
    """
    with pytest.raises(InputError, match="exists already; resume it"):
        synthetic.create(ledger.path.parent)
    assert names(ledger.path.parent) == {"chat/study.json", "chat/objective.yaml"}


def test_a_changed_input_is_named_with_its_values(ledger):
    """
    A refused resume says what differs, in the user's own terms.
    """
    assert ledger.changed(synthetic.PRINTS, "anything") == []
    now = synthetic.YAML.replace("60ms", "50ms")
    assert ledger.changed({**synthetic.PRINTS, "slo": "eeee"}, now) == ["slo.itl.p99 60ms → 50ms"]
    assert ledger.changed({**synthetic.PRINTS, "backend": "ray"})[-1] == "backend is new"
    longer = {name: value.ljust(64, "0") for name, value in synthetic.PRINTS.items()}
    assert ledger.changed(longer)[0].endswith(": its content differs")


def test_a_study_is_found_by_name_and_by_path(ledger, tmp_path):
    """
    Both ways lead to the same study.
    """
    assert Ledger.find(tmp_path / "runs", "chat").path == ledger.path
    assert Ledger.find(tmp_path, str(ledger.path)).name == "chat"


def test_a_damaged_study_file_is_an_error_with_a_remedy(ledger):
    """
    Without its fingerprints a study cannot be resumed safely.
    """
    (ledger.path / "study.json").write_text('{"schema": 1, "st')
    with pytest.raises(StudyFailed, match="restore it from a copy"):
        Ledger.open(ledger.path)


def test_a_study_of_a_later_version_is_refused(ledger):
    """
    Unknown rules are not guessed.
    """
    ledger.write_json("study.json", {"schema": 99})
    with pytest.raises(InputError, match="got schema 99"):
        Ledger.open(ledger.path)


def test_a_trial_that_is_a_link_out_of_the_study_is_passed_over(ledger, tmp_path):
    """
    Nothing outside the study is read as a trial or written to.
    """
    (tmp_path / "outside").mkdir()
    (ledger.path / "trials/0005").symlink_to(tmp_path / "outside")
    assert ledger.trials() == []
    with pytest.raises(StudyFailed, match="leads out of the study"):
        ledger.begin(5, 1, PLAIN)
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("name", ["../x.json", "/x.json", "a/b.json", "x.txt", ""])
def test_files_at_the_top_have_plain_names(ledger, name):
    """
    A name cannot lead elsewhere.
    """
    with pytest.raises(ValueError, match="is not the name"):
        ledger.write_json(name, {})


def test_trials_that_run_side_by_side_do_not_disturb_each_other(ledger):
    """
    Four threads write four trials at once; all are whole.
    """
    with ledger.lock():
        threads = [
            threading.Thread(target=synthetic.run_trial, args=(ledger, synthetic.outcome(number)))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [entry.outcome for entry in ledger.trials()] == [synthetic.outcome(number) for number in range(4)]


def test_the_table_has_a_row_for_every_trial(tmp_path):
    """
    Outcomes, knobs and figures side by side; an interrupted trial is shown as such.
    """
    ledger = synthetic.five_trials(tmp_path)
    ledger.begin(5, 1, PLAIN)
    table = ledger.table().set_index("trial")
    assert list(table["outcome"]) == ["feasible", "feasible", "infeasible", "pruned", "config_failed", "interrupted"]
    assert table.loc[1, "cost_per_1k_good_requests"] == pytest.approx(7.98 / (3.9 * 3600) * 1000)
    assert table.loc[1, "ttft_p99_ms"] == 1210.0
    assert table["cost_per_1k_good_requests"].isna().tolist() == [False, False, True, True, True, True]


def test_an_empty_study_has_an_empty_table(ledger):
    """
    Zero trials are no error.
    """
    assert ledger.table().empty


def test_files_of_later_versions_with_more_fields_are_read(ledger):
    """
    Unknown keys are ignored.
    """
    synthetic.run_trial(ledger, synthetic.outcome(0))
    path = ledger.path / "trials/0000" / trialfiles.OUTCOME
    runfiles.write_json(path, {**runfiles.read_json(path), "later": 1})
    assert ledger.trial(0).outcome == synthetic.outcome(0)
