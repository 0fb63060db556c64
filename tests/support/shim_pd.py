#!/usr/bin/env python3
"""
Programs that take the place of a router for prefill and decode, and of a KV store. Standard library only.

    shim_pd.py router MODE --host H --port N --prefill URL … --decode URL … [anything else]
    shim_pd.py store MODE --host H --port N [anything else]

    of a router  ok · skip (decode alone is asked) · prefill_only (decode is left out)
    of a store   ok · hang (never listens) · exit
"""

import http.client
import itertools
import json
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

#: Tells a decode shim that its prompt was prefilled elsewhere.
TRANSFERRED = "X-Shim-Transferred"


def values(name):
    """Every value behind `--name`."""
    return [sys.argv[index + 1] for index, token in enumerate(sys.argv) if token == f"--{name}"]


class Handler(BaseHTTPRequestHandler):
    """Prefill first, then decode; whatever decode answers is passed on as it comes."""

    protocol_version = "HTTP/1.1"
    turns = itertools.count()

    def log_message(self, *_):
        """No access log."""

    def do_GET(self):
        """Passed on to a decode engine."""
        self.pass_on(values("decode")[0], b"", {})

    def do_POST(self):
        """One request through both sides."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        mode, turn = sys.argv[2], next(self.turns)
        prefill, decode = (values(side)[turn % len(values(side))] for side in ("prefill", "decode"))
        if mode == "prefill_only":
            self.pass_on(prefill, body, {})
            return
        if mode != "skip":
            short = json.dumps({**json.loads(body), "max_tokens": 1, "stream": False}).encode()
            status = self.ask(prefill, short)
            if status != 200:
                self.fail(f"prefill answered {status}")
                return
        self.pass_on(decode, body, {} if mode == "skip" else {TRANSFERRED: "1"})

    def ask(self, url, body):
        """Status of a prefill engine's answer; 0 = none."""
        try:
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
            connection.request("POST", self.path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            return 0
        return answer.status

    def pass_on(self, url, body, headers):
        """The answer of one engine, piece by piece."""
        try:
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
            connection.request(self.command, self.path, body, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self.fail(str(error))
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type") or "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        while piece := answer.read1(65536):
            self.wfile.write(piece)
            self.wfile.flush()
        self.close_connection = True

    def fail(self, why):
        """An error that a client sees as one."""
        body = json.dumps({"error": {"message": why}}).encode()
        self.send_response(502)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Many connections at once; an interrupted client is no news."""

    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, *_):
        """Say nothing."""


def store():
    """A port that accepts connections and says nothing."""
    mode = sys.argv[2]
    if mode == "exit":
        print("RuntimeError: no memory for the segment", flush=True)  # noqa: T201
        sys.exit(1)
    if mode == "hang":
        time.sleep(600)
    with socket.create_server((values("host")[0], int(values("port")[0]))) as listening:
        while True:
            listening.accept()[0].close()


def main():
    """Behave as told."""
    if sys.argv[1] == "store":
        store()
    Server((values("host")[0], int(values("port")[0])), Handler).serve_forever()


if __name__ == "__main__":
    main()
