"""When the server is killed, its fork server and its workers go by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

SERVER = """
import asyncio, sys
from pathlib import Path
from slacktide.domain import PoolId, Replica
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.cores import available_cores
from slacktide.executors.ports import ModelSource
from slacktide.executors.process import ProcessExecutor

async def main(path):
    executor, up = ProcessExecutor(), asyncio.Event()
    source = ModelSource("m", "1", path, path.parent)
    replica = Replica(0, PoolId("m", "1"), "lane", available_cores()[:1], 1)
    handle = executor.start(replica, source, Arena(4096), lambda event, **details: up.set())
    await up.wait()
    print(handle.pid, executor.fork_server_pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_workers_end_with_a_killed_server(models, kit) -> None:
    command = [sys.executable, "-c", SERVER, str(models.matmul())]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        pids = [int(word) for word in server.stdout.readline().split()]
        pidfds = [os.pidfd_open(pid) for pid in pids]
        server.send_signal(signal.SIGKILL)

    assert [await kit.gone(pidfd) for pidfd in pidfds] == [True, True]
    for pidfd in pidfds:
        os.close(pidfd)
