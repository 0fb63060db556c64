"""What ships."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tuner import objective_file, presets
from tuner.errors import InputError

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
