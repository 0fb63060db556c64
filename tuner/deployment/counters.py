"""What engines say about themselves at /metrics: Prometheus text → the counters and gauges worth keeping."""

import re
from collections.abc import Iterable, Mapping

_PREFIX = "vllm:"
#: Gauges, sampled each second: summed over engines, except the usage, of which the fullest engine counts.
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_OF_THE_FULLEST = frozenset({"kv_cache_usage_perc"})
#: Counters by family; the label named here splits a family, every other label is summed over.
COUNTERS: Mapping[str, str] = {
    "num_preemptions_total": "",
    "prompt_tokens_total": "",
    "generation_tokens_total": "",
    "request_success_total": "finished_reason",
    "request_queue_time_seconds_sum": "",
    "request_queue_time_seconds_count": "",
    "request_prefill_time_seconds_sum": "",
    "request_decode_time_seconds_sum": "",
    "prefix_cache_queries_total": "",
    "prefix_cache_hits_total": "",
    "external_prefix_cache_queries_total": "",
    "external_prefix_cache_hits_total": "",
    "prompt_tokens_by_source_total": "source",
}
#: Families kept whole, and the label that splits them: bytes, times and failures of KV transfer and stores.
_FAMILY_PREFIXES: Mapping[str, str] = {"nixl_": "", "mooncake_store_": "operation", "kv_offload_": ""}

_LINE = re.compile(r"^(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'(?P<name>[A-Za-z_][A-Za-z0-9_]*)="(?P<value>(?:[^"\\]|\\.)*)"')


def parse(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Every sample of a Prometheus text page: name, labels, value. Lines that are no sample are skipped."""
    samples = []
    for line in text.splitlines():
        found = _LINE.match(line.strip())
        if found is None or line.startswith("#"):
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue
        labels = {each["name"]: each["value"] for each in _LABEL.finditer(found["labels"] or "")}
        samples.append((found["name"], labels, value))
    return samples


def counters(text: str) -> dict[str, float]:
    """
    Counters of one engine's page by name without `vllm:`; a split family is `family.label_value`.

    A family that the engine does not have is absent, which is not the same as zero.
    """
    found: dict[str, float] = {}
    for name, labels, value in parse(text):
        if not name.startswith(_PREFIX):
            continue
        family = name.removeprefix(_PREFIX)
        if family in COUNTERS:
            split = labels.get(COUNTERS[family], "")
        elif family.startswith(tuple(_FAMILY_PREFIXES)) and not family.endswith(("_bucket", "_created", "_perc")):
            split = labels.get(next(by for start, by in _FAMILY_PREFIXES.items() if family.startswith(start)), "")
        else:
            continue
        key = f"{family}.{split}" if split else family
        found[key] = found.get(key, 0.0) + value
    return found


def gauges(pages: Iterable[str]) -> dict[str, float]:
    """Gauges over the pages of all engines of a deployment."""
    found: dict[str, float] = {}
    for page in pages:
        for name, _, value in parse(page):
            family = name.removeprefix(_PREFIX)
            if not name.startswith(_PREFIX) or family not in GAUGES:
                continue
            before = found.get(family, 0.0)
            found[family] = max(before, value) if family in _OF_THE_FULLEST else before + value
    return found


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What was counted in between. A counter that only shows up afterwards started at zero."""
    return {name: value - before.get(name, 0.0) for name, value in sorted(after.items())}


def total(parts: Iterable[tuple[str, Mapping[str, float]]]) -> dict[str, float]:
    """
    Counters of several engines as one mapping.

    Args:
        parts: Role and counters of each engine. Sums go under the plain name; those of `prefill` and `decode` go under
            `prefill.<name>` and `decode.<name>` as well, because the proof of a transfer is on one side alone.
    """
    found: dict[str, float] = {}
    for role, values in parts:
        for name, value in values.items():
            keys = (name, f"{role}.{name}") if role in {"prefill", "decode"} else (name,)
            for key in keys:
                found[key] = found.get(key, 0.0) + value
    return found
