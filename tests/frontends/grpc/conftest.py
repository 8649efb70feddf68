"""A data plane and a control plane that answer as a test tells them, and a server around both."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
import pytest

from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.frontends.grpc import GrpcServer, GrpcSettings
from slacktide.frontends.ports import ModelDescription
from slacktide.wire.calls import (
    Buffer,
    CallContext,
    InferCall,
    InferReply,
    InputTensor,
    OutputValue,
    Parameter,
)
from slacktide.wire.errors import ControlError
from slacktide.wire.proto.messages import INFERENCE_SERVICE

Reply = Callable[[InferReply], None]


def echo(call: InferCall) -> InferReply:
    """Every input comes back as an output of the same name."""
    return InferReply(
        outcome=Outcome(Reason.ON_TIME, 0.0),
        model=call.model,
        version=call.version or "1",
        id=call.id,
        outputs=[
            OutputValue(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data))
            for tensor in call.inputs
        ],
    )


def refused(
    reason: Reason, message: str = "", retry_after_s: float | None = None
) -> Callable[[InferCall], InferReply]:
    """Every call is refused for that reason."""

    def answer(call: InferCall) -> InferReply:
        return InferReply(
            Outcome(reason, 0.0),
            call.model,
            "1",
            call.id,
            None,
            message=message,
            retry_after_s=retry_after_s,
        )

    return answer


@dataclass
class FakeTicket:
    plane: FakeDataPlane
    call: InferCall

    def cancel(self, reason: Reason) -> None:
        self.plane.cancelled.append((self.call.id, reason))
        self.plane.held.pop(self.call.id, None)
        self.plane.changed.set()


@dataclass
class FakeUpload:
    plane: FakeDataPlane
    memory: bytearray

    def body(self) -> memoryview:
        return memoryview(self.memory)

    def complete(self, call: InferCall, reply: Reply) -> FakeTicket:
        self.plane.uploads.append("complete")
        context = self.plane.announced[-1][-1]
        return self.plane.infer(call, context, reply)

    def refuse(self, reason: Reason, message: str) -> None:
        self.plane.uploads.append(f"refuse {reason.label}")

    def cancel(self, reason: Reason) -> None:
        self.plane.uploads.append(f"cancel {reason.label}")
        self.plane.changed.set()


@dataclass
class FakeDataPlane:
    """Answers at once by `answer`, unless `hold` is set: then when `release` says so."""

    answer: Callable[[InferCall], InferReply] = echo
    hold: bool = False
    announce_refusal: InferReply | None = None
    calls: list[InferCall] = field(default_factory=list)
    contexts: list[CallContext] = field(default_factory=list)
    cancelled: list[tuple[str, Reason]] = field(default_factory=list)
    turned_away: list[tuple[str, Reason, str]] = field(default_factory=list)
    turned_away_from: list[CallContext] = field(default_factory=list)
    announced: list[tuple[str, str | None, int, dict[str, Parameter], CallContext]] = field(
        default_factory=list
    )
    uploads: list[str] = field(default_factory=list)
    held: dict[str, Callable[[], None]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def infer(self, call: InferCall, context: CallContext, reply: Reply) -> FakeTicket:
        # A data plane copies the tensors and keeps nothing of the message.
        inputs = [
            InputTensor(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data))
            for tensor in call.inputs
        ]
        kept = InferCall(
            call.model, call.version, call.id, inputs, list(call.outputs), call.parameters
        )
        self.calls.append(kept)
        self.contexts.append(context)
        if self.hold:
            self.held[call.id] = lambda: reply(self.answer(kept))
        else:
            asyncio.get_running_loop().call_soon(lambda: reply(self.answer(kept)))
        self.changed.set()
        return FakeTicket(self, kept)

    def announce(
        self,
        model: str,
        version: str | None,
        length: int,
        parameters: Mapping[str, Parameter],
        context: CallContext,
    ) -> FakeUpload | InferReply:
        self.announced.append((model, version, length, dict(parameters), context))
        self.changed.set()
        if self.announce_refusal is not None:
            return self.announce_refusal
        return FakeUpload(self, bytearray(length))

    def body_refused(
        self,
        model: str,
        version: str | None,
        reason: Reason,
        message: str,
        context: CallContext,
    ) -> None:
        self.turned_away.append((model, reason, message))
        self.turned_away_from.append(context)

    def release(self, id: str) -> None:
        """Answer a held call."""
        self.held.pop(id)()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the plane's state fulfils `condition`."""
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


INTERFACE = ModelInterface(
    inputs=(TensorSpec("x", Datatype.FP32, (-1, 4)),),
    outputs=(TensorSpec("y", Datatype.FP32, (-1, 2)),),
    max_batch=8,
)

CONFIG: dict[str, Any] = {
    "name": "mlp",
    "platform": "onnxruntime_onnx",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}],
    "dynamic_batching": {"max_queue_delay_microseconds": 100},
    "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
}

_STAT = {"count": 3, "ns": 4_000_000_000_000}
_KEYS = "success fail queue compute_input compute_infer compute_output cache_hit cache_miss"
STATISTICS: dict[str, Any] = {
    "model_stats": [
        {
            "name": "mlp",
            "version": "1",
            "last_inference": 1_700_000_000_000,
            "inference_count": 7,
            "execution_count": 3,
            "inference_stats": dict.fromkeys(_KEYS.split(), _STAT),
            "response_stats": {},
            "batch_stats": [
                {
                    "batch_size": 4,
                    "compute_input": _STAT,
                    "compute_infer": _STAT,
                    "compute_output": _STAT,
                }
            ],
            "memory_usage": [],
        }
    ]
}


@dataclass
class FakeControlPlane:
    """One model, `mlp` version 1. `error`, if set, is raised by whatever may raise."""

    is_ready: bool = True
    error: Exception | None = None
    loads: list[tuple[str, dict[str, Parameter | Buffer]]] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)

    def _check(self, model: str | None) -> None:
        if self.error is not None:
            raise self.error
        if model not in (None, "mlp", "loading"):
            raise ControlError("not_found", f"unknown model: {model!r}")

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        return self.is_ready

    def model_ready(self, model: str, version: str | None) -> bool:
        return model == "mlp" and version in (None, "1")

    def server_metadata(self) -> dict[str, Any]:
        return {"name": "slacktide", "version": "0.1", "extensions": ["statistics", "parameters"]}

    def describe(self, model: str, version: str | None) -> ModelDescription:
        self._check(model)
        return ModelDescription("mlp", "1", ("1",), "onnxruntime_onnx", INTERFACE)

    def config(self, model: str, version: str | None) -> dict[str, Any]:
        self._check(model)
        return CONFIG

    def statistics(self, model: str | None, version: str | None) -> dict[str, Any]:
        self._check(model)
        return STATISTICS

    def repository_index(self, ready_only: bool) -> list[dict[str, str]]:
        rows = [{"name": "mlp", "version": "1", "state": "READY", "reason": ""}]
        return rows if ready_only else [*rows, {"name": "other"}]

    async def load(self, model: str, parameters: Mapping[str, Parameter | Buffer]) -> None:
        self._check(None)
        self.loads.append((model, dict(parameters)))

    async def unload(self, model: str) -> None:
        self._check(None)
        self.unloads.append(model)


@asynccontextmanager
async def serving(
    data: FakeDataPlane | None = None,
    control: FakeControlPlane | None = None,
    settings: GrpcSettings | None = None,
    **options: Any,
) -> AsyncIterator[GrpcServer]:
    """A server on a free port of the loopback."""
    server = GrpcServer(data or FakeDataPlane(), control or FakeControlPlane(), settings, **options)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def channel(server: GrpcServer) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options) as opened:
        yield opened


def infer_method(opened: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    """ModelInfer, bytes to bytes."""
    return opened.unary_unary(f"/{INFERENCE_SERVICE}/ModelInfer")


def stream_method(opened: grpc.aio.Channel) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
    return opened.stream_stream(f"/{INFERENCE_SERVICE}/ModelStreamInfer")


@pytest.fixture
def fakes() -> ModuleType:
    """This file's names: pytest's import mode lets no test import its conftest."""
    return sys.modules[__name__]
