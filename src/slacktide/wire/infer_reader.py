"""`InferReader`: `parse_infer` with a cache, for clients that repeat the same JSON.

A client that streams frames sends the same JSON before different tensor bytes. The meaning of the
JSON (names, types, shapes, offsets) is cached by its text, so that it is parsed and checked once.
Only calls whose tensors are all binary, with elements of fixed size, are cached: for these, only
the length remains to be checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from slacktide.domain.tensors import Datatype
from slacktide.wire.calls import Buffer, InferCall, InputTensor, Parameter
from slacktide.wire.oip_json import AnswerFormat, parse_infer

MAX_TEXT: Final = 2048
"""Longest cached JSON in bytes."""
MAX_ENTRIES: Final = 512
"""Maximum cached texts; a full cache is cleared. Calls with a new id or deadline each take an
entry, and gain nothing."""

_Place = tuple[str, Datatype, tuple[int, ...], int, int]
"""Name, type, shape, and the start and end of the bytes in the body."""
_NO_PARAMETERS: Mapping[str, Parameter] = {}


class _Meaning:
    """The meaning of a JSON text. Calls with the same text share its containers; read-only."""

    __slots__ = ("answer", "classification", "id", "outputs", "parameters", "places", "size")

    def __init__(self, call: InferCall, answer: AnswerFormat, json_length: int, size: int) -> None:
        self.id = call.id
        self.outputs = call.outputs
        self.parameters = call.parameters
        self.classification = call.classification
        self.answer = answer
        self.size = size
        self.places: list[_Place] = []
        start = json_length
        for tensor in call.inputs:
            end = start + len(tensor.data)
            self.places.append((tensor.name, tensor.datatype, tensor.shape, start, end))
            start = end


class InferReader:
    """Parses calls, with a cache. Each front end has its own."""

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
        """See `parse_infer`."""
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
        call.classification = meaning.classification
        return call, meaning.answer

    def _remember(self, text: bytes, call: InferCall, answer: AnswerFormat, size: int) -> None:
        binary = sum(len(tensor.data) for tensor in call.inputs)
        strings = any(tensor.datatype is Datatype.BYTES for tensor in call.inputs)
        if strings or binary != size - len(text):
            return  # strings must be checked each time; data in JSON is part of the text
        if any(not isinstance(tensor.data, memoryview) for tensor in call.inputs):
            return
        if len(self._meanings) >= MAX_ENTRIES:
            self._meanings.clear()
        self._meanings[text] = _Meaning(call, answer, len(text), size)
