"""The compressed file of records."""

import pytest
import zstandard
from support.handmade import answers, request

from tuner import recordfile
from tuner.errors import MeasurementError


def test_records_come_back_in_their_order(tmp_path):
    """Reading gives what was written; no partial file is left."""
    path = tmp_path / "records.jsonl.zst"
    records = tuple(answers([30, 10, 20]))
    recordfile.write(path, records)
    assert recordfile.read(path) == records
    assert [entry.name for entry in tmp_path.iterdir()] == ["records.jsonl.zst"]


def test_no_record_is_a_file_too(tmp_path):
    """A level in which nothing was sent leaves an empty list, not an error."""
    path = tmp_path / "records.jsonl.zst"
    recordfile.write(path, [])
    assert recordfile.read(path) == ()


def test_a_failed_write_leaves_the_old_file(tmp_path):
    """The file is replaced whole or not at all."""
    path = tmp_path / "records.jsonl.zst"
    recordfile.write(path, answers([30]))
    with pytest.raises(MeasurementError):
        recordfile.write(path, [request(status="nonsense")])
    assert recordfile.read(path) == tuple(answers([30]))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_bad_line_is_named(tmp_path):
    """The error names the file and the line."""
    path = tmp_path / "records.jsonl.zst"
    recordfile.write(path, answers([30]))
    text = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    path.write_bytes(zstandard.ZstdCompressor().compress(text + b"{}\n"))
    with pytest.raises(MeasurementError, match=r"records\.jsonl\.zst:2: record: missing keys"):
        recordfile.read(path)


@pytest.mark.parametrize("keep", [3, 40, -1])
def test_a_cut_file_is_an_error(tmp_path, keep):
    """A file that lost its end is never read as a shorter level."""
    path = tmp_path / "records.jsonl.zst"
    recordfile.write(path, answers(range(50)))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(MeasurementError, match="records"):
        recordfile.read(path)


def test_what_is_not_compressed_is_an_error(tmp_path):
    """Plain text in place of the compressed file is named as damage."""
    path = tmp_path / "records.jsonl.zst"
    path.write_bytes(b"hello, this is text\n")
    with pytest.raises(MeasurementError, match=r"records\.jsonl\.zst"):
        recordfile.read(path)
