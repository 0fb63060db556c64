"""
`tuner calibrate`: fit the simulator's constants to what a live study measured, and keep them for later studies.

Each measured level is simulated with the very plan that the live client ran, so both see the same arrivals, lengths and
prefixes. Five constants (see `simulator.calibrated`) are fitted by least squares on the logarithms of percentiles and
means of TTFT and ITL. Where the levels do not tell two constants apart, a weak prior keeps them near the uncalibrated
ones.
"""

import dataclasses
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tuner import objective_file, provenance, runfiles, studyfile
from tuner.calibration_fit import Fit, Measured, paces, statistics
from tuner.deployment.simulated import SimulatedLauncher
from tuner.errors import ConfigurationFailed, InputError, MeasurementError
from tuner.ledger import Ledger
from tuner.simulator import setup
from tuner.simulator.calibrated import STATISTICS, Calibration, Residual
from tuner.slo import Objective

DIRECTORY = "calibrations"  # under the runs directory
#: Levels that one fit uses at most.
MOST_LEVELS = 8
#: Error of a median, as a share, above which a fit is shown with a warning.
POOR = 0.3
#: Paces that tell what a step takes from what each of its requests adds.
FEWEST_PACES = 2
_log = logging.getLogger(__name__)


def calibrate(ledger: Ledger, runs: Path) -> Calibration:
    """
    Fit the simulator to the kept levels of a live study, and store the fit under `runs`.

    Levels that the simulator cannot repeat (a mode that it does not know, summaries without token times) are left out;
    of a study on several devices, the one with most levels is fitted.

    Raises:
        InputError: The study is simulated, or has no level that can be used.
    """
    if ledger.study.get("source") != "live":
        raise InputError(f"{ledger.path}: it was simulated: there is nothing measured in it; name a live study")
    objective = objective_file.load(ledger.path / studyfile.OBJECTIVE)
    launcher = SimulatedLauncher(objective)
    usable = [level for level in _levels(ledger, objective, launcher) if level.values_s]
    if not usable:
        raise InputError(
            f"{ledger.path}: no level of it can be used: a kept level with full records, in a mode that the simulator "
            "knows, is needed; run the study longer, or with a looser SLO"
        )
    kinds = Counter((level.device, level.base) for level in usable)
    device, base = kinds.most_common(1)[0][0]
    chosen = _spread([level for level in usable if (level.device, level.base) == (device, base)])
    versions = Counter(level.engine_version for level in chosen)
    blank = Calibration(
        study=ledger.name,
        model=objective.model,
        device=device,
        engine_version=versions.most_common(1)[0][0],
        base=base,
        scale_prefill=1.0,
        scale_decode=1.0,
        c0_s=0.0,
        request_s=0.0,
        ttft_fixed_s=chosen[0].front_end_s,
        levels=len(chosen),
        created=provenance.now(),
        provenance={
            "usable_levels": len(usable),
            "versions": ledger.study.get("versions"),
            "machine": ledger.study.get("machine"),
            "engine_versions": sorted(str(version) for version in versions),
        },
    )
    found = Fit(launcher, chosen, blank).run()
    store(found, runs)
    return found


def path_of(runs: Path, calibration: Calibration) -> Path:
    """Where it is stored: one file for each engine version, model and device; a later fit replaces an earlier one."""
    key = [calibration.engine_version, calibration.model, calibration.device]
    return runs / DIRECTORY / f"{provenance.fingerprint(key)}.json"


def store(calibration: Calibration, runs: Path) -> Path:
    """
    Write it under `runs`.

    Raises:
        StudyFailed: Nowhere to write.
    """
    path = path_of(runs, calibration)
    with runfiles.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    runfiles.write_json(path, as_json(calibration))
    return path


def find(runs: Path, objective: Objective) -> Calibration | None:
    """The latest stored fit for the model and a device of this objective; None without one."""
    devices = {setup.device_name(pool) for pool in objective.cluster.pools}
    found = [each for path in sorted((runs / DIRECTORY).glob("*.json")) if (each := _read(path)) is not None]
    fitting = [each for each in found if each.model == objective.model and each.device in devices]
    return max(fitting, key=lambda each: each.created, default=None)


def as_json(calibration: Calibration) -> dict[str, object]:
    """Strict JSON values; `from_json` reads them."""
    return dataclasses.asdict(calibration) | {
        "residuals": [dataclasses.asdict(each) | {"error": each.error} for each in calibration.residuals],
        "expected_error": calibration.expected_error,
    }


def from_json(found: Mapping[str, object]) -> Calibration:
    """
    Raises:
        KeyError, TypeError, ValueError: It is not what `as_json` made.
    """
    values = {field.name: found[field.name] for field in dataclasses.fields(Calibration)}
    keys = [field.name for field in dataclasses.fields(Residual)]
    rows = values.pop("residuals")
    if not isinstance(rows, list):
        raise TypeError(rows)
    calibration = Calibration(**values, residuals=tuple(Residual(*(row[key] for key in keys)) for row in rows))  # type: ignore[arg-type]
    if not (calibration.scale_prefill > 0 and calibration.scale_decode > 0):
        raise ValueError(calibration)
    if min(calibration.c0_s, calibration.request_s, calibration.ttft_fixed_s) < 0:
        raise ValueError(calibration)
    return calibration


def text(calibration: Calibration) -> str:
    """For people: the constants, and how well the levels are met."""
    engine = calibration.engine_version or "of unknown version"
    constants = {
        "scale_prefill": f"{calibration.scale_prefill:.3f}",
        "scale_decode": f"{calibration.scale_decode:.3f}",
        "c0": f"{1000 * calibration.c0_s:.2f} ms",
        "request": f"{1000 * calibration.request_s:.2f} ms",
        "ttft_fixed": f"{1000 * calibration.ttft_fixed_s:.1f} ms",
    }
    lines = [
        f"{calibration.study}: {calibration.levels} levels of {calibration.model} on {calibration.device}",
        f"engine {engine}, step times {calibration.base}",
        "   ".join(f"{name} {value}" for name, value in constants.items()),
        "",
        f"{'trial':>5} {'level':>5} {'load':>9}  " + "  ".join(f"{name:>24}" for name in STATISTICS),
    ]
    places = dict.fromkeys((each.trial, each.level, each.offered) for each in calibration.residuals)
    for trial, level, offered in places:
        mine = {each.statistic: each for each in calibration.residuals if (each.trial, each.level) == (trial, level)}
        cells = "  ".join(f"{_cell(mine[name]) if name in mine else '–':>24}" for name in STATISTICS)
        lines.append(f"{trial:>5} {level:>5} {offered:>9.4g}  {cells}")
    lines += ["", "measured → simulated; simulated studies of this model on this device use the fit from now on"]
    worst = max((error for name in ("ttft_p50", "itl_p50") if (error := calibration.worst(name))), default=0.0)
    if worst > POOR:
        lines.append(
            f"warning: a median is {worst:.0%} off: the levels disagree, as they do when something else ran on the "
            "machine meanwhile, or the engine does what the simulator does not know"
        )
    if calibration.paces < FEWEST_PACES:
        lines.append(
            "warning: hardly two answers were under way together: what a step takes and what each of its requests adds "
            "cannot be told apart; add a level where more meet"
        )
    return "\n".join(lines)


def _cell(residual: Residual) -> str:
    measured, simulated = 1000 * residual.measured_s, 1000 * residual.simulated_s
    return f"{measured:.4g} → {simulated:.4g} ms {residual.error:+.0%}"


def _read(path: Path) -> Calibration | None:
    try:
        return from_json(runfiles.read_json(path))
    except (OSError, runfiles.TornFileError, KeyError, TypeError, ValueError) as error:
        _log.warning("%s: not a calibration, ignored: %r", path, error)
        return None


def _levels(ledger: Ledger, objective: Objective, launcher: SimulatedLauncher) -> list[Measured]:
    found: list[Measured] = []
    for entry in ledger.trials():
        configuration = entry.configuration
        if entry.outcome is None or configuration is None or launcher.check(configuration) is not None:
            continue
        try:
            made = setup.resolve(configuration, objective)
        except ConfigurationFailed:
            continue
        version = entry.outcome.facts.get("engine_version")
        for level in entry.levels():
            if not level.kept or level.invalid or level.stopped:
                continue
            try:
                data = entry.level_data(level.number, objective)
            except MeasurementError as error:
                _log.warning("left out: %s", error)
                continue
            found.append(
                Measured(
                    trial=entry.number,
                    configuration=configuration,
                    data=data,
                    offered=level.offered,
                    device=made.device,
                    base=made.step_times,
                    front_end_s=made.front_end_s,
                    engine_version=None if version is None else str(version),
                    values_s=statistics(data) | paces(data),
                )
            )
    return found


def _spread(levels: Sequence[Measured]) -> list[Measured]:
    """At most `MOST_LEVELS`: of each configuration its lowest load, its highest, and so on from both ends in turn."""
    ranked: list[tuple[int, int, Measured]] = []
    for key in dict.fromkeys(level.configuration.key for level in levels):
        mine = sorted((level for level in levels if level.configuration.key == key), key=lambda level: level.offered)
        both_ends = [level for pair in zip(mine, reversed(mine), strict=True) for level in pair][: len(mine)]
        ranked += [(turn, len(ranked), level) for turn, level in enumerate(both_ends)]
    return [level for _, _, level in sorted(ranked, key=lambda each: each[:2])[:MOST_LEVELS]]
