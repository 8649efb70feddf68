"""A request's tensors in a slot of the arena: copied there, or received there."""

from __future__ import annotations

import numpy as np

from slacktide.executors.arena import Arena, Slot
from slacktide.executors.ports import Payload, TensorRef
from slacktide.models.inputs import CheckedInputs
from slacktide.wire.calls import Buffer


def write_payload(arena: Arena, slot: Slot, checked: CheckedInputs) -> Payload:
    """Copy the tensors into `slot`, one behind the other."""
    view = arena.view(slot)
    base = slot.offset
    at = 0
    refs = []
    for tensor in checked.tensors:
        data = tensor.data
        size = len(data)
        view[at : at + size] = data
        refs.append(TensorRef(base + at, size, tensor.shape))
        at += size
    return Payload(checked.rows, tuple(refs))


def refer_payload(slot: Slot, body: memoryview, checked: CheckedInputs) -> Payload | None:
    """The tensors as parts of the body that was received into `slot`; None if one is not."""
    start = _address(body)
    refs = []
    for tensor in checked.tensors:
        size = len(tensor.data)
        offset = _address(tensor.data) - start if size else 0
        if not 0 <= offset <= len(body) - size:
            return None
        refs.append(TensorRef(slot.offset + offset, size, tensor.shape))
    return Payload(checked.rows, tuple(refs))


def _address(data: Buffer) -> int:
    """Where `data` lies in memory."""
    if len(data) == 0:
        return 0
    interface = np.frombuffer(data, np.uint8).__array_interface__
    address: int = interface["data"][0]
    return address
