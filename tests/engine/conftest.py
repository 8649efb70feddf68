"""Builders for engine tests: a flat profile, a list as scheduler, and a world to step by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from slacktide.domain import (
    Announced,
    Answer,
    Batch,
    BatchFinished,
    Command,
    Deployment,
    Event,
    FreeSlots,
    LaneSpec,
    Notice,
    Outcome,
    Plan,
    PlanChanged,
    PoolId,
    Reason,
    Replica,
    ReplicaUp,
    Request,
    Route,
    RunBatch,
    Signature,
    StartReplica,
    StopReplica,
    Submitted,
    TellCircuit,
)
from slacktide.engine import (
    Engine,
    EngineSettings,
    Idle,
    PoolParts,
    PoolView,
    Proposal,
    WaitUntil,
    check_invariants,
)
from slacktide.engine.time_share import SoloProfiling
from slacktide.engine.unmeasured_queue import UnmeasuredRules
from slacktide.profiles import BatchTimes, PointTime


class FlatTimes(BatchTimes):
    """`seconds` for any batch, certain; if it `divides`, that by the cores."""

    learns = True

    def __init__(self, seconds: float = 0.01, divides: bool = False) -> None:
        self.seconds = seconds
        self.divides = divides
        self.observed: list[tuple[float, int, int]] = []
        self.measured: set[Signature] = set()
        """Shapes that were observed."""

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> PointTime:
        return PointTime(self.seconds / cores if self.divides else self.seconds)

    def observe(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        self.observed.append((seconds, rows, cores))
        self.measured |= {member.signature for member in members}

    def settle(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        self.seconds = seconds * cores if self.divides else seconds


class ListScheduler:
    """First come, first served, up to `max_batch` rows of one signature; drops what is past. Those
    that have less than `lead` seconds left are refused or dropped as well."""

    def __init__(self, max_batch: int, wait: float | None = None, lead: float = 0.0) -> None:
        self.max_batch = max_batch
        self.wait = wait
        self.lead = lead
        self.queue: dict[int, Request] = {}
        self.notices: dict[int, Notice] = {}
        self.refuse: Reason | None = None
        self.left: list[int] = []
        self.explanation: tuple[float, float] | None = None

    def outlook(self, arrival: Request | Notice, *, now: float) -> tuple[float, float] | None:
        return self.explanation

    def announce(self, notice: Notice, *, now: float) -> Reason | None:
        refused = self.refuse or self.late(notice, now)
        if refused is None:
            self.notices[notice.id] = notice
        return refused

    def add(self, request: Request, *, now: float) -> Reason | None:
        self.notices.pop(request.id, None)
        refused = self.refuse or self.late(request, now)
        if refused is None:
            self.queue[request.id] = request
        return refused

    def late(self, candidate: Request | Notice, now: float) -> Reason | None:
        late = self.lead and not candidate.best_effort and candidate.deadline - self.lead < now
        return Reason.SHORTER_THAN_ALONE if late else None

    def admit_moved(self, request: Request, *, now: float) -> None:
        self.queue[request.id] = request

    def remove(self, id: int) -> bool:
        noticed = self.notices.pop(id, None) is not None
        return self.queue.pop(id, None) is not None or noticed

    def expire(self, *, now: float) -> Sequence[tuple[int, Reason]]:
        timed = [r for r in self.queue.values() if not r.best_effort]
        past = [r.id for r in timed if r.deadline - self.lead <= now]
        for id in past:
            del self.queue[id]
        return [(id, Reason.HOPELESS if self.lead else Reason.EXPIRED) for id in past]

    def propose(self, replica: Replica, *, now: float) -> Proposal | WaitUntil | Idle:
        if not self.queue:
            return Idle()
        first = next(iter(self.queue.values()))
        if self.wait is not None and now < first.arrival + self.wait:
            return WaitUntil(first.arrival + self.wait)
        members, rows = [], 0
        for request in self.queue.values():
            same = request.signature == first.signature
            if same and rows + request.rows <= replica.max_batch:
                members.append(request)
                rows += request.rows
        return Proposal(tuple(members), rows)

    def take(self, batch: Batch) -> None:
        for member in batch.members:
            del self.queue[member.id]

    def ended(self, batch: Batch, *, now: float) -> None:
        self.left.append(batch.id)

    def next_expiry(self) -> float | None:
        timed = [r.deadline - self.lead for r in self.queue.values() if not r.best_effort]
        return min(timed, default=None)

    def pending(self) -> tuple[Request, ...]:
        return tuple(self.queue.values())

    def __len__(self) -> int:
        return len(self.queue)


def pool_id(model: str = "m", version: str = "1") -> PoolId:
    return PoolId(model, version)


def one_model_plan(*versions: str, model: str = "m", max_batch: int = 4, lanes: int = 1) -> Plan:
    """`model` in these versions on `lanes` one-core lanes; the last version takes the route."""
    specs = tuple(LaneSpec(f"lane{i}", (i,)) for i in range(lanes))
    pools = [pool_id(model, version) for version in versions]
    return Plan(
        specs,
        tuple(Deployment(p, lane.name, max_batch) for p in pools for lane in specs),
        (Route(model, pools[-1]),) if pools else (),
    )


class World:
    """Drives one engine by hand, keeps what it commanded, checks its invariants."""

    def __init__(self, settings: EngineSettings | None = None) -> None:
        self.now = 0.0
        self.times: dict[PoolId, FlatTimes] = {}
        self.schedulers: dict[PoolId, ListScheduler] = {}
        self.views: dict[PoolId, PoolView] = {}
        self.share: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.divides = False
        self.wait: float | None = None
        self.solo: SoloProfiling | None = None
        self.unmeasured: dict[str, Any] | None = None
        """What the rules for requests of unmeasured shapes state, by model; None: no rules."""
        self.judged: set[Signature] = set()
        """Shapes that can be judged though they have not run."""
        self.variants: dict[str, tuple[int, tuple[str, ...]]] = {}
        """Size of a family's variants, and those to which each hands what it has no time for."""
        self.engine = Engine(self._parts, settings)
        self.answers: dict[int, Outcome] = {}
        self.freed: list[int] = []
        self.batches: list[Batch] = []
        self.started: list[Replica] = []
        self.stopped: list[tuple[Replica, bool]] = []
        self.told: list[TellCircuit] = []

    def _parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        seconds = self.seconds.get(pool.variant or pool.model, 0.01)
        self.times[pool] = FlatTimes(seconds, self.divides)
        lead = seconds if pool.variant in self.variants else 0.0
        self.schedulers[pool] = ListScheduler(max_batch, self.wait, lead)
        self.views[pool] = view
        share = self.share.get(pool.model, 1.0)
        measured = self.times[pool].measured
        stated = (self.unmeasured or {}).get(pool.model)
        rules = None
        if stated is not None:

            def has_run(request: Request) -> bool:
                return request.signature in measured

            def judged(request: Request) -> bool:
                return has_run(request) or request.signature in self.judged

            rules = UnmeasuredRules(judged, has_run, lambda: len(self.judged), **stated)
        size, rescue = self.variants.get(pool.variant, (0, ()))
        return PoolParts(
            self.schedulers[pool], self.times[pool], share, self.solo, rules, size, rescue
        )

    def send(self, *events: Event, after: float = 0.0) -> list[Command]:
        """Deliver events together, `after` seconds from now."""
        self.now += after
        commands = self.engine.handle_all(events, now=self.now)
        for command in commands:
            self._note(command)
        check_invariants(self.engine)
        return commands

    def _note(self, command: Command) -> None:
        if isinstance(command, Answer):
            assert command.id not in self.answers, f"{command.id} answered twice"
            self.answers[command.id] = command
        elif isinstance(command, FreeSlots):
            for id in command.ids:
                assert id not in self.freed, f"{id} freed twice"
                assert id in self.answers, f"{id} freed before its answer"
                self.freed.append(id)
        elif isinstance(command, RunBatch):
            self.batches.append(command.batch)
        elif isinstance(command, StartReplica):
            self.started.append(command.replica)
        elif isinstance(command, StopReplica):
            self.stopped.append((command.replica, command.kill))
        elif isinstance(command, TellCircuit):
            self.told.append(command)

    def deploy(self, plan: Plan) -> None:
        """Apply a plan and bring up every replica it starts."""
        before = len(self.started)
        self.send(PlanChanged(plan))
        for replica in self.started[before:]:
            self.send(ReplicaUp(replica.id))

    def submit(self, *ids: int, slo: float = 1.0, **fields: object) -> list[Command]:
        """Submit requests together."""
        return self.send(*[Submitted(self.request(id, slo=slo, **fields)) for id in ids])

    def request(self, id: int, *, slo: float = 1.0, **fields: object) -> Request:
        values: dict[str, object] = {
            "model": "m",
            "arrival": self.now,
            "deadline": self.now + slo,
            **fields,
        }
        return Request(id=id, **values)  # type: ignore[arg-type]  # a builder of any field

    def announce(self, id: int, *, slo: float = 1.0, **fields: Any) -> list[Command]:
        notice = Notice(
            id, "m", self.now, self.now + slo, 100, complete_at=self.now + 0.01, **fields
        )
        return self.send(Announced(notice))

    def finish(self, after: float = 0.01) -> list[Command]:
        """The latest batch finishes `after` seconds from now."""
        return self.send(BatchFinished(self.batches[-1].id), after=after)

    def reasons(self) -> dict[int, Reason]:
        return {id: outcome.reason for id, outcome in self.answers.items()}


@pytest.fixture
def make_world() -> Callable[..., World]:
    return World


@pytest.fixture(name="one_model_plan")
def one_model_plan_fixture() -> Callable[..., Plan]:
    return one_model_plan


@pytest.fixture
def world() -> World:
    """One model `m` of up to four rows, up on one lane."""
    world = World()
    world.deploy(one_model_plan("1"))
    return world
