#!/usr/bin/env python3
"""
Make a tiny model directory that `vllm serve DIRECTORY --load-format dummy` accepts, without any download.

The directory holds a Llama `config.json`, a byte-level BPE tokenizer trained on seeded nonsense words, and a chat
template. It has no weights: with `--load-format dummy` they are the same in every process, so greedy answers of two
engines agree. The same arguments give the same bytes.

Usage: make_model.py DIRECTORY [LAYERS HIDDEN INTERMEDIATE HEADS KV_HEADS VOCABULARY MAX_POSITIONS]
"""

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ["<|unk|>", "<|bos|>", "<|eos|>"]
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


@dataclass(frozen=True)
class Shape:
    """Size of a Llama model; the defaults have about 4 million parameters."""

    layers: int = 4
    hidden: int = 256
    intermediate: int = 688
    heads: int = 4
    kv_heads: int = 2
    vocabulary: int = 4096
    max_positions: int = 16384

    @property
    def parameters(self) -> int:
        """Number of weights, norms left out."""
        head = self.hidden // self.heads
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_heads * head
        return self.vocabulary * self.hidden + self.layers * (attention + 3 * self.hidden * self.intermediate)


def tokenizer(vocabulary: int) -> Tokenizer:
    """A byte-level BPE tokenizer of exactly `vocabulary` tokens, trained on seeded nonsense."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    draw = random.Random(0)  # noqa: S311 (reproducible text, not a secret)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draw.choice(letters) for _ in range(draw.randint(2, 9))) for _ in range(6000)]
    corpus = [" ".join(draw.choice(words) for _ in range(40)) for _ in range(3000)]
    made.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if made.get_vocab_size() != vocabulary:
        raise SystemExit(f"the corpus gives {made.get_vocab_size()} tokens, not {vocabulary}: ask for fewer")
    return made


def config(shape: Shape) -> dict[str, object]:
    """`config.json` of a Llama of this shape."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attention_bias": False,
        "mlp_bias": False,
    }


def make(directory: Path, shape: Shape) -> None:
    """Write the three files of the model into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer(shape.vocabulary).save(str(directory / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "unk_token": "<|unk|>",
        "model_max_length": shape.max_positions,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=1) + "\n", encoding="utf-8")
    (directory / "config.json").write_text(json.dumps(config(shape), indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    if not 1 <= len(arguments) <= 8:
        raise SystemExit(__doc__)
    sizes = [int(text) for text in arguments[1:]]
    shape = Shape(*sizes)
    make(Path(arguments[0]), shape)
    sys.stdout.write(f"{arguments[0]}: {shape.parameters / 1e6:.1f}M parameters\n")


if __name__ == "__main__":
    main(sys.argv[1:])
