"""
Outcomes and levels as strict JSON, and back.

Field names are those of the dataclasses. A number that is not finite is written as null (unknown); inside the free
mappings (`counters`, `client`, `margins`) such an entry is left out instead, because their values are plain floats.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tuner.configuration import Configuration
from tuner.objective import Score
from tuner.outcome import Level, Outcome
from tuner.verdict import LimitVerdict


def _fields(value: Any) -> dict[str, Any]:
    """Attributes by name, one level deep; numbers that are not finite become None."""
    return {field.name: _known(getattr(value, field.name)) for field in fields(value)}


def _known(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _known(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_known(item) for item in value]
    return value


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    return {str(key): value for key, value in values.items() if value is not None and math.isfinite(value)}


def _read(kind: type[Any], data: Mapping[str, Any], **parsed: Any) -> Any:
    """`kind` from its fields in `data`; unknown keys are ignored, so that later versions' files can be read."""
    names = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in data.items() if name in names} | parsed)


def score_to_json(score: Score) -> dict[str, Any]:
    return _fields(score) | {"limits": [_fields(limit) for limit in score.limits]}


def score_from_json(data: Mapping[str, Any]) -> Score:
    """
    Raises:
        KeyError, TypeError: A field is missing or of the wrong kind.
    """
    found: Score = _read(Score, data, limits=tuple(_read(LimitVerdict, limit) for limit in data["limits"]))
    return found


def level_to_json(level: Level) -> dict[str, Any]:
    return _fields(level) | {
        "score": None if level.score is None else score_to_json(level.score),
        "counters": _finite(level.counters),
        "client": _finite(level.client),
    }


def level_from_json(data: Mapping[str, Any]) -> Level:
    """
    Raises:
        KeyError, TypeError: A field is missing or of the wrong kind.
    """
    score = data["score"]
    found: Level = _read(Level, data, score=None if score is None else score_from_json(score))
    return found


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """The key `outcome` repeats `state`: the name by which the files' contract calls it."""
    return {
        **_fields(outcome),
        "outcome": outcome.state,
        "configuration": dict(outcome.configuration.knobs),
        "best": None if outcome.best is None else level_to_json(outcome.best),
        "levels": [level_to_json(level) for level in outcome.levels],
        "margins": _finite(outcome.margins),
        "counters": _finite(outcome.counters),
    }


def outcome_from_json(data: Mapping[str, Any]) -> Outcome:
    """
    Raises:
        KeyError, TypeError: A field is missing or of the wrong kind.
    """
    best = data["best"]
    found: Outcome = _read(
        Outcome,
        data,
        configuration=Configuration(data["configuration"]),
        best=None if best is None else level_from_json(best),
        levels=tuple(level_from_json(level) for level in data["levels"]),
    )
    return found
