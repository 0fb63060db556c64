"""
One-way mirror of the ledger in MLflow. The ledger is the truth: what is missing here is found by comparing with it.

`Mirror.sync` may be repeated, interrupted and resumed at will. `Tracker` calls it from a thread of its own while a
study runs, so that a tracking server that is slow, down or hanging neither delays nor fails a trial.

Only this module imports mlflow, and only when it is first used: that takes seconds.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tuner import lock, runcard, tracking_uri
from tuner.errors import StudyLocked, TrackingFailed
from tuner.ledger import Ledger
from tuner.provenance import mask_uri, seconds
from tuner.runcard import RunCard, RunStatus
from tuner.studyruns import STUDY_ID, TRIAL, StoredRun, StudyRuns, SyncReport

EXPERIMENT = "tuner"
LOCK = "tracking.lock"
INCUMBENT = "tuner.incumbent"
_PAGE = 1000
#: Read by mlflow at each call; a user's own values win. Set in this process only.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
_log = logging.getLogger(__name__)


def connect(uri: str) -> Any:
    """
    An `MlflowClient` with short time-outs. An SQLite store that is missing is created, which takes seconds.

    Raises:
        TrackingFailed: The store cannot be opened.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    for name in ("mlflow", "alembic", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        return MlflowClient(tracking_uri=uri, registry_uri=uri)
    except Exception as error:  # whatever the store's driver raises
        raise TrackingFailed(tracking_uri.explain(error, uri)) from error


@dataclass(frozen=True)
class TrackingCheck:
    """Whether tracking works, for `doctor`."""

    ok: bool
    message: str


def check(uri: str, *, storage: str | Path | None = None) -> TrackingCheck:
    """
    A real call of the tracking API; a health page may be fine while every call is refused.

    Args:
        uri: As resolved.
        storage: Of Optuna, which must not share the database.
    """
    if storage is not None and tracking_uri.same_database(uri, storage):
        return TrackingCheck(ok=False, message=f"{mask_uri(uri)}: is Optuna's storage too: use a database of its own")
    file = tracking_uri.sqlite_file(uri)
    if file is not None and not file.exists():
        return _check_directory(file.parent, uri)
    try:
        found = connect(uri).search_experiments(max_results=1)
    except TrackingFailed as error:
        return TrackingCheck(ok=False, message=str(error))
    except Exception as error:  # noqa: BLE001  (whatever driver, HTTP client or server say)
        return TrackingCheck(ok=False, message=tracking_uri.explain(error, uri))
    network = tracking_uri.on_network(file) if file is not None else None
    warning = f"; warning: it lies on {network}, where SQLite's locks are not reliable" if network else ""
    return TrackingCheck(ok=True, message=f"{mask_uri(uri)}: answers ({len(found)} experiment seen){warning}")


def _check_directory(path: Path, uri: str) -> TrackingCheck:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not os.access(existing, os.W_OK):
        return TrackingCheck(ok=False, message=f"{mask_uri(uri)}: {existing} cannot be written; choose another --runs")
    return TrackingCheck(ok=True, message=f"{mask_uri(uri)}: is created by the first study")


class Mirror:
    """
    The ledgers' image in one MLflow experiment: a parent run per study, a child per measured attempt.

    Args:
        uri: A tracking URI.
        experiment: Its name; made if missing.
        artifacts: Where an SQLite store keeps its artifacts; None = the server's default.
    """

    def __init__(self, uri: str, experiment: str = EXPERIMENT, *, artifacts: Path | None = None) -> None:
        self.uri = uri
        self.experiment = experiment
        file = tracking_uri.sqlite_file(uri)
        self._artifacts = artifacts or (file.parent / tracking_uri.ARTIFACTS if file is not None else None)
        self._client: Any = None

    def sync(self, ledger: Ledger, *, live: bool | None = None) -> SyncReport:
        """
        Bring MLflow up to the ledger. What is there already is left alone.

        Args:
            ledger: Any study; its lock is not needed.
            live: Whether a tuner works on it now, so that unfinished runs are RUNNING; None = find out.

        Raises:
            TrackingFailed: The store is down, refuses or hangs; whatever was done until then stays.
        """
        report = SyncReport(mask_uri(self.uri), self.experiment)
        try:
            with lock.Lock(ledger.path, LOCK):
                self._client = self._client or connect(self.uri)
                store = _MlflowStore(self._client, self._experiment_id())
                StudyRuns(store, ledger, ledger.live if live is None else live, report).sync()
        except TrackingFailed:
            raise
        except StudyLocked:
            raise TrackingFailed(f"{ledger.path}: another process tracks this study; nothing was done") from None
        except Exception as error:  # whatever driver, HTTP client or server say
            self._client = None
            raise TrackingFailed(tracking_uri.explain(error, self.uri)) from error
        return report

    def mark(self, tag: str, value: str, study_id: str, trial: int) -> None:
        """Give a tag to the run of a trial and to its study's, and take it from whoever had it with that value."""
        store = _MlflowStore(self._client, self._experiment_id())
        mine = [run for run in store.find(STUDY_ID, study_id) if run.tags.get(TRIAL, str(trial)) == str(trial)]
        for run in store.find(tag, value):
            if run.id not in {each.id for each in mine}:
                store.untag(run.id, tag)
        for run in mine:
            store.tag(run.id, tag, value)

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        if found is None:
            place = (
                None if self._artifacts is None else (self._artifacts.resolve() / runcard.key(self.experiment)).as_uri()
            )
            return str(self._client.create_experiment(self.experiment, artifact_location=place))
        if found.lifecycle_stage != "active":
            raise TrackingFailed(
                f"{mask_uri(self.uri)}: the experiment {self.experiment!r} was deleted; "
                f"restore it with `mlflow experiments restore -x {found.experiment_id}`"
            )
        return str(found.experiment_id)


class _MlflowStore:
    """`studyruns.Store` on an `MlflowClient`, with explicit run ids: nothing depends on an active run or on threads."""

    def __init__(self, client: Any, experiment_id: str) -> None:
        self._client = client
        self._experiment_id = experiment_id

    def find(self, tag: str, value: str) -> list[StoredRun]:
        found: list[StoredRun] = []
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment_id], f"tags.`{tag}` = '{value}'", max_results=_PAGE, page_token=token
            )
            found += [StoredRun(run.info.run_id, run.info.status, run.data.tags, run.data.params) for run in page]
            token = page.token
            if not token:
                return found

    def create(self, name: str, started: str, tags: Mapping[str, str]) -> str:
        run = self._client.create_run(self._experiment_id, start_time=_ms(started), tags=dict(tags), run_name=name)
        return str(run.info.run_id)

    def params(self, run_id: str, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        values = [Param(name, value) for name, value in params.items()]
        for start in range(0, len(values), 100):
            self._client.log_batch(run_id, params=values[start : start + 100])

    def write(self, run_id: str, card: RunCard, stamp: str) -> None:
        from mlflow.entities import Metric, RunTag

        metrics = [Metric(name, value, _ms(stamp), 0) for name, value in card.metrics.items()]
        for name, values in card.by_level.items():
            metrics += [Metric(name, value, _ms(stamp), level) for level, value in values.items()]
        for start in range(0, len(metrics), 500):
            self._client.log_batch(run_id, metrics=metrics[start : start + 500])
        tags = {"mlflow.runName": card.name, **card.tags}
        self._client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])

    def upload(self, run_id: str, name: str, path: Path) -> None:
        folder = Path(name).parent
        self._client.log_artifact(run_id, str(path), None if folder == Path() else str(folder))

    def tag(self, run_id: str, name: str, value: str) -> None:
        self._client.set_tag(run_id, name, value)

    def untag(self, run_id: str, name: str) -> None:
        """Take a tag away."""
        self._client.delete_tag(run_id, name)

    def end(self, run_id: str, status: RunStatus, stamp: str) -> None:
        if status == "RUNNING":
            self._client.update_run(run_id, status=status)
        else:
            self._client.set_terminated(run_id, status, end_time=_ms(stamp))


def _ms(stamp: str) -> int:
    return int(seconds(stamp) * 1000)


def mark_incumbent(runs: Path, uri: str | None, objective: str, study: str, trial: int) -> None:
    """
    Tag the run of an objective's incumbent, and its study, with `tuner.incumbent`; take the tag from all others.

    A tag, not an alias of the model registry: the table of runs can be filtered by it, and no model is registered.

    Args:
        runs: Directory of all studies.
        uri: As `Tracker`.
        objective: Name of the objective.
        study: Name of the study that measured the incumbent.
        trial: Its number there.

    Raises:
        TrackingFailed: The store is down, refuses or hangs.
    """
    resolved = tracking_uri.resolve(uri, runs)
    if resolved is None:
        return
    ledger = Ledger.find(runs, study)
    mirror = Mirror(resolved)
    mirror.sync(ledger)
    try:
        mirror.mark(INCUMBENT, objective, str(ledger.study["study_id"]), trial)
    except Exception as error:  # whatever driver, HTTP client or server say
        raise TrackingFailed(tracking_uri.explain(error, resolved)) from error


class Tracker:
    """
    Mirrors a study in the background while it runs. Nothing here raises into the study or waits for the network.

    Args:
        runs: Directory of all studies, where the default store lies.
        uri: None = the default store; `off` = no tracking.
        ledger: Of the study.
        experiment: Name in MLflow.

    Attributes:
        problem: The last failure, one line; "" while all is well.
    """

    def __init__(self, runs: Path, uri: str | None, ledger: Ledger, experiment: str = EXPERIMENT) -> None:
        resolved = tracking_uri.resolve(uri, runs)
        self.problem = ""
        self.report: SyncReport | None = None
        self._mirror = None if resolved is None else Mirror(resolved, experiment)
        self._ledger = ledger
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)
        if self._mirror is not None:
            self._changed.set()  # the store is made, and the parent run, while the first trial starts
            self._thread.start()

    def note(self) -> None:
        """Something new is in the ledger. Returns at once."""
        self._changed.set()

    def close(self, timeout_s: float = 30.0) -> bool:
        """
        Mirror the end of the study, waiting at most `timeout_s`.

        Returns:
            True when MLflow has everything. Otherwise `problem` says what is wrong and that `tuner sync` repeats it.
        """
        if self._mirror is None:
            return True
        self._closing.set()
        self._changed.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._fail(f"{mask_uri(self._mirror.uri)}: no answer within {timeout_s:g} s; repeat with `tuner sync`")
        return not self.problem

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            self._changed.wait()
            closing = self._closing.is_set()
            self._changed.clear()
            self._sync(live=not closing)
            if closing:
                return

    def _sync(self, *, live: bool) -> None:
        assert self._mirror is not None  # noqa: S101  (the thread runs only with one)
        begun = time.monotonic()
        try:
            self.report = self._mirror.sync(self._ledger, live=live)
        except Exception as error:  # noqa: BLE001  (tracking never harms the study)
            self._fail(str(error))
        else:
            self.problem = ""
        _log.debug("tracking took %.1f s", time.monotonic() - begun)

    def _fail(self, problem: str) -> None:
        self.problem = problem
        if not self._warned:
            self._warned = True
            _log.warning("tracking: %s", problem)
