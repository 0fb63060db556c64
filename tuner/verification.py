"""
Finalists and baseline, measured again on fresh schedules, interleaved in time.

The best of many noisy numbers is too good: what is claimed of a winner comes from here alone. Each session starts a
deployment anew and walks down a ladder of loads until one is kept; the rung that every session reached is judged over
the pooled requests of all of them.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuner import cost, gain
from tuner.configuration import Configuration
from tuner.deployment import Launcher, Running
from tuner.errors import ConfigurationFailed, InfrastructureFailed
from tuner.events import LevelEnded, LevelStarted, Listener, Note, TrialStarted
from tuner.level import Keep, closed_loop, measure, plan, unit
from tuner.load.plan import LevelData
from tuner.objective import Score, Window, score_windows
from tuner.outcome import Level, Outcome
from tuner.result import Rung, Verified
from tuner.slo import Objective, Slo
from tuner.stats import requests_for_pass
from tuner.verdict import missing_requests

#: Loads of the ladder, as shares of the capacity that the search found.
LADDER = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)
#: Requests planned beyond the fewest that can verify a limit, so that a few violations do not spoil it.
SPARE = 1.6
#: Violations beyond which the number of requests still needed is given as "at least".
_MOST_VIOLATIONS = 2_000


@dataclass
class _Candidate:
    outcome: Outcome
    rungs: tuple[float, ...]  # loads, falling
    at: int  # index of the rung that the next session starts at
    measured: dict[int, list[tuple[Level, LevelData]]] = field(default_factory=dict)
    finals: list[Level | None] = field(default_factory=list)  # of each session: the level that it kept last
    refused: list[float | None] = field(default_factory=list)  # of each session: the lowest load that it broke
    sessions: int = 0
    dropped: str = ""  # why it is out

    def levels(self, rung: int) -> list[Level]:
        return [level for level, _ in self.measured.get(rung, [])]


def planned_requests(objective: Objective) -> int:
    """Measured requests of one verification level: the file's number, or its share of what the limits need."""
    verify = objective.search.verify
    if verify.min_requests is not None:
        return verify.min_requests
    need = _needed(objective.slo, objective.search.divide_counts) * SPARE / max(1, verify.repeats)
    return max(objective.workload.measure.min_requests, math.ceil(need))


def estimated_seconds(objective: Objective, baseline: Outcome) -> float:
    """Wall seconds that verifying the baseline and two finalists will take, judged by the baseline's own trial."""
    return 3 * sessions_seconds(objective, baseline)


def sessions_seconds(objective: Objective, outcome: Outcome) -> float:
    """Wall seconds that the repeats of one finalist will take, judged by its trial."""
    fastest = max((level.offered for level in outcome.levels), default=1.0)
    load = outcome.capacity or outcome.broken_at or fastest
    window = max(objective.workload.measure.duration_s, planned_requests(objective) / max(load, 1e-9))
    session = (outcome.ready_s or 0.0) + 1.3 * (objective.workload.measure.warmup_s + window)
    return objective.search.verify.repeats * session


@dataclass(frozen=True)
class Verification:
    """
    Measures outcomes again, by turns.

    Args:
        objective: SLO, workload, prices and how often to repeat.
        launcher: Where to deploy.
        seed: Of the study; session k uses the schedule of seed + k.
        keeper: Gives the function that stores the levels of one trial.
        logs: Gives the folder for the logs of one trial's k-th session.
        charge: Called with the seconds that each session took (virtual time when simulated).
        weigh: What the objective minimises, times the goodput, of a trial's configuration.
        listen: Called with progress.
        expired: Asked between sessions; True ends the verification with what is known.
        check: Called when a deployment is ready, before its first level; raises where it is not fit to be measured.
        matched: Trials whose sessions end at the load at which they would cost no more than the best of the others.
    """

    objective: Objective
    launcher: Launcher
    seed: int
    keeper: Callable[[Outcome], Keep]
    logs: Callable[[Outcome, int], Path]
    charge: Callable[[Outcome, float], None]
    weigh: Callable[[Outcome], float]
    listen: Listener
    expired: Callable[[], bool]
    check: Callable[[Configuration, Running], object] | None = None
    matched: Collection[int] = (0,)

    def run(self, outcomes: Sequence[Outcome]) -> dict[int, Verified]:
        """
        Verify feasible trials: finalists and baseline, in any order.

        Returns:
            By trial. With `verified` False, the figures are those of the highest level observed to be kept.
        """
        candidates = [_candidate(outcome, self.objective) for outcome in outcomes]
        for turn in range(2 * self.objective.search.verify.repeats):
            for candidate in _rotated(candidates, turn):
                if not candidate.dropped and not self.expired() and not _settled(candidate, self.objective):
                    matched = candidate.outcome.trial in self.matched
                    self._session(candidate, [each for each in candidates if matched and each is not candidate])
        return {candidate.outcome.trial: _verified(candidate, self.objective) for candidate in candidates}

    def _session(self, candidate: _Candidate, rivals: Sequence[_Candidate]) -> None:
        """Start the deployment anew and walk down the ladder until a load is kept; then the load that would match."""
        outcome = candidate.outcome
        candidate.sessions += 1
        self.listen(
            TrialStarted(outcome.trial, candidate.sessions, outcome.configuration, baseline=False, phase="verify")
        )
        candidate.finals.append(None)
        candidate.refused.append(None)
        begun = time.monotonic()
        virtual = 0.0
        try:
            with self.launcher.deployment(outcome.configuration, self.logs(outcome, candidate.sessions)) as running:
                if self.check is not None:
                    self.check(outcome.configuration, running)
                for level in self._levels(candidate, running, rivals):
                    virtual += level.counters.get("level_seconds", 0.0)
        except ConfigurationFailed as error:
            candidate.dropped = f"{error.reason}: {error.cause}"
            self.listen(Note(f"trial {outcome.trial} failed while it was verified: {candidate.dropped}", warning=True))
        except InfrastructureFailed as error:
            lost = f"trial {outcome.trial}: a verification session was lost: {error.reason}: {error.cause}"
            self.listen(Note(lost, warning=True))
        finally:
            self.charge(outcome, virtual or time.monotonic() - begun)

    def _levels(self, candidate: _Candidate, running: Running, rivals: Sequence[_Candidate]) -> Iterator[Level]:
        number = 1
        while True:
            level, data = self._measure(candidate, running, number, candidate.rungs[candidate.at])
            number = data.plan.number + 1
            candidate.measured.setdefault(candidate.at, []).append((level, data))
            if level.kept:
                candidate.finals[-1] = level
            else:
                _refuse(candidate, level)
            yield level
            if candidate.at + 1 >= len(candidate.rungs) or (level.kept and not self._hopeless(level)):
                break
            candidate.at += 1
        match = self._matching_load(candidate, rivals)
        if match is not None:
            level, _ = self._measure(candidate, running, number, match)
            if not level.kept:
                _refuse(candidate, level)
            yield level

    def _measure(self, candidate: _Candidate, running: Running, number: int, load: float) -> tuple[Level, LevelData]:
        trial = candidate.outcome.trial
        self.listen(LevelStarted(trial, number, "verify", load, unit(self.objective)))
        wanted = planned_requests(self.objective)
        seed = self.seed + candidate.sessions
        planned = plan(self.objective, number=number, seed=seed, load=load, min_requests=wanted)
        level, data = measure(running, planned, purpose="verify", keep=self.keeper(candidate.outcome))
        self.listen(LevelEnded(trial, level, unit(self.objective)))
        return level, data

    def _matching_load(self, candidate: _Candidate, rivals: Sequence[_Candidate]) -> float | None:
        """
        A load that it must break for a rival's gain to be shown, or None where it costs less than the rivals anyway.

        At most the load at which it would cost as much as the best rival, less `min_gain`; a tenth above the load that
        it broke in the search where that is lower, which shows a larger gain.
        """
        final = candidate.finals[-1]
        if final is None or final.score is None or not rivals:
            return None
        rival = min(rivals, key=lambda each: self.weigh(each.outcome) / each.rungs[each.at])
        share = self.weigh(candidate.outcome) / self.weigh(rival.outcome)
        load = 0.995 * (1 - self.objective.search.min_gain) * rival.rungs[rival.at] * share
        if candidate.outcome.broken_at is not None:
            load = min(load, 1.1 * candidate.outcome.broken_at)
        if closed_loop(self.objective):
            load = float(math.floor(load))
        return load if load > final.offered else None

    def _hopeless(self, level: Level) -> bool:
        """Kept, but too near to a limit for all sessions together to show it, although fewer violations could."""
        if level.score is None:
            return False
        planned = self.objective.search.verify.repeats * level.score.n
        divide = self.objective.search.divide_counts
        for limit in level.score.limits:
            if limit.decision == "undecided" and limit.n and 0 < limit.allowed < 1:
                now = requests_needed(limit.violations / limit.n, limit.allowed, limit.design_effect)
                if now > planned >= requests_needed(0, limit.allowed, divide):
                    return True
        return False


def _candidate(outcome: Outcome, objective: Objective) -> _Candidate:
    assert outcome.capacity is not None  # noqa: S101  (feasible outcomes have one)
    shares = LADDER if objective.workload.load.kind == "find_capacity" else LADDER[:1]
    loads = [outcome.capacity * share for share in shares]
    if closed_loop(objective):
        loads = [float(max(1, math.floor(load))) for load in loads]
    rungs = tuple(dict.fromkeys(loads))
    sure = outcome.best is not None and outcome.best.score is not None and outcome.best.score.verified_kept
    return _Candidate(outcome, rungs, at=0 if sure or len(rungs) == 1 else min(1, len(rungs) - 1))


def _refuse(candidate: _Candidate, level: Level) -> None:
    before = candidate.refused[-1]
    candidate.refused[-1] = level.offered if before is None else min(before, level.offered)


def _goodput(level: Level | None) -> float | None:
    return level.score.goodput_rps if level is not None and level.score is not None else None


def _at_most(candidate: _Candidate, load: float | None, objective: Objective) -> float | None:
    """
    Goodput at a load, if everything were good: the load itself in an open loop.

    In a closed loop the answers per second grow at most in proportion to the requests in flight.
    """
    if load is None or not closed_loop(objective):
        return load
    best = candidate.outcome.best
    goodput = _goodput(best)
    return None if best is None or goodput is None else goodput * load / best.offered


def _rotated(candidates: Sequence[_Candidate], turn: int) -> list[_Candidate]:
    """Another one first each time, so that drift of the machine falls on all alike."""
    shift = turn % len(candidates) if candidates else 0
    return [*candidates[shift:], *candidates[:shift]]


def _settled(candidate: _Candidate, objective: Objective) -> bool:
    """The current rung has its repeats and is verified, or nothing is left to try."""
    levels = candidate.levels(candidate.at)
    if len(levels) < objective.search.verify.repeats:
        return False
    pooled = _pooled(candidate, candidate.at, objective)
    if pooled is not None and pooled.verified_kept:
        return True
    if candidate.at + 1 >= len(candidate.rungs):
        return True
    candidate.at += 1
    return False


def _pooled(candidate: _Candidate, rung: int, objective: Objective) -> Score | None:
    data = [data for level, data in candidate.measured.get(rung, []) if level.score is not None]
    return pooled_score(data, objective) if data else None


def pooled_score(levels: Sequence[LevelData], objective: Objective) -> Score:
    """One score over several windows of the same load."""
    windows = [Window(data.records, data.window_start_s, data.window_s) for data in levels]
    return score_windows(windows, objective.slo, divide=objective.search.divide_counts)


def _verified(candidate: _Candidate, objective: Objective) -> Verified:
    outcome = candidate.outcome
    repeats = objective.search.verify.repeats
    rungs = []
    for index in sorted(candidate.measured):
        levels = candidate.levels(index)
        pooled = _pooled(candidate, index, objective)
        enough = len(levels) >= repeats and all(level.kept for level in levels)
        passed = enough and pooled is not None and pooled.verified_kept and not candidate.dropped
        rungs.append(Rung(candidate.rungs[index], tuple(levels), passed, pooled))
    passing = [rung for rung in rungs if rung.passed and rung.pooled is not None]
    verified = max(passing, key=lambda rung: rung.offered, default=None)
    shown = verified or _highest_observed(rungs)
    pooled = shown.pooled if shown else outcome.best.score if outcome.best else None
    hourly = outcome.cost_per_hour
    return Verified(
        trial=outcome.trial,
        configuration=outcome.configuration,
        verified=verified is not None,
        rungs=tuple(rungs),
        offered_rps=pooled.offered_rps if pooled else None,
        goodput_rps=pooled.goodput_rps if pooled else None,
        cost_per_1k_good_requests=cost.per_1k_good_requests(hourly, pooled.goodput_rps)
        if pooled and hourly is not None
        else None,
        cost_per_1m_good_output_tokens=cost.per_1m_good_output_tokens(hourly, pooled.good_output_tokens_per_s)
        if pooled and hourly is not None
        else None,
        interval=_interval(shown, candidate, hourly),
        missing_requests=0 if verified else _missing(pooled, objective),
        repeats=len(shown.levels) if shown else 0,
        kept_rps=tuple(_goodput(level) for level in candidate.finals),
        refused_rps=tuple(_at_most(candidate, load, objective) for load in candidate.refused),
    )


def _highest_observed(rungs: Sequence[Rung]) -> Rung | None:
    """The highest rung that every session kept by observation; without one, the lowest that was measured."""
    seen = [rung for rung in rungs if rung.pooled is not None]
    kept = [rung for rung in seen if all(level.kept for level in rung.levels)]
    if kept:
        return max(kept, key=lambda rung: rung.offered)
    return min(seen, key=lambda rung: rung.offered, default=None)


def _interval(shown: Rung | None, candidate: _Candidate, hourly: float | None) -> tuple[float | None, float] | None:
    if shown is None or hourly is None or shown.pooled is None:
        return None
    goodputs = [level.score.goodput_rps for level in shown.levels if level.score is not None]
    broken = [load for index, load in enumerate(candidate.rungs) if any(not lv.kept for lv in candidate.levels(index))]
    above = [load for load in broken if load > shown.offered]
    if candidate.outcome.broken_at is not None and candidate.outcome.broken_at > shown.offered:
        above.append(candidate.outcome.broken_at)
    share = shown.pooled.goodput_rps / shown.pooled.offered_rps if shown.pooled.offered_rps else 1.0
    highest = min(above) / shown.offered * shown.pooled.offered_rps * share if above else None
    found = gain.cost_interval(hourly, goodputs, highest)
    return None if found is None else (found.low, found.high)


def _needed(slo: Slo, divide: float) -> int:
    """Requests without a violation that verify every percentile limit at 95 %."""
    allowed = [1 - limit.quantile for limit in slo.limits if limit.quantile is not None]
    if slo.attainment is not None and slo.attainment < 1:
        allowed.append(1 - slo.attainment)
    return max((requests_needed(0, share, divide) for share in allowed), default=1)


def requests_needed(rate: float, allowed: float, divide: float) -> int:
    """
    Requests that verify a limit at 95 % if violations go on at `rate`; the verdict divides counts by `divide`.

    Args:
        rate: Share of violating units; at or above `allowed` no number is enough, and a very large one is returned.
        allowed: Share that the limit allows.
        divide: D of the verdict.
    """
    k = 0
    while math.ceil(rate * (n := requests_for_pass(allowed, k))) > k and k < _MOST_VIOLATIONS:
        k = math.ceil(rate * n)
    return math.ceil(n * divide)


def _missing(pooled: Score | None, objective: Objective) -> int:
    """Requests that the claim would still need if no further one violated; 0 where more cannot help."""
    if pooled is None:
        return _needed(objective.slo, objective.search.divide_counts)
    return max((missing_requests(limit, pooled.n) or 0 for limit in pooled.limits), default=0)
