"""Sections of a scenario for devices, the links between them, and pipelines of models on them."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, model_validator

from slacktide.models.repository import Section
from slacktide.models.repository.fields import (
    ByteSize,
    Choice,
    Name,
    Seconds,
    Size,
    may_import,
    read_choice,
)
from slacktide.models.repository.settings import Count, Duration
from slacktide.planning.pipelines import PLACEMENTS

Bytes = Annotated[ByteSize, Field(ge=0)]


class EitherSection(Section):
    """A section that states exactly one of its first two keys."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        first, second = list(type(self).model_fields)[:2]
        if (getattr(self, first) is None) == (getattr(self, second) is None):
            raise ValueError(f"expected exactly one of {first!r} and {second!r}")
        return self


class DeviceSection(Section):
    """A machine on which stages of pipelines may run."""

    speed: Annotated[float, Field(gt=0)] = 1.0
    """Speed of batches: at 0.2, they take five times as long as the models state."""
    accelerators: Count = 1
    """Number of identical accelerators. A CPU counts as one."""
    streams: Count = 1
    """Number of lanes of each accelerator. A lane runs one batch at a time."""
    memory: Size | None = None
    """Memory for models on each accelerator. Default: unlimited."""
    utilisation: Annotated[float, Field(gt=0)] = 1.0
    """Largest sum of `models.NAME.utilisation` that planners run together on one accelerator."""
    server: bool = False
    """Whether stages of any pipeline may run on it. Other devices serve only the pipelines that
    begin on them."""


class DeviceLinkSection(EitherSection):
    """The link between two devices. Rows that are handed over queue for it, in each direction."""

    bandwidth: Bytes | None = None
    """Constant bandwidth in bytes per second, in each direction; 0: no connection."""
    trace: str | None = None
    """Changing bandwidth, as for `slacktide load --link`."""
    between: Annotated[tuple[Name, Name], Field(strict=False)]
    """The two devices. Each pipeline's device needs a link to every server, and so does each server
    to every other."""
    rtt: Annotated[Seconds, Field(ge=0)] = 0.0
    """Round-trip time of an empty message."""


class SimulatedStage(Section):
    """One stage of a pipeline. The name of its model is a short form."""

    model: Name
    """Model that the stage runs."""
    answer: Bytes = 100
    """Size of a row of the answer, if the stage feeds no other stage."""


def _short_stage(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


class SimulatedEdge(Section):
    """Rows that one stage hands on to another."""

    upstream: Annotated[Name, Field(alias="from")]
    """Stage that hands on rows."""
    downstream: Annotated[Name, Field(alias="to")]
    """Stage that receives them."""
    classes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """For edges from the first stage: classes of objects to hand on, one row per object."""
    each: Annotated[float, Field(ge=0)] = 1.0
    """For edges from other stages: number of rows for each row of the upstream."""
    row: Bytes = 0
    """Size of a row."""


class SimulatedPipeline(EitherSection):
    """A camera, and the pipeline that its frames go through."""

    counts: str | None = None
    """CSV file with the objects on each frame, repeated at its end: `FILE` or `FILE:only=VIDEO`."""
    objects: dict[str, Annotated[float, Field(ge=0)]] | None = None
    """Mean number of objects on a frame, by class; the numbers on each frame are drawn."""
    device: Name
    """Device of the camera: frames arrive there, and answers return to it."""
    rate: Annotated[float, Field(gt=0, le=1000)]
    """Frames per second."""
    slo: Duration
    """Time from a frame's capture to its answer."""
    frame: Bytes
    """Size of a frame."""
    stops: Duration | None = None
    """Time at which the camera stops. Default: the end of the run."""
    stages: Annotated[
        dict[Name, Annotated[SimulatedStage, BeforeValidator(_short_stage)]], Field(min_length=1)
    ]
    """The stages, by name."""
    edges: Annotated[tuple[SimulatedEdge, ...], Field(strict=False)] = ()
    """As in [pipeline.yaml](pipelines.md), but without joins: at most one edge leads to a stage."""


Placing = Annotated[
    Choice,
    PlainValidator(
        lambda value, info: read_choice(PLACEMENTS, value, imports=may_import(info)),
        json_schema_input_type=Any,
    ),
    PlainSerializer(Choice.document),
]


class PlacementSection(Section):
    """The policy that places the stages, and how much lanes slow each other."""

    policy: Placing = Choice("pipeline", PLACEMENTS["pipeline"].options())
    """`pipeline`, `octopinf`, `distream`, `rim` or `jellyfish`, or a name with options."""
    every: Duration = 360.0
    """Time between plans. `pipeline` plans earlier if its predictions fail."""
    contention: Annotated[float, Field(ge=1)] = 1.0
    """Factor on the time of batches that together exceed an accelerator, in addition to the
    proportional slowdown."""
