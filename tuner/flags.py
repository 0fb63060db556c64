"""
Flags of `vllm serve`: how a value becomes argv tokens, and what is wrong with a name or a value before any start.

A name is written with underscores here and in every file; on the command line `max_num_seqs` is `--max-num-seqs`.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Literal, cast

from tuner import forbidden
from tuner.errors import InputError

Kind = Literal["toggle", "switch", "value", "list"]

#: Flags that tie an instance to other nodes, beside those in `forbidden`.
_PLACED = (
    "data_parallel_rank",
    "data_parallel_start_rank",
    "data_parallel_size_local",
    "data_parallel_hybrid_lb",
    "data_parallel_external_lb",
    "data_parallel_multi_port_external_lb",
    "data_parallel_supervisor_port",
)


@cache
def known() -> Mapping[str, Kind]:
    """Names and kinds of the flags of the engine version that the table was read from."""
    lines = files("tuner").joinpath("data/vllm_flags.txt").read_text(encoding="utf-8").splitlines()
    rows = (line.split() for line in lines if line and not line.startswith("#"))
    return {name: cast("Kind", kind) for name, kind in rows}


def problem(name: str, value: object) -> str | None:
    """
    Why this flag cannot be given this value, with the remedy; None = it can, or only the engine knows.

    Args:
        name: With underscores.
        value: Scalar, mapping (one JSON token) or sequence (a token each); None = the flag is absent.
    """
    refused = forbidden.flag(name)
    if refused is not None:
        return refused
    if re.fullmatch(r"[a-z][a-z0-9_]*", name) is None:
        plain = name.removeprefix("--").replace("-", "_").lower()
        return f"names of flags are written like max_num_seqs; write {plain}"
    if name in _PLACED:
        return f"the flag {name} may not be set here: the tuner sets it when it places the processes"
    if name not in known():
        close = get_close_matches(name, known(), n=1, cutoff=0.85) or [
            flag for flag in known() if flag.startswith(name)
        ]
        return f"no flag of `vllm serve`; did you mean {close[0]!r}?" if close else _value_problem(value)
    return _kind_problem(known()[name], value) or _value_problem(value)


def tokens(name: str, value: object) -> tuple[str, ...]:
    """
    The argv tokens of one flag.

    True is `--x`, False is `--no-x`, None is nothing, a mapping is one compact JSON token, a sequence gives one token
    per element. A negative number is joined to its flag (`--x=-1`); a text that begins with a dash is refused.

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


def _value_problem(value: object) -> str | None:
    """What is wrong inside a value, at any depth."""
    if isinstance(value, Mapping):
        return forbidden.flag_value(compact_json(value)) or _first_problem(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _first_problem(value)
    return forbidden.flag_value(value)


def _first_problem(values: Iterable[object]) -> str | None:
    return next((reason for each in values if (reason := _value_problem(each)) is not None), None)
