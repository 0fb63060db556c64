"""Does a lever pay? Studies whose truth is known, and what is said of them."""

import dataclasses
import re

import pytest
from support.bench import Bench
from support.scripted import ScriptedLauncher

from tuner.budget import Spent, fits
from tuner.configuration import Configuration
from tuner.decision_table import table
from tuner.errors import ConfigurationFailed
from tuner.levers import representatives, split
from tuner.report.levers import answers, levers, not_tried
from tuner.slo import Budget, Load
from tuner.space import Condition, Knob, Space
from tuner.verification import sessions_seconds

#: 2 × 2 × 2 points on one GPU (aggregated) or two (disaggregated).
SPACE = Space(
    name="levers",
    knobs=(
        Knob("mode", "categorical", options=("aggregated", "disaggregated")),
        Knob("kv_store", "categorical", options=("none", "mooncake")),
        Knob("kv_store_ram_gib", "categorical", options=(8,), when=(Condition("kv_store", ("mooncake",)),)),
        Knob("max_num_batched_tokens", "categorical", options=(512, 2048)),
    ),
)


def carried(configuration: Configuration) -> float:
    """4 req/s; 2048 tokens carry 6; prefill and decode on two GPUs carry a quarter more; a store adds half."""
    load = 6.0 if configuration.knobs.get("max_num_batched_tokens") == 2048 else 4.0
    load *= 1.25 if configuration.mode == "disaggregated" else 1.0
    return load * (1.5 if configuration.kv_store == "mooncake" else 1.0)


def study(runs, objective, capacity, **search) -> Bench:
    cluster = dataclasses.replace(objective.cluster, max_gpus=2)
    wanted = dataclasses.replace(objective.search, **{"budget": Budget(trials=9), **search})
    made = dataclasses.replace(objective, cluster=cluster, search=wanted, baseline={"replicas": 1})
    return Bench(runs, made, ScriptedLauncher(capacity), space=SPACE)


@pytest.fixture
def bench(tmp_path, objective):
    return study(tmp_path / "runs", objective, carried)


def row(result, lever, value):
    entry = next(each for each in result["levers"] if each["lever"] == lever)
    return next(each for each in entry["values"] if each["value"] == value)


def said(result, title):
    return next(answer.said for answer in answers(result) if answer.title == title)


def test_each_lever_is_answered_with_a_bound_that_holds(bench):
    """A split costs 60 % more than one GPU (2 / 1.25), a store saves a third: said, with bounds within the truth."""
    result = bench.go()
    mode, store = row(result, "mode", "disaggregated"), row(result, "kv_store", "mooncake")
    assert mode["verdict"] == "dearer"
    assert 0.02 < mode["at_least"] < 0.6
    assert mode["change"]["cost_per_hour"] == 1.0
    assert mode["change"]["goodput_rps"] == pytest.approx(0.25, abs=0.1)
    assert store["verdict"] == "cheaper"
    assert 0.02 < store["at_least"] < 1 / 3
    assert store["interval"][0] < -1 / 3 < store["interval"][1]
    assert {mode["with"]["verified"], mode["without"]["verified"], store["without"]["verified"]} == {True}


def test_the_same_in_words(bench):
    """One sentence for each question, with both trials, the change and how sure it is; what was not tried says so."""
    result = bench.go()
    shown = said(result, "Disaggregation")
    assert re.match(
        r"Disaggregation does not pay: 0\.1\d+ \(trial \d\) against 0\.1\d+ USD per 1,000 good requests", shown
    )
    assert "higher, at least" in said(result, "Disaggregation")
    assert "at 96.5 % confidence (5 sessions)" in said(result, "Disaggregation")
    assert said(result, "KV store").startswith("KV store: mooncake pays: 0.1")
    assert said(result, "GPUs").startswith("GPUs: 1 is best: ")
    assert said(result, "Split, prefill : decode") == "Split, prefill : decode: not tried (only 1:1)."
    assert said(result, "Sequences at once") == "Sequences at once: not tried (only default)."
    assert "max_num_seqs: only default" in not_tried(result)
    mode = next(answer for answer in answers(result) if answer.title == "Disaggregation")
    assert dict(mode.changes)["cost per hour"] == "+100 %"
    assert [side.who for side in mode.sides] == ["with disaggregated", "with aggregated"]
    assert mode.sides[0].distinct == "mode=disaggregated"


def test_a_proven_winner_is_no_difference_nowhere(bench):
    """The winner's own value against the baseline's: what the verdict has shown, the lever does not take back."""
    result = bench.go()
    assert result["status"] == "winner"
    named = result["winner"]["configuration"]
    shown = {(each.knob, each.value): each.difference for each in levers(result)}
    assert named["kv_store"] == "mooncake"
    assert shown["kv_store", "mooncake"].endswith("% lower")
    assert shown["mode", "aggregated"].endswith("% lower")


def test_the_best_of_each_class_is_measured_to_capacity(bench):
    """Nothing that could be the best with its mode or its store is cut short for costing more than the best of all."""
    bench.go()
    outcomes = [entry.outcome for entry in bench.ledger().trials()]
    for wanted in ("aggregated", "disaggregated"):
        of_mode = [outcome for outcome in outcomes if outcome.configuration.mode == wanted]
        best = max(of_mode, key=lambda outcome: carried(outcome.configuration))
        assert best.measured_to_capacity
    assert any(outcome.state == "pruned" for outcome in outcomes)


def test_how_much_is_not_said_where_the_other_side_was_cut_short(bench):
    """512 tokens were pruned for costing more: 2048 is best, by how much is not known."""
    result = bench.go()
    small, large = row(result, "max_num_batched_tokens", "512"), row(result, "max_num_batched_tokens", "2048")
    assert small["verdict"] == "not_to_capacity"
    assert small["bound"] > 0
    assert (large["verdict"], large["at_least"]) == ("cheaper", None)
    assert large["bound_without"] == small["bound"]
    assert "without it that was cut short may cost as little as" in said(result, "Token budget of a step")
    small_row = next(each for each in levers(result) if (each.knob, each.value) == ("max_num_batched_tokens", "512"))
    assert small_row.cost.startswith("≥ ")
    assert small_row.cost.endswith(", not measured to capacity")


def test_equal_deployments_make_no_difference(tmp_path, objective):
    """A store that costs nothing and does nothing: no difference beyond noise, in both directions."""
    same = study(tmp_path, objective, lambda c: 8.0 if c.mode == "disaggregated" else 4.0)
    result = same.go()
    assert {row(result, "kv_store", value)["verdict"] for value in ("none", "mooncake")} == {"no_difference"}
    assert "makes no difference beyond noise" in said(result, "KV store")
    assert row(result, "mode", "disaggregated")["verdict"] == "no_difference"


def test_a_mode_that_never_works_says_why(tmp_path, objective):
    """Every split fails: the answer is the reason, and there is nothing to compare."""

    def capacity(configuration):
        if configuration.mode == "disaggregated":
            raise ConfigurationFailed("pd_not_effective", "decode computed the prompts itself")
        return carried(configuration)

    result = study(tmp_path, objective, capacity).go()
    assert row(result, "mode", "disaggregated")["verdict"] == "not_feasible"
    expected = "Disaggregation keeps the limits nowhere (configuration failed: pd_not_effective)."
    assert said(result, "Disaggregation") == expected
    assert row(result, "mode", "aggregated")["verdict"] == "alone"


def test_figures_of_the_search_alone_only_point_somewhere(bench):
    """The same outcomes without their sessions: the interval between kept and broken loads, and no proof."""
    bench.go()
    outcomes = [entry.outcome for entry in bench.ledger().trials()]
    found = row({"levers": table(bench.objective, outcomes, {})}, "mode", "disaggregated")
    assert found["verdict"] == "points_to_dearer"
    assert found["interval"][0] < 0.6 < found["interval"][1]
    assert (found["at_least"], found["confidence"]) == (None, None)


def test_the_best_of_each_class_is_verified_as_far_as_the_budget_carries_it(bench):
    """Finalists come first: what is left of the budget decides over the best with each mode and each store."""
    bench.go()
    outcomes = [entry.outcome for entry in bench.ledger().trials()]
    best = {outcome.configuration.key for outcome in representatives(bench.objective, outcomes)}
    assert len(best) == 3
    assert best <= set(bench.launcher.entered[len(outcomes) :])
    session = sessions_seconds(bench.objective, outcomes[0]) / 3600
    assert fits(Budget(gpu_hours=2 * session), Spent(unit_hours=session), Spent(unit_hours=session))
    assert not fits(Budget(gpu_hours=2 * session), Spent(unit_hours=1.1 * session), Spent(unit_hours=session))


def test_a_fixed_load_has_no_capacity_to_miss(tmp_path, objective):
    """At a given rate every configuration that carries it is compared at that rate, by what it costs per hour."""
    fixed = study(tmp_path, objective, carried)
    workload = dataclasses.replace(fixed.objective.workload, load=Load("rate", rate_rps=3.0))
    fixed.objective = dataclasses.replace(fixed.objective, workload=workload)
    result = fixed.go()
    found = row(result, "mode", "disaggregated")
    assert found["verdict"] == "points_to_dearer"
    assert found["change"]["cost_per_1k_good_requests"] == pytest.approx(1.0)
    assert "not measured to capacity" not in said(result, "Disaggregation")


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        ({"mode": "aggregated", "prefill_replicas": 2}, None),
        ({"mode": "disaggregated"}, "1:1"),
        ({"mode": "disaggregated", "prefill_replicas": 2, "decode_replicas": 2}, "1:1"),
        ({"mode": "disaggregated", "prefill_tensor_parallel_size": 2, "decode_replicas": 3}, "2:3"),
    ],
    ids=["none", "one each", "in lowest terms", "units, not engines"],
)
def test_splits_are_compared_by_their_share_of_the_gpus(knobs, expected):
    """Units of prefill to units of decode."""
    assert split(Configuration(knobs)) == expected
