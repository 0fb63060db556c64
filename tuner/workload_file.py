"""The block `workload` of an objective file, and readers of values that other blocks share."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, cast

from tuner.slo import (
    Arrivals,
    Cache,
    Load,
    Measure,
    Prompts,
    Source,
    Synthetic,
    Timeouts,
    Trace,
    Workload,
)
from tuner.units import parse_rate_rps, parse_time_s
from tuner.yamlfile import Node, near

#: Keys of each block, by its dotted path.
KEYS: Mapping[str, tuple[str, ...]] = {
    "workload": ("source", "arrivals", "load", "measure", "timeout", "api", "cache", "demand"),
    "workload.source.synthetic": ("input_tokens", "output_tokens", "shared_prefix_tokens", "prefixes"),
    "workload.source (trace)": (
        "trace",
        "format",
        "scale_length",
        "scale_time",
        "start",
        "rows",
        "grid",
        "max_input_tokens",
        "max_output_tokens",
    ),
    "workload.source (prompts)": ("prompts", "output_tokens"),
    "workload.arrivals": ("poisson", "constant", "gamma", "replay", "closed_loop"),
    "workload.arrivals.gamma": ("burstiness",),
    "workload.load": ("rate", "concurrency"),
    "workload.measure": ("warmup", "duration", "min_requests"),
    "workload.timeout": ("first_token", "between_tokens", "total"),
    "workload.cache": ("warm",),
}
_FORMATS = {".jsonl": "mooncake", ".csv": "azure"}
_MAX_TOKENS = 10_000_000


def positive_time(node: Node) -> float:
    """Seconds, above 0."""
    seconds = node.convert(parse_time_s)
    if seconds <= 0:
        node.fail(f"got {node.shown()}: must be above 0")
    return seconds


def positive_rate(node: Node) -> float:
    """Requests per second, above 0."""
    rate_rps = node.convert(parse_rate_rps)
    if rate_rps <= 0:
        node.fail(f"got {node.shown()}: must be above 0")
    return rate_rps


def file_path(node: Node, base: Path, what: str) -> str:
    """Absolute path of an existing file, written relative to the objective file."""
    path = os.path.normpath(base / Path(node.text()).expanduser())
    if not os.path.isfile(path):  # noqa: PTH113  a name too long is an answer, no error
        node.fail(f"got {node.shown()}: no such {what} (looked for {path}); paths are relative to the objective file")
    return path


def workload(node: Node, base: Path) -> Workload:
    """The traffic. `base` is the folder that paths are relative to."""
    members = node.mapping(KEYS["workload"], required=["source"])
    load = _load(members["load"]) if "load" in members else Load()
    source = _source(members["source"], base)
    arrivals = _arrivals(members.get("arrivals"), load, source)
    return Workload(
        source=source,
        arrivals=arrivals,
        load=load,
        measure=_measure(members["measure"]) if "measure" in members else Measure(),
        timeout=_timeouts(members["timeout"]) if "timeout" in members else Timeouts(),
        api=cast("Literal['chat', 'completions']", members["api"].choice(["chat", "completions"]))
        if "api" in members
        else "completions",
        cache=_cache(members["cache"]) if "cache" in members else Cache(),
        demand_rps=positive_rate(members["demand"]) if "demand" in members else None,
    )


def _source(node: Node, base: Path) -> Source:
    names = [name for name, _ in node.items()]
    kinds: dict[str, Callable[[Node, Path], Source]] = {"synthetic": _synthetic, "trace": _trace, "prompts": _prompts}
    given = [name for name in names if name in kinds]
    if len(given) != 1:
        got = "several sources" if given else f"the keys {', '.join(names) or '(none)'}"
        hint = "".join(near(name, list(kinds)) for name in names[:1]) if not given else ""
        node.fail(f"got {got}{hint}: give exactly one of synthetic: {{…}}, trace: path, prompts: path")
    return kinds[given[0]](node, base)


def _synthetic(node: Node, _base: Path) -> Synthetic:
    inner = node.mapping(["synthetic"])["synthetic"]
    members = inner.mapping(KEYS["workload.source.synthetic"], required=["input_tokens", "output_tokens"])
    tokens = {name: member.integer(minimum=0, maximum=_MAX_TOKENS) for name, member in members.items()}
    for name in ("input_tokens", "output_tokens", "prefixes"):
        if tokens.get(name) == 0:
            members[name].fail("got 0: must be at least 1")
    if tokens.get("shared_prefix_tokens", 0) > tokens["input_tokens"]:
        members["shared_prefix_tokens"].fail(
            f"got {tokens['shared_prefix_tokens']}: the prefix is part of the input, "
            f"so it has at most input_tokens = {tokens['input_tokens']} tokens"
        )
    return Synthetic(
        tokens["input_tokens"],
        tokens["output_tokens"],
        shared_prefix_tokens=tokens.get("shared_prefix_tokens", 0),
        prefixes=tokens.get("prefixes", 1),
    )


def _trace(node: Node, base: Path) -> Trace:
    members = node.mapping(KEYS["workload.source (trace)"])
    path = file_path(members["trace"], base, "trace")
    if "format" in members:
        form = members["format"].choice(["mooncake", "azure"])
    elif Path(path).suffix in _FORMATS:
        form = _FORMATS[Path(path).suffix]
    else:
        node.fail("the trace's format is unknown: give format: mooncake (JSON lines) or format: azure (CSV)")
    defaults = Trace(path, cast("Literal['mooncake', 'azure']", form))
    factors = {name: members[name].number(above=0) for name in ("scale_length", "scale_time") if name in members}
    counts = {
        name: members[name].integer(minimum=0 if name == "start" else 1)
        for name in ("start", "rows", "max_input_tokens", "max_output_tokens")
        if name in members
    }
    return Trace(
        path,
        defaults.format,
        scale_length=factors.get("scale_length", defaults.scale_length),
        scale_time=factors.get("scale_time", defaults.scale_time),
        start=counts.get("start", defaults.start),
        rows=counts.get("rows"),
        grid_s=members["grid"].convert(parse_time_s) if "grid" in members else defaults.grid_s,
        max_input_tokens=counts.get("max_input_tokens"),
        max_output_tokens=counts.get("max_output_tokens"),
    )


def _prompts(node: Node, base: Path) -> Prompts:
    members = node.mapping(KEYS["workload.source (prompts)"])
    path = file_path(members["prompts"], base, "file of prompts")
    output = members.get("output_tokens")
    return Prompts(path, None if output is None else output.integer(minimum=1, maximum=_MAX_TOKENS))


def _load(node: Node) -> Load:
    if not node.is_mapping:
        if node.text() != "find_capacity":
            node.fail(f"got {node.shown()}: write find_capacity, {{rate: 4/s}} or {{concurrency: 32}}")
        return Load()
    members = node.mapping(KEYS["workload.load"])
    if len(members) != 1:
        node.fail("give exactly one of {rate: 4/s} and {concurrency: 32}, or the word find_capacity")
    if "rate" in members:
        return Load("rate", rate_rps=positive_rate(members["rate"]))
    return Load("concurrency", concurrency=members["concurrency"].integer(minimum=1, maximum=100_000))


def _arrivals(node: Node | None, load: Load, source: Source) -> Arrivals:
    """The arrival process; a fixed concurrency is a closed loop by itself, and nothing else."""
    if node is None:
        return Arrivals("closed_loop") if load.kind == "concurrency" else Arrivals()
    arrivals = _process(node)
    if load.kind == "concurrency" and arrivals.process != "closed_loop":
        node.fail(
            f"{arrivals.process} arrivals have a rate, but workload.load gives a concurrency: "
            "remove this key, or write load: {rate: 4/s}"
        )
    if load.kind == "rate" and arrivals.process == "closed_loop":
        node.fail("a closed loop has no rate: write load: {concurrency: 32} or load: find_capacity")
    if arrivals.process == "replay" and not isinstance(source, Trace):
        node.fail("replay needs the gaps of a trace: write workload.source: {trace: path}, or other arrivals")
    return arrivals


def _process(node: Node) -> Arrivals:
    if not node.is_mapping:
        name, inner = node.choice(KEYS["workload.arrivals"]), None
    else:
        members = node.mapping(KEYS["workload.arrivals"])
        if len(members) != 1:
            node.fail(f"give exactly one of {', '.join(KEYS['workload.arrivals'])}")
        name, inner = next(iter(members.items()))
    process = cast("Literal['poisson', 'constant', 'gamma', 'replay', 'closed_loop']", name)
    if process != "gamma":
        if inner is not None:
            inner.mapping([])
        return Arrivals(process)
    if inner is None:
        node.fail(
            "gamma arrivals need their burstiness: write {gamma: {burstiness: 0.5}}; 1 is Poisson, below burstier"
        )
    settings = inner.mapping(KEYS["workload.arrivals.gamma"], required=["burstiness"])
    return Arrivals(process, settings["burstiness"].number(minimum=0.01, maximum=1000))


def _measure(node: Node) -> Measure:
    members = node.mapping(KEYS["workload.measure"])
    defaults = Measure()
    return Measure(
        members["warmup"].convert(parse_time_s) if "warmup" in members else defaults.warmup_s,
        positive_time(members["duration"]) if "duration" in members else defaults.duration_s,
        members["min_requests"].integer(minimum=1, maximum=_MAX_TOKENS)
        if "min_requests" in members
        else defaults.min_requests,
    )


def _timeouts(node: Node) -> Timeouts:
    members = node.mapping(KEYS["workload.timeout"])
    return Timeouts(**{f"{name}_s": positive_time(member) for name, member in members.items()})


def _cache(node: Node) -> Cache:
    if not node.is_mapping:
        policy = node.text()
        if policy not in ("cold", "steady"):
            node.fail(f"got {node.shown()}{near(policy, ['cold', 'steady'])}: write cold, steady or {{warm: 200}}")
        return Cache(cast("Literal['cold', 'steady']", policy))
    members = node.mapping(KEYS["workload.cache"], required=["warm"])
    return Cache("warm", members["warm"].integer(minimum=1, maximum=_MAX_TOKENS))
