"""Lanes that grow and shrink under what they run.

A plan states what a lane is to have (`Lane.target`); `LaneResized` confirms what it has.

- On growing, admission and expiry count on the target, and the next batch waits for it: it would
  otherwise start on the few cores and keep them through. It waits for `resize_limit` at most, so
  that a resize that is slow, refused or lost costs no more than that.
- On shrinking nothing waits, and everything counts with the smaller size at once.

A batch that runs meanwhile ends sooner or later; its time teaches nothing about either size.

Of several resizes of one lane only the last may be confirmed: what was superseded is not reported.
"""

from __future__ import annotations

import math

from slacktide.domain import LaneResized, ResizeLane
from slacktide.engine.lanes import Lane
from slacktide.engine.state import EngineState


class LaneResizing:
    """Handles LaneResized; starts what a plan wants."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def aim(self, lane: Lane, cores: tuple[int, ...]) -> None:
        """A plan wants the lane to have `cores`."""
        if cores == lane.target:
            return
        state = self._state
        lane.target = cores
        lane.held = _union(lane.held, cores)
        if lane.placements:
            replicas = tuple(placement.replica for placement in lane.placements)
            state.commands.append(ResizeLane(lane.name, cores, replicas, state.cause))
            if lane.awaited_until == math.inf:
                lane.resize_began = state.now
        else:
            lane.cores = lane.held = cores
        self._settle(lane, patient=True)

    def resized(self, event: LaneResized) -> None:
        state = self._state
        lane = state.lanes.get(event.lane)
        if lane is None:
            return  # it left the plan while the resize was on its way
        if lane.target == lane.cores and not set(event.cores) <= set(lane.target):
            lane.target = event.cores  # not asked for here
        elif event.cores == lane.target:
            lane.resize_time = state.now - lane.resize_began
        lane.cores = event.cores
        state.lane_changes += 1
        settled = lane.cores == lane.target
        lane.held = lane.cores if settled else _union(lane.held, lane.cores)
        self._settle(lane, patient=False)
        state.mark(lane)

    def check_timers(self) -> None:
        """Go on with the cores that are there where more have been awaited for too long."""
        state = self._state
        for lane in state.lanes.values():
            if lane.awaited_until <= state.now:
                lane.awaited_until = math.inf
                self._count(lane)
                state.mark(lane)

    def _settle(self, lane: Lane, *, patient: bool) -> None:
        """The lane has, or is to have, other cores. `patient`: more may be waited for from now."""
        if len(lane.target) <= len(lane.cores):
            lane.awaited_until = math.inf
        elif patient and lane.awaited_until == math.inf:
            lane.awaited_until = self._state.now + self._state.settings.resize_limit
        self._count(lane)

    def _count(self, lane: Lane) -> None:
        lane.count()
        for placement in lane.placements:
            placement.adapt()
            placement.pool.count_lanes()
        if lane.running is not None:
            lane.running.moved(lane.size, now=self._state.now, settings=self._state.settings)


def _union(some: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({*some, *more}))
