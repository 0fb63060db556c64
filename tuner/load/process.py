"""The load client as a process of its own: start it, listen to it, end it, reap it."""

import contextlib
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import orjson

from tuner.errors import InfrastructureFailed, InputError
from tuner.load.endpoint import Endpoint
from tuner.load.plan import LevelData, LevelPlan
from tuner.load.wire import Job, Progress, Stopped, encode_job, read_data

#: Seconds between two questions whether the level shall stop.
_ASK_S = 0.1
#: Seconds that a stopped client gets to close its streams and write its result.
_STOP_S = 10.0
_ERROR_CHARACTERS = 500


def drive(
    endpoint: Endpoint,
    plan: LevelPlan,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> LevelData:
    """
    Run one level of load against `endpoint` in a process of its own, and wait for its end.

    Args:
        endpoint: A server that answers.
        plan: Of the level.
        on_progress: Called about twice a second, in the calling thread.
        should_stop: Asked ten times a second; text such as `server_died: engine-0 exited with 1` ends the level within
            a second, every stream closed. What stands before the colon is `LevelData.stopped`; with any other text the
            level is `interrupted`.
        environment: Of the process; None = the caller's own.

    Raises:
        InputError: A source, tokenizer or header that cannot be used.
        InfrastructureFailed: `client_saturated`, the machine does not let the client hold that many streams;
            `node_lost`, the client process died.
    """
    with tempfile.TemporaryDirectory(prefix="tuner-load-") as directory:
        result, errors = Path(directory) / "level.zst", Path(directory) / "errors"
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "tuner.load.client", str(result)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                env=None if environment is None else dict(environment),
                start_new_session=True,
            )
        try:
            last = _Conversation(process, on_progress, should_stop).run(encode_job(Job(endpoint, plan)))
        finally:
            _reap(process)
        if last.get("finished") is True:
            return read_data(result, plan)
        if last.get("error") == InputError.__name__:
            raise InputError(last["message"])
        if last.get("error") == InfrastructureFailed.__name__:
            raise InfrastructureFailed("client_saturated", last["message"].partition(": ")[2])
        cause = errors.read_text(encoding="utf-8", errors="replace").strip()[-_ERROR_CHARACTERS:]
        raise InfrastructureFailed("node_lost", f"the load client ended with {process.returncode}: {cause}")


class _Conversation:
    """Reads what the client says until it ends, and tells it to stop."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        on_progress: Callable[[Progress], None] | None,
        should_stop: Callable[[], str] | None,
    ) -> None:
        assert process.stdin is not None  # noqa: S101  it was opened as a pipe
        assert process.stdout is not None  # noqa: S101
        self._stdin, self._stdout = process.stdin, process.stdout
        self._on_progress, self._should_stop = on_progress, should_stop
        self._deadline: float | None = None  # once told to stop
        self._rest = b""

    def run(self, job: bytes) -> dict[str, Any]:
        """The client's last word; empty where it said none, or took too long to stop."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(job)
        last: dict[str, Any] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            while self._deadline is None or time.monotonic() < self._deadline:
                if selector.select(_ASK_S):
                    data = os.read(self._stdout.fileno(), 65536)
                    if not data:
                        return last
                    last = self._hear(data, last)
                self._ask()
        return {}

    def _hear(self, data: bytes, last: dict[str, Any]) -> dict[str, Any]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            message = orjson.loads(line)
            if "t_s" not in message:
                last = message
            elif self._on_progress is not None:
                self._on_progress(Progress(**message))
        return last

    def _ask(self) -> None:
        reason = "" if self._should_stop is None or self._deadline is not None else self._should_stop()
        if not reason:
            return
        stopped, _, detail = reason.partition(": ")
        if stopped not in get_args(Stopped):
            stopped, detail = "interrupted", reason
        self._deadline = time.monotonic() + _STOP_S
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(orjson.dumps({"stopped": stopped, "detail": detail}) + b"\n")


def _reap(process: subprocess.Popen[bytes]) -> None:
    """On every way out: the process is gone and its pipes are closed. The end of its stdin tells it to leave."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(0 if process.poll() is not None else 2.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        if process.stdout is not None:
            process.stdout.close()
