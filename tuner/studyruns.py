"""Which runs a study has in its mirror, and which are still to be written: the ledger against what is stored."""

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tuner import runcard, trialfiles
from tuner.errors import MeasurementError
from tuner.ledger import Ledger
from tuner.outcome import Outcome
from tuner.runcard import RunCard, RunStatus
from tuner.runfiles import encode
from tuner.trialfiles import AttemptFiles, TrialEntry
from tuner.trialplot import tails_png

STUDY_ID, TRIAL, ATTEMPT, DIGEST, KIND = "tuner.study_id", "tuner.trial", "tuner.attempt", "tuner.digest", "tuner.kind"
LARGEST_ARTIFACT_BYTES = 32 * 2**20
_PARENT_STATUS: Mapping[object, RunStatus] = {
    "winner": "FINISHED",
    "no_gain": "FINISHED",
    "no_feasible": "FINISHED",
    "failed": "FAILED",
}


@dataclass(frozen=True)
class StoredRun:
    """What the store holds of one run."""

    id: str
    status: str
    tags: Mapping[str, str]
    params: Mapping[str, str]


class Store(Protocol):
    """One experiment of a tracking store. Times are ISO 8601 in UTC. Every call may raise whatever the store raises."""

    def find(self, tag: str, value: str) -> list[StoredRun]:
        """All runs, deleted ones excepted, that carry the tag."""

    def create(self, name: str, started: str, tags: Mapping[str, str]) -> str:
        """A new run, RUNNING; returns its id."""

    def params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Write params that the run does not have yet."""

    def write(self, run_id: str, card: RunCard, stamp: str) -> None:
        """Name, metrics and tags; repeating it changes nothing."""

    def upload(self, run_id: str, name: str, path: Path) -> None:
        """Store a file as the artifact `name`, which may hold folders."""

    def tag(self, run_id: str, name: str, value: str) -> None:
        """Set one tag."""

    def end(self, run_id: str, status: RunStatus, stamp: str) -> None:
        """Give the run its status."""


@dataclass
class SyncReport:
    """What one `sync` did, in runs."""

    uri: str  # passwords masked
    experiment: str
    created: int = 0
    updated: int = 0
    unchanged: int = 0
    closed: int = 0  # left RUNNING by a killed study
    notes: list[str] = field(default_factory=list)  # files that were too large or unreadable


@dataclass
class StudyRuns:
    """One study during one sync."""

    store: Store
    ledger: Ledger
    live: bool
    report: SyncReport

    def sync(self) -> None:
        self.study = self.ledger.study
        self.result = self.ledger.read_json("result.json") or {}
        self.currency, self.closed = self.ledger.currency, self.ledger.closed_loop
        runs = {_identity(run): run for run in self.store.find(STUDY_ID, self.study["study_id"])}
        entries = self.ledger.trials()
        parent = self._parent(runs.get(("study", "", "")), entries)
        for entry in entries:
            for attempt in entry.attempts:
                run = runs.get(("trial", str(entry.number), str(attempt.number)))
                last = attempt.number == entry.attempt
                if attempt.outcome is not None:
                    self._finished(parent, entry, attempt, attempt.outcome, run)
                elif self.live and last:
                    self._started(parent, entry, attempt, run)
                elif run is not None and run.status == "RUNNING":
                    self.store.tag(run.id, "tuner.outcome", "interrupted")
                    self.store.end(run.id, "KILLED", self.study["sessions"][-1]["last_seen"])
                    self.report.closed += 1

    # -- the parent --------------------------------------------------------------------------------------------------

    def _parent(self, run: StoredRun | None, entries: list[TrialEntry]) -> str:
        outcomes = [entry.outcome for entry in entries if entry.outcome is not None]
        wanted: RunStatus = "RUNNING" if self.live else _PARENT_STATUS.get(self.result.get("status"), "KILLED")
        files = ("study.json", "objective.yaml", "result.json", "report.html")
        artifacts = {name: self.ledger.path / name for name in files}
        digest = _digest(wanted.encode(), str(len(outcomes)).encode(), encode(self.result))
        if run is None:
            tags = {"tuner.source": self.study["source"], "tuner.study": self.study["study"]}
            run_id = self._create("study", self.study["study"], self.study["started"], tags)
        else:
            run_id = run.id
        if run is not None and run.tags.get(DIGEST) == digest:
            return run_id
        winner = self.result.get("winner") or self.result.get("candidate") or {}
        metrics = {name: winner.get(name) for name in ("cost_per_1k_good_requests", "goodput_rps", "attainment")}
        metrics = {f"best_{name}": value for name, value in metrics.items()} | {
            f"trials_{state}": sum(outcome.state == state for outcome in outcomes)
            for state in sorted({outcome.state for outcome in outcomes})
        }
        shown = {"model": self.ledger.objective.get("model", ""), "seed": self.study["seed"]}
        sources = (self.result.get("warm_start") or {}).get("sources", ())
        tags = {
            "tuner.status": self.result.get("status", ""),
            "tuner.currency": self.currency,
            "tuner.warm_start": ", ".join(each["study"] for each in sources),
        }
        card = RunCard(
            name=self.study["study"],
            status=wanted,
            params={name: runcard.text(value) for name, value in shown.items()},
            metrics={name: float(value) for name, value in metrics.items() if value is not None},
            by_level={},
            tags={name: str(value) for name, value in tags.items() if value},
        )
        self._write(run_id, run, card, artifacts, self.study["ended"] or self.study["started"])
        self.store.tag(run_id, DIGEST, digest)
        return run_id

    # -- the children ------------------------------------------------------------------------------------------------

    def _started(self, parent: str, entry: TrialEntry, attempt: AttemptFiles, run: StoredRun | None) -> None:
        if run is not None or attempt.configuration is None:
            return
        name = f"{entry.number:03d} {runcard.short(attempt.configuration)}: running"
        run_id = self._create("trial", name, attempt.info.get("started"), self._child_tags(parent, entry, attempt))
        self.store.params(run_id, runcard.params(attempt.configuration))
        self.report.created += 1

    def _child_tags(self, parent: str, entry: TrialEntry, attempt: AttemptFiles) -> dict[str, str]:
        return {"mlflow.parentRunId": parent, TRIAL: str(entry.number), ATTEMPT: str(attempt.number)}

    def _finished(
        self, parent: str, entry: TrialEntry, attempt: AttemptFiles, outcome: Outcome, run: StoredRun | None
    ) -> None:
        numbers = attempt.level_numbers()
        role, judged = self._judged(outcome)
        stored = (attempt.path / trialfiles.OUTCOME).read_bytes()
        digest = _digest(stored, repr(numbers).encode(), encode([role, judged]))
        if run is not None and run.tags.get(DIGEST) == digest:
            self.report.unchanged += 1
            return
        card = runcard.card(outcome, currency=self.currency, source=self.study["source"], closed=self.closed)
        tags, metrics = dict(card.tags), dict(card.metrics)
        if role:
            verified = ("cost_per_1k_good_requests", "goodput_rps", "offered_rps", "attainment")
            figures = {f"verified_{name}": judged.get(name) for name in verified if judged["verified"]}
            metrics |= {name: float(value) for name, value in figures.items() if value is not None}
            tags |= {"tuner.role": role, "tuner.verified": str(bool(judged.get("verified"))).lower()}
        card = RunCard(card.name, card.status, card.params, metrics, card.by_level, tags)
        if run is None:
            started = attempt.info.get("started")
            run_id = self._create("trial", card.name, started, self._child_tags(parent, entry, attempt))
            self.report.created += 1
        else:
            run_id = run.id
            self.report.updated += 1
        with tempfile.TemporaryDirectory() as scratch:
            artifacts = {str(path.relative_to(attempt.path)): path for path in _artifacts(attempt.path)}
            if run is None or DIGEST not in run.tags:  # a finished attempt's picture never changes
                artifacts |= self._plot(attempt, outcome, card.name, Path(scratch))
            self._write(run_id, run, card, artifacts, attempt.ended or self.study["started"])
        self.store.tag(run_id, DIGEST, digest)

    def _judged(self, outcome: Outcome) -> tuple[str, dict[str, Any]]:
        """Role of a trial in the result, and what was verified of it; ("", {}) for the others."""
        for role in ("winner", "candidate", "baseline"):
            found = self.result.get(role)
            if found and found.get("trial") == outcome.trial and outcome.state != "infra_failed":
                return role, {"verified": False} | found
        return "", {}

    def _plot(self, attempt: AttemptFiles, outcome: Outcome, title: str, scratch: Path) -> dict[str, Path]:
        if outcome.best is None:
            return {}
        try:
            picture = tails_png(outcome.best, attempt.records(outcome.best.number), title)
        except MeasurementError as error:
            self.report.notes.append(str(error))
            return {}
        if picture is None:
            return {}
        (scratch / "tails.png").write_bytes(picture)
        return {"tails.png": scratch / "tails.png"}

    # -- writing -----------------------------------------------------------------------------------------------------

    def _create(self, kind: str, name: str, started: object, tags: Mapping[str, str]) -> str:
        own = {KIND: kind, STUDY_ID: self.study["study_id"], "mlflow.source.name": "tuner", **tags}
        return self.store.create(name, started if isinstance(started, str) else self.study["started"], own)

    def _write(
        self, run_id: str, run: StoredRun | None, card: RunCard, artifacts: Mapping[str, Path], ended: str
    ) -> None:
        """Everything of a run but its digest, which comes last, so that a sync that was cut off is repeated."""
        known = {} if run is None else run.params
        self.store.params(run_id, {name: value for name, value in card.params.items() if name not in known})
        self.store.write(run_id, card, ended)
        for name, path in artifacts.items():
            if not path.is_file() or path.is_symlink():
                continue
            size = path.stat().st_size
            if size > LARGEST_ARTIFACT_BYTES:
                self.report.notes.append(f"{path}: {size / 2**20:.0f} MiB is too large to track; the ledger has it")
            else:
                self.store.upload(run_id, name, path)
        self.store.end(run_id, card.status, ended)


def _identity(run: StoredRun) -> tuple[str, str, str]:
    return (run.tags.get(KIND, ""), run.tags.get(TRIAL, ""), run.tags.get(ATTEMPT, ""))


def _digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()[:32]


def _artifacts(path: Path) -> list[Path]:
    """Files of one attempt, without those of earlier ones; names and places as in the ledger."""
    found = (file for file in path.rglob("*") if file.is_file() and file.relative_to(path).parts[0] != "attempts")
    return sorted(file for file in found if not file.name.startswith("."))
