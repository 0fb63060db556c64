"""Tests of prefill and decode on real engines: the KV cache goes over, and the answers are those of one engine."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.live_engine import live_objective

from tuner.configuration import Configuration
from tuner.deployment import counters
from tuner.deployment.launch import Launch
from tuner.deployment.local import LocalLauncher
from tuner.deployment.ray import RayLauncher
from tuner.deployment.readiness import request
from tuner.load.plan import LevelPlan
from tuner.slo import Cluster, Objective, Pool, Synthetic

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("engine_environment")]

SPLIT = Configuration({"mode": "disaggregated"})
TEXTS = ("Once upon a time in a town by the sea, " * 8, "Numbers: " + ", ".join(map(str, range(60))), "a b c " * 90)


def split_objective(engines: int = 2) -> Objective:
    """Two slots of one core, or more that share what cores there are; prompts of 300 tokens; a CPU's connectors."""
    made = live_objective()
    cores = 1 if engines == 2 else 0
    return replace(
        made,
        workload=replace(made.workload, source=Synthetic(input_tokens=300, output_tokens=8)),
        cluster=Cluster((Pool("cpu", "cpu", "slot", 1, engines, 0.05, cores),), max_gpus=engines),
        engine=replace(made.engine, connector_module="tuner_cpu_connectors", start_timeout_s=240.0 * engines),
    )


def plan_for(number: int) -> LevelPlan:
    """About 30 measured requests at a low rate."""
    objective = split_objective()
    return LevelPlan(objective.model, objective.workload, objective.slo, number, 1, 3.0, None, 30)


def greedy(running: Launch) -> list[str]:
    """Answers of 12 tokens, each the likeliest."""
    answers = []
    for text in TEXTS:
        body = {"model": running._endpoint.model, "prompt": text, "max_tokens": 12, "temperature": 0}
        where = running._endpoint
        status, answer = request("POST", where.host, where.port, "/v1/completions", body=body, timeout_s=60)
        assert status == 200, answer
        answers.append(json.loads(answer)["choices"][0]["text"])
    return answers


@pytest.fixture(scope="module")
def alone(engine_environment, tmp_path_factory) -> list[str]:
    """What one aggregated engine answers."""
    directory = tmp_path_factory.mktemp("alone")
    launcher = LocalLauncher(split_objective(), registry=directory / "registry")
    with launcher.deployment(Configuration({}), directory / "logs") as running:
        return greedy(running)


@pytest.fixture(scope="module")
def split(alone, tmp_path_factory) -> Iterator[Launch]:
    """One prefill and one decode engine behind vllm-router, NIXL between them."""
    directory = tmp_path_factory.mktemp("split")
    launcher = LocalLauncher(split_objective(), registry=directory / "registry")
    with launcher.deployment(SPLIT, directory / "logs") as running:
        yield running
    assert list((directory / "registry").iterdir()) == []


def test_decode_takes_its_prompts_by_transfer(split):
    """Every request is answered in full; decode computed no prompt token itself, and bytes went over."""
    data = split.drive(plan_for(1))
    measured = [record for record in data.records if record.phase == "measured"]
    assert len(measured) >= 30
    assert {record.status for record in measured} == {"ok"}
    assert {record.output_tokens for record in measured} == {8}
    counted = data.counters
    moved = counted["decode.prompt_tokens_by_source_total.external_kv_transfer"]
    assert moved >= 0.95 * 300 * len(measured)
    assert counted["decode.prompt_tokens_by_source_total.local_compute"] == 0
    assert counted["kv_transfer_share"] == 1
    assert counted["kv_transfer_mean_ms"] > 0
    assert counted["decode.nixl_bytes_transferred_sum"] > 0


def test_answers_are_those_of_one_engine(split, alone):
    """PD-07: greedy answers of prefill and decode together equal those of an aggregated engine."""
    assert greedy(split) == alone


def launcher_for(where: str, objective: Objective, directory: Path) -> LocalLauncher | RayLauncher:
    """The launcher of this name."""
    if where == "ray":
        return RayLauncher(objective, study=str(directory))
    return LocalLauncher(objective, registry=directory / "registry")


def test_nothing_of_it_can_be_reached_from_outside(split):
    """SEC-04: engines, their transfer and the router listen on loopback alone."""
    owners = [pid for handle in split._handles.values() for pid in handle.pids()]
    processes = {
        each for pid in owners for each in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))
    }
    listening = {
        (socket.laddr.ip, process.name())
        for process in processes
        for socket in process.net_connections("inet")
        if socket.status == psutil.CONN_LISTEN
    }
    assert {name for _, name in listening} >= {"VLLM::Worker"}
    assert {ip for ip, _ in listening} == {"127.0.0.1"}


@pytest.mark.accept
@pytest.mark.parametrize(("where", "prefills"), [("local", 2), ("ray", 1), ("ray", 2)])
def test_any_shape_on_any_launcher_is_proven(where, prefills, alone, tmp_path):
    """xP1D over NIXL, on this machine and through Ray: every prefill engine works, decode computes no prompt token."""
    launcher = launcher_for(where, split_objective(prefills + 1), tmp_path)
    names = [f"prefill-{index}" for index in range(prefills)]
    try:
        with launcher.deployment(Configuration({**SPLIT.knobs, "prefill_replicas": prefills}), tmp_path / "logs") as up:
            data = up.drive(plan_for(1))
            answers = greedy(up)
            pages = [up._handles[name].request("GET", "/metrics")[1].decode() for name in names]
            facts = up.facts
    finally:
        launcher.close()
    computed = [counters.counters(page)["prompt_tokens_by_source_total.local_compute"] for page in pages]
    counted = data.counters
    measured = [record for record in data.records if record.phase == "measured"]
    moved = counted["decode.prompt_tokens_by_source_total.external_kv_transfer"]
    print(
        f"\n{prefills}P1D, {where}: ready in {facts['ready_s']} s, {len(measured)} requests, {moved:.0f} prompt tokens "
        f"by transfer, {counted['decode.prompt_tokens_by_source_total.local_compute']:.0f} computed by decode, "
        f"{counted['kv_transfer_mean_ms']:.1f} ms and {counted['kv_transfer_mean_mib']:.2f} MiB a transfer, prefill "
        f"engines computed {computed}, answers equal: {answers == alone}"
    )
    assert {record.status for record in measured} == {"ok"}
    assert moved >= 0.95 * 300 * len(measured)
    assert counted["decode.prompt_tokens_by_source_total.local_compute"] == 0
    assert counted["decode.nixl_bytes_transferred_sum"] > 0
    assert min(computed) >= 300
    assert answers == alone


@pytest.mark.accept
def test_mooncake_moves_blocks_over_tcp(alone, tmp_path):
    """The other transfer: proven by the same counters, with the same answers."""
    launcher = LocalLauncher(split_objective(), registry=tmp_path / "registry")
    knobs = {"mode": "disaggregated", "kv_transfer": "mooncake"}
    with launcher.deployment(Configuration(knobs), tmp_path / "logs") as running:
        data = running.drive(plan_for(1))
        assert data.counters["kv_transfer_share"] == 1
        assert greedy(running) == alone
