"""Plan → one file of a format."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import InputError
from tuner.export import compose, kubernetes, plan, shell
from tuner.export.plan import Plan
from tuner.runfiles import replace_bytes


@dataclass(frozen=True)
class _Format:
    file: str
    write: Callable[[Plan, str | None], str]
    mode: int = 0o644


FORMATS: Mapping[str, _Format] = {
    "shell": _Format("deploy.sh", lambda made, _: shell.script(made), 0o755),
    "compose": _Format("compose.yaml", lambda made, _: compose.text(made)),
    "kubernetes": _Format("kubernetes.yaml", kubernetes.text),
}


@dataclass(frozen=True)
class Exported:
    """One export: the name of its file, its text, and what has to be said about it."""

    plan: Plan
    format: str
    file: str
    text: str

    @property
    def warnings(self) -> tuple[str, ...]:
        """For people, a sentence each."""
        simulated = ("simulated: no engine ran; measure before you rely on it",)
        return (*(simulated if self.plan.origin.source == "simulated" else ()), *self.plan.origin.warnings)

    def save(self, directory: Path, *, replace: bool = False) -> Path:
        """
        Write the file into a directory, which is made if missing.

        Raises:
            InputError: The directory cannot be made, or another file of this name is there and `replace` is not set.
        """
        path = directory / self.file
        try:
            directory.mkdir(parents=True, exist_ok=True)
            other = path.exists() and path.read_bytes() != self.text.encode()
        except OSError as error:
            raise InputError(f"--out: got {directory}: {error.strerror}; name a directory to write into") from error
        if other and not replace:
            raise InputError(f"{path}: there is another one; give --force to replace it, or another --out")
        replace_bytes(path, self.text.encode())
        path.chmod(FORMATS[self.format].mode)
        return path

    def as_json(self, path: Path | None) -> dict[str, object]:
        """Provenance, and the text where it was not saved."""
        where: dict[str, object] = {"text": self.text} if path is None else {"path": str(path)}
        return {"format": self.format, "file": self.file, **where, "provenance": self.plan.origin.as_json()}


def export(study: Path, form: str, trial: str = "winner", *, rdma: str | None = None) -> Exported:
    """
    A deployment of a study in one of `FORMATS`.

    Args:
        study: Directory of the study.
        form: `shell`, `compose` or `kubernetes`.
        trial: `winner`, `baseline` or a number.
        rdma: Name of the cluster's RDMA device resource, for Kubernetes alone.

    Raises:
        InputError: There is no such trial, or the format cannot express its deployment.
    """
    if rdma is not None and form != "kubernetes":
        raise InputError(f"--rdma: got {rdma}: it names a resource of a Kubernetes cluster; leave it out for {form}")
    return render(plan.read(study, trial), form, rdma=rdma)


def render(made: Plan, form: str, *, rdma: str | None = None) -> Exported:
    """A plan in one of `FORMATS`; see `export`."""
    chosen = FORMATS[form]
    return Exported(made, form, chosen.file, chosen.write(made, rdma))
