"""Which node holds which engine."""

import itertools

import pytest

from tuner.placement import Piece, Room, place, place_on_one


def engines(role: str, *sizes: float, pool: str = "p") -> list[Piece]:
    return [Piece(role, pool, size) for size in sizes]


def nodes(*sizes: float, pool: str = "p") -> list[Room]:
    return [Room((pool,), {"unit": size}) for size in sizes]


@pytest.mark.parametrize(
    ("pieces", "rooms", "spread", "homes"),
    [
        pytest.param(engines("engine", 1, 1), nodes(2, 2), (), (0, 0), id="packed on one"),
        pytest.param(engines("engine", 1, 1), nodes(2, 2), ("engine",), (0, 1), id="spread over two"),
        pytest.param(engines("engine", 1, 1, 1), nodes(2, 2), ("engine",), (0, 1, 0), id="more engines than nodes"),
        pytest.param(engines("engine", 1, 1), nodes(4), ("engine",), (0, 0), id="one node, nowhere to spread"),
        pytest.param(engines("engine", 2), nodes(4, 2), (), (1,), id="a whole node is left for a larger one"),
        pytest.param(engines("engine", 2, 4), nodes(4, 2), (), (1, 0), id="the largest chooses first"),
        pytest.param(engines("engine", 4), nodes(2, 2), (), None, id="no engine spans nodes"),
        pytest.param(engines("engine", 1, 1), nodes(1, 2), (), (1, 1), id="past a node that holds only one of them"),
        pytest.param(engines("engine", 1, 1, 1), nodes(1, 2, 4), (), (2, 2, 2), id="the one node that holds all"),
        pytest.param(engines("engine", 1, 1, 1), nodes(1, 2, 1), (), (1, 1, 0), id="no node holds all: most together"),
        pytest.param(engines("engine", 3, 3), nodes(4, 2), (), None, id="enough in total, not in one piece"),
        pytest.param(
            [*engines("prefill", 1, 1), *engines("decode", 1, 1)],
            nodes(4, 4),
            ("decode",),
            (0, 0, 0, 1),
            id="decode spreads, prefill shares",
        ),
        pytest.param(
            [*engines("prefill", 2, pool="a"), *engines("decode", 2, pool="b")],
            [*nodes(8, pool="b"), *nodes(2, pool="a")],
            (),
            (1, 0),
            id="a role stays on its pool",
        ),
        pytest.param([], nodes(1), (), (), id="nothing to place"),
        pytest.param(engines("engine", 1), [], (), None, id="no node"),
    ],
)
def test_engines_are_packed_or_spread_by_role(pieces, rooms, spread, homes):
    """What is spread keeps apart where it can, the rest shares nodes, and no engine leaves its pool."""
    assert place(pieces, rooms, spread=spread) == homes


@pytest.mark.parametrize("spread", [(), ("engine",)])
def test_sizes_that_divide_each_other_are_placed_whenever_they_can_be(spread):
    """Against every assignment there is, for engines of 1, 2 and 4 on nodes of up to 5."""
    for sizes in itertools.combinations_with_replacement((1, 2, 4), 4):
        for capacities in itertools.combinations_with_replacement((1, 3, 4, 5), 3):
            possible = any(
                all(
                    sum(size for size, at in zip(sizes, homes, strict=True) if at == node) <= capacity
                    for node, capacity in enumerate(capacities)
                )
                for homes in itertools.product(range(3), repeat=4)
            )
            found = place(engines("engine", *sizes), nodes(*capacities), spread=spread)
            assert (found is not None) == possible, (sizes, capacities)


@pytest.mark.parametrize(
    ("rooms", "homes"),
    [(nodes(2, 4), (1, 1)), (nodes(2, 2), None), ([Room(("p", "q"), {"unit": 4.0})], (0, 0))],
)
def test_all_on_one_node_or_nowhere(rooms, homes):
    """What listens on loopback goes to the first node that holds all of it."""
    assert place_on_one(engines("engine", 2, 1), rooms) == homes
