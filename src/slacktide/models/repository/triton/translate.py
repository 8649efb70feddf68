"""Translates a checked ModelConfig into the keys of slacktide.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slacktide.domain.options import OptionError
from slacktide.domain.suggestions import shown, suggestion
from slacktide.domain.units import format_seconds
from slacktide.models.plugins import glue_names, glue_target
from slacktide.models.repository.errors import ModelConfigError, Problem, RefusedFieldError
from slacktide.models.repository.paths import NAME_RULE, is_name
from slacktide.models.repository.triton.fields import judge
from slacktide.models.repository.triton.messages import PlainConfig

PLATFORM = "onnxruntime_onnx"
BACKEND = "onnxruntime"
PYTHON = "python"
"""Backend of a model that a registered function or class answers."""
CLASS_PARAMETER = "class"
"""Parameter with the registered name of the function or class, if that is not the model's name."""
MAX_PRIORITY = 5
MAX_SHAPES = 16
"""Maximum number of further shapes to profile; later samples are ignored."""


@dataclass(frozen=True, slots=True)
class Translation:
    """A config.pbtxt in the keys of slacktide.yaml."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    fifo: Mapping[str, Any] = field(default_factory=dict)
    """Options of the scheduler `fifo`, used only if it is chosen."""
    not_fifo: Mapping[str, Any] = field(default_factory=dict)
    """Settings that replace `fifo` under other schedulers."""
    warnings: tuple[str, ...] = ()


def translate(config: PlainConfig, *, model: str, where: str) -> Translation:
    """Return the settings of `model` in its configuration. Raises RefusedFieldError for unsupported
    fields, ModelConfigError for invalid fields. Other values are checked when all settings are
    validated together."""
    warnings = judge(config, where=where)
    reader = _Reader(config, where)
    reader.identity(model)
    reader.batching()
    reader.files()
    reader.instances()
    reader.queueing()
    reader.warmup()
    return Translation(reader.settings, reader.fifo, reader.not_fifo, warnings)


class _Reader:
    """Reads one configuration; each method reads one subject."""

    def __init__(self, config: PlainConfig, where: str) -> None:
        self._config = config
        self._where = where
        self.settings: dict[str, Any] = {}
        self.fifo: dict[str, Any] = {}
        self.not_fifo: dict[str, Any] = {}

    def identity(self, model: str) -> None:
        name = self._config.get("name", model)
        if name != model:
            self._wrong("name", f"expected the folder's name {model!r}, got {shown(name)}")
        if (backend := self._config.get("backend", BACKEND)) == PYTHON:
            self.settings["function"] = self._function(model)
        elif backend != BACKEND:
            expected = f"only {BACKEND!r} and {PYTHON!r} are served"
            self._refuse("backend", f"{expected}, got {shown(backend)}")
        if (platform := self._config.get("platform") or PLATFORM) != PLATFORM:
            self._refuse("platform", f"only {PLATFORM!r} is served, got {shown(platform)}")

    def _function(self, model: str) -> dict[str, Any]:
        """Return the section `function` for the backend `python`."""
        parameters = self._config.get("parameters", {})
        name = parameters.get(CLASS_PARAMETER, {}).get("string_value", model)
        try:
            glue_target(name)
        except OptionError:
            hint = suggestion(name, glue_names(), noun="registered")
            message = (
                f"is served by the function or class registered as {name!r}, but there is none"
            )
            self._wrong(
                "backend", f"{message} (slacktide serve --glue {name}=MODULE:CLASS); {hint}"
            )
        rows = [-1] if self._config.get("max_batch_size") else []
        section: dict[str, Any] = {"name": name}
        for key, field_name in (("takes", "input"), ("gives", "output")):
            tensors = self._config.get(field_name, [])
            if not tensors:
                self._wrong(field_name, f"expected all tensors with 'backend: {PYTHON}'")
            section[key] = {
                tensor.get("name", ""): {
                    "datatype": _datatype(tensor.get("data_type", "")),
                    "shape": [*rows, *_row_shape(tensor)],
                }
                for tensor in tensors
            }
        return section

    def batching(self) -> None:
        size = self._config.get("max_batch_size")
        if size is None and "input" in self._config:
            size = 0
        if size is not None:
            if size < 0:
                self._wrong("max_batch_size", f"expected 0 or more, got {size}")
            self.settings["max_batch"] = size

    def files(self) -> None:
        if "function" in self.settings:
            return  # neither versions nor model.py are read
        file = self._config.get("default_model_filename")
        if file is not None:
            if not is_name(file):
                self._wrong("default_model_filename", f"expected {NAME_RULE}, got {shown(file)}")
            self.settings["file"] = file
        policy = self._config.get("version_policy", {})
        if "latest" in policy:
            count = policy["latest"].get("num_versions", 0)
            if count < 1:
                self._wrong("version_policy.latest.num_versions", "expected 1 or more")
            self.settings["versions"] = {"latest": count}
        elif "all" in policy:
            self.settings["versions"] = {"all": True}
        elif "specific" in policy:
            versions = policy["specific"].get("versions", [])
            if not versions or min(versions) < 1:
                self._wrong("version_policy.specific.versions", "expected versions from 1")
            self.settings["versions"] = {"only": versions}

    def instances(self) -> None:
        groups = self._config.get("instance_group", [])
        if not groups:
            return
        devices = {self._device(group) for group in groups}
        if len(devices) > 1:
            listed_devices = " and ".join(sorted(devices))
            self._refuse("instance_group", f"a model runs on one device, got {listed_devices}")
        counts = [group.get("count", 1) for group in groups]
        if min(counts) < 1:
            self._wrong("instance_group.count", f"expected 1 or more, got {min(counts)}")
        self.settings["replicas"] = sum(counts)
        if any(
            group.get("kind", "KIND_AUTO") != "KIND_AUTO" or group.get("gpus") for group in groups
        ):
            self.settings["device"] = devices.pop()

    def _device(self, group: Mapping[str, Any]) -> str:
        kind, gpus = group.get("kind", "KIND_AUTO"), sorted(set(group.get("gpus", [])))
        if kind == "KIND_MODEL":
            self._refuse("instance_group.kind", "KIND_MODEL lets the model choose its devices")
        if kind == "KIND_CPU":
            if gpus:
                self._wrong("instance_group.gpus", "expected no GPUs with KIND_CPU")
            return "cpu"
        if len(gpus) > 1:
            self._refuse("instance_group.gpus", f"a model runs on one GPU, got {gpus}")
        if gpus and not 0 <= gpus[0] <= 999:
            self._wrong("instance_group.gpus", f"expected the number of a GPU, got {gpus[0]}")
        if gpus:
            return f"cuda:{gpus[0]}"
        return "cuda" if kind == "KIND_GPU" else "cpu"

    def queueing(self) -> None:
        batching = self._config.get("dynamic_batching", {})
        if (delay := batching.get("max_queue_delay_microseconds")) is not None:
            self.fifo["max_delay"] = _microseconds(delay)
        if (sizes := batching.get("preferred_batch_size")) is not None:
            if min(sizes) < 1:
                path = "dynamic_batching.preferred_batch_size"
                self._wrong(path, f"expected 1 or more, got {min(sizes)}")
            self.fifo["preferred"] = sizes
        levels = batching.get("priority_levels", 0)
        if levels > MAX_PRIORITY:
            path = "dynamic_batching.priority_levels"
            self._refuse(path, f"expected at most {MAX_PRIORITY}, got {levels}")
        if (level := batching.get("default_priority_level")) is not None:
            if not 1 <= level <= levels:
                path = "dynamic_batching.default_priority_level"
                self._wrong(path, f"expected 1 to priority_levels ({levels}), got {level}")
            self.settings["priority"] = level
        policy = batching.get("default_queue_policy", {})
        if size := policy.get("max_queue_size", 0):
            self.settings["limits"] = {"queue": size}
        if timeout := policy.get("default_timeout_microseconds", 0):
            action = policy.get("timeout_action", "REJECT").lower()
            self.fifo |= {"timeout": _microseconds(timeout), "timeout_action": action}
            if action == "reject":
                self.not_fifo["slo"] = _microseconds(timeout)

    def warmup(self) -> None:
        """Read samples: the first one of an input gives its typical shape and content, later ones
        give further shapes."""
        samples = [warmup.get("inputs", {}) for warmup in self._config.get("model_warmup", [])]
        inputs: dict[str, dict[str, Any]] = {}
        shapes = {
            tensor.get("name", ""): _row_shape(tensor) for tensor in self._config.get("input", [])
        }
        files: dict[str, str] = {}
        for name, tensor in (pair for sample in samples for pair in sample.items()):
            dims = self._dims(tensor)
            if name not in inputs:
                inputs[name] = self._content(name, tensor, files)
            if dims:
                inputs[name].setdefault("shape", dims)
        for name, shape in shapes.items():
            if name and max(shape, default=-1) > 0:
                inputs.setdefault(name, {}).setdefault("shape", shape)
        typical = {
            name: tensor["shape"]
            for name, tensor in inputs.items()
            if min(tensor.get("shape", ()), default=-1) > 0
        }
        further = [
            {name: sample.get(name, {}).get("dims") or dims for name, dims in typical.items()}
            for sample in samples
        ]
        further = [shapes for shapes in further if shapes != typical][:MAX_SHAPES]
        for name in typical if further else ():
            inputs[name]["shapes"] = [shapes[name] for shapes in further]
        if stated := {name: tensor for name, tensor in inputs.items() if tensor}:
            self.settings["inputs"] = stated
        if files:
            self.settings["samples"] = {"rows": files}

    def _dims(self, tensor: Mapping[str, Any]) -> list[int]:
        dims: list[int] = tensor.get("dims", [])
        if dims and min(dims) < 1:
            self._wrong("model_warmup.inputs.dims", f"expected 1 or more, got {dims}")
        return dims

    def _content(
        self, name: str, tensor: Mapping[str, Any], files: dict[str, str]
    ) -> dict[str, Any]:
        """Return the content of an input in a sample: a constant, or a file, added to `files`."""
        if (file := tensor.get("input_data_file")) is not None:
            if not is_name(file):
                path = "model_warmup.inputs.input_data_file"
                self._wrong(path, f"expected {NAME_RULE}, got {shown(file)}")
            files[name] = file
        if tensor.get("zero_data"):
            return {"value": "" if tensor.get("data_type") == "TYPE_STRING" else 0}
        return {}

    def _wrong(self, path: str, message: str) -> None:
        raise ModelConfigError(self._where, Problem(path, message))

    def _refuse(self, path: str, message: str) -> None:
        raise RefusedFieldError(self._where, Problem(path, f"is not supported: {message}"))


def _datatype(triton_type: str) -> str:
    name = triton_type.removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def _row_shape(tensor: Mapping[str, Any]) -> list[int]:
    """Return the model's row shape in a configuration."""
    shape: list[int] = tensor.get("reshape", {"shape": tensor.get("dims", [])}).get("shape", [])
    return shape


def _microseconds(count: int) -> str:
    return format_seconds(count / 1e6)
