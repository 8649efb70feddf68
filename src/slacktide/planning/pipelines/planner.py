"""`ServerPipelinesPlanner`: places pipelines on the lanes of one server.

A stage runs on lanes of its model's group (server_question.py). This planner chooses how many lanes
a model has, and which, unless the model's cores or replicas have a range. It sets bounds for the
planners that follow: the largest variant of a family for which all stages have time, the most
cores, and whether rows may leave early. It plans when frames come, a minute later, then as often as
`PlacementControl` does, and when a prediction fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from slacktide.domain import BatchFinished, Event, Plan, ReplicaUp, Request, Submitted
from slacktide.engine import Snapshot
from slacktide.pipelines import Frames
from slacktide.planning.draft import UNBOUNDED, Draft, ModelBounds
from slacktide.planning.lanes.server_lanes import ServerLanes
from slacktide.planning.pipelines.control import CHECK_S, PlacementControl, PlacementDecision
from slacktide.planning.pipelines.demand import StageArrivals, counts_of
from slacktide.planning.pipelines.measured import MeasuredWorth
from slacktide.planning.pipelines.placed_pipeline import PlacedPipeline, fields_of
from slacktide.planning.pipelines.plans import DevicePlans
from slacktide.planning.pipelines.policies import PlacementPolicy
from slacktide.planning.pipelines.problem import PlacementError, PlacementQuestion
from slacktide.planning.pipelines.server_question import ExitsOf, ServerQuestion
from slacktide.planning.planner import JobDone, Owned, PlanField, Planner, Stated, stated_as

NO_QUESTION = PlacementQuestion((), (), ())
NO_FRAMES = "no frames have arrived yet"
AS_GOOD = 0.02
"""Share of the best possible service by which a placement must beat the measured service."""
RETRY_S = 60.0
"""Seconds to the next attempt after no placement could be found."""


@dataclass(frozen=True, slots=True)
class PlacementRefused:
    """A job found that nothing can be placed."""

    reason: str
    """Why nothing can be placed."""


@dataclass(frozen=True, slots=True)
class PlacementStatus:
    """The state of the placement, for metrics and people."""

    decided: int
    """Number of placements computed."""
    early: int
    """Placements computed before their time."""
    planning_s: float
    moves: int
    """Models that were given other lanes."""
    rebounds: int
    """Number of times that a model was given other bounds."""
    expected: float
    """Predicted share of the best possible service."""
    within: Mapping[str, ModelBounds]
    """Bounds for other planners, by model of a stage."""
    lanes: Mapping[str, tuple[str, ...]]
    """Lanes of each model that is placed here."""
    reason: str
    """Reason for the last decision, or why there is none."""


class ServerPipelinesPlanner(Planner):
    """The planner of a server that places its own pipelines."""

    name = "pipelines"

    def __init__(
        self,
        policy: PlacementPolicy,
        frames: Callable[[], Frames | None],
        *,
        cores: int = 0,
        exits: ExitsOf = dict,
        stopwatch: Callable[[], float] = lambda: 0.0,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`cores`: cores of the machine; 0: unknown, and not bounded. `exits` returns the state of
        early exits. `stopwatch`: a clock in seconds that times planning. `report` gets a sentence
        on each new placement."""
        self._control = PlacementControl(NO_QUESTION, policy, stopwatch=stopwatch)
        self._frames = frames
        self._arrivals: dict[str, dict[str, StageArrivals]] = {}
        """By pipeline and stage."""
        self._fields: dict[str, frozenset[PlanField]] = {}
        """The fields of each model that this planner writes."""
        self._plan_revision = self._reason_revision = -1
        """Revisions of the placement in the last plan, and of the placement that `reason`
        explains."""
        self._report_at = -math.inf
        self._caps = policy.rules.fill
        """Whether batches are bounded. If no batch waits to be full, a bound would only make more
        batches."""
        self._report = report
        self._last_report = ""
        """The placement that was reported last."""
        self._reason = NO_FRAMES
        self._question = ServerQuestion(cores, exits)
        self._lanes = ServerLanes(caps=self._caps)
        self._has_frames = False
        self._came_up = False
        """Whether a replica came up on a lane that its model moves to."""
        self._bounds_changed = False
        """Whether the bounds differ from those in the last plan."""
        self._rebounds = 0
        self._retry_at = -math.inf
        self.bounds: Mapping[str, ModelBounds] = {}
        """Bounds in force, by model."""
        self._placement_bounds: Mapping[str, ModelBounds] = {}
        """Bounds of the last placement, by model."""
        self._measured = MeasuredWorth()

    def owns(self, stated: Stated) -> frozenset[Owned]:
        pipelines = stated_as(PlacedPipeline, stated)
        owned = {(name, PlanField.PLACES) for name in pipelines}
        owned |= {
            (model, field)
            for pipeline in pipelines.values()
            for model in pipeline.stages.values()
            for field in fields_of(model, stated)
        }
        return frozenset(owned)

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> None:
        before, self._arrivals, self._fields, self._plan_revision = self._arrivals, {}, {}, -1
        for name, pipeline in stated_as(PlacedPipeline, stated).items():
            arrivals = before.get(name, {})
            self._arrivals[name] = {s: arrivals.get(s) or StageArrivals() for s in pipeline.stages}
            for model in pipeline.stages.values():
                self._fields[model] = fields_of(model, stated)
        self._question.rebase(base, stated)
        self._lanes.rebase(base)
        self._report_at = -math.inf
        if not self._question.pipelines or not self._question.knows(self.bounds):
            self._restate(NO_QUESTION)

    def observe(self, events: Sequence[Event | JobDone], snapshot: Snapshot, *, now: float) -> None:
        if not self._question.pipelines:
            return
        looks = now >= self._report_at
        if looks:
            self._update_question(snapshot, now)
        for event in events:
            if type(event) is Submitted:
                if event.request.parent is not None:
                    self._count_request(event.request)
            elif type(event) is ReplicaUp:
                self._came_up = self._lanes.moving
            elif type(event) is BatchFinished:
                running = snapshot.running(event.batch)
                if running is not None:
                    exact = self._question.accuracy(running.batch.replica.pool)
                    if exact is not None:
                        self._measured.ran(running.batch.rows, exact)
            elif type(event) is JobDone:
                self._accept(event.answer, now)
        if looks:
            self._report_at = now + CHECK_S
            self._control.count("server", counts_of(self._frames(), self._arrivals), now=now)
            self._has_frames = self._has_frames or self._control.has_frames(now=now)

    def _update_question(self, snapshot: Snapshot, now: float) -> None:
        """Bring question, measured worth and bounds up to date."""
        question = self._question.ask(snapshot, self.bounds)
        if question is not None:
            self._restate(question)
        frames = self._frames()
        if frames is not None:
            self._measured.note(frames.counts, now=now)
        if self._placement_bounds and (plans := self._control.plans) is not None:
            self._bound()
            self._report_placement(plans)

    def _accept(self, answer: object, now: float) -> None:
        """Take the answer of a job."""
        if isinstance(answer, PlacementDecision):
            self._control.accept(answer, now=now)
            self._apply()
        elif isinstance(answer, PlacementRefused):
            self._retry_at = now + RETRY_S
            if self._reason != answer.reason:
                self._reason = answer.reason
                self._report(f"pipelines cannot be placed: {self._reason}")

    def _count_request(self, request: Request) -> None:
        """Count rows for the autoscaler. The request's client does not show the pipeline: it is the
        client of the pipeline's call, which may have the name of any pipeline."""
        frames = self._frames() if self._control.policy.scales else None
        pipeline, stage = (frames and frames.stage_of(request.id)) or ("", "")
        arrivals = self._arrivals.get(pipeline, {}).get(stage)
        if arrivals is not None:
            arrivals.rows += request.rows

    def next_wakeup(self, snapshot: Snapshot) -> float:
        if not self._question.pipelines:
            return math.inf
        if self._came_up or self._bounds_changed:
            return 0.0
        if not self._has_frames:
            return self._report_at
        at = min(self._report_at, self._control.next_wakeup())
        return max(0.0 if self._is_new else at, self._retry_at)

    def is_urgent(self, snapshot: Snapshot, *, now: float) -> bool:
        if self._came_up or self._bounds_changed:
            return True
        is_due = self._is_new or self._control.next_wakeup() <= now
        return self._has_frames and now >= self._retry_at and is_due

    def meanwhile_at(self) -> float:
        return 0.0 if self._bounds_changed or self._is_new else self._report_at

    @property
    def _is_new(self) -> bool:
        """Whether the last plan lacks the placement in force."""
        return self._plan_revision != self._control.revision

    def job(self, snapshot: Snapshot, *, now: float) -> Callable[[], object] | None:
        if not self._has_frames:
            return None
        scaled = self._control.scaled
        self._control.look(now=now)
        if self._control.scaled != scaled:
            self._apply()
        compute = self._control.job(now=now)
        if compute is None:
            return None

        def place() -> object:
            try:
                return compute()
            except PlacementError as error:
                return PlacementRefused(str(error))

        return place

    def plan(self, snapshot: Snapshot, draft: Draft, *, now: float) -> Draft:
        """See `Planner`. Replicas leave old lanes once the replicas on the new lanes are up."""
        revision = self._control.revision
        is_new = self._came_up or self._reason_revision != revision
        self.reason = self._control.reason if is_new else ""
        self._plan_revision = self._reason_revision = revision
        self._came_up = self._bounds_changed = self._lanes.moving = False
        if self._control.plans is None or not self._question.pipelines:
            return draft
        plan = self._lanes.write(draft.plan, snapshot, self._fields)
        return replace(draft.bounded(self.bounds), plan=plan)

    def status(self) -> PlacementStatus:
        """Return the state of the placement."""
        control = self._control
        return PlacementStatus(
            control.decided,
            control.early,
            control.planning_s,
            self._lanes.moves,
            self._rebounds,
            control.expected,
            self.bounds,
            {model: tuple(lanes) for model, lanes in self._lanes.by_model.items()},
            self._reason,
        )

    def _restate(self, question: PlacementQuestion) -> None:
        """Ask `question` from now on. If pipelines or lanes have changed, lanes and bounds are as
        the settings state until there is a placement."""
        self._control.restate(question)
        if self._control.plans is None and self._lanes.by_model:
            self._lanes.clear()
            self._bounds_changed = True
            self.bounds, self._placement_bounds = {}, {}
            self._has_frames, self._last_report = False, ""
            self._reason = NO_FRAMES

    def _apply(self) -> None:
        """Put a new placement in force."""
        plans = self._control.plans
        if plans is None:
            return
        self._lanes.apply(plans, self._question.groups, stays=self._is_as_good())
        self._placement_bounds = self._question.bounds(plans)
        self._bound()
        self._report_placement(plans)

    def _bound(self) -> None:
        """Limit other planners to the placement, but let a family keep its largest variant while
        the present lanes are as good as the placement (`_is_as_good`)."""
        stays = self._is_as_good()
        bounds = dict(self._placement_bounds)
        for model, bound in bounds.items():
            before = self.bounds.get(model, UNBOUNDED).largest
            if stays and self._question.is_smaller(model, bound.largest, before):
                bounds[model] = replace(bound, largest=before)
        self._rebounds += sum(
            bound != self.bounds.get(model, UNBOUNDED) for model, bound in bounds.items()
        )
        self._bounds_changed = self._bounds_changed or bounds != self.bounds
        self.bounds = bounds

    def _is_as_good(self) -> bool:
        """Whether the measured service of the present lanes is as good as the expected service of
        the last placement. If so, no model loses cores or variants or moves, because predictions
        are cautious."""
        if not self._control.policy.watches:  # it predicts no service
            return False
        measured = self._measured.share()
        return measured is None or measured >= self._control.expected - AS_GOOD

    def _report_placement(self, plans: DevicePlans) -> None:
        parts = []
        for model, lanes in self._lanes.by_model.items():
            part = f"{model} on {', '.join(lanes)}"
            bounds = self.bounds.get(model, UNBOUNDED)
            if bounds.largest:
                part += f", largest variant {bounds.largest}"
            elif self._caps and PlanField.BATCH_CAPS in self._fields.get(model, ()):
                part += f", in batches of {max(lanes.values())}"
            if bounds.cores is not None:
                part += f", at most {bounds.cores} cores"
            if not bounds.exits:
                part += ", without early exits"
            parts.append(part)
        rates = ", ".join(
            f"{view.rate:.3g} frames/s of {view.name}" for view in plans.question.pipelines
        )
        self._reason = f"{self._control.expected:.0%} expected in time at {rates}"
        placed = "; ".join(parts)
        if placed != self._last_report:
            self._last_report = placed
            self._report(f"pipelines placed: {placed} ({self._reason})")
