"""
A store of KV blocks outside the engines' own caches: tiers of memory, each slower and larger than the one before.

What an engine has computed of a prompt is written to the first tier and costs it no time. A full tier hands its least
recently used blocks down to the next, the last one drops them. What is read comes back to the first tier. Blocks whose
content no other request can ask for take room too; they are counted and not named, as in `blocks`.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tier:
    """One kind of memory."""

    name: str  # such as ram, ssd, remote
    blocks: int  # that it holds
    latency_s: float  # of each read, > 0
    token_s: float  # of each token of KV read: its bytes / the bandwidth

    def __post_init__(self) -> None:
        if self.latency_s <= 0 or self.token_s < 0 or self.blocks < 0:
            raise ValueError(f"got {self}: latency_s > 0, token_s >= 0 and blocks >= 0 are needed")


class Store:
    """
    The reference for the kernel's store.

    Args:
        tiers: From the fastest to the slowest; at least one.
    """

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.tiers = tuple(tiers)
        # As in `BlockPool`: keys >= 0 are single blocks, negative ones runs of unnamed blocks; the oldest come first.
        self._queues: list[OrderedDict[int, int]] = [OrderedDict() for _ in self.tiers]
        self.used = [0] * len(self.tiers)  # blocks
        self._last_run = 0

    def find(self, keys: Sequence[int]) -> list[int]:
        """How many of `keys`, from the first to the first that is nowhere, lie in each tier."""
        counts = [0] * len(self.tiers)
        for key in keys:
            tier = self._tier_of(key)
            if tier is None:
                break
            counts[tier] += 1
        return counts

    def read_s(self, counts: Sequence[int], block_size: int) -> float:
        """Seconds to read so many blocks of each tier."""
        seconds = 0.0
        for tier, count in zip(self.tiers, counts, strict=True):
            if count:
                seconds += tier.latency_s + count * block_size * tier.token_s
        return seconds

    def put(self, keys: Sequence[int], unnamed: int) -> None:
        """Blocks of one prompt come to the first tier, or are used there again; its start will be evicted last."""
        if unnamed:
            self._append(0, unnamed)
        for key in reversed(keys):
            tier = self._tier_of(key)
            if tier is not None:
                del self._queues[tier][key]
                self.used[tier] -= 1
            self._queues[0][key] = 1
            self.used[0] += 1
        for tier in range(len(self.tiers)):
            self._shrink(tier)

    def _tier_of(self, key: int) -> int | None:
        return next((tier for tier, queue in enumerate(self._queues) if key in queue), None)

    def _append(self, tier: int, length: int) -> None:
        """Unnamed blocks at the end of a queue; a run that lies there already grows."""
        queue = self._queues[tier]
        self.used[tier] += length
        last = next(reversed(queue), 0)
        if last < 0:
            queue[last] += length
        else:
            self._last_run -= 1
            queue[self._last_run] = length

    def _shrink(self, tier: int) -> None:
        """The oldest blocks beyond a tier's room go down."""
        queue, room = self._queues[tier], self.tiers[tier].blocks
        below = tier + 1 < len(self.tiers)
        while self.used[tier] > room:
            key, length = next(iter(queue.items()))
            moved = min(length, self.used[tier] - room)
            if moved == length:
                del queue[key]
            else:
                queue[key] = length - moved
            self.used[tier] -= moved
            if below and key < 0:
                self._append(tier + 1, moved)
            elif below:
                self._queues[tier + 1][key] = 1
                self.used[tier + 1] += 1
