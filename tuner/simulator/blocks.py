"""
KV blocks of one engine: how many are free, which ones hold a shared prefix, and which of those are evicted first.

Blocks with content that no other request can ask for are interchangeable, so they are counted and not named. A block of
a shared prefix has a key; equal keys mean equal tokens from the start of the prompt to the end of that block. Free
blocks wait in one queue in the order in which they were given back, and the oldest is used next; a keyed block in the
queue can still be hit until then.
"""

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """
    The blocks of one engine.

    `free` counts blocks that no request holds, keyed ones included: 0 <= free <= blocks.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.evictions = 0  # keyed blocks that were overwritten
        self.reset()

    def reset(self) -> None:
        """Forget every prefix. Only while no request holds a block."""
        self.free = self.blocks
        self._holders: dict[int, int] = {}  # key → requests that hold the block
        # Keys >= 0 are single blocks, negative ones are runs of blocks without a key; the value is the run's length.
        self._queue: OrderedDict[int, int] = OrderedDict({-1: self.blocks})
        self._last_run = -1

    def cached(self, keys: Sequence[int]) -> int:
        """How many of `keys`, from the first on, are in the cache."""
        holders = self._holders
        for count, key in enumerate(keys):
            if key not in holders:
                return count
        return len(keys)

    def idle(self, keys: Sequence[int]) -> int:
        """How many of these cached keys are held by nobody: holding them takes free blocks."""
        holders = self._holders
        return sum(1 for key in keys if not holders[key])

    def hold(self, keys: Sequence[int]) -> None:
        """A request uses these cached blocks."""
        for key in keys:
            if not self._holders[key]:
                del self._queue[key]
                self.free -= 1
            self._holders[key] += 1

    def take(self, count: int) -> None:
        """`count` <= `free` blocks are going to be written; prefixes that lay in them are gone."""
        self.free -= count
        queue = self._queue
        while count > 0:
            key, length = queue.popitem(last=False)
            if key >= 0:
                del self._holders[key]
                self.evictions += 1
            elif length > count:
                queue[key] = length - count
                queue.move_to_end(key, last=False)
                return
            count -= length

    def publish(self, key: int) -> bool:
        """A block that was taken now holds this prefix. False: another one does already; this one stays unnamed."""
        if key in self._holders:
            return False
        self._holders[key] = 1
        return True

    def give_back(self, unnamed: int, keys: Sequence[int]) -> None:
        """A request lets go of its blocks; the start of its prompt is evicted last."""
        queue = self._queue
        if unnamed:
            self.free += unnamed
            if next(reversed(queue), 0) == self._last_run:
                queue[self._last_run] += unnamed
            else:
                self._last_run -= 1
                queue[self._last_run] = unnamed
        for key in reversed(keys):
            self._holders[key] -= 1
            if not self._holders[key]:
                queue[key] = 1
                self.free += 1
