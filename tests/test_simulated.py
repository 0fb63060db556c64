"""The simulated deployment: what a study gets from it, through the same protocol as from a live one."""

import json
from dataclasses import replace

import pytest

from tuner.configuration import Configuration
from tuner.deployment import Deployment, Launcher
from tuner.deployment.simulated import SimulatedLauncher
from tuner.errors import ConfigurationFailed, InputError
from tuner.load.plan import LevelData, LevelPlan
from tuner.load.shape import level_requests
from tuner.objective import score
from tuner.records import from_line, to_line
from tuner.slo import (
    Arrivals,
    Cache,
    Cluster,
    Engine,
    Limit,
    Load,
    Measure,
    Objective,
    Pool,
    Prices,
    Search,
    Slo,
    Synthetic,
    Timeouts,
    Trace,
    Workload,
)
from tuner.validity import invalid_reason

CHAT = Synthetic(1000, 100)
WORKLOAD = Workload(CHAT, measure=Measure(warmup_s=5, duration_s=20, min_requests=50))
OBJECTIVE = Objective(
    path="slo.yaml",
    model="Qwen/Qwen3-32B",
    slo=Slo((Limit("ttft", "p99", 2.0), Limit("itl", "p95", 0.2))),
    workload=WORKLOAD,
    cluster=Cluster((Pool("h100", "gpu", "H100-80GB", 1, 4, 4.0),), 4),
    prices=Prices("USD"),
    search=Search("vllm.yaml"),
)
TP4 = Configuration({"tensor_parallel_size": 4})


def drive(
    objective: Objective = OBJECTIVE,
    configuration: Configuration = TP4,
    *,
    rate: float | None = 5.0,
    concurrency: int | None = None,
    number: int = 1,
    seed: int = 0,
    stop_early: bool = True,
    **launcher: float,
) -> LevelData:
    """One level on a fresh deployment."""
    plan = LevelPlan(
        model=objective.model,
        workload=objective.workload,
        slo=objective.slo,
        number=number,
        seed=seed,
        rate_rps=None if concurrency is not None else rate,
        concurrency=concurrency,
        min_requests=objective.workload.measure.min_requests,
        stop_early=stop_early,
    )
    with deployment(objective, configuration, **launcher) as running:
        return running.drive(plan)


def deployment(objective: Objective, configuration: Configuration, **launcher: float) -> Deployment:
    made: Launcher = SimulatedLauncher(objective, **launcher)
    return made.deployment(configuration, logs=None)


def with_workload(**changes) -> Objective:
    return replace(OBJECTIVE, workload=replace(WORKLOAD, **changes))


def lines(data: LevelData) -> bytes:
    return b"".join(to_line(record) for record in data.records)


def test_the_same_seed_gives_the_same_bytes():
    """Records of two runs are equal to the last bit; another seed, or another level, gives others."""
    first = lines(drive())
    assert lines(drive()) == first
    assert lines(drive(seed=1)) != first
    assert lines(drive(number=2)) != first


def test_requests_are_those_of_the_live_client():
    """Arrivals, lengths and phases come from `level_requests`, one to one."""
    data = drive()
    shapes = level_requests(data.plan, None)
    count = len(data.records)
    assert [r.scheduled_s for r in data.records] == shapes.arrival_s[:count].tolist()
    assert [r.asked_input_tokens for r in data.records] == shapes.input_tokens[:count].tolist()
    assert [r.phase for r in data.records] == [("warmup", "measured", "drain")[code] for code in shapes.phase[:count]]
    assert (data.window_start_s, data.window_s) == (shapes.window.start_s, shapes.window.length_s)
    assert data.realised_rps == pytest.approx(sum(shapes.phase == 1) / shapes.window.length_s)


def test_records_are_such_as_the_ledger_takes():
    """Each one survives the way to disk and back, tokens add up, and times are in order."""
    for record in drive().records:
        assert from_line(to_line(record)) == record
        assert record.output_tokens == sum(count for _, count in record.chunks)
        assert record.sent_s == record.scheduled_s < record.first_token_s <= record.last_token_s


def test_a_level_is_valid_and_can_be_scored():
    """Every measured request is decided, the client never lagged, and the load is carried."""
    data = drive()
    assert invalid_reason(data) == ""
    judged = score(data.records, OBJECTIVE.slo, window_start_s=data.window_start_s, window_s=data.window_s, divide=2.0)
    assert judged.observed_kept
    assert judged.attainment == 1.0
    assert {record.status for record in data.records if record.phase == "measured"} == {"ok"}


def test_the_load_goes_on_until_the_last_measured_request_is_decided():
    """Requests of the drain are there; those still running at the end are unfinished and have no later token."""
    data = drive(rate=10.0)
    end = max(record.last_token_s for record in data.records if record.phase == "measured")
    assert data.counters["level_seconds"] == end
    drain = [record for record in data.records if record.phase == "drain"]
    assert drain
    assert {record.status for record in drain} == {"unfinished"}
    assert all(record.scheduled_s < end and (record.last_token_s or 0) <= end for record in drain)


def test_a_hopeless_level_ends_early_and_says_why():
    """Far above capacity a limit is certainly broken before the window ends; nothing after that moment is known."""
    data = drive(with_workload(measure=Measure(5, 60, 50)), rate=40.0)
    assert (data.stopped, data.stop_detail) == ("slo", "itl_p95")
    end = data.counters["level_seconds"]
    assert end < data.window_start_s + data.window_s
    assert max(record.scheduled_s for record in data.records) < end
    assert max(record.last_token_s or 0.0 for record in data.records) <= end
    assert "unfinished" in {record.status for record in data.records if record.phase == "measured"}


def test_with_many_engines_an_early_end_is_cut_at_one_moment():
    """Engines run ahead of one another inside; outside no record shows it."""
    data = drive(configuration=Configuration({"tensor_parallel_size": 2, "replicas": 2}), rate=100.0)
    end = data.counters["level_seconds"]
    assert data.stopped == "slo"
    assert all(chunk[0] <= end for record in data.records for chunk in record.chunks)
    assert all(record.status == "unfinished" or record.last_token_s <= end for record in data.records)


def test_without_stopping_early_the_plan_is_carried_out():
    """The same hopeless load goes on to its last measured request."""
    objective = replace(with_workload(timeout=Timeouts(3.0, 3.0, 20.0)), model="Qwen/Qwen3-32B")
    data = drive(objective, rate=200.0, stop_early=False)
    assert data.stopped == ""
    statuses = {record.status for record in data.records if record.phase == "measured"}
    assert "unfinished" not in statuses
    assert "timeout_first_token" in statuses


def test_a_request_over_its_timeout_ends_in_the_right_class():
    """No token within 3 s: the class is `timeout_first_token`, it has no token, and others go on."""
    data = drive(with_workload(timeout=Timeouts(3.0, 3.0, 20.0)), rate=200.0, stop_early=False)
    overdue = [record for record in data.records if record.status == "timeout_first_token"]
    assert overdue
    assert all(record.chunks == () and record.first_token_s is None and record.error for record in overdue)
    late = [r for r in data.records if r.first_token_s is not None and r.first_token_s - r.scheduled_s > 3.0]
    assert late == []


def test_a_request_longer_than_the_model_allows_is_refused():
    """The engine answers 400, at once; the level goes on, in an open loop as in a closed one."""
    configuration = Configuration({"tensor_parallel_size": 4, "max_model_len": 1050})
    for load in ({"rate": 5.0}, {"rate": None, "concurrency": 4}):
        data = drive(configuration=configuration, stop_early=False, **load)
        assert {record.status for record in data.records if record.phase == "measured"} == {"http_400"}


def test_a_closed_loop_sends_the_next_request_when_an_answer_ends():
    """Four slots: every scheduled time but the first four is the end of an earlier answer."""
    objective = with_workload(arrivals=Arrivals("closed_loop"), load=Load("concurrency", None, 4))
    data = drive(objective, concurrency=4)
    ends = {record.last_token_s for record in data.records}
    assert [record.scheduled_s for record in data.records[:4]] == [0.0] * 4
    assert all(record.scheduled_s in ends for record in data.records[4:])
    assert sum(record.phase == "measured" for record in data.records) >= 50
    assert invalid_reason(data) == ""


@pytest.mark.parametrize(
    ("cache", "hits"),
    [
        pytest.param(Cache("cold"), False, id="cold"),
        pytest.param(Cache("steady"), False, id="steady starts as it is"),
        pytest.param(Cache("warm", 8), True, id="warm"),
    ],
)
def test_the_first_request_finds_its_prefix_only_in_a_warm_cache(cache, hits):
    """A level's prefixes are its own, so nothing of an earlier level is of use."""
    objective = with_workload(source=Synthetic(8000, 20, 7000, prefixes=4), cache=cache)
    first = drive(objective, rate=1.0).records[0]
    cold = drive(with_workload(source=Synthetic(8000, 20)), rate=1.0).records[0]
    faster = first.first_token_s - first.scheduled_s < 0.5 * (cold.first_token_s - cold.scheduled_s)
    assert faster is hits


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("knobs", [{}, {"mode": "disaggregated", "tensor_parallel_size": 2}], ids=["whole", "split"])
@pytest.mark.parametrize(("cache", "share"), [(Cache("cold"), 0.0), (Cache("steady"), 0.0), (Cache("warm", 60), 0.874)])
def test_a_warm_level_begins_with_its_beginnings_in_the_store(cache, share, knobs, caching):
    """
    60 beginnings, each asked for once, are more than an engine has room for: with `warm` they are in the store, which
    finds them all where the engines keep nothing, and those that they have forgotten elsewhere.
    """
    objective = with_workload(
        source=Synthetic(8000, 20, 7000, prefixes=60), cache=cache, measure=Measure(0.0, 10.0, 20)
    )
    base = {"tensor_parallel_size": 4, "num_gpu_blocks_override": 3000, "max_model_len": 9000, **knobs}
    base["enable_prefix_caching"] = caching
    stored, without = (
        drive(objective, Configuration({**base, **more}), rate=1.0, stop_early=False)
        for more in ({"kv_store": "mooncake", "kv_store_ram_gib": 256}, {})
    )
    assert stored.counters["store_hit_share"] == pytest.approx(share, abs=0.005)
    if share:
        firsts = [sum(r.first_token_s - r.scheduled_s for r in data.records[:15]) for data in (stored, without)]
        assert firsts[0] < 0.6 * firsts[1]


def test_a_warm_closed_loop_is_filled_as_far_as_it_says():
    """A closed loop's requests are made in portions; what fills its caches does not end with the first one."""
    objective = with_workload(
        source=Synthetic(200, 2, 160, prefixes=600),
        arrivals=Arrivals("closed_loop"),
        load=Load("concurrency", None, 1),
        measure=Measure(0.0, 0.1, 500),
        cache=Cache("warm", 600),
    )
    counters = drive(objective, rate=None, concurrency=1, stop_early=False).counters
    assert counters["prefix_cache_hits_total"] == pytest.approx(0.8 * counters["prefix_cache_queries_total"])


def test_prefix_blocks_of_a_trace_are_found_again(tmp_path):
    """Rows share their first two blocks of 512 tokens: all but the first of a round find 1,024 of 1,500 tokens."""
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 1000 * row, "input_length": 1500, "output_length": 5, "hash_ids": [1, 2, 100 + row]}
        for row in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    objective = with_workload(source=Trace(str(path), "mooncake"), measure=Measure(0.0, 10.0, 15))
    counters = drive(objective, rate=1.0).counters
    share = counters["prefix_cache_hits_total"] / counters["prefix_cache_queries_total"]
    assert 0.8 * 1024 / 1500 < share < 1024 / 1500
    off = drive(objective, Configuration({"tensor_parallel_size": 4, "enable_prefix_caching": False}), rate=1.0)
    assert off.counters["prefix_cache_hits_total"] == 0


def test_facts_say_what_the_numbers_are_worth():
    """Source, version of the step times, expected error of each metric, and flags that change nothing; all JSON."""
    configuration = Configuration({"tensor_parallel_size": 4, "async_scheduling": True})
    with deployment(OBJECTIVE, configuration, startup_s=90.0) as running:
        assert running.source == "simulated"
        facts = json.loads(json.dumps(dict(running.facts), allow_nan=False))
    assert facts["step_times"] == "tables of measured kernels"
    assert facts["table_version"]
    assert set(facts["expected_error"]) == {"ttft", "tpot", "itl", "e2el"}
    assert (facts["model"], facts["device"]) == ("Qwen/Qwen3-32B", "H100-80GB")
    assert facts["flags_without_effect"] == ["async_scheduling"]
    assert facts["ready_s"] == 90.0


def test_nothing_is_started():
    """Commands are templates that name no port and no GPU, and there is one study at a time."""
    launcher = SimulatedLauncher(OBJECTIVE)
    commands = launcher.deployment(TP4, logs=None).commands
    assert [command["name"] for command in commands] == ["engine-0"]
    assert "${port" in " ".join(commands[0]["argv"])
    assert (launcher.source, launcher.parallel) == ("simulated", 1)
    launcher.close()
    launcher.close()


@pytest.mark.parametrize(
    ("knobs", "why"),
    [
        ({"tensor_parallel_size": 4}, None),
        ({"tensor_parallel_size": 2, "replicas": 2}, None),
        ({"tensor_parallel_size": 8}, "max_gpus is 4"),
        ({"tensor_parallel_size": 2, "replicas": 3}, "max_gpus is 4"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size 2 is not simulated"),
        ({"mode": "pd"}, "mode pd is not simulated"),
        ({"mode": "disaggregated", "prefill_tensor_parallel_size": 2, "decode_tensor_parallel_size": 2}, None),
        ({"mode": "disaggregated", "prefill_tensor_parallel_size": 2, "decode_replicas": 3}, "max_gpus is 4"),
        ({"kv_store": "diskette"}, "kv_store diskette is not simulated"),
    ],
)
def test_shapes_that_cannot_be_placed_are_refused_before_they_start(knobs, why):
    """One line that says why, or None."""
    found = SimulatedLauncher(OBJECTIVE).check(Configuration(knobs))
    assert found is None if why is None else why in found


def test_an_instance_never_spans_nodes():
    """Four GPUs on two nodes hold two instances of two, and none of four."""
    two_nodes = replace(OBJECTIVE, cluster=Cluster((Pool("h100", "gpu", "H100-80GB", 2, 2, 4.0),), 4))
    launcher = SimulatedLauncher(two_nodes)
    assert launcher.check(Configuration({"tensor_parallel_size": 2, "replicas": 2})) is None
    assert "never spans nodes" in launcher.check(TP4)


def test_a_model_that_does_not_fit_fails_as_it_would_live():
    """32B parameters in 16 bit leave no room for `max_model_len` tokens on one GPU: `out_of_memory` at the start."""
    with pytest.raises(ConfigurationFailed) as failed, deployment(OBJECTIVE, Configuration({})):
        pass
    assert failed.value.reason == "out_of_memory"


@pytest.mark.parametrize(
    "objective",
    [
        pytest.param(replace(OBJECTIVE, model="nobody/nothing"), id="model"),
        pytest.param(replace(OBJECTIVE, cluster=Cluster((Pool("x", "gpu", "Abacus", 1, 4, 1.0),), 4)), id="device"),
    ],
)
def test_what_is_not_known_cannot_be_simulated(objective):
    """Said before the study starts, with what is known."""
    with pytest.raises(InputError, match="known"):
        SimulatedLauncher(objective)


def test_runs_are_equal_unless_variation_is_asked_for():
    """With it, levels differ by a factor drawn from seed, configuration and level: the same again for the same ones."""
    base = drive()
    noisy = drive(variation=0.1, seed_noise=1)
    assert lines(noisy) == lines(drive(variation=0.1, seed_noise=1))
    assert lines(noisy) != lines(base) != lines(drive(variation=0.1, seed_noise=2))


def test_cpu_slots_are_simulated_too(tmp_path):
    """A tiny model on two slots: prompts of 2,000 tokens stall the other answers for hundreds of milliseconds."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 8,
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 4096,
        "max_position_embeddings": 8192,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    objective = replace(
        OBJECTIVE,
        model=str(tmp_path),
        workload=replace(WORKLOAD, source=Synthetic(2000, 20)),
        cluster=Cluster((Pool("slots", "cpu", "slot", 1, 1, 0.1, cores=2),), 1),
        engine=Engine(env={"VLLM_CPU_KVCACHE_SPACE": "1"}),
    )
    default = drive(objective, Configuration({}), rate=0.5, stop_early=False)
    small = drive(objective, Configuration({"max_num_batched_tokens": 256}), rate=0.5, stop_early=False)
    longest = [
        max(b[0] - a[0] for record in data.records for a, b in zip(record.chunks, record.chunks[1:], strict=False))
        for data in (default, small)
    ]
    assert 0.3 < longest[0] < 1.5
    assert longest[1] < 0.5 * longest[0]


def test_a_store_finds_what_the_engine_has_forgotten():
    """Prefixes of 40 conversations in turn, more than the engine's cache holds: with a store most of each is loaded."""
    objective = with_workload(source=Synthetic(8000, 20, 7000, prefixes=40))
    knobs = {"tensor_parallel_size": 4, "num_gpu_blocks_override": 3000, "max_model_len": 9000}
    without, stored = (
        drive(objective, Configuration({**knobs, **more}), rate=1.0, stop_early=False)
        for more in ({}, {"kv_store": "cpu_offload", "kv_store_ram_gib": 256})
    )
    assert "external_prefix_cache_hits_total" not in without.counters
    assert without.counters["prefix_cache_hits_total"] < 0.1 * without.counters["prefix_cache_queries_total"]
    share = stored.counters["external_prefix_cache_hits_total"] / stored.counters["external_prefix_cache_queries_total"]
    assert 0.2 < share < 0.875

    def late(data: LevelData) -> float:
        return sum(r.first_token_s - r.scheduled_s for r in data.records[40:] if r.first_token_s is not None)

    assert late(stored) < 0.7 * late(without)


SPLIT = Configuration({"mode": "disaggregated", "tensor_parallel_size": 2, "decode_max_num_seqs": 32})


def test_prefill_and_decode_apart_carry_a_level():
    """Two GPUs for prompts, two for answers: every request ends, every prompt is transferred, gaps never stall."""
    data, whole = (drive(configuration=configuration, rate=6.0) for configuration in (SPLIT, TP4))
    assert {record.status for record in data.records if record.phase == "measured"} == {"ok"}
    assert invalid_reason(data) == ""
    assert data.counters["kv_transfer_share"] > 0.99
    longest = [
        max(b[0] - a[0] for r in level.records for a, b in zip(r.chunks, r.chunks[1:], strict=False))
        for level in (data, whole)
    ]
    assert longest[0] < 0.5 * longest[1]
    assert lines(drive(configuration=SPLIT, rate=6.0)) == lines(data)


def test_facts_name_both_sides_of_a_split():
    """Devices, memory and limits of each side, and what lies between them."""
    with deployment(OBJECTIVE, SPLIT) as running:
        facts = json.loads(json.dumps(dict(running.facts), allow_nan=False))
    assert (facts["engines"], facts["decode"]["engines"]) == (1, 1)
    assert (facts["max_num_seqs"], facts["decode"]["max_num_seqs"]) == (1024, 32)
    assert facts["decode"]["link_tokens_per_s"] == pytest.approx(50e9 / 262144)
