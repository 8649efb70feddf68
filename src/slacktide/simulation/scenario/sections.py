"""`Scenario`: what may stand in a scenario file. docs/simulation.md explains each key.

The words and the units are those of slacktide.yaml; arrivals, lengths and deadlines are the short
texts of the load generator. A text is read when the scenario is built, not here: it may name a
file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from slacktide.domain.registry import Registry
from slacktide.domain.suggestions import shown
from slacktide.models.repository.fields import (
    DEFAULT_SCHEDULER,
    Cores,
    ReplicaCount,
    Scaling,
    SchedulerSettings,
    Seconds,
    Section,
    name_to_section,
    number_to_cores,
    number_to_replicas,
    read_choice,
)
from slacktide.models.repository.settings import Count, Duration, Name, Size
from slacktide.simulation.oracle_slack import OracleSlack


def _ascending(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if list(sizes) != sorted(set(sizes)):
        raise ValueError(f"expected ascending sizes, each once, got {list(sizes)}")
    return sizes


Sizes = Annotated[tuple[Count, ...], Field(strict=False, min_length=1), AfterValidator(_ascending)]


YARDSTICKS: Registry[Any] = Registry("yardstick", {"oracle_slack": OracleSlack})
"""What stands where a scheduler may, and can only be had in a simulation."""


def _or_yardstick(value: Any, policy: ValidatorFunctionWrapHandler) -> Any:
    section = name_to_section(value)
    if isinstance(section, dict) and section.get("name") in YARDSTICKS:
        return read_choice(YARDSTICKS, section)
    return policy(value)


SimulatedScheduler = Annotated[SchedulerSettings, WrapValidator(_or_yardstick)]
"""A policy of the server, or a yardstick that only a simulation can have."""


_Grid = Annotated[
    tuple[Annotated[tuple[Duration, ...], Field(strict=False)], ...], Field(strict=False)
]


class StatedTable(Section):
    """A latency table written out: seconds of a batch, by size and by cores."""

    batches: Sizes
    cores: Sizes = (1,)
    p50: _Grid
    """Medians: a row for each size, in it a value for each number of cores."""
    p99: _Grid | None = None
    """99th percentiles, likewise; None: as p50, every batch takes its median."""

    @model_validator(mode="before")
    @classmethod
    def _single_values(cls, document: Any) -> Any:
        """With one number of cores a row may be written without its brackets."""
        if not isinstance(document, dict):
            return document
        made = dict(document)
        for key in ("p50", "p99"):
            rows = made.get(key)
            if isinstance(rows, list):
                made[key] = [row if isinstance(row, list) else [row] for row in rows]
        return made


class PaddedLatency(Section):
    """l_B = c0 + c1 · k · max(l): members are padded to the longest of them (Orloj §4.2)."""

    c0: Annotated[Seconds, Field(ge=0)]
    """What every batch takes."""
    c1: Duration
    """What each row takes for each unit of the longest length."""
    sizes: Sizes = (1, 2, 4, 8, 16)
    """Batch sizes; a batch pays for the next of them."""


class SimulatedModel(Section):
    """A model: how long it takes (exactly one of the first four), and how it is served."""

    profile: str | None = None
    """A profile file: what `slacktide profile --json` prints, or one stored beside a model."""
    folder: str | None = None
    """A model's folder with a stored profile; its slacktide.yaml counts where nothing is said
    here."""
    latency: StatedTable | None = None
    padded: PaddedLatency | None = None
    profiled_length: Annotated[float, Field(gt=0)] = 1.0
    """The length that a measured profile was taken with, where applications state lengths."""
    max_batch: Count | None = None
    """Most rows in one batch; None: the largest size of the profile."""
    scheduler: SimulatedScheduler | None = None
    """None: that of the scenario."""
    cores: Annotated[Cores, BeforeValidator(number_to_cores)] | None = None
    """A lane of its own with so many cores, or as many as a planner decides; None: the shared
    lane."""
    lane: Name | None = None
    """Name of the lane; models that name the same one share it."""
    replicas: Annotated[ReplicaCount, BeforeValidator(number_to_replicas)] = ReplicaCount()
    scaling: Scaling | None = None
    """The planner, where `cores` or `replicas` have a range; None: the one that suits."""
    share: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Weight where several models share a lane; None: 1."""
    predictions: Literal["known", "learned"] = "known"
    """Of a model whose requests have lengths. `known`: its policies know each application's
    lengths beforehand; `learned`: they start from the profile and learn from what runs, as a server
    does."""

    @model_validator(mode="after")
    def _one_source(self) -> SimulatedModel:
        sources = (self.profile, self.folder, self.latency, self.padded)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("expected exactly one of 'profile', 'folder', 'latency' and 'padded'")
        return self


class EitherSection(Section):
    """A section that states just one of its first two keys."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        one, other = list(type(self).model_fields)[:2]
        if (getattr(self, one) is None) == (getattr(self, other) is None):
            raise ValueError(f"expected either {one!r} or {other!r}")
        return self


class Slo(EitherSection):
    """How long a request may take. `50ms` is short for `{within: 50ms}`."""

    within: str | None = None
    """`50ms`, `mix:24ms,60ms`, `uniform:20ms:200ms` or `none`."""
    p99_alone: Annotated[float, Field(gt=0)] | None = None
    """So many times the 99th percentile of the time of one such request by itself."""


def _short_slo(value: Any) -> Any:
    if isinstance(value, str):
        return {"within": value}
    if not isinstance(value, dict):
        raise ValueError(f"expected a text such as '50ms', or {{p99_alone: 3}}, got {shown(value)}")
    return value


class LinkSection(EitherSection):
    """The way from the client: requests are announced at their first byte."""

    bandwidth: Size | None = None
    """Bytes a second, always."""
    trace: str | None = None
    """Or one that changes: a file, `4g` or `5g`, as `slacktide load --link` takes them."""
    rtt: Annotated[Seconds, Field(ge=0)] = 0.0
    """There and back, for a message of no length."""
    payload: Size
    """Bytes of a request."""
    shared: bool = False
    """True: requests queue for the link. Else each has one of its own."""


class Hint(EitherSection):
    """What a request says of its own length. `exact` is short for `{error: 0}`."""

    error: Annotated[float, Field(ge=0)] | None = None
    """Its length times exp(error × a standard normal)."""
    claim: Annotated[float, Field(ge=0)] | None = None
    """Always this length, whatever the truth."""


def _short_hint(value: Any) -> Any:
    return {"error": 0.0} if value == "exact" else value


def _number_to_list(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return [value] if whole else value


class Application(Section):
    """One stream of requests."""

    model: Name
    arrivals: str
    """`poisson:100` and the like."""
    lengths: str | None = None
    """`modes:3~1,17~1` and the like. Padded models cannot do without; under a measured profile they
    make one of it."""
    rows: Annotated[
        tuple[Count, ...], Field(strict=False, min_length=1), BeforeValidator(_number_to_list)
    ] = (1,)
    """Of each request one of these is drawn."""
    slo: Annotated[Slo, BeforeValidator(_short_slo)] | None = None
    """None: that of the model's folder; requests are best effort if it has none either."""
    penalty: Annotated[float, Field(gt=0)] = 1.0
    """What a missed deadline costs, in steps."""
    link: LinkSection | None = None
    """None: requests are there in the moment they are sent."""
    notice: Duration | None = None
    """Requests are announced so long before they are complete; their deadline runs from then."""
    hint: Annotated[Hint, BeforeValidator(_short_hint)] | None = None
    """None: requests carry no work hint."""

    @model_validator(mode="after")
    def _consistent(self) -> Application:
        if self.link is not None and self.notice is not None:
            raise ValueError("expected either 'link' or 'notice': a link announces by itself")
        if self.hint is not None and self.lengths is None:
            raise ValueError("hint: expected 'lengths' beside it")
        return self


def _distinct(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"expected each seed once, got {list(seeds)}")
    return seeds


class Scenario(Section):
    """A world to be simulated."""

    title: str = ""
    """None: the name of the file."""
    duration: Duration
    """Length of the scored part."""
    warmup: Annotated[Seconds, Field(ge=0)] = 0.0
    """Length of the warm-up: the same load before that, not scored."""
    seeds: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=2**63)], ...],
        Field(strict=False, min_length=1),
        BeforeValidator(_number_to_list),
        AfterValidator(_distinct),
    ] = (0,)
    """Everything is run once for each of these."""
    cores: Count = 1
    """Cores of the machine. Models without cores of their own share those that are left."""
    scheduler: SimulatedScheduler = DEFAULT_SCHEDULER
    """The policy of every model that does not name its own."""
    start_s: Annotated[Seconds, Field(ge=0)] = 0.0
    """From the start of a replica until it serves; those of the beginning serve at once."""
    resize_s: Annotated[Seconds, Field(ge=0)] = 0.0
    """From the moment a lane is to have other cores until it has them."""
    models: Annotated[dict[Name, SimulatedModel], Field(min_length=1)]
    applications: Annotated[dict[Name, Application], Field(min_length=1)]
    grid: dict[str, Annotated[tuple[Any, ...], Field(strict=False, min_length=1)]] = {}  # noqa: RUF012
    """Dotted key → values to try: every combination is run with every seed."""

    @property
    def length(self) -> float:
        """Seconds of arrivals, warm-up and all."""
        return self.warmup + self.duration
