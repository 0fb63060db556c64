"""
Do the two cases that everybody knows come out of the simulated cluster with the right shape?

A. Prefill and decode apart. Qwen3-32B on four H100, prompts of 8,000 tokens, answers of 1,000, up to 64 requests at a
   time. One engine on four GPUs stalls answers for every prompt, the more the larger its token budget; two GPUs for
   prompts and two for answers do not, and take a little longer in all.
B. KV reuse. The same prompts, one at a time, of which 0 to 8,000 tokens come from a store in host memory (43 GB/s),
   with 150 ms that no cache shortens.

    python benchmarks/reference_cases.py [--docs docs] [--json FILE]

Prints both tables; with --docs it writes `reference-cases.md` and the figures there.
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from tuner.configuration import Configuration
from tuner.simulator.cluster import Cluster
from tuner.simulator.fleet import Fleet, StoreKind, make_engines
from tuner.simulator.scheduler import Request
from tuner.simulator.setup import resolve
from tuner.simulator.split import SplitCluster
from tuner.simulator.store import Tier
from tuner.slo import Cluster as Pools
from tuner.slo import Limit, Objective, Pool, Prices, Scalar, Search, Slo, Synthetic, Workload

MODEL, GPU = "Qwen/Qwen3-32B", "H100-80GB"
INPUT, OUTPUT = 8000, 1000
#: Lengths are drawn from 80 to 100 % of the nominal ones, as load generators do: equal ones would march in step.
SHORTEST = 0.8
CONCURRENCY = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 6  # requests of each slot; the first and the last are not counted
KV_BYTES = 262_144  # of a token, of this model
HITS = (0, 1000, 2000, 4000, 8000)
FIXED_S = 0.150
STORE_BYTES_PER_S = 43e9

AGGREGATED, SMALL, SPLIT = "one engine, TP4, budget 8192", "one engine, TP4, budget 2048", "1 prefill + 1 decode, TP2"


@dataclass(frozen=True)
class PointA:
    """One deployment under one concurrency; milliseconds and seconds over the counted requests."""

    deployment: str
    concurrency: int
    ttft_p50_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    itl_p999_ms: float
    stalled: float  # share of the gaps that are longer than twice the median
    largest_gap_p50_ms: float  # median over the requests of each one's largest gap
    e2el_mean_s: float
    requests_per_s: float


@dataclass(frozen=True)
class PointB:
    """Mean time to the first token with so many tokens of the prompt in the store."""

    hit_tokens: int
    ttft_ms: float
    load_ms: float
    speed_up: float  # against no hit


def fleet(knobs: dict[str, Scalar]) -> Fleet:
    """A deployment on four GPUs, 50 GB/s between them, as the simulated cluster resolves it."""
    workload = Workload(Synthetic(INPUT, OUTPUT))
    pools = Pools((Pool("gpus", "gpu", GPU, 1, 4, 1.0),), 4, interconnect_bytes_per_s=50e9)
    objective = Objective("", MODEL, Slo((Limit("ttft", "p99", 10.0),)), workload, pools, Prices("USD"), Search("vllm"))
    return resolve(Configuration(knobs), objective).fleet


def deployments() -> dict[str, Fleet]:
    """Those of case A. Decode takes as many at a time as it has room for."""
    split: dict[str, Scalar] = {"mode": "disaggregated", "tensor_parallel_size": 2}
    return {
        AGGREGATED: fleet({"tensor_parallel_size": 4}),
        SMALL: fleet({"tensor_parallel_size": 4, "max_num_batched_tokens": 2048}),
        SPLIT: fleet({**split, "decode_max_num_seqs": seats(fleet(split))}),
    }


def seats(split: Fleet) -> int:
    """Whole requests that fit into the memory of the decode engine."""
    return split.groups[-1].kv_tokens // (INPUT + OUTPUT)


def closed_loop(name: str, served_by: Fleet, concurrency: int, *, rounds: int = ROUNDS) -> PointA:
    """So many requests at a time, their first ones spread over the time that one takes alone."""
    engines = [make_engines(each) for each in served_by.groups]
    cluster = (
        SplitCluster(*engines, front_end_s=served_by.front_end_s, hand_over_s=served_by.hand_over_s)
        if served_by.split
        else Cluster(engines[0], front_end_s=served_by.front_end_s)
    )
    random = np.random.default_rng(7)
    sent: list[Request] = []

    def make(scheduled_s: float) -> Request | None:
        if len(sent) == rounds * concurrency:
            return None
        lengths = [int(random.integers(int(SHORTEST * most), most + 1)) for most in (INPUT, OUTPUT)]
        sent.append(Request(len(sent), lengths[0], lengths[1], scheduled_s=scheduled_s))
        return sent[-1]

    cluster.closed_loop([20.0 * slot / concurrency for slot in range(concurrency)], make, lambda _: False)
    counted = [each for each in sent[concurrency:] if each.status]
    times = [np.array([t for t, _ in cluster.engines[each.engine].chunks(each)]) for each in counted]
    gaps = np.concatenate([np.diff(each) for each in times])
    span_s = max(each.ended_s for each in counted) - min(each.scheduled_s for each in counted)
    return PointA(
        deployment=name,
        concurrency=concurrency,
        ttft_p50_ms=1000 * float(np.median([t[0] - r.scheduled_s for t, r in zip(times, counted, strict=True)])),
        itl_p50_ms=1000 * float(np.median(gaps)),
        itl_p99_ms=1000 * float(np.percentile(gaps, 99)),
        itl_p999_ms=1000 * float(np.percentile(gaps, 99.9)),
        stalled=float(np.mean(gaps > 2 * np.median(gaps))),
        largest_gap_p50_ms=1000 * float(np.median([np.diff(each).max() for each in times])),
        e2el_mean_s=float(np.mean([t[-1] - r.scheduled_s for t, r in zip(times, counted, strict=True)])),
        requests_per_s=len(counted) / span_s,
    )


def case_a(concurrencies: Sequence[int] = CONCURRENCY, *, rounds: int = ROUNDS) -> list[PointA]:
    """Every deployment under every concurrency."""
    return [
        closed_loop(name, each, concurrency, rounds=rounds)
        for name, each in deployments().items()
        for concurrency in concurrencies
    ]


def case_b(hits: Sequence[int] = HITS) -> list[PointB]:
    """
    One prompt after another. The engine's own cache has room for one only, so what it finds comes from the store.
    """
    whole = fleet({"tensor_parallel_size": 4}).groups[0]
    blocks = (INPUT + 16) // whole.limits.block_size
    tier = Tier("ram", 1_000_000, 0.001, KV_BYTES / STORE_BYTES_PER_S)
    forgetful = replace(whole, limits=replace(whole.limits, blocks=blocks), store=StoreKind((tier,), shared=False))
    points: list[PointB] = []
    for hit in hits:
        engines = make_engines(forgetful)
        keys = range(hit // whole.limits.block_size)
        prompts = [Request(0, INPUT, 16, keys), Request(1, INPUT, 16, scheduled_s=10.0)]
        asked = Request(2, INPUT, 16, keys, scheduled_s=20.0)
        Cluster(engines, front_end_s=FIXED_S).open_loop([*prompts, asked], lambda _: False)
        ttft_s = engines[0].chunks(asked)[0][0] - asked.scheduled_s
        load_s = tier.latency_s + asked.loaded_tokens * tier.token_s if asked.loaded_tokens else 0.0
        none_ms = points[0].ttft_ms if points else 1000 * ttft_s
        points.append(PointB(hit, 1000 * ttft_s, 1000 * load_s, none_ms / (1000 * ttft_s)))
    return points


def table_a(points: Sequence[PointA]) -> str:
    """As Markdown."""
    lines = [
        "| deployment | at a time | TTFT p50, ms | ITL p50, ms | p99 | p99.9 | stalled | largest | E2EL, s | req/s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {p.deployment} | {p.concurrency} | {p.ttft_p50_ms:.0f} | {p.itl_p50_ms:.1f} | {p.itl_p99_ms:.1f} "
        f"| {p.itl_p999_ms:.1f} | {p.stalled:.2%} | {p.largest_gap_p50_ms:.0f} | {p.e2el_mean_s:.1f} "
        f"| {p.requests_per_s:.2f} |"
        for p in points
    ]
    return "\n".join(lines)


def table_b(points: Sequence[PointB]) -> str:
    """As Markdown."""
    lines = ["| tokens found | TTFT, ms | of which loading, ms | share | faster by |", "|---:|---:|---:|---:|---:|"]
    lines += [
        f"| {p.hit_tokens} | {p.ttft_ms:.0f} | {p.load_ms:.0f} | {p.load_ms / p.ttft_ms:.0%} | {p.speed_up:.2f}× |"
        for p in points
    ]
    return "\n".join(lines)


def figures(first: Sequence[PointA], second: Sequence[PointB], directory: Path) -> None:
    """One SVG for each case; equal points give equal bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    colours = {AGGREGATED: "#b2182b", SMALL: "#f4a582", SPLIT: "#2166ac"}
    with mpl.rc_context({"svg.hashsalt": "reference cases", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(12, 3.6), layout="constrained")
        axes = figure.subplots(1, 3)
        for name, colour in colours.items():
            mine = [point for point in first if point.deployment == name]
            load = [point.concurrency for point in mine]
            axes[0].plot(load, [point.itl_p99_ms for point in mine], "o-", color=colour, label=name)
            axes[1].plot(load, [point.itl_p999_ms for point in mine], "o-", color=colour, label=name)
            axes[2].plot(load, [point.e2el_mean_s for point in mine], "o-", color=colour, label=name)
        titles = ("ITL p99, ms", "ITL p99.9, ms", "mean time to the last token, s")
        for axis, title in zip(axes, titles, strict=True):
            axis.set(xscale="log", xlabel="concurrent requests", title=title, ylim=(0, None))
            axis.set_xticks(sorted({point.concurrency for point in first}))
            axis.xaxis.set_major_formatter("{x:.0f}")
            axis.xaxis.set_minor_locator(mpl.ticker.NullLocator())
            axis.grid(visible=True, alpha=0.3)
        axes[0].legend(frameon=False)
        figure.suptitle(f"{MODEL} on four H100, {INPUT:,}/{OUTPUT:,} tokens, simulated")
        figure.savefig(directory / "reference-case-a.svg", metadata={"Date": None})

        figure = Figure(figsize=(6, 3.4), layout="constrained")
        axis = figure.subplots()
        place = range(len(second))
        rest = [point.ttft_ms - point.load_ms - 1000 * FIXED_S for point in second]
        axis.bar(place, 1000 * FIXED_S, color="#bbbbbb", label="fixed")
        axis.bar(
            place, [p.load_ms for p in second], bottom=1000 * FIXED_S, color="#2166ac", label="load from the store"
        )
        bottoms = [1000 * FIXED_S + point.load_ms for point in second]
        axis.bar(place, rest, bottom=bottoms, color="#b2182b", label="compute")
        for index, point in enumerate(second):
            axis.annotate(f"{point.speed_up:.2f}×", (index, point.ttft_ms), ha="center", va="bottom")
        axis.set_xticks(place, [f"{point.hit_tokens:,}" for point in second])
        axis.set(xlabel=f"of {INPUT:,} prompt tokens found in the store", ylabel="time to the first token, ms")
        axis.set_ylim(0, 1.15 * max(point.ttft_ms for point in second))
        axis.legend(frameon=False)
        axis.set_title(f"{MODEL} on four H100, one prompt at a time, simulated")
        figure.savefig(directory / "reference-case-b.svg", metadata={"Date": None})


def _crossing(points: Sequence[PointA]) -> str:
    """What stalls are, and where p99 ranks the two budgets the other way round."""
    by_place = {(point.deployment, point.concurrency): point for point in points}
    told = []
    for load in sorted({point.concurrency for point in points}):
        large, small = by_place[AGGREGATED, load], by_place[SMALL, load]
        if small.itl_p99_ms > 1.5 * large.itl_p99_ms:
            told.append(
                f"with {load} at a time {large.stalled:.2%} of its gaps are stalls, which p99 just misses, and "
                f"{small.stalled:.2%} of those of budget 2048"
            )
    return (
        "A gap is stalled here if it is longer than twice the median; the largest gap of a request is the median over "
        "the requests. By p99.9 the small budget lies in between wherever requests meet. By p99 it does not at few "
        "requests at a time, and that is no error: budget 8192 takes a prompt in one step and budget 2048 in four, so "
        f"the latter stalls four times as many gaps, each a quarter as long. Of budget 8192: {'; '.join(told)}. So p99 "
        "says little about stalls near 1 % of the gaps, here and on real engines; limit the largest gap of a request "
        "as well (`slo.request.itl_max`)."
    )


def page(first: Sequence[PointA], second: Sequence[PointB]) -> str:
    """docs/reference-cases.md."""
    computed_ms = second[0].ttft_ms - 1000 * FIXED_S
    stalled = max((point for point in first if point.deployment == SPLIT), key=lambda point: point.concurrency).stalled
    places = deployments()[SPLIT].groups[-1].limits.max_num_seqs
    return f"""# Reference cases

Made by `python benchmarks/reference_cases.py --docs docs`: simulated, nothing here was measured. {MODEL}, four H100,
prompts of up to {INPUT:,} and answers of up to {OUTPUT:,} tokens (80 to 100 % of that in case A).

To measure them: `objectives/reference-pd-8k.yaml` (32 at a time), `reference-pd-8k-capacity.yaml` (the highest rate)
and `reference-kv-reuse.yaml`, whose every share `benchmarks/kv_reuse.py` takes in turn; `reference-pd-cpu.yaml` and
`reference-kv-reuse-cpu.yaml` are the same on a machine of two cores.

## A. Prefill and decode apart

![Case A](figures/reference-case-a.svg)

In one engine every prompt stalls the answers beside it: the tail of the gaps between tokens grows with concurrency, and
a smaller token budget cuts it. With two GPUs for prompts and two for answers (50 GB/s
between them) the tail stays flat; a request takes somewhat longer in all, because half of the GPUs decode. These take
{places} requests at a time (`decode_max_num_seqs`), as many as their memory holds: at 64 at a time the others wait,
which TTFT shows. A request whose KV has come holds memory while it waits for its place, so a few are preempted all the
same, and computing such a prompt again stalls every answer once ({stalled:.2%} of the gaps): less than p99.9 sees.

{table_a(first)}

{textwrap.fill(_crossing(first), 120)}

## B. KV reuse

![Case B](figures/reference-case-b.svg)

{1000 * FIXED_S:.0f} ms of each first token are fixed, whatever is cached. The store hands over
{STORE_BYTES_PER_S / 1e9:.0f} GB/s.

{table_b(second)}

Published was 350 ms without a hit and 1.75× with a full one. A full hit is worth more here because computing the prompt
takes {computed_ms:.0f} ms beside the fixed part, not 200. The fixed part and the speed of the store were chosen to
match, not measured.
"""


def main() -> int:
    """Print both tables; write files where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, metavar="DIRECTORY")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    first, second = case_a(), case_b()
    print(table_a(first), table_b(second), sep="\n\n")
    if options.docs:
        figures(first, second, options.docs / "figures")
        (options.docs / "reference-cases.md").write_text(page(first, second), encoding="utf-8")
    if options.json:
        result = {"case_a": [asdict(point) for point in first], "case_b": [asdict(point) for point in second]}
        options.json.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
