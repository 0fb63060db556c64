"""Names of studies become names of directories: none may lead out of the runs directory."""

import contextlib
import difflib
import hashlib
import re
from pathlib import Path

from tuner.errors import InputError

LONGEST = 80
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: What lies in the runs directory beside the studies, in lower case.
RESERVED = ("readme.md", "mlflow.db", "mlflow-artifacts", "reference", "history", "calibrations", "nightly")
_RESERVED_ENDINGS = (".corrupt", ".tmp", ".db", ".lock")


def slug(text: str) -> str:
    """
    A valid study name made of any text. The same text gives the same name; different texts give different names.

    Text that is a valid name already is returned as it is; what had to be changed carries eight digits of a hash.
    """
    if why_invalid(text) is None:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    words = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()[: LONGEST - 9].strip("-")
    return f"{words}-{digest}" if words else f"study-{digest}"


def why_invalid(name: str) -> str | None:
    """The rule that `name` breaks as the name of a study, or None."""
    if not name:
        return "is empty"
    if len(name) > LONGEST:
        return f"has {len(name)} characters; at most {LONGEST} are allowed"
    if _NAME.fullmatch(name) is None:
        return "must start with a letter or digit and hold only letters, digits, '.', '_' and '-'"
    if name.lower() in RESERVED or name.lower().endswith(_RESERVED_ENDINGS):
        return "is reserved for files beside the studies"
    return None


def check_name(name: str) -> str:
    """
    `name` itself.

    Raises:
        InputError: It breaks a rule; the message offers a name that does not.
    """
    why = why_invalid(name)
    if why is not None:
        shown = repr(name if len(name) <= LONGEST else name[:40] + "…")
        raise InputError(f"--study: got {shown}: it {why}; use for example {slug(name)}")
    return name


def study_directory(runs: Path, name: str) -> Path:
    """
    Where the study of this name lies, or would lie: a direct child of `runs`.

    Raises:
        InputError: The name is invalid, or a link of that name leads out of `runs`.
    """
    path = runs / check_name(name)
    if not is_inside(path, runs):
        raise InputError(f"{path}: is a link that leads out of {runs}; remove it, or give the path of the study itself")
    return path


def is_inside(path: Path, root: Path) -> bool:
    """Whether `path`, links followed, lies in `root`, links followed."""
    return path.resolve().is_relative_to(root.resolve())


def studies(runs: Path) -> list[str]:
    """Names of the studies in `runs`, sorted."""
    if not runs.is_dir():
        return []
    found = (entry for entry in runs.iterdir() if why_invalid(entry.name) is None)
    return sorted(entry.name for entry in found if (entry / "study.json").is_file() and is_inside(entry, runs))


def find(runs: Path, study: str) -> Path:
    """
    The directory of a study given by name, or by path.

    Raises:
        InputError: There is none; the message lists the nearest names.
    """
    if why_invalid(study) is None and (study_directory(runs, study) / "study.json").is_file():
        return study_directory(runs, study)
    with contextlib.suppress(OSError, ValueError):  # too long, or with a NUL: no path at all
        if study and (Path(study) / "study.json").is_file():
            return Path(study)
    names = studies(runs)
    if not names:
        raise InputError(f"STUDY: got {study!r}: there is no study in {runs} yet; start with `tuner optimize`")
    near = difflib.get_close_matches(study, names, n=3, cutoff=0.4) or names[:5]
    raise InputError(f"STUDY: got {study!r}: no such study in {runs} and no such path; nearest: {', '.join(near)}")
