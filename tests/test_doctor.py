"""`tuner doctor` on this machine, on scripted programs, and on objective files that need what is not there."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tuner import doctor, doctor_engine, doctor_machine, doctor_objective, objective_file
from tuner.deployment import guardian
from tuner.doctor_check import Check, ask
from tuner.errors import InputError
from tuner.ledger import Ledger
from tuner.slo import Engine

ROOT = Path(__file__).parent.parent
SHIM = Path(__file__).parent / "support" / "shim_vllm.py"
OBJECTIVE = """\
model: {model}
slo: {{ttft: {{p95: 2s}}}}
workload:
  source: {source}
cluster:
  pools: [{{name: slots, cpu: slot, cores: 1, nodes: 1, per_node: {slots}, price: 0.05/h}}]
prices: {{currency: USD}}
search: {{space: quick}}
backend: {backend}
engine:
  command: [{program}, serve]
  env: {{HF_TOKEN: $DOCTOR_TEST_TOKEN}}
  flags: {flags}
"""


def program(path: Path, text: str) -> Path:
    """An executable file."""
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def shim(path: Path) -> Path:
    """A program that answers `--version` and has no interpreter that the doctor knows."""
    return program(path, f'#!/bin/sh\nexec {sys.executable} {SHIM} "$@"\n')


@pytest.fixture
def model(tmp_path):
    """A model directory without weights, as the tests of live engines use."""
    path = tmp_path / "model"
    path.mkdir()
    shapes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512}
    shapes["max_position_embeddings"] = 4096
    (path / "config.json").write_text(json.dumps(shapes), encoding="utf-8")
    (path / "tokenizer.json").write_text("{}", encoding="utf-8")
    return path


@pytest.fixture
def slo(tmp_path, model):
    """Writes an objective file; every part can be replaced."""

    def write(**parts):
        values = {
            "model": model,
            "source": "{synthetic: {input_tokens: 100, output_tokens: 10}}",
            "slots": 1,
            "backend": "local",
            "program": shim(tmp_path / "my-vllm"),
            "flags": "{load_format: dummy}",
        }
        path = tmp_path / "slo.yaml"
        path.write_text(OBJECTIVE.format(**(values | parts)), encoding="utf-8")
        return path

    return write


def named(found, name):
    """The findings of this name."""
    return [check for check in found if check.name == name]


def look(slo):
    """What is found on a live objective alone, without looking at the machine."""
    objective = objective_file.load(slo)
    return [
        *doctor_engine.engine(objective.engine, needed=True),
        *doctor_objective.needs(objective, "local", remote=False),
    ]


def wrong(found):
    """Names of what is missing."""
    return {check.name for check in found if check.status == "missing"}


def test_this_machine_is_ready_within_seconds(tmp_path):
    """
    Packages, kernel, ports and directory are fine here; the examination takes far less than a minute.

    Whatever is not `ok` says what to do, in one line.
    """
    begun = time.monotonic()
    found = doctor.examine(None, None, tmp_path / "runs")
    assert time.monotonic() - begun < 60
    assert doctor.ready(found)
    for check in found:
        assert "\n" not in check.found + check.remedy
        assert check.status == "ok" or check.remedy, check
    for name in ("python", "packages", "optuna", "ray", "mlflow", "kernel", "ports", "runs", "leftovers", "tracking"):
        assert [check.status for check in named(found, name)] == ["ok"], name
    assert not (tmp_path / "runs").exists()


def test_what_never_ran_on_a_gpu_is_called_so(tmp_path):
    """Without the result of the checks for GPU hosts the finding is `untested`, and that is no obstacle."""
    (check,) = doctor._accepted(tmp_path)
    assert check.status == "untested"
    assert check.found.startswith("untested on GPU")
    assert doctor.ready([check])


@pytest.mark.parametrize(("failed", "status"), [(0, "ok"), (2, "warning")])
def test_the_result_of_the_gpu_checks_is_shown(tmp_path, failed, status):
    """Once a GPU host has run them, their outcome stands there instead."""
    path = tmp_path / doctor.ACCEPTED
    path.parent.mkdir()
    path.write_text(json.dumps({"passed": 7, "failed": failed, "ended": "2026-11-29T18:00:00Z"}), encoding="utf-8")
    assert [check.status for check in doctor._accepted(tmp_path)] == [status]


def test_findings_are_text_and_strict_json():
    """One line each, the remedy below it; JSON carries the same and counts."""
    found = (Check("a", "ok", "fine"), Check("b", "missing", "gone", "bring it"))
    assert doctor.text(found).splitlines()[1:] == [
        "missing   b              gone",
        "                         → bring it",
        "not ready: 1 missing, 1 ok",
    ]
    told = json.loads(json.dumps(doctor.as_json(found), allow_nan=False))
    assert (told["ready"], told["counts"], told["checks"][1]["remedy"]) == (False, {"missing": 1, "ok": 1}, "bring it")


def test_a_program_that_hangs_is_given_up_and_ended(tmp_path):
    """The whole session of the program is killed: nothing of it is left."""
    pidfile = tmp_path / "pid"
    answer = ask(["/bin/sh", "-c", f"sleep 300 & echo $! > {pidfile}; wait"], 1.0)
    assert (answer.code, answer.err) == (None, "no answer within 1 s")
    until = time.monotonic() + 10
    while guardian.identify(int(pidfile.read_text())) is not None and time.monotonic() < until:
        time.sleep(0.05)
    assert guardian.identify(int(pidfile.read_text())) is None


def test_a_live_objective_that_has_everything_is_ready(tmp_path, slo, monkeypatch):
    """Model, engine, units, space and secret are there; the engine is asked for its version and not started."""
    monkeypatch.setenv("DOCTOR_TEST_TOKEN", "canary-a7")
    found = doctor.examine(slo(), "off", tmp_path / "runs")
    assert wrong(found) == set()
    assert "says shim ok serve --version" in named(found, "engine")[0].found
    assert "canary-a7" not in doctor.text(found)
    assert named(found, "secrets")[0].found == "engine.env.HF_TOKEN: $DOCTOR_TEST_TOKEN is set"


@pytest.mark.parametrize(
    ("parts", "missing"),
    [
        ({"program": "./no-such-vllm"}, "engine"),
        ({"model": "./no-such-model"}, "model"),
        ({"flags": "{}"}, "model"),
        ({"source": "{trace: ./slo.yaml, format: azure}"}, "workload"),
        ({"slots": 4096}, "units"),
    ],
    ids=["program", "directory", "weights", "trace", "units"],
)
def test_what_a_live_objective_lacks_is_missing(slo, monkeypatch, parts, missing):
    """Each lack is named with a remedy and makes the machine not ready."""
    monkeypatch.setenv("DOCTOR_TEST_TOKEN", "x")
    found = look(slo(**parts))
    assert wrong(found) == {missing}
    assert not doctor.ready(found)


def test_a_secret_that_is_not_set_is_missing(slo, monkeypatch):
    """Its name is told, and that engines would start without it."""
    monkeypatch.delenv("DOCTOR_TEST_TOKEN", raising=False)
    assert wrong(look(slo())) == {"secrets"}


def test_a_simulated_objective_needs_no_engine(tmp_path, slo):
    """Without an engine, units or secrets it is ready; what the simulator does not know is missing."""
    found = doctor.examine(ROOT / "tuner" / "data" / "template.yaml", "off", tmp_path / "runs")
    assert named(found, "simulator")[0].status == "ok"
    assert doctor.ready(found)
    unknown = objective_file.load(slo(model="nobody/knows-this"))
    assert wrong(doctor_objective.needs(unknown, "simulated", remote=False)) == {"simulator"}


def test_a_wrong_objective_is_wrong_input(tmp_path):
    """It is not a finding about the machine."""
    path = tmp_path / "slo.yaml"
    path.write_text("model: 3\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"slo\.yaml:1:"):
        doctor.examine(path, "off", tmp_path)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("#!{python}", ""),
        ("#!/usr/bin/env {name}", ""),
        ("#!/usr/bin/env -S {name} -I", ""),
        ("#!/bin/sh", '\'\'\'exec\' "{python}" "$0" "$@"'),
        ("#!/bin/sh", "'''exec' {python} \"$0\" \"$@\""),
    ],
    ids=["plain", "env", "env-s", "long", "long-unquoted"],
)
def test_the_interpreter_is_found_in_every_shebang_that_pip_writes(tmp_path, monkeypatch, first, second):
    """A path, a look-up by name, and the detour over a shell for paths that are too long."""
    python = Path(sys.executable)
    monkeypatch.setenv("PATH", f"{python.parent}:{os.environ['PATH']}")
    text = f"{first}\n{second}\n".format(python=python, name=python.name)
    found = doctor_engine.interpreter(program(tmp_path / "vllm", text))
    assert found is not None
    assert Path(found).samefile(python)


@pytest.mark.parametrize("text", ["", "\x7fELF\0\0", "#!/bin/bash\nexec vllm\n", "#!\n"])
def test_other_programs_have_no_interpreter(tmp_path, text):
    """Binaries and shell scripts are asked themselves."""
    assert doctor_engine.interpreter(program(tmp_path / "vllm", text)) is None
    assert doctor_engine.interpreter(tmp_path / "none") is None


def test_versions_come_from_the_environment_of_the_engine(tmp_path):
    """An engine of an environment without vllm is absent, whatever its name; connectors are told as absent too."""
    python = tmp_path / "python3"
    python.symlink_to(Path(sys.executable).resolve())
    vllm = program(tmp_path / "vllm", f"#!{python}\n")
    found = list(doctor_engine.engine(Engine(command=(str(vllm), "serve"), router=("no-such-router",)), needed=True))
    assert named(found, "engine")[0].status == "missing"
    assert "has no vllm" in named(found, "engine")[0].found
    assert named(found, "router")[0].status == "warning"
    assert all(named(found, name)[0].status == "warning" for name in doctor_engine.CONNECTORS)


def test_gpus_are_listed_and_use_by_others_is_a_warning(tmp_path, monkeypatch):
    """Kinds and driver of all GPUs, and which of them are busy."""
    program(
        tmp_path / "nvidia-smi",
        "#!/bin/sh\necho 'NVIDIA H100, 81559, 3, 550.54'\necho 'NVIDIA H100, 81559, 70000, 550.54'\n",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    there, busy = doctor_machine.gpus()
    assert (there.status, there.found) == ("ok", "2: NVIDIA H100 of 81559 MiB, driver 550.54")
    assert (busy.status, busy.found) == ("warning", "in use by others: GPU 1: 70000 MiB")


def test_a_driver_that_does_not_answer_is_no_gpu(tmp_path, monkeypatch):
    """What nvidia-smi says stands in the finding."""
    program(tmp_path / "nvidia-smi", "#!/bin/sh\necho 'NVIDIA-SMI has failed: no driver'\nexit 9\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (found,) = doctor_machine.gpus()
    assert (found.status, found.found) == ("warning", "none: NVIDIA-SMI has failed: no driver")


def test_a_runs_directory_that_is_a_file_is_missing(tmp_path):
    """Nothing can be written below it; the message names it."""
    file = tmp_path / "runs"
    file.write_text("", encoding="utf-8")
    (found,) = doctor_machine.runs_directory(file)
    assert (found.status, str(file) in found.found) == ("missing", True)


def test_processes_of_a_killed_study_are_named(tmp_path):
    """A registered process that lives while nobody works on its study is a warning with its pid; others are not."""
    ledger = Ledger.create(
        tmp_path, "killed", objective_yaml="model: x\n", fingerprints={}, seed=0, source="live", versions={}
    )
    (ledger.path / "processes").mkdir()
    with subprocess.Popen(["sleep", "300"]) as child:
        try:
            me = guardian.identify(child.pid)
            gone = [child.pid, 1]
            for name, processes in (("a", [me]), ("b", [gone])):
                told = {"machine": guardian.machine(), "mark": name, "guardian": gone, "processes": processes}
                (ledger.path / "processes" / f"{name}.json").write_text(json.dumps(told), encoding="utf-8")
            (ledger.path / "processes" / "c.json").write_text("{", encoding="utf-8")
            (found,) = doctor_machine.leftovers(tmp_path)
            assert (found.status, f"processes {child.pid} of" in found.found) == ("warning", True)
            with ledger.lock():
                assert [check.status for check in doctor_machine.leftovers(tmp_path)] == ["ok"]
        finally:
            child.kill()
    assert [check.status for check in doctor_machine.leftovers(tmp_path)] == ["ok"]


def test_a_tracking_server_that_is_down_is_missing_where_it_was_named(tmp_path):
    """A real call fails within its time limit; a password in the address is never shown."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (found,) = doctor._tracking(f"http://user:canary-b8@127.0.0.1:{port}", asked=True)
    assert found.status == "missing"
    assert "canary-b8" not in found.found
    assert "tuner sync" in found.remedy


@pytest.mark.parametrize("address", ["nothing", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:1"])
def test_a_ray_cluster_that_does_not_answer_is_missing(address):
    """Wrong addresses and closed ports are told at once, without waiting for Ray's own time limit."""
    begun = time.monotonic()
    assert [check.status for check in doctor._ray_cluster(address)] == ["missing"]
    assert time.monotonic() - begun < 20
    assert list(doctor._ray_cluster(None)) == []


def test_the_script_for_gpu_hosts_can_be_looked_at_without_a_gpu(tmp_path):
    """A dry run prints every command and leaves nothing; without a GPU the real one fails at once and says so."""
    script = ROOT / "tools" / "accept_gpu.sh"
    assert "HAS NEVER RUN ON A GPU" in script.read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", str(script)], check=True)
    environ = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "VENV": sys.prefix, "LIMIT_S": "60"}
    environ["ENGINE_VENV"] = str(tmp_path / "engine")
    command = ["bash", str(script), "--out", str(tmp_path / "out")]
    done = subprocess.run([*command, "--dry-run"], env=environ, capture_output=True, text=True, check=True)
    for told in ("doctor --slo", "measure --slo", "--backend local", "optimize --slo", "--backend ray", "--parallel 2"):
        assert told in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert subprocess.run([*command, "--no"], env=environ, capture_output=True, check=False).returncode == 2
    program(tmp_path / "nvidia-smi", "#!/bin/sh\nexit 9\n")
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.startswith("FAIL gpus")) == (1, True)
    told = json.loads((tmp_path / "out" / "accept-gpu.json").read_text(encoding="utf-8"))
    assert (told["passed"], told["failed"], told["complete"]) == (0, 1, False)
