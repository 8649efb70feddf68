"""Every field of Triton's ModelConfig, and what it means to Slacktide: one table.

`docs/triton-config.md` is printed from it, and a test walks the descriptor to prove that no field
is missing. An entry speaks for the fields below it too, unless it is honoured: then each of them
has an entry of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from slacktide.models.repository.errors import Problem, RefusedFieldError
from slacktide.models.repository.triton.messages import PlainConfig


class Treatment(Enum):
    """What becomes of a field that a configuration states."""

    HONOURED = "honoured"
    """It does here what it does in Triton, or what its sentence says."""
    HARMLESS = "harmless"
    """It has no effect here and changes no answer; one warning per model names all of these."""
    REFUSED = "refused"
    """It changes what the model means, and is not supported: the model is not loaded."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field by its dotted path from ModelConfig, its class, and a sentence on why."""

    path: str
    treatment: Treatment
    note: str


_H, _W, _R = Treatment.HONOURED, Treatment.HARMLESS, Treatment.REFUSED

_ROWS: tuple[tuple[str, Treatment, str], ...] = (
    ("name", _H, "Must be the name of the model's folder, if stated."),
    ("platform", _H, "Only `onnxruntime_onnx`, or nothing; any other platform is refused."),
    ("backend", _H, "Only `onnxruntime`, or nothing; any other backend is refused."),
    ("runtime", _R, "Names a backend library to load."),
    ("version_policy", _H, "Which versions are served; `versions` in slacktide.yaml."),
    ("version_policy.latest", _H, "The highest versions."),
    ("version_policy.latest.num_versions", _H, "How many of them, at least 1."),
    ("version_policy.all", _H, "Every version folder."),
    ("version_policy.specific", _H, "The versions listed."),
    ("version_policy.specific.versions", _H, "Each of them must exist."),
    (
        "max_batch_size",
        _H,
        "Most rows in one batch; 0: no batch axis. If it is not stated it counts as 0 where "
        "`input` is stated, and is read off the model otherwise. `max_batch` in slacktide.yaml.",
    ),
    ("input", _H, "Checked against the model when it is loaded; every input or none."),
    ("input.name", _H, "Must be an input of the model."),
    ("input.data_type", _H, "Must be the model's, if stated."),
    ("input.format", _W, "Says how to read an image; the tensor is what the model says it is."),
    ("input.dims", _H, "Must agree with the model's shape, without the batch axis; −1 is free."),
    ("input.reshape", _R, "Clients would have to send another shape than the model's."),
    ("input.is_shape_tensor", _R, "Belongs to TensorRT plans."),
    ("input.allow_ragged_batch", _R, "Requests of unequal shapes would share a batch unpadded."),
    ("input.optional", _R, "Every input of the model must be sent."),
    ("input.is_non_linear_format_io", _R, "Belongs to TensorRT plans."),
    ("output", _H, "Checked against the model when it is loaded."),
    ("output.name", _H, "Must be an output of the model."),
    ("output.data_type", _H, "Must be the model's, if stated."),
    ("output.dims", _H, "Must agree with the model's shape, without the batch axis; −1 is free."),
    ("output.reshape", _R, "Clients would get another shape than the model's."),
    ("output.label_filename", _W, "Serves the classification extension, which is not offered."),
    ("output.is_shape_tensor", _R, "Belongs to TensorRT plans."),
    ("output.is_non_linear_format_io", _R, "Belongs to TensorRT plans."),
    ("batch_input", _R, "The model would get inputs made up by the server."),
    ("batch_output", _R, "Outputs would be cut up by other rules than rows."),
    ("optimization", _H, "See its fields."),
    ("optimization.graph", _W, "The level of graph optimisation changes speed alone."),
    ("optimization.priority", _W, "Lanes and `share` decide who runs."),
    ("optimization.cuda", _W, "CUDA graphs change speed alone."),
    (
        "optimization.execution_accelerators",
        _R,
        "May change precision; state `device` and `providers` in slacktide.yaml instead.",
    ),
    ("optimization.input_pinned_memory", _W, "Changes speed alone."),
    ("optimization.output_pinned_memory", _W, "Changes speed alone."),
    ("optimization.gather_kernel_buffer_threshold", _W, "Changes speed alone."),
    ("optimization.eager_batching", _W, "Changes speed alone."),
    ("dynamic_batching", _H, "Batching is on wherever the model has a batch axis."),
    (
        "dynamic_batching.preferred_batch_size",
        _H,
        "`preferred` of the scheduler `fifo`; the other schedulers choose the size that pays.",
    ),
    (
        "dynamic_batching.max_queue_delay_microseconds",
        _H,
        "`max_delay` of the scheduler `fifo`; the other schedulers never idle a free lane.",
    ),
    ("dynamic_batching.preserve_ordering", _R, "Answers leave when they are ready; use their ids."),
    (
        "dynamic_batching.priority_levels",
        _H,
        "At most 5. Level p is priority p of a request: a weight of 2^(3 − p) on its deadline, "
        "not a strict order.",
    ),
    (
        "dynamic_batching.default_priority_level",
        _H,
        "Priority of a request that states none; `priority` in slacktide.yaml.",
    ),
    ("dynamic_batching.default_queue_policy", _H, "See its fields."),
    (
        "dynamic_batching.default_queue_policy.timeout_action",
        _H,
        "`timeout_action` of the scheduler `fifo`. Under the others a timeout that delays is no "
        "deadline and has no effect.",
    ),
    (
        "dynamic_batching.default_queue_policy.default_timeout_microseconds",
        _H,
        "`timeout` of the scheduler `fifo`. Under the others a timeout that rejects is the `slo` "
        "of slacktide.yaml: it counts to the answer, not to the start of execution.",
    ),
    (
        "dynamic_batching.default_queue_policy.allow_timeout_override",
        _H,
        "A client may always ask for an earlier deadline.",
    ),
    (
        "dynamic_batching.default_queue_policy.max_queue_size",
        _H,
        "`limits.queue` in slacktide.yaml; 0: no limit.",
    ),
    ("dynamic_batching.priority_queue_policy", _R, "There is one queue, with one limit."),
    ("sequence_batching", _R, "Requests are independent; no state is kept between them."),
    ("ensemble_scheduling", _R, "A model here is one ONNX file."),
    ("instance_group", _H, "Replicas, and where they run. Several groups must share a device."),
    ("instance_group.name", _W, "Replicas are numbered."),
    (
        "instance_group.kind",
        _H,
        "`KIND_CPU`, `KIND_GPU` (`device: cuda` in slacktide.yaml) or `KIND_AUTO` (a GPU if `gpus` "
        "are named); `KIND_MODEL` is refused.",
    ),
    ("instance_group.count", _H, "`replicas` in slacktide.yaml, summed up; a GPU has one."),
    ("instance_group.gpus", _H, "One GPU at most: `device: cuda:N` in slacktide.yaml."),
    ("instance_group.profile", _W, "Belongs to TensorRT plans."),
    ("instance_group.rate_limiter", _W, "A lane runs one batch at a time."),
    ("instance_group.passive", _R, "A replica that never runs is none."),
    ("instance_group.secondary_devices", _R, "Parts of the model would run elsewhere."),
    ("instance_group.host_policy", _W, "Lanes decide on cores."),
    ("default_model_filename", _H, "`file` in slacktide.yaml; a plain file name."),
    ("cc_model_filenames", _R, "Another file would be served on some GPUs."),
    ("metric_tags", _W, "Metrics carry no labels of their own making."),
    ("parameters", _H, "Kept and shown by the config endpoint; none has an effect."),
    ("parameters.string_value", _H, "Kept as it is."),
    ("model_warmup", _H, "Warm-up always covers every batch size; samples add shapes to it."),
    ("model_warmup.name", _W, "A label."),
    ("model_warmup.batch_size", _W, "Every batch size is warmed."),
    ("model_warmup.inputs", _H, "The first sample that names an input gives its typical shape."),
    ("model_warmup.inputs.data_type", _W, "It is the model's."),
    (
        "model_warmup.inputs.dims",
        _H,
        "Typical shape where the model leaves axes free; `inputs.NAME.shape` in slacktide.yaml.",
    ),
    ("model_warmup.inputs.zero_data", _W, "Warm-up uses random data."),
    ("model_warmup.inputs.random_data", _W, "Warm-up uses random data anyway."),
    ("model_warmup.inputs.input_data_file", _W, "Warm-up uses random data; no file is read."),
    ("model_warmup.count", _W, "Warm-up lasts until it is warm."),
    ("model_operations", _R, "Would load a library of custom operators into the server."),
    ("model_transaction_policy", _H, "See its field."),
    (
        "model_transaction_policy.decoupled",
        _R,
        "A request has exactly one answer.",
    ),
    ("model_repository_agents", _R, "Would change the model's files before they are read."),
    ("response_cache", _W, "There is no cache; every answer is computed."),
    ("model_metrics", _W, "Histograms have fixed buckets."),
)

FIELDS: Mapping[str, Field] = {path: Field(path, kind, note) for path, kind, note in _ROWS}
"""The table, by path."""


def stated(config: PlainConfig) -> Iterator[Field]:
    """The table's entry for every field that `config` states, from the outside in.

    Fields below a harmless or refused one are covered by it.
    """
    yield from _walk(config, "")


def judge(config: PlainConfig, *, where: str) -> tuple[str, ...]:
    """The warnings a configuration earns: none, or one naming all its harmless fields.

    Raises RefusedFieldError naming every refused one.
    """
    found = tuple(dict.fromkeys(stated(config)))
    refused = [field for field in found if field.treatment is Treatment.REFUSED]
    if refused:
        problems = (Problem(f.path, f"is not supported: {f.note}") for f in refused)
        raise RefusedFieldError(where, *problems)
    harmless = [field.path for field in found if field.treatment is Treatment.HARMLESS]
    if not harmless:
        return ()
    return (f"{where}: no effect here, and no harm: {', '.join(harmless)}",)


def _walk(value: Mapping[str, Any], prefix: str) -> Iterator[Field]:
    for name, inner in value.items():
        path = f"{prefix}{name}"
        field = FIELDS[path]
        yield field
        if field.treatment is Treatment.HONOURED:
            for message in _messages(inner, is_map=path in _MAPS):
                yield from _walk(message, f"{path}.")


_MAPS = frozenset({"parameters", "model_warmup.inputs"})
"""Honoured fields that are maps from a name to a message."""


def _messages(value: Any, *, is_map: bool) -> Iterator[Mapping[str, Any]]:
    """The messages in a field's value: itself, its items, or the values of a map."""
    if isinstance(value, Mapping):
        yield from value.values() if is_map else (value,)
    elif isinstance(value, list):
        yield from (item for item in value if isinstance(item, Mapping))
