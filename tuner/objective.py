"""Records + SLO → Score: what one measured window says. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.verdict import LimitVerdict


@dataclass(frozen=True)
class Score:
    """One measured window, judged."""

    n: int  # requests that arrived in the window
    good: int
    completed: int
    failed: Mapping[str, int]  # class → how many
    window_s: float
    goodput_rps: float
    attainment: float
    offered_rps: float  # arrivals / window
    output_tokens_per_s: float  # all tokens that came inside the window
    good_output_tokens_per_s: float
    metrics: Mapping[str, Mapping[str, float | None]]  # "ttft_ms" → {"p50": …}; None = infinite or not applicable
    stall_share: float | None  # share of pooled ITL samples above the stall threshold (see metrics.STALL_FACTOR)
    delivered_input_ratio: float | None  # delivered / asked input tokens
    delivered_output_ratio: float | None
    token_source: str  # "usage", "tokenizer", "chunks" or "mixed"
    limits: tuple[LimitVerdict, ...]

    @property
    def margins(self) -> dict[str, float]:
        """Signed relative margin of each limit, in the order of the objective file; <= 0 is kept."""
        return {limit.name: limit.margin for limit in self.limits}

    @property
    def observed_kept(self) -> bool:
        """Every limit is kept by its point estimate."""
        return all(limit.observed == "kept" for limit in self.limits)

    @property
    def verified_kept(self) -> bool:
        """Every limit is kept with confidence."""
        return all(limit.decision == "kept" for limit in self.limits)
