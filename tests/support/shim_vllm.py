#!/usr/bin/env python3
# ruff: noqa: T201 (a program speaks on stdout)
"""
A program that takes the place of `vllm` in tests and behaves as scripted. Standard library only.

    shim_vllm.py serve MODEL --host H --port N [anything else]

The environment says how it behaves:

    SHIM_MODE      ok · exit · oom · bad_flag · never_bind · noisy · dead_engine · silent_engine · empty_token
                   wrong_model · stubborn
    SHIM_DELAY     seconds before it binds, or before it exits                                  (0)
    SHIM_CODE      exit code of `exit`                                                          (1)
    SHIM_DIE_AFTER requests after which it is gone, without a word                              (never)
    SHIM_TOKEN_S   seconds between tokens                                                       (0.002)
    SHIM_RECORD    directory that takes `<pid>.json` with argv and env, and `<pid>.requests` with each request's path
    SHIM_RESET     what /reset_prefix_cache answers: true · false · missing                     (true)
    SHIM_HITS      share of each prompt that an external store has                              (0)

A shim with a KV transfer knows its side: SHIM_MODE_PREFILL, SHIM_DIE_AFTER_DECODE and so on win over the plain ones. On
the decode side `recompute` counts prompts as its own work although they were prefilled, `disagree` fails such requests;
`port_taken` cannot bind its side channel.

Asked for log-probabilities it says tokens that depend on the prompt alone, the second likeliest half as likely as the
first. SHIM_SAYS (SHIM_SAYS_DECODE …) spoils them:

    rounding   the second likeliest at the tenth token, and other words from there on
    unlikely   the third likeliest, 200 times less likely, at the third token
    foreign    a token that nobody expects, at the third token
    foreign_1  the same, in the first answer alone
    spoilt     the same, where the prompt came before
    silent     no log-probabilities; refused   HTTP 400 for whoever asks for them
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SIDE = "PREFILL" if "kv_producer" in str(sys.argv) else "DECODE" if "kv_consumer" in str(sys.argv) else ""


def told(name, default):
    """A setting of this side, else of every shim."""
    return os.environ.get(f"{name}_{SIDE}", os.environ.get(name, default))


MODE = told("SHIM_MODE", "ok")
DELAY_S = float(os.environ.get("SHIM_DELAY", "0"))
TOKEN_S = float(os.environ.get("SHIM_TOKEN_S", "0.002"))
DIE_AFTER = int(told("SHIM_DIE_AFTER", "0"))
HITS = float(told("SHIM_HITS", "0"))
SAYS = told("SHIM_SAYS", "")
RECORD = os.environ.get("SHIM_RECORD")
OOM_LOG = """\
(Worker pid=7) ERROR 11-29 18:00:00 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=7) ERROR 11-29 18:00:00 [multiproc_executor.py:1063] ValueError: No available memory for the cache blocks.
(EngineCore pid=6) ERROR 11-29 18:00:00 [core.py:1510] EngineCore failed to start.
(APIServer pid=5) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
STUBBORN_CHILD = """
import os, signal, sys, time
if sys.argv[1] == "setsid":
    os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("stubborn", os.getpid(), flush=True)
time.sleep(600)
"""


class Counts:
    """What has been served so far."""

    def __init__(self):
        self.lock = threading.Lock()
        self.requests = self.prompt_tokens = self.generation_tokens = self.running = self.resets = 0
        self.transferred = self.transfers = 0
        self.seen = []


COUNTS = Counts()


def flag(name, default=None):
    """Value of `--name VALUE` or `--name=VALUE`."""
    for index, token in enumerate(sys.argv):
        if token == f"--{name}":
            return sys.argv[index + 1]
        if token.startswith(f"--{name}="):
            return token.partition("=")[2]
    return default


MODEL = flag("served-model-name") or (sys.argv[2] if len(sys.argv) > 2 else "model")


def greedy(prompt, count):
    """Tokens and their likeliest alternatives, as a completion with `logprobs` tells them."""
    text = json.dumps(prompt)
    own = [zlib.crc32(text.encode()) % 90_000 + 10 * place for place in range(count)]
    likely = [{f"token_id:{token + k}": -0.5 - (0.7, 5.3)[k - 1] * (k > 0) for k in range(3)} for token in own]
    with COUNTS.lock:
        again, first = text in COUNTS.seen, not COUNTS.seen
        COUNTS.seen.append(text)
    if SAYS == "rounding":
        own = [token + (place == 9) + 5 * (place > 9) for place, token in enumerate(own)]
    elif SAYS == "unlikely":
        own[2] += 2
    elif SAYS == "foreign" or (SAYS == "foreign_1" and first) or (SAYS == "spoilt" and again):
        own[2] += 7
    tokens = [f"token_id:{token}" for token in own]
    said = {"text": " ".join(tokens), "finish_reason": "length"}
    return said if SAYS == "silent" else said | {"logprobs": {"tokens": tokens, "top_logprobs": likely}}


def metrics():
    """A page as vLLM's."""
    labels = f'engine="0",model_name="{MODEL}"'
    rows = {
        "num_requests_running": COUNTS.running,
        "num_requests_waiting": 0,
        "kv_cache_usage_perc": 0.25,
        "num_preemptions_total": 0,
        "prompt_tokens_total": COUNTS.prompt_tokens,
        "generation_tokens_total": COUNTS.generation_tokens,
        "prefix_cache_queries_total": COUNTS.prompt_tokens,
        "prefix_cache_hits_total": 0,
        "external_prefix_cache_queries_total": COUNTS.prompt_tokens,
        "external_prefix_cache_hits_total": HITS * COUNTS.prompt_tokens,
        "nixl_xfer_time_seconds_sum": 0.002 * COUNTS.transfers,
        "nixl_xfer_time_seconds_count": COUNTS.transfers,
        "nixl_num_failed_transfers_total": 0,
    }
    lines = [f"vllm:{name}{{{labels}}} {value}" for name, value in rows.items()]
    sources = {"local_compute": COUNTS.prompt_tokens - COUNTS.transferred, "external_kv_transfer": COUNTS.transferred}
    for source, tokens in sources.items():
        lines.append(f'vllm:prompt_tokens_by_source_total{{{labels},source="{source}"}} {tokens}')
    return "\n".join(lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    """The routes of `vllm serve` that the tuner uses."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """No access log."""

    def note(self):
        """Write down that a request came."""
        if RECORD:
            with (Path(RECORD) / f"{os.getpid()}.requests").open("a") as file:
                file.write(f"{self.command} {self.path}\n")

    def answer(self, value, status=200, kind="application/json"):
        """One answer with a length."""
        body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        """Health, models, version, metrics."""
        self.note()
        if self.path == "/health":
            self.answer("")
        elif self.path == "/v1/models":
            self.answer({"data": [{"id": "somebody-else" if MODE == "wrong_model" else MODEL}]})
        elif self.path == "/version":
            self.answer({"version": "0.32.0+shim"})
        elif self.path == "/metrics":
            self.answer(metrics(), kind="text/plain")
        else:
            self.answer({}, 404)

    def do_POST(self):
        """Completions, chat, cache reset."""
        self.note()
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path.startswith("/reset_prefix_cache"):
            reset = os.environ.get("SHIM_RESET", "true")
            COUNTS.resets += 1
            self.answer({"success": reset == "true"}, 404 if reset == "missing" else 200)
        elif MODE == "dead_engine":
            self.answer({"error": {"message": "EngineCore encountered an issue"}}, 500)
        elif MODE == "silent_engine":
            time.sleep(600)
        elif MODE == "disagree" and self.headers.get("X-Shim-Transferred"):
            self.answer({"error": {"message": "KV load failed: block size 32 is not 16"}}, 500)
        else:
            self.complete(body)

    def complete(self, body):
        """One completion, streamed or not."""
        with COUNTS.lock:
            COUNTS.requests += 1
            COUNTS.running += 1
            served = COUNTS.requests
        if DIE_AFTER and served > DIE_AFTER:
            os._exit(1)
        count = 0 if MODE == "empty_token" else int(body.get("max_tokens") or body.get("max_completion_tokens") or 1)
        prompt = body.get("prompt")
        asked = len(prompt) if isinstance(prompt, list) else len(str(prompt or body.get("messages") or "").split())
        usage = {"prompt_tokens": asked, "completion_tokens": count, "total_tokens": asked + count}
        try:
            if body.get("stream"):
                self.stream(count, asked, chat="messages" in body, usage=usage)
            elif "logprobs" in body and SAYS == "refused":
                self.answer({"error": {"message": "max_logprobs is 0"}}, 400)
            else:
                plain = {"text": " x" * count, "finish_reason": "length"}
                said = greedy(prompt, count) if "logprobs" in body else plain
                self.answer({"choices": [said], "usage": usage})
        finally:
            with COUNTS.lock:
                COUNTS.running -= 1
                COUNTS.prompt_tokens += asked
                if self.headers.get("X-Shim-Transferred") and MODE != "recompute":
                    COUNTS.transferred += asked
                    COUNTS.transfers += 1
                COUNTS.generation_tokens += count

    def stream(self, count, asked, *, chat, usage):
        """Server-sent events, one token each, at a steady pace."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(1, count + 1):
            time.sleep(TOKEN_S)
            piece = {"delta": {"content": " x"}} if chat else {"text": " x"}
            piece |= {"index": 0, "finish_reason": "length" if number == count else None}
            so_far = {"prompt_tokens": asked, "completion_tokens": number, "total_tokens": asked + number}
            self.event({"choices": [piece], "usage": so_far})
        self.event({"choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, value):
        """One event."""
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, data):
        """One HTTP chunk."""
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    """Many connections at once; an interrupted client is no news."""

    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, *_):
        """Say nothing."""


def main():
    """Behave as scripted."""
    if RECORD:
        note = {"argv": sys.argv, "env": dict(os.environ), "pid": os.getpid(), "cwd": str(Path.cwd())}
        (Path(RECORD) / f"{os.getpid()}.json").write_text(json.dumps(note))
    print("shim", MODE, *sys.argv[1:], flush=True)
    if "--version" in sys.argv:
        return
    if MODE == "stubborn":
        for kind in ("setsid", "same"):
            subprocess.Popen([sys.executable, "-c", STUBBORN_CHILD, kind])
    if MODE == "noisy":
        for number in range(10_000):
            print(f"{number:06} " + "x" * 100)
        sys.stdout.flush()
    if MODE == "bad_flag":
        print("usage: vllm serve [options]\nvllm serve: error: unrecognized arguments: --no-such-flag", file=sys.stderr)
        sys.exit(2)
    if MODE == "port_taken":
        print("(EngineCore pid=6) zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5600')", flush=True)
        sys.exit(1)
    time.sleep(DELAY_S)
    if MODE == "exit":
        print("ValueError: the shim was told to fail", flush=True)
        sys.exit(int(os.environ.get("SHIM_CODE", "1")))
    if MODE == "oom":
        print(OOM_LOG, flush=True)
        sys.exit(1)
    if MODE == "never_bind":
        time.sleep(600)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server = Server((flag("host", "127.0.0.1"), int(flag("port", "8000"))), Handler)
    print("shim listens", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
