"""
Ports that stay ours from the choice to the end of the deployment, and who listens on a port.

A reservation is a bound socket that never listens. It keeps everybody else from choosing the port, while a server that
sets SO_REUSEADDR, as all that get deployed do, can still bind it and listen.
"""

import contextlib
import random
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tuner.deployment.spec import PortNeed
from tuner.errors import InfrastructureFailed

#: Ports are taken from here: below what Linux hands out by itself, so that no outgoing connection sits on one.
_LOWEST, _HIGHEST = 20000, 32000
_TRIES = 2000
_LISTEN = "0A"


def _bound(host: str, port: int) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.bind((host, port))  # without SO_REUSEADDR: fails for whoever else holds or reserves the port
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        held.close()
        return None
    return held


class Reservation:
    """
    Blocks of ports, held until `close`.

    Args:
        host: The address that the server is going to listen on.
        needs: The blocks; each one is consecutive, and none overlaps another.

    Raises:
        InfrastructureFailed: `port_taken`, no free block was found.
    """

    def __init__(self, host: str, needs: Iterable[PortNeed]) -> None:
        self.ports: Mapping[str, int]
        self._held: list[socket.socket] = []
        found: dict[str, int] = {}
        try:
            for need in needs:
                found[need.name] = self._reserve(host, need)
        except InfrastructureFailed:
            self.close()
            raise
        self.ports = found

    def _reserve(self, host: str, need: PortNeed) -> int:
        draw = random.SystemRandom()
        for _ in range(_TRIES):
            first = draw.randrange(_LOWEST, _HIGHEST - need.count)
            block: list[socket.socket] = []
            for port in range(first, first + need.count):
                held = _bound(host, port)
                if held is None:
                    break
                block.append(held)
            if len(block) == need.count:
                self._held += block
                return first
            for held in block:
                held.close()
        raise InfrastructureFailed("port_taken", f"no {need.count} free ports in a row on {host} for {need.name!r}")

    def close(self) -> None:
        """Let go of the ports. Idempotent."""
        for held in self._held:
            held.close()
        self._held.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def listening_inodes(port: int) -> set[str]:
    """Socket inodes that listen on this TCP port, on any address of this machine."""
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(fields[9])
    return found


def listeners(port: int, among: Iterable[int] | None = None) -> set[int]:
    """
    Pids that hold a socket listening on this TCP port.

    Args:
        port: The port.
        among: Pids to look at; None = all that this user may look at.
    """
    wanted = {f"socket:[{inode}]" for inode in listening_inodes(port)}
    if not wanted:
        return set()
    found: set[int] = set()
    for pid in among if among is not None else (int(path.name) for path in Path("/proc").glob("[0-9]*")):
        with contextlib.suppress(OSError):
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(handle.readlink()) in wanted:
                        found.add(pid)
                        break
    return found
