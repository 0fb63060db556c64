"""A server that somebody else runs: measured, never started, never stopped."""

import http.client
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tuner.errors import InfrastructureFailed, InputError
from tuner.load import process
from tuner.load.endpoint import Endpoint
from tuner.load.plan import LevelData, LevelPlan

_TIMEOUT_S = 30.0
#: Name of the header and of the environment variable that holds a bearer token for the endpoint, if it needs one.
_TOKEN_VARIABLE = "TUNER_ENDPOINT_AUTHORIZATION"  # noqa: S105  (a name, not a secret)


def endpoint(url: str, model: str) -> Endpoint:
    """
    Where `url` points to.

    Args:
        url: Such as `http://127.0.0.1:8000`; `/v1` at its end may be given or left out.
        model: Name under which the server serves the model.

    Raises:
        InputError: Not an http(s) URL with a host.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise InputError(f"--endpoint: got {url}: write http://HOST:PORT, without user, password or query")
    path = parts.path.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": _TOKEN_VARIABLE} if _TOKEN_VARIABLE in os.environ else {}
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Endpoint(parts.hostname, port, model, headers=headers, tls=parts.scheme == "https", path=path)


class External:
    """
    Fulfils `Deployment` and `Running` for a server that runs already.

    Its caches are not reset: whoever runs it decides what state it is in, and the facts say so.
    """

    source = "live"

    def __init__(self, target: Endpoint) -> None:
        self._target = target

    @property
    def commands(self) -> list[dict[str, object]]:
        """None: nothing is started."""
        return []

    @property
    def facts(self) -> Mapping[str, object]:
        """Where it is, and that its caches are as they were found."""
        return {"endpoint": f"{self._target.host}:{self._target.port}", "cache_reset": False}

    def __enter__(self) -> Self:
        served = self._models()
        if self._target.model not in served:
            raise InputError(
                f"--endpoint: the server at {self._target.host}:{self._target.port} serves "
                f"{', '.join(served) or 'nothing'}, the objective file says model: {self._target.model}; change one"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def drive(self, plan: LevelPlan) -> LevelData:
        """One level of load; see `Running.drive`."""
        data = process.drive(self._target, plan)
        return replace(data, counters={})

    def _models(self) -> list[str]:
        target = self._target
        kind = http.client.HTTPSConnection if target.tls else http.client.HTTPConnection
        connection = kind(target.host, target.port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", f"{target.path}/v1/models", headers=target.header_values(os.environ))
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != http.client.OK:
                raise InfrastructureFailed("node_lost", f"GET /v1/models answered {answer.status}")
            return [str(model["id"]) for model in json.loads(body)["data"]]
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            where = f"{target.host}:{target.port}"
            raise InfrastructureFailed(
                "node_lost", f"no server answers at {where}: {error or type(error).__name__}"
            ) from error
        finally:
            connection.close()
