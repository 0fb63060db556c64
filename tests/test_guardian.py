"""Tests of the guardian: nothing that it started outlives its owner, and nothing else is touched."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.deployments import SHIM, alive, eventually

from tuner.deployment import guardian
from tuner.deployment.process import ManagedProcess, Settings

OWNER = """
import sys, time
from pathlib import Path
from tuner.deployment.process import ManagedProcess, Settings
here = Path(sys.argv[1])
process = ManagedProcess(sys.argv[2:], {"SHIM_MODE": "stubborn", "PATH": "/usr/bin:/bin"}, here / "log",
                         Settings(here / "registry", grace_s=0.5, detach=here.name == "detached"))
process.start()
print(process.guardian_pid, flush=True)
time.sleep(600)
"""


def stubborn(here: Path, port: int = 0, **settings: object) -> ManagedProcess:
    """A server with two children that ignore SIGTERM, one of them in a session of its own."""
    argv = [sys.executable, str(SHIM), "serve", "m", "--port", str(port)]
    env = {"SHIM_MODE": "stubborn"}
    return ManagedProcess(argv, env, here / "log", Settings(here / "registry", grace_s=0.5, **settings))


def family_of(keeper: int) -> list[guardian.Process]:
    """All three processes, once they are there."""
    assert eventually(lambda: len(guardian.descendants(keeper)) >= 3)
    time.sleep(0.3)  # the children set their signal handlers
    return guardian.descendants(keeper)


@pytest.mark.parametrize("detach", [False, True])
def test_stop_ends_children_that_ignore_sigterm_and_call_setsid(tmp_path, detach):
    """After stop no descendant lives, and nothing stays in the registry."""
    process = stubborn(tmp_path, detach=detach)
    process.start()
    family = family_of(process.guardian_pid)
    assert process.stop() == []
    assert alive(family) == []
    assert list((tmp_path / "registry").iterdir()) == []


def test_children_of_a_server_that_died_are_ended(tmp_path):
    """SIGKILL of the server alone: its orphans go too, without anybody asking."""
    process = stubborn(tmp_path)
    process.start()
    family = family_of(process.guardian_pid)
    os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: not alive(family))
    assert process.poll().code == -signal.SIGKILL
    assert process.stop() == []


@pytest.mark.parametrize("kind", ["attached", "detached"])
def test_sigkill_of_the_owner_leaves_nothing(tmp_path, kind):
    """The owner dies without a word; within 15 s no descendant and no guardian is left."""
    here = tmp_path / kind
    here.mkdir()
    command = [sys.executable, "-c", OWNER, str(here), sys.executable, str(SHIM), "serve", "m", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        keeper = guardian.identify(int(owner.stdout.readline()))
        family = [*family_of(keeper.pid), keeper]
        owner.kill()
        assert eventually(lambda: not alive(family))
    assert list((here / "registry").iterdir()) == []


def test_orphans_of_a_killed_guardian_are_reaped_at_the_next_start(tmp_path):
    """Even when the guardian itself was killed, its entry leads to what it left behind."""
    process = stubborn(tmp_path)
    process.start()
    family = family_of(process.guardian_pid)
    assert eventually(lambda: len(entry(tmp_path)["processes"]) >= 3)
    os.kill(process.guardian_pid, signal.SIGKILL)
    assert eventually(lambda: process.poll() is not None)
    assert eventually(lambda: len(alive(family)) == 2)  # the kernel ends the server with its guardian
    assert len(guardian.reap_orphans(tmp_path / "registry")) >= 2
    assert eventually(lambda: not alive(family))
    assert list((tmp_path / "registry").iterdir()) == []
    process.stop()


def test_running_guardian_of_a_dead_owner_is_ended_at_the_next_start(tmp_path):
    """An entry whose guardian lives is ended through its guardian."""
    process = stubborn(tmp_path)
    process.start()
    family = family_of(process.guardian_pid)
    assert guardian.reap_orphans(tmp_path / "registry") == [process.guardian_pid]
    assert alive(family) == []
    process.stop()


def entry(here: Path) -> dict[str, object]:
    """The one entry of the registry."""
    (path,) = (here / "registry").glob("*.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize("fault", ["start time", "machine", "broken"])
def test_strangers_named_by_a_stale_entry_survive(tmp_path, fault):
    """A pid that belongs to another process by now, an entry of another machine, a torn file: nobody is signalled."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as stranger:
        start = guardian.identify(stranger.pid).start
        told = {
            "machine": "elsewhere" if fault == "machine" else guardian.machine(),
            "mark": "0" * 32,
            "guardian": [stranger.pid, start - 1 if fault == "start time" else start],
            "processes": [[stranger.pid, start - 1 if fault == "start time" else start]],
        }
        text = json.dumps(told)
        (tmp_path / "x.json").write_text(text[:20] if fault == "broken" else text)
        assert guardian.reap_orphans(tmp_path) == []
        assert stranger.poll() is None
        stranger.stdin.close()


def test_innocent_process_named_vllm_survives(tmp_path):
    """Nothing is found by its name."""
    innocent = tmp_path / "vllm"
    innocent.symlink_to(sys.executable)
    with subprocess.Popen([innocent, "-c", "import sys; sys.stdin.read()", "serve"], stdin=subprocess.PIPE) as other:
        process = stubborn(tmp_path)
        process.start()
        family_of(process.guardian_pid)
        process.stop()
        assert other.poll() is None
        other.stdin.close()


def test_long_log_keeps_both_ends_within_its_cap(tmp_path):
    """Of a log far above its cap the first and the last lines are there, with a note about what is left out."""
    path = tmp_path / "log"
    log = guardian.Log(str(path), 10_000, [])
    for number in range(10_000):
        log.feed(b"%06d some words\n" % number)
    log.close()
    text = path.read_text()
    assert text.startswith("000000 some words\n")
    assert text.endswith("009999 some words\n")
    assert "bytes left out here" in text
    assert len(text) < 31_000
    assert list(tmp_path.iterdir()) == [path]


def test_secrets_never_reach_the_log(tmp_path):
    """A value is masked even when it arrives in two pieces; the longer of two that overlap wins."""
    log = guardian.Log(str(tmp_path / "log"), 10_000, ["canary", "canary-two", ""])
    log.feed(b"key=can")
    log.feed(b"ary-two token=canary\nend")
    log.close()
    assert (tmp_path / "log").read_text() == "key=[masked] token=[masked]\nend"
