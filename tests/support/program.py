"""The real `tuner` program in a process of its own, on the scripted engine."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.deployments import SHIM


def started(*arguments, cwd, session=False, **environ):
    """A real `tuner` process; `session` gives it a process group of its own, as a terminal's shell does."""
    return subprocess.Popen(
        [sys.executable, "-m", "tuner", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=session,
        text=True,
    )


def finished(*arguments, cwd, **environ):
    """A real `tuner` process, run to its end: exit code, stdout, stderr."""
    with started(*arguments, cwd=cwd, **environ) as process:
        try:
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, out, err


def write_live_objective(
    path: Path,
    *,
    env: Mapping[str, str],
    measure: str = "{warmup: 0s, duration: 1s, min_requests: 20}",
    command: Sequence[str] = (sys.executable, str(SHIM), "serve"),
    start_timeout: str = "60s",
) -> None:
    """An objective file whose engine is the scripted one on this machine: one trial at 20 requests/s."""
    path.write_text(
        f"""\
model: nobody/tiny
slo: {{ttft: {{p95: 5s}}}}
workload:
  source: {{synthetic: {{input_tokens: 20, output_tokens: 3}}}}
  load: {{rate: 20/s}}
  measure: {measure}
cluster:
  pools: [{{name: slots, cpu: slot, cores: 1, nodes: 1, per_node: 1, price: 0.05/h}}]
prices: {{currency: USD}}
search: {{space: quick, trials: 1, verify: {{finalists: 1, repeats: 1, min_requests: 20}}}}
backend: local
engine:
  command: {json.dumps(list(command))}
  env: {json.dumps(dict(env))}
  start_timeout: {start_timeout}
""",
        encoding="utf-8",
    )
