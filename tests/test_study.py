"""Ask, measure, tell: budgets, resume, duplicates, pruning, and what the study ends with."""

import dataclasses
import errno
import sqlite3

import pytest
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from support.bench import SPACE, Bench
from support.scripted import ScriptedDeployment, ScriptedLauncher

from tuner import recordfile, trialfiles
from tuner.configuration import Configuration
from tuner.errors import ConfigurationFailed, InfrastructureFailed, InputError, Interrupted, StudyFailed
from tuner.runfiles import writing
from tuner.slo import Budget, Load, Verification


def by_tokens(configuration: Configuration) -> float:
    """4 req/s by default; a token budget of 2048 carries 8, 512 carries 2, and more sequences help a little."""
    carried = {512: 2.0, 2048: 8.0, 8192: 5.0}.get(configuration.knobs.get("max_num_batched_tokens"), 4.0)
    return carried * (1.1 if configuration.knobs.get("max_num_seqs") == 256 else 1.0)


def budgeted(objective, **budget):
    return dataclasses.replace(objective, search=dataclasses.replace(objective.search, budget=Budget(**budget)))


@pytest.fixture
def bench(tmp_path, objective):
    cluster = dataclasses.replace(objective.cluster, max_gpus=1)
    one = dataclasses.replace(objective, cluster=cluster)
    return Bench(tmp_path / "runs", one, ScriptedLauncher(by_tokens))


def test_the_best_point_wins_over_the_baseline(bench):
    """12 points, all affordable: the winner carries 8.8 req/s, and the baseline's 4 req/s cost twice as much."""
    bench.objective = budgeted(bench.objective, trials=13)
    result = bench.go()
    assert result["status"] == "winner"
    assert result["winner"]["configuration"]["max_num_batched_tokens"] == 2048
    assert result["winner"]["configuration"]["max_num_seqs"] == 256
    assert result["baseline"]["configuration"] == {"tensor_parallel_size": 1, "replicas": 1}
    assert result["winner"]["cost_per_1k_good_requests"] == pytest.approx(3 / 3.6 / 8.8, rel=0.12)
    assert result["gain"]["lower"] > 0.02


def test_baseline_is_trial_zero_and_counts(bench):
    """A budget of 5 trials is the baseline and four proposals."""
    bench.objective = budgeted(bench.objective, trials=5)
    result = bench.go()
    assert result["counts"]["started"] == 5
    assert bench.ledger().trial(0).outcome.state == "feasible"


def test_no_point_is_measured_twice(bench):
    """The space has 12 points: with a budget of 40 each is started once in the search, then the study ends."""
    bench.objective = budgeted(bench.objective, trials=40)
    result = bench.go()
    keys = [entry.configuration.key for entry in bench.ledger().trials()]
    assert len(keys) == len(set(keys)) == 13
    assert result["ended_by"] == "space"


def test_points_that_cannot_beat_the_best_are_pruned(bench):
    """Once 8 req/s are known, a candidate of 2 req/s costs one level: the load at which it would win."""
    bench.objective = budgeted(bench.objective, trials=13)
    bench.go()
    pruned = [e.outcome for e in bench.ledger().trials() if e.outcome.state == "pruned"]
    assert pruned
    assert all(len(outcome.levels) == 1 and outcome.levels[0].purpose == "challenge" for outcome in pruned)


def test_every_trial_gets_the_same_schedule_and_finalists_a_fresh_one(bench):
    """Search levels share the study's seed; verification sessions use the next ones."""
    bench.objective = budgeted(bench.objective, trials=4)
    bench.go()
    searched = {plan.seed for _, plan in bench.launcher.plans if plan.seed == 7}
    verified = {plan.seed for _, plan in bench.launcher.plans if plan.seed != 7}
    assert searched == {7}
    assert verified == {8, 9}


def test_equal_configurations_are_no_gain(bench):
    """OPT-10: where nothing differs, nobody wins."""
    bench.launcher.capacity = lambda _: 4.0
    result = bench.go()
    assert result["status"] == "no_gain"
    assert result["winner"] is None
    assert not result["gain"]["proven"]


def test_impossible_slo_names_the_binding_limit(bench):
    """OPT-03: when nothing keeps the SLO, the result says which limit binds and which point was nearest."""
    bench.launcher.capacity = lambda _: 0.0
    result = bench.go()
    assert result["status"] == "no_feasible"
    assert result["no_feasible"]["binding"] == "ttft_p95"
    assert result["winner"] is None


def test_infeasible_baseline_does_not_prevent_a_winner(bench):
    """Without a baseline's cost there is still a best configuration; the gain is unknown."""
    bench.launcher.capacity = lambda c: 0.0 if "max_num_seqs" not in c.knobs else 4.0
    result = bench.go()
    assert result["status"] == "winner"
    assert result["gain"] is None
    assert any("no baseline cost" in warning for warning in result["warnings"])


def test_failed_configurations_are_told_and_never_win(bench):
    """A configuration that cannot start is an outcome with its reason, counts as a trial, and is not started again."""

    def capacity(configuration):
        if configuration.knobs.get("max_num_seqs") == 256:
            raise ConfigurationFailed("out_of_memory", "no room for one block")
        return by_tokens(configuration)

    bench.launcher.capacity = capacity
    bench.objective = budgeted(bench.objective, trials=13)
    result = bench.go()
    assert result["counts"]["config_failed"] == 6
    assert result["winner"]["configuration"]["max_num_seqs"] == 64
    failed = [e.outcome for e in bench.ledger().trials() if e.outcome.state == "config_failed"]
    assert {outcome.reason for outcome in failed} == {"out_of_memory"}


def test_lost_infrastructure_is_tried_again_as_the_same_trial(bench):
    """RAY-06: a node that is lost once costs an attempt, not a trial."""
    lost = []

    def capacity(configuration):
        if "max_num_seqs" in configuration.knobs and not lost:
            lost.append(1)
            raise InfrastructureFailed("node_lost", "node went away")
        return by_tokens(configuration)

    bench.launcher.capacity = capacity
    bench.objective = budgeted(bench.objective, trials=4)
    result = bench.go()
    assert result["counts"]["infra_failed"] == 0
    assert result["counts"]["infra_failed_attempts"] == 1
    assert bench.ledger().trial(1).attempt == 2
    assert len(bench.ledger().trials()) == 4


def test_a_broken_cluster_ends_the_study(bench):
    """OPT-06: when everything fails for want of infrastructure, the study stops with a message and a result."""

    def capacity(_):
        raise InfrastructureFailed("node_lost", "no node answers")

    bench.launcher.capacity = capacity
    with pytest.raises(StudyFailed, match="no node answers"):
        bench.go()
    assert bench.ledger().read_json("result.json")["status"] == "failed"


def test_interrupted_study_goes_on_where_it_was(bench, tmp_path, objective):
    """Interrupted in trial 3 of 6 and started again: six trials, the points of an uninterrupted study."""
    bench.objective = budgeted(bench.objective, trials=6)
    whole = Bench(tmp_path / "other", bench.objective, ScriptedLauncher(by_tokens))
    whole.go()
    expected = [entry.configuration.key for entry in whole.ledger().trials()]
    third = next(number for number, (key, _) in enumerate(whole.launcher.plans) if key == expected[3])

    bench.launcher.interrupt_after = third
    with pytest.raises(Interrupted, match="--study s"):
        bench.go()
    assert bench.ledger().read_json("result.json")["status"] == "interrupted"
    assert bench.ledger().trial(3).outcome is None

    bench.launcher = ScriptedLauncher(by_tokens)
    result = bench.go()
    assert [entry.configuration.key for entry in bench.ledger().trials()] == expected
    assert result["counts"]["started"] == 6


def test_killed_between_measuring_and_telling(bench):
    """RES-04: an outcome that Optuna never heard of is told on resume, once."""
    bench.objective = budgeted(bench.objective, trials=5)
    bench.go()
    database = bench.ledger().path / "optuna.db"
    with sqlite3.connect(database) as connection:
        (last,) = connection.execute("select max(trial_id) from trials").fetchone()
        connection.execute("update trials set state = 'RUNNING' where trial_id = ?", (last,))
        connection.execute("delete from trial_values where trial_id = ?", (last,))
        connection.execute("delete from trial_system_attributes where trial_id = ?", (last,))
    connection.close()
    bench.objective = budgeted(bench.objective, trials=6)
    bench.go()
    with sqlite3.connect(database) as connection:
        states = dict(connection.execute("select state, count(*) from trials group by state"))
    connection.close()
    assert "RUNNING" not in states
    assert len(bench.ledger().trials()) == 6


def test_lost_database_is_rebuilt_from_the_ledger(bench):
    """The ledger is the truth: without Optuna's file the study goes on and measures nothing again."""
    bench.objective = budgeted(bench.objective, trials=6)
    bench.go()
    (bench.ledger().path / "optuna.db").unlink()
    bench.launcher = ScriptedLauncher(by_tokens)
    bench.objective = budgeted(bench.objective, trials=9)
    result = bench.go()
    keys = [entry.configuration.key for entry in bench.ledger().trials()]
    assert len(keys) == len(set(keys)) == result["counts"]["started"] == 9


def test_finished_study_runs_nothing_more(bench):
    """OPT-06: a study that is done is not verified again either."""
    bench.objective = budgeted(bench.objective, trials=4)
    first = bench.go()
    bench.launcher = ScriptedLauncher(by_tokens)
    assert bench.go() == first
    assert bench.launcher.entered == []


def test_gpu_hours_end_the_search_and_leave_room_to_verify(bench):
    """A level takes 600 virtual seconds: 3 GPU-hours end the search at 75 % at the latest."""
    bench.launcher.level_s = 600
    bench.objective = budgeted(bench.objective, gpu_hours=3.0)
    result = bench.go()
    assert result["ended_by"] == "gpu-hours"
    assert bench.ledger().spent().unit_hours < 3.0 + 1.0


def test_parallel_trials_share_the_budget_exactly(bench):
    """OPT-06, OPT-07: four workers, ten trials: ten finished, all different."""
    bench.parallel = 4
    bench.launcher.parallel = 4
    bench.objective = budgeted(bench.objective, trials=10)
    result = bench.go()
    keys = [entry.configuration.key for entry in bench.ledger().trials()]
    assert result["counts"]["started"] == len(set(keys)) == 10
    assert bench.launcher.open == 0


def test_impossible_shapes_are_listed_and_not_counted(bench):
    """A shape that the cluster refuses never starts, is listed with its reason, and costs no trial."""
    bench.launcher.impossible = lambda c: "needs 4 GPUs, cluster max 2" if c.knobs.get("max_num_seqs") == 256 else None
    bench.objective = budgeted(bench.objective, trials=7)
    result = bench.go()
    assert result["counts"]["started"] == 7
    assert all("256" not in key for key in bench.launcher.entered)
    assert {each["message"] for each in bench.ledger().rejected()} == {"needs 4 GPUs, cluster max 2"}


def test_a_baseline_that_no_node_holds_is_wrong_input(bench):
    """Nothing could be compared with it: one line names it before anything is started."""
    bench.launcher = ScriptedLauncher(by_tokens, impossible=lambda _: "tensor_parallel_size 1 fits no node")
    with pytest.raises(InputError, match="baseline: tensor_parallel_size 1 fits no node; name one"):
        bench.go()
    assert bench.launcher.entered == []
    assert bench.ledger().trials() == []


def test_fixed_rate_measures_one_level(bench):
    """`load: {rate: 3/s}`: one level a trial, and what carries it is feasible at that load."""
    workload = dataclasses.replace(bench.objective.workload, load=Load("rate", rate_rps=3.0))
    search = dataclasses.replace(bench.objective.search, verify=Verification(finalists=1, repeats=2))
    bench.objective = dataclasses.replace(bench.objective, workload=workload, search=search)
    bench.go()
    outcomes = [entry.outcome for entry in bench.ledger().trials()]
    assert all(len(outcome.levels) == 1 and outcome.levels[0].offered == 3.0 for outcome in outcomes)
    assert {outcome.state for outcome in outcomes} == {"feasible", "infeasible"}


def test_verified_claims_are_below_the_broken_load(bench):
    """The figures of a winner are those of a rung that both sessions kept, and its interval reaches to the break."""
    bench.objective = budgeted(bench.objective, trials=13)
    result = bench.go()
    low, high = result["winner"]["interval"]
    assert result["winner"]["verified"]
    assert result["winner"]["offered_rps"] <= 8.8
    assert low < result["winner"]["cost_per_1k_good_requests"] <= high * (1 + 1e-9)


def test_space_is_what_the_test_thinks():
    """Twelve points."""
    assert SPACE.size() == 12


def test_a_configuration_that_dies_under_load_has_no_score(bench):
    """SRV-09: the load at which the server died is not judged; what was measured before stays in the ledger."""
    drive = ScriptedDeployment.drive

    def dies_at_3(self, plan):
        if "max_num_seqs" in self.configuration.knobs and plan.rate_rps > 3:
            raise ConfigurationFailed("server_died", "killed by signal 9")
        return drive(self, plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptedDeployment, "drive", dies_at_3)
        bench.objective = budgeted(bench.objective, trials=3)
        result = bench.go()
    assert result["counts"]["config_failed"] == 2
    failed = [entry.outcome for entry in bench.ledger().trials() if entry.number > 0]
    assert {(outcome.reason, outcome.best, outcome.capacity) for outcome in failed} == {("server_died", None, None)}
    assert result["winner"] is None
    assert len(bench.launcher.entered) == len({*bench.launcher.entered[:3]}) + result["baseline"]["repeats"]
    assert bench.launcher.open == 0


def test_answers_are_checked_before_the_levels_of_every_deployment(bench):
    """A wrong answer is the trial's outcome, with no level; what is verified is checked again, with each start."""
    checked = []

    class Guard:
        def prepare(self, configuration):
            assert bench.launcher.open == 0  # a plain engine may have to be started first

        def check(self, configuration, running):
            checked.append(configuration.key)
            if configuration.knobs.get("max_num_batched_tokens") == 8192:
                raise ConfigurationFailed("output_mismatch", "prompt 1 at token 3", {"kv_transfer_share": 1.0})
            return {"answers": {"compared": 8}}

    bench.objective = budgeted(bench.objective, trials=13)
    bench.guard = Guard()
    result = bench.go()
    assert checked == bench.launcher.entered
    wrong = [entry.outcome for entry in bench.ledger().trials() if entry.outcome.reason == "output_mismatch"]
    assert len(wrong) == 4
    assert {(one.cause, one.levels, one.counters["kv_transfer_share"]) for one in wrong} == {
        ("prompt 1 at token 3", (), 1)
    }
    assert result["winner"]["configuration"]["max_num_batched_tokens"] == 2048
    assert bench.ledger().trial(0).outcome.facts["answers"] == {"compared": 8}


@pytest.mark.parametrize("when", ["records of a level", "outcome of a trial", "database of Optuna"])
def test_a_full_disk_ends_the_study_with_nothing_left_running(bench, when, monkeypatch):
    """RES-05: one message that names the file; no deployment stays, nothing is called a success, and it can go on."""
    writes = {
        "records of a level": (recordfile, "write"),
        "outcome of a trial": (trialfiles, "finish"),
        "database of Optuna": (RDBStorage, "set_trial_state_values"),
    }
    module, name = writes[when]
    real, calls = getattr(module, name), []

    def full(*arguments, **named):
        calls.append(name)
        if len(calls) < 2:
            return real(*arguments, **named)
        if module is RDBStorage:
            raise StorageInternalError("The storage failed.") from OSError(errno.ENOSPC, "No space left on device")
        with writing(bench.runs / "s"):
            raise OSError(errno.ENOSPC, "No space left on device")

    bench.objective = budgeted(bench.objective, trials=4)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, full)
        with pytest.raises(StudyFailed, match=r"No space left on device.*start the same command again to resume"):
            bench.go()
    assert bench.launcher.open == 0
    assert bench.ledger().read_json("result.json")["status"] == "failed"
    assert bench.go()["counts"]["started"] == 4
