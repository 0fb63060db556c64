"""Which nights an incumbent is compared with, and what the change is put down to."""

import dataclasses

import pytest

from tuner.compared import compare, history
from tuner.nightfile import Comparison, Figures, Incumbent, Night, settle

PRINTS = {"workload": "w", "slo": "s", "cluster": "c", "engine": "e", "model": "m"}
VERSIONS = {"engine": "0.32.0", "driver": "570.1", "model_revision": None, "machine": None, "tuner": "0.1.0"}


def figures(capacity=4.0, configuration=None, state="feasible", spread=0.01):
    return Figures(
        study="s", trial=0, configuration=configuration or {"max_num_seqs": 64}, units=1, state=state, reason="",
        cost_per_hour=3.0, cost=3 / 3.6 / capacity if capacity else None, interval=None, goodput_rps=capacity,
        offered_rps=capacity, attainment=1.0, n=300, verified=True, capacity=capacity, spread=spread,
    )  # fmt: skip


def night(number, capacity=4.0, **changes):
    made = Night(
        number=number, objective="chat", study=f"chat-night-{number:04d}", status="kept", started="2026-11-29",
        seed=0, backend="local", source="live", currency="USD", fingerprints=PRINTS, versions=VERSIONS,
        incumbent=figures(capacity), baseline=figures(capacity),
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def test_first_night_is_new():
    """Nothing to compare with."""
    assert compare(night(1), [], 0.02).verdict == "new"


def test_quiet_nights_are_stable():
    """1 % more or less, night after night."""
    found = compare(night(4, 4.02), [night(1), night(2, 4.04), night(3, 3.98)], 0.02)
    assert (found.verdict, found.nights) == ("stable", 3)


def test_a_regression_names_the_engine_that_changed():
    """15 % less from tonight on, with another engine version: the likely cause is that."""
    tonight = night(4, 3.4, versions=VERSIONS | {"engine": "0.33.0"})
    found = compare(tonight, [night(1), night(2), night(3)], 0.02)
    assert (found.verdict, found.since, found.scope) == ("regression", 4, "both")
    assert found.causes == ("engine version: 0.32.0 → 0.33.0",)
    assert found.low < 0.15 / 0.85 < found.high


def test_a_configuration_alone_is_named_where_the_defaults_stay():
    """No version changed, the defaults did not move."""
    found = compare(night(4, 3.2, baseline=figures(4.0)), [night(1), night(2), night(3)], 0.02)
    assert (found.verdict, found.scope) == ("regression", "incumbent")
    assert "alone" in found.causes[0]


def test_another_workload_begins_a_new_history():
    """The fingerprint says so; the figures are not compared."""
    tonight = night(3, 2.0, fingerprints=PRINTS | {"workload": "other"})
    found = compare(tonight, [night(1), night(2)], 0.02)
    assert (found.verdict, found.nights) == ("workload_changed", 0)
    assert "workload" in found.sentence


def test_an_incumbent_that_keeps_nothing_is_a_regression():
    """It ended as infeasible: no figure, and still an alarm."""
    tonight = night(2, incumbent=figures(None, state="infeasible", spread=None))
    assert compare(tonight, [night(1)], 0.02).verdict == "regression"


def test_few_levels_make_a_change_uncertain():
    """A difference of 30 % where each night leaves 15 % open is no alarm."""
    before = [night(1, incumbent=figures(4.0, spread=0.15)), night(2, incumbent=figures(4.1, spread=0.15))]
    assert compare(night(3, incumbent=figures(3.0, spread=0.15)), before, 0.02).verdict == "stable"


@pytest.mark.parametrize(
    ("verdict", "since", "expected"), [("regression", 3, [3, 4]), ("drift", 2, [4]), ("improved", 3, [3, 4])]
)
def test_a_finding_begins_a_new_history(verdict, since, expected):
    """A step with its first night, a drift with the night that found it."""
    finding = Comparison(verdict, 0.1, 0.05, 0.15, 0.95, 3, since, 0.02)
    nights = [night(1), night(2), night(3), night(4, comparison=finding)]
    assert [number for number, _, _ in history(night(5), nights)] == expected


def test_a_promoted_challenger_begins_its_history_with_its_proof():
    """The night of its promotion is the first; what was deployed before is another history."""
    new = {"max_num_seqs": 256}
    nights = [night(1), night(2, status="promoted", challenger=figures(8.0, new))]
    assert [number for number, _, _ in history(night(3, incumbent=figures(8.0, new)), nights)] == [2]


def test_nights_without_a_figure_are_passed_over():
    """A failed night between two others is no gap in the history."""
    nights = [night(1), night(2, status="failed", incumbent=None, baseline=None)]
    assert [number for number, _, _ in history(night(3), nights)] == [1]


def test_a_killed_night_is_read_by_what_the_incumbent_says():
    """Killed before the promotion: interrupted. Killed after it: promoted."""
    running = night(2, status="running")
    mine = Incumbent({"max_num_seqs": 256}, 2, "t", "chat-night-0002", 3, figures(8.0), None, "cheaper")
    assert settle(running, dataclasses.replace(mine, since_night=1), "now").status == "interrupted"
    assert settle(running, None, "now").status == "interrupted"
    settled = settle(running, mine, "now")
    assert (settled.status, settled.challenger) == ("promoted", mine.figures)
    assert settle(night(2), mine, "now") == night(2)
