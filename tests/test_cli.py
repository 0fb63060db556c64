"""The contracts of the command line: exit codes, streams, messages of one line, JSON, and what is never written."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.program import finished, started

from tuner import cli, objective_file
from tuner.ledger import Ledger
from tuner.objective import score

SHIM = Path(__file__).parent / "support" / "shim_vllm.py"
COMMANDS = {
    "init", "check", "doctor", "optimize", "nightly", "measure", "report", "history", "rescore", "export", "calibrate",
    "sync", "ui",
}  # fmt: skip
HEAVY = ("optuna", "ray", "mlflow", "pandas", "numpy", "scipy", "matplotlib")
#: A simulated study of seconds; windows of a second of virtual time.
OBJECTIVE = """\
model: meta-llama/Llama-3.1-8B-Instruct
slo:
  ttft: {p95: 500ms}
  itl: {p95: 50ms}
workload:
  source: {synthetic: {input_tokens: 200, output_tokens: 8}}
  load: find_capacity
  measure: {warmup: 0s, duration: 1s, min_requests: 40}
cluster: {gpu: H100-80GB, nodes: 1, gpus_per_node: 1}
prices: {currency: USD, gpu_hour: 3.99}
search: {space: quick, trials: 3, max_levels: 4, verify: {finalists: 1, repeats: 1, min_requests: 40}}
backend: simulated
"""
#: The scripted engine on this machine; its secret is read from a variable of another name.
LIVE = """\
model: nobody/tiny
slo: {ttft: {p95: 5s}}
workload:
  source: {synthetic: {input_tokens: 20, output_tokens: 3}}
  load: {rate: 20/s}
  measure: {warmup: 0s, duration: 1s, min_requests: 20}
cluster:
  pools: [{name: slots, cpu: slot, cores: 1, nodes: 1, per_node: 1, price: 0.05/h}]
prices: {currency: USD}
search: {space: quick, trials: 1, verify: {finalists: 1, repeats: 1, min_requests: 20}}
backend: local
engine: {command: [./engine, serve], env: {HF_TOKEN: $CANARY_SOURCE}, start_timeout: 60s}
"""


def strict(text):
    """The one JSON document that `text` is; NaN and infinities are refused."""

    def refuse(name):
        pytest.fail(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="session")
def first(tmp_path_factory):
    """A directory with a finished study `first`, made by a real process, and what that process said."""
    home = tmp_path_factory.mktemp("cli")
    (home / "slo.yaml").write_text(OBJECTIVE, encoding="utf-8")
    said = finished("optimize", "--slo", "slo.yaml", "--study", "first", "--mlflow", "off", "--json", cwd=home)
    return home, said


@pytest.fixture
def home(first, tmp_path, monkeypatch):
    """A copy of the finished study to work on, as the current directory."""
    shutil.copytree(first[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tuner(monkeypatch, capsys):
    """Runs the command line in this process: exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["tuner", *map(str, arguments)])
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with pytest.raises(SystemExit) as ended:
                cli.main()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


def one_line(error):
    """The only line of an error message, whoever it comes from."""
    assert "Traceback" not in error
    assert error.startswith("tuner: ")
    assert error.count("\n") == 1
    return error


# -- help ------------------------------------------------------------------------------------------------------------


def test_the_commands_are_those_that_were_promised():
    """No more and no less: scripts rely on the names."""
    assert {command.name or command.callback.__name__ for command in cli.app.registered_commands} == COMMANDS


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(tuner, command):
    """`--help` ends well and says what the command does and takes."""
    code, out, err = tuner(command, "--help")
    assert (code, err) == (0, "")
    assert f"tuner {command}" in out
    assert "--help" in out


def test_help_loads_nothing_heavy():
    """Neither the help of the program nor that of its longest command imports what takes seconds."""
    program = (
        "import sys\nfrom tuner import cli\n"
        "for argv in (['--help'], ['optimize', '--help']):\n"
        "    sys.argv = ['tuner', *argv]\n"
        "    try:\n        cli.main()\n    except SystemExit as end:\n        assert not end.code\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_no_command_shows_the_help(tuner):
    """`tuner` alone is a question, answered with the list of commands."""
    _, out, err = tuner()
    assert all(command in out + err for command in COMMANDS)


# -- wrong input: exit code 2 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["optimise"], ["optimize"], ["optimize", "--slo", "slo.yaml", "--trials", "0"], ["check", "slo.yaml", "--no"]],
    ids=["command", "no-slo", "range", "option"],
)
def test_wrong_usage_is_code_2(tuner, home, arguments):
    """Unknown commands and options, missing and impossible values."""
    code, out, err = tuner(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "fault",
    [
        ("p95: 500ms", "p95: 500", "slo.yaml:3:15: slo.ttft.p95", "500"),
        ("workload:", "worklaod:", "slo.yaml:5:1:", "workload"),
        ("currency: USD", "currency: USD, currency: JPY", "slo.yaml:10:", "currency"),
        ("trials: 3", "trials: .nan", "slo.yaml:11:", "trials"),
        ("slo:", "slo: [", "slo.yaml:", ""),
    ],
    ids=["unit", "key", "duplicate", "nan", "syntax"],
)
@pytest.mark.parametrize("command", [["check"], ["optimize", "--mlflow", "off", "--slo"], ["doctor", "--slo"]])
def test_a_fault_in_a_file_is_one_line_with_its_place(tuner, home, command, fault):
    """Every command that reads an objective file names file, line, column and what was meant, and leaves nothing."""
    old, new, where, hint = fault
    (home / "slo.yaml").write_text(OBJECTIVE.replace(old, new), encoding="utf-8")
    code, out, err = tuner(*command, "slo.yaml")
    assert (code, out) == (2, "")
    assert where in one_line(err)
    assert hint in err
    assert [path.name for path in (home / "runs").iterdir() if path.is_dir()] == ["first"]


@pytest.mark.parametrize(
    "command",
    [
        ["report"],
        ["sync"],
        ["rescore", "--slo", "slo.yaml"],
        ["calibrate"],
        ["optimize", "--slo", "slo.yaml", "--mlflow", "off", "--warm-start"],
    ],
)
def test_an_unknown_study_is_answered_with_the_nearest(tuner, home, command):
    """Wherever a study is named."""
    code, out, err = tuner(*command, "frist")
    assert (code, out) == (2, "")
    assert "nearest: first" in one_line(err)


def test_a_file_that_is_not_there_is_wrong_input(tuner, home):
    """One line that names it."""
    code, _, err = tuner("check", "none.yaml")
    assert code == 2
    assert "none.yaml" in one_line(err)


def test_a_budget_without_a_unit_is_wrong_input(tuner, home):
    """It is refused before anything is started."""
    code, _, err = tuner("optimize", "--slo", "slo.yaml", "--budget", "6")
    assert code == 2
    assert "6" in one_line(err)


def test_a_resume_with_another_promise_is_refused(tuner, home):
    """What differs is named, and `--study` as the remedy; the study stays as it is."""
    before = (home / "runs/first/result.json").read_bytes()
    (home / "slo.yaml").write_text(OBJECTIVE.replace("p95: 500ms", "p95: 400ms"), encoding="utf-8")
    code, out, err = tuner("optimize", "--slo", "slo.yaml", "--study", "first", "--mlflow", "off")
    assert (code, out) == (2, "")
    assert "--study" in one_line(err)
    assert "(slo.ttft.p95 0.5s → 0.4s)" in err
    assert (home / "runs/first/result.json").read_bytes() == before


def test_a_warm_start_says_what_came_from_where(tuner, home):
    """The newest study of this kind gives its points; its baseline is no point of the space, and nothing is dropped."""
    arguments = ["optimize", "--slo", "slo.yaml", "--study", "second", "--warm-start", "latest", "--mlflow", "off"]
    code, out, err = tuner(*arguments, "--json")
    (source,) = strict(out)["warm_start"]["sources"]
    assert code == 0
    assert (source["study"], source["told"], source["outside"], source["differs"]) == ("first", 2, 0, [])
    assert "From study first:" in err
    _, out, _ = tuner("report", "second")
    assert "From study first:" in out
    assert "From study first:" in (home / "runs/second/report.html").read_text(encoding="utf-8")


def test_history_without_nights_is_wrong_input(tuner, home):
    """One line that says how to begin."""
    code, out, err = tuner("history", "--json")
    assert (code, out) == (2, "")
    assert "tuner nightly" in one_line(err)


def test_measure_wants_one_of_two(tuner, home):
    """Neither an endpoint nor a configuration, or both, is wrong input."""
    assert tuner("measure", "--slo", "slo.yaml")[0] == 2
    both = ["--endpoint", "http://127.0.0.1:1", "--configuration", "c.json"]
    code, _, err = tuner("measure", "--slo", "slo.yaml", *both)
    assert code == 2
    one_line(err)


# -- 0, 3 and 4 ------------------------------------------------------------------------------------------------------


def test_a_study_prints_one_json_document_and_progress_beside_it(first):
    """Stdout is strict JSON and nothing else, equal to the file; stderr tells what is going on, in plain lines."""
    home, (code, out, err) = first
    assert code == 0
    told = strict(out)
    assert told["status"] in ("winner", "no_gain")
    assert told == strict((home / "runs/first/result.json").read_text(encoding="utf-8"))
    assert told["source"] == "simulated"
    assert "trial 0" in err
    assert "\x1b" not in err
    assert (home / "runs/first/report.html").is_file()


def test_the_figures_of_a_study_are_shown_without_json_too(tuner, home):
    """The table names the source, the best configuration and where the page lies."""
    code, out, _ = tuner("report", "first")
    assert code == 0
    assert "simulated" in out
    assert "report.html" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "slo.yaml"],
        ["report", "first"],
        ["rescore", "first", "--slo", "slo.yaml"],
        ["measure", "--slo", "slo.yaml", "--configuration", "c.json"],
        ["doctor", "--mlflow", "off"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_json_is_strict_and_alone_on_stdout(tuner, home, arguments):
    """Every command that prints a result."""
    (home / "c.json").write_text('{"max_num_batched_tokens": 2048}', encoding="utf-8")
    code, out, _ = tuner(*arguments, "--json")
    assert code == 0
    assert isinstance(strict(out), dict)


def test_a_measurement_tells_what_the_engine_counted(tuner, home):
    """The counters of the level that the figures are of: what proves a transfer or a store stands among them."""
    (home / "c.json").write_text("{}", encoding="utf-8")
    _, out, _ = tuner("measure", "--slo", "slo.yaml", "--configuration", "c.json", "--out", "counted", "--json")
    told = strict(out)
    assert {"level_seconds", "num_preemptions_total", "prefix_cache_hits_total"} <= set(told["counters"])


def test_rescoring_by_the_same_file_says_what_the_study_said(tuner, home):
    """MET-23: the stored records alone give the stored figures again; what they cannot tell is said to be unknown."""
    code, out, _ = tuner("rescore", "first", "--slo", "slo.yaml", "--json")
    assert code == 0
    told = strict(out)
    ledger = Ledger.open(home / "runs/first")
    assert [row["trial"] for row in told["trials"] if row["offered"] is not None][:1] == [0]
    for row in told["trials"]:
        levels = ledger.trial(row["trial"]).levels()
        stored = [(e.offered, e.score.n, e.score.goodput_rps, e.score.margins) for e in levels if e.kept]
        assert (row["offered"], row["n"], row["goodput_rps"], row["margins"]) in stored
    summaries = [
        entry.number
        for entry in ledger.trials()
        if all("summary" in path.read_text() for path in entry.path.glob("levels/*/level.json"))
    ]
    assert told["unjudged"] == summaries
    objective = objective_file.load(home / "slo.yaml")
    entry = ledger.trial(0)
    for level in entry.levels():
        data = entry.level_data(level.number, objective)
        again = score(data.records, objective.slo, window_start_s=data.window_start_s, window_s=data.window_s)
        assert again == level.score
    code, out, _ = tuner("rescore", "first", "--slo", "slo.yaml")
    assert ("cannot be judged again" in out) == bool(summaries)
    assert " USD per 1,000 good requests at " in out
    assert " req/s offered, " in out


def test_sync_fills_a_store_and_says_what_it_did(home):
    """A study that ran without tracking is brought in; a second time nothing is left to do."""
    code, out, err = finished("sync", "first", "--json", cwd=home)
    assert code == 0, err
    told = strict(out)
    assert told["created"] >= 2  # the study and its baseline
    assert (home / "runs/mlflow.db").is_file()
    again = strict(finished("sync", "first", "--json", cwd=home)[1])
    assert (again["created"], again["updated"], again["unchanged"] > 0) == (0, 0, True)


def test_nothing_feasible_is_code_3(tuner, home):
    """A promise that nothing keeps ends the study well, with a status of its own and the promise unchanged."""
    (home / "strict.yaml").write_text(OBJECTIVE.replace("p95: 500ms", "p95: 1ms"), encoding="utf-8")
    code, out, _ = tuner("optimize", "--slo", "strict.yaml", "--study", "strict", "--mlflow", "off", "--json")
    assert (code, strict(out)["status"]) == (3, "no_feasible")
    (home / "c.json").write_text("{}", encoding="utf-8")
    code, out, _ = tuner("measure", "--slo", "strict.yaml", "--configuration", "c.json", "--out", "strict", "--json")
    assert (code, strict(out)["kept"]) == (3, False)
    assert tuner("rescore", "first", "--slo", "strict.yaml")[0] == 3


def test_a_measurement_is_not_overwritten_in_silence(tuner, home):
    """A directory that holds one is refused with the remedy; units are called what reports call them."""
    (home / "c.json").write_text("{}", encoding="utf-8")
    asked = ("measure", "--slo", "slo.yaml", "--configuration", "c.json", "--out", "kept")
    code, out, _ = tuner(*asked)
    assert (code, "/h for 1 GPU\n" in out) == (0, True)
    before = (home / "kept/measurement.json").read_bytes()
    code, out, err = tuner(*asked)
    assert (code, out) == (2, "")
    assert "kept holds a measurement already; name another directory, or --force to replace it" in one_line(err)
    assert (home / "kept/measurement.json").read_bytes() == before
    assert tuner(*asked, "--force")[0] == 0
    assert "GPUs a trial, at most" in tuner("check", "slo.yaml")[1]


def test_a_locked_study_is_code_4(tuner, home):
    """The message names the process that works on it."""
    with Ledger.find(Path("runs"), "first").lock():
        code, out, err = tuner("optimize", "--slo", "slo.yaml", "--study", "first", "--mlflow", "off")
    assert (code, out) == (4, "")
    assert f"process {os.getpid()}" in one_line(err.splitlines(keepends=True)[-1])


def test_a_server_that_is_not_there_is_code_4(tuner, home):
    """Not reaching an endpoint is no broken promise."""
    code, out, err = tuner("measure", "--slo", "slo.yaml", "--endpoint", "http://127.0.0.1:1")
    assert (code, out) == (4, "")
    assert "Traceback" not in err


def test_a_machine_that_is_not_ready_is_code_4(tuner, home):
    """A tracking server that was named and does not answer."""
    code, out, _ = tuner("doctor", "--mlflow", "http://127.0.0.1:1", "--json")
    assert (code, strict(out)["ready"]) == (4, False)


# -- init ------------------------------------------------------------------------------------------------------------


def test_from_nothing_to_a_result(tmp_path):
    """`init`, `check` and `optimize` work one after the other in an empty directory, without any file of ours."""
    assert finished("init", cwd=tmp_path)[0] == 0
    code, out, _ = finished("check", "slo.yaml", cwd=tmp_path)
    assert (code, "trials" in out) == (0, True)
    code, out, err = finished(
        *("optimize", "--slo", "slo.yaml", "--trials", 3, "--backend", "simulated", "--mlflow", "off", "--json"),
        cwd=tmp_path,
    )
    assert code == 0, err
    told = strict(out)
    assert told["counts"]["started"] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "slo.yaml"]


def test_init_keeps_what_is_there(tuner, tmp_path, monkeypatch):
    """An existing file is replaced by `--force` only; `-` is standard output."""
    monkeypatch.chdir(tmp_path)
    Path("slo.yaml").write_text("mine\n", encoding="utf-8")
    code, _, err = tuner("init")
    assert (code, "--force" in one_line(err)) == (2, True)
    assert Path("slo.yaml").read_text(encoding="utf-8") == "mine\n"
    template = tuner("init", "-")[1]
    assert tuner("init", "--force")[0] == 0
    assert Path("slo.yaml").read_text(encoding="utf-8") == template


# -- 130 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_study_says_how_to_go_on(tuner, home, number):
    """Exit code 130, `interrupted` in the result, the command that resumes; the resumed study keeps its trials."""
    slow = OBJECTIVE.replace("duration: 1s", "duration: 30s").replace("trials: 3", "trials: 8")
    (home / "slow.yaml").write_text(slow, encoding="utf-8")
    arguments = ("optimize", "--slo", "slow.yaml", "--study", "cut", "--mlflow", "off")
    with started(*arguments, cwd=home) as process:
        until = time.monotonic() + 90
        while not any(home.glob("runs/cut/trials/0000/levels/*")) and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(number)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert "--study cut" in err.splitlines()[-1]
    assert strict((home / "runs/cut/result.json").read_text(encoding="utf-8"))["status"] == "interrupted"
    code, out, _ = tuner(*arguments, "--trials", 1, "--json")
    told = strict(out)
    assert code in (0, 3)
    assert told["status"] != "interrupted"
    assert told["counts"]["started"] == 1


# -- secrets ---------------------------------------------------------------------------------------------------------


def test_a_secret_of_the_engine_is_nowhere_in_what_is_written(tmp_path):
    """
    The engine gets it, prints it, and still no file of the study, of its report or of MLflow's store holds it.

    A variable of the tuner's own that looks like a secret does not reach the engine at all.
    """
    seen = tmp_path / "seen"
    seen.mkdir()
    engine = tmp_path / "engine"
    engine.write_text(
        f'#!/bin/sh\necho "token is $HF_TOKEN"\necho "$HF_TOKEN" > {seen}/$$\necho "$HF_HUB_TOKEN" > {seen}/other\n'
        f'exec {sys.executable} {SHIM} "$@"\n',
        encoding="utf-8",
    )
    engine.chmod(0o755)
    (tmp_path / "slo.yaml").write_text(LIVE, encoding="utf-8")
    secrets = {"CANARY_SOURCE": "canary-5f1c07", "HF_HUB_TOKEN": "canary-99aa02"}
    code, out, err = finished("optimize", "--slo", "slo.yaml", "--study", "s", "--json", cwd=tmp_path, **secrets)
    assert code in (0, 3, 4), err  # 4 where the machine is too busy for a valid level
    assert strict((tmp_path / "runs/s/study.json").read_text(encoding="utf-8"))["source"] == "live"
    assert "canary-5f1c07\n" in {path.read_text() for path in seen.iterdir()}
    assert (seen / "other").read_text() == "\n"
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert any(path.suffix == ".log" for path in files)
    assert (tmp_path / "runs/mlflow.db") in files
    assert [path for path in files if b"canary-" in path.read_bytes()] == []
    assert "canary-" not in out + err
