"""A `Plan` is data: what runs where. The engine applies a new one atomically."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from slacktide.domain.timetable import Timetable


class PoolId(NamedTuple):
    """One (model, version, variant), loaded once: owner of one queue and one scheduler.

    A version that is loaded again gets a new `generation`, so that old and new can serve side by
    side until the new one is up.
    """

    model: str
    version: str
    variant: str = ""
    generation: int = 0

    def __str__(self) -> str:
        variant = f"@{self.variant}" if self.variant else ""
        generation = f"#{self.generation}" if self.generation else ""
        return f"{self.model}:{self.version}{variant}{generation}"


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """A set of cores, or an accelerator, that runs one batch at a time."""

    name: str
    cores: tuple[int, ...]
    """Processor numbers the lane owns; disjoint from every other lane's. Never empty on a CPU."""
    device: str = "cpu"
    """`cpu`, or the one name of an accelerator: `cuda:0`, `cuda:1`, …"""
    timetable: Timetable | None = None
    """When which of its models comes first; each has a window. None: whichever batch is worth most
    does, always."""

    def __post_init__(self) -> None:
        if self.device == "cpu" and not self.cores:
            raise ValueError(f"lane {self.name!r} has no cores")
        if len(set(self.cores)) != len(self.cores):
            raise ValueError(f"lane {self.name!r} names a core twice: {self.cores}")


@dataclass(frozen=True, slots=True)
class Deployment:
    """One replica of a pool on a lane. Several deployments of one pool are several replicas."""

    pool: PoolId
    lane: str
    max_batch: int = 1
    """Most rows in one batch."""
    generation: int = 0
    """A replica whose generation changes is stopped, after its batch, and started anew."""
    standby: bool = False
    """Loaded, but given no batch: another plan may change that at once."""

    def __post_init__(self) -> None:
        if self.max_batch < 1:
            raise ValueError(f"max_batch must be at least 1, got {self.max_batch}")


@dataclass(frozen=True, slots=True)
class Route:
    """Requests for `model` (and `version`, if the client names one) go to `pool`.

    The narrowest match wins: client, then application, then the plain route. A route names
    a client or an application, not both (ValueError).
    """

    model: str
    pool: PoolId
    version: str | None = None
    application: str | None = None
    client: str | None = None

    def __post_init__(self) -> None:
        if self.application is not None and self.client is not None:
            raise ValueError(f"route for {self.model!r} names a client and an application")


@dataclass(frozen=True, slots=True)
class InputSize:
    """What a client of a family of variants is to send: for information, the engine routes by
    `Route` alone."""

    model: str
    client: str
    variant: str
    """The client's images are to have the size of this one; empty: it is mapped to none."""


class ExitMode(Enum):
    """What becomes of rows that a ramp has answered."""

    RELEASE = "release"
    """They run on to the model's end: accuracy is judged on every row."""
    SHRINK = "shrink"
    """They leave the batch, and what is left of it takes less time."""
    AUTO = "auto"
    """They run on where the lane was idle and no other request waits for it, else they leave."""


@dataclass(frozen=True, slots=True)
class ExitPolicy:
    """How the requests of a pool leave its model early. Raises ValueError for what cannot be."""

    pool: PoolId
    ramps: tuple[int, ...] = ()
    """Positions of the active ramps, front to end."""
    thresholds: tuple[float, ...] = ()
    """One for each: a row leaves at the first ramp at which its uncertainty is below. 0: none."""
    mode: ExitMode = ExitMode.AUTO
    feedback: float = 0.1
    """Share of batches that run on whatever the mode, so that accuracy can be judged."""
    revision: int = 0
    """Of the weights of the ramps; 0: none are learnt yet."""
    features: bool = False
    """Whether workers hand out pooled features of all positions, to learn ramps from."""
    feature_share: float = 1.0
    """Share of batches of which they do."""
    costs: tuple[float, ...] = ()
    """Of each ramp the share of a whole pass until its answers, to predict with until batches have
    shown it; none: not known."""
    reason: str = ""
    """Why these ramps and no others, for people."""
    enlarge: bool = False
    """Whether batches are planned to end at the last ramp, and rows go on behind it (`going_on`)
    only in the time that others have left."""

    def __post_init__(self) -> None:
        if len(self.thresholds) != len(self.ramps):
            raise ValueError(f"{len(self.ramps)} ramps, but {len(self.thresholds)} thresholds")
        if self.costs and len(self.costs) != len(self.ramps):
            raise ValueError(f"{len(self.ramps)} ramps, but {len(self.costs)} costs")
        if not all(0.0 < cost <= 1.0 for cost in self.costs):
            raise ValueError(f"costs must be above 0 and at most 1, got {self.costs}")
        if list(self.ramps) != sorted({*self.ramps}) or min(self.ramps, default=0) < 0:
            raise ValueError(f"ramps are not positions in ascending order: {self.ramps}")
        if not all(threshold >= 0.0 for threshold in self.thresholds):
            raise ValueError(f"thresholds must not be negative, got {self.thresholds}")
        for name, share in (("feedback", self.feedback), ("feature_share", self.feature_share)):
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"{name} must be within 0 and 1, got {share}")

    def __deepcopy__(self, memo: object) -> ExitPolicy:
        """Itself: it never changes. Predictions that hold one are copied."""
        return self

    def thresholds_after(self, before: Mapping[int, float]) -> dict[int, float]:
        """The thresholds to go by, by position, where those of `before` were in force: its own, and
        those of ramps that it gives up, for they are open until what it asks for is. Where it lets
        no row leave, be it by an alarm, none does there either."""
        thresholds = dict(zip(self.ramps, self.thresholds, strict=True))
        return {**before, **thresholds} if any(self.thresholds) else thresholds


@dataclass(frozen=True, slots=True)
class StagePlace:
    """Where a stage of a pipeline runs, as seen from the device whose plan this is. Raises
    ValueError for times that cannot be."""

    pipeline: str
    stage: str
    device: str = ""
    """Empty: here, as are stages without a place. A stage that is elsewhere is handed over with all
    that is behind it."""
    p99: float = 0.0
    """Seconds from its rows' arrival there to their answer, 99 times in 100."""
    transfer: float = 0.0
    """Seconds that they take there from where the stage before it runs."""
    back: float = 0.0
    """Seconds that an answer takes from there to here."""

    def __post_init__(self) -> None:
        if not (self.p99 >= 0.0 and self.transfer >= 0.0 and self.back >= 0.0):
            raise ValueError(f"times of {self.pipeline}/{self.stage} must not be negative")


GOLDEN = 0.6180339887498949
"""The fractional parts of its multiples fill 0 to 1 as evenly as any, and so do those of every n-th
of them: pools that take turns are judged as often as one that runs alone."""


def is_judged(batch: int, share: float) -> bool:
    """Whether the batch of this id is among the `share` that is judged. Those of a smaller share
    are among those of a larger one."""
    return (batch * GOLDEN) % 1.0 < share


def going_on(
    unsure: Sequence[float],
    held: Collection[int],
    present: Sequence[int],
    seconds: Callable[[int, int], float],
) -> set[int]:
    """Where a batch was planned to end (`ExitPolicy.enlarge`), which of its rows may go on: those
    that are `held` and then the least sure, as many as rows that left before have left time for.

    `unsure`: what the last ramp says of each row that came to it; `held`, and the answer: places
    among these; `present`: rows at each stage so far; `seconds`: what so many rows take in a stage.
    """
    room = 1e-9 * seconds(present[0], 0)  # of rounding
    for stage, rows_at_stage in enumerate(present):
        room += seconds(present[0], stage) - seconds(rows_at_stage, stage)
    rows = range(len(unsure))
    fit = sum([seconds(count, len(present)) <= room for count in range(1, len(unsure) + 1)])
    return {*sorted(rows, key=lambda at: (at not in held, -unsure[at]))[:fit]}


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a planner decides, as data. Raises ValueError if it contradicts itself."""

    lanes: tuple[LaneSpec, ...] = ()
    deployments: tuple[Deployment, ...] = ()
    routes: tuple[Route, ...] = ()
    inputs: tuple[InputSize, ...] = ()
    """At most one for each client of a model."""
    exits: tuple[ExitPolicy, ...] = ()
    """At most one for each pool. None: its requests never leave early."""
    places: tuple[StagePlace, ...] = ()
    """At most one for each stage of a pipeline."""

    def __post_init__(self) -> None:
        self._check_lanes()
        self._check_deployments()
        self._check_routes()
        clients = set()
        for size in self.inputs:
            if (size.model, size.client) in clients:
                raise ValueError(f"two input sizes for client {size.client!r} of {size.model!r}")
            clients.add((size.model, size.client))
        if len({policy.pool for policy in self.exits}) != len(self.exits):
            raise ValueError(f"two exit policies share a pool: {[str(e.pool) for e in self.exits]}")
        if len({(place.pipeline, place.stage) for place in self.places}) != len(self.places):
            raise ValueError(f"a stage has two places: {[place.stage for place in self.places]}")

    def _check_lanes(self) -> None:
        if len({lane.name for lane in self.lanes}) != len(self.lanes):
            shared = sorted(lane.name for lane in self.lanes)
            raise ValueError(f"two lanes share a name: {shared}")
        owners: dict[tuple[str, int], str] = {}
        for lane in self.lanes:
            for core in lane.cores:
                owner = owners.setdefault((lane.device, core), lane.name)
                if owner != lane.name:
                    raise ValueError(f"lanes {owner!r} and {lane.name!r} both own core {core}")

    def _check_deployments(self) -> None:
        pools = set()
        tables = {lane.name: lane.timetable for lane in self.lanes}
        for deployment in self.deployments:
            if deployment.lane not in tables:
                raise ValueError(f"{deployment.pool} is placed on unknown lane {deployment.lane!r}")
            table = tables[deployment.lane]
            if table is not None and deployment.pool.model not in table.models:
                raise ValueError(
                    f"lane {deployment.lane!r} has a timetable without a window for "
                    f"{deployment.pool.model!r}, which is placed on it"
                )
            if (deployment.pool, deployment.lane) in pools:
                raise ValueError(f"{deployment.pool} is placed twice on lane {deployment.lane!r}")
            pools.add((deployment.pool, deployment.lane))

    def _check_routes(self) -> None:
        placed = {deployment.pool for deployment in self.deployments if not deployment.standby}
        keys = set()
        for route in self.routes:
            if route.pool not in placed:
                raise ValueError(f"route for {route.model!r} leads to undeployed {route.pool}")
            key = (route.model, route.version, route.application, route.client)
            if key in keys:
                raise ValueError(f"two routes match {key}")
            keys.add(key)
