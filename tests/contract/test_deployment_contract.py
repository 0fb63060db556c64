"""One suite for every kind of deployment: this machine, Ray, simulated cluster."""

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.deployments import level, shim_objective, shims

from tuner.configuration import Configuration
from tuner.deployment import Answering, Launcher
from tuner.deployment.local import LocalLauncher
from tuner.deployment.simulated import SimulatedLauncher
from tuner.load.plan import LevelPlan
from tuner.slo import Cluster, Limit, Objective, Pool, Slo

CONFIGURATION = Configuration({"max_num_seqs": 32})


@dataclass(frozen=True)
class Kind:
    """One kind of deployment, ready to be tried."""

    launcher: Launcher
    objective: Objective
    left: Callable[[], object]  # what is still there of it: falsy when nothing is

    def plan(self, number: int, *, rate_rps: float = 40.0, **changes: object) -> LevelPlan:
        """A short level."""
        return replace(level(self.objective, number, rate_rps=rate_rps), **changes)


@pytest.fixture(params=["local", "ray", "simulated"], scope="module")
def kind(request, tmp_path_factory) -> Iterator[Kind]:
    """Each kind in turn."""
    here: Path = tmp_path_factory.mktemp(request.param)
    objective = shim_objective({"SHIM_RECORD": str(here)})

    def live_left() -> object:
        return shims(here)

    if request.param == "local":
        launcher: Launcher = LocalLauncher(objective, registry=here / "registry")
        yield Kind(launcher, objective, lambda: live_left() or list((here / "registry").iterdir()))
    elif request.param == "ray":
        ray = pytest.importorskip("tuner.deployment.ray")
        launcher = ray.RayLauncher(objective, study=str(here))
        yield Kind(launcher, objective, live_left)
    else:
        pool = Pool("h100", "gpu", "H100-80GB", 1, 1, 3.0)
        objective = replace(
            objective,
            model="meta-llama/Llama-3.1-8B-Instruct",
            cluster=Cluster((pool,), 1),
            path=str(here / "slo.yaml"),
        )
        launcher = SimulatedLauncher(objective)
        yield Kind(launcher, objective, list)
    launcher.close()
    launcher.close()  # a second time is nothing


def test_level_yields_every_request_once(kind, tmp_path):
    """All arrivals of the window are there in order of arrival, each decided, at the rate that was realised."""
    with kind.launcher.deployment(CONFIGURATION, tmp_path) as running:
        data = running.drive(kind.plan(1))
    measured = [record for record in data.records if record.phase == "measured"]
    assert len(measured) >= 10
    assert {record.status for record in measured} == {"ok"}
    assert len({record.id for record in data.records}) == len(data.records)
    arrivals = [record.scheduled_s for record in data.records]
    assert arrivals == sorted(arrivals)
    assert math.isclose(data.realised_rps, len(measured) / data.window_s, rel_tol=1e-9)
    for record in measured:
        assert sum(tokens for _, tokens in record.chunks) == record.output_tokens == 4
        assert record.scheduled_s <= record.first_token_s <= record.last_token_s


def test_rate_is_that_of_the_whole_window(kind, tmp_path):
    """Two requests, answered long before the window ends: the rest of the window counts as well."""
    with kind.launcher.deployment(CONFIGURATION, tmp_path) as running:
        data = running.drive(kind.plan(17, rate_rps=8.0, min_requests=1))
    arrivals = [record.scheduled_s for record in data.records if record.phase == "measured"]
    assert arrivals[-1] < data.window_start_s + 0.6 * data.window_s
    assert math.isclose(data.realised_rps, len(arrivals) / data.window_s, rel_tol=1e-9)


def test_nothing_is_left_and_it_can_be_entered_again(kind, tmp_path):
    """After leaving, nothing is there; entering again works as the first time."""
    deployment = kind.launcher.deployment(CONFIGURATION, tmp_path)
    for _ in range(2):
        with deployment as running:
            assert running.drive(kind.plan(1)).records
        assert not kind.left()


def test_nothing_is_left_after_an_exception(kind, tmp_path):
    """An error of the caller's passes through, and takes everything down."""
    with pytest.raises(ZeroDivisionError), kind.launcher.deployment(CONFIGURATION, tmp_path):
        raise ZeroDivisionError
    assert not kind.left()


def test_same_number_and_seed_give_the_same_requests(kind, tmp_path):
    """Two levels of one number have one schedule and one set of lengths; another number has another schedule."""
    with kind.launcher.deployment(CONFIGURATION, tmp_path) as running:
        first, again, other = (running.drive(kind.plan(number)) for number in (3, 3, 4))

    def shape(data: object) -> list[tuple[float, int, int]]:
        return [
            (round(record.scheduled_s, 9), record.asked_input_tokens, record.asked_output_tokens)
            for record in data.records
            if record.phase == "measured"
        ]

    assert shape(first) == shape(again)
    assert shape(first) != shape(other)


def test_schedule_scales_with_the_rate(kind, tmp_path):
    """Twice the rate is the same schedule in half the time."""
    with kind.launcher.deployment(CONFIGURATION, tmp_path) as running:
        slow, fast = (running.drive(kind.plan(5, rate_rps=rate)) for rate in (20.0, 40.0))
    pairs = list(zip(slow.records, fast.records, strict=False))[:10]
    for left, right in pairs:
        assert math.isclose(left.scheduled_s, 2 * right.scheduled_s, rel_tol=1e-6, abs_tol=1e-6)


def test_level_that_breaks_a_limit_is_stopped_early(kind, tmp_path):
    """A promise that nobody can keep ends the level as soon as that is certain, with the limit's name."""
    impossible = Slo((Limit("ttft", "p95", 1e-6),))
    plan = kind.plan(6, slo=impossible, min_requests=2000, rate_rps=50.0)
    with kind.launcher.deployment(CONFIGURATION, tmp_path) as running:
        data = running.drive(plan)
    assert (data.stopped, data.stop_detail) == ("slo", "ttft_p95")
    assert sum(record.phase == "measured" for record in data.records) < 500


def test_live_deployments_answer_single_questions(kind, tmp_path):
    """One completion outside of any level, counted by the engine; what is simulated answers nothing."""
    body = {"model": kind.objective.model, "prompt": "one two three", "max_tokens": 2, "temperature": 0}
    with kind.launcher.deployment(CONFIGURATION, tmp_path) as running:
        assert isinstance(running, Answering) == (running.source == "live")
        if isinstance(running, Answering):
            before = running.counters()["prompt_tokens_total"]
            status, answer = running.ask(body)
            assert (status, json.loads(answer)["usage"]["completion_tokens"]) == (200, 2)
            running.forget()
            assert running.counters()["prompt_tokens_total"] - before == 3


def test_facts_and_commands_are_json(kind, tmp_path):
    """What is kept about a deployment is strict JSON, and says what it comes from; only a live one has real ports."""
    deployment = kind.launcher.deployment(CONFIGURATION, tmp_path)
    with deployment as running:
        json.dumps(dict(running.facts), allow_nan=False)
        assert running.source == kind.launcher.source
    json.dumps(deployment.commands, allow_nan=False)
    templates = any("${" in token for command in deployment.commands for token in command["argv"])
    assert templates == (running.source == "simulated")


def test_shape_that_never_fits_has_a_reason(kind):
    """A configuration of 64 units is refused with a reason, one of a single unit is not; at least one fits at once."""
    assert kind.launcher.check(Configuration({"tensor_parallel_size": 64}))
    assert kind.launcher.check(CONFIGURATION) is None
    assert kind.launcher.parallel >= 1


def test_own_environment_is_untouched(kind, tmp_path):
    """A deployment changes nothing in the tuner's own environment."""
    before = dict(os.environ)
    with kind.launcher.deployment(CONFIGURATION, tmp_path):
        pass
    assert dict(os.environ) == before
