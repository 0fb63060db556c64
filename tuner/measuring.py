"""`tuner measure`: one deployment, no search. The same levels, verdict and cost as a trial of a study."""

import json
import math
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from tuner import (
    calibration,
    feasibility,
    model,
    objective_file,
    objective_text,
    objective_warnings,
    recordfile,
    result,
    trial,
)
from tuner.backend import first_use, launcher_for, resolve
from tuner.configuration import Configuration
from tuner.deployment import Deployment, Launcher
from tuner.deployment.external import External, endpoint
from tuner.described import describe
from tuner.errors import InfrastructureFailed, InputError
from tuner.events import Listener, Note
from tuner.load.plan import LevelData
from tuner.optimize import traffic
from tuner.outcome import Level, Outcome
from tuner.runfiles import replace_bytes, write_json
from tuner.slo import Objective
from tuner.space import Space
from tuner.standing import stand

MEASUREMENT = "measurement.json"
RECORDS = "records.jsonl.zst"


def measure(
    slo: Path,
    *,
    url: str | None,
    configuration: Path | None,
    backend: str | None,
    out: Path,
    seed: int,
    listen: Listener,
    runs: Path | None = None,
    replace: bool = False,
) -> dict[str, object]:
    """
    Measure a running server, or one configuration that is started for it.

    Args:
        slo: Objective file.
        url: Of a running server; exactly one of `url` and `configuration`.
        configuration: JSON file with the knobs of one deployment.
        backend: Where to start it; None = as the objective file says.
        out: Directory for `measurement.json`, `records.jsonl.zst` and logs; made if missing.
        seed: Of schedule and prompts.
        listen: Called with progress.
        runs: Directory of all studies, whose calibrations the simulator uses; None = it uses none.
        replace: Whether a measurement that is in `out` already may be replaced.

    Returns:
        The content of `measurement.json`.

    Raises:
        InputError: Wrong input.
        InfrastructureFailed: The server cannot be reached, or the deployment failed for want of infrastructure.
    """
    if (url is None) == (configuration is None):
        raise InputError("measure: give one of --endpoint and --configuration")
    objective = objective_file.load(slo)
    if (out / MEASUREMENT).exists() and not replace:
        raise InputError(f"--out: {out} holds a measurement already; name another directory, or --force to replace it")
    facts = model.facts(objective.model)
    longest, requests = traffic(objective)
    for warning in objective_warnings.repeats(objective, requests):
        listen(Note(warning, warning=True))
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        deployment: Deployment
        if url is not None:
            knobs = Configuration({})
            deployment = External(endpoint(url, objective.model))
            source = "live"
        else:
            assert configuration is not None  # noqa: S101  (checked above)
            knobs = _read(configuration)
            for violation in feasibility.violations(knobs, objective, facts, longest=longest):
                raise InputError(f"{configuration}: {violation.rule}: {violation.message}")
            launcher = _launcher(resolve(backend or objective.backend), objective, out, runs, listen)
            stack.callback(launcher.close)
            refused = launcher.check(knobs)
            if refused is not None:
                raise InputError(f"{configuration}: {refused}")
            deployment = launcher.deployment(knobs, out / "logs")
            source = launcher.source
        kept: dict[int, LevelData] = {}

        def keep(level: Level, data: LevelData) -> Level:
            kept[level.number] = data
            return level

        guess = objective.search.first_guess_rps
        task = trial.Task(0, 1, knobs, seed=seed, first=guess, beat=None)
        outcome = trial.run(task, deployment, objective, keep=keep, listen=listen, expired=lambda: False)
    if outcome.state == "infra_failed":
        raise InfrastructureFailed(outcome.reason, outcome.cause)
    found = _measurement(objective, outcome, source=source, seed=seed, url=url)
    if outcome.best is not None:
        recordfile.write(out / RECORDS, kept[outcome.best.number].records)
    replace_bytes(out / "objective.yaml", objective_text.dump(objective).encode())
    write_json(out / MEASUREMENT, found)
    return found


def _launcher(kind: str, objective: Objective, out: Path, runs: Path | None, listen: Listener) -> Launcher:
    if (note := first_use(kind)) is not None:
        listen(Note(note))
    fitted = calibration.find(runs, objective) if kind == "simulated" and runs is not None else None
    return launcher_for(kind, objective, ray=None, registry=out / "processes", calibration=fitted)


def _measurement(
    objective: Objective, outcome: Outcome, *, source: str, seed: int, url: str | None
) -> dict[str, object]:
    described = describe(objective, stand(objective, outcome, None))
    if url is not None:
        described |= {"cost_per_hour": None, "cost_per_1k_good_requests": None, "cost_per_1m_good_output_tokens": None}
        described |= {"gpus": None, "configuration": None}
    judged = outcome.best.score if outcome.best is not None else None
    requests = None
    if judged is not None and outcome.best is not None:
        requests = {
            "sent": outcome.best.requests,
            "measured": judged.n,
            "completed": judged.completed,
            "good": judged.good,
            "failed": dict(judged.failed),
        }
    return {
        "schema": result.SCHEMA,
        "source": source,
        "model": objective.model,
        "currency": objective.prices.currency,
        "unit": objective.cluster.unit,
        "seed": seed,
        **described,
        "kept": outcome.state == "feasible",
        "requests": requests,
        "token_source": judged.token_source if judged is not None else None,
        "facts": dict(outcome.facts),
        "counters": {name: value for name, value in outcome.counters.items() if math.isfinite(value)},
        "client": dict(outcome.best.client) if outcome.best is not None else {},
        "ladder": [
            {"offered": level.offered, "kept": level.kept, "stopped": level.stopped, "invalid": level.invalid}
            for level in outcome.levels
        ],
        "percentile_method": result.PERCENTILE_METHOD,
        "limits": [asdict(limit) for limit in judged.limits] if judged is not None else [],
    }


def _read(path: Path) -> Configuration:
    try:
        knobs = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    if isinstance(knobs, dict) and set(knobs) == {"knobs"}:
        knobs = knobs["knobs"]
    if not isinstance(knobs, dict):
        raise InputError(
            f'{path}:1:1: got {type(knobs).__name__}: write one object of knobs, such as {{"max_num_seqs": 64}}'
        )
    found = Space("", ()).validate(knobs, what=str(path))
    if found.lossy:
        raise InputError(
            f"{path}: lmcache_blending: got true: it may change answers, and `measure` has no plain engine to compare "
            "them with; use `optimize`"
        )
    return found
