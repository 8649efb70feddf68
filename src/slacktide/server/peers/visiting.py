"""`VisitingCall`: a call that a peer has forwarded.

The call is checked, scheduled and answered like any other, but is not counted here. The server that
the client called applies its limits to the client, counts the one outcome, and knows who has
cancelled the call.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from slacktide.domain import Outcome, Reason
from slacktide.models.versions import LoadedVersion
from slacktide.server.calls.call import ServerCall
from slacktide.server.calls.data_plane import ServerDataPlane
from slacktide.wire.calls import CallContext


class VisitingCall(ServerCall):
    """A call of a peer's client."""

    __slots__ = ("_ended",)

    def __init__(
        self,
        plane: ServerDataPlane,
        id: int,
        model: str,
        version: str | None,
        context: CallContext,
        ended: Callable[[], None],
    ) -> None:
        """`ended` is called when the call has its outcome."""
        super().__init__(plane, id, model, version, context)
        self._ended = ended

    def _count(self, version: LoadedVersion, outcome: Outcome) -> None:
        self._ended()

    def cancel(self, reason: Reason) -> None:
        self._early_until = -inf  # the server that the client called counts its cancellations
        super().cancel(reason)
