"""What a model needs: weights, KV cache, positions."""

import json

import pytest

from tuner import model
from tuner.errors import InputError

TINY = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("meta-llama/Llama-3.1-8B", 131_072),
        ("Qwen/Qwen3-8B", 147_456),
        ("Qwen/Qwen3-32B", 262_144),
        ("meta-llama/Llama-3.3-70B-Instruct", 327_680),
    ],
)
def test_kv_bytes_per_token_match_published_figures(name, bytes_per_token):
    """2 * layers * kv_heads * head_dim * 2 bytes, for models whose figure is published."""
    assert model.facts(name).kv_bytes_per_token() == bytes_per_token


@pytest.mark.parametrize("name", model.known_models())
def test_shapes_of_the_table_yield_the_published_parameters(name):
    """Shapes and published counts of each row agree within 1.5 %: a slip in either shows."""
    row = model._rows_by_name()[name]
    shape = {key: value for key, value in row.items() if key not in ("params_b", "active_b")}
    estimated = model.from_config(shape, name=name)
    assert estimated.params == pytest.approx(model.facts(name).params, rel=0.015)
    assert estimated.active_params == pytest.approx(model.facts(name).active_params, rel=0.2)


def test_an_unknown_name_is_none_not_a_guess():
    """A model that neither a directory nor the table knows has no facts."""
    assert model.facts("acme/unheard-of-3b") is None


def test_case_of_a_name_does_not_matter():
    """The table is found under any case; the name stays as written."""
    assert model.facts("qwen/qwen3-8b").layers == 36


def test_a_directory_is_read_from_its_config(tmp_path):
    """Shapes come from config.json; head_dim is hidden / heads where not stated; weights without files are 16 bit."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    facts = model.facts(str(tmp_path))
    assert (facts.layers, facts.head_dim, facts.kv_heads, facts.max_model_len) == (4, 64, 2, 8192)
    assert facts.kv_bytes_per_token() == 2 * 4 * 2 * 64 * 2
    params = 2 * 1000 * 256 + 4 * (256 * 64 * (8 + 4) + 3 * 256 * 512)
    assert (facts.params, facts.weight_bytes) == (params, 2 * params)


def test_weights_on_disk_win_over_the_estimate(tmp_path):
    """The index states the size of the shards; without one their files are summed, consolidated copies left out."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    (tmp_path / "consolidated.safetensors").write_bytes(b"x" * 1000)
    assert model.facts(str(tmp_path)).weight_bytes == 1000
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 2345}}))
    assert model.facts(str(tmp_path)).weight_bytes == 2345


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": None}, "num_attention_heads: got None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: got 0"),
        ({"hidden_size": True}, "hidden_size: got True"),
    ],
    ids=["missing", "zero", "boolean"],
)
def test_a_config_without_shapes_is_an_input_error(tmp_path, change, message):
    """The message names the file's key and what was received."""
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **change}))
    with pytest.raises(InputError, match=message):
        model.facts(str(tmp_path))


def test_a_directory_without_config_is_an_input_error(tmp_path):
    """A path that is no model directory is said so, rather than looked up by name."""
    with pytest.raises(InputError, match=r"config\.json"):
        model.facts(str(tmp_path))


def test_sliding_windows_bound_the_cache():
    """gpt-oss keeps 128 tokens in half of its layers: the cache grows with the other half alone."""
    facts = model.facts("openai/gpt-oss-120b")
    per_layer = 2 * 8 * 64 * 2
    assert facts.kv_bytes(10_000) == 18 * 10_000 * per_layer + 18 * 128 * per_layer


@pytest.mark.parametrize(
    ("quantisation", "bytes_each"),
    [
        ({"quant_method": "fp8"}, 1.0),
        ({"quant_method": "awq", "bits": 4}, 4.25 / 8),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}}, 8.25 / 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5 / 8),
    ],
    ids=["fp8", "awq", "compressed", "nvfp4"],
)
def test_quantised_checkpoints_weigh_less(quantisation, bytes_each):
    """Layers shrink by the quantisation, embeddings stay 16 bit."""
    facts = model.from_config({**TINY, "quantization_config": quantisation}, name="tiny")
    embeddings = 2 * 1000 * 256
    assert facts.weight_bytes == pytest.approx(bytes_each * (facts.params - embeddings) + 2 * embeddings)
    assert facts.quantised


def test_latent_attention_caches_its_latents():
    """DeepSeek-V3: 512 + 64 elements per token and layer, and 671e9 parameters from its shapes within 1 %."""
    facts = model.from_config(
        {
            "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
            "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
            "num_experts_per_tok": 8, "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536,
            "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 129280,
            "max_position_embeddings": 163840,
        },
        name="deepseek-v3",
    )  # fmt: skip
    assert facts.kv_bytes_per_token() == 61 * 576 * 2
    assert facts.params == pytest.approx(671e9, rel=0.01)
    assert facts.active_params == pytest.approx(37.5e9, rel=0.02)


def test_multimodal_configs_keep_the_text_model_inside():
    """Shapes nested under text_config are found."""
    assert model.from_config({"text_config": TINY, "quantization_config": None}, name="vl").layers == 4


def test_yarn_stretches_the_positions():
    """The engine serves factor * original positions."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert model.from_config({**TINY, "rope_scaling": scaling}, name="tiny").max_model_len == 131072
