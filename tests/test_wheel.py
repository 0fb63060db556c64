"""What is installed from the built wheel works without the source tree."""

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy so that nothing appears in the source tree."""
    copy = tmp_path_factory.mktemp("wheel")
    for name in ("LICENSE", "README.md", "pyproject.toml", "tuner", "objectives", "search_spaces"):
        subprocess.run(["cp", "-a", str(ROOT / name), str(copy)], check=True)  # keeps the links
    build = [sys.executable, "-c", "from setuptools import build_meta as b; print(b.build_wheel('.'))"]
    done = subprocess.run(build, cwd=copy, capture_output=True, text=True, check=True)
    return copy / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A directory that holds the wheel's content; its dependencies are those of this environment."""
    target = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def tuner(installed, *arguments, cwd):
    """The installed program, away from the source tree."""
    done = subprocess.run(
        [sys.executable, "-m", "tuner", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_wheel_holds_the_package_alone(wheel):
    """Every module and data file of `tuner`, and nothing else at the top: no tests, no benchmarks."""
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in held} == {
        "tuner",
        f"slo_tuner-{metadata.version('slo-tuner')}.dist-info",
    }
    sources = [path for path in (ROOT / "tuner").rglob("*.*") if "shipped" not in path.parts]
    wanted = {str(path.relative_to(ROOT)) for path in sources if path.suffix not in (".pyc", ".nbi", ".nbc")}
    assert {name for name in wanted if not (ROOT / name).is_dir()} - held == set()


def test_the_installed_program_knows_its_presets(installed, tmp_path):
    """`check` reads a shipped objective and its space by name, from where the wheel was installed."""
    code, out, err = tuner(installed, "check", "chat", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert str(installed) in out
    assert str(ROOT) not in out


def test_the_installed_program_starts_a_user_off(installed, tmp_path):
    """`init` writes the template and `check` accepts it, in an empty directory."""
    assert tuner(installed, "init", cwd=tmp_path)[0] == 0
    code, out, err = tuner(installed, "check", "slo.yaml", "--json", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert '"backend"' in out


def test_the_distribution_names_its_command_and_its_engine():
    """`tuner` is the command; the engine's packages are an extra, never a dependency."""
    scripts = {each.name: each.value for each in metadata.distribution("slo-tuner").entry_points}
    assert scripts == {"tuner": "tuner.cli:main"}
    required = metadata.requires("slo-tuner") or []
    assert all("extra ==" in line for line in required if line.startswith(("vllm", "lmcache", "nixl", "mooncake")))
