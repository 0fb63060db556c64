"""One process of a deployment on the machine where this runs: ports, files, start, readiness, end."""

import http.client
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.deployment import logs
from tuner.deployment.ports import Reservation, listening_inodes
from tuner.deployment.process import ManagedProcess, Settings, inherited
from tuner.deployment.readiness import Expectation, request, wait_ready
from tuner.deployment.spec import Address, Command, ProcessSpec
from tuner.errors import ConfigurationFailed, InfrastructureFailed

_RELEASE_LIMIT_S = 10.0


@dataclass(frozen=True)
class Place:
    """What one process gets on its node."""

    host: str
    gpus: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()


class Instance:
    """
    One process from the reservation of its ports to its end. `stop` may be called in every state, any number of times.

    Args:
        spec: What to run.
        place: Address and units given to it.
        log: Where its output goes.
        settings: Of its guardian.
    """

    def __init__(self, spec: ProcessSpec, place: Place, log: Path, settings: Settings) -> None:
        self._spec = spec
        self._place = place
        self._log = log
        self._settings = settings
        self._process: ManagedProcess | None = None
        self._directory = tempfile.mkdtemp(prefix="tuner-")
        try:
            self._ports = Reservation(place.host, spec.ports)
        except InfrastructureFailed:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    @property
    def address(self) -> Address:
        """For the templates of this process and of those that talk to it."""
        place = self._place
        return Address(place.host, self._ports.ports, place.gpus, place.cores, self._directory)

    def start(self, command: Command, env: Mapping[str, str], secrets: tuple[str, ...]) -> None:
        """
        Write its files and start it.

        Args:
            command: The spec with all templates filled in.
            env: Its environment with secrets, beside what it inherits from this machine.
            secrets: Values to be masked in the log.

        Raises:
            InfrastructureFailed: `engine_missing`, the program is not on this machine.
        """
        whole = {
            **inherited(os.environ),
            # A process that got no GPU must see none; one that got some sees those alone.
            "CUDA_VISIBLE_DEVICES": ",".join(self._place.gpus),
            **env,
        }
        program = shutil.which(command.argv[0], path=whole.get("PATH"))
        if program is None:
            raise InfrastructureFailed(
                "engine_missing",
                f"{self._spec.name}: {command.argv[0]} is no program on {os.uname().nodename}; see engine.command",
            )
        for path, text in command.files.items():
            Path(path).write_text(text, encoding="utf-8")
        self._process = ManagedProcess(
            argv=[str(Path(program).absolute()), *command.argv[1:]],
            env=whole,
            log=self._log,
            settings=self._settings,
            secrets=secrets,
            cores=self._place.cores,
            cwd=self._directory,
        )
        self._process.start()

    def wait_ready(self, model: str, timeout_s: float, cancelled: threading.Event | None = None) -> float:
        """Seconds until it is ready; raises what `readiness.wait_ready` raises."""
        spec = self._spec
        limit_s = timeout_s if spec.ready.limit_s is None else min(timeout_s, spec.ready.limit_s)
        expected = Expectation(spec.name, spec.role, spec.ready, self._place.host, self._ports.ports, model, limit_s)
        return wait_ready(self._started, expected, cancelled)

    def ended(self) -> ConfigurationFailed | InfrastructureFailed | None:
        """The failure that its death under load means; None while it runs, and before it was started."""
        process = self._process
        exit_ = None if process is None else process.poll()
        if process is None or exit_ is None:
            return None
        process.stop()  # so that the log is whole, and nothing of it goes on
        return logs.failure(
            self._spec.name,
            self._spec.role,
            process.read_log(),
            exit_.code,
            under_load=True,
            oom_killed=process.oom_killed,
        )

    def request(self, method: str, path: str, timeout_s: float = 10.0, body: object = None) -> tuple[int, bytes]:
        """
        Ask its `http` port. Status 0 stands for no answer.

        Nothing is sent when the process is dead: its port may belong to somebody else by now.
        """
        if self._process is None or self._process.poll() is not None:
            return 0, b""
        try:
            port = self._ports.ports["http"]
            return request(method, self._place.host, port, path, body=body, timeout_s=timeout_s)
        except (OSError, http.client.HTTPException):
            return 0, b""

    def pids(self) -> list[int]:
        """Pids of server and guardian, for tests and for people who look."""
        if self._process is None:
            return []
        return [pid for pid in (self._process.pid, self._process.guardian_pid) if pid is not None]

    def stop(self) -> list[int]:
        """End it, wait until its ports are free, let go of them. Returns pids that the kernel did not let go of."""
        left = self._process.stop() if self._process is not None else []
        until = time.monotonic() + _RELEASE_LIMIT_S
        while self._process is not None and time.monotonic() < until:
            if not any(listening_inodes(port) for port in self._ports.ports.values()):
                break
            time.sleep(0.1)
        self._ports.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        return left

    @property
    def _started(self) -> ManagedProcess:
        if self._process is None:
            raise AssertionError(f"{self._spec.name} was not started")
        return self._process
