"""`Observers` notifies observers of every answered request, and removes those that fail.

Make no record if there is no observer: `if observers: observers.notify(…)`.
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
    """A request that has its outcome, whether or not its client still waits."""

    context: CallContext
    model: str
    version: str
    """The version that answered."""
    version_named: bool
    """Whether the client named that version."""
    request_id: str
    """The client's id of the request, or empty."""
    rows: int
    outcome: Outcome
    has_result: bool
    """Whether outputs are sent; False also for a discarded late result."""
    stages: Mapping[str, Outcome] = field(default_factory=dict)
    """For a pipeline, the outcome of each stage's last request with a result."""


class RequestObserver(Protocol):
    """An observer. It is called on the server's loop and must return quickly."""

    def answered(self, request: AnsweredRequest) -> None: ...


class Observers:
    """The observers of a server; false in a condition if there are none."""

    __slots__ = ("_observers",)

    def __init__(self, *observers: RequestObserver) -> None:
        self._observers = observers

    def __bool__(self) -> bool:
        return bool(self._observers)

    def notify(self, request: AnsweredRequest) -> None:
        """Notify all observers. One that raises is logged and removed."""
        for observer in self._observers:
            try:
                observer.answered(request)
            except Exception:
                log.exception("%s failed, and will no longer be notified of requests", observer)
                self._observers = tuple(o for o in self._observers if o is not observer)
