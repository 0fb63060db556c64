"""Points of the space: keys and units."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.objectives import H100

from tuner.configuration import Configuration, flag_of, plain_number, pool_of, shape_problem, side_of
from tuner.errors import InputError
from tuner.slo import Cluster


@given(st.dictionaries(st.text(min_size=1), st.one_of(st.none(), st.booleans(), st.integers(), st.text())))
def test_key_ignores_order_and_absent_knobs(knobs):
    """Two mappings that mean the same have one key, one hash and are equal."""
    known = {name: value for name, value in reversed(knobs.items()) if value is not None}
    one, other = Configuration(knobs), Configuration(known)
    assert (one.key, hash(one)) == (other.key, hash(other))
    assert one == other


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (0.1 + 0.75, 0.85, True),
        (1.0, 1, True),
        (True, 1, False),
        (False, None, False),
        (0, None, False),
        ("1", 1, False),
    ],
    ids=["noise", "whole-float", "true-is-not-1", "false-is-a-value", "zero-is-a-value", "text-is-not-number"],
)
def test_keys_are_equal_exactly_when_commands_are(one, other, same):
    """Float noise does not make a new point; false and zero are values of their own."""
    assert (Configuration({"x": one}) == Configuration({"x": other})) is same


def test_units_count_every_parallelism_and_replica():
    """COST-01: 2 replicas of tp 2 * pp 2 * dp 3 hold 24 units."""
    knobs = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 3, "replicas": 2}
    assert Configuration(knobs).units == 24
    assert Configuration({}).units == 1


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"], ids=repr)
@pytest.mark.parametrize("name", ["replicas", "tensor_parallel_size"])
def test_a_count_must_be_a_whole_number_above_zero(name, value):
    """Zero is a value, and a wrong one: it is not read as "not given"."""
    with pytest.raises(InputError, match=name):
        _ = Configuration({name: value}).roles


def test_shape_knobs_are_no_flags():
    """What shapes the deployment never reaches an engine's command line; parallelism does both."""
    knobs = {"mode": "aggregated", "replicas": 2, "router_policy": "random", "pool": "a", "tensor_parallel_size": 2}
    (role,) = Configuration(knobs).roles
    assert role.flags == {"tensor_parallel_size": 2}
    assert role.pool == "a"


def test_pools_are_found_by_name():
    """No name means the cluster's first pool."""
    cluster = Cluster(pools=(H100, replace(H100, name="b")), max_gpus=8)
    (role,) = Configuration({}).roles
    assert pool_of(role, cluster).name == "h100"
    assert pool_of(replace(role, pool="b"), cluster).name == "b"
    with pytest.raises(InputError, match="h100, b"):
        pool_of(replace(role, pool="c"), cluster)


@pytest.mark.parametrize(
    ("name", "value", "fine"),
    [
        ("replicas", 2, True),
        ("replicas", 0, False),
        ("mode", "aggregated", True),
        ("mode", "disaggregated", True),
        ("prefill_replicas", 0, False),
        ("decode_replicas", 3, True),
        ("kv_transfer", "nixl", True),
        ("kv_transfer", "lmcache", True),
        ("kv_transfer", "p2p", False),
        ("lmcache_mode", "in_process", True),
        ("lmcache_mode", "in-process", False),
        ("kv_store", "cpu_offload", True),
        ("kv_store_ram_gib", -1, False),
        ("kv_store_ram_gib", 0.5, True),
        ("kv_store_ssd_gib", True, False),
        ("lmcache_blending", True, True),
        ("lmcache_blending", 1, False),
        ("network_gbit", 0, True),
        ("prefill_pool", 1, False),
        ("mode", "disagregated", False),
        ("router_policy", "cache_aware", True),
        ("router_policy", 1, False),
        ("pool", 1, False),
        ("kv_store", "unheard-of", False),
        ("kv_store", None, True),
    ],
)
def test_shape_knobs_have_closed_values(name, value, fine):
    """A shape that cannot be deployed is refused where it is written down."""
    assert (shape_problem(name, value) is None) is fine


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_plain_numbers_are_stable(value):
    """Taking the noise off twice changes nothing more."""
    assert plain_number(plain_number(value)) == plain_number(value)


SPLIT = {
    "mode": "disaggregated",
    "prefill_replicas": 2,
    "prefill_tensor_parallel_size": 4,
    "decode_replicas": 3,
    "max_num_seqs": 64,
    "decode_max_num_seqs": 256,
    "block_size": 32,
    "decode_pool": "small",
    "pool": "big",
}


def test_sides_have_engines_flags_and_pools_of_their_own():
    """A flag without a prefix goes to both sides; one with a prefix wins on its side; units are summed."""
    prefill, decode = Configuration(SPLIT).roles
    assert (prefill.name, prefill.replicas, prefill.units_each, prefill.pool) == ("prefill", 2, 4, "big")
    assert prefill.flags == {"block_size": 32, "max_num_seqs": 64, "tensor_parallel_size": 4}
    assert (decode.name, decode.replicas, decode.units_each, decode.pool) == ("decode", 3, 1, "small")
    assert decode.flags == {"block_size": 32, "max_num_seqs": 256}
    assert Configuration(SPLIT).units == 11
    assert (Configuration(SPLIT).kv_transfer, Configuration({}).kv_transfer) == ("nixl", None)


@pytest.mark.parametrize(
    ("knobs", "idle"),
    [
        ({}, {"mode": "aggregated"}),
        (
            {"replicas": 2},
            {"prefill_replicas": 3, "decode_max_num_seqs": 8, "kv_transfer": "nixl", "prefill_pool": "a"},
        ),
        ({}, {"kv_store": "none", "kv_store_ram_gib": 64, "kv_store_ssd_gib": 1}),
        ({"kv_store": "mooncake"}, {"lmcache_blending": True}),
        ({"kv_store": "lmcache"}, {"lmcache_blending": False}),
        ({"kv_store": "mooncake"}, {"lmcache_mode": "in_process"}),
        ({"kv_store": "lmcache"}, {"lmcache_mode": "server"}),
        ({"kv_store": "lmcache", "lmcache_blending": True}, {"lmcache_mode": "in_process"}),
        (SPLIT, {"replicas": 7}),
        ({**SPLIT, "prefill_max_num_seqs": 8}, {"max_num_seqs": 9}),
    ],
    ids=[
        "default-mode",
        "no-sides",
        "no-store",
        "no-blending-there",
        "no-blending",
        "no-lmcache",
        "default-lmcache-mode",
        "blending-is-in-process",
        "replicas-of-a-split",
        "both-sides-say-otherwise",
    ],
)
def test_key_ignores_what_has_no_meaning(knobs, idle):
    """Two points that differ in idle knobs alone are one point, measured once."""
    one, other = Configuration({**idle, **knobs}), Configuration({**knobs, **idle})
    without = Configuration({name: value for name, value in knobs.items() if name not in idle})
    assert one.key == other.key == without.key
    assert one.roles == without.roles


def test_key_tells_apart_what_has_a_meaning():
    """Every knob of a split deployment with a store is part of its key."""
    whole = {**SPLIT, "kv_transfer": "mooncake", "kv_store": "mooncake", "kv_store_ram_gib": 4}
    keys = {Configuration({key: value for key, value in whole.items() if key != name}).key for name in whole}
    assert len(keys | {Configuration(whole).key}) == len(whole) + 1


@pytest.mark.parametrize(
    ("name", "side", "flag"),
    [
        ("prefill_max_num_seqs", "prefill", "max_num_seqs"),
        ("decode_block_size", "decode", "block_size"),
        ("max_num_seqs", None, "max_num_seqs"),
        ("prefill_context_parallel_size", None, "prefill_context_parallel_size"),
        ("prefill_replicas", None, None),
        ("prefill_", None, "prefill_"),
    ],
)
def test_a_prefix_names_a_side_unless_the_engine_has_such_a_flag(name, side, flag):
    """The engine's own flags that begin with prefill_ or decode_ stay what they are."""
    assert (side_of(name), flag_of(name)) == (side, flag)
