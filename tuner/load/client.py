"""
The load client's own process: `python -m tuner.load.client RESULT`.

It reads a job as one line of JSON from stdin and writes progress, one JSON object a line, to stdout, and the level to
the file RESULT. Another line on stdin ends the level: `{"stopped": …, "detail": …}`; so does the end of stdin, because
then nobody waits for the result. Faults of the input come back as `{"error": kind, "message": text}`.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import orjson
import uvloop

from tuner.errors import InfrastructureFailed, InputError
from tuner.load import gauges, tokenizer, traces
from tuner.load.plan import LevelData, LevelPlan
from tuner.load.prompts import Prompter, Request
from tuner.load.session import Session
from tuner.load.shape import RequestShapes, level_requests
from tuner.load.supply import Supply
from tuner.load.wire import Job, Progress, decode_job, write_data
from tuner.slo import Prompts

#: Seconds of drain whose requests are made before the load starts.
_DRAIN_AHEAD_S = 30.0
_CLOSED_LOOP_FIRST = 4096


def main() -> None:
    """Run the job of stdin; exit code 0 where a result or a fault was reported."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tuner decides what an interrupt means
    result = Path(sys.argv[1])
    try:
        job = decode_job(_read_line(sys.stdin.fileno()))
        data = drive(job, progress=_report, stop_from=sys.stdin.fileno())
    except (InputError, InfrastructureFailed) as error:
        _say({"error": type(error).__name__, "message": str(error)})
        return
    write_data(result, data)
    _say({"finished": True})


def drive(job: Job, *, progress: Callable[[Progress], None] | None = None, stop_from: int | None = None) -> LevelData:
    """
    Run one level in this process, with its garbage collector at rest.

    Args:
        job: Endpoint and plan.
        progress: Called twice a second.
        stop_from: Descriptor from which a stop request may come.

    Raises:
        InputError: A source, a tokenizer or a header that cannot be used.
        InfrastructureFailed: More streams than this machine lets a process hold.
    """
    descriptors = gauges.raise_descriptor_limit()
    wanted = (job.plan.concurrency or 0) + gauges.SPARE_DESCRIPTORS
    if wanted > descriptors:
        raise InfrastructureFailed(
            "client_saturated", f"the load client may open {descriptors} files and needs {wanted}: raise `ulimit -n`"
        )
    level = _Level(job)
    gauges.raise_priority()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            data = runner.run(level.run(progress, stop_from))
    finally:
        gc.enable()
        gc.unfreeze()
    return replace(data, input_lengths="exact" if level.exact else "estimated")


class _Level:
    """A job whose requests are made."""

    def __init__(self, job: Job) -> None:
        self._job = job
        plan = job.plan
        source = plan.workload.source
        self._rows = traces.read(source)
        self._prompts = traces.read_prompts(source) if isinstance(source, Prompts) else None
        self._tokenizer = tokenizer.load(plan.model)
        open_loop = plan.rate_rps is not None
        self._shapes = level_requests(plan, self._rows, None if open_loop else _CLOSED_LOOP_FIRST)
        self._prompter = self._made()
        self.exact = self._prompter.exact
        self._supply = Supply(self._request, len(self._shapes) if open_loop else None)
        self._supply.fill(_ahead(self._shapes, plan))

    def _made(self) -> Prompter:
        job = self._job
        return Prompter(job.plan, self._shapes, job.endpoint.model, self._tokenizer, prompts=self._prompts)

    def _request(self, index: int) -> Request:
        if index >= len(self._shapes):
            self._shapes = level_requests(self._job.plan, self._rows, 2 * index)
            self._prompter = self._made()
        return self._prompter.request(index)

    async def run(self, progress: Callable[[Progress], None] | None, stop_from: int | None) -> LevelData:
        known = self._tokenizer
        session = Session(
            self._job.plan,
            self._job.endpoint,
            self._shapes,
            self._supply,
            count_tokens=None if known is None else (lambda text: len(known.encode(text, special=False))),
            on_progress=progress,
        )
        loop = asyncio.get_running_loop()
        if stop_from is not None:
            loop.add_reader(stop_from, _listen, stop_from, session)
        try:
            return await session.run()
        finally:
            if stop_from is not None:
                loop.remove_reader(stop_from)


def _ahead(shapes: RequestShapes, plan: LevelPlan) -> int:
    """How many requests to make before the load starts."""
    if shapes.arrival_s is None or shapes.window is None:
        return 4 * (plan.concurrency or 1)
    return int(shapes.arrival_s.searchsorted(shapes.window.end_s + _DRAIN_AHEAD_S))


def _listen(descriptor: int, session: Session) -> None:
    data = os.read(descriptor, 65536)
    if not data:
        session.stop("interrupted", "the tuner is gone")
        asyncio.get_running_loop().remove_reader(descriptor)
        return
    request = orjson.loads(data)
    session.stop(request["stopped"], request["detail"])


def _read_line(descriptor: int) -> bytes:
    """Up to the end of the line and no byte further: what follows belongs to `_listen`."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            break
        line += byte
    return bytes(line)


def _report(progress: Progress) -> None:
    _say(asdict(progress))


def _say(message: dict[str, object]) -> None:
    os.write(sys.stdout.fileno(), orjson.dumps(message) + b"\n")


if __name__ == "__main__":
    main()
