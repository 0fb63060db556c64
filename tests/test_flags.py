"""Flags of the engine as argv tokens."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner import flags
from tuner.errors import InputError


@pytest.mark.parametrize(
    ("name", "value", "tokens"),
    [
        ("enable_prefix_caching", True, ("--enable-prefix-caching",)),
        ("enable_prefix_caching", False, ("--no-enable-prefix-caching",)),
        ("enable_prefix_caching", None, ()),
        ("max_num_seqs", 8, ("--max-num-seqs", "8")),
        ("gpu_memory_utilization", 0.8 + 0.05, ("--gpu-memory-utilization", "0.85")),
        ("gpu_memory_utilization", 1.0, ("--gpu-memory-utilization", "1")),
        ("seed", 0, ("--seed", "0")),
        ("seed", -1, ("--seed=-1",)),
        ("compilation_config", {"b": [1, 2], "a": None}, ("--compilation-config", '{"a":null,"b":[1,2]}')),
        ("cudagraph_capture_sizes", [1, 2, 4], ("--cudagraph-capture-sizes", "1", "2", "4")),
        ("download_dir", "/with a space", ("--download-dir", "/with a space")),
        ("flag_of_a_newer_engine", 7, ("--flag-of-a-newer-engine", "7")),
    ],
    ids=[
        "true", "false", "null", "int", "rounded", "whole-float", "zero", "negative", "mapping", "list", "space",
        "newer",
    ],
)  # fmt: skip
def test_values_become_tokens(name, value, tokens):
    """CFG-05, CFG-06: one element per token, false is --no-x, null is absent, a mapping is one compact JSON token."""
    assert flags.tokens(name, value) == tokens


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_num_seq", 8, "did you mean 'max_num_seqs'"),
        ("max_num_b", 8, "did you mean 'max_num_batched_tokens'"),
        ("max-num-seqs", 8, "write max_num_seqs"),
        ("--max-num-seqs", 8, "write max_num_seqs"),
        ("enable_prefix_caching", "on", "true, false or null"),
        ("enable_prefix_caching", 1, "true, false or null"),
        ("disable_log_stats", False, "absent"),
        ("max_num_seqs", True, "takes a value"),
        ("max_num_seqs", [1, 2], "one value"),
        ("cudagraph_capture_sizes", ["-1", "x"], "dash"),
        ("data_parallel_rank", 1, "may not be set"),
        ("ssl_keyfile", "/key", "may not be set"),
        ("served_model_name", "other", "may not be set"),
    ],
)
def test_wrong_flags_are_explained(name, value, message):
    """CFG-06: abbreviations, misspelt names, wrong kinds and forbidden flags are refused, each with its remedy."""
    assert message in flags.problem(name, value)
    with pytest.raises(InputError, match=name.strip("-")):
        flags.tokens(name, value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_keep_twelve_digits(value):
    """What is rendered reads back as the same number, up to rounding noise."""
    assert float(flags.rendered(value)) == pytest.approx(value, rel=1e-11)


def test_compact_json_is_strict_and_canonical():
    """Names are sorted, no blanks, and a value that JSON cannot carry is an error."""
    assert flags.compact_json({"b": 1, "a": "ü"}) == '{"a":"ü","b":1}'
    assert json.loads(flags.compact_json({"x": [True, None, 0.5]})) == {"x": [True, None, 0.5]}
    with pytest.raises(ValueError, match="JSON compliant"):
        flags.compact_json({"x": float("nan")})
