"""`Scenario`: the sections and keys of a scenario file.

The words and the units are those of slacktide.yaml; arrivals, lengths and deadlines are the short
texts of the load generator. A text is parsed when the scenario is built, not here, because it may
name a file. The string under each field appears in the tables of docs/simulation.md, which
tests/docs/test_option_tables.py writes and compares.
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

from slacktide.domain import Registry, shown
from slacktide.lab.simulation.oracle_slack import OracleSlack
from slacktide.lab.simulation.scenario.pipeline_sections import (
    Bytes,
    DeviceLinkSection,
    DeviceSection,
    EitherSection,
    PlacementSection,
    SimulatedPipeline,
)
from slacktide.lab.simulation.scenario.server_sections import (
    DeathSection,
    HopSection,
    ScaleOutSection,
    ServerSection,
)
from slacktide.models.repository import Section
from slacktide.models.repository.early_exit import EarlyExitSettings
from slacktide.models.repository.fields import (
    DEFAULT_SCHEDULER,
    Cores,
    Name,
    ReplicaCount,
    Scaling,
    SchedulerSettings,
    Seconds,
    Size,
    WindowSettings,
    ascending,
    name_to_section,
    number_to_cores,
    number_to_replicas,
    read_choice,
    short_for,
)
from slacktide.models.repository.settings import Count, Duration

Sizes = Annotated[tuple[Count, ...], Field(strict=False, min_length=1), AfterValidator(ascending)]


Spec = Annotated[
    str, BeforeValidator(lambda value: str(value) if type(value) in (int, float) else value)
]
"""A short text of the load generator. A bare number is accepted here; its reader refuses it, with a
message on what may have been meant."""

YARDSTICKS: Registry[Any] = Registry("yardstick", {"oracle_slack": OracleSlack})
"""Policies that replace a scheduler, available only in simulations."""


def _or_yardstick(value: Any, policy: ValidatorFunctionWrapHandler) -> Any:
    section = name_to_section(value)
    if isinstance(section, dict) and section.get("name") in YARDSTICKS:
        return read_choice(YARDSTICKS, section)
    return policy(value)


SimulatedScheduler = Annotated[SchedulerSettings, WrapValidator(_or_yardstick)]
"""A scheduler of the server, or a yardstick that only simulations have."""


_Grid = Annotated[
    tuple[Annotated[tuple[Duration, ...], Field(strict=False)], ...], Field(strict=False)
]


class StatedTable(Section):
    """A latency table in the scenario itself: seconds of a batch, by size and by cores."""

    batches: Sizes
    """Batch sizes, ascending."""
    cores: Sizes = (1,)
    """Numbers of cores, ascending."""
    p50: _Grid
    """Median time of a batch of each size. With several `cores`, a list of times for each size."""
    p99: _Grid | None = None
    """99th percentiles in the same form. Default: every batch takes its median time."""

    @model_validator(mode="before")
    @classmethod
    def _single_values(cls, document: Any) -> Any:
        """With one number of cores a row may be written without its brackets."""
        if not isinstance(document, dict):
            return document
        expanded = dict(document)
        for key in ("p50", "p99"):
            rows = expanded.get(key)
            if isinstance(rows, list):
                expanded[key] = [row if isinstance(row, list) else [row] for row in rows]
        return expanded


class PaddedLatency(Section):
    """l_B = c0 + c1 · k · max(l): members are padded to the longest of them (Orloj §4.2)."""

    c0: Annotated[Seconds, Field(ge=0)]
    """Fixed time of every batch."""
    c1: Duration
    """Time of each row for each unit of the longest length in the batch."""
    sizes: Sizes = (1, 2, 4, 8, 16)
    """Batch sizes. A batch takes the time of the smallest size that holds it."""


class SimulatedVariantSection(Section):
    """One variant of a family."""

    size: Count
    """Side of its input image, in pixels."""
    accuracy: Annotated[float, Field(gt=0, le=1)]
    """Accuracy of its answers."""
    latency: StatedTable
    """Latency table of its batches."""


class SimulatedModel(Section):
    """A model: its batch times (exactly one of the first six keys), and how it is served."""

    profile: str | None = None
    """Profile file: the output of `slacktide profile --json`, or one stored beside a model."""
    folder: str | None = None
    """Folder of a model that has a profile of this machine. Its `slacktide.yaml` sets `scheduler`,
    `slo` and `share` unless they are stated here."""
    latency: StatedTable | None = None
    """Latency table, such as `{batches: [1, 4, 16], p50: [8ms, 17ms, 53ms]}`."""
    padded: PaddedLatency | None = None
    """Batch time c0 + c1 · k · max(l), where k is the size of the batch and max(l) its longest
    length (Orloj §4.2)."""
    variants: dict[Name, SimulatedVariantSection] = {}  # noqa: RUF012
    """Variants by name, the smallest first, for the sizes of one file's image input. They make the
    model a family for `clients`."""
    exits: str | None = None
    """Exit table ([format](internals/exits.md#exit-tables)): the model's times, and the answers
    of its ramps. Requests are its inputs in order, repeated."""
    early_exit: Annotated[EarlyExitSettings, short_for("accuracy_loss")] | None = None
    """Lets requests of a model with `exits` leave early, like `early_exit` in slacktide.yaml. A
    percentage is short for `early_exit.accuracy_loss`."""
    variants_planner: dict[str, Any] = {}  # noqa: RUF012
    """Options of the variants planner, such as `{period: 1.0}`."""
    profiled_length: Annotated[float, Field(gt=0)] = 1.0
    """Length of the requests that a measured profile was taken with, for `lengths`."""
    max_batch: Count | None = None
    """Largest number of rows in one batch. Default: the largest size of the profile."""
    scheduler: SimulatedScheduler | None = None
    """Scheduler of this model. Default: that of its folder, or else of the scenario."""
    cores: Annotated[Cores, BeforeValidator(number_to_cores)] | None = None
    """Gives the model a lane of its own with this many cores: a number, or a range within which a
    planner decides. Default: the model uses the shared lane."""
    lane: Name | None = None
    """Name of the lane. Models with the same name share it."""
    replicas: Annotated[ReplicaCount, BeforeValidator(number_to_replicas)] = ReplicaCount()
    """Number of replicas, each on a lane of its own: a number, or a range within which a planner
    decides."""
    scaling: Scaling | None = None
    """Scaling policy, if `cores` or `replicas` have a range: a name, or a name with options.
    Default: the server's default policy."""
    share: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Weight among models that share a lane. Default: that of the folder, or else 1."""
    window: WindowSettings | None = None
    """Times at which the model has priority on its lane. Default: those of its folder."""
    predictions: Literal["known", "learned"] = "known"
    """Predictions for requests with lengths. `known`: policies know each application's distribution
    of lengths in advance (from 4,000 separate samples). `learned`: they start from the profile and
    learn from requests that run alone, as a server does."""

    weights: Bytes = 0
    """With `pipelines`: accelerator memory that each replica takes."""
    intermediate: Bytes = 0
    """With `pipelines`: additional memory while a batch runs."""
    utilisation: Annotated[float, Field(gt=0)] = 1.0
    """With `pipelines`: share of an accelerator that a running batch takes."""

    @model_validator(mode="after")
    def _one_source(self) -> SimulatedModel:
        names = ("profile", "folder", "latency", "padded", "variants", "exits")
        if sum(bool(getattr(self, name)) for name in names) != 1:
            listed = ", ".join(map(repr, names[:-1]))
            raise ValueError(f"expected exactly one of {listed} and {names[-1]!r}")
        if self.early_exit is not None and self.exits is None:
            raise ValueError("early_exit: needs 'exits'")
        return self


class Slo(EitherSection):
    """Time that a request may take. `50ms` is short for `{within: 50ms}`."""

    within: Spec | None = None
    """`50ms`, `mix:24ms,60ms@2`, `uniform:20ms:200ms`, or `none` for best effort."""
    p99_alone: Annotated[float, Field(gt=0)] | None = None
    """Multiple of the 99th percentile of the time that one such request takes alone."""


def _short_slo(value: Any) -> Any:
    if isinstance(value, str | int | float):
        return {"within": value}
    if not isinstance(value, dict):
        raise ValueError(f"expected a text such as '50ms', or {{p99_alone: 3}}, got {shown(value)}")
    return value


class LinkSection(EitherSection):
    """The link from the client: requests are announced at their first byte."""

    bandwidth: Size | None = None
    """Constant bandwidth in bytes per second."""
    trace: str | None = None
    """Changing bandwidth: a recorded or generated trace, as for `slacktide load --link`."""
    rtt: Annotated[Seconds, Field(ge=0)] = 0.0
    """Round-trip time of an empty message."""
    payload: Size
    """Size of a request."""
    shared: bool = False
    """Whether the application's requests queue for one link. Otherwise each request has its own."""


class Hint(EitherSection):
    """Length that a request states for itself. `exact` is short for `{error: 0}`."""

    error: Annotated[float, Field(ge=0)] | None = None
    """The hint is the true length times exp(error × a standard normal)."""
    claim: Annotated[float, Field(ge=0)] | None = None
    """The hint is this length for every request."""


def _short_hint(value: Any) -> Any:
    return {"error": 0.0} if value == "exact" else value


def _number_to_list(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return [value] if whole else value


def _name_to_list(names: Any) -> Any:
    return [names] if isinstance(names, str) else names


Shape = Annotated[tuple[Count, ...], Field(strict=False, min_length=1)]


class Application(Section):
    """One stream of requests."""

    model: Name
    """Model that the requests are for."""
    arrivals: Spec
    """Arrival process, such as `poisson:100`, or a trace."""
    lengths: Spec | None = None
    """Lengths of the requests, such as `modes:3~1,17~1`. A padded model needs them; a measured
    profile is then turned into one by length."""
    rows: Annotated[
        tuple[Count, ...], Field(strict=False, min_length=1), BeforeValidator(_number_to_list)
    ] = (1,)
    """Rows of a request, or a list to draw from: with `[1, 1, 1, 4]`, a quarter of the requests
    have four rows."""
    shapes: Annotated[tuple[Shape, ...], Field(strict=False)] = ()
    """Shapes to draw from for a row of the model's first input, such as `[[3, 320, 320], [3, 640,
    640]]`. Other inputs have the profiled shapes. Default: all inputs have them."""
    slo: Annotated[Slo, BeforeValidator(_short_slo)] | None = None
    """Time that a request may take: a text (short for `applications.NAME.slo.within`), or one of
    the keys below. Default: that of the model's folder, or else none (best effort)."""
    penalty: Annotated[float, Field(gt=0)] = 1.0
    """Cost of a missed deadline, in steps."""
    enters: Annotated[
        tuple[Name, ...], Field(strict=False, min_length=1), BeforeValidator(_name_to_list)
    ] = ()
    """In scenarios with `servers`: the server that requests come to, or a list to draw from.
    Default: all that are up."""
    link: LinkSection | None = None
    """The link from the client: requests are announced at their first byte and complete once their
    payload has been transferred. Default: they are complete when they are sent."""
    notice: Duration | None = None
    """Time from the announcement of each request to its completion, from which its deadline
    counts."""
    hint: Annotated[Hint, BeforeValidator(_short_hint)] | None = None
    """Length that a request states as its work hint: `exact` (short for an error of 0), or one of
    the keys below. Default: requests have no hint."""

    @model_validator(mode="after")
    def _consistent(self) -> Application:
        if self.link is not None and self.notice is not None:
            raise ValueError(
                "expected either 'link' or 'notice', got both: a link already announces requests"
            )
        if self.hint is not None and self.lengths is None:
            raise ValueError("hint: needs 'lengths'")
        if self.shapes and self.lengths is not None:
            raise ValueError("expected either 'shapes' or 'lengths', got both")
        return self


class ClientLinkSection(EitherSection):
    """A client's link to the server, on which its frames queue."""

    bandwidth: Size | None = None
    """Constant bandwidth in bytes per second."""
    trace: str | None = None
    """Changing bandwidth, as for `slacktide load --link`. Each client begins at a random point."""
    rtt: Annotated[Seconds, Field(ge=0)] = 0.0
    """Round-trip time of an empty message."""


class SimulatedClientSection(Section):
    """Clients that stream frames to a family, with the logic of the SDK's client."""

    model: Name
    """Family that the frames are for."""
    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Number of clients."""
    rate: Annotated[float, Field(gt=0, le=1000)]
    """Frames per second of each client."""
    slo: Duration
    """Time from capture to the answer at the client."""
    link: ClientLinkSection
    """Link to the server; each client has its own."""
    bytes_per_pixel: Annotated[float, Field(gt=0)] = 0.4
    """Size of an encoded frame, in bytes per pixel."""
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Spread of frame sizes, as the standard deviation of their logarithm."""
    camera: Annotated[tuple[Count, Count], Field(strict=False)] = (1280, 720)
    """Width and height of captured frames."""
    join_every: Annotated[Seconds, Field(ge=0)] = 0.0
    """Time between the starts of two clients."""
    accuracy_floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Lowest accuracy that is useful to a client."""
    weight: Annotated[float, Field(gt=0, le=16)] = 1.0
    """Weight of a client if not all can be served."""


def _distinct(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"expected each seed once, got {list(seeds)}")
    return seeds


class Scenario(Section):
    """A world to be simulated."""

    title: str = ""
    """Title of the report. Default: the name of the file."""
    duration: Duration
    """Length of the scored part."""
    warmup: Annotated[Seconds, Field(ge=0)] = 0.0
    """Length of the warm-up, which has the same load and precedes the scored part."""
    seeds: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=2**63)], ...],
        Field(strict=False, min_length=1),
        BeforeValidator(_number_to_list),
        AfterValidator(_distinct),
    ] = (0,)
    """Seeds, as a list or a single number. Every combination runs once with each."""
    cores: Count = 1
    """Cores of the machine. Models without cores of their own share the remaining ones."""
    scheduler: SimulatedScheduler = DEFAULT_SCHEDULER
    """Scheduler of every model that does not name its own: a name, or a name with options.
    `oracle_slack` is a yardstick that only simulations have."""
    start_s: Annotated[Seconds, Field(ge=0)] = 0.0
    """Time that a replica takes to start. The first replicas serve immediately."""
    resize_s: Annotated[Seconds, Field(ge=0)] = 0.0
    """Time that a lane takes to change its cores."""
    models: Annotated[dict[Name, SimulatedModel], Field(min_length=1)]
    applications: dict[Name, Application] = {}  # noqa: RUF012
    clients: dict[Name, SimulatedClientSection] = {}  # noqa: RUF012
    devices: dict[Name, DeviceSection] = {}  # noqa: RUF012
    links: dict[Name, DeviceLinkSection] = {}  # noqa: RUF012
    pipelines: dict[Name, SimulatedPipeline] = {}  # noqa: RUF012
    placement: PlacementSection = PlacementSection()
    servers: dict[Name, ServerSection] = {}  # noqa: RUF012
    hop: HopSection = HopSection()
    deaths: Annotated[tuple[DeathSection, ...], Field(strict=False)] = ()
    scale_out: ScaleOutSection | None = None
    grid: dict[str, Annotated[tuple[Any, ...], Field(strict=False, min_length=1)]] = {}  # noqa: RUF012
    """Dotted keys, each with a list of values to try. Every combination runs with every seed.
    `seeds` and `title` cannot be varied."""

    @model_validator(mode="after")
    def _has_traffic(self) -> Self:
        if self.servers and (self.pipelines or self.clients):
            raise ValueError("servers: expected none with 'pipelines' or 'clients'")
        for name in ("hop", "deaths", "scale_out"):
            if name in self.model_fields_set and not self.servers:
                raise ValueError(f"{name}: needs 'servers'")
        if self.scale_out is not None and self.scale_out.most < len(self.servers):
            raise ValueError(f"scale_out.most: expected at least the {len(self.servers)} servers")
        for name, application in self.applications.items():
            if application.enters and not self.servers:
                raise ValueError(f"applications.{name}.enters: needs 'servers'")
        if self.pipelines:
            if self.applications or self.clients:
                raise ValueError(
                    "expected either 'pipelines' or 'applications' and 'clients', got both"
                )
            if not self.devices:
                raise ValueError("pipelines: needs 'devices'")
            return self
        if not self.applications and not self.clients:
            raise ValueError("expected 'applications', 'clients' or 'pipelines'")
        for name in ("devices", "links"):
            if getattr(self, name):
                raise ValueError(f"{name}: needs 'pipelines'")
        return self

    @property
    def length(self) -> float:
        """Seconds of arrivals, warm-up and all."""
        return self.warmup + self.duration
