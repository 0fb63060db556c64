"""The file `records.jsonl.zst`: one record a line, compressed, written whole or not at all."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from tuner.errors import MeasurementError
from tuner.records import Record, from_line, to_line

_BLOCK = 1 << 18  # compressed bytes read at once


def write(path: Path, records: Iterable[Record]) -> None:
    """
    Write the records in the given order; an existing file is replaced once the new one is on disk.

    Raises:
        MeasurementError: A record cannot be written as strict JSON. The old file, if any, is left as it was.
        OSError: The directory is missing, full or not writable.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            with zstandard.ZstdCompressor(level=6).stream_writer(file, closefd=False) as stream:
                for record in records:
                    stream.write(to_line(record))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path) -> tuple[Record, ...]:
    """
    All records of the file, in its order.

    Raises:
        MeasurementError: The file is damaged or cut off, or a line is no record; names the file and the line.
        OSError: There is no such file.
    """
    return tuple(iterate(path))


def iterate(path: Path) -> Iterator[Record]:
    """Like `read`, one record at a time."""
    number = 0
    try:
        with path.open("rb") as file:
            for line in _lines(file):
                number += 1
                yield from_line(line)
    except (MeasurementError, zstandard.ZstdError) as error:
        raise MeasurementError(f"{path}:{number}: {error}") from error


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines without their ends. The decompressor itself would take a cut-off file for a shorter one."""
    stream = zstandard.ZstdDecompressor().decompressobj()
    rest = b""
    for block in iter(lambda: file.read(_BLOCK), b""):
        *lines, rest = (rest + stream.decompress(block)).split(b"\n")
        yield from lines
    if not stream.eof or rest or stream.unused_data:
        raise MeasurementError("the file is cut off, or something was added to it")
