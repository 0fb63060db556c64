"""
The served model's own tokenizer and chat template, from files on this machine.

Nothing is downloaded and no code of the model runs: the template is rendered in a sandbox.
"""

import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import numpy as np
import orjson
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment
from numpy.typing import NDArray

from tuner.errors import InputError

#: How vocabularies spell a space before a word: byte-level BPE and sentencepiece.
_SPACED_WORD = re.compile(r"^[Ġ▁][a-z]{2,12}$")
_MOST_WORDS = 4096
_FEWEST_WORDS = 64


def find(model: str) -> Path | None:
    """
    The directory that holds the model's `tokenizer.json`: `model` itself, or its newest snapshot in the local Hugging
    Face cache; None where there is none.
    """
    directory = Path(model)
    if (directory / "tokenizer.json").is_file():
        return directory
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    snapshots = home / "hub" / f"models--{model.replace('/', '--')}" / "snapshots"
    if directory.is_absolute() or not snapshots.is_dir():
        return None
    found = [path.parent for path in snapshots.glob("*/tokenizer.json")]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def load(model: str) -> "LocalTokenizer | None":
    """
    The tokenizer of `model`; None where its files are not on this machine, so that lengths can only be estimated.

    Raises:
        InputError: The files are there and cannot be read.
    """
    directory = find(model)
    return None if directory is None else LocalTokenizer(directory)


class LocalTokenizer:
    """Implements `prompts.Tokenizer` on `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`."""

    def __init__(self, directory: Path) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        except Exception as error:  # the library raises bare exceptions
            raise InputError(f"{directory / 'tokenizer.json'}: cannot be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._directory = directory

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids; `special` adds what the tokenizer puts around a plain completion prompt, such as a BOS token."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        """Token ids of a conversation under the chat template; None where the model has no template."""
        if self._template is None:
            return None
        try:
            text = self._template.render(messages=list(messages), add_generation_prompt=True, **self._special_texts)
        except jinja2.TemplateError as error:
            raise InputError(f"{self._directory}: its chat template cannot be rendered: {error}") from error
        return self.encode(text, special=False)

    @cached_property
    def plain_ids(self) -> NDArray[np.int64]:
        """Ids of ordinary tokens, ascending: no control tokens among them."""
        added = {number for number, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        known = set(self._tokenizer.get_vocab(with_added_tokens=False).values()) - added
        return np.array(sorted(known), dtype=np.int64)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """
        Lower-case words with a space before them, each one token wherever it follows another.

        Empty where the vocabulary has too few of them.
        """
        spelled = sorted(token for token in self._tokenizer.get_vocab() if _SPACED_WORD.match(token))
        step = max(1, len(spelled) // _MOST_WORDS)
        texts = [f" {token[1:]}" for token in spelled[::step]]
        encoded = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        single = [text for text, encoding in zip(texts, encoded, strict=True) if len(encoding.ids) == 1]
        return tuple(single) if len(single) >= _FEWEST_WORDS else ()

    @cached_property
    def _config(self) -> dict[str, Any]:
        path = self._directory / "tokenizer_config.json"
        if not path.is_file():
            return {}
        try:
            value = orjson.loads(path.read_bytes())
        except orjson.JSONDecodeError as error:
            raise InputError(f"{path}: no JSON: {error}") from error
        return value if isinstance(value, dict) else {}

    @cached_property
    def _special_texts(self) -> dict[str, str]:
        texts = {}
        for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
            value = self._config.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                texts[name] = text
        return texts

    @cached_property
    def _template(self) -> jinja2.Template | None:
        path = self._directory / "chat_template.jinja"
        source = path.read_text(encoding="utf-8") if path.is_file() else self._config.get("chat_template")
        if isinstance(source, list):
            named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
            source = named.get("default")
        if not isinstance(source, str):
            return None
        sandbox = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        sandbox.globals["raise_exception"] = _refuse
        sandbox.globals["strftime_now"] = _fixed_date
        try:
            return sandbox.from_string(source)
        except jinja2.TemplateError as error:
            raise InputError(f"{self._directory}: its chat template cannot be parsed: {error}") from error


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _fixed_date(form: str) -> str:
    """A date of the usual length: prompts must not change from one day to the next."""
    return {"%Y-%m-%d": "2026-01-01"}.get(form, "01 Jan 2026")
