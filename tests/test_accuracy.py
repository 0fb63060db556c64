"""The simulated cluster against measured means of a real one: what `benchmarks/accuracy.py` says must stay true."""

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parent.parent / "benchmarks" / "accuracy.py"


@pytest.fixture(scope="module")
def accuracy():
    """The module of the benchmark, which is a script outside every package."""
    spec = importlib.util.spec_from_file_location("benchmark_accuracy", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    yield spec.loader.exec_module(module) or module
    del sys.modules[spec.name]


def rows_of(accuracy, gpu: str, **more: bool):
    wanted = [row for row in accuracy.measured() if row["precision"] == "fp8" and row["gpu"] == gpu]
    return [accuracy.simulate(row, **more) for row in wanted]


@pytest.mark.parametrize(
    ("gpu", "count", "ttft", "tpot"), [("H100-80GB", 45, 0.09, 0.08), ("H200-141GB", 60, 0.15, 0.06)]
)
def test_tables_meet_measured_means_with_nothing_fitted(accuracy, gpu, count, ttft, tpot):
    """Llama-3.1-70B in fp8 at every load, the overloaded ones included: mean errors and ranks of TTFT and TPOT."""
    rows = rows_of(accuracy, gpu)
    assert len(rows) == count
    found = accuracy.errors(rows)
    assert found[0] < ttft
    assert found[1] < tpot
    assert min(accuracy.ranks(rows)) > 0.98
    anchored = accuracy.errors(accuracy.anchored(rows))
    assert anchored[0] < 0.09
    assert anchored[1] < 0.055


def test_overload_comes_by_itself(accuracy):
    """64 requests of 8k on two H100: the cache fills up, requests wait for most of a minute, as they did."""
    (row,) = (
        row
        for row in accuracy.measured()
        if (row["gpu"], row["precision"], row["tensor_parallel"]) == ("H100-80GB", "fp8", "2")
        and (row["input_tokens"], row["concurrency"]) == ("8192", "64")
    )
    found = accuracy.simulate(row)
    assert found.ttft_ms > 50_000
    assert found.preemptions > 0
    assert abs(found.ttft_error) < 0.2


def test_the_roofline_stays_near_the_rows_it_was_set_on(accuracy):
    """Where no cache overflows; models and devices without a table depend on it."""
    wanted = [
        row
        for row in accuracy.measured()
        if (row["gpu"], row["precision"]) == ("H100-80GB", "fp8") and row["concurrency"] in {"4", "16"}
    ]
    ttft, tpot = accuracy.errors(accuracy.simulate(row, roofline=True) for row in wanted)
    assert ttft < 0.10
    assert tpot < 0.08
