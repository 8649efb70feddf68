"""A data plane and a control plane that answer as a test tells them: for every front end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.frontends.ports import ModelDescription
from slacktide.wire.calls import (
    Buffer,
    CallContext,
    InferCall,
    InferReply,
    InputTensor,
    OutputValue,
    Parameter,
    SessionTerms,
    SizeAdvice,
)
from slacktide.wire.errors import ControlError, WireError
from slacktide.wire.parameters import parse_parameters
from slacktide.wire.proto.messages import ModelInferResponse

Reply = Callable[[InferReply], None]

QUICK = {"tick_s": 0.01, "linger_s": 0.2}
"""Settings of a server that looks at its clock often."""


def decode_response(raw: Buffer) -> tuple[ModelInferResponse, list[bytes]]:
    """A serialized ModelInferResponse, and its raw outputs."""
    response = ModelInferResponse.FromString(bytes(raw))
    return response, list(response.raw_output_contents)


def echo(call: InferCall) -> InferReply:
    """Every input comes back as an output of the same name."""
    outputs = [OutputValue(t.name, t.datatype, t.shape, bytes(t.data)) for t in call.inputs]
    outcome = Outcome(Reason.ON_TIME, 0.0)
    return InferReply(outcome, call.model, call.version or "1", call.id, outputs)


def refusing(
    reason: Reason, message: str = "no", retry_after_s: float | None = None
) -> Callable[[InferCall], InferReply]:
    """Every call is refused for that reason."""

    def answer(call: InferCall) -> InferReply:
        outcome = Outcome(reason, 0.0)
        return InferReply(
            outcome, call.model, "1", call.id, None, message, retry_after_s=retry_after_s
        )

    return answer


class FakeCall:
    """Notes its steps, such as `announce`, `submit`, `refuse bad_input`, `cancel no_body`."""

    def __init__(
        self, plane: FakeDataPlane, model: str, version: str | None, context: CallContext
    ) -> None:
        self.plane = plane
        self.model = model
        self.version = version
        self.context = context
        self.steps: list[str] = []
        self.length = 0
        self.parameters: dict[str, Parameter] = {}
        self.memory = bytearray()
        """What its announced body came into."""
        self.infer: InferCall
        """What was submitted, with tensors of its own."""
        self.reply: Reply
        self.given_up: Reply | None = None

    def elsewhere(self, length: int, parameters: Mapping[str, Parameter]) -> str:
        self.plane.asked_elsewhere += 1
        return self.plane.elsewhere

    def announce(
        self,
        length: int,
        parameters: Mapping[str, Parameter],
        given_up: Reply | None = None,
    ) -> memoryview | InferReply:
        self.steps.append("announce")
        self.given_up = given_up
        self.length, self.parameters = length, dict(parameters)
        self.plane.announced.append(self)
        self.plane.changed.set()
        if self.plane.refusal is not None:
            return self.plane.refusal
        self.memory = bytearray(length)
        return memoryview(self.memory)

    def submit(self, call: InferCall, reply: Reply) -> None:
        plane = self.plane
        if plane.bug is not None:
            raise plane.bug
        self.steps.append("submit")
        inputs = [InputTensor(t.name, t.datatype, t.shape, bytes(t.data)) for t in call.inputs]
        self.infer = InferCall(
            call.model, call.version, call.id, inputs, list(call.outputs), call.parameters
        )
        self.reply = reply
        try:
            parse_parameters(call.parameters)
        except WireError as error:  # a data plane checks what it takes, and counts it
            plane.refused.append((self.model, error.reason, error.message))
            refusal = refusing(error.reason, error.message)(call)
            asyncio.get_running_loop().call_soon(reply, refusal)
        else:
            plane.calls.append(self)
            if plane.holds:
                plane.held.append(self)
            else:
                asyncio.get_running_loop().call_soon(self.answer)
        plane.changed.set()

    def answer(self) -> None:
        self.reply(self.plane.answer(self.infer))

    def refuse(self, reason: Reason, message: str) -> None:
        self.steps.append(f"refuse {reason.label}")
        self.plane.refused.append((self.model, reason, message))
        self.plane.refused_from.append(self.context)

    def cancel(self, reason: Reason) -> None:
        self.steps.append(f"cancel {reason.label}")
        if len(self.steps) > 1:  # else nothing was known of it yet
            id = self.infer.id if "submit" in self.steps else ""
            self.plane.cancelled.append((id, reason))
        if self in self.plane.held:
            self.plane.held.remove(self)
        self.plane.changed.set()


@dataclass
class FakeSession:
    """Notes what it is told, and advises what a test says."""

    terms: SessionTerms
    advise: Callable[[SizeAdvice], None]
    id: str = "s:1"
    rtt: float = 0.0
    advice: SizeAdvice | None = None
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    closed: int = 0
    keeps_shape: bool = True
    short_side: float = 1.25
    move: Callable[[str], None] = print

    def welcome(self) -> tuple[str, list[tuple[str, int, float]]]:
        return "x", [("128", 128, 0.5), ("256", 256, 0.75)]

    def change(self, terms: SessionTerms) -> None:
        self.terms = terms

    def report_rate(self, bytes_per_s: float) -> None:
        self.steps.append(("told", bytes_per_s))

    def transfer_time(self, nbytes: int, *, now: float) -> float:
        return nbytes / 1e6

    def arrived(self, nbytes: int, seconds: float, size: tuple[int, int], *, now: float) -> None:
        self.steps.append(("arrived", nbytes, seconds, size))

    def idle(self, now: float) -> None:
        pass

    def stalled(self, received: int, length: int, seconds: float, *, now: float) -> None:
        self.steps.append(("stalled", received, length))

    def answered(self, outcome: Outcome | None, now: float) -> None:
        self.steps.append(("answered", None if outcome is None else outcome.reason))

    def close(self) -> None:
        self.closed += 1


@dataclass
class FakeDataPlane:
    """Answers at once by `answer`, unless it `holds`: then when a call's own `answer` is called."""

    answer: Callable[[InferCall], InferReply] = echo
    holds: bool = False
    refusal: InferReply | None = None
    """Of what is announced."""
    elsewhere: str = ""
    """Origin of the server to which clients are sent."""
    asked_elsewhere: int = 0
    bug: Exception | None = None
    """What submitting raises."""
    calls: list[FakeCall] = field(default_factory=list)
    """Submitted."""
    held: list[FakeCall] = field(default_factory=list)
    """Of these, those that are neither released nor cancelled."""
    announced: list[FakeCall] = field(default_factory=list)
    cancelled: list[tuple[str, Reason]] = field(default_factory=list)
    """Id, reason."""
    refused: list[tuple[str, Reason, str]] = field(default_factory=list)
    """Model, reason, message of what the front end turned away, or parameters were wrong of."""
    refused_from: list[CallContext] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    sessions: list[FakeSession] = field(default_factory=list)
    no_session: WireError | None = None

    largest: dict[str | None, int] = field(default_factory=dict)
    """By model; None: any."""

    def largest_body(self, model: str | None = None, version: str | None = None) -> int:
        return self.largest.get(model, 0)

    slo: bool = False

    def offered_share(self) -> float:
        return 0.75

    def has_slo(self, model: str, version: str | None) -> bool:
        return self.slo

    def call(self, model: str, version: str | None, context: CallContext) -> FakeCall:
        return FakeCall(self, model, version, context)

    def open_session(
        self, terms: SessionTerms, address: str, advise: Callable[[SizeAdvice], None]
    ) -> FakeSession:
        if self.no_session is not None:
            raise self.no_session
        self.sessions.append(FakeSession(terms, advise, f"s:{len(self.sessions) + 1}"))
        return self.sessions[-1]

    @property
    def tensors(self) -> list[list[Buffer]]:
        """Of the calls that were submitted."""
        return [[tensor.data for tensor in call.infer.inputs] for call in self.calls]

    @property
    def held_ids(self) -> list[str]:
        return [call.infer.id for call in self.held]

    def release(self, id: str) -> None:
        """Answer a held call."""
        self.held.pop(self.held_ids.index(id)).answer()

    async def until(self, condition: Callable[[], object]) -> None:
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
    "name": "m",
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
            "name": "m",
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
    """One model, `m` version 1. `error`, if set, is raised by whatever may raise."""

    is_ready: bool = True
    error: Exception | None = None
    loads: list[tuple[str, dict[str, Parameter | Buffer]]] = field(default_factory=list)
    unloads: list[tuple[str, bool]] = field(default_factory=list)
    """Each with whether its dependents go as well."""

    def _check(self, model: str | None) -> None:
        if self.error is not None:
            raise self.error
        if model not in (None, "m", "loading"):
            raise ControlError("not_found", f"unknown model: {model!r}")

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        return self.is_ready

    def model_ready(self, model: str, version: str | None) -> bool:
        return model == "m" and version in (None, "1")

    def server_metadata(self) -> dict[str, Any]:
        return {"name": "slacktide", "version": "0.1", "extensions": ["statistics", "parameters"]}

    def describe(self, model: str, version: str | None) -> ModelDescription:
        self._check(model)
        return ModelDescription("m", "1", ("1",), "onnxruntime_onnx", INTERFACE)

    def config(self, model: str, version: str | None) -> dict[str, Any]:
        self._check(model)
        return CONFIG

    def statistics(self, model: str | None, version: str | None) -> dict[str, Any]:
        self._check(model)
        return STATISTICS

    def sessions(self) -> list[dict[str, Any]]:
        return [{"id": "s:1", "model": "m"}]

    def peers(self) -> dict[str, Any]:
        return {"machine": "a", "peers": []}

    async def repository_index(self, ready_only: bool) -> list[dict[str, str]]:
        rows = [{"name": "m", "version": "1", "state": "READY", "reason": ""}]
        return rows if ready_only else [*rows, {"name": "other"}]

    async def load(self, model: str, parameters: Mapping[str, Parameter | Buffer]) -> None:
        self._check(None)
        await asyncio.sleep(0)
        self.loads.append((model, dict(parameters)))

    async def unload(self, model: str, *, dependents: bool = False) -> None:
        self._check(model)
        self.unloads.append((model, dependents))
