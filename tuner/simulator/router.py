"""Which engine a request goes to."""

from collections.abc import Sequence
from typing import Literal, Protocol, get_args

from tuner.simulator.scheduler import Request

Policy = Literal["round_robin", "random", "least_loaded", "prefix_aware"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

#: Of `prefix_aware`: from this share of a prompt on, the engine that has seen it wins …
MATCHED_SHARE = 0.3
#: … unless loads lie further apart than both of these; then the least loaded does. As in vllm-router's `cache_aware`.
UNBALANCED_REQUESTS = 64
UNBALANCED_FACTOR = 1.5


class Loaded(Protocol):
    """What a router knows of an engine."""

    def in_flight(self, now_s: float) -> int:
        """Its open requests."""


class Router:
    """
    A router's state.

    Args:
        policy: `round_robin` takes turns. `random` spreads evenly by the request's number. `least_loaded` takes the
            engine with the fewest open requests. `prefix_aware` takes the one that was sent the longest part of the
            prompt before; where that is short, or loads are far apart, the least loaded.
        block_size: Tokens of the blocks that keys stand for.
    """

    def __init__(self, policy: Policy = "round_robin", block_size: int = 16) -> None:
        self._policy = policy
        self._block_size = block_size
        self._turn = 0
        self._sent: dict[int, set[int]] = {}  # key → engines that were sent it

    @property
    def looks(self) -> bool:
        """Whether it asks for loads: then engines must have come to the moment of the choice."""
        return self._policy in ("least_loaded", "prefix_aware")

    def choose(self, request: Request, engines: Sequence[Loaded], now_s: float) -> int:
        """Index of the engine that a request goes to now."""
        if self._policy == "random":
            return _scattered(request.number) % len(engines)
        if self._policy == "round_robin":
            chosen = self._turn
            self._turn = (self._turn + 1) % len(engines)
            return chosen
        loads = [engine.in_flight(now_s) for engine in engines]
        chosen = loads.index(min(loads))
        if self._policy == "prefix_aware":
            far_apart = max(loads) - min(loads) > UNBALANCED_REQUESTS and max(loads) > UNBALANCED_FACTOR * min(loads)
            if not far_apart:
                chosen = self._familiar(request, loads, chosen)
            for key in request.keys:
                self._sent.setdefault(key, set()).add(chosen)
        return chosen

    def _familiar(self, request: Request, loads: Sequence[int], otherwise: int) -> int:
        """The engine that knows the longest part of the prompt; among equals the least loaded."""
        knowing, length = set(range(len(loads))), 0
        for key in request.keys:
            still = knowing & self._sent.get(key, set())
            if not still:
                break
            knowing, length = still, length + 1
        if length * self._block_size < MATCHED_SHARE * request.prompt or not length:
            return otherwise
        return min(knowing, key=lambda index: (loads[index], index))


def _scattered(number: int) -> int:
    """A fixed hash of a number. Source: the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mask = 0xFFFFFFFFFFFFFFFF
    mixed = (number + 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return mixed ^ (mixed >> 31)
