"""`MeasuredWorth`: what frames have been worth lately, as a share of what they could be at best.

What a placement does is predicted, and on the careful side; before one takes a larger variant from
a detector, what is served without it is looked at. A frame that lacks a branch counts a half, one
that was refused or late nothing; an answer by a variant counts what that is to the best.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from slacktide.domain import OutcomeKind, Reason
from slacktide.engine.ledger import ModelCounts

SEEN_S = 10.0
"""Seconds that are looked at."""
MOSTLY = 0.75
"""Share of frames from which on they are called mostly served."""
LEAST_FRAMES = 20
"""Of fewer nothing is said."""


class MeasuredWorth:
    """Of all pipelines of a server."""

    __slots__ = ("_exact", "_history", "_rows")

    def __init__(self) -> None:
        self._history: deque[tuple[float, float, float, float, float]] = deque()
        """(when, frames that ended, what they had, rows of variants, what these were worth)."""
        self._rows = self._exact = 0.0

    def ran(self, rows: int, accuracy: float) -> None:
        """A variant has answered; its accuracy as a share of the best's."""
        self._rows += rows
        self._exact += rows * accuracy

    def note(self, counts: Mapping[str, ModelCounts], *, now: float) -> None:
        """How frames have ended so far, by pipeline."""
        ended = had = 0.0
        for pipeline_counts in counts.values():
            for reason, count in pipeline_counts.by_reason.items():
                ended += count
                if reason.kind is OutcomeKind.SERVED:
                    had += 0.5 * count if reason is Reason.PARTIAL else count
        notes = self._history
        if notes and ended < notes[-1][1]:
            notes.clear()  # pipelines have gone
        if len(notes) > 1 and notes[-2][1:] == (ended, had, self._rows, self._exact):
            notes.pop()  # nothing has happened since
        notes.append((now, ended, had, self._rows, self._exact))
        while (
            len(notes) > 2 and notes[1][0] <= now - SEEN_S and notes[1][1] <= ended - LEAST_FRAMES
        ):
            notes.popleft()

    def share(self) -> float | None:
        """None: too little is known; 0 where much is lost: what is lost then varies by chance."""
        if not self._history:
            return None
        first, last = self._history[0], self._history[-1]
        ended, had, rows, exact = [b - a for a, b in zip(first[1:], last[1:], strict=True)]
        if ended < LEAST_FRAMES:
            return None
        return had / ended * (exact / rows if rows else 1.0) if had >= MOSTLY * ended else 0.0
