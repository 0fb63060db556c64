"""
Processes of KV stores, and what engines have to know of them. Pure.

A store belongs to one deployment: it starts before the engines, empty, and ends with them, so that nothing that one
trial put into it is found by another.
"""

import os.path
from collections.abc import Callable, Mapping
from dataclasses import replace

from tuner.configuration import Configuration
from tuner.deployment.spec import START_ORDER, PortNeed, ProcessSpec, Readiness, literal
from tuner.flags import compact_json
from tuner.model import GIB
from tuner.slo import Objective, Pool

#: Names of processes that engines are pointed to.
LMCACHE = MOONCAKE_MASTER = "store-0"
MOONCAKE_SEGMENT = "store-1"
#: How stores are started unless the objective file says otherwise.
COMMANDS: Mapping[str, tuple[str, ...]] = {"lmcache": ("lmcache", "server"), "mooncake": ("mooncake_master",)}
#: A store that is not ready by then hangs: none has a model to load.
READY_LIMIT_S = 120.0
_ENV_PREFIXES = ("LMCACHE_", "MC_", "MOONCAKE_")
LMCACHE_CHUNK_TOKENS = 256
#: LMCache tells its makers about its use unless told not to, as vLLM does.
LMCACHE_SILENT: Mapping[str, str] = {"LMCACHE_TRACK_USAGE": "false"}
_ENGINE_BUFFER_BYTES = 64 * 1024**2
#: Runs Mooncake's store service, whose REST interface listens on every address, on one address alone.
_SEGMENT_PROGRAM = """\
import sys

from aiohttp import web

address = sys.argv.pop(1)
site = web.TCPSite
web.TCPSite = lambda runner, _everywhere, port: site(runner, address, port)

from mooncake.mooncake_store_service import sync_main

sys.exit(sync_main())
"""


def specs(configuration: Configuration, objective: Objective, pool: Pool) -> tuple[ProcessSpec, ...]:
    """
    The store's processes; none where there is no store or the engines keep it themselves.

    Args:
        configuration: With its `kv_store` and sizes.
        objective: Says how stores are started.
        pool: Where the engines run that fill the store.
    """
    build: Mapping[str, Callable[[Configuration, Objective, Pool], tuple[ProcessSpec, ...]]] = {
        "lmcache": _lmcache,
        "mooncake": _mooncake,
    }
    make = build.get(configuration.kv_store)
    return () if make is None or configuration.store_in_engines else make(configuration, objective, pool)


def protocol(pool: Pool) -> str:
    """How Mooncake moves bytes: as it prefers on GPU machines, by TCP where there are CPUs alone."""
    return "tcp" if pool.unit == "cpu" else "rdma"


def engine_file(configuration: Configuration, pool: Pool) -> str:
    """Text of the file that an engine's MOONCAKE_CONFIG_PATH names: it adds no memory of its own to the store."""
    return compact_json(
        {
            **_mooncake_addresses(pool),
            "global_segment_size": 0,
            "local_buffer_size": _ENGINE_BUFFER_BYTES,
            "mode": "standalone-store",
            **({"enable_offload": True} if gib(configuration, "ssd") > 0 else {}),
        }
    )


def _lmcache(configuration: Configuration, objective: Objective, _: Pool) -> tuple[ProcessSpec, ...]:
    size = str(int(gib(configuration, "ram")))
    argv = [*_command(objective, "lmcache"), "--host", "${host}", "--port", "${port:rpc}"]
    argv += ["--http-port", "${port:http}", "--prometheus-port", "${port:prometheus}"]
    argv += [
        "--l1-size-gb",
        size,
        "--l1-init-size-gb",
        size,
        "--eviction-policy",
        "LRU",
        "--chunk-size",
        str(LMCACHE_CHUNK_TOKENS),
    ]
    argv += ["--hash-algorithm", "blake3", "--max-workers", "2", "--supported-transfer-mode", "auto"]
    ports = ("http", "rpc", "prometheus")
    return (_spec(objective, LMCACHE, argv, Readiness("tcp", "rpc"), ports=ports, env=LMCACHE_SILENT),)


def _mooncake(configuration: Configuration, objective: Objective, pool: Pool) -> tuple[ProcessSpec, ...]:
    """The master, which knows where blocks are, and the process whose memory they are in."""
    command = _command(objective, "mooncake")
    ssd_bytes = int(gib(configuration, "ssd") * GIB)
    master = [*command, "--rpc_address=${host}", "--rpc_port=${port:rpc}"]
    master += ["--metrics_host=${host}", "--metrics_port=${port:http}", "--enable_http_metadata_server=true"]
    master += ["--http_metadata_server_host=${host}", "--http_metadata_server_port=${port:metadata}"]
    segment: dict[str, object] = {
        **_mooncake_addresses(pool),
        "local_hostname": "${host}",
        "global_segment_size": int(gib(configuration, "ram") * GIB),
        "local_buffer_size": _ENGINE_BUFFER_BYTES,
    }
    env: dict[str, str] = {}
    if ssd_bytes > 0:
        master.append("--enable_offload=true")
        segment |= {"enable_ssd_offload": True, "ssd_offload_path": "${directory}"}
        env["MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"] = str(ssd_bytes)
    holder = [_python_beside(command[0]), "${file:segment.py}", "${host}", "--config=${file:segment.json}"]
    first = START_ORDER["store"] - 1
    return (
        _spec(
            objective,
            MOONCAKE_MASTER,
            master,
            Readiness("http", path="/metrics"),
            ports=("http", "rpc", "metadata"),
            order=first,
        ),
        _spec(
            objective,
            MOONCAKE_SEGMENT,
            [*holder, "--port=${port:http}"],
            Readiness("tcp"),
            ports=("http",),
            env=env,
            files={"segment.py": literal(_SEGMENT_PROGRAM), "segment.json": compact_json(segment)},
        ),
    )


def _spec(
    objective: Objective,
    name: str,
    argv: list[str],
    ready: Readiness,
    *,
    ports: tuple[str, ...],
    order: int = START_ORDER["store"],
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> ProcessSpec:
    given = {each: literal(value) for each, value in objective.engine.env.items() if each.startswith(_ENV_PREFIXES)}
    return ProcessSpec(
        name=name,
        role="store",
        index=int(name.rpartition("-")[2]),
        argv=tuple(argv),
        env={**given, **(env or {}), "PYTHONHASHSEED": "0"},
        ready=replace(ready, limit_s=READY_LIMIT_S),
        order=order,
        ports=tuple(PortNeed(port) for port in ports),
        files=files or {},
    )


def _mooncake_addresses(pool: Pool) -> dict[str, object]:
    master = MOONCAKE_MASTER
    return {
        "metadata_server": f"http://${{host:{master}}}:${{port:{master}/metadata}}/metadata",
        "master_server_address": f"${{host:{master}}}:${{port:{master}/rpc}}",
        "protocol": protocol(pool),
        "device_name": "",
    }


def _command(objective: Objective, store: str) -> list[str]:
    return [literal(token) for token in objective.engine.stores.get(store, COMMANDS[store])]


def _python_beside(program: str) -> str:
    """The Python of the environment that a program is in: in its folder, else the one that PATH finds."""
    folder = os.path.dirname(program)  # noqa: PTH120  (a template, no path of this machine)
    return f"{folder}/python3" if folder else "python3"


def gib(configuration: Configuration, tier: str) -> float:
    """Size of a tier, `ram` or `ssd`, of the whole deployment."""
    return float(configuration.effective.get(f"kv_store_{tier}_gib") or 0.0)
