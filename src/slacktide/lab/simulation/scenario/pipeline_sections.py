"""What a scenario says of devices, the links between them, and pipelines of models on them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator

from slacktide.lab.simulation.scenario.either_section import EitherSection
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


class DeviceSection(Section):
    """A machine on which stages of pipelines may run."""

    speed: Annotated[float, Field(gt=0)] = 1.0
    """How fast batches run on it: at 0.2 they take five times as long as the models state."""
    accelerators: Count = 1
    """How many it has, all alike; a CPU counts as one."""
    streams: Count = 1
    """Lanes of each accelerator. One batch at a time runs on a lane."""
    memory: Size | None = None
    """That models may take of each accelerator. Without it there is enough."""
    utilisation: Annotated[float, Field(gt=0)] = 1.0
    """Most that planners let run at once on each, as a sum of `models.NAME.utilisation`."""
    server: bool = False
    """Whether the stages of any pipeline may run on it. Others serve the pipelines that begin on
    them."""


class DeviceLinkSection(EitherSection):
    """The way between two devices, either way: what is handed over queues for it."""

    bandwidth: Bytes | None = None
    """Bytes per second, always the same; as much in each direction. 0: nothing goes over it."""
    trace: str | None = None
    """A bandwidth that changes, as `slacktide load --link` takes it."""
    between: Annotated[tuple[Name, Name], Field(strict=False)]
    """The two devices. Each pipeline's device needs a link to every server, and servers to one
    another."""
    rtt: Annotated[Seconds, Field(ge=0)] = 0.0
    """Round trip of a message of no length."""


class SimulatedStage(Section):
    """One stage of a pipeline. The name of a model is short for it."""

    model: Name
    """The model that it runs."""
    answer: Bytes = 100
    """Size of an answer's row, where it feeds no other stage."""


def _short_stage(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


class SimulatedEdge(Section):
    """What one stage hands on to another."""

    upstream: Annotated[Name, Field(alias="from")]
    """The stage that hands on."""
    downstream: Annotated[Name, Field(alias="to")]
    """The stage that takes it."""
    classes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """From the first stage: the classes of objects of which each is a row."""
    each: Annotated[float, Field(ge=0)] = 1.0
    """From other stages: rows for each row."""
    row: Bytes = 0
    """Size of a row."""


class SimulatedPipeline(EitherSection):
    """A camera, and the pipeline that its frames go through."""

    counts: str | None = None
    """Objects on frames, from a CSV file: `FILE`, or `FILE:only=VIDEO`; over and over."""
    objects: dict[str, Annotated[float, Field(ge=0)]] | None = None
    """The same, drawn: by class so many on a frame, on average."""
    device: Name
    """Where its frames come in, and answers go."""
    rate: Annotated[float, Field(gt=0, le=1000)]
    """Frames per second."""
    slo: Duration
    """From a frame's capture to its answer."""
    frame: Bytes
    """Size of a frame."""
    stops: Duration | None = None
    """When the camera stops. Without it, at the end."""
    stages: Annotated[
        dict[Name, Annotated[SimulatedStage, BeforeValidator(_short_stage)]], Field(min_length=1)
    ]
    """By name."""
    edges: Annotated[tuple[SimulatedEdge, ...], Field(strict=False)] = ()
    """As in [pipeline.yaml](pipelines.md), but for joins: a stage has one edge to it."""


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
    """`pipeline`, `octopinf`, `distream`, `rim` or `jellyfish`, or with its own options beside
    it."""
    every: Duration = 360.0
    """From one plan to the next; `pipeline` plans sooner where its predictions are broken."""
    contention: Annotated[float, Field(ge=1)] = 1.0
    """How much longer than in proportion batches take that want more of an accelerator than there
    is."""
