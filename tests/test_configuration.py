"""Points of the space: keys and units."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.objectives import H100

from tuner.configuration import Configuration, plain_number, pool_of, shape_problem
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
