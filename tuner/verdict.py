"""Is a limit kept, broken or undecided, and how sure?"""

from dataclasses import dataclass
from typing import Literal

Decision = Literal["kept", "broken", "undecided"]


@dataclass(frozen=True)
class LimitVerdict:
    """
    One limit over one measured window (or over several, pooled).

    `observed` goes by the point estimate; `decision` by the one-sided confidence bounds on the share of violating units.
    `margin` = (estimate − threshold) / threshold clipped to ±1.5, <= 0 kept; for attainment (promised − attained) /
    promised. Estimate None = infinite, because failures reach this percentile ("> longest").
    """

    name: str  # "ttft_p99", "itl_p99", "attainment" …
    threshold: float  # seconds; a share for attainment
    estimate: float | None  # in the unit of the threshold, nearest rank
    longest: float | None  # the largest finite value
    n: int  # units: requests, or gaps for itl and chunk_gap
    violations: int
    allowed: float  # share of violating units that the limit allows: 0.01 for p99
    lower: float  # one-sided 95 % bounds on the true share of violating units
    upper: float
    observed: Literal["kept", "broken"]
    decision: Decision
    margin: float
    method: str  # "clopper-pearson", "bootstrap over requests", "observed only"
    design_effect: float  # D by which counts were divided
