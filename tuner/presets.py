"""
The objective files and search spaces that ship with the program, by name.

They lie in `objectives/` and `search_spaces/` at the top of the source tree. The package reaches them through
`tuner/shipped/`, whose links a wheel replaces by copies, so both ways of installing find the same names.
"""

from pathlib import Path

from tuner.errors import InputError
from tuner.yamlfile import near

_SHIPPED = Path(__file__).parent / "shipped"


def list_objectives() -> list[str]:
    """Names of the shipped objective files, sorted."""
    return _names("objectives")


def list_spaces() -> list[str]:
    """Names of the shipped search spaces, sorted."""
    return _names("search_spaces")


def objective_path(name: str) -> Path:
    """
    Absolute path of a shipped objective file.

    Raises:
        InputError: No objective file of this name ships.
    """
    return _path("objectives", name, "objective file")


def space_path(name: str) -> Path:
    """
    Absolute path of a shipped search space.

    Raises:
        InputError: No search space of this name ships.
    """
    return _path("search_spaces", name, "search space")


def _names(folder: str) -> list[str]:
    return sorted(path.stem for path in (_SHIPPED / folder).glob("*.yaml"))


def _path(folder: str, name: str, what: str) -> Path:
    names = _names(folder)
    if name not in names:
        shipped = ", ".join(names)
        raise InputError(f"got {name}{near(name, names)}: no {what} of this name ships; there are {shipped}")
    return (_SHIPPED / folder / f"{name}.yaml").resolve()
