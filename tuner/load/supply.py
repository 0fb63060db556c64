"""Requests made ahead of their time, so that making one never delays a send."""

from collections import deque
from collections.abc import Callable

from tuner.load.prompts import Request

#: Memory for bodies that wait; beyond it they are made in the gaps between sends.
MOST_BYTES = 256 * 1024 * 1024


class Supply:
    """
    Requests in order of their index.

    Args:
        make: The request of an index.
        count: How many there are; None = endless.
    """

    def __init__(self, make: Callable[[int], Request], count: int | None) -> None:
        self._make, self._count = make, count
        self._ready: deque[Request] = deque()
        self._bytes = 0
        self._next = 0  # index of the next one to make

    def fill(self, count: int) -> None:
        """Make up to `count` requests, as far as memory allows."""
        while self._next < count and self.top_up():
            pass

    def top_up(self) -> bool:
        """Make one more, unless there are enough; whether one was made."""
        if self._bytes >= MOST_BYTES or (self._count is not None and self._next >= self._count):
            return False
        request = self._make(self._next)
        self._next += 1
        self._ready.append(request)
        self._bytes += len(request.body)
        return True

    def take(self) -> Request:
        """The next request; made on the spot where none waits."""
        if not self._ready:
            request = self._make(self._next)
            self._next += 1
            return request
        request = self._ready.popleft()
        self._bytes -= len(request.body)
        return request

    @property
    def waiting(self) -> int:
        return len(self._ready)
