"""`Runtime`: the engine, its planners and its recorder, as one thing that is driven.

Both drivers own one: events and `now` go in, commands come out, and `next_wakeup` says when
TimerFired must be delivered. Planners see events first, and what they plan comes before them; what
is recorded is what the engine handled, plans included, so a recording replays without planners.
Where pipelines are served, `Frames` is above the engine: what happens to frames is turned into
events for it, and its answers to their stages into what happens next, before anything is returned.

Where `on_fault` is given, nothing that fails costs more than it must. An event that the engine
cannot handle costs what it asked for; the commands of all others are carried out, for they hold the
answers of other clients. A plan that cannot be put in force is taken back. A planner that raises is
asked again after a pause; its last target stays, and so do all others.
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
"""Seconds without plans after a planner has failed."""

RuntimeEvent: TypeAlias = Event | JobDone | SessionEvent | ExitEvent | FrameEvent
"""What drivers deliver. The engine is handed events alone; the others are for planners and
`Frames`."""

RuntimeCommand: TypeAlias = Command | FrameCommand

_NOT_FOR_ENGINE: frozenset[type] = frozenset((*SESSION_EVENTS, *EXIT_EVENTS, *FRAME_EVENTS))

WatchFrames = Callable[[FrameEvent | None, str, float, Sequence[FrameCommand]], None]
"""(what has happened to a frame, or None: `answers` of the last call of the engine, or frames that
are `due`; now; commands), after every call of `Frames`."""

Watch = Callable[[Sequence[Event], float, Sequence[Command]], None]
"""(events handed over together, now, the engine's commands), after every call of the engine."""


class Faults(Protocol):
    """Hears what has failed."""

    def __call__(self, fault: str, error: Exception, *, fatal: bool = False) -> None:
        """`fatal`: there is no state to serve from any more."""


class CoreSeconds:
    """What serving costs in cores, lane by lane: cores held × time, busy or not."""

    def __init__(self) -> None:
        self.sizes: Mapping[str, int] = {}
        """Confirmed cores of every lane."""
        self._totals: dict[str, float] = {}
        self._since = 0.0

    def note(self, sizes: Mapping[str, int], *, now: float) -> None:
        """From now on lanes have so many cores; those not named have none."""
        self._totals = dict(self.totals(now=now))
        self._since = now
        self.sizes = sizes
        for lane in sizes:
            self._totals.setdefault(lane, 0.0)

    def totals(self, *, now: float) -> Mapping[str, float]:
        """Core-seconds of every lane there ever was, up to now."""
        held = now - self._since
        return {
            lane: total + self.sizes.get(lane, 0) * held for lane, total in self._totals.items()
        }


class Runtime:
    """Pure, and not thread-safe: one driver, one thread."""

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
        """`on_fault`: None has faults raised. `on_lanes` gets the confirmed cores of every lane
        when they have changed, and when. `stopwatch`: a clock in seconds by which planning is
        timed. Raises PlannerError if two planners own one field."""
        self.engine = engine
        self.frames: Frames | None = None
        """None: no pipeline was ever served."""
        self.composer = Composer(planners)
        self.usage = CoreSeconds()
        self.plans = 0
        """Plans made by planners, not counting those of loads and unloads."""
        self.planning_s = 0.0
        """Time that planning took of the driver, seconds."""
        self.plan_fault: Exception | None = None
        """Why the last plan could not be put in force; None: it is."""
        self._watch = watch
        self._watch_frames = watch_frames
        self._on_fault = on_fault
        self._on_lanes = on_lanes
        self._stopwatch = stopwatch
        self._lane_changes = -1
        self._paused_until = -math.inf

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> Plan:
        """The plan to hand over next where `base` is wanted: see `Composer.rebase`."""
        self._paused_until = -math.inf
        self.plan_fault = None
        return self.composer.rebase(base, stated, self.engine.snapshot(now=now), now=now)

    def handle(self, events: Sequence[RuntimeEvent], *, now: float) -> Sequence[RuntimeCommand]:
        """What is to be done, in order, now that `events` have happened together."""
        framed: Sequence[FrameEvent] = ()
        unframed: Sequence[Event | JobDone] = events  # type: ignore[assignment]  # unless found out
        for event in events:
            if type(event) in _NOT_FOR_ENGINE:
                framed, unframed = self._after_planners(events, now)
                break
        if self.frames is None:
            if not framed:
                return self._handled(unframed, now)
            self.frames = Frames(self.engine)
        return self._handled_with_frames(self.frames, framed, unframed, now)

    def _handled_with_frames(
        self,
        frames: Frames,
        framed: Sequence[FrameEvent],
        events: Sequence[Event | JobDone],
        now: float,
    ) -> Sequence[RuntimeCommand]:
        commands: list[RuntimeCommand] = []
        pending: list[Event | JobDone] = []
        for event in framed:
            pending += self._framed(frames, event, "", (), now, commands)
        pending += events
        while True:
            while pending:
                handled = self._handled(pending, now)
                commands += handled
                ended = of_children(handled)
                if not ended:
                    break
                pending = [*self._framed(frames, None, "answers", ended, now, commands)]
            if frames.next_deadline > now:
                return commands
            pending = [*self._framed(frames, None, "due", (), now, commands)]

    def _framed(
        self,
        frames: Frames,
        event: FrameEvent | None,
        trigger: str,
        ended: Sequence[Answer | FreeSlots],
        now: float,
        commands: list[RuntimeCommand],
    ) -> Sequence[Event]:
        """What the engine is to be told; what drivers are to do is added to `commands`."""
        try:
            if trigger == "due":
                pending, done = frames.expire(now=now)
            else:
                pending, done = frames.handle(() if event is None else (event,), ended, now=now)
        except Exception as error:
            if self._on_fault is None:
                raise
            self._on_fault("what has happened to a frame could not be taken in", error)
            pending, done = frames.take_steps()
        if self._watch_frames is not None:
            self._watch_frames(event, trigger, now, done)
        commands += done
        return pending

    def _after_planners(
        self, events: Sequence[RuntimeEvent], now: float
    ) -> tuple[Sequence[FrameEvent], Sequence[Event | JobDone]]:
        """What is said of frames, and what is for the engine. What is said of sessions and exits
        planners have heard then."""
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
            self._on_fault(f"a planner could not take in what is said of {topic}", error)
        return framed, unframed

    def _handled(self, events: Sequence[Event | JobDone], now: float) -> list[Command]:
        pending: Sequence[Event] = events  # type: ignore[assignment]  # no job ends that did not begin
        plan = None
        if not self.composer.idle:
            if self.composer.computing:
                pending = self.composer.jobs_done(events)
            plan = self._planned(events, now)
            if plan is not None:
                self.plan_fault = None
                pending = [plan, *pending]
        commands = self._told(pending, now)
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
        """When TimerFired must be delivered (absolute seconds); None if there is nothing to time.
        `more`: whether anything else is to come. If not, and the engine waits for nothing, then
        planners do not either: they would look at an empty queue for ever."""
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
        """What planners want computed off the loop: run each, and deliver what it returns."""
        jobs = self.composer.jobs
        if jobs:
            self.composer.jobs = []
        return jobs

    def _planned(self, events: Sequence[Event | JobDone], now: float) -> PlanChanged | None:
        """A plan to put in force before `events`, if they ask for one."""
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
                "the plan in force stays" if model is None else f"the last target of {model} stays"
            )
            self._on_fault(f"planning failed; {fallback} for {PAUSE_S:g} s", error)
            return None
        finally:
            self.planning_s += self._stopwatch() - begin
        self.plans += plan is not None
        return plan

    def _told(self, events: Sequence[Event], now: float) -> list[Command]:
        """The engine's commands."""
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
            if not handled:  # nothing but lanes to be filled was left
                return commands
            if isinstance(events[handled - 1], PlanChanged) and not engine.plan_done:
                commands += self._taken_back(fault, now)
            events = events[handled:]

    def _taken_back(self, fault: Exception, now: float) -> list[Command]:
        """Commands that lead from a plan of which the engine has done a part to the one before."""
        if self.plan_fault is not None:
            assert self._on_fault is not None
            message = f"no plan can be put in force ({fault!r}): the server cannot continue"
            self._on_fault(message, fault, fatal=True)
            return []
        self.plan_fault = fault
        return self._told([PlanChanged(self.engine.plan)], now)
