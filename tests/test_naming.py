"""Names of studies stay inside the runs directory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner import naming
from tuner.errors import InputError

EVIL = [
    "../../evil", "/abs", "a/b", "..", ".", "", "a\0b", "x" * 300, "-rf", ".hidden", "a b", "a\nb", "ü", "mlflow.db",
    "README.md", "chat.corrupt", "a\\b", "~", "$HOME",
]  # fmt: skip


@pytest.mark.parametrize("name", EVIL)
def test_a_name_that_could_lead_elsewhere_is_refused_with_one_that_could_not(tmp_path, name):
    """
    The message gives the rule and a valid name; nothing is written.
    """
    with pytest.raises(InputError, match=r"--study: got .*: it (is|has|must) .*; use for example [\w.-]+$"):
        naming.study_directory(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["chat", "2026-11-29", "a.b_c-d", "A" * naming.LONGEST])
def test_plain_names_stay_as_they_are(tmp_path, name):
    """
    What is valid is neither refused nor changed.
    """
    assert naming.study_directory(tmp_path, name) == tmp_path / name
    assert naming.slug(name) == name


@given(st.text())
def test_every_text_has_a_valid_slug(text):
    """
    A slug is always a valid name and always the same.
    """
    made = naming.slug(text)
    assert naming.why_invalid(made) is None
    assert naming.slug(text) == made


def test_different_texts_have_different_slugs():
    """
    Two studies never share a directory by accident.
    """
    assert len({naming.slug(text) for text in ["a b", "a-b", "a/b", "A b", "a  b"]}) == 5


def test_a_link_out_of_the_runs_directory_is_refused(tmp_path):
    """
    A study cannot be planted elsewhere by a link.
    """
    (tmp_path / "runs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/study.json").write_text("{}")
    (tmp_path / "runs/chat").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="leads out of"):
        naming.study_directory(tmp_path / "runs", "chat")
    assert naming.studies(tmp_path / "runs") == []


def test_an_unknown_study_names_the_nearest(tmp_path):
    """
    A typo costs one look.
    """
    for name in ["chat-h100", "chat-cpu", "batch"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.json").write_text("{}")
    with pytest.raises(InputError, match=r"got 'chat-h10': .*nearest: chat-h100"):
        naming.find(tmp_path, "chat-h10")


@pytest.mark.parametrize("name", ["", "a\0b", "../x", "x" * 5000])
def test_a_strange_name_is_an_unknown_study(tmp_path, name):
    """
    Looking for it is harmless.
    """
    with pytest.raises(InputError, match="there is no study"):
        naming.find(tmp_path, name)


def test_without_any_study_the_remedy_is_to_start_one(tmp_path):
    """
    An empty or missing directory is explained.
    """
    with pytest.raises(InputError, match="start with `tuner optimize`"):
        naming.find(tmp_path / "missing", "chat")
