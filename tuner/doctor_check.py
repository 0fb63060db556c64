"""One finding about this machine, and how to ask another program without ever hanging on it."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "missing", "untested"]


@dataclass(frozen=True)
class Check:
    """
    What was looked at, and what was found.

    Attributes:
        name: Short, for people and programs; several findings may share it.
        status: `ok`; `warning`, it works with the stated limits; `missing`, what was asked for cannot work; `untested`,
            nobody has seen it work yet.
        found: One line.
        remedy: One line that says what to do; "" where nothing needs to be done.
    """

    name: str
    status: Status
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Answer:
    """What a program said. `code` is None where it could not be started or did not end in time."""

    code: int | None
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line that says anything, of both outputs; the cause, in most programs."""
        lines = [" ".join(line.split()) for line in (*self.out.splitlines(), *self.err.splitlines()) if line.strip()]
        return lines[-1][:200] if lines else ""


def ask(argv: Sequence[str], limit_s: float, *, said: str = "", environ: Mapping[str, str] | None = None) -> Answer:
    """
    Run a program to its end, in a session of its own that is killed after `limit_s`.

    Args:
        argv: Program and arguments, without a shell.
        limit_s: Seconds.
        said: What it reads on standard input.
        environ: Its environment; None = ours.
    """
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=None if environ is None else dict(environ),
            start_new_session=True,
        )
    except OSError as error:
        return Answer(None, "", f"{argv[0]}: {error.strerror}")
    with child:
        try:
            out, err = child.communicate(said, timeout=limit_s)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # not reaped yet, so the number is its own
            if isinstance(error, subprocess.TimeoutExpired):
                return Answer(None, "", f"no answer within {limit_s:g} s")
            raise
    return Answer(child.returncode, out, err)
