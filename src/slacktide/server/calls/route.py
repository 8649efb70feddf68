"""`CallRoute`: how the calls of a version reach the engine.

The driver is the route of all models; each pipeline has a `PipelineRoute`.
"""

from __future__ import annotations

from typing import Protocol

from slacktide.domain import Notice, Reason, Refused, Request
from slacktide.server.calls.pending import PendingRequest


class CallRoute(Protocol):
    """The route of a call, as its version provides it (`LoadedVersion.route`)."""

    def announce(self, notice: Notice, call: PendingRequest) -> None:
        """Announce a request whose body is still arriving. It is answered by its deadline even if
        the body never comes."""

    def submit(self, request: Request, call: PendingRequest) -> None:
        """Submit a request whose payload is written."""

    def refuse(self, event: Refused, call: PendingRequest) -> None:
        """Have the engine count a request that never gets a payload."""

    def cancel(self, id: int, reason: Reason) -> None:
        """Withdraw a request. Its outcome is reported if the call still waits for one."""
