"""A store that outlives an engine: the processes of one configuration, of which the engine alone is started again."""

import contextlib
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tuner.configuration import Configuration
from tuner.deployment import counters, vllm
from tuner.deployment.instance import Instance, Place
from tuner.deployment.local import LOOPBACK
from tuner.deployment.process import Settings
from tuner.deployment.readiness import request
from tuner.deployment.spec import ProcessSpec, environment, resolve
from tuner.slo import Objective

_STORED_LIMIT_S = 60.0
_VOCABULARY = range(100, 4000)  # of the tiny models, without special tokens


def prompts(count: int, tokens: int, seed: str) -> list[list[int]]:
    """Prompts that share nothing with each other, as token ids."""
    draw = random.Random(seed)
    return [draw.choices(_VOCABULARY, k=tokens) for _ in range(count)]


@dataclass(frozen=True)
class Answer:
    """Of one request for one token."""

    seconds: float  # until it was there: the time to the first token
    hits: int  # prompt tokens that came from the store
    text: str


class Asked:
    """An engine with a store, and what it answers one request after the other."""

    def __init__(self, instance: Instance, model: str) -> None:
        self._instance = instance
        self._model = model

    def ask(self, prompt: Sequence[int]) -> Answer:
        """One greedy token."""
        body = {"model": self._model, "prompt": list(prompt), "max_tokens": 1, "temperature": 0}
        before = self._hits()
        address = self._instance.address
        began = time.monotonic()
        status, answer = request(
            "POST", address.host, address.ports["http"], "/v1/completions", body=body, timeout_s=120
        )
        seconds = time.monotonic() - began
        assert status == 200, answer
        return Answer(seconds, self._hits() - before, json.loads(answer)["choices"][0]["text"])

    def keep(self, prompt: Sequence[int], tokens: int) -> str:
        """Ask until the store has that many tokens of the prompt, because it is filled behind the answer's back."""
        first = self.ask(prompt)
        assert first.hits == 0
        until = time.monotonic() + _STORED_LIMIT_S
        while (found := self.ask(prompt).hits) < tokens:
            assert time.monotonic() < until, f"{found} of {tokens} tokens in the store after {_STORED_LIMIT_S:g} s"
        return first.text

    def _hits(self) -> int:
        status, page = self._instance.request("GET", "/metrics")
        assert status == 200
        return int(counters.counters(page.decode())["external_prefix_cache_hits_total"])


class KeptStore(contextlib.ExitStack):
    """
    The store's processes, started as a deployment starts them; `engine` starts the engine beside them and ends it.

    Args:
        configuration: One engine and a store.
        objective: On CPU slots of this machine.
        directory: Takes logs and registry.
    """

    def __init__(self, configuration: Configuration, objective: Objective, directory: Path) -> None:
        super().__init__()
        *self._stores, self._engine = sorted(vllm.specs(configuration, objective), key=lambda spec: spec.order)
        assert {spec.role for spec in self._stores} == {"store"}
        self._objective = objective
        self._directory = directory
        self._instances: dict[str, Instance] = {}
        self._engines = 0

    def __enter__(self) -> Self:
        super().__enter__()
        with contextlib.ExitStack() as undo:  # so that a store that does not start leaves nothing behind
            undo.push(self)
            for spec in self._stores:
                self._instances[spec.name] = self._place(spec, spec.name)
            for spec in self._stores:
                self._start(spec)
            undo.pop_all()
        return self

    @contextlib.contextmanager
    def engine(self) -> Iterator[Asked]:
        """A new engine beside the store that there is; its log has a number of its own."""
        self._engines += 1
        spec = self._engine
        instance = self._instances[spec.name] = self._place(spec, f"{spec.name}-{self._engines}")
        try:
            self._start(spec)
            yield Asked(instance, self._objective.model)
        finally:
            instance.stop()

    def _place(self, spec: ProcessSpec, log: str) -> Instance:
        cores = tuple(sorted(os.sched_getaffinity(0)))[: spec.units * spec.cores]
        directory = self._directory
        made = Instance(spec, Place(LOOPBACK, cores=cores), directory / f"{log}.log", Settings(directory / "registry"))
        self.callback(made.stop)
        return made

    def _start(self, spec: ProcessSpec) -> None:
        addresses = {name: instance.address for name, instance in self._instances.items()}
        command = resolve(spec, addresses)
        instance = self._instances[spec.name]
        instance.start(command, environment(command, os.environ), ())
        instance.wait_ready(self._objective.model, self._objective.engine.start_timeout_s)
