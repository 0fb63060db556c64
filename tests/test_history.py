"""The incumbent over the nights: what is shown, what is marked, and which nights are meant."""

import json
from dataclasses import replace

import pytest
from support import nights_fixture
from support.nights_fixture import CHANGED, FAILED, PROMOTED, REGRESSED

from tuner import lock, nightfile
from tuner.errors import InputError
from tuner.report import history, historypage


@pytest.fixture
def runs(tmp_path):
    """A directory with a fortnight of nights."""
    nights_fixture.fortnight(tmp_path)
    return tmp_path


@pytest.fixture
def found(runs):
    return history.read(runs, None)


def labels(found) -> dict[int, list[str]]:
    return {row.night.number: [mark.label for mark in row.marks] for row in found.rows if row.marks}


def test_what_happened_is_marked_on_its_night_and_nowhere_else(found):
    """An upgrade with its regression, new traffic, a promotion and a failure; ten nights are quiet."""
    assert labels(found) == {
        REGRESSED: ["engine", "regression"],
        CHANGED: ["workload"],
        PROMOTED: ["promoted"],
        FAILED: ["failed"],
    }


def test_a_version_that_a_failed_night_does_not_know_is_compared_with_the_last_known_one(runs):
    """An upgrade during a night that failed before it saw the engine is marked on the next night."""
    folder = nightfile.directory(runs, nights_fixture.NAME)
    *_, failed, last = nightfile.nights(folder)
    nightfile.write_night(folder, replace(failed, versions={}))
    nightfile.write_night(folder, replace(last, versions={"engine": "0.33.0"}))
    (mark,) = history.read(runs, None).rows[-1].marks
    assert mark.words == "engine: 0.32.0 → 0.33.0"


def test_figures_go_on_only_while_they_can_be_compared(found):
    """A line breaks at the first night, at the new workload and at the new incumbent, not at the failed night."""
    fresh = [row.night.number for row in found.rows if row.fresh]
    assert fresh == [1, CHANGED, PROMOTED + 1]


def test_the_text_has_a_line_a_night_and_says_what_is_deployed(found):
    """With interval and both tails, of the statistic that has a limit; below it what happened."""
    lines = history.as_text(found).splitlines()
    assert lines[0] == "Simulated: 14 nights of chat, 2026-11-01 to 2026-11-14; the last one: kept."
    assert "since night 11" in lines[1]
    assert "max_num_batched_tokens=2048" in lines[1]
    assert lines[3].split()[-4:] == ["TTFT", "p99", "ITL", "p99"]
    first = next(line for line in lines if line.split()[:1] == ["1"])
    assert first.split()[1:4] == ["2026-11-01", "kept", "new"]
    assert first.endswith("433 ms  38.3 ms")
    assert any("15.1% dearer" in line and "likely: engine: 0.31.0 → 0.32.0" in line for line in lines)


def test_json_is_strict_and_holds_every_night(found):
    """Nothing that is not finite; each night with its figures, its comparison and its marks."""
    told = json.loads(json.dumps(history.as_json(found), allow_nan=False))
    assert [night["night"] for night in told["nights"]] == list(range(1, 15))
    assert told["nights"][REGRESSED - 1]["comparison"]["verdict"] == "regression"
    assert told["nights"][PROMOTED - 1]["marks"][0]["kind"] == "promoted"
    assert told["incumbent"]["since_night"] == PROMOTED


def test_the_page_shows_four_plots_with_limits_marks_and_breaks(found):
    """Cost, goodput and both tails; the cost's line is drawn in three runs beside the defaults'."""
    page = historypage.page(found)
    assert page.count("<svg") == 4
    assert page.count("limit 500 ms") == 1
    assert page.count("limit 50 ms") == 1
    cost = page[page.index("<svg") : page.index("</svg>")]
    assert cost.count('class="line winner"') == 3
    assert cost.count('class="line baseline"') == 1
    assert cost.count('class="line winner whisker"') == 13
    assert "engine, regression" in cost
    assert "<script" not in page


def test_the_page_escapes_what_comes_from_files(runs):
    """A reason with markup stays text."""
    folder = nightfile.directory(runs, nights_fixture.NAME)
    failed = nightfile.nights(folder)[FAILED - 1]
    nightfile.write_night(folder, replace(failed, reason="<b>node</b>"))
    assert "<b>node</b>" not in historypage.page(history.read(runs, None))


def test_a_night_that_was_killed_is_shown_as_interrupted(runs):
    """Nobody works on it any more: `running` would be wrong for ever."""
    folder = nightfile.directory(runs, nights_fixture.NAME)
    last = nightfile.nights(folder)[-1]
    nightfile.write_night(folder, replace(last, status="running", ended=None))
    assert history.read(runs, None).nights[-1].status == "interrupted"
    with lock.Lock(folder, nightfile.LOCK):
        assert history.read(runs, None).nights[-1].status == "running"


def test_damaged_nights_and_a_lost_incumbent_are_told(runs):
    """A gap in the table has its reason in the first line, and nobody is told that nothing was ever deployed."""
    folder = nightfile.directory(runs, nights_fixture.NAME)
    (nightfile.night_directory(folder, 3) / nightfile.NIGHT).write_text("{")
    (folder / nightfile.INCUMBENT).unlink(missing_ok=True)
    shown = history.as_text(history.read(runs, None))
    assert "Damaged and left out: night 3." in shown
    assert "What is deployed is not known" in shown


def test_nights_without_figures_are_shown_without_plots(tmp_path):
    """The very first night failed: there is a table and a reason, nothing to draw."""
    folder = nights_fixture.fortnight(tmp_path)
    failed = nightfile.nights(folder)[FAILED - 1]
    lonely = nightfile.directory(tmp_path, "lonely")
    nightfile.write_night(lonely, replace(failed, number=1, objective="lonely"))
    found = history.read(tmp_path, "lonely")
    assert "No incumbent yet" in history.as_text(found)
    assert "<svg" not in historypage.page(found)
    assert "node lost" in historypage.page(found)


def test_the_objective_is_named_by_file_or_name_and_asked_for_where_there_are_several(runs):
    """One: no need to say; several: name one; none: how to begin."""
    assert history.read(runs, "chat").name == history.read(runs, "some/where/chat.yaml").name == "chat"
    nightfile.write_night(nightfile.directory(runs, "code"), nightfile.nights(nightfile.directory(runs, "chat"))[0])
    with pytest.raises(InputError, match="there are nights of chat, code; name one of them"):
        history.read(runs, None)
    with pytest.raises(InputError, match=r"got batch\.yaml: there are no nights of it; there are nights of chat, code"):
        history.read(runs, "batch.yaml")
    with pytest.raises(InputError, match="there are no nights yet; start with `tuner nightly"):
        history.read(runs / "empty", None)
