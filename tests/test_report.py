import dataclasses
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from support import study_fixture
from support.study_fixture import ended

from tuner.errors import InputError
from tuner.ledger import Ledger
from tuner.records import Record
from tuner.report import html, rows, summary, terminal, text, words
from tuner.report.evidence import read
from tuner.report.levers import levers, not_tried
from tuner.report.limits import limit_rows, limit_threshold, limit_value
from tuner.report.plots import Boundary, Curve, tail
from tuner.report.svg import Axis
from tuner.report.tails import share_above, survival, tails
from tuner.result import assemble
from tuner.slo import Limit

VOID = {"meta"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def winner(runs):
    return study_fixture.build(runs, name="winner")


@pytest.fixture(scope="module")
def simulated(runs):
    return study_fixture.build(runs, name="simulated", source="simulated", verified=False)


@pytest.fixture(scope="module")
def nothing_feasible(runs):
    return study_fixture.build(runs, name="nothing-feasible", status="no_feasible")


def result_of(path: Path) -> dict:
    return json.loads((path / "result.json").read_text())


def changed(path: Path, target: Path, edit) -> Path:
    """A study beside `path` that differs from it in `result.json` only; trials are shared."""
    target.mkdir()
    for name in ("study.json", "objective.yaml"):
        (target / name).write_bytes((path / name).read_bytes())
    (target / "trials").mkdir()
    found = result_of(path)
    edit(found)
    (target / "result.json").write_text(json.dumps(found, allow_nan=False))
    return target


def printed(path: Path, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    terminal.render(path, console)
    return console.file.getvalue()


class Page(HTMLParser):
    """Checks that tags nest, and gathers text, tags and attributes."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words).replace("\N{NO-BREAK SPACE}", " "))


class TestNumbers:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (0.01234, "0.0123"),
            (4.2, "4.2"),
            (1234.4, "1,234"),
            (0, "0"),
            (None, "–"),
            (-0.5, "−0.5"),
            (1e-7, "0.0000001"),
        ],
    )
    def test_three_significant_digits_in_plain_decimals(self, value, shown):
        """No exponent, thousands grouped, zero is a value and unknown is a dash."""
        assert text.number(value) == shown

    def test_500_4_beside_a_limit_of_500_is_not_500(self):
        """Three digits would say that it is kept (REP-05)."""
        assert text.beside(500.4, 500) == "500.4"
        assert text.beside(499.6, 500) == "499.6"
        assert text.beside(500.0, 500) == "500"

    @given(st.floats(1e-3, 1e5), st.floats(1e-3, 1e5))
    def test_rounding_never_crosses_a_limit(self, value, limit):
        """What is shown lies on the same side of the limit as the value."""
        shown = float(text.beside(value, limit).replace(",", ""))
        assert (shown > limit) == (value > limit)
        assert (shown == limit) == (value == limit)

    @pytest.mark.parametrize(
        ("new", "old", "words"),
        [
            (1.5, 2.0, "25 % lower"), (2.0, 1.5, "33 % higher"), (2.0, 2.0, "the same"), (1.0, 0.0, "–"),
            (None, 2.0, "–"), (0.997, 1.0, "under 1 % lower"), (0.0, 2.0, "100 % lower"),
        ],
    )  # fmt: skip
    def test_a_change_is_said_in_words(self, new, old, words):
        """2.0 to 1.5 is 25 % lower: no bare sign, no division by zero (REP-04)."""
        assert text.change(new, old) == words

    def test_money_keeps_its_cents(self):
        """15.96 an hour is not 16, and small amounts keep three digits."""
        assert text.money(15.96, "USD") == "15.96 USD"
        assert text.money(0.67, "USD") == "0.670 USD"
        assert text.money(0.01234, "USD") == "0.0123 USD"

    def test_a_broken_line_never_splits_a_number_from_its_unit(self):
        """The spaces inside `n = 12` and `30 %` do not break."""
        assert " " not in text.tight("n = 12") + text.tight("30 %")

    def test_log_axes_have_ticks_inside_their_ends(self):
        """1-2-5 steps, each within the axis."""
        assert Axis("ms", 9, 600, log=True).ticks() == pytest.approx([10, 20, 50, 100, 200, 500])


class TestCommands:
    @pytest.mark.parametrize("lines", [True, False])
    def test_a_printed_command_gives_the_trials_own_arguments(self, winner, lines):
        """A shell that reads it passes exactly argv and env of `commands.json` (REP-02)."""
        command = read(winner).commands(1)[0]
        show = [sys.executable, "-c", "import json,os,sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"]
        written = text.shell([*show, *command["argv"]], command["env"], lines=lines)
        environment = {"PATH": os.environ["PATH"], "HF_TOKEN": "hf_canary"}
        done = subprocess.run(["sh", "-c", written], capture_output=True, text=True, check=True, env=environment)
        argv, env = json.loads(done.stdout)
        assert argv == command["argv"]
        assert (env["HF_TOKEN"], env["CUDA_VISIBLE_DEVICES"]) == ("hf_canary", "0")

    @pytest.mark.parametrize(
        ("value", "setting"),
        [("***", 'KEY="$KEY"'), ("$OTHER", 'KEY="$OTHER"'), ("a b", "KEY='a b'"), ("$(x)", "KEY='$(x)'")],
    )
    def test_secrets_stand_as_names_and_other_values_are_quoted(self, value, setting):
        """A mask becomes the variable's own name; what looks like a substitution stays text."""
        assert text.shell(["x"], {"KEY": value}) == f"env {setting} x"

    def test_commands_survive_copy_and_paste_from_a_terminal(self, winner):
        """Nothing follows a backslash at the end of a line, however narrow the terminal is."""
        lines = printed(winner, width=40).splitlines()
        assert "    --max-num-batched-tokens 512 \\" in lines
        assert not [line for line in lines if re.search(r"\\\s+$", line)]


class TestHeadline:
    def test_winner_names_cost_gain_bound_load_and_n(self, winner):
        """Everything that a decision needs, in one sentence."""
        said = words.headline(result_of(winner))
        assert re.fullmatch(
            r"Winner: trial 1 at 0\.\d+ USD per 1,000 good requests, \d+ % lower than the baseline "
            r"\(95 % confidence: at least 27 % lower\), verified at 6\.64 requests/s, n = 1,280\.",
            said,
        )

    def test_simulated_comes_first(self, simulated):
        """The first word of a simulated verdict is that it is one."""
        assert words.headline(result_of(simulated)).startswith("Simulated: winner")

    def test_unverified_names_the_missing_requests(self, simulated):
        """`verified: false` says how many more requests would do."""
        assert "not verified, observed at 6.64 requests/s, n = 1,280; 412 more requests needed" in words.headline(
            result_of(simulated)
        )

    def test_no_gain_keeps_the_baseline(self, runs):
        """The candidate's figures, the bound on the wrong side, what was asked, and the advice."""
        said = words.headline(result_of(study_fixture.build(runs, name="no-gain", status="no_gain", n=120)))
        assert "No proven gain over the baseline" in said
        assert "at worst 3.1 % higher" in said
        assert said.endswith("2 % was asked for. Keep the baseline.")

    def test_no_feasible_names_limit_value_and_load(self, nothing_feasible):
        """The binding limit at the nearest point, on the right side of it."""
        said = words.headline(result_of(nothing_feasible))
        assert re.search(r"held back by TTFT p99: 3,\d+ ms against ≤ 2,000 ms at 1 requests/s", said)

    @pytest.mark.parametrize(
        ("state", "margins", "words_said"),
        [
            ("config_failed", {}, "no baseline: it ended as configuration failed (out_of_memory)"),
            ("infeasible", {"ttft_p99": 0.2}, "the baseline is infeasible (breaks TTFT p99 at the lowest load tried)"),
        ],
    )
    def test_a_baseline_without_a_cost_is_said(self, winner, state, margins, words_said):
        """Failed and infeasible baselines differ, and neither divides by zero (REP-04)."""
        found = result_of(winner)
        found["baseline"] |= {
            "state": state, "reason": "out_of_memory", "margins": margins, "cost_per_1k_good_requests": None,
        }  # fmt: skip
        assert words_said in words.headline(found)

    def test_goodput_as_the_objective_is_higher_not_lower(self, winner):
        """The direction follows what was optimised: 27.1 % less cost is 37 % more goodput."""
        found = result_of(winner) | {"objective": "goodput"}
        said = words.headline(found)
        assert "6.62 good requests/s, 42 % higher than the baseline (95 % confidence: at least 37 % higher)" in said


class TestLimits:
    def limit(self, estimate, **more):
        return {
            "name": "ttft_p99", "threshold": 0.5, "estimate": estimate, "longest": 0.9, "n": 400, "violations": 5,
            "allowed": 0.01, "observed": "broken", "decision": "undecided", "margin": 0.0008,
            "method": "clopper-pearson", **more,
        }  # fmt: skip

    def test_a_value_just_over_its_limit_shows_that_it_is(self):
        """500.4 ms against ≤ 500 ms, broken as observed (REP-05)."""
        row = limit_rows({"limits": [self.limit(0.5004)]})[0]
        assert (row.value, row.limit, row.kept) == ("500.4 ms", "≤ 500 ms", False)
        assert row.decision == "broken as observed, undecided at 95 %"
        assert row.counts == "5 of 400 requests over; 1 % allowed"

    def test_failures_that_reach_the_percentile_are_longer_than_the_longest(self):
        """An infinite value is null in the file, and `> longest` for people."""
        assert limit_value(self.limit(None)) == "> 900 ms"
        assert limit_value(self.limit(None, longest=None)) == "no finite value"

    def test_attainment_just_under_its_promise_is_not_rounded_up_to_it(self):
        """98.996 % is not 99 %."""
        short = self.limit(0.98996, name="attainment", threshold=0.99)
        assert (limit_value(short), limit_threshold(short)) == ("98.996 %", "≥ 99 %")

    def test_odd_limits_come_out_as_they_were_written(self, tmp_path):
        """1234 and 17 ms stand in the result, in the verdicts and on the page, unreplaced by any default (CFG-04)."""
        limits = (Limit("ttft", "p99", 1.234), Limit("itl", "p99", 0.017))
        asked = dataclasses.replace(
            study_fixture.OBJECTIVE, slo=dataclasses.replace(study_fixture.OBJECTIVE.slo, limits=limits)
        )
        path = study_fixture.build(tmp_path, status="no_feasible", objective=asked)
        assert [limit["threshold_s"] for limit in result_of(path)["slo"]["limits"]] == [1.234, 0.017]
        judged = Ledger.open(path).trial(0).outcome.best.score.limits
        assert [limit.threshold for limit in judged if limit.name != "attainment"] == [1.234, 0.017]
        page = html.write(read(path)).read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
        assert "≤ 1,234 ms" in page
        assert "≤ 17 ms" in page


class TestTails:
    def request(self, number, gaps, status="ok"):
        times = [number + 0.1]
        for gap in gaps:
            times.append(times[-1] + gap)
        bad = status != "ok"
        return Record(
            str(number), number, number, None if bad else times[0], None if bad else times[-1], 8, 8, len(times),
            0 if bad else len(times), "usage", () if bad else tuple((t, 1) for t in times), status, None, "measured",
        )  # fmt: skip

    def test_one_freeze_shows_in_one_view_and_not_in_the_other(self):
        """1 of 10 requests freezes once: a tenth of the requests, under 1 % of the tokens."""
        records = [self.request(n, [0.02] * 20) for n in range(9)] + [self.request(9, [0.02] * 19 + [0.6])]
        found = tails([records])
        assert share_above(found.itl, 0.3) == pytest.approx(1 / 200)
        assert share_above(found.chunk_gap_max, 0.3) == pytest.approx(0.1)

    def test_a_failed_request_is_above_every_value(self):
        """The curve ends at the share of failures, not at zero."""
        found = tails([[self.request(0, [0.02]), self.request(1, [], "http_503")]])
        assert survival(found.ttft)[-1] == (pytest.approx(100), pytest.approx(0.5))

    def test_windows_without_a_request_have_no_tails(self):
        """Nothing measured is None, not an empty curve."""
        assert tails([[]]) is None

    def test_a_curve_without_a_finite_value_is_not_drawn(self):
        """All failed: there is no axis to draw on."""
        found = tails([[self.request(0, [], "empty")]])
        assert tail("TTFT", "requests", [Curve("winner", "winner", found.ttft)], [Boundary("p99", 500, 0.01)]) is None


class TestLevers:
    def test_each_value_has_its_best_trial_and_the_difference_to_the_rest(self, winner):
        """512 tokens beside 1024, whose capacity may be as high; two replicas of twice the size, seen once."""
        found = {(row.knob, row.value): row for row in levers(result_of(winner))}
        assert found["max_num_batched_tokens", "512"].trial == 1
        assert found["max_num_batched_tokens", "512"].difference == "no difference beyond noise"
        assert found["replicas", "2"].difference.endswith("% higher (observed)")
        assert found["max_num_batched_tokens", "256"].cost.startswith("≥ ")
        assert "not measured to capacity" in found["max_num_batched_tokens", "256"].cost
        assert found["gpu_memory_utilization", "0.98"].cost == "configuration failed: out_of_memory"

    def test_levers_with_one_value_are_not_tried(self, winner):
        """PD and the store were not searched, and that is said rather than left out."""
        assert {"mode: only aggregated", "kv_store: only none"} <= set(not_tried(result_of(winner)))
        assert "Disaggregation: not tried (only aggregated)." in printed(winner)

    def test_a_result_without_a_table_is_still_shown(self, winner, tmp_path):
        """Studies that were made before have none."""
        study = changed(winner, tmp_path / "s", lambda found: found.pop("levers"))
        assert "Does each lever pay" not in printed(study)
        assert "Does each lever pay" not in Page(html.write(study).read_text()).text


class TestTerminal:
    def test_every_trial_appears_with_outcome_and_reason(self, winner):
        """Failures are as visible as successes (REP-03)."""
        shown = printed(winner)
        for words_said in ("out_of_memory: torch.OutOfMemoryError", "node_lost", "pruned", "breaks TTFT p99"):
            assert words_said in shown
        assert "8 trials: 4 feasible, 1 infeasible, 1 pruned, 1 configuration failed, 1 infrastructure failed" in shown

    def test_both_views_of_the_tail_stand_side_by_side(self, winner):
        """Pooled p99 ITL keeps its limit for both; the share of requests that freeze tells them apart."""
        shown = printed(winner)
        assert re.search(r"p99 ITL, all tokens pooled +baseline +45\.\d ms", shown)
        assert re.search(r"largest chunk gap of a request, p99 +baseline .*2\.81 % of 1,280 requests", shown)

    def test_simulated_is_said_in_every_table(self, simulated):
        """No figure of a model stands without the word."""
        titles = re.findall(
            r"^(?:Figures|Limits|What each lever|All trials|Two views).*$", printed(simulated), re.MULTILINE
        )
        assert len(titles) >= 5
        assert all("(simulated)" in title for title in titles)

    def test_markup_in_names_is_text(self, winner, tmp_path):
        """`[bold]` in a model's name is shown, not obeyed."""
        study = changed(winner, tmp_path / "s", lambda found: found.update(model="[bold]x[/nope]"))
        assert "[bold]x[/nope]" in printed(study)

    @pytest.mark.parametrize("width", [80, 100, 160])
    def test_a_trial_takes_few_lines_at_any_width(self, winner, width):
        """One line of figures, the knobs that differ wrapped below it, and the cause cut to one line."""
        shown = printed(winner, width)
        table = shown[shown.index("All trials") :].splitlines()
        assert max(map(len, table)) <= width
        trials = [place for place, line in enumerate(table) if re.match(r"\d+ +[a-z]", line)]
        assert len(trials) == 8
        lengths = [after - place for place, after in itertools.pairwise([*trials, len(table)])]
        assert max(lengths) <= 5
        assert all(line.startswith("       ") for place in trials for line in table[place + 1 : place + 2])
        assert len([line for line in table if line.strip().startswith("out_of_memory: torch.OutOfMemory")]) == 1

    def test_what_all_trials_share_is_said_once(self, winner):
        """A knob with one value everywhere distinguishes nothing."""
        evidence = read(winner)
        same = rows.shared(evidence.outcomes)
        table = printed(winner).partition("All trials")[2]
        assert all(table.count(f"{name}=") == 1 for name in same)
        assert rows.shared(evidence.outcomes[:1]) == {}

    def test_names_of_levers_are_not_broken_at_80_columns(self, winner):
        """A knob's name can be searched for and copied."""
        assert re.search(r"^gpu_memory_utilization\b", printed(winner, 80), re.MULTILINE)

    def test_a_study_without_a_finished_trial_names_the_remedy(self, tmp_path):
        """It was killed before its first trial ended: resume it."""
        ledger = Ledger.create(
            tmp_path, "s", objective_yaml="", fingerprints={}, seed=1, source="live", versions={}
        )  # fmt: skip
        with pytest.raises(InputError, match=r"no result\.json yet.* `tuner optimize --study s`"):
            terminal.render(ledger.path, Console(file=io.StringIO()))

    def test_a_killed_study_is_reported_as_far_as_it_came(self, winner, tmp_path):
        """No result was written: the outcomes are those of an interrupted study, and nothing is written now either."""
        study = changed(winner, tmp_path / "s", lambda found: None)
        (study / "result.json").unlink()
        shutil.copytree(winner / "trials", study / "trials", dirs_exist_ok=True)
        (study / "objective.yaml").write_text(Path("objectives/chat.yaml").read_text())
        evidence = read(study)
        assert evidence.result["status"] == "interrupted"
        assert "8 trials: 4 feasible" in printed(study)
        assert "Interrupted. Best so far: trial" in Page(html.write(study).read_text()).text
        assert not (study / "result.json").exists()

    def test_records_are_read_once_for_page_and_terminal(self, runs):
        """The page is written from the same evidence: records that vanish afterwards are not missed."""
        study = study_fixture.build(runs, name="once", n=120, verify_n=120)
        evidence = read(study)
        html.write(evidence)
        for path in (study / "trials").glob("*/levels/*/records.jsonl.zst"):
            path.unlink()
        assert evidence.measured["winner"][1] is not None
        terminal.render(evidence, Console(file=io.StringIO()))


class TestSummary:
    def test_plain_lines_start_with_the_verdict(self, winner, nothing_feasible):
        """For logs: headline, counts, configuration, limits; what would have to give when nothing is feasible."""
        lines = summary(result_of(winner)).splitlines()
        assert lines[0].startswith("Winner: trial 1")
        assert "  TTFT p99: " in "\n".join(lines)
        assert "relaxed from 2,000 ms to" in summary(result_of(nothing_feasible))


class TestPage:
    def test_it_is_one_file_that_loads_nothing(self, winner):
        """No script, no link, no source, no address; the browser is told so too."""
        source = html.write(winner).read_text()
        page = Page(source)
        assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
        assert "url(" not in source
        assert "@import" not in source
        assert not [value for _, attrs in page.tags for value in (attrs.get("src"), attrs.get("href")) if value]
        assert "default-src 'none'" in source

    def test_it_says_everything_that_a_decision_needs(self, winner):
        """Verdict, commands, comparison, limits, curves, levers, trials, method, fingerprints."""
        said = Page(html.write(winner).read_text()).text
        for words_said in (
            "Winner: trial 1 at", "vllm serve Qwen/Qwen3-32B", 'HF_TOKEN="$HF_TOKEN"', "30 % lower", "interval 0.6",
            "cost per million good output tokens", "2.81 % of 1,280 requests", "TTFT p99", "kept, 95 % sure",
            "out_of_memory: torch.OutOfMemoryError", "nearest rank", "slo a1", "vllm 0.32.0", "tuner optimize --slo",
            "not measured to capacity", "Verification", "Does each lever pay?", "Token budget of a step: 512",
        ):  # fmt: skip
            assert words_said in said, words_said

    def test_there_are_six_charts_with_names_for_screen_readers(self, winner):
        """Three latency tails, the largest gap, attainment against load, cost against margin."""
        charts = [attrs for tag, attrs in Page(html.write(winner).read_text()).tags if tag == "svg"]
        assert len(charts) == 6
        assert all(chart["role"] == "img" and chart["aria-label"] for chart in charts)

    def test_tables_have_headed_columns_and_rows(self, winner):
        """Every header cell says what it heads."""
        heads = [attrs for tag, attrs in Page(html.write(winner).read_text()).tags if tag == "th"]
        assert heads
        assert all(attrs.get("scope") in ("row", "col") for attrs in heads)

    def test_simulated_is_said_in_title_badge_captions_and_figures(self, simulated):
        """Everywhere that a figure could be copied from."""
        source = html.write(simulated).read_text()
        page = Page(source)
        assert "<title>Simulated: " in source
        assert page.text.count("(simulated)") > 15
        assert "no process was started" in page.text

    def test_a_hostile_name_is_text(self, winner, tmp_path):
        """`<script>` in study, model, cause and knob is escaped (REP-06)."""
        evil = '<script>alert("x")</script>'

        def edit(found):
            found.update(study=evil, model=evil, warnings=[evil], engine={evil: evil})
            found["winner"]["configuration"] = {evil: evil}

        source = html.write(changed(winner, tmp_path / "s", edit)).read_text()
        assert "<script" not in source
        assert Page(source).text.count(evil) >= 5

    def test_a_model_path_of_300_characters_is_no_crash(self, winner, tmp_path):
        """It is shown in full, and may break anywhere (REP-06; its width is looked at in the browser test)."""
        path = "/models/" + "x" * 300
        study = changed(winner, tmp_path / "s", lambda found: found.update(model=path))
        assert path in Page(html.write(study).read_text()).text
        assert path in printed(study).replace("\n", "")

    def test_no_trial_at_all_is_no_crash(self, tmp_path):
        """A study that ended before its first trial still has a page and lines (REP-06)."""
        ledger = Ledger.create(
            tmp_path, "empty", objective_yaml="", fingerprints={}, seed=1, source="live", versions={}
        )  # fmt: skip
        spent = {"gpu_hours": 0.0, "wall_s": 0.0, "requests": 0.0}
        ledger.write_json(
            "result.json", assemble(study_fixture.OBJECTIVE, "empty", [], {}, None, "failed", spent, "live", {})
        )
        assert "no trial has ended yet" in Page(html.write(ledger.path).read_text()).text
        assert "0 trials" in printed(ledger.path)

    def test_only_failed_trials_are_no_crash(self, tmp_path):
        """No score, no curve, no lever: the reasons are what there is to read."""
        ledger = Ledger.create(
            tmp_path, "failed", objective_yaml="", fingerprints={}, seed=1, source="live", versions={}
        )  # fmt: skip
        failed = ended(0, "config_failed", "bad_flag", "unrecognized arguments: --nope", {"replicas": 4})
        ledger.begin(0, 1, failed.configuration)
        ledger.finish(failed)
        spent = {"gpu_hours": 0.0, "wall_s": 0.0, "requests": 0.0}
        ledger.write_json(
            "result.json",
            assemble(study_fixture.OBJECTIVE, "f", [failed], {}, None, "no_feasible", spent, "live", {}),
        )
        assert "unrecognized arguments: --nope" in Page(html.write(ledger.path).read_text()).text
        assert "No configuration was measured" in printed(ledger.path)

    def test_what_would_have_to_give_is_on_the_page(self, nothing_feasible):
        """Nearest point and the price of relaxing."""
        said = Page(html.write(nothing_feasible).read_text()).text
        assert "What would have to give" in said
        assert "attainment relaxed from 95 % to 85 %" in said

    def test_damaged_records_cost_the_curves_and_nothing_else(self, runs):
        """The page is written without them."""
        study = study_fixture.build(runs, name="damaged", n=120, verify_n=120)
        for path in (study / "trials").glob("*/levels/*/records.jsonl.zst"):
            path.write_bytes(b"torn")
        page = Page(html.write(study).read_text())
        assert len([tag for tag, _ in page.tags if tag == "svg"]) == 2
        assert "All trials" in page.text

    def test_a_second_report_replaces_the_first(self, winner):
        """Writing is repeatable and leaves one file."""
        first = html.write(winner).read_text()
        assert html.write(winner).read_text() == first
        assert [path.name for path in winner.glob("*.html*")] == ["report.html"]
