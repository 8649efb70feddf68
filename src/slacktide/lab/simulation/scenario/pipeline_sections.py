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
    """A section that states just one of its first two keys."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        first, second = list(type(self).model_fields)[:2]
        if (getattr(self, first) is None) == (getattr(self, second) is None):
            raise ValueError(f"expected either {first!r} or {second!r}")
        return self


class DeviceSection(Section):
    """A machine on which stages of pipelines may run."""

    speed: Annotated[float, Field(gt=0)] = 1.0
    """Speed of batches: at 0.2 they take five times as long as the models state."""
    accelerators: Count = 1
    """Number of equal accelerators. A CPU counts as one."""
    streams: Count = 1
    """Lanes of each accelerator. One batch at a time runs on a lane."""
    memory: Size | None = None
    """Memory for models on each accelerator. Without it there is enough."""
    utilisation: Annotated[float, Field(gt=0)] = 1.0
    """Largest sum of `models.NAME.utilisation` that planners let run at once on each."""
    server: bool = False
    """Whether stages of any pipeline may run on it. Other devices serve the pipelines that begin on
    them."""


class DeviceLinkSection(EitherSection):
    """The way between two devices, either way: what is handed over queues for it."""

    bandwidth: Bytes | None = None
    """Constant bandwidth in bytes per second, in each direction. 0: nothing passes."""
    trace: str | None = None
    """A changing bandwidth, as for `slacktide load --link`."""
    between: Annotated[tuple[Name, Name], Field(strict=False)]
    """The two devices. Each pipeline's device needs a link to every server, and servers need links
    to one another."""
    rtt: Annotated[Seconds, Field(ge=0)] = 0.0
    """Round trip of an empty message."""


class SimulatedStage(Section):
    """One stage of a pipeline. The name of a model is short for it."""

    model: Name
    """The model that the stage runs."""
    answer: Bytes = 100
    """Size of an answer's row, if the stage feeds no other."""


def _short_stage(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


class SimulatedEdge(Section):
    """Rows that one stage hands on to another."""

    upstream: Annotated[Name, Field(alias="from")]
    """The stage that hands on."""
    downstream: Annotated[Name, Field(alias="to")]
    """The stage that takes it."""
    classes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """From the first stage: classes of objects. Each object is a row."""
    each: Annotated[float, Field(ge=0)] = 1.0
    """From other stages: rows for each row of the upstream."""
    row: Bytes = 0
    """Size of a row."""


class SimulatedPipeline(EitherSection):
    """A camera, and the pipeline that its frames go through."""

    counts: str | None = None
    """Objects on frames, from a CSV file that is repeated: `FILE`, or `FILE:only=VIDEO`."""
    objects: dict[str, Annotated[float, Field(ge=0)]] | None = None
    """Drawn objects instead: for each class the mean number on a frame."""
    device: Name
    """The device where its frames arrive, and to which answers go."""
    rate: Annotated[float, Field(gt=0, le=1000)]
    """Frames per second."""
    slo: Duration
    """Time from a frame's capture to its answer."""
    frame: Bytes
    """Size of a frame."""
    stops: Duration | None = None
    """Time at which the camera stops. Without it, at the end."""
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
    """Who places the stages, and what lanes cost one another."""

    planner: Placing = Choice("pipeline", PLACEMENTS["pipeline"].options())
    """`pipeline`, `octopinf`, `distream`, `rim` or `jellyfish`, or a name with options."""
    every: Duration = 360.0
    """Time between two plans. `pipeline` plans sooner if its predictions do not hold."""
    contention: Annotated[float, Field(ge=1)] = 1.0
    """Factor on the time of batches that together want more of an accelerator than there is,
    beyond the slowdown in proportion."""
