"""Results of requests as the client sees them, and `RequestLog`, which holds one per request.

No clock: `now` is passed in. All times are seconds from the start of the run. The log uses lists:
it accesses single elements ten times per request, where arrays are several times slower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import OutcomeKind
from slacktide.lab.load.report import Ending
from slacktide.lab.load.schedule import Schedule
from slacktide.lab.load.spec import LoadSpec, Transport
from slacktide.lab.workloads import Link, SharedLink


class Result(Enum):
    """Result of a request. Whether an answer was on time is decided later, from the clock."""

    ANSWERED = "answered"
    """200, OK."""
    OVERLOADED = "overloaded"
    """429, RESOURCE_EXHAUSTED."""
    TIMED_OUT = "timed_out"
    """504, DEADLINE_EXCEEDED: dropped by the server."""
    UNAVAILABLE = "unavailable"
    """503, UNAVAILABLE."""
    BAD_REQUEST = "bad_request"
    """Any other 4xx, INVALID_ARGUMENT and the like: our own mistake."""
    SERVER_ERROR = "server_error"
    """Any other status."""
    TRANSPORT_ERROR = "transport_error"
    """There was no connection, or it broke before the answer was complete."""
    GAVE_UP = "gave_up"
    """The client's patience ended."""


ON_TIME = Ending("on_time", OutcomeKind.SERVED)
AFTER_DEADLINE = Ending("after_deadline", OutcomeKind.LATE)

_REFUSALS_AND_FAILURES: Mapping[Result, OutcomeKind] = {
    Result.OVERLOADED: OutcomeKind.REJECTED,
    Result.TIMED_OUT: OutcomeKind.DROPPED,
    Result.UNAVAILABLE: OutcomeKind.REJECTED,
    Result.BAD_REQUEST: OutcomeKind.REJECTED,
    Result.SERVER_ERROR: OutcomeKind.FAILED,
    Result.TRANSPORT_ERROR: OutcomeKind.FAILED,
    Result.GAVE_UP: OutcomeKind.CANCELLED,
}

ENDINGS: tuple[Ending, ...] = (
    ON_TIME,
    AFTER_DEADLINE,
    *(Ending(result.value, kind) for result, kind in _REFUSALS_AND_FAILURES.items()),
)
"""All endings that a report may count."""

ENDING_OF: Mapping[Result, int] = {
    result: number for number, result in enumerate(_REFUSALS_AND_FAILURES, start=2)
}
"""Index into ENDINGS of every result except ANSWERED."""

_HTTP: Mapping[int, Result] = {
    200: Result.ANSWERED,
    429: Result.OVERLOADED,
    503: Result.UNAVAILABLE,
    504: Result.TIMED_OUT,
}
_GRPC: Mapping[str, Result] = {
    "OK": Result.ANSWERED,
    "RESOURCE_EXHAUSTED": Result.OVERLOADED,
    "DEADLINE_EXCEEDED": Result.TIMED_OUT,
    "UNAVAILABLE": Result.UNAVAILABLE,
    **dict.fromkeys(
        (
            "INVALID_ARGUMENT",
            "NOT_FOUND",
            "ALREADY_EXISTS",
            "FAILED_PRECONDITION",
            "OUT_OF_RANGE",
            "PERMISSION_DENIED",
            "UNAUTHENTICATED",
        ),
        Result.BAD_REQUEST,
    ),
}


def of_http(status: int) -> Result:
    """Return the result for an HTTP status."""
    mapped = _HTTP.get(status)
    if mapped is not None:
        return mapped
    return Result.BAD_REQUEST if 400 <= status < 500 else Result.SERVER_ERROR


def of_grpc(status: str) -> Result:
    """Return the result for the name of a gRPC status."""
    return _GRPC.get(status, Result.SERVER_ERROR)


class LinkDelay(NamedTuple):
    """Seconds that one request spends on its link."""

    unseen: float
    """Seconds that the server cannot measure: until the first byte arrives, and the way back."""
    whole: float
    """Seconds on the link in both directions."""


class LinkModel:
    """Decides which link each request takes. Over HTTP, each request has its own connection and
    link; over gRPC, the requests of a channel queue for one link; on a shared link, all queue."""

    def __init__(self, links: Sequence[Link], sizes: Sequence[int]) -> None:
        """`sizes[p]`: bytes of payload p."""
        self._links = links
        self._sizes = sizes

    @classmethod
    def of(cls, spec: LoadSpec, sizes: Sequence[int]) -> LinkModel | None:
        """Return the link model of a run; None if the run has no link."""
        if spec.link is None:
            return None
        if spec.shared_link:
            return cls([SharedLink(spec.link)], sizes)
        if spec.target.transport is Transport.HTTP:
            return cls([spec.link], sizes)
        channels = spec.connections or 1
        return cls([SharedLink(spec.link) for _ in range(channels)], sizes)

    def delay(self, index: int, payload: int, *, now: float) -> LinkDelay:
        """Return the delay of request `index`, sent at `now` (seconds since the link's start)."""
        link = self._links[index % len(self._links)]
        journey = link.deliver(self._sizes[payload], sent=now)
        back = link.way_back
        return LinkDelay(journey.network_time + back, journey.complete_at - now + back)


_MAX_ERRORS = 20
_MAX_DETAIL = 200


class RequestLog:
    """Log of all requests. Each passes `submit` → (`departed`) → `ended`, each at most once."""

    def __init__(
        self, schedule: Schedule, *, send_deadlines: bool = True, link: LinkModel | None = None
    ) -> None:
        count = len(schedule)
        self.due: list[float] = schedule.due.tolist()
        self.allowance: list[float] = schedule.allowance.tolist()
        self.payload: list[int] = schedule.payload.tolist()
        self.submitted = 0
        """Number of requests that came due and were handed to the sender: 0 … submitted − 1."""
        self.open: dict[int, None] = {}
        """Submitted requests that have not ended, in the order they were due."""
        self.on_time = 0
        self._send_deadlines = send_deadlines
        self._link = link
        self._on_link: list[float] = [float("nan")] * count
        self._departed: list[float | None] = [None] * count
        self._ended: list[float] = [0.0] * count
        self._result: list[Result | None] = [None] * count
        self._errors: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.due)

    @property
    def ended_count(self) -> int:
        return self.submitted - len(self.open)

    def submit(self) -> int:
        """Note that the next request has come due, and return its index."""
        index = self.submitted
        self.open[index] = None
        self.submitted = index + 1
        return index

    def departed(self, index: int, *, now: float) -> int | None:
        """Note that the request leaves. Return the timeout to send: microseconds until the deadline
        (at least 1), less the time on the link that the server cannot measure; None: no timeout."""
        self._departed[index] = now
        budget = self.due[index] + self.allowance[index] - now
        if self._link is not None:
            delay = self._link.delay(index, self.payload[index], now=now)
            self._on_link[index] = delay.whole
            if budget != float("inf"):
                budget -= delay.unseen
        if not self._send_deadlines or budget == float("inf"):
            return None
        return int(max(1.0, budget * 1e6))

    def ended(self, index: int, result: Result, *, now: float, detail: str = "") -> bool:
        """Note that the request ended. Return False, without any change, if it had ended before."""
        if index not in self.open:
            return False
        del self.open[index]
        self._ended[index] = now
        self._result[index] = result
        if result is Result.ANSWERED:
            self.on_time += now <= self.due[index] + self.allowance[index]
        elif detail:
            text = f"{result.value}: {detail[:_MAX_DETAIL]}"
            is_listed = text in self._errors or len(self._errors) < _MAX_ERRORS
            self._errors[text if is_listed else "others"] += 1
        return True

    def overdue(self, patience: float, *, now: float) -> list[int]:
        """Return open requests `patience` seconds past their deadline (best effort: due time)."""
        sends, allowance, unlimited = self.due, self.allowance, float("inf")
        return [
            index
            for index in self.open
            if sends[index] + patience <= now
            and (allowance[index] == unlimited or sends[index] + allowance[index] + patience <= now)
        ]

    def errors(self) -> Mapping[str, int]:
        """Return counts of the error details of unanswered requests, most frequent first."""
        return dict(self._errors.most_common())

    def lateness(self) -> NDArray[np.float64]:
        """Return actual − intended send of each submitted request; the end if it never left."""
        pairs = zip(self._departed[: self.submitted], self._ended, strict=False)
        actual = np.array([end if sent is None else sent for sent, end in pairs], dtype=np.float64)
        late: NDArray[np.float64] = actual - np.array(self.due[: self.submitted], dtype=np.float64)
        return np.maximum(late, 0.0)

    def network(self) -> NDArray[np.float64]:
        """Return the seconds that each submitted request spent on the link in both directions; NaN
        if the request never left or there is no link."""
        return np.array(self._on_link[: self.submitted], dtype=np.float64)

    def latency(self) -> NDArray[np.float64]:
        """Return end − intended send of each submitted request, in seconds."""
        ended = np.array(self._ended[: self.submitted], dtype=np.float64)
        spent: NDArray[np.float64] = ended - np.array(self.due[: self.submitted], dtype=np.float64)
        return spent

    def endings(self) -> NDArray[np.int64]:
        """Return the index into ENDINGS of each submitted request. All must have ended."""
        indices = np.empty(self.submitted, dtype=np.int64)
        for index in range(self.submitted):
            result = self._result[index]
            if result is None:
                raise RuntimeError(f"request {index} has not ended")
            if result is Result.ANSWERED:
                deadline = self.due[index] + self.allowance[index]
                indices[index] = 0 if self._ended[index] <= deadline else 1
            else:
                indices[index] = ENDING_OF[result]
        return indices
