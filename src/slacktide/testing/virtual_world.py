"""`VirtualWorld`: one model in virtual time, with any scheduler, and a log of events.

world = VirtualWorld(LinearTimes(0.0, 1.0), scheduler=MyScheduler, options={"margin": 0.1})
world.run(make_request(1, arrival=0.0, slo=2.0), make_request(2, arrival=0.5, slo=2.0))
assert world.batches == [(0.0, (1,)), (1.0, (2,))]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
from slacktide.lab.simulation import Execution, Item, Simulation, SimulationError
from slacktide.profiles import BatchTimes, PointTime
from slacktide.scheduling import POLICIES, make_scheduler

_POOL = PoolId("m", "1")


class LinearTimes(BatchTimes):
    """Batches take `fixed` + `per_row` · rows seconds, which is also the prediction."""

    revision = 0

    def __init__(self, fixed: float, per_row: float) -> None:
        self.fixed = fixed
        self.per_row = per_row

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> PointTime:
        return PointTime(self.fixed + self.per_row * rows)

    def seconds(self, batch: Batch, cores: int) -> float:
        """Time of a batch in the simulator (`Execution`)."""
        return self.of(batch.rows, cores).expected


def one_model_plan(*, max_batch: int = 4, lanes: int = 1) -> Plan:
    """A plan for model `m` on `lanes` lanes of one core each."""
    specs = tuple(LaneSpec(f"lane{number}", (number,)) for number in range(lanes))
    deployments = tuple(Deployment(_POOL, spec.name, max_batch) for spec in specs)
    return Plan(specs, deployments, (Route("m", _POOL),))


def make_request(id: int, arrival: float, slo: float = 100.0, **fields: Any) -> Request:
    """Make a request for model `m`. `fields` are further fields of `Request`."""
    return Request(id, "m", arrival, arrival + slo, **fields)


def make_notice(id: int, arrival: float, complete_at: float, slo: float = 100.0) -> Notice:
    """Make the notice of a request whose body is complete at `complete_at`."""
    return Notice(id, "m", arrival, arrival + slo, payload_bytes=100, complete_at=complete_at)


def _raise_failure(text: str) -> None:
    raise SimulationError(text)


@dataclass
class VirtualWorld:
    """A simulation of one model, with a log of everything that happened."""

    times: LinearTimes
    scheduler: str | Callable[..., Any] = "fifo"
    """A scheduler's name, or its class."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of the scheduler."""
    max_batch: int = 4
    lanes: int = 1
    execution: Execution | None = None
    """Times of batches in the simulation; by default `times`."""
    start_s: float = 0.0
    """Seconds that a replica takes to start."""
    settings: EngineSettings | None = None
    watched: bool = True
    """Whether to check the engine's invariants after every event, and to keep the log."""
    log: list[tuple[float, tuple[Event, ...], tuple[Command, ...]]] = field(default_factory=list)
    """Time, events, and the engine's commands, of every turn."""
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """Outcomes by request."""
    subjects: dict[int, Request | Notice] = field(default_factory=dict)
    """Requests with an outcome, by id."""

    def __post_init__(self) -> None:
        self.plan = one_model_plan(max_batch=self.max_batch, lanes=self.lanes)
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
        """Another engine like that of this world, in its initial state."""
        name = self._scheduler_name()

        def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
            scheduler = make_scheduler(
                name,
                self.options,
                max_batch=max_batch,
                times=self.times,
                view=view,
                failed=_raise_failure,
            )
            return PoolParts(scheduler, self.times)

        return Engine(parts, self.settings)

    def run(self, *items: Item) -> VirtualWorld:
        """Play requests, in order of arrival, until nothing remains to be done. Raises
        SimulationError if the scheduler breaks its contract."""
        return self.run_all(items)

    def run_all(self, items: Iterable[Item]) -> VirtualWorld:
        """As `run`, for an iterable."""
        self.simulation.run(items)
        return self

    @property
    def events(self) -> list[tuple[float, str]]:
        """Time and name of every event. Names of simultaneous events are joined by `+`."""
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
        """The reason of every outcome, by request."""
        return {id: outcome.reason for id, outcome in sorted(self.outcomes.items())}

    def _scheduler_name(self) -> str:
        if isinstance(self.scheduler, str):
            return self.scheduler
        made_of = self.scheduler
        name = f"{made_of.__module__}:{made_of.__qualname__}"
        POLICIES.offer(name, lambda: made_of)
        return name

    def _answered(self, request: Request | Notice, outcome: Outcome) -> None:
        assert request.id not in self.outcomes, f"request {request.id} was answered twice"
        self.outcomes[request.id] = outcome
        self.subjects[request.id] = request

    def _watch(self, events: Sequence[Event], now: float, commands: Sequence[Command]) -> None:
        self.log.append((now, tuple(events), tuple(commands)))
