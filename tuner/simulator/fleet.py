"""What a simulated deployment consists of, as data, and how its engines are made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal, Protocol

from tuner.simulator.engine import Engine, Patience, Totals
from tuner.simulator.router import Policy
from tuner.simulator.scheduler import EngineLimits, Link, Request
from tuner.simulator.steptime import StepTime
from tuner.simulator.store import Store, Tier
from tuner.simulator.tokens import Chunks


@dataclass(frozen=True)
class StoreKind:
    """A KV store: one that all engines of a group share, or one for each."""

    tiers: tuple[Tier, ...]  # at least one
    shared: bool


@dataclass(frozen=True)
class Group:
    """
    Engines that do the same work.

    `engine` does all of it; `prefill` computes prompts, `decode` fetches their KV over its `link` and answers.
    """

    role: Literal["engine", "prefill", "decode"]
    engines: int  # >= 1
    limits: EngineLimits  # of each
    step_time: StepTime  # of each
    link: Link | None = None  # of each; needed for `decode`
    store: StoreKind | None = None  # not for `decode`

    @property
    def kv_tokens(self) -> int:
        """Of each."""
        return self.limits.blocks * self.limits.block_size


@dataclass(frozen=True)
class Fleet:
    """
    A deployment: one group of role `engine`, or one `prefill` and one `decode`, in this order.

    Raises:
        ValueError: Other groups, or a `decode` without a link.
    """

    groups: tuple[Group, ...]
    max_model_len: int  # requests of more tokens, prompt and answer together, are refused
    front_end_s: float = 0.0  # see `Cluster`
    hand_over_s: float = 0.0  # see `SplitCluster`
    routing: Policy = "round_robin"  # of requests, and of what goes from prefill to decode

    def __post_init__(self) -> None:
        roles = tuple(group.role for group in self.groups)
        if roles not in (("engine",), ("prefill", "decode")):
            raise ValueError(f"got groups {roles}: either engine alone, or prefill and decode")
        if self.split and self.groups[1].link is None:
            raise ValueError("decode engines need a link")
        if self.split and self.groups[1].store is not None:
            raise ValueError("decode engines have no store")
        if len({group.limits.block_size for group in self.groups}) > 1:
            raise ValueError("blocks of one size are needed on both sides")

    @property
    def split(self) -> bool:
        """Whether prefill and decode lie apart."""
        return len(self.groups) > 1

    def with_step_times(self, step_times: Sequence[StepTime]) -> "Fleet":
        """The same with other step times, one for each group."""
        pairs = zip(self.groups, step_times, strict=True)
        return replace(self, groups=tuple(replace(group, step_time=each) for group, each in pairs))


class AnyEngine(Protocol):
    """The reference or the compiled one; see `engine.Engine`."""

    @property
    def busy(self) -> bool: ...
    @property
    def clock_s(self) -> float: ...
    @property
    def next_s(self) -> float: ...
    @property
    def queued(self) -> bool: ...
    @property
    def quiet_until_s(self) -> float: ...
    @property
    def totals(self) -> Totals: ...
    def in_flight(self, now_s: float) -> int: ...
    def add(self, request: Request) -> None: ...
    def advance(self, until_s: float, *, stop_at_end: bool = False) -> list[Request]: ...
    def release(self, request: Request, at_s: float) -> None: ...
    def take_transfers(self) -> list[tuple[Request, float]]: ...
    def settle(self) -> None: ...
    def warm(self, request: Request) -> None: ...
    def chunks(self, request: Request, until_s: float = inf) -> Chunks: ...


def make_engine(
    limits: EngineLimits,
    step_time: StepTime,
    patience: Patience | None = None,
    *,
    link: Link | None = None,
    compiled: bool | None = None,
) -> AnyEngine:
    """An idle engine without a store; see `make_engines`."""
    group = Group("engine", 1, limits, step_time, link)
    return make_engines(group, patience, compiled=compiled)[0]


def make_engines(group: Group, patience: Patience | None = None, *, compiled: bool | None = None) -> list[AnyEngine]:
    """
    The idle engines of a group, and their stores.

    Args:
        group: Of a fleet.
        patience: Of its clients.
        compiled: None = where the kernel knows the form of the step times. Results are the same, to the last bit.

    Raises:
        ValueError: The kernel does not know it, and was demanded.
    """
    stores: list[Any]
    if compiled is not False:
        from tuner.simulator import forms  # loads numba
        from tuner.simulator.compiled import CompiledEngine, CompiledStore

        form = forms.form_of(group.step_time)
        if form is not None:
            stores = _stores(group, CompiledStore)
            return [
                CompiledEngine(group.limits, form, patience=patience, link=group.link, store=store) for store in stores
            ]
        if compiled:
            raise ValueError(f"step times of {type(group.step_time).__name__} are not known to the kernel")
    stores = _stores(group, Store)
    return [Engine(group.limits, group.step_time, patience=patience, link=group.link, store=store) for store in stores]


def _stores(group: Group, make: Callable[[Sequence[Tier]], Any]) -> list[Any]:
    """The store of each engine."""
    if group.store is None:
        return [None] * group.engines
    if group.store.shared:
        return [make(group.store.tiers)] * group.engines
    return [make(group.store.tiers) for _ in range(group.engines)]
