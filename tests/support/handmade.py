"""Records made by hand, in milliseconds as the worked examples state them."""

from collections.abc import Iterable

from tuner.records import OK, Phase, Record


def request(
    chunks_ms: Iterable[tuple[float, int]] = (),
    *,
    at_ms: float = 0.0,
    sent_ms: float | None = None,
    status: str = OK,
    asked: int | None = None,
    name: str = "r",
    phase: Phase = "measured",
) -> Record:
    """A request scheduled at `at_ms` whose chunks, (time after that, tokens), came as given."""
    chunks = tuple(((at_ms + time) / 1000, tokens) for time, tokens in chunks_ms)
    delivered = sum(tokens for _, tokens in chunks)
    return Record(
        id=name,
        scheduled_s=at_ms / 1000,
        sent_s=(at_ms if sent_ms is None else sent_ms) / 1000,
        first_token_s=chunks[0][0] if chunks else None,
        last_token_s=chunks[-1][0] if chunks else None,
        asked_input_tokens=8,
        input_tokens=8 if chunks else None,
        asked_output_tokens=max(delivered, 1) if asked is None else asked,
        output_tokens=delivered,
        token_source="usage",
        chunks=chunks,
        status=status,
        error=None if status == OK else "scripted",
        phase=phase,
    )


def answers(ttfts_ms: Iterable[float], *, every_ms: float = 100.0) -> list[Record]:
    """One-token answers with these times to first token, one arrival each `every_ms`."""
    return [request([(ttft, 1)], at_ms=index * every_ms, name=f"r{index:06d}") for index, ttft in enumerate(ttfts_ms)]


def failures(count: int, *, status: str = "http_500", every_ms: float = 100.0, asked: int = 1) -> list[Record]:
    """Requests that got nothing."""
    return [request(at_ms=index * every_ms, status=status, asked=asked, name=f"f{index:06d}") for index in range(count)]
