"""Deployments of the scripted engine, and what is left of them."""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tuner.deployment import guardian
from tuner.load.plan import LevelPlan
from tuner.slo import (
    Cluster,
    Engine,
    Limit,
    Measure,
    Objective,
    Pool,
    Prices,
    Search,
    Slo,
    Synthetic,
    Timeouts,
    Workload,
)

SHIM = Path(__file__).with_name("shim_vllm.py")
SHIM_PD = Path(__file__).with_name("shim_pd.py")


def shim_objective(
    env: Mapping[str, str] | None = None,
    *,
    model: str = "shim-model",
    pool: Pool | None = None,
    max_gpus: int = 1,
    start_timeout_s: float = 20.0,
    router: str = "ok",
    store: str = "ok",
    command: tuple[str, ...] = (sys.executable, str(SHIM), "serve"),
) -> Objective:
    """An objective whose programs are the scripted ones; `env`, `router` and `store` say how they behave."""
    return Objective(
        path="slo.yaml",
        model=model,
        slo=Slo((Limit("ttft", "p95", 5.0),)),
        workload=Workload(
            Synthetic(input_tokens=20, output_tokens=4),
            measure=Measure(warmup_s=0.1, duration_s=0.5, min_requests=10),
            timeout=Timeouts(10.0, 10.0, 30.0),
        ),
        cluster=Cluster((pool or Pool("cpu", "cpu", "slot", 1, 2, 0.1),), max_gpus),
        prices=Prices("USD"),
        search=Search("space.yaml"),
        engine=Engine(
            command=command,
            env=dict(env or {}),
            router=(sys.executable, str(SHIM_PD), "router", router),
            stores={"lmcache": (sys.executable, str(SHIM_PD), "store", store)},
            start_timeout_s=start_timeout_s,
        ),
    )


def level(objective: Objective, number: int = 1, *, rate_rps: float = 40.0, requests: int = 10) -> LevelPlan:
    """A short open-loop level."""
    return LevelPlan(objective.model, objective.workload, objective.slo, number, 7, rate_rps, None, requests)


def alive(processes: list[guardian.Process]) -> list[guardian.Process]:
    """Those that still run."""
    return [each for each in processes if guardian.identify(each.pid) == each]


def shims(record: Path) -> list[guardian.Process]:
    """Running shims, and children that they made, that wrote into this record directory."""
    wanted = f"SHIM_RECORD={record}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            mine = wanted in (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        one = guardian.identify(int(path.name)) if mine and int(path.name) != os.getpid() else None
        if one is not None:
            found.append(one)
    return found


def eventually(holds: Callable[[], object], limit_s: float = 15.0) -> bool:
    """Whether it comes true within the limit."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(0.05)
    return bool(holds())


def told(record: Path) -> list[dict[str, Any]]:
    """Argv and env of every shim that was started."""
    return [json.loads(path.read_text()) for path in record.glob("*.json")]
