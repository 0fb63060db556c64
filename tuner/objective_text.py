"""Objectives written back: canonical values, YAML text, fingerprints."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tuner.slo import Budget, Engine, Gate, Objective, Pool, Prices, Search, Slo, Source, Synthetic, Trace, Workload
from tuner.units import (
    Amount,
    format_bandwidth,
    format_budget,
    format_money_per_hour,
    format_rate,
    format_size,
    format_time,
)
from tuner.yamlfile import is_plain_text

#: Keys of the file behind each fingerprint that is not named as its key; of `search` only some count.
COMPARED: Mapping[str, tuple[str, ...]] = {
    "model": ("model", "model_revision"),
    "cluster": ("cluster", "prices"),
    "search": ("objective", "baseline"),
    "backend": (),
}
COMPARED_SEARCH = ("max_levels", "resolution", "first_guess", "divide_counts")

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./%+-]*( [A-Za-z][A-Za-z0-9_/-]*)?", re.ASCII)


def resolved(objective: Objective) -> dict[str, Any]:
    """Every value, defaults included, as `load` takes it: texts with canonical units, absolute paths."""
    found: dict[str, Any] = {
        "model": objective.model,
        "model_revision": objective.model_revision,
        "slo": _slo(objective.slo),
        "workload": _workload(objective.workload),
        "cluster": {
            "pools": [_pool(pool) for pool in objective.cluster.pools],
            "max_gpus": objective.cluster.max_gpus,
            "interconnect": _optional(format_bandwidth, objective.cluster.interconnect_bytes_per_s),
            "bind": objective.cluster.bind,
            "placement": dict.fromkeys(objective.cluster.spread, "spread") or "pack",
        },
        "prices": _prices(objective.prices),
        "objective": objective.objective,
        "search": _search(objective.search, objective.prices.currency),
        "backend": objective.backend,
        "engine": _engine(objective.engine),
    }
    if objective.gate != Gate():
        found["gate"] = asdict(objective.gate)
    if objective.baseline is not None:
        found["baseline"] = dict(objective.baseline)
    return {
        name: _without_none(value) if name not in ("engine", "baseline") else value
        for name, value in found.items()
        if value is not None
    }


def dump(objective: Objective) -> str:
    """The resolved objective as the text of an objective file."""
    return "".join(f"{line}\n" for line in _lines(resolved(objective), 0))


def fingerprint(objective: Objective) -> dict[str, str]:
    """
    SHA-256 of what makes two studies comparable, part by part, in hexadecimal.

    Traces and prompts count by their content, not by their path. Budgets, the sampler, the share of a gain that counts,
    verification and the space (it has a fingerprint of its own) are left out: they may change between runs of a study.

    Raises:
        OSError: A trace or prompts file has gone.
    """
    parts = resolved(objective)
    source = parts["workload"]["source"]
    for name in ("trace", "prompts"):
        if name in source:
            source[name] = hashlib.sha256(Path(source[name]).read_bytes()).hexdigest()
    search = {name: parts["search"].get(name) for name in COMPARED_SEARCH}
    hashed = {
        "model": [parts["model"], parts.get("model_revision")],
        "slo": parts["slo"],
        "workload": parts["workload"],
        "engine": parts["engine"],
        "cluster": [_stated(parts["cluster"]), parts["prices"]],
        "search": [parts["objective"], parts.get("baseline"), search],
    }
    return {name: hashlib.sha256(_canonical(value)).hexdigest() for name, value in hashed.items()}


def _stated(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Without the usual placement: studies that were begun before files could say it are still the same."""
    return {name: value for name, value in cluster.items() if (name, value) != ("placement", "pack")}


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _slo(slo: Slo) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for limit in slo.limits:
        found.setdefault(limit.metric, {})[limit.statistic] = format_time(limit.threshold_s)
    request = {
        "ttft": slo.request.ttft_s,
        "tpot": slo.request.tpot_s,
        "e2el": slo.request.e2el_s,
        "itl_max": slo.request.itl_max_s,
    }
    limited = {name: format_time(value) for name, value in request.items() if value is not None}
    return found | ({"request": limited} if limited else {}) | {"attainment": slo.attainment}


def _workload(workload: Workload) -> dict[str, Any]:
    arrivals, load, cache = workload.arrivals, workload.load, workload.cache
    settings = {"burstiness": arrivals.burstiness} if arrivals.process == "gamma" else {}
    loads = {
        "find_capacity": "find_capacity",
        "rate": {"rate": _optional(format_rate, load.rate_rps)},
        "concurrency": {"concurrency": load.concurrency},
    }
    return {
        "source": _source(workload.source),
        "arrivals": {arrivals.process: settings},
        "load": loads[load.kind],
        "measure": {
            "warmup": format_time(workload.measure.warmup_s),
            "duration": format_time(workload.measure.duration_s),
            "min_requests": workload.measure.min_requests,
        },
        "timeout": {
            "first_token": format_time(workload.timeout.first_token_s),
            "between_tokens": format_time(workload.timeout.between_tokens_s),
            "total": format_time(workload.timeout.total_s),
        },
        "api": workload.api,
        "cache": {"warm": cache.requests} if cache.policy == "warm" else cache.policy,
        "demand": _optional(format_rate, workload.demand_rps),
    }


def _source(source: Source) -> dict[str, Any]:
    if isinstance(source, Synthetic):
        return {
            "synthetic": {
                "input_tokens": source.input_tokens,
                "output_tokens": source.output_tokens,
                "shared_prefix_tokens": source.shared_prefix_tokens,
                "prefixes": source.prefixes,
            }
        }
    if isinstance(source, Trace):
        return {
            "trace": source.path,
            "format": source.format,
            "scale_length": source.scale_length,
            "scale_time": source.scale_time,
            "start": source.start,
            "rows": source.rows,
            "grid": format_time(source.grid_s),
            "max_input_tokens": source.max_input_tokens,
            "max_output_tokens": source.max_output_tokens,
        }
    return {"prompts": source.path, "output_tokens": source.output_tokens}


def _pool(pool: Pool) -> dict[str, Any]:
    return {
        "name": pool.name,
        pool.unit: pool.device,
        "nodes": pool.nodes,
        "per_node": pool.per_node,
        "cores": pool.cores if pool.unit == "cpu" else None,
        "memory": _optional(format_size, pool.memory_gib),
        "host_memory": _optional(format_size, pool.host_memory_gib),
        "price": format_money_per_hour(pool.price_per_hour),
    }


def _prices(prices: Prices) -> dict[str, Any]:
    return {
        "currency": prices.currency,
        "charge": prices.charge,
        "kv_store": {"ram_gib_hour": prices.ram_gib_hour, "ssd_gib_hour": prices.ssd_gib_hour},
        "network": {"gbit_hour": prices.network_gbit_hour},
    }


def _search(search: Search, currency: str) -> dict[str, Any]:
    return {
        "space": search.space,
        "trials": search.budget.trials,
        "budget": _budget(search.budget, currency) or None,
        "min_gain": search.min_gain,
        "sampler": search.sampler,
        "max_levels": search.max_levels,
        "resolution": search.resolution,
        "first_guess": _optional(format_rate, search.first_guess_rps),
        "verify": {
            "finalists": search.verify.finalists,
            "repeats": search.verify.repeats,
            "min_requests": search.verify.min_requests,
        },
        "divide_counts": search.divide_counts,
    }


def _budget(budget: Budget, currency: str) -> list[str]:
    """Everything but the trials, which have a key of their own."""
    amounts = [
        None if budget.gpu_hours is None else Amount("gpu_hours", budget.gpu_hours),
        None if budget.wall_s is None else Amount("wall_s", budget.wall_s),
        None if budget.currency is None else Amount("currency", budget.currency, currency),
    ]
    return [format_budget(amount) for amount in amounts if amount is not None]


def _engine(engine: Engine) -> dict[str, Any]:
    return {
        "command": list(engine.command),
        "env": dict(engine.env),
        "flags": dict(engine.flags),
        "router": list(engine.router),
        "stores": {name: list(command) for name, command in engine.stores.items()},
        "start_timeout": format_time(engine.start_timeout_s),
        "trust_remote_code": engine.trust_remote_code,
        **({"connector_module": engine.connector_module} if engine.connector_module else {}),
    }


def _optional(form: Any, value: float | None) -> str | None:
    return None if value is None else form(value)


def _without_none(value: Any) -> Any:
    """Absent keys are left out, at every depth."""
    if isinstance(value, Mapping):
        return {name: _without_none(item) for name, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _lines(members: Mapping[str, Any], depth: int) -> list[str]:
    lines: list[str] = []
    for name, value in members.items():
        head = f"{'  ' * depth}{_inline(name)}:"
        if isinstance(value, Mapping) and value:
            lines += [head, *_lines(value, depth + 1)]
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            lines += [head, *(f"{'  ' * (depth + 1)}- {_inline(item)}" for item in value)]
        else:
            lines.append(f"{head} {_inline(value)}")
    return lines


def _inline(value: Any) -> str:
    """One value in one line, as `yamlfile` reads it back."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_inline(name)}: {_inline(item)}" for name, item in value.items()) + "}"
    if isinstance(value, str):
        return value if _WORD.fullmatch(value) and is_plain_text(value) else _quoted(value)
    if isinstance(value, Sequence):
        return "[" + ", ".join(_inline(item) for item in value) + "]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _quoted(text: str) -> str:
    """Double quotes; everything that does not print is written by its number."""
    escaped = (
        f"\\{character}" if character in '"\\' else character if character.isprintable() else f"\\U{ord(character):08x}"
        for character in text
    )
    return '"' + "".join(escaped) + '"'
