"""Random workloads and limits for the simulated engines."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from tuner.simulator.scheduler import EngineLimits, Request

limits_strategy = st.builds(
    EngineLimits,
    max_num_batched_tokens=st.integers(4, 64),
    max_num_seqs=st.integers(1, 12),
    blocks=st.integers(20, 60),
    block_size=st.sampled_from([1, 2, 4, 16]),
    enable_chunked_prefill=st.booleans(),
    enable_prefix_caching=st.booleans(),
    long_prefill_token_threshold=st.sampled_from([0, 3]),
)


@st.composite
def workloads(draw) -> list[Request]:
    """Up to 30 requests with arrival times, some with a common prefix."""
    clock, requests = 0.0, []
    for number in range(draw(st.integers(1, 30))):
        clock += draw(st.sampled_from([0.0, 0.5, 1.0, 7.0]))
        prompt, output = draw(st.integers(1, 14)), draw(st.integers(1, 6))
        family = draw(st.integers(0, 2))
        requests.append(
            Request(number, prompt, output, keys=tuple(range(100 * family, 100 * family + prompt)), scheduled_s=clock)
        )
    return requests


def fitted(requests: Sequence[Request], limits: EngineLimits) -> tuple[list[Request], EngineLimits]:
    """Fresh copies with keys of the right block size, and limits under which each one can run."""
    copies = [
        Request(each.number, each.prompt, each.output, each.keys[: each.prompt // limits.block_size], each.scheduled_s)
        for each in requests
    ]
    longest = max(each.prompt + each.output for each in requests)
    budget = (
        limits.max_num_batched_tokens if limits.enable_chunked_prefill else max(limits.max_num_batched_tokens, longest)
    )
    return copies, replace(limits, max_num_batched_tokens=budget)
