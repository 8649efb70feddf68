"""What workers print becomes lines of the log, however much it is."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from slacktide.executors import worker_output
from slacktide.executors.worker_output import MOST_READ, WorkerOutput


def printed(data: bytes) -> None:
    """Have another thread print `data` and end, and read all of it."""

    async def body() -> None:
        output = WorkerOutput(asyncio.get_running_loop())
        copy = os.dup(output.descriptor)
        output.close_descriptor()

        def write() -> None:
            with open(copy, "wb") as file:
                file.write(data)

        thread = threading.Thread(target=write)
        thread.start()
        await asyncio.wait_for(asyncio.to_thread(thread.join), 60)
        output.close()
        output.close()

    asyncio.run(body())


def test_lines_are_logged_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    printed(b"one\ntwo \xff\n\nno end")
    assert caplog.messages == ["one", "two \\xff", "", "no end"]
    assert {record.name for record in caplog.records} == {"slacktide.worker"}


@pytest.mark.slow
def test_a_flood_does_not_block_its_worker_and_is_mostly_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = worker_output.LOST.count
    printed(b"x\n" * 1_000_000)
    lost = worker_output.LOST.count - before
    passed_on = sum(message == "x" for message in caplog.messages)
    assert lost + passed_on == 1_000_000
    assert lost > 0


def test_a_line_without_end_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    printed(b"x" * (5 * MOST_READ))
    assert sum(map(len, caplog.messages)) == 5 * MOST_READ
    assert max(map(len, caplog.messages)) <= 2 * MOST_READ
