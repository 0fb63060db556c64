"""
Everything that `tuner` raises on purpose.

    TunerError
    ├── InputError                what the user wrote is wrong                      exit 2
    │   ├── FileError             ... at a line and column of a file
    │   ├── UnitError             ... a quantity without a unit, or with a wrong one
    │   └── StudyChanged          ... a study is resumed with other inputs
    ├── MeasurementError          a question that the records cannot answer         exit 4
    │   └── EmptyWindow           no request arrived in the measured window
    ├── ConfigurationFailed       the configuration's own fault                     a trial outcome
    ├── InfrastructureFailed      not the configuration's fault                     a trial outcome; retried
    ├── Interrupted               somebody asked to stop                            exit 130
    ├── TrackingFailed            MLflow cannot be reached or refuses               never ends a study; exit 4 of `sync`
    ├── StudyLocked               another tuner works on this study                 exit 4
    └── StudyFailed               the study cannot go on                            exit 4

The command line alone turns these into exit codes; anything else that escapes is a bug and shows its traceback.
"""

from collections.abc import Mapping
from dataclasses import dataclass


class TunerError(Exception):
    """Base of everything that `tuner` raises on purpose."""


class InputError(TunerError):
    """What the user wrote is wrong. The message is one line: where, what was received, the rule, the remedy."""


@dataclass(frozen=True)
class Location:
    """A place in a text file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class FileError(InputError):
    """
    A fault at a place in a file, shown as `slo.yaml:4:3: slo.itl.p99: got 60: a time needs a unit; write 60ms or 60s`.

    Args:
        where: Place of the offending value, or of its key where the key is at fault.
        key: Dotted path of keys from the top of the file, empty for the whole file.
        message: What was received, the rule and the remedy.
    """

    def __init__(self, where: Location, key: str, message: str) -> None:
        self.where = where
        self.key = key
        self.message = message
        super().__init__(f"{where}: {key}: {message}" if key else f"{where}: {message}")


class UnitError(InputError):
    """A quantity without a unit, with an unknown one, or out of range."""


class StudyChanged(InputError):
    """A study is resumed with another SLO, space or workload than it was begun with."""


class MeasurementError(TunerError):
    """A question that the records cannot answer."""


class EmptyWindow(MeasurementError):
    """No request arrived in the measured window. Zero would read as "no traffic fits"."""


class ConfigurationFailed(TunerError):
    """
    The configuration's own fault: the trial ends as `config_failed`.

    Args:
        reason: One of `outcome.CONFIG_REASONS`.
        cause: One line for people, taken from the process's log where there is one.
        counters: Of the engines over the level that showed it, where one did.
    """

    def __init__(self, reason: str, cause: str, counters: Mapping[str, float] | None = None) -> None:
        self.reason = reason
        self.cause = cause
        self.counters = dict(counters or {})
        super().__init__(f"{reason}: {cause}")


class InfrastructureFailed(TunerError):
    """
    Not the configuration's fault: the trial ends as `infra_failed` and is tried again.

    Args:
        reason: One of `outcome.INFRA_REASONS`.
        cause: One line for people.
    """

    def __init__(self, reason: str, cause: str) -> None:
        self.reason = reason
        self.cause = cause
        super().__init__(f"{reason}: {cause}")


class Interrupted(TunerError):
    """Somebody asked to stop. What was being measured is not judged; a resumed study measures it again."""


class TrackingFailed(TunerError):
    """MLflow cannot be reached or refuses. The ledger has everything; `tuner sync` repeats what is missing."""


class StudyLocked(TunerError):
    """Another tuner works on this study."""


class StudyFailed(TunerError):
    """The study cannot go on: too many infrastructure failures in a row, or nowhere to write."""
