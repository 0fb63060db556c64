"""Plan → a Compose file for one machine: the measured addresses and GPUs, one service a process."""

from collections.abc import Callable, Mapping

from tuner.deployment.spec import ProcessSpec, core_list
from tuner.errors import InputError
from tuner.export import container
from tuner.export.container import FILES, MODEL_CACHE, SCRATCH
from tuner.export.places import Ref, Text, expand
from tuner.export.plan import Plan
from tuner.export.shell import variable
from tuner.export.yamltext import dump

_CHECKS: Mapping[str, str] = {
    "http": "import sys, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(sys.argv[1], timeout=8)",
    "tcp": "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=8)",
}
_HEAD = (
    "docker compose up --wait starts all of it in order; every ${...} below can be set from outside or in .env.",
    "Services use the network of the machine and listen at *_HOST, as they were measured. Needs Compose 2.23.1.",
)


def text(plan: Plan) -> str:
    """
    The whole file.

    Raises:
        InputError: The deployment was spread over machines, or needs what no image holds.
    """
    container.refuse(plan, "compose")
    if not plan.one_machine:
        raise InputError(
            "compose: this deployment is spread over several machines, and Compose starts services on one; use "
            "--format shell or --format kubernetes"
        )
    return dump([_project(plan)], [*plan.origin.lines(), *_HEAD])


def _project(plan: Plan) -> Mapping[str, object]:
    files = {_config(spec, name): (spec, body) for spec in plan.specs for name, body in spec.files.items()}
    volumes = [_scratch(spec) for spec in plan.specs if container.uses_scratch(spec)]
    configs = {name: {"content": _filler(spec, plan)(expand(spec, body))} for name, (spec, body) in files.items()}
    return {
        "name": container.project_name(plan.origin.study),
        "services": {spec.name: _service(spec, plan) for spec in plan.specs},
        **({"configs": configs} if configs else {}),
        "volumes": {"model-cache": {}, **{name: {} for name in volumes}},
        "x-provenance": _literal(plan.origin.as_json()),
    }


def _service(spec: ProcessSpec, plan: Plan) -> Mapping[str, object]:
    fill = _filler(spec, plan)
    words = container.argv(spec, fill)
    env, secrets = container.environment(spec, fill)
    env |= {name: f"${{{source}:?a secret: set it}}" for name, source in secrets.items()}
    kind = "ROUTER" if spec.role == "router" else "ENGINE"
    service: dict[str, object] = {
        "image": f"${{{kind}_IMAGE:-{container.image(spec, plan)}}}",
        "entrypoint": words[:1],
        "command": words[1:],
        "environment": env,
        "network_mode": "host",
        "init": True,
        "restart": "unless-stopped",
        "stop_grace_period": f"{container.GRACE_S}s",
        "healthcheck": _health(spec, plan, fill),
        "security_opt": ["no-new-privileges:true"],
        "labels": {"tuner.study": _dollars(plan.origin.study), "tuner.trial": str(plan.origin.trial)},
    }
    if before := plan.before(spec):
        service["depends_on"] = {other.name: {"condition": "service_healthy"} for other in before}
    if container.is_engine(spec) or container.shares_memory(spec, plan):
        service["ipc"] = "host"
    if container.has_gpus(spec):
        device = {"driver": "nvidia", "device_ids": list(plan.addresses[spec.name].gpus), "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    if spec.cores:
        service["cpuset"] = core_list(plan.addresses[spec.name].cores)
    if container.uses_rdma(spec):
        service |= {"devices": ["/dev/infiniband:/dev/infiniband"], "cap_add": ["IPC_LOCK"], "ulimits": {"memlock": -1}}
    if spec.files:
        service["configs"] = [{"source": _config(spec, name), "target": f"{FILES}/{name}"} for name in spec.files]
    if mounts := _mounts(spec):
        service["volumes"] = mounts
    return service


def _mounts(spec: ProcessSpec) -> list[Mapping[str, object]]:
    found: list[Mapping[str, object]] = []
    if container.is_engine(spec):
        found.append({"type": "volume", "source": "model-cache", "target": MODEL_CACHE})
        found += [
            {"type": "bind", "source": _dollars(path), "target": _dollars(path), "read_only": True}
            for path in container.machine_paths(spec)
        ]
        found += [
            {"type": "bind", "source": _dollars(path), "target": _dollars(path)}
            for path in container.machine_folders(spec)
        ]
    if container.uses_scratch(spec):
        found.append({"type": "volume", "source": _scratch(spec), "target": SCRATCH})
    return found


def _health(spec: ProcessSpec, plan: Plan, fill: Callable[[Text], str]) -> Mapping[str, object]:
    kind, port, path = container.check(spec)
    host, number = fill((Ref("host", spec.name),)), fill((Ref("port", spec.name, port),))
    where = [f"http://{host}:{number}{path}"] if kind == "http" else [host, number]
    return {
        "test": ["CMD", "python3", "-c", _dollars(_CHECKS[kind]), *where],
        "interval": f"{container.CHECK_S}s",
        "timeout": f"{container.CHECK_S}s",
        "retries": 3,
        "start_period": f"{container.start_limit_s(spec, plan)}s",
    }


def _filler(spec: ProcessSpec, plan: Plan) -> Callable[[Text], str]:
    """References become variables with the measured default; dollars of the text are none of Compose's."""

    def one(ref: Ref) -> str:
        at = plan.addresses[ref.process]
        match ref.what:
            case "host":
                return f"${{{variable(ref)}:-{at.host}}}"
            case "port":
                return f"${{{variable(ref)}:-{at.ports[ref.name]}}}"
            case "cores":
                slots = [core_list(at.cores[k : k + spec.cores]) for k in range(0, len(at.cores), spec.cores)]
                return "|".join(slots)
            case "gpus":
                return ",".join(at.gpus)
            case "directory":
                return SCRATCH
            case "file":
                return f"{FILES}/{ref.name}"

    return lambda pieces: "".join(_dollars(piece) if isinstance(piece, str) else one(piece) for piece in pieces)


def _dollars(text: str) -> str:
    return text.replace("$", "$$")


def _literal(value: object) -> object:
    """Data with every dollar of its texts doubled."""
    match value:
        case str():
            return _dollars(value)
        case dict():
            return {key: _literal(each) for key, each in value.items()}
        case list():
            return [_literal(each) for each in value]
        case _:
            return value


def _config(spec: ProcessSpec, name: str) -> str:
    return f"{spec.name}-{name.replace('.', '-')}"


def _scratch(spec: ProcessSpec) -> str:
    return f"{spec.name}-data"
