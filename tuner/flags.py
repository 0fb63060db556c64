"""
Flags and environment of `vllm serve`: how a value becomes argv tokens, and which names a study may not set.

A name is written with underscores here and in every file; on the command line `max_num_seqs` is `--max-num-seqs`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Literal

from tuner.errors import InputError
from tuner.slo import Scalar

Kind = Literal["toggle", "switch", "value", "list"]

_OURS = "tuner sets it itself"
_CODE = "it loads code or templates from outside the engine"
_EXPOSED = "it changes who can reach the engine or what the engine reaches"
_NODES = "an instance never spans nodes; tuner places the processes"
#: Flags that neither a space nor `engine.flags` may set, with the reason and the remedy.
REFUSED: Mapping[str, str] = {
    "model": f"{_OURS}, from `model:`",
    "served_model_name": f"{_OURS}, from `model:`",
    "revision": f"{_OURS}, from `model_revision:`",
    "tokenizer_revision": f"{_OURS}, from `model_revision:`",
    "trust_remote_code": "code from the model's repository runs only with `engine.trust_remote_code: true`",
    "host": f"{_OURS}, from `cluster.bind:`",
    "port": _OURS,
    "uds": _OURS,
    "grpc": _OURS,
    "grpc_port": _OURS,
    "config": "flags in a second file would escape the ledger; write them out",
    "api_key": "keys do not belong into argv; use engine.env: {VLLM_API_KEY: $NAME}",
    "hf_token": "tokens do not belong into argv; use engine.env: {HF_TOKEN: $HF_TOKEN}",
    **dict.fromkeys(("headless", "nnodes", "node_rank", "master_addr", "master_port", "device_ids"), _NODES),
    **dict.fromkeys(
        (
            "data_parallel_rank",
            "data_parallel_start_rank",
            "data_parallel_size_local",
            "data_parallel_address",
            "data_parallel_rpc_port",
            "data_parallel_hybrid_lb",
            "data_parallel_external_lb",
            "data_parallel_multi_port_external_lb",
            "data_parallel_supervisor_port",
        ),
        _NODES,
    ),
    **dict.fromkeys(
        (
            "chat_template",
            "trust_request_chat_template",
            "trust_request_mm_kwargs",
            "middleware",
            "tool_parser_plugin",
            "tool_server",
            "reasoning_parser_plugin",
            "io_processor_plugin",
            "logits_processors",
            "worker_cls",
            "worker_extension_cls",
            "scheduler_cls",
            "model_class_overrides",
            "hf_config_path",
            "code_revision",
        ),
        _CODE,
    ),
    **dict.fromkeys(
        (
            "ssl_keyfile",
            "ssl_certfile",
            "ssl_ca_certs",
            "ssl_cert_reqs",
            "ssl_ciphers",
            "enable_ssl_refresh",
            "allowed_origins",
            "allowed_methods",
            "allowed_headers",
            "allow_credentials",
            "allowed_local_media_path",
            "allowed_media_domains",
            "root_path",
            "kv_events_config",
            "otlp_traces_endpoint",
            "log_config_file",
            "logging_config",
        ),
        _EXPOSED,
    ),
}
#: Keys that no JSON value of a flag may contain, at any depth.
REFUSED_INSIDE: Mapping[str, str] = {"trust_remote_code": REFUSED["trust_remote_code"]}
#: Environment variables that `engine.env` may not set.
REFUSED_ENV: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "LD_PRELOAD",
            "LD_AUDIT",
            "LD_LIBRARY_PATH",
            "PATH",
            "PYTHONPATH",
            "PYTHONHOME",
            "PYTHONSTARTUP",
            "BASH_ENV",
            "ENV",
            "IFS",
            "SHELLOPTS",
            "VLLM_PLUGINS",
            "VLLM_ALLOW_INSECURE_SERIALIZATION",
        ),
        "it decides which code runs; set it in the environment that tuner itself is started from",
    ),
    "PYTHONHASHSEED": f"{_OURS}: prefix hashes must agree between processes",
    "VLLM_SERVER_DEV_MODE": f"{_OURS}, on loopback only: its routes need no key",
    "CUDA_VISIBLE_DEVICES": f"{_OURS}, from the GPUs of the placement",
    "HIP_VISIBLE_DEVICES": f"{_OURS}, from the GPUs of the placement",
    "VLLM_CPU_OMP_THREADS_BIND": f"{_OURS}, from the cores of the CPU slots",
}


@cache
def known() -> Mapping[str, Kind]:
    """Names and kinds of the flags of the engine version that the table was read from."""
    lines = files("tuner").joinpath("data/vllm_flags.txt").read_text(encoding="utf-8").splitlines()
    rows = (line.split() for line in lines if line and not line.startswith("#"))
    return dict(rows)  # type: ignore[misc]


def problem(name: str, value: object) -> str | None:
    """
    Why this flag cannot be given this value, with the remedy; None = it can, or only the engine knows.

    Args:
        name: With underscores.
        value: Scalar, mapping (one JSON token) or sequence (a token each); None = the flag is absent.
    """
    if not name.isascii() or not name.replace("_", "a").isalnum() or not name[0].isalpha() or name != name.lower():
        plain = name.lstrip("-").replace("-", "_").lower()
        return f"flag names are written like max_num_seqs; did you mean {plain!r}?"
    if name in REFUSED:
        return f"this flag cannot be set by a study: {REFUSED[name]}"
    if name not in known():
        close = get_close_matches(name, known(), n=1, cutoff=0.85) or [
            flag for flag in known() if flag.startswith(name)
        ]
        return f"no flag of `vllm serve`; did you mean {close[0]!r}?" if close else _text_problem(value)
    return _kind_problem(known()[name], value) or _text_problem(value)


def environment_problem(name: str) -> str | None:
    """Why `engine.env` may not set this variable; None = it may."""
    return f"engine.env cannot set {name}: {REFUSED_ENV[name]}" if name in REFUSED_ENV else None


def tokens(name: str, value: object) -> tuple[str, ...]:
    """
    The argv tokens of one flag.

    True is `--x`, False is `--no-x`, None is nothing, a mapping is one compact JSON token, a sequence gives one token
    per element. A value that begins with a dash is joined to its flag (`--x=-1`), so that it is never read as another.

    Raises:
        InputError: The flag may not be set, or the value cannot be an argv token.
    """
    reason = problem(name, value)
    if reason is not None:
        raise InputError(f"{name}: {reason}")
    flag = "--" + name.replace("_", "-")
    if value is None:
        return ()
    if isinstance(value, bool):
        return (flag,) if value else ("--no-" + flag[2:],)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return (flag, *(rendered(element) for element in value))
    text = rendered(value)
    return (f"{flag}={text}",) if text.startswith("-") else (flag, text)


def rendered(value: object) -> str:
    """One value as text: floats rounded to 12 significant digits (0.85, never 0.8500000000000001), mappings as JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, Mapping):
        return compact_json(value)
    return str(value)


def compact_json(value: object) -> str:
    """
    Canonical JSON in one token: sorted names, no blanks.

    Raises:
        ValueError: Not a number or infinite.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def plain_number(value: Scalar) -> Scalar:
    """The value with float noise removed, so that values which render alike are equal: 1.0 is 1, 0.8500…01 is 0.85."""
    if isinstance(value, float):
        rounded = float(f"{value:.12g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
    return value


def _kind_problem(kind: Kind, value: object) -> str | None:
    if value is None:
        return None
    if kind == "switch" and value is not True:
        return f"got {value!r}: this flag is either given (true) or absent (null)"
    if kind == "toggle" and not isinstance(value, bool):
        return f"got {value!r}: this flag takes true, false or null"
    if kind in ("value", "list") and isinstance(value, bool):
        return f"got {rendered(value)}: this flag takes a value, not true or false; quote it where the word is meant"
    if kind == "value" and isinstance(value, Sequence) and not isinstance(value, str):
        return "got a list: this flag takes one value"
    return None


def _text_problem(value: object) -> str | None:
    """What is wrong inside a value, at any depth."""
    if isinstance(value, str):
        return "got a NUL character: remove it" if "\x00" in value else _text_problem(_inside(value))
    if isinstance(value, Mapping):
        refused = next((key for key in value if key in REFUSED_INSIDE), None)
        if refused is not None:
            return f"{refused} cannot be set by a study: {REFUSED_INSIDE[refused]}"
        return _first_problem(value.values())
    if isinstance(value, Sequence):
        if any(isinstance(element, str) and element.startswith("-") for element in value):
            return "got a list element that begins with a dash: it would be read as another flag"
        return _first_problem(value)
    return None


def _first_problem(values: Iterable[object]) -> str | None:
    return next((reason for each in values if (reason := _text_problem(each)) is not None), None)


def _inside(text: str) -> Mapping[str, object] | None:
    """The mapping that a JSON text holds, if it does."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
