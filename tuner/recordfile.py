"""The file `records.jsonl.zst`: one record a line, compressed, written whole or not at all."""

import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import zstandard

from tuner.errors import MeasurementError
from tuner.records import Record, from_line, to_line


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
        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
            for number, line in enumerate(io.BufferedReader(stream), start=1):  # noqa: B007  # named by the errors
                if not line.endswith(b"\n"):
                    raise MeasurementError("the last line has no end: the file is cut off")
                yield from_line(line)
    except (MeasurementError, zstandard.ZstdError) as error:
        raise MeasurementError(f"{path}:{number}: {error}") from error
