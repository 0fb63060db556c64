"""What a warm-started study takes from earlier ones, what it refuses, and that a resume changes nothing."""

import dataclasses
import json
import shutil

import optuna
import pytest
from support.bench import SPACE, Bench
from support.scripted import ScriptedLauncher

from tuner import transfer
from tuner.configuration import Configuration
from tuner.errors import InputError, StudyChanged, StudyFailed
from tuner.ledger import Ledger
from tuner.report import words
from tuner.slo import Budget
from tuner.space import Knob, Space
from tuner.transfer import Source, Today, Transfer

BEST = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}


def by_tokens(configuration) -> float:
    """4 req/s by default; a token budget of 2048 carries 8, 512 carries 2, and more sequences help a little."""
    carried = {512: 2.0, 2048: 8.0, 8192: 5.0}.get(configuration.knobs.get("max_num_batched_tokens"), 4.0)
    return carried * (1.1 if configuration.knobs.get("max_num_seqs") == 256 else 1.0)


@pytest.fixture
def bench(tmp_path, objective):
    """A study of the whole space, with its baseline, not begun yet."""
    cluster = dataclasses.replace(objective.cluster, max_gpus=1)
    search = dataclasses.replace(objective.search, budget=Budget(trials=13))
    one = dataclasses.replace(objective, cluster=cluster, search=search)
    return Bench(tmp_path / "runs", one, ScriptedLauncher(by_tokens), name="monday")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Where the finished study of `monday` is kept for all tests."""
    return tmp_path_factory.mktemp("kept") / "monday"


@pytest.fixture
def monday(bench, kept):
    """The study, finished: its baseline and all twelve points."""
    if not kept.exists():
        bench.go()
        shutil.copytree(bench.runs / "monday", kept)
    else:
        shutil.copytree(kept, bench.runs / "monday")
    return bench


def today(bench, **changes) -> Today:
    """The next study of the same kind, but for `changes`."""
    same = Today(
        bench.objective, bench.space, {}, "simulated", None, Configuration({"tensor_parallel_size": 1, "replicas": 1})
    )
    return dataclasses.replace(same, **changes)


def next_night(bench, *, trials: int = 4, **changes) -> Bench:
    """A second study that is warm-started from the first, with a budget of its own."""
    plan = transfer.plan(bench.runs, "monday", today(bench, **changes))
    search = dataclasses.replace(bench.objective.search, budget=Budget(trials=trials))
    objective = dataclasses.replace(bench.objective, search=search)
    return dataclasses.replace(bench, name="tuesday", objective=objective, transfer=plan, events=[])


def told(bench) -> list:
    """Trials in Optuna's storage that this study did not measure."""
    storage = f"sqlite:///{bench.runs / bench.name / 'optuna.db'}"
    trials = optuna.load_study(study_name=bench.name, storage=storage).trials
    return [trial for trial in trials if "inherited" in trial.user_attrs]


def test_the_best_points_are_measured_first(monday):
    """The second study tries the first one's best point right after the baseline, and wins with it in two trials."""
    second = next_night(monday, trials=2)
    result = second.go()
    first = second.ledger().trial(1).configuration.knobs
    assert {name: first[name] for name in BEST} == BEST
    assert result["status"] == "winner"
    assert result["winner"]["trial"] == 1


def test_comparable_outcomes_are_told_to_the_sampler_and_to_nobody_else(monday):
    """All twelve points stand in Optuna's storage; the ledger, and so the winner, knows this night's trials alone."""
    second = next_night(monday, trials=8)
    result = second.go()
    assert len(told(second)) == 12
    assert [entry.number for entry in second.ledger().trials()] == list(range(8))
    assert result["counts"]["started"] == 8
    proposed = len(second.transfer.proposals)
    assert result["warm_start"]["sources"] == [
        {"study": "monday", "told": 12, "proposed": proposed, "outside": 0, "differs": []}
    ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"fingerprints": {"workload": "other"}}, "workload"),
        ({"fingerprints": {"model": "other"}}, "model"),
        ({"fingerprints": {"cluster": "other"}}, "cluster"),
        ({"source": "live"}, "simulated, not live"),
        ({"cpu": "another processor"}, "processor"),
    ],
)
def test_outcomes_of_another_measurement_are_proposals_only(monday, changes, why):
    """Another workload, model, price, processor, or a simulation for a live study: the sampler hears nothing of it."""
    second = next_night(monday, trials=8, **changes)
    result = second.go()
    assert told(second) == []
    (source,) = result["warm_start"]["sources"]
    assert (source["told"], source["proposed"], source["differs"]) == (0, len(second.transfer.proposals), [why])


def test_another_engine_version_is_noticed_once_the_baseline_ran(monday):
    """The version is known only from the running engine: then what an older one measured is not told."""
    second = next_night(monday, trials=8)
    old = [
        dataclasses.replace(each, outcome=dataclasses.replace(each.outcome, facts={"engine_version": "0.31.0"}))
        for each in second.transfer.history
    ]
    second.transfer = dataclasses.replace(second.transfer, history=tuple(old))
    result = second.go()
    assert told(second) == []
    assert result["warm_start"]["sources"][0]["differs"] == ["engine version"]


def test_points_outside_of_the_space_are_dropped_and_counted(monday):
    """A space without its best token budget takes the eight other points; the baseline was no point of it before."""
    smaller = Space(
        "smaller", (SPACE.knobs[0], Knob("max_num_batched_tokens", "categorical", options=(512, 8192)), SPACE.knobs[2])
    )
    plan = transfer.plan(monday.runs, "monday", today(monday, space=smaller))
    assert plan.sources == (Source("monday", (), told=8, proposed=plan.sources[0].proposed, outside=4),)
    assert all(point.knobs["max_num_batched_tokens"] != 2048 for _, point in plan.proposals)


def test_a_study_of_another_space_is_refused(monday):
    """Nothing of it could be used: the message names the space and the remedy."""
    other = Space("other", (Knob("block_size", "categorical", options=(16, 32)),))
    with pytest.raises(InputError, match="none of its 12 points lies in the space other: name a study"):
        transfer.plan(monday.runs, "monday", today(monday, space=other))


def test_a_study_that_measured_its_baseline_alone_gives_nothing(bench):
    """That is no fault: the next night begins as if it were the first, and says so."""
    bench.objective = dataclasses.replace(
        bench.objective, search=dataclasses.replace(bench.objective.search, budget=Budget(trials=1))
    )
    bench.go()
    for wanted in ("monday", "latest"):
        plan = transfer.plan(bench.runs, wanted, today(bench))
        assert plan.sources == (Source("monday", (), told=0, proposed=0, outside=0),)
        assert (plan.proposals, plan.history) == ((), ())


def test_first_points_of_the_space_that_were_measured_are_not_repeated(bench):
    """What an earlier study tried is judged by its outcome, not tried again for its own sake."""
    bench.space = dataclasses.replace(SPACE, first=({**BEST, "max_num_batched_tokens": 512},))
    bench.go()
    second = next_night(bench, trials=8)
    second.go()
    start = second.ledger().trial(1 + len(second.transfer.proposals)).configuration
    assert start != Configuration({**BEST, "max_num_batched_tokens": 512})


def test_a_chain_of_nights_keeps_what_all_of_them_measured(monday):
    """The third study hears of the first one's points too, each under the study that measured it last."""
    second = next_night(monday, trials=3)
    second.go()
    plan = transfer.plan(monday.runs, "tuesday", today(monday))
    assert {source.study: source.told for source in plan.sources} == {"tuesday": 2, "monday": 10}


def test_latest_is_the_newest_finished_study_of_this_kind(bench):
    """Unfinished, live and foreign studies are passed over; without any there is a cold start, which is said."""
    nothing = transfer.plan(bench.runs, "latest", today(bench))
    assert nothing == Transfer("latest")
    assert "so a cold start" in next(words.warm_start(transfer.summary(nothing)))
    bench.go()
    dataclasses.replace(bench, name="begun").ledger()
    assert transfer.latest(bench.runs, today(bench)).name == "monday"
    assert transfer.latest(bench.runs, today(bench, source="live")) is None
    assert transfer.latest(bench.runs, today(bench, fingerprints={"space": "other"})) is None


def test_a_resume_goes_on_as_if_nothing_had_happened(monday):
    """Stopped after three trials, and without the study that it came from: the same points, told once."""
    whole = dataclasses.replace(next_night(monday, trials=10), name="whole")
    whole.go()
    parts = dataclasses.replace(next_night(monday, trials=3), name="parts")
    parts.go()
    (monday.runs / "monday" / "study.json").unlink()
    for more in (8, 10):
        search = dataclasses.replace(parts.objective.search, budget=Budget(trials=more))
        parts.objective = dataclasses.replace(parts.objective, search=search)
        parts.go()
    points = [[entry.configuration.key for entry in each.ledger().trials()] for each in (whole, parts)]
    assert points[0] == points[1]
    assert len(told(parts)) == 12


def test_a_transfer_is_read_as_it_was_written(monday):
    """Nothing is lost on the way through the study's file; a damaged one is refused, not read as a cold start."""
    second = next_night(monday)
    ledger = second.ledger()
    assert transfer.read(ledger) == second.transfer
    (ledger.path / transfer.FILE).write_text(json.dumps({"wanted": "monday"}))
    with pytest.raises(StudyFailed, match="is damaged"):
        transfer.read(Ledger.open(ledger.path))


def test_the_report_says_what_came_from_where(bench):
    """One sentence a study, with what was dropped and why nothing was told."""
    found = {
        "wanted": "a",
        "sources": [{"study": "a", "proposed": 6, "told": 0, "outside": 2, "differs": ["workload"]}],
    }
    (said,) = words.warm_start(found)
    assert said == (
        "From study a: 6 points proposed first, 0 outcomes told to the sampler, "
        "2 points outside of this space dropped; not comparable in workload."
    )


def test_a_study_goes_on_with_the_start_that_it_was_begun_with(monday):
    """The same word, the study it stood for, or none at all; anything else is refused with the remedy."""
    ledger = next_night(monday).ledger()
    for same in (None, "monday", "runs/monday"):
        transfer.same(ledger, same)
    with pytest.raises(StudyChanged, match="tuesday was begun with --warm-start monday; leave the option out"):
        transfer.same(ledger, "latest")
    with pytest.raises(StudyChanged, match="monday was begun without --warm-start"):
        transfer.same(Ledger.open(monday.runs / "monday"), "monday")
