"""
The simulated cluster behind the same protocol as the live ones: virtual time, no process, no endpoint, no socket.

Levels see the same arrivals, lengths and prefix blocks as under the live client, and the same stop rules. Everything is
a function of objective, configuration and plan: equal inputs give equal records, to the last bit.
"""

import copy
import hashlib
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from tuner.configuration import Configuration
from tuner.deployment import Deployment, Running, vllm
from tuner.deployment.spec import masked
from tuner.errors import Interrupted
from tuner.load import traces
from tuner.load.plan import LevelData, LevelPlan
from tuner.load.shape import Rows
from tuner.simulator import calibrated, contention, setup, storing
from tuner.simulator.calibrated import Calibration
from tuner.simulator.level import Level
from tuner.simulator.steptime import scaled
from tuner.slo import Objective

#: What the numbers are worth, shown wherever they are. Source: benchmarks/accuracy.py.
EXPECTED_ERROR: Mapping[str, Mapping[str, str]] = {
    "table": {
        "ttft": "mean within 7 % (H100) and 13 % (H200) on 105 rows of Llama-3.1-70B fp8, within 22 to 33 % on "
        "gpt-oss-120b and on B200; unknown for other models; mostly optimistic",
        "tpot": "mean within 7 % on the same 105 rows, within 6 to 19 % on gpt-oss-120b and on B200; unknown for other "
        "models; mostly optimistic",
        "itl": "percentiles never compared with measurements; likely optimistic",
        "e2el": "never compared with measurements",
    },
    "gpu": {
        "ttft": "mean within 7 % on the 97 rows (Llama-3.1-70B fp8, H100 and H200) its constants were set on; "
        "unknown for other models and devices; several times too long near KV exhaustion",
        "tpot": "mean within 6 % on the same rows; unknown for other models and devices",
        "itl": "percentiles never compared with measurements; likely optimistic",
        "e2el": "never compared with measurements",
    },
    "cpu": dict.fromkeys(("ttft", "tpot", "itl", "e2el"), "rough: set on two figures of one tiny model"),
}
#: The same of what only some deployments have.
TRANSFER_ERROR = "times of a split deployment: never compared with measurements on GPUs; the link is as fast as stated"
STORE_ERROR = (
    "times with a KV store: never compared with measurements; each tier is as fast as its hardware's data sheet"
)


Slowdown = Callable[[Configuration], float]


@dataclass(frozen=True)
class _World:
    """What all deployments of a launcher share."""

    objective: Objective
    rows: Rows | None
    seed: int
    variation: float
    startup_s: float
    calibration: Calibration | None
    slowdown: Slowdown
    interrupted: threading.Event

    def factor(self, configuration: Configuration, plan: LevelPlan) -> float:
        """Of one level's step times: the slowdown, times a log-normal drawn from seed, configuration and level."""
        slower = self.slowdown(configuration)
        if self.variation == 0:
            return slower
        digest = hashlib.sha256(f"{self.seed} {configuration.key} {plan.seed} {plan.number}".encode()).digest()
        random = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
        return slower * math.exp(self.variation * random.standard_normal())


class SimulatedLauncher:
    """
    Deployments in virtual time.

    Args:
        objective: Model, cluster and workload.
        seed_noise: Seed of `variation`; of no meaning without it.
        variation: Standard deviation of the logarithm of a factor on all step times of one level: how much equal runs
            differ. 0 = not at all.
        startup_s: Virtual seconds that a deployment takes to be ready; told in its facts.
        calibration: Constants fitted to a live study, used on the device and the step times that it was fitted on.
        slowdown: Factor on all step times of a configuration: another engine, or another day's machine.

    Raises:
        InputError: Model or a device are unknown here, so nothing can be simulated; the message names what is known.
    """

    source = "simulated"
    parallel = 1

    def __init__(
        self,
        objective: Objective,
        *,
        seed_noise: int | None = None,
        variation: float = 0.0,
        startup_s: float = 0.0,
        calibration: Calibration | None = None,
        slowdown: Slowdown = lambda _: 1.0,
    ) -> None:
        setup.known_model(objective.model)
        for pool in objective.cluster.pools:
            setup.machine_of(pool)
        rows = traces.read(objective.workload.source)
        self._world = _World(
            objective, rows, seed_noise or 0, variation, startup_s, calibration, slowdown, threading.Event()
        )

    def recalibrated(self, calibration: Calibration | None) -> Self:
        """The same with other constants; nothing is read again."""
        other = copy.copy(self)
        other._world = replace(self._world, calibration=calibration)  # noqa: SLF001  (of its own class)
        return other

    def deployment(self, configuration: Configuration, logs: Path) -> Deployment:
        """See `Launcher`; nothing is ever written to `logs`."""
        del logs
        return _Deployment(self._world, configuration)

    def interrupt(self) -> None:
        """See `Launcher`: the next level raises; the one that runs takes seconds at most."""
        self._world.interrupted.set()

    def check(self, configuration: Configuration) -> str | None:
        """See `Launcher`. Also what this model of the engine does not cover."""
        cluster = self._world.objective.cluster
        roles = tuple(role.name for role in configuration.roles)
        if configuration.mode not in ("aggregated", "disaggregated") or roles not in setup.ROLES:
            return f"mode {configuration.mode} is not simulated"
        store = "lmcache with blending" if configuration.lossy else configuration.kv_store
        if store != "none" and store not in storing.KINDS:
            return f"kv_store {store} is not simulated"
        for role in configuration.roles:
            if (role.flags.get("pipeline_parallel_size") or 1) != 1:
                return f"pipeline_parallel_size {role.flags['pipeline_parallel_size']} is not simulated"
        if configuration.units > cluster.max_gpus:
            return f"it needs {configuration.units} units, max_gpus is {cluster.max_gpus}"
        if setup.placed(configuration, self._world.objective) is None:
            wanted = " and ".join(
                f"{role.replicas} instances of {role.units_each} units" for role in configuration.roles
            )
            return f"{wanted} fit on no pool: an instance never spans nodes"
        return None

    def close(self) -> None:
        """See `Launcher`."""


class _Deployment:
    """Starting takes no time and leaves nothing behind."""

    def __init__(self, world: _World, configuration: Configuration) -> None:
        self._world, self._configuration = world, configuration

    @property
    def commands(self) -> list[dict[str, object]]:
        """What a live deployment of the configuration would start: templates, for whoever deploys the winner."""
        return [masked(spec) for spec in vllm.specs(self._configuration, self._world.objective)]

    def __enter__(self) -> Running:
        return _Running(self._world, self._configuration)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing was started."""


class _Running:
    source = "simulated"

    def __init__(self, world: _World, configuration: Configuration) -> None:
        self._world, self._configuration = world, configuration
        made = setup.resolve(configuration, world.objective)
        found = world.calibration
        self._calibration = found if found is not None and calibrated.applies(found, made) else None
        self._setup = made if self._calibration is None else calibrated.apply(self._calibration, made)
        self._cores = contention.cores(configuration.roles, made.pools)

    @property
    def facts(self) -> Mapping[str, object]:
        """What was assumed, and what the numbers are worth."""
        made, found = self._setup, self._calibration
        kind = "roofline" if made.step_times == setup.ROOFLINE else "tables of measured kernels"
        known = EXPECTED_ERROR[made.unit if kind == "roofline" else "table"]
        return {
            "step_times": kind if found is None else f"{kind}, {calibrated.in_words(found)}",
            "table_version": made.step_times,
            "expected_error": {**(known if found is None else found.expected_error), **self._unproven()},
            "model": self._world.objective.model,
            **self._group(0),
            **({"decode": self._group(1)} if made.fleet.split else {}),
            "front_end_s": made.front_end_s,
            **({} if self._cores is None else {"spare_cores": self._cores.spare}),
            "routing": made.fleet.routing,
            "flags_without_effect": list(made.ignored_flags),
            "ready_s": self._world.startup_s,
        }

    def _unproven(self) -> dict[str, str]:
        """What no accuracy is known of, by what it is about."""
        fleet = self._setup.fleet
        return {
            **({"kv_transfer": TRANSFER_ERROR} if fleet.split else {}),
            **({"kv_store": STORE_ERROR} if fleet.groups[0].store is not None else {}),
        }

    def _group(self, index: int) -> dict[str, object]:
        group = self._setup.fleet.groups[index]
        facts: dict[str, object] = {
            "device": setup.device_name(self._setup.pools[index]),
            "engines": group.engines,
            "kv_tokens": group.kv_tokens,
            "max_num_batched_tokens": group.limits.max_num_batched_tokens,
            "max_num_seqs": group.limits.max_num_seqs,
        }
        if group.store is not None:
            facts["store_shared"] = group.store.shared
            for tier in group.store.tiers:
                facts[f"store_{tier.name}_tokens"] = tier.blocks * group.limits.block_size
                facts[f"store_{tier.name}_tokens_per_s"] = 1 / tier.token_s
        if group.link is not None:
            facts |= {"link_latency_s": group.link.latency_s, "link_tokens_per_s": 1 / group.link.token_s}
        return facts

    def drive(self, plan: LevelPlan) -> LevelData:
        """See `Running`; `counters["level_seconds"]` is the virtual duration of the level."""
        if self._world.interrupted.is_set():
            raise Interrupted("the study was interrupted")
        factor = self._world.factor(self._configuration, plan)
        data = self._run(plan, factor)
        if self._cores is None:
            return data
        stretch = self._cores.stretch(data)
        return self._cores.delivered(data if stretch == 1 else self._run(plan, factor * stretch))

    def _run(self, plan: LevelPlan, factor: float) -> LevelData:
        """A level with `factor` on all step times."""
        fleet = self._setup.fleet
        if factor != 1:
            fleet = fleet.with_step_times([scaled(group.step_time, factor) for group in fleet.groups])
        return Level(plan, self._world.rows, fleet=fleet).run()
