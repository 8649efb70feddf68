"""Log lines are written by a thread: whoever reads them, or not, writing never blocks."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from slacktide.observability import log_writer
from slacktide.observability.log_writer import LogWriter, background_stderr
from slacktide.observability.logs import configure


class Pipe:
    """A pipe of one page, as two files."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        self.reading, self.writing = io.FileIO(reading, "rb"), io.FileIO(writing, "wb")

    @property
    def end(self) -> int:
        """Descriptor to write to."""
        return self.writing.fileno()

    def drain(self) -> threading.Thread:
        """Have a thread read all of it into `data`."""
        self.data = b""

        def read() -> None:
            self.data = b"".join(iter(lambda: self.reading.read(1 << 16), b""))

        reader = threading.Thread(target=read)
        reader.start()
        return reader


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.reading.close()
    pipe.writing.close()


def test_a_finalizer_may_write_while_a_line_is_taken(pipe: Pipe) -> None:
    class Text(str):
        def encode(self, *_: str) -> bytes:  # type: ignore[override]
            return Data(b"outer\n")

    class Data(bytes):
        def __len__(self) -> int:  # asked with the lock held, where a collection may strike
            writer.write("inner\n")
            return 6

    writer = LogWriter(pipe.end)
    thread = threading.Thread(target=writer.write, args=(Text(),), daemon=True)
    thread.start()
    thread.join(30.0)
    assert not thread.is_alive()
    assert writer.finish(30.0)


def test_every_line_arrives_in_order(pipe: Pipe) -> None:
    writer = LogWriter(pipe.end)
    lines = [f"line {number}\n" for number in range(20_000)]
    reader = pipe.drain()
    for line in lines:
        writer.write(line)
    assert writer.finish(30.0)
    pipe.writing.close()
    reader.join(30)
    assert pipe.data == "".join(lines).encode()


def test_a_pipe_that_another_process_has_made_nonblocking_loses_nothing(
    pipe: Pipe,
) -> None:
    os.set_blocking(pipe.end, False)
    test_every_line_arrives_in_order(pipe)


def test_lines_that_nothing_reads_are_lost_and_counted(
    pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    before = log_writer.LOST.count
    writer = LogWriter(pipe.end, limit=1 << 16)
    for _ in range(10_000):
        writer.write("a line of thirty-one characters\n")
    lost = log_writer.LOST.count - before
    assert 10_000 - (1 << 16) // 32 - 1 <= lost < 10_000
    assert not writer.finish(0.05)
    reader = pipe.drain()
    assert writer.finish(30.0)
    pipe.writing.close()
    reader.join(30)
    assert f"lost {lost} log lines, because nothing read the log" in caplog.messages


def test_a_reader_that_has_gone_is_no_error(pipe: Pipe) -> None:
    before = log_writer.LOST.count
    pipe.reading.close()
    writer = LogWriter(pipe.end)
    writer.write("one\ntwo\n")
    assert writer.finish(30.0)
    assert log_writer.LOST.count == before + 2


def test_standard_error_goes_through_it_and_comes_back(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(pipe.end, "w", closefd=False) as plain:
        monkeypatch.setattr(sys, "stderr", plain)
        with background_stderr() as writer:
            assert sys.stderr is writer
            assert not writer.isatty()
            print("a word \udcff", file=sys.stderr)
        assert sys.stderr is plain
    pipe.writing.close()
    assert pipe.reading.read(100) == b"a word \\udcff\n"


def test_where_nothing_reads_standard_error_the_end_does_not_wait_for_it(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(pipe.end, "w", closefd=False) as plain:
        monkeypatch.setattr(sys, "stderr", plain)
        with background_stderr() as writer:
            print("x" * 100_000, file=sys.stderr)
        assert sys.stderr is writer
        assert writer is not None
        reader = pipe.drain()
        assert writer.finish(30.0)
    pipe.writing.close()
    reader.join(30)


@pytest.mark.parametrize("stream", [None, "closed"])
def test_a_process_without_standard_error_is_left_alone(
    stream: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with background_stderr() as writer:
        assert writer is None
        assert sys.stderr is stream


def test_logs_of_threads_do_not_mix(pipe: Pipe) -> None:
    writer = LogWriter(pipe.end)
    before = logging.getLogger().handlers[:]
    try:
        configure("info", "json", stream=writer)  # type: ignore[arg-type]
        logger = logging.getLogger("slacktide.test")
        crowd = [
            threading.Thread(target=lambda: [logger.info("x" * 500) for _ in range(50)])
            for _ in range(4)
        ]
        reader = pipe.drain()
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join(30)
        assert writer.finish(30.0)
        pipe.writing.close()
        reader.join(30)
        lines = pipe.data.splitlines()
        assert len(lines) == 200
        assert {line[:1] + line[-1:] for line in lines} == {b"{}"}
    finally:
        logging.getLogger().handlers[:] = before
