"""
KV connectors for the CPU build of vLLM, in tests alone; never part of a deployed command.

`tools/engine_env.sh` installs this as the module `tuner_cpu_connectors` of the engine environment, and
`engine.connector_module` names it, which an objective file may only do with TUNER_TEST_CONNECTORS=1.

NIXL's progress thread polls without a pause and takes a whole core of every engine, idle or not; here it sleeps for a
millisecond between two looks. vLLM's NIXL worker also moves itself to the machine's last core, so that KV comes
elsewhere than the model computes. In an engine of one thread that is the thread that computes, so two engines of one
core each would share the last one. Here it stays on the cores that it was given.

Mooncake's connector asks for the current accelerator and for CUDA events, which there are not; nothing on a CPU runs
behind the caller's back, so an event has always happened.
"""

import os
from typing import Any

os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")  # what vLLM sets itself before it loads NIXL

import nixl._api as nixl
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector, mooncake_utils
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import connector as nixl_connector

_POLL_US = 1000


class _Bindings:
    """NIXL's bindings, with agents that pause between two looks."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def nixlAgent(self, name: str, config: Any) -> Any:  # noqa: N802 (the name of the class that it stands for)
        config.pthrDelay = _POLL_US
        return self._real.nixlAgent(name, config)


class _Event:
    """A CUDA event of a device that does everything at once."""

    def __init__(self, **_: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


if not isinstance(nixl.nixlBind, _Bindings):
    nixl.nixlBind = _Bindings(nixl.nixlBind)
if not torch.cuda.is_available():
    torch.accelerator.current_device_index = lambda: 0
    torch.cuda.Event = _Event

    class _OnLoopback(mooncake_utils.MooncakeBootstrapServer):
        """Listens where the tests may listen."""

        def __init__(self, _everywhere: str, port: int) -> None:
            super().__init__("127.0.0.1", port)

    mooncake_connector.MooncakeBootstrapServer = _OnLoopback


class NixlConnector(nixl_connector.NixlConnector):
    """vLLM's own, with the agents above, on the cores of its engine."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cores = os.sched_getaffinity(0)
        super().__init__(*args, **kwargs)
        os.sched_setaffinity(0, cores)


class MooncakeConnector(mooncake_connector.MooncakeConnector):
    """vLLM's own, without a GPU."""
