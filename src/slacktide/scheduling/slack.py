"""`slack`, the default: the batch with the most expected on-time value per second of lane time.

Theory of operation. With run classes, slack_classes.py makes and prices the candidates. Otherwise
(docs/decisions/0005-slack.md), for a grid of sizes k and a few start points v:

- *candidate*: the first k requests, in deadline order, that have at least `need(k, v)` left, the
  quantile (v + ½) / levels of the time of k rows. There are several start points because the most
  urgent requests may not be worth the smaller batch that they force. So dropping the head is one of
  the choices. If penalties differ, there are also candidates of the costliest requests alone.
- *value* of a member: penalty × P(on time) × (1 − κ (1 − e^(−spare/τ))), spare = the time it would
  have left if it waited for this batch and then ran alone. This is the value of answering the
  member now, less the value that an answer will probably still have later. So urgent members count
  in full, and patient members as 1 − κ. τ = n × cost + alone is the likely wait behind n pending
  requests.
- *score*: sum of the values / expected time of the batch. The highest wins, the smallest if tied.

A batch of n rows takes l(n), read from the profile (no padding to k on a CPU), so a partly filled
candidate is priced at its own size. It is considered only if it has more rows than the size before
k. The sizes are half octaves, without sizes that save next to nothing per row.

In both cases the lane may be held for announced requests (announcements.py). Let a_1 … a_4 be the
times when their bodies will be complete, if within `lead` × the time alone. The best score now is
compared with the best at each a_j, with requests 1 … j added and a_j − now added to the batch's
time. If one of these scores is WORTH_WAITING times as high, nothing runs before a_1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from slacktide.domain import Batch, Notice, Reason, Replica, Request
from slacktide.engine.ports import Idle, PoolView, Proposal, WaitUntil
from slacktide.profiles import BatchTimes, ShapeClasses, TimeDistribution
from slacktide.scheduling.announcements import HoldBudget, as_request
from slacktide.scheduling.best_effort import BestEffortShare, batch_of, size_of_single
from slacktide.scheduling.deadline_policy import DeadlinePolicy, WorkBefore
from slacktide.scheduling.next_batch import NextBatch
from slacktide.scheduling.options import SlackOptions
from slacktide.scheduling.promises import Promises
from slacktide.scheduling.queue import proposal_of
from slacktide.scheduling.slack_by_class import ClassChooser
from slacktide.scheduling.slack_by_shape import ShapeChooser
from slacktide.scheduling.slack_table import SlackTable, clear_prefix, up_to
from slacktide.scheduling.slack_uniform import DecisionContext, UniformChooser
from slacktide.scheduling.tables import Cached, TimeByRows

__all__ = ["Slack", "SlackOptions"]

GROUPS = 8
"""Largest number of signatures tried per decision, beginning with the signatures due first."""

COST_GAIN = 0.05
"""Weight of the newest batch in the average cost of a request."""

WORTH_WAITING = 1.05
"""Ratio by which a batch with announced members must score better for the lane to be held."""


class Slack(DeadlinePolicy):
    """The default policy. Its distributions and classes come from the pool's batch times."""

    Options: ClassVar = SlackOptions

    def __init__(
        self, options: SlackOptions, *, max_batch: int, times: BatchTimes, view: PoolView
    ) -> None:
        guaranteed = options.guarantee == "p99"
        levels = [(v + 0.5) / options.levels for v in range(options.levels)]

        def needs(time: TimeDistribution) -> tuple[float, ...]:
            return (time.p99,) if guaranteed else tuple(map(time.quantile, levels))

        def lead(times: BatchTimes, rows: int, cores: int) -> float:
            time = times.of(rows, cores)
            return time.p99 if guaranteed else time.quantile(options.drop)

        super().__init__(options, max_batch=max_batch, times=times, view=view, lead=lead)
        self._kappa = options.deferral_discount
        self._lead = options.lead

        def table(times: BatchTimes, cores: int, pays: float | None = None) -> SlackTable:
            return SlackTable(times, needs, cores, max_batch, pays)

        self._uniform = UniformChooser(self._timed, Cached(times, partial(table, times)))
        self._by_class: ClassChooser | ShapeChooser
        if isinstance(times.classes(view.cores), ShapeClasses):
            self._by_class = self._uniform = ShapeChooser(
                self._timed, options, table, lead, max_batch=max_batch, times=times, view=view
            )
        else:
            self._by_class = ClassChooser(
                self._timed, options, max_batch=max_batch, times=times, view=view
            )
        self._promises = Promises(
            self._timed,
            view,
            self._share,
            options.late_refusals,
            self._soonest,
            NextBatch(self._timed, self._class_of, self._batch_times, max_batch, view),
        )
        if options.admission:
            self._admission.promises = self._promises
        self._overdue = BestEffortShare(options.best_effort_share)
        self._hold_budget = HoldBudget()
        self._cost: float | None = None

    def add(self, request: Request, *, now: float) -> Reason | None:
        self._hold_budget.arrived(request.id)
        reason = DeadlinePolicy.add(self, request, now=now)  # `super()` costs as much as a call
        promises = self._promises
        if reason is None:
            if promises.tight and not request.best_effort:
                promises.let_in(request)
        elif reason is Reason.BEHIND_WORK and not request.best_effort:
            of = self._work_before(request)[1].of
            if promises.replaced(request, of, now=now):
                self._timed.add(request)
                promises.let_in(request)
                return None
        return reason

    def expire(self, *, now: float) -> Sequence[tuple[int, Reason]]:
        """Drop requests that lost their place, or are past their latest start."""
        crowded, promises = [], self._promises
        if promises.next_drop is not None:
            crowded = promises.give_up(now=now)
            self._timed.remove([id for id, _ in crowded])
        dropped = super().expire(now=now)
        if dropped:
            promises.lost(len(dropped))
        return [*crowded, *dropped] if crowded else dropped

    def next_expiry(self) -> float | None:
        """When the first request passes its latest start, or when requests lost their places."""
        place_lost_at = self._promises.next_drop
        if place_lost_at is not None or not self._timed.order:
            return place_lost_at
        return self._timed.next_expiry(self._lead_by_kind())

    def propose(self, replica: Replica, *, now: float) -> Proposal | WaitUntil | Idle:
        """The batch worth most per second of lane time, or when to ask again. Changes nothing."""
        timed, best_effort = self._timed, self._best_effort
        cores = max(1, len(replica.cores))
        limit = min(self._max_batch, replica.max_batch)
        if not best_effort.order and not timed.order:
            return Idle()
        chooser = self._by_class if self._by_class.refresh() else self._uniform
        if best_effort.order:
            oldest = best_effort.order[0][2]
            if not timed.order or self._overdue.claims(oldest, now=now):
                return self._of_best_effort(oldest, limit, self._uniform.table_of(oldest, cores))
        alone = chooser.alone(cores)
        soon: list[Notice] = []  # announced requests that the lane may be held for
        if self._notices.by_id and self._lead != 0.0 and self._hold_budget.lasts(now=now):
            soon = self._notices.soon(self._lead * alone, now=now)
        if not best_effort.order and not soon:
            if len(timed.order) == 1:
                return proposal_of([timed.order[0][2]])
            if isinstance(chooser, UniformChooser) and timed.uniform:
                order = timed.order
                table = chooser.table_of(order[0][2], cores)
                sizes, tau = table.prefixes(min(limit, len(order))), self._tau(alone)
                size = clear_prefix(
                    order, sizes, now=now, kappa=self._kappa, tau=tau, alone=table.expected[1]
                )
                if size is not None:
                    return proposal_of([entry[2] for entry in timed.order[:size]])
        groups = timed.groups(GROUPS)
        context = self._context(alone, now=now)
        best = chooser.best(groups, (), cores, limit, context)
        if soon:
            least = WORTH_WAITING * (best.score if best is not None else 0.0)
            joining: list[Request] = []
            for notice in soon:
                joining.append(as_request(notice, groups[0][0][2].signature))
                at = notice.complete_at
                later = self._context(alone, now=at, held=at - now, more=len(joining))
                held_candidate = chooser.best(groups, joining, cores, limit, later)
                if held_candidate is not None and held_candidate.score > least:
                    self._hold_budget.hold(soon[0], now=now)
                    return WaitUntil(soon[0].complete_at)
        if best is None:
            return proposal_of([timed.order[0][2]])
        members = [entry[2] for entry in best.entries]
        if best_effort.order and best.rows < limit:
            waiting = best_effort.batchable(members[0].signature)
            if waiting:
                members += chooser.filling(best, waiting, cores, limit, context)
        return proposal_of(members)

    def _of_best_effort(self, oldest: Request, limit: int, table: SlackTable) -> Proposal | Idle:
        """A batch of best-effort requests led by `oldest`."""
        entries = self._best_effort.batchable(oldest.signature)
        if self._best_effort.rows == len(self._best_effort.order):
            size = size_of_single(min(limit, len(entries)), table)
            return proposal_of([entry[2] for entry in entries[:size]])
        return proposal_of(batch_of(entries, table, up_to(limit, table.grid)))

    def take(self, batch: Batch) -> None:
        """Remove the members; their share of the batch's time updates the cost of a request."""
        timed = len(self._timed.order)
        self._hold_budget.run(now=batch.started)
        super().take(batch)
        cores = max(1, len(batch.replica.cores))
        chooser = self._by_class if self._by_class.refresh() else self._uniform
        alone, seconds = chooser.alone(cores), chooser.seconds(batch.members, batch.rows, cores)
        cost = self._cost if self._cost is not None else alone
        self._cost = cost + COST_GAIN * (seconds / len(batch.members) - cost)
        if len(self._timed.order) == timed:  # a batch of best-effort requests
            self._overdue.spend(seconds, now=batch.started)

    def ended(self, batch: Batch, *, now: float) -> None:
        """Note that requests which lost their place must be dropped before the next batch."""
        if self._admission.promises is not None:
            self._promises.freed(now=now)

    def _share(self, waiting: Request) -> tuple[int, float]:
        """(class, least lane time in seconds) of a waiting request."""
        if not self._by_class.refresh():
            return 0, waiting.rows * self._row_times(self._view.cores).per_row
        return self._by_class.share(waiting)

    def _class_of(self, waiting: Request) -> int:
        return self._by_class.class_of(waiting) if self._by_class.refresh() else 0

    def _batch_times(self, of: int) -> TimeByRows:
        """Expected seconds by rows of a batch whose longest member is of class `of`."""
        if not self._by_class.refresh():
            return self._row_times(self._view.cores).expected
        return self._by_class.batch_times(of)

    def _soonest(self) -> float:
        return 1.0 if self._by_class.refresh() else self._row_times(self._view.cores).soonest

    def _lead_by_kind(self) -> TimeByRows:
        # Called after every event, so it avoids `super`.
        by_class = self._by_class
        return by_class.lead if by_class.refresh() else self._row_times(self._view.cores).lead

    def _work_before(self, arrival: Request | Notice) -> WorkBefore:
        if not self._by_class.refresh():
            return DeadlinePolicy._work_before(self, arrival)
        return self._by_class.work_before(arrival)

    def _context(
        self, alone: float, *, now: float, held: float = 0.0, more: int = 0
    ) -> DecisionContext:
        """The context of a decision at `now`, with `more` requests besides the pending requests."""
        return DecisionContext(now, self._kappa, self._tau(alone, more), held)

    def _tau(self, alone: float, more: int = 0) -> float:
        """τ = n × cost ÷ lanes + alone: the likely wait behind pending requests, in seconds."""
        cost = self._cost if self._cost is not None else alone
        return (len(self._timed.order) + more) * cost / self._view.lanes + alone
