"""Conversions of a call for a peer, and of its reply for the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from slacktide.domain import Outcome, OutcomeKind, Reason, Request
from slacktide.domain.tensors import Datatype
from slacktide.executors.jpeg_elements import is_bare
from slacktide.executors.ports import OutputTensor
from slacktide.models.versions import LoadedVersion
from slacktide.wire.calls import InferReply, InputTensor, Parameter

_AT_HOME: Final = frozenset(
    ("timeout", "network_us", "late", "report_timing", "binary_data_output")
)
"""Parameters that are not sent to the peer, because the peer gets the remaining time, and this
server makes the answer."""


def inputs_for_peer(
    version: LoadedVersion, payload: Sequence[tuple[tuple[int, ...], memoryview]]
) -> list[InputTensor]:
    """The tensors in a payload, as a client would send them."""
    tensors = []
    for spec, (shape, data) in zip(version.interface.inputs, payload, strict=True):
        datatype, values = spec.datatype, data
        if len(shape) != len(spec.shape):  # pictures in place of pixels
            datatype = Datatype.BYTES
            if is_bare(data):
                values = memoryview(b"".join((len(data).to_bytes(4, "little"), data)))
        elif not data and prod(shape) > 0:  # a mask that the client left out
            continue
        tensors.append(InputTensor(spec.name, datatype, shape, values))
    return tensors


def parameters_for_peer(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The parameters that travel with a call."""
    return {name: setting for name, setting in parameters.items() if name not in _AT_HOME}


def outputs_of(
    reply: InferReply, version: LoadedVersion, rows: int, requested: Sequence[int]
) -> list[OutputTensor | None] | None:
    """The outputs of a peer's reply, in the model's order. None if they are not outputs of the
    model for `rows` rows, or lack any output that is `requested` (indices)."""
    if reply.outputs is None:
        return None
    interface, places = version.interface, version.check.output_places
    outputs: list[OutputTensor | None] = [None] * len(interface.outputs)
    for output in reply.outputs:
        index = places.get(output.name)
        if index is None:
            return None
        spec, shape = interface.outputs[index], output.shape
        axes = spec.shape
        if interface.batches and not version.definition.settings.expands:
            axes = (rows, *axes[1:])
        fits = len(shape) == len(axes) and output.datatype is spec.datatype
        if not fits or any(length != axis >= 0 for length, axis in zip(shape, axes, strict=True)):
            return None
        outputs[index] = shape, memoryview(output.data)
    return outputs if all(outputs[index] is not None for index in requested) else None


def outcome_at_home(
    remote: Outcome, version: LoadedVersion, request: Request, *, now: float
) -> Outcome:
    """The outcome of a call whose answer has just arrived from a peer. The time to the peer and
    back counts as waiting."""
    reason = remote.reason
    if reason.kind is not OutcomeKind.FAILED:
        if now > request.deadline:
            reason = Reason.AFTER_DEADLINE
        elif reason.kind is not OutcomeKind.SERVED:
            reason = Reason.ON_TIME
    took = max(0.0, now - request.arrival)
    compute_s = min(took, max(0.0, remote.compute_s))
    exits = () if version.exits is None else version.exits.names
    return replace(
        remote,
        reason=reason,
        at=now,
        queue_s=took - compute_s,
        compute_s=compute_s,
        budget_s=request.deadline - now,
        ramp=remote.ramp if (remote.ramp or 0) < len(exits) else None,
    )
