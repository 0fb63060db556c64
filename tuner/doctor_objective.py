"""What `tuner doctor --slo FILE` looks at: everything that this objective file needs from this machine."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tuner import devices, model, objective_warnings, presets, space_file
from tuner.backend import launcher_for
from tuner.deployment.gpus import visible_gpus
from tuner.deployment.local import units_here
from tuner.doctor_check import Check, ask
from tuner.errors import InputError
from tuner.load import traces
from tuner.slo import Objective, Prompts, Trace
from tuner.units import format_number

_PROBE_S = 20.0
#: Values of `load_format` that need no weights.
_NO_WEIGHTS = ("dummy",)
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")
_ONLINE = ("0", "false", "no", "")


def needs(objective: Objective, backend: str, *, remote: bool) -> Iterator[Check]:
    """
    Findings on the file's model, traffic, space, units and secrets.

    Args:
        objective: The file.
        backend: simulated, local or ray: what the file resolves to here.
        remote: Whether a running Ray cluster was named: its units are then not those of this machine.
    """
    live = backend != "simulated"
    yield Check("backend", "ok", f"{backend} ({objective.path})")
    for warning in objective_warnings.warnings(objective):
        yield Check("objective file", "warning", warning, "see `tuner check` and docs/objective-file.md")
    yield from _model(objective, live=live)
    yield from _traffic(objective)
    yield from _space(objective)
    if live:
        if not remote:
            yield from _units(objective)
        yield from _secrets(objective)
    else:
        yield from _simulated(objective)


def _model(objective: Objective, *, live: bool) -> Iterator[Check]:
    name = objective.model
    try:
        facts = model.facts(name)
    except InputError as error:
        yield Check("model", "missing", str(error), "make it or download it there, or change `model:`")
        return
    if facts is None:
        remedy = "rules on memory and parallelism are skipped; a local directory as `model:` makes it known"
        yield Check("model", "warning", f"{name}: nothing is known about it", remedy)
    elif not live:
        yield Check("model", "ok", f"{name}: {facts.layers} layers, {facts.params / 1e9:.3g} billion parameters")
        return
    if Path(name).is_absolute():
        dummy = objective.engine.flags.get("load_format") in _NO_WEIGHTS
        if not dummy and not any(next(Path(name).glob(pattern), None) for pattern in _WEIGHTS):
            yield Check("model", "missing", f"{name}: holds no weights", "download them, or set load_format: dummy")
        elif not (Path(name) / "tokenizer.json").is_file():
            yield Check("model", "warning", f"{name}: has no tokenizer.json", "prompt lengths will be estimated")
        else:
            yield Check("model", "ok", f"{name}" + (", made-up weights" if dummy else ""))
    else:
        yield _named_model(objective)


def _named_model(objective: Objective) -> Check:
    cache = _cache(objective) / f"models--{objective.model.replace('/', '--')}"
    if next(cache.glob("snapshots/*/config.json"), None) is not None:
        return Check("model", "ok", f"{objective.model}: in the cache, {cache}")
    if objective.engine.env.get("HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE", "")).lower() not in _ONLINE:
        remedy = "download it first, or take HF_HUB_OFFLINE away"
        return Check("model", "missing", f"{objective.model}: not in {cache.parent}, and HF_HUB_OFFLINE is set", remedy)
    remedy = "the first engine downloads it within engine.start_timeout; better: hf download it before the study"
    return Check("model", "warning", f"{objective.model}: not in {cache.parent}", remedy)


def _cache(objective: Objective) -> Path:
    env = {**os.environ, **{k: v for k, v in objective.engine.env.items() if not v.startswith("$")}}
    home = Path(env.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    return Path(env["HF_HUB_CACHE"]) if env.get("HF_HUB_CACHE") else home / "hub"


def _traffic(objective: Objective) -> Iterator[Check]:
    source = objective.workload.source
    if not isinstance(source, (Trace, Prompts)):
        return
    try:
        count = len(traces.read_prompts(source)) if isinstance(source, Prompts) else _rows(source)
    except InputError as error:
        yield Check("workload", "missing", str(error), "correct `workload.source`, or bring the file")
        return
    yield Check("workload", "ok", f"{source.path}: {format_number(count)} requests")
    for warning in objective_warnings.repeats(objective, count):
        yield Check("workload", "warning", warning, "see `tuner check`")


def _rows(source: Trace) -> int:
    rows = traces.read(source)
    return 0 if rows is None else len(rows.input_tokens)


def _space(objective: Objective) -> Iterator[Check]:
    named = objective.search.space
    path = Path(named) if named.endswith((".yaml", ".yml")) else presets.space_path(named)
    try:
        space = space_file.load(path)
    except InputError as error:
        yield Check("space", "missing", str(error), "correct the file, or choose another with --space")
    else:
        yield Check("space", "ok", f"{path}: {len(space.knobs)} knobs")
        for warning in objective_warnings.of_space(objective, space):
            yield Check("prices", "warning", warning, "see `prices` in docs/objective-file.md")


def _units(objective: Objective) -> Iterator[Check]:
    """Whether this machine has the GPUs or CPU slots of the largest deployment, and of the kind that is paid for."""
    cluster = objective.cluster
    pools = tuple(replace(pool, nodes=1, per_node=pool.units) for pool in cluster.pools)
    gpus, cores = visible_gpus(os.environ), tuple(sorted(os.sched_getaffinity(0)))
    here = units_here(pools, gpus, cores)
    have = sum(len(units) for units in here.values())
    listed = ", ".join(
        f"{len(units)} of {pool.units} in pool {pool.name}" for pool, units in zip(pools, here.values(), strict=True)
    )
    if have < cluster.max_gpus:
        remedy = "lower cluster.max_gpus, use --ray ADDRESS of a larger cluster, or --backend simulated"
        yield Check("units", "missing", f"max_gpus is {cluster.max_gpus}; this machine has {listed}", remedy)
    else:
        yield Check("units", "ok", f"{listed}; one deployment takes up to {cluster.max_gpus}")
    names = _gpu_names() if gpus else ()
    for pool in cluster.pools:
        priced = devices.of_pool(pool)
        other = sorted({name for name in names if priced is not None and devices.find(name) not in (None, priced)})
        if other:
            remedy = "correct cluster.gpu and its price, or every cost will be that of another GPU"
            yield Check("units", "warning", f"pool {pool.name} says {pool.device}; here is {', '.join(other)}", remedy)


def _gpu_names() -> tuple[str, ...]:
    answer = ask(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], _PROBE_S)
    return tuple(line.strip() for line in answer.out.splitlines() if line.strip()) if answer.code == 0 else ()


def _secrets(objective: Objective) -> Iterator[Check]:
    """Variables that `engine.env` reads at launch: whether they are set, never what they hold."""
    for name, value in sorted(objective.engine.env.items()):
        if not value.startswith("$"):
            continue
        if os.environ.get(value[1:]):
            yield Check("secrets", "ok", f"engine.env.{name}: {value} is set")
        else:
            remedy = f"export {value[1:]}, or take the line away"
            yield Check("secrets", "missing", f"engine.env.{name}: {value} is not set", remedy)


def _simulated(objective: Objective) -> Iterator[Check]:
    try:
        launcher_for("simulated", objective, ray=None, registry=Path()).close()
    except InputError as error:
        yield Check("simulator", "missing", str(error), "choose a model directory and GPUs that it knows")
    else:
        yield Check("simulator", "ok", "knows this model and these GPUs; no engine is started, no GPU needed")
