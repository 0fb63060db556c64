r"""
What does the first token cost with 0, 1/8, 1/4, 1/2 and all of the prompt in a KV store?

Measures one configuration on the prompts of an objective file, one request after the other, once for every share of the
prompt that others had before; only `shared_prefix_tokens` differs. Prints one table and writes JSON.

    python benchmarks/kv_reuse.py --slo objectives/reference-kv-reuse-cpu.yaml --backend local \
        --configuration '{"kv_store": "mooncake", "kv_store_ram_gib": 1, "enable_prefix_caching": false}' --out DIR

With the engine's own prefix cache off, whatever is found was in the store. `--shares 0,1/2,1` measures fewer points.
"""

import argparse
import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from tuner import measuring, objective_file, objective_text
from tuner.slo import Arrivals, Load, Objective, Synthetic

SHARES = "0,1/8,1/4,1/2,1"


@dataclass(frozen=True)
class Point:
    """One share; times in milliseconds over the measured requests of the level that counts."""

    hit_tokens: int  # of each prompt, asked for
    n: int
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    kept: bool  # the promise of the file; a level that broke it for certain was cut short
    store_hit_share: float | None  # of the tokens that the store was asked for; None = not counted

    def row(self, none: "Point") -> str:
        """A line of the table; `none` is the point without a hit."""
        hits = "–" if self.store_hit_share is None else f"{self.store_hit_share:.0%}"
        return (
            f"| {self.hit_tokens} | {self.n} | {self.ttft_mean_ms:.0f} | {self.ttft_p50_ms:.0f} | "
            f"{self.ttft_p99_ms:.0f} | {none.ttft_mean_ms / self.ttft_mean_ms:.2f}× | {hits} |"
        )


def with_prefix(objective: Objective, tokens: int) -> Objective:
    """The same prompts, so many tokens of each shared, one after the other."""
    source = objective.workload.source
    if not isinstance(source, Synthetic):
        raise SystemExit("kv_reuse: the objective file needs a synthetic source")
    workload = replace(
        objective.workload,
        source=replace(source, shared_prefix_tokens=tokens),
        arrivals=Arrivals("closed_loop"),
        load=Load("concurrency", concurrency=1),
    )
    return replace(objective, workload=workload)


def measure(objective: Objective, tokens: int, arguments: argparse.Namespace) -> Point:
    """One point, in a directory of its own under `--out`."""
    out = Path(arguments.out) / f"{tokens:05d}"
    out.mkdir(parents=True, exist_ok=True)
    slo, knobs = out / "slo.yaml", out / "knobs.json"
    slo.write_text(objective_text.dump(with_prefix(objective, tokens)), encoding="utf-8")
    knobs.write_text(arguments.configuration, encoding="utf-8")
    found: dict[str, Any] = measuring.measure(
        slo,
        url=None,
        configuration=knobs,
        backend=arguments.backend,
        out=out,
        seed=arguments.seed,
        listen=lambda _: None,
    )
    if found["metrics"] is None:
        raise SystemExit(f"kv_reuse: {tokens} tokens: {found['state']}: {found['reason']}: {found['cause']}")
    ttft = found["metrics"]["ttft_ms"]
    return Point(
        hit_tokens=tokens,
        n=found["n"],
        ttft_mean_ms=ttft["mean"],
        ttft_p50_ms=ttft["p50"],
        ttft_p99_ms=ttft["p99"],
        kept=found["kept"],
        store_hit_share=found["counters"].get("store_hit_share"),
    )


def main() -> None:
    """Measure every share, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slo", required=True)
    parser.add_argument("--configuration", required=True, help="knobs as JSON")
    parser.add_argument("--backend")
    parser.add_argument("--shares", default=SHARES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    objective = objective_file.load(arguments.slo)
    source = objective.workload.source
    whole = source.input_tokens if isinstance(source, Synthetic) else 0
    shares = [Fraction(share) for share in arguments.shares.split(",")]
    points = [measure(objective, int(share * whole), arguments) for share in shares]
    print("| tokens shared | n | TTFT mean, ms | p50 | p99 | faster by | found in the store |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for point in points:
        print(point.row(points[0]))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    written = {
        "commit": commit,
        "machine": {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()},
        "configuration": json.loads(arguments.configuration),
        "points": [asdict(point) for point in points],
    }
    path = Path(arguments.out) / "kv_reuse.json"
    path.write_text(json.dumps(written, indent=1, allow_nan=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
