"""`ModelSettings`: the settings of a model's slacktide.yaml.

All are optional. slacktide.yaml takes precedence over config.pbtxt, and both over the defaults. The
docstrings of fields appear in docs/configuration.md; tests/docs/test_option_tables.py writes and
compares its tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    StringConstraints,
    model_validator,
)

from slacktide.domain.options import OptionError
from slacktide.domain.padding import PaddedInput, PaddedOutput, Padding
from slacktide.domain.preprocessing import StatedPreprocessing
from slacktide.domain.units import format_seconds
from slacktide.executors.ports import PoolingSource
from slacktide.models.repository.decode import DecodeSettings
from slacktide.models.repository.early_exit import EarlyExitSettings
from slacktide.models.repository.fields import (
    DEFAULT_SCHEDULER,
    Cores,
    Name,
    Percent,
    ReplicaCount,
    Scaling,
    SchedulerSettings,
    Seconds,
    Section,
    Size,
    WindowSettings,
    ascending,
    number_to_cores,
    number_to_replicas,
    scaling_policy_of,
    short_for,
)
from slacktide.models.repository.function import AfterSettings, BeforeSettings, FunctionSettings
from slacktide.models.repository.image import Image
from slacktide.models.repository.paths import VERSION_RULE, is_version
from slacktide.models.repository.precision import Backend, Precision, check_backends
from slacktide.models.repository.variants import VariantSettings, short_variants

Count = Annotated[int, Field(ge=1)]
Duration = Annotated[Seconds, Field(gt=0)]


def _version(value: Any) -> Any:
    """Return a version, which may be written as a number, as text."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not (isinstance(text, str) and is_version(text)):
        raise ValueError(f"expected {VERSION_RULE}")
    return text


Version = Annotated[str, BeforeValidator(_version)]


class Versions(Section):
    """Which versions are served: exactly one of three rules. `all` is short for `{all: true}`, a
    list for `{only: [...]}`."""

    latest: Count | None = None
    """Number of versions to serve, from the highest down."""
    all: Literal[True] | None = None
    """true: serves every version."""
    only: Annotated[tuple[Version, ...], Field(strict=False, min_length=1)] | None = None
    """Versions to serve. Each must exist."""

    @model_validator(mode="after")
    def _one_rule(self) -> Versions:
        if sum(rule is not None for rule in (self.latest, self.all, self.only)) != 1:
            raise ValueError("expected exactly one of 'latest', 'all' and 'only'")
        return self

    def choose(self, available: Iterable[str]) -> tuple[str, ...]:
        """Return the versions to serve, ascending; `only` may include missing ones."""
        ascending = tuple(sorted(available, key=int))
        if self.only is not None:
            return tuple(sorted(set(self.only), key=int))
        return ascending if self.latest is None else ascending[-self.latest :]


class Limits(Section):
    """Limits of the model, besides those of the server."""

    queue: Count | None = None
    """Maximum number of waiting requests, under any scheduler (429). Default: only the server's
    limits apply."""
    payload: Size | None = None
    """Maximum size of a request (413). Default: only the server's limit applies."""
    memory: Size | None = None
    """Maximum total size of the model's requests in flight (429). Default: only the server's limit
    applies."""
    rows: Count | None = None
    """Maximum number of rows in a request (400). More than `max_batch` run in several batches, with
    one deadline and one answer. Default: 32 × `max_batch` within 64 MiB, or `max_batch`."""
    length: Count | None = None
    """Maximum length of a request along the padded axes (400)."""
    text: Size = 64 << 10
    """Maximum size of a text for a tokenizer (413), which takes about 0.4 µs for a byte."""
    pixels: Count = 50 << 20
    """Maximum pixels, width × height, of an image that is decoded or resized (400)."""
    worker_memory: Size | None = None
    """Memory that a worker process may use beyond an empty one. A worker that exceeds it is
    replaced, which is reported as out of memory."""


class Profiling(Section):
    """Measurements while the model serves."""

    online: Annotated[Percent, Field(le=0.5)] = 0.02
    """Share of the lanes' time for running finished requests again, alone, to measure how long they
    take. 50% at most; 0: never."""


class InputPad(Section):
    """The axis along which an input may be padded to the longest request of its batch."""

    axis: Annotated[int, Field(ge=1, le=64)] = 1
    """The padded axis, which must be free in the model. The batch axis is 0."""
    value: float = 0
    """The padding value; it must fit the input's datatype."""
    mask: str | None = None
    """The input [rows, length] that is 1 for content and 0 for padding. If a client omits it, the
    worker makes it."""


class OutputPad(Section):
    """The axis of an output that grows with the padded inputs and is cut back for each request."""

    axis: Annotated[int, Field(ge=1, le=64)] = 1
    """The axis along which the output is cut back. The batch axis is 0."""
    stride: Count | None = None
    """Length of the inputs for each element of the output, such as 8 for a text recogniser. The
    warm-up finds the stride, and how lengths are rounded."""


def _constant(value: Any) -> Any:
    is_plain = value is None or isinstance(value, int | str)  # true and false are whole numbers
    if is_plain or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError("expected a number, a string, true or false")


Shape = Annotated[
    tuple[Annotated[int, Field(ge=1, le=2**31)], ...], Field(strict=False, max_length=64)
]


def _axis(size: int) -> int:
    if size == -1 or size >= 1:
        return size
    raise ValueError("expected 1 or more, or -1 for a free axis")


OpenShape = Annotated[
    tuple[Annotated[int, Field(le=2**31), AfterValidator(_axis)], ...],
    Field(strict=False, max_length=64),
]


ROLES = ("input_ids", "attention_mask", "token_type_ids")
"""Inputs that a tokenizer makes."""


def _roles(value: Any) -> Any:
    """Inputs that the tokenizer makes, by role; a list has those with the usual names."""
    named = {name: name for name in value} if isinstance(value, list) else value
    if isinstance(named, dict) and not (named.keys() <= {*ROLES} and "input_ids" in named):
        raise ValueError(
            f"expected input_ids and perhaps attention_mask, token_type_ids, or a mapping from "
            f"these to the model's inputs, got {', '.join(map(str, named)) or 'none'}"
        )
    return named


class InputSettings(Section):
    """One input of the model, by name."""

    shape: OpenShape | None = None
    """A typical shape of this input, without the batch axis, for warm-up and profiling where the
    model leaves an axis free. By default, and for -1, common sizes are tried, and the log names the
    size that ran."""
    shapes: Annotated[tuple[Shape, ...], Field(strict=False, max_length=16)] = ()
    """Further typical shapes, for profiling. If several inputs state them, their first shapes are
    used together, then their second ones, and so on."""
    value: Annotated[bool | int | float | str | None, PlainValidator(_constant)] = None
    """Value of all elements of this input in warm-up and profiling, such as a sampling rate.
    Default: random values. Requests must still send the input."""
    image: Image | None = None
    """Declares that this input takes [images](images.md): JPEG, or pixels of any size. A name is
    short for `image.preset`."""
    tokenizer: Name | None = None
    """Declares that this input takes [text](text.md), and names the tokenizer.json in the folder of
    the version or the model. Needs `slacktide[text]`."""
    gives: Annotated[dict[str, str], BeforeValidator(_roles)] | None = None
    """The model's inputs that the tokenizer makes: a list of `input_ids`, `attention_mask` and
    `token_type_ids`, or a mapping from these to the model's names. Default: those it has."""
    max_length: Count | None = None
    """Number of tokens to which a text is cut. Default: as the tokenizer's file says, or the
    model's fixed axis."""
    pairs: bool = False
    """true: each row is a pair of texts, such as a question and a passage."""
    finite: bool = False
    """true: NaN and infinity in this input are refused (400)."""
    pad: InputPad | None = None
    """Allows this input to be padded. Not for BYTES, and only for models with a batch axis.
    Default: only requests of equal shape share a batch."""

    @property
    def inputs_by_role(self) -> dict[str, str]:
        """Inputs of the file by the role for which a tokenizer makes them, whether or not they
        exist."""
        return {role: role for role in ROLES} if self.gives is None else self.gives


class OutputSettings(Section):
    """One output of the model, by name."""

    pad: OutputPad | None = None
    """Declares that this output grows with the padded inputs. Needed only if several axes grow."""


class SampleSettings(Section):
    """Rows of real data for warm-up and profiling, instead of random ones. A name is short for
    `samples.file`. Files lie in the version's folder or the model's, and have at most 64 MiB."""

    file: Name | None = None
    """An .npz file with an array for some or all inputs, by name, of the input's datatype. The
    batch axis comes first, and all arrays have the same number of rows."""
    rows: dict[str, Name] = {}  # noqa: RUF012  (pydantic copies it)
    """A file for each input with the bytes of one row, little-endian and row-major. It may also lie
    in the model's folder `warmup`, as in Triton."""

    @model_validator(mode="after")
    def _one_source(self) -> SampleSettings:
        if self.file is not None and self.rows:
            raise ValueError("expected 'file' or 'rows', got both")
        return self


class WorkHint(Section):
    """The size of a request on which its run time depends. `rows` and `bytes` are short for `{of:
    rows}` and `{of: bytes}`."""

    of: Literal["rows", "bytes"] | None = None
    """`rows` or `bytes` of the request."""
    input: str | None = None
    """The input whose size is used."""
    axis: Annotated[int, Field(ge=1, le=64)] | None = None
    """The axis of `work_hint.input` whose size is used. The batch axis is 0. Default: 1."""

    @model_validator(mode="after")
    def _one_source(self) -> WorkHint:
        if (self.of is None) == (self.input is None):
            raise ValueError("expected exactly one of 'input' (with or without 'axis') and 'of'")
        if self.axis is not None and self.input is None:
            raise ValueError("'axis' needs 'input'")
        return self


def _one_name(device: str) -> str:
    """Return a device's only name: `cuda:0` for `cuda`, `cuda:1` for `cuda:01`."""
    kind, _, number = device.partition(":")
    return kind if kind == "cpu" else f"{kind}:{int(number or 0)}"


def _short_versions(value: Any) -> Any:
    if value == "all":
        return {"all": True}
    return {"only": value} if isinstance(value, list) else value


class ModelSettings(Section):
    """All settings of a model."""

    slo: Duration | None = None
    """Deadline of requests that state none, counted from their first byte. Without it, such
    requests are best effort: never dropped, never late."""
    max_slo: Duration | None = None
    """Longest deadline that a request may state."""
    priority: Annotated[int, Field(ge=1, le=5)] = 3
    """Priority of requests that state none, 1 (highest) to 5. A missed deadline of priority p costs
    2^(3 − p)."""
    scheduler: SchedulerSettings = DEFAULT_SCHEDULER
    """The policy that orders this model's requests: a name (short for `scheduler.name`), or a name
    with options."""
    max_batch: Annotated[int, Field(ge=0, le=2**20)] | None = None
    """Maximum number of rows in a batch; 0: the model has no batch axis. Default: as in the model
    file. If memory is short, the largest of 1, 2, 4, … that fits is used, and the log says so."""
    cores: Annotated[Cores, BeforeValidator(number_to_cores)] | None = None
    """Cores of the model's own lane: a number, or a range such as `{min: 1, max: 4}` within which a
    planner changes it. Default: the model shares a lane with all models that do not state
    `cores`."""
    lane: Name | None = None
    """Name of a lane. Models that name the same lane share it, and must agree on its `cores`,
    `replicas` and `scaling`. Not on a GPU, which is one lane."""
    replicas: Annotated[ReplicaCount, BeforeValidator(number_to_replicas)] = ReplicaCount()
    """Number of copies of the model, each on its own lane. With a number, each has ⌊cores ÷
    replicas⌋ cores. With a range, a planner chooses the number, and each has `cores`, which must be
    stated."""
    scaling: Scaling | None = None
    """The scaling policy, if `cores` or `replicas` is a range: a name (short for `scaling.name`),
    or a name with options. The default is `vertical` for cores, `horizontal` for replicas, `joint`
    for both."""
    sessions: Literal["ladder", "one"] = "ladder"
    """With a range of `cores`: `ladder` opens the model once for each number of cores, within a
    quarter of the free memory; `one` opens it once, for `cores.max`."""
    window: WindowSettings | None = None
    """When this model has priority on its lane. The lane's other models must then have windows
    too."""
    share: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Weight of this model if models share a lane."""
    executor: Literal["worker", "in_process", "profiled"] = "worker"
    """`worker`: a process for each replica. `in_process`: in the server's process, for tiny models;
    a crash takes the server down. `profiled`: takes the time of the stored profile without running
    the model."""
    device: Annotated[
        str, StringConstraints(pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$"), AfterValidator(_one_name)
    ] = "cpu"
    """Where the model runs: `cpu` or `cuda:N`; `cuda` is `cuda:0`."""
    providers: Annotated[
        tuple[Literal["cpu", "cuda", "tensorrt"], ...], Field(strict=False, max_length=3)
    ] = ()
    """ONNX Runtime's execution providers, best first: `cpu`, `cuda`, `tensorrt`. The default
    depends on the device. `cuda` or `tensorrt` without a `device` means `cuda:0`. Providers that
    contradict the device are refused."""
    backend: Backend = "onnxruntime"
    """The library that runs the model file: `onnxruntime`, `openvino` (on the CPU; needs
    `slacktide[openvino]`), or `auto`: the [faster of both](precision.md), measured here with the
    profile, if their answers agree."""
    precision: Precision = "fp32"
    """The [precision](precision.md) in which the model computes: `fp32`, as in the file; `bf16`,
    with OpenVINO on processors that have it; or `int8`, quantised once from `samples`."""
    versions: Annotated[Versions, BeforeValidator(_short_versions)] = Versions(latest=1)
    """The versions to serve: exactly one of the keys below. `all` is short for `versions.all`, a
    list for `versions.only`."""
    file: Name = "model.onnx"
    """Name of the model file in the version's folder."""
    function: FunctionSettings | None = None
    """Your own Python function or class instead of a model file."""
    before: BeforeSettings | None = None
    """A function of your own that makes the model's inputs, in its worker."""
    after: AfterSettings | None = None
    """A function of your own that makes the answers from the model's outputs, in its worker."""
    variants: Annotated[VariantSettings, BeforeValidator(short_variants)] | None = None
    """Variants of the model that trade accuracy for time, which makes it a [family](variants.md). A
    list of numbers is short for `variants.sizes`."""
    early_exit: Annotated[EarlyExitSettings, short_for("accuracy_loss")] | None = None
    """Lets a classifier answer easy rows [early](exits.md). A percentage is short for
    `early_exit.accuracy_loss`."""
    limits: Limits = Limits()
    inputs: dict[str, InputSettings] = {}  # noqa: RUF012  (pydantic copies it)
    outputs: dict[str, OutputSettings] = {}  # noqa: RUF012
    decode: Annotated[DecodeSettings, short_for("as")] | None = None
    """A [decoder](decoders.md) of the model's outputs, which replaces them. A name
    is short for `decode.as`."""
    pooling: Literal["mean", "cls", "last"] | None = None
    """Makes one vector of the vectors of a row's tokens, without padding: their `mean`, the first
    (`cls`) or the `last`. It is the only output, `embedding`."""
    normalize: bool = False
    """true: scales vectors to the length 1, after `pooling` if that is stated."""
    labels: Name | None = None
    """A text file in the folder of the version or the model, with the name of a class in each line.
    Default: the names in the model's metadata, if any."""
    expose: Annotated[tuple[str, ...], Field(strict=False, max_length=64)] = ()
    """The outputs that clients, checks and planners see. Others are not computed. Default: all."""
    samples: Annotated[SampleSettings, short_for("file")] = SampleSettings()
    padding: Literal["exact"] | None = None
    """`exact`: declares that padding does not change the answers although there is no mask."""
    lengths: Annotated[
        tuple[Annotated[int, Field(ge=1, le=2**31)], ...],
        Field(strict=False, max_length=16),
        AfterValidator(ascending),
    ] = ()
    """Typical lengths along the padded axes, ascending. Warm-up runs them, and profiling measures
    their times."""
    profiling: Profiling = Profiling()
    work_hint: Annotated[WorkHint, short_for("of")] | None = None
    """The size of a request on which its run time depends: `rows`, `bytes` (short for
    `work_hint.of`), or the size of an axis. Default: as the request states (parameter `work_hint`,
    or `slacktide-work-hint` as HTTP header or gRPC metadata)."""

    @model_validator(mode="before")
    @classmethod
    def _device_of_providers(cls, data: Any) -> Any:
        named = data.get("providers") if isinstance(data, dict) else None
        gpu = isinstance(named, list | tuple) and {"cuda", "tensorrt"} & {*map(str, named)}
        return {"device": "cuda", **data} if gpu else data

    @model_validator(mode="after")
    def _device_and_slo(self) -> ModelSettings:
        gpu = any(provider != "cpu" for provider in self.providers)
        if self.providers and gpu == self.on_cpu:
            expected = "'cpu' alone" if self.on_cpu else "'cuda' or 'tensorrt'"
            raise ValueError(f"providers: expected {expected} on {self.device}")
        if not self.on_cpu and self.executor == "in_process":
            # A failed GPU takes its process along: here that would be the server.
            raise ValueError(f"executor: expected 'worker' on {self.device}, got 'in_process'")
        if not self.on_cpu and self.lane is not None:
            raise ValueError(f"lane: expected none on {self.device}: a device is one lane")
        if self.slo is not None and self.max_slo is not None and self.slo > self.max_slo:
            slo, max_slo = format_seconds(self.slo), format_seconds(self.max_slo)
            raise ValueError(f"expected slo at most max_slo, got {slo} and {max_slo}")
        return self

    @model_validator(mode="after")
    def _lengths_need_padding(self) -> ModelSettings:
        is_text = self.text is not None  # its inputs are padded
        padded = is_text or any(spec.pad is not None for spec in self.inputs.values())
        trimmed = any(spec.pad is not None for spec in self.outputs.values())
        if not padded and (trimmed or self.padding is not None):
            key = "outputs" if trimmed else "padding"
            raise ValueError(f"{key}: needs an input with 'pad'")
        if self.pads is None and not is_text and (self.lengths or self.limits.length is not None):
            key = "lengths" if self.lengths else "limits.length"
            raise ValueError(f"{key}: needs an input with 'pad', and a mask or 'padding: exact'")
        if self.limits.length is not None and any(n > self.limits.length for n in self.lengths):
            raise ValueError(f"lengths: expected at most limits.length, {self.limits.length}")
        return self

    @model_validator(mode="after")
    def _rows_are_stated_once(self) -> ModelSettings:
        counts = {name: len(spec.shapes) for name, spec in self.inputs.items() if spec.shapes}
        if len(set(counts.values())) > 1:
            counted = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
            raise ValueError(f"inputs: expected as many 'shapes' for each input, got {counted}")
        for name in self.samples.rows:
            if name in self.inputs and self.inputs[name].value is not None:
                raise ValueError(f"inputs.{name}.value: not allowed with samples.rows.{name}")
        return self

    @model_validator(mode="after")
    def _one_image_input(self) -> ModelSettings:
        declared = [name for name, spec in self.inputs.items() if spec.image is not None]
        if len(declared) > 1:
            expected = f"expected at most one input with 'image', got it for {declared[0]!r} too"
            raise OptionError((f"inputs.{declared[1]}.image", expected))
        for name in declared:
            for key in ("shape", "shapes", "value", "pad", "finite"):
                if key in self.inputs[name].model_fields_set:
                    raise OptionError((f"inputs.{name}.{key}", "not allowed with 'image'"))
            if self.function is not None or self.max_batch == 0:
                key = "function" if self.function is not None else "max_batch: 0"
                raise OptionError((f"inputs.{name}.image", f"not allowed with '{key}'"))
        return self

    @model_validator(mode="after")
    def _one_text_input(self) -> ModelSettings:
        texts = [name for name, spec in self.inputs.items() if spec.tokenizer is not None]
        if len(texts) > 1:
            expected = f"expected one input with 'tokenizer', got it for {texts[0]!r} too"
            cure = "two texts of one row are one input with 'pairs: true'"
            raise OptionError((f"inputs.{texts[1]}.tokenizer", f"{expected}; {cure}"))
        for name, spec in self.inputs.items():
            text_keys, stated = {"gives", "max_length", "pairs"}, spec.model_fields_set
            if spec.tokenizer is None and stated & text_keys:
                raise OptionError((f"inputs.{name}.{min(stated & text_keys)}", "needs 'tokenizer'"))
            if spec.tokenizer is not None and (other_keys := stated - text_keys - {"tokenizer"}):
                field = f"inputs.{name}.{min(other_keys)}"
                raise OptionError((field, "not allowed with 'tokenizer'"))
            if spec.tokenizer is not None and self.function is not None:
                raise OptionError((f"inputs.{name}.tokenizer", "not allowed with 'function'"))
        return self

    @model_validator(mode="after")
    def _family_is_alone(self) -> ModelSettings:
        if self.variants is not None and self.variants.files and self.file != "model.onnx":
            raise OptionError(("file", f"not allowed with 'variants.files', got {self.file!r}"))
        if self.early_exit is not None and self.variants is not None:
            raise OptionError(("early_exit", "not allowed with 'variants'"))
        if self.early_exit is not None and self.pools is not None:
            raise OptionError(("early_exit", "not allowed with 'pooling' or 'normalize'"))
        if self.expose and self.early_exit is not None:
            raise OptionError(("expose", "not allowed with 'early_exit'"))
        if self.expose and self.variants is not None and self.variants.depths:
            raise OptionError(("expose", "not allowed with 'variants.depths'"))
        return self

    @model_validator(mode="after")
    def _backend_can_run_it(self) -> ModelSettings:
        check_backends(self)
        return self

    @model_validator(mode="after")
    def _functions_around_it(self) -> ModelSettings:
        for key, function in (("before", self.before), ("after", self.after)):
            if function is None:
                continue
            for section in ("variants", "early_exit"):
                if section in self.model_fields_set:
                    raise OptionError((key, f"not allowed with {section!r}"))
            if self.executor == "in_process":
                raise OptionError(("executor", f"expected 'worker' with {key!r}"))
        if self.before is not None and self.preprocessing is not None:
            name = self.preprocessing.input
            raise OptionError((f"inputs.{name}.image", "not allowed with 'before'"))
        if self.before is not None and self.text is not None:
            raise OptionError((f"inputs.{self.text[0]}.tokenizer", "not allowed with 'before'"))
        return self

    @model_validator(mode="after")
    def _function_alone(self) -> ModelSettings:
        if self.function is None:
            return self
        keys = ("file", "variants", "early_exit", "versions", "providers", "backend", "precision")
        more = ("expose", "decode", "labels", "before", "after", "pooling", "normalize")
        for key in keys + more:
            if key in self.model_fields_set:
                raise OptionError((key, "not allowed with 'function'"))
        if not self.on_cpu:
            raise OptionError(("device", "expected 'cpu' with 'function'"))
        if self.executor == "in_process":
            raise OptionError(("executor", "expected 'worker' with 'function'"))
        self.function.interface(self.max_batch)
        return self

    @model_validator(mode="after")
    def _worker_and_scaling(self) -> ModelSettings:
        if self.limits.worker_memory is not None and self.executor != "worker":
            raise ValueError("limits.worker_memory: needs 'executor: worker'")
        if not self.replicas.fixed and (self.cores is None or not self.on_cpu):
            expected = "a number without 'cores'" if self.on_cpu else "a number"
            raise ValueError(
                f"replicas: expected {expected}, got min {self.replicas.min} and "
                f"max {self.replicas.max} on {self.device}"
            )
        if self.scaling is not None and not self.scaled:
            raise ValueError("scaling: needs a range of 'cores' or 'replicas' (min below max)")
        if self.sessions == "one" and (self.cores is None or self.cores.fixed):
            raise ValueError("sessions: needs a range of 'cores' (min below max)")
        if self.scaled:
            try:
                scaling_policy_of(self.scaling or {}, self.cores, self.replicas)
            except OptionError as error:
                problems = ((f"scaling.{name}", message) for name, message in error.problems)
                raise OptionError(*problems) from None
        return self

    @property
    def expands(self) -> bool:
        """Whether it is a function that returns any number of rows."""
        return self.function is not None and self.function.expands

    @property
    def frame_input(self) -> str:
        """The input that is the picture of a pipeline's frame; empty: none."""
        return "" if self.function is None else self.function.frame

    @property
    def on_cpu(self) -> bool:
        """Whether it runs on CPU cores."""
        return self.device == "cpu"

    @property
    def scaled(self) -> bool:
        """Whether its cores or replicas may change while it serves."""
        if self.cores is None or not self.on_cpu:
            return False
        return not (self.cores.fixed and self.replicas.fixed)

    @property
    def scaling_policy(self) -> tuple[str, dict[str, object]]:
        """The scaling policy of a `scaled` model, and its stated options as plain values."""
        choice = scaling_policy_of(self.scaling or {}, self.cores, self.replicas)
        return choice.name, choice.stated()

    @property
    def exits(self) -> EarlyExitSettings | None:
        """The early exits in effect: only workers can split a network."""
        return self.early_exit if self.executor == "worker" else None

    @property
    def pads(self) -> Padding | None:
        """The padding in effect; None if requests of unequal shape never share a batch. Without a
        mask, padding must be declared exact: otherwise it would change answers."""
        stated = {name: spec.pad for name, spec in self.inputs.items() if spec.pad is not None}
        masks = self.masks
        if not stated or not (masks or self.padding == "exact"):
            return None
        inputs = {name: PaddedInput(pad.axis, pad.value) for name, pad in stated.items()}
        inputs |= {name: PaddedInput(1, 0, mask=True) for name in masks}
        outputs = {
            name: PaddedOutput(spec.pad.axis, spec.pad.stride)
            for name, spec in self.outputs.items()
            if spec.pad is not None
        }
        return Padding(inputs, outputs, self.lengths)

    @property
    def masks(self) -> frozenset[str]:
        """Inputs that mark padding. Clients may leave them out."""
        pads = (spec.pad for spec in self.inputs.values())
        return frozenset(pad.mask for pad in pads if pad is not None and pad.mask is not None)

    @property
    def text(self) -> tuple[str, InputSettings] | None:
        """Name and settings of the text input; None if there is none."""
        texts = (pair for pair in self.inputs.items() if pair[1].tokenizer is not None)
        return next(texts, None)

    @property
    def pools(self) -> PoolingSource | None:
        """How vectors are made of the model's output; None if they are not."""
        if self.pooling is None and not self.normalize:
            return None
        mask = next(iter(self.masks), ROLES[1])
        if self.text is not None:
            mask = self.text[1].inputs_by_role.get(ROLES[1], "")
        return PoolingSource(self.pooling or "", self.normalize, mask)

    @property
    def preprocessing(self) -> StatedPreprocessing | None:
        """The declared image input; None if there is none."""
        stated = (spec.image.stated(name) for name, spec in self.inputs.items() if spec.image)
        return next(stated, None)

    @property
    def queue_limit(self) -> int | None:
        """Maximum number of waiting requests: the smaller limit of `limits` and the scheduler."""
        stated = (self.limits.queue, self.scheduler.stated().get("max_queue"))
        return min((limit for limit in stated if limit is not None), default=None)
