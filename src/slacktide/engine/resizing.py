"""Resizing: lanes that grow and shrink while batches run on them.

A plan states the cores that a lane should have (`Lane.target`); `LaneResized` confirms the cores
that it has.

- When a lane grows, admission and expiry count on the target. The next batch waits for the resize,
  since it would otherwise run on fewer cores to its end. It waits for at most `resize_limit`, which
  bounds the cost of a slow, refused or lost resize.
- When a lane shrinks, nothing waits, and everything counts on the smaller size immediately.

Nothing is learnt from the times of batches during a resize. If a lane is resized several times,
only the last resize needs to be confirmed.
"""

from __future__ import annotations

import math

from slacktide.domain import LaneResized, ResizeLane
from slacktide.engine.lanes import Lane
from slacktide.engine.state import EngineState


class LaneResizing:
    """Handles LaneResized; starts the resizes of a plan."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def aim(self, lane: Lane, cores: tuple[int, ...]) -> None:
        """Start a resize of the lane to `cores`, unless they are its target already."""
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
            return  # it left the plan before the resize was confirmed
        if lane.target == lane.cores and not set(event.cores) <= set(lane.target):
            lane.target = event.cores  # a change from outside
        elif event.cores == lane.target:
            lane.resize_time = state.now - lane.resize_began
        lane.cores = event.cores
        state.lane_changes += 1
        settled = lane.cores == lane.target
        lane.held = lane.cores if settled else _union(lane.held, lane.cores)
        self._settle(lane, patient=False)
        state.mark(lane)

    def check_timers(self) -> None:
        """If a lane has waited too long for new cores, continue with the cores that it has."""
        state = self._state
        for lane in state.lanes.values():
            if lane.awaited_until <= state.now:
                lane.awaited_until = math.inf
                self._count(lane)
                state.mark(lane)

    def _settle(self, lane: Lane, *, patient: bool) -> None:
        """Update a lane after a change of cores or target. `patient`: it may wait for new cores."""
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


def _union(cores: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({*cores, *more}))
