"""The state that the parts of the engine share.

Each part (`requests`, `batches`, `replicas`, `deploying`) handles some events and changes this
state through its few methods, so that all requests are counted, answered and freed in one place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from slacktide.domain import (
    Answer,
    Batch,
    Command,
    FreeSlots,
    Notice,
    OutcomeKind,
    PoolId,
    Reason,
    Request,
    Route,
)
from slacktide.engine.lanes import Lane, Pool, Running
from slacktide.engine.ports import PoolFactory
from slacktide.engine.request_table import Entry, RequestTable, State
from slacktide.engine.settings import EngineSettings


class RouteTable:
    """Routes by (model, version), narrowed by client, then application. A request to a family gets
    the variant that it names, otherwise the variant of its client's route, otherwise a variant that
    fits its image."""

    __slots__ = ("_by_application", "_by_client", "_by_size", "_plain", "_pools")

    def __init__(
        self,
        pools: Mapping[PoolId, Pool],
        routes: tuple[Route, ...] = (),
        deployed: Iterable[PoolId] = (),
    ) -> None:
        """`deployed`: pools of the plan, among which requests are routed by size."""
        self._pools = pools
        self._plain: dict[tuple[str, str | None], PoolId] = {}
        self._by_application: dict[tuple[str, str | None, str], PoolId] = {}
        self._by_client: dict[tuple[str, str | None, str], PoolId] = {}
        for route in routes:
            key = (route.model, route.version)
            if route.client is not None:
                self._by_client[(*key, route.client)] = route.pool
            elif route.application is not None:
                self._by_application[(*key, route.application)] = route.pool
            else:
                self._plain[key] = route.pool
        self._by_size: dict[tuple[str, str, int], list[Pool]] = {}
        """Pools of variants by model, version and generation; smallest first."""
        for _, id in sorted([(pools[id].size, id) for id in deployed if pools[id].size]):
            self._by_size.setdefault((id.model, id.version, id.generation), []).append(pools[id])

    def clients_unlike(self, table: RouteTable) -> set[str] | None:
        """Clients whose routes differ in `table`; None if routes that name no client differ."""
        if self._plain != table._plain or self._by_application != table._by_application:
            return None
        own_routes, table_routes = self._by_client, table._by_client
        changed = {key[2] for key, pool in own_routes.items() if table_routes.get(key) != pool}
        return changed | {key[2] for key in table_routes if key not in own_routes}

    def default(self, model: str, version: str | None) -> Pool | None:
        """The pool of requests whose client, application and size have no route of their own; None
        if there is none."""
        pool = self._plain.get((model, version))
        return None if pool is None else self._pools.get(pool)

    def pool_for(self, request: Request | Notice) -> Pool | None:
        """The pool of the narrowest matching route; None if no route matches or the pool is
        gone."""
        model, version = request.model, request.version
        pool = None
        if self._by_client:
            pool = self._by_client.get((model, version, request.client))
            if pool is not None and not request.names_variant:
                return self._pools.get(pool)
        if pool is None and self._by_application:
            pool = self._by_application.get((model, version, request.application))
        if pool is None:
            pool = self._plain.get((model, version))
        if pool is None:
            return None
        if request.size and self._by_size:
            sized = self._sized(pool, request.size)
            if sized is not None:
                return sized
        return self._pools.get(pool)

    def _sized(self, beside: PoolId, size: int) -> Pool | None:
        """Among the resident variants that were loaded together with `beside`, the smallest of at
        least `size`, else the largest; None if none is resident."""
        sized = None
        for pool in self._by_size.get((beside.model, beside.version, beside.generation), ()):
            if pool.resident:
                sized = pool
                if pool.size >= size:
                    break
        return sized


WAITING = (State.ANNOUNCED, State.QUEUED, State.UNMEASURED, State.QUARANTINED)

FOR_LACK_OF_TIME = frozenset(
    (
        Reason.SHORTER_THAN_ALONE,
        Reason.EXPIRED,
        Reason.HOPELESS,
        Reason.CROWDED_OUT,
        Reason.BEHIND_OVERRUN,
        Reason.BEHIND_WORK,
        Reason.QUEUE_FULL,
    )
)
"""Reasons for which the answer includes the predicted times `needed_s` and `wait_s`."""


class EngineState:
    """The mutable state of one `Engine`."""

    __slots__ = (
        "cause", "commands", "dirty", "factory", "has_rescued", "lane_changes", "lanes", "now",
        "pools", "request_table", "routes", "running", "runs", "settings", "to_review",
    )  # fmt: skip

    def __init__(self, factory: PoolFactory, settings: EngineSettings) -> None:
        self.factory = factory
        self.settings = settings
        self.request_table = RequestTable()
        self.pools: dict[PoolId, Pool] = {}
        self.lanes: dict[str, Lane] = {}
        self.lane_changes = 0
        """Rises whenever a lane appears, disappears or has its cores confirmed."""
        self.routes = RouteTable(self.pools)
        self.running: dict[int, Running] = {}
        """Running batches by id."""
        self.dirty: dict[str, Lane] = {}
        """Lanes to dispatch after the current events, in the order in which they were marked."""
        self.has_rescued = False
        """Whether a request has moved to another pool during this dispatch."""
        self.to_review: list[Pool] = []
        """Pools whose circuit the current event may change."""
        self.now = -math.inf
        self.cause = -1
        """Running number of the current event."""
        self.runs: list[Command] = []
        """Batches to run, which come before all other commands, so that no lane waits while answers
        are written."""
        self.commands: list[Command] = []

    def mark(self, lane: Lane) -> None:
        """Dispatch `lane` after the current events."""
        self.dirty[lane.name] = lane

    def touch(self, pool: Pool) -> None:
        """Mark the free lanes of `pool` after a change of its queue."""
        pool.quiet = False
        for placement in pool.placements:
            running = placement.lane.running
            if running is None or running.spare:
                self.dirty[placement.lane.name] = placement.lane

    def waiting(self) -> Iterator[Entry]:
        """Entries of requests that do not run yet."""
        return (e for e in self.request_table.entries.values() if e.state in WAITING)

    def end(self, entry: Entry, reason: Reason, detail: str = "") -> None:
        """End a waiting request, without a result. It is not blamed for its crash, if any."""
        self.judge(entry, convicted=False)
        if not entry.answered:
            self.answer_waiting(entry, reason, detail)

    def answer_waiting(self, entry: Entry, reason: Reason, detail: str = "") -> None:
        """Like `end`, but without a verdict on the request's crash."""
        request, now = entry.request, self.now
        self.request_table.end(request.model, reason)
        best_effort = request.best_effort
        needed_s = wait_s = None
        if not best_effort and reason in FOR_LACK_OF_TIME:
            needed_s, wait_s = self._outlook(entry, reason)
            if needed_s is not None and isinstance(request, Request):
                needed_s += request.decoding
        answer = Answer(
            reason,
            now,
            max(0.0, now - request.arrival),
            0.0,
            0,
            None if best_effort else request.deadline - now,
            detail,
            needed_s,
            wait_s,
            None,
            request.id,
            self.cause,
        )
        self.commands.append(answer)

    def _outlook(self, entry: Entry, reason: Reason) -> tuple[float | None, float | None]:
        """The policy's `needed_s` and `wait_s` for a refusal; None if it predicts nothing or the
        request's shape is unmeasured. The policy gets only requests of measured shapes, so this
        check is not needed for its own refusals."""
        request, pool = entry.request, entry.pool
        unmeasured = pool.unmeasured
        if unmeasured is not None and (
            isinstance(request, Notice)
            or entry.state is State.UNMEASURED
            or (reason is Reason.EXPIRED and not unmeasured.rules.measured(request))
        ):
            return None, None
        outlook = pool.scheduler.outlook(request, now=self.now)
        if outlook is None:
            return None, None
        needed_s, wait_s = outlook
        return needed_s, wait_s if wait_s < math.inf else None

    def end_running(
        self, entry: Entry, batch: Batch, reason: Reason, detail: str = "", ramp: int | None = None
    ) -> None:
        """End a member of `batch` for `reason`; a result after the deadline makes it late. `ramp`:
        the exit that answered it."""
        if entry.crash is not None:
            convicted = entry.crashes >= self.settings.crashes_per_request_count
            self.judge(entry, convicted=convicted)
        if not entry.answered:
            self.answer_running(entry, batch, reason, detail, ramp)

    def answer_running(
        self, entry: Entry, batch: Batch, reason: Reason, detail: str = "", ramp: int | None = None
    ) -> None:
        """Like `end_running`, but without a verdict on the member's crash."""
        request, now, started = entry.request, self.now, batch.started
        budget_s = None if request.best_effort else request.deadline - now
        if budget_s is not None and budget_s < 0.0 and reason.kind is OutcomeKind.SERVED:
            reason = Reason.AFTER_DEADLINE
        self.request_table.end(request.model, reason)
        answer = Answer(
            reason,
            now,
            started - request.arrival,
            now - started,
            batch.rows,
            budget_s,
            detail,
            None,
            None,
            ramp,
            request.id,
            self.cause,
        )
        self.commands.append(answer)

    def judge(self, entry: Entry, *, convicted: bool, by_input: bool = False) -> None:
        """Record whether the request is to blame for its crash, if it had one. `by_input`: its
        input is known to crash the model."""
        crash = entry.crash
        if crash is not None:
            entry.crash = None
            crash.pool.crashes.judged(crash, convicted=convicted, by_input=by_input)
            self.to_review.append(crash.pool)

    def forget(self, id: int) -> None:
        """Delete a request's entry and free its payload."""
        del self.request_table.entries[id]
        self.commands.append(FreeSlots((id,), self.cause))

    def turn_away(self, id: int, model: str, reason: Reason, detail: str) -> None:
        """Count and answer a request that is refused before it gets an entry. Raises ValueError if
        its id is in use."""
        if id in self.request_table.entries:
            raise ValueError(f"request id {id} is already in use")
        self.request_table.turned_away(model, reason)
        self.commands.append(Answer(reason, self.now, detail=detail, id=id, cause=self.cause))
        self.commands.append(FreeSlots((id,), self.cause))

    def withdraw(self, entry: Entry) -> None:
        """Take a waiting request out of its queue, without an outcome."""
        request, pool = entry.request, entry.pool
        if entry.state is State.ANNOUNCED:
            pool.announced -= 1
        if entry.state is State.QUARANTINED:
            assert isinstance(request, Request)
            pool.quarantine.remove(request)
        elif entry.state is State.UNMEASURED:
            assert isinstance(request, Request)
            assert pool.unmeasured is not None
            pool.unmeasured.remove(request)
        else:
            pool.scheduler.remove(request.id)

    def reject_waiting(self, pool: Pool, reason: Reason, detail: str) -> None:
        """Refuse all requests that wait in `pool` or are announced to it."""
        for entry in [entry for entry in self.waiting() if entry.pool is pool]:
            self.withdraw(entry)
            self.end(entry, reason, detail)
            self.forget(entry.request.id)
