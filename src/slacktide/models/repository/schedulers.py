"""The `scheduler` of slacktide.yaml: a policy's name, and its own options.

One section for each policy; what a policy does not know is an error. The options are those of the
policy of the same name in `slacktide.scheduling`, with its defaults; a test compares. Only the
length of the queue is stated elsewhere for all of them: `limits.queue`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from slacktide.models.repository.units import Seconds
from slacktide.scheduling import (
    ClipperOptions,
    ClockworkOptions,
    EdfOptions,
    FifoOptions,
    NexusOptions,
    OrlojOptions,
    SlackOptions,
)

_FIFO, _EDF, _SLACK = FifoOptions(), EdfOptions(), SlackOptions()
_CLIPPER, _NEXUS, _CLOCKWORK = ClipperOptions(), NexusOptions(), ClockworkOptions()
_ORLOJ = OrlojOptions()


class Section(BaseModel):
    """A part of slacktide.yaml: frozen, no unknown keys, no `"8"` for 8, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class FifoSettings(Section):
    """First come, first served; a batch starts when it is full or its oldest has waited enough."""

    name: Literal["fifo"] = "fifo"
    max_delay: Annotated[Seconds, Field(ge=0)] = _FIFO.max_delay
    """Longest that the oldest request is held back for a fuller batch, seconds."""
    preferred: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False)] = (
        _FIFO.preferred
    )
    """Batch sizes (rows) that start at once; empty: only a full batch does."""
    max_queue: Annotated[int, Field(ge=1)] | None = _FIFO.max_queue
    """Most requests waiting; None: no limit but `limits.queue`."""
    timeout: Annotated[Seconds, Field(gt=0)] | None = _FIFO.timeout
    """Longest that a request may wait, seconds; None: no limit."""
    timeout_action: Literal["reject", "delay"] = _FIFO.timeout_action
    """What becomes of one that has: it is dropped, or runs after everything else."""


class EdfSettings(Section):
    """Earliest deadline first; the largest batch that keeps its head on time."""

    name: Literal["edf"] = "edf"
    guarantee: Literal["expected", "p99"] = _EDF.guarantee
    """Which predicted time of a batch must fit before its first deadline."""
    admission: bool = _EDF.admission
    """Whether what cannot be met behind the work ahead is refused at the door."""


class ClipperSettings(Section):
    """First come, first served, in batches that grow until answers come late (Clipper)."""

    name: Literal["clipper"] = "clipper"
    increase: Annotated[float, Field(gt=0)] = _CLIPPER.increase
    """Rows that the batch size grows by after a batch in time."""
    decrease: Annotated[float, Field(gt=0, lt=1)] = _CLIPPER.decrease
    """What the batch size is multiplied by after a late one."""


class NexusSettings(Section):
    """First come, first served, at a batch size planned from the expected time (Nexus)."""

    name: Literal["nexus"] = "nexus"
    cycles: Annotated[float, Field(ge=1)] = _NEXUS.cycles
    """How many batches of the planned size an SLO has room for."""


class ClockworkSettings(Section):
    """Earliest deadline first by recent medians; a batch behind an overrun is lost (Clockwork)."""

    name: Literal["clockwork"] = "clockwork"
    window: Annotated[int, Field(ge=1)] = _CLOCKWORK.window
    """Batches of a size that its median is taken over."""
    tolerance: Annotated[float, Field(ge=0)] = _CLOCKWORK.tolerance
    """Share of its estimate that a batch may take longer before the next one is lost."""
    admission: bool = _CLOCKWORK.admission
    """Whether what cannot be met behind the work ahead is refused at the door."""


class OrlojSettings(Section):
    """Batches by the distribution of run times (Orloj), its Algorithm 1 as printed."""

    name: Literal["orloj"] = "orloj"
    b: Annotated[float, Field(gt=0)] = _ORLOJ.b
    """Rate of the anticipated delay, per second."""
    steps: Annotated[
        tuple[Annotated[tuple[float, ...], Field(strict=False)], ...], Field(strict=False)
    ] = _ORLOJ.steps
    """Costs of being later still: (seconds after the deadline, multiple of the penalty) each."""
    times: Literal["batch", "own_class", "by_class"] = _ORLOJ.times
    """Where E[L] is that of a batch with the request's own class: nowhere, line 11, everywhere."""
    best_effort_share: Annotated[float, Field(ge=0, le=1)] = _ORLOJ.best_effort_share
    """Share of the lane's time kept for overdue requests without a deadline."""
    admission: bool = _ORLOJ.admission
    """Whether what cannot be met behind the work ahead is refused at the door."""


class OrlojTextSettings(OrlojSettings):
    """The same with the batch size that the text of §3.2 describes."""

    name: Literal["orloj_text"] = "orloj_text"  # type: ignore[assignment]  # narrows the name


class SlackSettings(Section):
    """Most expected answers in time per second of lane time: the default."""

    name: Literal["slack"] = "slack"
    kappa: Annotated[float, Field(ge=0, le=1)] = _SLACK.kappa
    """How much of a patient request's worth is not lost by passing it over."""
    theta: Annotated[float, Field(ge=0)] = _SLACK.theta
    """How much more a long request is worth: its time alone over the average, to this power."""
    lead: Annotated[float, Field(ge=0)] = _SLACK.lead
    """How long the lane may be held for announced requests, in times of one request alone."""
    drop: Annotated[float, Field(ge=0, lt=1)] = _SLACK.drop
    """A request whose P(on time) falls to this is given up."""
    levels: Annotated[int, Field(ge=1, le=16)] = _SLACK.levels
    """Start points tried for each batch size."""
    guarantee: Literal["none", "p99"] = _SLACK.guarantee
    """`p99`: a batch starts only if its p99 finish meets the deadline of every member."""
    best_effort_share: Annotated[float, Field(ge=0, le=1)] = _SLACK.best_effort_share
    """Share of the lane's time kept for overdue requests without a deadline."""
    admission: bool = _SLACK.admission
    """Whether what cannot be met behind the work ahead is refused at the door."""
    late_refusals: Annotated[float, Field(ge=0, le=1)] = _SLACK.late_refusals
    """Share of the refusals that may come after a request has waited."""


SCHEDULERS: dict[str, type[Section]] = {
    "slack": SlackSettings,
    "edf": EdfSettings,
    "fifo": FifoSettings,
    "clipper": ClipperSettings,
    "nexus": NexusSettings,
    "clockwork": ClockworkSettings,
    "orloj": OrlojSettings,
    "orloj_text": OrlojTextSettings,
}
"""The section of each policy, by name."""


def name_to_section(value: Any) -> Any:
    """`edf` is short for `{name: edf}`."""
    return {"name": value} if isinstance(value, str) else value


SchedulerSettings = Annotated[
    Annotated[
        FifoSettings
        | EdfSettings
        | ClipperSettings
        | NexusSettings
        | ClockworkSettings
        | OrlojSettings
        | OrlojTextSettings
        | SlackSettings,
        Field(discriminator="name"),
    ],
    BeforeValidator(name_to_section),
]
