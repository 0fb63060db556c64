"""The examples of docs/scheduling: they parse, keep their schemas, call the real command line, and read exit codes."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import typer
from ruamel.yaml import YAML

from tuner import cli

EXAMPLES = Path(__file__).parent.parent / "docs" / "scheduling"
SCHEMA = json.loads((Path(__file__).parent / "data/schemas/kubernetes-1.37.json").read_text(encoding="utf-8"))
#: Fields of batch/v1 and of ray.io/v1, as their API references list them; pods are checked by their full schema.
CRONJOB = {
    "concurrencyPolicy", "failedJobsHistoryLimit", "jobTemplate", "schedule", "startingDeadlineSeconds",
    "successfulJobsHistoryLimit", "suspend", "timeZone",
}  # fmt: skip
JOB = {
    "activeDeadlineSeconds", "backoffLimit", "completions", "parallelism", "podFailurePolicy", "suspend", "template",
    "ttlSecondsAfterFinished",
}  # fmt: skip
RAYJOB = {
    "activeDeadlineSeconds", "backoffLimit", "clusterSelector", "deletionStrategy", "entrypoint", "entrypointNumCpus",
    "entrypointNumGpus", "entrypointResources", "jobId", "managedBy", "metadata", "preRunningDeadlineSeconds",
    "rayClusterSpec", "runtimeEnvYAML", "shutdownAfterJobFinishes", "submissionMode", "submitterConfig",
    "submitterPodTemplate", "suspend", "ttlSecondsAfterFinished",
}  # fmt: skip
CRON_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
#: Exit code of a night, what the script ends with, and whether somebody is told.
CODES = [(0, 0, False), (2, 2, True), (3, 0, True), (4, 4, True), (5, 0, True), (130, 130, True)]


def documents(name: str) -> list:
    return list(YAML(typ="safe", pure=True).load_all((EXAMPLES / name).read_text(encoding="utf-8")))


def of_kind(name: str, kind: str) -> dict:
    (found,) = [each for each in documents(name) if each["kind"] == kind]
    return found


def pod_template(job: dict) -> dict:
    return job["spec"]["jobTemplate"]["spec"]["template"]


def check_cron(line: str) -> None:
    """Five fields, each `*` or a number in its range."""
    fields = line.split()
    assert len(fields) == len(CRON_RANGES)
    for field, (low, high) in zip(fields, CRON_RANGES, strict=True):
        assert field == "*" or low <= int(field) <= high


def check_pod(template: dict) -> None:
    """Kubernetes' own definition accepts it, strictly."""
    schema = {**SCHEMA, "$ref": "#/$defs/io.k8s.api.core.v1.PodTemplateSpec"}
    jsonschema.Draft202012Validator(schema).validate(template)


def check_command(name: str, arguments: list[str]) -> dict:
    """The real command line takes these arguments; what it read from them."""
    group = typer.main.get_command(cli.app)
    return group.commands[name].make_context(name, arguments).params


def through_script(words: list[str]) -> list[str]:
    """What `nightly.sh OBJECTIVE …` hands to `tuner nightly`."""
    script, slo, *rest = words
    assert Path(script).name == "nightly.sh"
    return ["--slo", slo, "--until", "06:00", *rest]


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/usr/bin/env bash\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def stubs(tmp_path, monkeypatch):
    """A `tuner` that ends with $CODE, and programs that write down what they are told."""
    place = tmp_path / "bin"
    place.mkdir()
    program(place / "tuner", 'echo "tuner $*" >> "$CALLS"\n[[ $1 != nightly ]] || exit "$CODE"')
    for name in ("notify", "gh", "logger"):
        program(place / name, 'echo "$*" >> "$TOLD"')
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    monkeypatch.setenv("TUNER_NOTIFY", "notify")
    return tmp_path


def told(stubs: Path) -> str:
    return (stubs / "told").read_text(encoding="utf-8") if (stubs / "told").exists() else ""


@pytest.mark.parametrize(("code", "ends", "tells"), CODES)
def test_the_script_tells_findings_apart_from_failures(stubs, monkeypatch, code, ends, tells):
    """A finding is told and is no failure; what is broken keeps its code; a quiet night says nothing."""
    monkeypatch.setenv("CODE", str(code))
    done = subprocess.run([EXAMPLES / "nightly.sh", "slo/chat.yaml", "--runs", "/r"], check=False)
    assert done.returncode == ends
    assert bool(told(stubs)) is tells
    assert (stubs / "calls").read_text() == "tuner nightly --slo slo/chat.yaml --until 06:00 --runs /r\n"


def test_the_script_survives_a_broken_messenger(stubs, monkeypatch):
    """The night's own exit code counts, not that of the program that should have told it."""
    program(stubs / "bin" / "notify", "exit 1")
    monkeypatch.setenv("CODE", "5")
    done = subprocess.run([EXAMPLES / "nightly.sh", "chat.yaml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "notify failed" in done.stderr


def test_the_crontab_runs_the_script_every_night(stubs, monkeypatch):
    """Five good fields and a command that bash runs, with a code that the log's pipe may hide but the message tells."""
    lines = (EXAMPLES / "crontab").read_text(encoding="utf-8").splitlines()
    (entry,) = [line for line in lines if line and not line.startswith("#") and not re.match(r"[A-Z]+=", line)]
    *fields, command = entry.split(maxsplit=5)
    check_cron(" ".join(fields))
    home = stubs / "home"
    home.mkdir()
    shutil.copy(EXAMPLES / "nightly.sh", home)
    monkeypatch.setenv("CODE", "5")
    done = subprocess.run(["bash", "-c", command.replace("/srv/tuner", str(home))], capture_output=True, check=False)
    assert done.returncode == 0
    assert "dearer" in told(stubs)
    calls = shlex.split((stubs / "calls").read_text())
    assert check_command("nightly", calls[2:])["slo"] == Path("objectives/chat.yaml")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_timer_and_service(tmp_path):
    """`systemd-analyze verify` finds nothing wrong; the programs that they start are put in place for it."""
    program(tmp_path / "tuner", "true")
    program(tmp_path / "told.sh", "true")
    for name in ("tuner-nightly@.service", "tuner-nightly@.timer"):
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        text = text.replace("/opt/tuner/bin/tuner", str(tmp_path / "tuner"))
        text = text.replace("/srv/tuner/told.sh", str(tmp_path / "told.sh"))
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "tuner-nightly@.timer")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_calls_the_real_command_and_takes_findings_for_success():
    """3 and 5 do not fail the unit; the night gets more time to stop than tuner takes to tidy up."""
    unit = dict(
        line.split("=", 1)
        for line in (EXAMPLES / "tuner-nightly@.service").read_text(encoding="utf-8").splitlines()
        if "=" in line and not line.startswith("#")
    )
    assert unit["SuccessExitStatus"].split() == ["3", "5"]
    _, command, *arguments = shlex.split(unit["ExecStart"])
    assert check_command(command, arguments)["until"] == "06:00"
    assert unit["KillMode"] == "mixed"


@pytest.mark.parametrize(("code", "ends", "tells"), CODES)
def test_the_service_tells_what_is_not_quiet(stubs, monkeypatch, code, ends, tells):
    """After every end but a quiet one there is one line."""
    monkeypatch.setenv("EXIT_CODE", "exited")
    monkeypatch.setenv("EXIT_STATUS", str(code))
    subprocess.run([EXAMPLES / "told.sh", "chat"], check=True)
    assert bool(told(stubs)) is tells


def test_the_cronjob_keeps_kubernetes_schema_and_calls_the_real_command():
    """Known fields alone, pods by the full schema; nights never overlap and are not repeated."""
    job = of_kind("kubernetes-cronjob.yaml", "CronJob")
    spec = job["spec"]
    check_cron(spec["schedule"])
    assert set(spec) <= CRONJOB
    assert set(spec["jobTemplate"]["spec"]) <= JOB
    assert (spec["concurrencyPolicy"], spec["jobTemplate"]["spec"]["backoffLimit"]) == ("Forbid", 0)
    check_pod(pod_template(job))
    (container,) = pod_template(job)["spec"]["containers"]
    read = check_command("nightly", through_script([*container["command"][1:], *container["args"]]))
    assert read["runs"] == Path("/runs")
    assert "/runs" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_the_rayjob_keeps_its_fields_and_its_pods_the_schema():
    """Each pod of the cluster by Kubernetes' own definition; the entry point is the real command on this cluster."""
    creating, job = of_kind("kuberay-rayjob.yaml", "CronJob"), of_kind("kuberay-rayjob.yaml", "RayJob")
    assert set(creating["spec"]) <= CRONJOB
    assert set(job["spec"]) <= RAYJOB
    cluster = job["spec"]["rayClusterSpec"]
    for template in (
        pod_template(creating),
        cluster["headGroupSpec"]["template"],
        *(group["template"] for group in cluster["workerGroupSpecs"]),
    ):
        check_pod(template)
    _, *words = shlex.split(job["spec"]["entrypoint"])
    read = check_command("nightly", through_script(words))
    assert (read["backend"], read["ray"]) == (cli.Backend.ray, "auto")
    assert job["spec"]["shutdownAfterJobFinishes"] is True


@pytest.mark.parametrize(("code", "ends", "tells"), CODES)
def test_the_github_workflow_keeps_findings_green_and_opens_an_issue(stubs, monkeypatch, code, ends, tells):
    """The steps themselves run under bash: a finding becomes an issue, a failure a red run."""
    (workflow,) = documents("github-actions.yaml")
    check_cron(workflow["on"]["schedule"][0]["cron"])
    steps = workflow["jobs"]["night"]["steps"]
    night = next(step for step in steps if step.get("id") == "night")
    issue = next(step for step in steps if "gh issue" in step.get("run", ""))
    monkeypatch.setenv("CODE", str(code))
    for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.setenv(name, str(stubs / name))
    done = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", night["run"]], check=False)
    assert done.returncode == ends
    assert (stubs / "GITHUB_OUTPUT").read_text() == f"code={code}\n"
    wanted = re.findall(r"outputs\.code == '(\d+)'", issue["if"])
    if str(code) in wanted:
        subprocess.run(["bash", "-eo", "pipefail", "-c", issue["run"].replace("$GITHUB_", "GITHUB_")], check=True)
    assert bool(told(stubs)) is (tells and ends == 0)
    for line in (stubs / "calls").read_text().splitlines():
        _, command, *arguments = shlex.split(line)
        check_command(command, arguments)


def test_the_gitlab_job_calls_the_real_commands_and_allows_findings():
    """Scheduled pipelines alone, one at a time; 3 and 5 are warnings."""
    (file,) = documents("gitlab-ci.yaml")
    job = file["tuner-nightly"]
    assert job["allow_failure"]["exit_codes"] == [3, 5]
    assert job["resource_group"]
    for line in (*job["script"], job["after_script"][0]):
        _, command, *arguments = shlex.split(line)
        check_command(command, arguments)
