"""A supervisor and a stand-in for the server, as processes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slacktide.cluster import processes
from slacktide.cluster import supervisor as module
from slacktide.cluster.processes import end_process
from slacktide.cluster.supervisor import ServerCommand, Supervisor
from slacktide.cluster.supervisor import ServerPhase as Phase

SERVER = str(Path(__file__).with_name("stand_in_server.py"))
PATIENCE_S = 60.0


class Kept:
    """Supervisors of one folder; each waits for its next change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes = asyncio.Condition()
        self.tasks: list[asyncio.Task[None]] = []
        self.supervisors: list[Supervisor] = []

    def begin(self, *behaviours: str, peers: tuple[str, ...] = ()) -> Supervisor:
        kept = Supervisor(self.command(*behaviours, peers=peers), self.changed)
        self.supervisors.append(kept)
        kept.start()
        self.tasks.append(kept.task)
        return kept

    def command(self, *behaviours: str, peers: tuple[str, ...] = ()) -> ServerCommand:
        arguments = (sys.executable, SERVER, *behaviours, "--state-dir", str(self.folder))
        return ServerCommand("a", arguments, self.folder, peers)

    def changed(self) -> None:
        async def notify() -> None:
            async with self.changes:
                self.changes.notify_all()

        self.tasks.append(asyncio.create_task(notify()))

    async def until(self, condition) -> None:
        async with asyncio.timeout(PATIENCE_S), self.changes:
            await self.changes.wait_for(condition)

    async def die(self) -> None:
        """End the supervisors, as kill -9 would; servers are left."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
def run():
    """Runs a test on asyncio's own loop, which the supervising process uses."""
    return asyncio.run


@contextlib.asynccontextmanager
async def keeping(folder):
    kept = Kept(folder)
    try:
        yield kept
    finally:
        await kept.die()
        holder = ServerCommand("a", (), folder).holder()
        pids = {supervisor.pid for supervisor in kept.supervisors}  # one may not hold the lock yet
        for pid in (pids | {holder.pid if holder else 0}) - {0}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def test_a_killed_server_is_started_again(tmp_path, run):
    async with keeping(tmp_path) as kept:
        supervisor = kept.begin()
        await kept.until(lambda: supervisor.phase is Phase.READY)
        first = supervisor.pid
        assert os.getsid(first) != os.getsid(0)
        parent = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
        assert parent != os.getpid()
        os.kill(first, signal.SIGKILL)
        await kept.until(lambda: supervisor.restarts == 1 and supervisor.phase is Phase.READY)
        assert supervisor.pid != first
        assert supervisor.message == ""


async def test_a_server_outlives_its_supervisor_and_is_adopted(tmp_path, run):
    async with keeping(tmp_path) as kept:
        supervisor = kept.begin()
        await kept.until(lambda: supervisor.phase is Phase.READY)
        pid = supervisor.pid
        await kept.die()
        following = kept.begin(peers=("10.0.0.7:8001",))
        await kept.until(lambda: following.phase is Phase.READY)
        assert following.pid == pid
        assert following.restarts == 0
        assert following.command.is_current(following.command.holder(), "1")
        assert not following.command.is_current(following.command.holder(), "2")
        await following.stop()
        assert following.phase is Phase.STOPPED
        assert following.command.holder() is None
        assert following.restarts == 0


async def test_the_flags_of_a_running_server_are_compared_without_its_peers(tmp_path, run):
    async with keeping(tmp_path) as kept:
        supervisor = kept.begin(peers=("10.0.0.7:8001",))
        await kept.until(lambda: supervisor.phase is Phase.READY)
        command, holder = supervisor.command, supervisor.command.holder()
        assert ServerCommand("a", command.arguments, tmp_path).is_current(holder, "1")
        assert not ServerCommand("a", (*command.arguments, "--x"), tmp_path).is_current(holder, "1")


async def test_a_server_that_cannot_start_is_tried_ever_more_rarely(tmp_path, run, monkeypatch):
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    async with keeping(tmp_path) as kept:
        supervisor = kept.begin("fails")
        await kept.until(lambda: supervisor.restarts >= 3 and supervisor.phase is Phase.PAUSED)
        assert supervisor.message == "error: --grpc-port 8001: Address already in use"
        monkeypatch.setattr(module, "_FIRST_PAUSE_S", 60.0)
        await kept.until(lambda: supervisor.restarts >= 4 and supervisor.phase is Phase.PAUSED)
        await supervisor.stop()  # does not wait for the end of the pause
        await kept.until(lambda: supervisor.phase is Phase.STOPPED)


async def test_a_server_that_is_not_ready_is_left_alone(tmp_path, run):
    async with keeping(tmp_path) as kept:
        supervisor = kept.begin("unready")
        await kept.until(lambda: supervisor.pid != 0)
        holder = None
        while holder is None or "ports" not in holder.document:
            await asyncio.sleep(0.01)
            holder = supervisor.command.holder()
        assert await processes.ask(holder, "http", "/v2/health/ready") == (503, "")
        assert supervisor.phase is Phase.STARTING


async def test_a_changed_server_takes_over(tmp_path, run):
    async with keeping(tmp_path) as kept:
        supervisor = kept.begin()
        await kept.until(lambda: supervisor.phase is Phase.READY)
        first, command = supervisor.pid, kept.command("changed", "--take-over")
        assert await supervisor.replace(command)
        assert (supervisor.command, supervisor.phase) == (command, Phase.READY)
        assert supervisor.pid == command.holder().pid != first
        assert supervisor.restarts == 0
        os.kill(supervisor.pid, signal.SIGKILL)  # from now on this one is started again
        await kept.until(lambda: supervisor.restarts == 1 and supervisor.phase is Phase.READY)
        assert command.is_current(command.holder(), "1")


async def test_a_server_that_has_not_yet_taken_over_ends_with_the_attempt(tmp_path, run):
    async with keeping(tmp_path) as kept:
        supervisor = kept.begin("lingers")
        await kept.until(lambda: supervisor.phase is Phase.READY)
        first, starts = supervisor.pid, []
        start = supervisor._start
        supervisor._start = lambda command: starts.append(start(command)) or starts[0]
        attempt = asyncio.create_task(supervisor.replace(kept.command("--take-over")))
        while not starts:
            await asyncio.sleep(0)
        attempt.cancel()
        await asyncio.wait((attempt,))
        async with asyncio.timeout(PATIENCE_S):
            while Path(f"/proc/{starts[0]}/exe").exists():
                await asyncio.sleep(0.01)
        assert supervisor.pid == first


@pytest.mark.parametrize("behaviour", ["fails", "late"])
async def test_a_server_goes_on_if_another_cannot_take_over(tmp_path, run, monkeypatch, behaviour):
    if behaviour == "late":
        monkeypatch.setattr(module, "READY_S", 0.0)
    async with keeping(tmp_path) as kept:
        supervisor = kept.begin()
        await kept.until(lambda: supervisor.phase is Phase.READY)
        first, command = supervisor.pid, supervisor.command
        assert not await supervisor.replace(kept.command(behaviour, "--take-over"))
        assert supervisor.message
        assert (supervisor.pid, supervisor.command) == (first, command)
        assert command.holder().pid == first


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGSEGV])
async def test_a_server_that_stops_answering_is_replaced(tmp_path, run, monkeypatch, number):
    monkeypatch.setattr(module, "_STUCK_S", 0.2)
    monkeypatch.setattr(module, "_STOPPED_S", 0.1)
    async with keeping(tmp_path) as kept:
        supervisor = kept.begin()
        await kept.until(lambda: supervisor.phase is Phase.READY)
        os.kill(first := supervisor.pid, number)
        await kept.until(lambda: supervisor.restarts >= 1)
        assert not Path(f"/proc/{first}/exe").exists()


async def test_a_server_that_does_not_end_is_killed(tmp_path, run, monkeypatch):
    monkeypatch.setattr(processes, "_CLOSE_S", 0.1)
    async with keeping(tmp_path) as kept:
        supervisor = kept.begin("lingers")
        await kept.until(lambda: supervisor.phase is Phase.READY)
        pid = supervisor.pid
        await supervisor.stop()
        await kept.until(lambda: supervisor.phase is Phase.STOPPED)
        assert not Path(f"/proc/{pid}/exe").exists()


async def test_two_supervisors_that_believe_the_folder_free_agree_on_one_server(tmp_path, run):
    async with keeping(tmp_path) as kept:
        first, second = kept.begin(), kept.begin()
        await kept.until(lambda: first.phase is second.phase is Phase.READY)
        assert first.pid == second.pid
        assert first.command.holder().pid == first.pid


async def test_a_process_that_is_stopped_ends(run):
    stopped = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    os.kill(stopped.pid, signal.SIGSTOP)
    await end_process(stopped.pid, math.inf)
    assert stopped.wait() == -signal.SIGTERM


async def test_a_long_log_is_set_aside_at_the_next_start(tmp_path, run, monkeypatch):
    monkeypatch.setattr(processes, "LOG_BYTES", 10)
    log = tmp_path / module.LOG
    for start in range(3):
        pid = processes.spawn([sys.executable, "-c", f"print('a long line of start {start}')"], log)
        with contextlib.suppress(ProcessLookupError), processes.opened_process(pid) as (_, ended):
            await ended
    assert log.read_text() == "a long line of start 2\n"
    assert log.with_name("log.1").read_text() == "a long line of start 1\n"


async def test_ending_a_process_that_has_ended(run):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    await end_process(ended.pid, 0.0)
