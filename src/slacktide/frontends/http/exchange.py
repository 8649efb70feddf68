"""`Exchange`: a request on its way through one connection, with its answer."""

from __future__ import annotations

from slacktide.domain import Reason
from slacktide.frontends.http.messages import Request, Response
from slacktide.frontends.http.router import Receiver, Route


class Exchange(Request):
    """A request and what its connection needs to know of it."""

    __slots__ = (
        "awaits_continue",
        "body_since",
        "charged",
        "chunked",
        "filled",
        "headers_done",
        "keep_alive",
        "length",
        "limit",
        "linger",
        "old",
        "opened",
        "pieces",
        "receiver",
        "response",
        "route",
    )

    def __init__(self, first_byte: float, client: str, connection: str = "") -> None:
        super().__init__(first_byte, client, connection)
        self.keep_alive = False
        self.old = False
        """HTTP/1.0."""
        self.headers_done = False
        self.chunked = False
        self.length = 0
        """Content-Length; 0 if there is none."""
        self.limit = 0
        """Most bytes of body the route takes; known once `opened`."""
        self.filled = 0
        """Bytes of body that have come."""
        self.body_since: float | None = None
        """When the wait for the body began."""
        self.pieces: list[bytes] = []
        """Body that came with its headers."""
        self.awaits_continue = False
        self.opened = False
        """Routed, past the gate."""
        self.route: Route | None = None
        self.receiver: Receiver | None = None
        self.charged = 0
        """Bytes of the common buffer it holds."""
        self.linger = False
        """Its answer goes out before its body has come in."""
        self.response: Response | None = None

    def refused(self, reason: Reason, message: str) -> None:
        """Have the receiver count that the connection itself turned the request away."""
        if self.receiver is not None:
            self.receiver.refuse(self, reason, message)

    def abandoned(self, reason: Reason) -> None:
        if self.receiver is not None and self.response is None:
            self.receiver.abandon(self, reason)
