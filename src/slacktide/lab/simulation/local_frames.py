"""State of one device: its frames, parts of frames, and requests of their stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slacktide.domain import Batch
from slacktide.domain.frames import AnswerFrame, Feed, Frame
from slacktide.lab.simulation.world.stage_rows import CameraFrame

if TYPE_CHECKING:
    from slacktide.lab.simulation.device_parts import DeviceParts
    from slacktide.lab.simulation.world.device_frames import DeviceFrames


@dataclass(slots=True, eq=False)
class LocalFrame:
    """A frame, or a part of a frame, on one device."""

    id: int
    picture: CameraFrame
    first: int
    """For a part: index of its first row among its stage's rows."""
    part: SentPart | None
    sunk: int = 0
    """Number of rows answered at sinks."""
    nbytes: float = 0.0
    """Bytes of these answers."""
    worth: float = 0.0
    """Expected number of right answers among these rows."""
    bases: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (child, edge): index, in the downstream stage, of the first row passed on; missing if it
    is 0."""

    def base(self, feed: Feed) -> int:
        """Return the index of the first row of `feed` in the stage that it feeds."""
        if feed.edge is None:
            return self.first + feed.first
        return self.bases.get((feed.request, feed.edge), 0) + feed.first


@dataclass(slots=True, eq=False)
class LocalChild:
    """A request of a stage, kept until its payload is no longer used."""

    frame: LocalFrame
    stage: str
    rows: int
    first: int
    batch: Batch | None = None


@dataclass(slots=True, eq=False)
class SentPart:
    """A part sent to another device, kept until it has ended on the device that sent it."""

    begin: DeviceParts
    frame: LocalFrame
    part: Frame
    to: DeviceFrames
    first: int
    """Index of the part's first row among its stage's rows."""
    remote_id: int = 0
    """The part's id on the other device; 0 while it is on its way."""
    answer: AnswerFrame | None = None
    """The answer, once it is on its way back; the next three fields describe it."""
    sunk: int = 0
    """Number of rows answered at sinks."""
    nbytes: float = 0.0
    worth: float = 0.0
    share: float = 1.0
    """Share of the part's bytes that was sent: a frame may have been made smaller."""
