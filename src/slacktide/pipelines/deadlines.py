"""`FrameDeadlines`: when frames must be answered, the earliest first."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping

from slacktide.pipelines.live_frames import LiveFrame

MARGIN_S = 0.002
"""Seconds before its deadline at which a frame is answered with its complete stages: timers are
late, and writing an answer takes a moment."""

SWEEP_FLOOR = 64
"""Number of deadlines below which a sweep for ended frames is not worthwhile."""


class FrameDeadlines:
    """The deadlines of the frames of one engine."""

    def __init__(self, live: Mapping[int, LiveFrame]) -> None:
        """`live`: the frames in flight by id, which the owner updates."""
        self._live = live
        self._heap: list[tuple[float, int]] = []
        """(time to answer, frame); ended frames stay until they surface or a sweep drops them."""
        self._sweep_at = SWEEP_FLOOR

    @property
    def next(self) -> float:
        """When the next frame must be answered; infinite: never."""
        heap = self._heap
        while heap and not self._is_live(heap[0][1]):
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def set(self, live: LiveFrame, *, now: float) -> None:
        """Set when to answer a frame: min(MARGIN_S, 10 % of the time left) before its deadline."""
        frame = live.frame
        if frame.best_effort:
            live.answer_by = math.inf
            return
        answer_by = frame.deadline - min(MARGIN_S, 0.1 * (frame.deadline - now))
        if answer_by == live.answer_by:
            return  # the body states the same deadline as the headers
        live.answer_by = answer_by
        heapq.heappush(self._heap, (answer_by, frame.id))
        if len(self._heap) > self._sweep_at:
            self._heap = [scheduled for scheduled in self._heap if self._is_live(scheduled[1])]
            heapq.heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + SWEEP_FLOOR

    def pop(self, *, now: float) -> LiveFrame | None:
        """Remove and return a frame whose time is up; None if there is none."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            id = heapq.heappop(heap)[1]
            live = self._live.get(id)
            if live is None or live.ended:
                continue
            if live.answer_by <= now:
                return live
            # Its body stated a later deadline than its headers.
            heapq.heappush(heap, (live.answer_by, id))
        return None

    def _is_live(self, id: int) -> bool:
        live = self._live.get(id)
        return live is not None and not live.ended
