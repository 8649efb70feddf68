"""A `Plan` is data: what runs where. The engine applies a new plan atomically."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from slacktide.domain.timetable import Timetable


class PoolId(NamedTuple):
    """One loaded (model, version, variant), which has its own queue and scheduler.

    A version that is loaded again gets a new `generation`, so that the old one can serve until the
    new one is up.
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
    """Numbers of the cores it owns; disjoint from those of other lanes. Not empty on a CPU."""
    device: str = "cpu"
    """`cpu`, or an accelerator: `cuda:0`, `cuda:1`, …"""
    timetable: Timetable | None = None
    """Time windows in which one model has priority; each model of the lane has a window. None: the
    most valuable batch always comes first."""

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
    """Maximum rows in one batch."""
    generation: int = 0
    """If the generation changes, the replica is stopped after its batch and started anew."""
    standby: bool = False
    """Loaded, but gets no batches until another plan activates it."""

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
            raise ValueError(f"{self.model!r}: expected a client or an application, got both")


@dataclass(frozen=True, slots=True)
class InputSize:
    """The variant whose input size a client should send. For information: the engine only reads
    `Route`."""

    model: str
    client: str
    variant: str
    """Variant whose input size images should have; empty: the client has no variant."""


class ExitMode(Enum):
    """Treatment of rows that a ramp has answered."""

    RELEASE = "release"
    """Rows run on to the model's end, so that accuracy is judged on every row."""
    SHRINK = "shrink"
    """Rows leave the batch, and the remaining rows take less time."""
    AUTO = "auto"
    """Rows run on if the lane was idle before the batch and no other request waits for the lane;
    otherwise they leave."""


@dataclass(frozen=True, slots=True)
class ExitPolicy:
    """How requests of a pool leave its model early. Raises ValueError for invalid fields."""

    pool: PoolId
    ramps: tuple[int, ...] = ()
    """Positions of the active ramps, front to end."""
    thresholds: tuple[float, ...] = ()
    """Per ramp: a row whose uncertainty is below this value leaves there. 0: no row leaves."""
    mode: ExitMode = ExitMode.AUTO
    feedback: float = 0.1
    """Share of batches that run to the end in any mode, so that accuracy can be judged."""
    revision: int = 0
    """Revision of the ramps' weights; 0: not trained yet."""
    features: bool = False
    """Whether workers return pooled features of all positions, to train ramps on."""
    feature_share: float = 1.0
    """Share of batches that return features."""
    costs: tuple[float, ...] = ()
    """Per ramp: share of a full pass after which the ramp answers; empty: unknown. Predictions use
    these shares until batches have been measured."""
    reason: str = ""
    """Why these ramps were chosen, for people."""
    enlarge: bool = False
    """Whether batches are planned to end at the last ramp. If so, rows go on behind it (`going_on`)
    only as far as other rows have saved time."""
    applications: tuple[str, ...] | None = None
    """Applications whose requests may leave; None: all applications."""
    whole_model_only: tuple[int, ...] = ()
    """Classes that no ramp may give: a row does not leave at a ramp that gives one of them."""
    remember_frames: int = 0
    """If above 0, ramp 0 repeats the answer that the model gave to the session's last frame that
    ran to the end, for at most this many frames. Ramp n is then the ramp at position n − 1."""
    remember_s: float = math.inf
    """Age limit of a remembered answer, in seconds between the starts of the batches."""

    def __post_init__(self) -> None:
        if len(self.thresholds) != len(self.ramps):
            raise ValueError(f"expected {len(self.ramps)} thresholds, got {len(self.thresholds)}")
        if self.costs and len(self.costs) != len(self.ramps):
            raise ValueError(f"expected {len(self.ramps)} costs, got {len(self.costs)}")
        if not all(0.0 < cost <= 1.0 for cost in self.costs):
            raise ValueError(f"costs must be above 0 and at most 1, got {self.costs}")
        if list(self.ramps) != sorted({*self.ramps}) or min(self.ramps, default=0) < 0:
            raise ValueError(f"ramps must be positions in ascending order, got {self.ramps}")
        if not all(threshold >= 0.0 for threshold in self.thresholds):
            raise ValueError(f"thresholds must not be negative, got {self.thresholds}")
        for name, share in (("feedback", self.feedback), ("feature_share", self.feature_share)):
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"{name} must be within 0 and 1, got {share}")
        for name in ("remember_frames", "remember_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    @property
    def remembers(self) -> bool:
        """Whether a ramp gives remembered answers."""
        return self.remember_frames > 0 and self.ramps[:1] == (0,)

    def __deepcopy__(self, memo: object) -> ExitPolicy:
        """Return the policy itself: it is immutable, and predictions that hold one are copied."""
        return self

    def thresholds_after(self, before: Mapping[int, float]) -> dict[int, float]:
        """The thresholds, by position, while this policy replaces a policy with the thresholds
        `before`.

        Ramps that this policy drops keep their thresholds until the new ramps are active. If this
        policy lets no row leave, as after an alarm, no row leaves at the old ramps either.
        """
        thresholds = dict(zip(self.ramps, self.thresholds, strict=True))
        return {**before, **thresholds} if any(self.thresholds) else thresholds


@dataclass(frozen=True, slots=True)
class StagePlace:
    """Where a stage of a pipeline runs, as seen from the device of this plan. Raises ValueError for
    negative times or unknown rows."""

    pipeline: str
    stage: str
    device: str = ""
    """The device; empty: this one, which is also the default for stages without a place. A stage
    on another device is handed over with all stages behind it."""
    p99: float = 0.0
    """99th percentile of the seconds from the rows' arrival there to their answer."""
    transfer: float = 0.0
    """Seconds to send its rows to `device` from the device of the previous stage."""
    back: float = 0.0
    """Seconds to send an answer from there to here."""
    takes: str = "all"
    """The rows that `device` gets. If the stage also runs here: `late`, those that would be late
    here, or `timely`, all but those that would be late there."""

    def __post_init__(self) -> None:
        if self.takes not in ("all", "late", "timely"):
            raise ValueError(f"takes of {self.pipeline}/{self.stage}: unknown rows {self.takes!r}")
        if not (self.p99 >= 0.0 and self.transfer >= 0.0 and self.back >= 0.0):
            raise ValueError(f"times of {self.pipeline}/{self.stage} must not be negative")


GOLDEN = 0.6180339887498949
"""The golden ratio. The fractional parts of its multiples are spread evenly over 0 to 1, and so are
those of every n-th multiple. Therefore pools whose batches take turns are judged as often as a pool
that runs alone."""


def is_judged(batch: int, share: float) -> bool:
    """Whether the batch with this id is one of the `share` of batches that are judged. A larger
    share includes all batches of a smaller share."""
    return (batch * GOLDEN) % 1.0 < share


RUN_FRAMES, RUN_EVERY = 16, 160
"""Of every `RUN_EVERY` frames of a session, a *run* of `RUN_FRAMES` in succession is judged."""


def is_in_run(session: int, frame: int) -> bool:
    """Whether a frame belongs to a judged run of its session. The runs of sessions are spread
    evenly over time."""
    return (
        session > 0 and (frame + int(session * GOLDEN % 1.0 * RUN_EVERY)) % RUN_EVERY < RUN_FRAMES
    )


def going_on(
    unsure: Sequence[float],
    held: Collection[int],
    present: Sequence[int],
    seconds: Callable[[int, int], float],
) -> set[int]:
    """Choose the rows that go on behind the planned end of a batch (`ExitPolicy.enlarge`): `held`
    rows first, then the least certain, as many as fit in the time that earlier exits saved.

    `unsure`: by row, the uncertainty at the last ramp; `held` and the result are indices of these
    rows. `present`: number of rows at each stage so far. `seconds(rows, stage)`: predicted time of
    a stage.
    """
    room = 1e-9 * seconds(present[0], 0)  # tolerance for rounding
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
    """Input sizes, at most one for each client of a model."""
    exits: tuple[ExitPolicy, ...] = ()
    """Exit policies, at most one for each pool. Without one, requests never leave early."""
    places: tuple[StagePlace, ...] = ()
    """Places of stages, at most one for each stage of a pipeline."""

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
