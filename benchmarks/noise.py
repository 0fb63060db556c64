"""
How much does one configuration differ from run to run, on a live engine?

The configuration is started anew N times and measured to its capacity by `tuner measure`, each time on other schedules.
Printed are the capacities, and the standard deviation of their logarithm: what `gate.noise` should say, and what
`benchmarks/nights.py --noise FILE` tries the rules at.

    python benchmarks/noise.py --slo FILE --configuration FILE [--runs N] [--backend local] --json FILE
"""

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path

from tuner import provenance
from tuner.carried import RUNS, carried
from tuner.events import Event, LevelEnded
from tuner.measuring import measure
from tuner.outcome import Level
from tuner.slo import Gate


def one(slo: Path, configuration: Path, backend: str | None, seed: int) -> tuple[float | None, dict[str, object]]:
    """Load carried in one run, and the content of its `measurement.json`."""
    levels: list[Level] = []

    def listen(event: Event) -> None:
        if isinstance(event, LevelEnded):
            levels.append(event.level)

    with tempfile.TemporaryDirectory() as folder:
        found = measure(
            slo, url=None, configuration=configuration, backend=backend, out=Path(folder), seed=seed, listen=listen
        )
    held = carried(levels, RUNS * Gate().noise)
    return None if held is None else held.load, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slo", type=Path, required=True)
    parser.add_argument("--configuration", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--backend")
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    loads: list[float] = []
    rows = []
    for run in range(asked.runs):
        load, found = one(asked.slo, asked.configuration, asked.backend, 1000 * (run + 1))
        held = "nothing" if load is None else f"{load:.3f}"
        print(f"run {run + 1}: carries {held}, source {found['source']}", flush=True)
        rows.append({"carried": load, "capacity": found["capacity"], "broken_at": found["broken_at"]})
        loads += [] if load is None else [load]
    spread = statistics.stdev(math.log(load) for load in loads) if len(loads) > 1 else None
    told = {
        "spread": spread,
        "runs": rows,
        "machine": provenance.machine(),
        "commit": provenance.git_sha(Path(__file__).parent),
        "at": provenance.now(),
    }
    asked.json.write_text(json.dumps(told, indent=2) + "\n")
    print("too few runs kept a load" if spread is None else f"noise of {len(loads)} runs: {spread:.2%}")
    raise SystemExit(0 if spread is not None else 1)


if __name__ == "__main__":
    main()
