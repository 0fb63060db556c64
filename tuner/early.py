"""Stop a level as soon as a limit is certainly broken; a limit never passes early."""

import math
from typing import Generic, Protocol, TypeVar

from tuner import metrics
from tuner.metrics import POOLED
from tuner.records import Record
from tuner.slo import Limit, RequestLimits, Slo
from tuner.stats import log_e_value

T = TypeVar("T")

#: Bets on how far a share of pooled gaps lies above the allowed one, as shares of the largest bet that cannot lose all.
BETS = (0.015, 0.05, 0.18)


class _Test(Protocol):
    """One limit, fed with requests in order of arrival."""

    def update(self, record: Record) -> bool:
        """Whether the limit is certainly broken by now."""


class EarlyFailure:
    """
    Watches every limit of an SLO; feed it the measured records in order of arrival, each once it is decided.

    The chance that a limit which is kept is ever called broken is at most `alpha`, for each limit, however long the
    level lasts, provided that violations come in bursts of at most `divide` neighbouring requests.

    Args:
        slo: Limits of percentiles are tested; `max` and an attainment of 100 % fail with the first violation, and
            `mean` with the first failed request.
        alpha: Chance of a wrong failure, per limit and level.
        divide: D, > 0: evidence is counted as if only every D-th request were news.
        longest_output_tokens: Most output tokens that a request of the level may ask for; None = learnt as they come.
    """

    def __init__(
        self, slo: Slo, alpha: float = 0.05, divide: float = 2.0, *, longest_output_tokens: int | None = None
    ) -> None:
        self._tests = [(limit.name, _test_of(limit, alpha, divide, longest_output_tokens or 1)) for limit in slo.limits]
        if slo.attainment is not None:
            self._tests.append(("attainment", _Attainment(slo.request, _allowed(slo.attainment), alpha, divide)))
        self.broken: str | None = None  # name of the limit, once one is
        self.requests = 0  # consumed so far

    def update(self, record: Record) -> str | None:
        """
        Name of the limit that is certainly broken, or None. Records of other phases are passed over.

        Once a limit is broken the answer stays the same.
        """
        if self.broken is None and record.phase == "measured":
            self.requests += 1
            for name, test in self._tests:
                if test.update(record):
                    self.broken = name
                    break
        return self.broken


class InOrder(Generic[T]):
    """
    Hands out what comes in any order in the order of its index, each only once all before it have come.

    Args:
        first: Index of the first one.
    """

    def __init__(self, first: int = 0) -> None:
        self.next = first  # lowest index not yet seen
        self._waiting: dict[int, T] = {}

    def push(self, index: int, item: T) -> list[T]:
        """
        Take one in; give back all that are in turn now, often none.

        Raises:
            ValueError: This index came before.
        """
        if index < self.next or index in self._waiting:
            raise ValueError(f"index {index} came twice: each request is decided once")
        self._waiting[index] = item
        ready: list[T] = []
        while self.next in self._waiting:
            ready.append(self._waiting.pop(self.next))
            self.next += 1
        return ready


def _allowed(quantile: float) -> float:
    """Share of violations that a quantile, or an attainment, leaves: 0.01 for 0.99, without the noise of floats."""
    return round(1 - quantile, 12)


def _test_of(limit: Limit, alpha: float, divide: float, longest: int) -> _Test:
    if limit.quantile is None or _allowed(limit.quantile) <= 0:
        return _Never(limit)
    if limit.metric in POOLED:
        return _Pooled(limit, _allowed(limit.quantile), alpha, divide, longest)
    return _Share(limit, _allowed(limit.quantile), alpha, divide)


class _Never:
    """`max`: any violation; `mean`: any failed request, whose value is infinite."""

    def __init__(self, limit: Limit) -> None:
        self._metric = limit.metric
        self._threshold_s = math.inf if limit.statistic == "mean" else limit.threshold_s

    def update(self, record: Record) -> bool:
        if math.isinf(self._threshold_s):
            return metrics.undelivered(record) > 0 if self._metric in POOLED else not metrics.is_complete(record)
        return metrics.violations(record, self._metric, self._threshold_s)[0] > 0


class _Binomial:
    """The beta-mixture test on counts divided by D. Only a violation raises the evidence: only then it is taken."""

    def __init__(self, allowed: float, alpha: float, divide: float) -> None:
        self._allowed, self._divide = allowed, divide
        self._threshold = -math.log(alpha)
        self._k = self._n = 0

    def add(self, violations: int, units: int) -> bool:
        self._k += violations
        self._n += units
        if not violations:
            return False
        if self._allowed <= 0:
            return True
        evidence = log_e_value(self._k / self._divide, self._n / self._divide, self._allowed)
        return bool(evidence >= self._threshold)


class _Share:
    def __init__(self, limit: Limit, allowed: float, alpha: float, divide: float) -> None:
        self._limit = limit
        self._test = _Binomial(allowed, alpha, divide)

    def update(self, record: Record) -> bool:
        return self._test.add(*metrics.violations(record, self._limit.metric, self._limit.threshold_s))


class _Attainment:
    def __init__(self, limits: RequestLimits, allowed: float, alpha: float, divide: float) -> None:
        self._limits = limits
        self._test = _Binomial(allowed, alpha, divide)

    def update(self, record: Record) -> bool:
        return self._test.add(int(not metrics.is_good(record, self._limits)), 1)


class _Pooled:
    """
    Share of violating gaps over all requests, by betting on each request's surplus of violations.

    With v violations among u gaps the surplus v − allowed × u has a mean of at most 0 if the limit is kept, whatever
    the dependence of gaps inside the request. Wealth grows by 1 + bet × surplus, never below 0 as the bet is at most
    1 / (allowed × most gaps of a request). Its D-th root stands for counts divided by D: with bursts of up to D
    neighbours it is the geometric mean of D fair games (Hölder). The evidence is the mean over `BETS`.

    Source: Waudby-Smith and Ramdas, J. R. Stat. Soc. B 86 (2024).
    """

    def __init__(self, limit: Limit, allowed: float, alpha: float, divide: float, longest: int) -> None:
        self._limit = limit
        self._allowed, self._divide, self._longest = allowed, divide, longest
        self._threshold = -math.log(alpha) + math.log(len(BETS))
        self._wealth = [0.0] * len(BETS)  # natural logs

    def update(self, record: Record) -> bool:
        violations, units = metrics.violations(record, self._limit.metric, self._limit.threshold_s)
        return self.add(violations, units, record.asked_output_tokens)

    def add(self, violations: int, units: int, asked: int) -> bool:
        self._longest = max(self._longest, asked, units)
        surplus = (violations - self._allowed * units) / (self._allowed * self._longest)
        self._wealth = [
            wealth + math.log1p(bet * surplus) / self._divide for bet, wealth in zip(BETS, self._wealth, strict=True)
        ]
        top = max(self._wealth)
        return top + math.log(sum(math.exp(wealth - top) for wealth in self._wealth)) >= self._threshold
