"""Static rules, and what is measured first."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.objectives import H100, SLOTS, objective

from tuner import engine_defaults, feasibility, model, objective_file, space_file
from tuner.configuration import Configuration
from tuner.errors import InputError
from tuner.slo import Engine, Trace, Workload
from tuner.space import Knob, Space
from tuner.split_rules import AGREED
from tuner.static_rules import CHECKS, RULES

OBJECTIVES = sorted((Path(__file__).parents[1] / "objectives").glob("*.yaml"))
QWEN8 = model.facts("Qwen/Qwen3-8B")
LLAMA70 = model.facts("meta-llama/Llama-3.1-70B")
L4 = replace(H100, name="l4", device="L4")
BIG = replace(H100, per_node=64)
NO_CHUNKS = {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048, "max_model_len": 8192}


def _rules(knobs, facts=QWEN8, **settings):
    return [each.rule for each in feasibility.violations(Configuration(knobs), objective(**settings), facts)]


@pytest.mark.parametrize(
    ("rule", "knobs", "settings"),
    [
        ("unknown_pool", {"pool": "b200"}, {}),
        ("max_gpus", {"replicas": 5, "tensor_parallel_size": 2}, {"pools": (replace(H100, nodes=2),)}),
        ("node", {"tensor_parallel_size": 16}, {"max_gpus": 16, "pools": (replace(H100, nodes=2),)}),
        ("cluster", {"replicas": 3, "tensor_parallel_size": 4}, {"max_gpus": 16}),
        ("router", {"router_policy": "cache_aware"}, {}),
        ("given_twice", {"max_num_seqs": 8}, {"engine": Engine(flags={"max_num_seqs": 9})}),
        ("heads", {"tensor_parallel_size": 24}, {"max_gpus": 64, "pools": (BIG,)}),
        ("layers", {"pipeline_parallel_size": 37}, {"max_gpus": 64, "pools": (BIG,)}),
        ("positions", {"max_model_len": 50_000}, {}),
        ("model_len", {"max_model_len": 1199}, {}),
        ("prefill_budget", NO_CHUNKS, {}),
        ("batch_budget", {"max_num_batched_tokens": 128, "max_num_seqs": 256}, {}),
        ("block_size", {"block_size": 24}, {}),
        ("block_size", {"block_size": 16}, {"pools": (SLOTS,), "max_gpus": 2}),
        ("memory_share", {"gpu_memory_utilization": 1.01}, {}),
        ("memory_share", {"gpu_memory_utilization": 0.5}, {"pools": (SLOTS,), "max_gpus": 2}),
        ("memory", {"tensor_parallel_size": 1}, {"pools": (L4,)}),
    ],
)  # fmt: skip
def test_each_rule_rejects_what_cannot_work(rule, knobs, settings):
    """CFG-07, RAY-04: known before launch, under a closed name."""
    found = feasibility.violations(Configuration(knobs), objective(**settings), QWEN8)
    assert [each.rule for each in found] == [rule]
    assert found[0].message


PD = {"mode": "disaggregated"}
STORE = {"kv_store": "mooncake", "kv_store_ram_gib": 8}
BLENDED = {
    "kv_store": "lmcache",
    "kv_store_ram_gib": 1.5,
    "lmcache_blending": True,
    "enable_prefix_caching": False,
    "enforce_eager": True,
}
IN_PROCESS = {"kv_store": "lmcache", "lmcache_mode": "in_process", "kv_store_ram_gib": 1.5, "kv_store_ssd_gib": 8}
SMALL_HOST = {"pools": (replace(H100, host_memory_gib=24.0),)}


@pytest.mark.parametrize(
    ("rule", "knobs", "settings"),
    [
        ("max_gpus", {**PD, "prefill_replicas": 5, "decode_replicas": 4}, {"pools": (replace(H100, nodes=2),)}),
        ("node", {**PD, "tensor_parallel_size": 16}, {"max_gpus": 64, "pools": (replace(H100, nodes=8),)}),
        ("cluster", {**PD, "prefill_tensor_parallel_size": 8}, {"max_gpus": 64}),
        ("unknown_pool", {**PD, "decode_pool": "b200"}, {}),
        ("sides_agree", {**PD, "decode_block_size": 32}, {}),
        ("sides_agree", {**PD, "prefill_kv_cache_dtype": "fp8", "decode_kv_cache_dtype": "auto"}, {}),
        ("sides_parallel", {**PD, "prefill_tensor_parallel_size": 2, "decode_pipeline_parallel_size": 2}, {}),
        ("sides_parallel", {**PD, "kv_transfer": "mooncake", "decode_pipeline_parallel_size": 2}, {}),
        ("transfer_device", {**PD, "kv_transfer": "mooncake"}, {"pools": (SLOTS,), "max_gpus": 2}),
        ("store_size", {"kv_store": "lmcache"}, {}),
        ("store_size", {"kv_store": "lmcache", "kv_store_ram_gib": 1.5}, {}),
        ("store_size", {"kv_store": "cpu_offload", "kv_store_ram_gib": 8, "kv_store_ssd_gib": 8}, {}),
        ("store_size", {"kv_store": "lmcache", "kv_store_ram_gib": 8, "kv_store_ssd_gib": 8}, {}),
        ("store_size", {**BLENDED, "kv_store_ssd_gib": 8}, {}),
        ("store_size", {**IN_PROCESS, "kv_store_ram_gib": 0}, {}),
        ("store_device", IN_PROCESS, {"pools": (SLOTS,), "max_gpus": 2}),
        ("store_memory", {**IN_PROCESS, "kv_store_ram_gib": 32, "replicas": 4}, SMALL_HOST),
        ("transfer_router", {**PD, "kv_transfer": "lmcache"}, {}),
        ("store_device", {"kv_store": "cpu_offload", "kv_store_ram_gib": 8}, {"pools": (SLOTS,), "max_gpus": 2}),
        ("store_memory", {**STORE, "kv_store_ram_gib": 32}, SMALL_HOST),
        ("store_memory", {"kv_store": "cpu_offload", "kv_store_ram_gib": 32, "replicas": 4}, SMALL_HOST),
        ("blending", {**BLENDED, "enforce_eager": False}, {}),
        ("blending", {**BLENDED, "enable_prefix_caching": None}, {}),
        ("blending", {**BLENDED, **PD}, {}),
        ("store_device", BLENDED, {"pools": (SLOTS,), "max_gpus": 2}),
        ("connector", {**STORE, "kv_transfer_config": "{}"}, {}),
        ("connector", {**PD, "prefill_kv_offloading_size": 8}, {}),
        ("connector", PD, {"engine": Engine(flags={"kv_transfer_config": "{}"})}),
        ("memory", {**PD, "prefill_tensor_parallel_size": 2}, {"pools": (L4,)}),
        ("batch_budget", {**PD, "decode_max_num_batched_tokens": 128, "decode_max_num_seqs": 256}, {}),
    ],
)  # fmt: skip
def test_each_rule_rejects_splits_and_stores_that_cannot_work(rule, knobs, settings):
    """PD-05, KV-02, RAY-04: what the sides share is checked before launch; a rule of one side names the side."""
    found = feasibility.violations(Configuration(knobs), objective(**settings), QWEN8)
    assert {each.rule for each in found} == {rule}


@pytest.mark.parametrize("knobs", [BLENDED, IN_PROCESS, {**IN_PROCESS, **PD}])
def test_lmcache_within_the_engines_is_fine(knobs):
    """It takes any size and, where it does not blend, SSD; beside a transfer too."""
    assert _rules(knobs) == []


def test_each_node_has_the_shares_of_its_own_engines():
    """32 GiB of LMCache within four engines on two nodes of two: 16 GiB of each, where a server has 32 on one."""
    settings = {"pools": (replace(H100, nodes=2, per_node=2, host_memory_gib=24.0),)}
    knobs = {**IN_PROCESS, "kv_store_ram_gib": 32, "replicas": 4}
    assert _rules(knobs, **settings) == []
    assert _rules({**knobs, "lmcache_mode": "server", "kv_store_ssd_gib": 0}, **settings) == ["store_memory"]


def test_a_split_with_different_sides_is_fine():
    """Tensor parallelism, batch limits and memory may differ; a store of the right size fits."""
    knobs = {
        **PD,
        **STORE,
        "prefill_tensor_parallel_size": 4,
        "decode_replicas": 2,
        "prefill_max_num_batched_tokens": 16384,
        "decode_max_num_seqs": 64,
        "decode_gpu_memory_utilization": 0.95,
    }
    assert _rules(knobs, **SMALL_HOST) == []


@pytest.mark.parametrize(
    ("prefill", "decode", "fine"),
    [(4, 1, True), (8, 4, True), (16, 16, True), (16, 8, False), (2, 16, True), (4, 3, False)],
)
def test_nixl_needs_unrepeated_heads_where_prefill_is_wider(prefill, decode, fine):
    """8 KV heads on 16 units are repeated: then decode needs 16 too. Widths that do not divide are refused always."""
    facts = replace(QWEN8, heads=48, kv_heads=8)
    knobs = {**PD, "prefill_tensor_parallel_size": prefill, "decode_tensor_parallel_size": decode}
    found = _rules(knobs, facts, pools=(BIG,), max_gpus=64)
    assert ("sides_parallel" not in found) is fine


@pytest.mark.parametrize("name", AGREED)
def test_shared_flags_go_to_both_sides_alike(name):
    """PD-05: without a prefix nothing can disagree."""
    value = {"block_size": 32, "max_model_len": 4096}.get(name, "auto")
    assert "sides_agree" not in _rules({**PD, name: value})
    assert "sides_agree" in _rules({**PD, f"prefill_{name}": value})


def test_a_flag_of_the_file_must_not_come_back_with_a_prefix():
    """CFG-06: engine.flags go to every engine, so a side's own value would be a second one."""
    goal = objective(engine=Engine(flags={"max_num_seqs": 2}))
    assert "max_num_seqs" in feasibility.space_problem(Space("s", (Knob("decode_max_num_seqs", "int", high=9),)), goal)
    assert _rules({**PD, "decode_max_num_seqs": 8}, engine=Engine(flags={"max_num_seqs": 2})) == ["given_twice"]


def test_kv_heads_may_be_repeated_but_not_torn():
    """4 KV heads go onto 2 or 8 units, not onto 3 or 6."""
    facts = replace(QWEN8, heads=24, kv_heads=4)
    assert {size: "kv_heads" in _rules({"tensor_parallel_size": size}, facts) for size in (2, 3, 6, 8)} == {
        2: False,
        3: True,
        6: True,
        8: False,
    }


def test_a_small_budget_is_legal_with_chunked_prefill():
    """CFG-07: the same budget that is impossible without chunks is fine with them, or left to the engine."""
    knobs = {"max_model_len": 8192, "max_num_batched_tokens": 2048}
    assert _rules({**knobs, "enable_chunked_prefill": True}) == []
    assert _rules(knobs) == []
    assert _rules({"max_model_len": 8192, "enable_chunked_prefill": False}) == []


def test_the_engines_own_budget_counts_against_max_num_seqs():
    """Where no budget is set, the default of the device is compared: 2048 on an L4, 8192 on an H100."""
    knobs = {"max_num_seqs": 4096, "tensor_parallel_size": 2}
    assert _rules(knobs, pools=(L4,)) == ["batch_budget"]
    assert _rules(knobs) == []


def test_rules_pass_what_they_cannot_know():
    """Without facts of the model or memory of the device nothing is rejected for it."""
    unknown = replace(H100, device="X9000")
    assert _rules({"tensor_parallel_size": 3}, facts=None) == []
    assert _rules({}, facts=LLAMA70, pools=(unknown,)) == []
    assert _rules({"max_model_len": "auto"}) == []


def test_memory_follows_the_flags():
    """A shorter max_model_len, an 8-bit cache, 8-bit weights or offloaded weights make room."""
    assert _rules({}, pools=(L4,)) == ["memory"]
    assert _rules({"max_model_len": 8192}, pools=(L4,)) == []
    assert _rules({"kv_cache_dtype": "fp8"}, pools=(L4,)) == []
    assert _rules({"quantization": "fp8"}, pools=(L4,)) == []
    assert _rules({"cpu_offload_gb": 8}, pools=(L4,)) == []
    assert _rules({"kv_cache_memory_bytes": "1G"}, pools=(L4,)) == ["memory"]


def test_the_cache_of_a_cpu_slot_comes_from_its_environment():
    """1 GiB holds 7,281 tokens of Qwen3-8B: 8,192 do not fit, 4,096 do."""
    engine = Engine(env={"VLLM_CPU_KVCACHE_SPACE": "1"})
    settings = {"pools": (SLOTS,), "max_gpus": 2, "engine": engine}
    assert _rules({"max_model_len": 8192}, **settings) == ["memory"]
    assert _rules({"max_model_len": 4096}, **settings) == []


def test_a_workload_that_can_never_fit_is_known_before_trial_0():
    """CFG-07: longer than the model's positions, or than the max_model_len that every engine gets."""
    assert "41000 tokens" in feasibility.workload_problem(objective(tokens=(40_000, 1000)), QWEN8)
    short = objective(engine=Engine(flags={"max_model_len": 1024}))
    assert "max_model_len is 1024" in feasibility.workload_problem(short, None)
    assert feasibility.workload_problem(objective(), QWEN8) is None


def test_a_model_that_no_instance_holds_is_known_before_trial_0():
    """The message speaks of memory, not of the last shape's heads."""
    goal = objective(pools=(replace(L4, per_node=4),), max_gpus=4)
    assert "weights take" in feasibility.workload_problem(goal, LLAMA70)


def test_lengths_of_a_trace_may_be_given():
    """The objective file alone does not know a trace's lengths; whoever has read it passes the longest."""
    goal = replace(objective(), workload=Workload(source=Trace("t.jsonl", "mooncake")))
    assert feasibility.longest_request(goal.workload) is None
    assert feasibility.workload_problem(goal, QWEN8) is None
    assert "50000" in feasibility.workload_problem(goal, QWEN8, longest=50_000)


@pytest.mark.parametrize(
    ("facts", "settings", "knobs"),
    [
        (QWEN8, {}, {"tensor_parallel_size": 1, "replicas": 8}),
        (QWEN8, {"max_gpus": 6}, {"tensor_parallel_size": 1, "replicas": 6}),
        (LLAMA70, {}, {"tensor_parallel_size": 4, "replicas": 2}),
        (LLAMA70, {"max_gpus": 6}, {"tensor_parallel_size": 4, "replicas": 1}),
        (LLAMA70, {"pools": (L4, H100), "max_gpus": 8}, {"tensor_parallel_size": 4, "replicas": 2, "pool": "h100"}),
        (None, {"max_gpus": 2}, {"tensor_parallel_size": 1, "replicas": 2}),
    ],
    ids=["fits-one", "fewer-gpus", "70b", "whole-instances", "second-pool", "unknown-model"],
)
def test_the_baseline_is_the_engines_defaults_on_all_gpus(facts, settings, knobs):
    """Smallest tensor parallelism that fits with room to work, replicas to fill max_gpus, no other flag."""
    assert feasibility.baseline(objective(**settings), facts).knobs == knobs


def test_an_incumbent_replaces_the_baseline():
    """Its knobs stay as they are written."""
    knobs = {"tensor_parallel_size": 2, "max_num_seqs": 64}
    assert feasibility.baseline(objective(baseline=knobs), QWEN8).knobs == knobs


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"max_num_seq": 64}, "did you mean"),
        ({"utterly_unknown": 64}, "neither"),
        ({"replicas": 0}, "above 0"),
        ({"mode": "disaggregated", "decode_replicas": 0}, "above 0"),
        ({"mode": "disaggregated", "decode_max_num_seq": 8}, "did you mean"),
        ({"tensor_parallel_size": 16}, "rule max_gpus"),
    ],
    ids=["typo", "unknown", "zero", "zero-side", "typo-of-a-side", "rule"],
)
def test_a_wrong_incumbent_is_an_input_error(knobs, message):
    """OPT-09: rejected at load."""
    with pytest.raises(InputError, match=message):
        feasibility.baseline(objective(baseline=knobs), QWEN8)


def test_nothing_fits_is_an_input_error():
    """There is no baseline where the model is too large for the cluster."""
    with pytest.raises(InputError, match="weights take"):
        feasibility.baseline(objective(pools=(L4,), max_gpus=1), LLAMA70)


@pytest.mark.parametrize("name", ["max_num_seqs", "tensor_parallel_size"])
def test_space_and_engine_flags_must_not_overlap(name):
    """CFG-06: said at load, before any trial."""
    space = Space("s", (Knob("max_num_seqs", "int", low=1, high=9),))
    goal = objective(engine=Engine(flags={name: 2}))
    assert name in feasibility.space_problem(space, goal)
    assert feasibility.space_problem(space, objective()) is None


def test_every_rule_is_described_once():
    """Checks and descriptions go by the same names."""
    assert set(CHECKS) < set(RULES)


@pytest.mark.parametrize(
    ("device", "defaults"),
    [("H100", (8192, 1024)), ("H200", (8192, 1024)), ("B200", (16384, 1024)), ("A100-80GB", (2048, 256)), ("X9", None)],
)
def test_batch_defaults_follow_the_device(device, defaults):
    """As vLLM 0.32 chooses them; unknown devices have unknown defaults."""
    assert engine_defaults.batch_defaults(replace(H100, device=device), 1) == defaults


def test_batch_defaults_of_a_cpu_grow_with_the_slots():
    """2048 tokens and 128 sequences per rank."""
    assert engine_defaults.batch_defaults(SLOTS, 2) == (4096, 256)


@pytest.mark.parametrize(
    ("value", "count"),
    [(8192, 8192), ("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("auto", None), (-1, None), (None, None), (True, None)],
    ids=repr,
)
def test_counts_are_read_as_the_engine_reads_them(value, count):
    """Suffixes are decimal in lower case and binary in upper case; auto is the engine's business."""
    assert engine_defaults.token_count(value) == count


@pytest.mark.parametrize("path", [each for each in OBJECTIVES if "cpu" not in each.stem], ids=lambda path: path.stem)
def test_shipped_objectives_have_a_baseline_and_room_to_search(path):
    """With its own space each leaves points to start, and its baseline breaks no rule."""
    goal = objective_file.load(path)
    space, facts = space_file.load(goal.search.space), model.facts(goal.model)
    assert facts is not None
    assert feasibility.workload_problem(goal, facts) is None
    assert feasibility.space_problem(space, goal) is None
    baseline = feasibility.baseline(goal, facts)
    assert baseline.units <= goal.cluster.max_gpus
    assert feasibility.violations(baseline, goal, facts) == []
    assert any(not feasibility.violations(Configuration(point), goal, facts) for point in space.points())
