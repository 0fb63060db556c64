"""
Warm start: what earlier studies of a space are good for in a new one.

Their best points are proposed first. Where nothing but the night differs, their outcomes are told to the sampler too;
they never enter the new ledger, so a winner is always measured in its own study. All of it is written into the new
study when it begins: a resume reads that and needs the earlier studies no more.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner import conclusion, naming, provenance, serial
from tuner.configuration import Configuration
from tuner.errors import InputError, StudyChanged, StudyFailed
from tuner.ledger import Ledger
from tuner.outcome import Outcome
from tuner.slo import Objective
from tuner.space import Space

FILE = "warm-start.json"  # of the study that was warm-started
LATEST = "latest"
#: Points of earlier studies that are measured first.
PROPOSED = 6
#: Outcomes told to the sampler, at most; the newest stay.
MOST_TOLD = 400
#: Fingerprints that must be equal before an outcome counts as if it had been measured here.
COMPARED = ("model", "slo", "workload", "engine", "cluster", "calibration")
_FINISHED = ("winner", "no_gain", "no_feasible")


@dataclass(frozen=True)
class Earlier:
    """An outcome of an earlier study."""

    study: str  # where it was measured
    outcome: Outcome  # without its levels, but for the best


@dataclass(frozen=True)
class Source:
    """What one earlier study gave."""

    study: str
    differs: tuple[str, ...]  # why its outcomes are not told to the sampler; () = they are
    told: int  # outcomes for the sampler
    proposed: int  # points measured first
    outside: int  # points that today's space does not hold, dropped


@dataclass(frozen=True)
class Transfer:
    """All that a study starts with. The default is a cold start."""

    wanted: str | None = None  # as on the command line
    sources: tuple[Source, ...] = ()  # nearest first
    proposals: tuple[tuple[str, Configuration], ...] = ()  # study and point, best first
    history: tuple[Earlier, ...] = ()  # for the sampler
    measured: frozenset[str] = frozenset()  # keys of all points that were measured

    def admitted(self, base: Outcome | None) -> tuple[Earlier, ...]:
        """The history that was measured with the engine version of the baseline; none before it was measured."""
        if base is None:
            return ()
        return tuple(each for each in self.history if _version(each.outcome) == _version(base))


@dataclass(frozen=True)
class Today:
    """The new study, as far as an earlier one is compared with it."""

    objective: Objective
    space: Space
    fingerprints: Mapping[str, str]
    source: str  # live or simulated
    cpu: str | None  # processor, where engines run on this machine's; None elsewhere
    baseline: Configuration  # measured first anyway

    def wants(self, point: Configuration) -> bool:
        """Every point but the baseline, where the space does not hold it."""
        return point != self.baseline or self.space.holds(point)


def plan(runs: Path, wanted: str, today: Today, *, insist: bool = True) -> Transfer:
    """
    What a new study takes from the one `wanted`, and from those that this one was itself warm-started from.

    Args:
        runs: Directory of all studies.
        wanted: Name or path of a study, or `latest`: the newest finished one with the same model, space and source.
        today: The new study.
        insist: Somebody named the study and expects something of it. Otherwise points that all lie outside of today's
            space make a cold start that says so.

    Returns:
        A transfer without sources where `latest` finds none.

    Raises:
        InputError: There is no such study, or nothing of it lies in today's space.
    """
    ledger = latest(runs, today) if wanted == LATEST else Ledger.find(runs, wanted)
    if ledger is None:
        return Transfer(wanted)
    differs = differences(ledger.study, today)
    own = [Earlier(ledger.name, _slim(each)) for each in _finished(ledger)]
    inherited = read(ledger).history
    earlier = [each for each in _once([*own, *inherited]) if today.wants(each.outcome.configuration)]
    inside = [each for each in earlier if today.space.holds(each.outcome.configuration)]
    if earlier and not inside and insist:
        raise InputError(
            f"--warm-start {wanted}: none of its {len(earlier)} points lies in the space {today.space.name}: "
            "name a study of this space, or leave --warm-start out"
        )
    proposals = _proposals(inside, today)
    history = () if differs else tuple(inside[:MOST_TOLD])
    return Transfer(
        wanted,
        _sources(ledger.name, earlier=earlier, inside=inside, history=history, proposals=proposals, differs=differs),
        tuple((each.study, each.outcome.configuration) for each in proposals),
        history,
        frozenset(each.outcome.configuration.key for each in inside),
    )


def latest(runs: Path, today: Today) -> Ledger | None:
    """The newest finished study with today's space, model and source; damaged ones are passed over."""
    found: list[tuple[str, str, Ledger]] = []
    for name in naming.studies(runs):
        ledger = Ledger(runs / name)
        try:
            study, result = ledger.study, ledger.read_json("result.json")
        except (InputError, StudyFailed):
            continue
        prints = study["fingerprints"]
        same = all(prints.get(part) == today.fingerprints.get(part) for part in ("model", "space"))
        finished = isinstance(result, dict) and result.get("status") in _FINISHED
        if same and finished and study["source"] == today.source:
            found.append((str(study["started"]), name, ledger))
    return max(found, key=lambda each: each[:2])[2] if found else None


def differences(study: Mapping[str, Any], today: Today) -> tuple[str, ...]:
    """What makes outcomes of a study, given by its `study.json`, another measurement than today's; () = nothing."""
    before = study["fingerprints"]
    found = [part for part in COMPARED if before.get(part) != today.fingerprints.get(part)]
    if study["source"] != today.source:
        found.append(f"{study['source']}, not {today.source}")
    if today.cpu is not None and (study.get("machine") or {}).get("cpu") != today.cpu:
        found.append("processor")
    return tuple(found)


def as_json(transfer: Transfer) -> dict[str, object]:
    """For `FILE`."""
    return {
        "schema": 1,
        "wanted": transfer.wanted,
        "sources": [
            {
                "study": each.study,
                "differs": list(each.differs),
                "told": each.told,
                "proposed": each.proposed,
                "outside": each.outside,
            }
            for each in transfer.sources
        ],
        "proposals": [{"study": study, "configuration": dict(point.knobs)} for study, point in transfer.proposals],
        "history": [
            {"study": each.study, "outcome": serial.outcome_to_json(each.outcome)} for each in transfer.history
        ],
        "measured": sorted(transfer.measured),
    }


def read(ledger: Ledger) -> Transfer:
    """
    What a study was started with.

    Raises:
        StudyFailed: Its file is not one of these.
    """
    found = ledger.read_json(FILE)
    if found is None:
        return Transfer()
    try:
        return Transfer(
            found["wanted"],
            tuple(
                Source(each["study"], tuple(each["differs"]), each["told"], each["proposed"], each["outside"])
                for each in found["sources"]
            ),
            tuple((each["study"], Configuration(each["configuration"])) for each in found["proposals"]),
            tuple(Earlier(each["study"], serial.outcome_from_json(each["outcome"])) for each in found["history"]),
            frozenset(found["measured"]),
        )
    except (KeyError, TypeError) as error:
        raise StudyFailed(f"{ledger.path / FILE}: is damaged ({error}); restore it from a copy") from error


def same(ledger: Ledger, wanted: str | None) -> None:
    """
    A study keeps what it was begun with; `latest` was looked up then.

    Raises:
        StudyChanged: Now another start is wanted.
    """
    begun = read(ledger)
    nearest = begun.sources[0].study if begun.sources else None
    if wanted in (None, begun.wanted) or Path(str(wanted)).name == nearest:
        return
    was = f"with --warm-start {begun.wanted}" if begun.wanted else "without --warm-start"
    raise StudyChanged(
        f"--warm-start {wanted}: study {ledger.name} was begun {was}; leave the option out, or give another --study"
    )


def summary(transfer: Transfer, base: Outcome | None = None) -> dict[str, object] | None:
    """The entry `warm_start` of `result.json`; None for a cold start. Before the baseline ran, as it was planned."""
    if transfer.wanted is None:
        return None
    admitted = Counter(each.study for each in (transfer.history if base is None else transfer.admitted(base)))
    return {
        "wanted": transfer.wanted,
        "sources": [
            {
                "study": each.study,
                "told": admitted[each.study],
                "proposed": each.proposed,
                "outside": each.outside,
                "differs": [*each.differs, *(["engine version"] if each.told > admitted[each.study] else [])],
            }
            for each in transfer.sources
        ],
    }


def _version(outcome: Outcome) -> object:
    return outcome.facts.get("engine_version")


def _finished(ledger: Ledger) -> list[Outcome]:
    """Outcomes that say something about their point, newest first."""
    outcomes = [entry.outcome for entry in ledger.trials() if entry.outcome is not None]
    return [each for each in reversed(outcomes) if each.state not in ("infra_failed", "rejected")]


def _slim(outcome: Outcome) -> Outcome:
    """Without its levels, which are of no use elsewhere."""
    return replace(outcome, levels=())


def _once(earlier: Sequence[Earlier]) -> list[Earlier]:
    """The first of each point; the order stays."""
    found: dict[str, Earlier] = {}
    for each in earlier:
        found.setdefault(each.outcome.configuration.key, each)
    return list(found.values())


def _proposals(inside: Sequence[Earlier], today: Today) -> list[Earlier]:
    """The best points, judged by today's prices and objective."""
    by_outcome = {id(each.outcome): each for each in inside if each.outcome.configuration != today.baseline}
    ranked = conclusion.ranked(today.objective, [each.outcome for each in by_outcome.values()])
    return [by_outcome[id(outcome)] for outcome in ranked[:PROPOSED]]


def _sources(
    nearest: str,
    *,
    earlier: Sequence[Earlier],
    inside: Sequence[Earlier],
    history: Sequence[Earlier],
    proposals: Sequence[Earlier],
    differs: tuple[str, ...],
) -> tuple[Source, ...]:
    told, proposed, kept = (Counter(each.study for each in part) for part in (history, proposals, inside))
    total = Counter(each.study for each in earlier)
    names = [nearest, *(name for name in total if name != nearest)]
    return tuple(Source(name, differs, told[name], proposed[name], total[name] - kept[name]) for name in names)


def cpu_of(backend: str, objective: Objective) -> str | None:
    """Processor of this machine, where the study's engines run on it."""
    here = backend == "local" and all(pool.unit == "cpu" for pool in objective.cluster.pools)
    return str(provenance.machine()["cpu"]) if here else None
