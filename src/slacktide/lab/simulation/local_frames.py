"""State of frames, of requests of their stages, and of parts of frames, on a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slacktide.domain import Batch
from slacktide.domain.frames import AnswerFrame, Feed, Frame
from slacktide.lab.simulation.world.stage_rows import SeenFrame

if TYPE_CHECKING:
    from slacktide.lab.simulation.device_parts import DeviceParts
    from slacktide.lab.simulation.world.device_frames import DeviceFrames


@dataclass(slots=True, eq=False)
class LocalFrame:
    """A frame, or a part of one, on the device where it is."""

    id: int
    seen: SeenFrame
    first: int
    """For a part: number of the first of its stage's rows."""
    part: SentPart | None
    sunk: int = 0
    """Rows that are answered at sinks."""
    nbytes: float = 0.0
    """Bytes of these answers."""
    worth: float = 0.0
    """How many of these rows are right, by accuracies."""
    bases: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (child, edge): number of the downstream's first row, where it is not 0."""

    def base(self, feed: Feed) -> int:
        """Number of the first of these rows in its stage."""
        if feed.edge is None:
            return self.first + feed.first
        return self.bases.get((feed.request, feed.edge), 0) + feed.first


@dataclass(slots=True, eq=False)
class LocalChild:
    """A request of a stage, until nothing names its payload."""

    frame: LocalFrame
    stage: str
    rows: int
    first: int
    batch: Batch | None = None


@dataclass(slots=True, eq=False)
class SentPart:
    """A part that was handed over, until it has ended on the device that it came from."""

    begin: DeviceParts
    frame: LocalFrame
    part: Frame
    to: DeviceFrames
    first: int
    """Number of the first of its stage's rows."""
    there: int = 0
    """Its id on the other device; 0: it is on its way."""
    answer: AnswerFrame | None = None
    """Once it is on its way back; the next three fields describe it."""
    sunk: int = 0
    """Rows answered at sinks."""
    nbytes: float = 0.0
    worth: float = 0.0
    share: float = 1.0
    """Share of its bytes that was sent: a frame may have been made smaller."""
