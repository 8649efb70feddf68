"""Whether the padding and the work hint that a file states are possible with the loaded model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slacktide.domain.padding import pad_element, unfit
from slacktide.domain.suggestions import suggestion
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.models.repository.definition import ModelDefinition
from slacktide.models.repository.errors import Problem
from slacktide.models.repository.settings import InputPad, ModelSettings

Specs = Mapping[str, TensorSpec]


def padding_problems(settings: ModelSettings, interface: ModelInterface) -> Iterator[Problem]:
    """What is wrong with `pad`, `work_hint` and their like; inputs that are not there are told by
    `check_interface` itself."""
    inputs = {spec.name: spec for spec in interface.inputs}
    outputs = {spec.name: spec for spec in interface.outputs}
    for name, one in settings.inputs.items():
        if one.pad is not None and name in inputs:
            field = f"inputs.{name}.pad"
            if not interface.batches:
                yield Problem(field, "the model has no batch axis, so that nothing is padded")
                return
            yield from _input(field, inputs[name], one.pad)
            yield from _mask(field, one.pad, inputs, settings)
    for name, output in settings.outputs.items():
        spec = outputs.get(name)
        if spec is None:
            hint = suggestion(name, outputs)
            yield Problem(f"outputs.{name}", f"the model has no such output; {hint}")
        elif output.pad is not None and (reason := unfit(spec, output.pad.axis)) is not None:
            yield Problem(f"outputs.{name}.pad.axis", reason)
    yield from _hint(settings, inputs)


def padding_warnings(definition: ModelDefinition, file: str) -> Iterator[str]:
    """A sentence if padding is stated that would change answers, and so is not done."""
    settings = definition.settings
    stated = [name for name, one in settings.inputs.items() if one.pad is not None]
    if stated and settings.pads is None:
        yield (
            f"{definition.name}/{file}: inputs.{stated[0]}.pad has no effect without a mask or "
            "'padding: exact': requests are batched by equal length only"
        )


def _input(field: str, spec: TensorSpec, pad: InputPad) -> Iterator[Problem]:
    if (reason := unfit(spec, pad.axis)) is not None:
        yield Problem(f"{field}.axis", reason)
    elif pad_element(spec.datatype, pad.value) is None:
        yield Problem(f"{field}.value", f"expected one of {spec.datatype.wire_name}: {pad.value}")


def _mask(field: str, pad: InputPad, inputs: Specs, settings: ModelSettings) -> Iterator[Problem]:
    if pad.mask is None:
        return
    spec = inputs.get(pad.mask)
    if spec is None:
        hint = suggestion(pad.mask, inputs)
        yield Problem(f"{field}.mask", f"the model has no input {pad.mask!r}; {hint}")
    elif pad.mask in settings.inputs and settings.inputs[pad.mask].pad is not None:
        yield Problem(f"inputs.{pad.mask}.pad", "it is a mask, which is padded with 0 anyway")
    elif spec.datatype is Datatype.BYTES or len(spec.shape) != 2 or spec.shape[1] >= 0:
        yield Problem(
            f"{field}.mask",
            f"expected numbers of shape [-1, -1], {pad.mask!r} is "
            f"{spec.datatype.wire_name} {list(spec.shape)}",
        )


def _hint(settings: ModelSettings, inputs: Specs) -> Iterator[Problem]:
    hint = settings.work_hint
    if hint is None or hint.input is None:
        return
    spec = inputs.get(hint.input)
    if spec is None:
        nearest = suggestion(hint.input, inputs)
        yield Problem("work_hint.input", f"the model has no input {hint.input!r}; {nearest}")
    elif hint.axis is not None and hint.axis >= len(spec.shape):
        yield Problem("work_hint.axis", f"{hint.input!r} has axes 0 to {len(spec.shape) - 1}")
