"""The seam between a driver and whatever runs models.

A driver asks an `Executor` to start a replica and gets a `ReplicaHandle`; everything that happens
afterwards comes back through one callback, on the driver's event loop, as the event for the
engine. For every `run` exactly one of BatchFinished, BatchFailed or BatchAborted is reported,
unless ReplicaLost is.
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
from slacktide.domain.padding import Padding
from slacktide.domain.read_only import read_only
from slacktide.domain.tensors import ModelInterface
from slacktide.executors.hand_over.arena import Arena
from slacktide.exits.own_exits import OwnExit

RowShapes = Mapping[str, tuple[int, ...]]
"""Shapes of inputs by name, without the batch axis."""

Constant = bool | int | float | str
"""What every element of an input is."""


@read_only
class TensorRef:
    """Where one input tensor of one request lies: bytes of the pool's input arena."""

    offset: int
    nbytes: int
    """0 with a shape that is not empty: a mask that its client left out, for the worker to make."""
    shape: tuple[int, ...]
    """Full shape of this request's tensor, its batch axis (rows) first where the model has one."""


@read_only
class OutputRun:
    """Members of a batch whose parts of one output are alike and lie one behind the other."""

    members: int
    offset: int
    """Of the first one's part."""
    nbytes: int
    """Of each part."""
    shape: tuple[int, ...]


@read_only
class Payload:
    """One request's tensors, in the order of the model's inputs."""

    rows: int
    tensors: tuple[TensorRef, ...]


@read_only
class CropPayload(Payload):
    """Rows that are cut out of one frame. Their one tensor is the frame, in an arena that the
    replica was given by `attach`: pixels [1, height, width, 3], or [1] of BYTES, a JPEG."""

    attached: int
    """Number of that arena."""
    boxes: bytes
    """One for each row: [rows, 4] 32-bit floats, as `domain.crops` has them."""


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


OutputTensor = tuple[tuple[int, ...], bytes | memoryview]
"""Shape and raw bytes; long ones may be a view."""
Outputs = tuple[OutputTensor, ...]
"""Every output of one request, in the model's order."""


class SessionSize(NamedTuple):
    """One session of a replica."""

    threads: int
    nbytes: int
    """Memory that opening it and warming it up took."""


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """What a replica has that is up: warm over every batch size, in every session."""

    interface: ModelInterface
    sessions: tuple[SessionSize, ...] = ()
    """In the order they were opened; none where the executor does not say."""
    note: str = ""
    """Which wanted sessions were left out, and why; empty if none was."""
    row_shapes: RowShapes = field(default_factory=dict)
    """Of a row that runs, by input; none where the executor does not say."""
    cold: str = ""
    """Why no row that could be made up runs; empty if one does."""
    tolerance: float = 1e-3
    """Most that rounding changes in an answer between batches, as a part of the output's largest
    magnitude."""


@dataclass(frozen=True, slots=True)
class RowsMismatch:
    """A batch had more or fewer rows of an output than of inputs: its first axis is no batch axis.
    A single member has the model's answer all the same. Comes before the report of the batch."""

    batch: int
    detail: str


@dataclass(frozen=True, slots=True)
class PicturesDamaged:
    """Pictures of a batch were decoded although they may be damaged, so many of them. Comes before
    the report of the batch."""

    batch: int
    pictures: int


@dataclass(frozen=True, slots=True)
class Resized:
    """The replica's threads now run on these cores (read back, not assumed). Answers `resize`; also
    reported where a replica starts with fewer cores than it should, or gets the rest later. A lane
    is resized (`domain.LaneResized`) once every replica on it has reported."""

    cores: tuple[int, ...]
    detail: str = ""
    """Why these are not the cores asked for; empty if they are."""


@read_only
class MembersReleased:
    """A ramp answered these members of the running batch: the event RowsReleased, before places
    are requests."""

    batch: int
    members: tuple[int, ...]
    """Their places in the batch."""
    ramp: int
    """Its position."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """Batches now run through stages that end at these ramps; or they cannot and go on as before,
    and `detail` says why. Answers `publish` where that changes more than thresholds. Told once more
    when it was measured, or could not be."""

    revision: int
    ramps: tuple[int, ...]
    """Positions, front to end; none: the model is whole."""
    detail: str = ""
    rows: tuple[int, ...] = ()
    """Sizes of the batches that were measured; none where nothing was."""
    whole_s: tuple[float, ...] = ()
    """By size: seconds that the model takes as it is, without a ramp."""
    stage_s: tuple[tuple[float, ...], ...] = ()
    """By size: seconds until the answers of each ramp, and until the end."""
    untimed: str = ""
    """Why stages that run could not be measured, where trying that raised."""


@read_only
class FeaturesSeen:
    """What a batch looked like inside, for ramps to be learnt from. Rows of 32-bit floats."""

    rows: int
    tensors: tuple[str, ...]
    """Of every position of the model, front to end."""
    costs: tuple[float, ...]
    """Of each: share of the model's arithmetic that lies in front of it."""
    features: tuple[bytes, ...]
    """Of each: [rows, features], pooled."""
    logits: bytes
    """[rows, classes]."""
    outputs: tuple[str, ...] = ()
    """Names of the model's outputs that ramps make."""


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
    | RowsMismatch
    | PicturesDamaged
)
"""The engine's own events, and what only the driver has to know."""

BatchOutputs = Sequence[Outputs]
"""Of every member, in their order; of one that a ramp answered before, nothing (`()`). They are the
receiver's."""


class MemberFault(NamedTuple):
    """Why one member of a batch has no rows: its client's input, or glue of the server's owner."""

    detail: str
    of_glue: bool = False


NO_FAULTS: Mapping[int, MemberFault] = MappingProxyType({})


class Reporter(Protocol):
    """What a replica reports to, on the driver's event loop."""

    def __call__(
        self,
        event: Report,
        outputs: BatchOutputs = (),
        *,
        opened: OpenedModel | None = None,
        out_of_memory: bool = False,
        faults: Mapping[int, MemberFault] = NO_FAULTS,
    ) -> None:
        """`outputs` and `faults` come with BatchFinished, `outputs` of its members also with
        MembersReleased (an output that ramps do not make is empty), `opened` with ReplicaUp.

        `faults`: members that have no rows, by their place in the batch, and why; their outputs
        mean nothing. `out_of_memory`: the replica was lost because it took more than its model's
        `worker_memory`.

        Details of a failure or a loss are fit for a client: no path, no trace.
        """
        ...


@dataclass(frozen=True, slots=True)
class ExitSource:
    """What a worker needs to let requests leave a model early."""

    folder: Path
    """Where the manifest of learnt ramps lies, or will lie."""
    primary: str = ""
    """The input whose data ramps look at; empty: read it off the model."""
    mask: str = ""
    """The input that says which elements are padding; empty: as padding is declared, or none."""
    add: tuple[str, ...] = ()
    """Tensors that are positions although the search would leave them out."""
    forbid: tuple[str, ...] = ()
    """Tensors that are none although the search would find them."""
    output: str = ""
    """The output that holds classes; empty: read it off the model."""
    labels: tuple[int, ...] = ()
    """Numbers of classes that the model's owner has names of."""


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """A function in a model's place."""

    target: str
    """`module:name`, which the server's owner has named."""
    interface: Mapping[str, Any]
    """What it takes and gives (`ModelInterface.to_dict`)."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What an executor needs to open a model version."""

    name: str
    version: str
    path: Path
    """The model file, already resolved inside the repository."""
    root: Path
    """Folder that external data may not leave (the version's folder)."""
    max_batch: int | None = None
    """Stated limit on rows; 0 says there is no batch axis; None: read it off the model."""
    providers: tuple[str, ...] = ()
    """ONNX Runtime execution providers wanted, best first; empty: CPU, or CUDA/TensorRT for a
    lane on such a device."""
    warmup_shapes: RowShapes = field(default_factory=dict)
    """Shapes of the row that it is warmed up and timed with, of inputs that state one; −1: open."""
    padding: Padding | None = None
    """Axes along which members of a batch may differ; None: they are of one shape."""
    threads: tuple[int, ...] = ()
    """Thread counts of the sessions that a replica is to have, ascending: several for one that will
    be resized (`profiles.session_sizes`). Empty: one session, with a thread for each core it starts
    on."""
    worker_memory: int | None = None
    """Most bytes that a worker process may take beyond an empty one; None: no limit."""
    more_shapes: tuple[RowShapes, ...] = ()
    """Further shapes of rows that are typical; inputs that one leaves out keep theirs."""
    values: Mapping[str, Constant] = field(default_factory=dict)
    """What inputs hold while it is warmed up and timed, where that is a constant."""
    samples: Path | None = None
    """An .npz file of rows to warm up and time it with, by input; inside the repository."""
    sample_rows: Mapping[str, Path] = field(default_factory=dict)
    """The same by input: a file of a row's raw bytes."""
    images: bool = False
    """Whether its image input (`image_input`) gets images of any size, to be resized: it is timed
    with such, JPEG where the extra `images` is installed."""
    image_size: int = 0
    """Side in pixels of the square that images are resized to; 0: the file fixes their size, or
    each row has its own. Replicas on one lane whose sources differ in it alone are one process."""
    image_sizes: tuple[int, ...] = ()
    """Every `image_size` that this file serves at: a row of each has run before it is up."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Outputs of the file to open it for, each with the name that it is to have; the rest is left
    out. Empty: all, under their own names."""
    exits: ExitSource | None = None
    """None: nothing leaves this model early."""
    own_exits: tuple[OwnExit, ...] = ()
    """Those of the model's own, front to end, in place of ramps that are learnt."""
    function: FunctionSource | None = None
    """What is run in place of a model file; `path` is then what states it."""
    device_origin: str = ""
    """File, line and key that ask for a GPU, for messages."""


class ReplicaHandle(Protocol):
    """One started replica. Methods never block; results come as reports."""

    @property
    def pid(self) -> int | None:
        """Process of the replica; None if it has none of its own."""
        ...

    @property
    def descriptor(self) -> int | None:
        """File descriptor that is readable when there is something to report; None if there is
        none."""
        ...

    def run(self, order: BatchOrder) -> None:
        """Run a batch. One at a time."""
        ...

    def publish(self, policy: ExitPolicy) -> None:
        """Have batches that follow leave early as it says; once up. Reports Arranged where stages
        change, later, since they are made beside batches; until then batches run as before, and
        what is answered early are ramps that the policy has."""
        ...

    def abort(self, batch: int) -> None:
        """Stop this batch if it is running and can be stopped."""
        ...

    def attach(self, number: int, frames: Arena, glue: Glue) -> None:
        """Let batches from now on have members that are cut out of frames in this arena, with this
        glue, both called `number`; also while it starts."""
        ...

    def detach(self, number: int) -> None:
        """Let go of that arena, once no batch needs it."""
        ...

    def resize(self, cores: tuple[int, ...]) -> None:
        """Move to these cores, also while it starts; reports Resized once that is settled, which
        may take seconds where an orchestrator decides. Only the last of several resizes is sure to
        be reported."""
        ...

    def stop(self) -> None:
        """End gracefully. No report follows."""
        ...

    def kill(self) -> None:
        """End at once; reports ReplicaLost when it is dead."""
        ...


class Executor(Protocol):
    """Starts replicas."""

    def start(
        self,
        replica: Replica,
        source: ModelSource,
        arena: Arena,
        report: Reporter,
    ) -> ReplicaHandle:
        """Begin to start `replica`; ReplicaUp or ReplicaLost comes later, never from inside."""
        ...

    async def close(self) -> None:
        """End everything this executor started, and wait for it."""
        ...
