"""Levels for tests: plans of a second or two, and a session in this process, on its own event loop."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers
import uvloop
from support.fake_openai import FakeOpenAI

from tuner.load import tokenizer, traces
from tuner.load.endpoint import Endpoint
from tuner.load.plan import LevelData, LevelPlan
from tuner.load.prompts import Prompter
from tuner.load.session import Session
from tuner.load.shape import level_requests
from tuner.load.supply import Supply
from tuner.records import Record
from tuner.slo import Measure, Prompts, Slo, Source, Synthetic, Timeouts, Workload

CHAT_TEMPLATE = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] | trim }} {% endfor %}<assistant>"


def level_plan(
    source: Source | None = None,
    *,
    model: str = "m",
    rate_rps: float | None = 40.0,
    concurrency: int | None = None,
    warmup_s: float = 0.0,
    duration_s: float = 0.2,
    min_requests: int = 4,
    timeout: Timeouts | None = None,
    slo: Slo | None = None,
    number: int = 1,
    seed: int = 7,
    stop_early: bool = True,
    **workload: Any,
) -> LevelPlan:
    """A short level; `concurrency` makes it a closed loop."""
    return LevelPlan(
        model=model,
        workload=Workload(
            source=source or Synthetic(12, 4),
            measure=Measure(warmup_s, duration_s, min_requests),
            timeout=timeout or Timeouts(2.0, 2.0, 5.0),
            **workload,
        ),
        slo=slo or Slo(()),
        number=number,
        seed=seed,
        rate_rps=None if concurrency is not None else rate_rps,
        concurrency=concurrency,
        min_requests=min_requests,
        stop_early=stop_early,
    )


def endpoint_of(fake: FakeOpenAI) -> Endpoint:
    return Endpoint(fake.host, fake.port, fake.model)


def run_level(
    plan: LevelPlan, endpoint: Endpoint, *, during: Callable[[Session], None] | None = None, count_tokens: Any = None
) -> LevelData:
    """One level in this process; `during` is called 0.1 s after its start, on its event loop."""
    source = plan.workload.source
    rows = traces.read(source)
    shapes = level_requests(plan, rows, None if plan.rate_rps is not None else 4096)
    lines = traces.read_prompts(source) if isinstance(source, Prompts) else None
    prompter = Prompter(plan, shapes, endpoint.model, tokenizer.load(plan.model), prompts=lines)

    async def level() -> LevelData:
        session = Session(plan, endpoint, shapes, Supply(prompter.request, len(shapes)), count_tokens=count_tokens)
        if during is not None:
            asyncio.get_running_loop().call_later(0.15, during, session)
        return await session.run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return replace(runner.run(level()), input_lengths="exact" if prompter.exact else "estimated")


def measured(data: LevelData) -> list[Record]:
    return [record for record in data.records if record.phase == "measured"]


def make_model(directory: Path, *, template: str | None = CHAT_TEMPLATE) -> Path:
    """A model directory with a byte-level BPE tokenizer of 1,000 tokens, trained on the spot."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = tokenizers.decoders.ByteLevel()
    letters = "etaoinshrdlu"
    words = [a + b + c for a in letters for b in letters for c in letters[:4]]
    corpus = [" ".join(words[place:] + words[:place]) for place in range(0, len(words), 5)]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=["<|bos|>", "<|eos|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(corpus, trainer)
    directory.mkdir(parents=True, exist_ok=True)
    trained.save(str(directory / "tokenizer.json"))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    return directory
