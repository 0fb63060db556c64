"""Plans of deployments that nobody measured, studies of deployments that really ran, and exports that run."""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.deployments import alive, eventually
from support.study_fixture import OBJECTIVE, build, searched

from tuner import objective_text
from tuner.configuration import Configuration
from tuner.deployment import guardian, vllm
from tuner.deployment.local import LocalLauncher
from tuner.deployment.spec import masked
from tuner.export.origin import Origin
from tuner.export.places import imagined
from tuner.export.plan import Plan, fits_one_machine
from tuner.ledger import Ledger
from tuner.result import Status
from tuner.slo import Measure, Objective, Scalar, Search

RESULT: Mapping[str, Any] = {
    "slo": {"limits": [{"name": "ttft_p99", "threshold_s": 2.0}], "request": {}, "attainment": 0.99},
    "currency": "USD",
}
ENTRY: Mapping[str, Any] = {
    "gpus": 1,
    "cost_per_hour": 3.99,
    "cost_per_1k_good_requests": 0.1234,
    "goodput_rps": 8.97,
    "attainment": 0.995,
    "offered": 9.0,
    "n": 640,
    "verified": True,
    "repeats": 2,
    "limits": [{"name": "ttft_p99", "estimate": 1.71, "threshold": 2.0}],
}


def planned(
    objective: Objective,
    knobs: Mapping[str, Scalar],
    *,
    study: str = "chat-h100",
    source: str = "live",
    engine_version: str = "0.32.0",
) -> Plan:
    """The plan of trial 7, the winner of a study; every process at a made-up address."""
    configuration = Configuration(knobs)
    specs = tuple(sorted(vllm.specs(configuration, objective), key=lambda spec: spec.order))
    near = fits_one_machine(specs, objective)
    result = {**RESULT, "model": objective.model, "source": source}
    entry = {**ENTRY, "configuration": configuration.knobs}
    return Plan(
        specs=specs,
        addresses=imagined(specs, "127.0.0.1" if near else ""),
        one_machine=near,
        objective=objective,
        configuration=configuration,
        origin=Origin(study, 7, "winner", source, engine_version, entry, result),
    )


def measured(runs: Path, objective: Objective, knobs: Mapping[str, Scalar]) -> tuple[Path, dict[str, list[str]]]:
    """
    A study of one trial whose processes really ran on this machine.

    Its figures are made up. The objective's space is a file beside the study.

    Returns:
        The study, and the command line that the kernel showed of each process.
    """
    runs.mkdir(parents=True, exist_ok=True)
    space = runs / "space.yaml"
    space.write_text("knobs: {max_num_seqs: {int: {low: 8, high: 16}}}\n", encoding="utf-8")
    workload = replace(objective.workload, measure=Measure(min_requests=20))  # a file must be able to say it
    objective = replace(objective, workload=workload, search=Search(str(space)))
    configuration = Configuration(knobs)
    ledger = Ledger.create(
        runs, "round-trip", objective_yaml=objective_text.dump(objective), fingerprints={"slo": "a"}, seed=1,
        source="live", versions={"python": "3"},
    )  # fmt: skip
    launcher = LocalLauncher(objective, registry=runs / "registry")
    deployment = launcher.deployment(configuration, ledger.logs(0))
    ledger.begin(0, 1, configuration, deployment.commands)
    with deployment as running:
        shown = {name: command_line(running._handles[name].pids()[0]) for name in running._handles}
        ledger.write_commands(0, deployment.commands)
        facts = running.facts
    outcome, levels = searched(objective, 0, 6.0, 0.004, knobs, 40)
    for level, data in levels:
        ledger.write_level(0, level, data)
    ledger.finish(replace(outcome, facts=facts))
    return ledger.path, shown


def command_line(pid: int) -> list[str]:
    """Tokens of a process as the kernel shows them."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().removesuffix("\0").split("\0")


@contextlib.contextmanager
def deployed(
    script: Path, logs: Path, limit_s: float, *, names: Sequence[str] = (), until: str = "serving at", **environ: str
) -> Iterator[dict[str, int]]:
    """Pids by process of a running export, once it says `until`; ended by one SIGTERM; nothing of it may be left."""
    log = logs / "script.log"
    logs.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as out:
        running = subprocess.Popen([str(script), *names], stderr=out, env={**os.environ, "LOGS": str(logs), **environ})
    family: list[guardian.Process] = []
    try:
        assert eventually(lambda: until in log.read_text() or running.poll() is not None, limit_s)
        told = log.read_text(encoding="utf-8")
        assert running.poll() is None, told
        family = guardian.descendants(running.pid)
        yield {name: int(pid) for name, pid in re.findall(r"deploy: (\S+) started, pid (\d+)", told)}
    finally:
        running.terminate()
        code = running.wait(timeout=120)
    assert code == 143
    assert eventually(lambda: not alive(family)), alive(family)


def written(runs: Path, *, source: str, status: Status = "winner") -> Path:
    """A complete study whose trials hold the commands that their configurations make, as templates."""
    study = build(runs, source=source, status=status, n=120, verify_n=120)
    ledger = Ledger.open(study)
    for outcome in ledger.outcomes():
        specs = vllm.specs(outcome.configuration, OBJECTIVE)
        ledger.write_commands(outcome.trial, [masked(spec) for spec in specs])
    return study
