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
        self._all: Chunks | None = None  # the same, once no more came: a slice of a tuple is made in one go

    def of(self, spans: Iterable[Sequence[int]], until_s: float = inf) -> Chunks:
        """
        A request's chunks.

        Args:
            spans: Steps, [first, past), in each of which it got one token; ascending.
            until_s: The last moment that counts.
        """
        chunks, known = self._chunks, len(self._chunks)
        chunks.extend(zip(self._steps(known), repeat(1)))
        past = len(chunks)
        if past > known:
            self._all = None
        elif self._all is None:
            self._all = tuple(chunks)
        if past and chunks[-1][0] > until_s:
            past = bisect_right(chunks, until_s, key=lambda chunk: chunk[0])
        source: Sequence[tuple[float, int]] = chunks if self._all is None else self._all
        parts = [source[first : min(end, past)] for first, end in spans if first < past]
        return tuple(parts[0]) if len(parts) == 1 else tuple(chain.from_iterable(parts))
