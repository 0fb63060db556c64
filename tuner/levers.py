"""
The levers of a deployment, and which trials speak for each of their values. Pure.

A lever sorts the trials by one property: how many GPUs they hold, aggregated or disaggregated, how the GPUs are split,
which store, which batch limits; and every other knob by its value. The best trial with a value stands against the best
with any other.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tuner.comparison import ranked, value, weight
from tuner.configuration import COUNT_KNOBS, PARALLEL_KNOBS, SIDES, Configuration, flag_of, side_of
from tuner.outcome import Outcome
from tuner.slo import Objective, Scalar
from tuner.standing import Verified, refuted

#: Knobs that a lever of its own stands for.
BATCH_LIMITS = ("max_num_batched_tokens", "max_num_seqs")
#: Levers of which the best trial with each value is verified, where the budget allows it.
VERIFIED = ("mode", "kv_store")
#: What a flag that no trial of the lever's value sets is called.
DEFAULT = "default"


@dataclass(frozen=True)
class Lever:
    """`read` gives a configuration's value as text; None where the lever has no meaning for it."""

    name: str
    read: Callable[[Configuration], str | None]
    decision: bool = False  # one of the five questions that a study is asked

    def groups(self, outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
        """Trials by value, in the values' natural order."""
        found: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            shown = self.read(outcome.configuration)
            if shown is not None:
                found.setdefault(shown, []).append(outcome)
        return {each: found[each] for each in sorted(found, key=_natural)}


def levers(objective: Objective, outcomes: Sequence[Outcome], verified: Mapping[int, Verified]) -> list[Lever]:
    """
    The standing levers, tried or not, then every other knob of the trials by name.

    Batch limits are compared within the mode of the best trial: a disaggregated deployment has two of each, and what
    the mode does would be read as their doing.
    """
    leader = best(objective, outcomes, verified)
    mode = None if leader is None else leader.configuration.mode
    batch = [Lever(name, _batch(name, mode), decision=True) for name in BATCH_LIMITS]
    names = sorted({name for outcome in outcomes for name in outcome.configuration.knobs if not _standing(name)})
    return [*_STANDING, *batch, *(Lever(name, _knob(name)) for name in names)]


def best(objective: Objective, group: Sequence[Outcome], verified: Mapping[int, Verified]) -> Outcome | None:
    """
    The feasible trial with the lowest figure that stood its verification; None without one.

    Where the best of the search was measured again, the best of those that were: figures of the search flatter.
    """
    standing = [outcome for outcome in ranked(objective, group) if not refuted(verified.get(outcome.trial))]
    if not standing or not _goodput(verified, standing[0]):
        return standing[0] if standing else None
    again = [outcome for outcome in standing if _goodput(verified, outcome)]
    return min(again, key=lambda each: weight(objective, each.configuration) / (_goodput(verified, each) or math.inf))


def representatives(objective: Objective, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The best trial of the search with each mode and each store, where more than one was tried."""
    found: dict[int, Outcome] = {}
    for lever in _STANDING:
        groups = lever.groups(outcomes)
        if lever.name in VERIFIED and len(groups) > 1:
            chosen = (best(objective, group, {}) for group in groups.values())
            found |= {outcome.trial: outcome for outcome in chosen if outcome is not None}
    return list(found.values())


def to_beat(objective: Objective, configuration: Configuration, outcomes: Sequence[Outcome]) -> float | None:
    """
    What a new configuration must not cost more than, or it is of no interest; None where it is in any case.

    For each of its mode, split and store: the best trial so far with the same. It is of interest while it may be better
    than one of these, so that the best trial with each is known, and not only the best of all.
    """
    bars = []
    for lever in _CLASSES:
        own = lever.read(configuration)
        same = [outcome for outcome in outcomes if lever.read(outcome.configuration) == own]
        best_of_same = next(iter(ranked(objective, same)), None)
        bars.append(None if best_of_same is None else value(objective, best_of_same))
    known = [bar for bar in bars if bar is not None]
    return max(known) if len(known) == len(bars) else None


def split(configuration: Configuration) -> str | None:
    """Units of prefill to units of decode in lowest terms, such as `1:3`; None where nothing is split."""
    if configuration.mode != "disaggregated":
        return None
    prefill, decode = (role.units for role in configuration.roles)
    common = math.gcd(prefill, decode)
    return f"{prefill // common}:{decode // common}"


def label(setting: Scalar) -> str:
    """A knob's value as the report writes it."""
    if setting is None:
        return DEFAULT
    if isinstance(setting, bool):
        return "on" if setting else "off"
    return str(setting)


#: Levers whose every value has a best trial that is measured to its capacity: what is worse than it is pruned.
_CLASSES = (
    Lever("mode", lambda configuration: configuration.mode, decision=True),
    Lever("split", split, decision=True),
    Lever("kv_store", lambda configuration: configuration.kv_store, decision=True),
)
#: Levers of every study, tried or not.
_STANDING = (Lever("gpus", lambda configuration: str(configuration.units), decision=True), *_CLASSES)


def _standing(name: str) -> bool:
    return name in VERIFIED or (flag_of(name) or name) in BATCH_LIMITS


def _batch(name: str, mode: str | None) -> Callable[[Configuration], str | None]:
    def read(configuration: Configuration) -> str | None:
        if configuration.mode != mode:
            return None
        found = {role.name: label(role.flags.get(name)) for role in configuration.roles}
        if len(set(found.values())) == 1:
            return next(iter(found.values()))
        return ", ".join(f"{role} {shown}" for role, shown in found.items())

    return read


def _knob(name: str) -> Callable[[Configuration], str | None]:
    """Of the trials in whose mode the knob has a meaning."""
    own = "aggregated" if name == "replicas" else "disaggregated" if _of_a_side(name) else None

    def read(configuration: Configuration) -> str | None:
        if own not in (None, configuration.mode):
            return None
        setting = configuration.knobs.get(name)
        return label(1 if setting is None and name in (*COUNT_KNOBS, *PARALLEL_KNOBS) else setting)

    return read


def _of_a_side(name: str) -> bool:
    return name == "kv_transfer" or side_of(name) is not None or name.startswith(tuple(f"{side}_" for side in SIDES))


def _goodput(verified: Mapping[int, Verified], outcome: Outcome) -> float | None:
    found = verified.get(outcome.trial)
    return None if found is None else found.goodput_rps


def _natural(text: str) -> tuple[int, float, str]:
    """The default first, then numbers by size, then words."""
    if text == DEFAULT:
        return 0, 0.0, ""
    try:
        return 1, float(text), ""
    except ValueError:
        return 2, 0.0, text
