"""Questions that compare answers, and what counts as another answer."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from support.objectives import objective

from tuner import canary
from tuner.canary import Answer, NoAnswerError, Parting
from tuner.configuration import Configuration
from tuner.level import plan
from tuner.load.prompts import Prompter
from tuner.load.shape import level_requests
from tuner.slo import Synthetic


def answer(*tokens: str, likely=()) -> Answer:
    """With the alternatives of its first places."""
    return Answer(" ".join(tokens), tokens, likely)


#: The plain engine holds b at 0.5, B at 0.25 and x at 0.01 for its second token.
PLAIN = answer("a", "b", "c", likely=({"a": 0.0}, {"b": math.log(0.5), "B": math.log(0.25), "x": math.log(0.01)}, {}))


class Ids:
    """A tokenizer of a thousand plain tokens; the separator is three of its own."""

    plain_ids = np.arange(1000)
    words = ()

    def encode(self, text, *, special):
        return [2001, 2002, 2001] if text == canary.SEPARATOR else [7]

    def encode_chat(self, messages):
        return None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (answer("a", "b", "c"), None),
        (answer("a", "B", "q"), Parting(2, "b", "B", pytest.approx(2.0))),
        (answer("a", "x", "c"), Parting(2, "b", "x", pytest.approx(50.0))),
        (answer("a", "y", "c"), Parting(2, "b", "y", None)),
        (answer("a", "b"), Parting(3, "c", "the end", None)),
        (Answer("a b c"), None),
        (Answer("a B c"), Parting(2, "b", "B", None)),
        (Answer("a b c", ("token_id:1", "token_id:2", "token_id:3")), None),
    ],
    ids=["equal", "nearly-as-likely", "unlikely", "unheard-of", "short", "text-alone", "other-text", "other-names"],
)
def test_answers_part_at_the_first_token_that_differs(found, expected):
    """What comes after it follows from it; how likely it was is asked of the plain engine."""
    assert canary.parting(PLAIN, found) == expected


def test_only_a_token_that_the_plain_engine_nearly_said_is_close():
    """Three times less likely is still close; more, or not among its likeliest, is another answer."""
    assert Parting(9, "a", "b", 3.0).close
    assert not Parting(9, "a", "b", 3.1).close
    assert not Parting(9, "a", "b", None).close


CLOSE, FAR = Parting(12, "t", "u", 1.2), Parting(3, "t", "v", None)


@pytest.mark.parametrize(
    ("rounds", "lossy", "refused"),
    [
        ([[None] * 8], False, False),
        ([[CLOSE] * 8], False, False),
        ([[None] * 7 + [FAR]], False, False),
        ([[None] * 7 + [FAR]] * 2, False, False),
        ([[None] * 6 + [FAR, FAR]], False, True),
        ([[None] * 8, [FAR] + [None] * 6 + [FAR]], False, True),
        ([[CLOSE] * 8] * 2, True, False),
        ([[None] * 8, [None] * 7 + [FAR]], True, True),
    ],
    ids=["equal", "rounding", "one", "one-twice", "two", "two-when-asked-again", "lossy-rounding", "lossy-one"],
)
def test_two_other_answers_are_too_many_and_one_is_where_reuse_is_lossy(rounds, lossy, refused):
    """Rounding never counts, however often; a prompt counts once."""
    assert (canary.verdict(rounds, lossy=lossy) is not None) == refused


def test_the_cause_names_prompt_token_and_words():
    """One line; the first of the differences, and when it came."""
    assert canary.verdict([[None] * 8, [None, None, FAR, FAR, *[None] * 4]], lossy=False) == (
        "2 of 8 canary prompts are answered otherwise than by a plain engine: prompt 3, asked again, at token 3 with v "
        "for t, which is not among the 5 likeliest there"
    )


def test_figures_count_every_answer_once():
    """Equal, close and different sum to what was compared."""
    assert canary.figures([[None, CLOSE], [FAR, None]]) == {"compared": 4, "equal": 2, "close": 1, "different": 1}


@pytest.mark.parametrize("tokenizer", [None, Ids()], ids=["words", "ids"])
def test_questions_hold_two_parts_in_both_orders(tokenizer):
    """Longer than any store's grain, greedy, in one piece, with the engine's view of each token; always the same."""
    made = canary.questions(objective(), tokenizer, seed=3, longest=None)
    assert made == canary.questions(objective(), tokenizer, seed=3, longest=None)
    assert made != canary.questions(objective(), tokenizer, seed=4, longest=None)
    assert len({json.dumps(body["prompt"]) for body in (*made.forward, *made.swapped)}) == 2 * canary.COUNT
    for forward, swapped in zip(made.forward, made.swapped, strict=True):
        assert (forward["temperature"], forward["max_tokens"], forward["logprobs"]) == (0, 16, 5)
        assert "stream" not in forward
        prompt, other = forward["prompt"], swapped["prompt"]
        if tokenizer is None:
            one, two, tail = prompt.split(canary.SEPARATOR)
            assert [two, one, tail] == other.split(canary.SEPARATOR)
        else:
            assert len(prompt) == 300 + 3 + 300 + 3 + 40
            assert [*prompt[303:603], *prompt[300:303], *prompt[:300], *prompt[603:]] == other


def test_questions_are_never_longer_than_the_longest_request():
    """An engine that takes the workload takes them too."""
    made = canary.questions(objective(), Ids(), seed=3, longest=200)
    assert {len(body["prompt"]) + canary.ANSWER_TOKENS <= 200 for body in made.forward} == {True}


def test_no_part_of_a_question_comes_up_in_a_level():
    """They come from a level number that no level has, so nothing of the load is warm by them."""
    goal = objective()
    goal = replace(goal, workload=replace(goal.workload, source=Synthetic(300, 4), api="completions"))
    asked = canary.questions(goal, None, seed=3, longest=None)
    words = {str(body["prompt"]).split(canary.SEPARATOR)[0] for body in asked.forward}
    for number in (1, 2, 3):
        level = plan(goal, number=number, seed=3, load=1.0)
        prompter = Prompter(level, level_requests(level, None, 24), goal.model, None)
        assert words.isdisjoint(json.loads(prompter.request(index).body)["prompt"] for index in range(24))


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (0, b"", "no response"),
        (500, b'{"error": "KV load failed"}', 'HTTP 500: {"error": "KV load failed"}'),
        (200, b"[]", "no completion"),
        (200, b'{"choices": [{"text": ""}]}', "an empty answer"),
    ],
)
def test_what_is_no_answer_is_told(status, body, said):
    """An error, silence and an empty answer are not compared."""
    with pytest.raises(NoAnswerError) as caught:
        canary.read(status, body)
    assert said in str(caught.value)


def test_answers_survive_a_file():
    """Tokens and log-probabilities as they were."""
    assert canary.from_json(json.loads(json.dumps(canary.to_json([PLAIN, Answer("x")])))) == (PLAIN, Answer("x"))


@pytest.mark.parametrize(
    ("knobs", "guarded", "lossy"),
    [
        ({}, False, False),
        ({"mode": "disaggregated"}, True, False),
        ({"kv_store": "mooncake"}, True, False),
        ({"kv_store": "lmcache", "lmcache_blending": True}, True, True),
        ({"kv_store": "lmcache", "lmcache_blending": False}, True, False),
        ({"kv_store": "mooncake", "lmcache_blending": True}, True, False),
    ],
)
def test_splits_and_stores_are_guarded(knobs, guarded, lossy):
    """Blending means something with LMCache alone."""
    configuration = Configuration(knobs)
    assert (canary.guarded(configuration), configuration.lossy) == (guarded, lossy)
