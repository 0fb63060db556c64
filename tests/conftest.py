"""Values that many tests start from."""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tuner.slo import (
    Arrivals,
    Budget,
    Cluster,
    Limit,
    Load,
    Measure,
    Objective,
    Pool,
    Prices,
    Search,
    Slo,
    Synthetic,
    Verification,
    Workload,
)

# A busy machine is no finding: properties are judged by their truth, not by how long an example takes.
settings.register_profile("tuner", deadline=None)
settings.load_profile("tuner")

# A shell's background jobs start with it ignored, and what they start inherits that: what tests interrupt could not be.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def objective(tmp_path: Path) -> Objective:
    """Four GPUs at 3.00 USD/h, chat lengths, one limit: p95 TTFT <= 2 s."""
    return Objective(
        path=str(tmp_path / "slo.yaml"),
        model="meta-llama/Llama-3.1-8B-Instruct",
        slo=Slo(limits=(Limit("ttft", "p95", 2.0),)),
        workload=Workload(
            source=Synthetic(input_tokens=100, output_tokens=10),
            arrivals=Arrivals("poisson"),
            load=Load("find_capacity"),
            measure=Measure(warmup_s=0.0, duration_s=1.0, min_requests=40),
        ),
        cluster=Cluster(
            pools=(Pool(name="h100", unit="gpu", device="H100-80GB", nodes=1, per_node=4, price_per_hour=3.0),),
            max_gpus=4,
        ),
        prices=Prices(currency="USD"),
        search=Search(
            space=str(tmp_path / "space.yaml"),
            budget=Budget(trials=8),
            max_levels=20,
            first_guess_rps=4.0,
            verify=Verification(finalists=2, repeats=2),
        ),
    )
