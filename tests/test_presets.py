"""What ships."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tuner import objective_file, objective_warnings, optimize, presets, preview, space_file
from tuner.errors import InputError
from tuner.slo import Load, Objective, Synthetic

ROOT = Path(__file__).parent.parent


def test_the_presets_are_the_files_of_the_source_tree():
    """Names come from the folders, nothing is listed twice."""
    assert presets.list_objectives() == sorted(path.stem for path in (ROOT / "objectives").glob("*.yaml"))
    assert presets.list_spaces() == sorted(path.stem for path in (ROOT / "search_spaces").glob("*.yaml"))
    assert presets.objective_path("chat") == ROOT / "objectives" / "chat.yaml"


def test_an_unknown_name_is_answered_with_the_nearest():
    """The message lists what ships; a name is never a path."""
    with pytest.raises(InputError, match="did you mean 'chat'"):
        presets.objective_path("chatt")
    with pytest.raises(InputError, match="no search space of this name ships"):
        presets.space_path("../objectives/chat")


@pytest.mark.parametrize("name", presets.list_objectives())
def test_every_shipped_objective_loads_by_its_name(name):
    """No fault and nothing odd, but for a model that has yet to be made; resolved, it is the same objective."""
    objective = objective_file.load(name)
    odd = [warning for warning in objective_file.warnings(objective) if not warning.startswith("model: there is no")]
    assert odd == []
    assert objective_file.loads(objective_file.dump(objective), objective.path) == objective


def test_every_way_of_pricing_ships():
    """Prices per hour, per second and per server and month, in dollars and in yen, each with date and source."""
    texts = [presets.objective_path(name).read_text(encoding="utf-8") for name in presets.list_objectives()]
    for key in ("gpu_hour:", "gpu_second:", "server_month:", "currency: JPY", "currency: USD"):
        assert any(key in text for text in texts)
    sakura = objective_file.load("batch")
    assert (sakura.prices.currency, sakura.cluster.pools[0].price_per_hour) == ("JPY", 1008.0)
    phy = objective_file.load("code-completion").cluster.pools[0]
    assert phy.price_per_hour == pytest.approx(2436896 / 8 / 730)


def test_a_wheel_ships_presets_and_tables(tmp_path):
    """What is installed from a wheel holds the same files as the source tree."""
    for name in ("LICENSE", "README.md", "pyproject.toml", "tuner", "objectives", "search_spaces"):
        subprocess.run(["cp", "-a", str(ROOT / name), str(tmp_path)], check=True)  # keeps the links
    build = [sys.executable, "-c", "from setuptools import build_meta as b; print(b.build_wheel('.'))"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=True)
    held = set(zipfile.ZipFile(tmp_path / done.stdout.split()[-1]).namelist())
    shipped = [*(ROOT / "objectives").rglob("*.*"), *(ROOT / "search_spaces").rglob("*.*")]
    assert {f"tuner/shipped/{path.relative_to(ROOT)}" for path in shipped} <= held
    assert {f"tuner/data/{path.name}" for path in (ROOT / "tuner" / "data").glob("*.*")} <= held


@pytest.mark.parametrize("name", presets.list_objectives())
def test_no_shipped_objective_gives_stores_away(name):
    """Where its space tries a KV store, the file says what the memory costs."""
    objective = objective_file.load(name)
    space = space_file.load(Path(objective.search.space))
    assert objective_warnings.of_space(objective, space) == []


def reference(name: str) -> Objective:
    return objective_file.load(f"reference-{name}")


def test_the_reference_cases_are_those_that_were_published():
    """8k tokens in, 1k out, 32 at a time on four GPUs; and 8k in, of which others had the half."""
    split, capacity, reuse = reference("pd-8k"), reference("pd-8k-capacity"), reference("kv-reuse")
    assert split.workload.source == capacity.workload.source == Synthetic(8000, 1000)
    assert (split.workload.load, capacity.workload.load) == (Load("concurrency", concurrency=32), Load("find_capacity"))
    assert reuse.workload.source == Synthetic(8000, 100, shared_prefix_tokens=4000, prefixes=200)
    for each in (split, capacity, reuse):
        assert (each.cluster.max_gpus, Path(each.search.space).stem) == (4, "vllm-pd")
        assert each.baseline == {"mode": "aggregated", "tensor_parallel_size": 4, "replicas": 1}
        assert not preview.preview(optimize.Request(slo=Path(each.path), backend="simulated")).warnings


@pytest.mark.parametrize(("name", "scale"), [("pd", 8), ("kv-reuse", 4)])
def test_the_live_twins_are_scaled_down_on_the_same_knobs(name, scale):
    """Two slots of one core, lengths divided; the share that is shared stays a half."""
    small, large = reference(f"{name}-cpu"), reference({"pd": "pd-8k"}.get(name, name))
    assert small.cluster.max_gpus == 2
    assert Path(small.search.space).stem == "vllm-pd-cpu"
    one, other = small.workload.source, large.workload.source
    assert one.input_tokens == pytest.approx(other.input_tokens / scale, rel=0.03)
    assert one.shared_prefix_tokens / one.input_tokens == other.shared_prefix_tokens / other.input_tokens
