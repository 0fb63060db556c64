"""The blocks `cluster` and `prices` of an objective file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from tuner.configuration import SIDES
from tuner.slo import Cluster, Pool, Prices
from tuner.units import MONTH_H, parse_bandwidth, parse_money_per_hour, parse_size_gib
from tuner.yamlfile import Node, near

_POOL_KEYS = ("name", "gpu", "cpu", "cores", "nodes", "per_node", "memory", "host_memory", "price")
_CLUSTER_KEYS = ("pools", "max_gpus", "interconnect", "bind", "placement")
#: Keys of each block, by its dotted path. A cluster of one pool may be written without `pools`.
KEYS: Mapping[str, tuple[str, ...]] = {
    "cluster": (*_CLUSTER_KEYS, "gpus_per_node", *_POOL_KEYS),
    "cluster.pools[]": _POOL_KEYS,
    "cluster.placement": ("engine", *SIDES),
    "cluster.pools[].price": ("server_month", "gpus"),
    "prices": ("currency", "gpu_hour", "gpu_second", "server_month", "gpus", "charge", "kv_store", "network"),
    "prices.kv_store": ("ram_gib_hour", "ssd_gib_hour"),
    "prices.network": ("gbit_hour",),
}
_PLACEMENTS = ("pack", "spread")
_MAX_UNITS = 100_000


@dataclass(frozen=True)
class _UnitPrices:
    """What `prices` says about GPUs, in currency per hour of one: by type, or for every type."""

    node: Node | None
    every: float | None
    by_type: Mapping[str, Node]
    seconds: bool  # by_type holds prices per second

    def of(self, device: str) -> float | None:
        if device in self.by_type:
            return _hourly(self.by_type[device], seconds=self.seconds)
        return self.every


def cluster_and_prices(cluster: Node, prices: Node) -> tuple[Cluster, Prices]:
    """
    What there is to run on, and what it costs.

    Raises:
        FileError: As everywhere, and: a pool without a price (the message names its type), a price that no pool uses.
    """
    members = prices.mapping(KEYS["prices"], required=["currency"])
    unit_prices = _unit_prices(prices, members)
    return _cluster(cluster, unit_prices), _prices(members)


def _prices(members: Mapping[str, Node]) -> Prices:
    currency = members["currency"]
    code = currency.text()
    if not re.fullmatch(r"[A-Z]{3}", code):
        currency.fail(f"got {currency.shown()}: a currency is three capital letters, such as USD, EUR or JPY")
    store = members["kv_store"].mapping(KEYS["prices.kv_store"]) if "kv_store" in members else {}
    network = members["network"].mapping(KEYS["prices.network"]) if "network" in members else {}
    charge = members["charge"].choice(["used", "whole_server"]) if "charge" in members else "used"
    return Prices(
        code,
        cast("Literal['used', 'whole_server']", charge),
        ram_gib_hour=store["ram_gib_hour"].number(minimum=0) if "ram_gib_hour" in store else 0.0,
        ssd_gib_hour=store["ssd_gib_hour"].number(minimum=0) if "ssd_gib_hour" in store else 0.0,
        network_gbit_hour=network["gbit_hour"].number(minimum=0) if "gbit_hour" in network else 0.0,
    )


def _unit_prices(prices: Node, members: Mapping[str, Node]) -> _UnitPrices:
    given = [name for name in ("gpu_hour", "gpu_second", "server_month") if name in members]
    if len(given) > 1:
        members[given[1]].fail_key(f"{given[0]} is given as well: keep one of them")
    if "gpus" in members and given != ["server_month"]:
        members["gpus"].fail_key("gpus belongs to server_month: the number of GPUs of that server")
    if not given:
        return _UnitPrices(None, None, {}, seconds=False)
    node = members[given[0]]
    if given == ["server_month"]:
        return _UnitPrices(node, _server_month(prices, members), {}, seconds=False)
    seconds = given == ["gpu_second"]
    if node.is_mapping:
        return _UnitPrices(node, None, dict(node.items()), seconds)
    return _UnitPrices(node, _hourly(node, seconds=seconds), {}, seconds)


def _hourly(node: Node, *, seconds: bool) -> float:
    """Currency per hour, as `0.28/s` is read, so that both spellings give the same float."""
    return parse_money_per_hour(f"{node.number(above=0)!r}{'/s' if seconds else '/h'}")


def _server_month(node: Node, members: Mapping[str, Node]) -> float:
    """Currency per hour of one GPU of a server that is paid by the month."""
    if "gpus" not in members:
        node.fail("the key 'gpus' is missing: how many GPUs the server of server_month has")
    return members["server_month"].number(above=0) / members["gpus"].integer(minimum=1, maximum=1024) / MONTH_H


def _cluster(node: Node, unit_prices: _UnitPrices) -> Cluster:
    members = node.mapping(KEYS["cluster"])
    if "pools" in members:
        for name, member in members.items():
            if name not in _CLUSTER_KEYS:
                member.fail_key(f"{name} belongs into an element of pools where pools are given")
        nodes = members["pools"].elements()
        if not nodes:
            members["pools"].fail("got an empty list: give at least one pool")
        pools = tuple(_pool(each, each.mapping(_POOL_KEYS), unit_prices) for each in nodes)
    else:
        inner = {name: member for name, member in members.items() if name not in _CLUSTER_KEYS}
        if "gpus_per_node" in inner:
            if "per_node" in inner:
                inner["per_node"].fail_key("gpus_per_node is given as well: keep one of them")
            inner["per_node"] = inner.pop("gpus_per_node")
        pools = (_pool(node, inner, unit_prices),)
    _check_pools(node, members, pools, unit_prices)
    units = sum(pool.units for pool in pools)
    interconnect = members["interconnect"].convert(parse_bandwidth) if "interconnect" in members else None
    if interconnect == 0:
        members["interconnect"].fail("got 0: must be above 0; remove the key where it is unknown")
    max_gpus = members["max_gpus"].integer(minimum=1) if "max_gpus" in members else units
    if max_gpus > units:
        members["max_gpus"].fail(f"got {max_gpus}: the cluster has {units}; lower it, or add nodes")
    bind = members["bind"].choice(["loopback", "node"]) if "bind" in members else "loopback"
    return Cluster(
        pools,
        max_gpus,
        interconnect,
        cast("Literal['loopback', 'node']", bind),
        _spread(members.get("placement"), bind),
    )


def _spread(node: Node | None, bind: str) -> tuple[str, ...]:
    """Roles whose engines keep apart: `placement` is one word for all of them, or a word for each."""
    if node is None:
        return ()
    roles = KEYS["cluster.placement"]
    if node.is_mapping:
        words = {role: each.choice(_PLACEMENTS) for role, each in node.mapping(roles).items()}
    else:
        words = dict.fromkeys(roles, node.choice(_PLACEMENTS))
    found = tuple(role for role in roles if words.get(role) == "spread")
    if found and bind == "loopback":
        node.fail_key("spread needs servers that reach each other over the network: add bind: node, or remove spread")
    return found


def _check_pools(node: Node, members: Mapping[str, Node], pools: tuple[Pool, ...], unit_prices: _UnitPrices) -> None:
    nodes = members["pools"].elements() if "pools" in members else [node]
    for number, pool in enumerate(pools):
        if pool.name in [earlier.name for earlier in pools[:number]]:
            nodes[number].fail(f"another pool is named {pool.name!r} too: give each a name of its own")
    own = ["price" in dict(each.items()) for each in nodes]
    if unit_prices.node is not None and all(own):
        unit_prices.node.fail_key("no pool uses this price, each has its own: remove one of them")
    without = {pool.device for pool, priced in zip(pools, own, strict=True) if pool.unit == "gpu" and not priced}
    for device, price in unit_prices.by_type.items():
        price.number(above=0)
        if device not in without:
            price.fail_key(f"no pool of type {device!r} needs this price{near(device, without)}: remove one of them")


def _pool(node: Node, members: Mapping[str, Node], unit_prices: _UnitPrices) -> Pool:
    if ("gpu" in members) == ("cpu" in members):
        node.fail("give exactly one of gpu: H100-80GB (a type of GPU) and cpu: slot")
    unit: Literal["gpu", "cpu"] = "gpu" if "gpu" in members else "cpu"
    device = members["gpu"].text() if unit == "gpu" else members["cpu"].choice(["slot"])
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,60}", device):
        members[unit].fail(f"got {members[unit].shown()}: a type of GPU is a name such as H100-80GB")
    if unit == "gpu" and "cores" in members:
        members["cores"].fail_key("cores is for CPU slots only")
    name = members["name"].text() if "name" in members else _name(device if unit == "gpu" else "cpu")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", name):
        members["name"].fail(f"got {members['name'].shown()}: a name has letters, digits, dots, dashes")
    counts = {
        key: members[key].integer(minimum=1, maximum=_MAX_UNITS) if key in members else 1
        for key in ("nodes", "per_node", "cores")
    }
    memory = members["memory"].convert(parse_size_gib) if "memory" in members else None
    if memory == 0:
        members["memory"].fail("got 0: must be above 0; remove the key where the type of GPU tells it")
    host_memory = members["host_memory"].convert(parse_size_gib) if "host_memory" in members else None
    if host_memory == 0:
        members["host_memory"].fail("got 0: must be above 0; remove the key where it is unknown")
    return Pool(
        name,
        unit,
        device,
        nodes=counts["nodes"],
        per_node=counts["per_node"],
        price_per_hour=_pool_price(node, members, unit_prices, unit, device),
        cores=counts["cores"],
        memory_gib=memory,
        host_memory_gib=host_memory,
    )


def _name(device: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", device.lower())


def _pool_price(
    node: Node, members: Mapping[str, Node], unit_prices: _UnitPrices, unit: Literal["gpu", "cpu"], device: str
) -> float:
    """Currency per hour of one unit: the pool's own price, else the one in `prices`."""
    if "price" in members:
        own = members["price"]
        if own.is_mapping:
            return _server_month(own, own.mapping(KEYS["cluster.pools[].price"], required=["server_month"]))
        price = own.convert(parse_money_per_hour)
        if price <= 0:
            own.fail(f"got {own.shown()}: must be above 0")
        return price
    if unit == "cpu":
        node.fail("the CPU slots have no price: add price: 0.10/h (of one slot) here")
    found = unit_prices.of(device)
    if found is None:
        node.fail(f"{device} has no price: add price: 3.99/h here, or prices.gpu_hour")
    return found
