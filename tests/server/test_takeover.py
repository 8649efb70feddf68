"""Listening sockets on their way from one server to the next."""

from __future__ import annotations

import asyncio
import socket

import pytest

from slacktide.server import takeover
from slacktide.server.takeover import TakeoverPort, find_predecessor

KEY = ("http", "127.0.0.1", 0)


@pytest.fixture
def run():
    return asyncio.run


class Holder:
    """A server with one port, and its state folder."""

    def __init__(self, folder) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.released = 0
        self.port = TakeoverPort(folder, lambda: {KEY: [self.listener.fileno()]}, self.release)

    def release(self) -> None:
        self.released += 1
        self.listener.close()


async def found(folder):
    """The predecessor, found while the loop that it shares with this test goes on."""
    return await asyncio.to_thread(find_predecessor, folder)


async def test_a_connection_that_nobody_has_accepted_reaches_the_successor(tmp_path, run):
    holder = Holder(tmp_path)
    with socket.create_connection(holder.address) as client:
        predecessor = await found(tmp_path)
        await predecessor.stop()
        assert holder.released == 1
        assert holder.listener.fileno() == -1
        with predecessor.sockets[KEY][0].accept()[0] as accepted:
            accepted.sendall(b"successor")
        assert client.recv(9) == b"successor"
    predecessor.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(holder.address)


async def test_a_successor_that_ends_before_it_is_ready_changes_nothing(tmp_path, run):
    holder = Holder(tmp_path)
    (await found(tmp_path)).close()
    second = await found(tmp_path)
    assert holder.released == 0
    await second.stop()
    assert holder.released == 1
    second.close()


async def test_of_two_successors_only_the_first_takes_over(tmp_path, run):
    holder = Holder(tmp_path)
    first, second = await found(tmp_path), await found(tmp_path)
    await first.stop()
    with pytest.raises(OSError, match="gave way to another"):
        await second.stop()
    assert holder.released == 1
    assert await found(tmp_path) is None
    first.close()
    second.close()


async def test_a_predecessor_that_does_not_answer_is_named(tmp_path, run, monkeypatch):
    monkeypatch.setattr(takeover, "_ANSWER_S", 0.05)
    holder = Holder(tmp_path)
    predecessor = await found(tmp_path)
    asyncio.get_running_loop().remove_reader(next(iter(holder.port._connections)))
    with pytest.raises(OSError, match="has ended"):
        await predecessor.stop()
    predecessor.close()
    holder.port.close()
    holder.release()


async def test_without_a_running_server_there_is_no_predecessor(tmp_path, run):
    assert await found(tmp_path) is None
    holder = Holder(tmp_path)
    holder.port.close()
    holder.port.close()
    assert await found(tmp_path) is None  # its socket lies in the folder
    holder.release()


async def test_the_folder_may_have_a_long_name(tmp_path, run):
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    holder = Holder(folder)
    predecessor = await found(folder)
    await predecessor.stop()
    predecessor.close()
    assert holder.released == 1
