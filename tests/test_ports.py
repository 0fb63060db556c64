"""Tests of port reservations and of who listens where."""

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tuner.deployment import ports
from tuner.deployment.ports import Reservation
from tuner.deployment.spec import PortNeed
from tuner.errors import InfrastructureFailed

HOST = "127.0.0.1"


def test_blocks_are_consecutive_and_disjoint():
    """Every block gets all of its ports, and none is in two blocks or two reservations."""
    with (
        Reservation(HOST, [PortNeed("http"), PortNeed("side", 8)]) as one,
        Reservation(HOST, [PortNeed("x", 8)]) as two,
    ):
        mine = {one.ports["http"], *range(one.ports["side"], one.ports["side"] + 8)}
        theirs = set(range(two.ports["x"], two.ports["x"] + 8))
        assert len(mine) == 9
        assert not mine & theirs


def test_parallel_reservations_never_collide():
    """Forty reservations at once have forty ports."""
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: Reservation(HOST, [PortNeed("http")]), range(40)))
    try:
        assert len({each.ports["http"] for each in made}) == 40
    finally:
        for each in made:
            each.close()


def test_server_listens_on_a_reserved_port_and_others_cannot_take_it():
    """A server that sets SO_REUSEADDR gets the port; a plain bind by somebody else does not."""
    with Reservation(HOST, [PortNeed("http")]) as held:
        port = held.ports["http"]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((HOST, port))
        with socket.create_server((HOST, port)):
            assert ports.listeners(port, [os.getpid()]) == {os.getpid()}
        assert ports.listening_inodes(port) == set()


def test_foreign_listener_is_never_chosen_and_is_told_from_ours(monkeypatch):
    """A port that somebody listens on cannot be reserved, and its owner is found by pid."""
    code = (
        "import socket,sys;s=socket.create_server(('127.0.0.1',0));"
        "print(s.getsockname()[1],flush=True);sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        port = int(other.stdout.readline())
        assert ports.listeners(port) == {other.pid}
        assert ports.listeners(port, [os.getpid()]) == set()
        monkeypatch.setattr(ports, "_LOWEST", port)
        monkeypatch.setattr(ports, "_HIGHEST", port + 2)
        monkeypatch.setattr(ports, "_TRIES", 5)
        with pytest.raises(InfrastructureFailed, match="port_taken"):
            Reservation(HOST, [PortNeed("http")])
        assert other.poll() is None
        other.stdin.close()
