"""Objective values for tests, built in memory."""

from collections.abc import Mapping

from tuner.slo import (
    Cluster,
    Engine,
    Limit,
    Objective,
    Pool,
    Prices,
    Scalar,
    Search,
    Slo,
    Synthetic,
    Workload,
)

H100 = Pool(name="h100", unit="gpu", device="H100-80GB", nodes=1, per_node=8, price_per_hour=3.99)
SLOTS = Pool(name="slots", unit="cpu", device="slot", nodes=1, per_node=2, price_per_hour=0.05)
ENGINE = Engine()


def objective(
    *,
    model: str = "Qwen/Qwen3-8B",
    pools: tuple[Pool, ...] = (H100,),
    max_gpus: int = 8,
    engine: Engine = ENGINE,
    tokens: tuple[int, int] = (1000, 200),
    baseline: Mapping[str, Scalar] | None = None,
    bind: str = "loopback",
    model_revision: str | None = None,
) -> Objective:
    """An objective with a synthetic workload of `tokens` = (input, output)."""
    return Objective(
        path="slo.yaml",
        model=model,
        slo=Slo(limits=(Limit("ttft", "p99", 2.0),)),
        workload=Workload(source=Synthetic(*tokens)),
        cluster=Cluster(pools=pools, max_gpus=max_gpus, bind=bind),
        prices=Prices(currency="USD"),
        search=Search(space="space.yaml"),
        engine=engine,
        baseline=baseline,
        model_revision=model_revision,
    )
