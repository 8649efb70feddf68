"""`ScalingPolicy`, the view of a model that it gets, and the target that it returns.

A policy looks at one model at a time. If the targets of all models exceed the machine,
`core_allocator` divides the cores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from slacktide.domain import Notice, PoolId, Request
from slacktide.domain.read_only import read_only
from slacktide.engine import Snapshot
from slacktide.engine.phases import UP
from slacktide.engine.snapshot import PoolSnapshot, ReplicaSnapshot
from slacktide.profiles import TimeDistribution


@read_only
class Waiting:
    """A request that waits, or whose body is on its way. Times are absolute seconds."""

    ready_at: float
    """Earliest start: now or earlier if its body is here."""
    deadline: float
    """Time at which its answer is due, less network time and the answer's way back;
    infinite for best effort."""
    rows: int = 1

    @classmethod
    def of(cls, request: Request | Notice) -> Waiting:
        """Return the view of a request, or of a notice from what it announces."""
        if isinstance(request, Notice):
            planned_due = request.planned_due
            return cls(request.complete_at, inf if planned_due is None else planned_due)
        return cls(request.arrival, inf if request.best_effort else request.deadline, request.rows)


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica of the model. Times are absolute seconds."""

    cores: int
    """Cores that it has, or will have once a resize under way is confirmed."""
    ready_at: float
    """Time from which it serves: now or earlier if it is up, else the expected end of its start."""
    free_at: float
    """Expected end of the batch it runs; now or earlier if it runs none."""


class BatchSeconds(Protocol):
    """How long a batch takes; rows ≥ 1, cores ≥ 1. `BatchTimes` conforms."""

    def of(self, rows: int, cores: int) -> TimeDistribution: ...


@dataclass(frozen=True, slots=True)
class ScalingLimits:
    """The range of a policy's choices; all at least 1. Raises ValueError that names the field."""

    cores_min: int = 1
    cores_max: int = 1
    """Maximum number of cores of one replica."""
    replicas_min: int = 1
    replicas_max: int = 1
    batch_max: int = 1
    """Maximum number of rows in one batch."""

    def __post_init__(self) -> None:
        for name in ("cores_min", "replicas_min", "batch_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("cores", "replicas"):
            least, most = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if most < least:
                raise ValueError(f"{name}: expected min at most max, got {least} and {most}")


@dataclass(frozen=True, slots=True)
class VariantView:
    """A variant of the model that every replica holds and can run from its next batch on."""

    name: str
    accuracy: float
    """Larger is better; only its order among the variants counts."""
    times: BatchSeconds


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected arrivals of a model; see `ModelView` for the fields."""

    rate: float = 0.0
    budget: float = inf
    arrived: int = 0
    burst: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model as its policy sees it."""

    model: str
    waiting: tuple[Waiting, ...]
    """Waiting requests, in the order of their deadlines."""
    replicas: tuple[ReplicaView, ...]
    rate: float
    """Expected rows per second until the next plan, with a margin for bursts. Only requests that
    could be on time with some allowed number of cores count."""
    budget: float
    """Seconds that an expected request will have left when it is ready (a low quantile); infinite
    without deadlines."""
    batch: int
    """Maximum number of rows in a batch under the plan in force."""
    times: BatchSeconds
    limits: ScalingLimits
    start_time: float = 0.0
    """Seconds from the start of a replica until it serves."""
    arrived: int = 0
    """Rows so far of requests that could be on time, announced ones included. Policies compute
    rates over longer spans from this count. It falls only when the body of an announced request
    comes too late."""
    variants: tuple[VariantView, ...] = ()
    """Variants that the model can run, the present one included; empty if there is only one."""
    burst: float = 0.0
    """How far arrivals may run ahead of the rate by chance: by burst · √t rows within t seconds; 0
    if they are evenly spaced."""

    def pressure(self, *, now: float) -> float:
        """Return, for the most urgent request that can still be on time, the share of its remaining
        time that a batch of one row on the maximum number of cores would take: 0 (no deadlines) to
        1."""
        alone = self.times.of(1, self.limits.cores_max).p99
        budgets = [waiting.deadline - max(now, waiting.ready_at) for waiting in self.waiting]
        if self.rate > 0.0:
            budgets.append(self.budget)
        return max((alone / budget for budget in budgets if alone <= budget < inf), default=0.0)


@dataclass(frozen=True, slots=True)
class ScalingTarget:
    """The target of a policy for one model."""

    replicas: int
    cores: int
    """Cores of each replica."""
    batch: int
    """Maximum number of rows in one batch."""
    late: int = 0
    """Waiting and expected requests that would still miss their deadlines."""
    reason: str = ""
    """The reason, in a few words for people and metrics, such as `deadlines` or `rate`."""
    start_cores: int = 0
    """Cores of each replica that does not serve yet; 0: as many as serving replicas."""
    needed: int = 0
    """Replicas that the load forecast needs, even if the limits allow fewer; 0: not computed, or no
    number would do."""
    variant: str = ""
    """Name of the variant to run; empty: the present variant."""
    restart: bool = False
    """Whether replicas whose cores change are restarted instead of resized."""

    def is_no_larger(self, than: ScalingTarget) -> bool:
        """Whether it has at most as many cores in all, and the same batch size and variant."""
        fits = self.replicas * self.cores <= than.replicas * than.cores
        return fits and (self.batch, self.variant) == (than.batch, than.variant)


class ScalingPolicy(ABC):
    """Turns a view into a target. A policy may keep state (hysteresis) but reads no clock."""

    period = 1.0
    """Seconds between two decisions, unless `is_urgent` asks for a decision sooner."""

    @abstractmethod
    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        """Return the target from now on, within `view.limits`."""

    def is_urgent(self, view: ModelView, *, now: float) -> bool:
        """Whether a request that can be saved would miss its deadline under the plan in force.
        Asked often between two plans, so it should cost less than `decide`."""
        return False


LEAST_LEFT = 0.05
"""Share of a lane that a model can always count on."""


def view_of(
    snapshot: Snapshot,
    model: str,
    lanes: Sequence[str],
    limits: ScalingLimits,
    expected: Expected,
    *,
    fresh: Mapping[int, Waiting],
    beside: Mapping[str, Expected],
    runs: PoolId | None = None,
    accuracies: Mapping[str, float] | None = None,
) -> ModelView | None:
    """Return the view of `model` on its `lanes`; None if none of its pools serves.

    `fresh`: requests that the engine is about to handle, by id, announced before or not. `beside`:
    the other models on these lanes, which slow down its batches. `runs`: the variant of a family
    that serves requests not routed by client or application. `accuracies`: accuracies of the
    variants to choose from.
    """
    pools = snapshot.serving(model)
    if not pools:
        return None
    newest = next((pool for pool in pools if pool.id == runs), pools[-1])
    waiting = [*fresh.values()]
    for pool in pools:
        requests = snapshot.waiting(pool.id)
        waiting += [Waiting.of(request) for request in requests if request.id not in fresh]
    waiting.sort(key=lambda request: request.deadline)
    staying: dict[str, ReplicaSnapshot] = {}
    for replica in [replica for pool in pools for replica in pool.replicas if replica.staying]:
        lane_replica = staying.get(replica.replica.lane)
        # A lane counts as serving a family as soon as one of the variants on it is ready.
        if lane_replica is None or runs is None or replica.ready_at < lane_replica.ready_at:
            staying[replica.replica.lane] = replica
    placed = [(snapshot.lanes[name], staying[name]) for name in lanes if name in staying]
    return ModelView(
        model,
        tuple(waiting),
        tuple(
            ReplicaView(len(lane.target) or 1, replica.ready_at, lane.free_at)
            for lane, replica in placed
        ),
        expected.rate,
        expected.budget,
        max((replica.replica.max_batch for _, replica in placed), default=newest.max_batch),
        _shared(snapshot, newest.times, beside),
        replace(limits, batch_max=min(limits.batch_max, newest.max_batch)),
        newest.start_time,
        expected.arrived,
        tuple(
            VariantView(
                pool.id.variant,
                (accuracies or {})[pool.id.variant],
                _shared(snapshot, pool.times, beside),
            )
            for pool in _beside(newest, pools)
            if pool.id.variant in (accuracies or {})
        ),
        expected.burst,
    )


def _beside(runs: PoolSnapshot, pools: Sequence[PoolSnapshot]) -> Iterator[PoolSnapshot]:
    """Yield `runs`, and variants loaded with it that are up on all lanes where it is up."""

    def up(pool: PoolSnapshot) -> set[str]:
        ready = (replica for replica in pool.replicas if replica.state is UP and replica.staying)
        return {replica.replica.lane for replica in ready}

    lanes = up(runs)
    for pool in pools:
        is_same_load = pool.id._replace(variant=runs.id.variant) == runs.id
        if pool is runs or (is_same_load and lanes and lanes <= up(pool)):
            yield pool


def _shared(
    snapshot: Snapshot, times: BatchSeconds, beside: Mapping[str, Expected]
) -> BatchSeconds:
    neighbours = []
    for model, expected in beside.items():
        pools = snapshot.serving(model)
        if pools and expected.rate > 0.0:
            caps = [replica.replica.max_batch for replica in pools[-1].replicas]
            neighbours.append((pools[-1].times, max(caps, default=1), expected.rate))
    return _OnASharedLane(times, neighbours) if neighbours else times


@dataclass(slots=True, eq=False)
class _Stretched:
    """A batch time on a lane of which only `share` of the time is free."""

    time: TimeDistribution
    share: float

    @property
    def expected(self) -> float:
        return self.time.expected / self.share

    @property
    def p99(self) -> float:
        return self.time.p99 / self.share

    def quantile(self, level: float) -> float:
        return self.time.quantile(level) / self.share

    def on_time(self, budget: float) -> float:
        return self.time.on_time(budget * self.share)


class _OnASharedLane:
    """Batch times, stretched by the load of other models on the lane."""

    def __init__(
        self, times: BatchSeconds, neighbours: Sequence[tuple[BatchSeconds, int, float]]
    ) -> None:
        """`neighbours`: (their batch times, rows in a batch, rows per second)."""
        self._times = times
        self._neighbours = neighbours
        self._free_shares: dict[int, float] = {}

    def of(self, rows: int, cores: int) -> _Stretched:
        return _Stretched(self._times.of(rows, cores), self._free_share(cores))

    def _free_share(self, cores: int) -> float:
        free_share = self._free_shares.get(cores)
        if free_share is None:
            busy_share = sum(
                rate * times.of(batch, cores).expected / batch
                for times, batch, rate in self._neighbours
            )
            free_share = self._free_shares[cores] = max(LEAST_LEFT, 1.0 - busy_share)
        return free_share
