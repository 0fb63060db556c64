"""What Optuna is told of each outcome, and that proposals are neither replayed nor lost."""

import math

import pytest
from support.bench import SPACE

from tuner.configuration import Configuration
from tuner.outcome import Outcome
from tuner.samplers import Proposals, Told, derived_seed, told

LIMITS = ("ttft_p99", "itl_p99")


def outcome(state, margins=None, reason=""):
    return Outcome(
        trial=1,
        attempt=1,
        state=state,
        reason=reason,
        cause="",
        configuration=Configuration({}),
        units=1,
        cost_per_hour=3.0,
        best=None,
        capacity=None,
        broken_at=None,
        measured_to_capacity=False,
        levels=(),
        margins=margins or {},
        seconds=1.0,
        unit_hours=0.0,
    )


@pytest.mark.parametrize(
    ("state", "margins", "expected"),
    [
        ("feasible", {"ttft_p99": -0.2, "itl_p99": 0.0}, Told(math.log(2.0), {"ttft_p99": -0.2, "itl_p99": 0.0})),
        ("infeasible", {"ttft_p99": 9.0, "itl_p99": -0.1}, Told(1.2, {"ttft_p99": 1.5, "itl_p99": -0.1})),
        ("infeasible", {"itl_p99": -0.1}, Told(1.2, {"ttft_p99": 1.5, "itl_p99": -0.1})),
        ("pruned", {"ttft_p99": 0.3, "itl_p99": -0.1}, Told(0.0, {"ttft_p99": 0.3, "itl_p99": -0.1}, pruned=True)),
        ("config_failed", {}, Told(1.2, {"ttft_p99": 1.5, "itl_p99": 1.5})),
        ("rejected", {}, Told(1.2, {"ttft_p99": 1.5, "itl_p99": 1.5})),
        ("infra_failed", {}, Told(None, {})),
    ],
    ids=[
        "feasible",
        "clipped",
        "missing margin is broken",
        "pruned",
        "failed",
        "rejected",
        "infrastructure says nothing",
    ],
)
def test_each_outcome_is_told_as_the_rules_say(state, margins, expected):
    """The table of the rules, row by row: worst seen log cost 1.2, optimistic bound 1."""
    value = 2.0 if state == "feasible" else None
    assert told(outcome(state, margins), value=value, bound=1.0, limits=LIMITS, worst=1.2) == expected


def test_a_limit_exactly_met_is_feasible():
    """OPT-01: a margin of zero is kept."""
    assert told(outcome("feasible", {"a": 0.0}), value=1.0, bound=None, limits=("a",), worst=None).constraints == {
        "a": 0.0
    }


def open_(path, seed=3):
    return Proposals(SPACE, storage=path / "optuna.db", name="s", kind="tpe", seed=seed, startup=2)


def test_resumed_study_does_not_replay_its_seed(tmp_path):
    """OPT-08: three proposals, a new process, three more: as if there had been no break."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    def run(proposals, count):
        found = []
        for _ in range(count):
            proposal = proposals.ask()
            proposals.tell(proposal.number, Told(float(len(proposal.knobs)), {"x": -0.1}))
            found.append(dict(proposal.knobs))
        return found

    whole = run(open_(tmp_path / "a"), 6)
    broken = run(open_(tmp_path / "b"), 3) + run(open_(tmp_path / "b"), 3)
    assert broken == whole


def test_every_told_trial_carries_all_constraints(tmp_path):
    """OPT-02: no COMPLETE trial without constraints, so none can count as feasible by accident."""
    proposals = open_(tmp_path)
    first, second = proposals.ask(), proposals.ask()
    proposals.tell(first.number, Told(1.0, {"a": -1.0, "b": 0.5}))
    proposals.tell(second.number, Told(None, {}))
    proposals.tell(first.number, Told(5.0, {"a": 1.0, "b": 1.0}))
    complete = [t for t in proposals._study.get_trials() if t.state.name == "COMPLETE"]
    assert [(t.value, t.constraints) for t in complete] == [(1.0, {"a": -1.0, "b": 0.5})]


def test_abandoned_proposals_are_closed_and_begun_ones_kept(tmp_path):
    """RES-01: after a crash nothing stays RUNNING but what is measured again."""
    proposals = open_(tmp_path)
    told_already, begun, finished, abandoned = (proposals.ask() for _ in range(4))
    proposals.tell(told_already.number, Told(1.0, {"a": 0.0}))
    proposals.begin(begun, 7)
    proposals.begin(finished, 8)
    again = open_(tmp_path)
    still_open = again.reconcile({8: Told(2.0, {"a": 0.1})}, [7])
    states = [t.state.name for t in again._study.get_trials()]
    assert states == ["COMPLETE", "RUNNING", "COMPLETE", "FAIL"]
    assert still_open[7].number == begun.number
    assert still_open[7].knobs == begun.knobs
    assert abandoned.number not in {each.number for each in still_open.values()}


def test_seeds_of_different_purposes_differ():
    """A seed per purpose, the same every time."""
    assert derived_seed(1, 2) == derived_seed(1, 2)
    assert len({derived_seed(s, n) for s in range(20) for n in range(20)}) == 400
