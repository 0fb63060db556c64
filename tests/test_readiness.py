"""Tests of readiness: what a process has to show before it is measured, and what each way to fail is called."""

import http.client
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.deployments import SHIM

from tuner.deployment.ports import Reservation
from tuner.deployment.process import ManagedProcess, Settings
from tuner.deployment.readiness import Expectation, request, wait_ready
from tuner.deployment.spec import PortNeed, Readiness
from tuner.errors import ConfigurationFailed, InfrastructureFailed

HOST = "127.0.0.1"


@pytest.fixture
def started(tmp_path):
    """A function that starts a shim in a mode and returns it with what is expected of it."""
    made = []

    def start(mode="ok", *, timeout_s=10.0, port=None, kind="token", role="engine", **env):
        held = Reservation(HOST, [PortNeed("http")])
        ports = {"http": port or held.ports["http"]}
        argv = [sys.executable, str(SHIM), "serve", "m", "--port", str(ports["http"])]
        environment = {"SHIM_MODE": mode, **env}
        process = ManagedProcess(argv, environment, tmp_path / "log", Settings(tmp_path / "registry", grace_s=1.0))
        made.append((process, held))
        process.start()
        return process, Expectation("engine-0", role, Readiness(kind), HOST, ports, "m", timeout_s)

    yield start
    for process, held in made:
        process.stop()
        held.close()


@pytest.mark.parametrize("kind", ["token", "http", "tcp"])
def test_serving_process_is_ready(started, kind):
    """A process that serves our model on its own port is ready, within the time it took."""
    process, expected = started(kind=kind)
    assert 0 <= wait_ready(process, expected) < 10


def test_late_start_within_the_limit_is_ready(started):
    """A server that binds late passes when the limit allows it."""
    process, expected = started(SHIM_DELAY="1.5")
    assert wait_ready(process, expected) >= 1


@pytest.mark.parametrize(
    ("mode", "timeout_s", "reason", "said"),
    [
        pytest.param("never_bind", 1.0, "start_timeout", "nothing listens", id="never binds"),
        pytest.param("dead_engine", 2.0, "start_timeout", "answers 500", id="healthy, dead engine"),
        pytest.param("silent_engine", 1.5, "start_timeout", "timed out", id="healthy, silent engine"),
        pytest.param("empty_token", 1.5, "start_timeout", "no token", id="answers without a token"),
        pytest.param("wrong_model", 10.0, "bad_flag", "somebody-else", id="other model"),
        pytest.param("exit", 600.0, "server_died", "told to fail", id="exits early"),
        pytest.param("oom", 600.0, "out_of_memory", "No available memory", id="out of memory"),
        pytest.param("bad_flag", 600.0, "bad_flag", "--no-such-flag", id="refused flag"),
    ],
)
def test_each_way_to_fail_has_its_reason(started, mode, timeout_s, reason, said):
    """Deaths are seen in seconds although the limit is ten minutes; the cause is in one line."""
    process, expected = started(mode, timeout_s=timeout_s)
    began = time.monotonic()
    with pytest.raises(ConfigurationFailed) as caught:
        wait_ready(process, expected)
    assert caught.value.reason == reason
    assert said in caught.value.cause
    assert "\n" not in caught.value.cause
    assert time.monotonic() - began < 10


def test_store_that_does_not_come_up_is_the_infrastructures_fault(started):
    """The configuration is not blamed for a store that hangs."""
    process, expected = started("never_bind", timeout_s=1.0, role="store")
    with pytest.raises(InfrastructureFailed, match="store_unavailable"):
        wait_ready(process, expected)


def test_foreign_server_gets_no_request(started):
    """On a port that somebody else serves, a hanging start is port_taken, and the stranger is never asked."""
    asked = []

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)

        do_POST = do_GET  # noqa: N815 (the name that the library calls)

    server = ThreadingHTTPServer((HOST, 0), Stranger)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        for mode in ("never_bind", "ok"):  # "ok" dies of the taken port
            process, expected = started(mode, port=server.server_address[1])
            with pytest.raises(InfrastructureFailed, match="port_taken"):
                wait_ready(process, expected)
            process.stop()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert asked == []


def test_waiting_can_be_given_up(started):
    """When another process of the deployment has failed, nobody waits on."""
    process, expected = started("never_bind", timeout_s=600.0)
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(InfrastructureFailed, match="given up"):
        wait_ready(process, expected, cancelled)


def test_request_has_a_time_limit(started):
    """A server that does not answer costs no more than the limit."""
    process, expected = started("silent_engine", kind="tcp")
    wait_ready(process, expected)
    with pytest.raises((OSError, http.client.HTTPException)):
        request("POST", HOST, expected.ports["http"], "/v1/completions", body={}, timeout_s=0.5)
