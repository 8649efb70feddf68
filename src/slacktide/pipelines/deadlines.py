"""`FrameDeadlines`: when frames are to be answered, the soonest first."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping

from slacktide.pipelines.live_frames import LiveFrame

MARGIN_S = 0.002
"""Seconds before its deadline at which a frame is answered with what is complete: timers are late,
and an answer takes a moment to be written."""

SWEEP_FLOOR = 64
"""Deadlines below which it is not worth looking for those of frames that have ended."""


class FrameDeadlines:
    """Those of the frames of one engine."""

    def __init__(self, live: Mapping[int, LiveFrame]) -> None:
        """`live`: the frames by id, whose others change."""
        self._live = live
        self._heap: list[tuple[float, int]] = []
        """(due, frame); those that have ended stay until they surface, or are many."""
        self._sweep_at = SWEEP_FLOOR

    @property
    def due(self) -> float:
        """When the next frame is to be answered; infinite: never."""
        heap = self._heap
        while heap and not self._is_live(heap[0][1]):
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def set(self, live: LiveFrame, *, now: float) -> None:
        """By a frame's deadline: a tenth of what is left, or a margin, before that."""
        frame = live.frame
        if frame.best_effort:
            live.due = math.inf
            return
        frame_due = frame.deadline - min(MARGIN_S, 0.1 * (frame.deadline - now))
        if frame_due == live.due:
            return  # its body states what its headers did
        live.due = frame_due
        heapq.heappush(self._heap, (live.due, frame.id))
        if len(self._heap) > self._sweep_at:
            self._heap = [scheduled for scheduled in self._heap if self._is_live(scheduled[1])]
            heapq.heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + SWEEP_FLOOR

    def pop(self, *, now: float) -> LiveFrame | None:
        """A frame whose time is up, for once; None: there is none."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            id = heapq.heappop(heap)[1]
            live = self._live.get(id)
            if live is None or live.ended:
                continue
            if live.due <= now:
                return live
            heapq.heappush(
                heap, (live.due, id)
            )  # its body stated a later deadline than its headers
        return None

    def _is_live(self, id: int) -> bool:
        live = self._live.get(id)
        return live is not None and not live.ended
