"""
Whether a configuration can work at all, and what to measure first: known before anything is started.

The rules themselves are in `static_rules`.
"""

from collections.abc import Iterator

from tuner import engine_defaults
from tuner.configuration import PARALLEL_KNOBS, Configuration, pool_of
from tuner.errors import InputError
from tuner.model import ModelFacts
from tuner.slo import Objective, Synthetic, Trace, Workload
from tuner.space import Space, is_knob, knob_problem
from tuner.split_rules import shared
from tuner.static_rules import CHECKS, RULES, USUAL_OVERHEAD_GIB, Case, Violation, memory, placement


def violations(
    configuration: Configuration, objective: Objective, facts: ModelFacts | None, *, longest: int | None = None
) -> list[Violation]:
    """
    Every rule that the configuration breaks, in the order of `RULES`; empty = it may be started.

    Args:
        configuration: The point.
        objective: Cluster, engine flags and workload.
        facts: Of the model; None = unknown.
        longest: Tokens of the longest request, input and output together; None = as far as the workload itself tells.
    """
    try:
        placed = [(role, pool_of(role, objective.cluster)) for role in configuration.roles]
    except InputError as error:
        return [Violation("unknown_pool", str(error))]
    found = list(placement(configuration, objective.cluster, placed))
    found += [
        Violation("given_twice", f"{name} is in engine.flags and in the configuration; keep it in one of the two")
        for name in _given_twice(configuration, objective)
    ]
    found += shared(configuration, objective, placed, facts)
    longest = longest_request(objective.workload) if longest is None else longest
    for role, pool in placed:
        case = Case(role, pool, engine_defaults.resolve(role, pool, objective.engine, facts), facts, longest)
        broken = ((rule, check(case)) for rule, check in CHECKS.items())
        side = "" if role.name == "engine" else f"{role.name}: "
        found += [Violation(rule, side + message) for rule, message in broken if message is not None]
    order = list(RULES)
    return sorted(found, key=lambda violation: order.index(violation.rule))


def workload_problem(objective: Objective, facts: ModelFacts | None, *, longest: int | None = None) -> str | None:
    """
    Why no configuration at all can serve the workload, with the remedy; None = some may.

    Looked at before trial 0: the longest request against the model, and, where no incumbent shows that something works,
    the engine's defaults on every size of instance.
    """
    longest = longest_request(objective.workload) if longest is None else longest
    limit = engine_defaults.token_count(objective.engine.flags.get("max_model_len"))
    name = "engine.flags.max_model_len is"
    if limit is None and facts is not None:
        limit, name = facts.max_model_len, "the model's positions are"
    if limit is not None and longest is not None and longest > limit:
        return f"workload: its longest request has {longest} tokens, {name} {limit}; shorten the workload"
    if objective.baseline is not None:
        return None
    broken = [violations(shape, objective, facts, longest=longest) for shape in _single_instances(objective)]
    if not all(broken):
        return None
    reasons = [violation for each in reversed(broken) for violation in each]
    shown = next((violation for violation in reasons if violation.rule == "memory"), reasons[0])
    return f"cluster: no size of instance can start with the engine's defaults: {shown.message}"


def space_problem(space: Space, objective: Objective) -> str | None:
    """Why this space does not go with this objective file, with the remedy; None = it does."""
    for name in objective.engine.flags:
        if name in PARALLEL_KNOBS:
            return f"{name} in engine.flags would hide units that are held and paid for; set it in the space as a knob"
        if any(knob.flag == name for knob in space.knobs):
            return f"{name} is in engine.flags and in the space {space.name}; keep it in one of the two"
    return None


def baseline(objective: Objective, facts: ModelFacts | None) -> Configuration:
    """
    What is measured first: the incumbent, if the objective file names one, else the engine's defaults.

    The defaults mean: aggregated, on the first pool where it works the smallest tensor parallelism that fits, as many
    replicas as `max_gpus` and the pool's nodes hold, and no other flag.

    Raises:
        InputError: The incumbent has a knob that does not exist or cannot have its value, or breaks a static rule; or
            nothing fits.
    """
    if objective.baseline is not None:
        return _incumbent(objective, facts)
    fitting: Configuration | None = None
    for shape in _single_instances(objective):
        if not violations(shape, objective, facts):
            fitting = fitting or shape
            if _roomy(shape, objective, facts):
                return _filled(shape, objective)
    if fitting is None:
        raise InputError(workload_problem(objective, facts) or "cluster: no instance fits")
    return _filled(fitting, objective)


def longest_request(workload: Workload) -> int | None:
    """Tokens of the longest request, input and output, as far as the objective file tells without opening others."""
    source = workload.source
    if isinstance(source, Synthetic):
        return source.input_tokens + source.output_tokens
    if isinstance(source, Trace) and source.max_input_tokens is not None and source.max_output_tokens is not None:
        return source.max_input_tokens + source.max_output_tokens
    return None


def _incumbent(objective: Objective, facts: ModelFacts | None) -> Configuration:
    knobs = dict(objective.baseline or {})
    for name, value in knobs.items():
        shape = knob_problem(name, value)
        if shape is None and not is_knob(name):
            shape = "neither a knob of the tuner nor a known flag of `vllm serve`"
        if shape is not None:
            raise InputError(f"baseline: {name}: {shape}")
    found = Configuration(knobs)
    broken = violations(found, objective, facts)
    if broken:
        raise InputError(f"baseline: {broken[0].message} (rule {broken[0].rule})")
    return found


def _single_instances(objective: Objective) -> Iterator[Configuration]:
    """One instance of 1, 2, 4 … units, pool by pool in the order of the file."""
    for number, pool in enumerate(objective.cluster.pools):
        largest = min(pool.per_node, objective.cluster.max_gpus)
        for exponent in range(largest.bit_length()):
            knobs: dict[str, int | str] = {"tensor_parallel_size": 2**exponent, "replicas": 1}
            yield Configuration(knobs if number == 0 else {**knobs, "pool": pool.name})


def _filled(shape: Configuration, objective: Objective) -> Configuration:
    (role,) = shape.roles
    pool = pool_of(role, objective.cluster)
    room = min(objective.cluster.max_gpus // role.units_each, pool.nodes * (pool.per_node // role.units_each))
    return Configuration({**shape.knobs, "replicas": room})


def _roomy(shape: Configuration, objective: Objective, facts: ModelFacts | None) -> bool:
    """Whether the usual overhead fits too, so that the engine's defaults start in practice."""
    (role,) = shape.roles
    pool = pool_of(role, objective.cluster)
    settings = engine_defaults.resolve(role, pool, objective.engine, facts)
    return memory(Case(role, pool, settings, facts, None), overhead_gib=USUAL_OVERHEAD_GIB) is None


def _given_twice(configuration: Configuration, objective: Objective) -> list[str]:
    return [name for name, value in objective.engine.flags.items() if value is not None and _sets(configuration, name)]


def _sets(configuration: Configuration, name: str) -> bool:
    return any(role.flags.get(name) is not None for role in configuration.roles)
