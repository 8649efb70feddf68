"""A one-lane world for simulations: flat batch times, any policy, a log of what was said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from slacktide.domain import (
    Batch,
    Command,
    Deployment,
    Event,
    LaneSpec,
    Notice,
    Outcome,
    Plan,
    PoolId,
    Reason,
    Request,
    Route,
    RunBatch,
)
from slacktide.engine import Engine, EngineSettings, PoolParts, PoolView
from slacktide.lab.simulation import Execution, Item, Simulation
from slacktide.profiles import PointTime
from slacktide.scheduling import make_scheduler

POOL = PoolId("m", "1")


class LinearTimes:
    """`fixed` + `per_row` · rows seconds, certain."""

    def __init__(self, fixed: float, per_row: float) -> None:
        self.fixed = fixed
        self.per_row = per_row
        self.revision = 0

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> PointTime:
        return PointTime(self.fixed + self.per_row * rows)

    def classes(self, cores: int) -> None:
        """All alike."""

    def seconds(self, batch: Batch, cores: int) -> float:
        """As an `Execution`."""
        return self.of(batch.rows, cores).expected


def plan(*, max_batch: int = 4, lanes: int = 1) -> Plan:
    """Model m on `lanes` lanes of one core each."""
    specs = tuple(LaneSpec(f"lane{i}", (i,)) for i in range(lanes))
    return Plan(
        specs,
        tuple(Deployment(POOL, spec.name, max_batch) for spec in specs),
        (Route("m", POOL),),
    )


@dataclass
class World:
    """A simulation and everything that was said in it."""

    times: LinearTimes
    policy: str = "fifo"
    options: Mapping[str, object] = field(default_factory=dict)
    max_batch: int = 4
    lanes: int = 1
    execution: Execution | None = None
    start_s: float = 0.0
    settings: EngineSettings | None = None
    watched: bool = True
    """Whether invariants are checked after every event, and events and commands kept."""
    log: list[tuple[float, tuple[Event, ...], tuple[Command, ...]]] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    subjects: dict[int, Request | Notice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan = plan(max_batch=self.max_batch, lanes=self.lanes)
        self.engine = self.fresh_engine()
        self.simulation = Simulation(
            self.engine,
            self.plan,
            self.execution or self.times,
            answered=self._answered,
            watch=self._watch if self.watched else None,
            start_s=self.start_s,
            check=self.watched,
        )

    def fresh_engine(self) -> Engine:
        def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
            scheduler = make_scheduler(
                self.policy, self.options, max_batch=max_batch, times=self.times, view=view
            )
            return PoolParts(scheduler, self.times)

        return Engine(parts, self.settings)

    def run(self, *items: Item) -> World:
        return self.run_all(items)

    def run_all(self, items: Iterable[Item]) -> World:
        self.simulation.run(items)
        return self

    def _answered(self, request: Request | Notice, outcome: Outcome) -> None:
        assert request.id not in self.outcomes, f"{request.id} answered twice"
        self.outcomes[request.id] = outcome
        self.subjects[request.id] = request

    def _watch(self, events: Sequence[Event], now: float, commands: Sequence[Command]) -> None:
        self.log.append((now, tuple(events), tuple(commands)))

    @property
    def events(self) -> list[tuple[float, str]]:
        """Time and name of every event, those handed over together joined by `+`."""
        return [
            (now, "+".join(type(event).__name__ for event in events)) for now, events, _ in self.log
        ]

    @property
    def batches(self) -> list[tuple[float, tuple[int, ...]]]:
        """Start and members of every batch."""
        return [
            (now, tuple(member.id for member in command.batch.members))
            for now, _, commands in self.log
            for command in commands
            if isinstance(command, RunBatch)
        ]

    @property
    def reasons(self) -> dict[int, Reason]:
        return {id: outcome.reason for id, outcome in sorted(self.outcomes.items())}


def world(*, fixed: float = 0.0, per_row: float = 1.0, **fields: object) -> World:
    """By default `fifo`, batches of up to four, one second for each row."""
    return World(LinearTimes(fixed, per_row), **fields)  # type: ignore[arg-type]  # a builder


def request(id: int, arrival: float, slo: float = 100.0, **fields: object) -> Request:
    return Request(id, "m", arrival, arrival + slo, **fields)  # type: ignore[arg-type]


def notice(id: int, arrival: float, complete_at: float, slo: float = 100.0) -> Notice:
    return Notice(id, "m", arrival, arrival + slo, payload_bytes=100, complete_at=complete_at)


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The builders above."""
    return SimpleNamespace(
        LinearTimes=LinearTimes, notice=notice, plan=plan, request=request, world=world
    )
