"""
Which node holds which engine: one answer for the rules, for prices by whole servers and for a live cluster. Pure.

An engine never spans nodes. Engines of a role that is packed share nodes where they can; those of a role that is spread
keep apart where they can. The largest engines are placed first, which is exact for sizes that divide each other, as
powers of two do: whichever node a large one takes, as much room is left for the small ones.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """What one engine takes of a node."""

    role: str
    pool: str
    size: float
    resource: str = "unit"  # what it takes `size` of; pools whose nodes have both GPUs and CPU slots tell them apart


@dataclass(frozen=True)
class Room:
    """What one node has."""

    pools: Collection[str]  # names of the pools that it belongs to
    free: Mapping[str, float]  # by resource

    def holds(self, piece: Piece, taken: float = 0.0) -> bool:
        """Whether there is room for the piece beside what is taken of the same resource."""
        return piece.pool in self.pools and self.free.get(piece.resource, 0.0) - taken >= piece.size


def place(pieces: Sequence[Piece], rooms: Sequence[Room], *, spread: Collection[str] = ()) -> tuple[int, ...] | None:
    """
    The index of each piece's room; None where they do not all fit.

    Args:
        pieces: Of one deployment.
        rooms: Every node with what is free on it.
        spread: Roles whose engines keep apart; all others share.
    """
    taken: list[dict[str, float]] = [{} for _ in rooms]
    roles: list[list[str]] = [[] for _ in rooms]
    homes: dict[int, int] = {}

    def left(index: int, resource: str) -> float:
        return rooms[index].free.get(resource, 0.0) - taken[index].get(resource, 0.0)

    def company(index: int) -> float:
        """How much of what is still to be placed and likes company has room here: the less, the worse a choice."""
        wanted: dict[str, float] = defaultdict(float)
        for number, piece in enumerate(pieces):
            if number not in homes and piece.role not in spread and piece.pool in rooms[index].pools:
                wanted[piece.resource] += piece.size
        return sum(min(size, left(index, resource)) for resource, size in wanted.items())

    def preference(index: int, piece: Piece) -> tuple[float, float, float, int]:
        if piece.role in spread:
            return roles[index].count(piece.role), 0.0, -left(index, piece.resource), index
        return 0.0 if roles[index] else 1.0, -company(index), left(index, piece.resource), index

    for number in sorted(range(len(pieces)), key=lambda each: (-pieces[each].size, pieces[each].role not in spread)):
        piece = pieces[number]
        fitting = [
            index for index, room in enumerate(rooms) if room.holds(piece, taken[index].get(piece.resource, 0.0))
        ]
        if not fitting:
            return None
        home = min(fitting, key=lambda index: preference(index, piece))
        taken[home][piece.resource] = taken[home].get(piece.resource, 0.0) + piece.size
        roles[home].append(piece.role)
        homes[number] = home
    return tuple(homes[number] for number in range(len(pieces)))


def place_on_one(pieces: Sequence[Piece], rooms: Sequence[Room]) -> tuple[int, ...] | None:
    """The index of the first room that holds all pieces, once for each; None where there is none."""
    for index, room in enumerate(rooms):
        if place(pieces, [room]) is not None:
            return (index,) * len(pieces)
    return None
