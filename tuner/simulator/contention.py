"""
CPU nodes on which the engines hold every core: what runs beside them takes its time from their steps.

An API server, a router and a client want processor time for every step, token and request. Where no core is left beside
the engines, a step takes as much longer as its core was busy with them. With a core to spare it does not: what an
engine's own server takes there, on the core that both are held to, is in the step times. The constants are those of
vLLM 0.32 on its CPU build with vllm-router, from the processor time of each process at seven loads between 0.5 and 12
requests/s (decision 0186). The scheduler's process is left out: a step waits for it anyway. GPU engines have cores of
their own and are not touched.

A server that shares its core with worker and scheduler slows no step: its answers leave late now and then.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.configuration import Role
from tuner.load.plan import LevelData
from tuner.records import Record
from tuner.slo import Pool

#: Seconds of a core: for every step that emits tokens, for each of these, for each request, and for each engine in
#: every second, whether it has work or not.
STEP_S, TOKEN_S, REQUEST_S, ENGINE_SHARE = 0.0007, 0.0002, 0.005, 0.0125
#: However much is wanted, the scheduler of the operating system leaves the engines this share of their cores.
LEAST_SHARE = 0.5
#: Where the server shares its core with a scheduler's process, which spins while its worker computes, so large a share
#: of the chunks leaves late, by an exponential of this mean in seconds (decision 0188).
LATE_SHARE, LATE_S = 1 / 3, 0.002


@dataclass(frozen=True)
class Cores:
    """Of the CPU nodes that a deployment is on."""

    engines: int
    held: int  # by engines
    spare: int  # by nobody

    def stretch(self, data: LevelData) -> float:
        """
        Factor on step times, >= 1, from what a level without contention did.

        Args:
            data: Of that level.
        """
        seconds = data.counters["level_seconds"]
        if seconds <= 0:
            return 1.0
        chunks = [chunk for record in data.records for chunk in record.chunks]
        steps, tokens = len({time_s for time_s, _ in chunks}), sum(count for _, count in chunks)
        work_s = STEP_S * steps + TOKEN_S * tokens + REQUEST_S * len(data.records)
        wanted = work_s / seconds + ENGINE_SHARE * self.engines
        taken = max(0.0, wanted - self.spare) / self.held
        return 1 / max(LEAST_SHARE, 1 - taken)

    def delivered(self, data: LevelData) -> LevelData:
        """
        The level as a client sees it: where engines and schedulers leave no core to the server, some chunks are late.

        A chunk never overtakes the one before it, and the next one is not late for it. The delays are drawn from the
        plan's seed and number alone.

        Args:
            data: When the engines made each chunk.
        """
        if self.spare > self.engines:
            return data
        random = np.random.Generator(np.random.PCG64([data.plan.seed, data.plan.number]))
        return replace(data, records=tuple(_late(record, random) for record in data.records))


def _late(record: Record, random: np.random.Generator) -> Record:
    if not record.chunks:
        return record
    size = len(record.chunks)
    late_s = np.where(random.random(size) < LATE_SHARE, random.exponential(LATE_S, size), 0.0)
    made_s = np.array([time_s for time_s, _ in record.chunks])
    times_s = np.maximum.accumulate(made_s + late_s).tolist()
    chunks = tuple((time_s, count) for time_s, (_, count) in zip(times_s, record.chunks, strict=True))
    return replace(record, chunks=chunks, first_token_s=times_s[0], last_token_s=times_s[-1])


def cores(roles: Sequence[Role], pools: Sequence[Pool]) -> Cores | None:
    """
    The cores of a deployment's nodes, where a CPU node has the cores of its slots and engines fill nodes one by one.

    Args:
        roles: Of the configuration.
        pools: The pool of each role.

    Returns:
        None for GPUs, and where a slot shares its cores with others.
    """
    if any(pool.unit == "gpu" or pool.cores == 0 for pool in pools):
        return None
    held = offered = 0
    for pool in dict.fromkeys(pools):
        units = sum(role.units for role, own in zip(roles, pools, strict=True) if own == pool)
        held += units * pool.cores
        offered += math.ceil(units / pool.per_node) * pool.per_node * pool.cores
    return Cores(sum(role.caches for role in roles), held, offered - held)
