"""Plain data → YAML that every reader takes alike: each text in quotes, so that `no` and `1e3` stay text."""

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString


def dump(documents: Sequence[Mapping[str, object]], head: Sequence[str]) -> str:
    """Documents under a head of comment lines, none of which holds a line break."""
    yaml = YAML(typ="rt")
    yaml.width = 1_000_000  # a folded line is hard to compare
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.allow_unicode = True
    stream = StringIO()
    stream.writelines(f"# {line}\n" for line in head)
    for place, document in enumerate(documents):
        if place:
            stream.write("---\n")
        yaml.dump(_quoted(document), stream)
    return stream.getvalue()


def _quoted(value: object) -> Any:
    """Keys that are identifiers stay plain; every other text is quoted."""
    match value:
        case str():
            return LiteralScalarString(value) if _is_program(value) else DoubleQuotedScalarString(value)
        case Mapping():
            return {_key(key): _quoted(each) for key, each in value.items()}
        case list() | tuple():
            return [_quoted(each) for each in value]
        case _:
            return value


def _is_program(text: str) -> bool:
    """Several plain lines, which a block shows as they are."""
    lines = text.split("\n")
    plain = all(line.isprintable() and line == line.rstrip() for line in lines)
    return len(lines) > 2 and plain and lines[-1] == "" and lines[-2] != "" and lines[0] == lines[0].lstrip() != ""


def _key(key: str) -> str:
    plain = key.replace("-", "").replace("_", "").isalnum() and key[0].isalpha()
    ambiguous = key.lower() in {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
    return key if plain and not ambiguous else DoubleQuotedScalarString(key)
