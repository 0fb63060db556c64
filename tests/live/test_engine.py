"""Tests of live deployments on a real vLLM (CPU build, tiny model)."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.live_engine import live_objective

from tuner.configuration import Configuration
from tuner.deployment import guardian
from tuner.deployment.launch import Launch
from tuner.deployment.local import LocalLauncher
from tuner.errors import ConfigurationFailed
from tuner.load.plan import LevelPlan
from tuner.slo import Cache, Synthetic

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("engine_environment")]


def plan_for(number: int, rate_rps: float = 4.0) -> LevelPlan:
    """About 30 measured requests at a low rate."""
    objective = live_objective()
    return LevelPlan(objective.model, objective.workload, objective.slo, number, 1, rate_rps, None, 30)


@pytest.fixture(scope="module")
def engine(engine_environment, tmp_path_factory) -> Iterator[Launch]:
    """One engine for all tests that leave it alive."""
    directory = tmp_path_factory.mktemp("engine")
    launcher = LocalLauncher(live_objective(), registry=directory / "registry")
    with launcher.deployment(Configuration({}), directory / "logs") as running:
        yield running
    assert list((directory / "registry").iterdir()) == []


def test_engine_serves_requests_with_exact_lengths(engine):
    """Every request of a low rate is answered; its prompt and its answer have exactly the tokens asked for."""
    measured = [record for record in engine.drive(plan_for(1)).records if record.phase == "measured"]
    assert len(measured) >= 30
    assert {record.status for record in measured} == {"ok"}
    assert {record.token_source for record in measured} == {"usage"}
    assert {record.input_tokens for record in measured} == {64}
    assert {record.output_tokens for record in measured} == {8}
    assert engine.facts["engine_version"].startswith("0.32.0")


def test_counters_and_gauges_are_of_this_level(engine):
    """The engine's own counts of tokens are those of the records; gauges were sampled each second."""
    data = engine.drive(plan_for(2))
    complete = sum(record.status == "ok" for record in data.records)  # the others were cut off in the drain
    assert 64 * complete <= data.counters["prompt_tokens_total"] <= 64 * len(data.records)
    assert 8 * complete <= data.counters["generation_tokens_total"] <= 8 * len(data.records)
    assert data.counters["prompt_tokens_by_source_total.local_compute"] > 0
    assert len(data.samples) >= 3
    assert {"t_s", "num_requests_running", "kv_cache_usage_perc"} <= set(data.samples[0])


def test_prefix_cache_is_reset_between_levels_unless_steady(engine):
    """The same prompts again hit nothing after a cold start of the level, and hit when the cache is left alone."""
    first = plan_for(3)  # longer than two blocks, of 128 tokens each on a CPU
    first = replace(first, workload=replace(first.workload, source=Synthetic(300, 4)))
    steady = replace(first, workload=replace(first.workload, cache=Cache("steady")))
    engine.drive(first)
    assert engine.drive(first).counters["prefix_cache_hits_total"] == 0
    assert engine.drive(steady).counters["prefix_cache_hits_total"] > 0


def test_ray_places_a_real_engine(engine_environment, tmp_path):
    """The same deployment through Ray: real tokens, the log streamed back, nothing left."""
    ray_launcher = pytest.importorskip("tuner.deployment.ray")
    launcher = ray_launcher.RayLauncher(live_objective(), study=str(tmp_path))
    try:
        with launcher.deployment(Configuration({}), tmp_path) as running:
            data = running.drive(plan_for(1))
        assert {record.status for record in data.records if record.phase == "measured"} == {"ok"}
        assert "Application startup complete" in (tmp_path / "engine-0.log").read_text()
    finally:
        launcher.close()


def test_refused_flag_is_the_configurations_fault(tmp_path):
    """A flag that vLLM does not know ends as bad_flag with the parser's own line, long before the time limit."""
    launcher = LocalLauncher(live_objective(no_such_flag=3), registry=tmp_path / "registry")
    with pytest.raises(ConfigurationFailed) as caught, launcher.deployment(Configuration({}), tmp_path):
        pass
    assert caught.value.reason == "bad_flag"
    assert "--no-such-flag" in caught.value.cause


def test_killed_api_server_is_noticed_in_seconds_and_leaves_nothing(engine_environment, tmp_path):
    """SIGKILL of the API server under load: server_died within seconds; engine core and worker are gone too."""
    launcher = LocalLauncher(live_objective(), registry=tmp_path / "registry")
    deployment = launcher.deployment(Configuration({}), tmp_path)
    killed_at: list[float] = []

    def kill(pid: int) -> None:
        killed_at.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)

    with contextlib.ExitStack() as stack:
        running = stack.enter_context(deployment)
        server, keeper = running._handles["engine-0"].pids()
        family = guardian.descendants(keeper)
        assert len(family) >= 2  # API server and engine core at least
        timer = threading.Timer(2.0, kill, [server])
        timer.start()
        with pytest.raises(ConfigurationFailed) as caught:
            running.drive(plan_for(1))
        seen_s = time.monotonic() - killed_at[0]
    assert caught.value.reason == "server_died"
    assert seen_s < 15
    assert [each for each in family if guardian.identify(each.pid) == each] == []
    assert list(Path(tmp_path / "registry").iterdir()) == []
