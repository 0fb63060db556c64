"""Plans and level data between the tuner and the process of its load client."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
import zstandard
from pydantic import TypeAdapter

from tuner.errors import MeasurementError
from tuner.load.endpoint import Endpoint
from tuner.load.plan import ClientHealth, LevelData, LevelPlan
from tuner.records import from_line, to_line

Stopped = Literal["", "slo", "server_died", "interrupted"]


@dataclass(frozen=True)
class Job:
    """What the load client is asked to do."""

    endpoint: Endpoint
    plan: LevelPlan


@dataclass(frozen=True)
class Progress:
    """A level under way."""

    t_s: float  # from the start of the level
    sent: int
    in_flight: int
    measured: int  # requests that arrived in the measured window so far
    undecided: int  # measured requests still to be decided; open loop: those still to come too
    failed: int


_JOB: TypeAdapter[Job] = TypeAdapter(Job)


def encode_job(job: Job) -> bytes:
    """One line of JSON."""
    return _JOB.dump_json(job) + b"\n"


def decode_job(line: bytes) -> Job:
    """
    Raises:
        pydantic.ValidationError: The line is no job.
    """
    return _JOB.validate_json(line)


def write_data(path: Path, data: LevelData) -> None:
    """Everything of the level but its plan, compressed: a head line, then one line a record."""
    head = {
        "window_start_s": data.window_start_s,
        "window_s": data.window_s,
        "realised_rps": data.realised_rps,
        "health": asdict(data.health),
        "stopped": data.stopped,
        "stop_detail": data.stop_detail,
        "input_lengths": data.input_lengths,
    }
    with path.open("wb") as file, zstandard.ZstdCompressor(level=1).stream_writer(file) as stream:
        stream.write(orjson.dumps(head) + b"\n")
        for record in data.records:
            stream.write(to_line(record))


def read_data(path: Path, plan: LevelPlan) -> LevelData:
    """
    The level of `plan` from `write_data`.

    Raises:
        MeasurementError: The file is damaged or cut off.
        OSError: There is none.
    """
    try:
        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
            first, *lines = stream.read().splitlines(keepends=True)
        head: dict[str, Any] = orjson.loads(first)
        health = ClientHealth(**head.pop("health"))
        return LevelData(plan=plan, records=tuple(from_line(line) for line in lines), health=health, **head)
    except (ValueError, TypeError, KeyError, zstandard.ZstdError) as error:
        raise MeasurementError(f"{path}: no data of a level: {error}") from error
