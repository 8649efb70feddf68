"""`cores`, `replicas` and `scaling` of slacktide.yaml: how much, and by which planner.

Which planners there are and what their options are is the business of `PLANNERS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from slacktide.models.plugins import admit_name
from slacktide.models.repository.fields import (
    Choice,
    Section,
    may_import,
    name_to_section,
    read_choice,
)
from slacktide.planning.scaling.planners import PLANNERS

MOST_REPLICAS = 256


class _Range(Section):
    """From the least to the most; a number is short for both being that."""

    min: Any
    max: Any

    @model_validator(mode="after")
    def _ordered(self) -> _Range:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"expected min at most max, got min {self.min} and max {self.max}")
        return self

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to decide."""
        return bool(self.max == self.min)


class Cores(_Range):
    """How many cores a lane of the model's own may have. `2` is short for `{min: 2, max: 2}`."""

    min: Annotated[int, Field(ge=1)] = 1
    max: Annotated[int, Field(ge=1)] | None = None
    """None: all that the server may use."""


class ReplicaCount(_Range):
    """How many copies of the model there may be. `2` is short for `{min: 2, max: 2}`."""

    min: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    max: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1


def _named(value: Any, info: ValidationInfo) -> Any:
    section = name_to_section(value)
    if isinstance(section, Mapping) and (name := section.get("name")) is not None:
        if not isinstance(name, str):
            raise ValueError(f"name: expected a word, got {name!r}")
        admit_name(PLANNERS, name, imports=may_import(info))
    return section


Scaling = Annotated[dict[str, Any], BeforeValidator(_named)]
"""A planner's name, or a section with its name and its own options; without a name, the planner
that suits."""


def planner_of(scaling: Mapping[str, Any], cores: Cores | None, replicas: ReplicaCount) -> Choice:
    """The planner that `scaling` names, or that suits what may change: cores, replicas or both.

    Raises OptionError.
    """
    suits = "vertical"
    if not replicas.fixed:
        suits = "horizontal" if cores is None or cores.fixed else "joint"
    name = scaling.get("name") or suits
    return read_choice(PLANNERS, {**scaling, "name": name}, imports=True)  # as was admitted above


def number_to_cores(value: Any) -> Any:
    """`2` is short for `{min: 2, max: 2}`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return {"min": value, "max": value} if whole else value


def number_to_replicas(value: Any) -> Any:
    """The same, with one each instead of two."""
    if isinstance(value, int) and not (isinstance(value, bool) or 1 <= value <= MOST_REPLICAS):
        raise ValueError(f"expected 1 to {MOST_REPLICAS}, got {value}")
    return number_to_cores(value)
