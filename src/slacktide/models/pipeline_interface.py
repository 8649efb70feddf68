"""The interface of a pipeline, and checks that the models of its stages fit each other.

Problems name a key of pipeline.yaml. The checks use declared interfaces, and load no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod

from slacktide.domain.pipelines import BOX, CROP, ROWS, Edge, Pipeline
from slacktide.domain.suggestions import suggestion
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec, crop_input, image_input
from slacktide.models.repository.errors import Problem, SettingsError
from slacktide.models.repository.pipeline import PipelineDefinition
from slacktide.models.repository.settings import ModelSettings

MOST_VALUES = 16
"""Maximum numbers that an output may have for each crop to be an argument of a crop's function."""
_NUMBERS = (Datatype.FP32, Datatype.FP16, Datatype.FP64)
_CLASSES = tuple(datatype for datatype in Datatype if "INT" in datatype.wire_name)


@dataclass(frozen=True, slots=True)
class StageTensors:
    """Interface of a stage's model."""

    interface: ModelInterface
    optional: frozenset[str] = frozenset()
    """Inputs that may be left out, such as masks."""
    expands: bool = False
    """Whether it returns any number of rows, and their parents as its last output."""
    frame: str = ""
    """Input that is the frame's picture; empty: none."""
    text: str = ""
    """Input that a tokenizer takes; empty: none."""

    @classmethod
    def of(cls, interface: ModelInterface, settings: ModelSettings) -> StageTensors:
        text = "" if settings.text is None else settings.text[0]
        return cls(interface, settings.masks, settings.expands, settings.frame_input, text)

    def cut(self, edges: Iterable[Edge]) -> str:
        """Input that is made from the frame for a stage with these edges to it; empty: none."""
        index = crop_input(self.interface) if any(edge.each for edge in edges) else None
        return self.frame if index is None else self.interface.inputs[index].name


def pipeline_interface(
    definition: PipelineDefinition, models: Mapping[str, StageTensors]
) -> ModelInterface:
    """Return the inputs of the source and `STAGE.OUTPUT` of every stage. `max_batch` is 0 and
    shapes include the batch axis, because stages have different numbers of rows. `models`: by
    stage. Raises SettingsError with all problems."""
    pipeline = definition.pipeline
    problems = [
        Problem(
            f"stages.{stage.name}.model",
            f"expected a model with a batch axis, got {name} without one",
        )
        for stage in pipeline.stages
        if not models[stage.name].interface.batches and (name := repr(stage.model))
    ]
    if not problems:
        checks = [_EdgeCheck(definition, at, models) for at in range(len(pipeline.edges))]
        problems = [problem for check in checks for problem in check.problems()]
        problems += _crop_problems(definition, models)
        problems += _join_problems(definition, models)
        problems += [] if problems else _input_problems(definition, models, checks)
    outputs: dict[str, TensorSpec] = {}
    for stage, spec in _outputs(definition, models):
        if spec.name in outputs:
            message = f"expected a model without an output {ROWS!r}: '{spec.name}' is reserved"
            problems.append(Problem(f"stages.{stage}.model", message))
        outputs[spec.name] = spec
    if problems:
        raise SettingsError(definition.where, *problems)
    return ModelInterface(models[pipeline.source].interface.inputs, tuple(outputs.values()), 0)


def _outputs(
    definition: PipelineDefinition, models: Mapping[str, StageTensors]
) -> Iterator[tuple[str, TensorSpec]]:
    for name in definition.pipeline.order:
        expands = models[name].expands
        outputs = models[name].interface.outputs
        for spec in outputs[:-1] if expands else outputs:
            shape = (-1, *spec.shape[1:])
            yield name, TensorSpec(f"{name}.{spec.name}", spec.datatype, shape)
        into = definition.pipeline.into[name]
        if expands or any(edge.each or edge.when is not None for edge in into):
            yield name, TensorSpec(f"{name}.{ROWS}", Datatype.INT64, (-1,))


def _crop_problems(
    definition: PipelineDefinition, models: Mapping[str, StageTensors]
) -> Iterator[Problem]:
    """Yield problems with cutting crops out of frames."""
    pipeline = definition.pipeline
    source = models[pipeline.source].interface
    reads = any(models[name].frame for name in pipeline.order[1:])
    if (reads or any(edge.each for edge in pipeline.edges)) and image_input(source) is None:
        key = f"stages.{pipeline.source}.model"
        expected = "one input of images, uint8 [rows, height, width, 3]"
        message = f"expected a model with {expected}, to cut boxes out of"
        yield Problem(key, f"{message}; got {_listed(source.inputs)}")
    for number, edge in enumerate(pipeline.edges):
        upstream = edge.upstream
        if edge.each == CROP:
            yield from _recropped_problems(pipeline, number, edge)
            continue
        while edge.each and pipeline.into[upstream]:
            before = pipeline.into[upstream][0]
            if before.each:
                message = (
                    f"expected a stage that gets whole frames, but {edge.upstream!r} gets boxes"
                )
                yield Problem(f"edges[{number}].each", message)
                break
            upstream = before.upstream


def _recropped_problems(pipeline: Pipeline, number: int, edge: Edge) -> Iterator[Problem]:
    """Yield problems with an edge that passes on the crops that its upstream got."""
    before = pipeline.cut_edge(edge.upstream)
    while before is not None and before.each == CROP:
        before = pipeline.cut_edge(before.upstream)
    if before is None:
        message = f"expected a stage that gets crops, but {edge.upstream!r} does not"
        yield Problem(f"edges[{number}].each", message)
    elif edge.turn is not None and not before.quads:
        message = f"expected crops of quads, but {before.downstream!r} gets crops of boxes"
        yield Problem(f"edges[{number}].turn", message)


def _join_problems(
    definition: PipelineDefinition, models: Mapping[str, StageTensors]
) -> Iterator[Problem]:
    """Yield problems with joins of rows before and after a stage that expands them."""
    pipeline = definition.pipeline
    expanded: dict[str, tuple[str, ...]] = {}
    for name in pipeline.order:
        into = pipeline.into[name]
        before = [expanded[edge.upstream] for edge in into] or [()]
        for edge, stages in zip(into, before, strict=bool(into)):
            if stages != before[0]:
                both = f"{into[0].upstream} and {edge.upstream} yield different rows"
                message = f"{both}, so they cannot both feed {name}"
                yield Problem(f"edges[{pipeline.edges.index(edge)}]", message)
        expanded[name] = (*before[0], name) if models[name].expands else before[0]


def _input_problems(
    definition: PipelineDefinition, models: Mapping[str, StageTensors], checks: Sequence[_EdgeCheck]
) -> Iterator[Problem]:
    """Yield problems with inputs that no edge or several edges feed."""
    for name in definition.pipeline.order[1:]:
        into = [check for check in checks if check.edge.downstream == name]
        cut = models[name].cut(definition.pipeline.into[name])
        for argument in definition.pipeline.by_name[name].glue.takes:
            if len([check for check in into if argument in check.pairs.values()]) != 1:
                message = f"expected one edge that brings {argument!r}, from a stage with the crops"
                yield Problem(f"stages.{name}.crop.takes", message)
        for spec in models[name].interface.inputs:
            by = [check for check in into if spec.name in check.pairs.values()]
            if spec.name == cut:
                for check in by:
                    message = f"the input {cut!r} of {name!r} is cut out of the frame"
                    yield Problem(f"{check.key}.tensors", message)
            elif not by and spec.name not in models[name].optional:
                message = f"no edge feeds the input {spec.name!r} of {name!r}"
                key = "to" if into[-1].edge.each else "tensors"
                yield Problem(f"{into[-1].key}.{key}", message)
            if len(by) > 1:
                message = f"an earlier edge already feeds the input {spec.name!r} of {name!r}"
                yield Problem(f"{by[-1].key}.tensors", message)


class _EdgeCheck:
    """Checks one edge."""

    def __init__(
        self, definition: PipelineDefinition, number: int, models: Mapping[str, StageTensors]
    ) -> None:
        stages = definition.pipeline.by_name
        self.edge = edge = definition.pipeline.edges[number]
        self.key = f"edges[{number}]"
        self._stated = definition.settings.edges[number]
        self._sender, self._receiver = stages[edge.upstream].model, stages[edge.downstream].model
        self._outputs = {s.name: s for s in models[edge.upstream].interface.outputs}
        self._downstream = models[edge.downstream].interface
        self._inputs = {s.name: s for s in self._downstream.inputs}
        self._text = models[edge.downstream].text
        self._arguments = stages[edge.downstream].glue.takes
        self._cut = models[edge.downstream].cut(definition.pipeline.into[edge.downstream])
        self._classes = len(definition.settings.stages[edge.upstream].classes)

    @property
    def pairs(self) -> dict[str, str]:
        """Inputs of the downstream stage, by the upstream output that feeds them."""
        if self.edge.each:
            return {}
        fed = {*self._inputs, *self._arguments} - {self._cut}
        return dict(self.edge.tensors) or {name: name for name in self._outputs if name in fed}

    def problems(self) -> Iterator[Problem]:
        first = self._box_problems() if self.edge.each == BOX else self._row_problems()
        then = self._pixel_problems() if self.edge.each else self._tensor_problems()
        for key, message in (*first, *then):
            yield Problem(f"{self.key}.{key}", message)

    def _box_problems(self) -> Iterator[tuple[str, str]]:
        key, shape = ("quads", (-1, -1, 4, 2)) if self.edge.quads else ("boxes", (-1, -1, 4))
        name = getattr(self.edge, key)
        boxes = self._outputs.get(name)
        if boxes is None or not _compatible(boxes.shape, shape):
            tail = ", ".join(map(str, shape[2:]))
            yield key, self._expected(name, f"an output [rows, n, {tail}]")
        else:
            count = boxes.shape[1]
            yield from self._type_problems(key, _NUMBERS)
            expected = f"[rows, {'n' if count < 0 else count}]"
            for key, datatypes in (("scores", _NUMBERS), ("classes", _CLASSES)):
                spec = self._outputs.get(getattr(self.edge, key))
                ranks = (2, 3) if key == "scores" else (2,)
                yield from self._type_problems(key, datatypes)
                if spec is not None and not (
                    len(spec.shape) in ranks and (-1 in (count, n := spec.shape[1]) or n == count)
                ):
                    yield key, self._expected(spec.name, f"an output {expected}")
            yield from self._choice_problems("when", of_classes=3)
        if self.edge.quads and find_spec("cv2") is None:
            yield "quads", "needs OpenCV: pip install 'slacktide[images]'"

    def _pixel_problems(self) -> Iterator[tuple[str, str]]:
        if crop_input(self._downstream) is None:
            expected = "one input of images, uint8 [rows, height, width, 3]"
            message = (
                f"expected a model that takes crops, with {expected}, got {self._receiver!r} with "
            )
            yield "to", message + _listed(self._downstream.inputs)

    def _row_problems(self) -> Iterator[tuple[str, str]]:
        if self.edge.when is None and self.edge.turn is None:
            return
        for key, datatypes in (("scores", _NUMBERS), ("classes", _CLASSES)):
            yield from self._type_problems(key, datatypes)
            spec = self._outputs.get(getattr(self.edge, key))
            if spec is not None and len(spec.shape) not in (1, 2):
                yield key, self._expected(spec.name, "an output [rows] or [rows, n]")
        yield from self._choice_problems("when", of_classes=2)
        yield from self._choice_problems("turn", of_classes=2)

    def _type_problems(
        self, key: str, datatypes: tuple[Datatype, ...]
    ) -> Iterator[tuple[str, str]]:
        """Check the datatype of an output, and that it exists if stated."""
        name = getattr(self.edge, key)
        spec = self._outputs.get(name)
        if spec is None and getattr(self._stated, key) is not None:
            yield key, self._expected(name, "an output")
        if spec is not None and spec.datatype not in datatypes:
            kind = "of whole numbers" if datatypes is _CLASSES else "of FP32, FP16 or FP64"
            yield key, self._expected(name, f"an output {kind}")

    def _choice_problems(self, key: str, of_classes: int) -> Iterator[tuple[str, str]]:
        """Check the choice of boxes or rows at `key`. `of_classes`: rank of scores per class."""
        when = getattr(self._stated, key)
        if when is None:
            return
        scores = self._outputs.get(self.edge.scores)
        if scores is None and when.score is not None:
            yield f"{key}.score", self._expected(self.edge.scores, "an output with scores")
        if not when.class_refs or self.edge.classes in self._outputs:
            return
        if scores is None or len(scores.shape) != of_classes:
            yield f"{key}.class", self._expected(self.edge.classes, "an output with classes")
            return
        count, total = scores.shape[-1], self._classes
        choice = getattr(self.edge, key)
        if count >= 0 and total not in (0, count):
            message = f"expected {total} classes as in 'stages.{self.edge.upstream}.classes'"
            yield "scores", f"{message}; got {_describe(scores)} of {self._sender!r}"
        elif count >= 0 and max(choice.classes) >= count:
            yield f"{key}.class", f"expected 0 to {count - 1}, got {max(choice.classes)}"

    def _tensor_problems(self) -> Iterator[tuple[str, str]]:
        for output, into in self.pairs.items():
            key = f"tensors.{output}" if self.edge.tensors else "tensors"
            gives, takes = self._outputs.get(output), self._inputs.get(into)
            if gives is None:
                yield key, self._expected(output, "an output")
            elif into in self._arguments:
                row = gives.shape[1:]
                if gives.datatype.dtype.kind not in "biuf" or -1 in row or prod(row) > MOST_VALUES:
                    yield key, self._expected(output, f"an output of up to {MOST_VALUES} numbers")
            elif takes is None:
                hint = suggestion(into, self._inputs, noun="there are")
                if into == self._text:
                    hint = "only the first stage takes text, from clients"
                yield key, f"{self._receiver!r} has no input {into!r}; {hint}"
            elif not _fit(gives, takes):
                expected = f"an output that fits the input {_describe(takes)} of {self._receiver!r}"
                yield key, f"expected {expected}, got {_describe(gives)} of {self._sender!r}"
        if not self.pairs:
            offered, accepted = _listed(self._outputs.values()), _listed(self._inputs.values())
            message = f"no output of {self._sender!r} ({offered}) has the same name as an input of "
            yield "tensors", f"{message}{self._receiver!r} ({accepted})"

    def _expected(self, name: str, expected: str) -> str:
        if name in self._outputs:
            return f"expected {expected}, got {_describe(self._outputs[name])} of {self._sender!r}"
        hint = suggestion(name, self._outputs, noun="there are")
        return f"expected {expected}; {self._sender!r} has no output {name!r}; {hint}"


def _fit(gives: TensorSpec, takes: TensorSpec) -> bool:
    """Whether rows of an output can be rows of an input; the first axis counts rows."""
    return gives.datatype is takes.datatype and _compatible(gives.shape, takes.shape)


def _compatible(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether rows may have both shapes, in which -1 is any size."""
    return len(shape) == len(axes) and all(
        a == b or -1 in (a, b) for a, b in zip(shape[1:], axes[1:], strict=True)
    )


def _describe(spec: TensorSpec) -> str:
    return f"{spec.name!r}, {spec.datatype.wire_name} {list(spec.shape)}"


def _listed(specs: Iterable[TensorSpec]) -> str:
    return "; ".join(map(_describe, specs))
