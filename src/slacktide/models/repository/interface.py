"""A model's inputs, outputs and batching: compares files with the model, and describes them to
clients."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from slacktide.domain.padding import pad_element, unfit
from slacktide.domain.suggestions import suggestion
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec, image_input
from slacktide.models.repository.errors import InterfaceMismatchError, Problem
from slacktide.models.repository.repository import ModelDefinition
from slacktide.models.repository.settings import InputPad, ModelSettings, Versions
from slacktide.models.repository.settings_file import SETTINGS_FILE
from slacktide.models.repository.triton.messages import CONFIG_FILE
from slacktide.models.repository.triton.translate import BACKEND, MAX_PRIORITY, PLATFORM, PYTHON
from slacktide.scheduling import FifoOptions


def triton_type(datatype: Datatype) -> str:
    """Return a datatype's name in a ModelConfig, such as TYPE_FP32 or TYPE_STRING."""
    return "TYPE_STRING" if datatype is Datatype.BYTES else f"TYPE_{datatype.wire_name}"


def check_interface(definition: ModelDefinition, interface: ModelInterface) -> tuple[str, ...]:
    """Compare the files with the model. Returns warnings. Raises InterfaceMismatchError naming each
    mismatch and its file."""
    stated, settings = definition.config, definition.settings
    wrong_config = [
        *_tensors("input", stated.get("input", []), interface.inputs, interface),
        *_tensors("output", stated.get("output", []), interface.outputs, interface),
        *_unnamed(stated.get("input", []), interface.inputs),
    ]
    wrong_settings = list(_settings(definition, interface))
    if settings.max_batch is not None and settings.max_batch != interface.max_batch:
        problem = Problem(
            "max_batch", f"expected {interface.max_batch} as in the model, got {settings.max_batch}"
        )
        (wrong_config if "max_batch_size" in stated else wrong_settings).append(problem)
    if wrong_config:
        raise InterfaceMismatchError(f"{definition.name}/{CONFIG_FILE}", *wrong_config)
    if wrong_settings:
        raise InterfaceMismatchError(f"{definition.name}/{SETTINGS_FILE}", *wrong_settings)
    return (
        *_unlisted(definition, interface),
        *_reshaped(definition),
        *_fixed_batch(definition, interface),
        *padding_warnings(definition),
    )


def _tensors(
    kind: str,
    stated: Sequence[Mapping[str, Any]],
    specs: Sequence[TensorSpec],
    interface: ModelInterface,
) -> Iterator[Problem]:
    specs_by_name = {spec.name: spec for spec in specs}
    for number, tensor in enumerate(stated):
        name, field = tensor.get("name", ""), f"{kind}[{number}]"
        spec = specs_by_name.get(name)
        if spec is None:
            yield _missing(f"{field}.name", kind, name, specs_by_name)
            continue
        expected = triton_type(spec.datatype)
        if (datatype := tensor.get("data_type", expected)) != expected:
            yield Problem(f"{field}.data_type", f"expected {expected} for {name!r}, got {datatype}")
        row = interface.row_axes(spec)
        key, shape = "dims", tensor.get("dims", row)
        if "reshape" in tensor:
            key, shape = "reshape.shape", tensor["reshape"].get("shape", [])
            dims = tensor.get("dims", [])
            if -1 not in (*dims, *shape) and math.prod(dims) != math.prod(shape):
                expected = f"as many elements as dims {list(dims)}, got {list(shape)}"
                yield Problem(f"{field}.{key}", f"expected {expected}")
        if not _agrees(shape, row):
            yield Problem(
                f"{field}.{key}",
                f"expected {list(row)} for {name!r}, got {list(shape)} (leave out the batch axis "
                "if max_batch_size is above 0)",
            )


def _unnamed(stated: Sequence[Mapping[str, Any]], specs: Sequence[TensorSpec]) -> Iterator[Problem]:
    """Yield problems for inputs that a stated list leaves out."""
    named = {tensor.get("name") for tensor in stated}
    for spec in specs:
        if stated and spec.name not in named:
            yield Problem("input", f"input {spec.name!r} of the model is missing")


def _inputs(
    definition: ModelDefinition, inputs: Specs, interface: ModelInterface
) -> Iterator[Problem]:
    for name, settings in definition.settings.inputs.items():
        spec = inputs.get(name)
        if settings.tokenizer is not None or (
            spec is None and name in _tokenizer_inputs(definition)
        ):
            continue
        if spec is None:
            if settings.image is None or definition.preprocessing == settings.image.stated(name):
                yield _missing(f"inputs.{name}", "input", name, inputs)
            continue
        row = interface.row_axes(spec)
        if settings.shape is not None and not _agrees(settings.shape, row):
            expected = f"expected a shape that fits {list(row)}"
            yield Problem(f"inputs.{name}.shape", f"{expected}, got {list(settings.shape)}")
        if settings.finite and not spec.datatype.is_float:
            yield Problem(f"inputs.{name}.finite", f"{spec.datatype.wire_name} is always finite")


def _settings(definition: ModelDefinition, interface: ModelInterface) -> Iterator[Problem]:
    inputs = {spec.name: spec for spec in interface.inputs}
    yield from _inputs(definition, inputs, interface)
    yield from _text(definition, interface)
    yield from padding_problems(definition.settings, interface)
    exits = definition.settings.early_exit
    if exits is not None and exits.primary is not None and exits.primary not in inputs:
        yield _missing("early_exit.primary", "input", exits.primary, inputs)
    outputs = {spec.name: spec for spec in interface.outputs}
    if exits is not None and exits.output is not None and exits.output not in outputs:
        yield _missing("early_exit.output", "output", exits.output, outputs)
    variants, index = definition.settings.variants, image_input(interface)
    if variants is not None and variants.sizes:
        if index is None:
            yield Problem("variants.sizes", "the model has no image input (uint8 [-1, -1, -1, 3])")
        elif interface.inputs[index].shape[1] >= 0:
            name, axes = interface.inputs[index].name, interface.inputs[index].shape[1:3]
            yield Problem("variants.sizes", f"images of {name!r} are always {axes[0]} × {axes[1]}")


def _tokenizer_inputs(definition: ModelDefinition) -> Collection[str]:
    """Return the inputs that a tokenizer makes."""
    return () if definition.text is None else definition.text.gives.values()


def _text(definition: ModelDefinition, interface: ModelInterface) -> Iterator[Problem]:
    """Yield problems of the text input with the inputs that its tokenizer makes."""
    text = definition.text
    if text is None:
        return
    inputs, key = {spec.name: spec for spec in interface.inputs}, f"inputs.{text.name}"
    if text.name in inputs:
        yield Problem(key, "the model itself has an input of this name; choose another")
    specs = text.specs(interface)
    for role, name in text.gives.items():
        spec = specs.get(role)
        if spec is None:
            if text.stated or role == "input_ids":
                yield _missing(f"{key}.gives", "input", name, inputs)
            elif role == "attention_mask":
                yield Problem(f"{key}.gives", "the model has no attention_mask: state [input_ids]")
            continue
        is_mask = role == "attention_mask"
        numbers = "INT" in spec.datatype.name or (is_mask and spec.datatype.is_float)
        if not numbers or len(spec.shape) != 2:
            got = f"{spec.datatype.wire_name} {list(spec.shape)}"
            yield Problem(f"{key}.gives", f"expected {name!r} [rows, length] of numbers, got {got}")
        elif role == "input_ids" and spec.shape[1] < 0 and text.max_length is None:
            expected = "expected the longest text in tokens"
            reason = "neither the tokenizer's file nor the model's shape states it"
            yield Problem(f"{key}.max_length", f"{expected}, since {reason}")


def _unlisted(definition: ModelDefinition, interface: ModelInterface) -> Iterator[str]:
    """Yield warnings for outputs that a stated list leaves out: Triton would hide them."""
    stated = definition.config.get("output", [])
    named = {tensor.get("name") for tensor in stated}
    where = f"{definition.name}/{CONFIG_FILE}"
    for spec in interface.outputs:
        if stated and spec.name not in named:
            yield f"{where}: output {spec.name!r} is not listed, but is served anyway"


def _reshaped(definition: ModelDefinition) -> Iterator[str]:
    """Yield warnings for outputs that Triton would reshape."""
    for tensor in definition.config.get("output", []):
        shape = list(tensor["reshape"].get("shape", [])) if "reshape" in tensor else None
        if shape is not None and shape != (dims := list(tensor.get("dims", []))):
            yield (
                f"{definition.name}/{CONFIG_FILE}: output {tensor.get('name', '')!r} keeps the "
                f"model's shape {shape} (without batch axis) instead of dims {dims}"
            )


def _fixed_batch(definition: ModelDefinition, interface: ModelInterface) -> Iterator[str]:
    """Yield a warning if the model seems to be exported for a fixed number of rows."""
    specs = [spec for spec in (*interface.inputs, *interface.outputs) if spec.shape]
    first = {spec.shape[0] for spec in specs}
    if definition.settings.max_batch == 0 or not interface.inputs:
        return
    if all(spec.shape[:1] == (-1,) for spec in interface.inputs):
        for spec in interface.outputs:
            if spec.shape[:1] == (1,):
                yield (
                    f"{definition.where}: output {spec.name!r} is declared with one row, so "
                    "requests never share a batch; export it with a free first axis"
                )
                return
    if len(first) != 1:
        return
    (rows,) = first
    if rows == 1 or (rows > 1 and all(len(spec.shape) > 1 for spec in specs)):
        axes = ", ".join(f"{spec.name!r}: {{0: 'batch'}}" for spec in interface.inputs[:3])
        yield (
            f"{definition.where}: the first axis of all inputs and outputs is always {rows}, so "
            "requests never share a batch; export the model with a free axis (torch.onnx.export: "
            f"dynamic_axes={{{axes}, …}}), or state 'max_batch: 0' if this is intended"
        )


def _agrees(stated: Sequence[int], row: Sequence[int]) -> bool:
    """Whether ranks are equal, and sizes are equal or free (−1) on one side."""
    return len(stated) == len(row) and all(
        stated_size == row_size or -1 in (stated_size, row_size)
        for stated_size, row_size in zip(stated, row, strict=True)
    )


Specs = Mapping[str, TensorSpec]


def _missing(field: str, kind: str, name: str, candidates: Specs) -> Problem:
    return Problem(field, f"the model has no {kind} {name!r}; {suggestion(name, candidates)}")


def padding_problems(settings: ModelSettings, interface: ModelInterface) -> Iterator[Problem]:
    """Yield problems of `pad`, `work_hint` and related settings; `check_interface` finds missing
    inputs."""
    inputs = {spec.name: spec for spec in interface.inputs}
    outputs = {spec.name: spec for spec in interface.outputs}
    tokenizer_inputs = () if settings.text is None else settings.text[1].inputs_by_role.values()
    for name, section in settings.inputs.items():
        if section.pad is not None and name in inputs and name not in tokenizer_inputs:
            field = f"inputs.{name}.pad"
            if not interface.batches:
                yield Problem(field, "the model has no batch axis, so nothing can be padded")
                return
            yield from _input(field, inputs[name], section.pad)
            yield from _mask(field, section.pad, inputs, settings)
    for name, output in settings.outputs.items():
        spec = outputs.get(name)
        if spec is None:
            yield _missing(f"outputs.{name}", "output", name, outputs)
        elif output.pad is not None and (reason := unfit(spec, output.pad.axis)) is not None:
            yield Problem(f"outputs.{name}.pad.axis", reason)
    yield from _hint(settings, inputs)


def padding_warnings(definition: ModelDefinition) -> Iterator[str]:
    """Yield a warning if padding is not applied because it would change answers."""
    settings = definition.settings
    stated = [name for name, section in settings.inputs.items() if section.pad is not None]
    if stated and settings.pads is None:
        yield (
            f"{definition.name}/{SETTINGS_FILE}: inputs.{stated[0]}.pad has no effect without a "
            "mask or 'padding: exact': requests are batched by equal length only"
        )


def _input(field: str, spec: TensorSpec, pad: InputPad) -> Iterator[Problem]:
    if (reason := unfit(spec, pad.axis)) is not None:
        yield Problem(f"{field}.axis", reason)
    elif pad_element(spec.datatype, pad.value) is None:
        yield Problem(f"{field}.value", f"expected {spec.datatype.wire_name}, got {pad.value}")


def _mask(field: str, pad: InputPad, inputs: Specs, settings: ModelSettings) -> Iterator[Problem]:
    if pad.mask is None:
        return
    spec = inputs.get(pad.mask)
    if spec is None:
        yield _missing(f"{field}.mask", "input", pad.mask, inputs)
    elif pad.mask in settings.inputs and settings.inputs[pad.mask].pad is not None:
        yield Problem(f"inputs.{pad.mask}.pad", "masks are always padded with 0")
    elif spec.datatype is Datatype.BYTES or len(spec.shape) != 2 or spec.shape[1] >= 0:
        yield Problem(
            f"{field}.mask",
            f"expected numbers of shape [-1, -1], got {pad.mask!r}: "
            f"{spec.datatype.wire_name} {list(spec.shape)}",
        )


def _hint(settings: ModelSettings, inputs: Specs) -> Iterator[Problem]:
    hint = settings.work_hint
    if hint is None or hint.input is None:
        return
    spec = inputs.get(hint.input)
    if spec is None:
        yield _missing("work_hint.input", "input", hint.input, inputs)
    elif hint.axis is not None and hint.axis >= len(spec.shape):
        yield Problem("work_hint.axis", f"{hint.input!r} has axes 0 to {len(spec.shape) - 1}")


def config_json(
    definition: ModelDefinition, interface: ModelInterface, labels: Sequence[str] = ()
) -> dict[str, Any]:
    """Return Triton's ModelConfig as JSON, with proto field names and plain numbers: the fields of
    config.pbtxt, with the values in effect for all that Slacktide decides. `dims` leave out the
    batch axis. The parameters name variants and, as a JSON list, `labels`."""
    settings = definition.settings
    config: dict[str, Any] = {
        **definition.config,
        "name": definition.name,
        "platform": PLATFORM if settings.function is None else "",
        "backend": BACKEND if settings.function is None else PYTHON,
        "version_policy": _version_policy(settings.versions),
        "max_batch_size": interface.max_batch,
        "input": config_tensors(interface.inputs, interface),
        "output": config_tensors(interface.outputs, interface),
        "instance_group": [_instance_group(settings)],
        "default_model_filename": settings.file,
    }
    for tensor in config["input"]:
        if tensor["name"] in settings.masks:
            tensor["optional"] = True  # Triton's word for an input that may be left out
    # For clients, the presence of this key means that the server batches.
    config.pop("dynamic_batching", None)
    parameters = {}
    if settings.variants is not None:
        parameters["variants"] = {"string_value": ",".join(settings.variants.names)}
    if labels:
        parameters["labels"] = {"string_value": json.dumps(labels, ensure_ascii=False)}
    if parameters:
        config["parameters"] = {**config.get("parameters", {}), **parameters}
    if interface.batches:
        config["dynamic_batching"] = _dynamic_batching(settings)
    return config


def metadata_shape(spec: TensorSpec, interface: ModelInterface) -> tuple[int, ...]:
    """Return the shape for the metadata endpoint, with a leading −1 if the model batches."""
    return (-1, *interface.row_axes(spec)) if interface.batches else spec.shape


def config_tensors(specs: Sequence[TensorSpec], interface: ModelInterface) -> list[dict[str, Any]]:
    return [
        {
            "name": spec.name,
            "data_type": triton_type(spec.datatype),
            "dims": list(interface.row_axes(spec)),
        }
        for spec in specs
    ]


def _version_policy(versions: Versions) -> dict[str, Any]:
    if versions.only is not None:
        return {"specific": {"versions": [int(version) for version in versions.only]}}
    return {"all": {}} if versions.all else {"latest": {"num_versions": versions.latest}}


def _instance_group(settings: ModelSettings) -> dict[str, Any]:
    if settings.on_cpu:
        return {"count": settings.replicas.min, "kind": "KIND_CPU"}
    return {"count": 1, "kind": "KIND_GPU", "gpus": [int(settings.device.partition(":")[2])]}


def _dynamic_batching(settings: ModelSettings) -> dict[str, Any]:
    batching: dict[str, Any] = {
        "priority_levels": MAX_PRIORITY,
        "default_priority_level": settings.priority,
    }
    policy: dict[str, Any] = {"allow_timeout_override": True}
    if settings.queue_limit is not None:
        policy["max_queue_size"] = settings.queue_limit
    if isinstance(fifo := settings.scheduler.options, FifoOptions):
        batching["max_queue_delay_microseconds"] = round(fifo.max_delay * 1e6)
        if fifo.preferred:
            batching["preferred_batch_size"] = list(fifo.preferred)
        if fifo.timeout is not None:
            policy["timeout_action"] = fifo.timeout_action.upper()
            policy["default_timeout_microseconds"] = round(fifo.timeout * 1e6)
    batching["default_queue_policy"] = policy
    return batching
