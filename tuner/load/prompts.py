"""
What the requests of a level say: bodies of exact token counts, unique by (seed, level, index). Pure.

Tokens come from the shapes of `shape.level_requests`: the same prefix block has the same tokens within a level, and no
other two prompts have anything in common. Another level or another seed has other tokens throughout, shared prefixes
included, so nothing is warm by accident.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from tuner.errors import InputError
from tuner.load.arrivals import TOKENS, IntArray, generator
from tuner.load.plan import FILL_LEVELS, LevelPlan
from tuner.load.shape import RequestShapes
from tuner.slo import Prompts, Synthetic

_BLOCK, _TAIL = 1, 2
_MOST_BLOCKS_KEPT = 4096
#: Prompts of a level whose length is verified by encoding them; the others are right by the same construction.
_VERIFIED = 4

#: Common words of about one token in most vocabularies; for endpoints whose tokenizer is unknown.
_COMMON = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power hour
game line end member law car city name team minute idea body back
"""
PLAIN_WORDS = tuple(f" {word}" for word in _COMMON.split())


class Tokenizer(Protocol):
    """What prompts need of a tokenizer; `tokenizer.LocalTokenizer` is the one of a model directory."""

    @property
    def plain_ids(self) -> NDArray[np.int64]:
        """Ids of ordinary tokens."""

    @property
    def words(self) -> tuple[str, ...]:
        """Words with a space before them, one token each; empty where there are too few."""

    def encode(self, text: str, *, special: bool) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None: ...


class PromptLine(Protocol):
    """One line of a prompts file (`traces.Prompt`)."""

    @property
    def text(self) -> str | None: ...

    @property
    def messages(self) -> tuple[dict[str, str], ...] | None: ...


@dataclass(frozen=True, slots=True)
class Request:
    """One request, ready to send."""

    index: int
    asked_input_tokens: int
    asked_output_tokens: int
    whole: bool  # an answer of fewer tokens is `short`: the engine was told to ignore the end of sequence
    body: bytes  # JSON


@dataclass(frozen=True)
class _Frame:
    """What a chat template puts around the content, in tokens; `head` is shared by all prompts."""

    head: int
    total: int
    first: str  # opening word of every content: templates may trim a leading space


class Prompter:
    """
    Makes the requests of one level, in any order and as often as asked, always the same.

    Args:
        plan: Of the level.
        shapes: Of the same plan.
        model: Name under which the endpoint serves the model.
        tokenizer: Of the served model; None = unknown: lengths are estimated, `exact` is False.
        prompts: Lines of the prompts file, where that is the source.

    Raises:
        InputError: Prompts shorter than the chat template, or of the other API.
    """

    def __init__(
        self,
        plan: LevelPlan,
        shapes: RequestShapes,
        model: str,
        tokenizer: Tokenizer | None,
        *,
        prompts: Sequence[PromptLine] | None = None,
    ) -> None:
        self._plan, self._shapes, self._model = plan, shapes, model
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._whole = not isinstance(plan.workload.source, Prompts)
        self._chat = plan.workload.api == "chat"
        self._blocks: dict[int, IntArray] = {}
        self._frame = self._measured_frame() if self._whole and self._chat else None
        self.exact = tokenizer is not None and (not self._chat or not self._whole or self._frame is not None)
        words = tokenizer.words if tokenizer is not None and self._frame is not None else PLAIN_WORDS
        self._words = np.array(words, dtype=object)
        self._by_id = self._whole and not self._chat and tokenizer is not None

    def request(self, index: int) -> Request:
        """The request at this place of the level, 0 <= index < len(shapes)."""
        outputs = int(self._shapes.output_tokens[index])
        payload: dict[str, object] = {
            "model": self._model,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "max_tokens": outputs,
            "temperature": 0,
        }
        if self._whole:
            payload |= {"min_tokens": outputs, "ignore_eos": True}
        key, value, inputs = self._content(index)
        payload[key] = value
        body = orjson.dumps(payload, option=orjson.OPT_SERIALIZE_NUMPY)
        return Request(index, inputs, outputs, self._whole, body)

    def _content(self, index: int) -> tuple[str, object, int]:
        inputs = int(self._shapes.input_tokens[index])
        if not self._whole:
            return self._from_file(index)
        if self._by_id and self._tokenizer is not None:
            ids = self._tokenizer.plain_ids
            return "prompt", ids[self._tokens(index, inputs, len(ids))], inputs
        if not self._chat:
            return "prompt", self._text(self._tokens(index, inputs, len(self._words))), inputs
        if self._frame is None:
            messages = [{"role": "user", "content": self._text(self._tokens(index, inputs, len(self._words)))}]
            return "messages", messages, inputs
        inputs = max(inputs, self._frame.total)
        tokens = self._tokens(index, inputs, len(self._words))
        content = tokens[self._frame.head : inputs - (self._frame.total - self._frame.head)]
        return "messages", [{"role": "user", "content": self._frame.first + self._text(content)}], inputs

    def _from_file(self, index: int) -> tuple[str, object, int]:
        if self._prompts is None or self._shapes.row is None:
            raise InputError("workload.source: a prompts file without its lines")
        line = self._prompts[int(self._shapes.row[index])]
        estimate = int(self._shapes.input_tokens[index])
        if not self._chat:
            if line.text is None:
                raise InputError("workload.api: got completions with a prompts file of `messages`: use chat")
            known = None if self._tokenizer is None else self._tokenizer.encode(line.text, special=True)
            return "prompt", line.text, estimate if known is None else len(known)
        messages = list(line.messages) if line.messages is not None else [{"role": "user", "content": line.text or ""}]
        known = None if self._tokenizer is None else self._tokenizer.encode_chat(messages)
        return "messages", messages, estimate if known is None else len(known)

    def _text(self, tokens: IntArray) -> str:
        return "".join(self._words[tokens])

    def _tokens(self, index: int, length: int, vocabulary: int) -> IntArray:
        """`length` places in a vocabulary: those of the prefix blocks, then the request's own."""
        shared = self._shapes.shared_tokens(index)
        parts = [self._block(int(block), vocabulary) for block in self._shapes.blocks(index)]
        own = generator(self._plan.seed, self._plan.number, TOKENS, _TAIL, index)
        tail = own.integers(vocabulary, size=max(0, length - shared))
        head = np.concatenate(parts)[: min(shared, length)] if parts else np.empty(0, dtype=np.int64)
        return np.concatenate((head, tail))

    def _block(self, block: int, vocabulary: int) -> IntArray:
        found = self._blocks.get(block)
        if found is None:
            if len(self._blocks) >= _MOST_BLOCKS_KEPT:
                self._blocks.clear()
            random = generator(self._plan.seed, self._plan.number % FILL_LEVELS, TOKENS, _BLOCK, block)
            found = self._blocks[block] = random.integers(vocabulary, size=self._shapes.block_tokens)
        return found

    def _measured_frame(self) -> _Frame | None:
        """The chat template's share of a prompt; None where exact lengths are out of reach."""
        tokenizer = self._tokenizer
        if tokenizer is None or not tokenizer.words:
            return None
        words = tokenizer.words
        first = next((word[1:] for word in words if len(tokenizer.encode(word[1:], special=False)) == 1), words[0][1:])
        samples = [first + "".join(words[start::step][:count]) for start, step, count in ((0, 1, 9), (1, 3, 17))]
        encoded = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in samples]
        one, other = encoded
        if one is None or other is None or len(one) - 9 != len(other) - 17:
            return None
        head = next(place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        frame = _Frame(head, len(one) - 9, first)
        source = self._plan.workload.source
        if isinstance(source, Synthetic) and source.input_tokens < frame.total:
            raise InputError(
                f"workload.source.synthetic.input_tokens: got {source.input_tokens}: the chat template alone takes "
                f"{frame.total}; ask for more, or use `api: completions`"
            )
        return frame if self._holds(frame, tokenizer) else None

    def _holds(self, frame: _Frame, tokenizer: Tokenizer) -> bool:
        """Whether contents of many words have one token a word under this tokenizer."""
        words = np.array(tokenizer.words, dtype=object)
        for sample in range(_VERIFIED):
            chosen = generator(self._plan.seed, self._plan.number, TOKENS, _TAIL, sample).integers(len(words), size=256)
            content = frame.first + "".join(words[chosen])
            encoded = tokenizer.encode_chat([{"role": "user", "content": content}])
            if encoded is None or len(encoded) != frame.total + len(chosen):
                return False
        return True
