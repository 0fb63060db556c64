"""Tests of stores that outlive a real engine: a new one finds what the one before it computed."""

import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.live_engine import DEMO, TINY, live_objective, stored, with_store
from support.restart import Answer, KeptStore, prompts

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("engine_environment")]

N = 7  # fresh prompts with no, half and full hits each
TAIL = 16  # tokens of each prompt that no store keeps: less than a block
HALF, FULL = 1024, 2048  # whole blocks of every store (128 tokens on CPUs, LMCache's chunks of 256)


def kept(kind: str, model: Path, directory: Path) -> KeptStore:
    """A store of this kind, and engines of this model beside it."""
    objective = replace(live_objective(max_model_len=4096), model=str(model))
    return KeptStore(stored(kind), with_store(objective, kind), directory)


def test_mooncake_outlives_the_engine(tmp_path):
    """The first request of a new engine takes all whole blocks from the store, and its answer is the same."""
    known, unknown = prompts(2, FULL + TAIL, "restart")
    with kept("mooncake", TINY, tmp_path) as store:
        with store.engine() as engine:
            before = engine.keep(known, FULL)
        with store.engine() as engine:
            after = engine.ask(known)
            assert engine.ask(unknown).hits == 0
    assert after.hits == FULL
    assert after.text == before
    assert list((tmp_path / "registry").iterdir()) == []


@dataclass(frozen=True)
class Measured:
    """What a new engine did with fresh prompts, by how many of their tokens the store had."""

    first: Answer
    answers: dict[int, list[Answer]]
    same: int  # answers to fully stored prompts that equal those of the engine before


def measured(kind: str, directory: Path) -> Measured:
    """Fill a store, end the engine, start another, and ask it in turns for prompts with no, half and full hits."""
    fresh = {hits: prompts(N, FULL + TAIL, f"{hits}") for hits in (0, HALF, FULL)}
    before = []
    with kept(kind, DEMO, directory) as store:
        with store.engine() as engine:
            for prompt in fresh[HALF]:
                engine.keep(prompt[: HALF + TAIL], HALF)
            before = [engine.keep(prompt, FULL) for prompt in fresh[FULL]]
        with store.engine() as engine:
            first = engine.ask(fresh[FULL][0])
            for prompt in prompts(2, FULL + TAIL, "warm-up"):
                engine.ask(prompt)
            answers: dict[int, list[Answer]] = {hits: [] for hits in fresh}
            for turn in range(N):
                for hits, of_kind in fresh.items():
                    answers[hits].append(engine.ask(of_kind[turn]))
    same = sum(answer.text == text for answer, text in zip(answers[FULL], before, strict=True))
    return Measured(first, answers, same)


@pytest.mark.accept
@pytest.mark.parametrize("kind", ["mooncake", "lmcache"])
def test_what_a_new_engine_finds_saves_it_time(kind, tmp_path):
    """Hits on the first request; the more of a prompt the store has, the sooner the first token."""
    found = measured(kind, tmp_path)
    medians = {hits: statistics.median(each.seconds for each in answers) for hits, answers in found.answers.items()}
    shown = ", ".join(f"{hits} hits {seconds * 1e3:.0f} ms" for hits, seconds in medians.items())
    print(
        f"\n{kind} after a restart, {FULL + TAIL} tokens, n = {N} each, median TTFT: {shown}; first request "
        f"{found.first.hits} hits, {found.first.seconds * 1e3:.0f} ms; {found.same} of {N} answers as before"
    )
    assert found.first.hits == FULL
    assert {hits: {each.hits for each in answers} for hits, answers in found.answers.items()} == {
        hits: {hits} for hits in (0, HALF, FULL)
    }
    assert medians[FULL] < medians[HALF] < medians[0]
    assert found.same == N
    assert list((tmp_path / "registry").iterdir()) == []
