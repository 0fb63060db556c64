import dataclasses
import json
import math

import pytest
from support import study_fixture
from support.study_fixture import OBJECTIVE, ended, searched

from tuner.outcome import Outcome
from tuner.result import Gain, Rung, Verified, assemble, counts, standings
from tuner.slo import Arrivals, Prompts

WINNER_KEYS = {
    "trial", "configuration", "gpus", "cost_per_hour", "cost_per_1k_good_requests", "cost_per_1m_good_output_tokens",
    "goodput_rps", "attainment", "offered_rps", "capacity_rps", "metrics", "n", "margins", "verified",
    "missing_requests", "interval",
}  # fmt: skip
SPENT = {"gpu_hours": 1.5, "wall_s": 60.0, "requests": 10.0}


def feasible(trial: int, capacity: float = 6.0, freezes: float = 0.01, **more: object) -> Outcome:
    outcome, _ = searched(OBJECTIVE, trial, capacity, freezes, {"replicas": 4, "max_num_seqs": 64 + trial}, 120)
    return dataclasses.replace(outcome, **more)  # type: ignore[arg-type]


def infeasible(trial: int) -> Outcome:
    return searched(OBJECTIVE, trial, None, 0.12, {"replicas": 1}, 120)[0]


def verified(outcome: Outcome, cost: float, *, kept: bool = True, passed: bool = True) -> Verified:
    assert outcome.best is not None
    level = dataclasses.replace(outcome.best, purpose="verify", kept=kept, number=7)
    rung = Rung(5.0, (level, level), passed, level.score)
    missing = 0 if passed else 300
    return Verified(
        outcome.trial, outcome.configuration, passed, (rung,), 5.0, 4.9, cost, 9.0, (None, cost * 1.1), missing, 2
    )


def assembled(outcomes, verified_by=None, status="winner", gain=None, **more):
    return assemble(
        OBJECTIVE, "s", outcomes, verified_by or {}, gain, status, SPENT, "live", {"vllm": "0.32.0"}, **more
    )


def strict(result) -> dict:
    """Through JSON that knows neither NaN nor Infinity."""
    return json.loads(json.dumps(result, allow_nan=False))


class TestFields:
    def test_winner_and_baseline_carry_every_promised_key(self):
        """The keys of the file's contract are there for both, and the file is strict JSON."""
        outcomes = [feasible(0, 5.0), feasible(1, 8.0)]
        found = strict(assembled(outcomes, {1: verified(outcomes[1], 0.6), 0: verified(outcomes[0], 0.9)}))
        assert set(found["winner"]) >= WINNER_KEYS
        assert set(found["baseline"]) >= WINNER_KEYS
        assert (found["winner"]["trial"], found["baseline"]["trial"]) == (1, 0)
        assert found["spent"] == SPENT

    def test_figures_are_those_of_the_verified_rung_and_capacity_is_kept_apart(self):
        """Cost, goodput and load come from the verification; the search's capacity stands beside them."""
        outcomes = [feasible(0, 5.0), feasible(1, 8.0)]
        winner = assembled(outcomes, {1: verified(outcomes[1], 0.6)})["winner"]
        assert (winner["cost_per_1k_good_requests"], winner["offered_rps"], winner["goodput_rps"]) == (0.6, 5.0, 4.9)
        assert winner["capacity_rps"] == outcomes[1].capacity
        assert winner["levels"] == [7, 7]

    def test_an_interval_without_a_lower_end_keeps_its_upper_one(self):
        """No load was seen broken: the low end is unknown, and nothing is made up for it."""
        outcomes = [feasible(0), feasible(1, 8.0)]
        found = strict(assembled(outcomes, {1: verified(outcomes[1], 0.5)}))
        assert found["winner"]["interval"] == [None, pytest.approx(0.55)]

    def test_infinite_bounds_become_null(self):
        """A gain from a single pair has no bound; −infinity would not be JSON."""
        gain = Gain(0.2, -math.inf, None, 0.95, 1, proven=False)
        found = strict(assembled([feasible(0), feasible(1)], gain=gain, status="no_gain"))
        assert found["gain"]["lower"] is None
        assert found["gain"]["estimate"] == 0.2

    def test_no_trial_at_all_is_no_crash(self):
        """A study that ended before its first trial has neither winner nor baseline, and says so."""
        found = strict(assembled([], status="failed"))
        assert (found["winner"], found["baseline"], found["ranking"]) == (None, None, [])
        assert found["counts"]["started"] == 0
        assert "no baseline was measured" in found["warnings"]

    def test_a_closed_loop_names_its_concurrency_and_no_capacity_in_requests(self):
        """The load's unit is concurrent requests: `capacity_rps` would be a lie."""
        closed = dataclasses.replace(
            OBJECTIVE, workload=dataclasses.replace(OBJECTIVE.workload, arrivals=Arrivals("closed_loop"))
        )
        found = assemble(closed, "s", [feasible(0)], {}, None, "no_gain", SPENT, "live", {})
        assert found["baseline"]["concurrency"] == found["baseline"]["capacity"] == 6.0
        assert found["baseline"]["capacity_rps"] is None
        assert found["load"]["unit"] == "concurrent requests"

    def test_copies_for_a_demand_are_rounded_up(self):
        """12 requests/s at 4.9 good requests/s a copy take 3 copies."""
        outcomes = [feasible(0), feasible(1)]
        asked = dataclasses.replace(OBJECTIVE, workload=dataclasses.replace(OBJECTIVE.workload, demand_rps=12.0))
        by_trial = {1: verified(outcomes[1], 0.5)}
        found = assemble(asked, "s", outcomes, by_trial, None, "winner", SPENT, "live", {})
        assert found["winner"]["copies"] == 3


class TestRanking:
    def test_feasible_before_infeasible_and_cheapest_first(self):
        """Whatever it costs, a broken limit ranks behind a kept one."""
        order = [
            each.outcome.trial for each in standings(OBJECTIVE, [infeasible(0), feasible(1, 5), feasible(2, 8)], {})
        ]
        assert order == [2, 1, 0]

    def test_a_finalist_that_no_load_of_the_ladder_kept_ranks_last_among_the_feasible(self):
        """It looked cheapest in the search, and fell through when it was measured again."""
        outcomes = [feasible(1, 5), feasible(2, 8)]
        refuted = {2: verified(outcomes[1], 0.1, kept=False, passed=False)}
        assert [each.outcome.trial for each in standings(OBJECTIVE, outcomes, refuted)] == [1, 2]

    def test_the_named_winner_stands_first_though_an_unverified_trial_observed_less(self):
        """Observed costs flatter; the winner is verified."""
        outcomes = [feasible(0, 4), feasible(1, 6), feasible(2, 8)]
        found = assembled(outcomes, {1: verified(outcomes[1], 5.0)}, winner=1)
        assert found["ranking"][0]["trial"] == 1

    def test_without_a_winner_the_best_is_a_candidate(self):
        """`no_gain` promotes nobody, and shows what came nearest; the baseline is not its own candidate."""
        found = assembled([feasible(0, 8), feasible(1, 6)], status="no_gain")
        assert found["winner"] is None
        assert found["candidate"]["trial"] == 1

    def test_pruned_and_failed_trials_are_not_ranked(self):
        """Only what was scored can stand in the ranking."""
        failed = ended(1, "config_failed", "out_of_memory", "OOM", {"replicas": 4})
        assert [row["trial"] for row in assembled([feasible(0), failed])["ranking"]] == [0]


class TestCounts:
    def test_the_outcomes_add_up_to_the_trials_started(self):
        """Every state is listed, and a retried trial counts once (REP-03)."""
        lost = ended(2, "infra_failed", "node_lost", "gone", {})
        again = dataclasses.replace(feasible(2), attempt=2)
        found = counts([feasible(0), infeasible(1), lost, again])
        states = ("feasible", "infeasible", "pruned", "rejected", "config_failed", "infra_failed")
        assert sum(found[state] for state in states) == found["started"] == 3
        assert (found["feasible"], found["infra_failed"], found["infra_failed_attempts"]) == (2, 0, 1)


class TestWarnings:
    def test_an_unverified_winner_names_what_is_missing(self):
        """`verified: false` comes with the number of requests that it would have taken."""
        outcomes = [feasible(0), feasible(1)]
        found = assembled(outcomes, {1: verified(outcomes[1], 0.5, passed=False)})
        assert found["winner"]["verified"] is False
        assert found["winner"]["missing_requests"] == 300
        assert any("300 more requests" in warning for warning in found["warnings"])

    def test_a_failed_baseline_is_said(self):
        """No cost to compare with is a warning, never a division by zero (REP-04)."""
        failed = ended(0, "config_failed", "out_of_memory", "OOM", {"replicas": 4})
        assert any("no baseline cost" in warning for warning in assembled([failed, feasible(1)])["warnings"])

    def test_simulated_is_said(self):
        """A model's figures are never taken for measured ones."""
        found = assemble(OBJECTIVE, "s", [feasible(0)], {}, None, "no_gain", SPENT, "simulated", {})
        assert found["source"] == "simulated"
        assert found["warnings"][0].startswith("simulated")

    @pytest.mark.parametrize(
        ("ratio", "value", "said"),
        [
            ("delivered_input_ratio", 2.0, "trial 1: not comparable: prompts had 200% of the tokens"),
            ("delivered_output_ratio", 0.9, "trial 1: not comparable: answers had 90% of the tokens"),
            ("delivered_input_ratio", 1.05, None),
            ("delivered_output_ratio", 0.95, None),
            ("delivered_output_ratio", None, None),
        ],
    )
    def test_other_lengths_than_asked_make_a_trial_incomparable(self, ratio, value, said):
        """More than 5 % off is said with the trial's number, and the ratio stands in the file (CFG-10, MET-12)."""
        plain, odd = feasible(0), feasible(1)
        level = dataclasses.replace(odd.best, score=dataclasses.replace(odd.best.score, **{ratio: value}))
        found = strict(assembled([plain, dataclasses.replace(odd, best=level)], status="no_gain"))
        assert found["candidate"][ratio] == value
        warnings = [warning for warning in found["warnings"] if "not comparable" in warning]
        assert [warning.startswith(said) for warning in warnings] == ([] if said is None else [True])

    def test_answers_of_own_prompts_end_where_the_model_ends_them(self):
        """A file of prompts asks for at most so many tokens: fewer are no fault (MET-12)."""
        odd = feasible(0)
        level = dataclasses.replace(odd.best, score=dataclasses.replace(odd.best.score, delivered_output_ratio=0.3))
        source = Prompts("prompts.jsonl", 24)
        asked = dataclasses.replace(OBJECTIVE, workload=dataclasses.replace(OBJECTIVE.workload, source=source))
        outcomes = [dataclasses.replace(odd, best=level)]
        found = assemble(asked, "s", outcomes, {}, None, "no_gain", SPENT, "live", {})
        assert not any("not comparable" in warning for warning in found["warnings"])


class TestNothingFeasible:
    def test_nearest_point_binding_limit_and_price_of_relaxing(self):
        """The limit that is broken by most binds; relaxing all broken ones has a price."""
        found = strict(assembled([infeasible(0)], status="no_feasible"))["no_feasible"]
        assert found["nearest"]["trial"] == 0
        assert found["binding"] == max(found["broken"], key=found["broken"].get)
        assert found["together"]["cost_per_1k_good_requests"] > 0

    def test_a_level_that_breaks_one_limit_only_prices_that_limit(self):
        """Relaxing it to what was measured there allows exactly that level."""
        records = study_fixture.make_records(1.1, 1.0, 0.0, 200, 5)
        level, _ = study_fixture.make_level(OBJECTIVE, 1, "search", 1.1, records)
        assert [limit.name for limit in level.score.limits if limit.observed == "broken"] == ["ttft_p99"]
        outcome = dataclasses.replace(infeasible(0), levels=(level,), best=level, margins=level.score.margins)
        relax = {each["limit"]: each for each in assembled([outcome], status="no_feasible")["no_feasible"]["relax"]}
        assert relax["ttft_p99"]["needed"] > 2.0
        assert relax["ttft_p99"]["cost_per_1k_good_requests"] == pytest.approx(
            3.99 / (level.score.goodput_rps * 3600) * 1000
        )
        assert relax["itl_p99"]["needed"] is None

    def test_without_any_scored_trial_there_is_no_nearest_point(self):
        """Everything failed: nothing is near."""
        failed = ended(0, "config_failed", "out_of_memory", "OOM", {})
        assert assembled([failed], status="no_feasible")["no_feasible"] is None
