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


def test_another_file_is_replaced_by_force_alone(home):
    """The same text again is fine; what somebody changed is theirs until --force."""
    command = ("export", "chat-h100", "--format", "compose", "--out", "mine")
    assert finished(*command, cwd=home)[0] == 0
    assert finished(*command, cwd=home)[0] == 0
    path = home / "mine" / "compose.yaml"
    path.write_text("edited")
    code, out, err = finished(*command, cwd=home)
    assert (code, out) == (2, "")
    assert "give --force" in err
    assert path.read_text() == "edited"
    assert finished(*command, "--force", cwd=home)[0] == 0
    assert path.read_text() != "edited"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("chat-h100", "--format", "shell", "--trial", "77"), "no finished trial 77"),
        (("nowhere", "--format", "shell"), "nowhere"),
        (("chat-h100", "--format", "shell", "--out", "runs/chat-h100/study.json/x"), "--out: got"),
        (("chat-h100", "--format", "compose", "--rdma", "rdma/x"), "--rdma"),
    ],
    ids=["trial", "study", "directory", "option"],
)
def test_wrong_input_ends_with_two_and_one_line(home, arguments, said):
    """Nothing on standard output, the reason on one line."""
    code, out, err = finished("export", *arguments, cwd=home)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("tuner: ")
    assert err.count("\n") == 1
