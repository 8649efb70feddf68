"""A process that was forked from one with a connection is told so at once, and ends by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.client.fake_server import FakeServer

PROGRAM = """
import asyncio, multiprocessing, os, sys, threading
import numpy as np
from slacktide.client import AioConnection, ClientError, ServerConnection, connect

frame, (target, how) = np.zeros((48, 64, 3), np.uint8), sys.argv[1:]
terms = {"slo": 20.0, "rate": 10}

def aio_open():
    async def opened():
        async with AioConnection(target) as connection:
            await connection.open("street", **terms)
    asyncio.run(opened())

def refused(*attempts):
    for attempt in attempts:
        try:
            attempt()
        except ClientError as error:
            assert "connect in each process after the fork" in str(error)
        else:
            os._exit(3)

def in_child(session, connection):
    refused(
        lambda: session.submit(frame),
        lambda: list(session.replies()),
        lambda: connection.open("street", **terms),
        lambda: connect(target, "street", **terms),
        aio_open,
    )
    session.close()
    connection.close()

def fork(session, connection):
    pid = os.fork()
    if not pid:
        in_child(session, connection)
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def sync():
    with ServerConnection(target) as connection, connection.open("street", **terms) as session:
        session.submit(frame).result(60)
        session.submit(frame)  # its reply is still to come
        if how == "fork":
            fork(session, connection)
        elif how == "thread":
            thread = threading.Thread(target=fork, args=(session, connection))
            thread.start()
            thread.join()
        else:
            context = multiprocessing.get_context("fork")
            process = context.Process(target=in_child, args=(session, connection))
            process.start()
            process.join()
            assert process.exitcode == 0, process.exitcode
        assert session.submit(frame).result(60).outcome.result.value == "answered"

async def asynchronous():
    async with AioConnection(target) as connection:
        session = await connection.open("street", **terms)
        await session.submit(frame)
        pid = os.fork()
        if not pid:
            refused(lambda: session.submit(frame), aio_open)
            try:
                await connection.open("street", **terms)
            except ClientError:
                await session.close()
                await connection.close()
                os._exit(0)
            os._exit(3)
        assert os.waitpid(pid, 0)[1] == 0
        assert (await session.submit(frame)).outcome.result.value == "answered"

def before():
    pid = os.fork()
    if not pid:
        sync_only()
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    sync_only()

def sync_only():
    with connect(target, "street", **terms) as session:
        assert session.submit(frame).result(60).outcome.result.value == "answered"

if how == "async":
    asyncio.run(asynchronous())
elif how == "before":
    before()
else:
    sync()
"""


@pytest.mark.parametrize("how", ["fork", "thread", "multiprocessing", "async", "before"])
def test_a_forked_process_is_told_to_connect_after_the_fork(how: str) -> None:
    """`before`: the fork comes before any connection, and both processes may have theirs."""
    with FakeServer() as server:
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, server.target, how]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # On a busy machine grpc.aio may note at its end that a task of a call was still pending.
    assert "Traceback" not in done.stderr
