"""Traces and prompts files: read, cut, scaled, and every fault with its place."""

from pathlib import Path

import numpy as np
import pytest
from support.load import level_plan

from tuner.errors import FileError, InputError
from tuner.load.shape import level_requests
from tuner.load.traces import read, read_prompts
from tuner.slo import Arrivals, Prompts, Synthetic, Trace

DATA = Path(__file__).parent / "data"
MOONCAKE, AZURE = str(DATA / "mooncake_slice.jsonl"), str(DATA / "azure_code_slice.csv")


def test_a_mooncake_row_gives_lengths_and_blocks():
    """The first row of the slice: 6,758 tokens in, 500 out, 14 blocks of 512 tokens."""
    rows = read(Trace(MOONCAKE, "mooncake"))
    assert rows is not None
    assert (len(rows), rows.input_tokens[0], rows.output_tokens[0], rows.block_tokens) == (40, 6758, 500, 512)
    assert rows.block_ids[: rows.block_offsets[1]].tolist() == list(range(14))


def test_an_azure_row_gives_lengths_and_times():
    """The first two rows lie 52 ms apart; there are no blocks."""
    rows = read(Trace(AZURE, "azure"))
    assert rows is not None
    assert (len(rows), rows.input_tokens[0], rows.output_tokens[0], rows.block_tokens) == (60, 4808, 10, 0)
    assert rows.timestamp_s[:2] == pytest.approx([0.0, 0.052])


def test_a_slice_starts_and_ends_where_asked():
    """Rows 2 to 4 of the trace, its clock from the first of them."""
    whole, part = read(Trace(AZURE, "azure")), read(Trace(AZURE, "azure", start=2, rows=3))
    assert whole is not None
    assert part is not None
    assert part.input_tokens.tolist() == whole.input_tokens[2:5].tolist()
    assert part.timestamp_s[0] == 0.0


def test_lengths_and_blocks_scale_together():
    """At a quarter, 6,758 tokens become 1,690 and blocks 128, so the shares that prompts have in common stay."""
    rows = read(Trace(MOONCAKE, "mooncake", scale_length=0.25))
    assert rows is not None
    assert (rows.input_tokens[0], rows.output_tokens[0], rows.block_tokens) == (1690, 125, 128)


def test_scaled_lengths_stay_at_least_one_and_are_cut_at_the_most():
    """Nothing becomes zero; a prompt cut to 1,000 tokens keeps the two blocks that cover them."""
    tiny = read(Trace(AZURE, "azure", scale_length=1e-6))
    cut = read(Trace(MOONCAKE, "mooncake", max_input_tokens=1000, max_output_tokens=50))
    assert tiny is not None
    assert cut is not None
    assert set(tiny.input_tokens.tolist()) == {1}
    assert cut.input_tokens.max() == 1000
    assert cut.output_tokens.max() == 50
    assert np.diff(cut.block_offsets).max() == 2


def test_a_synthetic_source_has_no_rows():
    """There is nothing to read."""
    assert read(Synthetic(10, 2)) is None


FAULTS = {
    "no JSON": ("mooncake", '{"timestamp": 1,', r":1:\d+: no JSON"),
    "no object": ("mooncake", "[1]", ":1:1: got .*a JSON object"),
    "missing length": ("mooncake", '{"timestamp": 1, "output_length": 2}', ":1:1: input_length: got None"),
    "negative": ("mooncake", '{"timestamp": 1, "input_length": -2, "output_length": 2}', "input_length: got -2"),
    "bad blocks": (
        "mooncake",
        '{"timestamp": 1, "input_length": 2, "output_length": 2, "hash_ids": ["a"]}',
        "hash_ids: got",
    ),
    "wrong columns": ("azure", "a,b\n1,2", ":1:1: got the columns a, b: TIMESTAMP is missing"),
    "bad time": ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nx,1,2", ":2:1: TIMESTAMP: got x"),
    "few cells": ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1", ":2:1: got 2 cells"),
    "no number": (
        "azure",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,many,2",
        ":2:1: ContextTokens: got many",
    ),
}


@pytest.mark.parametrize(("form", "text", "message"), FAULTS.values(), ids=FAULTS)
def test_a_faulty_line_is_named(tmp_path: Path, form: str, text: str, message: str):
    """File, line, field, what was received and the rule."""
    file = tmp_path / "trace"
    file.write_text(text + "\n", encoding="utf-8")
    with pytest.raises(FileError, match=message):
        read(Trace(str(file), form))


def test_a_missing_or_empty_file_is_an_input_error(tmp_path: Path):
    """Never a traceback, never an empty load."""
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for source in (Trace(str(tmp_path / "none"), "azure"), Trace(str(empty), "mooncake"), Prompts(str(empty))):
        with pytest.raises(InputError, match=source.path):
            read(source)
    with pytest.raises(InputError, match="smaller `start`"):
        read(Trace(AZURE, "azure", start=1000))


def test_prompts_are_text_or_messages_with_their_lengths(tmp_path: Path):
    """A line names its own output length, or takes the source's."""
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"prompt": "one two", "output_tokens": 5}\n\n{"messages": [{"role": "user", "content": "three"}]}\n',
        encoding="utf-8",
    )
    first, second = read_prompts(Prompts(str(file), output_tokens=9))
    assert (first.text, first.output_tokens) == ("one two", 5)
    assert (second.messages, second.output_tokens) == (({"role": "user", "content": "three"},), 9)


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "a"}',
        '{"prompt": 3, "output_tokens": 2}',
        '{"output_tokens": 2}',
        '{"messages": [], "output_tokens": 2}',
    ],
)
def test_a_prompt_line_without_text_or_length_is_named(tmp_path: Path, line: str):
    """Line 2 is at fault, and the error says so."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "fine", "output_tokens": 2}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(FileError, match=r"prompts\.jsonl:2:1"):
        read_prompts(Prompts(str(file)))


def test_common_prefixes_of_a_trace_are_common_keys_of_engine_blocks():
    """
    Row 0 and row 1 of the slice share block 0: 512 tokens, 32 engine blocks of 16; nothing behind them is shared.
    """
    rows = read(Trace(MOONCAKE, "mooncake", rows=2))
    shapes = level_requests(level_plan(Trace(MOONCAKE, "mooncake", rows=2), min_requests=2), rows)
    one, other = shapes.cache_keys(0, 16), shapes.cache_keys(1, 16)
    assert len(one) == shapes.input_tokens[0] // 16
    assert np.array_equal(one[:32], other[:32])
    assert not set(one[32:].tolist()) & set(other[32:].tolist())


def test_a_trace_that_goes_round_starts_with_fresh_blocks():
    """The second round repeats lengths, not prompts: nothing is warm by accident."""
    rows = read(Trace(MOONCAKE, "mooncake", rows=2))
    shapes = level_requests(level_plan(Trace(MOONCAKE, "mooncake", rows=2), concurrency=1), rows, 4)
    assert shapes.input_tokens[0] == shapes.input_tokens[2]
    assert not set(shapes.blocks(0).tolist()) & set(shapes.blocks(2).tolist())


def test_replay_gives_each_arrival_the_lengths_of_its_own_row():
    """Bursts and lengths stay together, wherever the trace is entered."""
    source = Trace(AZURE, "azure")
    rows = read(source)
    shapes = level_requests(level_plan(source, arrivals=Arrivals("replay"), min_requests=100), rows)
    assert rows is not None
    assert shapes.row is not None
    assert shapes.arrival_s is not None
    assert np.array_equal(shapes.input_tokens, rows.input_tokens[shapes.row])
    gaps = np.diff(rows.timestamp_s)
    inner = np.flatnonzero(np.diff(shapes.row) == 1)
    ratio = np.diff(shapes.arrival_s)[inner] / gaps[shapes.row[inner]]
    assert ratio == pytest.approx(ratio[0])


def test_a_trace_stretched_in_time_at_a_fixed_rate_slows_down():
    """`scale_time: 2` doubles every gap of a replay at a fixed rate."""
    from tuner.slo import Load

    fixed = {"arrivals": Arrivals("replay"), "load": Load("rate", rate_rps=40.0)}
    plain, slow = (
        level_requests(level_plan(source, **fixed), read(source))
        for source in (Trace(AZURE, "azure"), Trace(AZURE, "azure", scale_time=2.0))
    )
    assert plain.arrival_s is not None
    assert slow.arrival_s is not None
    both = min(len(slow.arrival_s), len(plain.arrival_s))
    assert both >= 5
    assert slow.arrival_s[:both] == pytest.approx(2 * plain.arrival_s[:both])


def test_a_closed_loop_has_lengths_and_no_schedule():
    """The first requests do not depend on how many are made; arrivals are not known beforehand."""
    source = Trace(AZURE, "azure")
    few, many = (level_requests(level_plan(source, concurrency=2), read(source), count) for count in (10, 200))
    assert few.arrival_s is None
    assert np.array_equal(few.input_tokens, many.input_tokens[:10])
    with pytest.raises(InputError, match="closed loop"):
        level_requests(level_plan(source, concurrency=2), read(source))
