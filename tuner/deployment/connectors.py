"""
What connects one engine to others: KV transfer between prefill and decode, KV stores. Pure.

vLLM takes one connector; several are wrapped into its MultiConnector, the transfer first. A store serves the engines
that fill KV caches: those of the role `engine`, or prefill. Names and defaults of vLLM 0.32.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tuner.canary import SEPARATOR
from tuner.configuration import Configuration, Role
from tuner.deployment import stores
from tuner.deployment.spec import PortNeed
from tuner.errors import InputError
from tuner.flags import compact_json
from tuner.model import GIB
from tuner.slo import Objective, Pool
from tuner.split_rules import UNROUTED

#: What a decode engine does when blocks do not arrive: the request fails and is seen, rather than being computed again.
FAILURE_POLICY = "fail"
_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
#: CacheBlend: parts of a prompt are reused wherever they stand, and a share of their tokens is computed again. Settings
#: are those of LMCache's own example (`examples/blend_kv_v1`).
_BLENDING: Mapping[str, str] = {
    "LMCACHE_USE_LAYERWISE": "True",
    "LMCACHE_ENABLE_BLENDING": "True",
    "LMCACHE_BLEND_SPECIAL_STR": SEPARATOR,
    "LMCACHE_BLEND_CHECK_LAYERS": "1",
    "LMCACHE_BLEND_RECOMPUTE_RATIOS": "0.15",
    "LMCACHE_BLEND_MIN_TOKENS": str(stores.LMCACHE_CHUNK_TOKENS),
}


@dataclass(frozen=True)
class Attachment:
    """Arguments, environment, ports and files that one engine gets beside its own; templates as in `spec`."""

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[PortNeed, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Connector:
    config: Mapping[str, object]
    env: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[PortNeed, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def attach(configuration: Configuration, role: Role, pool: Pool, objective: Objective) -> Attachment:
    """
    How the engines of a role are connected; nothing for an aggregated engine without a store.

    Raises:
        InputError: The router cannot drive the KV transfer.
    """
    found: list[_Connector] = []
    if configuration.mode == "disaggregated":
        transfer = str(configuration.kv_transfer)
        if transfer in UNROUTED:
            raise InputError(f"configuration: kv_transfer: got {transfer}: {UNROUTED[transfer]}")
        found.append(_TRANSFERS[transfer](role, pool, objective))
    if configuration.kv_store != "none" and role.name == configuration.storing_role:
        found.append(_STORES[configuration.kv_store](configuration, role, pool))
    if not found:
        return Attachment()
    config = found[0].config if len(found) == 1 else _several([each.config for each in found])
    return Attachment(
        argv=("--kv-transfer-config", compact_json(config)),
        env={name: value for each in found for name, value in each.env.items()},
        ports=tuple(need for each in found for need in each.ports),
        files={name: text for each in found for name, text in each.files.items()},
    )


def _several(configs: list[Mapping[str, object]]) -> Mapping[str, object]:
    return {
        "kv_connector": "MultiConnector",
        "kv_role": configs[0]["kv_role"],
        "kv_load_failure_policy": FAILURE_POLICY,
        "kv_connector_extra_config": {"connectors": configs},
    }


def _nixl(role: Role, pool: Pool, objective: Objective) -> _Connector:
    """
    Each rank has a side channel, at the first port plus its number; so each engine has a block of its own.

    UCX, which moves the blocks, listens on every network of the machine. Between CPUs of one machine it needs loopback
    alone; between GPUs other devices may be faster, and it is left to choose.
    """
    config: dict[str, object] = {
        "kv_connector": "NixlConnector",
        "kv_role": _KV_ROLES[role.name],
        "kv_load_failure_policy": FAILURE_POLICY,
    }
    if pool.unit == "cpu":
        config["kv_buffer_device"] = "cpu"
    if objective.engine.connector_module:
        config["kv_connector_module_path"] = objective.engine.connector_module
    env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "${host}", "VLLM_NIXL_SIDE_CHANNEL_PORT": "${port:side_channel}"}
    if pool.unit == "cpu" and objective.cluster.bind == "loopback":
        env["UCX_NET_DEVICES"] = "lo"
    return _Connector(config, env, (PortNeed("side_channel", role.units_each),))


def _mooncake(role: Role, pool: Pool, objective: Objective) -> _Connector:
    """
    Prefill engines are found by their bootstrap server; ranks of data parallelism count on from its port.

    Blocks that nobody fetches are held as long as a client waits for its first token, not for the default of 480 s.
    """
    config: dict[str, object] = {
        "kv_connector": "MooncakeConnector",
        "kv_role": _KV_ROLES[role.name],
        "kv_load_failure_policy": FAILURE_POLICY,
        "kv_connector_extra_config": {"mooncake_protocol": stores.protocol(pool)},
    }
    if objective.engine.connector_module:
        config["kv_connector_module_path"] = objective.engine.connector_module
    env = {
        "VLLM_HOST_IP": "${host}",
        "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": str(math.ceil(objective.workload.timeout.first_token_s)),
    }
    if role.name != "prefill":
        return _Connector(config, env)
    env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] = "${port:bootstrap}"
    return _Connector(config, env, (PortNeed("bootstrap", role.units_each),))


def _cpu_offload(configuration: Configuration, role: Role, _: Pool) -> _Connector:
    """The engine's own host memory; every engine, and every rank of data parallelism, has an equal share."""
    size = float(configuration.effective.get("kv_store_ram_gib") or 0) * GIB
    return _Connector(
        {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"cpu_bytes_to_use": int(size / role.caches)},
        }
    )


def _lmcache(configuration: Configuration, role: Role, _: Pool) -> _Connector:
    """The connector of LMCache's multi-process mode, which has a server, or the one that keeps blocks itself."""
    if configuration.store_in_engines:
        return _lmcache_in_process(configuration, role)
    server = stores.LMCACHE
    return _Connector(
        {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.mp.host": f"tcp://${{host:{server}}}",
                "lmcache.mp.port": f"${{port:{server}/rpc}}",
            },
        }
    )


def _lmcache_in_process(configuration: Configuration, role: Role) -> _Connector:
    """
    LMCache within the engines: memory beside every rank of every engine, and files where there is SSD; equal shares.

    The files lie in the engine's own directory and are removed with it. Names as in LMCache 0.5.6, `v1/config.py`.
    """
    ram_gib, ssd_gib = (stores.gib(configuration, tier) / role.units for tier in ("ram", "ssd"))
    env = {
        "LMCACHE_CHUNK_SIZE": str(stores.LMCACHE_CHUNK_TOKENS),
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": f"{ram_gib:g}",
        **stores.LMCACHE_SILENT,
    }
    if ssd_gib > 0:
        env |= {"LMCACHE_LOCAL_DISK": "${directory}/lmcache", "LMCACHE_MAX_LOCAL_DISK_SIZE": f"{ssd_gib:g}"}
    if configuration.lossy:
        env |= _BLENDING
    return _Connector({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}, env)


def _mooncake_store(configuration: Configuration, _: Role, pool: Pool) -> _Connector:
    return _Connector(
        {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"},
        {"VLLM_HOST_IP": "${host}", "MOONCAKE_CONFIG_PATH": "${file:mooncake.json}"},
        files={"mooncake.json": stores.engine_file(configuration, pool)},
    )


_TRANSFERS: Mapping[str, Callable[[Role, Pool, Objective], _Connector]] = {"nixl": _nixl, "mooncake": _mooncake}
_STORES: Mapping[str, Callable[[Configuration, Role, Pool], _Connector]] = {
    "cpu_offload": _cpu_offload,
    "lmcache": _lmcache,
    "mooncake": _mooncake_store,
}
