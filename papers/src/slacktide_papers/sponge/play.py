"""Play one cell in virtual time: the engine with its `slack` queue, the autoscaler and a planner.

Every contender has the same requests, queue, predictions and views; only its planner differs. A
run begins warm: traffic comes for a while before anything counts, and the instances of the first
plan are up from the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge

import numpy as np

from slacktide.domain import (
    Command,
    Deployment,
    Event,
    LaneSpec,
    Notice,
    Outcome,
    OutcomeKind,
    Plan,
    PlanChanged,
    PoolId,
    Request,
    Route,
)
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.simulation import AsExpected, Item, SimulatedUpload, Simulation
from slacktide.planning.scaling import ScaledModel, ScalingLimits, ScalingPlanner
from slacktide.profiles import CorrectedTimes
from slacktide.scheduling import make_scheduler
from slacktide_papers.sponge.clairvoyant import clairvoyant
from slacktide_papers.sponge.experiments import CLAIRVOYANT, SpongeCell, SpongeContender
from slacktide_papers.sponge.setting import (
    BATCH,
    CORES,
    SETTINGS,
    SLO,
    SpongeRequests,
    SpongeSetting,
    bandwidths,
    draw,
    table,
    unavoidable,
)

WARM_S = 30.0
"""Seconds of traffic before time 0, which do not count."""
QUEUE = "slack"
"""Policy of every queue. `edf` collapses here: a first request that is nearly late forces small
batches."""
RESIZE_S = 0.02
"""Seconds that a resize takes: the limit for live resizes."""
_ANSWERED = (OutcomeKind.SERVED, OutcomeKind.LATE)


@dataclass(frozen=True, slots=True)
class Played:
    """Outcome of a run. Requests are those sent within the time that counts."""

    requests: int
    violations: int
    """Requests that were not answered by their deadline, for any reason."""
    unavoidable: int
    """Violations of requests that would be late even alone on all cores."""
    p99_ms: float
    """Latency of answered requests since they were sent; 0 if none was answered."""
    cores: Sequence[float]
    """Mean cores allocated to all instances of all models, by second."""
    late: Sequence[int]
    """Violations, by the second in which the request was sent."""
    replicas: int
    """Maximum number of instances of one model at a time."""
    needed: int
    """Instances that the load needs according to the planner's status; 0: none stated."""

    @property
    def mean_cores(self) -> float:
        return sum(self.cores) / len(self.cores)

    @property
    def violation_rate(self) -> float:
        return self.violations / self.requests

    @property
    def unavoidable_rate(self) -> float:
        return self.unavoidable / self.requests


def play(cell: SpongeCell) -> Played:
    """Play `cell`; equal cells give equal outcomes. Raises ReproduceError,
    OptionError."""
    data = bandwidths(cell.folder)
    setting = SETTINGS[cell.setting]
    requests = {
        model: draw(setting, model, cell.seed, -WARM_S, cell.duration, data)
        for model in setting.models
    }
    if cell.contender.policy == CLAIRVOYANT:
        return _foreseen(cell, setting, requests)
    return _Run(cell, setting, requests).played()


def _foreseen(
    cell: SpongeCell, setting: SpongeSetting, requests: dict[str, SpongeRequests]
) -> Played:
    """The clairvoyant's outcome, model by model: a bound if several models share a machine."""
    cores = np.zeros(cell.duration)
    least, most = cell.contender.cores or (1, CORES)
    total = violations = doomed = 0
    for model_requests in requests.values():
        counted = model_requests.sent >= 0.0
        avoidable = counted & ~unavoidable(setting, model_requests)
        best = clairvoyant(
            model_requests.ready[avoidable].tolist(),
            model_requests.deadlines[avoidable].tolist(),
            setting.seconds,
            cores_min=least,
            cores_max=most,
            batch_max=BATCH,
            duration=cell.duration,
        )
        cores += best.cores
        total += int(counted.sum())
        doomed += int((counted & ~avoidable).sum())
        violations += int(counted.sum()) - best.served
    return Played(
        requests=total,
        violations=violations,
        unavoidable=doomed,
        p99_ms=0.0,
        cores=_rounded(cores.tolist()),
        late=(),
        replicas=1,
        needed=0,
    )


def _rounded(cores: Sequence[float]) -> tuple[float, ...]:
    """Mean cores, rounded as they are stored."""
    return tuple(round(count, 4) for count in cores)


class _Run:
    """One simulation and its counters."""

    def __init__(
        self, cell: SpongeCell, setting: SpongeSetting, requests: dict[str, SpongeRequests]
    ) -> None:
        self._cell = cell
        self._setting = setting
        self._requests = requests
        self._from = min(setting.settles_s, cell.duration / 2.0)
        self._latencies: list[float] = []
        self._late = np.zeros(cell.duration, dtype=np.int64)
        self._counted = self._violations = 0
        self._replicas = self._needed = 0
        self._planner = ScalingPlanner(range(setting.machine))
        self._simulation = Simulation(
            Engine(self._parts),
            _base(setting, cell.contender),
            AsExpected(CorrectedTimes(table(setting))),
            answered=self._answered,
            watch=self._watch,
            begin=-WARM_S,
            start_s=setting.start_s,
            resize_s=RESIZE_S,
            planners=(self._planner,),
            stated=self._scaled(),
        )

    def played(self) -> Played:
        cell, setting = self._cell, self._setting
        # The planner wakes up for ever, so a run ends at an instant when all outcomes are in.
        end = (
            cell.duration
            + 2.0 * SLO
            + max(float(r.ready[-1] - r.sent[-1]) for r in self._requests.values())
        )
        self._simulation.run(self._items(), until=end)
        edges = [float(second) for second in range(cell.duration + 1)]
        return Played(
            requests=self._counted,
            violations=self._violations,
            unavoidable=sum(
                int((unavoidable(setting, requests) & (requests.sent >= self._from)).sum())
                for requests in self._requests.values()
            ),
            p99_ms=1e3 * float(np.quantile(self._latencies, 0.99)) if self._latencies else 0.0,
            cores=_rounded(self._simulation.hardware.allocated.means(edges)),
            late=tuple(self._late.tolist()),
            replicas=self._replicas,
            needed=self._needed,
        )

    def _parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        times = CorrectedTimes(table(self._setting))
        return PoolParts(
            make_scheduler(QUEUE, {}, max_batch=max_batch, times=times, view=view), times
        )

    def _scaled(self) -> dict[str, ScaledModel]:
        contender, setting = self._cell.contender, self._setting
        least, most = contender.cores or (1, CORES)
        limits = ScalingLimits(
            cores_min=least,
            cores_max=most,
            replicas_max=_replicas(setting, contender),
            batch_max=BATCH,
        )
        scaled = ScaledModel(limits, contender.policy, dict(contender.options))
        return dict.fromkeys(setting.models, scaled)

    def _items(self) -> Iterator[Item]:
        streams = [
            self._of(model, requests, number)
            for number, (model, requests) in enumerate(self._requests.items())
        ]
        return merge(*streams, key=lambda item: item.arrival)

    def _of(self, model: str, requests: SpongeRequests, number: int) -> Iterator[Item]:
        """The requests of one model: as announced uploads, or as requests that arrive complete."""
        step = len(self._requests)
        columns = zip(
            requests.sent.tolist(), requests.ready.tolist(), requests.believed.tolist(), strict=True
        )
        announced = self._cell.contender.notice
        for place, (sent, ready, believed) in enumerate(columns):
            request = Request(
                id=place * step + number,
                model=model,
                arrival=sent if announced else ready,
                deadline=sent + SLO,
                network_time=0.0 if announced else ready - sent,
            )
            if announced:
                yield SimulatedUpload.of(request, believed=believed, complete_at=ready)
            else:
                yield request

    def _answered(self, request: Request | Notice, outcome: Outcome) -> None:
        sent = request.deadline - SLO
        if not self._from <= sent < self._cell.duration:
            return
        self._counted += 1
        if outcome.kind in _ANSWERED:
            self._latencies.append(outcome.at - sent)
        if outcome.kind is not OutcomeKind.SERVED:
            self._violations += 1
            self._late[int(sent)] += 1

    def _watch(self, events: Sequence[Event], now: float, commands: Sequence[Command]) -> None:
        for event in events:
            if isinstance(event, PlanChanged):
                placed = [deployment.pool.model for deployment in event.plan.deployments]
                most = max(map(placed.count, self._setting.models))
                self._replicas = most if now < 0.0 else max(self._replicas, most)
                if now >= self._from:
                    status = self._planner.status(self._simulation.engine.snapshot()).values()
                    needed = [state.target.needed for state in status if state.target is not None]
                    self._needed = max([self._needed, *needed])


def _replicas(setting: SpongeSetting, contender: SpongeContender) -> int:
    """The maximum number of instances of one model."""
    if not contender.replicas:
        return 1
    least, most = contender.cores or (1, CORES)
    share = setting.machine // len(setting.models)
    return share if most == 1 else min(setting.replicas, share // least)


def _base(setting: SpongeSetting, contender: SpongeContender) -> Plan:
    """The first plan: one instance with the most cores or, if instances have one core each, the
    maximum number of them."""
    _, most = contender.cores or (1, CORES)
    share = min(CORES, setting.machine // len(setting.models))
    count = _replicas(setting, contender) if most == 1 else 1
    size = min(most, share)
    lanes: list[LaneSpec] = []
    deployments: list[Deployment] = []
    routes: list[Route] = []
    for model in setting.models:
        pool = PoolId(model, "1")
        routes.append(Route(model, pool))
        for number in range(count):
            first = sum(len(lane.cores) for lane in lanes)
            lanes.append(LaneSpec(f"{model}-{number}", tuple(range(first, first + size))))
            deployments.append(Deployment(pool, lanes[-1].name, BATCH))
    return Plan(tuple(lanes), tuple(deployments), tuple(routes))
