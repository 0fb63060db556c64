"""The GPUs of this machine: which may be used, and whether their memory is free again."""

import subprocess
import time
from collections.abc import Mapping, Sequence

#: How long the memory of a dead engine may take to be free.
MEMORY_LIMIT_S = 30.0
_SLACK_MIB = 512


def visible_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Ids that a process may put into CUDA_VISIBLE_DEVICES: what is visible here already, else all that there are."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(part.strip() for part in visible.split(",") if part.strip() not in {"", "-1"})
    return tuple(line for line in _nvidia_smi("index") if line.isdigit())


def memory_used_mib(gpus: Sequence[str]) -> dict[str, int]:
    """Memory in use on each of these GPUs, by whomever; empty where that cannot be asked."""
    told = _nvidia_smi("memory.used", ",".join(gpus)) if gpus else []
    return {gpu: int(line) for gpu, line in zip(gpus, told, strict=False) if line.isdigit()}


def wait_for_memory(gpus: Sequence[str], idle_mib: Mapping[str, int], limit_s: float) -> str:
    """
    Wait until the GPUs' memory is as free as it was; "" then, and at the time limit what is still in use.

    Args:
        gpus: Ids; one without an entry in `idle_mib` is not looked at.
        idle_mib: Memory in use on each before it was first taken.
        limit_s: How long.
    """
    until = time.monotonic() + limit_s
    while True:
        used = memory_used_mib(gpus)
        held = {gpu: mib for gpu, mib in used.items() if mib > idle_mib.get(gpu, mib) + _SLACK_MIB}
        if not held or time.monotonic() >= until:
            return ", ".join(f"GPU {gpu} has {mib} MiB in use" for gpu, mib in held.items())
        time.sleep(0.5)


def _nvidia_smi(query: str, ids: str = "") -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", *(["-i", ids] if ids else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines()] if done.returncode == 0 else []
