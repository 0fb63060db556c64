"""The answer guard on real engines: a plain one, prefill and decode apart, and one with a store."""

from dataclasses import replace

import pytest
from support import synthetic_study
from support.live_engine import VLLM, live_objective

from tuner import canary
from tuner.configuration import Configuration
from tuner.deployment.local import LocalLauncher
from tuner.events import Note
from tuner.guard import FILE, Guard
from tuner.load import tokenizer
from tuner.slo import Cluster, Objective, Pool

pytestmark = [pytest.mark.live, pytest.mark.accept, pytest.mark.usefixtures("engine_environment")]

PLAIN = Configuration({})
SPLIT = Configuration({"mode": "disaggregated"})
STORED = Configuration({"kv_store": "mooncake", "kv_store_ram_gib": 1})


def guard_objective() -> Objective:
    """Two slots of one core, with the router, connectors and stores of the engine environment."""
    made = live_objective()
    return replace(
        made,
        cluster=Cluster((Pool("cpu", "cpu", "slot", 1, 2, 0.05),), max_gpus=2),
        engine=replace(
            made.engine,
            connector_module="tuner_cpu_connectors",
            stores={"mooncake": (str(VLLM.with_name("mooncake_master")),)},
        ),
    )


def test_real_deployments_answer_as_a_plain_engine(tmp_path):
    """PD-07: 8 answers of prefill and decode and 16 of an engine with a store (8 out of it) are a plain one's."""
    goal = guard_objective()
    launcher = LocalLauncher(goal, registry=tmp_path / "registry")
    notes = []
    guard = Guard(
        synthetic_study.create(tmp_path / "runs"),
        launcher,
        PLAIN,
        make=lambda: canary.questions(goal, tokenizer.load(goal.model), seed=1, longest=None),
        charge=lambda plain, seconds: None,
        listen=lambda event: notes.append(event.text) if isinstance(event, Note) else None,
    )
    found = {}
    for name, configuration in (("plain", PLAIN), ("split", SPLIT), ("stored", STORED)):
        with launcher.deployment(configuration, tmp_path / name) as running:
            found[name] = guard.check(configuration, running)
        print(name, found[name])  # noqa: T201  (figures for whoever looks)
    assert found["plain"] == {}
    known = guard.ledger.read_json(FILE)["{}"]["forward"]
    assert {len(answer["tokens"]) for answer in known} == {canary.ANSWER_TOKENS}
    assert notes == []
    split, stored = found["split"]["answers"], found["stored"]["answers"]
    assert (split["compared"], split["different"], split["kv_transfer_share"]) == (8, 0, 1)
    assert (stored["compared"], stored["different"]) == (16, 0)
    assert stored["store_hit_tokens"] >= 8 * 512
