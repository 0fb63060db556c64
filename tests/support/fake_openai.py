"""
FAKE: an OpenAI-compatible streaming server that follows a script for each request, and counts what it received.

    with FakeOpenAI(lambda number, payload: Script(chunks=chunks(8, first_ms=50, gap_ms=10))) as fake:
        ...  # fake.host, fake.port, fake.received, fake.peak, fake.disconnects

Or as a program: `python tests/support/fake_openai.py --port 8000 --first-ms 50 --gap-ms 10`.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

Field = Literal[
    "role", "empty", "comment", "content", "reasoning", "reasoning_content", "tool", "error", "usage", "raw"
]
#: How the bytes of the stream are cut: one write an event, one write a byte, or everything in one write at the end.
Split = Literal["events", "bytes", "joined"]
Ending = Literal["normal", "cut", "reset", "stall", "no_done", "no_finish"]

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 503: "Service Unavailable"}


@dataclass(frozen=True)
class Script:
    """What becomes of one request. Times are from its arrival."""

    chunks: Sequence[tuple[float, int, Field]] = ()  # (ms, tokens, field)
    status: int = 200
    headers_ms: float = 0.0
    usage: Literal["on", "off", "continuous"] = "on"
    prompt_tokens: int | None = None  # None: what the payload's token ids count, else its words
    finish: str = "length"
    ending: Ending = "normal"
    usage_ms: float | None = None  # when the usage chunk leaves; None = with the last token
    close_ms: float | None = None  # when the body ends; None = at once
    split: Split = "events"
    newline: str = "\n"
    space: bool = True  # after `data:`
    text: str = "tok "  # of one token
    body: str | None = None  # instead of an event stream
    content_type: str = "text/event-stream"


def chunks(count: int, *, first_ms: float = 5.0, gap_ms: float = 1.0) -> tuple[tuple[float, int, Field], ...]:
    """`count` chunks of one token at a steady pace."""
    return tuple((first_ms + place * gap_ms, 1, "content") for place in range(count))


def steady(first_ms: float = 5.0, gap_ms: float = 1.0, **more: Any) -> "Scripts":
    """Every request gets the tokens that it asks for, at a steady pace."""

    def script(number: int, payload: dict[str, Any]) -> Script:
        return Script(chunks=chunks(int(payload["max_tokens"]), first_ms=first_ms, gap_ms=gap_ms), **more)

    return script


Scripts = Callable[[int, dict[str, Any]], Script]


@dataclass
class Received:
    """One request as the server saw it."""

    path: str
    payload: dict[str, Any]
    headers: dict[str, str]
    at_s: float  # monotonic
    left_s: float | None = None  # when its stream ended, or was closed by the client
    disconnected: bool = False  # by the client, before the end


@dataclass
class FakeOpenAI:
    """The server, in a thread of its own, on a loopback port of its own."""

    scripts: Scripts = field(default_factory=steady)
    model: str = "m"
    metrics: str = ""  # body of /metrics
    port: int = 0
    host: str = "127.0.0.1"
    received: list[Received] = field(default_factory=list)
    resets: int = 0  # of the prefix cache
    connections: int = 0
    active: int = 0
    peak: int = 0

    @property
    def disconnects(self) -> int:
        return sum(request.disconnected for request in self.received)

    def __enter__(self) -> Self:
        self._socket = socket.create_server((self.host, self.port), backlog=4096)
        self.port = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=10)
        self._loop.close()

    def wait(self, condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
        """Whether the condition came true within the time; the server goes on meanwhile."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    async def _serve(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connection, sock=self._socket, backlog=4096)
        await self._stop.wait()
        await self._turns()  # what was just accepted is attached to the server; once that is closed, nothing closes it
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._turns()  # an aborted transport is closed in the next one

    async def _turns(self) -> None:
        """Some rounds of the event loop; accepting a connection takes several."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection lives on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        at_s = time.monotonic()
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if not path.endswith("/completions"):
            await self._plain(writer, method, path)
            return True
        payload = json.loads(body)
        request = Received(path, payload, headers, at_s)
        self.received.append(request)
        self.active += 1
        self.peak = max(self.peak, self.active)
        watch = asyncio.ensure_future(reader.read(1))  # the client sends nothing more: this ends when it closes
        answer = asyncio.ensure_future(
            _Answer(writer, request, self.scripts(len(self.received) - 1, payload), self.model).write()
        )
        try:
            await asyncio.wait({watch, answer}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                request.disconnected = True
                answer.cancel()
                return False
            return await answer
        finally:
            request.left_s = time.monotonic()
            self.active -= 1
            for left in (watch, answer):
                left.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await left

    async def _plain(self, writer: asyncio.StreamWriter, method: str, path: str) -> None:
        status, body = 200, ""
        if path == "/v1/models":
            body = json.dumps({"object": "list", "data": [{"id": self.model, "object": "model"}]})
        elif path == "/metrics":
            body = self.metrics
        elif path.startswith("/reset_prefix_cache") and method == "POST":
            self.resets += 1
        elif path != "/health":
            status = 404
        writer.write(_head(status, "text/plain", len(body)) + body.encode())
        await writer.drain()


def _head(status: int, kind: str, length: int | None) -> bytes:
    size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return f"HTTP/1.1 {status} {_REASONS.get(status, 'X')}\r\ncontent-type: {kind}\r\n{size}\r\n\r\n".encode()


class _Answer:
    """One answer being written."""

    def __init__(self, writer: asyncio.StreamWriter, request: Received, script: Script, model: str) -> None:
        self._writer, self._request, self._script, self._model = writer, request, script, model
        self._chat = "chat" in request.path
        self._said = 0
        self._joined = b""

    async def write(self) -> bool:
        """Whether the connection can be used again."""
        script = self._script
        await self._until(script.headers_ms)
        if script.status != 200 or script.body is not None:
            body = script.body if script.body is not None else json.dumps({"error": {"message": "scripted failure"}})
            self._writer.write(_head(script.status, "application/json", len(body.encode())) + body.encode())
            await self._writer.drain()
            return True
        self._writer.write(_head(200, script.content_type, None))
        tokens = [place for place, (_, count, _) in enumerate(script.chunks) if count]
        for place, (at_ms, count, kind) in enumerate(script.chunks):
            await self._until(at_ms)
            last = bool(tokens) and place == tokens[-1] and script.ending not in ("no_finish", "cut", "reset", "stall")
            await self._event(kind, count, script.finish if last else None)
        if script.ending == "stall":
            await asyncio.sleep(3600)
        if script.ending in ("cut", "reset"):
            if script.ending == "reset":
                linger = socket.SO_LINGER
                self._writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, linger, b"\x01\x00\x00\x00\x00\x00\x00\x00"
                )
            self._writer.transport.abort()
            return False
        await self._end(finish=script.finish if not tokens and script.ending == "normal" else None)
        return True

    async def _end(self, finish: str | None) -> None:
        script = self._script
        if finish is not None:
            await self._event("empty", 0, finish)
        options = self._request.payload.get("stream_options") or {}
        if script.usage != "off" and options.get("include_usage"):
            if script.usage_ms is not None:
                await self._until(script.usage_ms)
            await self._event("usage", 0, None)
        if script.ending != "no_done":
            await self._send(self._data("[DONE]"))
        if script.close_ms is not None:
            await self._until(script.close_ms)
        if self._joined:
            self._writer.write(_chunk(self._joined))
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def _until(self, at_ms: float) -> None:
        wait_s = self._request.at_s + at_ms / 1000 - time.monotonic()
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def _data(self, text: str) -> bytes:
        newline = self._script.newline
        return f"data:{' ' if self._script.space else ''}{text}{newline}{newline}".encode()

    async def _event(self, kind: Field, count: int, finish: str | None) -> None:
        script = self._script
        if kind == "comment":
            await self._send(f": keep-alive{script.newline}{script.newline}".encode())
            return
        if kind == "error":
            await self._send(self._data(json.dumps({"error": {"message": "engine dead", "code": 500}})))
            return
        if kind == "raw":
            await self._send(self._data("{no json"))
            return
        self._said += count
        event: dict[str, Any] = {"id": "x", "model": self._model, "choices": []}
        if kind != "usage":
            event["choices"] = [{"index": 0, "finish_reason": finish} | self._delta(kind, script.text * count)]
        if kind == "usage" or script.usage == "continuous":
            event["usage"] = {"prompt_tokens": self._prompt_tokens(), "completion_tokens": self._said}
        await self._send(self._data(json.dumps(event, ensure_ascii=False)))

    def _delta(self, kind: Field, text: str) -> dict[str, Any]:
        if not self._chat:
            return {"text": text}
        if kind == "role":
            return {"delta": {"role": "assistant", "content": ""}}
        if kind == "tool":
            return {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}
        return {"delta": {kind if kind.startswith("reasoning") else "content": text}}

    def _prompt_tokens(self) -> int:
        if self._script.prompt_tokens is not None:
            return self._script.prompt_tokens
        prompt = self._request.payload.get("prompt")
        if isinstance(prompt, list):
            return len(prompt)
        if isinstance(prompt, str):
            return len(prompt.split())
        return sum(len(message["content"].split()) for message in self._request.payload["messages"])

    async def _send(self, data: bytes) -> None:
        if self._script.split == "joined":
            self._joined += data
            return
        if self._script.split == "bytes":
            for place in range(len(data)):
                self._writer.write(_chunk(data[place : place + 1]))
                await self._writer.drain()
                if place % 16 == 0:
                    await asyncio.sleep(0)
            return
        self._writer.write(_chunk(data))
        await self._writer.drain()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description="A scripted OpenAI-compatible server.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="m")
    parser.add_argument("--first-ms", type=float, default=5.0)
    parser.add_argument("--gap-ms", type=float, default=1.0)
    asked = parser.parse_args()
    with FakeOpenAI(steady(asked.first_ms, asked.gap_ms), model=asked.model, port=asked.port) as fake:
        print(fake.port, flush=True)  # noqa: T201  the caller reads where to send
        threading.Event().wait()


if __name__ == "__main__":
    main()
