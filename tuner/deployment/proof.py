"""
Whether a split deployment or a KV store did what it is paid for, from the engines' own counters. Pure.

A deployment that is called disaggregated while decode computes the prompts itself, or one whose store never has what it
was given, measures something else than its name says; it must not be scored.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.configuration import Configuration, RoleName
from tuner.errors import ConfigurationFailed
from tuner.load.plan import LevelData
from tuner.load.shape import RequestShapes
from tuner.records import OK

#: Of the prompt tokens that decode did not have already, so many come by transfer at least.
TRANSFERRED_SHARE = 0.95
#: Prefix tokens are counted in whole blocks of this size, the coarsest grain of any store (LMCache's chunks).
GRAIN_TOKENS = 256
#: The store is judged where at least so many requests could hit, and so much of what they share is not had already.
LEAST_REQUESTS = 10
LEAST_SHARE = 0.1

_SOURCE = "prompt_tokens_by_source_total"


@dataclass(frozen=True)
class Claim:
    """What a configuration says of itself."""

    transfer: bool = False  # decode gets its prompts from prefill
    store: str = "none"  # one of `configuration.KV_STORES`
    storing_role: RoleName = "engine"
    stores: int = 1  # that know nothing of each other: one that all engines share, or as many as there are KV caches


def claim(configuration: Configuration) -> Claim:
    """What has to be proven of a configuration."""
    stores = configuration.roles[0].caches if configuration.store_in_engines else 1
    return Claim(configuration.mode == "disaggregated", configuration.kv_store, configuration.storing_role, stores)


def refuted(claimed: Claim, data: LevelData, shapes: RequestShapes | None) -> ConfigurationFailed | None:
    """
    The failure of a level whose counters contradict the claim; None where they prove it or can tell nothing.

    Args:
        claimed: By the configuration.
        data: Of the level, with its counters.
        shapes: Of the level's requests; None where it is unknown what they share.
    """
    if claimed.transfer and (cause := _not_transferred(data)) is not None:
        return ConfigurationFailed("pd_not_effective", cause, data.counters)
    if claimed.store != "none" and shapes is not None:
        cause = _never_hit(claimed, data, shapes)
        if cause is not None:
            return ConfigurationFailed("store_not_effective", cause, data.counters)
    return None


def figures(claimed: Claim, counted: Mapping[str, float]) -> dict[str, float]:
    """
    What transfer and store did, under names with units, to be kept with the level's counters.

    `kv_transfer_share` and `store_hit_share` are shares of tokens; means are of one transfer. What was not counted is
    absent.
    """
    found: dict[str, float | None] = {}
    if claimed.transfer:
        moved, computed = (_source(counted, "decode", name) for name in ("external_kv_transfer", "local_compute"))
        took, sent = "decode.nixl_xfer_time_seconds", "decode.nixl_bytes_transferred"
        found["kv_transfer_share"] = _ratio(moved, moved + computed)
        found["kv_transfer_mean_ms"] = _scaled(_ratio(counted.get(f"{took}_sum"), counted.get(f"{took}_count")), 1e3)
        found["kv_transfer_mean_mib"] = _scaled(
            _ratio(counted.get(f"{sent}_sum"), counted.get(f"{sent}_count")), 1 / 2**20
        )
        found["kv_transfer_failed"] = counted.get("decode.nixl_num_failed_transfers_total")
    if claimed.store != "none":
        hits, asked = (_counter(counted, claimed, f"external_prefix_cache_{of}_total") for of in ("hits", "queries"))
        took = "mooncake_store_operation_time_seconds"
        loads = [
            (f"{took}_sum.load_get", f"{took}_count.load_get"),
            ("kv_offload_load_time_sum", "kv_offload_load_time_count"),
        ]
        means = (_ratio(counted.get(spent), counted.get(times)) for spent, times in loads)
        found["store_hit_share"] = _ratio(hits, asked)
        found["store_hit_tokens"] = hits
        found["store_load_mean_ms"] = _scaled(next((mean for mean in means if mean is not None), None), 1e3)
        found["store_failed_keys"] = counted.get("mooncake_store_operation_failed_keys_total.save_put")
    return {name: value for name, value in found.items() if value is not None}


def _not_transferred(data: LevelData) -> str | None:
    counted = data.counters
    moved, computed = (_source(counted, "decode", name) for name in ("external_kv_transfer", "local_compute"))
    if moved + computed == 0:
        if _source(counted, "decode", "local_cache_hit") > 0 or not any(record.status == OK for record in data.records):
            return None
        return "requests were answered, and decode's counters saw no prompt token: the router leaves it out"
    if moved >= TRANSFERRED_SHARE * (moved + computed):
        return None
    failed = counted.get("decode.nixl_num_failed_transfers_total", 0.0)
    return (
        f"decode took {moved:.0f} of {moved + computed:.0f} prompt tokens by transfer and computed {computed:.0f} "
        f"itself; failed transfers: {failed:.0f}"
    )


def _never_hit(claimed: Claim, data: LevelData, shapes: RequestShapes) -> str | None:
    counted = data.counters
    if _counter(counted, claimed, "external_prefix_cache_hits_total"):
        return None
    requests, tokens = reusable(shapes, claimed.stores)
    own = _counter(counted, claimed, "prefix_cache_hits_total") or 0.0
    if requests < LEAST_REQUESTS or tokens - own < LEAST_SHARE * tokens:
        return None
    asked = _counter(counted, claimed, "external_prefix_cache_queries_total") or 0.0
    return (
        f"{requests} requests shared {tokens} tokens with earlier ones, the engines' own cache had {own:.0f}, and "
        f"{claimed.store} had none of the {asked:.0f} that it was asked for"
    )


def reusable(shapes: RequestShapes, stores: int = 1) -> tuple[int, int]:
    """
    How many requests find whole blocks of an earlier one of the level in a store, and how many tokens these are.

    Each request goes to one of `stores`, whichever: of those with the same block, all but as many find it.
    """
    seen: Counter[int] = Counter()
    requests = blocks = 0
    if shapes.block_tokens == 0:
        return 0, 0
    for index in range(len(shapes)):
        keys = [int(key) for key in shapes.cache_keys(index, GRAIN_TOKENS) if key >= 0]
        again = sum(seen[key] >= stores for key in keys)
        seen.update(keys)
        requests += again > 0
        blocks += again
    return requests, blocks * GRAIN_TOKENS


def _source(counted: Mapping[str, float], role: str, name: str) -> float:
    return counted.get(f"{role}.{_SOURCE}.{name}", 0.0)


def _counter(counted: Mapping[str, float], claimed: Claim, name: str) -> float | None:
    """Of the engines that fill the store: those of prefill stand under its name, all engines together under none."""
    return counted.get(name if claimed.storing_role == "engine" else f"{claimed.storing_role}.{name}")


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
