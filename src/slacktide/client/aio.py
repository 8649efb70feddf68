"""Client sessions on an asyncio loop. A session carries out the actions of `ClientCore`, the state
machine that decides.

    async with AioConnection("localhost:8001") as server:
        async with await server.open("street", slo=0.15, rate=25) as session:
            reply = await session.submit(frame)

Everything runs on the loop, except encoding and the fallback, which have their own threads. Call
methods on the loop. Capture times are those of the loop's clock, `time.monotonic`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slacktide.client.core import ClientCore
from slacktide.client.forks import is_forked, require_unforked, watch_forks
from slacktide.client.images import EncodedImage, check_image, encode, require_extra
from slacktide.client.messages import (
    Advice,
    ClientAction,
    ClientClosed,
    ClientError,
    ClientEvent,
    ClientSettings,
    Connect,
    Connected,
    Disconnect,
    Disconnected,
    EncodeFrame,
    FallbackDone,
    FrameAnswered,
    FrameCaptured,
    FrameEncoded,
    FrameOutcome,
    GiveUp,
    ReportOutcome,
    RunFallback,
    SendFrame,
    TimerDue,
)
from slacktide.client.options import FrameReply, SessionOptions
from slacktide.client.transport import (
    FrameTransport,
    OutgoingFrame,
    Outputs,
    PlainTransport,
    StreamTransport,
)

if TYPE_CHECKING:
    import grpc.aio

_log = logging.getLogger(__name__)
_FATAL = frozenset(
    ["NOT_FOUND", "INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED"]
)
"""Status codes of a first attempt that make further attempts pointless."""


class AioConnection:
    """A connection to one server, shared by its sessions."""

    def __init__(
        self, target: str, *, token: str = "", tls: bool = False, ca_file: str | Path | None = None
    ) -> None:
        """`target`: host:port of the gRPC server. `ca_file` implies TLS. Raises ClientError."""
        require_extra()
        watch_forks()
        import grpc

        host, _, port = target.rpartition(":")
        if not host or not port.isdigit() or "//" in target:
            raise ClientError(f"target: expected HOST:PORT of the gRPC server, got {target!r}")
        self._credentials: grpc.ChannelCredentials | None = None
        if tls or ca_file is not None:
            try:
                roots = Path(ca_file).read_bytes() if ca_file is not None else None
            except OSError as error:
                raise ClientError(f"ca_file: {ca_file}: {error.strerror}") from None
            self._credentials = grpc.ssl_channel_credentials(root_certificates=roots)
        self._channel = self._channel_to(target)
        self.target = target
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._encoder = ThreadPoolExecutor(1, "slacktide-encode")
        self._sessions: set[AioSession] = set()

    def _channel_to(self, target: str) -> grpc.aio.Channel:
        """A channel to a server, with the TLS settings of this connection."""
        import grpc

        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
            # The session paces its own attempts, so the channel must not skip any.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        if self._credentials is None:
            return grpc.aio.insecure_channel(target, options=options)
        return grpc.aio.secure_channel(target, self._credentials, options=options)

    async def open(self, model: str, *, slo: float, rate: float, **options: Any) -> AioSession:
        """Open a session; see SessionOptions. Raises ClientError if the server refuses it, or if it
        cannot be reached and there is no fallback."""
        require_unforked()
        try:
            chosen = SessionOptions(model=model, slo=slo, rate=rate, **options)
        except TypeError as error:
            raise ClientError(f"options: {str(error).partition(') ')[2]}") from None
        session = AioSession(self, chosen)
        self._sessions.add(session)
        try:
            await session._opened()
        except BaseException:
            await session.close(drain=False)
            raise
        return session

    async def close(self) -> None:
        """Close the sessions immediately, and the connection."""
        if is_forked():
            return
        for session in list(self._sessions):
            await session.close(drain=False)
        await self._channel.close(None)
        self._encoder.shutdown(wait=False)

    async def __aenter__(self) -> AioConnection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@dataclass(slots=True)
class _Submitted:
    image: NDArray[np.uint8]
    captured_at: float
    tag: object
    reply: asyncio.Future[FrameReply]
    encoded: EncodedImage | None = None
    outputs: Outputs = field(default_factory=dict)


class AioSession:
    """A stream of frames to a model. Made by `AioConnection.open`."""

    def __init__(self, connection: AioConnection, options: SessionOptions) -> None:
        self.options = options
        self._connection = connection
        settings = ClientSettings(
            options.slo, options.rate, options.sizes, options.fallback is not None,
            options.bytes_per_s, follow=options.follow,
        )  # fmt: skip
        self._core = ClientCore(settings, Random())
        self._loop = asyncio.get_running_loop()
        self._frames: dict[int, _Submitted] = {}
        self._last_id = 0
        self._transports: dict[int, FrameTransport] = {}
        """Transports of the core's links, and the tasks that run them."""
        self._links: dict[int, asyncio.Task[None]] = {}
        self._plain = self._was_connected = False
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._fallbacks = ThreadPoolExecutor(1, "slacktide-fallback")
        self._jobs: set[asyncio.Task[None]] = set()
        self._failure = ""
        """Why the last attempt to connect failed."""
        self._closed = False

    def submit(
        self, image: NDArray[np.uint8], *, captured_at: float | None = None, tag: object = None
    ) -> asyncio.Future[FrameReply]:
        """Submit a frame, uint8 [height, width, 3]. The future gets its reply; do not change the
        frame before that. Raises ValueError for an invalid frame, ClientError once the session is
        closed."""
        require_unforked()
        if self._closed:
            raise ClientError("the session is closed")
        now = self._loop.time()
        height, width, _ = check_image(image).shape
        at = now if captured_at is None else min(captured_at, now)
        self._last_id += 1
        reply: asyncio.Future[FrameReply] = self._loop.create_future()
        self._frames[self._last_id] = _Submitted(image, at, tag, reply)
        self._tell(FrameCaptured(self._last_id, width, height, at))
        return reply

    @property
    def advice(self) -> Advice | None:
        """The server's latest advice."""
        return self._core.advice

    @property
    def bytes_per_s(self) -> float:
        """The client's own estimate of its link; 0 before the first measurement."""
        return self._core.uplink.bytes_per_s(now=self._loop.time())

    async def close(self, *, drain: bool = True) -> None:
        """End the session: with `drain` once every frame has its reply, else immediately. Either
        way every frame gets a reply."""
        if is_forked():
            return
        if drain and not self._closed and self._frames:
            await asyncio.wait([frame.reply for frame in self._frames.values()])
        if self._closed:
            return
        self._tell(ClientClosed())
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._jobs:
            task.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        self._fallbacks.shutdown(wait=False)
        self._connection._sessions.discard(self)

    async def __aenter__(self) -> AioSession:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self.close(drain=kind is None)

    async def _opened(self) -> None:
        self._tell(TimerDue())
        try:
            async with asyncio.timeout(self.options.connect_s):
                await self._ready
        except TimeoutError:
            if self.options.fallback is None:
                target = self._connection.target
                text = f"{target}: no session within {self.options.connect_s:g} s{self._failure}"
                raise ClientError(text) from None

    # ── the core ────────────────────────────────────────────────────────────────────────────────

    def _tell(
        self, event: ClientEvent, outputs: Outputs | None = None, link: int | None = None
    ) -> None:
        if self._closed:
            return
        if isinstance(event, Connected):
            self._was_connected = True
            if not self._ready.done():
                self._ready.set_result(None)
        if isinstance(event, FrameAnswered | FallbackDone) and event.id in self._frames:
            self._frames[event.id].outputs = outputs or {}
        now = self._loop.time()
        if self._timer is not None:
            self._timer.cancel()
            if isinstance(event, TimerDue):  # timers may fire slightly early
                now = max(now, min(self._timer.when(), now + 1e-3))
        for action in self._core.handle(event, now=now, link=link):
            self._do(action)
        wakeup = self._core.next_wakeup()
        self._timer = None if wakeup == inf else self._loop.call_at(wakeup, self._tell, TimerDue())

    def _do(self, action: ClientAction) -> None:
        match action:
            case Connect(link, address):
                self._links[link] = self._start(self._connect(link, address))
            case Disconnect(link):
                if link in self._links:
                    self._links[link].cancel()
            case EncodeFrame(frame, size):
                self._start(self._encode(frame, self._frames[frame], size))
            case SendFrame(frame, _, bytes_per_s, link):
                pending, transport = self._frames[frame], self._transports.get(link)
                if transport is not None and pending.encoded is not None:
                    at = pending.captured_at
                    transport.send(OutgoingFrame(frame, pending.encoded, at, bytes_per_s))
                pending.encoded = None
            case RunFallback(frame):
                self._start(self._run_fallback(frame, self._frames[frame].image))
            case GiveUp(frame):
                for transport in self._transports.values():
                    transport.give_up(frame)
            case ReportOutcome(frame, outcome):
                self._report(frame, outcome)

    def _report(self, id: int, outcome: FrameOutcome) -> None:
        frame = self._frames.pop(id)
        reply = FrameReply(id, outcome, frame.outputs, frame.tag)
        if not frame.reply.done():
            frame.reply.set_result(reply)
        if self.options.on_reply is not None:
            try:
                self.options.on_reply(reply)
            except Exception:
                _log.exception("on_reply failed")

    def _start(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return task

    async def _encode(self, id: int, frame: _Submitted, size: int) -> None:
        options, transport = self.options, self._transports.get(self._core.link)
        pixels, exact, keeps_shape, short_side = False, None, False, 0.0
        if transport is not None:
            pixels, exact = transport.pixels, transport.exact
            keeps_shape, short_side = transport.keeps_shape, transport.short_side
        try:
            frame.encoded = await self._loop.run_in_executor(
                self._connection._encoder,
                lambda: encode(
                    frame.image, size, quality=options.quality, rgb=options.rgb,
                    pixels=pixels, exact=exact, keeps_shape=keeps_shape, short_side=short_side,
                ),
            )  # fmt: skip
        except Exception as error:
            self._tell(FrameEncoded(id, 0, f"encoding failed: {error}"))
        else:
            self._tell(FrameEncoded(id, len(frame.encoded.data)))

    async def _run_fallback(self, id: int, image: NDArray[np.uint8]) -> None:
        fallback = self.options.fallback
        assert fallback is not None
        try:
            outputs = await self._loop.run_in_executor(self._fallbacks, fallback, image)
        except Exception as error:
            self._tell(FallbackDone(id, f"{type(error).__name__}: {error}"))
        else:
            self._tell(FallbackDone(id), outputs)

    async def _connect(self, link: int, address: str) -> None:
        """Run one of the core's links. `address`: the server's address; if empty, that
        of the connection."""
        connection = self._connection
        channel = nullcontext(connection._channel)
        try:
            async with connection._channel_to(address) if address else channel as opened:
                why = await self._run(link, opened)
        except ClientError as error:
            why = str(error)
            self._fail(error)
        finally:
            self._links.pop(link, None)
            self._transports.pop(link, None)
        self._failure = f" ({why})"
        self._tell(Disconnected(why), link=link)

    async def _run(self, link: int, channel: grpc.aio.Channel) -> str:
        """Run a transport until its connection ends. Returns the reason. Raises ClientError."""
        from grpc.aio import AioRpcError

        def tell(event: ClientEvent, outputs: Outputs) -> None:
            self._tell(event, outputs, link)

        connection = self._connection
        make: type[FrameTransport] = PlainTransport if self._plain else StreamTransport
        transport = make(channel, self.options, connection._metadata, tell)
        self._transports[link] = transport
        if isinstance(transport, StreamTransport) and self._failure and not self._was_connected:
            transport.hello_after = 0.2
        try:
            return await transport.run()
        except AioRpcError as error:
            why, code = f"{error.code().name}: {error.details()}", error.code().name
            if code == "UNIMPLEMENTED" and not self._plain and not self._was_connected:
                self._plain = True
                return await self._run(link, channel)
            if code in _FATAL:
                self._fail(ClientError(f"{connection.target}: {why}"))
            return why

    def _fail(self, error: ClientError) -> None:
        """Report the error to `open` if it still waits: further attempts would fail too."""
        if not self._ready.done():
            self._ready.set_exception(error)
