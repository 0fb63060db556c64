"""Times of tokens as records want them: pairs of time and count, one object for all requests that share a step."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from math import inf

Chunks = tuple[tuple[float, int], ...]


class StepChunks:
    """
    The steps of one engine as chunks of one token each.

    Args:
        steps: Gives the ends of the engine's steps from this one on, ascending; steps are only ever added.
    """

    def __init__(self, steps: Callable[[int], Sequence[float]]) -> None:
        self._steps = steps
        self._chunks: list[tuple[float, int]] = []

    def of(self, spans: Iterable[Sequence[int]], until_s: float = inf) -> Chunks:
        """
        A request's chunks.

        Args:
            spans: Steps, [first, past), in each of which it got one token; ascending.
            until_s: The last moment that counts.
        """
        chunks = self._chunks
        chunks.extend(zip(self._steps(len(chunks)), repeat(1)))
        past = len(chunks)
        if past and chunks[-1][0] > until_s:
            past = bisect_right(chunks, until_s, key=lambda chunk: chunk[0])
        parts = [chunks[first : min(end, past)] for first, end in spans if first < past]
        return tuple(parts[0]) if len(parts) == 1 else tuple(chain.from_iterable(parts))
