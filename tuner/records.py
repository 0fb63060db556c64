"""What the client saw of each request: facts only. All times are in seconds from the start of the level."""

from dataclasses import dataclass
from typing import Literal

Phase = Literal["warmup", "measured", "drain"]
TokenSource = Literal["usage", "tokenizer", "chunks"]

OK = "ok"
#: Every other way in which a request can end; `http_<code>` stands beside these.
FAILURES = (
    "stream_error",  # an error event inside a 200 stream, or a body that is no event stream
    "disconnected",  # the connection was refused, reset or closed before the end
    "timeout_first_token",
    "timeout_gap",
    "timeout_total",
    "empty",  # 200, no token
    "short",  # ended early although `ignore_eos`
)
#: Cut off by us at the end of a level that was stopped early.
UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class Record:
    """
    One request.

    `chunks` holds (time, tokens) of each token-bearing chunk in order; their token counts sum to `output_tokens`.
    `scheduled_s` is when the arrival process says that the request starts; every latency counts from it.
    """

    id: str
    scheduled_s: float
    sent_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    asked_input_tokens: int
    input_tokens: int | None
    asked_output_tokens: int
    output_tokens: int
    token_source: TokenSource
    chunks: tuple[tuple[float, int], ...]
    status: str
    error: str | None
    phase: Phase
