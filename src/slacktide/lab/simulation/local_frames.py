"""State of frames, of requests of their stages, and of parts of frames, on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slacktide.domain import Batch
from slacktide.domain.frames import AnswerFrame, Feed, Frame
from slacktide.lab.simulation.world.stage_rows import SeenFrame

if TYPE_CHECKING:
    from slacktide.lab.simulation.device_parts import DeviceParts
    from slacktide.lab.simulation.world.device_frames import DeviceFrames


class HereFrame:
    """A frame, or a part of one, on the device where it is."""

    __slots__ = ("bases", "first", "id", "nbytes", "part", "seen", "sunk", "worth")

    def __init__(self, id: int, picture: SeenFrame, first: int, part: SentPart | None) -> None:
        self.id = id
        self.seen = picture
        self.first = first
        """For a part: number of the first of its stage's rows."""
        self.part = part
        self.sunk = 0
        """Rows that are answered at sinks."""
        self.nbytes = 0.0
        """Bytes of these answers."""
        self.worth = 0.0
        """How many of these rows are right, by accuracies."""
        self.bases: dict[tuple[int, int], int] = {}
        """By (child, edge): which of the downstream's rows is the first; those that are not 0."""

    def base(self, feed: Feed) -> int:
        """Which of its stage's rows is the first of these."""
        if feed.edge is None:
            return self.first + feed.first
        return self.bases.get((feed.request, feed.edge), 0) + feed.first


class HereChild:
    """A request of a stage, until nothing names its payload."""

    __slots__ = ("batch", "first", "frame", "rows", "stage")

    def __init__(self, frame: HereFrame, stage: str, rows: int, first: int) -> None:
        self.frame = frame
        self.stage = stage
        self.rows = rows
        self.first = first
        self.batch: Batch | None = None


class SentPart:
    """A part that was handed over, until it has ended where it came from."""

    __slots__ = (
        "answer",
        "begin",
        "first",
        "frame",
        "nbytes",
        "part",
        "share",
        "sunk",
        "there",
        "to",
        "worth",
    )

    def __init__(
        self, begin: DeviceParts, frame: HereFrame, part: Frame, to: DeviceFrames, first: int
    ) -> None:
        self.begin, self.to = begin, to
        self.frame = frame
        self.part = part
        self.first = first
        """Which of its stage's rows is the first."""
        self.there = 0
        """Its id on the other device; 0: it is on its way."""
        self.answer: AnswerFrame | None = None
        """Once it is on its way back; with so many rows answered at sinks, of so many bytes."""
        self.sunk = 0
        self.nbytes = self.worth = 0.0
        self.share = 1.0
        """Share of its bytes that was sent: a frame may have been made smaller."""
