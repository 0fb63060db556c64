"""Calibration: constants recovered from levels that were made with known ones, kept, found and used."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tuner import calibration, model, objective_file
from tuner.calibration_fit import paces
from tuner.configuration import Configuration
from tuner.deployment.simulated import SimulatedLauncher
from tuner.errors import InputError
from tuner.events import silent
from tuner.ledger import Ledger
from tuner.load.plan import LevelData
from tuner.measuring import measure
from tuner.optimize import Request, read
from tuner.records import Record
from tuner.simulator import calibrated, setup, tables
from tuner.simulator.calibrated import Calibrated, Calibration
from tuner.trial import Task, run

TEXT = """\
model: Qwen/Qwen3-32B
slo: {{ttft: {{p95: 60s}}, itl: {{p95: 2s}}}}
workload:
  source: {{synthetic: {{input_tokens: 1000, output_tokens: 50}}}}
  load: {{rate: {rate}/s}}
  measure: {{warmup: 2s, duration: 15s, min_requests: 60}}
cluster: {{gpu: H100-80GB, nodes: 1, gpus_per_node: 4}}
prices: {{currency: USD, gpu_hour: 3.99}}
search: {{space: vllm, trials: 4}}
"""
#: Version of the step times that studies of this model on this device are simulated with.
BASE, _ = tables.find(model.facts("Qwen/Qwen3-32B"), "H100-80GB", 4, "bf16", "bf16")
TRUTH = Calibration(
    study="truth",
    model="Qwen/Qwen3-32B",
    device="H100-80GB",
    engine_version="0.32.0",
    base=BASE,
    scale_prefill=1.6,
    scale_decode=0.8,
    c0_s=0.004,
    request_s=0.0002,
    ttft_fixed_s=0.060,
    levels=0,
)
#: Tensor parallelism and load of each trial.
LOADS = ((4, 2), (4, 8), (2, 1), (2, 4))


def objective_path(directory: Path, rate: float = 2.0, text: str = TEXT) -> Path:
    path = directory / f"slo-{rate}.yaml"
    path.write_text(text.format(rate=rate))
    return path


def live_study(
    directory: Path, name: str = "live", *, source: str = "live", loads=LOADS, full: bool = True, disturbed: int = -1
) -> Ledger:
    """A study whose levels come from a simulator with the constants of `TRUTH`; steps of one may take twice that."""
    ledger = Ledger.create(
        directory / "runs",
        name,
        objective_yaml=objective_path(directory).read_text(),
        fingerprints={},
        seed=0,
        source=source,
    )
    for number, (tensor_parallel, rate) in enumerate(loads):
        objective = objective_file.load(objective_path(directory, rate))
        configuration = Configuration({"tensor_parallel_size": tensor_parallel})
        ledger.begin(number, 1, configuration)
        slow = replace(TRUTH, scale_prefill=2 * TRUTH.scale_prefill, scale_decode=2 * TRUTH.scale_decode)
        truth = slow if number == disturbed else TRUTH
        outcome = run(
            Task(number, 1, configuration, seed=0, first=None, beat=None),
            SimulatedLauncher(objective, calibration=truth).deployment(configuration, directory),
            objective,
            keep=lambda level, data, number=number: ledger.write_level(number, level, data, full=full),
            listen=lambda event: None,
            expired=lambda: False,
        )
        ledger.finish(replace(outcome, facts={"engine_version": "0.32.0"}))
    return ledger


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Directory of a live study, and what was fitted to it."""
    directory = tmp_path_factory.mktemp("calibration")
    ledger = live_study(directory)
    return directory, calibration.calibrate(ledger, directory / "runs")


def test_known_constants_are_recovered(fitted):
    """Prompts, front end and decode steps of either size cost what they truly cost, within a few percent."""
    _, found = fitted
    assert (found.levels, found.device, found.engine_version) == (4, "H100-80GB", "0.32.0")
    assert found.scale_prefill == pytest.approx(TRUTH.scale_prefill, rel=0.05)
    assert found.ttft_fixed_s == pytest.approx(TRUTH.ttft_fixed_s, rel=0.1)
    objective = objective_file.load(objective_path(fitted[0]))
    for tensor_parallel in (2, 4):
        made = setup.resolve(Configuration({"tensor_parallel_size": tensor_parallel}), objective)
        true, ours = (calibrated.apply(each, made).step_time.step((), 8, 8000) for each in (TRUTH, found))
        assert ours == pytest.approx(true, rel=0.06)


def test_residuals_say_how_well_the_levels_are_met(fitted):
    """Four statistics of each level, none far off, and the worst of each in words."""
    _, found = fitted
    assert len(found.residuals) == 4 * len(LOADS)
    assert found.worst("ttft_p50") < 0.05
    assert found.worst("itl_p50") < 0.08
    assert "on the 4 levels it was fitted to" in found.expected_error["ttft"]
    assert "warning" not in calibration.text(found)
    assert set(found.expected_error) == {"ttft", "tpot", "itl", "e2el"}


def test_of_many_levels_low_and_high_loads_count_alike(tmp_path):
    """Five levels at either of two loads: four of each are fitted."""
    found = calibration.calibrate(live_study(tmp_path, loads=(*[(4, 1)] * 5, *[(4, 6)] * 5)), tmp_path / "runs")
    assert found.levels == calibration.MOST_LEVELS
    fitted = [each.offered for each in found.residuals if each.statistic == "itl_p50"]
    assert sorted(fitted) == [1.0] * 4 + [6.0] * 4


def test_one_disturbed_level_does_not_move_the_others(tmp_path):
    """Four levels, and one beside another program: the four are met as without it, and the reader is warned."""
    found = calibration.calibrate(live_study(tmp_path, loads=(*LOADS, (4, 3)), disturbed=4), tmp_path / "runs")
    assert found.scale_prefill == pytest.approx(TRUTH.scale_prefill, rel=0.1)
    quiet = [each for each in found.residuals if each.trial != 4]
    assert max(abs(each.error) for each in quiet if each.statistic.endswith("p50")) < 0.1
    assert "warning: a median is" in calibration.text(found)


def test_paces_tell_steps_by_how_many_share_them():
    """Two answers alone, then beside each other: 4 ms a token alone, 10 ms beside another, whatever their number."""

    def answer(start_s: float, gaps: list[float]) -> Record:
        times = np.cumsum([start_s, *gaps]).tolist()
        return Record(
            "0", 0.0, 0.0, times[0], times[-1], 5, 5, len(times), len(times), "usage",
            tuple((time_s, 1) for time_s in times), "ok", None, "measured",
        )  # fmt: skip

    alone = [answer(0.0, [0.004] * 20), answer(1.0, [0.004] * 20)]
    both = [answer(2.0, [0.010] * 4), answer(2.001, [0.010] * 4)]
    found = paces(LevelData(None, (*alone, *both), 0.0, 3.0, 1.0), fewest=4)
    assert found == {"pace_1": pytest.approx(0.004), "pace_2": pytest.approx(0.010)}
    assert paces(LevelData(None, tuple(both), 0.0, 3.0, 1.0), fewest=100) == {}
    assert paces(LevelData(None, (), 0.0, 3.0, 1.0)) == {}
    at_once = answer(3.0, [0.0] * 4)  # all in one read
    assert paces(LevelData(None, (at_once,), 0.0, 3.0, 1.0), fewest=1) == {}


def test_levels_where_nobody_meets_are_told(fitted):
    """Requests one at a time cannot tell what a step takes from what each of its requests adds."""
    _, found = fitted
    assert found.paces >= 2
    assert "hardly two answers" not in calibration.text(found)
    assert "warning: hardly two answers were under way together" in calibration.text(replace(found, paces=1))


def test_a_fit_is_stored_and_comes_back(fitted):
    """The file holds everything; it is found for this model and device and for no other."""
    directory, found = fitted
    path = calibration.path_of(directory / "runs", found)
    assert calibration.from_json(json.loads(path.read_text())) == found
    objective = objective_file.load(objective_path(directory))
    assert calibration.find(directory / "runs", objective) == found
    assert calibration.find(directory / "runs", replace(objective, model="Qwen/Qwen3-8B")) is None
    assert calibration.find(directory / "elsewhere", objective) is None


def test_the_latest_fit_is_used(fitted, tmp_path):
    """Another engine version has a file of its own; the newer one counts. A damaged file is passed over."""
    directory, found = fitted
    older = replace(found, engine_version="0.31", created="2020-01-01T00:00:00.000000Z")
    assert calibration.store(found, tmp_path) != calibration.store(older, tmp_path)
    (tmp_path / calibration.DIRECTORY / "0.json").write_text('{"study": ')
    (tmp_path / calibration.DIRECTORY / "1.json").write_text(json.dumps(calibration.as_json(found) | {"c0_s": -1}))
    assert calibration.find(tmp_path, objective_file.load(objective_path(directory))) == found


def test_later_studies_use_it_and_say_so(fitted):
    """Facts name the study and the residuals; times are those of the fit; another device is left alone."""
    directory, found = fitted
    objective = objective_file.load(objective_path(directory))
    configuration = Configuration({"tensor_parallel_size": 2})
    with SimulatedLauncher(objective, calibration=found).deployment(configuration, directory) as running:
        assert running.facts["step_times"] == "tables of measured kernels, calibrated on live (4 levels)"
        assert running.facts["expected_error"] == found.expected_error
        assert running.facts["front_end_s"] == found.ttft_fixed_s
    for other in (replace(found, device="A100-80GB"), replace(found, base="roofline-0")):
        with SimulatedLauncher(objective, calibration=other).deployment(configuration, directory) as running:
            assert running.facts["step_times"] == "tables of measured kernels"
            assert running.facts["front_end_s"] == setup.FRONT_END_S["gpu"]


def test_a_measurement_uses_it_and_says_so(fitted, tmp_path):
    """`tuner measure --backend simulated` takes the calibrations of --runs, as a study does."""
    directory, found = fitted
    knobs = tmp_path / "knobs.json"
    knobs.write_text('{"tensor_parallel_size": 2}')
    facts = {}
    for runs in (directory / "runs", tmp_path / "none"):
        measured = measure(
            objective_path(tmp_path),
            url=None,
            configuration=knobs,
            backend="simulated",
            out=tmp_path / "out",
            runs=runs,
            seed=0,
            listen=silent,
            replace=True,
        )
        facts[runs.name] = measured["facts"]
    assert facts["runs"]["step_times"] == "tables of measured kernels, calibrated on live (4 levels)"
    assert facts["runs"]["expected_error"] == found.expected_error
    assert facts["none"]["step_times"] == "tables of measured kernels"


def test_a_resumed_study_keeps_its_calibration(fitted, tmp_path):
    """A simulated study that was begun before a calibration is another study after it."""
    directory, _ = fitted
    slo = objective_path(directory)
    before = read(Request(slo, backend="simulated", runs=tmp_path)).fingerprints()
    after = read(Request(slo, backend="simulated", runs=directory / "runs")).fingerprints()
    assert set(after) - set(before) == {"calibration"}
    assert read(Request(slo, backend="local", runs=directory / "runs")).calibration is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "simulated"}, "name a live study"),
        ({"full": False, "loads": LOADS[:1]}, "no level of it can be used"),
        ({"loads": ()}, "no level of it can be used"),
    ],
    ids=["simulated", "summaries", "empty"],
)
def test_a_study_without_usable_levels_is_refused(tmp_path, settings, message):
    """The message says what is needed; nothing is stored."""
    with pytest.raises(InputError, match=message):
        calibration.calibrate(live_study(tmp_path, **settings), tmp_path / "runs")
    assert not (tmp_path / "runs" / calibration.DIRECTORY).exists()


def test_the_command_fits_and_prints(tmp_path):
    """`tuner calibrate STUDY` prints the constants; with --json, the stored document."""
    ledger = live_study(tmp_path, loads=LOADS[:1])
    command = [sys.executable, "-m", "tuner", "calibrate", ledger.name, "--runs", str(tmp_path / "runs")]
    plain = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "scale_prefill" in plain.stdout
    assert "measured → simulated" in plain.stdout
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    (stored,) = (tmp_path / "runs" / calibration.DIRECTORY).glob("*.json")
    assert json.loads(done.stdout) == json.loads(stored.read_text())
    refused = subprocess.run([*command[:4], "nothing", *command[5:]], capture_output=True, text=True, check=False)
    assert refused.returncode == 2


def test_corrected_steps_are_sums_of_their_parts():
    """c0 + a share of each request + decodes alone x one scale + what prompts add x the other; each by hand."""

    class Whole:
        def step(self, prefills, decodes, context):
            return 1.0 + 2.0 * len(prefills) + 3.0 * decodes + 0.0 * context

    made = Calibrated(Whole(), scale_prefill=10.0, scale_decode=0.5, c0_s=0.25, request_s=0.125)
    assert made.step((), 2, 9) == 0.25 + 2 * 0.125 + 0.5 * 7.0
    assert made.step(((5, 0),), 0, 0) == 0.25 + 0.125 + 10.0 * 3.0
    assert made.step(((5, 0),), 2, 9) == 0.25 + 3 * 0.125 + 0.5 * 7.0 + 10.0 * 2.0
