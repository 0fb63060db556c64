"""The blocks `engine` and `baseline` of an objective file: what gets started, within `forbidden` and `flags`."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner import flags, forbidden
from tuner.configuration import flag_of
from tuner.slo import Engine, Scalar
from tuner.space import is_knob, knob_problem
from tuner.workload_file import positive_time
from tuner.yamlfile import Node, near

#: The switch that lets `engine.connector_module` name a module with other KV connector classes: for tests on CPUs,
#: where some of the engine's own need help. Nothing else may set it, and no shipped file has such a module.
CONNECTOR_SWITCH = "TUNER_TEST_CONNECTORS"
#: Keys of each block, by its dotted path. `env`, `flags` and `baseline` take names of any kind.
KEYS: Mapping[str, tuple[str, ...]] = {
    "engine": ("command", "env", "flags", "router", "stores", "start_timeout", "trust_remote_code", "connector_module"),
    "engine.stores": ("lmcache", "mooncake"),
}


def engine(node: Node, base: Path) -> Engine:
    """How programs are started. Programs written with a slash are paths relative to the objective file's folder."""
    members = node.mapping(KEYS["engine"])
    found: dict[str, Any] = {}
    for name in ("command", "router"):
        if name in members:
            found[name] = _command(members[name], base)
    if "stores" in members:
        stores = members["stores"].mapping(KEYS["engine.stores"])
        found["stores"] = {name: _command(member, base) for name, member in stores.items()}
    if "env" in members:
        found["env"] = {name: _variable(name, member) for name, member in members["env"].items()}
    if "flags" in members:
        found["flags"] = {name: _flag(name, member) for name, member in members["flags"].items()}
    if "start_timeout" in members:
        found["start_timeout_s"] = positive_time(members["start_timeout"])
    if "trust_remote_code" in members:
        found["trust_remote_code"] = members["trust_remote_code"].boolean()
    if "connector_module" in members:
        found["connector_module"] = _connector_module(members["connector_module"])
    return Engine(**found)


def baseline(node: Node) -> Mapping[str, Scalar]:
    """Knobs of the incumbent."""
    return {name: _knob(name, member) for name, member in node.items()}


def _knob(name: str, node: Node) -> Scalar:
    flag = flag_of(name)
    value = node.scalar() if flag is None else _flag(flag, node)
    if not is_knob(name):
        node.fail_key(f"neither a knob of the tuner nor a known flag of `vllm serve`{near(name, flags.known())}")
    if (why := knob_problem(name, value)) is not None:
        node.fail(why)
    return value


def _connector_module(node: Node) -> str:
    """Code that engines load: only where the environment says that this is a test."""
    name = node.text()
    if os.environ.get(CONNECTOR_SWITCH) != "1":
        node.fail_key(
            f"it makes the server load code; tests of machines without a GPU may do that, with {CONNECTOR_SWITCH}=1"
        )
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", name):
        node.fail(f"got {node.shown()}: a Python module is named like package.module")
    return name


def _command(node: Node, base: Path) -> tuple[str, ...]:
    if not node.is_sequence:
        node.fail(f"got {node.shown()}: a command is a list, one element for each word, such as [vllm, serve]")
    elements = node.elements()
    if not elements:
        node.fail("got an empty list: a command such as [vllm, serve] is needed here")
    tokens = [element.text() for element in elements]
    for number, element in enumerate(elements):
        why = forbidden.command(tokens[: number + 1])
        if why is not None:
            element.fail(f"got {element.shown()}: {why}")
    program = tokens[0]
    if program.startswith("-"):
        elements[0].fail(f"got {elements[0].shown()}: the first word is the program")
    if "/" in program:
        program = os.path.normpath(base / Path(program).expanduser())
    return (program, *tokens[1:])


def _variable(name: str, node: Node) -> str:
    value = "" if node.quoted and node.content == "" else node.text()
    why = forbidden.env(name, value)
    if why is not None:
        node.fail(why)  # without the value: it may be a secret
    return value


def _flag(name: str, node: Node) -> Scalar:
    value = node.scalar()
    why = flags.problem(name, value)
    if why is not None:
        node.fail_key(why)
    return value
