"""
What Compose and Kubernetes have in common: images, commands in them, checks of health, and what no image can run. Pure.

Official images: `vllm/vllm-openai` holds vLLM with NIXL, LMCache and Mooncake, `vllm/vllm-router` the router.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Literal

from tuner.deployment import stores
from tuner.deployment.spec import ProcessSpec
from tuner.errors import InputError
from tuner.export.places import Ref, Text, expand
from tuner.export.plan import Plan, settings

#: The router's version that this project is tested with; studies do not record it.
ROUTER_IMAGE = "vllm/vllm-router:v0.1.17"
#: Where files of a process lie in its container, and where it may write.
FILES, SCRATCH = "/etc/tuner", "/var/lib/tuner"
#: Where images of vLLM keep downloaded models.
MODEL_CACHE = "/root/.cache/huggingface"
#: Seconds in which a server may finish what it has begun.
GRACE_S = 60
CHECK_S = 10
_RELEASE = re.compile(r"(\d+\.\d+\.\d+(?:rc\d+|\.post\d+)?)(\+.*)?")
#: With the name of a process behind it, a name must still be a DNS label of 63 characters.
_LONGEST = 40
_ENGINES = frozenset({"engine", "prefill", "decode"})
#: Variables that a container's own device list replaces.
_DEVICES = ("CUDA_VISIBLE_DEVICES",)

Fill = Callable[[Text], str]


def refuse(plan: Plan, form: str) -> None:
    """
    Raises:
        InputError: The deployment needs something that no container image has.
    """
    engine = plan.objective.engine
    if engine.connector_module:
        raise InputError(
            f"{form}: engine.connector_module is {engine.connector_module}: a stand-in for tests, which no image "
            "holds; measure without it, or use --format shell"
        )
    wanted = {"engine.command": (engine.command, ("vllm", "serve")), "engine.router": (engine.router, ("vllm-router",))}
    for store, known in stores.COMMANDS.items():
        wanted[f"engine.stores.{store}"] = (engine.stores.get(store, known), known)
    used = {"engine.command", *(["engine.router"] if any(spec.role == "router" for spec in plan.specs) else [])}
    used |= set() if plan.configuration.store_in_engines else {f"engine.stores.{plan.configuration.kv_store}"}
    for key in sorted(used & set(wanted)):
        given, known = wanted[key]
        if (PurePosixPath(given[0]).name, *given[1:]) != known:
            raise InputError(
                f"{form}: {key} is `{' '.join(given)}`: official images run `{' '.join(known)}` alone; use "
                "--format shell"
            )
    if plan.origin.source == "live" and _RELEASE.fullmatch(plan.origin.engine_version) is None:
        raise InputError(
            f"{form}: the engine told version {plan.origin.engine_version}: there are images of releases alone, "
            "such as 0.32.0; use --format shell"
        )


def project_name(study: str) -> str:
    """Lower-case letters, digits and dashes; a name that had to be changed carries digits of its hash."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in study.lower()).strip("-")
    named = plain if plain[:1].isalpha() else f"t-{plain}"
    if named == study and len(named) <= _LONGEST:
        return named
    return f"{named[: _LONGEST - 7].strip('-')}-{hashlib.sha256(study.encode()).hexdigest()[:6]}"


def is_engine(spec: ProcessSpec) -> bool:
    """Whether it serves the model itself."""
    return spec.role in _ENGINES


def has_gpus(spec: ProcessSpec) -> bool:
    """Whether it holds GPUs."""
    return spec.units > 0 and spec.cores == 0


def image(spec: ProcessSpec, plan: Plan) -> str:
    """The official image of a process, by the measured version of the engine."""
    if spec.role == "router":
        return ROUTER_IMAGE
    version = _RELEASE.fullmatch(plan.origin.engine_version)
    name = "vllm/vllm-openai-cpu" if any(each.cores for each in plan.specs) else "vllm/vllm-openai"
    return f"{name}:v{version[1] if version else plan.origin.engine_version}"


def argv(spec: ProcessSpec, fill: Fill) -> list[str]:
    """The measured command with the program as an image's PATH finds it."""
    words = [fill(expand(spec, token)) for token in spec.argv]
    return [PurePosixPath(words[0]).name, *words[1:]]


def environment(spec: ProcessSpec, fill: Fill) -> tuple[dict[str, str], dict[str, str]]:
    """Env and secrets; which GPUs a process sees is said by the container's devices instead."""
    env, secrets = settings(spec)
    found = {name: fill(expand(spec, value)) for name, value in sorted(env.items()) if name not in _DEVICES}
    if not has_gpus(spec) and spec.role == "store":
        found["NVIDIA_VISIBLE_DEVICES"] = "void"  # the image's own default is all
    return found, dict(sorted(secrets.items()))


def check(spec: ProcessSpec) -> tuple[Literal["http", "tcp"], str, str]:
    """How its health is asked: kind, name of the port, path; a token is asked for at the start of a study alone."""
    kind: Literal["http", "tcp"] = "tcp" if spec.ready.kind == "tcp" else "http"
    return kind, spec.ready.port, spec.ready.path


def start_limit_s(spec: ProcessSpec, plan: Plan) -> int:
    """Seconds that its start may take. An image that waits for its workers needs as long as they do."""
    limit = spec.ready.limit_s if spec.role == "store" else None
    return math.ceil(plan.objective.engine.start_timeout_s if limit is None else limit)


def uses_scratch(spec: ProcessSpec) -> bool:
    """Whether it writes beside its files, as a store with an SSD does."""
    texts = (*spec.argv, *spec.env.values(), *spec.files.values())
    return any(isinstance(part, Ref) and part.what == "directory" for text in texts for part in expand(spec, text))


def uses_rdma(spec: ProcessSpec) -> bool:
    """Whether Mooncake moves blocks from or to it by RDMA."""
    texts = (*spec.argv, *spec.files.values())
    return any(found in text for text in texts for found in ('"protocol":"rdma"', '"mooncake_protocol":"rdma"'))


def shares_memory(spec: ProcessSpec, plan: Plan) -> bool:
    """
    Whether it hands KV blocks to other processes through the memory of their machine.

    Sides that were measured on one machine do, over NIXL; LMCache's server and its engines always do.
    """
    if plan.configuration.kv_transfer == "nixl" and plan.one_machine and spec.role in ("prefill", "decode"):
        return True
    stores_it = spec.role in ("store", plan.configuration.storing_role)
    return _lmcache_server(plan) and stores_it


def machine_paths(spec: ProcessSpec) -> Sequence[str]:
    """Absolute paths of the measured machine among its arguments, the program itself left out."""
    return tuple(dict.fromkeys(_paths(spec, spec.argv[1:])))


def machine_folders(spec: ProcessSpec) -> Sequence[str]:
    """Absolute paths of the measured machine in its environment, where it may write: `HF_HOME`, caches."""
    return tuple(dict.fromkeys(_paths(spec, settings(spec)[0].values())))


def refuse_spread_memory(plan: Plan, form: str) -> None:
    """
    Raises:
        InputError: A store that works through one machine's memory was measured, or would be, on several.
    """
    if _lmcache_server(plan) and not plan.one_machine:
        raise InputError(
            f"{form}: LMCache's server hands KV blocks on through the memory of one machine, and this deployment is "
            "spread over several; choose a trial on one machine, or kv_store: mooncake"
        )


def _lmcache_server(plan: Plan) -> bool:
    return plan.configuration.kv_store == "lmcache" and not plan.configuration.store_in_engines


def _paths(spec: ProcessSpec, templates: Iterable[str]) -> Iterator[str]:
    for template in templates:
        pieces = expand(spec, template)
        if pieces and all(isinstance(piece, str) for piece in pieces):
            text = "".join(str(piece) for piece in pieces)
            value = text.partition("=")[2] if text.startswith("--") else text
            if value.startswith("/"):
                yield value
