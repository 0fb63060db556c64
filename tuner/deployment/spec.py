"""
What has to run for one deployment: processes with templates for everything that only the placer knows.

A template is `${…}` inside an argv token, an env value or a file's text:

    ${host}        address that this process listens on          ${port:NAME}   first port of its block NAME
    ${url:PROCESS} http URL of another process's `http` port     ${file:NAME}   path of its file NAME
    ${gpus}        ids of its GPUs, joined by commas             ${cores}       its CPU cores, 0-1 or, by slot, 0-1|2-3
    ${host:PROCESS} and ${port:PROCESS/NAME} of another one      ${directory}   where its files are

`resolve` fills them in once addresses are known; `literal` protects text of the user's from being read as one.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tuner.errors import InputError

ProcessRole = Literal["engine", "prefill", "decode", "router", "store"]

#: Processes of a lower order are ready before the next order starts; equal orders start together.
START_ORDER: Mapping[ProcessRole, int] = {"store": 0, "engine": 1, "prefill": 1, "decode": 1, "router": 2}

_TEMPLATE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<kind>[a-z]+)(?::(?P<argument>[^}]*))?\})")
_SECRET_NAME = re.compile(r"(TOKEN|KEY|PASSWORD|PASSWD|SECRET|CREDENTIALS?|AUTH)(_|$)", re.IGNORECASE)


@dataclass(frozen=True)
class PortNeed:
    """A block of `count` consecutive free TCP ports; the first one is the port of this name."""

    name: str
    count: int = 1


@dataclass(frozen=True)
class Readiness:
    """
    When a process counts as ready.

    `token`: its `/v1/models` names the served model and a completion yields a real token. `http`: `path` answers 200.
    `tcp`: the port accepts a connection. In every case by this process, not by a stranger on the same port.
    """

    kind: Literal["token", "http", "tcp"]
    port: str = "http"
    path: str = "/health"
    limit_s: float | None = None  # of this process; None = `engine.start_timeout`, which is never exceeded
    silent: str = "start_timeout"  # reason where it is up, and completions fail until the limit


@dataclass(frozen=True)
class ProcessSpec:
    """One process to start. No shell is involved: one element of `argv` is one token."""

    name: str  # "engine-0", "router-0": unique within the deployment
    role: ProcessRole
    index: int  # within the role, from 0
    argv: tuple[str, ...]  # templates
    env: Mapping[str, str]  # templates; beside what the process inherits
    ready: Readiness
    order: int  # see START_ORDER
    units: int = 0  # GPUs or CPU slots held
    cores: int = 0  # CPU cores of each slot; 0 = not pinned (GPU pools, routers)
    pool: str = ""  # name of the pool that the units come from; "" = needs none
    ports: tuple[PortNeed, ...] = (PortNeed("http"),)
    endpoint: bool = False  # the load goes to this process's `http` port; exactly one per deployment
    secrets: Mapping[str, str] = field(default_factory=dict)  # env name → variable of the tuner's own environment
    files: Mapping[str, str] = field(default_factory=dict)  # name → text template, placed beside the process


@dataclass(frozen=True)
class Address:
    """Where the placer put one process."""

    host: str
    ports: Mapping[str, int]  # first port of each block
    gpus: tuple[str, ...] = ()  # ids as CUDA_VISIBLE_DEVICES takes them
    cores: tuple[int, ...] = ()  # slot by slot, `ProcessSpec.cores` of them each
    directory: str = ""  # absolute, where `files` are written


@dataclass(frozen=True)
class Command:
    """A process spec with every template filled in. Secrets are still names."""

    name: str
    role: ProcessRole
    argv: tuple[str, ...]
    env: Mapping[str, str]
    secrets: Mapping[str, str]
    files: Mapping[str, str]  # absolute path → text


@dataclass(frozen=True)
class Slot:
    """A template within a text: `${kind:argument}`, or `${kind}`."""

    kind: str
    argument: str = ""


def parts(text: str) -> Iterator[str | Slot]:
    """A template in its pieces: literal text as it will stand, and what is still to be filled in."""
    at = 0
    for found in _TEMPLATE.finditer(text):
        if found.start() > at:
            yield text[at : found.start()]
        yield "$" if found["dollar"] else Slot(found["kind"], found["argument"] or "")
        at = found.end()
    if at < len(text):
        yield text[at:]


def literal(text: str) -> str:
    """The template that resolves to exactly this text."""
    return text.replace("$", "$$")


def resolve(spec: ProcessSpec, addresses: Mapping[str, Address]) -> Command:
    """
    Fill in the templates of one process.

    Args:
        spec: The process.
        addresses: Of every process of the deployment, by name.

    Raises:
        KeyError: A template names a process, port or file that there is not: a fault of the code that made the spec.
    """
    own = addresses[spec.name]

    def path(name: str) -> str:
        if name not in spec.files:
            raise KeyError(f"{spec.name} has no file {name!r}")
        return f"{own.directory}/{name}"

    def port(name: str) -> str:
        process, _, block = name.rpartition("/")
        return str((addresses[process] if process else own).ports[block])

    kinds: Mapping[str, Callable[[str], str]] = {
        "host": lambda process: (addresses[process] if process else own).host,
        "port": port,
        "directory": lambda _: own.directory,
        "url": lambda process: f"http://{addresses[process].host}:{addresses[process].ports['http']}",
        "file": path,
        "gpus": lambda _: ",".join(own.gpus),
        "cores": lambda _: "|".join(core_list(slot) for slot in _slots(own.cores, spec.cores)),
    }

    def fill(text: str) -> str:
        return "".join(part if isinstance(part, str) else kinds[part.kind](part.argument) for part in parts(text))

    return Command(
        name=spec.name,
        role=spec.role,
        argv=tuple(fill(token) for token in spec.argv),
        env={name: fill(value) for name, value in spec.env.items()},
        secrets=spec.secrets,
        files={path(name): fill(text) for name, text in spec.files.items()},
    )


def environment(command: Command, environ: Mapping[str, str]) -> dict[str, str]:
    """
    The env of a command with its secrets looked up in `environ`: for the launch alone, never to be written anywhere.

    Raises:
        InputError: A named variable is not set.
    """
    missing = sorted(variable for variable in command.secrets.values() if variable not in environ)
    if missing:
        raise InputError(f"engine.env names ${missing[0]}, which is not set in this environment; export {missing[0]}")
    return {**command.env, **{name: environ[variable] for name, variable in command.secrets.items()}}


def masked(process: ProcessSpec | Command) -> dict[str, object]:
    """Name, role, argv and env for `commands.json`: secrets appear as `$VARIABLE`, secret-looking values as `***`."""
    env = {name: "***" if _SECRET_NAME.search(name) else value for name, value in process.env.items()}
    env.update({name: f"${variable}" for name, variable in process.secrets.items()})
    return {
        "name": process.name,
        "role": process.role,
        "argv": list(process.argv),
        "env": dict(sorted(env.items())),
        "files": dict(process.files),
    }


def core_list(cores: tuple[int, ...]) -> str:
    """CPU cores as Linux and vLLM write them: (0, 1, 2, 5) is `0-2,5`."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _slots(cores: tuple[int, ...], each: int) -> list[tuple[int, ...]]:
    step = each or len(cores) or 1
    return [cores[start : start + step] for start in range(0, len(cores), step)]
