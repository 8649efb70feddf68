"""Requests of one pool whose run time cannot be judged, and the rules that say which these are.

What the engine does about them: engine/unmeasured.py.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from slacktide.domain import Request, Signature
from slacktide.engine.time_share import SAVED_S, TimeShare

SHARE = 0.1
"""Of the lanes' time, where a policy states no share of best-effort requests."""


@dataclass(frozen=True, slots=True)
class UnmeasuredRules:
    """Which requests of a pool cannot be judged, and what becomes of them."""

    measured: Callable[[Request], bool]
    """Whether the run time of this request can be judged. The same for all of one signature; may
    change with what is learnt."""
    has_run: Callable[[Request], bool]
    """Whether its shape has: one that has been judged from other sizes may yet fail."""
    reach: Callable[[], object]
    """Which shapes are judged without having run: while this stays the same, none that waits has
    become measured but by runs of its own."""
    refuse: bool = False
    """Whether those with a deadline are refused instead (`Reason.UNMEASURED`)."""
    share: float = SHARE
    """Of the time of the pool's lanes that they may take from others, 0 to 1."""
    most: int | None = None
    """Most that wait; None: no limit."""


@dataclass(slots=True)
class ShapeFailure:
    """A shape that the model could not run."""

    until: float
    detail: str
    clients: set[str]
    """Whose requests failed, two at most."""


class UnmeasuredQueue:
    """What waits in one pool, and the lane time that it may have."""

    __slots__ = ("best_effort", "failed", "is_running", "reach", "rules", "time", "timed")

    def __init__(self, rules: UnmeasuredRules) -> None:
        self.rules = rules
        self.time = TimeShare(rules.share, saved_s=SAVED_S)
        self.is_running = False
        """Whether one of them runs."""
        self.reach: object = None
        """As it was when all that wait were looked at last."""
        self.failed: OrderedDict[Signature, ShapeFailure] = OrderedDict()
        self.timed: list[tuple[float, int, Request]] = []
        """Those with a deadline; sorted (deadline, id, request)."""
        self.best_effort: list[tuple[float, int, Request]] = []

    def __len__(self) -> int:
        return len(self.timed) + len(self.best_effort)

    def add(self, request: Request) -> None:
        insort(self._of(request), (request.deadline, request.id, request))

    def remove(self, request: Request) -> None:
        entries = self._of(request)
        del entries[bisect_left(entries, (request.deadline, request.id))]

    def _of(self, request: Request) -> list[tuple[float, int, Request]]:
        return self.best_effort if request.best_effort else self.timed

    @property
    def first(self) -> Request:
        """The next to run: the one due first. There must be one."""
        return min(self.timed[:1] + self.best_effort[:1])[2]

    @property
    def due(self) -> float:
        """When the next expires; inf if none will."""
        return self.timed[0][0] if self.timed else inf

    def requests(self, of: Signature | None = None) -> tuple[Request, ...]:
        """All that wait, or those of one shape, in the order in which they would run."""
        every = self.timed + self.best_effort
        if of is not None:
            every = [entry for entry in every if entry[2].signature == of]
        return tuple([request for _, _, request in sorted(every)])
