"""`tuner export` as a shell sees it: streams, files, exit codes."""

import json
import os

import pytest
from support.exports import written
from support.program import finished


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A directory whose `runs` holds one simulated study."""
    path = tmp_path_factory.mktemp("export")
    written(path / "runs", source="simulated")
    return path


def test_the_text_alone_is_on_standard_output(home):
    """So that it can be piped; that it is simulated is said beside it."""
    code, out, err = finished("export", "chat-h100", "--format", "kubernetes", cwd=home)
    assert code == 0
    assert out.startswith("# Trial ")
    assert "warning: simulated" in err


def test_a_directory_takes_the_file(home):
    """A script is written ready to run; --json tells where it lies and what it is."""
    code, out, err = finished(
        "export", "chat-h100", "--format", "shell", "--trial", "baseline", "--out", "here", "--json", cwd=home
    )
    told = json.loads(out)
    assert (code, told["path"]) == (0, "here/deploy.sh")
    assert told["provenance"]["trial"] == 0
    assert os.access(home / "here" / "deploy.sh", os.X_OK)
    assert "warning" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("chat-h100", "--format", "shell", "--trial", "77"), "no finished trial 77"),
        (("nowhere", "--format", "shell"), "nowhere"),
        (("chat-h100", "--format", "compose", "--rdma", "rdma/x"), "--rdma"),
    ],
    ids=["trial", "study", "option"],
)
def test_wrong_input_ends_with_two_and_one_line(home, arguments, said):
    """Nothing on standard output, the reason on one line."""
    code, out, err = finished("export", *arguments, cwd=home)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("tuner: ")
    assert err.count("\n") == 1
