"""What a simulated number rests on is said wherever it is shown."""

from pathlib import Path

import pytest
from support import synthetic_study
from support.objectives import H100, objective

from tuner import backend, runcard
from tuner.assumed import NO_ENGINE, caveats, tags
from tuner.configuration import Configuration
from tuner.deployment.simulated import STORE_ERROR, TRANSFER_ERROR, SimulatedLauncher
from tuner.level import plan
from tuner.report import words
from tuner.simulator import kernel
from tuner.slo import Scalar

GOAL = objective(model="Qwen/Qwen3-32B", pools=(H100,))
WHOLE: dict[str, Scalar] = {"tensor_parallel_size": 4}
SPLIT: dict[str, Scalar] = {"mode": "disaggregated", "tensor_parallel_size": 2}
STORED: dict[str, Scalar] = {**WHOLE, "kv_store": "mooncake", "kv_store_ram_gib": 64}


def facts(knobs: dict[str, Scalar]) -> dict[str, object]:
    """Of a simulated deployment."""
    with SimulatedLauncher(GOAL).deployment(Configuration(knobs), Path()) as running:
        return dict(running.facts)


def test_each_thing_is_said_once():
    """Two aggregated trials, a split and a store: one line of step times, and what each kind adds to the errors."""
    found = caveats([facts(WHOLE), facts(WHOLE), facts(SPLIT), facts(STORED), {}])
    assert found[0] == NO_ENGINE
    assert len(found) == 3
    assert found[1].startswith("step times: tables of measured kernels (aiconfigurator-core")
    assert "; " not in found[1]
    for said in ("ttft: mean within", TRANSFER_ERROR, STORE_ERROR):
        assert found[2].count(said) == 1
    assert caveats([{}]) == [NO_ENGINE]


@pytest.mark.parametrize(
    ("knobs", "transfer", "store"), [(WHOLE, False, False), (SPLIT, True, False), (STORED, False, True)]
)
def test_mlflow_carries_version_and_expected_error(knobs, transfer, store):
    """As tags of a trial's run; a live one has none of them."""
    outcome = synthetic_study.outcome(knobs=knobs, facts=facts(knobs))
    card = runcard.card(outcome, currency="USD", source="simulated", closed=False)
    assert card.tags["tuner.table_version"] == outcome.facts["table_version"]
    assert "itl: percentiles never compared" in card.tags["tuner.expected_error"]
    assert (TRANSFER_ERROR in card.tags["tuner.expected_error"]) is transfer
    assert (STORE_ERROR in card.tags["tuner.expected_error"]) is store
    assert tags({"engine_version": "0.32.0"}) == {}


def test_hours_of_simulated_gpus_are_called_so():
    """They are no wall time; of a live study nothing is added."""
    spent = {"gpu_hours": 26.0, "wall_s": 35.0, "requests": 20999.0}
    simulated, live = (
        words.spent({"source": source, "unit": "GPU", "spent": spent}) for source in ("simulated", "live")
    )
    assert simulated == "26 simulated GPU-hours, 35 s of real time, 20,999 simulated requests"
    assert live == "26 GPU-hours, 35 s, 20,999 requests"


def test_only_the_first_use_says_that_it_compiles(monkeypatch):
    """Where nothing lies compiled, whoever waits is told why; a live study compiles nothing."""
    monkeypatch.setattr(kernel, "is_compiled", lambda: False)
    assert "compiling the simulator" in str(backend.first_use("simulated"))
    assert backend.first_use("local") is None
    monkeypatch.undo()
    with SimulatedLauncher(GOAL).deployment(Configuration(WHOLE), Path()) as running:
        running.drive(plan(GOAL, number=1, seed=0, load=1.0, min_requests=1))
    assert kernel.is_compiled()
    assert backend.first_use("simulated") is None
