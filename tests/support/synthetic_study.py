"""Studies on disk with made-up, seeded figures: for whatever reads a ledger."""

import random
from collections.abc import Mapping
from pathlib import Path

from tuner.configuration import Configuration
from tuner.ledger import Ledger
from tuner.load.plan import LevelData, LevelPlan
from tuner.objective import Score
from tuner.outcome import Level, Outcome, State
from tuner.records import Record
from tuner.slo import Arrivals, Limit, Measure, Scalar, Slo, Synthetic, Workload
from tuner.verdict import LimitVerdict

SLO = Slo(limits=(Limit("ttft", "p99", 2.0), Limit("itl", "p99", 0.06)), attainment=0.99)
WORKLOAD = Workload(Synthetic(1000, 200), Arrivals(), measure=Measure(1.0, 10.0, 20))
YAML = "model: m\nslo:\n  ttft: {p99: 2s}\n  itl: {p99: 60ms}\nprices: {currency: USD}\n"
PRINTS = {"slo": "aaaa", "workload": "bbbb", "space": "cccc", "engine": "dddd"}


def record(number: int, rng: random.Random, *, scheduled_s: float = 0.0) -> Record:
    """A complete request of twenty tokens."""
    first = scheduled_s + rng.uniform(0.2, 1.5)
    times = [first]
    for _ in range(19):
        times.append(times[-1] + rng.uniform(0.01, 0.05))
    return Record(
        id=f"r{number}",
        scheduled_s=scheduled_s,
        sent_s=scheduled_s + 0.001,
        first_token_s=first,
        last_token_s=times[-1],
        asked_input_tokens=1000,
        input_tokens=1000,
        asked_output_tokens=20,
        output_tokens=20,
        token_source="usage",
        chunks=tuple((t, 1) for t in times),
        status="ok",
        error=None,
        phase="measured",
    )


def level_data(number: int = 1, *, rate_rps: float = 4.0, seed: int = 0, requests: int = 30) -> LevelData:
    rng = random.Random(f"{seed}-{number}")
    plan = LevelPlan("m", WORKLOAD, SLO, number, seed, rate_rps, None, 20)
    return LevelData(
        plan=plan,
        records=tuple(record(i, rng, scheduled_s=i / rate_rps) for i in range(requests)),
        window_start_s=0.0,
        window_s=requests / rate_rps,
        realised_rps=rate_rps,
        counters={"vllm:num_preemptions_total": 2.0},
        samples=({"t_s": 0.0, "running": 1.0}, {"t_s": 1.0, "running": 3.0}),
    )


def limit_verdict(name: str, threshold: float, estimate: float | None, *, kept: bool = True) -> LimitVerdict:
    margin = 1.5 if estimate is None else (estimate - threshold) / threshold
    word = "kept" if kept else "broken"
    return LimitVerdict(
        name, threshold, estimate, 1.9, 300, 1, 0.01, 0.0, 0.02, word, word, margin, "clopper-pearson", 2.0
    )


def score(goodput_rps: float = 3.9, *, itl_p99_ms: float = 42.0, kept: bool = True) -> Score:
    return Score(
        n=300,
        good=297,
        completed=299,
        failed={"timeout_gap": 1},
        window_s=75.0,
        goodput_rps=goodput_rps,
        attainment=0.99,
        offered_rps=4.0,
        output_tokens_per_s=800.0,
        good_output_tokens_per_s=goodput_rps * 200,
        metrics={
            "ttft_ms": {"p50": 410.0, "p99": 1210.0},
            "itl_ms": {"p50": 21.0, "p99": itl_p99_ms},
            "chunk_gap_max_ms": {"p99": 190.0},
            "tpot_ms": {"p50": 22.0, "p99": None},
        },
        stall_share=0.001,
        delivered_input_ratio=1.0,
        delivered_output_ratio=1.0,
        token_source="usage",
        limits=(
            limit_verdict("ttft_p99", 2.0, 1.21),
            limit_verdict("itl_p99", 0.06, itl_p99_ms / 1000, kept=kept),
        ),
    )


def level(number: int = 1, *, purpose: str = "search", offered: float = 4.0, **of_score: object) -> Level:
    scored = score(**of_score)  # type: ignore[arg-type]
    return Level(number, purpose, offered, scored, scored.observed_kept, "", "", "", 80.0, 330)  # type: ignore[arg-type]


def outcome(
    trial: int = 0,
    *,
    state: State = "feasible",
    attempt: int = 1,
    knobs: Mapping[str, Scalar] | None = None,
    reason: str = "",
    goodput_rps: float = 3.9,
    itl_p99_ms: float = 42.0,
    facts: Mapping[str, object] | None = None,
) -> Outcome:
    configuration = Configuration({"tensor_parallel_size": 1, "replicas": 2} if knobs is None else knobs)
    measured = state in ("feasible", "infeasible", "pruned")
    best = level(goodput_rps=goodput_rps, itl_p99_ms=itl_p99_ms, kept=state == "feasible") if measured else None
    return Outcome(
        trial=trial,
        attempt=attempt,
        state=state,
        reason=reason,
        cause="" if measured else "the log said so",
        configuration=configuration,
        units=configuration.units,
        cost_per_hour=7.98,
        best=best,
        capacity=4.0 if state == "feasible" else None,
        broken_at=5.0 if measured else None,
        measured_to_capacity=state == "feasible",
        levels=(best,) if best is not None else (),
        margins=best.score.margins if best is not None and best.score is not None else {},
        seconds=120.0,
        unit_hours=configuration.units * 120 / 3600,
        ready_s=30.0,
        facts={"engine_version": "0.32.0"} if facts is None else facts,
    )


def create(runs: Path, name: str = "chat", **changes: object) -> Ledger:
    options = {"objective_yaml": YAML, "fingerprints": PRINTS, "seed": 0, "source": "simulated"} | changes
    return Ledger.create(runs, name, **options)  # type: ignore[arg-type]


def run_trial(ledger: Ledger, done: Outcome, *, seed: int = 0) -> None:
    """Begin, measure and finish one attempt as a study would."""
    ledger.begin(done.trial, done.attempt, done.configuration, [{"role": "engine", "argv": ["vllm", "serve", "m"]}])
    (ledger.logs(done.trial) / "engine-0.log").write_text("ready\n")
    for each in done.levels:
        ledger.write_level(done.trial, each, level_data(each.number, seed=seed))
    ledger.finish(done)


def five_trials(runs: Path, name: str = "chat") -> Ledger:
    """A baseline, a better one, an infeasible, a pruned and a failed one."""
    ledger = create(runs, name)
    wanted: list[tuple[State, dict[str, Scalar], dict[str, object]]] = [
        ("feasible", {"tensor_parallel_size": 1, "replicas": 2}, {"goodput_rps": 2.1}),
        (
            "feasible",
            {"tensor_parallel_size": 2, "replicas": 1, "max_num_batched_tokens": 512, "max_num_seqs": 128},
            {"goodput_rps": 3.9},
        ),
        (
            "infeasible",
            {"tensor_parallel_size": 2, "max_num_batched_tokens": 8192},
            {"itl_p99_ms": 91.0, "reason": "itl_p99"},
        ),
        ("pruned", {"tensor_parallel_size": 4, "max_num_batched_tokens": 2048}, {"itl_p99_ms": 64.0}),
        ("config_failed", {"tensor_parallel_size": 1, "gpu_memory_utilization": 0.98}, {"reason": "out_of_memory"}),
    ]
    with ledger.lock():
        for number, (state, knobs, more) in enumerate(wanted):
            run_trial(ledger, outcome(number, state=state, knobs=knobs, **more), seed=number)  # type: ignore[arg-type]
    return ledger
