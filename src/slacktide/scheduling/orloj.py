"""`orloj` and `orloj_text`: batches by the distribution of run times (Orloj, Algorithm 1).

Every decision considers the batch sizes 1, 2, 4, …. A request can wait for a batch of a size if its
deadline is ≥ now + E[time of such a batch]. One of the sizes for which enough requests can wait is
chosen, and the requests with the highest priority scores fill the batch (orloj_score.py). Requests
that would be late even in a batch of the smallest size are dropped.

The paper describes the choice of the size twice, differently:

- `orloj`: line 16 as printed orders the sizes by the earliest deadline among their requests,
  *latest first*. Fewer requests can wait for larger sizes, so it takes the largest size.
- `orloj_text`: "the batch size with the overall earliest deadline" (§3.2), the larger on ties. This
  is a small size whenever the most urgent request would be late in a larger batch.

Lines 13 and 19 are assumed to belong inside the `if` above them. Two rules are not in the paper. A
request of several rows fills as many places, and joins only batches of at least that size. If no
size can be filled, the request due first runs alone, because a free lane never idles. If shapes
differ, a batch is made for each, and the batch with the highest scores runs (§3.2, Batch Priority).
Best-effort requests run if nothing else waits and, if overdue, in a share of the lane's time
(best_effort.py).

The queue does not need the paper's convex hull. It has a list by deadline for each kind of request;
each list consists of a few runs sorted by score (`Run`), and a heap merges the best of all runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import inf, nextafter
from typing import ClassVar, NamedTuple

from slacktide.domain import Batch, Reason, Replica, Request, Signature
from slacktide.domain.options import OptionError, option
from slacktide.engine.ports import Idle, PoolView, Proposal
from slacktide.profiles import BatchTimes, Classes, ShapeClasses, batch_sizes, sorted_alike
from slacktide.scheduling.best_effort import BestEffortShare
from slacktide.scheduling.deadline_policy import DeadlinePolicy
from slacktide.scheduling.options import BestEffortOptions
from slacktide.scheduling.orloj_score import ONE_STEP, OrlojTimes, Reading, Score
from slacktide.scheduling.queue import Entry, Partition, proposal_of, within_rows
from slacktide.scheduling.tables import Cached

GROUPS = 8
"""Largest number of signatures tried per decision, beginning with the signatures due first."""


@dataclass(frozen=True, slots=True)
class OrlojOptions(BestEffortOptions):
    """Options of `orloj` and `orloj_text`. The paper's b is 1e-4 per ms."""

    delay_rate: float = option(
        0.1,
        "Rate of the anticipated, exponential delay, per second.",
        above=0,
        aliases=("b",),
    )
    steps: tuple[tuple[float, ...], ...] = option(
        (),
        "Further costs of lateness (appendix B): `[[seconds after the deadline, multiple of the "
        "penalty], …]`, ascending; each step adds to those before it. A request is then dropped "
        "only when it cannot avoid the last step.",
    )
    times: Reading = option(
        "batch",
        "Where the expected time of a batch depends on the request's own class: nowhere (`batch`), "
        "in the choice of sizes (`own_class`), or in the score as well (`by_class`).",
    )

    def check(self) -> None:
        """Check that steps ascend."""
        before = 0.0
        for step in self.steps:
            if len(step) != 2 or not (step[0] > before and step[1] > 0.0):
                expected = "(seconds after the deadline, cost), ascending"
                raise OptionError(("steps", f"expected {expected}, got {self.steps}"))
            before = step[0]


class OrlojKind(NamedTuple):
    """Properties that distinguish requests, except for their deadlines."""

    of: int
    """Class."""
    rows: int
    penalty: float
    signature: Signature


class Makers(NamedTuple):
    """The requests of one signature that would be on time in a batch of `size` rows."""

    size: int
    earliest: float
    """Earliest deadline of all requests with enough time for such a batch, even of requests with
    more rows than `size`."""
    parts: list[tuple[OrlojKind, list[Entry], int]]
    """By kind: its sorted entries, and the index of the first entry with enough time for this
    size."""


class Orloj(DeadlinePolicy):
    """Orloj's Algorithm 1, line 16 as printed."""

    Options: ClassVar = OrlojOptions

    def __init__(
        self, options: OrlojOptions, *, max_batch: int, times: BatchTimes, view: PoolView
    ) -> None:
        steps = (*ONE_STEP, *((after, cost) for after, cost in options.steps))
        self._grace = steps[-1][0]
        """How long after its deadline an answer still has a value."""
        self._tables: Cached[OrlojTimes] = Cached(
            times,
            lambda cores: OrlojTimes(
                times, cores, b=options.delay_rate, steps=steps, reading=options.times
            ),
        )
        self._classes = times.classes(view.cores)
        by_class = options.times != "batch" or isinstance(self._classes, ShapeClasses)
        super().__init__(
            options,
            max_batch=max_batch,
            times=times,
            view=view,
            lead=lambda _, rows, cores: self._tables(cores).histogram(0, rows, rows).need,
            class_lead=self._alone if by_class else None,
        )
        self._sizes = batch_sizes(max_batch)
        self._overdue = BestEffortShare(options.best_effort_share)
        self._parts = self._timed.index = Partition(self._timed.order, self._kind)

    def propose(self, replica: Replica, *, now: float) -> Proposal | Idle:
        """The best-scored requests, as many as the chosen size takes. Changes nothing."""
        limit = min(self._max_batch, replica.max_batch)
        if self._best_effort.order:
            oldest = self._best_effort.order[0][2]
            if not self._timed.order or self._overdue.claims(oldest, now=now):
                waiting = self._best_effort.batchable(oldest.signature)
                return proposal_of(within_rows(waiting, limit))
        elif not self._timed.order:
            return Idle()
        times = self._tables(max(1, len(replica.cores)))
        best: list[Request] = [self._timed.order[0][2]]
        highest = -1.0
        for group in self._groups():
            makers = self._makers(group, times, limit, now - self._grace)
            if makers:
                members, score = self._filled(self._choose(makers), times, now)
                if score > highest:
                    best, highest = members, score
        return proposal_of(best)

    def take(self, batch: Batch) -> None:
        timed = len(self._timed.order)
        super().take(batch)
        if len(self._timed.order) == timed:  # a batch of best-effort requests
            seconds = self._times.of(batch.rows, max(1, len(batch.replica.cores))).expected
            self._overdue.spend(seconds, now=batch.started)

    def expire(self, *, now: float) -> Sequence[tuple[int, Reason]]:
        """Drop requests that would be late even in a batch of their own: EXPIRED after the last
        step of the cost, else HOPELESS."""
        return super().expire(now=now - self._grace)

    def next_expiry(self) -> float | None:
        start = super().next_expiry()
        if start is None:
            return None
        at = start + self._grace
        # Rounding must not yield a time at which `expire` would still keep the request.
        return at if at - self._grace >= start else nextafter(at, inf)

    def _choose(self, makers: Sequence[Makers]) -> Makers:
        """Choose the batch size by line 16: the latest deadline first, i.e. the largest size."""
        return max(makers, key=lambda candidate: (candidate.earliest, candidate.size))

    def _alone(self, _: Classes, rows: int, of: tuple[int, ...], cores: int) -> float:
        return self._tables(cores).histogram(of[0], rows, rows).need

    def _kind(self, request: Request) -> OrlojKind:
        classes = self._classes
        of = 0 if classes is None else classes.class_of(request)
        return OrlojKind(of, request.rows, request.penalty, request.signature)

    def _groups(self) -> list[list[tuple[OrlojKind, list[Entry]]]]:
        """(kind, entries) that may share a batch, by signature; only the signatures due first."""
        before, classes = self._classes, self._times.classes(self._view.cores)
        self._classes = classes
        if not sorted_alike(before, classes):
            self._parts = self._timed.index = Partition(self._timed.order, self._kind)
        by_signature: dict[Signature, list[tuple[OrlojKind, list[Entry]]]] = {}
        for kind, part in self._parts.parts.items():
            by_signature.setdefault(kind.signature, []).append((kind, part))
        groups = list(by_signature.values())
        if len(groups) > GROUPS:
            groups.sort(key=lambda group: min(part[0] for _, part in group))
        return groups[:GROUPS]

    def _makers(
        self, group: list[tuple[OrlojKind, list[Entry]]], times: OrlojTimes, limit: int, now: float
    ) -> list[Makers]:
        """Return every size for which enough requests of one signature would be on time (lines 10
        to 17)."""
        candidates: list[Makers] = []
        for size in self._sizes:
            if size > limit:
                break
            rows = 0
            earliest = inf
            parts: list[tuple[OrlojKind, list[Entry], int]] = []
            for kind, part in group:
                need = times.histogram(kind.of, kind.rows, max(kind.rows, size)).need
                first = bisect_left(part, (now + need,))
                if first < len(part):
                    earliest = min(earliest, part[first][0])
                    if kind.rows <= size:
                        parts.append((kind, part, first))
                        rows += kind.rows * (len(part) - first)
            if rows >= size:
                candidates.append(Makers(size, earliest, parts))
        return candidates

    def _filled(self, makers: Makers, times: OrlojTimes, now: float) -> tuple[list[Request], float]:
        """Fill a batch by the highest scores (line 22); return its members and their total score.
        The earliest deadline wins ties."""
        heap: list[tuple[float, float, int, Run]] = []
        for kind, part, first in makers.parts:
            curve = times.score(kind.of, kind.rows, makers.size)
            for run in runs_of(curve, kind.penalty, part, first, now):
                heap.append((*run.key(now), run))
        heapify(heap)
        members: list[Request] = []
        room = makers.size
        total = 0.0
        for _ in range(4 * makers.size):
            negative, _, _, run = heap[0]
            request = run.part[run.at][2]
            if request.rows <= room:
                members.append(request)
                room -= request.rows
                total -= negative
            if not room:
                break
            if run.advance():
                heapreplace(heap, (*run.key(now), run))
            else:
                heappop(heap)
                if not heap:
                    break
        return members, total


class OrlojText(Orloj):
    """Orloj's Algorithm 1 with the batch size that the text of §3.2 describes."""

    def _choose(self, makers: Sequence[Makers]) -> Makers:
        """Choose the earliest deadline first, the larger size on ties."""
        return min(makers, key=lambda candidate: (candidate.earliest, -candidate.size))


class Run:
    """Requests of one kind in the order of their scores, which decrease along the run.

    Requests of one kind share a curve (orloj_score.py) that rises and falls a few times. Between
    two turns of the curve the score grows or decreases with the deadline: a *run*. Its best request
    is at one end, the next best beside it. So the k best of ten thousand requests take a few
    bisections and k steps, where the paper needs a convex hull that changes over time.
    """

    __slots__ = ("_end", "_scale", "_score", "_step", "at", "part")

    def __init__(
        self, score: Score, scale: float, part: list[Entry], first: int, end: int, rising: bool
    ) -> None:
        self._score = score
        self._scale = scale
        self.part = part
        self.at = end - 1 if rising else first
        self._end = first - 1 if rising else end
        self._step = -1 if rising else 1

    def key(self, now: float) -> tuple[float, float, int]:
        """(-score, deadline, id) of the current request."""
        deadline, id, _ = self.part[self.at]
        return -self._scale * self._score.at(deadline - now), deadline, id

    def advance(self) -> bool:
        """Go to the next request; False if there is none."""
        self.at += self._step
        return self.at != self._end


def runs_of(score: Score, scale: float, part: list[Entry], first: int, now: float) -> Iterator[Run]:
    """The runs of `part`, from index `first` on, in which the score only rises or only falls."""
    for turn, rising in zip(score.turns, score.directions, strict=False):
        end = bisect_left(part, (now + turn,), first)
        if end > first:
            yield Run(score, scale, part, first, end, rising)
            first = end
    if first < len(part):
        yield Run(score, scale, part, first, len(part), score.directions[-1])
