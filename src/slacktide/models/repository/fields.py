"""Types of settings fields: sections, values with units, choices by name, ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    model_validator,
)

from slacktide.domain.options import Options, options_of, plain, read_options, written
from slacktide.domain.registry import Registry
from slacktide.domain.suggestions import shown
from slacktide.domain.units import (
    format_bytes,
    format_percent,
    format_seconds,
    parse_bytes,
    parse_percent,
    parse_seconds,
)
from slacktide.models.plugins import admit_name
from slacktide.models.repository.paths import NAME_RULE, is_name
from slacktide.planning.scaling.policies import SCALING_POLICIES
from slacktide.scheduling import DEFAULT_POLICY, POLICIES

Seconds = Annotated[
    float,
    BeforeValidator(parse_seconds),
    PlainSerializer(format_seconds, return_type=str, when_used="json"),
]
"""Seconds, written with a unit."""

ByteSize = Annotated[
    int,
    BeforeValidator(parse_bytes),
    PlainSerializer(format_bytes, return_type=str, when_used="json"),
]
"""Bytes, written with a unit or as a whole number."""

Percent = Annotated[
    float,
    BeforeValidator(parse_percent),
    PlainSerializer(format_percent, return_type=str, when_used="json"),
]
"""A share, 0 to 1, written as a percentage."""


Size = Annotated[ByteSize, Field(gt=0)]


def _name(value: Any) -> Any:
    if isinstance(value, str) and not is_name(value):
        raise ValueError(f"expected {NAME_RULE}")
    return value


Name = Annotated[str, BeforeValidator(_name)]


def ascending(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return `sizes`. Raises ValueError unless they ascend."""
    if list(sizes) != sorted(set(sizes)):
        raise ValueError(f"expected ascending numbers without repetitions, got {list(sizes)}")
    return sizes


class Section(BaseModel):
    """A section of slacktide.yaml. Frozen; refuses unknown keys, `"8"` for 8, and NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy with its options."""

    name: str
    options: Options
    named: frozenset[str] = field(default=frozenset(), compare=False)
    """Options that the document states; the others have defaults."""

    def stated(self) -> dict[str, Any]:
        """Return the stated options as plain values."""
        return {name: value for name, value in plain(self.options).items() if name in self.named}

    def spelt_out(self) -> dict[str, Any]:
        """Return all options as plain values, so that recordings do not depend on defaults. Leaves
        out an unstated queue limit, which `limits.queue` may state."""
        values = plain(self.options).items()
        return {
            name: value
            for name, value in values
            if value is not None and (name != "max_queue" or name in self.named)
        }

    def document(self) -> dict[str, Any]:
        """Return the section as a file would state it."""
        return {"name": self.name, **written(self.options, self.named)}


def short_for(key: str) -> BeforeValidator:
    """Return a validator that reads a text or number as a section with only `key`."""
    return BeforeValidator(
        lambda value: {key: value} if isinstance(value, str | int | float) else value
    )


def name_to_section(value: Any) -> Any:
    """`edf` is short for `{name: edf}`."""
    return {"name": value} if isinstance(value, str) else value


def read_choice(registry: Registry[Any], value: object, *, imports: bool = False) -> Choice:
    """Read a choice from a document. `imports`: whether it may name a class, as `module:Class`.
    Raises ValueError and OptionError."""
    if isinstance(value, Choice):
        return value
    section = name_to_section(value)
    if not isinstance(section, Mapping):
        expected = f"expected the name of a {registry.kind}, or keys and values"
        raise ValueError(f"{expected}, got {shown(value)}")
    stated = {str(key): option for key, option in section.items() if key != "name"}
    name = section.get("name", "")
    name = name if isinstance(name, str) else repr(name)
    admit_name(registry, name, imports=imports)
    choice = registry.find(name)
    options = read_options(choice.options, stated, bare=False)
    pairs = options_of(choice.options).items()
    named = (key for key, option in pairs if not stated.keys().isdisjoint((key, *option.aliases)))
    return Choice(choice.name, options, frozenset(named))


def may_import(info: ValidationInfo) -> bool:
    """Whether the document may name classes to import."""
    return bool(info.context and info.context.get("imports"))


SchedulerSettings = Annotated[
    Choice,
    PlainValidator(
        lambda value, info: read_choice(POLICIES, value, imports=may_import(info)),
        json_schema_input_type=Any,
    ),
    PlainSerializer(Choice.document),
]
"""A policy's name, or a section with its name and options."""

DEFAULT_SCHEDULER = Choice(DEFAULT_POLICY, POLICIES[DEFAULT_POLICY].options())


MOST_REPLICAS = 256


class _Range(Section):
    """A minimum and a maximum. A single number stands for a minimum and a maximum of that value."""

    min: Any
    max: Any

    @model_validator(mode="after")
    def _ordered(self) -> _Range:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"expected min at most max, got min {self.min} and max {self.max}")
        return self

    @property
    def fixed(self) -> bool:
        """Whether minimum and maximum are equal."""
        return bool(self.max == self.min)


class Cores(_Range):
    """Number of cores of the model's own lane. `2` is short for `{min: 2, max: 2}`."""

    min: Annotated[int, Field(ge=1)] = 1
    """Minimum cores."""
    max: Annotated[int, Field(ge=1)] | None = None
    """Maximum cores. Default: all that the server may use."""


class ReplicaCount(_Range):
    """Number of copies of the model. `2` is short for `{min: 2, max: 2}`."""

    min: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    """Minimum copies."""
    max: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    """Maximum copies."""


class WindowSettings(Section):
    """A recurring part of a period: `{every: 50ms, start: 0ms, end: 20ms}`."""

    every: Annotated[Seconds, Field(ge=0.001)]
    """The period. Models on one lane must agree on it."""
    start: Annotated[Seconds, Field(ge=0)]
    """Start of the window, counted from the start of the period."""
    end: Seconds
    """End of the window: after `start`, and no later than the end of the period."""

    @model_validator(mode="after")
    def _fits(self) -> WindowSettings:
        if not self.start < self.end <= self.every:
            raise ValueError("expected 'start' before 'end', and 'end' at most 'every'")
        return self


def _named(value: Any, info: ValidationInfo) -> Any:
    section = name_to_section(value)
    if isinstance(section, Mapping) and (name := section.get("name")) is not None:
        if not isinstance(name, str):
            raise ValueError(f"name: expected a string, got {name!r}")
        admit_name(SCALING_POLICIES, name, imports=may_import(info))
    return section


Scaling = Annotated[dict[str, Any], BeforeValidator(_named)]
"""A scaling policy's name, or a section with its name and options. Without a name, a suitable
policy is chosen."""


def scaling_policy_of(
    scaling: Mapping[str, Any], cores: Cores | None, replicas: ReplicaCount
) -> Choice:
    """Return the policy that `scaling` names, or the default policy for what has a range: cores,
    replicas or both. Raises OptionError."""
    suits = "vertical"
    if not replicas.fixed:
        suits = "horizontal" if cores is None or cores.fixed else "joint"
    name = scaling.get("name") or suits
    return read_choice(SCALING_POLICIES, {**scaling, "name": name}, imports=True)  # see `_named`


def number_to_cores(value: Any) -> Any:
    """`2` is short for `{min: 2, max: 2}`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return {"min": value, "max": value} if whole else value


def number_to_replicas(value: Any) -> Any:
    """`2` is short for `{min: 2, max: 2}`, within 1 to `MOST_REPLICAS`."""
    if isinstance(value, int) and not (isinstance(value, bool) or 1 <= value <= MOST_REPLICAS):
        raise ValueError(f"expected 1 to {MOST_REPLICAS}, got {value}")
    return number_to_cores(value)
