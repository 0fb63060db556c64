"""Plan → Kubernetes manifests: a Deployment and a headless Service for each process, one Service that clients use."""

import json
import math
from collections.abc import Callable, Iterator, Mapping

from tuner.deployment.spec import ProcessSpec
from tuner.errors import InputError
from tuner.export import container
from tuner.export.container import FILES, MODEL_CACHE, SCRATCH
from tuner.export.places import Ref, Text, expand, numbered
from tuner.export.plan import Plan, settings
from tuner.export.yamltext import dump
from tuner.model import GIB

#: Label that says which pool of the objective file a node belongs to; needed where there are several.
POOL_LABEL = "slo-tuner/pool"
_FIRST_PORT = 8000
_EVERYWHERE = "0.0.0.0"  # noqa: S104  (of a pod's own network, where a Service has to reach it)
_POD_IP = "$(POD_IP)"
_WAIT = """\
import socket, sys, time, urllib.request as r
asked = r.build_opener(r.ProxyHandler({}))
for where in sys.argv[1:]:
    while True:
        try:
            if where.startswith("http"):
                asked.open(where, timeout=8)
            else:
                host, port = where.rsplit(":", 1)
                socket.create_connection((host, int(port)), timeout=8).close()
            break
        except OSError as error:
            print(where, error, flush=True)
            time.sleep(3)
"""
_SECURITY: Mapping[str, object] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def text(plan: Plan, rdma: str | None = None) -> str:
    """
    All manifests in one text.

    Args:
        plan: What to export.
        rdma: Name of the cluster's resource for RDMA devices, such as `rdma/hca_shared_devices_a`.

    Raises:
        InputError: Something of the deployment has no words in Kubernetes, or none without `rdma`.
    """
    _refuse(plan, rdma)
    documents = [document for spec in plan.specs for document in _process(spec, plan, rdma)]
    return dump([*documents, _front(plan)], [*plan.origin.lines(), *_head(plan)])


def _refuse(plan: Plan, rdma: str | None) -> None:
    container.refuse(plan, "kubernetes")
    container.refuse_spread_memory(plan, "kubernetes")
    if any(spec.cores for spec in plan.specs):
        raise InputError(
            "kubernetes: this deployment is pinned to CPU cores by number, which a pod cannot choose; use --format "
            "shell or --format compose"
        )
    if plan.one_machine and len({spec.pool for spec in plan.specs if spec.units}) > 1:
        raise InputError(
            "kubernetes: this deployment uses two kinds of GPU in one machine, and a pod cannot ask for one of them; "
            "use --format shell or --format compose"
        )
    for spec in plan.specs:
        for path in (*container.machine_paths(spec), *container.machine_folders(spec)):
            raise InputError(
                f"kubernetes: {spec.name} needs {path}, a path of the measured machine, which no pod has; name the "
                "model as on the hub and measure that, or use --format shell or --format compose"
            )
    if rdma is None and any(container.uses_rdma(spec) for spec in plan.specs):
        raise InputError(
            "kubernetes: Mooncake moves KV blocks by RDMA, and how a pod gets RDMA devices differs from cluster to "
            "cluster; name the resource of your device plugin, such as --rdma rdma/hca_shared_devices_a"
        )


def _head(plan: Plan) -> Iterator[str]:
    name = _name(plan)
    yield f"Clients use Service {name}, port 80. Pods listen inside their own network; nothing is exposed outside."
    if secrets := sorted({each for spec in plan.specs for each in settings(spec)[1]}):
        yield f"Expects Secret {name}-secrets with {', '.join(secrets)}."
    pools = sorted({spec.pool for spec in plan.specs if spec.units})
    devices = {pool.name: pool.device for pool in plan.objective.cluster.pools}
    if len(pools) > 1:
        told = ", ".join(f"{POOL_LABEL}={pool} on nodes with {devices[pool]}" for pool in pools)
        yield f"Expects labels of nodes: {told}."
    else:
        yield f"Was planned for {devices[pools[0]]}; add a nodeSelector where the cluster has other GPUs too."


def _process(spec: ProcessSpec, plan: Plan, rdma: str | None) -> Iterator[Mapping[str, object]]:
    if spec.files:
        fill = _filler(spec, plan, own=_host(spec.name, plan), escape=False)
        data = {name: fill(expand(spec, body)) for name, body in spec.files.items()}
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(spec, plan), "data": data}
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(spec, plan),
        "spec": {
            "clusterIP": "None",  # its name is the pod's own address, whatever the port
            "publishNotReadyAddresses": True,
            "selector": _labels(spec, plan),
            "ports": [{"name": name, "port": port, "targetPort": name} for name, port in _ports(spec)],
        },
    }
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**_metadata(spec, plan), **_annotated(plan)},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # GPUs are not there twice
            "progressDeadlineSeconds": container.start_limit_s(spec, plan) * (2 if plan.before(spec) else 1) + 600,
            "selector": {"matchLabels": _labels(spec, plan)},
            "template": {
                "metadata": {"labels": _labels(spec, plan)},
                "spec": _pod(spec, plan, rdma),
            },
        },
    }


def _pod(spec: ProcessSpec, plan: Plan, rdma: str | None) -> Mapping[str, object]:
    volumes, mounts = _volumes(spec, plan)
    together = container.shares_memory(spec, plan)
    pod: dict[str, object] = {
        "enableServiceLinks": False,  # a Service named vllm-… would set VLLM_… variables
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": container.GRACE_S,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(spec, plan, rdma, mounts)],
    }
    if before := plan.before(spec):
        where = [_address_to_wait_for(other, plan) for other in before]
        pod["initContainers"] = [
            {
                "name": "wait",
                "image": container.image(spec, plan),
                "command": ["python3", "-c", _escaped(_WAIT), *where],
                "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
                "securityContext": _SECURITY,
            }
        ]
    if together:
        term = {"labelSelector": {"matchLabels": _memory(plan)}, "topologyKey": "kubernetes.io/hostname"}
        pod["hostIPC"] = True
        pod["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    if len({each.pool for each in plan.specs if each.units}) > 1 and spec.units:
        pod["nodeSelector"] = {POOL_LABEL: spec.pool}
    if volumes:
        pod["volumes"] = volumes
    return pod


def _container(
    spec: ProcessSpec, plan: Plan, rdma: str | None, mounts: list[Mapping[str, object]]
) -> Mapping[str, object]:
    words = container.argv(spec, _filler(spec, plan, own=_EVERYWHERE))
    kind, port, path = container.check(spec)
    probe = {"httpGet": {"path": path, "port": port}} if kind == "http" else {"tcpSocket": {"port": port}}
    probe_s = {"periodSeconds": container.CHECK_S, "timeoutSeconds": container.CHECK_S}
    tries = math.ceil(container.start_limit_s(spec, plan) / container.CHECK_S)
    moves = container.uses_rdma(spec)
    security = {**_SECURITY, "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}} if moves else _SECURITY
    found: dict[str, object] = {
        "name": spec.role,
        "image": container.image(spec, plan),
        "command": words[:1],
        "args": words[1:],
        "env": _env(spec, plan),
        "ports": [{"name": name, "containerPort": number} for name, number in _ports(spec)],
        "startupProbe": {**probe, **probe_s, "failureThreshold": tries},
        "readinessProbe": {**probe, **probe_s, "failureThreshold": 2},
        "livenessProbe": {**probe, **probe_s, "failureThreshold": 6},
        "securityContext": security,
    }
    if resources := _resources(spec, plan, rdma if moves else None):
        found["resources"] = resources
    if mounts:
        found["volumeMounts"] = mounts
    return found


def _env(spec: ProcessSpec, plan: Plan) -> list[Mapping[str, object]]:
    """A process listens everywhere inside its pod; in its environment stands the address that it tells others."""
    env, secrets = container.environment(spec, _filler(spec, plan, own=_POD_IP))
    found: list[Mapping[str, object]] = []
    if any(_POD_IP in value for value in env.values()):
        found.append({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    found += [{"name": name, "value": value} for name, value in env.items()]
    secret = f"{_name(plan)}-secrets"
    found += [{"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}} for name in secrets]
    return found


def _resources(spec: ProcessSpec, plan: Plan, rdma: str | None) -> Mapping[str, object]:
    """GPUs, and the memory and disk that a store was measured with; how much else a server takes is not known."""
    limits: dict[str, object] = {"nvidia.com/gpu": spec.units} if container.has_gpus(spec) else {}
    if rdma is not None:
        limits[rdma] = 1
    knobs = plan.configuration.effective
    ram_gib, ssd_gib = (float(knobs.get(f"kv_store_{tier}_gib") or 0) for tier in ("ram", "ssd"))
    requests: dict[str, object] = {}
    if plan.configuration.store_in_engines and spec.role == plan.configuration.storing_role:
        engines = plan.configuration.roles[0].replicas
        requests["memory"] = _quantity(ram_gib / engines)
        if ssd_gib:
            requests["ephemeral-storage"] = _quantity(ssd_gib / engines)
    if spec.role == "store" and _holds_blocks(spec, plan):
        requests["memory"] = _quantity(ram_gib)
        if ssd_gib:
            requests["ephemeral-storage"] = _quantity(ssd_gib)
    return {**({"limits": limits} if limits else {}), **({"requests": requests} if requests else {})}


def _holds_blocks(spec: ProcessSpec, plan: Plan) -> bool:
    """Whether blocks lie in this process: in the last one of a store, whose first one may only keep the addresses."""
    return spec.name == [each.name for each in plan.specs if each.role == "store"][-1]


def _quantity(gib: float) -> str:
    whole = gib.is_integer()
    return f"{int(gib)}Gi" if whole else str(int(gib * GIB))


def _volumes(spec: ProcessSpec, plan: Plan) -> tuple[list[Mapping[str, object]], list[Mapping[str, object]]]:
    """Volumes of a pod, and where its container has them."""
    volumes: list[Mapping[str, object]] = []
    mounts: list[Mapping[str, object]] = []
    if container.is_engine(spec):
        volumes.append({"name": "model-cache", "emptyDir": {}})
        mounts.append({"name": "model-cache", "mountPath": MODEL_CACHE})
        if not container.shares_memory(spec, plan):  # else it is the node's
            volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
            mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})  # noqa: S108  (of the pod)
    if spec.files:
        volumes.append({"name": "files", "configMap": {"name": _host(spec.name, plan)}})
        mounts.append({"name": "files", "mountPath": FILES, "readOnly": True})
    if container.uses_scratch(spec):
        volumes.append({"name": "scratch", "emptyDir": {}})
        mounts.append({"name": "scratch", "mountPath": SCRATCH})
    return volumes, mounts


def _front(plan: Plan) -> Mapping[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _name(plan), "labels": _common(plan), **_annotated(plan)},
        "spec": {
            "selector": _labels(plan.endpoint, plan),
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }


def _name(plan: Plan) -> str:
    return container.project_name(plan.origin.study)


def _host(process: str, plan: Plan) -> str:
    return f"{_name(plan)}-{process}"


def _common(plan: Plan) -> dict[str, str]:
    return {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": _name(plan)}


def _memory(plan: Plan) -> dict[str, str]:
    return {**_common(plan), "slo-tuner/memory": "shared"}


def _labels(spec: ProcessSpec, plan: Plan) -> dict[str, str]:
    shared = container.shares_memory(spec, plan)
    return {**(_memory(plan) if shared else _common(plan)), "app.kubernetes.io/component": spec.name}


def _metadata(spec: ProcessSpec, plan: Plan) -> Mapping[str, object]:
    return {"name": _host(spec.name, plan), "labels": _labels(spec, plan)}


def _annotated(plan: Plan) -> Mapping[str, object]:
    """Provenance as data, for programs that look at the cluster later."""
    told = json.dumps(plan.origin.as_json(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return {"annotations": {"slo-tuner/provenance": told}}


def _ports(spec: ProcessSpec) -> list[tuple[str, int]]:
    """
    Every port with a name of at most 15 characters; those of a block behind its first one are numbered.

    A router tells its own figures on loopback alone, as it was measured.
    """
    first = numbered(spec, _FIRST_PORT)
    return [
        (need.name.replace("_", "-") + (f"-{place}" if place else ""), first[need.name] + place)
        for need in spec.ports
        for place in range(need.count)
        if (spec.role, need.name) != ("router", "prometheus")
    ]


def _address_to_wait_for(other: ProcessSpec, plan: Plan) -> str:
    kind, port, path = container.check(other)
    number = numbered(other, _FIRST_PORT)[port]
    host = _host(other.name, plan)
    return f"http://{host}:{number}{path}" if kind == "http" else f"{host}:{number}"


def _filler(spec: ProcessSpec, plan: Plan, *, own: str, escape: bool = True) -> Callable[[Text], str]:
    """
    Args:
        spec: The process whose texts are filled in.
        plan: With all the others.
        own: Its own address. Others are reached at the names of their Services.
        escape: In argv and env, Kubernetes itself looks for `$(NAME)`; in files it does not.
    """

    def one(piece: str | Ref) -> str:
        if isinstance(piece, Ref):
            return _place(piece, spec, plan, own=own)
        return _escaped(piece) if escape else piece

    return lambda pieces: "".join(map(one, pieces))


def _place(ref: Ref, spec: ProcessSpec, plan: Plan, *, own: str) -> str:
    match ref.what:
        case "host":
            return own if ref.process == spec.name else _host(ref.process, plan)
        case "port":
            process = next(each for each in plan.specs if each.name == ref.process)
            return str(numbered(process, _FIRST_PORT)[ref.name])
        case "directory":
            return SCRATCH
        case "file":
            return f"{FILES}/{ref.name}"
        case _:
            raise AssertionError(f"{spec.name}: {ref.what} has no place in a pod")


def _escaped(text: str) -> str:
    return text.replace("$", "$$")
