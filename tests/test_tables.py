"""Step-time tables: read by hand between their points, then what is shipped."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tuner
from tuner import devices, model
from tuner.configuration import Configuration
from tuner.model import from_config
from tuner.simulator import setup, tables
from tuner.simulator.tables import Tabled
from tuner.slo import Cluster, Objective, Pool, Prices, Search, Slo, Synthetic, Workload

FILES = sorted((Path(tuner.__file__).parent / tables.DIRECTORY).glob("*.json"))
#: Numbers that are easy to reckon with, in seconds.
SMALL = Tabled(
    tokens=(1, 10, 100),
    shared_s=(1.0, 2.0, 11.0),
    batch=(1, 3),
    context=(0, 100),
    decode_s=((0.0, 1.0), (0.0, 3.0)),
    chunk=(1, 9),
    prefix=(0, 100),
    prefill_s=0.5,
    pair_s=((0.01, 0.02), (0.03, 0.04)),
    fixed_s=0.25,
)
SHIPPED = {"llama-3.1-8b", "llama-3.1-70b", "qwen3-8b", "qwen3-32b"}
LLAMA_8B = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("prefills", "decodes", "context", "expected"),
    [
        pytest.param((), 1, 100, 0.25 + 1.0 + 1.0, id="at the points"),
        pytest.param((), 2, 100, 0.25 + 1.0 + 1 / 9 + 1.0, id="between four points: 2 decodes, 50 tokens each"),
        pytest.param(((9, 0),), 0, 0, 0.25 + 1.0 + 8 / 9 + 0.5 + 45 * 0.03, id="a prompt of 9: 45 pairs"),
        pytest.param(((9, 50),), 1, 0, 0.25 + 2.0 + 0.5 + 9 * 55 * 0.035, id="a chunk behind 50, beside a decode"),
        pytest.param(((9, 0), (9, 0)), 0, 0, 0.25 + 2.8 + 0.5 + 90 * 0.03, id="two chunks start once"),
        pytest.param((), 5, 500, 0.25 + 1.0 + 4 / 9 + 5.0, id="beyond the last point: linear"),
    ],
)
def test_steps_are_sums_of_their_parts(prefills, decodes, context, expected):
    """Fixed part, products by the number of tokens, attention of decodes and of each chunk."""
    assert SMALL.step(prefills, decodes, context) == pytest.approx(expected)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_tables_are_whole(path):
    """Points ascend, rows fit them, times are positive and never fall with more work; origin and licence are named."""
    content = json.loads(path.read_text())
    assert path.stem.endswith(content["device"].lower())
    assert content["device"] in devices.devices()
    assert content["origin"]["licence"] == "Apache-2.0"
    assert {"package", "version", "engine", "notice", "built"} <= set(content["origin"])
    assert path.stat().st_size < 24_000
    for name in ("tokens", "batch", "context", "chunk", "prefix"):
        assert all(one < other for one, other in pairwise(content[name]))
    for row in content["shared"]:
        assert len(row["shared_us"]) == len(content["tokens"])
        assert min(row["shared_us"]) > 0
        assert row["shared_us"] == sorted(row["shared_us"])
    for entry in content["attention"]:
        assert len(entry["decode_us"]) == len(content["batch"])
        assert len(entry["pair_ns"]) == len(content["chunk"])
        assert {len(row) for row in entry["decode_us"]} == {len(content["context"])}
        assert {len(row) for row in entry["pair_ns"]} == {len(content["prefix"])}
        assert all(
            row == sorted(row) for row in (*entry["decode_us"], *map(list, zip(*entry["decode_us"], strict=True)))
        )
        assert min(min(row) for row in entry["pair_ns"]) >= 0


def test_what_most_people_serve_is_there():
    """Llama-3.1 8B and 70B, Qwen3 8B and 32B on H100 and H200, one to eight GPUs, 16 and 8 bit."""
    assert {path.stem for path in FILES} >= {f"{name}-{gpu}" for name in SHIPPED for gpu in ("h100-80gb", "h200-141gb")}
    for name in ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-8B"):
        for size in (1, 2, 4, 8):
            for precision in ("bf16", "fp8", "fp8_static", "fp8_block"):
                assert tables.find(model.facts(name), "H100-80GB", size, precision, "bf16") is not None


@given(st.integers(1, 600), st.integers(1, 4000), st.sampled_from([1, 8]))
def test_more_decodes_or_more_context_never_take_less_time(decodes, each, tensor_parallel):
    """On a shipped table, anywhere between its points."""
    _, made = tables.find(model.facts("Qwen/Qwen3-32B"), "H100-80GB", tensor_parallel, "bf16", "bf16")
    base = made.step((), decodes, decodes * each)
    assert base > 0
    assert made.step((), decodes, decodes * (each + 1)) >= base * (1 - 1e-12)
    assert made.step((), decodes + 1, (decodes + 1) * each) >= base * (1 - 1e-12)
    assert made.step(((512, 0),), decodes, decodes * each) > base


def resolved(name: str, knobs: dict, gpu: str = "H100") -> setup.Setup:
    pools = Cluster((Pool("gpus", "gpu", gpu, 1, 8, 1.0),), 8)
    wanted = Objective("x", name, Slo(()), Workload(Synthetic(100, 10)), pools, Prices("USD"), Search("x"))
    return setup.resolve(Configuration(knobs), wanted)


def test_a_table_is_taken_where_there_is_one():
    """Any spelling of the device; three GPUs, or a device without tables, have the roofline."""
    tabled = resolved("Qwen/Qwen3-32B", {"tensor_parallel_size": 2})
    assert tabled.step_times.startswith("aiconfigurator-core 0.12")
    assert isinstance(tabled.step_time, Tabled)
    assert resolved("Qwen/Qwen3-32B", {"tensor_parallel_size": 3}).step_times == setup.ROOFLINE
    assert resolved("Qwen/Qwen3-32B", {"tensor_parallel_size": 2}, "MI300X").step_times == setup.ROOFLINE


def test_eight_bit_weights_and_caches_have_tables_of_their_own():
    """Weights quantised while they are loaded make decodes faster, an 8-bit cache its attention."""
    found = [
        resolved("Qwen/Qwen3-32B", {"tensor_parallel_size": 2, **knobs}).step_time.step((), 64, 640_000)
        for knobs in ({}, {"quantization": "fp8"}, {"quantization": "fp8", "kv_cache_dtype": "fp8"})
    ]
    assert found[0] > found[1] > found[2]
    other = resolved("Qwen/Qwen3-32B", {"tensor_parallel_size": 2, "quantization": "bitsandbytes"})
    assert other.step_times == setup.ROOFLINE


@pytest.mark.parametrize(
    ("quantisation", "precision"),
    [
        (None, "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8_static"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "awq", "bits": 4}, None),
    ],
    ids=["16 bit", "one scale", "blocks", "awq"],
)
def test_a_model_is_known_by_its_shape(tmp_path, quantisation, precision):
    """A directory of any name with the shape of Llama-3.1-8B; a quantisation without a table has the roofline."""
    config = LLAMA_8B if quantisation is None else LLAMA_8B | {"quantization_config": quantisation}
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = resolved(str(tmp_path), {})
    facts = model.facts("meta-llama/Llama-3.1-8B")
    found = None if precision is None else tables.find(facts, "H100-80GB", 1, precision, "bf16")
    assert made.step_times == (setup.ROOFLINE if found is None else found[0])
    if found is not None:
        assert made.step_time.step(((100, 0),), 7, 900) == found[1].step(((100, 0),), 7, 900)


def test_a_directory_of_ones_own_goes_first(tmp_path, monkeypatch):
    """`TUNER_STEPTIMES` names it; what it does not hold comes from the shipped tables."""
    (path,) = (path for path in FILES if path.stem == "qwen3-32b-h100-80gb")
    content = json.loads(path.read_text())
    content["origin"]["version"] = "of my own"
    (tmp_path / path.name).write_text(json.dumps(content))
    monkeypatch.setenv(tables.MORE, str(tmp_path))
    knobs = {"tensor_parallel_size": 2}
    assert "of my own" in resolved("Qwen/Qwen3-32B", knobs).step_times
    assert resolved("Qwen/Qwen3-8B", knobs).step_times.startswith("aiconfigurator-core 0.12")


def test_another_mlp_is_another_model():
    """Same layers and heads, twice the MLP: no table of the smaller one is taken for it."""
    facts = from_config(LLAMA_8B | {"intermediate_size": 28672}, name="wider")
    assert tables.find(facts, "H100-80GB", 1, "bf16", "bf16") is None
