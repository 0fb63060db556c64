"""
What the client learns of one request while its answer streams in, and the record that comes of it. No I/O.

Times are seconds of the monotonic clock; `record` makes them relative to the start of the level.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import orjson

from tuner.load.prompts import Request
from tuner.records import OK, UNFINISHED, Phase, Record, TokenSource

CountTokens = Callable[[str], int]
_ERROR_CHARACTERS = 300
#: Finish reasons by which an engine says that it gave up.
_FAILED_FINISHES = ("abort", "error")


class Carrier(Protocol):
    """The connection that carries an answer."""

    def abandon(self) -> None:
        """Close at once."""


class Answer:
    """One request under way. Exactly one status comes of it: the first call that decides it wins."""

    __slots__ = (
        "_continuous",
        "_error_event",
        "_said",
        "_texts",
        "_times",
        "_tokens",
        "_usage_prompt",
        "_usage_tokens",
        "carrier",
        "detail",
        "done_seen",
        "finish",
        "first",
        "last",
        "phase",
        "request",
        "scheduled",
        "sent",
        "status",
    )

    def __init__(self, request: Request, scheduled: float, phase: Phase) -> None:
        self.request = request
        self.scheduled = scheduled
        self.phase: Phase = phase
        self.carrier: Carrier | None = None
        self.sent: float | None = None
        self.first: float | None = None
        self.last = 0.0  # of a token-bearing chunk
        self.status = ""  # "" = undecided
        self.detail: str | None = None
        self.finish: str | None = None
        self.done_seen = False  # `[DONE]`
        self._times: list[float] = []
        self._tokens: list[int] = []  # by continuous usage; as long as `_times` while that holds
        self._texts: list[str] = []
        self._said = 0  # tokens that continuous usage has told so far
        self._continuous = True
        self._usage_tokens: int | None = None
        self._usage_prompt: int | None = None
        self._error_event: str | None = None

    def event(self, data: bytes, now: float) -> None:
        """Take in the data of one event that was read at `now`."""
        if data == b"[DONE]":
            self.done_seen = True
            return
        try:
            event = orjson.loads(data)
            usage = event.get("usage")
            choices = event.get("choices")
        except (orjson.JSONDecodeError, AttributeError):
            self._error_event = self._error_event or f"no JSON object in an event: {data[:80]!r}"
            return
        said = None
        if usage:
            said = usage.get("completion_tokens")
            self._usage_prompt = usage.get("prompt_tokens", self._usage_prompt)
            if said is not None:
                self._usage_tokens = said
        if not choices:
            if "error" in event or event.get("object") == "error":
                self._error_event = self._error_event or _text(event.get("error") or event)
            return
        choice = choices[0]
        if choice.get("finish_reason") is not None:
            self.finish = choice["finish_reason"]
        delta = choice.get("delta")
        text = choice.get("text") if delta is None else _delta_text(delta)
        if text:
            self._chunk(text, said, now)

    def _chunk(self, text: str, said: int | None, now: float) -> None:
        if self.first is None:
            self.first = now
        self.last = now
        self._times.append(now)
        self._texts.append(text)
        if said is None:
            self._continuous = False
        elif self._continuous:
            self._tokens.append(said - self._said)
            self._said = said

    def fail(self, status: str, detail: str) -> None:
        """Decide the request as failed, unless it is decided already."""
        if not self.status:
            self.status = status
            self.detail = detail[:_ERROR_CHARACTERS]

    def end(self, *, complete: bool, detail: str = "") -> None:
        """
        Decide the request by what has arrived: the body is over.

        Args:
            complete: The body ended as HTTP says it does; False: the connection broke.
            detail: Why it broke.
        """
        if self._error_event is not None:
            self.fail("stream_error", self._error_event)
        elif self.finish in _FAILED_FINISHES:
            self.fail("stream_error", f"the engine gave up: finish_reason {self.finish}")
        elif not complete and not self.done_seen:
            self.fail("disconnected", detail or "the connection was closed before the end")
        elif self.first is None:
            self.fail("empty", "200 without a token")
        elif self.finish is None:
            self.fail("stream_error" if self.done_seen else "disconnected", "the stream ended without a finish_reason")
        elif not self.status:
            self.status = OK

    def record(self, start: float, count_tokens: CountTokens | None) -> Record:
        """
        The facts, relative to the monotonic time `start`. An undecided request is `unfinished`.

        Tokens of the chunks come from continuous usage; else from the tokenizer, or one a chunk where that agrees with
        the final usage; else the final usage is spread over the chunks by length of text, labelled `chunks`.
        """
        counts, source = self._counts(count_tokens)
        total = sum(counts)
        status = self.status or UNFINISHED
        detail = self.detail
        if status == OK and self.request.whole and total < self.request.asked_output_tokens:
            status, detail = "short", f"{total} of {self.request.asked_output_tokens} tokens, finish {self.finish}"
        return Record(
            id=str(self.request.index),
            scheduled_s=self.scheduled - start,
            sent_s=None if self.sent is None else self.sent - start,
            first_token_s=None if self.first is None else self.first - start,
            last_token_s=None if self.first is None else self.last - start,
            asked_input_tokens=self.request.asked_input_tokens,
            input_tokens=self._usage_prompt,
            asked_output_tokens=self.request.asked_output_tokens,
            output_tokens=total,
            token_source=source,
            chunks=tuple(zip([time - start for time in self._times], counts, strict=True)),
            status=status,
            error=detail,
            phase=self.phase,
        )

    def _counts(self, count_tokens: CountTokens | None) -> tuple[list[int], TokenSource]:
        chunks, usage = len(self._times), self._usage_tokens
        if chunks == 0:
            return [], "usage" if usage is not None else "chunks"
        if self._continuous and len(self._tokens) == chunks and min(self._tokens) >= 0:
            late = (usage or 0) - sum(self._tokens)  # tokens whose text never came in a chunk of its own
            return [*self._tokens[:-1], self._tokens[-1] + max(0, late)], "usage"
        if usage == chunks:
            return [1] * chunks, "usage"
        if count_tokens is not None:
            counted = [max(1, count_tokens(text)) for text in self._texts]
            return counted if usage is None else spread(counted, usage), "tokenizer"
        if usage is None:
            return [1] * chunks, "chunks"
        return spread([len(text) for text in self._texts], usage), "chunks"


def spread(weights: Sequence[int], total: int) -> list[int]:
    """
    `total` tokens over chunks in proportion to `weights` (each > 0), at least one a chunk while they last.

    Rounded by largest remainder, the earlier chunk first; sums to `total`.
    """
    chunks = len(weights)
    if total <= chunks:
        return [1] * total + [0] * (chunks - total)
    exact = [weight * total / sum(weights) for weight in weights]
    counts = [max(1, math.floor(part)) for part in exact]
    while sum(counts) != total:
        step = 1 if sum(counts) < total else -1
        able = [place for place in range(chunks) if counts[place] + step >= 1]
        counts[max(able, key=lambda place: (step * (exact[place] - counts[place]), -place))] += step
    return counts


def _delta_text(delta: dict[str, Any]) -> str | None:
    """Non-empty where the delta bears tokens: content, reasoning (under both its names) or a tool call."""
    text = delta.get("content") or delta.get("reasoning") or delta.get("reasoning_content")
    if text:
        return str(text)
    calls = delta.get("tool_calls")
    return orjson.dumps(calls).decode() if calls else None


def _text(error: object) -> str:
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])
    return str(error)
