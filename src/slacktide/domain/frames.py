"""A frame: one call of a pipeline. What happens to frames, and what is to be done for them.

A frame becomes a request for each of its stages (`Request.parent`): its *children*. What its device
hands over to another one, a stage with all that is behind it, is a *part*: a frame of its own
there. Children and parts have negative ids, so that they never meet those that drivers give.
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
    """One call of a pipeline, or a part of one. Fields as those of a `Request`; its source's
    request takes them over."""

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
    """Where it begins; empty: at the source."""
    parent: int | None = None
    """Of a part: the frame of the device that has handed it over."""
    nbytes: int = 0
    """What it brings, to be sent over a link; 0: not known."""
    decoding: float = 0.0
    """Passed on to every stage that decodes its picture."""


# ── what happens ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class PipelinesChanged:
    """These are the pipelines from now on. Frames that are here stay with the one they came to."""

    pipelines: tuple[Pipeline, ...]


@read_only
class FrameAnnounced:
    """A frame's headers are here, its body is not. `model` of its notice names the pipeline."""

    notice: Notice


@read_only
class FrameArrived:
    """A frame is here, body and all. If it was announced, this replaces the notice."""

    frame: Frame


@read_only
class FrameRefused:
    """A driver turned a frame away itself. The id may have been announced or be new."""

    id: int
    pipeline: str
    reason: Reason
    detail: str = ""


@read_only
class FrameCancelled:
    """A client withdrew, or a device that had handed the frame over. Unknown and finished ids are
    ignored."""

    id: int
    reason: Reason = Reason.CLIENT_CANCELLED
    detail: str = ""


@read_only
class Yield:
    """What a child's outputs hand to one edge."""

    rows: int
    """0: nothing goes on, and what is behind this edge is complete."""
    signature: Signature = ()
    """Of the inputs that it feeds, in their order."""
    work_hint: float | None = None
    nbytes: int = 0
    """Of these rows, to be sent over a link; 0: not known."""
    refused: Reason | None = None
    """Why what goes on cannot be kept or read; None: it is."""


@read_only
class StageYielded:
    """The outputs of a child that was answered have been read: one yield for each edge from its
    stage, in the pipeline's order. Due for every child with a result whose stage feeds another."""

    request: int
    yields: tuple[Yield, ...]


@read_only
class PartAnswered:
    """A part that was handed over has its outcome, or is given up."""

    id: int
    reason: Reason
    missing: tuple[str, ...] = ()
    """Stages that are not complete."""
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

# ── what is to be done ───────────────────────────────────────────────────────────────────────────


@read_only
class Feed:
    """Rows that an upstream child yielded on one edge, or that a frame brings."""

    edge: int | None
    """Its number in the pipeline; None: the frame's own."""
    request: int
    """The child, or the frame."""
    first: int
    """Of the rows that there are; those up to `end` are meant."""
    end: int


@read_only
class PreparePayload:
    """A child is about to be submitted: what it is made of. Comes before its RunBatch, and ends
    with its FreeSlots."""

    request: Request
    """Its `parent` is the frame."""
    stage: str
    feeds: tuple[Feed, ...]
    """By edge into the stage, in the pipeline's order: all of one before those of the next."""


@read_only
class SendPart:
    """Hand a part to another device; ends in PartAnswered, at its deadline at the latest."""

    part: Frame
    device: str
    feeds: tuple[Feed, ...]
    """As of `PreparePayload`."""


@read_only
class CancelPart:
    """Nothing waits for a part any more. No PartAnswered is due."""

    id: int
    device: str
    reason: Reason


@read_only
class FreeFrame:
    """Nothing names what a frame brought any more. Once, after its AnswerFrame and the FreeSlots of
    its last child."""

    id: int


FrameCommand = PreparePayload | SendPart | CancelPart | AnswerFrame | FreeFrame
FRAME_COMMANDS = (PreparePayload, SendPart, CancelPart, AnswerFrame, FreeFrame)
