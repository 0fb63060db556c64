"""One value of a YAML file that people wrote: where it stands, what it is, and how it is taken out."""

import difflib
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from tuner.errors import FileError, Location, UnitError
from tuner.slo import Scalar

_MAX_DIGITS = 64

T = TypeVar("T")

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_OLD_BOOLEANS = frozenset({"y", "n", "yes", "no", "on", "off"})
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9_]*|[0-9]+(?=[.eE]))(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_WHOLE = re.compile(r"[-+]?[0-9_]+")
_HEX = re.compile(r"[-+]?0x[0-9a-fA-F]+")
_AMBIGUOUS = re.compile(
    r"""[-+]?0[0-9_]+            # octal for YAML 1.1, decimal for 1.2
    | [-+]?0[ob][0-7_]+          # octal or binary, each for one version only
    | [-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?   # base 60 for YAML 1.1
    | [-+]?\.(inf|Inf|INF) | \.(nan|NaN|NAN)
    | [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt\ \t].*)?    # a date for YAML 1.1
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Node:
    """
    One value of a file: a mapping, a sequence, or a scalar.

    Attributes:
        where: Place of the value.
        key: Dotted path from the top of the file, such as `cluster.pools[0].price`; empty for the whole file.
        content: Members by name, elements, or the scalar's text as written (without its quotes).
        quoted: Whether the scalar stands in quotes or in a block, which makes it text whatever it looks like.
        key_where: Place of the key that names this value; the same as `where` for elements and the whole file.
    """

    where: Location
    key: str
    content: "dict[str, Node] | list[Node] | str"
    quoted: bool
    key_where: Location

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.content, dict)

    @property
    def is_sequence(self) -> bool:
        return isinstance(self.content, list)

    @property
    def is_text(self) -> bool:
        """Whether `text()` would succeed."""
        return isinstance(self.content, str) and (self.quoted or _kind(self.content) == "text")

    @property
    def is_number(self) -> bool:
        """An unquoted scalar that reads as a number."""
        return isinstance(self.content, str) and not self.quoted and _kind(self.content) == "number"

    @property
    def is_null(self) -> bool:
        """Nothing, `~` or `null`."""
        return isinstance(self.content, str) and not self.quoted and self.content in _NULLS

    def fail(self, message: str) -> NoReturn:
        """Raise `FileError` at this value. The message says the rule and the remedy; `got …` goes first."""
        raise FileError(self.where, self.key, message)

    def fail_key(self, message: str) -> NoReturn:
        """Raise `FileError` at the key of this value."""
        raise FileError(self.key_where, self.key, message)

    def shown(self) -> str:
        """The value as received, short enough for a message."""
        if isinstance(self.content, dict):
            return "a mapping"
        if isinstance(self.content, list):
            return "a list"
        if self.is_null:
            return "nothing"
        short = self.content if len(self.content) <= 60 else self.content[:57] + "..."
        return repr(short) if self.quoted or not short.isprintable() else short

    def items(self) -> list[tuple[str, "Node"]]:
        """Members in the order of the file, whatever their names."""
        if not isinstance(self.content, dict):
            self.fail(f"got {self.shown()}: a mapping of keys to values is needed here")
        return list(self.content.items())

    def mapping(self, allowed: Collection[str], *, required: Collection[str] = ()) -> dict[str, "Node"]:
        """
        Members by name.

        Raises:
            FileError: This is no mapping, a name is not among `allowed` (with the nearest one that is), or one of
                `required` is missing.
        """
        members = dict(self.items())
        for name, node in members.items():
            if name not in allowed:
                node.fail_key(f"unknown key {name!r}{near(name, allowed)}; known here: {', '.join(allowed)}")
        for name in required:
            if name not in members:
                self.fail(f"the key {name!r} is missing")
        return members

    def elements(self) -> list["Node"]:
        """Elements of a list."""
        if not isinstance(self.content, list):
            self.fail(f"got {self.shown()}: a list such as [a, b] is needed here")
        return self.content

    def word(self) -> str:
        """The scalar's text as written, quoted or not, for values that a function of `units` reads."""
        if not isinstance(self.content, str) or self.is_null:
            self.fail(f"got {self.shown()}: one value is needed here")
        return self.content.strip()

    def convert(self, function: Callable[[str], T]) -> T:
        """`function(self.word())`, its `UnitError` placed in the file."""
        try:
            return function(self.word())
        except UnitError as error:
            self.fail("".join(each if each.isprintable() else repr(each)[1:-1] for each in str(error)))

    def text(self) -> str:
        """
        A non-empty text.

        Raises:
            FileError: No scalar, empty, or an unquoted word that YAML takes for something else (`no`, `1e3`, a date).
        """
        if not isinstance(self.content, str) or self.is_null:
            self.fail(f"got {self.shown()}: a text is needed here")
        if not self.quoted and _kind(self.content) != "text":
            self.fail(f'got {self.shown()}: YAML does not read this as text; quote it: "{self.content}"')
        if not self.content.strip():
            self.fail("got an empty text: give a value or remove the key")
        if "\x00" in self.content:
            self.fail("got a NUL character: remove it")
        return self.content

    def choice(self, options: Sequence[str]) -> str:
        """A text out of `options`."""
        text = self.text()
        if text not in options:
            self.fail(f"got {self.shown()}{near(text, options)}: one of {', '.join(options)} is needed here")
        return text

    def number(
        self, *, above: float | None = None, minimum: float | None = None, maximum: float | None = None
    ) -> float:
        """
        A finite number. `above` is exclusive, `minimum` and `maximum` are inclusive.

        Raises:
            FileError: No number, not finite, or out of range.
        """
        value = float(self._numeric("a number"))
        if not math.isfinite(value):
            self.fail(f"got {self.shown()}: a finite number is needed here")
        self._range(value, above, minimum, maximum)
        return value

    def integer(self, *, minimum: int | None = None, maximum: int | None = None) -> int:
        """A whole number, both bounds inclusive; `1_000` and `1e3` are 1000, `1.5` is an error."""
        value = self._numeric("a whole number")
        if not math.isfinite(value) or value != int(value):
            self.fail(f"got {self.shown()}: a whole number is needed here")
        self._range(value, None, minimum, maximum)
        return int(value)

    def boolean(self) -> bool:
        """`true` or `false`; `yes`, `on`, `1` are errors."""
        if not isinstance(self.content, str) or self.quoted or self.content not in _BOOLEANS:
            self.fail(f"got {self.shown()}: write true or false")
        return _BOOLEANS[self.content]

    def scalar(self) -> Scalar:
        """
        A value of the type that it looks like: null, bool, int, float or text.

        Raises:
            FileError: No scalar, not finite, or a word that YAML versions read differently.
        """
        if not isinstance(self.content, str):
            self.fail(f"got {self.shown()}: one value (text, number, true, false or null) is needed here")
        kind = "text" if self.quoted else _kind(self.content)
        if kind == "null":
            return None
        if kind == "boolean":
            return _BOOLEANS[self.content]
        if kind == "number":
            value = self._numeric("a number")
            if not math.isfinite(value):
                self.fail(f"got {self.shown()}: a finite number is needed here")
            return value
        if kind == "ambiguous":
            self.fail(
                f"got {self.shown()}: YAML versions read this differently; "
                f'quote it where text is meant ("{self.content}"), else write true, false or a plain number'
            )
        return self.content

    def plain(self) -> object:
        """Mappings, lists and scalars as Python values, each scalar as by `scalar()`."""
        if isinstance(self.content, dict):
            return {name: node.plain() for name, node in self.content.items()}
        if isinstance(self.content, list):
            return [node.plain() for node in self.content]
        return self.scalar()

    def _numeric(self, wanted: str) -> int | float:
        if not isinstance(self.content, str):
            self.fail(f"got {self.shown()}: {wanted} is needed here")
        if self.quoted or _kind(self.content) != "number":
            rule = "without quotes" if self.quoted else "without leading zeros or units"
            self.fail(f"got {self.shown()}: {wanted} is needed here, {rule}, such as 8, 0.5 or 1e-3")
        if len(self.content) > _MAX_DIGITS:
            self.fail(f"got {self.shown()}: {wanted} of a reasonable length is needed here")
        if _HEX.fullmatch(self.content):
            return int(self.content, 16)
        digits = self.content.replace("_", "")
        return int(digits) if _WHOLE.fullmatch(self.content) else float(digits)

    def _range(self, value: float, above: float | None, minimum: float | None, maximum: float | None) -> None:
        if above is not None and not value > above:
            self.fail(f"got {self.shown()}: must be above {above:g}")
        if minimum is not None and value < minimum:
            self.fail(f"got {self.shown()}: must be at least {minimum:g}")
        if maximum is not None and value > maximum:
            self.fail(f"got {self.shown()}: must be at most {maximum:g}")


def near(name: str, options: Collection[str]) -> str:
    """`; did you mean 'ttft'?`, or nothing where no option is near."""
    close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def is_null_word(text: str) -> bool:
    """Whether this word, written without quotes, is no value."""
    return text in _NULLS


def is_plain_text(text: str) -> bool:
    """Whether this word, written without quotes, is text for every version of YAML."""
    return _kind(text) == "text"


def _kind(raw: str) -> str:
    """What an unquoted scalar is: null, boolean, number, ambiguous (YAML versions disagree, or not finite) or text."""
    if raw in _NULLS:
        return "null"
    if raw in _BOOLEANS:
        return "boolean"
    if raw.lower() in _OLD_BOOLEANS or _AMBIGUOUS.fullmatch(raw):
        return "ambiguous"
    if _HEX.fullmatch(raw) or (_NUMBER.fullmatch(raw)):
        return "number"
    return "text"
