"""`MeasuredWorth`: the recent worth of frames, as a share of their best possible worth.

Predictions of placements are cautious. Before a placement takes a larger variant from a detector,
the planner looks at the worth measured without that placement. A frame that lacks a branch counts
half. A refused or late frame counts nothing. An answer counts the accuracy of its variant relative
to the best variant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from slacktide.domain import OutcomeKind, Reason
from slacktide.engine.request_table import ModelCounts

SEEN_S = 10.0
"""Length of the measurement, in seconds."""
MOST_SERVED = 0.75
"""Served share above which frames count as mostly served."""
LEAST_FRAMES = 20
"""Fewest frames for a measurement."""


class MeasuredWorth:
    """The worth of all frames of a server."""

    __slots__ = ("_exact", "_history", "_rows")

    def __init__(self) -> None:
        self._history: deque[tuple[float, float, float, float, float]] = deque()
        """(time, ended frames, their worth, rows of variants, worth of these rows)."""
        self._rows = self._exact = 0.0

    def ran(self, rows: int, accuracy: float) -> None:
        """Count an answer. `accuracy`: accuracy of its variant, as a share of the best
        variant's."""
        self._rows += rows
        self._exact += rows * accuracy

    def note(self, counts: Mapping[str, ModelCounts], *, now: float) -> None:
        """Take the outcomes of all frames so far, by pipeline."""
        ended = had = 0.0
        for pipeline_counts in counts.values():
            for reason, count in pipeline_counts.by_reason.items():
                ended += count
                if reason.kind is OutcomeKind.SERVED:
                    had += 0.5 * count if reason is Reason.PARTIAL else count
        notes = self._history
        if notes and ended < notes[-1][1]:
            notes.clear()  # a pipeline was unloaded
        if len(notes) > 1 and notes[-2][1:] == (ended, had, self._rows, self._exact):
            notes.pop()  # nothing has changed
        notes.append((now, ended, had, self._rows, self._exact))
        while (
            len(notes) > 2 and notes[1][0] <= now - SEEN_S and notes[1][1] <= ended - LEAST_FRAMES
        ):
            notes.popleft()

    def share(self) -> float | None:
        """Return the measured share; None: too little is known. 0 if many frames are lost, because
        the share then varies too much by chance."""
        if not self._history:
            return None
        first, last = self._history[0], self._history[-1]
        ended, had, rows, exact = [b - a for a, b in zip(first[1:], last[1:], strict=True)]
        if ended < LEAST_FRAMES:
            return None
        worth = exact / rows if rows else 1.0
        return had / ended * worth if had >= MOST_SERVED * ended else 0.0
