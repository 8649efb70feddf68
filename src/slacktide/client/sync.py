"""Client sessions for programs without a loop: `connect`, and `ServerConnection` for several.

A thread runs the loop of `aio.py`; methods may be called from any other thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from slacktide.client.aio import AioConnection, AioSession
from slacktide.client.forks import is_forked, require_unforked, watch_forks
from slacktide.client.images import check_image, require_extra
from slacktide.client.messages import Advice, ClientError
from slacktide.client.options import FrameReply

T = TypeVar("T")


class ServerConnection:
    """A connection to one server, shared by its sessions; a context manager."""

    def __init__(
        self, target: str, *, token: str = "", tls: bool = False, ca_file: str | Path | None = None
    ) -> None:
        """`target`: host:port of the gRPC server. `ca_file` implies TLS. Raises ClientError."""
        require_extra()
        watch_forks()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="slacktide-client", daemon=True)
        self._thread.start()

        async def open_connection() -> AioConnection:
            return AioConnection(target, token=token, tls=tls, ca_file=ca_file)

        try:
            self._aio = self._run(open_connection())
        except BaseException:
            self._stop()
            raise

    def open(self, model: str, *, slo: float, rate: float, **options: Any) -> ClientSession:
        """Open a session; `options` are those of SessionOptions. Raises ClientError if the server
        refuses it, or if it cannot be reached and there is no fallback."""
        require_unforked()
        session = ClientSession(self, options.get("on_reply"))
        options["on_reply"] = session._replied
        session._aio = self._run(self._aio.open(model, slo=slo, rate=rate, **options))
        return session

    def close(self) -> None:
        """Close the sessions immediately, and the connection."""
        if not (is_forked() or self._loop.is_closed()):
            self._run(self._aio.close())
            self._stop()

    def __enter__(self) -> ServerConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if current_thread() is self._thread:
            work.close()
            raise ClientError(
                "this call would wait for the client's own thread, on which on_reply runs"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C while waiting
            future.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class ClientSession:
    """A stream of frames to a model; a context manager. Made by `connect` or `open`. Replies go to
    `on_reply`, on the client's thread. Without it they are kept until `replies` or `ready` returns
    them, so call one of these methods."""

    _aio: AioSession

    def __init__(
        self, connection: ServerConnection, on_reply: Callable[[FrameReply], None] | None
    ) -> None:
        self._connection = connection
        self._on_reply = on_reply
        self._replies: SimpleQueue[FrameReply] = SimpleQueue()
        self._lock = Lock()
        self._unread = 0
        """Submitted frames whose replies have not been read."""
        self._owns_connection = False
        self._closed = False

    def submit(
        self, image: NDArray[np.uint8], *, captured_at: float | None = None, tag: object = None
    ) -> Future[FrameReply]:
        """Submit a frame, uint8 [height, width, 3], blue first as from OpenCV, without waiting. The
        future also gets its reply; do not change the frame before that. `captured_at`: a time of
        `time.monotonic`; None: now. `tag` is returned with the reply. Raises ValueError for an
        invalid frame, ClientError once the session is closed."""
        require_unforked()
        check_image(image)
        at = time.monotonic() if captured_at is None else captured_at
        future: Future[FrameReply] = Future()
        future.set_running_or_notify_cancel()  # every frame gets its reply

        def start() -> None:
            try:
                reply = self._aio.submit(image, captured_at=at, tag=tag)
            except ClientError as error:
                with self._lock:
                    self._unread -= 1
                future.set_exception(error)
            else:
                reply.add_done_callback(lambda done: future.set_result(done.result()))

        with self._lock:
            if self._closed:
                raise ClientError("the session is closed")
            self._unread += 1
            self._connection._loop.call_soon_threadsafe(start)
        return future

    def ready(self) -> Iterator[FrameReply]:
        """The replies that have arrived, without waiting."""
        while True:
            try:
                reply = self._replies.get_nowait()
            except Empty:
                return
            yield self._read(reply)

    def replies(self) -> Iterator[FrameReply]:
        """The replies to all frames submitted so far or during the iteration; waits for them."""
        while self._unread > 0:
            require_unforked()
            try:
                reply = self._replies.get(timeout=0.1)
            except Empty:
                continue
            yield self._read(reply)

    @property
    def advice(self) -> Advice | None:
        """The server's latest advice."""
        return self._aio.advice

    @property
    def bytes_per_s(self) -> float:
        """The client's own estimate of its link; 0 before the first measurement."""
        return self._aio.bytes_per_s

    def close(self, *, drain: bool = True) -> None:
        """End the session: with `drain` once every frame has its reply, else immediately. Either
        way every frame gets a reply, which can still be read."""
        if is_forked():
            return
        with self._lock:
            closing, self._closed = not self._closed, True
        if not closing:
            return
        try:
            self._connection._run(self._aio.close(drain=drain))
        finally:
            if self._owns_connection:
                self._connection.close()

    def __enter__(self) -> ClientSession:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(drain=kind is None)

    def _read(self, reply: FrameReply) -> FrameReply:
        with self._lock:
            self._unread -= 1
        return reply

    def _replied(self, reply: FrameReply) -> None:
        if self._on_reply is None:
            self._replies.put(reply)
            return
        with self._lock:
            self._unread -= 1
        self._on_reply(reply)


def connect(
    target: str,
    model: str,
    *,
    slo: float,
    rate: float,
    token: str = "",
    tls: bool = False,
    ca_file: str | Path | None = None,
    **options: Any,
) -> ClientSession:
    """Open a session over its own connection: `rate` frames per second to `model` at `target`
    (host:port of the gRPC server), answered within `slo` seconds of capture. `options` are those of
    SessionOptions. Raises ClientError."""
    connection = ServerConnection(target, token=token, tls=tls, ca_file=ca_file)
    try:
        session = connection.open(model, slo=slo, rate=rate, **options)
    except BaseException:
        connection.close()
        raise
    session._owns_connection = True
    return session
