"""`ServerPipelinesPlanner`: pipelines placed on the lanes of one server.

A stage runs on lanes of its model's group (server_question.py). Where neither cores nor replicas
of a model have a range, this planner chooses on how many of them, and on which; of a family, the
largest variant for which all stages have time; where cores have a range, the most; where a model
is left early, whether it may be. Within that the others go on alone. It asks when frames come, a
minute later, as often as `PlacementControl`, and when a prediction does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from slacktide.domain import BatchFinished, Event, Plan, ReplicaUp, Request
from slacktide.engine import Snapshot
from slacktide.pipelines import Frames
from slacktide.planning.bounds import ModelBounds
from slacktide.planning.pipelines.control import PlacementControl, PlacementDecision
from slacktide.planning.pipelines.measured import MeasuredWorth
from slacktide.planning.pipelines.planner import PipelinesPlanner
from slacktide.planning.pipelines.plans import DevicePlans
from slacktide.planning.pipelines.policies import PlacementPolicy
from slacktide.planning.pipelines.problem import PlacementError, PlacementQuestion
from slacktide.planning.pipelines.server_question import ExitsOf, ServerQuestion
from slacktide.planning.pipelines.server_seats import ServerSeats
from slacktide.planning.planner import NO_BOUNDS, JobDone, PlanField, Stated

NOTHING = ModelBounds()
NO_QUESTION = PlacementQuestion((), (), ())
NO_FRAMES = "no frames have come yet"
AS_GOOD = 0.02
"""Share of what could be served at best by which the next must be better than what is measured."""
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
    """Placements that did not wait for their time."""
    planning_s: float
    moves: int
    """Models that were given other lanes."""
    rebounds: int
    """Times that a model was given other bounds."""
    expected: float
    """Share of what could be served at best that is predicted to be."""
    within: Mapping[str, ModelBounds]
    """By model of a stage: the bounds within which others go on."""
    lanes: Mapping[str, tuple[str, ...]]
    """By model that is placed here: its lanes."""
    reason: str
    """Reason for the last decision, or why there is none."""


class ServerPipelinesPlanner(PipelinesPlanner):
    """Of one server by itself."""

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
        """`cores`: of the machine; 0: not known, and not bounded. `exits`: how models are left
        early. `stopwatch`: a clock in seconds by which planning is timed. `report` gets a sentence
        on each placement that is another one."""
        control = PlacementControl(NO_QUESTION, policy, stopwatch=stopwatch)
        super().__init__(control, "server", frames, leads=True)
        self._caps = policy.rules.fill
        """Whether batches are bounded: where none waits to be full, a bound only makes more."""
        self._report = report
        self._reason = NO_FRAMES
        self._asked = ServerQuestion(cores, exits)
        self._seats = ServerSeats(caps=self._caps)
        self._known = False
        """Whether frames come."""
        self._came_up = False
        self._rebounds = 0
        self._retry_at = -math.inf
        self._within: Mapping[str, ModelBounds] = {}
        """The bounds in force."""
        self._wanted: Mapping[str, ModelBounds] = {}
        """Bounds of the last placement."""
        self._measured = MeasuredWorth()
        self._told = ""
        """The placement that was reported last."""

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> None:
        super().rebase(base, stated, now=now)
        self._asked.rebase(base, stated)
        self._seats.rebase(base)
        self._report_at = -math.inf
        if not self._asked.pipelines or not self._asked.knows(self._within):
            self._restate(NO_QUESTION)

    def observe(self, events: Sequence[Event | JobDone], snapshot: Snapshot, *, now: float) -> None:
        if not self._asked.pipelines:
            return
        looks = now >= self._report_at
        if looks:
            question = self._asked.ask(snapshot, self._within)
            if question is not None:
                self._restate(question)
            frames = self._frames()
            if frames is not None:
                self._measured.note(frames.counts, now=now)
            if self._wanted and (plans := self._control.plans) is not None:
                self._bound()
                self._tell(plans)
        super().observe(events, snapshot, now=now)
        if looks and not self._known:
            self._known = self._control.is_known(now=now)
        for event in events:
            if type(event) is ReplicaUp:
                self._came_up = self._seats.moving
            elif type(event) is BatchFinished:
                running = snapshot.running(event.batch)
                if running is not None:
                    exact = self._asked.accuracy(running.batch.replica.pool)
                    if exact is not None:
                        self._measured.ran(running.batch.rows, exact)
            elif type(event) is JobDone and isinstance(event.answer, PlacementDecision):
                self._settle()
            elif type(event) is JobDone and isinstance(event.answer, PlacementRefused):
                self._retry_at = now + RETRY_S
                if self._reason != event.answer.reason:
                    self._reason = event.answer.reason
                    self._report(f"pipelines are not placed: {self._reason}")

    def _came(self, request: Request, now: float) -> None:
        """Its client is that of the frame here, and may be called like any pipeline. Rows are for
        the autoscaler alone."""
        frames = self._frames() if self._control.policy.scales else None
        of = None if frames is None else frames.stage_of(request.id)
        if of is not None and of[1] in (arrivals := self._arrivals.get(of[0], {})):
            arrivals[of[1]].rows += request.rows

    def next_wakeup(self, snapshot: Snapshot) -> float:
        if not self._asked.pipelines:
            return math.inf
        if self._came_up or not self._known:
            return 0.0 if self._came_up else self._report_at
        return max(super().next_wakeup(snapshot), self._retry_at)

    def is_urgent(self, snapshot: Snapshot, *, now: float) -> bool:
        if self._came_up:
            return True
        return self._known and now >= self._retry_at and super().is_urgent(snapshot, now=now)

    def job(self, snapshot: Snapshot, *, now: float) -> Callable[[], object] | None:
        scaled = self._control.scaled
        compute = super().job(snapshot, now=now)
        if self._control.scaled != scaled:
            self._settle()
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
        self._explain(again=self._came_up)
        self._filled = self._control.revision
        self._came_up = self._seats.moving = False
        if self._control.plans is None or not self._asked.pipelines:
            return draft
        return self._seats.filled(draft, snapshot, self._fields)

    def status(self) -> PlacementStatus:
        """Where it stands."""
        control = self._control
        return PlacementStatus(
            control.decided,
            control.early,
            control.planning_s,
            self._seats.moves,
            self._rebounds,
            control.expected,
            self._within,
            {model: tuple(seats) for model, seats in self._seats.by_model.items()},
            self._reason,
        )

    # ── what is asked ────────────────────────────────────────────────────────────────────────

    def _restate(self, question: PlacementQuestion) -> None:
        """Of other pipelines, or lanes, all is as settings say until something is placed."""
        self._control.restate(question)
        if self._control.plans is None and self._seats.by_model:
            self._seats.clear()
            self.bounds = NO_BOUNDS
            self._within, self._wanted, self._known, self._told = {}, {}, False, ""
            self._reason = NO_FRAMES

    # ── what comes of an answer ──────────────────────────────────────────────────────────────

    def _settle(self) -> None:
        """A placement is in force."""
        plans = self._control.plans
        if plans is None:
            return
        self._seats.settle(plans, self._asked.groups, stays=self._is_as_good())
        self._wanted = self._asked.bounds(plans)
        self._bound()
        self._tell(plans)

    def _bound(self) -> None:
        """A family may keep its largest variant while that is as good."""
        stays = self._is_as_good()
        bounds = dict(self._wanted)
        for model, bound in bounds.items():
            before = self._within.get(model, NOTHING).largest
            if stays and self._asked.is_smaller(model, bound.largest, before):
                bounds[model] = replace(bound, largest=before)
        self._rebounds += sum(
            bound != self._within.get(model, NOTHING) for model, bound in bounds.items()
        )
        if bounds != self.bounds:
            self.bounds = bounds
        self._within = bounds

    def _is_as_good(self) -> bool:
        """Whether what is in force is worth, by measure, as much as the last placement is expected
        to be: then nothing is taken and nothing moved, for predictions are on the careful side."""
        if not self._control.policy.watches:  # it says where, not how well that serves
            return False
        measured = self._measured.share()
        return measured is None or measured >= self._control.expected - AS_GOOD

    def _tell(self, plans: DevicePlans) -> None:
        parts = []
        for model, seats in self._seats.by_model.items():
            part = f"{model} on {', '.join(seats)}"
            bounds = self._within.get(model, NOTHING)
            if bounds.largest:
                part += f", at most {bounds.largest}"
            elif self._caps and PlanField.BATCH_CAPS in self._fields.get(model, ()):
                part += f", in batches of {max(seats.values())}"
            if bounds.cores is not None:
                part += f", on {bounds.cores} cores at most"
            if not bounds.exits:
                part += ", to its end"
            parts.append(part)
        rates = ", ".join(
            f"{view.rate:.3g} frames/s of {view.name}" for view in plans.question.pipelines
        )
        self._reason = f"{self._control.expected:.0%} in time expected at {rates}"
        placed = "; ".join(parts)
        if placed != self._told:
            self._told = placed
            self._report(f"pipelines are placed: {placed} ({self._reason})")
