"""Cores that engines hold, and what runs beside them."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tuner import metrics
from tuner.configuration import Configuration
from tuner.deployment.simulated import SimulatedLauncher
from tuner.load.plan import LevelData, LevelPlan
from tuner.records import Record
from tuner.simulator.contention import LATE_S, LATE_SHARE, Cores, cores
from tuner.slo import Cluster, Engine, Limit, Measure, Objective, Pool, Prices, Search, Slo, Synthetic, Workload

ONE_CORE = Pool("cpu", "cpu", "slot", 1, 2, 0.05, cores=1)
OBJECTIVE = Objective(
    path="slo.yaml",
    model="Qwen/Qwen3-0.6B",
    slo=Slo((Limit("ttft", "p95", 60.0),)),
    workload=Workload(Synthetic(64, 32), measure=Measure(warmup_s=2, duration_s=20, min_requests=40)),
    cluster=Cluster((ONE_CORE,), 2),
    prices=Prices("USD"),
    search=Search("vllm-cpu"),
    engine=Engine(flags={"max_model_len": 2048}),
)
SPLIT = Configuration({"mode": "disaggregated", "kv_transfer": "nixl"})


def level(configuration: Configuration, pool: Pool, rate: float = 0.5) -> tuple[LevelData, dict[str, object]]:
    objective = replace(OBJECTIVE, cluster=Cluster((pool,), 4))
    plan = LevelPlan(
        model=objective.model,
        workload=objective.workload,
        slo=objective.slo,
        number=1,
        seed=0,
        rate_rps=rate,
        concurrency=None,
        min_requests=40,
        stop_early=False,
    )
    with SimulatedLauncher(objective).deployment(configuration, None) as running:
        return running.drive(plan), dict(running.facts)


def seconds(data: LevelData, figure: Callable[[Record], float | None]) -> float:
    """A figure of the requests, summed."""
    return sum(figure(record) or 0.0 for record in data.records if record.phase == "measured")


@pytest.mark.parametrize(
    ("knobs", "pool", "expected"),
    [
        pytest.param({}, ONE_CORE, Cores(1, 1, 1), id="one engine leaves a core"),
        pytest.param({"replicas": 2}, ONE_CORE, Cores(2, 2, 0), id="two hold both"),
        pytest.param(SPLIT.knobs, ONE_CORE, Cores(2, 2, 0), id="prefill and decode too"),
        pytest.param(SPLIT.knobs, replace(ONE_CORE, per_node=4, cores=2), Cores(2, 4, 4), id="half a node is left"),
        pytest.param({"replicas": 3}, replace(ONE_CORE, nodes=4), Cores(3, 3, 1), id="nodes fill one by one"),
        pytest.param({"tensor_parallel_size": 2}, ONE_CORE, Cores(1, 2, 0), id="one engine with both"),
        pytest.param({}, replace(ONE_CORE, cores=0), None, id="shared with others: unknown"),
        pytest.param({}, Pool("h100", "gpu", "H100-80GB", 1, 2, 4.0), None, id="GPUs have cores of their own"),
    ],
)
def test_the_cores_of_a_deployment(knobs, pool, expected):
    """Engines and cores that they hold, and what is left on the nodes that they are on."""
    roles = Configuration(knobs).roles
    assert cores(roles, [pool] * len(roles)) == expected


def test_what_is_beside_the_engines_takes_their_time_where_no_core_is_left():
    """By hand: 100 steps, 400 tokens, 20 requests in 2 s want 0.125 cores, two engines 0.025; of two, that is 7.5 %."""
    record = Record(
        id="0",
        scheduled_s=0.0,
        sent_s=0.0,
        first_token_s=0.0,
        last_token_s=1.0,
        asked_input_tokens=1,
        input_tokens=1,
        asked_output_tokens=20,
        output_tokens=20,
        token_source="usage",
        chunks=tuple((step * 0.01, 4) for step in range(5)),
        status="ok",
        error=None,
        phase="measured",
    )
    records = tuple(
        replace(record, chunks=tuple((time_s + number, count) for time_s, count in record.chunks))
        for number in range(20)
    )
    data = LevelData(None, records, 0.0, 2.0, 10.0, counters={"level_seconds": 2.0})
    assert Cores(2, 2, 0).stretch(data) == pytest.approx(1 / (1 - 0.15 / 2))
    assert Cores(2, 2, 1).stretch(data) == 1
    crowded = replace(data, counters={"level_seconds": 0.01})
    assert Cores(2, 2, 0).stretch(crowded) == 2


def test_a_split_on_the_last_cores_is_slower_than_with_one_to_spare():
    """Every token comes later, and the facts say how many cores are left; one engine with a core beside it is not."""
    tight, facts = level(SPLIT, ONE_CORE)
    roomy, more = level(SPLIT, replace(ONE_CORE, per_node=3))
    assert (facts["spare_cores"], more["spare_cores"]) == (0, 1)
    assert seconds(tight, metrics.ttft_s) > seconds(roomy, metrics.ttft_s)
    assert seconds(tight, metrics.tpot_s) > seconds(roomy, metrics.tpot_s)
    one, _ = level(Configuration({}), replace(ONE_CORE, per_node=3))
    same, _ = level(Configuration({}), replace(ONE_CORE, per_node=4))
    assert one.records == same.records


def test_some_chunks_leave_late_where_the_server_shares_its_core():
    """A third of the chunks is late, of the same steps; order and tokens stay, and a seed gives its bytes."""
    tight, _ = level(Configuration({}), ONE_CORE)
    again, _ = level(Configuration({}), ONE_CORE)
    roomy, _ = level(Configuration({}), replace(ONE_CORE, per_node=3))
    assert tight.records == again.records
    late = []
    for record, prompt in zip(tight.records, roomy.records, strict=True):
        if not record.chunks:
            assert not prompt.chunks
            continue
        times, made = (np.array([time_s for time_s, _ in each.chunks]) for each in (record, prompt))
        assert (np.diff(times) >= 0).all()
        assert [count for _, count in record.chunks] == [count for _, count in prompt.chunks]
        assert (record.first_token_s, record.last_token_s) == (times[0], times[-1])
        late.append(times - made)
    delays = np.concatenate(late)
    assert delays.min() >= 0
    assert np.mean(delays > 0) == pytest.approx(LATE_SHARE, abs=0.05)
    assert delays[delays > 0].mean() == pytest.approx(LATE_S, rel=0.15)
