"""`cache: warm`: what the requests that fill caches and stores leave there before a level begins."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.simulator.fleet import AnyEngine
from tuner.simulator.router import Router
from tuner.simulator.scheduler import Request


@dataclass(slots=True)
class _Open:
    """An engine as the router knows it while caches are filled."""

    requests: int = 0

    def in_flight(self, now_s: float) -> int:
        """See `Loaded`."""
        del now_s
        return self.requests


def fill(requests: Iterable[Request], engines: Sequence[AnyEngine], router: Router, *, concurrency: int) -> None:
    """
    Requests come to idle engines and go, so many at a time, each as long as the others; no time passes.

    Args:
        requests: In order; each can run on the engines.
        engines: Of one group.
        router: Chooses among them, and remembers what it was shown.
        concurrency: How many are open at a time, >= 1.
    """
    loads = [_Open() for _ in engines]
    open_at: deque[int] = deque()
    for request in requests:
        if len(open_at) == concurrency:
            loads[open_at.popleft()].requests -= 1
        chosen = router.choose(request, loads, 0.0)
        loads[chosen].requests += 1
        open_at.append(chosen)
        engines[chosen].warm(request)
