"""
How fast is the simulated cluster?

Requests simulated per second of one core's time, records included, once the kernel is compiled; and a sweep of 1,000
configurations with 300 requests each, on two cores, by the clock. Each promise is printed as kept or broken, and a
broken one is exit code 1: run it on a machine that does nothing else. How near the simulator comes to a real engine:
`benchmarks/accuracy.py`.

    python benchmarks/simulator.py [--json FILE]
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice, product
from pathlib import Path

from tuner.configuration import Configuration
from tuner.load.plan import LevelPlan
from tuner.simulator.fleet import Fleet
from tuner.simulator.level import Level
from tuner.simulator.setup import resolve
from tuner.slo import Cluster as Pools
from tuner.slo import Limit, Measure, Objective, Pool, Prices, Scalar, Search, Slo, Synthetic, Workload


@dataclass(frozen=True)
class Speed:
    case: str
    requests: int
    tokens: int
    seconds: float

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds


def objective(model: str, gpu: str, source: Synthetic) -> Objective:
    """An objective around one pool of eight GPUs; only what the simulator reads."""
    slo = Slo((Limit("ttft", "p99", 10.0), Limit("itl", "p99", 1.0)))
    workload = Workload(source, measure=Measure(warmup_s=10, duration_s=60, min_requests=1000))
    pools = Pools((Pool("gpus", "gpu", gpu, 1, 8, 1.0),), 8)
    return Objective("benchmark", model, slo, workload, pools, Prices("USD"), Search("vllm"))


WANTED = objective("Qwen/Qwen3-32B", "H100-80GB", Synthetic(8000, 1000))
CONFIGURATIONS, REQUESTS, WORKERS = 1000, 300, 2
ONE_ENGINE, SPLIT = "one engine, 8k/1k, 32 concurrent", "2P2D, 8k/1k, 32 concurrent"
#: What is promised: requests/s of a core at least, and seconds of the sweep at most.
LEAST_RPS = {ONE_ENGINE: 25_000, SPLIT: 5_000}
MOST_SWEEP_S = 60


def fleet(configuration: Configuration) -> Fleet:
    """One engine of Qwen3-32B on H100."""
    return resolve(configuration, WANTED).fleet


def split() -> Fleet:
    """Two engines for prompts and two for answers, each on two H100."""
    knobs: dict[str, Scalar] = {"mode": "disaggregated", "prefill_replicas": 2, "decode_replicas": 2}
    return fleet(Configuration({**knobs, "tensor_parallel_size": 2}))


def level(
    served_by: Fleet, source: Synthetic, *, rate_rps: float | None, concurrency: int | None, requests: int
) -> tuple[int, int]:
    """One level; requests and tokens in its records."""
    plan = LevelPlan(
        model=WANTED.model,
        workload=replace(WANTED.workload, source=source, measure=Measure(0, 1, requests)),
        slo=WANTED.slo,
        number=1,
        seed=0,
        rate_rps=rate_rps,
        concurrency=concurrency,
        min_requests=requests,
        stop_early=False,
    )
    data = Level(plan, None, fleet=served_by).run()
    return len(data.records), sum(record.output_tokens for record in data.records)


def speed(
    case: str, served_by: Fleet, source: Synthetic, *, rate_rps: float | None = None, concurrency: int | None = None
) -> Speed:
    """The best of three, each of 3,000 requests; a first one compiles, or loads what is compiled."""
    level(served_by, source, rate_rps=rate_rps, concurrency=concurrency, requests=50)
    found: list[Speed] = []
    for _ in range(3):
        begun = time.process_time()
        requests, tokens = level(served_by, source, rate_rps=rate_rps, concurrency=concurrency, requests=3000)
        found.append(Speed(case, requests, tokens, time.process_time() - begun))
    return max(found, key=lambda each: each.requests_per_s)


def one_of_many(index: int) -> tuple[int, int]:
    """A level of one of the configurations of the sweep."""
    axes = product(
        (1024, 2048, 4096, 8192, 16384), (16, 32, 64, 128, 256), (2, 4), (1, 2), (4, 8, 16, 24, 32, 40, 48, 64, 80, 96)
    )
    tokens, sequences, parallel, replicas, concurrency = next(islice(axes, index, None))
    knobs = {
        "max_num_batched_tokens": tokens,
        "max_num_seqs": sequences,
        "tensor_parallel_size": parallel,
        "replicas": replicas,
    }
    source = WANTED.workload.source
    if not isinstance(source, Synthetic):
        raise TypeError("the sweep is synthetic")
    return level(fleet(Configuration(knobs)), source, rate_rps=None, concurrency=concurrency, requests=REQUESTS)


def sweep() -> Speed:
    """All configurations, spread over two processes, their start included."""
    begun = time.perf_counter()
    with ProcessPoolExecutor(WORKERS) as pool:
        found = list(pool.map(one_of_many, range(CONFIGURATIONS), chunksize=20))
    seconds = time.perf_counter() - begun
    case = f"{CONFIGURATIONS} configurations, {WORKERS} processes"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"sweep: {used.ru_utime + used.ru_stime:.1f} s of processor time", file=sys.stderr)
    return Speed(case, sum(requests for requests, _ in found), sum(tokens for _, tokens in found), seconds)


def main() -> int:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()

    whole = fleet(Configuration({"tensor_parallel_size": 4}))
    long, chat = Synthetic(8000, 1000), Synthetic(1000, 256)
    speeds = [
        speed(ONE_ENGINE, whole, long, concurrency=32),
        speed("one engine, 1k/256, 8 requests/s", whole, chat, rate_rps=8.0),
        speed("one engine, 1k/256, 20 requests/s", whole, chat, rate_rps=20.0),
        speed(SPLIT, split(), long, concurrency=32),
        speed("2P2D, 8k/1k, 1.5 requests/s", split(), long, rate_rps=1.5),
        sweep(),
    ]
    by_case = {each.case: each for each in speeds}
    print(f"{'case':<36}{'requests':>9}{'tokens':>10}{'s':>8}{'requests/s':>12}")
    for each in speeds:
        print(f"{each.case:<36}{each.requests:>9}{each.tokens:>10}{each.seconds:>8.2f}{each.requests_per_s:>12.0f}")
    kept = {
        f"{case}: at least {least:,} requests/s": by_case[case].requests_per_s >= least
        for case, least in LEAST_RPS.items()
    }
    kept[f"{speeds[-1].case} x {REQUESTS} requests: less than {MOST_SWEEP_S} s"] = speeds[-1].seconds < MOST_SWEEP_S
    for promise, holds in kept.items():
        print(f"{'kept  ' if holds else 'BROKEN'} {promise}")
    if options.json:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
        machine = {"python": sys.version.split()[0], "machine": platform.machine(), "commit": commit}
        result = {**machine, "speed": [asdict(each) for each in speeds], "kept": kept}
        options.json.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return 0 if all(kept.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
