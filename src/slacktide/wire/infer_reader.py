"""`InferReader`: parses the calls of clients that say the same thing again and again.

A client that streams frames sends the same JSON before different bytes. What the JSON means (names,
types, shapes, where each tensor lies) is remembered by its text, so that it is parsed and checked
once. Only calls whose tensors are all binary and of fixed-size elements are remembered: of those
nothing is left to check but the length. A call that is not as remembered goes the long way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from slacktide.domain.tensors import Datatype
from slacktide.wire.calls import Buffer, InferCall, InputTensor, Parameter
from slacktide.wire.oip_json import AnswerFormat, parse_infer

MAX_TEXT: Final = 2048
"""Longest JSON remembered, bytes."""
MAX_KEPT: Final = 512
"""Texts remembered; when there are more, all are forgotten. Clients that put a new id or deadline
into every call cost one entry each, and gain nothing."""

_Place = tuple[str, Datatype, tuple[int, ...], int, int]
"""Name, type, shape, and where in the body the bytes begin and end."""
_NO_PARAMETERS: Mapping[str, Parameter] = {}


class _Meaning:
    """What a JSON text says. Its containers are shared by all calls that said it: read-only."""

    __slots__ = ("answer", "id", "outputs", "parameters", "places", "size")

    def __init__(self, call: InferCall, answer: AnswerFormat, json_length: int, size: int) -> None:
        self.id = call.id
        self.outputs = call.outputs
        self.parameters = call.parameters
        self.answer = answer
        self.size = size
        self.places: list[_Place] = []
        start = json_length
        for tensor in call.inputs:
            end = start + len(tensor.data)
            self.places.append((tensor.name, tensor.datatype, tensor.shape, start, end))
            start = end


class InferReader:
    """One for each front end: it keeps what it has read."""

    def __init__(self) -> None:
        self._meanings: dict[bytes, _Meaning] = {}

    def read(
        self,
        model: str,
        version: str | None,
        body: Buffer,
        json_length: int | None,
        header_parameters: Mapping[str, Parameter] = _NO_PARAMETERS,
    ) -> tuple[InferCall, AnswerFormat]:
        """As `parse_infer`."""
        if (
            json_length is None
            or header_parameters
            or not 0 < json_length <= min(MAX_TEXT, len(body))
        ):
            return parse_infer(model, version, body, json_length, header_parameters)
        text = bytes(body[:json_length])
        meaning = self._meanings.get(text)
        if meaning is None or meaning.size != len(body):
            call, answer = parse_infer(model, version, body, json_length, header_parameters)
            self._remember(text, call, answer, len(body))
            return call, answer
        view = memoryview(body)
        inputs = []
        for name, datatype, shape, start, end in meaning.places:
            inputs.append(InputTensor(name, datatype, shape, view[start:end]))
        call = InferCall(model, version, meaning.id, inputs, meaning.outputs, meaning.parameters)
        return call, meaning.answer

    def _remember(self, text: bytes, call: InferCall, answer: AnswerFormat, size: int) -> None:
        binary = sum(len(tensor.data) for tensor in call.inputs)
        strings = any(tensor.datatype is Datatype.BYTES for tensor in call.inputs)
        if strings or binary != size - len(text):
            return  # strings are checked one by one; data in the JSON is part of its text
        if any(not isinstance(tensor.data, memoryview) for tensor in call.inputs):
            return
        if len(self._meanings) >= MAX_KEPT:
            self._meanings.clear()
        self._meanings[text] = _Meaning(call, answer, len(text), size)
