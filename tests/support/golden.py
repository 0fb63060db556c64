"""Comparison with files under tests/data/golden; UPDATE_GOLDEN=1 in the environment rewrites them instead."""

import os
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


def check(name: str, text: str) -> None:
    """Assert that the golden file of this name holds exactly this text."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path} is missing: run with UPDATE_GOLDEN=1 and look at it"
    assert text == path.read_text(encoding="utf-8"), f"differs from {path}: UPDATE_GOLDEN=1 rewrites it"
