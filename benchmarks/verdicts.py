"""
How often is a verdict wrong, and how soon does a level fail? By simulation of 4,000 levels for each row.

Independent violations, and bursts of 2 and of 5 neighbouring requests. `request` limits promise that at most 1 % of the
requests violate. `pooled` limits promise it of the gaps; a bad request has half or all of its 100 gaps above it.

    python benchmarks/verdicts.py [--runs N] [--json FILE]
"""

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner import stats
from tuner.early import BETS
from tuner.sample import Units
from tuner.slo import Limit
from tuner.verdict import judge

ALLOWED = 0.01
ALPHA = 0.05
DIVIDE = 2.0
GAPS = 100  # of each request of a pooled limit
BAD_SHARES = {"request": 1.0, "pooled half": 0.5, "pooled all": 1.0}  # of a bad request's units that violate
HORIZON = 4000  # requests of the longest level
#: Planned sizes at which a pass is decided: just enough for no and for one violation after division, and more.
SIZES = {"request": (300, 600, 950, 1500, 3000), "pooled half": (600,), "pooled all": (600, 950)}
BURSTS = (1, 2, 5)

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Row:
    """One line of the table; `bound` None = printed for information."""

    question: str
    limit: str
    burst: int
    value: float
    bound: float | None

    @property
    def holds(self) -> bool:
        return self.bound is None or self.value <= self.bound


def violations(generator: np.random.Generator, runs: int, n: int, rate: float, burst: int) -> Bools:
    """
    Which requests violate, shape (runs, n): bursts of `burst` neighbours that start at random, overlaps joined.

    The chance that a burst starts is such that the share of violating requests is exactly `rate`.
    """
    starts: Bools = generator.random((runs, n + burst - 1), dtype=np.float32) < 1 - (1 - rate) ** (1 / burst)
    found: Bools = np.array(starts[:, burst - 1 :])
    for back in range(1, burst):
        found |= starts[:, burst - 1 - back : n + burst - 1 - back]
    return found


def first_failures(found: Bools, limit: str = "request") -> NDArray[np.int64]:
    """Requests after which each run's test fails, as in `early.EarlyFailure`; 0 = never."""
    return _first_binomial(found) if limit == "request" else _first_pooled(found, BAD_SHARES[limit])


def _first_binomial(found: Bools) -> NDArray[np.int64]:
    rows, columns = np.nonzero(found)
    k = np.cumsum(found, axis=1, dtype=np.int32)[rows, columns]
    evidence = stats.log_e_value(k / DIVIDE, (columns + 1) / DIVIDE, ALLOWED)
    failing = evidence >= -math.log(ALPHA)
    never = found.shape[1] + 1
    first = np.full(len(found), never)
    np.minimum.at(first, rows[failing], columns[failing] + 1)
    return np.where(first == never, 0, first)


def _first_pooled(found: Bools, bad_share: float) -> NDArray[np.int64]:
    bets = np.array(BETS)
    good = np.log1p(-bets) / DIVIDE
    bad = np.log1p(bets * (bad_share / ALLOWED - 1)) / DIVIDE
    wealth = np.zeros((len(found), len(bets)))
    first = np.zeros(len(found), np.int64)
    for index in range(found.shape[1]):
        wealth += np.where(found[:, index, None], bad, good)
        open_and_bad = np.flatnonzero((first == 0) & found[:, index])
        failing = np.exp(wealth[open_and_bad]).mean(axis=1) >= 1 / ALPHA
        first[open_and_bad[failing]] = index + 1
    return first


def passes(found: Bools, limit: str = "request") -> float:
    """Share of runs that `verdict.judge` calls kept."""
    p99 = Limit("ttft" if limit == "request" else "itl", "p99", 1.0)
    return sum(judge(p99, units(run, limit), divide=DIVIDE).decision == "kept" for run in found) / len(found)


def units(run: Bools, limit: str) -> Units:
    """One level as what is judged: 2 s where it violates, 0.5 s where not."""
    n = len(run)
    nothing = np.zeros(n, np.int64)
    if limit == "request":
        return Units(np.where(run, 2.0, 0.5), np.ones(n, np.int64), np.arange(n), nothing, pooled=False)
    above = np.where(run, round(GAPS * BAD_SHARES[limit]), 0)
    weights = np.column_stack([GAPS - above, above]).ravel()
    return Units(np.tile([0.5, 2.0], n), weights, np.repeat(np.arange(n), 2), nothing, pooled=True)


def rows(runs: int, seed: int = 1) -> Iterator[Row]:
    """All lines; `runs` levels each."""
    generator = np.random.default_rng(seed)
    for limit, bad_share in BAD_SHARES.items():
        for burst in BURSTS:
            failed = first_failures(violations(generator, runs, HORIZON, ALLOWED / bad_share, burst), limit) > 0
            bound = 0.05 if burst <= DIVIDE else None
            yield Row("wrong FAIL, true share 1 %, up to 4,000 requests", limit, burst, float(failed.mean()), bound)
        for share, most in ((0.05, 200.0), (0.2, 25.0)):
            for burst in BURSTS:
                first = first_failures(violations(generator, runs, HORIZON, share / bad_share, burst), limit)
                mean = float(np.where(first > 0, first, HORIZON).mean())
                bound = most if burst == 1 else None
                yield Row(f"mean requests to FAIL, true share {share * 100:.0f} %", limit, burst, mean, bound)
        for burst in BURSTS:
            bound = 0.05 if burst <= DIVIDE else 0.10
            for n in SIZES[limit]:
                passed = passes(violations(generator, runs, n, 2 * ALLOWED / bad_share, burst), limit)
                yield Row(f"wrong PASS, true share 2 %, {n} requests", limit, burst, passed, bound)


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def main() -> int:
    """Print the table, write the JSON; 1 if a bound is not kept."""
    parser = argparse.ArgumentParser(description="How often is a verdict wrong, and how soon does a level fail?")
    parser.add_argument("--runs", type=int, default=4000)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    began = time.monotonic()
    print(f"{'question':50}{'limit':12}{'burst':>6}{'value':>10}{'bound':>8}")
    found = []
    for row in rows(arguments.runs):
        found.append(row)
        bound = "" if row.bound is None else f"{row.bound:g}"
        mark = "" if row.holds else "  <-- not kept"
        print(f"{row.question:50}{row.limit:12}{row.burst:>6}{row.value:>10.4g}{bound:>8}{mark}", flush=True)
    seconds = time.monotonic() - began
    print(f"{arguments.runs} runs a row, {seconds:.0f} s")
    if arguments.json is not None:
        report = {
            "benchmark": "verdicts",
            "runs": arguments.runs,
            "seconds": round(seconds, 1),
            "machine": platform.platform(),
            "python": platform.python_version(),
            "commit": _commit(),
            "rows": [{**asdict(row), "holds": row.holds} for row in found],
        }
        arguments.json.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return 0 if all(row.holds for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
