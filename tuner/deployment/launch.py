"""
The life of one live deployment, written once for this machine and for Ray.

Enter: units and ports, start in order, a real token from each. Drive: caches, counters, load, death watch. Leave, by
whatever way: everything is ended in reverse order and all that it held is let go.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import groupby
from types import TracebackType
from typing import Protocol, Self

from tuner.deployment import counters, proof
from tuner.deployment.proof import Claim
from tuner.deployment.spec import Address, Command, ProcessSpec, environment, masked, resolve
from tuner.errors import ConfigurationFailed, InfrastructureFailed, Interrupted
from tuner.load import traces
from tuner.load.endpoint import Endpoint
from tuner.load.plan import LevelData, LevelPlan, filling
from tuner.load.shape import RequestShapes, Rows, level_requests
from tuner.slo import Objective, Synthetic

_ATTEMPTS = 3  # at most, when ports are lost in a race
_WATCH_S = 0.5
_SAMPLE_S = 1.0
_COUNTER_TRIES = 3
_RESET_LIMIT_S = 30.0
_ANSWER_LIMIT_S = 120.0
_LEASE_S = 30.0  # vLLM's `kv_lease_duration` of NIXL
_MEETINGS, _MOST_MEETINGS = 3, 60  # requests for each pair of prefill and decode engines, and for all
_ENGINES = frozenset({"engine", "prefill", "decode"})

_NO_CLAIM = Claim()

Failure = ConfigurationFailed | InfrastructureFailed


class DiedUnderLoad(ConfigurationFailed):
    """
    A process died while it was measured.

    Args:
        failure: Why.
        data: What the load client had seen until then: to be kept, never to be scored.
    """

    def __init__(self, failure: ConfigurationFailed, data: LevelData | None) -> None:
        super().__init__(failure.reason, failure.cause)
        self.data = data


class Handle(Protocol):
    """One process, wherever it runs; `instance.Instance` says what each method does."""

    @property
    def address(self) -> Address: ...

    def start(self, command: Command, env: Mapping[str, str], secrets: tuple[str, ...]) -> None: ...

    def wait_ready(self, model: str, timeout_s: float, cancelled: threading.Event | None = None) -> float: ...

    def ended(self) -> Failure | None: ...

    def request(self, method: str, path: str, timeout_s: float = 10.0, body: object = None) -> tuple[int, bytes]: ...

    def stop(self) -> list[int]: ...


class Host(Protocol):
    """Where the processes of one deployment are placed. Made when the deployment is entered."""

    def place(self, spec: ProcessSpec) -> Handle:
        """Units, ports and a directory for one process; starts nothing."""

    def drive(self, endpoint: Endpoint, plan: LevelPlan, should_stop: Callable[[], str]) -> LevelData:
        """Run the load client near the endpoint."""

    def facts(self) -> Mapping[str, object]:
        """Nodes, GPU ids and cores of each process."""

    def close(self) -> None:
        """Let go of all units. Idempotent; the handles are stopped by then."""


class Launch:
    """
    A live deployment. Fulfils `Deployment`, and `Running` once it is entered.

    Args:
        specs: The processes; exactly one is the endpoint.
        objective: Model, engine settings and workload.
        open_host: Takes the units; may wait for them, raises `InfrastructureFailed`.
        interrupted: Set from another thread to end whatever the deployment does.
        claimed: What the engines' counters have to prove after each level.
    """

    source = "live"

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        objective: Objective,
        open_host: Callable[[], Host],
        interrupted: threading.Event | None = None,
        claimed: Claim = _NO_CLAIM,
    ) -> None:
        self._claimed = claimed
        self._specs = sorted(specs, key=lambda spec: spec.order)
        self._objective = objective
        self._open_host = open_host
        self._host: Host | None = None
        self._handles: dict[str, Handle] = {}
        self._commands: dict[str, Command] = {}
        self._facts: dict[str, object] = {}
        self._ready: set[str] = set()  # processes that were ready once
        self._rows: Rows | None = None  # of a trace, read once
        self._closing = threading.Event()
        self._interrupted = threading.Event() if interrupted is None else interrupted
        self._failure: Failure | None = None
        self._watcher: threading.Thread | None = None

    @property
    def commands(self) -> list[dict[str, object]]:
        """Role, argv and env of each process; with templates until it was started."""
        return [masked(self._commands.get(spec.name, spec)) for spec in self._specs]

    @property
    def facts(self) -> Mapping[str, object]:
        """Engine version, seconds to ready, placement, and the share of prompt tokens that were cached last."""
        return dict(self._facts)

    def __enter__(self) -> Self:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._start()
            except InfrastructureFailed as error:
                self._tear_down()
                if error.reason != "port_taken" or attempt == _ATTEMPTS:
                    raise
            except BaseException:
                self._tear_down()
                raise
            else:
                self._facts["attempts"] = attempt
                return self
        raise AssertionError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tear_down()

    def drive(self, plan: LevelPlan) -> LevelData:
        """One level of load; see `Running.drive`."""
        if self._host is None:
            raise AssertionError("drive needs an entered deployment")
        self._raise_if_dead(None)
        self._prepare_cache(plan)
        before = self.counters()
        samples: list[Mapping[str, float]] = []
        done = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(samples, done), name="engine-gauges", daemon=True)
        sampler.start()
        try:
            data = self._host.drive(self._endpoint, plan, self._must_stop)
        except (ConfigurationFailed, InfrastructureFailed):
            self._look_for_deaths()
            self._raise_if_dead(None)
            raise
        finally:
            done.set()
            sampler.join(timeout=15)
        if self._closing.is_set():
            return replace(data, samples=tuple(samples))
        self._look_for_deaths()
        self._raise_if_dead(data)
        counted = counters.difference(before, self.counters())
        asked = counted.get("prefix_cache_queries_total", 0.0)
        if asked > 0:
            self._facts["prefix_cache_hit_share"] = round(counted.get("prefix_cache_hits_total", 0.0) / asked, 4)
        counted |= proof.figures(self._claimed, counted)
        data = replace(data, counters=counted, samples=tuple(samples))
        if data.stopped != "interrupted":
            failure = proof.refuted(self._claimed, data, self._shapes(data))
            if failure is not None:
                raise failure
        return data

    def ask(self, body: Mapping[str, object]) -> tuple[int, bytes]:
        """One completion outside of any level; see `Answering.ask`."""
        self._raise_if_interrupted()
        endpoint = next(spec.name for spec in self._specs if spec.endpoint)
        found = self._handles[endpoint].request("POST", "/v1/completions", _ANSWER_LIMIT_S, body)
        self._look_for_deaths()
        self._raise_if_dead(None)
        return found

    def forget(self) -> None:
        """Empty the engines' own prefix caches; see `Answering.forget`."""
        for spec, handle in self._engines():
            self._reset(spec.name, handle, "/reset_prefix_cache")

    def _shapes(self, data: LevelData) -> RequestShapes | None:
        """What the requests of a level share, where a store has to be proven."""
        if self._claimed.store == "none" or not data.records:
            return None
        source = data.plan.workload.source
        if self._rows is None and not isinstance(source, Synthetic):
            self._rows = traces.read(source)
        return level_requests(data.plan, self._rows, len(data.records))

    # -- start and end ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        began = time.monotonic()
        self._raise_if_interrupted()
        self._closing.clear()
        self._failure = None
        self._ready.clear()
        self._host = self._open_host()
        for spec in self._specs:
            self._handles[spec.name] = self._host.place(spec)
        addresses = {name: handle.address for name, handle in self._handles.items()}
        ready_s: dict[str, float] = {}
        for _, group in groupby(self._specs, key=lambda spec: spec.order):
            together = list(group)
            for spec in together:
                command = resolve(spec, addresses)
                self._commands[spec.name] = command
                env = environment(command, os.environ)
                secrets = tuple(env[name] for name in command.secrets)
                self._handles[spec.name].start(command, env, secrets)
            ready_s.update(self._wait_ready(together))
            self._look_for_deaths()
            self._raise_if_dead(None)
            self._ready.update(spec.name for spec in together)
        endpoint = next(spec for spec in self._specs if spec.endpoint)
        where = addresses[endpoint.name]
        self._endpoint = Endpoint(where.host, where.ports["http"], self._objective.model)
        self._introduce()
        self._facts = {
            "model": self._objective.model,
            "engine_version": self._engine_version(),
            "ready_s": round(time.monotonic() - began, 3),
            "ready_s_by_process": {name: round(seconds, 3) for name, seconds in ready_s.items()},
            **self._host.facts(),
        }
        self._watcher = threading.Thread(target=self._watch, name="death-watch", daemon=True)
        self._watcher.start()

    def _introduce(self) -> None:
        """
        Let prefill engines meet decode engines: the first transfer of a pair sets up its connection, which takes
        seconds where cores are short and belongs to no level. Which pair a request takes is the router's choice.
        """
        prefills, decodes = (sum(spec.role == side for spec in self._specs) for side in ("prefill", "decode"))
        if prefills * decodes < 2:  # one pair has met when the router was ready
            return
        for number in range(min(_MOST_MEETINGS, _MEETINGS * prefills * decodes)):
            self.ask({"model": self._objective.model, "prompt": f"{number} Hello", "max_tokens": 1, "temperature": 0})

    def _wait_ready(self, specs: Sequence[ProcessSpec]) -> dict[str, float]:
        cancelled = threading.Event()
        limit_s = self._objective.engine.start_timeout_s
        pool = ThreadPoolExecutor(max_workers=len(specs), thread_name_prefix="readiness")
        try:
            waiting: dict[Future[float], str] = {
                pool.submit(self._handles[spec.name].wait_ready, self._objective.model, limit_s, cancelled): spec.name
                for spec in specs
            }
            left = set(waiting)
            while left:
                done, left = wait(left, timeout=_WATCH_S, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
                self._raise_if_interrupted()
                self._look_for_deaths(among=self._ready)  # what engines wait for may be gone
                self._raise_if_dead(None)
            return {name: future.result() for future, name in waiting.items()}
        finally:
            cancelled.set()
            pool.shutdown(wait=False, cancel_futures=True)  # what still waits ends when its process is ended

    def _tear_down(self) -> None:
        """Everything in reverse order of start, whatever fails on the way; a second interrupt does not cut it short."""
        self._closing.set()
        interrupted: BaseException | None = None
        for name in reversed(list(self._handles)):
            for _ in range(2):
                try:
                    self._handles[name].stop()
                    break
                except (KeyboardInterrupt, SystemExit) as error:
                    interrupted = error
                except Exception as error:  # noqa: BLE001 (the others must be ended too)
                    self._facts[f"stop_problem_{name}"] = str(error)
                    break
        self._handles.clear()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(timeout=15)
        self._watcher = None
        if self._host is not None:
            self._host.close()
            self._host = None
        if interrupted is not None:
            raise interrupted

    # -- death -----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closing.wait(_WATCH_S) and self._failure is None:
            self._look_for_deaths()

    def _look_for_deaths(self, among: Collection[str] | None = None) -> None:
        """Stores first: an engine may die because its store did."""
        if self._failure is not None:
            return
        for name, handle in list(self._handles.items()):
            if among is not None and name not in among:
                continue
            failure = handle.ended()
            if failure is not None and not self._closing.is_set():
                self._failure = failure
                return

    def _must_stop(self) -> str:
        """What the load client is told; empty while it may go on."""
        if self._failure is not None:
            return f"server_died: {self._failure.cause}"
        stopping = self._closing.is_set() or self._interrupted.is_set()
        return "interrupted: the deployment is being ended" if stopping else ""

    def _raise_if_interrupted(self) -> None:
        if self._interrupted.is_set():
            raise Interrupted("the deployment was interrupted while it started")

    def _raise_if_dead(self, data: LevelData | None) -> None:
        failure = self._failure
        if isinstance(failure, ConfigurationFailed):
            if data is not None:
                data = replace(data, stopped="server_died", stop_detail=failure.cause)
            raise DiedUnderLoad(failure, data)
        if failure is not None:
            raise InfrastructureFailed(failure.reason, failure.cause)

    # -- what engines are asked ------------------------------------------------------------------------------------

    def _engines(self) -> list[tuple[ProcessSpec, Handle]]:
        handles = dict(self._handles)  # may be emptied by another thread that ends the deployment
        return [(spec, handles[spec.name]) for spec in self._specs if spec.role in _ENGINES and spec.name in handles]

    def _engine_version(self) -> str:
        for _, handle in self._engines():
            status, body = handle.request("GET", "/version")
            if status == 200:
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    return str(json.loads(body)["version"])
        return "unknown"

    def counters(self) -> dict[str, float]:
        """Counters of all engines since they started."""
        parts = []
        for spec, handle in self._engines():
            for _ in range(_COUNTER_TRIES):  # a busy engine may be late, and without its counters nothing is proven
                status, body = handle.request("GET", "/metrics")
                if status == 200:
                    parts.append((spec.role, counters.counters(body.decode("utf-8", "replace"))))
                    break
        return counters.total(parts)

    def _sample(self, samples: list[Mapping[str, float]], done: threading.Event) -> None:
        began = time.monotonic()
        while not done.wait(_SAMPLE_S):
            pages = []
            for _, handle in self._engines():
                with contextlib.suppress(Exception):  # a sample less is no reason to fail
                    status, body = handle.request("GET", "/metrics", 5.0)
                    if status == 200:
                        pages.append(body.decode("utf-8", "replace"))
            if pages:
                samples.append({"t_s": round(time.monotonic() - began, 3), **counters.gauges(pages)})

    def _prepare_cache(self, plan: LevelPlan) -> None:
        """Bring prefix caches and stores into the state that the workload asks for."""
        if plan.workload.cache.policy == "steady":
            return
        external = self._claimed.store != "none"
        path = "/reset_prefix_cache?reset_external=true" if external else "/reset_prefix_cache"
        for spec, handle in self._engines():
            self._reset(spec.name, handle, path)
        fill = filling(plan)
        if fill is not None and self._host is not None:
            self._host.drive(self._endpoint, fill, self._must_stop)

    def _reset(self, name: str, handle: Handle, path: str) -> None:
        limit_s = _RESET_LIMIT_S
        if self._claimed.transfer:  # blocks of requests that decode never fetched are held for a while
            limit_s += _LEASE_S + self._objective.workload.timeout.first_token_s
        until = time.monotonic() + limit_s
        while True:
            status, body = handle.request("POST", path)
            if status == 200 and b"false" not in body:
                return
            if status == 404 and self._objective.cluster.bind == "node":
                # vLLM offers the reset in its development mode alone, which has no place on a reachable address.
                # Prompts are never used twice, so what stays behind is shared prefixes, which warm-up loads anyway.
                self._facts["cache_reset"] = "not offered on the node's address"
                return
            if status == 404:
                raise InfrastructureFailed(
                    "engine_missing", f"{name} offers no /reset_prefix_cache; it needs VLLM_SERVER_DEV_MODE=1"
                )
            self._look_for_deaths()
            self._raise_if_dead(None)
            if time.monotonic() > until:
                raise ConfigurationFailed(
                    "server_died",
                    f"{name} cannot reset its cache: it still holds blocks {limit_s:g} s after the last request",
                )
            time.sleep(0.2)
