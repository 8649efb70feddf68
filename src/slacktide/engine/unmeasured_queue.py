"""The queue of a pool's requests without a prediction, and the rules that decide which requests
have none.

engine/unmeasured.py says how the engine treats them.
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
"""Default share of the lanes' time, for policies without a share of best-effort requests."""


@dataclass(frozen=True, slots=True)
class UnmeasuredRules:
    """Which requests of a pool have no prediction, and how to treat them."""

    measured: Callable[[Request], bool]
    """Whether the run time of this request can be predicted. Equal for all requests of a signature;
    may change as times are learnt."""
    has_run: Callable[[Request], bool]
    """Whether its shape has run; a shape that is only predicted from other sizes may still fail."""
    reach: Callable[[], object]
    """Identifies the shapes that are predicted without having run. While the result stays the same,
    a waiting request becomes measured only when its own shape has run."""
    refuse: bool = False
    """Whether unmeasured requests with a deadline are refused (`Reason.UNMEASURED`)."""
    share: float = SHARE
    """Share of the lanes' time that their runs may take from others, 0 to 1."""
    most: int | None = None
    """Maximum number of waiting requests; None: no limit."""


@dataclass(slots=True)
class ShapeFailure:
    """A shape that the model could not run."""

    until: float
    detail: str
    clients: set[str]
    """Clients whose requests failed, at most two."""


class UnmeasuredQueue:
    """The unmeasured requests that wait in one pool, and their share of lane time."""

    __slots__ = ("best_effort", "failed", "is_running", "reach", "rules", "time", "timed")

    def __init__(self, rules: UnmeasuredRules) -> None:
        self.rules = rules
        self.time = TimeShare(rules.share, saved_s=SAVED_S)
        self.is_running = False
        """Whether a request of this queue runs."""
        self.reach: object = None
        """`rules.reach()` when all waiting requests were last checked."""
        self.failed: OrderedDict[Signature, ShapeFailure] = OrderedDict()
        self.timed: list[tuple[float, int, Request]] = []
        """Requests with a deadline; sorted (deadline, id, request)."""
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
        """The next request to run, with the earliest deadline. The queue must not be empty."""
        return min(self.timed[:1] + self.best_effort[:1])[2]

    @property
    def next_expiry(self) -> float:
        """When the next request expires; inf: never."""
        return self.timed[0][0] if self.timed else inf

    def requests(self, of: Signature | None = None) -> tuple[Request, ...]:
        """All waiting requests, or those of one shape, in the order of their runs."""
        every = self.timed + self.best_effort
        if of is not None:
            every = [entry for entry in every if entry[2].signature == of]
        return tuple([request for _, _, request in sorted(every)])
