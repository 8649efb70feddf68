"""`PipelineSettings`: the settings of a `pipeline.yaml`, which makes a folder a pipeline.

slo: 200ms
stages:
  street: {model: street, classes: [car, taxi]}
  brand: brand                                      short for {model: brand}
  plate: {model: plate, crop: {margin: 0.05}}
edges:
  - {from: street, to: brand, each: box, when: {class: car, score: 0.4}}
  - {from: street, to: plate, each: box, when: {class: [car, taxi], most: 10}}
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, ValidationError, model_validator

from slacktide.domain.crops import MOST_BOXES, BoxChoice, Glue
from slacktide.domain.options import OptionError
from slacktide.domain.pipelines import BOX, MOST_STAGES, Edge, Pipeline, PipelineError
from slacktide.domain.pipelines import PipelineStage as Stage
from slacktide.domain.suggestions import shown, suggestion
from slacktide.domain.units import format_seconds
from slacktide.models.plugins import glue_target
from slacktide.models.repository.errors import SettingsError
from slacktide.models.repository.fields import Name, Section, short_for
from slacktide.models.repository.settings import Duration
from slacktide.models.repository.settings_file import parse_document, validation_problems

PIPELINE_FILE = "pipeline.yaml"
MOST_EDGES = 256
MOST_CLASSES = 10_000
MOST_FAN_OUT = 1000
"""Most boxes of one frame that may go on to one stage."""

_STAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_STAGE_RULE = "letters, digits, '_' and '-', starting with a letter or digit, at most 64"


def _stage_name(value: Any) -> Any:
    if (
        isinstance(value, str) and _STAGE.fullmatch(value) is None
    ):  # so that STAGE.OUTPUT is unambiguous
        raise ValueError(f"expected {_STAGE_RULE}, got {shown(value)}")
    return value


def is_a_pipeline(name: str) -> str:
    """Return the message for a stage whose model is a pipeline."""
    return f"expected a model, {name!r} is a pipeline"


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


StageName = Annotated[str, BeforeValidator(_stage_name)]
ClassName = Annotated[str, Field(min_length=1, max_length=200)]


def _class_ref(value: Any) -> int | str:
    number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**31
    if not (number or isinstance(value, str)):
        raise ValueError(f"expected the name of a class, or its number, got {shown(value)}")
    return value  # type: ignore[no-any-return]


ClassRef = Annotated[int | str, PlainValidator(_class_ref)]


class CropSettings(Section):
    """Processing of crops before a stage's model."""

    margin: Annotated[float, Field(ge=0, le=4)] = 0.0
    """Share of its width and height that is added to a box on each side."""
    function: str = ""
    """A function that gets each crop before it is resized, by the name that [`serve
    --glue`](extending.md) or an entry point gave it."""


class StageSettings(Section):
    """A stage of a pipeline."""

    model: Name
    """The model that answers: a model of the same repository, with a batch axis. It cannot be a
    pipeline."""
    classes: Annotated[
        tuple[ClassName, ...], Field(strict=False, min_length=1, max_length=MOST_CLASSES)
    ] = ()
    """Names of the classes that the model distinguishes, in its order, for `when.class`."""
    crop: CropSettings | None = None
    """How crops are cut, for a stage behind `each: box`."""
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    """For a model with `variants`: the server does not choose less accurate ones. A request that
    would be late still moves to them."""

    @model_validator(mode="after")
    def _each_class_once(self) -> StageSettings:
        for number, name in enumerate(self.classes):
            if self.classes.index(name) < number:
                raise OptionError((f"classes[{number}]", f"{name!r} is stated twice"))
        return self


class WhenSettings(Section):
    """Condition for boxes or rows to go on."""

    class_refs: Annotated[
        tuple[ClassRef, ...],
        BeforeValidator(_listed),
        Field(strict=False, alias="class", min_length=1, max_length=MOST_CLASSES),
    ] = ()
    """Only boxes or rows of this class, or of one in a list: a name among the stage's `classes`, or
    a number from 0. Without it all classes count."""
    score: float | None = None
    """Lowest score. Without it boxes need 0, and rows any score."""
    overlap: Annotated[float, Field(gt=0, le=1)] = 1.0
    """If two boxes of one class overlap by more than this share of their union, the one with the
    lower score is left out. 1: none is."""
    most: Annotated[int, Field(ge=1, le=MOST_FAN_OUT)] | None = None
    """Largest number of boxes of a frame, or rows of a request: those with the highest scores.
    Without it 100 boxes, or all rows."""
    height: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Smallest height of a box, as a share of the frame's. Crops of smaller ones may be too
    coarse."""


class EdgeSettings(Section):
    """Data that one stage hands to another."""

    upstream: str = Field(alias="from")
    """The stage that hands on."""
    downstream: str = Field(alias="to")
    """The stage that takes it."""
    each: Literal["box"] | None = None
    """`box`: the downstream gets a row for each box of the upstream, cut out of the frame. Without
    it the downstream gets the outputs of the upstream, row by row."""
    when: WhenSettings | None = None
    """Which boxes or rows go on. Without it all rows, and at most 100 boxes."""
    boxes: str | None = None
    """The upstream's output with boxes, [rows, n, 4]: x0, y0, x1, y1 in fractions of the frame.
    Without it `boxes`."""
    scores: str | None = None
    """Its output with scores: of boxes [rows, n] or [rows, n, classes], of rows [rows] or [rows,
    classes]. With scores of each class the highest counts. Without it `scores`, if there is one."""
    classes: str | None = None
    """Its output with classes, whole numbers, [rows, n] or [rows]. Without it `classes`, if there
    is one."""
    tensors: Annotated[dict[str, str], Field(max_length=64)] = {}  # noqa: RUF012  (pydantic copies it)
    """For each output of the upstream, the downstream's input that takes it. Without it outputs go
    to inputs of the same name."""

    @model_validator(mode="after")
    def _belongs_together(self) -> EdgeSettings:
        problems = []
        if self.each is not None and self.tensors:
            problems.append(("tensors", "expected none beside 'each: box', which hands on pixels"))
        if self.each is None:
            expected = "expected 'each: box' beside it"
            problems += [("boxes", expected)] if self.boxes is not None else []
            if self.when is not None:
                problems += [("when.overlap", expected)] if self.when.overlap < 1 else []
                problems += [("when.height", expected)] if self.when.height > 0 else []
            if self.when is None:
                stated = {"scores": self.scores, "classes": self.classes}.items()
                expected = "expected 'when' or 'each: box' beside it"
                problems += [(name, expected) for name, value in stated if value is not None]
        if problems:
            raise OptionError(*problems)
        return self


class PipelineSettings(Section):
    """All settings of a pipeline."""

    slo: Duration | None = None
    """Deadline of a frame that states none, counted from its first byte, for all stages together.
    Without it such a frame is best effort."""
    max_slo: Duration | None = None
    """Longest deadline of any frame."""
    stages: Annotated[
        dict[StageName, Annotated[StageSettings, short_for("model")]],
        Field(min_length=1, max_length=MOST_STAGES),
    ]
    """The models, each under the name that prefixes its outputs: `STAGE.OUTPUT`. A word is short
    for `{model: WORD}`."""
    edges: Annotated[tuple[EdgeSettings, ...], Field(strict=False, max_length=MOST_EDGES)] = ()
    """Data between stages, without circles. Exactly one stage has no edge to it: it takes what the
    client sends."""

    @model_validator(mode="after")
    def _is_a_pipeline(self) -> PipelineSettings:
        if self.slo is not None and self.max_slo is not None and self.slo > self.max_slo:
            slo, max_slo = format_seconds(self.slo), format_seconds(self.max_slo)
            raise ValueError(f"expected slo at most max_slo, got {slo} and {max_slo}")
        try:
            self.pipeline("")
        except PipelineError as error:
            raise OptionError((error.key, error.message)) from None
        return self

    def pipeline(self, name: str) -> Pipeline:
        """Return the graph, without versions. Raises PipelineError if it is invalid, OptionError
        for an unknown class or glue function."""
        cropped = {edge.downstream for edge in self.edges if edge.each is not None}
        stages = [
            Stage(stage, stated.model, _glue(stage, stated.crop))
            for stage, stated in self.stages.items()
        ]
        edges = [self._edge(number, edge) for number, edge in enumerate(self.edges)]
        pipeline = Pipeline(name, tuple(stages), tuple(edges), self.slo)
        for stage, stated in self.stages.items():
            if stated.crop is not None and stage not in cropped:
                expected = "expected an edge with 'each: box' to this stage"
                raise PipelineError(f"stages.{stage}.crop", expected)
        return pipeline

    def _edge(self, number: int, edge: EdgeSettings) -> Edge:
        classes: tuple[int, ...] = ()
        if edge.when is not None and edge.upstream in self.stages:
            class_names = self.stages[edge.upstream].classes
            classes = tuple(
                _class(f"edges[{number}].when.class[{at}]", class_, edge.upstream, class_names)
                for at, class_ in enumerate(edge.when.class_refs)
            )
        choice = None
        if (when := edge.when) is not None:
            least, most = (0.0, MOST_BOXES) if edge.each else (-math.inf, 2**31)
            least = least if when.score is None else when.score
            choice = BoxChoice(classes, least, when.overlap, when.most or most, when.height)
        return Edge(
            edge.upstream,
            edge.downstream,
            BOX if edge.each is not None else "",
            choice,
            edge.boxes or "boxes",
            edge.scores or "scores",
            edge.classes or "classes",
            tuple(edge.tensors.items()),
        )


def _glue(stage: str, crop: CropSettings | None) -> Glue:
    if crop is None:
        return Glue()
    try:
        return Glue(crop.margin, glue_target(crop.function) if crop.function else "")
    except OptionError as error:
        reasons = "; ".join(message for _, message in error.problems)
        raise OptionError((f"stages.{stage}.crop.function", reasons)) from None


def _class(key: str, class_: int | str, stage: str, class_names: tuple[str, ...]) -> int:
    """Return the number of a class. Raises OptionError if it does not exist."""
    if isinstance(class_, str) and not class_names:
        message = f"expected 'stages.{stage}.classes' to name the classes, or a number"
        raise OptionError((key, f"{message}; got {shown(class_)}"))
    if isinstance(class_, str) and class_ not in class_names:
        message = f"{stage} has no class {shown(class_)}; {suggestion(class_, class_names[:50])}"
        raise OptionError((key, message))
    if isinstance(class_, int) and class_names and class_ >= len(class_names):
        raise OptionError((key, f"expected 0 to {len(class_names) - 1}, got {class_}"))
    return class_names.index(class_) if isinstance(class_, str) else class_


@dataclass(frozen=True, slots=True)
class PipelineDefinition:
    """A pipeline folder as read; its models may not exist."""

    name: str
    settings: PipelineSettings
    pipeline: Pipeline
    """Graph without versions."""

    @property
    def where(self) -> str:
        """The file relative to the repository, for messages."""
        return f"{self.name}/{PIPELINE_FILE}"

    @property
    def models(self) -> tuple[str, ...]:
        """Models of its stages, without repetitions."""
        return tuple(dict.fromkeys(stage.model for stage in self.pipeline.stages))


def parse_pipeline(data: bytes, *, where: str) -> PipelineSettings:
    """Return the settings in a pipeline.yaml. Raises SettingsError with all its problems."""
    return validate_pipeline(parse_document(data, where=where), where=where)


def validate_pipeline(document: Mapping[str, Any], *, where: str) -> PipelineSettings:
    """Return the settings in a document. Raises SettingsError with all its problems."""
    try:
        return PipelineSettings.model_validate(document)
    except ValidationError as error:
        problems = (problem.problem for problem in validation_problems(error, PipelineSettings))
        raise SettingsError(where, *problems) from None
