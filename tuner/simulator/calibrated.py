"""
Step times fitted to measured levels: what a calibration is, and how it changes the engines of a configuration.

`tuner.calibration` makes and stores calibrations; nothing here reads a file.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tuner.simulator.setup import Setup
from tuner.simulator.steptime import Calibrated

#: What is compared, per level: statistics of the measured requests.
STATISTICS = ("ttft_p50", "ttft_p95", "itl_p50", "itl_p95")


@dataclass(frozen=True)
class Residual:
    """One statistic of one level: as it was measured, and as the calibrated simulator gives it."""

    trial: int
    level: int
    offered: float  # requests/s, or concurrent requests
    statistic: str  # one of `STATISTICS`
    measured_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """Relative; > 0 where the simulator is slower."""
        return self.simulated_s / self.measured_s - 1


@dataclass(frozen=True)
class Calibration:
    """
    Constants fitted to levels of one study, for one model on one kind of device.

    A step takes c0_s + request_s · (its requests) + scale_decode · (its decodes alone) + scale_prefill · (what its
    prompt chunks add); a request reaches a scheduler `ttft_fixed_s` after its arrival.
    """

    study: str
    model: str
    device: str  # as `setup.device_name` calls it
    engine_version: str | None
    base: str  # version of the step times that were fitted: the constants mean nothing on others
    scale_prefill: float  # > 0
    scale_decode: float  # > 0
    c0_s: float  # of every step, >= 0
    request_s: float  # of every request in a step, >= 0
    ttft_fixed_s: float  # >= 0
    levels: int  # that were fitted
    paces: int = 0  # numbers of answers under way (1, 2, up to 4 …) whose pace was fitted
    residuals: tuple[Residual, ...] = ()
    created: str = ""  # ISO 8601, UTC
    provenance: Mapping[str, object] = field(default_factory=dict)

    def worst(self, statistic: str) -> float | None:
        """Largest absolute relative error of a statistic over the levels; None where it was never measured."""
        return max((abs(each.error) for each in self.residuals if each.statistic == statistic), default=None)

    @property
    def expected_error(self) -> dict[str, str]:
        """What a number is worth, by metric, in words: the fit's own residuals, so of these levels only."""
        found: dict[str, str] = {}
        for metric in ("ttft", "itl"):
            parts = [
                f"{statistic[-3:]} within {math.ceil(100 * worst - 1e-9)} %"
                for statistic in STATISTICS
                if statistic.startswith(metric) and (worst := self.worst(statistic)) is not None
            ]
            found[metric] = f"{', '.join(parts)} on the {self.levels} levels it was fitted to" if parts else "unknown"
        return found | dict.fromkeys(("tpot", "e2el"), "not fitted; see ttft and itl")


def applies(calibration: Calibration, made: Setup) -> bool:
    """The calibration is for this device and was fitted on these step times."""
    return calibration.device == made.device and calibration.base == made.step_times


def apply(calibration: Calibration, made: Setup) -> Setup:
    """The same engines with calibrated step times and front end."""
    step_times = [
        Calibrated(
            group.step_time,
            calibration.scale_prefill,
            calibration.scale_decode,
            calibration.c0_s,
            calibration.request_s,
        )
        for group in made.fleet.groups
    ]
    front_end_s = calibration.ttft_fixed_s
    fleet = replace(made.fleet.with_step_times(step_times), front_end_s=front_end_s, hand_over_s=front_end_s)
    return replace(made, fleet=fleet)


def in_words(calibration: Calibration) -> str:
    """Such as `calibrated on cpu-demo (4 levels)`."""
    return f"calibrated on {calibration.study} ({calibration.levels} levels)"
