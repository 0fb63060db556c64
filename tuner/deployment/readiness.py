"""
When a process is ready: it lives, it owns its port, it serves our model, and a real token came out of it.

Nothing is sent to a port before the process that listens there is known to be ours.
"""

import http.client
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.deployment import guardian, logs
from tuner.deployment.ports import listeners, listening_inodes
from tuner.deployment.process import ManagedProcess
from tuner.deployment.spec import ProcessRole, Readiness
from tuner.errors import ConfigurationFailed, InfrastructureFailed

_POLL_S = 0.2
_UP = "healthy"
_REQUEST_LIMIT_S = 60.0  # the first token may have to wait for a compilation


@dataclass(frozen=True)
class Expectation:
    """What one process has to show, and by when."""

    name: str
    role: ProcessRole
    readiness: Readiness
    host: str
    ports: Mapping[str, int]
    model: str  # id that /v1/models must list
    timeout_s: float


class _NotYet(Exception):  # noqa: N818 (a state, not an error)
    """Why the process is not ready so far."""


def request(
    method: str, host: str, port: int, path: str, *, body: object = None, timeout_s: float = 10.0
) -> tuple[int, bytes]:
    """
    One small HTTP exchange with a process of ours: status and body.

    Raises:
        OSError: Refused, reset, or nothing came within `timeout_s`.
        http.client.HTTPException: The answer is no HTTP.
    """
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        payload = None if body is None else json.dumps(body).encode()
        connection.request(method, path, payload, {"Content-Type": "application/json", "Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def wait_ready(process: ManagedProcess, expected: Expectation, cancelled: threading.Event | None = None) -> float:
    """
    Wait until a started process is ready.

    Returns:
        Seconds that it took from this call.

    Raises:
        ConfigurationFailed: It died (with the cause from its log), serves another model, or took too long.
        InfrastructureFailed: Its port belongs to somebody else, or it is a store that does not come up.
    """
    began = time.monotonic()
    problem = "nothing listens on its port"
    strangers = 0
    while True:
        spent_s = time.monotonic() - began
        ended = process.poll()
        if ended is not None:
            process.stop()  # so that the log is whole
            raise logs.failure(
                expected.name, expected.role, process.read_log(), ended.code, oom_killed=process.oom_killed
            )
        if cancelled is not None and cancelled.is_set():
            raise InfrastructureFailed("node_lost", f"{expected.name}: given up, another process failed first")
        try:
            port = expected.ports[expected.readiness.port]
            if _listens(process, port):
                _probe(expected, port, limit_s=min(_REQUEST_LIMIT_S, max(0.5, expected.timeout_s - spent_s)))
                return time.monotonic() - began
        except _Stranger as error:
            strangers += 1
            if strangers > 2:  # twice may be a socket caught between two looks
                raise InfrastructureFailed("port_taken", f"{expected.name}: {error}") from None
        except (_NotYet, OSError, http.client.HTTPException) as error:
            problem = str(error) or type(error).__name__
        if time.monotonic() - began > expected.timeout_s:
            raise _too_late(process, expected, problem)
        time.sleep(_POLL_S)


class _Stranger(Exception):  # noqa: N818 (a state, not an error)
    """The port is served, by a process that is not ours."""


def _listens(process: ManagedProcess, port: int) -> bool:
    if not listening_inodes(port):
        return False
    if process.guardian_pid is None:
        return False
    ours = [each.pid for each in guardian.descendants(process.guardian_pid)]
    if listeners(port, ours):
        return True
    if listening_inodes(port):
        raise _Stranger(f"port {port} is served by a process that the tuner did not start")
    return False


def _probe(expected: Expectation, port: int, limit_s: float) -> None:
    match expected.readiness.kind:
        case "tcp":
            return
        case "http":
            status, _ = request("GET", expected.host, port, expected.readiness.path, timeout_s=min(5.0, limit_s))
            if status != 200:
                raise _NotYet(f"{expected.readiness.path} answers {status}")
        case "token":
            _check_model(expected, port, min(10.0, limit_s))
            _check_token(expected, port, limit_s)


def _check_model(expected: Expectation, port: int, limit_s: float) -> None:
    status, body = request("GET", expected.host, port, "/v1/models", timeout_s=limit_s)
    if status != 200:
        raise _NotYet(f"/v1/models answers {status}")
    try:
        served = [str(each["id"]) for each in json.loads(body)["data"]]
    except (ValueError, TypeError, KeyError):
        raise _NotYet("/v1/models answers something that is no list of models") from None
    if served and expected.model not in served:
        raise ConfigurationFailed(
            "bad_flag", f"{expected.name} serves {', '.join(served)} instead of {expected.model}; see served_model_name"
        )
    if not served:
        raise _NotYet("/v1/models lists no model yet")


def _check_token(expected: Expectation, port: int, limit_s: float) -> None:
    body = {"model": expected.model, "prompt": "Hello", "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    status, answer = request("POST", expected.host, port, "/v1/completions", body=body, timeout_s=limit_s)
    if status != 200:
        raise _NotYet(f"{_UP}, but a completion answers {status}: {answer[:200].decode('utf-8', 'replace')}")
    try:
        told = json.loads(answer)
        tokens = int((told.get("usage") or {}).get("completion_tokens") or 0)
        text = str(told["choices"][0].get("text") or "")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise _NotYet(f"{_UP}, but a completion answers something that is no completion") from None
    if tokens < 1 and not text:
        raise _NotYet(f"{_UP}, but a completion has no token")


def _too_late(
    process: ManagedProcess, expected: Expectation, problem: str
) -> ConfigurationFailed | InfrastructureFailed:
    last = process.tail(1).strip()
    cause = f"{expected.name} is not ready after {expected.timeout_s:g} s: {problem}; log: {last or 'nothing'}"
    if expected.role == "store":
        return InfrastructureFailed("store_unavailable", cause)
    return ConfigurationFailed(expected.readiness.silent if problem.startswith(_UP) else "start_timeout", cause)
