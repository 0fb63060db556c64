"""What the report reads of a study: `result.json`, outcomes, commands, and the records of single configurations."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tuner import objective_file, studyfile
from tuner.errors import InputError, MeasurementError
from tuner.ledger import Ledger
from tuner.outcome import Outcome
from tuner.report import words
from tuner.report.tails import Tails, tails
from tuner.result import assemble, last_attempts
from tuner.runfiles import TornFileError, read_json
from tuner.trialfiles import COMMANDS

Entry = Mapping[str, Any]
#: What a configuration is called → its entry in `result.json`, and its distributions where there are records.
Measured = Mapping[str, tuple[Entry, Tails | None]]


@dataclass(frozen=True)
class Evidence:
    """
    One study, for reading; what costs time is read once.

    Args:
        ledger: Of the study.
        result: `result.json`, or the same made from the outcomes so far where the study was killed.
    """

    ledger: Ledger
    result: Mapping[str, Any]

    @property
    def currency(self) -> str:
        return str(self.result["currency"])

    @cached_property
    def study(self) -> Mapping[str, Any]:
        """`study.json`."""
        return self.ledger.study

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The last attempt of each trial."""
        return last_attempts(self.ledger.outcomes())

    @property
    def named(self) -> Entry | None:
        """The configuration that the report is about; see `words.named`."""
        return words.named(self.result)

    @property
    def baseline(self) -> Entry | None:
        """The baseline, where it is another trial than `named`."""
        base: Entry | None = self.result["baseline"]
        named = self.named
        return None if base is not None and named is not None and base["trial"] == named["trial"] else base

    @cached_property
    def measured(self) -> Measured:
        """The configuration that the report is about, and the baseline where it is another one."""
        entries = {words.role_of_named(self.result): self.named, "baseline": self.baseline}
        return {who: (entry, self._tails(entry)) for who, entry in entries.items() if entry is not None}

    def commands(self, trial: int) -> list[dict[str, Any]]:
        """Role, argv and env of each process of the trial's last attempt; [] when simulated or not known."""
        try:
            found = read_json(self.ledger.trial_directory(trial) / COMMANDS)
        except (FileNotFoundError, TornFileError):
            return []
        return [command for command in found if isinstance(command, dict) and command.get("argv")]

    def _tails(self, entry: Entry) -> Tails | None:
        """
        Distributions over the windows that the entry's figures come from, repeats of the verification pooled.

        None when nothing was measured, or its records are missing, damaged or kept as summaries without chunks.
        """
        try:
            trial = self.ledger.trial(entry["trial"])
            repeats = [level.number for level in trial.levels() if level.purpose == "verify" and _same(level, entry)]
            found = tails(trial.records(number) for number in repeats or entry["levels"])
        except (MeasurementError, InputError):
            return None
        return found if found is not None and found.ttft.total else None


def read(study: Path | Evidence) -> Evidence:
    """
    The study in this directory; one that was read already is given back, with all that was read of it.

    A study that was killed has no `result.json`: what was measured until then stands as that of an interrupted one.

    Raises:
        InputError: It is no study, or nothing was measured yet.
    """
    if isinstance(study, Evidence):
        return study
    ledger = Ledger.open(study)
    result = ledger.read_json("result.json")
    return Evidence(ledger, result if isinstance(result, dict) else _partial(ledger))


def _partial(ledger: Ledger) -> Mapping[str, Any]:
    """`result.json` of a study that has none, from its outcomes."""
    outcomes = ledger.outcomes()
    again = f"`tuner optimize --study {ledger.path.name}` takes the study up"
    if not outcomes:
        raise InputError(f"{ledger.path}: there is no result.json yet, nor a finished trial; {again}")
    spent = ledger.spent()
    return assemble(
        objective_file.load(ledger.path / studyfile.OBJECTIVE),
        ledger.name,
        outcomes,
        {},
        None,
        "interrupted",
        {"gpu_hours": spent.unit_hours, "wall_s": spent.wall_s, "requests": spent.requests},
        str(ledger.study["source"]),
        next((outcome.facts for outcome in outcomes if outcome.facts), {}),
        rejected=ledger.rejected(),
        warnings=["a tuner is at work on this study; these are its trials so far"] if ledger.live else [],
    )


def _same(level: Any, entry: Entry) -> bool:
    """The level is one of the repeats that the entry's figures come from."""
    scored = level.score is not None and not level.stopped
    return scored and entry["ladder"] != [] and math.isclose(level.offered, entry["offered"], rel_tol=1e-9)
