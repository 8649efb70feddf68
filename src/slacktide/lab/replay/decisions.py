"""Records the decisions of a replay: why a batch ran, why then, and why a request was left out.

Schedulers do not state their reasons, because that would slow them down. So a replay wraps each one
in an `ObservedScheduler`, which sees each call of the policy, the pending requests, and the result.
For comparison, it also prices other batches that were possible, as the engine prices proposals for
a free lane (engine/worth.py), whatever criterion the policy uses. If a policy has a method
`explain(replica, *, now) -> Sequence[str]`, its result is recorded too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, TypeAlias

from slacktide.domain import (
    Announced,
    Answer,
    Batch,
    BatchAborted,
    BatchFinished,
    Command,
    ExitPolicy,
    ExitReport,
    Notice,
    Outcome,
    OutcomeKind,
    Plan,
    PlanChanged,
    PoolId,
    Replica,
    Request,
    RunBatch,
    Submitted,
)
from slacktide.engine import Engine, Idle, PoolParts, PoolView, Proposal, WaitUntil
from slacktide.engine.worth import worth
from slacktide.lab.replay.replay import RecordedPools, Watcher
from slacktide.profiles import BatchTimes
from slacktide.recording import Call


@dataclass(frozen=True, slots=True)
class PricedBatch:
    """A batch that could have been run. Times in seconds; `worth` as in engine/worth.py."""

    requests: int
    rows: int
    expected: float
    on_time: float
    """Expected number of members on time."""
    worth: float


@dataclass(frozen=True, slots=True)
class Member:
    """A request in a batch: seconds left until its deadline, and P(on time)."""

    request: Request
    budget: float | None
    """None: best effort."""
    on_time: float | None


@dataclass(frozen=True, slots=True)
class ProposalRecord:
    """A policy was asked what to run on a free lane."""

    pool: PoolId
    replica: Replica
    now: float
    pending: int
    words: tuple[str, ...]
    """Explanation by the policy itself; empty if it gives none."""
    chosen: PricedBatch | None = None
    """None: the policy waits, or has no batch to run."""
    wait_until: float | None = None
    p99: float = 0.0
    members: tuple[Member, ...] = ()
    alternatives: tuple[PricedBatch, ...] = ()
    """The first 1, 2, 4, … requests by deadline that could share a batch, for comparison."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A batch was started."""

    now: float
    batch: Batch
    proposal: ProposalRecord | None
    """None if the engine ran the batch without asking: quarantine, solo run, or unknown time."""
    rivals: tuple[ProposalRecord, ...]
    """Proposals of other pools for the lane."""
    because: tuple[str, ...]
    """Events of the same call, counted by type."""
    unmeasured: bool = False
    """Whether the batch is a request whose run time could not be predicted."""

    @property
    def isolated(self) -> bool:
        """Whether the batch is one proposed request, run alone to learn its time."""
        return self.proposal is not None and len(self.batch.members) < len(self.proposal.members)


@dataclass(frozen=True, slots=True)
class Finished:
    """A batch has run: the time it took, and the prediction at its start; in seconds."""

    now: float
    batch: Batch
    took: float
    expected: float
    p99: float


@dataclass(frozen=True, slots=True)
class Waited:
    """A policy left a free lane idle, to wait for more requests."""

    now: float
    proposal: ProposalRecord


@dataclass(frozen=True, slots=True)
class Ended:
    """A request ended without a result."""

    now: float
    request: Request | Notice
    outcome: Outcome
    alone: float | None
    """Predicted time of a batch of only this request, as of `now`; None if its pool is gone."""
    free_in: float | None
    """Seconds until a lane of its pool was expected to be free."""
    pending: int
    """Number of requests that waited in its pool at that time."""


@dataclass(frozen=True, slots=True)
class ExitsChanged:
    """A plan has changed the early exits of a pool's model. Also counts the rows since the previous
    change, by ramp position."""

    now: float
    pool: PoolId
    before: ExitPolicy | None
    after: ExitPolicy | None
    rows: int
    left: Mapping[int, int]
    """By ramp position: rows that the ramp answered."""
    judged: int
    """Rows that ran to the end."""
    differed: Mapping[int, int]
    """By ramp position: judged rows that the ramp would have answered under the thresholds then in
    force, but differently from the whole model."""


@dataclass(frozen=True, slots=True)
class PlacesChanged:
    """A plan has moved a model to other lanes, or a pipeline's stage to another device."""

    now: float
    name: str
    """The model, or PIPELINE/STAGE."""
    before: tuple[str, ...]
    after: tuple[str, ...]
    """Lanes, or the device; empty: this device."""
    why: str = ""
    """Reason stated by planners; empty if none states one."""


Decision: TypeAlias = Ran | Finished | Waited | Ended | ExitsChanged | PlacesChanged


@dataclass(frozen=True, slots=True, eq=False)
class ObservedScheduler:
    """A wrapper around a scheduler that records its proposals; it forwards every call."""

    _scheduler: Any
    _pool: PoolId
    _times: BatchTimes
    _tell: Callable[[ProposalRecord], None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def __len__(self) -> int:
        return len(self._scheduler)

    def propose(self, replica: Replica, *, now: float) -> Proposal | WaitUntil | Idle:
        """Return the real scheduler's proposal, and record it."""
        pending: Sequence[Request] = self._scheduler.pending()
        answer: Proposal | WaitUntil | Idle = self._scheduler.propose(replica, now=now)
        explain = getattr(self._scheduler, "explain", None)
        words = () if explain is None else tuple(explain(replica, now=now))
        cores = max(1, len(replica.cores))
        record = ProposalRecord(self._pool, replica, now, len(pending), words)
        if isinstance(answer, Proposal):
            took = self._times.of(answer.rows, cores, answer.members)
            members = tuple(
                Member(request, None, None)
                if request.best_effort
                else Member(request, request.deadline - now, took.on_time(request.deadline - now))
                for request in answer.members
            )
            record = replace(
                record,
                chosen=self._choice(answer.members, cores, now),
                p99=took.p99,
                members=members,
                alternatives=tuple(self._alternatives(pending, answer, replica, cores, now)),
            )
        elif isinstance(answer, WaitUntil):
            record = replace(record, wait_until=answer.at)
        self._tell(record)
        return answer

    def _choice(self, members: Sequence[Request], cores: int, now: float) -> PricedBatch:
        rows = sum(member.rows for member in members)
        took = self._times.of(rows, cores, members)
        return PricedBatch(
            len(members),
            rows,
            took.expected,
            sum(
                1.0 if member.best_effort else took.on_time(member.deadline - now)
                for member in members
            ),
            worth(members, rows, self._times, cores=cores, now=now),
        )

    def _alternatives(
        self, pending: Sequence[Request], answer: Proposal, replica: Replica, cores: int, now: float
    ) -> list[PricedBatch]:
        signature = answer.members[0].signature
        candidates = sorted(
            (request for request in pending if request.signature == signature),
            key=lambda request: (request.deadline, request.id),
        )
        chosen = {request.id for request in answer.members}
        firsts = (candidates[: 1 << power] for power in range(len(candidates).bit_length()))
        fitting = takewhile(lambda first: sum(o.rows for o in first) <= replica.max_batch, firsts)
        return [
            self._choice(first, cores, now)
            for first in fitting
            if {request.id for request in first} != chosen
        ]


class ObservedPools(RecordedPools):
    """Pools whose schedulers are observed."""

    def __init__(self, tell: Callable[[ProposalRecord], None]) -> None:
        super().__init__()
        self._tell = tell

    def parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        parts = super().parts(pool, max_batch, view)
        return replace(
            parts, scheduler=ObservedScheduler(parts.scheduler, pool, parts.times, self._tell)
        )


class ExitsSeen:
    """Counts of the rows that one pool's ramps answered since its policy changed."""

    def __init__(self, policy: ExitPolicy | None) -> None:
        self.policy = policy
        self.rows = self.judged = 0
        self.left: Counter[int] = Counter()
        self.differed: Counter[int] = Counter()

    def see(self, report: ExitReport) -> None:
        """Count the rows of a batch that has ended."""
        policy, ramps = self.policy, report.ramps
        limit = {} if policy is None else dict(zip(policy.ramps, policy.thresholds, strict=True))
        for unsure, agrees, place in zip(
            report.uncertainty, report.agrees, report.left, strict=True
        ):
            self.rows += 1
            if place >= 0:
                self.left[ramps[place]] += 1
            if len(agrees) < len(ramps):
                continue
            self.judged += 1
            for ramp, doubt, agree in zip(ramps, unsure, agrees, strict=False):
                if doubt < limit.get(ramp, 0.0):
                    self.differed[ramp] += not agree
                    break

    def changed(self, pool: PoolId, policy: ExitPolicy | None, *, now: float) -> ExitsChanged:
        return ExitsChanged(
            now, pool, self.policy, policy, self.rows, self.left, self.judged, self.differed
        )


class Notes(Watcher):
    """Calls `tell` with every decision of a replay. The replay must use `pools`."""

    def __init__(self, tell: Callable[[Decision], None]) -> None:
        self.pools = ObservedPools(lambda record: self._proposals.append(record))
        self._tell = tell
        self._proposals: list[ProposalRecord] = []
        self._requests: dict[int, Request | Notice] = {}
        self._running: dict[int, RunBatch] = {}
        """By id: batches that are not known to have finished."""
        self._exits: dict[PoolId, ExitsSeen] = {}
        self._places: dict[str, tuple[str, ...]] = {}
        """Lanes by model, and device by stage, in the last plan."""

    def before(self, call: Call, engine: Engine) -> None:
        self._proposals.clear()
        for event in call.events:
            if isinstance(event, Submitted):
                self._requests[event.request.id] = event.request
            elif isinstance(event, Announced):
                self._requests[event.notice.id] = event.notice

    def after(self, call: Call, engine: Engine, commands: list[Command]) -> None:
        because = tuple(
            name if count == 1 else f"{count} × {name}"
            for name, count in Counter(type(event).__name__ for event in call.events).items()
        )
        for event in call.events:
            if isinstance(event, PlanChanged):
                self._planned(event.plan, event.reason, call.now)
            if isinstance(event, (BatchFinished, BatchAborted)) and event.exits is not None:
                ran = self._running.get(event.batch)
                if ran is not None and ran.batch.replica.pool in self._exits:
                    self._exits[ran.batch.replica.pool].see(event.exits)
            if isinstance(event, BatchFinished) and event.batch in self._running:
                run = self._running.pop(event.batch)
                took = call.now - run.batch.started
                self._tell(Finished(call.now, run.batch, took, run.expected, run.p99))
        for command in commands:
            if isinstance(command, RunBatch):
                self._running[command.batch.id] = command
                running = engine.snapshot(now=call.now).running(command.batch.id)
                first = running is not None and running.unmeasured
                self._tell(self._ran(command, because, first))
            elif isinstance(command, Answer):
                request = self._requests.pop(command.id, None)
                kind = command.kind
                if request is not None and kind not in (OutcomeKind.SERVED, OutcomeKind.LATE):
                    self._tell(self._ended(request, command, engine))
        for record in self._proposals:
            if record.wait_until is not None:
                self._tell(Waited(call.now, record))

    def _planned(self, plan: Plan, why: str, now: float) -> None:
        """Report models and stages that a new plan moves, and changes of early exits."""
        places: dict[str, tuple[str, ...]] = {}
        for place in plan.deployments:
            lanes = places.get(place.pool.model, ())
            places[place.pool.model] = (*lanes, *((place.lane,) if place.lane not in lanes else ()))
        stages = {f"{place.pipeline}/{place.stage}": (place.device,) for place in plan.places}
        removed_places = {name: () for name in self._places if "/" in name and name not in stages}
        for name, after in {**places, **removed_places, **stages}.items():
            before = self._places.get(name, ())
            if set(before) != set(after) and (before or name in stages):
                self._tell(PlacesChanged(now, name, before, after, why))
        self._places = places | stages
        policies = {policy.pool: policy for policy in plan.exits}
        for pool in {**self._exits, **policies}:
            exits, policy = self._exits.get(pool, ExitsSeen(None)), policies.get(pool)
            if policy != exits.policy:
                self._tell(exits.changed(pool, policy, now=now))
                self._exits[pool] = ExitsSeen(policy)

    def _ran(self, command: RunBatch, because: tuple[str, ...], unmeasured: bool) -> Ran:
        batch = command.batch
        proposal, rivals = None, []
        for record in self._proposals:
            if record.replica.lane != batch.replica.lane or record.chosen is None:
                continue
            if record.replica.id == batch.replica.id:
                proposal = record
            else:
                rivals.append(record)
        return Ran(batch.started, batch, proposal, tuple(rivals), because, unmeasured)

    def _ended(self, request: Request | Notice, outcome: Outcome, engine: Engine) -> Ended:
        pool = engine.snapshot(now=outcome.at).pool_for(request)
        if pool is None:
            return Ended(outcome.at, request, outcome, None, None, 0)
        rows = request.rows if isinstance(request, Request) else 1
        members = (request,) if isinstance(request, Request) else ()
        alone = pool.times.of(rows, pool.cores, members).expected
        return Ended(outcome.at, request, outcome, alone, pool.free_in, pool.queued)
