"""Sends requests over gRPC as bytes; no message is parsed.

Imports grpcio, so import this module only when gRPC is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc
import grpc.aio

from slacktide.lab.load.encode import GrpcRequest, Metadata, grpc_timeout
from slacktide.lab.load.request_log import RequestLog, Result, of_grpc
from slacktide.lab.load.spec import Target, TargetError

SERVICE = "inference.GRPCInferenceService"

_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Channels to one address would otherwise share one connection.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(target: Target) -> grpc.aio.Channel:
    """Return an unconnected aio channel. Raises TargetError if `ca_file` cannot be read."""
    address, options = target.authority, list(_OPTIONS)
    if target.via is not None:
        address = "{}:{}".format(*target.via)
        options.append(("grpc.default_authority", target.authority))
    if not target.tls:
        return grpc.aio.insecure_channel(address, options=options)
    try:
        roots = target.ca_file.read_bytes() if target.ca_file else None
    except OSError as error:
        raise TargetError(f"cannot read {target.ca_file}: {error.strerror}") from None
    credentials = grpc.ssl_channel_credentials(root_certificates=roots)
    if target.via is not None:
        options.append(("grpc.ssl_target_name_override", target.host))
    return grpc.aio.secure_channel(address, credentials, options=options)


_BROKEN = (
    "failed to connect",
    "connection re",  # refused, reset
    "socket closed",
    "broken pipe",
    "goaway",
    "cancelling all calls",
    "endpoint closing",
    "transport closed",
    "stream removed",
    "dns resolution failed",
    "recvmsg",
    "sendmsg",
)
"""Lower-case texts of gRPC core's own connection errors. Their code is UNAVAILABLE, like that of a
server's refusal, so only the text distinguishes the two."""


class GrpcSender:
    """A `Sender` over gRPC. `clock` returns seconds since the start of the run. No gRPC deadline is
    set: the server learns deadlines only from the parameter `timeout`. Over a link, metadata
    announce each message."""

    def __init__(
        self,
        target: Target,
        requests: Sequence[GrpcRequest],
        log: RequestLog,
        clock: Callable[[], float],
        channels: int | None = None,
        *,
        over_link: bool = False,
    ) -> None:
        self._channels = [open_channel(target) for _ in range(channels or 1)]
        self._methods: list[grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = [
            channel.unary_unary(f"/{SERVICE}/ModelInfer") for channel in self._channels
        ]
        self._metadata: Metadata = ()
        if target.token:
            self._metadata = (("authorization", f"Bearer {target.token}"),)
        self._over_link = over_link
        self._requests = requests
        self._log = log
        self._clock = clock
        self._timeout = grpc_timeout()
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def submit(self, index: int) -> None:
        # The message leaves when the task first runs; until then the request has not departed.
        task = asyncio.get_running_loop().create_task(self._send(index))
        self._tasks[index] = task

    def give_up(self, index: int) -> None:
        task = self._tasks.pop(index, None)
        if task is not None:
            task.cancel()

    def warnings(self) -> tuple[str, ...]:
        return ()

    async def close(self) -> None:
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in self._channels:
            await channel.close(None)

    async def _send(self, index: int) -> None:
        request = self._requests[self._log.payload[index]]
        message, metadata = request.message, self._metadata
        timeout_us = self._log.departed(index, now=self._clock())
        if timeout_us is not None:
            message += self._timeout(timeout_us)
        if self._over_link:
            metadata += request.notice(len(message), timeout_us)
        method = self._methods[index % len(self._methods)]
        result, detail = Result.ANSWERED, ""
        try:
            await method(message, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            result, detail = _read(error)
        self._log.ended(index, result, now=self._clock(), detail=detail)
        self._tasks.pop(index, None)


def _read(error: grpc.aio.AioRpcError) -> tuple[Result, str]:
    """Return result and detail of a failed call."""
    code, details = error.code().name, error.details() or ""
    if code == "UNAVAILABLE" and any(words in details.lower() for words in _BROKEN):
        return Result.TRANSPORT_ERROR, details
    return of_grpc(code), f"{code} {details}"
