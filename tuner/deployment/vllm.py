"""
Configuration → process specs of vLLM engines, their router and their store. Pure: nothing is started.

An engine gets, in this order: `engine.command`, the model, what the tuner sets itself, `engine.flags` of the objective
file in its order, and the flags of the configuration by name. Equal configurations give equal commands.
"""

import re
from collections.abc import Mapping

from tuner.configuration import PARALLEL_KNOBS, Configuration, Role, pool_of
from tuner.deployment import stores
from tuner.deployment.connectors import Attachment, attach
from tuner.deployment.spec import START_ORDER, PortNeed, ProcessSpec, Readiness, literal
from tuner.errors import InputError
from tuner.flags import tokens
from tuner.slo import Objective, Pool, Scalar
from tuner.split_rules import CONNECTORS

_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
#: A router looks for its workers this often while they start. Its own default of 30 s would be counted as start-up.
_ROUTER_CHECK_S = 1
#: Its workers are ready when it starts: a router without an answer by then will never have one.
_ROUTER_LIMIT_S = 180.0
_LOOPBACK = "127.0.0.1"  # of the router's own metrics, whatever `cluster.bind` says


def specs(configuration: Configuration, objective: Objective) -> tuple[ProcessSpec, ...]:
    """
    The processes of a deployment: engines role by role, then the router, then the store.

    One engine is the endpoint itself; several stand behind a router, and so do prefill and decode. The served model
    name is `objective.model` as it is written there.

    Raises:
        InputError: A flag may not be set, is set both by `engine.flags` and by the configuration, or a pool is unknown.
    """
    roles = [(role, pool_of(role, objective.cluster)) for role in configuration.roles]
    alone = sum(role.replicas for role, _ in roles) == 1
    engines = tuple(
        _engine(role, pool, index, objective, attach(configuration, role, pool, objective), endpoint=alone)
        for role, pool in roles
        for index in range(role.replicas)
    )
    store = stores.specs(configuration, objective, roles[0][1])
    return (*engines, *store) if alone else (*engines, _router(engines, configuration, objective), *store)


def _engine(
    role: Role, pool: Pool, index: int, objective: Objective, attached: Attachment, *, endpoint: bool
) -> ProcessSpec:
    env, secrets = _environment(objective, pool)
    return ProcessSpec(
        name=f"{role.name}-{index}",
        role=role.name,
        index=index,
        argv=_engine_argv(role, objective, attached),
        env={**env, **attached.env},
        secrets=secrets,
        ready=Readiness("token"),
        order=START_ORDER[role.name],
        units=role.units_each,
        cores=pool.cores if pool.unit == "cpu" else 0,
        pool=pool.name,
        ports=(PortNeed("http"), *attached.ports),
        endpoint=endpoint,
        files=attached.files,
    )


def _engine_argv(role: Role, objective: Objective, attached: Attachment) -> tuple[str, ...]:
    engine = objective.engine
    if objective.model.startswith("-"):
        raise InputError(f"model: got {objective.model}: a model's name may not begin with a dash")
    model = literal(objective.model)
    argv = [*map(literal, engine.command), model, "--host", "${host}", "--port", "${port:http}"]
    argv += ["--served-model-name", model]
    if objective.model_revision is not None:
        argv += ["--revision", literal(objective.model_revision)]
        argv += ["--tokenizer-revision", literal(objective.model_revision)]
    if engine.trust_remote_code:
        argv.append("--trust-remote-code")
    flags = _flags(role, engine.flags)
    for name, value in flags.items():
        argv += map(literal, tokens(name, value))
    if attached.argv and (named := next((name for name in CONNECTORS if name in flags), None)) is not None:
        raise InputError(f"{named} is set, and so is mode or kv_store; keep one of the two")
    return (*argv, *attached.argv)


def _flags(role: Role, common: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Flags of every engine, then those of the role by name. Absent ones are left out."""
    own = {name: value for name, value in sorted(role.flags.items()) if value is not None}
    for name, value in common.items():
        if name in PARALLEL_KNOBS:
            raise InputError(f"engine.flags: {name}: it decides how many units are held; set it in the space as a knob")
        if value is not None and name in own:
            raise InputError(f"engine.flags: {name}: the space sets this flag too; keep it in one of the two")
    return {**{name: value for name, value in common.items() if value is not None}, **own}


def _environment(objective: Objective, pool: Pool) -> tuple[dict[str, str], dict[str, str]]:
    """Env templates and secrets of an engine. What the tuner must decide itself wins over `engine.env`."""
    env = {"VLLM_NO_USAGE_STATS": "1"}
    secrets = {}
    for name, value in objective.engine.env.items():
        named = _VARIABLE.fullmatch(value)
        if named is None:
            env[name] = literal(value)
        else:
            secrets[name] = named[1]
    env["PYTHONHASHSEED"] = "0"
    if objective.cluster.bind == "loopback":
        env["VLLM_SERVER_DEV_MODE"] = "1"  # /reset_prefix_cache; its routes ask for no key
    if pool.unit == "cpu":
        env["VLLM_CPU_OMP_THREADS_BIND"] = "${cores}" if pool.cores else "nobind"
    else:
        env["CUDA_VISIBLE_DEVICES"] = "${gpus}"
    return env, secrets


def _router(engines: tuple[ProcessSpec, ...], configuration: Configuration, objective: Objective) -> ProcessSpec:
    argv = [*map(literal, objective.engine.router), "--host", "${host}", "--port", "${port:http}"]
    if configuration.kv_transfer is None:
        argv += ["--worker-urls", *(f"${{url:{engine.name}}}" for engine in engines)]
    else:
        argv += ["--vllm-pd-disaggregation", "--kv-connector", configuration.kv_transfer]
        for engine in engines:
            argv += [f"--{engine.role}", f"${{url:{engine.name}}}", *_bootstrap(engine)]
    argv += ["--policy", configuration.router_policy]
    argv += ["--prometheus-host", _LOOPBACK, "--prometheus-port", "${port:prometheus}"]
    argv += ["--worker-startup-check-interval", str(_ROUTER_CHECK_S)]
    return ProcessSpec(
        name="router-0",
        role="router",
        index=0,
        argv=tuple(argv),
        env={"PYTHONHASHSEED": "0"},
        ready=Readiness(
            "token",
            limit_s=_ROUTER_LIMIT_S,
            silent="start_timeout" if configuration.kv_transfer is None else "pd_not_effective",
        ),
        order=START_ORDER["router"],
        ports=(PortNeed("http"), PortNeed("prometheus")),
        endpoint=True,
    )


def _bootstrap(engine: ProcessSpec) -> list[str]:
    """The port at which a prefill engine of Mooncake's is asked for its ranks."""
    return [f"${{port:{engine.name}/bootstrap}}"] if any(need.name == "bootstrap" for need in engine.ports) else []
