"""
What a file may never make a program do: listen elsewhere, load code, read a file of arguments, carry a secret.

Files come from colleagues and from the web, and their flags end in the command line of a server. `tuner.flags` knows
the engine's flags and refuses the dangerous ones; here are the rules for values, whole commands and the environment.
Each function answers with the rule and the remedy, or with None where nothing is wrong.
"""

import json
import re
from collections.abc import Sequence

from tuner import flags
from tuner.slo import Scalar

_LOGGED = "prompts or answers would stand in the logs"
_PLACED = "the tuner sets it when it places the processes"
#: Beside `flags.REFUSED`: of the engine, and of the routers and stores that `engine` may name.
ALSO_REFUSED = {
    "enable_log_requests": _LOGGED,
    "enable_log_outputs": _LOGGED,
    "enable_log_deltas": _LOGGED,
    "log_dir": "the tuner keeps the logs of its processes",
    "profiler_config": "profiles are written where the file says",
    "prometheus_host": _PLACED,
    "prometheus_port": _PLACED,
    "cors_allowed_origins": "it changes who can reach the program",
    "worker_urls": _PLACED,
    "wasm_middleware": "it loads code into the router",
    "ec_transfer_config": _PLACED,
    "weight_transfer_config": _PLACED,
}
#: Keys inside a flag's JSON value that load code, wherever they stand.
_LOADING_KEYS = re.compile(r"trust_remote_code|.*(module_path|plugin|_cls|middleware|auto_map)s?", re.IGNORECASE)

#: Beside `flags.REFUSED_ENV`; and every name that begins with one of `_ENV_FAMILIES = ("LD_", "DYLD_", "PYTHON", "BASH_FUNC_", "RAY_")
_HARMLESS_ENV = frozenset({"PYTHONUNBUFFERED", "PYTHONFAULTHANDLER"})
_SECRET_NAME = re.compile(r"(TOKEN|KEY|PASSWORD|PASSWD|SECRET|CREDENTIALS?|AUTH)(_|$)", re.IGNORECASE)
_SWITCH = frozenset({"0", "1", "true", "false"})
_URL_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)


def flag(name: str, value: Scalar) -> str | None:
    """Why no file may give this flag of the engine (`max_num_seqs`) this value, or None."""
    if name in ALSO_REFUSED:
        return f"this flag cannot be set in a file: {ALSO_REFUSED[name]}"
    return flags.problem(name, value) or flag_value(value)


def flag_value(value: object) -> str | None:
    """Why this value may not stand behind a flag of any program, or None. Only texts can be wrong."""
    if not isinstance(value, str):
        return None
    inside = _loading_key(_json(value))
    return _first(
        (value.startswith("-"), "a value may not begin with a dash: it would be read as another flag"),
        (re.search(r"\s--?[A-Za-z]", value), "a value may not carry further flags: give each flag its own key"),
        (not value.isprintable(), "a value may not contain line breaks or control characters"),
        (_URL_PASSWORD.search(value), "an address may not carry a password; name a variable such as $DB_PASSWORD"),
        (inside is not None, f"the key {inside!r} inside a value cannot be set in a file: it loads code"),
    )


def command(tokens: Sequence[str]) -> str | None:
    """Why a program may not be started by these tokens, or None. Its flags may not be refused ones."""
    for token in tokens:
        if not token.isprintable():
            return "a command may not contain line breaks or control characters"
        if token.startswith("--") and len(token) > 2:
            name = token[2:].partition("=")[0].removeprefix("no-").replace("-", "_")
            refused = next((each for each in (*flags.REFUSED, *ALSO_REFUSED) if _means(name, each)), None)
            if refused is not None:
                why = flags.REFUSED.get(refused) or ALSO_REFUSED[refused]
                return f"the flag {token.partition('=')[0]} cannot be set in a command: {why}"
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
        (upper in flags.REFUSED_ENV, flags.environment_problem(upper) or ""),
        (upper in ALSO_REFUSED_ENV, f"engine.env cannot set {name}: {ALSO_REFUSED_ENV.get(upper)}"),
        (family, f"engine.env cannot set {name}: variables of this family change which code programs load"),
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


def _means(name: str, refused: str) -> bool:
    """Parsers complete the beginning of a name, unless it is a name of its own."""
    return name == refused or (len(name) >= 3 and refused.startswith(name) and name not in flags.known())


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
