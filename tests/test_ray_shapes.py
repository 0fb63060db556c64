"""Which nodes of a Ray cluster serve a pool, and what never fits on them: from what Ray says, without Ray."""

import pytest

from tuner.deployment.ray_shapes import alive, home, misfit
from tuner.placement import Piece
from tuner.slo import Pool

H100 = Pool("h100", "gpu", "H100-80GB", 1, 8, 4.0)
NVL = Pool("nvl", "gpu", "H100-NVL", 1, 8, 5.0)
A100 = Pool("a100", "gpu", "A100-80GB", 1, 8, 2.0)
ODD = Pool("odd", "gpu", "Odd-GPU-9", 1, 8, 2.0)
SLOTS = Pool("slots", "cpu", "slot", 1, 8, 0.1)
MORE = Pool("more", "cpu", "slot", 1, 8, 0.2)


def ray_nodes(*resources, **labels):
    """What `ray.nodes()` says of nodes n0, n1 …; one that is dead is never looked at."""
    found = [
        {"NodeID": f"n{number}", "Alive": True, "Resources": each, "Labels": labels}
        for number, each in enumerate(resources)
    ]
    return [*found, {"NodeID": "dead", "Alive": False, "Resources": {"GPU": 64.0, "slot": 64.0}}]


def gpus(pool: Pool, *sizes: float) -> list[Piece]:
    return [Piece("engine", pool.name, size, "GPU" if pool.unit == "gpu" else "slot") for size in sizes]


@pytest.mark.parametrize(
    ("needs", "nodes", "one_node", "said"),
    [
        pytest.param([2, 2], [4], True, None, id="fits on one node"),
        pytest.param([2, 2], [2, 2], True, "needs 4 GPU on one node", id="loopback does not spread"),
        pytest.param([2, 2], [2, 2], False, None, id="spreads over two"),
        pytest.param([4], [2, 2], False, "needs 4 GPU on one node", id="an instance never spans nodes"),
        pytest.param([3, 3], [4, 2], False, "needs 3 + 3 in pieces", id="pieces do not fit together"),
        pytest.param([8], [], False, "the cluster has 0", id="no node"),
    ],
)
def test_shapes_are_compared_with_the_nodes(needs, nodes, one_node, said):
    """RAY-04: whether a shape can ever be placed is known from the nodes' totals."""
    there = alive(ray_nodes(*({"GPU": float(count)} for count in nodes)))
    reason = misfit(gpus(H100, *needs), (H100,), there, one_node=one_node)
    assert reason is None if said is None else said in reason


@pytest.mark.parametrize(
    ("pool", "pools", "nodes", "served_by"),
    [
        pytest.param(
            H100, (H100, A100), [{"accelerator_type:A100": 1.0}, {"accelerator_type:H100": 1.0}], 1, id="type"
        ),
        pytest.param(
            A100, (H100, A100), [{"accelerator_type:A100": 1.0}, {"accelerator_type:H100": 1.0}], 0, id="size"
        ),
        pytest.param(
            A100, (A100,), [{"accelerator_type:A100": 1.0}, {"accelerator_type:A100-80G": 1.0}], 1, id="exact first"
        ),
        pytest.param(H100, (H100,), [{}], 0, id="one pool, no types"),
        pytest.param(ODD, (ODD,), [{"accelerator_type:Z9": 1.0}], 0, id="unknown type, nothing else there"),
        pytest.param(ODD, (ODD, H100), [{}, {"accelerator_type:odd_gpu-9": 1.0}], 1, id="unknown type by its name"),
        pytest.param(NVL, (H100, NVL), [{"pool:h100": 1.0}, {"pool:nvl": 1.0}], 1, id="marked"),
        pytest.param(
            H100,
            (H100, NVL),
            [{"accelerator_type:H100": 1.0, "pool:nvl": 1.0}, {"accelerator_type:H100": 1.0}],
            1,
            id="what is marked is not of another pool",
        ),
        pytest.param(H100, (H100, SLOTS, MORE), [{"pool:slots": 1.0, "pool:more": 1.0}], 0, id="GPUs beside slots"),
        pytest.param(MORE, (SLOTS, MORE), [{"pool:slots": 1.0}, {"pool:more": 1.0}], 1, id="slots by mark"),
    ],
)
def test_a_pool_is_served_by_marked_nodes_else_by_its_type(pool, pools, nodes, served_by):
    """A mark wins, then Ray's name of the GPU, the most exact one first; the rest only where there is no choice."""
    there = alive(ray_nodes(*({"GPU": 2.0, "slot": 2.0, **node} for node in nodes)))
    assert misfit(gpus(pool, 1), pools, there, one_node=False) is None
    assert home(gpus(pool, 1), pools, there, one_node=False) == [f"n{served_by}"]


def test_a_label_tells_the_type_too():
    """Clusters on Kubernetes have `ray.io/accelerator-type`."""
    there = alive(ray_nodes({"GPU": 2.0}, **{"ray.io/accelerator-type": "H100"}))
    assert misfit(gpus(H100, 2), (H100, A100), there, one_node=False) is None
    assert "A100" in str(misfit(gpus(A100, 2), (H100, A100), there, one_node=False))


@pytest.mark.parametrize(
    ("pool", "pools", "nodes", "said"),
    [
        pytest.param(
            H100,
            (H100,),
            [{"accelerator_type:L4": 1.0}],
            "pool h100: no node has accelerator_type:H100, Ray's nodes have L4; if it is H100-80GB all the same, "
            "start its nodes with --resources='{\"pool:h100\": 1}'",
            id="another type",
        ),
        pytest.param(A100, (H100, A100), [{}], "accelerator_type:A100-80G or accelerator_type:A100", id="no types"),
        pytest.param(
            NVL,
            (H100, NVL),
            [{"accelerator_type:H100": 1.0}],
            "cannot tell its nodes from those of pool h100",
            id="same",
        ),
        pytest.param(ODD, (ODD,), [{"accelerator_type:Y": 1.0}, {"accelerator_type:Z": 1.0}], "have Y, Z", id="mixed"),
        pytest.param(MORE, (SLOTS, MORE), [{}], "pool more: no node is marked as one of this pool", id="slots"),
    ],
)
def test_a_pool_that_no_node_serves_is_refused_with_the_remedy(pool, pools, nodes, said):
    """Nothing is placed, and paid for, as a type of GPU that it may not be."""
    there = alive(ray_nodes(*({"GPU": 2.0, "slot": 2.0, **node} for node in nodes)))
    assert said in str(misfit(gpus(pool, 1), pools, there, one_node=False))


def test_roles_on_two_pools_need_servers_that_reach_each_other():
    """Nodes of different pools have no loopback in common; the remedy is named."""
    there = alive(ray_nodes({"GPU": 8.0, "accelerator_type:H100": 1.0}, {"GPU": 8.0, "accelerator_type:A100": 1.0}))
    wanted = [*gpus(H100, 1), *gpus(A100, 1)]
    assert "use `bind: node`" in str(misfit(wanted, (H100, A100), there, one_node=True))
    assert misfit(wanted, (H100, A100), there, one_node=False) is None


def test_what_others_hold_is_not_there_at_the_moment():
    """Totals decide whether a shape may start at all, what is free whether it can start now."""
    said = ray_nodes({"GPU": 2.0}, {"GPU": 2.0})
    assert misfit(gpus(H100, 2, 2), (H100,), alive(said), one_node=False) is None
    now = alive(said, {"n0": {"GPU": 1.0}, "n1": {"GPU": 2.0}})
    assert home(gpus(H100, 2, 2), (H100,), now, one_node=False) is None
    assert home(gpus(H100, 2), (H100,), now, one_node=False) == ["n1"]
