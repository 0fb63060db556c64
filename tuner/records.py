"""
What the client saw of each request: facts only. All times are in seconds from the start of the level.

On disk a record is one JSON object in one line, its keys in the order of the attributes, `chunks` as `[[t_s, n], …]`.
Both directions are strict: a time that is no finite number, an unknown key or a missing one is an error, never a guess.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import orjson

from tuner.errors import MeasurementError

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


_KEYS = tuple(field.name for field in fields(Record))
_TIMES = ("sent_s", "first_token_s", "last_token_s")  # None = never happened
_PHASES, _TOKEN_SOURCES = get_args(Phase), get_args(TokenSource)
_COUNTS = ("asked_input_tokens", "asked_output_tokens", "output_tokens")


def to_line(record: Record) -> bytes:
    """
    One line of JSON, newline included.

    Raises:
        MeasurementError: The record is not one that `from_line` would give back, say a time is NaN.
    """
    values = {key: getattr(record, key) for key in _KEYS}
    _check(values)
    return orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)


def from_line(line: bytes | str) -> Record:
    """
    The record of one line.

    Raises:
        MeasurementError: The line is no JSON object, or its keys or values are not those of a record.
    """
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise MeasurementError(f"record: not JSON ({error}): write one JSON object a line") from error
    if not isinstance(values, dict):
        raise MeasurementError(f"record: got {type(values).__name__}: a line holds one JSON object")
    if values.keys() != set(_KEYS):
        missing, unknown = sorted(set(_KEYS) - values.keys()), sorted(values.keys() - set(_KEYS))
        raise MeasurementError(f"record: missing keys {missing}, unknown keys {unknown}: a record has exactly {_KEYS}")
    chunks = values["chunks"]
    if isinstance(chunks, list) and _types(chunks) <= {list}:
        values["chunks"] = tuple(map(tuple, chunks))
    _check(values)
    return Record(**values)


def _check(values: Mapping[str, Any]) -> None:
    _require(values, "id", isinstance(values["id"], str), "text")
    _require(values, "status", is_status(values["status"]), "a request class")
    _require(values, "error", values["error"] is None or isinstance(values["error"], str), "text or null")
    _require(values, "phase", values["phase"] in _PHASES, f"one of {_PHASES}")
    _require(values, "token_source", values["token_source"] in _TOKEN_SOURCES, f"one of {_TOKEN_SOURCES}")
    _require(values, "scheduled_s", _is_time(values["scheduled_s"]), "a finite number of seconds")
    for key in _TIMES:
        _require(values, key, values[key] is None or _is_time(values[key]), "a finite number of seconds, or null")
    for key in _COUNTS:
        _require(values, key, _is_count(values[key]), "a whole number >= 0")
    known = values["input_tokens"]
    _require(values, "input_tokens", known is None or _is_count(known), "a whole number >= 0, or null")
    chunks = values["chunks"]
    _require(values, "chunks", _are_pairs(chunks), "pairs of a finite time and a whole number of tokens")
    _require(values, "chunks", _in_order(chunks), "in order of time")


def _are_pairs(chunks: object) -> bool:
    """All at once and in C: a level holds millions of chunks."""
    if not isinstance(chunks, tuple) or not (_types(chunks) <= {tuple} and set(map(len, chunks)) <= {2}):
        return False
    times, tokens = zip(*chunks, strict=True) if chunks else ((), ())
    finite = _types(times) <= {float, int} and all(map(math.isfinite, times))  # bool is not among them
    return finite and _types(tokens) <= {int} and min(tokens, default=0) >= 0


def _in_order(chunks: Sequence[tuple[float, int]]) -> bool:
    times = [time for time, _ in chunks]
    return times == sorted(times)


def _types(values: Iterable[object]) -> set[type]:
    return set(map(type, values))


def is_status(value: object) -> bool:
    """Whether this is one of the classes in which a request can end."""
    if not isinstance(value, str):
        return False
    code = value.removeprefix("http_")
    return value in (OK, UNFINISHED, *FAILURES) or (code != value and len(code) == 3 and code.isdecimal())


def _require(values: Mapping[str, Any], key: str, holds: bool, rule: str) -> None:
    if not holds:
        raise MeasurementError(f"record {values['id']!r}: {key}: got {str(values[key])[:80]}: it must be {rule}")


def _is_time(value: object) -> bool:
    return type(value) in (float, int) and math.isfinite(value)  # type: ignore[arg-type]  # bool is not among them


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
