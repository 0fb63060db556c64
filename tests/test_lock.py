"""One tuner per study."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from tuner import lock
from tuner.errors import StudyFailed, StudyLocked

HOLD = """
import sys, time
from pathlib import Path
from tuner.lock import Lock
with Lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_tuner_is_refused_and_told_who_works_there(tmp_path, holder):
    """
    Process, host and start of the owner are in the message.
    """
    with pytest.raises(StudyLocked, match=f"process {holder.pid} on host {socket.gethostname()} since 20"):
        lock.Lock(tmp_path).__enter__()
    assert lock.is_held(tmp_path)


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, holder):
    """
    No waiting and no file to remove by hand; who held it is known.
    """
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert not lock.is_held(tmp_path)
    with lock.Lock(tmp_path) as taken:
        assert taken.previous["pid"] == holder.pid


def test_a_lock_is_exclusive_within_one_process_too(tmp_path):
    """
    Two threads are two tuners.
    """
    with lock.Lock(tmp_path), pytest.raises(StudyLocked, match=f"process {os.getpid()}"):
        lock.Lock(tmp_path).__enter__()
    with lock.Lock(tmp_path) as again:
        assert again.previous is None


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    """
    A child that outlives its parent must not block the next tuner.
    """
    program = """
import os, sys, time
from pathlib import Path
from tuner.lock import Lock
lock = Lock(Path(sys.argv[1]))
lock.__enter__()
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
os._exit(0)
"""
    done = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    child = int(done.stdout.readline())
    done.wait()
    try:
        with lock.Lock(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        done.stdout.close()


def test_a_link_in_place_of_the_lock_file_is_not_followed(tmp_path):
    """
    The lock never writes elsewhere.
    """
    (tmp_path / "other").write_text("keep")
    (tmp_path / lock.FILE).symlink_to(tmp_path / "other")
    with pytest.raises(StudyFailed):
        lock.Lock(tmp_path).__enter__()
    assert (tmp_path / "other").read_text() == "keep"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 4}'])
def test_a_damaged_owner_note_does_not_matter(tmp_path, content):
    """
    The kernel holds the lock, the file only tells about it.
    """
    (tmp_path / lock.FILE).write_text(content)
    with lock.Lock(tmp_path):
        assert lock.is_held(tmp_path)
    assert not lock.is_held(tmp_path)


def test_nothing_is_held_where_there_is_no_lock_file(tmp_path):
    """
    A study that was never worked on is free.
    """
    assert not lock.is_held(tmp_path)
