"""The KV store of a configuration, as tiers."""

from math import inf

from tuner.configuration import Configuration, Role
from tuner.model import GIB
from tuner.simulator.fleet import StoreKind
from tuner.simulator.store import Tier
from tuner.slo import Objective, Pool, Scalar

#: Kinds of store.
KINDS = ("cpu_offload", "lmcache", "mooncake")
#: Reading from memory of the own host: bytes per second and seconds of each read. 43 GB/s is what one H100 takes of its
#: PCIe link; guesses elsewhere.
HOST_BYTES_PER_S, HOST_LATENCY_S = {"gpu": 43e9, "cpu": 5e9}, 0.001
#: Through a network: where `cluster.interconnect` says nothing, and what a request and its answer add.
NETWORK_BYTES_PER_S, NETWORK_LATENCY_S = {"gpu": 25e9, "cpu": 2e9}, 0.002
#: A data-centre NVMe drive.
SSD_BYTES_PER_S, SSD_LATENCY_S = 6e9, 0.003
#: A store's blocks are numbered one by one; more than this many change nothing but memory.
MOST_BLOCKS = 1 << 22


def store_of(
    configuration: Configuration, role: Role, objective: Objective, pool: Pool, *, token_bytes: float, block_size: int
) -> StoreKind | None:
    """
    The store of a role's engines.

    Args:
        configuration: Its knobs `kv_store`, `kv_store_ram_gib`, `kv_store_ssd_gib` (of the whole deployment) and
            `network_gbit`. A store that all engines share lies across the network.
        role: Decode engines have none.
        objective: For `cluster.interconnect`.
        pool: That the engines run on.
        token_bytes: Of KV, of one token.
        block_size: Tokens of a block.
    """
    if configuration.kv_store not in KINDS or role.name == "decode":
        return None
    shared = not configuration.store_in_engines
    share = 1 if shared else role.replicas
    network = objective.cluster.interconnect_bytes_per_s
    network_bytes_per_s = NETWORK_BYTES_PER_S[pool.unit] if network is None else network
    reserved = _amount(configuration.knobs.get("network_gbit"))
    if reserved:
        network_bytes_per_s = min(network_bytes_per_s, reserved * 1e9 / 8)
    limit_bytes_per_s, more_s = (network_bytes_per_s, NETWORK_LATENCY_S) if shared else (inf, 0.0)
    tiers: list[Tier] = []
    for name, bytes_per_s, latency_s in (
        ("ram", HOST_BYTES_PER_S[pool.unit], HOST_LATENCY_S),
        ("ssd", SSD_BYTES_PER_S, SSD_LATENCY_S),
    ):
        size = _amount(configuration.knobs.get(f"kv_store_{name}_gib")) * GIB / share
        blocks = int(min(size // (token_bytes * block_size), MOST_BLOCKS))
        if blocks:
            token_s = token_bytes / min(bytes_per_s, limit_bytes_per_s)
            tiers.append(Tier(name, blocks, latency_s + more_s, token_s))
    return StoreKind(tuple(tiers), shared) if tiers else None


def _amount(value: Scalar) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
