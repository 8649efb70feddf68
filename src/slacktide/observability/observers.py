"""What is notified of every answered request; a failing observer is removed.

Without an observer no record is made: `if observers: observers.notify(…)`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from slacktide.domain import Outcome
from slacktide.wire.calls import CallContext

log = logging.getLogger("slacktide.server")


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """One request that has its outcome, whether or not its client still waits for it."""

    context: CallContext
    model: str
    version: str
    """The one that answered."""
    version_named: bool
    """Whether the client asked for that version."""
    request_id: str
    """As the client called it; empty if it did not."""
    rows: int
    outcome: Outcome
    has_result: bool
    """Whether outputs are sent: False also for a late result that the client wanted discarded."""
    stages: Mapping[str, Outcome] = field(default_factory=dict)
    """Of a pipeline's call: how the last request of each stage with a result ended."""


class RequestObserver(Protocol):
    """Called on the server's loop; must be quick."""

    def answered(self, request: AnsweredRequest) -> None: ...


class Observers:
    """The observers. False while there are none."""

    __slots__ = ("_observers",)

    def __init__(self, *observers: RequestObserver) -> None:
        self._observers = observers

    def __bool__(self) -> bool:
        return bool(self._observers)

    def notify(self, request: AnsweredRequest) -> None:
        """Notify each. One that raises is logged and removed."""
        for observer in self._observers:
            try:
                observer.answered(request)
            except Exception:
                log.exception("%s failed and is not notified of requests any more", observer)
                self._observers = tuple(o for o in self._observers if o is not observer)
