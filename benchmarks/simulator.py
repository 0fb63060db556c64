"""
How fast is the simulated cluster, and how near does its roofline come to measured means of a real vLLM?

Speed: requests simulated per second of one core, records included. Accuracy: mean time to first token and per output
token of Llama-3.1-70B in fp8 (`tests/data/measured_llama_70b_fp8.csv`): closed loop, ten requests per slot, lengths
uniform in 80 to 100 % of the nominal ones. The roofline was set by hand on these very rows: no test of prediction.

    python benchmarks/simulator.py [--rows] [--json FILE]
"""

import argparse
import csv
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from tuner.configuration import Configuration
from tuner.load.plan import LevelPlan
from tuner.simulator.cluster import Cluster
from tuner.simulator.fleet import make_engine
from tuner.simulator.level import Level
from tuner.simulator.scheduler import Request
from tuner.simulator.setup import resolve
from tuner.slo import Cluster as Pools
from tuner.slo import Limit, Measure, Objective, Pool, Prices, Scalar, Search, Slo, Synthetic, Workload

DATA = Path(__file__).parent.parent / "tests" / "data" / "measured_llama_70b_fp8.csv"
REQUESTS_PER_SLOT = 10
SHORTEST = 0.8  # of the nominal lengths


@dataclass(frozen=True)
class Speed:
    case: str
    requests: int
    tokens: int
    seconds: float

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds


@dataclass(frozen=True)
class Row:
    """One measured configuration, and what the simulator says; means over its requests, in ms."""

    gpu: str
    tensor_parallel: int
    input_tokens: int
    output_tokens: int
    concurrency: int
    ttft_ms: float
    tpot_ms: float
    simulated_ttft_ms: float
    simulated_tpot_ms: float
    preemptions: int

    @property
    def ttft_error(self) -> float:
        return self.simulated_ttft_ms / self.ttft_ms - 1

    @property
    def tpot_error(self) -> float:
        return self.simulated_tpot_ms / self.tpot_ms - 1


def objective(model: str, gpu: str, source: Synthetic) -> Objective:
    """An objective around one pool of eight GPUs; only what the simulator reads."""
    slo = Slo((Limit("ttft", "p99", 10.0), Limit("itl", "p99", 1.0)))
    workload = Workload(source, measure=Measure(warmup_s=10, duration_s=60, min_requests=1000))
    pools = Pools((Pool("gpus", "gpu", gpu, 1, 8, 1.0),), 8)
    return Objective("benchmark", model, slo, workload, pools, Prices("USD"), Search("vllm"))


def speed(case: str, source: Synthetic, *, rate_rps: float | None, concurrency: int | None) -> Speed:
    """One level of Qwen3-32B on four H100."""
    wanted = objective("Qwen/Qwen3-32B", "H100-80GB", source)
    made = resolve(Configuration({"tensor_parallel_size": 4}), wanted)
    plan = LevelPlan(
        model=wanted.model,
        workload=wanted.workload,
        slo=wanted.slo,
        number=1,
        seed=0,
        rate_rps=rate_rps,
        concurrency=concurrency,
        min_requests=1000,
        stop_early=False,
    )
    level = Level(plan, None, fleet=made.fleet)
    begun = time.perf_counter()
    data = level.run()
    seconds = time.perf_counter() - begun
    return Speed(case, len(data.records), sum(record.output_tokens for record in data.records), seconds)


def simulate(measured: dict[str, str]) -> Row:
    """Means over the first ten requests of each slot."""
    tensor_parallel, inputs, outputs, concurrency = (
        int(measured[name]) for name in ("tensor_parallel", "input_tokens", "output_tokens", "concurrency")
    )
    knobs: dict[str, Scalar] = {
        "tensor_parallel_size": tensor_parallel,
        "quantization": "fp8",
        "max_model_len": inputs + outputs + 200,
        "max_num_batched_tokens": 8192,
    }
    wanted = objective("meta-llama/Llama-3.1-70B-Instruct", measured["gpu"], Synthetic(inputs, outputs))
    made = resolve(Configuration(knobs), wanted)
    engine = make_engine(made.first.limits, made.first.step_time)
    random = np.random.default_rng(1)
    counted: list[Request] = []
    left = REQUESTS_PER_SLOT * concurrency

    def make(scheduled_s: float) -> Request:
        lengths = [int(random.integers(int(SHORTEST * nominal), nominal + 1)) for nominal in (inputs, outputs)]
        request = Request(len(counted), lengths[0], lengths[1], scheduled_s=scheduled_s)
        if len(counted) < REQUESTS_PER_SLOT * concurrency:
            counted.append(request)
        return request

    def watch(ended: Sequence[Request]) -> bool:
        nonlocal left
        left -= sum(any(request is each for each in counted) for request in ended)
        return left == 0

    Cluster([engine], front_end_s=made.fleet.front_end_s).closed_loop([0.0] * concurrency, make, watch)
    times = [(request, [time for time, _ in engine.chunks(request)]) for request in counted]
    return Row(
        gpu=measured["gpu"],
        tensor_parallel=tensor_parallel,
        input_tokens=inputs,
        output_tokens=outputs,
        concurrency=concurrency,
        ttft_ms=float(measured["ttft_mean_ms"]),
        tpot_ms=float(measured["tpot_mean_ms"]),
        simulated_ttft_ms=1000 * float(np.mean([tokens[0] - request.scheduled_s for request, tokens in times])),
        simulated_tpot_ms=1000 * float(np.mean([(t[-1] - t[0]) / (len(t) - 1) for _, t in times])),
        preemptions=engine.totals.preemptions,
    )


def summary(name: str, rows: Sequence[Row]) -> str:
    """Mean absolute errors and rank correlations of a group of rows, as one line of the table."""
    ttft = 100 * float(np.mean([abs(row.ttft_error) for row in rows]))
    tpot = 100 * float(np.mean([abs(row.tpot_error) for row in rows]))
    ranks = [
        float(spearmanr([getattr(row, kind) for row in rows], [getattr(row, f"simulated_{kind}") for row in rows])[0])
        for kind in ("ttft_ms", "tpot_ms")
    ]
    return f"{name:<36}{len(rows):>4}{ttft:>9.1f} %{tpot:>9.1f} %{ranks[0]:>9.3f}{ranks[1]:>9.3f}"


def main() -> int:
    """Print both tables; write them as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print every measured row")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()

    speeds = [
        speed("chat 1k/256, 8 requests/s", Synthetic(1000, 256), rate_rps=8.0, concurrency=None),
        speed("chat 1k/256, 20 requests/s", Synthetic(1000, 256), rate_rps=20.0, concurrency=None),
        speed("8k/1k, 32 concurrent", Synthetic(8000, 1000), rate_rps=None, concurrency=32),
    ]
    print(f"{'case':<36}{'requests':>9}{'tokens':>10}{'s':>8}{'requests/s':>12}")
    for each in speeds:
        print(f"{each.case:<36}{each.requests:>9}{each.tokens:>10}{each.seconds:>8.2f}{each.requests_per_s:>12.0f}")

    with DATA.open(encoding="utf-8", newline="") as file:
        rows = [simulate(measured) for measured in csv.DictReader(file)]
    if options.rows:
        for row in rows:
            print(
                f"{row.gpu} TP{row.tensor_parallel} {row.input_tokens}/{row.output_tokens} x{row.concurrency}: "
                f"TTFT {row.ttft_ms:.0f} ms {100 * row.ttft_error:+.0f} %, "
                f"TPOT {row.tpot_ms:.1f} ms {100 * row.tpot_error:+.0f} %, {row.preemptions} preemptions"
            )
    print(f"\n{'against measured means':<36}{'n':>4}{'TTFT':>11}{'TPOT':>11}{'rank':>9}{'rank':>9}")
    for gpu in sorted({row.gpu for row in rows}):
        group = [row for row in rows if row.gpu == gpu]
        print(summary(gpu, group))
        print(summary(f"{gpu}, no preemption simulated", [row for row in group if not row.preemptions]))
    if options.json:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
        machine = {"python": sys.version.split()[0], "machine": platform.machine(), "commit": commit}
        result = {**machine, "speed": [asdict(each) for each in speeds], "accuracy": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
