"""`ModelSettings`: what may stand in a model's slacktide.yaml.

Everything is optional; docs/configuration.md explains each key with an example. Where both files
speak, slacktide.yaml wins over config.pbtxt, and both over the server's defaults.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from slacktide.repository.paths import NAME_RULE, VERSION_RULE, is_name, is_version
from slacktide.repository.schedulers import SchedulerSettings, Section, SlackSettings
from slacktide.repository.units import ByteSize, Seconds, format_seconds

Count = Annotated[int, Field(ge=1)]
Size = Annotated[ByteSize, Field(gt=0)]
Duration = Annotated[Seconds, Field(gt=0)]


def _name(value: Any) -> Any:
    if isinstance(value, str) and not is_name(value):
        raise ValueError(f"expected {NAME_RULE}")
    return value


def _version(value: Any) -> Any:
    """Versions may be written as numbers; they are kept as text, as on the wire."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not (isinstance(text, str) and is_version(text)):
        raise ValueError(f"expected {VERSION_RULE}")
    return text


Name = Annotated[str, BeforeValidator(_name)]
Version = Annotated[str, BeforeValidator(_version)]


class Cores(Section):
    """How many cores the model's lane may have. `2` is short for `{min: 2, max: 2}`."""

    min: Count = 1
    max: Count | None = None
    """None: all that the server may use."""

    @model_validator(mode="after")
    def _ordered(self) -> Cores:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"expected min at most max, got min {self.min} and max {self.max}")
        return self


class Versions(Section):
    """Which versions are served: exactly one of three rules.

    `all` is short for `{all: true}`, a list for `{only: [...]}`.
    """

    latest: Count | None = None
    """The highest so many."""
    all: Literal[True] | None = None
    only: Annotated[tuple[Version, ...], Field(strict=False, min_length=1)] | None = None
    """These, which must exist."""

    @model_validator(mode="after")
    def _one_rule(self) -> Versions:
        if sum(rule is not None for rule in (self.latest, self.all, self.only)) != 1:
            raise ValueError("expected exactly one of 'latest', 'all' and 'only'")
        return self

    def choose(self, available: Iterable[str]) -> tuple[str, ...]:
        """The versions to serve, in ascending order; `only` also names those that are missing."""
        ascending = tuple(sorted(available, key=int))
        if self.only is not None:
            return tuple(sorted(set(self.only), key=int))
        return ascending if self.latest is None else ascending[-self.latest :]


class Limits(Section):
    """What the model may take up. Unset: the server's limits alone."""

    queue: Count | None = None
    """Most requests waiting, under any scheduler; one more is refused (429)."""
    payload: Size | None = None
    """Most bytes in one request (413)."""
    memory: Size | None = None
    """Most bytes of all its requests in flight (429)."""
    rows: Count | None = None
    """Most rows in one request (400)."""


class InputSettings(Section):
    """One input of the model, by name."""

    shape: (
        Annotated[tuple[Annotated[int, Field(ge=1, le=2**31)], ...], Field(strict=False)] | None
    ) = None
    """A typical shape, without the batch axis: what warm-up and profiling put where the model
    leaves an axis free."""
    finite: bool = False
    """True refuses NaN and infinity (400)."""


def _number_to_cores(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return {"min": value, "max": value} if whole else value


def _short_versions(value: Any) -> Any:
    if value == "all":
        return {"all": True}
    return {"only": value} if isinstance(value, list) else value


class ModelSettings(Section):
    """Everything a model's owner may decide."""

    slo: Duration | None = None
    """Deadline of a request that states none, seconds from its first byte (end to end). None: such
    a request is best effort."""
    max_slo: Duration | None = None
    """No request gets a longer deadline than this, seconds."""
    priority: Annotated[int, Field(ge=1, le=5)] = 3
    """Priority of a request that states none, 1 (highest) to 5; p weighs 2^(3 − p)."""
    scheduler: SchedulerSettings = SlackSettings()
    """The policy that orders this model's requests."""
    max_batch: Annotated[int, Field(ge=0, le=2**20)] | None = None
    """Most rows in one batch; 0: the model has no batch axis; None: read off the model."""
    cores: Annotated[Cores, BeforeValidator(_number_to_cores)] | None = None
    """A lane of its own with so many cores; None: the lane shared by all such models."""
    lane: Name | None = None
    """Name of the lane; models that name the same one share it and must agree on its cores."""
    replicas: Annotated[int, Field(ge=1, le=256)] = 1
    """Copies of the model, each on a lane of its own (⌊cores / replicas⌋ cores each)."""
    share: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Weight of this model where several share a lane."""
    executor: Literal["worker", "in_process", "profiled"] = "worker"
    """`worker`: a process for each replica; `in_process`: for tiny models that may take the server
    down with them; `profiled`: answers from the stored profile, without running the model."""
    device: Annotated[str, StringConstraints(pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$")] = "cpu"
    """Where it runs: `cpu`, `cuda` or `cuda:N`."""
    providers: Annotated[
        tuple[Literal["cpu", "cuda", "tensorrt"], ...], Field(strict=False, max_length=3)
    ] = ()
    """ONNX Runtime execution providers, best first; empty: those that suit the device."""
    versions: Annotated[Versions, BeforeValidator(_short_versions)] = Versions(latest=1)
    """Which versions are served."""
    file: Name = "model.onnx"
    """Name of the model file in the version's folder."""
    limits: Limits = Limits()
    inputs: dict[str, InputSettings] = {}  # noqa: RUF012  (pydantic copies it)

    @model_validator(mode="after")
    def _slo_within_max(self) -> ModelSettings:
        if self.slo is not None and self.max_slo is not None and self.slo > self.max_slo:
            slo, max_slo = format_seconds(self.slo), format_seconds(self.max_slo)
            raise ValueError(f"expected slo at most max_slo, got {slo} and {max_slo}")
        return self

    @property
    def queue_limit(self) -> int | None:
        """Most requests waiting: the smaller of what `limits` and the scheduler say."""
        stated = (self.limits.queue, getattr(self.scheduler, "max_queue", None))
        return min((limit for limit in stated if limit is not None), default=None)

    @property
    def provider_names(self) -> tuple[str, ...]:
        """`providers` under ONNX Runtime's own names."""
        return tuple(PROVIDER_NAMES[provider] for provider in self.providers)


PROVIDER_NAMES = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
"""ONNX Runtime's names of the providers, by ours."""
