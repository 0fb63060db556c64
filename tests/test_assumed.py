"""What a simulated number rests on is said wherever it is shown."""

from pathlib import Path

import pytest
from support import synthetic_study
from support.objectives import H100, objective

from tuner import runcard
from tuner.assumed import NO_ENGINE, caveats, tags
from tuner.configuration import Configuration
from tuner.deployment.simulated import STORE_ERROR, TRANSFER_ERROR, SimulatedLauncher
from tuner.slo import Scalar

WHOLE: dict[str, Scalar] = {"tensor_parallel_size": 4}
SPLIT: dict[str, Scalar] = {"mode": "disaggregated", "tensor_parallel_size": 2}
STORED: dict[str, Scalar] = {**WHOLE, "kv_store": "mooncake", "kv_store_ram_gib": 64}


def facts(knobs: dict[str, Scalar]) -> dict[str, object]:
    """Of a simulated deployment."""
    launcher = SimulatedLauncher(objective(model="Qwen/Qwen3-32B", pools=(H100,)))
    with launcher.deployment(Configuration(knobs), Path()) as running:
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
