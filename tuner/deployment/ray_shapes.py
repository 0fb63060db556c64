"""Whether a deployment fits on the nodes of a cluster: pure, from what `ray.nodes()` says."""

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.deployment.spec import ProcessSpec
from tuner.slo import Pool

Resources = dict[str, float]
#: Ray resource of a CPU pool's units; nodes of a cluster are started with `--resources='{"slot": 4}'`.
SLOT = "slot"
_CLIENT: Resources = {"CPU": 0.01}
_AUXILIARY: Resources = {"CPU": 0.01}


def bundle(spec: ProcessSpec, pools: Sequence[Pool]) -> Resources:
    """What one process takes of a node."""
    if not spec.units:
        return dict(_AUXILIARY)
    pool = next(pool for pool in pools if pool.name == spec.pool)
    return {"GPU" if pool.unit == "gpu" else SLOT: float(spec.units)}


def bundles(specs: Sequence[ProcessSpec], pools: Sequence[Pool]) -> list[Resources]:
    """Of every process in order, and of the load client at the end."""
    return [*(bundle(spec, pools) for spec in specs), dict(_CLIENT)]


def alive(nodes: Sequence[Mapping[str, Any]]) -> list[Resources]:
    """Resources of each node that lives, from `ray.nodes()`."""
    return [dict(node["Resources"]) for node in nodes if node.get("Alive")]


def misfit(needs: Sequence[Resources], nodes: Sequence[Resources], *, one_node: bool) -> str | None:
    """
    Why these bundles can never be placed on these nodes as a whole, or None.

    Args:
        needs: Of each process.
        nodes: Total resources of each node, whether in use or not.
        one_node: All on the same node, because the deployment listens on loopback.
    """
    for name in ("GPU", SLOT):
        total = sum(need.get(name, 0.0) for need in needs)
        largest = max((node.get(name, 0.0) for node in nodes), default=0.0)
        everything = sum(node.get(name, 0.0) for node in nodes)
        most = max((need.get(name, 0.0) for need in needs), default=0.0)
        if one_node and total > largest:
            return (
                f"needs {total:g} {name} on one node (cluster.bind is loopback), the largest node has {largest:g}; "
                "use `bind: node` to spread"
            )
        if total > everything:
            return f"needs {total:g} {name}, the cluster has {everything:g}"
        if most > largest:
            return f"needs {most:g} {name} on one node, the largest node has {largest:g}"
        if not _packs(sorted((need.get(name, 0.0) for need in needs), reverse=True), nodes, name):
            return f"needs {total:g} {name} in pieces that do not fit on the nodes together"
    return None


def _packs(sizes: Sequence[float], nodes: Sequence[Resources], name: str) -> bool:
    """First fit in falling order; exact for sizes that divide each other, as powers of two do."""
    free = sorted((node.get(name, 0.0) for node in nodes), reverse=True)
    for size in sizes:
        if size == 0:
            continue
        home = next((index for index, left in enumerate(free) if left >= size), None)
        if home is None:
            return False
        free[home] -= size
    return True
