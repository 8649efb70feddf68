"""How a server takes over from the server that holds its state folder, without a gap.

The *successor* loads its models while the *predecessor* serves. It has received the predecessor's
listening sockets through a Unix socket in the state folder, and now accepts connections on them
itself. Then it tells the predecessor to stop. A connection that nobody has accepted yet stays in
the queue of its socket, so no connection is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_NAME = "takeover"
_READY, _RELEASED = b"ready", b"released"
_MOST_BYTES, _MOST_SOCKETS = 1 << 16, 64
_ANSWER_S = 10.0

PortKey = tuple[str, str, int]
"""A port by its name, and by the address and number in the settings."""


class TakeoverPort:
    """Hands this server's listening sockets to a successor. Belongs to the server's loop."""

    def __init__(
        self,
        folder: Path,
        sockets: Callable[[], Mapping[PortKey, Sequence[int]]],
        release: Callable[[], None],
    ) -> None:
        """Listen in the state folder. `sockets`: descriptors of each port. `release` frees the
        folder for the successor, and makes this server drain. Raises OSError."""
        self._sockets, self._release = sockets, release
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        with _short_path(folder) as path:
            path.unlink(missing_ok=True)
            self._listener.bind(str(path))
            path.chmod(0o600)
        self._listener.listen()
        self._connections: set[socket.socket] = set()
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accept no successor, and drop successors that are not ready. Safe to repeat."""
        loop = asyncio.get_running_loop()
        for connection in (self._listener, *self._connections):
            if connection.fileno() >= 0:
                loop.remove_reader(connection)
                connection.close()
        self._connections.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            sockets = self._sockets()
            counts = [(*key, len(descriptors)) for key, descriptors in sockets.items()]
            descriptors = [number for numbers in sockets.values() for number in numbers]
            socket.send_fds(connection, [json.dumps(counts).encode()], descriptors)
            self._connections.add(connection)
            asyncio.get_running_loop().add_reader(connection, self._receive, connection)

    def _receive(self, connection: socket.socket) -> None:
        message = b""
        with contextlib.suppress(OSError):
            message = connection.recv(len(_READY))
        self._connections.discard(connection)
        asyncio.get_running_loop().remove_reader(connection)
        if message == _READY:
            self.close()
            self._release()
            with contextlib.suppress(OSError):
                connection.send(_RELEASED)
        connection.close()


class Predecessor:
    """The server that holds a state folder, as its successor sees it."""

    def __init__(self, connection: socket.socket) -> None:
        """Receive its sockets over a connection. Raises OSError."""
        self._connection = connection
        message, descriptors, *_ = socket.recv_fds(connection, _MOST_BYTES, _MOST_SOCKETS)
        received = iter([socket.socket(fileno=descriptor) for descriptor in descriptors])
        self.sockets: dict[PortKey, list[socket.socket]] = {
            (name, host, port): [next(received) for _ in range(count)]
            for name, host, port, count in (json.loads(message) if message else ())
        }
        """The listening sockets of each port."""
        connection.setblocking(False)

    async def stop(self) -> None:
        """Let it stop listening and free the folder. Raises OSError if it does not."""
        loop, answer = asyncio.get_running_loop(), b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_ANSWER_S):
                await loop.sock_sendall(self._connection, _READY)
                answer = await loop.sock_recv(self._connection, len(_RELEASED))
        if answer != _RELEASED:
            raise OSError("--take-over: the running server has ended, or gave way to another one")

    def close(self) -> None:
        """Close the connection, and the sockets that are not used."""
        self._connection.close()
        for sockets in self.sockets.values():
            for listener in sockets:
                listener.close()


def find_predecessor(folder: Path) -> Predecessor | None:
    """Return the server that holds the state folder and hands over its ports; None if none does."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(_ANSWER_S)
    try:
        with _short_path(folder) as path:
            connection.connect(str(path))
        return Predecessor(connection)
    except OSError:
        connection.close()
        return None


@contextmanager
def _short_path(folder: Path) -> Iterator[Path]:
    """The path of the socket in a form that is short enough for an address (107 bytes)."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}/{_NAME}")
    finally:
        os.close(descriptor)
