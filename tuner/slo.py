"""
What an objective file says, as frozen values in canonical units: seconds, requests per second, currency per hour.

`objective_file.load` makes them; nothing here reads a file. Every attribute names its unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

LimitedMetric = Literal["ttft", "itl", "chunk_gap", "tpot", "e2el"]
Scalar = bool | int | float | str | None


@dataclass(frozen=True)
class Limit:
    """`statistic` of `metric` stays at or below `threshold_s`."""

    metric: LimitedMetric
    statistic: str  # "p50" … "p99.9", "mean" or "max"
    threshold_s: float

    @property
    def name(self) -> str:
        """Name in files and in Optuna, such as `ttft_p99`."""
        return f"{self.metric}_{self.statistic}"

    @property
    def quantile(self) -> float | None:
        """0.99 for p99; None for mean and max."""
        return float(Fraction(self.statistic[1:]) / 100) if self.statistic[0] == "p" else None


@dataclass(frozen=True)
class RequestLimits:
    """What makes one request good besides being complete; None = not limited."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None
    itl_max_s: float | None = None  # the request's largest chunk gap


@dataclass(frozen=True)
class Slo:
    limits: tuple[Limit, ...]
    request: RequestLimits = RequestLimits()
    attainment: float | None = None  # share in (0, 1] of arriving requests that must be good; None = no such limit


@dataclass(frozen=True)
class Synthetic:
    """Prompts of exact token counts. `input_tokens` includes the shared prefix."""

    input_tokens: int
    output_tokens: int
    shared_prefix_tokens: int = 0
    prefixes: int = 1  # how many different shared prefixes, used in turn
    kind: Literal["synthetic"] = "synthetic"


@dataclass(frozen=True)
class Trace:
    """Lengths, arrival gaps and prefix blocks of a recorded trace."""

    path: str  # absolute
    format: Literal["mooncake", "azure"]
    scale_length: float = 1.0  # factor on input and output lengths, each kept >= 1
    scale_time: float = 1.0  # factor on the gaps; > 1 slows down. Matters for `arrivals: replay` with a fixed rate only
    start: int = 0  # first row used
    rows: int | None = None  # how many rows; None = to the end
    grid_s: float = 0.0  # timestamps lie on a grid this coarse: jittered within it
    max_input_tokens: int | None = None  # longer prompts are cut to this
    max_output_tokens: int | None = None
    kind: Literal["trace"] = "trace"


@dataclass(frozen=True)
class Prompts:
    """Prompts from a JSON-lines file with `prompt` (text) or `messages`, and `output_tokens`."""

    path: str  # absolute
    output_tokens: int | None = None  # where a line names none
    kind: Literal["prompts"] = "prompts"


Source = Synthetic | Trace | Prompts


@dataclass(frozen=True)
class Arrivals:
    """
    Open-loop arrival process at unit rate, or a closed loop.

    `replay` keeps the trace's own gaps, scaled so that their mean is the offered rate. `burstiness` is the shape of
    the gamma distribution of the gaps: 1 = Poisson, < 1 burstier.
    """

    process: Literal["poisson", "constant", "gamma", "replay", "closed_loop"] = "poisson"
    burstiness: float = 1.0


@dataclass(frozen=True)
class Load:
    """Exactly one kind: find the capacity, one open-loop rate, or one closed-loop concurrency."""

    kind: Literal["find_capacity", "rate", "concurrency"] = "find_capacity"
    rate_rps: float | None = None
    concurrency: int | None = None


@dataclass(frozen=True)
class Measure:
    """The measured window lasts until both `duration_s` and `min_requests` are reached."""

    warmup_s: float = 10.0
    duration_s: float = 60.0
    min_requests: int = 300


@dataclass(frozen=True)
class Timeouts:
    first_token_s: float = 60.0
    between_tokens_s: float = 30.0
    total_s: float = 600.0


@dataclass(frozen=True)
class Cache:
    """State of prefix cache and store at the start of a level: reset, filled by `requests`, or left as it is."""

    policy: Literal["cold", "steady", "warm"] = "cold"
    requests: int = 0


@dataclass(frozen=True)
class Workload:
    source: Source
    arrivals: Arrivals = Arrivals()
    load: Load = Load()
    measure: Measure = Measure()
    timeout: Timeouts = Timeouts()
    api: Literal["chat", "completions"] = "completions"
    cache: Cache = Cache()
    demand_rps: float | None = None


@dataclass(frozen=True)
class Pool:
    """Nodes of one kind. A unit is a GPU, or a CPU slot of `cores` cores."""

    name: str
    unit: Literal["gpu", "cpu"]
    device: str  # "H100-80GB", or "slot" for a CPU pool
    nodes: int
    per_node: int  # units per node
    price_per_hour: float  # of one unit, in the file's currency
    cores: int = 1  # of one CPU slot, 0 (no file can say it) = shares all with others; of no meaning for GPUs
    memory_gib: float | None = None  # of one unit; None = looked up by `device`
    host_memory_gib: float | None = None  # RAM of one node; None = unknown, and not checked

    @property
    def units(self) -> int:
        return self.nodes * self.per_node


@dataclass(frozen=True)
class Cluster:
    pools: tuple[Pool, ...]
    max_gpus: int  # units that one deployment may hold, over all pools
    interconnect_bytes_per_s: float | None = None
    bind: Literal["loopback", "node"] = "loopback"
    spread: tuple[str, ...] = ()  # roles whose engines go to different nodes where they can; the others share nodes

    @property
    def unit(self) -> str:
        """What a unit is called wherever people read of it."""
        kinds = {pool.unit for pool in self.pools}
        if len(kinds) > 1:
            return "GPU or CPU slot"
        return "CPU slot" if kinds == {"cpu"} else "GPU"


@dataclass(frozen=True)
class Prices:
    """Beside the pools' own prices."""

    currency: str  # ISO code, such as USD or JPY
    charge: Literal["used", "whole_server"] = "used"
    ram_gib_hour: float = 0.0
    ssd_gib_hour: float = 0.0
    network_gbit_hour: float = 0.0


@dataclass(frozen=True)
class Engine:
    """How to start the programs that get deployed; `tuner` never imports them."""

    command: tuple[str, ...] = ("vllm", "serve")
    env: Mapping[str, str] = field(default_factory=dict)  # values `$NAME` are read from the environment at launch
    flags: Mapping[str, Scalar] = field(default_factory=dict)  # given to every engine of every trial, baseline included
    router: tuple[str, ...] = ("vllm-router",)
    stores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    start_timeout_s: float = 1800.0
    trust_remote_code: bool = False
    connector_module: str = ""  # Python module of other KV connector classes: tests alone, see `engine_file`


@dataclass(frozen=True)
class Budget:
    """Whatever ends first; None = no such limit."""

    trials: int | None = None
    wall_s: float | None = None
    gpu_hours: float | None = None
    currency: float | None = None


@dataclass(frozen=True)
class Verification:
    """How finalists and baseline are measured again."""

    finalists: int = 3
    repeats: int = 2
    min_requests: int | None = None  # None = `workload.measure.min_requests`, raised to what the limits need


@dataclass(frozen=True)
class Search:
    space: str  # absolute path of the space file
    budget: Budget = Budget(trials=40)
    min_gain: float = 0.02
    sampler: Literal["tpe", "random", "gp"] = "tpe"
    max_levels: int = 12  # load levels of one trial at most
    resolution: float = 0.05  # relative width at which bisection ends
    first_guess_rps: float | None = None
    verify: Verification = Verification()
    divide_counts: float = 2.0  # D of the always-valid test: tolerates bursts of violations of this size


@dataclass(frozen=True)
class Gate:
    """What `tuner nightly` asks of a challenger, and how steady it takes the machine to be."""

    min_gain: float = 0.02  # share by which it must be cheaper than the incumbent
    confidence: float = 0.995  # with which that must be shown
    noise: float = 0.02  # standard deviation of a configuration's cost from run to run, as a share
    sessions: int = 4  # further ones of the incumbent and of the defaults each night, to know their cost better


@dataclass(frozen=True)
class Objective:
    """One objective file, resolved."""

    path: str  # of the file it came from
    model: str  # name, or absolute path of a directory
    slo: Slo
    workload: Workload
    cluster: Cluster
    prices: Prices
    search: Search
    objective: Literal["cost_per_goodput", "goodput_per_gpu", "goodput"] = "cost_per_goodput"
    backend: Literal["auto", "simulated", "local", "ray"] = "auto"
    engine: Engine = Engine()
    baseline: Mapping[str, Scalar] | None = None  # knobs of the incumbent; None = the engine's defaults
    model_revision: str | None = None
    gate: Gate = Gate()
