"""Lines that a person sees while a study runs."""

import io

import pytest
from rich.console import Console
from support.study_fixture import ended

from tuner.configuration import Configuration
from tuner.events import BudgetChanged, Note, TrialEnded, TrialStarted
from tuner.progress import WIDTH, Plain, describe, knobs, listener

BASELINE = Configuration({"replicas": 4, "tensor_parallel_size": 1})


def shown(*events):
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    with listener(console) as listen:
        for event in events:
            listen(event)
    return console.file.getvalue().splitlines()


def test_only_what_differs_from_the_baseline_is_shown():
    """Trial 1 has the baseline's replicas and leaves the tensor parallel size to the engine."""
    other = Configuration({"replicas": 4, "enable_prefix_caching": False, "max_num_seqs": None})
    lines = shown(TrialStarted(0, 1, BASELINE, baseline=True), TrialStarted(1, 1, other, baseline=False))
    assert lines[0].endswith("trial 0: baseline")
    assert lines[1].endswith("trial 1: enable_prefix_caching=off tensor_parallel_size=default")


def test_a_verified_baseline_is_called_so():
    """Verification begins trial 0 again without the mark of the search."""
    event = TrialStarted(0, 1, BASELINE, baseline=False, phase="verify")
    assert describe(event, BASELINE) == "verifying trial 0: baseline"


@pytest.mark.parametrize(
    ("configuration", "words"),
    [({}, "engine defaults"), ({"replicas": 2}, "replicas=2"), ({"mode": None}, "engine defaults")],
)
def test_without_a_baseline_all_that_is_set_is_shown(configuration, words):
    """A resumed study does not begin its baseline again."""
    assert knobs(Configuration(configuration)) == words


def test_a_trial_ends_with_its_figure_in_words():
    """Load and cost carry their units."""
    outcome = ended(3, "feasible", "", "", {"replicas": 4}, capacity=63.2)
    event = TrialEnded(outcome, 0.0708, best=True, figure="0.0708 USD per 1,000 good requests", unit="req/s")
    assert describe(event) == (
        "trial 3 feasible: keeps the SLO up to 63.2 req/s, 0.0708 USD per 1,000 good requests, best so far"
    )


def test_a_long_cause_is_cut_and_a_note_is_not():
    """Lines of trials fit a wide terminal; what a person must act on is whole."""
    long = "because " * 60
    ending = TrialEnded(ended(3, "config_failed", "bad_flag", long, {"replicas": 4}), None, best=False)
    cut, note = shown(ending, Note(long.strip()))
    assert len(cut) <= WIDTH
    assert cut.endswith("…")
    assert note.endswith(long.strip())


def test_a_terminal_has_a_live_line_and_a_file_has_lines():
    """The display suits where it goes."""
    assert type(listener(Console(file=io.StringIO(), force_terminal=False))) is Plain
    assert type(listener(Console(file=io.StringIO(), force_terminal=True))) is not Plain


def test_no_budget_is_no_line():
    """Nothing is said of a budget that nobody set."""
    assert describe(BudgetChanged({})) is None
