"""`Runtime`: the engine together with its planners and its recorder. Each driver owns one.

A driver passes in events and `now` and gets commands back; `next_wakeup` says when it must deliver
TimerFired. Planners see events first, and the engine handles their new plan before those events.
The recording contains everything that the engine handled, including plans, so it replays without
planners. If pipelines are served, `Frames` sits above the engine: it turns events of frames into
events for the engine, and the engine's answers to stages into further events, until none is left.

If `on_fault` is given, a failure costs as little as possible. If the engine cannot handle an event,
only that event is lost: commands for the others are carried out, since they hold the answers of
other clients. A plan that cannot be applied is reverted. A planner that raises is called again
after a pause; until then its last target stays in force, like those of other planners.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from slacktide.domain import Answer, Command, Event, FreeSlots, Plan, PlanChanged
from slacktide.domain.frames import FRAME_EVENTS, FrameCommand, FrameEvent
from slacktide.engine import Engine
from slacktide.pipelines import Frames, of_children
from slacktide.planning import Composer, ExitEvent, Job, JobDone, Planner, SessionEvent, Stated
from slacktide.planning.exits.events import EXIT_EVENTS
from slacktide.planning.sessions import SESSION_EVENTS

PAUSE_S = 10.0
"""Seconds without new plans after a planner has failed."""

RuntimeEvent: TypeAlias = Event | JobDone | SessionEvent | ExitEvent | FrameEvent
"""Everything that drivers deliver. Only an `Event` goes to the engine; planners and `Frames` handle
the other types."""

RuntimeCommand: TypeAlias = Command | FrameCommand

_NOT_FOR_ENGINE: frozenset[type] = frozenset((*SESSION_EVENTS, *EXIT_EVENTS, *FRAME_EVENTS))

WatchFrames = Callable[[FrameEvent | None, str, float, Sequence[FrameCommand]], None]
"""Called after every call of `Frames` with (event of a frame or None, trigger, now, commands). The
trigger, if there is no event: `answers` of the engine's last call, or frames that are `due`."""

Watch = Callable[[Sequence[Event], float, Sequence[Command]], None]
"""Called after every call of the engine with (the events it handled together, now, commands)."""


class Faults(Protocol):
    """A function that is called with each failure."""

    def __call__(self, fault: str, error: Exception, *, fatal: bool = False) -> None:
        """`fatal`: no consistent state is left, so the server cannot continue."""


class CoreSeconds:
    """Core-seconds that each lane has held its cores, whether busy or idle."""

    def __init__(self) -> None:
        self.sizes: Mapping[str, int] = {}
        """Number of confirmed cores by lane."""
        self._totals: dict[str, float] = {}
        self._since = 0.0

    def note(self, sizes: Mapping[str, int], *, now: float) -> None:
        """Set the number of cores by lane from `now` on; other lanes have none."""
        self._totals = dict(self.totals(now=now))
        self._since = now
        self.sizes = sizes
        for lane in sizes:
            self._totals.setdefault(lane, 0.0)

    def totals(self, *, now: float) -> Mapping[str, float]:
        """Core-seconds up to `now` of every lane, including those that no longer exist."""
        elapsed = now - self._since
        return {
            lane: total + self.sizes.get(lane, 0) * elapsed for lane, total in self._totals.items()
        }


class Runtime:
    """The engine, its planners and `Frames`. Pure and not thread-safe: one driver, one thread."""

    def __init__(
        self,
        engine: Engine,
        planners: Sequence[Planner] = (),
        *,
        watch: Watch | None = None,
        watch_frames: WatchFrames | None = None,
        on_fault: Faults | None = None,
        on_lanes: Callable[[Mapping[str, int], float], None] | None = None,
        stopwatch: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Without `on_fault`, faults are raised. `on_lanes` is called with the number of confirmed
        cores of every lane, and the time, whenever they change. `stopwatch` is a clock in seconds
        that times planning. Raises PlannerError if two planners own the same field."""
        self.engine = engine
        self.frames: Frames | None = None
        """None until a pipeline is served."""
        self.composer = Composer(planners)
        self.usage = CoreSeconds()
        self.plans = 0
        """Number of plans made by planners; loads and unloads are not counted."""
        self.planning_s = 0.0
        """Seconds that the driver has spent on planning."""
        self.plan_fault: Exception | None = None
        """Why the last plan could not be applied; None if it was applied."""
        self._watch = watch
        self._watch_frames = watch_frames
        self._on_fault = on_fault
        self._on_lanes = on_lanes
        self._stopwatch = stopwatch
        self._lane_changes = -1
        self._paused_until = -math.inf

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> Plan:
        """Change the base plan to `base`. Returns the plan to hand to the engine next; see
        `Composer.rebase`."""
        self._paused_until = -math.inf
        self.plan_fault = None
        return self.composer.rebase(base, stated, self.engine.snapshot(now=now), now=now)

    def handle(self, events: Sequence[RuntimeEvent], *, now: float) -> Sequence[RuntimeCommand]:
        """Handle `events` that happened together; return the commands to carry out, in order."""
        framed: Sequence[FrameEvent] = ()
        unframed: Sequence[Event | JobDone] = events  # type: ignore[assignment]  # or split below
        for event in events:
            if type(event) in _NOT_FOR_ENGINE:
                framed, unframed = self._split_events(events, now)
                break
        if self.frames is None:
            if not framed:
                return self._handle_events(unframed, now)
            self.frames = Frames(self.engine)
        return self._handle_with_frames(self.frames, framed, unframed, now)

    def _handle_with_frames(
        self,
        frames: Frames,
        framed: Sequence[FrameEvent],
        events: Sequence[Event | JobDone],
        now: float,
    ) -> Sequence[RuntimeCommand]:
        commands: list[RuntimeCommand] = []
        pending: list[Event | JobDone] = []
        for event in framed:
            pending += self._run_frames(frames, event, "", (), now, commands)
        pending += events
        while True:
            while pending:
                handled = self._handle_events(pending, now)
                commands += handled
                ended = of_children(handled)
                if not ended:
                    break
                pending = [*self._run_frames(frames, None, "answers", ended, now, commands)]
            if frames.next_deadline > now:
                return commands
            pending = [*self._run_frames(frames, None, "due", (), now, commands)]

    def _run_frames(
        self,
        frames: Frames,
        event: FrameEvent | None,
        trigger: str,
        ended: Sequence[Answer | FreeSlots],
        now: float,
        commands: list[RuntimeCommand],
    ) -> Sequence[Event]:
        """Call `Frames`. Returns events for the engine; adds commands for drivers to `commands`."""
        try:
            if trigger == "due":
                pending, frame_commands = frames.expire(now=now)
            else:
                pending, frame_commands = frames.handle(
                    () if event is None else (event,), ended, now=now
                )
        except Exception as error:
            if self._on_fault is None:
                raise
            self._on_fault("frames could not handle an event", error)
            pending, frame_commands = frames.take_steps()
        if self._watch_frames is not None:
            self._watch_frames(event, trigger, now, frame_commands)
        commands += frame_commands
        return pending

    def _split_events(
        self, events: Sequence[RuntimeEvent], now: float
    ) -> tuple[Sequence[FrameEvent], Sequence[Event | JobDone]]:
        """Pass events of sessions and early exits to the planners. Returns (events of frames,
        events for the engine)."""
        sessions: list[SessionEvent] = []
        exits: list[ExitEvent] = []
        framed: list[FrameEvent] = []
        unframed: list[Event | JobDone] = []
        for event in events:
            if isinstance(event, FRAME_EVENTS):
                framed.append(event)
            elif isinstance(event, SESSION_EVENTS):
                sessions.append(event)
            elif isinstance(event, EXIT_EVENTS):
                exits.append(event)
            else:
                unframed.append(event)
        topic = "sessions"
        try:
            if sessions:
                self.composer.observe_sessions(sessions, now=now)
            topic = "early exits"
            if exits:
                self.composer.observe_exits(exits, now=now)
        except Exception as error:
            if self._on_fault is None:
                raise
            self._on_fault(f"a planner could not handle events of {topic}", error)
        return framed, unframed

    def _handle_events(self, events: Sequence[Event | JobDone], now: float) -> list[Command]:
        pending: Sequence[Event] = events  # type: ignore[assignment]  # JobDone only if computing
        plan = None
        if not self.composer.idle:
            if self.composer.computing:
                pending = self.composer.jobs_done(events)
            plan = self._make_plan(events, now)
            if plan is not None:
                self.plan_fault = None
                pending = [plan, *pending]
        commands = self._run_engine(pending, now)
        if plan is not None and self.plan_fault is not None:
            self._paused_until = now + PAUSE_S
        engine = self.engine
        if engine.lane_changes != self._lane_changes:
            self._lane_changes = engine.lane_changes
            lanes = engine.snapshot().lanes.values()
            cores = {lane.name: len(lane.cores) for lane in lanes}
            self.usage.note(cores, now=now)
            if self._on_lanes is not None:
                self._on_lanes(cores, now)
        return commands

    def next_wakeup(self, *, more: bool = True) -> float | None:
        """When TimerFired must be delivered (absolute seconds); None if no timer is needed.
        `more`: whether further events will come. If not, and the engine waits for nothing, planners
        are not woken either, since they would look at an empty queue for ever."""
        at = self.engine.next_wakeup()
        if self.frames is not None and (frames_due := self.frames.next_deadline) < (
            math.inf if at is None else at
        ):
            at = frames_due
        if self.composer.idle or (at is None and not more):
            return at
        planned = self.composer.next_wakeup(self.engine.snapshot())
        if planned is None:
            return at
        planned = max(planned, self._paused_until)
        return planned if at is None or planned < at else at

    def take_jobs(self) -> Sequence[Job]:
        """Take the jobs of planners. The caller runs each off the loop and delivers its result."""
        jobs = self.composer.jobs
        if jobs:
            self.composer.jobs = []
        return jobs

    def _make_plan(self, events: Sequence[Event | JobDone], now: float) -> PlanChanged | None:
        """The planners' new plan, to apply before `events`; None if there is none."""
        if now < self._paused_until:
            return None
        begin = self._stopwatch()
        try:
            plan = self.composer.before(events, self.engine.snapshot(now=now), now=now)
        except Exception as error:
            if self._on_fault is None:
                raise
            model = self.composer.put_off(now + PAUSE_S)
            if model is None:
                self._paused_until = now + PAUSE_S
            fallback = (
                "keeping the current plan" if model is None else f"{model} keeps its last target"
            )
            self._on_fault(f"planning failed: {fallback} for {PAUSE_S:g} s", error)
            return None
        finally:
            self.planning_s += self._stopwatch() - begin
        self.plans += plan is not None
        return plan

    def _run_engine(self, events: Sequence[Event], now: float) -> list[Command]:
        """Have the engine handle `events`, skipping those that raise; return its commands."""
        engine, watch = self.engine, self._watch
        commands: list[Command] = []
        while True:
            before = engine.events_seen
            fault = None
            try:
                produced = engine.handle_all(events, now=now)
            except Exception as error:
                if self._on_fault is None:
                    raise
                self._on_fault("the engine could not handle an event", error)
                produced, fault = engine.unfinished, error
            if watch is not None:
                watch(events, now, produced)
            if fault is None:
                return [*commands, *produced] if commands else produced
            commands += produced
            handled = engine.events_seen - before
            if not handled:  # all events were handled: dispatching the lanes raised
                return commands
            if isinstance(events[handled - 1], PlanChanged) and not engine.plan_done:
                commands += self._revert_plan(fault, now)
            events = events[handled:]

    def _revert_plan(self, fault: Exception, now: float) -> list[Command]:
        """Return from a partly applied plan to the one before it; return the engine's commands."""
        if self.plan_fault is not None:
            assert self._on_fault is not None
            message = f"no plan can be applied ({fault!r}): the server cannot continue"
            self._on_fault(message, fault, fatal=True)
            return []
        self.plan_fault = fault
        return self._run_engine([PlanChanged(self.engine.plan)], now)
