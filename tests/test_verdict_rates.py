"""How often verdicts are wrong: the benchmark's simulation, small and seeded."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from support.handmade import request

from tuner.early import EarlyFailure
from tuner.slo import Limit, Slo

_PATH = Path(__file__).parents[1] / "benchmarks" / "verdicts.py"


@pytest.fixture(scope="module")
def simulation():
    """The module of the benchmark, which is a script outside every package."""
    spec = importlib.util.spec_from_file_location("benchmark_verdicts", _PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def level(run, limit, simulation):
    """Records whose violations are those of one simulated run."""
    gaps = simulation.GAPS
    slow = round(gaps * simulation.BAD_SHARES[limit])
    answers = {}
    for bad in (False, True):
        steps = [2000.0] * slow + [500.0] * (gaps - slow) if bad else [500.0] * gaps
        times = np.cumsum([2000.0 if bad else 500.0, *steps])
        answers[bad] = request([(time, 1) for time in times.tolist()])
    return [answers[bool(bad)] for bad in run]


@pytest.mark.parametrize("limit", ["request", "pooled half"])
def test_the_simulation_is_of_the_test_that_runs(simulation, limit):
    """Fed with records, EarlyFailure fails at the same request as the benchmark's arrays."""
    found = simulation.violations(np.random.default_rng(6), 12, 150, 0.08, 2)
    slo = Slo((Limit("ttft" if limit == "request" else "itl", "p99", 1.0),))
    for run, expected in zip(found, simulation.first_failures(found, limit), strict=True):
        early = EarlyFailure(slo, longest_output_tokens=simulation.GAPS)
        if limit != "request":
            early._tests[0][1]._longest = simulation.GAPS
        records = level(run, limit, simulation)
        first = next((index for index, record in enumerate(records, 1) if early.update(record)), 0)
        assert first == expected


@pytest.mark.parametrize("burst", [1, 2, 5])
def test_simulated_violations_have_the_share_and_the_bursts_asked_for(simulation, burst):
    """The share is exact on average, and runs of violations are as long as the bursts."""
    found = simulation.violations(np.random.default_rng(7), 400, 2000, 0.02, burst)
    assert found.mean() == pytest.approx(0.02, rel=0.05)
    ends = found[:, 1:-1] & ~found[:, 2:]
    assert found.sum() / ends.sum() == pytest.approx(burst, rel=0.1)


@pytest.mark.parametrize("limit", ["request", "pooled all"])
@pytest.mark.parametrize("burst", [1, 2])
def test_a_kept_limit_is_rarely_failed(simulation, limit, burst):
    """At exactly the allowed share at most 5 % of levels fail, in 4,000 requests."""
    found = simulation.violations(np.random.default_rng(8), 300, 4000, 0.01, burst)
    assert (simulation.first_failures(found, limit) > 0).mean() <= 0.05


@pytest.mark.parametrize(("share", "most"), [(0.05, 200), (0.2, 25)])
def test_a_broken_limit_is_failed_soon(simulation, share, most):
    """Mean requests to reject 5 % and 20 % under a limit of 1 %."""
    found = simulation.violations(np.random.default_rng(9), 1500, 1500, share, 1)
    first = simulation.first_failures(found)
    assert (first > 0).all()
    assert first.mean() <= most


@pytest.mark.parametrize("limit", ["request", "pooled half"])
@pytest.mark.parametrize(("burst", "most"), [(2, 0.05), (5, 0.1)])
@pytest.mark.parametrize("n", [600, 950])
def test_a_limit_broken_twofold_rarely_passes(simulation, limit, burst, most, n):
    """At twice the allowed share at most 5 % of levels pass with bursts of 2, 10 % with bursts of 5."""
    share = 0.02 / simulation.BAD_SHARES[limit]
    found = simulation.violations(np.random.default_rng(10), 200, n, share, burst)
    assert simulation.passes(found, limit) <= most
