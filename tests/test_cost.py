"""What a deployment costs, and what one good request costs."""

from dataclasses import replace

import pytest
from support.handmade import answers, failures

from tuner import cost
from tuner.configuration import Configuration, Role
from tuner.errors import InputError
from tuner.objective import score
from tuner.slo import Cluster, Objective, Pool, Prices, Search, Slo, Synthetic, Workload


def pool(name="h100", price=3.0, per_node=8, nodes=2):
    return Pool(name, "gpu", "H100-80GB", nodes, per_node, price)


def role(name="engine", replicas=1, units_each=1, on=None):
    """A role; `on` names its pool, as the roles of a disaggregated deployment do."""
    return Role(name, replicas, units_each, {}, on)


def priced(roles, *pools, prices=None, **amounts):
    return cost.price(roles, Cluster(pools or (pool(),), 16), prices or Prices("USD"), **amounts)


def objective(prices=None):
    return Objective(
        path="slo.yaml",
        model="m",
        slo=Slo(()),
        workload=Workload(Synthetic(8, 8)),
        cluster=Cluster((pool(),), 16),
        prices=prices or Prices("USD", ram_gib_hour=0.004, ssd_gib_hour=0.0002, network_gbit_hour=0.01),
        search=Search("space.yaml"),
    )


def measured(count, window_s, *, tokens=None):
    found = score(answers([100] * count), Slo(()), window_start_s=0.0, window_s=window_s)
    return found if tokens is None else replace(found, good_output_tokens_per_s=tokens)


def test_cost_of_a_thousand_good_requests():
    """12.00/h at 2 good requests a second: 12 / (2 × 3600) × 1000 = 1.6667."""
    assert cost.per_1k_good_requests(12.0, 2.0) == pytest.approx(1.6667, abs=5e-5)


def test_cost_of_a_million_good_tokens():
    """12.00/h at 1,500 good output tokens a second: 2.2222."""
    assert cost.per_1m_good_output_tokens(12.0, 1500.0) == pytest.approx(2.2222, abs=5e-5)


def test_no_goodput_has_no_cost():
    """Null, never infinity and never a magic number; for every kind of objective."""
    assert cost.per_1k_good_requests(12.0, 0.0) is None
    assert cost.per_1m_good_output_tokens(12.0, 0.0) is None
    nothing = score(failures(5), Slo(()), window_start_s=0.0, window_s=1.0)
    for kind in ("cost_per_goodput", "goodput_per_gpu", "goodput"):
        assert cost.objective_value(kind, priced([role()]), nothing) is None
    assert cost.fleet(priced([role()]), 10.0, 0.0) is None


def test_a_price_of_zero_is_a_price():
    """Free hardware costs 0 per good request, which is not "unknown"."""
    assert cost.per_1k_good_requests(0.0, 2.0) == 0.0


def test_bad_requests_are_paid_for_by_good_ones():
    """12.00/h, 10 requests done a second of which 2 good: 1.6667 per 1,000 good, not 0.3333."""
    found = score(answers([100] * 20) + failures(80), Slo(()), window_start_s=0.0, window_s=10.0)
    assert cost.per_1k_good_requests(12.0, found.goodput_rps) == pytest.approx(1.6667, abs=5e-5)


def test_prefill_and_decode_on_pools_of_their_own():
    """Prefill tp4 × 1 at 2.50 and decode tp2 × 3 at 1.00: 10.00 + 6.00 = 16.00/h, 10 GPUs."""
    found = priced(
        [role("prefill", 1, 4, on="big"), role("decode", 3, 2, on="small")], pool("big", 2.5), pool("small", 1.0)
    )
    assert (found.total, found.units) == (pytest.approx(16.0), 10)
    assert [(part.role, part.pool, part.units, part.per_hour) for part in found.roles] == [
        ("prefill", "big", 4, 10.0),
        ("decode", "small", 6, 6.0),
    ]


def test_every_parallel_dimension_counts():
    """tp2 × pp2 × 2 replicas and tp1 × dp4: 8 + 4 = 12 GPUs, 36.00/h at 3.00."""
    found = priced([role("prefill", 2, 4), role("decode", 1, 4)])
    assert (found.units, found.total) == (12, pytest.approx(36.0))


def test_knobs_of_an_aggregated_deployment():
    """Tp 2 × pp 2 × 2 replicas at 3.00 are 24.00/h."""
    knobs = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "replicas": 2}
    assert cost.cost_per_hour(Configuration(knobs), objective()).total == pytest.approx(24.0)


def test_mixed_prices_are_summed_by_role():
    """2 × 4.00 and 4 × 1.00 are 12.00/h."""
    found = priced(
        [role("prefill", 1, 2, on="h100"), role("decode", 4, 1, on="l40s")], pool("h100", 4.0), pool("l40s", 1.0)
    )
    assert found.total == pytest.approx(12.0)


def test_a_store_and_the_network_are_paid_for():
    """1 GPU at 3.00, 256 GiB RAM at 0.004, 2,000 GiB SSD at 0.0002, 100 Gbit at 0.01: 3 + 1.024 + 0.4 + 1."""
    knobs = {"kv_store": "mooncake", "kv_store_ram_gib": 256, "kv_store_ssd_gib": 2000, "network_gbit": 100.0}
    found = cost.cost_per_hour(Configuration(knobs), objective())
    assert (found.gpu, found.store_ram, found.store_ssd, found.network) == pytest.approx((3.0, 1.024, 0.4, 1.0))
    assert found.total == pytest.approx(5.424)


def test_split_with_a_store_by_hand():
    """2 prefill × tp2 + 3 decode × tp1 at 3.00, 100 GiB of RAM at 0.004, 50 Gbit at 0.01: 21.00 + 0.40 + 0.50."""
    knobs = {
        "mode": "disaggregated",
        "prefill_replicas": 2,
        "prefill_tensor_parallel_size": 2,
        "decode_replicas": 3,
        "kv_store": "mooncake",
        "kv_store_ram_gib": 100,
        "network_gbit": 50,
    }
    found = cost.cost_per_hour(Configuration(knobs), objective())
    assert (found.gpu, found.store_ram, found.network) == pytest.approx((21.0, 0.4, 0.5))
    assert [(part.role, part.units, part.per_hour) for part in found.roles] == [
        ("prefill", 4, 12.0),
        ("decode", 3, 9.0),
    ]
    assert found.total == pytest.approx(21.9)
    assert cost.per_1k_good_requests(found.total, 2.0) == pytest.approx(3.0417, abs=5e-5)


def test_sides_on_pools_of_their_own_by_hand():
    """Prefill tp4 × 1 at 4.00 and decode tp1 × 4 at 1.00 are 16.00 + 4.00; SSD 500 GiB at 0.0002 is 0.10 more."""
    knobs = {
        "mode": "disaggregated",
        "prefill_tensor_parallel_size": 4,
        "prefill_pool": "big",
        "decode_replicas": 4,
        "decode_pool": "small",
        "kv_store": "mooncake",
        "kv_store_ram_gib": 0.0,
        "kv_store_ssd_gib": 500,
    }
    goal = replace(objective(), cluster=Cluster((pool("big", 4.0), pool("small", 1.0)), 16))
    found = cost.cost_per_hour(Configuration(knobs), goal)
    assert [part.per_hour for part in found.pools] == [16.0, 4.0]
    assert (found.units, found.total) == (8, pytest.approx(20.1))


def test_whole_servers_of_a_split_by_hand():
    """1 prefill tp4 and 3 decode tp2 on servers of 8: first-fit takes 2 servers, 16 × 3.00 = 48.00 for 10 used GPUs."""
    knobs = {
        "mode": "disaggregated",
        "prefill_tensor_parallel_size": 4,
        "decode_tensor_parallel_size": 2,
        "decode_replicas": 3,
    }
    found = cost.cost_per_hour(Configuration(knobs), objective(Prices("USD", charge="whole_server")))
    assert (found.units, found.pools[0].charged_units, found.total) == (10, 16, pytest.approx(48.0))


@pytest.mark.parametrize(
    "knobs",
    [{"kv_store_ram_gib": 256}, {"kv_store": "none", "kv_store_ram_gib": 256}, {"decode_replicas": 9}],
)
def test_what_has_no_meaning_costs_nothing(knobs):
    """The size of a store that there is not, and engines of a side that there is not, are not held."""
    assert cost.cost_per_hour(Configuration(knobs), objective()).total == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("roles", "charged"),
    [
        ([role(units_each=4)], 8),
        ([role(replicas=8)], 8),
        ([role(replicas=9)], 16),
        ([role(replicas=3, units_each=3)], 16),
        ([role("prefill", 2, 4), role("decode", 4, 2)], 16),
        ([role("prefill", 1, 4), role("decode", 2, 2)], 8),
    ],
)
def test_whole_servers_are_charged_by_node(roles, charged):
    """4 of 8 GPUs cost 8; three engines of 3 need two nodes, since none spans nodes."""
    found = priced(roles, prices=Prices("USD", charge="whole_server"))
    assert found.pools[0].charged_units == charged
    assert found.total == pytest.approx(3.0 * charged)
    assert found.units == sum(part.units for part in roles)


@pytest.mark.parametrize(("spread", "charged"), [((), 8), (("decode",), 16), (("prefill", "decode"), 16)])
def test_engines_that_keep_apart_touch_more_servers(spread, charged):
    """Two decode engines of 2 and a prefill engine of 4 fill a server of 8; decode spread over two is charged 16."""
    cluster = Cluster((pool(),), 16, bind="node", spread=spread)
    found = cost.price([role("prefill", 1, 4), role("decode", 2, 2)], cluster, Prices("USD", charge="whole_server"))
    assert found.pools[0].charged_units == charged


def test_a_pool_that_does_not_exist_is_named():
    """What has no price is an error that names the pool, never 0."""
    with pytest.raises(InputError, match="got 'a100': the cluster has h100"):
        priced([role("decode", on="a100")])


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "256", True])
def test_a_store_size_is_a_number(value):
    """A negative or unreadable size is refused by name."""
    with pytest.raises(InputError, match="kv_store_ram_gib: got"):
        cost.cost_per_hour(Configuration({"kv_store": "mooncake", "kv_store_ram_gib": value}), objective())


@pytest.mark.parametrize(
    ("kind", "value"), [("cost_per_goodput", 12 / 7200 * 1000), ("goodput_per_gpu", 2.0), ("goodput", 0.5)]
)
def test_what_the_search_minimises(kind, value):
    """At 2 good requests a second on 4 GPUs of 12.00/h together; all positive, so that a logarithm exists."""
    assert cost.objective_value(kind, priced([role(replicas=4)]), measured(20, 10.0)) == pytest.approx(value)


@pytest.mark.parametrize(("demand", "copies"), [(12.0, 6), (12.1, 7), (0.1, 1), (6.0, 3)])
def test_a_fleet_carries_the_demand(demand, copies):
    """Copies = ceil(demand / goodput), at least one, priced together."""
    found = cost.fleet(priced([role(replicas=4)]), demand, 2.0)
    assert (found.copies, found.units, found.per_hour) == (copies, 4 * copies, pytest.approx(12.0 * copies))
