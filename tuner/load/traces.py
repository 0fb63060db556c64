"""
Reads recorded traces and prompts files into rows; every fault names its line.

Formats: Mooncake (JSON lines with `timestamp` in ms, `input_length`, `output_length`, `hash_ids` of 512-token blocks)
and Azure (CSV with TIMESTAMP, ContextTokens, GeneratedTokens).
"""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import numpy as np
import orjson

from tuner.errors import FileError, InputError, Location
from tuner.load.shape import Rows
from tuner.slo import Prompts, Source, Synthetic, Trace

#: Tokens of one Mooncake block, before scaling. Source: the trace's own description (Mooncake, FAST'25).
MOONCAKE_BLOCK_TOKENS = 512
#: Characters of English text per token, where no tokenizer is known.
CHARACTERS_PER_TOKEN = 4.0


@dataclass(frozen=True)
class Prompt:
    """One line of a prompts file: either text, or chat messages."""

    text: str | None
    messages: tuple[dict[str, str], ...] | None
    output_tokens: int

    @property
    def characters(self) -> int:
        if self.messages is None:
            return len(self.text or "")
        return sum(len(message["content"]) for message in self.messages)


@dataclass(frozen=True)
class _Row:
    timestamp_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def read(source: Source) -> Rows | None:
    """
    The rows of a source; None for a synthetic one.

    Raises:
        FileError: A line that does not have the format's fields, with its place.
        InputError: A file that cannot be read, or is empty in the asked range.
    """
    if isinstance(source, Synthetic):
        return None
    if isinstance(source, Prompts):
        return _prompt_rows(read_prompts(source))
    lines = _mooncake(source.path) if source.format == "mooncake" else _azure(source.path)
    stop = None if source.rows is None else source.start + source.rows
    rows = list(islice(lines, source.start, stop))
    if not rows:
        raise InputError(f"{source.path}: no row from {source.start} on: choose a smaller `start`")
    return _scaled(rows, source)


def read_prompts(source: Prompts) -> list[Prompt]:
    """
    The lines of a prompts file.

    Raises:
        FileError: A line without `prompt` or `messages`, or without a number of output tokens.
        InputError: A file that cannot be read, or is empty.
    """
    prompts = [_prompt(source, number, _object(source.path, number, line)) for number, line in _lines(source.path)]
    if not prompts:
        raise InputError(f"{source.path}: empty: one JSON object with `prompt` or `messages` a line is expected")
    return prompts


def _lines(path: str) -> Iterator[tuple[int, str]]:
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _object(path: str, number: int, line: str) -> dict[str, object]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise FileError(Location(path, number, error.colno), "", f"no JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise FileError(Location(path, number, 1), "", f"got {line[:40]}: a JSON object is expected on every line")
    return value


def _mooncake(path: str) -> Iterator[_Row]:
    for number, line in _lines(path):
        value = _object(path, number, line)
        blocks = value.get("hash_ids", [])
        if not isinstance(blocks, list) or not all(isinstance(block, int) and block >= 0 for block in blocks):
            where = Location(path, number, 1)
            raise FileError(where, "hash_ids", f"got {str(blocks)[:40]}: a list of whole numbers is expected")
        yield _Row(
            _number(path, number, "timestamp", value.get("timestamp")) / 1000,
            _tokens(path, number, "input_length", value.get("input_length")),
            _tokens(path, number, "output_length", value.get("output_length")),
            tuple(blocks),
        )


def _azure(path: str) -> Iterator[_Row]:
    lines = _lines(path)
    header = next(csv.reader([line for _, line in islice(lines, 1)]), [])
    wanted = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    missing = [name for name in wanted if name not in header]
    if missing:
        raise FileError(Location(path, 1, 1), "", f"got the columns {', '.join(header)}: {missing[0]} is missing")
    places = [header.index(name) for name in wanted]
    for number, line in lines:
        cells = next(csv.reader([line]))
        if len(cells) <= max(places):
            raise FileError(Location(path, number, 1), "", f"got {len(cells)} cells: {len(header)} are expected")
        stamp, inputs, outputs = (cells[place] for place in places)
        try:
            timestamp_s = datetime.fromisoformat(stamp[:26]).replace(tzinfo=UTC).timestamp()
        except ValueError as error:
            raise FileError(Location(path, number, 1), "TIMESTAMP", f"got {stamp}: {error}") from error
        yield _Row(
            timestamp_s,
            _tokens(path, number, "ContextTokens", inputs),
            _tokens(path, number, "GeneratedTokens", outputs),
        )


def _number(path: str, number: int, key: str, value: object) -> float:
    try:
        found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise FileError(Location(path, number, 1), key, f"got {value}: a finite number is expected")
    return found


def _tokens(path: str, number: int, key: str, value: object) -> int:
    found = _number(path, number, key, value)
    if found < 0 or found != int(found):
        raise FileError(Location(path, number, 1), key, f"got {value}: a whole number of tokens >= 0 is expected")
    return int(found)


def _scaled(rows: list[_Row], source: Trace) -> Rows:
    block_tokens = max(1, round(MOONCAKE_BLOCK_TOKENS * source.scale_length)) if source.format == "mooncake" else 0
    inputs = _lengths([row.input_tokens for row in rows], source.scale_length, source.max_input_tokens)
    outputs = _lengths([row.output_tokens for row in rows], source.scale_length, source.max_output_tokens)
    kept = [
        row.blocks[: -(-int(tokens) // block_tokens)] if block_tokens else ()
        for row, tokens in zip(rows, inputs, strict=True)
    ]
    times = np.array([row.timestamp_s for row in rows], dtype=np.float64)
    return Rows(
        timestamp_s=times - times.min(),
        input_tokens=inputs,
        output_tokens=outputs,
        block_tokens=block_tokens,
        block_offsets=np.concatenate(([0], np.cumsum([len(blocks) for blocks in kept]))).astype(np.int64),
        block_ids=np.array([block for blocks in kept for block in blocks], dtype=np.int64),
    )


def _lengths(tokens: list[int], scale: float, most: int | None) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    scaled = np.maximum(1, np.rint(np.array(tokens, dtype=np.float64) * scale)).astype(np.int64)
    return scaled if most is None else np.minimum(scaled, most)


def _prompt(source: Prompts, number: int, value: dict[str, object]) -> Prompt:
    where = Location(source.path, number, 1)
    output = value.get("output_tokens", source.output_tokens)
    if not isinstance(output, int) or isinstance(output, bool) or output < 1:
        raise FileError(where, "output_tokens", f"got {output}: a whole number >= 1 is expected, here or in the source")
    text, messages = value.get("prompt"), value.get("messages")
    if isinstance(text, str) and messages is None:
        return Prompt(text, None, output)
    if text is None and isinstance(messages, list) and messages and all(_is_message(message) for message in messages):
        return Prompt(None, tuple(messages), output)
    raise FileError(where, "", "neither `prompt` (text) nor `messages` (role and content, both text) is given alone")


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def _prompt_rows(prompts: list[Prompt]) -> Rows:
    count = len(prompts)
    inputs = [max(1, math.ceil(prompt.characters / CHARACTERS_PER_TOKEN)) for prompt in prompts]
    return Rows(
        timestamp_s=np.zeros(count),
        input_tokens=np.array(inputs, dtype=np.int64),
        output_tokens=np.array([prompt.output_tokens for prompt in prompts], dtype=np.int64),
        block_tokens=0,
        block_offsets=np.zeros(count + 1, dtype=np.int64),
        block_ids=np.empty(0, dtype=np.int64),
    )
