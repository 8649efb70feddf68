"""`Changes`: measures how soon the client learns that the whole model's answer has changed.

Agreement hides delays: with one change a minute at ten frames a second, "as before" for five frames
after each change is right 99.2 % of the time, and each event is half a second late. So frames in
which the whole model's answer differs from that of the frame before (*changes*) have a promise of
their own (docs/internals/exits.md, "Remembered answers"). Changes can be seen only where successive
frames of a session ran to the end: where every row is judged, and in runs (`is_in_run`).
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

from slacktide.domain.read_only import read_only
from slacktide.planning.exits.guards import Guard
from slacktide.planning.exits.thresholds import Array, most_wrong

WITHIN = 2
"""Frames after a change within which its answer must come."""
MISSED, DELAYED = 0.1, 0.05
"""Largest share of all changes, and of changes to a lasting answer, whose answer may come later
than that."""
WINDOW = 256
"""Number of changes to keep."""
MOST_SESSIONS = 4096


@read_only
class FollowedFrame:
    """A frame of a session that ran to the model's end."""

    session: int
    frame: int
    answer: int
    """The model's class."""
    right: bool
    """Whether the answer that the client got, or would have got, is the model's."""
    distance: float
    """Uncertainty of the ramp that remembers."""
    is_memory_right: bool
    refreshed: bool
    """Whether an answered frame runs to the end, and so refreshes what is remembered."""


@dataclass(slots=True)
class Change:
    """A change, from its first frame on."""

    first: FollowedFrame
    delay: int | None = None
    """Frames until the client got the answer; None: the answer did not come within `WITHIN`."""
    lasts: bool = True
    """Whether the model gave the same answer in the frames that followed."""
    is_safe: bool = False
    """Whether the answer comes in time although the first frame is answered as before."""


@dataclass(slots=True)
class _Session:
    last: FollowedFrame
    open: list[Change] = field(default_factory=list)
    """Changes whose `WITHIN` frames are not over."""


class Changes:
    """The last changes of a pool, over all sessions."""

    def __init__(self, frames: int) -> None:
        """`frames`: see `ExitPolicy.remember_frames`."""
        self._frames = frames
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self.window: deque[Change] = deque(maxlen=WINDOW)
        self.added = self.missed = 0
        """Changes so far, and changes whose answer came later than `WITHIN` frames."""
        self.alarms = 0

    def add(self, judged: FollowedFrame) -> bool:
        """Add a frame. Returns whether the frame shows that a change was missed."""
        session = self._sessions.pop(judged.session, None)
        if session is None or judged.frame != session.last.frame + 1:
            session = _Session(judged)  # open changes are left out, whatever their answers
        else:
            if judged.answer != session.last.answer:
                session.open.append(Change(judged))
            session.last = judged
        self._sessions[judged.session] = session
        if len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        is_missed = False
        for change in session.open:
            _follow(change, judged)
            is_missed |= self._conclude(change, judged.frame - change.first.frame)
        session.open = [
            change for change in session.open if judged.frame - change.first.frame < WITHIN
        ]
        return is_missed

    def _conclude(self, change: Change, later: int) -> bool:
        if later < WITHIN:
            return False
        change.is_safe |= change.lasts and self._frames <= WITHIN
        self.window.append(change)
        self.added += 1
        self.missed += change.delay is None
        return change.delay is None

    def guards(self, column: int, ramps: int) -> tuple[Guard, ...]:
        """Return the conditions for the threshold of the ramp that remembers, which is in this
        column of `ramps` columns."""
        lasting = [change for change in self.window if change.lasts]
        return (
            *_guard(list(self.window), MISSED, column, ramps),
            *_guard(lasting, DELAYED, column, ramps),
        )

    @property
    def caught(self) -> float | None:
        """Share of the window whose answer came within `WITHIN` frames; None: no change yet."""
        delays = [change.delay for change in self.window]
        return 1.0 - delays.count(None) / len(delays) if delays else None

    @property
    def delay_p95(self) -> int | None:
        """95th percentile of the delay to a lasting answer, in frames, where `WITHIN` + 1 stands
        for all longer ones; None: no such change yet."""
        delays = sorted(
            WITHIN + 1 if change.delay is None else change.delay
            for change in self.window
            if change.lasts
        )
        return delays[math.ceil(0.95 * len(delays)) - 1] if delays else None


def _follow(change: Change, judged: FollowedFrame) -> None:
    """Update a change with its first frame, or with a later frame."""
    first, later = change.first, judged.frame - change.first.frame
    if judged.answer != first.answer:
        change.lasts = False
    elif change.lasts:
        if judged.right and change.delay is None:
            change.delay = later
        # A frame that ran to the end shows the change to the next frame, if all answered frames run
        # to the end.
        change.is_safe |= later > 0 and judged.refreshed and judged.is_memory_right


def _guard(changes: list[Change], share: float, column: int, ramps: int) -> tuple[Guard, ...]:
    unsure: Array = np.full((len(changes), ramps), np.inf)
    agrees: Array = np.ones((len(changes), ramps), bool)
    unsure[:, column] = [change.first.distance for change in changes]
    agrees[:, column] = [change.is_safe or change.first.is_memory_right for change in changes]
    if agrees.all():
        return ()
    most = max(0, most_wrong(len(changes), share))
    return (Guard((np.where(unsure > 1.0, np.inf, unsure), agrees), most, margin=1.0),)
