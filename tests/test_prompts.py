"""Prompts: of exact length, never twice, alike only where they share a prefix on purpose."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.load import level_plan, make_model

from tuner.errors import InputError
from tuner.load import tokenizer, traces
from tuner.load.plan import FILL_LEVELS, LevelPlan
from tuner.load.prompts import Prompter, Request
from tuner.load.shape import level_requests
from tuner.load.supply import Supply
from tuner.load.tokenizer import LocalTokenizer
from tuner.slo import Prompts, Synthetic, Trace

MOONCAKE = str(Path(__file__).parent / "data" / "mooncake_slice.jsonl")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> LocalTokenizer:
    return LocalTokenizer(make_model(tmp_path_factory.mktemp("model")))


def prompter_of(plan: LevelPlan, known: LocalTokenizer | None) -> Prompter:
    source = plan.workload.source
    lines = traces.read_prompts(source) if isinstance(source, Prompts) else None
    return Prompter(plan, level_requests(plan, traces.read(source)), "served", known, prompts=lines)


def made(plan: LevelPlan, known: LocalTokenizer | None, count: int = 20) -> list[tuple[Request, dict[str, Any]]]:
    prompter = prompter_of(plan, known)
    requests = [prompter.request(index) for index in range(count)]
    return [(request, json.loads(request.body)) for request in requests]


@pytest.mark.parametrize("length", [20, 64, 777])
def test_completions_send_exactly_the_asked_token_ids(known: LocalTokenizer, length: int):
    """Ids leave nothing to a tokenizer; none of them is a control token."""
    for request, payload in made(level_plan(Synthetic(length, 3), model="x"), known):
        assert len(payload["prompt"]) == request.asked_input_tokens == length
        assert set(payload["prompt"]) <= set(known.plain_ids.tolist())
        assert not {0, 1} & set(payload["prompt"])


@pytest.mark.parametrize("length", [20, 64, 777])
def test_chats_have_the_asked_length_under_the_template(known: LocalTokenizer, length: int):
    """What the template puts around the content counts: the rendered prompt has exactly the asked tokens."""
    plan = level_plan(Synthetic(length, 3), api="chat")
    assert prompter_of(plan, known).exact
    for request, payload in made(plan, known):
        encoded = known.encode_chat(payload["messages"])
        assert encoded is not None
        assert len(encoded) == request.asked_input_tokens == length


def test_no_prompt_comes_twice(known: LocalTokenizer):
    """Not within a level, nor in another level or under another seed."""
    plans = [level_plan(Synthetic(16, 2), seed=seed, number=number) for seed in (1, 2) for number in (1, 2)]
    prompts = [tuple(payload["prompt"]) for plan in plans for _, payload in made(plan, known)]
    assert len(set(prompts)) == len(prompts) == 80


def test_the_same_plan_gives_the_same_requests_whatever_the_load(known: LocalTokenizer):
    """Trials of a study, and levels that differ in the rate alone, see the same bodies."""
    one, other = (made(level_plan(Synthetic(16, 2), rate_rps=rate), known) for rate in (5.0, 50.0))
    assert [request.body for request, _ in one] == [request.body for request, _ in other]


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_shared_prefix_is_shared_to_the_token_and_no_further(known: LocalTokenizer, api: str):
    """In 64 tokens with a prefix of 32, prompts of one prefix agree on 32 tokens; the 64 include them."""
    plan = level_plan(Synthetic(64, 2, shared_prefix_tokens=32, prefixes=2), api=api)
    ids = [
        payload["prompt"] if api == "completions" else known.encode_chat(payload["messages"])
        for _, payload in made(plan, known)
    ]
    assert {len(prompt) for prompt in ids} == {64}
    assert ids[0][:32] == ids[2][:32] != ids[1][:32] == ids[3][:32]
    for one in range(20):
        for other in range(one):
            assert ids[one][32:48] != ids[other][32:48]


def test_shared_prefixes_are_new_in_every_level(known: LocalTokenizer):
    """What one level warmed is cold in the next."""
    first, second = (
        made(level_plan(Synthetic(64, 2, shared_prefix_tokens=32), number=number), known)[0][1]["prompt"]
        for number in (1, 2)
    )
    assert first[:32] != second[:32]


def test_a_fill_has_the_prefixes_of_its_level_and_prompts_of_its_own(known: LocalTokenizer):
    """`cache: warm` warms what the level is going to ask for, and nothing else of it."""
    level, fill, other = (
        [
            payload["prompt"]
            for _, payload in made(level_plan(Synthetic(64, 2, shared_prefix_tokens=32, prefixes=2), number=n), known)
        ]
        for n in (3, FILL_LEVELS + 3, FILL_LEVELS + 4)
    )
    assert [prompt[:32] for prompt in level] == [prompt[:32] for prompt in fill]
    assert level[0][:32] != other[0][:32]
    assert not {tuple(prompt[32:]) for prompt in level} & {tuple(prompt[32:]) for prompt in fill}


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_trace_blocks_become_common_tokens(known: LocalTokenizer, api: str):
    """Two requests agree on as many tokens as their common blocks have, so real hit rates appear."""
    plan = level_plan(Trace(MOONCAKE, "mooncake", scale_length=0.1), api=api)
    shapes = level_requests(plan, traces.read(plan.workload.source))
    prompter = Prompter(plan, shapes, "served", known)
    ids = []
    for index in range(12):
        payload = json.loads(prompter.request(index).body)
        ids.append(payload["prompt"] if api == "completions" else known.encode_chat(payload["messages"]))
        assert len(ids[-1]) == prompter.request(index).asked_input_tokens
    for one in range(12):
        for other in range(one):
            blocks = 0
            for a, b in zip(shapes.blocks(one), shapes.blocks(other), strict=False):
                if a != b:
                    break
                blocks += 1
            most = min(blocks * shapes.block_tokens, len(ids[one]), len(ids[other]))
            if blocks and most > 30:
                assert ids[one][:most] == ids[other][:most]
                assert ids[one][: most + 16] != ids[other][: most + 16] or most == len(ids[one])


def test_a_prompt_shorter_than_the_template_is_refused(known: LocalTokenizer):
    """The error says how much the template takes, and the way out."""
    with pytest.raises(InputError, match="the chat template alone takes"):
        prompter_of(level_plan(Synthetic(3, 2), api="chat"), known)


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_without_a_tokenizer_lengths_are_estimated_and_said_to_be(api: str):
    """Common words, about one token each: unique as ever, and `exact` is False."""
    plan = level_plan(Synthetic(40, 2), api=api)
    assert not prompter_of(plan, None).exact
    texts = [
        payload["prompt"] if api == "completions" else payload["messages"][0]["content"]
        for _, payload in made(plan, None)
    ]
    assert {len(text.split()) for text in texts} == {40}
    assert len(set(texts)) == 20


def test_a_template_missing_makes_chat_lengths_estimates(tmp_path: Path):
    """The tokenizer is known, the template is not: what it adds cannot be counted."""
    bare = LocalTokenizer(make_model(tmp_path, template=None))
    assert not prompter_of(level_plan(api="chat"), bare).exact
    assert prompter_of(level_plan(api="completions"), bare).exact


def test_prompts_of_a_file_are_sent_as_they_are_in_a_seeded_order(tmp_path: Path, known: LocalTokenizer):
    """Every line once a round, shuffled anew in each level, its length counted under the template."""
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f'{{"prompt": "ask {n}", "output_tokens": {n + 1}}}\n' for n in range(8)), encoding="utf-8")
    orders = []
    for number in (1, 2):
        sent = made(level_plan(Prompts(str(file)), api="chat", number=number), known, 8)
        orders.append([payload["messages"][0]["content"] for _, payload in sent])
        for request, payload in sent:
            encoded = known.encode_chat(payload["messages"])
            assert encoded is not None
            assert request.asked_input_tokens == len(encoded)
            assert request.asked_output_tokens == int(payload["messages"][0]["content"].split()[1]) + 1
            assert not request.whole
    assert sorted(orders[0]) == sorted(orders[1]) == [f"ask {n}" for n in range(8)]
    assert orders[0] != orders[1]


def test_messages_cannot_go_to_the_completions_endpoint(tmp_path: Path):
    """The error names the key to change."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "a"}], "output_tokens": 2}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"workload\.api.*use chat"):
        made(level_plan(Prompts(str(file)), api="completions"), None, 1)


def test_templates_run_in_a_sandbox(tmp_path: Path):
    """A template that reaches for Python's insides is an input error, and reaches nothing."""
    template = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    evil = LocalTokenizer(make_model(tmp_path, template=template))
    with pytest.raises(InputError, match="chat template"):
        evil.encode_chat([{"role": "user", "content": "a"}])


def test_a_model_that_is_not_here_has_no_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing is downloaded: unknown stays unknown; a snapshot in the local cache is found."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert tokenizer.load("org/name") is None
    make_model(tmp_path / "hub" / "models--org--name" / "snapshots" / "abc")
    assert tokenizer.load("org/name") is not None


def test_a_supply_hands_out_requests_in_order_made_ahead_or_not():
    """Made ahead up to a count, then on the spot: always the next index."""
    asked: list[int] = []

    def make(index: int) -> Request:
        asked.append(index)
        return Request(index, 1, 1, True, b"x")

    supply = Supply(make, 5)
    supply.fill(3)
    assert (asked, supply.waiting) == ([0, 1, 2], 3)
    assert [supply.take().index for _ in range(5)] == [0, 1, 2, 3, 4]
    assert not supply.top_up()
