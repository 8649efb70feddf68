"""grpc.health.v1: what Kubernetes' gRPC probes ask.

The empty service name is the server (ready or not), as is the inference service's own name; any
other is taken as a model's name.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError, Message

from slacktide.domain import Reason
from slacktide.frontends.grpc.control import unary
from slacktide.frontends.grpc.rpc import GrpcCall, GrpcMethod
from slacktide.frontends.ports import ControlPlane, EndpointGroup
from slacktide.wire.errors import ControlError, WireError
from slacktide.wire.proto.messages import (
    INFERENCE_SERVICE,
    NOT_SERVING,
    SERVICE_UNKNOWN,
    SERVING,
    HealthCheckRequest,
    HealthCheckResponse,
)


@dataclass(frozen=True, slots=True)
class HealthMethods:
    """The handlers. `drained` ends the watches, which would otherwise outlive the server."""

    control: ControlPlane
    poll_s: float
    drained: asyncio.Event = field(default_factory=asyncio.Event)

    def table(self) -> dict[str, GrpcMethod]:
        """Method name → row."""
        return {
            "Check": GrpcMethod(EndpointGroup.HEALTH, unary(HealthCheckRequest, self._check)),
            "Watch": GrpcMethod(EndpointGroup.HEALTH, self._watch, streams=True),
        }

    async def _check(self, rpc: GrpcCall, request: HealthCheckRequest) -> Message:
        return HealthCheckResponse(status=self._status(request.service))

    async def _watch(self, rpc: GrpcCall) -> None:
        """The status now and after every change; an unknown name may become known."""
        try:
            service = HealthCheckRequest.FromString(await rpc.message()).service
        except DecodeError:
            raise WireError(Reason.BAD_INPUT, "message: not a HealthCheckRequest") from None
        said = None
        while not self.drained.is_set():
            try:
                status = self._status(service)
            except ControlError:
                status = SERVICE_UNKNOWN
            if status != said:
                said = status
                await rpc.context.write(HealthCheckResponse(status=status).SerializeToString())
            try:
                await asyncio.wait_for(self.drained.wait(), self.poll_s)
            except TimeoutError:
                continue
        if said != NOT_SERVING:
            await rpc.context.write(HealthCheckResponse(status=NOT_SERVING).SerializeToString())

    def _status(self, service: str) -> int:
        """Raises ControlError (not_found) for a model nobody knows."""
        if service in ("", INFERENCE_SERVICE):
            return SERVING if self.control.ready() else NOT_SERVING
        if self.control.model_ready(service, None):
            return SERVING
        try:
            self.control.describe(service, None)
        except ControlError as error:
            if error.kind == "not_found":
                raise
        return NOT_SERVING
