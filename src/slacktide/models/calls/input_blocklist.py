"""`InputBlocklist`: inputs that crashed a version twice, and the connections that sent them.

If the engine blames a request, its input is blocked for a while. Requests are compared with blocked
inputs by shapes and first bytes, and by hash if these match. A connection is refused after several
such inputs, unless the version served one of its requests in between: such a connection is probably
a proxy's. Addresses and tokens are never refused: many clients may share them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from slacktide.wire.calls import Buffer

BLOCK_S = 60.0
"""Seconds for which an input or a connection is refused."""
SEVERAL = 3
"""Number of different inputs after which a connection is refused."""
MOST = 256
"""Maximum number of blocked inputs; the oldest is dropped first."""
_GLIMPSE = 64

Tensors = Iterable[tuple[tuple[int, ...], Buffer]]
"""Shape and raw bytes of every input, in the model's order."""


class _Blocked(NamedTuple):
    until: float
    glimpse: tuple[object, ...]
    connection: str
    """Connection that sent it; empty if none is blamed."""


class InputBlocklist:
    """Blocked inputs of one version. Times are seconds of the driver's clock."""

    __slots__ = ("inputs",)

    def __init__(self) -> None:
        self.inputs: dict[bytes, _Blocked] = {}
        """Blocked inputs by hash, oldest first. While empty, callers skip all other checks."""

    def is_active(self, *, now: float) -> bool:
        inputs = self.inputs
        while inputs and next(iter(inputs.values())).until <= now:
            del inputs[next(iter(inputs))]
        return bool(inputs)

    def add(self, tensors: Tensors, connection: str, *, now: float) -> None:
        """Block inputs that crashed the version twice."""
        tensors = tuple(tensors)
        digest = _digest(tensors)
        self.inputs.pop(digest, None)
        self.inputs[digest] = _Blocked(now + BLOCK_S, _glimpse(tensors), connection)
        if len(self.inputs) > MOST:
            del self.inputs[next(iter(self.inputs))]

    def contains(self, tensors: Tensors) -> bool:
        """Whether these inputs are blocked. Call it only while `is_active`."""
        tensors = tuple(tensors)
        glimpse = _glimpse(tensors)
        if all(block.glimpse != glimpse for block in self.inputs.values()):
            return False
        return _digest(tensors) in self.inputs

    def forgive(self, connection: str) -> None:
        """Stop blaming a connection after a served request."""
        for digest, block in self.inputs.items():
            if block.connection == connection:
                self.inputs[digest] = block._replace(connection="")

    def blocked_for(self, connection: str, *, now: float) -> float:
        """Return the seconds for which a connection is still refused; 0 if it is not."""
        blamed = [block.until for block in self.inputs.values() if block.connection == connection]
        return blamed[-SEVERAL] - now if connection and len(blamed) >= SEVERAL else 0.0


def _glimpse(tensors: Iterable[tuple[tuple[int, ...], Buffer]]) -> tuple[object, ...]:
    return tuple([(shape, len(data), bytes(data[:_GLIMPSE])) for shape, data in tensors])


def _digest(tensors: Iterable[tuple[tuple[int, ...], Buffer]]) -> bytes:
    digest = hashlib.sha256()
    for shape, data in tensors:
        digest.update(f"{shape} {len(data)} ".encode())
        digest.update(data)
    return digest.digest()
