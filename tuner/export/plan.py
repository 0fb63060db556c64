"""Which deployment of a study is exported: its processes, where they ran, and what is known of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner import objective_file, studyfile
from tuner.configuration import Configuration
from tuner.deployment import vllm
from tuner.deployment.spec import Address, ProcessSpec, masked
from tuner.described import describe
from tuner.errors import InputError
from tuner.export.origin import Origin
from tuner.export.places import LOOPBACK, imagined, recover
from tuner.outcome import Outcome
from tuner.report import evidence, words
from tuner.report.evidence import Evidence
from tuner.slo import Objective
from tuner.standing import stand

#: The version that flags and connectors are written for; the one that an export without a measured engine names.
ASSUMED_ENGINE = "0.32.0"
#: Routes for the tuner's own use between levels, which ask for no key; no part of serving.
NOT_FOR_SERVING = "VLLM_SERVER_DEV_MODE"
_MEASURED = ("feasible", "infeasible", "pruned")


@dataclass(frozen=True)
class Plan:
    """
    One deployment to export.

    Args:
        specs: Its processes, in the order of their start.
        addresses: Of each by name: where it was measured, or made up where nothing ran.
        one_machine: All of it ran on one machine, or would.
        objective: Of the study.
        configuration: Of the trial.
        origin: Provenance.
    """

    specs: tuple[ProcessSpec, ...]
    addresses: Mapping[str, Address]
    one_machine: bool
    objective: Objective
    configuration: Configuration
    origin: Origin

    @property
    def endpoint(self) -> ProcessSpec:
        """The process that requests are sent to."""
        return next(spec for spec in self.specs if spec.endpoint)

    def before(self, spec: ProcessSpec) -> Sequence[ProcessSpec]:
        """What has to be ready before this process starts."""
        return [other for other in self.specs if other.order < spec.order]


def read(study: Path, trial: str) -> Plan:
    """
    The deployment of a trial.

    Args:
        study: Directory of the study.
        trial: `winner`, `baseline` or a number.

    Raises:
        InputError: There is no such trial, nothing was measured of it, or its commands are of another version.
    """
    found = evidence.read(study)
    objective = objective_file.load(found.ledger.path / studyfile.OBJECTIVE)
    number, role = _which(found, trial)
    outcome = next((each for each in found.outcomes if each.trial == number), None)
    if outcome is None:
        known = ", ".join(str(each.trial) for each in found.outcomes)
        raise InputError(f"--trial: got {trial}: {found.ledger.name} has no finished trial {number}; it has {known}")
    if outcome.state not in _MEASURED:
        why = ": ".join(part for part in (outcome.reason, outcome.cause) if part)
        raise InputError(
            f"--trial: got {trial}: trial {number} ended as {outcome.state} ({why}); only what served can be exported"
        )
    return made(found, objective, outcome, role)


def made(found: Evidence, objective: Objective, outcome: Outcome, role: str) -> Plan:
    """The plan of one outcome."""
    specs = tuple(sorted(vllm.specs(outcome.configuration, objective), key=lambda spec: spec.order))
    addresses = recover(specs, found.commands(outcome.trial))
    live = str(found.result["source"]) == "live"
    if addresses is None and live:
        raise InputError(f"trial {outcome.trial}: commands.json tells no address: it was never started on an engine")
    near = fits_one_machine(specs, objective) if addresses is None else len({a.host for a in addresses.values()}) == 1
    version = str(outcome.facts.get("engine_version") or "unknown") if live else ASSUMED_ENGINE
    entry = _entry(found, objective, outcome)
    return Plan(
        specs=specs,
        addresses=imagined(specs, LOOPBACK if near else "") if addresses is None else addresses,
        one_machine=near,
        objective=objective,
        configuration=outcome.configuration,
        origin=Origin(
            study=found.ledger.name,
            trial=outcome.trial,
            role=role,
            source=str(found.result["source"]),
            engine_version=version,
            entry=entry,
            result=found.result,
            warnings=tuple(_warnings(outcome, entry, specs)),
        ),
    )


def settings(spec: ProcessSpec) -> tuple[dict[str, str], dict[str, str]]:
    """
    What a process gets in its environment: templates by name, and secrets as names of variables.

    A value that was written down and looks secret is not repeated: it becomes the variable of the same name.
    """
    shown = masked(spec)["env"]
    assert isinstance(shown, Mapping)  # noqa: S101  (so `masked` makes it)
    hidden = {name for name, value in spec.env.items() if shown[name] != value}
    env = {name: value for name, value in spec.env.items() if name not in hidden and name != NOT_FOR_SERVING}
    return env, {**spec.secrets, **{name: name for name in sorted(hidden)}}


def _which(found: Evidence, trial: str) -> tuple[int, str]:
    named = {"winner": found.result.get("winner"), "baseline": found.result.get("baseline")}
    numbers = {role: int(entry["trial"]) for role, entry in named.items() if entry}
    if trial in numbers:
        return numbers[trial], trial
    if trial == "winner":
        entry = words.named(found.result)
        instead = "" if entry is None else f"; --trial {entry['trial']} is its {words.role_of_named(found.result)}"
        raise InputError(f"--trial: got winner: {found.ledger.name} has none ({found.result['status']}){instead}")
    if not trial.isascii() or not trial.isdecimal():
        raise InputError(f"--trial: got {trial!r}: write winner, baseline or the number of a trial")
    return int(trial), next((role for role, number in numbers.items() if number == int(trial)), "")


def _entry(found: Evidence, objective: Objective, outcome: Outcome) -> Mapping[str, Any]:
    """The trial in `result.json` with its verified figures, else what its levels showed."""
    for name in ("winner", "candidate", "baseline"):
        entry: Mapping[str, Any] | None = found.result.get(name)
        if entry is not None and entry["trial"] == outcome.trial:
            return entry
    seen = describe(objective, stand(objective, outcome, None))
    ranked: Mapping[str, Any] = next(
        (row for row in found.result.get("ranking") or () if row["trial"] == outcome.trial), {}
    )
    return {**seen, **ranked}


def fits_one_machine(specs: Sequence[ProcessSpec], objective: Objective) -> bool:
    """Whether one node of one pool holds the whole deployment."""
    units: dict[str, int] = {}
    for spec in specs:
        if spec.units:
            units[spec.pool] = units.get(spec.pool, 0) + spec.units
    per_node = {pool.name: pool.per_node for pool in objective.cluster.pools}
    return len(units) == 1 and all(count <= per_node[name] for name, count in units.items())


def _warnings(outcome: Outcome, entry: Mapping[str, Any], specs: Sequence[ProcessSpec]) -> list[str]:
    found = []
    if outcome.state == "infeasible":
        found.append(f"this deployment broke its SLO at the lowest load that was tried: {outcome.reason}")
    if outcome.state == "pruned":
        found.append("this deployment was given up before its capacity was known")
    if not entry.get("verified"):
        found.append("its figures were not verified on fresh schedules")
    if any(NOT_FOR_SERVING in spec.env for spec in specs):
        found.append(f"{NOT_FOR_SERVING}=1 is left out: it opens routes without a key, which only measuring needs")
    return found
