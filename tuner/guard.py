"""
The answer guard of a study: a plain engine's answers, recorded once, and every guarded deployment's against them.

The baseline is asked when it runs. Where that gave no answers (it is no plain engine, or it failed) a plain engine is
started for them before the first deployment that needs them. They are kept in `canary.json` of the study, by the flags
that change what an engine says: a quantised cache is compared with a quantised cache.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner import canary
from tuner.canary import Answer, NoAnswerError, Parting, Questions
from tuner.configuration import Configuration
from tuner.deployment import Answering, Launcher, Running, counters, proof
from tuner.errors import ConfigurationFailed, InfrastructureFailed
from tuner.events import Listener, Note
from tuner.ledger import Ledger

FILE = "canary.json"
#: Flags of an engine that change its answers on purpose.
ANSWER_FLAGS = ("dtype", "hf_overrides", "kv_cache_dtype", "quantization")
_ORDERS = ("forward", "swapped")

_Reference = Mapping[str, tuple[Answer, ...]]  # by order of the parts: forward, swapped


@dataclass
class Guard:
    """
    Compares answers within one study.

    Args:
        ledger: Holds the plain engine's answers.
        launcher: Starts a plain engine where no trial was one.
        plain: Its configuration.
        make: The study's questions; called once, when they are first needed.
        charge: Told the seconds that a plain engine was held for its answers alone.
        listen: Called with what people should know.
    """

    ledger: Ledger
    launcher: Launcher
    plain: Configuration
    make: Callable[[], Questions]
    charge: Callable[[Configuration, float], None]
    listen: Listener
    _starting: threading.Lock = field(default_factory=threading.Lock)  # one plain engine at a time
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _questions: Questions | None = None
    _problems: dict[str, str] = field(default_factory=dict)  # why there are no answers, by key

    def prepare(self, configuration: Configuration) -> None:
        """
        Before a deployment is started: have a plain engine's answers ready if it is going to be compared.

        A plain engine that fails is no fault of this deployment: `check` decides what its absence means.

        Raises:
            Interrupted: Somebody asked to stop.
        """
        key = _key(configuration)
        with self._starting:
            if not canary.guarded(configuration) or key in self._problems or self._reference(key) is not None:
                return
            plain = Configuration({**self.plain.knobs, **_answer_flags(configuration)})
            self.listen(Note("starting a plain engine for the answers that others are compared with"))
            begun = time.monotonic()
            try:
                with self.launcher.deployment(plain, self.ledger.path / "canary-logs") as running:
                    self._record(key, running)
            except (ConfigurationFailed, InfrastructureFailed) as error:
                self._problems[key] = f"a plain engine failed: {error}"
            finally:
                self.charge(plain, time.monotonic() - begun)

    def check(self, configuration: Configuration, running: Running) -> Mapping[str, object]:
        """
        After a deployment is ready, before its first level: compare its answers, or record a plain engine's.

        Returns:
            Facts for the trial: what was compared.

        Raises:
            ConfigurationFailed: `output_mismatch`, the answers are not a plain engine's; `store_not_effective`, a lossy
                store that had nothing to be judged by.
            InfrastructureFailed, Interrupted: As `Answering.ask`.
        """
        if not isinstance(running, Answering):
            return {}
        key = _key(configuration)
        reference = self._reference(key)
        if not canary.guarded(configuration):
            if reference is None and key == _key(self.plain):
                self._record(key, running)
            return {}
        if reference is not None:
            return {"answers": self._compare(configuration, running, reference)}
        problem = self._problems.get(key, "nobody asked a plain engine")
        if configuration.lossy:
            raise ConfigurationFailed("output_mismatch", f"its answers cannot be judged: {problem}")
        self.listen(Note(f"answers are not compared: {problem}", warning=True))
        return {"answers": {"not_compared": problem}}

    def _compare(self, configuration: Configuration, running: Answering, reference: _Reference) -> dict[str, object]:
        """Every prompt once; where there is a store, again after the engines forgot what the store has."""
        asked, lossy = self._asked(), configuration.lossy
        before = running.counters()
        rounds: list[list[Parting | None]] = []
        if configuration.kv_store != "none":
            order = "swapped" if lossy else "forward"
            rounds.append(_partings(running, getattr(asked, order), reference[order]))
            running.forget()
        rounds.append(_partings(running, asked.forward, reference["forward"]))
        counted = counters.difference(before, running.counters())
        moved = proof.figures(proof.claim(configuration), counted)
        cause = canary.verdict(rounds, lossy=lossy)
        if cause is not None:
            raise ConfigurationFailed("output_mismatch", cause, counted | moved)
        if lossy and not moved.get("store_hit_tokens"):
            raise ConfigurationFailed(
                "store_not_effective",
                "parts of the canary prompts came again in another order, and nothing of them was found in the store",
                counted | moved,
            )
        found = canary.figures(rounds)
        if found["different"]:
            self.listen(Note("one canary prompt is answered otherwise than by a plain engine", warning=True))
        return {**found, **moved}

    # -- the plain engine's answers ---------------------------------------------------------------------------------

    def _asked(self) -> Questions:
        if self._questions is None:
            self._questions = self.make()
        return self._questions

    def _record(self, key: str, running: Running) -> None:
        """Ask a plain engine; one that gives no answers leaves a reason instead."""
        if not isinstance(running, Answering):
            self._problems[key] = "this kind of deployment answers no questions"
            return
        asked = self._asked()
        try:
            answers = {order: canary.to_json(_answers(running, getattr(asked, order))) for order in _ORDERS}
        except NoAnswerError as error:
            self._problems[key] = f"a plain engine gave {error}"
            return
        with self._writing:
            self.ledger.write_json(FILE, {**(self.ledger.read_json(FILE) or {}), key: answers})

    def _reference(self, key: str) -> _Reference | None:
        known: Any = self.ledger.read_json(FILE)
        try:
            return {order: canary.from_json(known[key][order]) for order in _ORDERS}
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


def _answer_flags(configuration: Configuration) -> dict[str, Any]:
    flags = configuration.roles[0].flags
    return {name: flags[name] for name in ANSWER_FLAGS if flags.get(name) is not None}


def _key(configuration: Configuration) -> str:
    return json.dumps(_answer_flags(configuration), sort_keys=True, separators=(",", ":"))


def _answers(running: Answering, bodies: Sequence[Mapping[str, object]]) -> tuple[Answer, ...]:
    return tuple(canary.read(*running.ask(body)) for body in bodies)


def _partings(
    running: Answering, bodies: Sequence[Mapping[str, object]], plain: Sequence[Answer]
) -> list[Parting | None]:
    try:
        found = _answers(running, bodies)
    except NoAnswerError as error:
        cause = f"a canary prompt that a plain engine answers got {error}"
        raise ConfigurationFailed("output_mismatch", cause) from None
    return [canary.parting(one, other) for one, other in zip(plain, found, strict=True)]
