"""`FrameEnds`: counts of one session's frames, from which planners learn the room they need."""

from __future__ import annotations

from slacktide.domain import Outcome, OutcomeKind, Reason

FOR_CAPACITY = (
    Reason.AFTER_DEADLINE,
    Reason.HOPELESS,
    Reason.CROWDED_OUT,
    Reason.BEHIND_OVERRUN,
    Reason.BEHIND_WORK,
)
"""Reasons that show a lack of time on lanes."""
FOR_BANDWIDTH = (Reason.SHORTER_THAN_ALONE, Reason.EXPIRED)
"""Reasons that show a lack of bandwidth: the frame came too late."""
REACH = 0.5
"""Lateness, in SLOs, up to which a lost frame counts in full. More room to plan with would hardly
have saved a frame that is later than that."""
MEMORY = 0.9
"""Weight of earlier frames in the share of lost frames."""
LINK_DOWN = 0.3
"""If more than this share of a session's frames is lost, its late frames say nothing about other
links: its own link is down, or its clock or its statements are wrong."""


class FrameEnds:
    """The frames of one session that planners learn from."""

    __slots__ = ("_loss_share", "ended", "lost_on_lanes", "lost_on_link")

    def __init__(self) -> None:
        self.ended = 0
        self.lost_on_lanes = 0.0
        """Frames lost because their lanes lacked time; a frame that was much too late counts less.
        """
        self.lost_on_link = 0
        """Frames that came too late, or not at all."""
        self._loss_share = 0.0
        """Smoothed share of frames lost."""

    def count(self, outcome: Outcome | None, slo: float) -> None:
        """Count a frame that has ended. None: it failed for a reason that is not the server's."""
        lost = outcome is None or outcome.kind is not OutcomeKind.SERVED
        self._loss_share += (1.0 - MEMORY) * (lost - self._loss_share)
        if outcome is None:
            return
        link = outcome.reason in FOR_BANDWIDTH
        if link and self._loss_share > LINK_DOWN:
            return
        self.ended += 1
        self.lost_on_link += link
        if outcome.reason in FOR_CAPACITY:
            late = lateness(outcome)
            self.lost_on_lanes += 1.0 if late <= REACH * slo else REACH * slo / late


def lateness(outcome: Outcome) -> float:
    """Return by how many seconds a frame is late, or would have been if it had run; 0: unknown."""
    late = -(outcome.budget_s or 0.0)
    if outcome.kind is not OutcomeKind.LATE:
        late += (outcome.needed_s or 0.0) + (outcome.wait_s or 0.0)
    return max(0.0, late)
