"""The gRPC server: two services on one port, one frame around every method."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable

import grpc
import grpc.aio

from slacktide.frontends.grpc.control import ControlMethods, HealthMethods
from slacktide.frontends.grpc.inference import ModelInfer
from slacktide.frontends.grpc.rpc import CallFrame, GrpcMethod, MessageTimeouts
from slacktide.frontends.grpc.stream import ModelStreamInfer
from slacktide.frontends.ports import AccessLog, ControlPlane, DataPlane, EndpointGroup
from slacktide.frontends.security import Authorize
from slacktide.frontends.settings import GrpcSettings, TlsPem
from slacktide.frontends.unpacking import Unpacker
from slacktide.wire.grpc_codec import GrpcCodec
from slacktide.wire.proto.messages import HEALTH_SERVICE, INFERENCE_SERVICE


class GrpcServer:
    """`start`, then `drain`, then `close`; each once. Lives on the loop that calls `start`."""

    def __init__(
        self,
        data: DataPlane,
        control: ControlPlane,
        settings: GrpcSettings | None = None,
        authorize: Authorize | None = None,
        access_log: AccessLog | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        unpacker: Unpacker | None = None,
    ) -> None:
        """`authorize` None lets every call pass. `clock` gives first_byte: monotonic seconds.
        `unpacker`: closed with the server; None: one of its own."""
        self._unpacker = unpacker = unpacker or Unpacker()
        self._settings = settings = settings or GrpcSettings()
        strict = settings.triton_strict
        codec = GrpcCodec()
        self._streams = ModelStreamInfer(
            data, codec, settings.stream_in_flight, clock, strict, unpacker
        )
        self._health = HealthMethods(control, settings.health_poll_s)
        infer = ModelInfer(data, codec, settings.max_request_bytes, strict, unpacker)
        inference = {
            "ModelInfer": GrpcMethod(EndpointGroup.INFERENCE, infer),
            "ModelStreamInfer": GrpcMethod(EndpointGroup.INFERENCE, self._streams, streams=True),
            **ControlMethods(control).table(),
        }
        services = {INFERENCE_SERVICE: inference, HEALTH_SERVICE: self._health.table()}
        self.methods: dict[str, GrpcMethod] = {
            f"/{service}/{name}": method
            for service, table in services.items()
            for name, method in table.items()
        }
        """Full method name → row: every method there is, with the group its gate is asked for."""
        bodies = MessageTimeouts(settings.body_timeout_s, clock)
        frame = CallFrame(authorize, access_log, clock, bodies, strict)
        self._handlers = _Handlers(
            {name: frame.handler(name, method) for name, method in self.methods.items()}
        )
        self._server: grpc.aio.Server | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port listened on; 0 before `start`."""
        return self._port

    async def start(self, host: str, port: int, tls: Callable[[], TlsPem] | None = None) -> None:
        """Listen. `port` 0 takes a free one; `tls` is asked for every connection. Raises OSError
        if the address cannot be had."""
        server = grpc.aio.server(
            handlers=[self._handlers], options=self._settings.channel_arguments()
        )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if tls is None:
                self._port = server.add_insecure_port(address)
            else:
                self._port = server.add_secure_port(address, _credentials(tls))
        except RuntimeError:
            await server.stop(None)
            raise _bind_error(host, port) from None
        await server.start()
        self._server = server

    async def drain(self, grace: float) -> None:
        """Take no new calls; return when those in flight are done, or cancelled after `grace` s."""
        self._health.drained.set()
        self._streams.drain()
        if self._server is not None:
            await self._server.stop(grace)

    async def close(self) -> None:
        """Stop at once: what is in flight is cancelled."""
        self._health.drained.set()
        if self._server is not None:
            await self._server.stop(None)
        self._unpacker.close()


class _Handlers(grpc.GenericRpcHandler):
    """Finds a method by name. Unknown ones end in UNIMPLEMENTED."""

    def __init__(self, table: dict[str, grpc.RpcMethodHandler[bytes, bytes]]) -> None:
        self._table = table

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._table.get(handler_call_details.method)


def _bind_error(host: str, port: int) -> OSError:
    """Why an address cannot be had, as a plain socket is told: grpc-core says so on stderr only."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
    except OSError as error:
        return error
    return OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _credentials(tls: Callable[[], TlsPem]) -> grpc.ServerCredentials:
    """Serve the certificate that `tls` gives; grpc-core asks, from threads of its own."""

    def changed() -> grpc.ServerCertificateConfiguration:
        pem = tls()
        if pem == served[0]:
            return None  # type: ignore[return-value]  # grpc takes it for: as before
        served[0] = pem
        return configuration(pem)

    def configuration(pem: TlsPem) -> grpc.ServerCertificateConfiguration:
        pairs = [(pem.private_key, pem.certificate_chain)]
        return grpc.ssl_server_certificate_configuration(pairs, pem.client_ca)

    served = [tls()]
    return grpc.dynamic_ssl_server_credentials(
        configuration(served[0]), changed, served[0].client_ca is not None
    )
