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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, ValidationError, model_validator

from slacktide.domain.crops import MOST_BOXES, WIDEST, BoxChoice, Glue
from slacktide.domain.options import OptionError
from slacktide.domain.pipelines import BOX, MOST_STAGES, Edge, Pipeline, PipelineError
from slacktide.domain.pipelines import PipelineStage as Stage
from slacktide.domain.suggestions import shown, suggestion
from slacktide.domain.units import format_seconds
from slacktide.models.plugins import glue_target
from slacktide.models.repository.errors import Problem, SettingsError
from slacktide.models.repository.fields import Name, Section, short_for
from slacktide.models.repository.settings import Duration
from slacktide.models.repository.settings_file import parse_document, validation_problems

PIPELINE_FILE = "pipeline.yaml"
MOST_EDGES = 256
MOST_CLASSES = 10_000
MOST_FAN_OUT = 1000
"""Maximum boxes of one frame that may go on to one stage."""

_STAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_STAGE_RULE = "letters, digits, '_' and '-', starting with a letter or digit, at most 64"


def _stage_name(value: Any) -> Any:
    if (
        isinstance(value, str) and _STAGE.fullmatch(value) is None
    ):  # so that STAGE.OUTPUT is unambiguous
        raise ValueError(f"expected {_STAGE_RULE}, got {shown(value)}")
    return value


def pipeline_as_model(name: str) -> str:
    """Return the message for a stage whose model is a pipeline."""
    return f"expected a model, got the pipeline {name!r}"


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
    """Margin added on each side of a box, as a share of its width and height."""
    max_aspect: Annotated[float, Field(ge=1)] | Literal["none"] = WIDEST
    """Largest ratio of width to height for a model that leaves the width free; wider crops are
    squeezed. `none`: no limit."""
    function: str = ""
    """Function that processes each crop before it is resized. Its name is defined by [`serve
    --glue`](extending.md) or an entry point."""
    takes: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=128)], ...],
        Field(strict=False, max_length=16),
    ] = ()
    """Names of further arguments of `function`. Edges from stages that ran on the same crops pass
    their values, as they pass inputs."""

    @model_validator(mode="after")
    def _arguments_of_a_function(self) -> CropSettings:
        if self.takes and not self.function:
            raise OptionError(("takes", "needs 'function'"))
        if len(set(self.takes)) < len(self.takes):
            raise OptionError(("takes", "expected different names"))
        return self


class StageSettings(Section):
    """A stage of a pipeline."""

    model: Name
    """The model that runs: from the same repository, with a batch axis, and not a pipeline."""
    classes: Annotated[
        tuple[ClassName, ...], Field(strict=False, min_length=1, max_length=MOST_CLASSES)
    ] = ()
    """Names of the model's classes, in the model's order, for use in `when.class`. Default: the
    model's `labels`."""
    crop: CropSettings | None = None
    """How crops are cut. Only for a stage that gets boxes (`each: box`)."""
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    """Minimum accuracy of the variants that the server chooses, for a model with `variants`. A
    request that would be late may still move to a less accurate one."""

    @model_validator(mode="after")
    def _each_class_once(self) -> StageSettings:
        for number, name in enumerate(self.classes):
            if self.classes.index(name) < number:
                raise OptionError((f"classes[{number}]", f"{name!r} is stated twice"))
        return self


class WhenSettings(Section):
    """Which boxes or rows are passed on."""

    class_refs: Annotated[
        tuple[ClassRef, ...],
        BeforeValidator(_listed),
        Field(strict=False, alias="class", min_length=1, max_length=MOST_CLASSES),
    ] = ()
    """Class or list of classes to pass on, each a name or a number from 0. Default: all classes."""
    score: float | None = None
    """Minimum score. Default: 0 for boxes, no minimum for rows."""
    overlap: Annotated[float, Field(gt=0, le=1)] = 1.0
    """If two boxes of one class overlap by more than this share of their union, the one with the
    lower score is dropped. 1: no box is dropped."""
    most: Annotated[int, Field(ge=1, le=MOST_FAN_OUT)] | None = None
    """Maximum number of boxes per frame, or rows per request; the highest scores are passed on.
    Default: 100 boxes, or all rows."""
    height: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Minimum height of a box, as a share of the frame's. Crops of smaller boxes may be too
    coarse."""


class TurnSettings(Section):
    """Which crops are turned upside down."""

    class_refs: Annotated[
        tuple[ClassRef, ...],
        BeforeValidator(_listed),
        Field(strict=False, alias="class", min_length=1, max_length=MOST_CLASSES),
    ]
    """Class or list of classes, as in `when.class`."""
    score: float = 0.0
    """Minimum score."""


class EdgeSettings(Section):
    """Data that one stage passes to another."""

    upstream: str = Field(alias="from")
    """The stage that sends the data (the upstream)."""
    downstream: str = Field(alias="to")
    """The stage that receives it (the downstream)."""
    each: Literal["box", "crop"] | None = None
    """`box`: the downstream gets one row for each box, cut out of the frame. `crop`: it gets the
    crops that the upstream got. Default: it gets the upstream's outputs, row by row."""
    when: WhenSettings | None = None
    """Which boxes or rows are passed on. Default: all rows, or up to 100 boxes."""
    turn: TurnSettings | None = None
    """Crops to turn by 180 degrees, chosen by the upstream's classes and scores: for example lines
    of text that a classifier found upside down. Only for crops of quads, with `each: crop`."""
    boxes: str | None = None
    """The upstream's output with boxes, [rows, n, 4]: x0, y0, x1, y1 in fractions of the frame.
    Default: `boxes`."""
    quads: str | None = None
    """The upstream's output with quads, used instead of boxes: [rows, n, 4, 2], the x and y of
    corners in fractions of the frame, clockwise from the upper left. Crops are rectified, and
    turned by a quarter if they are 1.5 times as high as wide. Needs `slacktide[images]`."""
    scores: str | None = None
    """The upstream's output with scores: [rows, n] or [rows, n, classes] for boxes, [rows] or
    [rows, classes] for rows. The highest of several scores is used. Default: `scores`, if it
    exists."""
    classes: str | None = None
    """The upstream's output with classes as whole numbers: [rows, n] for boxes; [rows] or
    [rows, top], best first, for rows. Default: `classes`, if it exists."""
    tensors: Annotated[dict[str, str], Field(max_length=64)] = {}  # noqa: RUF012  (pydantic copies it)
    """The downstream's input for each of the upstream's outputs. Default: inputs of the same
    names."""

    @model_validator(mode="after")
    def _belongs_together(self) -> EdgeSettings:
        problems = []
        if self.each is not None and self.tensors:
            message = f"not allowed with 'each: {self.each}', which passes on pixels"
            problems.append(("tensors", message))
        if self.boxes is not None and self.quads is not None:
            problems.append(("quads", "not allowed with 'boxes', which it replaces"))
        if self.turn is not None and self.each != "crop":
            problems.append(("turn", "needs 'each: crop' on the same edge"))
        if self.each != "box":
            expected = "needs 'each: box' on the same edge"
            problems += [("boxes", expected)] if self.boxes is not None else []
            problems += [("quads", expected)] if self.quads is not None else []
            if self.when is not None:
                problems += [("when.overlap", expected)] if self.when.overlap < 1 else []
                problems += [("when.height", expected)] if self.when.height > 0 else []
            if self.when is None and self.turn is None:
                stated = {"scores": self.scores, "classes": self.classes}.items()
                expected = "needs 'when' or 'each: box' on the same edge"
                problems += [(name, expected) for name, value in stated if value is not None]
        if problems:
            raise OptionError(*problems)
        return self


class PipelineSettings(Section):
    """All settings of a pipeline."""

    slo: Duration | None = None
    """Deadline of frames that state none, from the first byte to the end of all stages. Without it,
    such frames are best effort."""
    max_slo: Duration | None = None
    """Longest deadline that a frame may state."""
    stages: Annotated[
        dict[StageName, Annotated[StageSettings, short_for("model")]],
        Field(min_length=1, max_length=MOST_STAGES),
    ]
    """The models by stage name, which prefixes their outputs: `STAGE.OUTPUT`. A word is short for
    `{model: WORD}`."""
    edges: Annotated[tuple[EdgeSettings, ...], Field(strict=False, max_length=MOST_EDGES)] = ()
    """The data passed between stages, without cycles. Exactly one stage has no incoming edge: it
    takes the client's inputs."""

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

    def pipeline(self, name: str, labels: Mapping[str, Sequence[str]] | None = None) -> Pipeline:
        """Return the graph, without versions. `labels`: names of classes by stage, for stages
        without `classes`. While they are not known (None), a class name chooses all classes. Raises
        PipelineError if the graph is invalid, OptionError for an unknown class or glue function."""
        cropped = {edge.downstream for edge in self.edges if edge.each is not None}
        stages = [
            Stage(stage, stated.model, _glue(stage, stated.crop))
            for stage, stated in self.stages.items()
        ]
        edges = [self._edge(number, edge, labels) for number, edge in enumerate(self.edges)]
        pipeline = Pipeline(name, tuple(stages), tuple(edges), self.slo)
        for stage, stated in self.stages.items():
            if stated.crop is not None and stage not in cropped:
                expected = "expected an edge with 'each: box' or 'each: crop' to this stage"
                raise PipelineError(f"stages.{stage}.crop", expected)
        return pipeline

    def _edge(
        self, number: int, edge: EdgeSettings, labels: Mapping[str, Sequence[str]] | None
    ) -> Edge:
        classes: tuple[int, ...] = ()
        if edge.when is not None and edge.upstream in self.stages:
            classes = self._classes(number, "when", edge, labels)
        choice = turn = None
        if edge.turn is not None and edge.upstream in self.stages:
            turned = self._classes(number, "turn", edge, labels)
            turn = BoxChoice(turned, edge.turn.score)
        if (when := edge.when) is not None:
            least, most = (0.0, MOST_BOXES) if edge.each == BOX else (-math.inf, 2**31)
            least = least if when.score is None else when.score
            choice = BoxChoice(classes, least, when.overlap, when.most or most, when.height)
        return Edge(
            edge.upstream,
            edge.downstream,
            edge.each or "",
            choice,
            edge.boxes or "boxes",
            edge.scores or "scores",
            edge.classes or "classes",
            tuple(edge.tensors.items()),
            edge.quads or "",
            turn,
        )

    def _classes(
        self, number: int, key: str, edge: EdgeSettings, labels: Mapping[str, Sequence[str]] | None
    ) -> tuple[int, ...]:
        """Return the numbers of the upstream's classes that `key` names. Raises OptionError."""
        refs = getattr(edge, key).class_refs
        class_names = self.stages[edge.upstream].classes
        named = any(isinstance(class_, str) for class_ in refs)
        unknown = labels is None and named and not class_names
        class_names = class_names or tuple((labels or {}).get(edge.upstream, ()))
        return tuple(
            _class(f"edges[{number}].{key}.class[{at}]", class_, edge.upstream, class_names)
            for at, class_ in enumerate(() if unknown else refs)
        )


def _glue(stage: str, crop: CropSettings | None) -> Glue:
    if crop is None:
        return Glue()
    most = None if crop.max_aspect == "none" else crop.max_aspect
    try:
        function = glue_target(crop.function) if crop.function else ""
        return Glue(crop.margin, function, crop.takes, max_aspect=most)
    except OptionError as error:
        reasons = "; ".join(message for _, message in error.problems)
        raise OptionError((f"stages.{stage}.crop.function", reasons)) from None


def _class(key: str, class_: int | str, stage: str, class_names: tuple[str, ...]) -> int:
    """Return the number of a class. Raises OptionError if it does not exist."""
    if isinstance(class_, str) and not class_names:
        message = f"expected 'stages.{stage}.classes' or 'labels' of its model to name the classes"
        raise OptionError((key, f"{message}, or a number; got {shown(class_)}"))
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

    def with_labels(self, labels: Mapping[str, Sequence[str]]) -> PipelineDefinition:
        """Resolve class names. `labels`: labels of each stage's model. Raises SettingsError."""
        try:
            return replace(self, pipeline=self.settings.pipeline(self.name, labels))
        except OptionError as error:
            problems = (Problem(key, message) for key, message in error.problems)
            raise SettingsError(self.where, *problems) from None

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
