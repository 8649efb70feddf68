"""The `scheduler` of slacktide.yaml: a policy's name, and its own options.

One section for each policy; what a policy does not know is an error. The options are those of the
policy of the same name in `slacktide.scheduling`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from slacktide.repository.units import Seconds


class Section(BaseModel):
    """A part of slacktide.yaml: frozen, no unknown keys, no `"8"` for 8, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class FifoSettings(Section):
    """First come, first served; a batch starts when it is full or its oldest has waited enough."""

    name: Literal["fifo"] = "fifo"
    max_delay: Annotated[Seconds, Field(ge=0)] = 0.0
    """Longest that the oldest request is held back for a fuller batch, seconds."""
    preferred: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False)] = ()
    """Batch sizes (rows) that start at once; empty: only a full batch does."""
    max_queue: Annotated[int, Field(ge=1)] | None = None
    """Most requests waiting; None: no limit but `limits.queue`."""
    timeout: Annotated[Seconds, Field(gt=0)] | None = None
    """Longest that a request may wait, seconds; None: no limit."""
    timeout_action: Literal["reject", "delay"] = "reject"
    """What becomes of one that has: it is dropped, or runs after everything else."""


class EdfSettings(Section):
    """Earliest deadline first; the largest batch that keeps its head on time."""

    name: Literal["edf"] = "edf"
    guarantee: Literal["p50", "p99"] = "p50"
    """Which predicted finish must meet the deadline; `p99`: that of every member."""
    admission: bool = True
    """Whether what cannot be met behind the work ahead is refused at the door."""


class SlackSettings(Section):
    """Most expected answers in time per second of lane time (SCHEDULING §3): the default."""

    name: Literal["slack"] = "slack"
    kappa: Annotated[float, Field(ge=0, le=1)] = 0.8
    """How much of a request's value is likely still to be had if it is passed over once."""
    theta: Annotated[float, Field(ge=0, le=4)] = 0.5
    """Fairness to long requests: their worth is (own time / mean time) to this power."""
    drop: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """A request whose P(on time) falls to this is given up."""
    levels: Annotated[int, Field(ge=1, le=16)] = 4
    """Start points tried for each batch size."""
    admission: bool = True
    """Whether what cannot be met behind the work ahead is refused at the door."""


SCHEDULERS: dict[str, type[Section]] = {
    "slack": SlackSettings,
    "edf": EdfSettings,
    "fifo": FifoSettings,
}
"""The section of each policy, by name."""


def name_to_section(value: Any) -> Any:
    """`edf` is short for `{name: edf}`."""
    return {"name": value} if isinstance(value, str) else value


SchedulerSettings = Annotated[
    Annotated[FifoSettings | EdfSettings | SlackSettings, Field(discriminator="name")],
    BeforeValidator(name_to_section),
]
