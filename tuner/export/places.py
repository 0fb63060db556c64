"""
Templates of process specs as references, and the places that they had when a trial was measured. Pure.

A measured command and the spec that it was made from differ in addresses alone. `recover` reads these back, and proves
it: resolved with them, the spec gives the measured command again, token by token.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from tuner.deployment.spec import Address, ProcessSpec, masked, parts, resolve
from tuner.errors import InputError

#: Where processes listen that nothing was measured of.
LOOPBACK = "127.0.0.1"
_FIRST_PORT, _PORTS_EACH = 8000, 100
_PATTERNS: Mapping[str, str] = {
    "host": r"[^\s:/\"',|]+",
    "port": r"\d{1,5}",
    "gpus": r"\S*",
    "cores": r"[\d,|-]*",
    "directory": r"/.*",
}


@dataclass(frozen=True)
class Ref:
    """Something that only the place of a process decides."""

    what: Literal["host", "port", "gpus", "cores", "directory", "file"]
    process: str
    name: str = ""  # of the port or of the file


Text = tuple[str | Ref, ...]


def expand(spec: ProcessSpec, template: str) -> Text:
    """A template of this process in literal pieces and references; a URL is a host and a port."""
    return tuple(_expand(spec, template))


def _expand(spec: ProcessSpec, template: str) -> Iterator[str | Ref]:
    for part in parts(template):
        if isinstance(part, str):
            yield part
        elif part.kind == "url":
            yield from ("http://", Ref("host", part.argument), ":", Ref("port", part.argument, "http"))
        elif part.kind == "port":
            process, _, name = part.argument.rpartition("/")
            yield Ref("port", process or spec.name, name)
        elif part.kind == "host":
            yield Ref("host", part.argument or spec.name)
        elif part.kind == "file":
            yield Ref("file", spec.name, part.argument)
        else:
            yield Ref("gpus" if part.kind == "gpus" else "cores" if part.kind == "cores" else "directory", spec.name)


def recover(specs: Sequence[ProcessSpec], commands: Sequence[Mapping[str, Any]]) -> Mapping[str, Address] | None:
    """
    Where each process ran.

    Args:
        specs: Of the trial's configuration.
        commands: `commands.json` of the trial.

    Returns:
        Addresses by process; None where the commands are templates still, as in a simulated study.

    Raises:
        InputError: The commands are not those of these specs.
    """
    by_name = {str(command.get("name")): command for command in commands}
    if by_name == {spec.name: masked(spec) for spec in specs}:
        return None
    if set(by_name) != {spec.name for spec in specs}:
        raise InputError(
            f"commands.json: got processes {', '.join(by_name) or 'none'}: the configuration makes "
            f"{', '.join(spec.name for spec in specs)}; export with the version of tuner that measured it"
        )
    found: dict[Ref, str] = {}
    for spec in specs:
        _read(spec, by_name[spec.name], found)
    addresses = {spec.name: _address(spec, found) for spec in specs}
    for spec in specs:
        _compare(spec, masked(resolve(spec, addresses)), by_name[spec.name])
    return addresses


def imagined(specs: Sequence[ProcessSpec], host: str = LOOPBACK) -> Mapping[str, Address]:
    """
    Places where nothing ran: a hundred ports each from 8000 on, GPUs and cores counted from 0.

    With "" as `host`, several machines are needed: neither their addresses nor the ids of their GPUs are known.
    """
    found: dict[str, Address] = {}
    gpus = cores = 0
    for number, spec in enumerate(specs):
        pinned = spec.units * spec.cores
        has_gpus = spec.units if spec.cores == 0 and host else 0
        found[spec.name] = Address(
            host=host,
            ports=numbered(spec, _FIRST_PORT + _PORTS_EACH * number),
            gpus=tuple(str(gpus + place) for place in range(has_gpus)),
            cores=tuple(range(cores, cores + pinned)),
        )
        gpus, cores = gpus + has_gpus, cores + pinned
    return found


def numbered(spec: ProcessSpec, first: int) -> Mapping[str, int]:
    """First port of each of its blocks, one block after the other."""
    ports: dict[str, int] = {}
    for need in spec.ports:
        ports[need.name] = first
        first += need.count
    return ports


def _read(spec: ProcessSpec, command: Mapping[str, Any], found: dict[Ref, str]) -> None:
    """Add what the texts of one command say about places."""
    env, files = command.get("env") or {}, command.get("files") or {}
    by_name = {PurePosixPath(path).name: (path, text) for path, text in files.items()}
    pairs = [*zip(spec.argv, command.get("argv") or (), strict=False)]
    pairs += [(template, str(env.get(name, ""))) for name, template in spec.env.items()]
    for name, template in spec.files.items():
        path, text = by_name.get(name, ("", ""))
        found[Ref("directory", spec.name)] = str(PurePosixPath(path).parent)
        pairs.append((template, text))
    for template, text in pairs:
        _match(expand(spec, template), text, found)


def _match(pieces: Text, text: str, found: dict[Ref, str]) -> None:
    refs = [piece for piece in pieces if isinstance(piece, Ref) and piece.what != "file"]
    pattern = "".join(
        re.escape(piece) if isinstance(piece, str) else f"({_PATTERNS[piece.what]})" if piece.what != "file" else "/.*"
        for piece in pieces
    )
    matched = re.fullmatch(pattern, text, re.DOTALL)
    if matched is not None:
        for ref, value in zip(refs, matched.groups(), strict=True):
            found.setdefault(ref, value)


def _address(spec: ProcessSpec, found: Mapping[Ref, str]) -> Address:
    return Address(
        host=found.get(Ref("host", spec.name), ""),
        ports={need.name: int(found.get(Ref("port", spec.name, need.name), "0")) for need in spec.ports},
        gpus=tuple(part for part in found.get(Ref("gpus", spec.name), "").split(",") if part),
        cores=tuple(_cores(found.get(Ref("cores", spec.name), ""))),
        directory=found.get(Ref("directory", spec.name), ""),
    )


def _cores(text: str) -> Iterator[int]:
    """`0-1|4-5` → 0, 1, 4, 5."""
    for part in re.split(r"[|,]", text):
        first, _, last = part.partition("-")
        if first:
            yield from range(int(first), int(last or first) + 1)


def _compare(spec: ProcessSpec, made: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
    """
    Raises:
        InputError: They differ; the message names the first difference.
    """
    for key, ours in made.items():
        theirs = measured.get(key)
        if ours != theirs:
            pairs = zip(ours, theirs or (), strict=False) if key == "argv" else [(ours, theirs)]
            one, other = next(((a, b) for a, b in pairs if a != b), (f"{len(ours)} tokens", f"{len(theirs or ())}"))
            raise InputError(
                f"commands.json: {spec.name}: {key}: measured was {other!r}, and this version of tuner would start "
                f"{one!r}; export with the version that measured it"
            )
