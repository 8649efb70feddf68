"""Locks on folders: who holds one, and that nothing but the holder's life keeps it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest

from slacktide.cluster import FolderLock
from slacktide.cluster.folder_lock import holder_of

HOLD = """
import sys
from pathlib import Path
from slacktide.cluster import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.acquire(machine="a")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holding(tmp_path):
    """A process that holds a lock, and the lock's path."""
    path = tmp_path / "lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "held\n"
    yield process, path
    process.kill()
    process.communicate()


def test_the_holder_says_who_it_is(tmp_path):
    path = tmp_path / "lock"
    assert holder_of(path) is None
    lock = FolderLock(path)
    lock.acquire(machine="a", ports={"http": 8000})
    holder = holder_of(path)
    assert holder.pid == os.getpid()
    assert holder.document["ports"] == {"http": 8000}
    lock.write(machine="b")
    assert holder_of(path).document["machine"] == "b"
    lock.release()
    lock.release()
    lock.write(machine="c")
    assert holder_of(path) is None


def test_a_second_process_is_refused_and_told_the_first(holding):
    process, path = holding
    with pytest.raises(OSError, match=f"in use by process {process.pid}") as refused:
        FolderLock(path).acquire()
    assert refused.value.errno == errno.EBUSY
    assert holder_of(path).document["machine"] == "a"


def test_a_killed_process_holds_nothing(holding):
    process, path = holding
    process.kill()
    process.wait()
    assert json.loads(path.read_text())["pid"] == process.pid
    assert holder_of(path) is None
    lock = FolderLock(path)
    lock.acquire()
    assert holder_of(path).pid == os.getpid()
    lock.release()


def test_what_an_earlier_process_wrote_is_not_believed(holding):
    """The lock is held; the text is of a process that has ended, or whose number was reused."""
    _, path = holding
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for text in (
        json.dumps({"pid": ended.pid, "started": 17}),
        json.dumps({"pid": os.getpid(), "started": 17}),
        "",
        '{"pid": "one"}',
        "[]",
    ):
        path.write_text(text)
        assert holder_of(path).pid == 0
        with pytest.raises(OSError, match="in use by another process"):
            FolderLock(path).acquire()


def test_no_child_keeps_the_lock(tmp_path):
    path = tmp_path / "lock"
    lock = FolderLock(path)
    lock.acquire()
    read, write = os.pipe()
    forked = os.fork()
    if forked == 0:  # a program that embeds a server may fork
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    executed = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    lock.release()
    assert holder_of(path) is None
    executed.communicate()
    os.close(write)
    os.close(read)
    os.waitpid(forked, 0)


def test_a_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(FileNotFoundError):
        FolderLock(tmp_path / "none" / "lock").acquire()


def test_a_reader_never_sees_half_a_description(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    lock = FolderLock(path)
    lock.acquire(machine="a" * 500)
    write = os.pwrite

    def watched(*words):
        assert holder_of(path).pid == os.getpid()
        return write(*words)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", watched)
    lock.write(machine="b")
    assert holder_of(path).document["machine"] == "b"
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        lock.write(machine="c")
    assert holder_of(path).document["machine"] == "b"
    lock.release()
