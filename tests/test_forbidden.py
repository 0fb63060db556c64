"""What files may never make a program do."""

import pytest

from tuner import flags, forbidden


@pytest.mark.parametrize(
    "name", ["host", "--host", "api-key", "no_trust_remote_code", "ssl_certfile", "ssl_anything", "tru"]
)
def test_a_refused_flag_is_refused_in_every_spelling(name):
    """Dashes, underscores, negations and beginnings of a name mean the same flag to an argument parser."""
    assert "may not be set here" in forbidden.flag(name)


@pytest.mark.parametrize("name", ["", "x y", "-x", "max num", "é", "--"])
def test_what_is_no_name_is_refused(name):
    """Anything else would become a word of its own in the command."""
    assert "is no name of a flag" in forbidden.flag(name)


def test_no_ordinary_flag_is_refused_by_accident():
    """Tuning flags pass, and a flag of its own passes although a refused one begins with its name."""
    ordinary = ("max_num_seqs", "tensor_parallel_size", "reasoning_parser", "kv_cache_dtype", "seed", "max_model_len")
    assert [name for name in ordinary if forbidden.flag(name)] == []
    refused = [name for name in flags.known() if forbidden.flag(name)]
    assert 40 < len(refused) < 80 < len(flags.known()) - len(refused)


def test_values_that_are_more_than_a_value_are_refused():
    """Dashes, further flags, line breaks, passwords and keys that load code, at any depth."""
    nested = '{"a": [{"kv_connector_module_path": "./evil.py"}]}'
    for value in ("--x", "-1 --y", "8 --host 0.0.0.0", "a\nb", "http://u:p@h", nested, '{"trust_remote_code": true}'):
        assert forbidden.flag_value(value), value
    for value in (
        "fp8",
        "a b",
        '{"kv_connector": "NixlConnector"}',
        "http://h:1/x",
        "[1, 2]",
        "{not json",
        8,
        -1,
        None,
    ):
        assert forbidden.flag_value(value) is None, value


def test_commands_are_looked_at_word_by_word():
    """A refused flag is refused with its value in the same word too; a program's own words pass."""
    assert forbidden.command(["vllm", "serve", "--host=0.0.0.0"])
    assert forbidden.command(["vllm", "serve", "a\nb"])
    assert forbidden.command(["x", "redis://:secret@h"])
    assert forbidden.command(["python", "-m", "vllm.entrypoints.cli.main", "serve", "--", "--x=1"]) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_LIBRARY_PATH", "x"),
        ("DYLD_INSERT_LIBRARIES", "x"),
        ("PYTHONHOME", "x"),
        ("path", "x"),
        ("RAY_ADDRESS", "x"),
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("HF_TOKEN", "hf_x"),
        ("MY_APIKEY", "x"),
        ("db_password", "x"),
        ("X", "a\nb"),
    ],
)
def test_variables_that_subvert_or_leak_are_refused(name, value):
    """Families that load code, placement, and literal secrets."""
    assert forbidden.env(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "$HF_TOKEN"),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("VLLM_CPU_KVCACHE_SPACE", "1"),
        ("HF_HOME", "/models"),
        ("PYTHONUNBUFFERED", "1"),
        ("EMPTY", ""),
    ],
)
def test_ordinary_variables_pass(name, value):
    """A secret by reference, a switch whose name only sounds secret, and settings."""
    assert forbidden.env(name, value) is None


def test_a_refused_secret_is_not_in_the_message():
    """Messages end in logs."""
    assert "canary" not in (forbidden.env("OPENAI_API_KEY", "sk-canary") or "")
