"""Step times, memory and what a configuration resolves to: by hand, then against a measured engine."""

import json
from pathlib import Path

import pytest

from tuner.configuration import Configuration
from tuner.errors import ConfigurationFailed, InputError
from tuner.simulator.memory import ACTIVATION_BYTES, COMMUNICATION_BYTES, kv_tokens
from tuner.simulator.setup import machine_of, resolve
from tuner.simulator.steptime import Machine, ModelShape, roofline
from tuner.slo import Cluster, Engine, Objective, Pool, Prices, Search, Slo, Synthetic, Workload

#: Numbers that are easy to reckon with: 10 layers, 8 heads of 25, 1e9 parameters in 2 bytes.
SHAPE = ModelShape(
    layers=10,
    hidden=200,
    heads=8,
    kv_heads=2,
    head_dim=25,
    weight_bytes=2e9,
    active_parameters=1e9,
    kv_bytes_per_token=2000,
    compute_bytes=2,
)
MACHINE = Machine(
    flops=1e13,
    memory_bytes_per_s=1e12,
    link_bytes_per_s=1e9,
    step_s=0.001,
    layer_s=0.0001,
    compute_share=0.5,
    memory_share=0.5,
    attention_share=0.25,
    all_reduce_s=1e-5,
    link_share=0.5,
)
ROOT = Path(__file__).parent.parent


def objective(
    model: str = "meta-llama/Llama-3.1-8B", pool: Pool | None = None, engine: Engine | None = None
) -> Objective:
    pools = (pool or Pool("h100", "gpu", "H100-80GB", 1, 8, 1.0),)
    workload = Workload(Synthetic(100, 10))
    return Objective(
        "x", model, Slo(()), workload, Cluster(pools, 8), Prices("USD"), Search("x"), engine=engine or Engine()
    )


def resolved(knobs: dict, **more):
    return resolve(Configuration(knobs), objective(**more)).first


def test_a_decode_step_reads_weights_and_context():
    """1 + 1 ms fixed, 2e9 bytes of weights at 5e11/s, and 1,000 tokens of 2,000 bytes: 2 + 4 + 0.004 ms."""
    assert roofline(SHAPE, MACHINE).step((), 3, 1000) == pytest.approx(0.006004)


def test_a_long_prompt_is_bound_by_compute():
    """
    2e9 FLOPs for each of 1,000 tokens at 5e12/s are 400 ms; attention is 4*1000*500.5*8*25*10 FLOPs at 2.5e12/s.
    """
    assert roofline(SHAPE, MACHINE).step(((1000, 0),), 0, 0) == pytest.approx(0.002 + 0.4 + 0.0016016)


def test_a_chunk_attends_to_what_was_computed_before_it():
    """100 tokens behind 900: 4*100*950.5*8*25*10 FLOPs, and 900 tokens of cache are read."""
    expected = 0.002 + 0.04 + 4 * 100 * 950.5 * 2000 / 2.5e12 + 900 * 2000 / 5e11
    assert roofline(SHAPE, MACHINE).step(((100, 900),), 0, 0) == pytest.approx(expected)


def test_a_second_gpu_halves_the_work_and_adds_all_reduces():
    """Half of 4.004 ms, 20 all-reduces of 10 us, and 10 layers * 2 * 200 values * 2 bytes over 5e8/s a token."""
    expected = 0.002 + 0.0002 + 0.002002 + 3 * 10 * 2 * 200 * 2 / 5e8
    assert roofline(SHAPE, MACHINE, 2).step((), 3, 1000) == pytest.approx(expected)


def test_more_gpus_than_kv_heads_keep_copies_of_the_cache():
    """With 2 KV heads on 4 GPUs the context costs as much as on 2."""
    two, four = (roofline(SHAPE, MACHINE, size) for size in (2, 4))
    reads = [model.step((), 1, 100_000) - model.step((), 1, 0) for model in (two, four)]
    assert reads[1] == pytest.approx(reads[0])


@pytest.mark.parametrize("step", [((), 1, 10), (((512, 0),), 8, 9000), (((8192, 100_000),), 0, 0)])
def test_more_work_never_takes_less_time(step):
    """One more token, one more decode, or a longer context."""
    prefills, decodes, context = step
    model = roofline(SHAPE, MACHINE)
    base = model.step(prefills, decodes, context)
    assert model.step((*prefills, (1, 0)), decodes, context) >= base
    assert model.step(prefills, decodes + 1, context + 1) > base
    assert model.step(prefills, decodes, context + 100) > base


def test_kv_cache_is_what_memory_leaves_beside_the_weights():
    """(100 * 0.9 GB - 4 GiB - 1 GiB) * 2 - 2 GB over 2,000 bytes a token."""
    expected = int(((90e9 - ACTIVATION_BYTES - COMMUNICATION_BYTES) * 2 - 2e9) // 2000)
    assert kv_tokens(SHAPE, memory_bytes=100e9, utilization=0.9, tensor_parallel=2) == expected


def test_weights_that_do_not_fit_leave_no_cache():
    """A 70B model in 16 bit on one 80 GB GPU."""
    with pytest.raises(ConfigurationFailed, match="0 tokens of KV cache") as failed:
        resolved({}, model="meta-llama/Llama-3.1-70B")
    assert failed.value.reason == "out_of_memory"


def test_engine_defaults_follow_the_memory_of_the_gpu():
    """8192/1024 on an H100, 16384/1024 from 160 GiB on, 2048/256 below 70 GiB and on CPUs."""
    found = {
        device: (limits.max_num_batched_tokens, limits.max_num_seqs)
        for device in ("H100-80GB", "B200-180GB", "A100-80GB", "L40S")
        for limits in [resolved({"max_model_len": 8192}, pool=Pool("p", "gpu", device, 1, 8, 1.0)).limits]
    }
    assert found == {
        "H100-80GB": (8192, 1024),
        "B200-180GB": (16384, 1024),
        "A100-80GB": (2048, 256),
        "L40S": (2048, 256),
    }


def test_flags_of_the_file_hold_for_every_trial_and_knobs_win():
    """`engine.flags` below the configuration's own; what changes nothing here is named."""
    engine = Engine(flags={"max_num_seqs": 7, "block_size": 32, "seed": 3})
    made = resolve(Configuration({"max_num_seqs": 9, "enable_chunked_prefill": True}), objective(engine=engine))
    assert (made.first.limits.max_num_seqs, made.first.limits.block_size) == (9, 32)
    assert made.ignored_flags == ("seed",)


def test_data_parallel_ranks_are_engines():
    """Two replicas of two ranks of two GPUs."""
    assert resolved({"replicas": 2, "data_parallel_size": 2, "tensor_parallel_size": 2}).engines == 4


def test_eight_bit_caches_hold_twice_as_much():
    """`kv_cache_dtype: fp8` halves the bytes of a token."""
    plain, small = resolved({}), resolved({"kv_cache_dtype": "fp8"})
    assert small.kv_tokens == pytest.approx(2 * plain.kv_tokens, rel=1e-3)


@pytest.mark.parametrize(
    "knobs",
    [
        pytest.param({"max_num_seqs": 0}, id="zero"),
        pytest.param({"max_num_seqs": True}, id="a boolean"),
        pytest.param({"gpu_memory_utilization": 1.5}, id="a share above one"),
        pytest.param(
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048}, id="a budget below max_model_len"
        ),
        pytest.param({"max_num_batched_tokens": 64, "max_num_seqs": 128}, id="fewer tokens than sequences"),
    ],
)
def test_what_the_engine_would_refuse_is_the_configurations_fault(knobs):
    """The trial ends as `config_failed` with `bad_flag`, as it does live."""
    with pytest.raises(ConfigurationFailed) as failed:
        resolved(knobs)
    assert failed.value.reason == "bad_flag"


def test_an_unknown_model_is_named_with_those_that_are_known():
    """The remedy stands in the message."""
    with pytest.raises(InputError, match=r"nobody/nothing.*Llama-3.1-8B"):
        resolved({}, model="nobody/nothing")


def test_an_unknown_gpu_is_named_with_those_that_are_known():
    """The remedy stands in the message."""
    with pytest.raises(InputError, match=r"Abacus.*H100-80GB"):
        machine_of(Pool("p", "gpu", "Abacus", 1, 1, 1.0))


def test_a_cpu_slot_is_about_as_fast_as_the_one_it_was_set_on(tmp_path):
    """8 layers of 512: a prompt of 2,048 tokens takes about a second of one core, a decode step about 9 ms."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 8,
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 4096,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    pool = Pool("slots", "cpu", "slot", 1, 2, 0.1, cores=1)
    made = resolved({}, model=str(tmp_path), pool=pool, engine=Engine(env={"VLLM_CPU_KVCACHE_SPACE": "1"}))
    assert made.limits.max_num_batched_tokens == 2048
    assert made.kv_tokens == 2**30 // (2 * 8 * 4 * 64 * 2)
    assert 0.7 < made.step_time.step(((2048, 0),), 0, 0) < 1.5
    assert 0.006 < made.step_time.step((), 1, 500) < 0.016
