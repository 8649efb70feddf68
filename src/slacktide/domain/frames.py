"""Frames: calls of pipelines. Their data, events and commands.

A frame becomes one or more requests for each stage, its *children* (`Request.parent`). A stage that
another device takes over, together with all stages behind it, forms a *part*, which is a frame of
its own on that device. Children and parts have negative ids, which no driver uses.
"""

from __future__ import annotations

from dataclasses import dataclass

from slacktide.domain.outcomes import AnswerFrame as AnswerFrame
from slacktide.domain.outcomes import Reason
from slacktide.domain.pipelines import Pipeline
from slacktide.domain.read_only import read_only
from slacktide.domain.request import Notice, Request, Signature


@read_only
class Frame:
    """One call of a pipeline, or a part of one. Fields that `Request` also has are copied to the
    request of its first stage."""

    id: int
    pipeline: str
    arrival: float
    deadline: float
    rows: int = 1
    penalty: float = 1.0
    signature: Signature = ()
    best_effort: bool = False
    application: str = ""
    client: str = ""
    work_hint: float | None = None
    network_time: float = 0.0
    size: int = 0
    final: bool = False
    stage: str = ""
    """Its first stage; empty: the pipeline's source."""
    parent: int | None = None
    """The frame on the device that handed this part over; None if it is not a part."""
    nbytes: int = 0
    """Bytes of its inputs, to predict their transfer; 0: unknown."""
    decoding: float = 0.0
    """See `Request.decoding`; passed on to every stage that decodes the frame's picture."""


# ── events ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class PipelinesChanged:
    """The pipelines from now on. Frames in flight keep the pipeline they started with."""

    pipelines: tuple[Pipeline, ...]


@read_only
class FrameAnnounced:
    """The headers of a frame have arrived, but not its body. `notice.model` is the pipeline."""

    notice: Notice


@read_only
class FrameArrived:
    """A frame has arrived with its body. If it was announced, it replaces its notice."""

    frame: Frame


@read_only
class FrameRefused:
    """The driver itself rejected a frame, which may have been announced before."""

    id: int
    pipeline: str
    reason: Reason
    detail: str = ""


@read_only
class FrameCancelled:
    """A client cancelled its frame, or another device cancelled a part that it had handed over to
    this one. Unknown and finished ids are ignored."""

    id: int
    reason: Reason = Reason.CLIENT_CANCELLED
    detail: str = ""


@read_only
class YieldPart:
    """Some adjacent rows of a `Yield`, which become one request of their own."""

    rows: int
    signature: Signature
    work_hint: float | None
    nbytes: int = 0
    """See `Yield`."""


@read_only
class Yield:
    """The rows that a child's outputs pass to one edge."""

    rows: int
    """0: the child passes nothing on, and the stages behind this edge are complete."""
    signature: Signature = ()
    """Shapes of the inputs that the edge feeds, in the order of these inputs."""
    work_hint: float | None = None
    nbytes: int = 0
    """Bytes of these rows, to predict their transfer; 0: unknown."""
    refused: Reason | None = None
    """Why the rows cannot be kept or read; None if they can."""
    parts: tuple[YieldPart, ...] = ()
    """Parts whose rows differ in shape; empty: all rows have one shape."""


@read_only
class StageYielded:
    """The outputs of an answered child were read: one yield for each edge out of its stage, in the
    pipeline's order. Required for every child with a result, if its stage has such edges."""

    request: int
    yields: tuple[Yield, ...]


@read_only
class PartAnswered:
    """The other device answered a part, or the driver stopped waiting for it."""

    id: int
    reason: Reason
    missing: tuple[str, ...] = ()
    """Incomplete stages."""
    detail: str = ""


FrameEvent = (
    PipelinesChanged
    | FrameAnnounced
    | FrameArrived
    | FrameRefused
    | FrameCancelled
    | StageYielded
    | PartAnswered
)
FRAME_EVENTS = (
    PipelinesChanged,
    FrameAnnounced,
    FrameArrived,
    FrameRefused,
    FrameCancelled,
    StageYielded,
    PartAnswered,
)

# ── commands ─────────────────────────────────────────────────────────────────────────────────────


@read_only
class Feed:
    """Rows that an upstream child yielded on one edge, or that the frame brought."""

    edge: int | None
    """Index of the edge in the pipeline; None: the frame's own rows."""
    request: int
    """Id of the child or the frame."""
    first: int
    """First of these rows; `end` is one past the last."""
    end: int


@read_only
class PreparePayload:
    """Make the payload of a child that is about to be submitted. This command comes before the
    child's RunBatch, and the child's FreeSlots releases the payload."""

    request: Request
    """Its `parent` is the frame."""
    stage: str
    feeds: tuple[Feed, ...]
    """Feeds, in the order of the stage's edges; all feeds of one edge come together."""


@read_only
class SendPart:
    """Hand a part to another device; ends in PartAnswered, at its deadline at the latest."""

    part: Frame
    device: str
    feeds: tuple[Feed, ...]
    """See `PreparePayload`."""


@read_only
class CancelPart:
    """Cancel a part that nobody waits for any more. PartAnswered need not follow."""

    id: int
    device: str
    reason: Reason


@read_only
class FreeFrame:
    """Release the inputs of a frame. Sent once, after its AnswerFrame and the FreeSlots of its last
    child."""

    id: int


FrameCommand = PreparePayload | SendPart | CancelPart | AnswerFrame | FreeFrame
FRAME_COMMANDS = (PreparePayload, SendPart, CancelPart, AnswerFrame, FreeFrame)
