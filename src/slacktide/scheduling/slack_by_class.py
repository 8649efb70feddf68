"""`ClassChooser`: the decisions of `slack` for a pool whose predictions have classes.

It keeps the pool's requests by class (class_queue.py), follows every new snapshot of the classes,
and finds the best batch (slack_classes.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from slacktide.domain import Notice, Request
from slacktide.engine.ports import PoolView
from slacktide.profiles import BatchTimes, RunClasses, ShapeClasses
from slacktide.profiles.run_classes import same_classes
from slacktide.scheduling.announcements import as_request
from slacktide.scheduling.best_effort import worth
from slacktide.scheduling.class_queue import ClassPrefixes, ClassQueue
from slacktide.scheduling.class_tables import ClassTables, ClassWorkAhead, class_times, least_share
from slacktide.scheduling.options import SlackOptions
from slacktide.scheduling.queue import DeadlineQueue, Entry, by_class, by_rows, within_rows
from slacktide.scheduling.slack_classes import ClassPricer, best_of_group, score_of
from slacktide.scheduling.slack_uniform import LOOK, Candidate, DecisionContext
from slacktide.scheduling.tables import RowTimes, TimeByRows


class ClassChooser:
    """Chooses among the requests with a deadline, which it keeps by class. Usable while `refresh`
    returns True."""

    def __init__(
        self,
        queue: DeadlineQueue,
        options: SlackOptions,
        *,
        max_batch: int,
        times: BatchTimes,
        view: PoolView,
    ) -> None:
        self._queue = queue
        self._options = options
        self._max_batch = max_batch
        self._times = times
        self._view = view
        self._index: ClassQueue | None = None
        self._version: tuple[int, int] | None = None
        self._tables: dict[tuple[int, int], ClassTables] = {}
        self._pricers: dict[tuple[int, int], ClassPricer] = {}
        self._before: dict[int, tuple[RowTimes, ClassWorkAhead]] = {}

    def refresh(self) -> bool:
        """Adopt the latest predictions; return whether they have classes. Must be called first."""
        version = (self._times.revision, self._view.cores)
        if version != self._version:
            self._version = version
            self._tables.clear()
            self._pricers.clear()
            self._before.clear()
            classes = self._classes(self._view.cores)
            if classes is None:
                self._index = self._queue.index = None
                self._queue.sort_by(by_rows)
            elif self._index is not None and same_classes(classes, self._index.classes):
                self._index.classes = classes
            else:
                self._index = self._queue.index = ClassQueue(classes, self._queue.order)
                self._queue.sort_by(by_class(self._index.class_of))
        return self._index is not None

    def _classes(self, cores: int) -> RunClasses | None:
        classes = self._times.classes(cores)
        assert not isinstance(classes, ShapeClasses)
        return classes

    def class_of(self, waiting: Request) -> int:
        """The class of a waiting request."""
        return self.index.class_of(waiting)

    def batch_times(self, of: int) -> TimeByRows:
        """Expected seconds by rows of a batch whose longest member is of class `of`."""
        return self.tables(self._view.cores, self._max_batch).batch_times[of]

    def share(self, waiting: Request) -> tuple[int, float]:
        """(class, least lane time in seconds) of a waiting request."""
        of = self.class_of(waiting)
        return of, waiting.rows * least_share(self.tables(self._view.cores, self._max_batch), of)

    @property
    def index(self) -> ClassQueue:
        """The requests by class."""
        assert self._index is not None
        return self._index

    def tables(self, cores: int, limit: int) -> ClassTables:
        """The tables for batches of at most `limit` rows on `cores` cores."""
        tables = self._tables.get((cores, limit))
        if tables is None:
            classes = self._classes(cores)
            if classes is None or not same_classes(classes, self.index.classes):
                classes = self.index.classes
            tables = self._tables[cores, limit] = ClassTables(
                classes, limit=limit, options=self._options
            )
        return tables

    def pricer(self, cores: int, limit: int) -> ClassPricer:
        """Prices requests by their code in `index`, with `tables(cores, limit)`."""
        pricer = self._pricers.get((cores, limit))
        kinds = self.index.kinds
        if pricer is None or pricer.kinds is not kinds:
            pricer = self._pricers[cores, limit] = ClassPricer(self.tables(cores, limit), kinds)
        pricer.refresh()
        return pricer

    def alone(self, cores: int) -> float:
        """Expected time of a request alone, averaged over all arrivals; seconds."""
        return self.tables(cores, self._max_batch).mean_alone

    def seconds(self, members: Sequence[Request], rows: int, cores: int) -> float:
        """Expected time of a batch."""
        codes = [self.index.code_of(member) for member in members]
        return self.pricer(cores, self._max_batch).seconds(codes, rows)

    def work_before(self, arrival: Request | Notice) -> tuple[RowTimes, ClassWorkAhead]:
        """The times of `arrival` and the work ahead of it, for admission. An announced request is
        classified by its application alone."""
        index = self.index
        request = arrival if isinstance(arrival, Request) else as_request(arrival)
        of = index.classes.class_of(request)
        before = self._before.get(of)
        if before is None:
            tables = self.tables(self._view.cores, self._max_batch)
            shares = [least_share(tables, shorter) for shorter in range(of + 1)]
            ahead = ClassWorkAhead(of, self._queue, shares)
            before = self._before[of] = (class_times(tables, of), ahead)
        return before

    @property
    def lead(self) -> TimeByRows:
        """Time that a request must have left, by (rows, class)."""
        return self.tables(self._view.cores, self._max_batch).lead

    def best(
        self,
        groups: Sequence[Sequence[Entry]],
        announced: Sequence[Request],
        cores: int,
        limit: int,
        context: DecisionContext,
    ) -> Candidate | None:
        """The best batch of any of `groups`; `announced` requests are added to the first."""
        best: Candidate | None = None
        tables, index = self.tables(cores, limit), self.index
        codes = [index.code_of(request) for request in announced]
        pricer = self.pricer(cores, limit)
        for group in groups:
            prefixes = index.group(group[0][2].signature)
            added = [(request.deadline, request.id, request) for request in announced]
            announced = ()
            for entry, code in zip(added, codes, strict=False):
                prefixes.add(entry, code, index.kinds[code].of)
            for among in self._choices(prefixes, tables, context.now):
                candidate = best_of_group(among, tables, pricer, context)
                if candidate is not None and (best is None or candidate.score > best.score):
                    best = candidate
            for entry, code in zip(added, codes, strict=False):
                prefixes.discard([entry], [index.kinds[code].of])
        return best

    def _choices(
        self, group: ClassPrefixes, tables: ClassTables, now: float
    ) -> Iterator[ClassPrefixes]:
        """The group and, if penalties differ, its costliest requests alone."""
        yield group
        penalties = self._queue.penalties()
        if len(penalties) > 1:
            entries, codes = group.entries[-1], group.codes[-1]
            first = bisect_left(entries, (now + float(tables.need.min()),))
            last = min(len(entries), first + LOOK * tables.limit)
            near = [i for i in range(first, last) if entries[i][2].penalty == penalties[-1]]
            if near:
                costliest = ClassPrefixes(len(tables.alone))
                near_codes = [codes[i] for i in near]
                of = [self.index.kinds[code].of for code in near_codes]
                costliest.extend([entries[i] for i in near], near_codes, of)
                yield costliest

    def filling(
        self,
        best: Candidate,
        waiting: Sequence[Entry],
        cores: int,
        limit: int,
        context: DecisionContext,
    ) -> list[Request]:
        """Best-effort requests among `waiting` that raise the score of `best` by joining it. None
        is in a longer class than the members, since it would delay all of them."""
        index, tables = self.index, self.tables(cores, limit)
        member_codes = [index.code_of(entry[2]) for entry in best.entries]
        longest = max(index.kinds[code].of for code in member_codes)
        fitting = [
            entry
            for entry in waiting[: LOOK * limit]
            if index.classes.class_of(entry[2]) <= longest
        ]
        levels = tables.need.shape[1] // len(tables.sizes)
        chosen: list[Request] = []
        score = best.score
        for i, size in enumerate(tables.sizes):
            if size <= best.rows:
                continue
            if best.entries[0][0] < context.now + tables.need[longest, i * levels]:
                break
            extra = within_rows(fitting, size - best.rows)
            extra_codes = [index.code_of(request) for request in extra]
            filled_score = score_of(
                best.entries,
                member_codes,
                best.rows + sum(request.rows for request in extra),
                tables,
                self.pricer(cores, limit),
                context,
                extra_codes=extra_codes,
                value=sum(worth(request, now=context.now) for request in extra),
            )
            if filled_score > score:
                score = filled_score
                chosen = extra
        return chosen
