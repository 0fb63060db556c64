"""
Prices × resources → currency per hour, and what one good request costs. Pure.

Everything that the deployment holds is paid for: the units (GPUs or CPU slots) of all roles, each at its pool's price,
the RAM and SSD of the key-value store, and the network between nodes. No goodput has no cost: None, never infinity.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from tuner.configuration import Configuration, Role, pool_of
from tuner.errors import InputError
from tuner.objective import Score
from tuner.placement import Piece, Room, place
from tuner.slo import Cluster, Objective, Pool, Prices

HOUR_S = 3600.0

#: Knobs that say how much of the store a deployment holds, all nodes together, and the network bandwidth it reserves.
STORE_RAM_KNOB, STORE_SSD_KNOB, NETWORK_KNOB = "kv_store_ram_gib", "kv_store_ssd_gib", "network_gbit"


@dataclass(frozen=True)
class RoleCost:
    """One role on one pool."""

    role: str
    pool: str
    units: int  # used
    per_hour: float  # of the used units; idle units of a whole server are not in it


@dataclass(frozen=True)
class PoolCost:
    """One pool. `units` are used, `charged_units` paid for."""

    pool: str
    units: int
    charged_units: int
    per_hour: float


@dataclass(frozen=True)
class CostBreakdown:
    """Currency per hour, in parts that sum to `total`."""

    currency: str
    gpu: float  # all units of all roles, CPU slots too
    store_ram: float
    store_ssd: float
    network: float
    units: int  # used, over all roles
    roles: tuple[RoleCost, ...]
    pools: tuple[PoolCost, ...]

    @property
    def total(self) -> float:
        return self.gpu + self.store_ram + self.store_ssd + self.network


@dataclass(frozen=True)
class Fleet:
    """Identical copies of one deployment that carry a demand."""

    copies: int
    units: int
    per_hour: float


def cost_per_hour(configuration: Configuration, objective: Objective) -> CostBreakdown:
    """
    What the configuration holds, priced.

    Raises:
        InputError: A role is to run on a pool that the cluster does not have, or a store's size is negative.
    """
    return price(
        configuration.roles,
        objective.cluster,
        objective.prices,
        store_ram_gib=_amount(configuration, STORE_RAM_KNOB),
        store_ssd_gib=_amount(configuration, STORE_SSD_KNOB),
        network_gbit=_amount(configuration, NETWORK_KNOB),
    )


def price(
    roles: Iterable[Role],
    cluster: Cluster,
    prices: Prices,
    *,
    store_ram_gib: float = 0.0,
    store_ssd_gib: float = 0.0,
    network_gbit: float = 0.0,
) -> CostBreakdown:
    """
    Roles and store sizes, priced.

    A role runs on the pool that it names, else on the first. Under `charge: whole_server` every node that holds an
    engine is paid for in full; which nodes these are is what `placement` says.

    Raises:
        InputError: A role names a pool that the cluster does not have.
    """
    pools = {pool.name: pool for pool in cluster.pools}
    placed: dict[str, list[Role]] = {}
    for role in roles:
        placed.setdefault(pool_of(role, cluster).name, []).append(role)
    pool_costs = []
    for name, there in placed.items():
        used = sum(role.units for role in there)
        charged = used if prices.charge == "used" else _nodes(there, pools[name], cluster) * pools[name].per_node
        pool_costs.append(PoolCost(name, used, charged, charged * pools[name].price_per_hour))
    return CostBreakdown(
        currency=prices.currency,
        gpu=math.fsum(pool.per_hour for pool in pool_costs),
        store_ram=store_ram_gib * prices.ram_gib_hour,
        store_ssd=store_ssd_gib * prices.ssd_gib_hour,
        network=network_gbit * prices.network_gbit_hour,
        units=sum(pool.units for pool in pool_costs),
        roles=tuple(
            RoleCost(role.name, name, role.units, role.units * pools[name].price_per_hour)
            for name, there in placed.items()
            for role in there
        ),
        pools=tuple(pool_costs),
    )


def per_1k_good_requests(per_hour: float, goodput_rps: float) -> float | None:
    """Currency per 1,000 good requests; None at zero goodput."""
    return per_hour / (goodput_rps * HOUR_S) * 1e3 if goodput_rps > 0 else None


def per_1m_good_output_tokens(per_hour: float, good_output_tokens_per_s: float) -> float | None:
    """Currency per million output tokens of good requests; None at zero."""
    return per_hour / (good_output_tokens_per_s * HOUR_S) * 1e6 if good_output_tokens_per_s > 0 else None


def weight(kind: Literal["cost_per_goodput", "goodput_per_gpu", "goodput"], cost: CostBreakdown) -> float:
    """What the search minimises, times the goodput in requests/s: known before anything is measured."""
    if kind == "cost_per_goodput":
        return cost.total / HOUR_S * 1e3
    return float(cost.units) if kind == "goodput_per_gpu" else 1.0


def objective_value(
    kind: Literal["cost_per_goodput", "goodput_per_gpu", "goodput"], cost: CostBreakdown, score: Score
) -> float | None:
    """
    What the search minimises, > 0, so that its logarithm exists; None at zero goodput, which can never be best.

    `cost_per_goodput`: currency per 1,000 good requests. `goodput_per_gpu`: unit-seconds per good request, the inverse.
    `goodput`: seconds per good request, the inverse.
    """
    return weight(kind, cost) / score.goodput_rps if score.goodput_rps > 0 else None


def fleet(cost: CostBreakdown, demand_rps: float, goodput_rps: float) -> Fleet | None:
    """Copies that carry `demand_rps` if each carries `goodput_rps`; None at zero goodput."""
    if goodput_rps <= 0:
        return None
    copies = max(1, math.ceil(demand_rps / goodput_rps - 1e-9))
    return Fleet(copies, copies * cost.units, copies * cost.total)


def _nodes(roles: Iterable[Role], pool: Pool, cluster: Cluster) -> int:
    """Nodes that the engines touch."""
    pieces = [Piece(role.name, pool.name, role.units_each) for role in roles for _ in range(role.replicas)]
    rooms = [Room((pool.name,), {"unit": pool.per_node})] * min(pool.nodes, len(pieces))
    homes = place(pieces, rooms, spread=cluster.spread)
    if homes is None:  # refused elsewhere; its price is still right
        spanned = [math.ceil(piece.size / pool.per_node) for piece in pieces]
        whole = [replace(piece, size=min(piece.size, pool.per_node)) for piece in pieces]
        homes = place(whole, [Room((pool.name,), {"unit": pool.per_node})] * len(pieces)) or ()
        return len(set(homes)) + sum(spanned) - len(pieces)
    return len(set(homes))


def _amount(configuration: Configuration, knob: str) -> float:
    value = configuration.effective.get(knob)
    if value is None:
        return 0.0
    if isinstance(value, (bool, str)) or not 0 <= value < math.inf:
        raise InputError(f"configuration: {knob}: got {value!r}: it must be a finite number >= 0")
    return float(value)
