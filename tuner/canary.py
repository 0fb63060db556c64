"""
Whether a deployment still answers what a plain engine answers: the questions, and what counts as another answer. Pure.

Blocks that are moved, stored or blended can be wrong while everything is fast and counted as a success. So a few
prompts are asked greedily, one after the other, of a plain engine and of every deployment that splits the work or keeps
a store.

Rounding is no fault: other kernels and another tensor parallelism may turn the order of two tokens that are nearly
equally likely, and from there on everything differs. So two answers are compared up to the first token at which they
part, where both sides still had the same words before them, and that token counts as another answer only if the plain
engine itself held it more than `CLOSE` times less likely than its own. docs/decisions/0150.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.configuration import Configuration
from tuner.load.plan import LevelPlan
from tuner.load.prompts import Prompter, Tokenizer
from tuner.load.shape import level_requests
from tuner.slo import Arrivals, Objective, Synthetic

#: Questions; every decode engine of up to four behind a router that takes turns gets two of them.
COUNT = 8
#: Tokens of an answer.
ANSWER_TOKENS = 16
#: Tokens of each of the two parts of a question, above the coarsest grain of any store, and of what follows them.
PART_TOKENS, TAIL_TOKENS = 300, 40
#: How many times less likely than its own a token may be, in the plain engine's eyes.
CLOSE = 3.0
#: Likeliest tokens that are asked for at each place; vLLM's `--max-logprobs` allows 20.
LIKELIEST = 5
#: Prompts whose answers may differ: with more a deployment is out. None where reuse is lossy by design.
ALLOWED = 1
#: Stands between the parts: what tells LMCache where a reusable part ends (its `blend_special_str`).
SEPARATOR = " # # "
#: Prompts come from a level number that no level has.
_LEVEL = 2_000_000
_SLACK_TOKENS = 16


@dataclass(frozen=True)
class Questions:
    """Bodies of completion requests; `swapped` has the two parts of each prompt the other way round."""

    forward: tuple[Mapping[str, object], ...]
    swapped: tuple[Mapping[str, object], ...]


@dataclass(frozen=True)
class Answer:
    """A greedy answer. Tokens are names of the engine's own; without them only the text is known."""

    text: str
    tokens: tuple[str, ...] = ()
    likely: tuple[Mapping[str, float], ...] = field(default_factory=tuple)  # at each place: token → log-probability


@dataclass(frozen=True)
class Parting:
    """The first token at which an answer leaves the plain engine's."""

    at: int  # from 1
    expected: str
    came: str
    times: float | None  # less likely than `expected` in the plain engine's eyes; None = beyond its likeliest

    @property
    def close(self) -> bool:
        """The plain engine could nearly as well have said it."""
        return self.times is not None and self.times <= CLOSE


class NoAnswerError(Exception):
    """What came back is no answer; the message says what it is."""


def guarded(configuration: Configuration) -> bool:
    """Whether its KV blocks go a way on which they can be spoilt."""
    return configuration.mode == "disaggregated" or configuration.kv_store != "none"


def questions(objective: Objective, tokenizer: Tokenizer | None, *, seed: int, longest: int | None) -> Questions:
    """
    The same questions for every deployment of a study; nothing of them comes up in any level.

    Args:
        objective: Model and workload.
        tokenizer: Of the model; None = unknown, lengths are estimates.
        seed: Of the study.
        longest: Tokens of the workload's longest request: what every deployment takes; None = unknown.
    """
    room = PART_TOKENS * 2 + TAIL_TOKENS if longest is None else longest - ANSWER_TOKENS - _SLACK_TOKENS
    part = max(1, min(PART_TOKENS, (room - TAIL_TOKENS) // 2))
    workload = dataclasses.replace(
        objective.workload,
        source=Synthetic(part, ANSWER_TOKENS),
        arrivals=Arrivals("closed_loop"),
        api="completions",
    )
    plan = LevelPlan(objective.model, workload, objective.slo, _LEVEL, seed, None, 1, min_requests=1)
    prompter = Prompter(plan, level_requests(plan, None, 3 * COUNT), objective.model, tokenizer)
    made = [json.loads(prompter.request(index).body) for index in range(3 * COUNT)]
    forward, swapped = [], []
    for one, other, tail in zip(made[::3], made[1::3], made[2::3], strict=True):
        forward.append(_body(one, [one["prompt"], other["prompt"], _cut(tail["prompt"])], tokenizer))
        swapped.append(_body(one, [other["prompt"], one["prompt"], _cut(tail["prompt"])], tokenizer))
    return Questions(tuple(forward), tuple(swapped))


def _cut(prompt: str | list[int]) -> str | list[int]:
    return " ".join(prompt.split()[:TAIL_TOKENS]) if isinstance(prompt, str) else prompt[:TAIL_TOKENS]


def _body(request: Mapping[str, Any], parts: Sequence[Any], tokenizer: Tokenizer | None) -> Mapping[str, object]:
    """As the load client asks, in one piece, with the engine's own view of each token."""
    if all(isinstance(part, list) for part in parts) and tokenizer is not None:
        between = tokenizer.encode(SEPARATOR, special=False)
        prompt: object = [*parts[0], *between, *parts[1], *between, *parts[2]]
    else:
        prompt = SEPARATOR.join(parts)
    kept = {name: value for name, value in request.items() if name not in ("stream", "stream_options")}
    return kept | {"prompt": prompt, "logprobs": LIKELIEST, "return_tokens_as_token_ids": True}


def read(status: int, body: bytes) -> Answer:
    """
    The answer in a completion's response.

    Raises:
        NoAnswerError: It is an error, or no completion.
    """
    if status == 0:
        raise NoAnswerError("no response")
    if status != 200:
        raise NoAnswerError(f"HTTP {status}: {' '.join(body[:200].decode('utf-8', 'replace').split())}")
    try:
        choice = json.loads(body)["choices"][0]
        said = choice.get("logprobs") or {}
        tokens = tuple(str(token) for token in said.get("tokens") or ())
        likely = tuple({str(k): float(v) for k, v in (each or {}).items()} for each in said.get("top_logprobs") or ())
        answer = Answer(str(choice["text"]), tokens, likely if len(likely) == len(tokens) else ())
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise NoAnswerError("a response that is no completion") from None
    if not answer.text and not answer.tokens:
        raise NoAnswerError("an empty answer")
    return answer


def parting(plain: Answer, found: Answer) -> Parting | None:
    """Where `found` leaves the plain engine's answer; None = nowhere."""
    by_token = bool(plain.tokens and found.tokens) and _numbered(plain) == _numbered(found)
    left, right = (plain.tokens, found.tokens) if by_token else (plain.text.split(" "), found.text.split(" "))
    for place in range(max(len(left), len(right))):
        expected, came = (side[place] if place < len(side) else "the end" for side in (left, right))
        if expected != came:
            likely = plain.likely[place] if by_token and place < len(plain.likely) else {}
            return Parting(place + 1, expected, came, _times(likely, expected, came))
    return None


def _numbered(answer: Answer) -> bool:
    """Whether its tokens are named by their numbers, as asked; a router may have dropped the wish."""
    return all(token.startswith("token_id:") for token in answer.tokens)


def _times(likely: Mapping[str, float], expected: str, came: str) -> float | None:
    if expected not in likely or came not in likely:
        return None
    return math.exp(min(likely[expected] - likely[came], 700.0))


def verdict(rounds: Sequence[Sequence[Parting | None]], *, lossy: bool) -> str | None:
    """
    Why the answers are not the plain engine's, in one line; None where they are.

    Args:
        rounds: Of each question in turn; a second round where the questions were asked again for the store.
        lossy: Reuse is approximate by design: not a single answer may differ.
    """
    wrong = [
        (prompt, again, each)
        for again, partings in enumerate(rounds)
        for prompt, each in enumerate(partings, 1)
        if each is not None and not each.close
    ]
    prompts = {prompt for prompt, _, _ in wrong}
    if len(prompts) <= (0 if lossy else ALLOWED):
        return None
    prompt, again, first = wrong[0]
    return (
        f"{len(prompts)} of {len(rounds[0])} canary prompts are answered otherwise than by a plain engine: prompt "
        f"{prompt}{', asked again,' if again else ''} at token {first.at} with {first.came} for {first.expected}, "
        f"{_how_unlikely(first)}"
    )


def _how_unlikely(found: Parting) -> str:
    if found.times is None:
        return f"which is not among the {LIKELIEST} likeliest there"
    return f"which is {found.times:.3g} times less likely there"


def figures(rounds: Sequence[Sequence[Parting | None]]) -> dict[str, int]:
    """For the facts of a trial: answers compared, equal to the last token, parted close, and different."""
    partings = [each for one in rounds for each in one]
    return {
        "compared": len(partings),
        "equal": sum(each is None for each in partings),
        "close": sum(each is not None and each.close for each in partings),
        "different": sum(each is not None and not each.close for each in partings),
    }


def to_json(answers: Sequence[Answer]) -> list[dict[str, object]]:
    """Answers for a file."""
    return [{"text": a.text, "tokens": list(a.tokens), "likely": [dict(each) for each in a.likely]} for a in answers]


def from_json(found: Sequence[Mapping[str, Any]]) -> tuple[Answer, ...]:
    """
    Raises:
        KeyError, TypeError, ValueError: These are no answers.
    """
    return tuple(
        Answer(
            str(a["text"]),
            tuple(map(str, a["tokens"])),
            tuple({k: float(v) for k, v in e.items()} for e in a["likely"]),
        )
        for a in found
    )
