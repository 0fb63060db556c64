"""
What a file may never make a program do: listen elsewhere, load code, read a file of arguments, carry a secret.

Files come from colleagues and from the web, and their flags end in the command line of a server. Each function answers
with the rule and the remedy, or with None where nothing is wrong. Names of flags are compared without their dashes,
with `-` and `_` alike; a beginning of a forbidden name is forbidden too, because argument parsers may complete it.
"""

import json
import re
from collections.abc import Sequence

_LISTENS = "where servers listen is decided by cluster.bind"
_EXPOSES = "a secret would stand in the command line; set engine.env with a value such as $HF_TOKEN"
_LOADS = "it makes the server load code or templates from files"
_FILES = "it reads or writes files of its own choice"
_PLACES = "the tuner sets it when it places the processes"

#: Flags of `vllm serve` and of routers that no file may set, and why. Also every flag that begins with `ssl`.
FORBIDDEN_FLAGS = {
    "host": _LISTENS,
    "port": _LISTENS,
    "uds": _LISTENS,
    "grpc": _LISTENS,
    "grpc_port": _LISTENS,
    "prometheus_host": _LISTENS,
    "prometheus_port": _LISTENS,
    "cors_allowed_origins": _LISTENS,
    "root_path": _LISTENS,
    "allowed_origins": _LISTENS,
    "allowed_methods": _LISTENS,
    "allowed_headers": _LISTENS,
    "allow_credentials": _LISTENS,
    "api_key": _EXPOSES,
    "hf_token": _EXPOSES,
    "chat_template": _LOADS,
    "trust_request_chat_template": _LOADS,
    "trust_request_mm_kwargs": _LOADS,
    "hf_config_path": _LOADS,
    "middleware": _LOADS,
    "wasm_middleware": _LOADS,
    "worker_cls": _LOADS,
    "worker_extension_cls": _LOADS,
    "scheduler_cls": _LOADS,
    "model_class_overrides": _LOADS,
    "logits_processors": _LOADS,
    "io_processor_plugin": _LOADS,
    "tool_parser_plugin": _LOADS,
    "reasoning_parser_plugin": _LOADS,
    "tool_server": _LOADS,
    "enable_prompt_embeds": _LOADS,
    "config": _FILES,
    "log_config_file": _FILES,
    "log_dir": _FILES,
    "logging_config": _FILES,
    "profiler_config": _FILES,
    "allowed_local_media_path": _FILES,
    "allowed_media_domains": _FILES,
    "otlp_traces_endpoint": _FILES,
    "enable_log_requests": "prompts would stand in the logs",
    "enable_log_outputs": "answers would stand in the logs",
    "enable_log_deltas": "answers would stand in the logs",
    "model": "the model is the key `model` at the top",
    "served_model_name": "the model is the key `model` at the top",
    "tokenizer": "the tokenizer is the model's own, or lengths would be wrong",
    "tokenizer_revision": "the tokenizer is the model's own; set model_revision at the top",
    "revision": "set model_revision at the top",
    "code_revision": "set model_revision at the top",
    "trust_remote_code": "set engine.trust_remote_code: true where you trust the model's code",
    "ec_transfer_config": _PLACES,
    "kv_events_config": _PLACES,
    "weight_transfer_config": _PLACES,
    "device_ids": _PLACES,
    "headless": _PLACES,
    "worker_urls": _PLACES,
    "prefill": _PLACES,
    "decode": _PLACES,
    "master_addr": _PLACES,
    "master_port": _PLACES,
    "nnodes": _PLACES,
    "node_rank": _PLACES,
    "data_parallel_address": _PLACES,
    "data_parallel_rpc_port": _PLACES,
}
#: Flags of their own although a forbidden one begins with their name.
_COMPLETE = frozenset({"reasoning_parser"})
#: Keys inside a flag's JSON value that load code, wherever they stand.
_LOADING_KEYS = re.compile(r"trust_remote_code|.*(module_path|plugin|_cls|middleware|auto_map)s?", re.IGNORECASE)

#: Environment variables that no file may set, and why. Also every name that begins with one of `_ENV_FAMILIES`.
FORBIDDEN_ENV = {
    "PATH": "it decides which programs run; write the program's path in engine.command",
    "HOME": "programs find their caches and credentials by it",
    "SHELL": "it decides which programs run",
    "ENV": "shells run the file that it names",
    "BASH_ENV": "shells run the file that it names",
    "IFS": "it changes how shells split words",
    "NODE_OPTIONS": "it loads code into programs",
    "GCONV_PATH": "it loads code into programs",
    "SHELLOPTS": "it changes how shells run",
    "CUDA_VISIBLE_DEVICES": _PLACES,
    "HIP_VISIBLE_DEVICES": _PLACES,
    "ROCR_VISIBLE_DEVICES": _PLACES,
    "VLLM_CPU_OMP_THREADS_BIND": "the tuner sets it from the cores of the CPU slots",
    "PYTHONHASHSEED": "the tuner sets it: prefix hashes must agree between processes",
    "VLLM_PLUGINS": "it loads code into the server",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "it lets others run code in the server",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "it opens the server to changes from outside",
    "VLLM_LOGGING_CONFIG_PATH": "it loads code into the server",
    "VLLM_SERVER_DEV_MODE": "the tuner sets it where it is safe",
    "VLLM_HOST_IP": "where servers listen is decided by cluster.bind",
}
_ENV_FAMILIES = ("LD_", "DYLD_", "PYTHON", "BASH_FUNC_", "RAY_")
_HARMLESS_ENV = frozenset({"PYTHONUNBUFFERED", "PYTHONFAULTHANDLER"})
_SECRET_NAME = re.compile(r"(TOKEN|KEY|PASSWORD|PASSWD|SECRET|CREDENTIALS?|AUTH)(_|$)", re.IGNORECASE)
_SWITCH = frozenset({"0", "1", "true", "false"})
_URL_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)


def flag(name: str) -> str | None:
    """Why no file may set the flag of this name (`max_num_seqs`, `--max-num-seqs`), or None."""
    plain = name.removeprefix("--").replace("-", "_").lower().removeprefix("no_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*\+?", plain):
        return f"{name!r} is no name of a flag; write it as max_num_seqs"
    plain = re.sub(r"[.+].*", "", plain)
    if plain.startswith("ssl") or plain == "enable_ssl_refresh":
        return f"the flag {plain} may not be set here: {_LISTENS}"
    if plain in FORBIDDEN_FLAGS:
        return f"the flag {plain} may not be set here: {FORBIDDEN_FLAGS[plain]}"
    for forbidden, why in FORBIDDEN_FLAGS.items():
        if len(plain) >= 3 and forbidden.startswith(plain) and plain not in _COMPLETE:
            return f"the flag {plain} may not be set here, it may be read as {forbidden}: {why}"
    return None


def flag_value(value: object) -> str | None:
    """Why this value may not stand behind a flag, or None. Only texts can be wrong."""
    if not isinstance(value, str):
        return None
    inside = _loading_key(_json(value))
    return _first(
        (value.startswith("-"), "a value may not begin with a dash: it would be read as another flag"),
        (re.search(r"\s--?[A-Za-z]", value), "a value may not carry further flags: give each flag its own key"),
        (not value.isprintable(), "a value may not contain line breaks or control characters"),
        (_URL_PASSWORD.search(value), "an address may not carry a password; name a variable such as $DB_PASSWORD"),
        (inside is not None, f"the key {inside!r} inside a value may not be set here: {_LOADS}"),
    )


def command(tokens: Sequence[str]) -> str | None:
    """Why a program may not be started by these tokens, or None. Its own flags are looked at as in `flag`."""
    for token in tokens:
        if not token.isprintable():
            return "a command may not contain line breaks or control characters"
        if token.startswith("--") and len(token) > 2:
            why = flag(token.partition("=")[0])
            if why is not None:
                return why
        if _URL_PASSWORD.search(token):
            return "an address may not carry a password; name a variable such as $DB_PASSWORD in engine.env"
    return None


def env(name: str, value: str) -> str | None:
    """Why no file may set this environment variable to this value, or None. `$NAME` is read at launch."""
    upper = name.upper()
    read_at_launch = re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", value) is not None
    family = upper.startswith(_ENV_FAMILIES) and upper not in _HARMLESS_ENV
    secret = _SECRET_NAME.search(name) is not None and value.lower() not in _SWITCH
    return _first(
        (not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name), f"{name!r} is no name of an environment variable"),
        (upper in FORBIDDEN_ENV, f"the variable {name} may not be set here: {FORBIDDEN_ENV.get(upper)}"),
        (family, f"the variable {name} may not be set here: variables of its family change which code programs load"),
        (
            value.startswith("$") and not read_at_launch,
            "a value that begins with $ is the name of a variable to read at launch, such as $HF_TOKEN",
        ),
        (not value.isprintable(), "a value may not contain line breaks or control characters"),
        (
            secret and not read_at_launch,
            f"{name} looks like a secret: never write one down; write ${name} to read it at launch",
        ),
        (_URL_PASSWORD.search(value), f"an address may not carry a password; write ${name} to read it at launch"),
    )


def _first(*rules: tuple[object, str]) -> str | None:
    """The message of the first rule that is broken."""
    return next((why for broken, why in rules if broken), None)


def _json(text: str) -> object:
    """What the text holds as JSON, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _loading_key(value: object) -> str | None:
    """The first key anywhere inside that loads code."""
    if isinstance(value, dict):
        named = next((str(name) for name in value if _LOADING_KEYS.fullmatch(name)), None)
        return named if named is not None else _loading_key(list(value.values()))
    if isinstance(value, list):
        return next((found for found in map(_loading_key, value) if found is not None), None)
    return None
