"""docs/field-cases.md answers every field case once, and names only tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8")
#: Cases of each group, numbered from 1.
GROUPS = {
    "CFG": 10,
    "MET": 23,
    "LOAD": 10,
    "SRV": 11,
    "OPT": 12,
    "RAY": 7,
    "TRK": 8,
    "RES": 6,
    "COST": 6,
    "REP": 6,
    "SEC": 9,
}
CASES = [f"{group}-{number:02d}" for group, count in GROUPS.items() for number in range(1, count + 1)]
ROW = re.compile(r"^\| ([A-Z]+-\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")


def defined(file: Path) -> set[str]:
    """Tests of a file as pytest names them, `Class::test` for methods."""
    found = set()
    for top in ast.parse(file.read_text(encoding="utf-8")).body:
        inside = top.body if isinstance(top, ast.ClassDef) else [top]
        prefix = f"{top.name}::" if isinstance(top, ast.ClassDef) else ""
        functions = (each for each in inside if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
        found |= {prefix + each.name for each in functions if each.name.startswith("test_")}
    return found


def test_every_case_stands_there_once_in_order():
    """No case of the eleven groups is missing, twice there, or made up."""
    assert [case for case, _, _ in ROW.findall(PAGE)] == CASES


def test_every_named_test_exists():
    """A test that was renamed or removed shows here."""
    named = NAMED.findall(PAGE)
    assert len(named) == PAGE.count("tests/") - PAGE.count("`tests/test_field_cases.py`")
    missing = [f"{file}::{test}" for file, test in named if test not in defined(ROOT / file)]
    assert missing == []


@pytest.mark.parametrize(("case", "answer"), [(case, answer) for case, _, answer in ROW.findall(PAGE)])
def test_every_case_is_answered(case, answer):
    """By a test; or in words where it does not apply or is not covered yet."""
    assert case in CASES
    assert NAMED.search(answer) or len(answer.split()) > 5


def test_cases_that_tests_name_are_known():
    """A case id in a test's docstring is one of those, or of the two groups that come later."""
    cited = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                cited |= set(re.findall(rf"\b(?:{'|'.join(GROUPS)})-\d\d\b", text))
    assert cited <= set(CASES)
    assert cited
