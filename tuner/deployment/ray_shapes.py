"""Which nodes of a cluster a deployment may use, and where on them it goes: pure, from what `ray.nodes()` says."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner import devices
from tuner.deployment.spec import ProcessSpec
from tuner.placement import Piece, Room, place, place_on_one
from tuner.slo import Pool

Resources = Mapping[str, float]
#: Ray resource of a CPU pool's units; nodes of a cluster are started with `--resources='{"slot": 4}'`.
SLOT = "slot"
#: A node that offers the resource `pool:NAME` belongs to that pool, whatever its GPUs are called.
MARK = "pool:"
_TYPE = "accelerator_type:"
_TYPE_LABEL = "ray.io/accelerator-type"


@dataclass(frozen=True)
class RayNode:
    """A living node."""

    id: str
    total: Resources
    free: Resources
    types: frozenset[str]  # what Ray calls its GPUs; empty where it does not know
    marks: frozenset[str]  # names of pools that it was started for


def resource(pool: Pool) -> str:
    """The Ray resource of a pool's units."""
    return "GPU" if pool.unit == "gpu" else SLOT


def pieces(specs: Sequence[ProcessSpec], pools: Sequence[Pool]) -> list[Piece]:
    """Of every process that holds units, in their order: the bundles of a placement group."""
    by_name = {pool.name: pool for pool in pools}
    return [Piece(spec.role, spec.pool, spec.units, resource(by_name[spec.pool])) for spec in specs if spec.units]


def alive(nodes: Sequence[Mapping[str, Any]], free: Mapping[str, Resources] | None = None) -> list[RayNode]:
    """
    The nodes that live, from `ray.nodes()`.

    Args:
        nodes: What Ray says.
        free: What is free on each node, by id; None = everything.
    """
    return [_node(node, free) for node in nodes if node.get("Alive")]


def rooms(pools: Sequence[Pool], nodes: Sequence[RayNode]) -> list[Room]:
    """What each node offers to which pools."""
    serving = {pool.name: {node.id for node in _serving(pool, pools, nodes)} for pool in pools}
    return [Room([name for name, ids in serving.items() if node.id in ids], node.free) for node in nodes]


def home(
    wanted: Sequence[Piece],
    pools: Sequence[Pool],
    nodes: Sequence[RayNode],
    *,
    one_node: bool,
    spread: Collection[str] = (),
) -> list[str] | None:
    """The node id of each piece; None where they do not fit on what these nodes offer."""
    offered = rooms(pools, nodes)
    found = place_on_one(wanted, offered) if one_node else place(wanted, offered, spread=spread)
    return None if found is None else [nodes[index].id for index in found]


def misfit(wanted: Sequence[Piece], pools: Sequence[Pool], nodes: Sequence[RayNode], *, one_node: bool) -> str | None:
    """
    Why these pieces can never be placed on these nodes as a whole, or None.

    Args:
        wanted: Of each process.
        pools: Of the cluster, as the objective file has them.
        nodes: With everything free.
        one_node: All on the same node, because the deployment listens on loopback.
    """
    used = [pool for pool in pools if any(piece.pool == pool.name for piece in wanted)]
    for pool in used:
        problem = _unserved(pool, pools, nodes) or _too_large(wanted, pool, pools, nodes, one_node=one_node)
        if problem is not None:
            return f"pool {pool.name}: {problem}"
    if home(wanted, pools, nodes, one_node=one_node) is not None:
        return None
    names = " and ".join(pool.name for pool in used)
    if one_node:
        return f"pools {names} have no node in common (cluster.bind is loopback); use `bind: node` to spread"
    return f"pool {names}: needs {_listed(wanted)} in pieces that do not fit on the nodes together"


def _node(node: Mapping[str, Any], free: Mapping[str, Resources] | None) -> RayNode:
    total: Resources = node["Resources"]
    label = (node.get("Labels") or {}).get(_TYPE_LABEL)
    types = {name.removeprefix(_TYPE) for name in total if name.startswith(_TYPE)} | ({label} if label else set())
    marks = frozenset(name.removeprefix(MARK) for name in total if name.startswith(MARK))
    left = total if free is None else free.get(node["NodeID"], {})
    return RayNode(node["NodeID"], total, left, frozenset(types), marks)


def _serving(pool: Pool, pools: Sequence[Pool], nodes: Sequence[RayNode]) -> list[RayNode]:
    """
    The nodes of a pool: those that are marked for it; else those whose GPUs are of its type; else, where nothing tells
    pools apart and there is one of this kind alone, every node that is marked for none.
    """
    have = [node for node in nodes if node.total.get(resource(pool), 0.0) > 0]
    marked = [node for node in have if pool.name in node.marks]
    if marked:
        return marked
    elsewhere = {other.name for other in pools if other.unit != pool.unit}  # such marks say nothing about this kind
    unmarked = [node for node in have if node.marks <= elsewhere]
    alone = sum(other.unit == pool.unit for other in pools) == 1
    if pool.unit == "cpu":
        return unmarked if alone else []
    for name in devices.ray_types(pool):
        typed = [node for node in unmarked if devices.same(name, node.types)]
        if typed:
            return typed
    kinds = {node.types for node in unmarked if node.types}
    unknown = devices.of_pool(pool) is None and len(kinds) <= 1  # no table says what Ray calls it
    return unmarked if alone and (unknown or not kinds) else []


def _unserved(pool: Pool, pools: Sequence[Pool], nodes: Sequence[RayNode]) -> str | None:
    """Why no node can be taken for the pool's, with the remedy."""
    remedy = f"start its nodes with --resources='{{\"{MARK}{pool.name}\": 1}}'"
    mine = {node.id for node in _serving(pool, pools, nodes)}
    for other in pools:
        theirs = {node.id for node in _serving(other, pools, nodes)}
        if other.name != pool.name and other.unit == pool.unit and mine & theirs and not _marked(pool, other, nodes):
            return f"Ray cannot tell its nodes from those of pool {other.name}; {remedy}"
    if mine or not any(node.total.get(resource(pool), 0.0) > 0 for node in nodes):
        return None
    if pool.unit == "cpu":
        return f"no node is marked as one of this pool, and there are several pools of slots; {remedy}"
    there = sorted({name for node in nodes for name in node.types}) or ["no types of GPU"]
    wanted = " or ".join(_TYPE + name for name in devices.ray_types(pool))
    return f"no node has {wanted}, Ray's nodes have {', '.join(there)}; if it is {pool.device} all the same, {remedy}"


def _marked(pool: Pool, other: Pool, nodes: Sequence[RayNode]) -> bool:
    """Whether somebody said which nodes are those of either pool."""
    marks = {mark for node in nodes for mark in node.marks}
    return {pool.name, other.name} <= marks


def _too_large(
    wanted: Sequence[Piece], pool: Pool, pools: Sequence[Pool], nodes: Sequence[RayNode], *, one_node: bool
) -> str | None:
    name = resource(pool)
    sizes = [piece.size for piece in wanted if piece.pool == pool.name]
    have = [node.total.get(name, 0.0) for node in _serving(pool, pools, nodes)]
    total, most, largest = sum(sizes), max(sizes), max(have, default=0.0)
    if one_node and total > largest:
        return (
            f"needs {total:g} {name} on one node (cluster.bind is loopback), the largest node has {largest:g}; "
            "use `bind: node` to spread"
        )
    if total > sum(have):
        return f"needs {total:g} {name}, the cluster has {sum(have):g}"
    return f"needs {most:g} {name} on one node, the largest node has {largest:g}" if most > largest else None


def _listed(wanted: Sequence[Piece]) -> str:
    return " + ".join(f"{piece.size:g}" for piece in sorted(wanted, key=lambda piece: -piece.size))
