"""
Search spaces: knobs with type, range, condition and source. Pure; `space_file.load` reads them.

Floats are stepped in decimal arithmetic, so that a range loses neither its end nor its round values.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Literal

from tuner.configuration import PARALLEL_KNOBS, Configuration, flag_of, plain_number, shape_problem
from tuner.errors import InputError
from tuner.flags import compact_json, known, problem
from tuner.slo import Scalar


@dataclass(frozen=True)
class Condition:
    """The knob is active only while the knob `name` is active and has one of `values`."""

    name: str
    values: tuple[Scalar, ...]

    def holds(self, knobs: Mapping[str, Scalar]) -> bool:
        """Absent counts as None: an inactive parent has no value, so it fulfils a condition on None alone."""
        return any(_same(knobs.get(self.name), value) for value in self.values)


@dataclass(frozen=True)
class Knob:
    """
    One dimension of a space.

    `int` and `float` have an inclusive range: `step` apart, or `log`. `categorical` has `options`, None among them
    meaning that the flag is absent; a composite option stands there as its compact JSON text. A knob with one option is
    a fixed value.
    """

    name: str
    kind: Literal["int", "float", "categorical"]
    low: float = 0  # inclusive
    high: float = 0  # inclusive, and reached exactly by `step`
    step: float | None = None  # None: 1 for int, continuous for float
    log: bool = False
    options: tuple[Scalar, ...] = ()
    source: str = ""  # where the range comes from
    when: tuple[Condition, ...] = ()  # all of them must hold

    @property
    def flag(self) -> str | None:
        """The `vllm serve` flag that it sets, without its side; None for knobs that shape the deployment."""
        return flag_of(self.name)

    @property
    def fixed(self) -> bool:
        """It has one value."""
        return self.count == 1

    def active(self, knobs: Mapping[str, Scalar]) -> bool:
        """Whether it has a meaning beside these values of the knobs before it."""
        return all(condition.holds(knobs) for condition in self.when)

    @property
    def count(self) -> int | None:
        """How many values it has; None = a continuum."""
        if self.kind == "categorical":
            return len(self.options)
        if self.kind == "float" and self.step is None:
            return 1 if self.low == self.high else None
        return int((_decimal(self.high) - _decimal(self.low)) / _decimal(self.step or 1)) + 1

    def grid(self) -> tuple[Scalar, ...]:
        """
        Every value in order: 0.80, 0.85, 0.90 for [0.8, 0.9] step 0.05.

        Raises:
            InputError: The knob is continuous.
        """
        if self.kind == "categorical":
            return self.options
        if self.count is None:
            raise InputError(f"space: {self.name}: a continuous range has no grid; give it a step")
        step = _decimal(self.step or 1)
        values = (_decimal(self.low) + step * index for index in range(self.count))
        return tuple(int(value) if self.kind == "int" else float(value) for value in values)

    @cached_property
    def choices(self) -> tuple[Scalar, ...]:
        """Values to choose among: of a categorical knob, or of a float with a step; empty for the others."""
        return self.grid() if self.kind == "categorical" or (self.kind == "float" and self.step is not None) else ()

    def rejects(self, value: Scalar) -> str | None:
        """Why the knob cannot have this value, with the remedy; None = it can."""
        if self.kind == "categorical":
            if any(_same(value, option) for option in self.options):
                return None
            return f"got {_shown(value)}: one of {', '.join(map(_shown, self.options))} is needed"
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return f"got {_shown(value)}: a number from {self.low:g} to {self.high:g} is needed"
        if not self.low <= value <= self.high:
            return f"got {_shown(value)}: outside of {self.low:g} to {self.high:g}"
        step = 1 if self.kind == "int" and self.step is None else self.step
        if step is not None and (_decimal(value) - _decimal(self.low)) % _decimal(step) != 0:
            return f"got {_shown(value)}: not on the grid of {self.low:g} to {self.high:g} step {step:g}"
        return None


@dataclass(frozen=True)
class Space:
    """Knobs in an order in which every knob comes after those that its conditions name."""

    name: str
    knobs: tuple[Knob, ...]
    first: tuple[Mapping[str, Scalar], ...] = ()  # points worth trying before any other, in this order

    @cached_property
    def by_name(self) -> Mapping[str, Knob]:
        return {knob.name: knob for knob in self.knobs}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that decides which points there are. Sources, names and first points do not."""
        content = [
            {
                "name": knob.name,
                "kind": knob.kind,
                "range": [knob.low, knob.high, knob.step, knob.log],
                "options": list(knob.options),
                "when": [[condition.name, list(condition.values)] for condition in knob.when],
            }
            for knob in sorted(self.knobs, key=lambda knob: knob.name)
        ]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def size(self) -> int | None:
        """How many points there are, inactive knobs not counted; None where a knob is continuous."""
        parents = {condition.name for knob in self.knobs for condition in knob.when}
        total = 0
        for known_values in self._combinations([knob for knob in self.knobs if knob.name in parents]):
            counts = [knob.count for knob in self.knobs if knob.name not in parents and knob.active(known_values)]
            if None in counts:
                return None
            total += math.prod(count for count in counts if count is not None)
        return total

    def points(self) -> Iterator[dict[str, Scalar]]:
        """
        Every point once, as the active knobs by name; the last knob varies fastest.

        Raises:
            InputError: A knob is continuous.
        """
        return self._combinations(list(self.knobs))

    def active(self, knobs: Mapping[str, Scalar]) -> tuple[str, ...]:
        """Names of the knobs that have a meaning beside these values, in order."""
        values: dict[str, Scalar] = {}
        for knob in self.knobs:
            if knob.active(values):
                values[knob.name] = knobs.get(knob.name)
        return tuple(values)

    def holds(self, configuration: Configuration) -> bool:
        """Whether it is one of the points, absent knobs read as None."""
        active = self.active(configuration.knobs)
        stray = (name for name, value in configuration.knobs.items() if value is not None and name not in active)
        return next(stray, None) is None and all(
            self.by_name[name].rejects(configuration.knobs.get(name)) is None for name in active
        )

    def validate(self, knobs: Mapping[str, Scalar], *, what: str = "point") -> Configuration:
        """
        A configuration from knobs that somebody wrote down, such as the incumbent.

        A knob of the space must be active and in its range; what is left out stays at the engine's default. Other knobs
        must be flags that `vllm serve` is known to have.

        Args:
            knobs: By name.
            what: How messages call the point.

        Raises:
            InputError: A name is unknown, or a value out of range.
        """
        given = {name: value for name, value in knobs.items() if value is not None}
        active = self.active(given)
        for name, value in given.items():
            reason = self._rejects(name, value, active)
            if reason is not None:
                raise InputError(f"{what}: {name}: {reason}")
        return Configuration(given)

    def _rejects(self, name: str, value: Scalar, active: tuple[str, ...]) -> str | None:
        knob = self.by_name.get(name)
        if knob is None:
            return knob_problem(name, value) or (None if is_knob(name) else "no such knob")
        if name not in active:
            needs = ", ".join(f"{each.name} = {' or '.join(map(_shown, each.values))}" for each in knob.when)
            return f"got {_shown(value)}: without a meaning here, it needs {needs}; remove it"
        return knob.rejects(value)

    def _combinations(self, knobs: list[Knob]) -> Iterator[dict[str, Scalar]]:
        """Every assignment of the active ones among these knobs."""
        if not knobs:
            yield {}
            return
        for values in self._combinations(knobs[:-1]):
            if knobs[-1].active(values):
                for value in knobs[-1].grid():
                    yield {**values, knobs[-1].name: value}
            else:
                yield values


def knob_problem(name: str, value: object) -> str | None:
    """Why no space may have this knob with this value, with the remedy; None = it may. A mapping is a flag's JSON."""
    scalar = value if value is None or isinstance(value, bool | int | float | str) else compact_json(value)
    flag = flag_of(name)
    if flag is None:
        return shape_problem(name, scalar)
    return (shape_problem("replicas", scalar) if flag in PARALLEL_KNOBS else None) or problem(flag, scalar)


def is_knob(name: str) -> bool:
    """Whether it shapes the deployment, or sets a flag that `vllm serve` is known to have."""
    flag = flag_of(name)
    return flag is None or flag in known()


def _same(one: Scalar, other: Scalar) -> bool:
    """Equal in type and value: True is not 1, but 1.0 is 1."""
    one, other = plain_number(one), plain_number(other)
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _shown(value: Scalar) -> str:
    return json.dumps(plain_number(value), ensure_ascii=False) if not isinstance(value, str) else value


def _decimal(value: float) -> Decimal:
    """The decimal number that the shortest spelling of a float stands for."""
    return Decimal(repr(plain_number(value)))
