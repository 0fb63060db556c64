"""Tests of the causes of death, on logs of the real engine and on lines seen in the field."""

from pathlib import Path

import pytest

from tuner.deployment import logs
from tuner.errors import ConfigurationFailed, InfrastructureFailed

SAMPLES = Path(__file__).parent / "data" / "logs"


@pytest.mark.parametrize(
    ("sample", "code", "reason", "said"),
    [
        pytest.param("badflag", 2, "bad_flag", "unrecognized arguments: --no-such-flag 3", id="unknown flag"),
        pytest.param("badvalue", 2, "bad_flag", "--max-num-seqs: invalid int value: 'banana'", id="bad value"),
        pytest.param("badcombo", 1, "bad_flag", "max_model_len (99999) is greater", id="refused by validation"),
        pytest.param("oom", 1, "out_of_memory", "less than requested memory for kv", id="no room for the cache"),
    ],
)
def test_cause_is_found_anywhere_in_a_real_log(sample, code, reason, said):
    """The reason and the telling line come from the whole log of a real vLLM, not from its end."""
    cause = logs.classify((SAMPLES / f"{sample}.log").read_text(), code)
    assert (cause.blame, cause.reason) == ("configuration", reason)
    assert said in cause.line
    assert len(cause.line) <= 400


def test_silent_worker_death_is_out_of_memory_where_the_kernel_says_so():
    """A worker that the kernel killed leaves no word; the kernel's own count tells."""
    text = (SAMPLES / "oom_killed.log").read_text()
    assert logs.classify(text, 1).reason == "server_died"
    assert logs.classify(text, 1, oom_killed=True).reason == "out_of_memory"


@pytest.mark.parametrize(
    ("line", "blame", "reason"),
    [
        ("OSError: [Errno 98] Address already in use", "infrastructure", "port_taken"),
        ("Error: Address already in use (os error 98)", "infrastructure", "port_taken"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "configuration", "out_of_memory"),
        ("ModuleNotFoundError: No module named 'vllm'", "infrastructure", "engine_missing"),
        ("(Worker pid=9) RuntimeError: NIXL is not available", "infrastructure", "engine_missing"),
        ("ValueError: No available memory for the cache blocks.", "configuration", "out_of_memory"),
        ("KeyError: 'layers.0'", "configuration", "server_died"),
        ("", "configuration", "server_died"),
    ],
)
def test_known_lines(line, blame, reason):
    """Each line seen in the field has one meaning; an unknown one is a death of the server."""
    cause = logs.classify(line, 1)
    assert (cause.blame, cause.reason) == (blame, reason)


def test_warnings_are_no_cause():
    """A warning that mentions memory or a port does not explain a death; the error after it does."""
    text = "(Worker pid=1) WARNING 11-29 18:00:00 [x.py:1] may run out of memory\nRuntimeError: boom"
    cause = logs.classify(text, 1)
    assert (cause.reason, cause.line) == ("server_died", "RuntimeError: boom")


def test_consequences_do_not_hide_the_cause():
    """The API server's last word is a consequence: the first other error is shown."""
    text = "TypeError: bad kernel\nRuntimeError: Engine core initialization failed. See root cause above."
    assert logs.classify(text, 1).line == "TypeError: bad kernel"


@pytest.mark.parametrize(
    ("role", "under_load", "kind", "reason"),
    [
        ("engine", True, ConfigurationFailed, "server_died"),
        ("prefill", True, ConfigurationFailed, "role_lost"),
        ("decode", False, ConfigurationFailed, "server_died"),
        ("store", True, InfrastructureFailed, "store_unavailable"),
    ],
)
def test_blame_depends_on_the_role(role, under_load, kind, reason):
    """A store's death is the infrastructure's; half of a pair that dies under load is a lost role."""
    failure = logs.failure("x-0", role, "RuntimeError: boom", -9, under_load=under_load)
    assert isinstance(failure, kind)
    assert failure.reason == reason
    assert "killed by signal 9" in failure.cause
