"""Sections of a scenario for several servers that answer for each other."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from slacktide.lab.simulation.scenario.pipeline_sections import Bytes
from slacktide.models.repository import Section
from slacktide.models.repository.fields import Name, Seconds, Size
from slacktide.models.repository.settings import Count, Duration


class ServerSection(Section):
    """A machine with the scenario's cores, on which a server serves all models."""

    speed: Annotated[float, Field(ge=0.001, le=1000)] = 1.0
    """Speed of batches: at 0.5, they take twice as long as the models state."""


class HopSection(Section):
    """The way between any two servers."""

    rtt: Annotated[Seconds, Field(ge=0)] = 0.0006
    """Round-trip time of an empty message between two servers."""
    bandwidth: Size | None = None
    """Bytes per second at which a forwarded request travels. Default: it takes no time."""
    payload: Bytes = 0
    """Size of a request."""


class DeathSection(Section):
    """The death of a server, with all that it holds. Its peers notice it immediately."""

    server: Name
    """Server that dies."""
    at: Annotated[Seconds, Field(ge=0)]
    """Time of its death, from the beginning of the run."""
    back: Duration | None = None
    """Time at which it is up again, empty. Default: never."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.back is not None and self.back <= self.at:
            raise ValueError(f"back: expected a time after {self.at:g}s, got {self.back:g}s")
        return self


class ScaleOutSection(Section):
    """Starts further servers of speed 1 as the load rises. None is stopped."""

    target: Annotated[float, Field(gt=0)] = 0.8
    """Work offered ÷ what the servers can do, like `slacktide_offered_share`, above which servers
    are started until it is reached."""
    most: Count
    """Largest number of servers."""
    starts_in: Annotated[Seconds, Field(ge=0)] = 5.0
    """Time that a server takes to start."""
