"""
YAML files that people write, read into values that know where they stand.

The reader is strict where YAML is treacherous. It takes YAML 1.2 from ruamel's parser as a stream of events (no object
is ever constructed from a tag) and refuses: duplicate keys, tags, anchors and aliases, merge keys, several documents,
nesting beyond `MAX_DEPTH` and files beyond `MAX_BYTES`. Unquoted words that YAML versions disagree about (`no`, `on`,
`010`, `20:30`, a date) are refused wherever a text or a value of any type is meant; numbers take every usual spelling
(`1e-3`, `1.5e0`, `1_000`) wherever a number is meant. Not-a-number and the infinities are never numbers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)

from tuner.errors import FileError, InputError, Location
from tuner.yamlnode import Node, is_null_word, is_plain_text, near

__all__ = ["MAX_BYTES", "MAX_DEPTH", "Node", "is_plain_text", "load", "loads", "near"]

#: Far above any objective or space file, far below what would make the parser slow.
MAX_BYTES = 256 * 1024
MAX_DEPTH = 24
_MAX_SCALAR = 16 * 1024
_MAX_NAME = 200


def load(path: str | Path) -> Node:
    """
    Read one file.

    Raises:
        InputError: No such file, no regular file, unreadable, too large, or not UTF-8.
        FileError: Not YAML, or YAML that this reader refuses.
    """
    name = str(path)
    try:
        if not Path(path).is_file():
            remedy = "; it is a directory, name a file in it" if Path(path).is_dir() else ""
            raise InputError(f"{name}: no such file{remedy}")
        with Path(path).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{name}: larger than {MAX_BYTES // 1024} KiB: keep data in a file of its own")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    return loads(text, name)


def loads(text: str, name: str = "<text>") -> Node:
    """
    Read a text; `name` stands for the file in messages.

    Raises:
        FileError: Not YAML, or YAML that this reader refuses.
    """
    try:
        return _Builder(name, YAML(typ="safe", pure=True).parse(text)).document()
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Location(name, mark.line + 1, mark.column + 1) if mark is not None else Location(name, 1, 1)
        raise FileError(where, "", f"not valid YAML: {error.problem or error.context}") from error
    except YAMLError as error:
        raise FileError(Location(name, 1, 1), "", f"not valid YAML: {' '.join(str(error).split())}") from error


class _Builder:
    """Events → nodes, with every refusal that needs no knowledge of the file's kind."""

    def __init__(self, name: str, events: Iterator[Event]) -> None:
        self._name = name
        self._events = events

    def document(self) -> Node:
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                break
            if isinstance(event, StreamEndEvent):
                raise FileError(Location(self._name, 1, 1), "", "the file is empty")
        root = self._node(next(self._events), "", None, 0)
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                self._refuse(event, "", "a second document starts here: keep one document per file")
        return root

    def _where(self, event: Event) -> Location:
        return Location(self._name, event.start_mark.line + 1, event.start_mark.column + 1)

    def _refuse(self, event: Event, key: str, message: str) -> NoReturn:
        raise FileError(self._where(event), key, message)

    def _node(self, event: Event, key: str, key_where: Location | None, depth: int) -> Node:
        where = self._where(event)
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None) is not None:
            self._refuse(event, key, "anchors (&) and aliases (*) are not supported: write the value out")
        if _tagged(event):
            self._refuse(event, key, "tags (!) are not supported: write a plain value")
        if isinstance(event, ScalarEvent):
            if len(event.value) > _MAX_SCALAR:
                self._refuse(event, key, f"a value of over {_MAX_SCALAR // 1024} KiB: keep data in its own file")
            return Node(where, key, event.value, event.style is not None and event.style != "", key_where or where)
        if depth >= MAX_DEPTH:
            self._refuse(event, key, f"nested deeper than {MAX_DEPTH} levels")
        content: dict[str, Node] | list[Node]
        if isinstance(event, MappingStartEvent):
            content = self._members(key, depth + 1)
        else:
            content = self._elements(key, depth + 1)
        return Node(where, key, content, False, key_where or where)

    def _members(self, path: str, depth: int) -> dict[str, Node]:
        members: dict[str, Node] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            if not isinstance(event, ScalarEvent) or event.anchor is not None or _tagged(event):
                self._refuse(event, path, "a key must be a plain word")
            name = event.value
            if not name or (is_null_word(name) and not event.style):
                self._refuse(event, path, "a key must be a word, this one is empty")
            if name == "<<" and not event.style:
                self._refuse(event, path, "merge keys (<<) are not supported: write the keys out")
            if len(name) > _MAX_NAME or not name.isprintable():
                self._refuse(event, path, f"a key must be a plain word of at most {_MAX_NAME} characters in one line")
            key = f"{path}.{name}" if path else name
            if name in members:
                first = members[name].key_where
                self._refuse(event, key, f"this key is given twice, first in line {first.line}: remove one")
            members[name] = self._node(next(self._events), key, self._where(event), depth)
        return members

    def _elements(self, path: str, depth: int) -> list[Node]:
        elements: list[Node] = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            elements.append(self._node(event, f"{path}[{len(elements)}]", None, depth))
        return elements


def _tagged(event: Event) -> bool:
    """An explicit tag; plain `!` counts."""
    return isinstance(event, ScalarEvent | CollectionStartEvent) and event.tag is not None
