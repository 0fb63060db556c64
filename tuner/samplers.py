"""
The search strategies, behind Optuna's sampler interface, and what Optuna is told.

The ledger is the truth and Optuna's storage a working copy of it: `Proposals.reconcile` mends the copy at every start.
Each proposal gets a sampler of its own, seeded by (study seed, number of the proposal), so a resumed study proposes
what the uninterrupted one would have proposed and replays nothing.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from tuner.errors import StudyFailed
from tuner.outcome import Outcome
from tuner.slo import Scalar
from tuner.space import Knob, Space
from tuner.trial import WORST_MARGIN

_TRIAL = "trial"  # user attribute: number of the trial in the ledger
_INHERITED = "inherited"  # user attribute: study and trial of an earlier study


@dataclass(frozen=True)
class Proposal:
    """A point that Optuna proposed and waits to hear about."""

    number: int  # of the proposal, in Optuna's storage
    knobs: Mapping[str, Scalar]


@dataclass(frozen=True)
class Told:
    """What Optuna hears about one outcome; None as value = the attempt failed and says nothing about the point."""

    value: float | None  # log of the objective; lower is better
    constraints: Mapping[str, float]  # <= 0 is kept
    pruned: bool = False


def told(
    outcome: Outcome, *, value: float | None, bound: float | None, limits: tuple[str, ...], worst: float | None
) -> Told:
    """
    The table "What Optuna is told" of the rules. Its fillers live in Optuna's history only.

    Args:
        outcome: How the trial ended.
        value: Of the objective, > 0, where the outcome is feasible.
        bound: Optimistic bound of the objective: its value if the refused load had been all good; None where unknown.
        limits: Names of all limits, always in the same order.
        worst: The worst logarithm of the objective seen so far; None before the first.
    """
    clipped = {name: _clip(outcome.margins.get(name, WORST_MARGIN)) for name in limits}
    optimistic = math.log(bound) if bound is not None and bound > 0 else 0.0
    filler = optimistic if worst is None else worst
    match outcome.state:
        case "feasible" if value is not None and value > 0:
            return Told(math.log(value), clipped)
        case "pruned":
            return Told(optimistic, clipped, pruned=True)
        case "infeasible":
            return Told(filler, clipped)
        case "infra_failed":
            return Told(None, {})
        case _:
            return Told(filler, dict.fromkeys(limits, WORST_MARGIN))


@contextmanager
def _storage() -> Iterator[None]:
    """Turns what a storage raises (unreachable, full, without its driver) into a `StudyFailed` without its address."""
    try:
        yield
    except (StorageInternalError, SQLAlchemyError, ImportError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
        said = "not an address" if isinstance(cause, ArgumentError) else str(cause).strip().partition("\n")[0]
        raise StudyFailed(
            f"Optuna's storage: {said}: finished trials are safe; free space or mend --storage, "
            "then start the same command again to resume"
        ) from error


class Proposals:
    """
    Asks Optuna for points and tells it what became of them. Every call raises `StudyFailed` where the storage fails.

    Args:
        space: The search space.
        storage: File of the SQLite database, or a storage URL.
        name: Of the study.
        kind: "tpe", "random" or "gp".
        seed: Of the study.
        startup: Random proposals before the model is used.
    """

    @_storage()
    def __init__(self, space: Space, *, storage: Path | str, name: str, kind: str, seed: int, startup: int = 8) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._kind = kind
        self._seed = seed
        self._startup = startup
        url = f"sqlite:///{storage}" if isinstance(storage, Path) else storage
        self._study = optuna.create_study(
            storage=url, study_name=name, direction="minimize", load_if_exists=True, sampler=sampler(kind, 0, startup)
        )

    @_storage()
    def ask(self) -> Proposal:
        """A new point. Every proposal must be told, or forgotten."""
        number = len(self._study.get_trials(deepcopy=False))
        self._study.sampler = sampler(self._kind, derived_seed(self._seed, number), self._startup)
        trial = self._study.ask()
        knobs: dict[str, Scalar] = {}
        for knob in self._space.knobs:
            if knob.active(knobs):
                knobs[knob.name] = _suggest(trial, knob)
        return Proposal(trial.number, knobs)

    @_storage()
    def begin(self, proposal: Proposal, trial: int) -> None:
        """Note which trial of the ledger measures this proposal."""
        self._trial(proposal.number).set_user_attr(_TRIAL, trial)

    @_storage()
    def tell(self, number: int, what: Told) -> None:
        """Tell the end of a proposal. Telling twice is harmless: the first word stands."""
        trial = self._trial(number)
        if what.value is None:
            self._study.tell(number, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
            return
        frozen = self._study.get_trials(deepcopy=False)[number]
        if frozen.state.is_finished():
            return
        for name, margin in what.constraints.items():
            if name not in frozen.constraints:  # some are there already after a crash in the middle of this
                trial.set_constraint(name, margin)
        trial.set_user_attr("pruned", what.pruned)
        self._study.tell(number, what.value, skip_if_finished=True)

    def forget(self, proposal: Proposal) -> None:
        """The point was not measured (a duplicate of an unfinished one); say nothing about it."""
        self.tell(proposal.number, Told(None, {}))

    @_storage()
    def add(
        self, knobs: Mapping[str, Scalar], what: Told, *, trial: int | None = None, inherited: str | None = None
    ) -> None:
        """
        A point that was measured without having been proposed.

        Args:
            knobs: All active ones of the space.
            what: Where it says nothing, nothing happens.
            trial: Of this study's ledger, such as the baseline where the space holds it.
            inherited: Study and trial of an earlier study that measured it instead.
        """
        if what.value is None:
            return
        whence = {_TRIAL: trial} if inherited is None else {_INHERITED: inherited}
        active = {knob.name: knob for knob in self._space.knobs if knob.name in knobs}
        self._study.add_trial(
            optuna.trial.create_trial(
                params=dict(knobs),
                distributions={name: distribution(knob) for name, knob in active.items()},
                value=what.value,
                constraints=dict(what.constraints),
                user_attrs={**whence, "pruned": what.pruned},
            )
        )

    @_storage()
    def reconcile(self, finished: Mapping[int, Told], begun: Iterable[int]) -> dict[int, Proposal]:
        """
        Bring Optuna's history in line with the ledger after a crash.

        Args:
            finished: What to tell of each finished trial of the ledger, by trial.
            begun: Trials that were begun and have no outcome; they will be measured again.

        Returns:
            The proposals of the begun trials, still open, by trial.
        """
        waiting = set(begun)
        open_: dict[int, Proposal] = {}
        for frozen in self._study.get_trials(deepcopy=False):
            if frozen.state.is_finished():
                continue
            trial = int(frozen.user_attrs.get(_TRIAL, -1))
            if trial in finished:
                self.tell(frozen.number, finished[trial])
            elif trial in waiting:
                open_[trial] = Proposal(frozen.number, dict(frozen.params))
            else:
                self.tell(frozen.number, Told(None, {}))
        return open_

    @_storage()
    def known(self) -> set[int]:
        """Trials of the ledger that Optuna has heard about or waits for."""
        return {
            frozen.user_attrs[_TRIAL]
            for frozen in self._study.get_trials(deepcopy=False)
            if _TRIAL in frozen.user_attrs
        }

    @_storage()
    def inherited(self) -> set[str]:
        """What earlier studies measured and Optuna has heard about."""
        return {
            frozen.user_attrs[_INHERITED]
            for frozen in self._study.get_trials(deepcopy=False)
            if _INHERITED in frozen.user_attrs
        }

    def _trial(self, number: int) -> optuna.trial.Trial:
        return optuna.trial.Trial(self._study, self._study.get_trials(deepcopy=False)[number]._trial_id)  # noqa: SLF001


def sampler(kind: str, seed: int, startup: int) -> optuna.samplers.BaseSampler:
    """A fresh sampler; every option stated, because their defaults change between releases."""
    match kind:
        case "tpe":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)  # `group`: one joint model per branch of the space
                return optuna.samplers.TPESampler(
                    n_startup_trials=startup,
                    n_ei_candidates=24,
                    multivariate=True,
                    group=True,
                    constant_liar=True,
                    seed=seed,
                )
        case "gp":
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup, deterministic_objective=False)
        case "random":
            return optuna.samplers.RandomSampler(seed=seed)
        case _:
            raise ValueError(kind)


def derived_seed(seed: int, *path: int) -> int:
    """An independent seed for one purpose within a study."""
    return int(np.random.SeedSequence((seed, *path)).generate_state(1)[0])


def distribution(knob: Knob) -> BaseDistribution:
    """Optuna's form of a knob."""
    match knob.kind:
        case "int":
            return IntDistribution(
                int(knob.low), int(knob.high), log=knob.log, step=1 if knob.log else int(knob.step or 1)
            )
        case "float" if knob.step is None:
            return FloatDistribution(float(knob.low), float(knob.high), log=knob.log)
        case _:
            return CategoricalDistribution(knob.choices)


def _suggest(trial: optuna.trial.Trial, knob: Knob) -> Scalar:
    match found := distribution(knob):
        case IntDistribution():
            return trial.suggest_int(knob.name, found.low, found.high, log=found.log, step=found.step)
        case FloatDistribution():
            return trial.suggest_float(knob.name, found.low, found.high, log=found.log)
        case _:
            value: Scalar = trial.suggest_categorical(knob.name, list(knob.choices))
            return value


def _clip(margin: float) -> float:
    return min(WORST_MARGIN, max(-WORST_MARGIN, margin))
