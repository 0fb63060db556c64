"""Records as strict lines of JSON."""

import json
import math
from dataclasses import fields, replace

import pytest
from support.handmade import request

from tuner.errors import MeasurementError
from tuner.records import Record, from_line, is_status, to_line

GOOD = request([(100, 1), (160, 3)], at_ms=1000)


def test_a_record_survives_the_round_trip():
    """What was written is what is read, types included."""
    assert from_line(to_line(GOOD)) == GOOD


def test_a_line_has_the_keys_of_the_record_in_order_and_ends():
    """The file is readable by other programs: one object a line, chunks as pairs."""
    line = to_line(GOOD)
    values = json.loads(line)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert list(values) == [field.name for field in fields(Record)]
    assert values["chunks"] == [[1.1, 1], [1.16, 3]]


def test_unknown_stays_null():
    """A request that was never sent has null times, and zero tokens are a value."""
    never = replace(request(status="disconnected"), sent_s=None)
    values = json.loads(to_line(never))
    assert (values["sent_s"], values["input_tokens"], values["output_tokens"]) == (None, None, 0)
    assert from_line(to_line(never)) == never


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"scheduled_s": math.nan}, "scheduled_s"),
        ({"first_token_s": math.inf}, "first_token_s"),
        ({"chunks": ((math.nan, 1),)}, "chunks"),
        ({"chunks": ((2.0, 1), (1.0, 1))}, "chunks"),
        ({"output_tokens": -1}, "output_tokens"),
        ({"asked_input_tokens": True}, "asked_input_tokens"),
        ({"status": "fine"}, "status"),
        ({"phase": "cooldown"}, "phase"),
        ({"token_source": "guess"}, "token_source"),
    ],
)
def test_what_is_no_fact_is_never_written(change, key):
    """NaN, infinities, time running backwards and unknown classes are refused by name."""
    with pytest.raises(MeasurementError, match=rf"'r': {key}: got .* must be"):
        to_line(replace(GOOD, **change))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "not JSON"),
        (b"[1]", "got list"),
        (b'{"id": NaN}', "not JSON"),
        (b'{"id": "a"}', "missing keys"),
        (to_line(GOOD).replace(b'"error":null', b'"error":null,"extra":1'), r"unknown keys \['extra'\]"),
        (to_line(GOOD).replace(b'"status":"ok"', b'"status":"http_5"'), "request class"),
        (to_line(GOOD).replace(b"[1.1,1]", b"[1.1]"), "chunks"),
        (to_line(GOOD).replace(b"[1.1,1]", b"7"), "chunks"),
        (to_line(GOOD).replace(b"[[1.1,1],[1.16,3]]", b"null"), "chunks"),
    ],
)
def test_a_damaged_line_is_an_error(line, message):
    """Nothing is guessed from a line that is not exactly a record."""
    with pytest.raises(MeasurementError, match=message):
        from_line(line)


@pytest.mark.parametrize("status", ["ok", "http_503", "stream_error", "timeout_gap", "empty", "short", "unfinished"])
def test_the_classes_are_closed(status):
    """Each request ends in one of the named classes."""
    assert is_status(status)


@pytest.mark.parametrize("status", ["", "503", "http_", "http_50", "http_5xx", "timeout", None, 200])
def test_anything_else_is_no_class(status):
    """A class outside the table is refused."""
    assert not is_status(status)
