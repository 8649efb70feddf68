"""`cores`, `replicas` and `scaling` of slacktide.yaml: how much a model may have, and who decides.

Which planners there are and what their options are called is the business of
`slacktide.planning.scaling.planners`; here an option that is a time is written with its unit.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slacktide.domain.units import parse_seconds
from slacktide.models.repository.schedulers import Section

MOST_REPLICAS = 256

DURATIONS = frozenset(
    {"period", "patience", "window", "windows", "cool_down"}
    | {"interval", "up_gap", "down_gap"}
    | {"sample", "half_life", "confidence", "slo"}
)
"""Options of planners that are times, or lists of them: written with their unit, as everywhere."""


class Cores(Section):
    """How many cores a lane of the model's own may have. `2` is short for `{min: 2, max: 2}`."""

    min: Annotated[int, Field(ge=1)] = 1
    max: Annotated[int, Field(ge=1)] | None = None
    """None: all that the server may use."""

    @model_validator(mode="after")
    def _ordered(self) -> Cores:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"expected min at most max, got min {self.min} and max {self.max}")
        return self

    @property
    def fixed(self) -> bool:
        return self.max == self.min


class ReplicaCount(Section):
    """How many copies of the model there may be. `2` is short for `{min: 2, max: 2}`."""

    min: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    max: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1

    @model_validator(mode="after")
    def _ordered(self) -> ReplicaCount:
        if self.max < self.min:
            raise ValueError(f"expected min at most max, got min {self.min} and max {self.max}")
        return self

    @property
    def fixed(self) -> bool:
        return self.max == self.min


class Scaling(BaseModel):
    """A planner by name, with its own options beside it. A name alone is short for `{name: …}`."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)

    name: str | None = None
    """None: the one that suits what may change, cores, replicas or both."""

    def options(self) -> dict[str, object]:
        """The planner's options, times in seconds. Raises ValueError that names the option."""
        found: dict[str, object] = {}
        for key, value in (self.model_extra or {}).items():
            if key in DURATIONS:
                try:
                    many = isinstance(value, list)
                    value = [*map(parse_seconds, value)] if many else parse_seconds(value)
                except ValueError as error:
                    raise ValueError(f"{key}: {error}") from None
            found[key] = value
        return found


def default_planner(*, cores: bool, replicas: bool) -> str:
    """Who decides where nobody is named, by what may change: cores, replicas or both."""
    if cores and replicas:
        return "joint"
    return "horizontal" if replicas else "vertical"


def number_to_cores(value: Any) -> Any:
    """`2` is short for `{min: 2, max: 2}`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return {"min": value, "max": value} if whole else value


def number_to_replicas(value: Any) -> Any:
    """The same, with one complaint instead of two."""
    if isinstance(value, int) and not (isinstance(value, bool) or 1 <= value <= MOST_REPLICAS):
        raise ValueError(f"expected 1 to {MOST_REPLICAS}, got {value}")
    return number_to_cores(value)


def name_to_planner(value: Any) -> Any:
    """`joint` is short for `{name: joint}`."""
    return {"name": value} if isinstance(value, str) else value
