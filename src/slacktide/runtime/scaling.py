"""`Scaling`: the autoscaler as the driver calls it, timed, and never in the way of a request.

A fault in a planner must not cost answers: it is logged, and the planner is asked again after a
while; its last wish stays. So do all others', and the plan in force, where the fault is elsewhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from slacktide.domain import Event, LaneResized, Plan, PlanChanged
from slacktide.engine import Engine
from slacktide.planning.scaling.autoscaler import Autoscaler, ScaledModel, Standing


class CoreSeconds:
    """What serving costs in cores, lane by lane: cores held × time, busy or not.

    Called whenever lanes come, go or change; adds up in between. Pure: seconds come with calls.
    """

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._totals: dict[str, float] = {}
        self._since = 0.0

    @property
    def lanes(self) -> int:
        """How many lanes there are."""
        return len(self._sizes)

    def note(self, sizes: Mapping[str, int], *, now: float) -> None:
        """From now on lanes have so many cores; those not named have none."""
        self._totals = dict(self.totals(now=now))
        self._since = now
        self._sizes = dict(sizes)
        for lane in sizes:
            self._totals.setdefault(lane, 0.0)

    def totals(self, *, now: float) -> Mapping[str, float]:
        """Core-seconds of every lane there ever was, up to now."""
        held = now - self._since
        return {
            lane: total + self._sizes.get(lane, 0) * held for lane, total in self._totals.items()
        }


log = logging.getLogger("slacktide.scaling")

PAUSE_S = 10.0
"""Seconds without plans after a planner has failed."""


class Scaling:
    """Belongs to the driver's loop."""

    def __init__(self, engine: Engine, cores: Sequence[int]) -> None:
        """`cores`: processor numbers that lanes may have."""
        self._engine = engine
        self._autoscaler = Autoscaler(engine, cores)
        self.models: Mapping[str, ScaledModel] = {}
        """How models are scaled, by name."""
        self._paused_until = 0.0
        self.usage = CoreSeconds()
        self.plans = 0
        """Plans made, not counting those of loads and unloads."""
        self.planning_s = 0.0
        """Time of the loop that deciding has taken, seconds."""

    def rebase(self, base: Plan, models: Mapping[str, ScaledModel], *, now: float) -> Plan:
        """The plan to put in force where `base` is wanted: see `Autoscaler.rebase`."""
        self.models = models
        self._paused_until = 0.0
        return self._autoscaler.rebase(base, models, now=now)

    def before(self, events: Sequence[Event], *, now: float) -> Sequence[PlanChanged]:
        """New plans to put in force before `events`, if they ask for any."""
        if not self.models or now < self._paused_until:
            return ()
        begin = time.perf_counter()
        try:
            plans = self._autoscaler.before(events, now=now)
        except Exception:
            model = self._autoscaler.put_off(now + PAUSE_S)
            if model is None:
                self._paused_until = now + PAUSE_S
            kept = "the plan in force stays" if model is None else f"the last wish of {model} stays"
            log.exception("planning failed; %s for %g s", kept, PAUSE_S)
            return ()
        finally:
            self.planning_s += time.perf_counter() - begin
        self.plans += len(plans)
        return plans

    def pause(self, *, now: float) -> None:
        """The engine could not put a plan of ours in force: make none for a while."""
        self._paused_until = now + PAUSE_S

    def after(self, events: Sequence[Event], *, now: float) -> None:
        """The engine has handled `events`."""
        lanes = self._engine.state.lanes
        # A lane that a plan took away while it was busy goes later, after its batch.
        gone = len(lanes) != self.usage.lanes
        if gone or any(isinstance(event, (PlanChanged, LaneResized)) for event in events):
            self.usage.note({lane.name: len(lane.cores) for lane in lanes.values()}, now=now)

    def next_wakeup(self) -> float | None:
        """When TimerFired must be delivered for it (absolute seconds); None if never."""
        if not self.models:
            return None
        at = self._autoscaler.next_wakeup()
        return None if at is None else max(at, self._paused_until)

    def standings(self, *, now: float) -> Mapping[str, Standing]:
        """Where each scaled model stands, by name."""
        return self._autoscaler.standings(now=now)
