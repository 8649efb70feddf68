"""`GrpcServer`: a listening port with all gRPC services."""

from __future__ import annotations

import time
from collections.abc import Callable

from slacktide.frontends.common.security import Authorize, PeerAccess
from slacktide.frontends.grpc.control import ControlMethods, health_methods
from slacktide.frontends.grpc.frames import FrameStream
from slacktide.frontends.grpc.inference import UnaryInfer
from slacktide.frontends.grpc.metadata import GrpcMethod
from slacktide.frontends.grpc.protocol import GrpcConnection, GrpcState
from slacktide.frontends.grpc.reflection import reflection_methods
from slacktide.frontends.grpc.stream import StreamInfer
from slacktide.frontends.listener import Listener
from slacktide.frontends.ports import AccessLog, ControlPlane, DataPlane, EndpointGroup, PeerHost
from slacktide.frontends.settings import GrpcSettings
from slacktide.frontends.unpacking import Unpacker
from slacktide.wire.proto.messages import (
    FRAME_SERVICE,
    HEALTH_SERVICE,
    INFERENCE_SERVICE,
    PEER_SERVICE,
)


class GrpcServer(Listener):
    """A gRPC server. Call `start`, `drain` and `close`, all on the same loop."""

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
        peers: PeerHost | None = None,
        peer_access: PeerAccess | None = None,
    ) -> None:
        """`authorize`: None lets every call pass. `clock`: monotonic seconds, as in `first_byte`.
        `unpacker` is closed with the server; None: the server makes its own. `peers`: serves the
        links of other servers. `peer_access` decides which of these servers are admitted; None:
        servers on this machine."""
        settings = settings or GrpcSettings()
        state = GrpcState(data, control, settings, authorize, access_log, clock, unpacker)
        super().__init__(state, lambda: GrpcConnection(state))
        inference = {
            "ModelInfer": GrpcMethod(EndpointGroup.INFERENCE, UnaryInfer),
            "ModelStreamInfer": GrpcMethod(EndpointGroup.INFERENCE, StreamInfer),
            **ControlMethods(control).table(),
        }
        services = {
            INFERENCE_SERVICE: inference,
            HEALTH_SERVICE: health_methods(control),
            FRAME_SERVICE: {"StreamFrames": GrpcMethod(EndpointGroup.INFERENCE, FrameStream)},
            **reflection_methods(),
        }
        if peers is not None:
            from slacktide.frontends.grpc.peers import peer_method

            services[PEER_SERVICE] = {"Connect": peer_method(peers, peer_access or PeerAccess())}
        self.state = state
        self.methods: dict[str, GrpcMethod] = {
            f"/{service}/{name}": method
            for service, table in services.items()
            for name, method in table.items()
        }
        """All methods by full name, with the group by which the gate judges them."""
        state.methods = {name.encode(): method for name, method in self.methods.items()}
        self._drained = state.drained

    async def drain(self, timeout_s: float | None = None, idle_s: float = 0.0) -> bool:
        """Accept no new calls and wait until those in flight end; cut them after `timeout_s`. Idle
        connections close immediately: HTTP/2 tells clients which calls were not taken."""
        self._drained.set()
        done = await super().drain(timeout_s)
        for connection in list(self._context.connections):
            connection.abort()
        return done

    async def close(self) -> None:
        self._drained.set()
        await super().close()
