"""A complete, plausible study on disk, made through the ledger from seeded synthetic requests."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np

from tuner.configuration import Configuration
from tuner.ledger import Ledger
from tuner.load.plan import LevelData, LevelPlan
from tuner.objective import Score, score
from tuner.outcome import Level, Outcome
from tuner.records import Record
from tuner.result import Gain, Rung, Status, Verified, assemble, cost_per_1k, cost_per_1m
from tuner.slo import (
    Cluster,
    Limit,
    Objective,
    Pool,
    Prices,
    RequestLimits,
    Search,
    Slo,
    Synthetic,
    Workload,
)

WARMUP_S, TOKENS = 5.0, 24
OBJECTIVE_YAML = """\
model: Qwen/Qwen3-32B
slo:
  ttft: {p99: 2s}
  itl: {p99: 60ms}
  request: {itl_max: 300ms}
  attainment: 95%
workload:
  source: {synthetic: {input_tokens: 2000, output_tokens: 24}}
cluster: {gpu: H100-80GB, nodes: 1, gpus_per_node: 4}
prices: {currency: USD, gpu_hour: 3.99}
search: {space: vllm, trials: 9}
"""

OBJECTIVE = Objective(
    path="chat.yaml",
    model="Qwen/Qwen3-32B",
    slo=Slo(
        limits=(Limit("ttft", "p99", 2.0), Limit("itl", "p99", 0.060)),
        request=RequestLimits(itl_max_s=0.300),
        attainment=0.95,
    ),
    workload=Workload(Synthetic(2000, TOKENS)),
    cluster=Cluster((Pool("h100", "gpu", "H100-80GB", 1, 4, 3.99),), max_gpus=4),
    prices=Prices("USD"),
    search=Search(space="vllm.yaml"),
)

#: knobs, capacity in requests/s (None = breaks a limit everywhere), share of answers that freeze at capacity
SHAPES: tuple[tuple[dict[str, bool | int | float | str | None], float | None, float], ...] = (
    ({"replicas": 4}, 6.0, 0.035),
    ({"replicas": 4, "max_num_batched_tokens": 512}, 8.3, 0.004),
    ({"replicas": 4, "max_num_batched_tokens": 1024, "max_num_seqs": 128}, 7.4, 0.012),
    ({"replicas": 2, "tensor_parallel_size": 2}, 5.2, 0.02),
    ({"replicas": 1, "tensor_parallel_size": 4, "max_num_batched_tokens": 8192}, None, 0.12),
)


GAINS = {
    "winner": Gain(0.295, 0.271, 0.318, 0.95, 2, proven=True),
    "no_gain": Gain(0.016, -0.031, 0.063, 0.95, 2, proven=False),
    "interrupted": None,
    "failed": None,
}


def make_records(  # noqa: PLR0917
    rate: float, capacity: float, freezes: float, n: int, seed: int, failures: int = 0
) -> list[Record]:
    """`n` measured requests at `rate`; the TTFT tail reaches 1.85 s at `capacity`, a share `freezes` stalls once."""
    rng = np.random.default_rng(seed)
    load = rate / capacity
    spread = math.log(1.85 * load**3 / (0.15 + 2 * freezes)) / 2.326 if 1.85 * load**3 > 0.45 else 0.05
    normal = NormalDist()
    delays = np.array(
        [(0.15 + 2 * freezes) * math.exp(spread * normal.inv_cdf((place + 0.5) / n)) for place in range(n)]
    )
    rng.shuffle(delays)
    frozen = set(rng.permutation(n)[: round(freezes * n * load)].tolist())
    steps = np.cumsum(rng.exponential(1.0, n))
    arrivals = WARMUP_S + steps / steps[-1] * n / rate
    records = []
    for place in range(n):
        gaps = 0.021 * (1 + 0.35 * load) * np.exp(0.22 * rng.standard_normal(TOKENS - 1))
        if place in frozen:
            gaps[int(rng.integers(TOKENS - 1))] = 0.32 + 0.4 * rng.random()
        begun = float(arrivals[place])
        times = begun + float(delays[place]) + np.concatenate([[0.0], np.cumsum(gaps)])
        failed = place < failures
        records.append(
            Record(
                id=f"{seed}-{place}", scheduled_s=begun, sent_s=begun + 0.0004,
                first_token_s=None if failed else float(times[0]), last_token_s=None if failed else float(times[-1]),
                asked_input_tokens=2000, input_tokens=2000, asked_output_tokens=TOKENS,
                output_tokens=0 if failed else TOKENS, token_source="usage",
                chunks=() if failed else tuple((float(time), 1) for time in times),
                status="http_503" if failed else "ok", error="no capacity" if failed else None, phase="measured",
            )
        )  # fmt: skip
    return records


def make_level(
    objective: Objective, number: int, purpose: str, rate: float, records: Sequence[Record]
) -> tuple[Level, LevelData]:
    """One level judged by the real objective."""
    window_s = max(record.scheduled_s for record in records) - WARMUP_S + 1e-3
    plan = LevelPlan(objective.model, objective.workload, objective.slo, number, 7, rate, None, len(records))
    data = LevelData(plan, tuple(records), WARMUP_S, window_s, len(records) / window_s)
    judged = score(records, objective.slo, window_start_s=WARMUP_S, window_s=window_s)
    kept = judged.observed_kept
    level = Level(number, purpose, rate, judged, kept, "", "", "", window_s + WARMUP_S, len(records))  # type: ignore[arg-type]
    return level, data


def searched(  # noqa: PLR0917
    objective: Objective, trial: int, capacity: float | None, freezes: float, knobs: Mapping[str, object], n: int
) -> tuple[Outcome, list[tuple[Level, LevelData]]]:
    """A trial that climbed to its capacity, or broke a limit at the lowest load."""
    rates = [1.0] if capacity is None else [capacity * share for share in (0.4, 0.7, 1.0, 1.15)]
    levels = [
        make_level(
            objective, number, "search", rate,
            make_records(rate, capacity or 0.8, freezes, n, 1000 * trial + number),
        )
        for number, rate in enumerate(rates, start=1)
    ]  # fmt: skip
    kept = [level for level, _ in levels if level.kept]
    broken = [level for level, _ in levels if not level.kept]
    best = kept[-1] if kept else levels[0][0]
    assert best.score is not None
    configuration = Configuration(knobs)  # type: ignore[arg-type]
    over = ",".join(name for name, margin in best.score.margins.items() if margin > 0)
    return (
        Outcome(
            trial=trial, attempt=1, state="feasible" if kept else "infeasible", reason="" if kept else over, cause="",
            configuration=configuration, units=configuration.units, cost_per_hour=3.99 * configuration.units,
            best=best, capacity=best.offered if kept else None, broken_at=broken[0].offered if broken else None,
            measured_to_capacity=bool(kept and broken), levels=tuple(level for level, _ in levels),
            margins=best.score.margins, seconds=300.0, unit_hours=configuration.units * 300 / 3600, ready_s=42.0,
        ),
        levels,
    )  # fmt: skip


def ended(trial: int, state: str, reason: str, cause: str, knobs: Mapping[str, object], **more: object) -> Outcome:
    """A trial without a score."""
    configuration = Configuration(knobs)  # type: ignore[arg-type]
    values: dict[str, object] = {
        "attempt": 1, "units": configuration.units, "cost_per_hour": 3.99 * configuration.units, "best": None,
        "capacity": None, "broken_at": None, "measured_to_capacity": False, "levels": (), "margins": {},
        "seconds": 60.0, "unit_hours": configuration.units / 60,
    }  # fmt: skip
    values.update(more)
    return Outcome(
        trial=trial, state=state, reason=reason, cause=cause, configuration=configuration, **values  # type: ignore[arg-type]
    )  # fmt: skip


def verify(
    objective: Objective, ledger: Ledger, outcome: Outcome, freezes: float, n: int, *, verified: bool = True
) -> Verified:
    """Two repeats at 80 % of the capacity, on fresh schedules."""
    assert outcome.capacity is not None
    rate = outcome.capacity * 0.8
    parts = [
        make_level(
            objective, repeat, "verify", rate,
            make_records(rate, outcome.capacity, freezes, n, 90_000 + 10 * outcome.trial + repeat),
        )
        for repeat in (1, 2)
    ]  # fmt: skip
    levels = tuple(ledger.append_level(outcome.trial, level, data) for level, data in parts)
    pooled = _pooled(objective, [data for _, data in parts])
    per_1k = cost_per_1k(outcome.cost_per_hour, pooled.goodput_rps)
    assert per_1k is not None
    return Verified(
        trial=outcome.trial, configuration=outcome.configuration, verified=verified,
        rungs=(Rung(rate, levels, verified, pooled),), offered_rps=pooled.offered_rps, goodput_rps=pooled.goodput_rps,
        cost_per_1k_good_requests=per_1k,
        cost_per_1m_good_output_tokens=cost_per_1m(outcome.cost_per_hour, pooled.good_output_tokens_per_s),
        interval=(per_1k * 0.93, per_1k * 1.02), missing_requests=0 if verified else 412, repeats=2,
    )  # fmt: skip


def _pooled(objective: Objective, parts: Sequence[LevelData]) -> Score:
    records: list[Record] = []
    window_s = 0.0
    for data in parts:
        records.extend(data.records)
        window_s += data.window_s
    return score(records, objective.slo, window_start_s=WARMUP_S, window_s=window_s)


def commands(knobs: Mapping[str, object]) -> list[dict[str, object]]:
    """`commands.json` of an aggregated deployment with a secret in its environment."""
    flags = [word for name, value in knobs.items() if name != "replicas" for word in _flag(name, value)]
    engine = ["vllm", "serve", "Qwen/Qwen3-32B", "--host", "127.0.0.1", "--port", "8101", *flags]
    overrides = '{"rope_scaling": {"type": "it\'s dynamic"}}'
    env = {"CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": "$HF_TOKEN"}
    router = ["vllm-router", "--port", "8100", "--policy", "round_robin"]
    return [
        {"name": "engine-0", "role": "engine", "argv": [*engine, "--hf-overrides", overrides], "env": env},
        {"name": "router-0", "role": "router", "argv": router, "env": {}},
    ]  # fmt: skip


def _flag(name: str, value: object) -> list[str]:
    return [f"--{name.replace('_', '-')}", str(value)]


def build(
    runs: Path,
    *,
    name: str = "chat-h100",
    status: Status = "winner",
    source: str = "live",
    verified: bool = True,
    n: int = 320,
    verify_n: int = 640,
    objective: Objective = OBJECTIVE,
) -> Path:
    """A study with every outcome in it; returns its directory."""
    ledger = Ledger.create(
        runs, name, objective_yaml=OBJECTIVE_YAML, fingerprints={"slo": "a1", "space": "b2", "workload": "c3"},
        seed=7, source=source, git_sha="0123abc",
        versions={"python": "3.11.2", "slo-tuner": "0.1.0", "optuna": "5.0.0"},
    )  # fmt: skip
    shapes = SHAPES if status != "no_feasible" else SHAPES[-1:]
    if status == "no_gain":
        shapes = ((SHAPES[0][0], 6.0, 0.02), (SHAPES[1][0], 6.1, 0.015), *SHAPES[3:])
    outcomes: list[Outcome] = []
    for trial, (knobs, capacity, freezes) in enumerate(shapes):
        outcome, levels = searched(objective, trial, capacity, freezes, knobs, n)
        ledger.begin(trial, 1, outcome.configuration, commands(knobs) if source == "live" else ())
        for level, data in levels:
            ledger.write_level(trial, level, data, full=False)
        outcomes.append(outcome)
    first = len(shapes)
    outcomes += [
        ended(
            first, "config_failed", "out_of_memory", "torch.OutOfMemoryError: tried to allocate 2.31 GiB",
            {"replicas": 4, "gpu_memory_utilization": 0.98},
        ),
        ended(
            first + 1, "pruned", "challenge", "certainly broken at the load at which it would beat the best so far",
            {"replicas": 4, "max_num_batched_tokens": 256}, broken_at=8.0,
        ),
        ended(first + 2, "infra_failed", "node_lost", "the node of engine-0 left the cluster", {"replicas": 3}),
    ]  # fmt: skip
    for outcome in outcomes[first:]:
        ledger.begin(outcome.trial, 1, outcome.configuration)
    for outcome in outcomes:
        ledger.finish(outcome)
    found: dict[int, Verified] = {}
    gain = None
    if status != "no_feasible":
        found = {
            trial: verify(objective, ledger, outcomes[trial], shapes[trial][2], verify_n, verified=verified)
            for trial in range(2 if status == "no_gain" else 3)
        }
        gain = GAINS[status]
    result = assemble(
        objective, name, outcomes, found, gain, status,
        {"gpu_hours": 3.21, "wall_s": 2465.0, "requests": 9120.0}, source, {"vllm": "0.32.0", "torch": "2.11.0"},
    )  # fmt: skip
    ledger.write_json("result.json", result)
    return ledger.path
