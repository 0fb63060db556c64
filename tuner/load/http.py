"""
HTTP/1.1 for streaming answers: one connection carries one request at a time and is used again. No connection cap.

The monotonic clock is read as soon as bytes are; every event in those bytes bears that time.
"""

import asyncio
import errno
import os
import ssl
from collections.abc import Callable
from time import monotonic
from typing import cast

import httptools

from tuner.load.answer import Answer
from tuner.load.endpoint import Endpoint
from tuner.load.sse import Events

_ERROR_BYTES = 4096
#: Idle connections are closed before common servers do it (uvicorn: 5 s), so that no request meets a closing one.
IDLE_S = 2.0
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)

Decided = Callable[[Answer], None]


class Connection(asyncio.Protocol):
    """One connection of a `Pool`."""

    __slots__ = ("_events", "_failed_body", "_now", "_parser", "_pool", "_seen", "_status", "answer", "idle", "wire")

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._now = 0.0
        self._status = 0
        self._seen = 0  # bytes of the body
        self._failed_body = b""
        self._events = Events()
        self._parser = httptools.HttpResponseParser(self)
        self.answer: Answer | None = None
        self.idle = 0.0  # since when
        self.wire: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = cast("asyncio.Transport", transport)

    def send(self, answer: Answer) -> None:
        """Send the answer's request. The connection must be idle."""
        self.answer = answer
        answer.carrier = self
        self._status = 0
        self._seen = 0
        self._failed_body = b""
        self._events = Events()
        self._parser = httptools.HttpResponseParser(self)
        body = answer.request.body
        self.wire.write(b"%b%d\r\n\r\n%b" % (self._pool.head, len(body), body))
        answer.sent = monotonic()

    def data_received(self, data: bytes) -> None:
        self._now = monotonic()
        if self.answer is None:
            self.wire.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._decide("stream_error", f"no HTTP: {error}")

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        answer = self.answer
        if answer is None:
            return
        self._seen += len(body)
        if self._status != 200:
            self._failed_body += body[: _ERROR_BYTES - len(self._failed_body)]
            return
        for event in self._events.feed(body):
            answer.event(event, self._now)

    def on_message_complete(self) -> None:
        answer = self.answer
        if answer is None or 100 <= self._status < 200:
            return
        self.answer = None
        if self._status != 200:
            answer.fail(f"http_{self._status}", self._failed_body.decode(errors="replace"))
        else:
            self._end(answer, complete=True)
        if self._parser.should_keep_alive():
            self._pool.keep(self, self._now)
        else:
            self.wire.close()
        self._pool.decided(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.forget(self)
        answer, self.answer = self.answer, None
        if answer is None:
            return
        if self._status not in (0, 200):
            answer.fail(f"http_{self._status}", self._failed_body.decode(errors="replace"))
        else:
            self._end(answer, complete=False, detail=str(error) if error else "")
        self._pool.decided(answer)

    def abandon(self) -> None:
        """Close at once, so that the server sees it; the answer, if there is one, is the caller's to decide."""
        self.answer = None
        self.wire.abort()

    def _end(self, answer: Answer, *, complete: bool, detail: str = "") -> None:
        for event in self._events.flush():
            answer.event(event, self._now)
        if self._seen and answer.first is None and not answer.done_seen and answer.finish is None:
            answer.end(complete=complete, detail=detail)
            if answer.status == "empty":
                answer.status, answer.detail = "stream_error", "a body without a single event of an answer"
            return
        answer.end(complete=complete, detail=detail)

    def _decide(self, status: str, detail: str) -> None:
        answer = self.answer
        self.abandon()
        if answer is not None:
            answer.fail(status, detail)
            self._pool.decided(answer)


class Pool:
    """
    Connections to one endpoint, as many as there are requests under way.

    Args:
        endpoint: Where to connect.
        path: Of the requests, such as `/v1/completions`.
        decided: Called once for each answer that the server, or the loss of a connection, decides.
    """

    def __init__(self, endpoint: Endpoint, path: str, decided: Decided) -> None:
        self._endpoint = endpoint
        self.decided = decided
        self.dropped = 0  # connections that the client could not open or keep, by its own fault
        self._idle: list[Connection] = []
        self._opening: set[asyncio.Task[None]] = set()
        self.live: set[Connection] = set()
        self._closing = False
        self._closed = asyncio.Event()
        self._ssl = ssl.create_default_context() if endpoint.tls else None
        lines = [
            f"POST {endpoint.path}{path} HTTP/1.1",
            f"host: {endpoint.host}:{endpoint.port}",
            "accept: text/event-stream",
            "content-type: application/json",
            *(f"{name}: {value}" for name, value in endpoint.header_values(os.environ).items()),
            "content-length: ",
        ]
        self.head = "\r\n".join(lines).encode("latin-1")

    def send(self, answer: Answer) -> None:
        """Send over an idle connection at once, or over a new one as soon as it is open."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.wire.is_closing():
                connection.send(answer)
                return
        task = asyncio.get_running_loop().create_task(self._open(answer))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, answer: Answer) -> None:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self), self._endpoint.host, self._endpoint.port, ssl=self._ssl
            )
        except OSError as error:
            self.dropped += error.errno in _OUT_OF_DESCRIPTORS
            if not answer.status:
                answer.fail("disconnected", f"cannot connect: {error}")
                self.decided(answer)
            return
        self.live.add(connection)
        if answer.status:  # decided while it waited: timed out
            connection.wire.abort()
        else:
            connection.send(answer)

    def keep(self, connection: Connection, now: float) -> None:
        connection.idle = now
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self.live.discard(connection)
        if self._closing and not self.live:
            self._closed.set()

    def close_idle(self, now: float) -> None:
        """Close connections that have been idle for `IDLE_S`."""
        stale = [connection for connection in self._idle if now - connection.idle > IDLE_S]
        if stale:
            self._idle = [connection for connection in self._idle if now - connection.idle <= IDLE_S]
            for connection in stale:
                connection.wire.close()

    async def close(self) -> None:
        """Close everything at once. Answers under way stay undecided."""
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        self._idle.clear()
        self._closing = True
        for connection in list(self.live):
            connection.abandon()
        if self.live:
            await self._closed.wait()
