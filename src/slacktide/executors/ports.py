"""The interface between a driver and the code that runs models.

A driver asks an `Executor` to start a replica and gets a `ReplicaHandle`. The replica reports
everything through one callback, on the driver's event loop, mostly as events for the engine. Each
`run` ends in exactly one of BatchFinished, BatchFailed and BatchAborted, or in ReplicaLost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from slacktide.domain import (
    BatchAborted,
    BatchFailed,
    BatchFinished,
    ExitPolicy,
    Leaving,
    Replica,
    ReplicaLost,
    ReplicaUp,
)
from slacktide.domain.crops import Glue
from slacktide.domain.padding import PaddedOutput, Padding
from slacktide.domain.preprocessing import StatedPreprocessing
from slacktide.domain.read_only import read_only
from slacktide.domain.tensors import ModelInterface
from slacktide.executors.hand_over.arena import Arena
from slacktide.exits.own_exits import OwnExit

RowShapes = Mapping[str, tuple[int, ...]]
"""Shapes by input name, without the batch axis."""

Constant = bool | int | float | str
"""Value of every element of an input."""


@read_only
class TensorRef:
    """The place of one request's input tensor in the pool's input arena."""

    offset: int
    nbytes: int
    """Size in bytes. 0 with a non-empty shape: an omitted mask, which the worker makes."""
    shape: tuple[int, ...]
    """Full shape of the tensor. The batch axis, if the model has one, comes first."""


@read_only
class OutputRun:
    """Consecutive members of a batch whose parts of one output have the same size and shape."""

    members: int
    offset: int
    """Offset of the first member's part, which the parts of the other members follow."""
    nbytes: int
    """Size of each part."""
    shape: tuple[int, ...]


@read_only
class Payload:
    """One request's tensors, in the order of the model's inputs."""

    rows: int
    tensors: tuple[TensorRef, ...]


@read_only
class CropPayload(Payload):
    """Rows with an input that is made from one frame. In its place, `tensors` has the frame: pixels
    [1, height, width, 3], or BYTES [1] with a JPEG, in an arena passed to `attach`."""

    arena_number: int
    """Number that `attach` gave the arena."""
    boxes: bytes
    """A box for each row, [rows, 4] 32-bit floats, laid out as in `domain.crops`; or a quad,
    [rows, 4, 2]. Empty: each row gets the whole frame."""
    values: tuple[bytes, ...] = ()
    """Further arguments of the glue function: the same number of values for each row."""


NOTHING_REMEMBERED: Mapping[int, bytes] = MappingProxyType({})


@read_only
class BatchOrder:
    """A batch for a replica to run."""

    batch: int
    """Id that every report on the batch repeats."""
    members: Sequence[Payload]
    size: int = 0
    """Side of the square that images are resized to, in pixels; 0: the size that the file fixes, or
    their own."""
    leaving: Leaving = Leaving.NONE
    """Whether ramps may answer members before the model's end."""
    final: Sequence[int] = ()
    """Places of members that only the model's end may answer."""
    remembered: Mapping[int, bytes] = field(default_factory=dict)
    """By place, for members of a session: the content that a worker last reported for it in
    `RowsKept`; empty if none may be used."""
    refreshes: bool = False
    """See `domain.Batch`."""


OutputTensor = tuple[tuple[int, ...], bytes | memoryview]
"""Shape and raw bytes. Long content may be a view."""
Outputs = tuple[OutputTensor, ...]
"""All outputs of one request, in the model's order."""


class SessionSize(NamedTuple):
    """One session of a replica."""

    threads: int
    nbytes: int
    """Memory taken by opening and warming it up."""


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """The model of a replica that is up: every session is warm for every batch size."""

    interface: ModelInterface
    sessions: tuple[SessionSize, ...] = ()
    """Sessions in the order they were opened; empty if the executor does not say."""
    note: str = ""
    """Warnings for the log: requested sessions that were not opened, padding that changes
    answers."""
    row_shapes: RowShapes = field(default_factory=dict)
    """Shapes of a row that runs; empty if the executor does not say."""
    cold: str = ""
    """Why no synthetic row runs; empty if one does."""
    tolerance: float = 1e-3
    """Largest change that rounding makes in an answer between batches, relative to the output's
    largest magnitude."""
    labels: tuple[str, ...] = ()
    """Names of its classes; empty if there are none."""
    padded_outputs: Mapping[str, PaddedOutput] = field(default_factory=dict)
    """Outputs that are cut back to the lengths of padded members, as the warm-up found them."""


@dataclass(frozen=True, slots=True)
class RowsMismatch:
    """An output of a batch had more or fewer rows than the inputs, so its first axis is no batch
    axis. A batch of one member still gets the model's answer. Precedes the report of the batch."""

    batch: int
    detail: str


@dataclass(frozen=True, slots=True)
class PicturesDamaged:
    """Some pictures of a batch were decoded although they may be damaged. Precedes the report of
    the batch."""

    batch: int
    pictures: int
    """Number of such pictures."""


@dataclass(frozen=True, slots=True)
class Resized:
    """The replica's threads now run on these cores, as read back from the system. Answers `resize`;
    also reported when a replica starts with fewer cores than requested, or gets the rest later. A
    lane is resized (`domain.LaneResized`) once every replica on it has reported."""

    cores: tuple[int, ...]
    detail: str = ""
    """Why the cores differ from the requested ones; empty if they do not."""


@read_only
class MembersReleased:
    """A ramp answered these members of the running batch. The driver turns their places into
    requests and passes RowsReleased to the engine."""

    batch: int
    members: tuple[int, ...]
    """Places in the batch."""
    ramp: int
    """Position of the ramp."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """Batches now run through stages that end at these ramps. If that is impossible, they run as
    before and `detail` says why. Answers a `publish` that changes more than thresholds. Reported
    again when the stages have been measured, or cannot be."""

    revision: int
    ramps: tuple[int, ...]
    """Positions, front to end; empty: the model is whole."""
    detail: str = ""
    rows: tuple[int, ...] = ()
    """Sizes of the measured batches."""
    whole_s: tuple[float, ...] = ()
    """Seconds of the whole model without ramps, by batch size."""
    stage_s: tuple[tuple[float, ...], ...] = ()
    """Seconds up to the answers of each ramp and up to the end, by batch size."""
    untimed: str = ""
    """Why the running stages could not be measured; empty if they could."""


@read_only
class FeaturesSeen:
    """Features of a batch at every position of the model, from which ramps learn. Values are 32-bit
    floats."""

    rows: int
    tensors: tuple[str, ...]
    """Tensor of each position, front to end."""
    costs: tuple[float, ...]
    """Share of the model's arithmetic that precedes each position."""
    features: tuple[bytes, ...]
    """Pooled features at each position: [rows, features]."""
    logits: bytes
    """[rows, classes]."""
    outputs: tuple[str, ...] = ()
    """Names of the model's outputs that ramps make."""
    applications: tuple[str, ...] = ()
    """The application of each row's request, which the server adds; empty: unknown."""
    memory: bytes = b""
    """Uncertainty and agreement of remembered answers, [rows, 2]; empty: there are none."""


@read_only
class RowsKept:
    """Answers to members of a batch, kept for later frames of their sessions. Precedes the
    report of the batch. Only workers read the contents."""

    batch: int
    contents: Mapping[int, bytes]
    """By place."""


Report = (
    ReplicaUp
    | ReplicaLost
    | BatchFinished
    | BatchFailed
    | BatchAborted
    | MembersReleased
    | Resized
    | Arranged
    | FeaturesSeen
    | RowsKept
    | RowsMismatch
    | PicturesDamaged
)
"""Events for the engine, and reports for the driver alone."""

BatchOutputs = Sequence[Outputs]
"""Outputs of every member, in order; `()` for a member that a ramp has answered. The receiver owns
them."""


class MemberFault(NamedTuple):
    """Why one member of a batch has no rows."""

    detail: str
    of_glue: bool = False
    """Whether a glue function is at fault, not the client's input."""


NO_FAULTS: Mapping[int, MemberFault] = MappingProxyType({})


class Reporter(Protocol):
    """The driver's callback for reports of a replica. Called on the driver's event loop."""

    def __call__(
        self,
        event: Report,
        outputs: BatchOutputs = (),
        *,
        opened: OpenedModel | None = None,
        out_of_memory: bool = False,
        faults: Mapping[int, MemberFault] = NO_FAULTS,
    ) -> None:
        """Take a report.

        `outputs` come with BatchFinished and MembersReleased; in the latter, outputs that ramps do
        not make are empty. `opened` comes with ReplicaUp. `faults` come with BatchFinished: members
        without rows, by their place in the batch; ignore their outputs. `out_of_memory` says that
        the replica was lost because it exceeded its model's `worker_memory`.

        Details of a failure or a loss may be shown to clients: they have no path and no trace.
        """
        ...


@dataclass(frozen=True, slots=True)
class ExitSource:
    """Settings of a model whose requests may leave early."""

    folder: Path
    """Folder of the manifest of learnt ramps, which need not exist yet."""
    primary: str = ""
    """Input whose data ramps look at; empty: found in the model."""
    mask: str = ""
    """Input that marks padding; empty: the declared mask, if any."""
    add: tuple[str, ...] = ()
    """Tensors to use as positions although the search would omit them."""
    forbid: tuple[str, ...] = ()
    """Tensors not to use as positions although the search would find them."""
    output: str = ""
    """Output that holds classes; empty: found in the model."""
    labels: tuple[int, ...] = ()
    """Numbers of classes, one for each list of class names that the model's owner supplies."""


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """A Python function that takes the place of a model."""

    target: str
    """`module:name`, as the server's owner named it."""
    interface: Mapping[str, Any]
    """Inputs and outputs, as `ModelInterface.to_dict` writes them."""
    name: str = ""
    """Registered name, for messages."""
    expands: bool = False
    """Whether the function returns any number of rows. Its last output then holds their parents."""
    frame: str = ""
    """Input that takes the picture of each row's frame; empty: none."""

    @property
    def tensors(self) -> ModelInterface:
        """Inputs and outputs."""
        return ModelInterface.from_dict(self.interface)


@dataclass(frozen=True, slots=True)
class DecodeSource:
    """The decoder behind a model. The section `decode` of slacktide.yaml describes its fields."""

    name: str
    outputs: tuple[str, ...] = ()
    version: str | None = None
    confidence: float = 0.25
    iou: float = 0.45
    max_detections: int = 100
    per_class: bool = True
    classes: tuple[int, ...] = ()
    top: int = 5
    probabilities: bool = False
    anchors: tuple[tuple[tuple[float, float], ...], ...] = ()
    strides: tuple[int, ...] = ()
    variance: tuple[float, float] = (0.1, 0.2)
    threshold: float = 0.3
    unclip: float = 1.6
    dilate: bool = True
    blank: str = "first"
    function: FunctionSource | None = None
    """The function, with the outputs that it returns; None for built-in decoders."""


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Inputs of a model that a tokenizer makes."""

    key: str
    """The setting that names the tokenizer, for messages."""
    ids: str
    """The input of token ids."""
    ranges: Mapping[str, Sequence[int]]
    """Lowest and highest element of each of these inputs."""


@dataclass(frozen=True, slots=True)
class PoolingSource:
    """How token vectors become one vector for each row."""

    kind: str
    """`mean`, `cls` or `last`; empty: the model itself gives one vector."""
    normalize: bool
    mask: str
    """The input that is 0 for padding; it may be missing in the model."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Everything an executor needs to open a model version."""

    name: str
    version: str
    path: Path
    """The model file, already resolved inside the repository."""
    root: Path
    """Folder that external data may not leave (the version's folder)."""
    max_batch: int | None = None
    """Configured limit on rows; 0: no batch axis; None: read from the model."""
    providers: tuple[str, ...] = ()
    """Requested ONNX Runtime execution providers, best first; empty: the CPU, or CUDA for a lane
    on such a device."""
    backend: str = "onnxruntime"
    """`onnxruntime` or `openvino`."""
    precision: str = "fp32"
    """Precision in which the backend computes: `fp32`, `bf16` or `int8`."""
    warmup_shapes: RowShapes = field(default_factory=dict)
    """Configured shapes of the row used for warm-up and timing; −1: open."""
    padding: Padding | None = None
    """Axes along which members of a batch may differ; None: members have one shape."""
    threads: tuple[int, ...] = ()
    """Thread counts of a replica's sessions, ascending. A replica that will be resized has several
    (`profiles.session_sizes`). Empty: one session with a thread for each core at the start."""
    worker_memory: int | None = None
    """Maximum bytes that a worker may take beyond an empty worker; None: no limit."""
    more_shapes: tuple[RowShapes, ...] = ()
    """Further typical shapes of rows. Inputs not named in an element keep their shape."""
    values: Mapping[str, Constant] = field(default_factory=dict)
    """Constant content of inputs during warm-up and timing."""
    samples: Path | None = None
    """An .npz file in the repository with rows, by input, for warm-up and timing."""
    sample_rows: Mapping[str, Path] = field(default_factory=dict)
    """Files with the raw bytes of one row, by input, for warm-up and timing."""
    images: bool = False
    """Whether the image input (`image_input`) takes images of any size and resizes them. It is then
    timed with such images: JPEGs if the extra `images` is installed."""
    image_size: int = 0
    """Side in pixels of the square that images are resized to; 0: the size that the file fixes, or
    each row's own. Replicas of a lane that differ only in their `image_size` share a process."""
    image_sizes: tuple[int, ...] = ()
    """Every `image_size` of this file. A row of each runs before the replica is up."""
    image: StatedPreprocessing | None = None
    """How pictures become an input of the file, if its settings declare that. It is then the image
    input, whatever its type."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Outputs of the file to serve, with their names for clients. Empty: all, unchanged."""
    expose: tuple[str, ...] = ()
    """Outputs to serve, under their own names; empty: all."""
    exits: ExitSource | None = None
    """Early exits; None: no request leaves this model early."""
    own_exits: tuple[OwnExit, ...] = ()
    """Exits built into the model, front to end, used instead of learnt ramps."""
    function: FunctionSource | None = None
    """Function to run instead of a model file; `path` is then its configuration file."""
    decode: DecodeSource | None = None
    """Decoder of the model's outputs; None: clients get the outputs as they are."""
    before: FunctionSource | None = None
    """Function that makes the model's inputs; its arguments are what clients send."""
    after: FunctionSource | None = None
    """Function that makes the answers from the model's outputs, or from those of `decode`."""
    tokens: TokenSource | None = None
    """Inputs that a tokenizer makes; None: there is no tokenizer."""
    pooling: PoolingSource | None = None
    """Pooling of the model's output, before the decoder; None: no pooling."""
    labels: Path | None = None
    """File with the names of classes, or with the characters of `ctc`, one per line; None: the
    names in the model's metadata apply."""
    device_origin: str = ""
    """File, line and key that ask for a GPU, for messages."""
    warm_up_s: float | None = None
    """Seconds for warming up each session after its first row. Batches of two rows run in any case,
    larger ones while time is left. If it is None, or on an accelerator, whose memory is short,
    batches of all sizes run."""

    @property
    def differs(self) -> bool:
        """Whether another backend or precision runs it than ONNX Runtime in the file's own."""
        return self.backend != "onnxruntime" or self.precision != "fp32"

    @property
    def expands(self) -> bool:
        """Whether the model is a function that returns any number of rows."""
        return self.function is not None and self.function.expands

    @property
    def spells(self) -> bool:
        """Whether the decoder writes text, so that labels are characters, not names of classes."""
        return self.decode is not None and self.decode.name == "ctc"


class ReplicaHandle(Protocol):
    """One started replica. Methods never block; results arrive as reports."""

    @property
    def pid(self) -> int | None:
        """Process id of the replica; None without a process of its own."""
        ...

    @property
    def descriptor(self) -> int | None:
        """File descriptor that becomes readable before a report; None if there is none."""
        ...

    def run(self, order: BatchOrder) -> None:
        """Run a batch. Only one may run at a time."""
        ...

    def publish(self, policy: ExitPolicy) -> None:
        """Apply a policy of early exits to the batches that follow, once the replica is up.

        Thresholds take effect immediately. If the stages change, they are prepared while batches
        run through the old ones, and Arranged is reported later.
        """
        ...

    def abort(self, batch: int) -> None:
        """Stop this batch if it still runs and can be stopped."""
        ...

    def attach(self, number: int, frames: Arena, glue: Glue) -> None:
        """Register an arena of frames as `number`, with the glue for crops from it. Members of
        later batches may name it. Allowed while the replica starts."""
        ...

    def detach(self, number: int) -> None:
        """Release an arena that no batch needs any more."""
        ...

    def resize(self, cores: tuple[int, ...]) -> None:
        """Move to these cores. Reports Resized when done, perhaps seconds later if an orchestrator
        decides. If resizes overlap, only the last is sure to be reported. Allowed while the replica
        starts."""
        ...

    def stop(self) -> None:
        """End gracefully. No report follows."""
        ...

    def kill(self) -> None:
        """End immediately. Reports ReplicaLost when the replica is dead."""
        ...


class Executor(Protocol):
    """Starts replicas."""

    def start(
        self, replica: Replica, source: ModelSource, arena: Arena, report: Reporter
    ) -> ReplicaHandle:
        """Begin to start `replica`. ReplicaUp or ReplicaLost is reported later, never from inside
        the call."""
        ...

    async def close(self) -> None:
        """End everything this executor started, and wait until it has ended."""
        ...
