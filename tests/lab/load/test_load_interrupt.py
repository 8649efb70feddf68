"""Ctrl-C in a process of its own: a report of what was done, and a clean exit."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from slacktide.lab.reports import Report

Kit = Any

PROGRAM = """
import sys
from slacktide.lab.load.build import build_spec
from slacktide.lab.load.generate import run_load_sync
spec = build_spec(sys.argv[1], model="m", arrivals="constant:100", deadline="5s", duration="60s")
sys.stdout.buffer.write(run_load_sync(spec).to_json())
"""


async def test_one_interrupt_ends_the_run_with_its_report(kit: Kit) -> None:
    enough = asyncio.Event()

    async def script(number: int, call: Any) -> Any:
        if number == 10:
            enough.set()
        return kit.reply()

    async with kit.server(script) as server:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROGRAM,
            server.target.url,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        await enough.wait()
        os.kill(child.pid, signal.SIGINT)
        out, err = await child.communicate()
        code = child.returncode
    assert (code, err) == (0, b"")
    report = Report.from_json(out)
    assert report.interrupted
    assert report.total.submitted >= 11
    assert report.goodput == 1.0
