"""The load client against scripted servers: what it records, in which class a request ends, and how it lets go."""

import time
from collections import Counter
from pathlib import Path

import pytest
from support.fake_openai import FakeOpenAI, Script, chunks, steady
from support.load import endpoint_of, level_plan, make_model, measured, run_level

from tuner.errors import InfrastructureFailed, InputError
from tuner.load.endpoint import Endpoint
from tuner.load.process import drive
from tuner.load.session import Session
from tuner.load.wire import Progress
from tuner.records import Record
from tuner.slo import Limit, Prompts, Slo, Synthetic, Timeouts

SLACK_S = 0.05


def answers(script: Script, *, chat: bool = False, output_tokens: int = 6, **plan: object) -> list[Record]:
    """The measured records of a level in which every request meets the same script."""
    with FakeOpenAI(lambda number, payload: script) as fake:
        data = run_level(
            level_plan(Synthetic(12, output_tokens), api="chat" if chat else "completions", stop_early=False, **plan),
            endpoint_of(fake),
        )
    return measured(data)


def delays_ms(record: Record) -> list[float]:
    """Times of the chunks after the sending of the request."""
    assert record.sent_s is not None
    return [1000 * (time_s - record.sent_s) for time_s, _ in record.chunks]


class about:  # noqa: N801  reads like a number
    """A time in ms that is never early, and late by less than 300 ms however busy the machine is."""

    def __init__(self, milliseconds: float) -> None:
        self._least = milliseconds - 2

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and self._least <= other < self._least + 302

    __hash__ = None


def test_several_tokens_in_a_chunk_are_counted_by_continuous_usage():
    """
    Role at 20 ms, 1 token at 100, 3 at 160, 2 at 200, usage at 350, close at 400: three chunks of 1, 3 and 2 tokens.
    """
    script = Script(
        chunks=((20, 0, "role"), (100, 1, "content"), (160, 3, "content"), (200, 2, "content")),
        usage="continuous",
        usage_ms=350,
        close_ms=400,
    )
    for record in answers(script, chat=True):
        assert record.status == "ok"
        assert [tokens for _, tokens in record.chunks] == [1, 3, 2]
        assert delays_ms(record) == [about(100), about(160), about(200)]
        assert (record.output_tokens, record.token_source) == (6, "usage")
        assert record.first_token_s == record.chunks[0][0]
        assert record.last_token_s == record.chunks[-1][0]


def test_several_tokens_in_a_chunk_without_continuous_usage_are_spread_and_labelled():
    """Final usage says 6 for three chunks: spread by length of text, and called `chunks`, never silently 3."""
    script = Script(chunks=((10, 1, "content"), (20, 3, "content"), (30, 2, "content")))
    for record in answers(script):
        assert [tokens for _, tokens in record.chunks] == [1, 3, 2]
        assert (record.output_tokens, record.token_source) == (6, "chunks")


def test_tokens_are_counted_by_the_tokenizer_where_the_server_tells_nothing(tmp_path: Path):
    """No usage at all: the tokenizer counts the text of each chunk, and the record says so."""
    with FakeOpenAI(lambda n, p: Script(chunks=((5, 2, "content"), (9, 2, "content")), usage="off")) as fake:
        data = run_level(level_plan(), endpoint_of(fake), count_tokens=lambda text: len(text.split()))
    for record in measured(data):
        assert [tokens for _, tokens in record.chunks] == [2, 2]
        assert (record.output_tokens, record.token_source, record.input_tokens) == (4, "tokenizer", None)


def test_without_usage_and_tokenizer_a_chunk_counts_one_and_is_labelled():
    """Nothing else is known; `token_source` tells the reader."""
    for record in answers(Script(chunks=chunks(6), usage="off")):
        assert (record.output_tokens, record.token_source) == (6, "chunks")


def test_role_comment_and_empty_chunks_bear_no_token():
    """Role at 20 ms, a comment at 50, an empty delta at 60, content at 120: the first token is at 120."""
    script = Script(
        chunks=((20, 0, "role"), (50, 0, "comment"), (60, 0, "empty"), (120, 3, "content"), (130, 3, "content")),
        usage="continuous",
    )
    for record in answers(script, chat=True):
        assert delays_ms(record) == [about(120), about(130)]


@pytest.mark.parametrize("kind", ["reasoning", "reasoning_content", "tool"])
def test_reasoning_and_tool_calls_bear_tokens(kind: str):
    """An answer that is all reasoning, or a tool call, has a first token and gaps."""
    for record in answers(Script(chunks=tuple((30 + 10 * place, 1, kind) for place in range(6))), chat=True):
        assert record.status == "ok"
        assert record.output_tokens == 6
        assert delays_ms(record)[0] == about(30)


SPLITS = {
    "byte by byte": {"split": "bytes"},
    "all in one write": {"split": "joined"},
    "CRLF": {"newline": "\r\n"},
    "CR": {"newline": "\r"},
    "CRLF byte by byte": {"newline": "\r\n", "split": "bytes"},
    "no space after data:": {"space": False},
}


@pytest.mark.parametrize("how", SPLITS.values(), ids=SPLITS)
def test_events_may_be_split_anywhere(how: dict[str, object]):
    """Bytes cut inside a character, inside JSON, or joined: the same tokens, and no failure."""
    script = Script(
        chunks=((1, 1, "content"), (2, 0, "comment"), (3, 2, "content"), (4, 3, "content")),
        usage="continuous",
        text="日本\u2028é ",
        **how,
    )
    for record in answers(script, chat=True, rate_rps=10.0):
        assert record.status == "ok", record.error
        assert [tokens for _, tokens in record.chunks] == [1, 2, 3]


FAILURES = {
    "400": (Script(status=400), "http_400"),
    "429": (Script(status=429), "http_429"),
    "503": (Script(status=503), "http_503"),
    "error after 3 tokens": (Script(chunks=(*chunks(3), (9, 0, "error")), ending="no_finish"), "stream_error"),
    "no JSON": (Script(chunks=(*chunks(3), (9, 0, "raw"))), "stream_error"),
    "no event stream": (Script(body="<html>busy</html>"), "stream_error"),
    "cut after 3 tokens": (Script(chunks=chunks(3), ending="cut"), "disconnected"),
    "reset after 3 tokens": (Script(chunks=chunks(3), ending="reset"), "disconnected"),
    "no finish_reason": (Script(chunks=chunks(6), ending="no_finish"), "stream_error"),
    "the engine aborted": (Script(chunks=chunks(6), finish="abort"), "stream_error"),
    "empty body": (Script(body=""), "empty"),
    "no token": (Script(), "empty"),
    "early end": (Script(chunks=chunks(3), finish="stop"), "short"),
}


@pytest.mark.parametrize(("script", "status"), FAILURES.values(), ids=FAILURES)
def test_every_failure_has_its_one_class(script: Script, status: str):
    """A 200 is no success by itself; every measured request ends in the class of its fault."""
    records = answers(script)
    assert records
    assert {record.status for record in records} == {status}


def test_partial_tokens_of_a_failed_request_are_kept_as_facts():
    """Three tokens, then a reset: the three are in the record, the class says that they came to nothing."""
    record = answers(Script(chunks=chunks(3, first_ms=20), ending="cut"))[0]
    assert (record.status, record.output_tokens) == ("disconnected", 3)


HANGS = {
    "before the headers": (Script(headers_ms=9000), "timeout_first_token"),
    "after the headers": (Script(ending="stall"), "timeout_first_token"),
    "after a token": (Script(chunks=chunks(1), ending="stall"), "timeout_gap"),
    "never done": (Script(chunks=chunks(500, gap_ms=10), usage="continuous"), "timeout_total"),
}


@pytest.mark.parametrize(("script", "status"), HANGS.values(), ids=HANGS)
def test_a_hung_server_cannot_hang_the_level(script: Script, status: str):
    """Each of the three limits ends its request; the level is over soon after."""
    begun = time.monotonic()
    records = answers(script, timeout=Timeouts(0.3, 0.25, 0.6), output_tokens=500)
    assert {record.status for record in records} == {status}
    assert time.monotonic() - begun < 5


def test_a_late_close_does_not_spoil_a_whole_answer():
    """All tokens and the finish reason came and the connection stays open: ok, once the gap limit ends it."""
    records = answers(Script(chunks=chunks(6), close_ms=9000), timeout=Timeouts(0.3, 0.25, 3.0))
    assert {record.status for record in records} == {"ok"}


def test_a_refused_connection_is_the_servers_failure():
    """Nobody listens: `disconnected`, never sent, and no connection dropped by the client."""
    with FakeOpenAI() as fake:
        gone = endpoint_of(fake)
    data = run_level(level_plan(), gone)
    assert {record.status for record in measured(data)} == {"disconnected"}
    assert {record.sent_s for record in data.records} == {None}
    assert data.health.connections_dropped == 0


def test_three_hundred_streams_are_held_at_once():
    """There is no cap of 100 connections: a server that holds every request for 1.5 s sees all 300."""
    with FakeOpenAI(steady(first_ms=1500)) as fake:
        data = run_level(level_plan(concurrency=300, duration_s=1.0), endpoint_of(fake))
    assert fake.peak == 300
    assert data.health.peak_streams == 300


def test_open_loop_sends_on_schedule_whatever_the_server_does():
    """A server that holds every answer does not slow the arrivals down: nobody waits for anybody."""
    with FakeOpenAI(steady(first_ms=400)) as fake:
        data = run_level(level_plan(rate_rps=100.0, duration_s=0.4), endpoint_of(fake))
    lags = sorted(record.sent_s - record.scheduled_s for record in data.records if record.sent_s is not None)
    assert len(measured(data)) == pytest.approx(40, abs=20)
    assert lags[len(lags) // 2] < SLACK_S
    assert lags[0] >= 0


def test_load_goes_on_until_every_measured_request_is_decided():
    """Requests keep arriving during the drain; those still under way at its end are cut off, and only those."""
    with FakeOpenAI(steady(first_ms=300)) as fake:
        data = run_level(level_plan(rate_rps=50.0, warmup_s=0.1), endpoint_of(fake))
    phases = Counter(record.phase for record in data.records)
    assert phases["drain"] >= 5
    assert {record.status for record in measured(data)} == {"ok"}
    assert {record.phase for record in data.records if record.status == "unfinished"} <= {"warmup", "drain"}
    assert [int(record.id) for record in data.records] == list(range(len(data.records)))


def test_closed_loop_schedules_each_request_at_the_end_of_the_one_before():
    """Three slots never have more than three requests under way, and a slot's next starts when its answer ended."""
    with FakeOpenAI(steady(first_ms=10, gap_ms=5)) as fake:
        data = run_level(level_plan(concurrency=3, min_requests=30), endpoint_of(fake))
    assert fake.peak == 3
    assert len(measured(data)) >= 30
    ends = [record.last_token_s for record in data.records if record.last_token_s is not None]
    for record in data.records[3:]:
        assert min(abs(record.scheduled_s - end) for end in ends) < SLACK_S
    assert data.realised_rps == pytest.approx(len(measured(data)) / data.window_s)


def test_connections_are_used_again():
    """One request at a time needs one connection; nothing is opened for each."""
    with FakeOpenAI(steady(first_ms=1, gap_ms=0)) as fake:
        run_level(level_plan(concurrency=1, min_requests=20), endpoint_of(fake))
        assert fake.connections == 1


def test_a_broken_limit_ends_the_level_and_closes_every_stream():
    """The always-valid test stops a hopeless level; the server sees all streams closed at once."""
    slo = Slo((Limit("ttft", "p99", 0.01),))
    with FakeOpenAI(steady(first_ms=100, gap_ms=100)) as fake:
        plan = level_plan(Synthetic(12, 20), rate_rps=100.0, duration_s=60.0, slo=slo)
        begun = time.monotonic()
        data = run_level(plan, endpoint_of(fake))
        assert time.monotonic() - begun < 20
        assert (data.stopped, data.stop_detail) == ("slo", "ttft_p99")
        assert fake.wait(lambda: fake.active == 0)
        cut = sum(record.status == "unfinished" for record in data.records)
        assert cut > 10
        assert fake.disconnects > 0.8 * cut  # the others had not reached the server yet


def test_a_level_that_may_not_stop_early_does_not():
    """`stop_early=False` measures a broken limit to the end of the window."""
    slo = Slo((Limit("ttft", "max", 0.001),))
    with FakeOpenAI(steady(first_ms=20)) as fake:
        data = run_level(level_plan(slo=slo, stop_early=False), endpoint_of(fake))
    assert data.stopped == ""


def test_a_stop_request_ends_the_level_at_once():
    """The deployment died: the level ends within a second, and what was under way is `unfinished`."""

    def stop(session: Session) -> None:
        session.stop("server_died", "engine-0 exited with 1")

    with FakeOpenAI(steady(first_ms=5000)) as fake:
        begun = time.monotonic()
        data = run_level(level_plan(duration_s=30.0), endpoint_of(fake), during=stop)
        assert time.monotonic() - begun < 2
        assert fake.wait(lambda: fake.active == 0)
    assert (data.stopped, data.stop_detail) == ("server_died", "engine-0 exited with 1")
    assert {record.status for record in data.records} == {"unfinished"}


def test_a_fault_of_the_client_itself_ends_the_level_with_its_traceback(monkeypatch: pytest.MonkeyPatch):
    """A bug in a callback must not leave the level waiting for ever."""

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Session, "_tick", broken)
    with FakeOpenAI() as fake, pytest.raises(ZeroDivisionError):
        run_level(level_plan(duration_s=30.0), endpoint_of(fake))


def test_wall_clock_steps_do_not_reach_the_records(monkeypatch: pytest.MonkeyPatch):
    """The wall clock jumps back a minute with every look at it; latencies stay what they were."""
    wall = iter(range(10**9, 0, -60))
    monkeypatch.setattr(time, "time", lambda: float(next(wall)))
    for record in answers(Script(chunks=chunks(6, first_ms=30))):
        assert delays_ms(record)[0] == about(30)


def test_synthetic_loads_ask_for_whole_answers_and_prompts_of_a_file_do_not(tmp_path: Path):
    """`ignore_eos` and `min_tokens` go with lengths that were asked for, never with people's own prompts."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Say hello", "output_tokens": 6}\n', encoding="utf-8")
    with FakeOpenAI(lambda n, p: Script(chunks=chunks(3), finish="stop")) as fake:
        synthetic = run_level(level_plan(Synthetic(12, 6)), endpoint_of(fake))
        asked = fake.received[0].payload
        ours = run_level(level_plan(Prompts(str(file))), endpoint_of(fake))
        theirs = fake.received[-1].payload
    assert (asked["ignore_eos"], asked["min_tokens"], asked["max_tokens"]) == (True, 6, 6)
    assert asked["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "ignore_eos" not in theirs
    assert {record.status for record in measured(synthetic)} == {"short"}
    assert {record.status for record in measured(ours)} == {"ok"}


def test_the_delivered_prompt_length_is_recorded_beside_the_asked_one(tmp_path: Path):
    """A server that counts twice the tokens shows in `input_tokens`; `asked_input_tokens` stays what was asked."""
    with FakeOpenAI(lambda n, p: Script(chunks=chunks(4), prompt_tokens=24)) as fake:
        data = run_level(level_plan(Synthetic(12, 4)), endpoint_of(fake))
    assert {(record.asked_input_tokens, record.input_tokens) for record in measured(data)} == {(12, 24)}
    assert data.input_lengths == "estimated"


def test_headers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    """An endpoint names the variable that holds a secret; a missing variable is an error before any load."""
    monkeypatch.setenv("TEST_KEY", "Bearer abc")
    with FakeOpenAI() as fake:
        endpoint = Endpoint(fake.host, fake.port, fake.model, headers={"authorization": "TEST_KEY"})
        run_level(level_plan(), endpoint)
        assert {request.headers["authorization"] for request in fake.received} == {"Bearer abc"}
        monkeypatch.delenv("TEST_KEY")
        with pytest.raises(InputError, match="TEST_KEY is not set"):
            run_level(level_plan(), endpoint)


def test_the_client_process_hands_its_level_back(tmp_path: Path):
    """Plan in, level out, through a process of its own; progress comes on the way."""
    model = make_model(tmp_path / "model")
    seen: list[Progress] = []
    with FakeOpenAI(steady(first_ms=20)) as fake:
        plan = level_plan(Synthetic(40, 4), model=str(model), duration_s=0.8)
        data = drive(endpoint_of(fake), plan, on_progress=seen.append)
    assert {record.status for record in measured(data)} == {"ok"}
    assert {record.input_tokens for record in measured(data)} == {40}
    assert data.plan == plan
    assert data.input_lengths == "exact"
    assert data.health.cpu_s > 0
    assert seen
    assert seen[0].undecided == len(measured(data))


def test_the_client_process_ends_the_level_when_told():
    """The caller finds a server dead: the level comes back within a second or two, with its cause."""
    begun = time.monotonic()
    with FakeOpenAI(steady(first_ms=9000)) as fake:

        def died() -> str:
            return "server_died: engine-0 exited with 1" if fake.active > 3 else ""

        data = drive(endpoint_of(fake), level_plan(duration_s=60.0), should_stop=died)
        assert fake.wait(lambda: fake.active == 0)
    assert (data.stopped, data.stop_detail) == ("server_died", "engine-0 exited with 1")
    assert time.monotonic() - begun < 20


def test_the_client_process_leaves_when_the_caller_gives_up():
    """An exception in the caller (an interrupt, say) leaves no client behind, and no stream at the server."""

    def interrupted() -> str:
        if fake.active > 3:
            raise KeyboardInterrupt
        return ""

    with FakeOpenAI(steady(first_ms=9000)) as fake:
        with pytest.raises(KeyboardInterrupt):
            drive(endpoint_of(fake), level_plan(duration_s=60.0), should_stop=interrupted)
        assert fake.wait(lambda: fake.active == 0)


def test_wrong_input_comes_back_from_the_client_process_as_it_was_raised(tmp_path: Path):
    """A trace that is not there: the error names the file, as if the client were no process."""
    missing = str(tmp_path / "missing.jsonl")
    with FakeOpenAI() as fake, pytest.raises(InputError, match=r"missing\.jsonl"):
        drive(endpoint_of(fake), level_plan(Prompts(missing)))


def test_a_client_process_that_dies_is_an_infrastructure_failure(monkeypatch: pytest.MonkeyPatch):
    """The client cannot even start: not the configuration's fault, and the cause is told."""
    monkeypatch.setattr("tuner.load.process.sys.executable", "/bin/false")
    with FakeOpenAI() as fake, pytest.raises(InfrastructureFailed, match="the load client ended with 1"):
        drive(endpoint_of(fake), level_plan())


def test_more_streams_than_descriptors_fail_before_measuring(monkeypatch: pytest.MonkeyPatch):
    """A closed loop of more streams than the process may open is refused; nothing is sent."""
    plan = level_plan(concurrency=3_000_000)
    with FakeOpenAI() as fake:
        monkeypatch.setattr("tuner.load.gauges.raise_descriptor_limit", lambda: 1024)
        from tuner.load import client
        from tuner.load.wire import Job

        with pytest.raises(InfrastructureFailed, match="ulimit -n"):
            client.drive(Job(endpoint_of(fake), plan))
        assert fake.received == []


def test_the_event_loops_lag_is_measured():
    """Something holds the client for 120 ms: send lag and loop lag show it."""

    def hold(session: Session) -> None:
        time.sleep(0.12)

    with FakeOpenAI() as fake:
        data = run_level(level_plan(rate_rps=50.0, duration_s=0.5), endpoint_of(fake), during=hold)
    assert data.health.loop_lag_p99_s > 0.08
    assert data.health.send_lag_p99_s > 0.05
