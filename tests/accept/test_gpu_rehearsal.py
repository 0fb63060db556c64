"""The script for GPU hosts, rehearsed with scripted engines and a made-up nvidia-smi: `make accept-live`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.deployments import SHIM, SHIM_PD

pytestmark = pytest.mark.accept

ROOT = Path(__file__).resolve().parents[2]
#: Two GPUs, of whose memory nobody ever takes anything.
NVIDIA_SMI = """#!/bin/sh
case "$*" in
  --list-gpus) printf 'GPU 0: made up\\nGPU 1: made up\\n' ;;
  *query-gpu=index*) printf '0\\n1\\n' ;;
  *query-gpu=memory.used*) printf '10\\n10\\n' ;;
  *query-gpu=name*) printf 'H100-80GB\\nH100-80GB\\n' ;;
esac
"""


@pytest.mark.parametrize(("hits", "word"), [("0.4", "PASS"), ("0", "FAIL")])
def test_splits_and_stores_pass_if_their_counters_prove_them(hits, word, tmp_path):
    """A transfer is told with its counters; stores pass with hits alone."""
    programs = {
        "nvidia-smi": NVIDIA_SMI,
        "vllm": f'#!/bin/sh\nSHIM_HITS={hits} exec {sys.executable} {SHIM} "$@"\n',
        "vllm-router": f'#!/bin/sh\nexec {sys.executable} {SHIM_PD} router ok "$@"\n',
        "lmcache": f'#!/bin/sh\nexec {sys.executable} {SHIM_PD} store ok "$@"\n',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    out = tmp_path / "out"
    environ = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "VENV": sys.prefix,
        "ENGINE": str(tmp_path / "vllm"),
        "CHECKS": "split stores",
    }
    command = ["bash", str(ROOT / "tools" / "accept_gpu.sh"), "--out", str(out)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=900)
    print(done.stdout)
    told = {check["name"]: check for check in json.loads((out / "accept-gpu.json").read_text())["checks"]}
    stores = ("cpu_offload", "lmcache", "lmcache_in_process")
    assert [told[name]["result"] for name in ("split", *stores)] == ["PASS", word, word, word]
    assert "kv_transfer_share 1," in told["split"]["detail"]
    assert ("store_not_effective" in (out / "accept-gpu.log").read_text()) == (word == "FAIL")
    assert done.returncode == any(check["result"] == "FAIL" for check in told.values())
