"""What every live test needs."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.live_engine import TINY, VLLM


@pytest.fixture(scope="session")
def engine_environment() -> Iterator[None]:
    """The engine environment is there, and no other test run on this machine uses a live engine meanwhile."""
    if not VLLM.exists() or not TINY.exists():
        pytest.fail("no engine environment: run `make engine-env`")
    with (Path(tempfile.gettempdir()) / f"slo-tuner-live-{os.getuid()}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
