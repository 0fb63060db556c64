"""
The program that stands between the tuner and one server, so that no descendant of the server outlives its owner.

It runs as `python -I -S guardian.py`, imports the standard library alone, and knows nothing of the rest of `tuner`:

- Standard input carries one line of JSON, the `Job`, and stays open afterwards. When it closes, because the owner
  closed it or died of whatever cause, everything that the guardian started is ended.
- Standard output carries one line of JSON for each event: `started`, `failed`, `exited`, `gone`.
- The server runs in a session of its own. As a subreaper the guardian becomes the parent of every descendant that
  is orphaned, one that called setsid as well, so a walk over /proc finds them all.
- The server's output is read through a pipe that never fills, secrets are masked, and the file that results is
  capped: the first and the last part are kept.
- A file in the registry names guardian, server and descendants by pid and start time. It disappears when all are
  gone. `reap_orphans` reads what a killed guardian left there.

Nothing is ever signalled that the guardian did not start: a process is addressed through a pidfd after its start
time was compared.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: Environment variable that marks the descendants of one guardian; its value is random.
MARK = "TUNER_GUARDIAN"
MASKED = b"[masked]"


class Process(NamedTuple):
    """One process; `start` is in clock ticks since boot and makes the pid unambiguous."""

    pid: int
    start: int


class _Stat(NamedTuple):
    state: str
    parent: int
    start: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return _Stat(fields[0].decode(), int(fields[1]), int(fields[19]))


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 (hundreds of paths, each second)


def identify(pid: int) -> Process | None:
    """The running process with this pid, or None when there is none or only a zombie."""
    stat = _stat(pid)
    return None if stat is None or stat.state in "ZX" else Process(pid, stat.start)


def descendants(root: int) -> list[Process]:
    """Every running descendant of `root`, itself and zombies left out, in no order."""
    stats: dict[int, _Stat] = {}
    for pid in _pids():
        if (stat := _stat(pid)) is not None:
            stats[pid] = stat
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    found: list[Process] = []
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, ())
        if stats[pid].state not in "ZX":
            found.append(Process(pid, stats[pid].start))
    return found


def send(process: Process, number: int) -> bool:
    """Signal exactly this process; False when it is gone or the pid belongs to another one by now."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if identify(process.pid) != process:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(handle)


def machine() -> str:
    """Names this boot and pid namespace: pids of another one mean nothing here."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


class Log:
    """
    A capped log: the first `cap` bytes, a line that says what was left out, and the last `cap` to 2 × `cap` bytes.

    While the server runs the last part lies beside the log as `<log>.tail` and `<log>.tail.old`; `close` joins them.
    """

    def __init__(self, path: str, cap: int, secrets: list[str]) -> None:
        self._path = Path(path)
        self._tail = Path(f"{path}.tail")
        self._old = Path(f"{path}.tail.old")
        self._cap = cap
        self._secrets = [secret.encode() for secret in sorted(secrets, key=len, reverse=True) if secret]
        self._file = self._path.open("wb", buffering=0)
        self._size = 0
        self._in_tail = False
        self._left_out = 0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take what the server wrote. Whole lines are masked and written; an endless line is cut at 64 KiB."""
        self._rest += data
        cut = self._rest.rfind(b"\n") + 1
        if cut == 0 and len(self._rest) > 65536:
            cut = len(self._rest) - max((len(secret) for secret in self._secrets), default=0)
        lines, self._rest = self._rest[:cut], self._rest[cut:]
        self._write(lines)

    def _write(self, data: bytes) -> None:
        for secret in self._secrets:
            data = data.replace(secret, MASKED)
        with contextlib.suppress(OSError):  # a full disk must not stop the server
            self._file.write(data)
        self._size += len(data)
        if self._size > self._cap:
            self._turn()

    def _turn(self) -> None:
        self._file.close()
        if self._in_tail:
            self._left_out += self._old.stat().st_size if self._old.exists() else 0
            self._tail.replace(self._old)
        self._in_tail = True
        self._file = self._tail.open("wb", buffering=0)
        self._size = 0

    def close(self) -> None:
        """Write what is left and join the parts into one file."""
        self._write(self._rest)
        self._rest = b""
        self._file.close()
        if not self._in_tail:
            return
        with contextlib.suppress(OSError), self._path.open("ab") as whole:
            if self._left_out:
                whole.write(b"\n[... %d bytes left out here ...]\n" % self._left_out)
            for part in (self._old, self._tail):
                if part.exists():
                    whole.write(part.read_bytes())
                    part.unlink()


class Guardian:
    """One server, from its start until nothing of it is left."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._mark = os.urandom(16).hex()
        self._entry = Path(job["registry"]) / f"{self._mark}.json"
        self._log = Log(job["log"], job["log_cap"], job["secrets"])
        self._known: set[Process] = set()
        self._code: int | None = None
        self._ended = False  # the owner is gone, or wants the server to end
        self._events = selectors.DefaultSelector()

    def run(self) -> None:
        """Start the server, watch it, and end whatever is left of it."""
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._listen()
        try:
            server = subprocess.Popen(
                self._job["argv"],
                env={**self._job["env"], MARK: self._mark},
                cwd=self._job["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=self._become_server,  # noqa: PLW1509 (this program has one thread)
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._log.feed(f"cannot start {self._job['argv'][0]}: {error}\n".encode())
            self._log.close()
            _say(event="failed", error=str(error), missing=isinstance(error, FileNotFoundError | PermissionError))
            _say(event="gone", left=[])
            return
        self._server = server
        identity = identify(server.pid)
        _say(event="started", guardian=os.getpid(), pid=server.pid, start=identity.start if identity else 0)
        try:
            self._register()
            if server.stdout is not None:
                self._watch(server.stdout.fileno())
        finally:
            left = self._end()
            self._log.close()
            if not left:
                self._entry.unlink(missing_ok=True)
            _say(event="gone", left=[process.pid for process in left])

    def _become_server(self) -> None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if self._job["cores"]:
            os.sched_setaffinity(0, self._job["cores"])

    def _listen(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)
        self._events.register(0, selectors.EVENT_READ, "owner")
        self._events.register(wake_read, selectors.EVENT_READ, "signal")

    def _watch(self, output: int) -> None:
        """Until the server has exited, or the owner is gone or wants it to end."""
        os.set_blocking(output, False)
        self._events.register(output, selectors.EVENT_READ, "log")
        while not self._ended and self._code is None:
            self._turn(timeout_s=1.0)

    def _on_term(self, *_: object) -> None:
        self._ended = True

    def _turn(self, timeout_s: float) -> None:
        for key, _ in self._events.select(timeout_s):
            if key.data == "signal":
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 4096)
                continue
            try:
                data = os.read(key.fd, 65536)
            except BlockingIOError:
                continue
            if data and key.data == "log":
                self._log.feed(data)
            if not data:
                self._events.unregister(key.fileobj)
                self._ended |= key.data == "owner"
        self._reap()
        self._register()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._server.pid:
                self._code = self._server.returncode = os.waitstatus_to_exitcode(status)
                _say(event="exited", code=self._code)

    def _register(self) -> None:
        """Write down what runs, when it has changed."""
        now = set(descendants(os.getpid()))
        if now and now != self._known:
            self._known = now
            me = identify(os.getpid())
            text = json.dumps({"machine": machine(), "mark": self._mark, "guardian": me, "processes": sorted(now)})
            part = self._entry.with_suffix(".part")
            with contextlib.suppress(OSError):
                part.write_text(text, encoding="utf-8")
                part.replace(self._entry)

    def _end(self) -> list[Process]:
        """TERM to the server's group, KILL to every descendant after the grace period; what is left after 8 s more."""
        _say(event="ending")
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._code is None or any(os.getpgid(each.pid) == self._server.pid for each in self._running()):
                os.killpg(self._server.pid, signal.SIGTERM)
        kill_at = time.monotonic() + float(self._job["grace_s"])
        give_up_at = kill_at + 8
        while (running := self._running()) and time.monotonic() < give_up_at:
            if time.monotonic() >= kill_at:
                for process in running:
                    send(process, signal.SIGKILL)
            self._turn(timeout_s=0.05)
        self._turn(timeout_s=0)
        return running

    def _running(self) -> list[Process]:
        self._reap()
        return descendants(os.getpid())


def _say(**event: object) -> None:
    with contextlib.suppress(OSError):  # the owner may be gone
        os.write(1, json.dumps(event).encode() + b"\n")


def reap_orphans(registry: Path) -> list[int]:
    """
    End what the guardians registered in this directory left behind, and forget them.

    To be called by the only owner of the directory, before it starts anything: a guardian that still runs there
    belongs to an owner that is gone. Processes of another machine, boot or container are left alone.

    Returns:
        The pids that were signalled.
    """
    signalled: list[int] = []
    for entry in sorted(registry.glob("*.json")):
        try:
            told = json.loads(entry.read_text(encoding="utf-8"))
            listed = [Process(*each) for each in told["processes"]]
            guardian, mark, here = Process(*told["guardian"]), str(told["mark"]), told["machine"] == machine()
        except (OSError, ValueError, TypeError, KeyError):
            entry.unlink(missing_ok=True)
            continue
        if here:
            if send(guardian, signal.SIGTERM):
                signalled.append(guardian.pid)
                _wait_gone(guardian, 15)
            left = {each for each in listed if identify(each.pid) == each} | set(_marked(mark))
            signalled += [process.pid for process in left if send(process, signal.SIGKILL)]
            for process in left:
                _wait_gone(process, 5)
        entry.unlink(missing_ok=True)
    return signalled


def _marked(mark: str) -> list[Process]:
    wanted = f"{MARK}={mark}".encode()
    found: list[Process] = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and (one := identify(pid)):
                found.append(one)
    return found


def _wait_gone(process: Process, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while identify(process.pid) == process and time.monotonic() < until:
        time.sleep(0.05)


def main() -> None:
    line = open(0, "rb", buffering=0, closefd=False).readline()  # noqa: SIM115 (reads no byte too many)
    if not line:
        return
    job = json.loads(line)
    if job["detach"] and os.fork() != 0:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    Guardian(job).run()


if __name__ == "__main__":
    main()
