"""
Space files → `Space`, every fault with its place in the file.

    description: one line
    knobs:
      max_num_seqs: {type: int, low: 16, high: 256, log: true, source: …}
      gpu_memory_utilization: {type: float, low: 0.8, high: 0.95, step: 0.05}
      enable_prefix_caching: {choices: [true, false]}
      router_policy: {choices: [round_robin, cache_aware], when: {replicas: [2, 4]}}
    fixed: {enforce_eager: true}
    first: [{max_num_seqs: 64, …}]       # points to try before any other
"""

from collections.abc import Mapping
from pathlib import Path

from tuner.errors import InputError
from tuner.flags import compact_json, rendered
from tuner.slo import Scalar
from tuner.space import Condition, Knob, Space, knob_problem
from tuner.yamlfile import Node, near
from tuner.yamlfile import load as load_yaml

_RANGE_KEYS = ("type", "low", "high", "step", "log", "when", "source")
_CHOICE_KEYS = ("type", "choices", "when", "source")


def load(path: str | Path) -> Space:
    """
    Read a space file.

    Raises:
        InputError: No such file, or unreadable.
        FileError: Something in it is wrong: at line and column, with what was received, the rule and the remedy.
    """
    root = load_yaml(path)
    parts = root.mapping(("description", "knobs", "fixed", "first"))
    if "description" in parts:
        parts["description"].text()
    described = dict(parts["knobs"].items()) if "knobs" in parts else {}
    fixed = dict(parts["fixed"].items()) if "fixed" in parts else {}
    knobs = {name: _knob(name, node) for name, node in described.items()}
    for name, node in fixed.items():
        if name in knobs:
            node.fail_key("this knob is searched too: keep it either in knobs or in fixed")
        knobs[name] = _fixed(name, node)
    if not knobs:
        root.fail("a space needs at least one knob under the key knobs")
    for name, node in described.items():
        _check_conditions(knobs[name], node, knobs)
    space = Space(name=Path(path).stem, knobs=_ordered(knobs, described))
    return Space(space.name, space.knobs, _first(parts["first"], space) if "first" in parts else ())


def _knob(name: str, node: Node) -> Knob:
    members = dict(node.items())
    if "choices" in members:
        return _categorical(name, node)
    if "type" not in members:
        node.fail("the key 'type' is missing: int or float with low and high, or give choices: [a, b]")
    kind = members["type"].choice(("int", "float", "categorical"))
    if kind == "categorical":
        node.fail("a categorical knob needs choices: [a, b]")
    return _range(name, node, integral=kind == "int")


def _categorical(name: str, node: Node) -> Knob:
    members = node.mapping(_CHOICE_KEYS, required=("choices",))
    if "type" in members:
        members["type"].choice(("categorical",))
    elements = members["choices"].elements()
    if not elements:
        members["choices"].fail("got an empty list: give at least one choice")
    options: list[Scalar] = []
    for element in elements:
        value = _option(name, element)
        twin = next((option for option in options if _alike(option, value)), ...)
        if twin is not ...:
            element.fail(f"got {element.shown()}: the same choice as {_spelt(twin)} before it; remove one")
        options.append(value)
    return Knob(name, "categorical", options=tuple(options), source=_source(members), when=_conditions(members))


def _fixed(name: str, node: Node) -> Knob:
    value = _option(name, node)
    if value is None:
        node.fail("got nothing: a fixed knob needs a value; remove it to leave the engine's default")
    return Knob(name, "categorical", options=(value,), source="fixed in the space file")


def _option(name: str, node: Node) -> Scalar:
    """One value of a knob; a mapping becomes its compact JSON text, which is how the flag takes it."""
    if node.is_sequence:
        node.fail("got a list: a choice is one value or one mapping; many flags also take their list inside a mapping")
    value = node.plain() if node.is_mapping else node.scalar()
    reason = knob_problem(name, value)
    if reason is not None:
        node.fail(reason)
    return compact_json(value) if node.is_mapping else value  # type: ignore[return-value]


def _range(name: str, node: Node, *, integral: bool) -> Knob:
    members = node.mapping(_RANGE_KEYS, required=("low", "high"))
    low, high = (members[end].integer() if integral else members[end].number() for end in ("low", "high"))
    log = "log" in members and members["log"].boolean()
    step: float | None = None
    if "step" in members:
        step = members["step"].integer(minimum=1) if integral else members["step"].number(above=0)
    if low > high:
        members["low"].fail(f"got {low:g}: above high, which is {high:g}; exchange them")
    if log and low <= 0:
        members["low"].fail(f"got {low:g}: a log range starts above 0")
    if log and step is not None:
        members["step"].fail("a log range has no step: remove step, or log, or list the values as choices")
    knob = Knob(
        name,
        "int" if integral else "float",
        low=low,
        high=high,
        step=step,
        log=log,
        source=_source(members),
        when=_conditions(members),
    )
    if step is not None and (reached := knob.grid()[-1]) != high:
        members["high"].fail(
            f"got {rendered(high)}: steps of {rendered(step)} from {rendered(low)} end at {rendered(reached)}; "
            f"write high: {rendered(reached)} or another step"
        )
    for end in ("low", "high"):
        reason = knob_problem(name, low if end == "low" else high)
        if reason is not None:
            members[end].fail(reason)
    return knob


def _source(members: Mapping[str, Node]) -> str:
    return members["source"].text() if "source" in members else ""


def _conditions(members: Mapping[str, Node]) -> tuple[Condition, ...]:
    if "when" not in members:
        return ()
    return tuple(
        Condition(name, tuple(each.scalar() for each in (node.elements() if node.is_sequence else [node])))
        for name, node in members["when"].items()
    )


def _check_conditions(knob: Knob, node: Node, knobs: Mapping[str, Knob]) -> None:
    if not knob.when:
        return
    places = dict(dict(node.items())["when"].items())
    for condition in knob.when:
        place = places[condition.name]
        parent = knobs.get(condition.name)
        if parent is None:
            place.fail_key(f"no knob {condition.name!r} in this space{near(condition.name, knobs)}")
        if parent.count is None:
            place.fail_key(f"{condition.name} is continuous: a condition needs a knob with a step or choices")
        reasons = [reason for value in condition.values if (reason := parent.rejects(value)) is not None]
        if reasons or not condition.values:
            place.fail(f"{condition.name} never has this value: {(reasons or ['got an empty list'])[0]}")


def _ordered(knobs: Mapping[str, Knob], places: Mapping[str, Node]) -> tuple[Knob, ...]:
    """In the order of the file, but after every knob that a condition names."""
    done: dict[str, Knob] = {}
    while len(done) < len(knobs):
        ready = [
            knob
            for name, knob in knobs.items()
            if name not in done and all(condition.name in done for condition in knob.when)
        ]
        if not ready:
            name = next(name for name in knobs if name not in done)
            places[name].fail_key("its condition leads back to itself: break the circle of when")
        done.update((knob.name, knob) for knob in ready)
    return tuple(done.values())


def _first(node: Node, space: Space) -> tuple[Mapping[str, Scalar], ...]:
    points = []
    for element in node.elements():
        knobs = {name: _option(name, value) for name, value in element.items()}
        try:
            space.validate(knobs)
        except InputError as error:
            element.fail(str(error).removeprefix("point: "))
        missing = [name for name in space.active(knobs) if name not in knobs and not space.by_name[name].fixed]
        if missing:
            element.fail(f"a point to try first gives every active knob; missing: {', '.join(missing)}")
        points.append({name: knobs.get(name, space.by_name[name].grid()[0]) for name in space.active(knobs)})
    return tuple(points)


def _alike(one: Scalar, other: Scalar) -> bool:
    """Whether two choices would be confused: true and 1 by the sampler, 1 and "1" on the command line."""
    if one is None or other is None:
        return one is other
    return one == other or rendered(one) == rendered(other)


def _spelt(value: object) -> str:
    return "null" if value is None else rendered(value)
