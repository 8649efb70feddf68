"""The seam between the run and the wire: hand over a request, hear of its end in the ledger."""

from __future__ import annotations

from typing import Protocol


class Sender(Protocol):
    """Carries requests. Methods never block; every submitted request ends in the ledger once,
    unless it is given up first (the run has written that down by then)."""

    def submit(self, index: int) -> None:
        """Send request `index` of the schedule as soon as possible."""
        ...

    def give_up(self, index: int) -> None:
        """Nobody waits for request `index` any more: take it off the wire."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """What the reader of the report should know of how requests were carried."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...
