"""
How near do simulated means come to measured ones, with nothing fitted?

Mean time to first token and per output token of vLLM serving Llama-3.1-70B and gpt-oss-120b on H100, H200 and B200
(`tests/data/measured_vllm.csv`): closed loop, ten requests per slot, lengths uniform in 80 to 100 % of the nominal,
8,192 tokens a step. Step times are those of the shipped tables; `--roofline` takes the roofline, which was set by hand
on the rows of Llama in fp8. The last columns: one factor on TTFT and one on TPOT from two rows of each model, GPU,
precision and tensor parallelism (1k/1k x4 and 8k/1k x16), which are then left out.

    python benchmarks/accuracy.py [--rows] [--roofline] [--json FILE]
"""

import argparse
import csv
import json
import math
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from tuner.configuration import Configuration
from tuner.simulator import setup
from tuner.simulator.cluster import Cluster
from tuner.simulator.fleet import make_engine
from tuner.simulator.scheduler import Request
from tuner.slo import Cluster as Pools
from tuner.slo import Limit, Objective, Pool, Prices, Scalar, Search, Slo, Synthetic, Workload

DATA = Path(__file__).parent.parent / "tests" / "data" / "measured_vllm.csv"
REQUESTS_PER_SLOT = 10
SHORTEST = 0.8  # of the nominal lengths
BUDGET = 8192
MODELS = {"llama-3.1-70b": "meta-llama/Llama-3.1-70B-Instruct", "gpt-oss-120b": "openai/gpt-oss-120b"}
#: The rows do not say how the KV cache was kept. Where it filled up, requests waited: by Little's law 234,000 tokens
#: ran at once on H100 (TP2, 8k/1k x64), which is what fits in 16 bit, and 360,000 on H200 (TP1), which fits in 8 bit.
CACHES = {("llama-3.1-70b", "H200-141GB"): "fp8", ("llama-3.1-70b", "B200-180GB"): "fp8"}
#: Of a checkpoint in nvfp4, which has no name in the model table.
LLAMA_70B = {
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}
ANCHORS = ((1024, 1024, 4), (8192, 1024, 16))


@dataclass(frozen=True)
class Row:
    """One measured configuration, and what the simulator says; means over its requests, in ms."""

    model: str
    gpu: str
    precision: str
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

    @property
    def group(self) -> str:
        return f"{self.model} {self.precision}, {self.gpu}"


def measured() -> list[dict[str, str]]:
    """The rows as they are in the file."""
    with DATA.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def made(row: dict[str, str], *, roofline: bool = False) -> setup.Setup:
    """The engine of a row."""
    inputs, outputs = int(row["input_tokens"]), int(row["output_tokens"])
    knobs: dict[str, Scalar] = {
        "tensor_parallel_size": int(row["tensor_parallel"]),
        "max_model_len": inputs + outputs + 200,
        "max_num_batched_tokens": BUDGET,
        "max_num_seqs": 1024,
        "kv_cache_dtype": CACHES.get((row["model"], row["gpu"]), "auto"),
    }
    if row["precision"] == "fp8":
        knobs["quantization"] = "fp8"
    with tempfile.TemporaryDirectory() as directory:
        name = MODELS[row["model"]]
        if row["precision"] == "nvfp4":
            (Path(directory) / "config.json").write_text(json.dumps(LLAMA_70B), encoding="utf-8")
            name = directory
        pools = Pools((Pool("gpus", "gpu", row["gpu"], 1, 8, 1.0),), 8)
        slo = Slo((Limit("ttft", "p99", 10.0),))
        workload = Workload(Synthetic(inputs, outputs))
        wanted = Objective("benchmark", name, slo, workload, pools, Prices("USD"), Search("vllm"))
        return setup.resolve(Configuration(knobs), wanted, roofline_only=roofline)


def simulate(row: dict[str, str], *, roofline: bool = False) -> Row:
    """Means over the first ten requests of each slot."""
    inputs, outputs, concurrency = (int(row[name]) for name in ("input_tokens", "output_tokens", "concurrency"))
    fleet = made(row, roofline=roofline).fleet
    engine = make_engine(fleet.groups[0].limits, fleet.groups[0].step_time)
    random = np.random.default_rng(1)
    wanted = left = REQUESTS_PER_SLOT * concurrency
    counted: list[Request] = []

    def make(scheduled_s: float) -> Request:
        lengths = [int(random.integers(int(SHORTEST * nominal), nominal + 1)) for nominal in (inputs, outputs)]
        request = Request(len(counted), lengths[0], lengths[1], scheduled_s=scheduled_s)
        if len(counted) < wanted:
            counted.append(request)
        return request

    def watch(ended: Sequence[Request]) -> bool:
        nonlocal left
        left -= sum(request.number < wanted for request in ended)
        return left == 0

    Cluster([engine], front_end_s=fleet.front_end_s).closed_loop([0.0] * concurrency, make, watch)
    times = [(request, [time for time, _ in engine.chunks(request)]) for request in counted]
    return Row(
        model=row["model"],
        gpu=row["gpu"],
        precision=row["precision"],
        tensor_parallel=int(row["tensor_parallel"]),
        input_tokens=inputs,
        output_tokens=outputs,
        concurrency=concurrency,
        ttft_ms=float(row["ttft_mean_ms"]),
        tpot_ms=float(row["tpot_mean_ms"]),
        simulated_ttft_ms=1000 * float(np.mean([tokens[0] - request.scheduled_s for request, tokens in times])),
        simulated_tpot_ms=1000 * float(np.mean([(t[-1] - t[0]) / (len(t) - 1) for _, t in times])),
        preemptions=engine.totals.preemptions,
    )


def errors(rows: Iterable[Row]) -> tuple[float, float]:
    """Mean absolute relative errors of TTFT and TPOT."""
    found = list(rows)
    return (
        float(np.mean([abs(row.ttft_error) for row in found])),
        float(np.mean([abs(row.tpot_error) for row in found])),
    )


def ranks(rows: Sequence[Row]) -> tuple[float, float]:
    """Spearman's correlation of measured and simulated TTFT and TPOT."""
    pairs = [
        ([getattr(row, kind) for row in rows], [getattr(row, f"simulated_{kind}") for row in rows])
        for kind in ("ttft_ms", "tpot_ms")
    ]
    first, second = (float(spearmanr(*pair)[0]) for pair in pairs)
    return first, second


def anchored(rows: Sequence[Row]) -> list[Row]:
    """The rows that are no anchors, their times scaled by what the anchors of the same engine say."""
    found: list[Row] = []
    for key in dict.fromkeys((row.group, row.tensor_parallel) for row in rows):
        mine = [row for row in rows if (row.group, row.tensor_parallel) == key]
        anchors = [row for row in mine if (row.input_tokens, row.output_tokens, row.concurrency) in ANCHORS]
        if not anchors:
            continue
        ttft = math.exp(-float(np.mean([math.log1p(row.ttft_error) for row in anchors])))
        tpot = math.exp(-float(np.mean([math.log1p(row.tpot_error) for row in anchors])))
        found += [
            replace(row, simulated_ttft_ms=ttft * row.simulated_ttft_ms, simulated_tpot_ms=tpot * row.simulated_tpot_ms)
            for row in mine
            if row not in anchors
        ]
    return found


def line(name: str, rows: Sequence[Row]) -> str:
    """One line of the table."""
    (ttft, tpot), (ttft_rank, tpot_rank) = errors(rows), ranks(rows)
    text = f"{name:<38}{len(rows):>4}{ttft:>9.1%}{tpot:>8.1%}{ttft_rank:>8.3f}{tpot_rank:>7.3f}"
    others = anchored(rows)
    if not others:
        return text
    ttft, tpot = errors(others)
    return f"{text}{len(others):>8}{ttft:>9.1%}{tpot:>8.1%}"


def main() -> int:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print every measured row")
    parser.add_argument("--roofline", action="store_true", help="without tables")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = [simulate(row, roofline=options.roofline) for row in measured()]
    if options.rows:
        for row in rows:
            print(
                f"{row.group} TP{row.tensor_parallel} {row.input_tokens}/{row.output_tokens} x{row.concurrency}: "
                f"TTFT {row.ttft_ms:.0f} ms {row.ttft_error:+.0%}, TPOT {row.tpot_ms:.1f} ms {row.tpot_error:+.0%}, "
                f"{row.preemptions} preemptions"
            )
    print(f"{'':<38}{'n':>4}{'TTFT':>9}{'TPOT':>8}{'rank':>8}{'rank':>7}{'n':>8}{'TTFT':>9}{'TPOT':>8}")
    for group in dict.fromkeys(row.group for row in rows):
        mine = [row for row in rows if row.group == group]
        print(line(group, mine))
        for size in sorted({row.tensor_parallel for row in mine}):
            print(line(f"    TP{size}", [row for row in mine if row.tensor_parallel == size]))
    if options.json:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout
        result = {
            "python": sys.version.split()[0],
            "machine": platform.machine(),
            "commit": commit.strip(),
            "step_times": "roofline" if options.roofline else "tables",
            "rows": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
