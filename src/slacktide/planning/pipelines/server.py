"""`ServerPipelinesPlanner`: pipelines placed on the lanes of one server.

Lanes that share models are a *group*: what the question calls a device, whose streams they are. A
stage runs on lanes of its model's group. Where neither cores nor replicas of a model have a range,
this planner chooses on how many of them, and on which, and the largest batch; of a family, the
largest variant for which all stages have time, within which the planner of variants goes on. It
asks when frames come, a minute later, as often as `PlacementControl`, and when a prediction does
not hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slacktide.domain import Deployment, Event, LaneSpec, Plan, ReplicaUp, Timetable
from slacktide.domain.pipelines import Pipeline
from slacktide.engine import Snapshot
from slacktide.engine.snapshot import PoolSnapshot
from slacktide.pipelines import Frames
from slacktide.planning.bounds import StageBounds
from slacktide.planning.pipelines.control import PlacementControl, PlacementDecision
from slacktide.planning.pipelines.planner import (
    PipelinesPlanner,
    PlacedPipeline,
    moved,
)
from slacktide.planning.pipelines.plans import DevicePlans
from slacktide.planning.pipelines.policies import PlacementPolicy
from slacktide.planning.pipelines.problem import (
    BATCHES,
    DeviceView,
    FormTimes,
    Inflow,
    LinkView,
    PipelineView,
    PlacementError,
    PlacementQuestion,
    StageForm,
    StageView,
)
from slacktide.planning.planner import NO_BOUNDS, JobDone, PlanField, Stated, stated_as
from slacktide.planning.scaling.planner import ScaledModel
from slacktide.planning.variants.family import Family
from slacktide.planning.variants.planned_family import replicas_up

AT_ONCE = 1e15
"""Bytes per second from lane to lane: nothing is sent."""
RETRY_S = 60.0
"""Seconds after which it is asked again where no placement could be found."""


@dataclass(frozen=True, slots=True)
class PlacementRefused:
    """What a job has found out: that nothing can be placed, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class PlacementStatus:
    """Where the placement stands, for metrics and people."""

    decided: int
    """Times that placements were computed."""
    early: int
    """Those of them that did not wait for their time."""
    planning_s: float
    moves: int
    """Models that were given other lanes."""
    rebounds: int
    """Times that a family was given another largest variant."""
    expected: float
    """Share of what could be served at best that is predicted to be."""
    largest: Mapping[str, str]
    """By family: the largest variant that may be chosen."""
    lanes: Mapping[str, tuple[str, ...]]
    """By model that is placed here: its lanes."""
    reason: str
    """Of the last decision, or why there is none."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Lanes that share models."""

    lanes: tuple[str, ...]
    models: frozenset[str]
    cores: int

    @property
    def name(self) -> str:
        return self.lanes[0]


class ServerPipelinesPlanner(PipelinesPlanner):
    """Of one server by itself."""

    def __init__(
        self,
        policy: PlacementPolicy,
        frames: Callable[[], Frames | None],
        *,
        stopwatch: Callable[[], float] = lambda: 0.0,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`stopwatch`: a clock in seconds by which planning is timed. `report` gets a sentence on
        each placement that is another one."""
        control = PlacementControl(PlacementQuestion((), (), ()), policy, stopwatch=stopwatch)
        super().__init__(control, "server", frames, leads=True)
        self._report = report
        self._reason = "no frames have come yet"
        self._pipelines: dict[str, Pipeline] = {}
        self._families: dict[str, Family] = {}
        self._scaled: dict[str, ScaledModel] = {}
        self._groups: tuple[_Group, ...] = ()
        self._base_lanes: dict[str, tuple[str, ...]] = {}
        """By model: its lanes, as settings say."""
        self._known = False
        """Whether frames come."""
        self._seats: dict[str, dict[str, int]] = {}
        """By model: its lanes, with the largest batch on each."""
        self._timetables: dict[str, Timetable] = {}
        self._came_up = False
        self._moving = False
        """Whether replicas stay where they were until others are up."""
        self._moves = self._rebounds = 0
        self._retry_at = -math.inf
        self._largest: Mapping[str, StageBounds] = {}
        self._told = ""
        """The placement that was reported last."""

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> None:
        super().rebase(base, stated, now=now)
        placed = stated_as(PlacedPipeline, stated)
        self._pipelines = {
            name: each.pipeline for name, each in placed.items() if each.pipeline is not None
        }
        self._families = stated_as(Family, stated)
        self._scaled = stated_as(ScaledModel, stated)
        self._groups = tuple(_groups(base, self._scaled))
        self._base_lanes = {}
        for each in base.deployments:
            known = self._base_lanes.get(each.pool.model, ())
            self._base_lanes[each.pool.model] = (*known, each.lane)
        self._report_at = -math.inf
        if not self._pipelines:
            self._forget()

    def observe(self, events: Sequence[Event | JobDone], snapshot: Snapshot, *, now: float) -> None:
        if not self._pipelines:
            return
        looks = now >= self._report_at
        if looks:
            question = self._question(snapshot)
            if question is not None:
                self._restate(question)
        super().observe(events, snapshot, now=now)
        if looks and not self._known:
            self._known = self._control.is_known(now=now)
        for event in events:
            if type(event) is ReplicaUp:
                self._came_up = self._moving
            elif type(event) is JobDone and isinstance(event.answer, PlacementDecision):
                self._settle()
            elif type(event) is JobDone and isinstance(event.answer, PlacementRefused):
                self._retry_at = now + RETRY_S
                if self._reason != event.answer.reason:
                    self._reason = event.answer.reason
                    self._report(f"pipelines are not placed: {self._reason}")

    def next_wakeup(self, snapshot: Snapshot) -> float:
        if not self._pipelines:
            return math.inf
        if self._came_up or not self._known:
            return 0.0 if self._came_up else self._report_at
        return max(super().next_wakeup(snapshot), self._retry_at)

    def is_urgent(self, snapshot: Snapshot, *, now: float) -> bool:
        if not self._known or now < self._retry_at:
            return False
        return self._came_up or super().is_urgent(snapshot, now=now)

    def job(self, snapshot: Snapshot, *, now: float) -> Callable[[], object] | None:
        compute = super().job(snapshot, now=now)
        if compute is None:
            return None

        def place() -> object:
            try:
                return compute()
            except PlacementError as error:
                return PlacementRefused(str(error))

        return place

    def plan(self, snapshot: Snapshot, draft: Plan, *, now: float) -> Plan:
        """Replicas go once those on their new lanes are up."""
        self._filled = self._control.revision
        self._came_up = self._moving = False
        if self._control.plans is None or not self._pipelines:
            return draft
        there = {lane.name: lane for lane in draft.lanes}
        lanes: dict[str, dict[str, int]] = {}
        for model, seats in self._seats.items():
            if (
                PlanField.PLACEMENT not in self._fields.get(model, ())
                or not seats.keys() <= there.keys()
            ):
                continue
            up = {lane for lane, _ in replicas_up(model, snapshot)}
            lanes[model] = dict(seats)
            if not seats.keys() <= up:
                self._moving = True
                lanes[model] |= dict.fromkeys(up & there.keys(), max(seats.values())) | seats
        kept = [each for each in draft.deployments if each.pool.model not in lanes]
        found = [self._capped(each, lanes) for each in moved(draft, lanes)]
        deployments = (*kept, *found)
        on: dict[str, set[str]] = {}
        for each in deployments:
            on.setdefault(each.lane, set()).add(each.pool.model)
        return replace(
            draft,
            lanes=tuple(self._timed(lane, on.get(lane.name, set())) for lane in draft.lanes),
            deployments=deployments,
        )

    def status(self) -> PlacementStatus:
        """Where it stands."""
        control = self._control
        return PlacementStatus(
            control.decided,
            control.early,
            control.planning_s,
            self._moves,
            self._rebounds,
            control.expected,
            {model: each.largest for model, each in self._largest.items()},
            {model: tuple(seats) for model, seats in self._seats.items()},
            self._reason,
        )

    # ── what is asked ────────────────────────────────────────────────────────────────────────

    def _restate(self, question: PlacementQuestion) -> None:
        control = self._control
        control.restate(question)
        if control.plans is None:  # other pipelines, or other lanes
            self._forget()

    def _forget(self) -> None:
        """All is as settings say, until something is placed."""
        if self._seats:
            self._seats, self._timetables, self.bounds = {}, {}, NO_BOUNDS
            self._largest, self._known, self._told = {}, False, ""

    def _question(self, snapshot: Snapshot) -> PlacementQuestion | None:
        """As it stands, but for demand; None: not all models serve."""
        groups = {model: group for group in self._groups for model in group.models}
        views, used = [], dict[str, _Group]()
        for name, pipeline in self._pipelines.items():
            number = {stage: at for at, stage in enumerate(pipeline.order)}
            stages = []
            for stage in pipeline.order:
                model = pipeline.by_name[stage].model
                group = groups.get(model)
                forms = () if group is None else tuple(self._forms(model, group, snapshot))
                if group is None or not forms:
                    return None
                used[group.name] = group
                inflows = tuple(Inflow(number[edge.upstream]) for edge in pipeline.into[stage])
                stages.append(StageView(stage, forms, inflows, model, devices=(group.name,)))
            assert pipeline.slo is not None  # else it is not stated
            home = stages[0].devices[0]
            views.append(PipelineView(name, home, pipeline.slo, 0.0, tuple(stages)))
        devices = tuple(
            DeviceView(group.name, group.name, streams=len(group.lanes), server=True)
            for group in used.values()
        )
        links = tuple(LinkView(a, b, AT_ONCE) for a in used for b in used if a < b)
        return PlacementQuestion(devices, links, tuple(views))

    def _forms(self, model: str, group: _Group, snapshot: Snapshot) -> Iterator[StageForm]:
        """The variants of a family that its planner chooses among, else what runs."""
        pools = {pool.id.variant: pool for pool in snapshot.serving(model)}  # the newest
        family = self._families.get(model)
        if family is None or family.planner == "none":
            if pools:
                yield StageForm((_times(list(pools.values())[-1], group),))
            return
        for each in family.variants:
            if each.name in pools:
                times = _times(pools[each.name], group)
                yield StageForm((times,), each.name, each.accuracy)

    # ── what comes of an answer ──────────────────────────────────────────────────────────────

    def _settle(self) -> None:
        """A placement is in force."""
        plans = self._control.plans
        if plans is None:
            return
        lanes = {group.name: group.lanes for group in self._groups}
        found: dict[str, dict[str, int]] = {}
        for each in plans.replicas:
            seats = found.setdefault(each.model, {})
            lane = lanes[each.device][each.stream]
            seats[lane] = max(each.batch, seats.get(lane, 0))
        before = self._seats
        if not plans.timetables and {m: len(s) for m, s in before.items()} == {
            m: len(s) for m, s in found.items()
        }:  # which of lanes that are alike does not matter
            found = {m: dict.fromkeys(before[m], max(s.values())) for m, s in found.items()}
        at_first = self._base_lanes
        self._moves += sum(set(found[m]) != set(before.get(m, at_first.get(m, ()))) for m in found)
        self._seats = found
        self._timetables = {
            lanes[device][stream]: table for (device, stream), table in plans.timetables.items()
        }
        bounds: dict[str, StageBounds] = {}
        for device in plans.question.devices:
            bounds |= plans.bounds(device.name)
        largest = {model: each for model, each in bounds.items() if each.largest}
        self._rebounds += sum(each != self._largest.get(model) for model, each in largest.items())
        if bounds != self.bounds:
            self.bounds = bounds
        self._largest = largest
        self._tell(plans)

    def _tell(self, plans: DevicePlans) -> None:
        parts = []
        for model, seats in self._seats.items():
            part = f"{model} on {', '.join(seats)}"
            if model in self._largest:
                part += f", at most {self._largest[model].largest}"
            elif PlanField.BATCH_CAPS in self._fields.get(model, ()):
                part += f", in batches of {max(seats.values())}"
            parts.append(part)
        rates = ", ".join(
            f"{view.rate:.3g} frames/s of {view.name}" for view in plans.question.pipelines
        )
        self._reason = f"{self._control.expected:.0%} in time expected at {rates}"
        placed = "; ".join(parts)
        if placed != self._told:
            self._told = placed
            self._report(f"pipelines are placed: {placed} ({self._reason})")

    def _capped(self, one: Deployment, lanes: Mapping[str, Mapping[str, int]]) -> Deployment:
        if PlanField.BATCH_CAPS not in self._fields[one.pool.model]:
            return one
        return replace(one, max_batch=min(one.max_batch, lanes[one.pool.model][one.lane]))

    def _timed(self, lane: LaneSpec, models: Collection[str]) -> LaneSpec:
        """With the windows of an answer, if each model there has one."""
        table = self._timetables.get(lane.name)
        if table is None or not {each.model for each in table.windows} >= set(models):
            return lane
        return replace(lane, timetable=table)


def _times(pool: PoolSnapshot, group: _Group) -> FormTimes:
    found = [pool.times.of(rows, group.cores) for rows in BATCHES if rows <= pool.max_batch]
    return FormTimes(
        group.name, tuple([one.expected for one in found]), tuple([one.p99 for one in found])
    )


def _groups(base: Plan, scaled: Mapping[str, ScaledModel]) -> Iterator[_Group]:
    """Of the lanes of a base plan, in its order."""
    found: list[tuple[list[str], set[str]]] = []
    for lane in base.lanes:
        models = {each.pool.model for each in base.deployments if each.lane == lane.name}
        together = [each for each in found if each[1] & models]
        found = [each for each in found if not each[1] & models]
        lanes = [name for names, _ in together for name in names]
        found.append(([*lanes, lane.name], models.union(*(each for _, each in together))))
    cores = {lane.name: max(1, len(lane.cores)) for lane in base.lanes}
    for names, models in found:
        most = [scaled[model].limits.cores_max for model in models if model in scaled]
        least = min(cores[name] for name in names)
        yield _Group(tuple(names), frozenset(models), max(most, default=least))
