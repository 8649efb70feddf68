"""`ServerQuestion`: the placement question of one server, and bounds for other planners.

Lanes that share models are a *group*, which the question calls a device. A model has one
configuration for each variant that its planner may choose, on each number of cores that its
settings allow, with early exits and without. The planner of exits measures the overhead of ramps. A
placement gives up exits only if that saves frames that would be late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from slacktide.domain import Plan, PoolId
from slacktide.domain.pipelines import Pipeline
from slacktide.engine import Snapshot
from slacktide.engine.snapshot import PoolSnapshot
from slacktide.planning.draft import ModelBounds
from slacktide.planning.exits import ExitsStatus, StatedExits
from slacktide.planning.pipelines.placed_pipeline import PlacedPipeline
from slacktide.planning.pipelines.plans import DevicePlans
from slacktide.planning.pipelines.problem import (
    BATCHES,
    ConfigurationTimes,
    DeviceView,
    Inflow,
    LinkView,
    PipelineView,
    PlacementQuestion,
    StageConfiguration,
    StageView,
)
from slacktide.planning.planner import Stated, stated_as
from slacktide.planning.scaling.scaled_state import ScaledModel
from slacktide.planning.variants.family import Family

AT_ONCE = 1e15
"""Bandwidth between lanes in bytes per second, at which transfers take no time."""
WHOLE = 0.95
"""Worth of an answer of a stage without early exits, relative to one with exits. Therefore a
placement gives up exits only if the stage then serves a twentieth more."""
ExitsOf = Callable[[], Mapping[PoolId, ExitsStatus]]


@dataclass(frozen=True, slots=True)
class LaneGroup:
    """Lanes that share models."""

    lanes: tuple[str, ...]
    models: frozenset[str]
    cores: int
    """Maximum number of cores of each lane."""
    choices: tuple[int, ...] = ()
    """Numbers of cores to consider for a lane, ascending; empty: its number is fixed."""
    held: int = 0
    """Cores of all lanes together, as the settings state."""

    @property
    def name(self) -> str:
        return self.lanes[0]


class ServerQuestion:
    """The question of one server, from the settings of its models and pipelines."""

    def __init__(self, cores: int = 0, exits: ExitsOf = dict) -> None:
        """`cores`: cores of the machine; 0: unknown. `exits`: returns the state of early exits."""
        self.pipelines: dict[str, Pipeline] = {}
        self.groups: tuple[LaneGroup, ...] = ()
        self._families: dict[str, Family] = {}
        self._floors: dict[str, str] = {}
        self._exits: dict[str, StatedExits] = {}
        self._exits_now = exits
        self._lane_share: dict[PoolId, float] = {}
        """Time of a batch with exits, as a share of a whole pass, when last measured."""
        self._cores = cores

    def rebase(self, base: Plan, stated: Stated) -> None:
        """Take the models and pipelines that are served from now on."""
        placed = stated_as(PlacedPipeline, stated)
        self.pipelines = {
            name: spec.pipeline for name, spec in placed.items() if spec.pipeline is not None
        }
        self.groups = tuple(_groups(base, stated_as(ScaledModel, stated)))
        self._families = stated_as(Family, stated)
        self._floors = {m: bounds.smallest for m, bounds in stated_as(ModelBounds, stated).items()}
        self._exits = stated_as(StatedExits, stated)

    def accuracy(self, pool: PoolId) -> float | None:
        """Return the accuracy as a share of the family's best; None: the pool has no family."""
        family = self._families.get(pool.model)
        if family is None:
            return None
        by_name = {variant.name: variant.accuracy for variant in family.variants}
        return by_name.get(pool.variant, 0.0) / max(by_name.values())

    def is_smaller(self, model: str, variant: str, than: str) -> bool:
        """Whether bound `variant` is smaller than bound `than`; an empty `than`: any variant."""
        names = self._names(model)
        than = than or (names[-1] if names else "")
        return variant in names and names.index(variant) < names.index(than)

    def knows(self, bounds: Mapping[str, ModelBounds]) -> bool:
        """Whether all variants of `bounds` exist: a model may have been reloaded with new ones."""
        return all(bound.largest in ("", *self._names(model)) for model, bound in bounds.items())

    def _names(self, model: str) -> list[str]:
        family = self._families.get(model)
        return [] if family is None else [variant.name for variant in family.variants]

    def ask(
        self, snapshot: Snapshot, bounds: Mapping[str, ModelBounds]
    ) -> PlacementQuestion | None:
        """Return the present question, without demand; None: some models do not serve yet.
        `bounds`: the bounds in force."""
        groups = {model: group for group in self.groups for model in group.models}
        views, used = [], dict[str, LaneGroup]()
        exits = self._exits_now() if self._exits else {}
        for pool in self._lane_share.keys() - exits.keys():  # the pool was reloaded
            del self._lane_share[pool]
        for name, pipeline in self.pipelines.items():
            number = {stage: at for at, stage in enumerate(pipeline.order)}
            stages = []
            for stage in pipeline.order:
                model = pipeline.by_name[stage].model
                group = groups.get(model)
                leaves = model not in bounds or bounds[model].exits
                configurations = (
                    ()
                    if group is None
                    else tuple(self._configurations(model, group, snapshot, exits, leaves=leaves))
                )
                if group is None or not configurations:
                    return None
                used[group.name] = group
                inflows = tuple(Inflow(number[edge.upstream]) for edge in pipeline.into[stage])
                hosts = (group.name,)
                stages.append(StageView(stage, configurations, inflows, model, devices=hosts))
            assert pipeline.slo is not None  # pipelines without an SLO are not stated
            home = stages[0].devices[0]
            views.append(PipelineView(name, home, pipeline.slo, 0.0, tuple(stages)))
        devices = tuple(
            DeviceView(
                group.name,
                group.name,
                streams=len(group.lanes),
                utilisation=float(len(group.lanes)),
                server=True,
            )
            for group in used.values()
        )
        links = tuple(LinkView(a, b, AT_ONCE) for a in used for b in used if a < b)
        return PlacementQuestion(devices, links, tuple(views))

    def bounds(self, plans: DevicePlans) -> dict[str, ModelBounds]:
        """Return the bounds of a placement. A lane may have the cores that no other lane needs."""
        bounds: dict[str, ModelBounds] = {}
        for device in plans.question.devices:
            bounds |= plans.bounds(device.name)
        needed = {group.name: self._needed(group, bounds) for group in self.groups}
        everywhere = sum(needed.values())
        for group in self.groups:
            free_cores = self._cores - (everywhere - needed[group.name])
            most = max(free_cores, needed[group.name]) // len(group.lanes)
            free = not group.choices or not self._cores or most >= group.cores
            for model in group.models & bounds.keys():
                bounds[model] = replace(bounds[model], cores=None if free else most)
        return bounds

    def _needed(self, group: LaneGroup, bounds: Mapping[str, ModelBounds]) -> int:
        """Return the cores that the lanes of a group need under a placement."""
        core_counts = [bounds[model].cores or 0 for model in group.models if model in bounds]
        return max(core_counts, default=0) * len(group.lanes) or group.held

    def _configurations(
        self,
        model: str,
        group: LaneGroup,
        snapshot: Snapshot,
        exits: Mapping[PoolId, ExitsStatus],
        *,
        leaves: bool,
    ) -> Iterator[StageConfiguration]:
        """Yield configurations of the variants that a family's planner may choose, or else of the
        serving pool."""
        pools = {pool.id.variant: pool for pool in snapshot.serving(model)}  # newest of each
        family = self._families.get(model)
        if family is None or family.planner == "none":
            named = [(list(pools.values())[-1], "", 1.0)] if pools else []
        else:
            accuracies = [(variant.name, variant.accuracy) for variant in family.variants]
            floor = dict(accuracies).get(self._floors.get(model, ""), -math.inf)
            named = [(pools[n], n, a) for n, a in accuracies if n in pools and a >= floor]
        for pool, name, accuracy in named:
            for cores in group.choices or (0,):
                times = _times(pool, group.name, cores or group.cores)
                if model not in self._exits:
                    yield StageConfiguration((times,), name, accuracy, cores=cores)
                    continue
                exit_times, whole = self._with_exits(pool, times, exits, leaves=leaves)
                yield StageConfiguration((exit_times,), name, accuracy, cores=cores)
                yield StageConfiguration((whole,), name, WHOLE * accuracy, cores=cores, exits=False)

    def _with_exits(
        self,
        pool: PoolSnapshot,
        now: ConfigurationTimes,
        exits: Mapping[PoolId, ExitsStatus],
        *,
        leaves: bool,
    ) -> tuple[ConfigurationTimes, ConfigurationTimes]:
        """Return (times with exits, times without). `now`: the times as measured now, with exits if
        `leaves`."""
        status = exits.get(pool.id)
        if status is None or status.policy is None or status.overhead is None:
            return now, now
        time = pool.times.of(1, pool.cores)
        if leaves:
            whole = pool.times.whole(1, pool.cores)
            self._lane_share[pool.id] = time.expected / whole.expected if whole.expected else 1.0
        share = self._lane_share.get(pool.id, 1.0)
        slowdown = 1.0 + status.overhead
        if leaves:
            return now, _scaled(now, 1.0 / (share * slowdown), 1.0 / slowdown)
        return _scaled(now, share * slowdown, slowdown), now


def _scaled(times: ConfigurationTimes, expected: float, p99: float) -> ConfigurationTimes:
    return ConfigurationTimes(
        times.kind,
        tuple([expected * seconds for seconds in times.expected]),
        tuple([p99 * seconds for seconds in times.p99]),
    )


def _times(pool: PoolSnapshot, kind: str, cores: int) -> ConfigurationTimes:
    times = [pool.times.of(rows, cores) for rows in BATCHES if rows <= pool.max_batch]
    return ConfigurationTimes(
        kind, tuple([time.expected for time in times]), tuple([time.p99 for time in times])
    )


def _groups(base: Plan, scaled: Mapping[str, ScaledModel]) -> Iterator[LaneGroup]:
    """Yield the groups of a base plan's lanes, in order."""
    components: list[tuple[list[str], set[str]]] = []
    for lane in base.lanes:
        models = {
            deployment.pool.model for deployment in base.deployments if deployment.lane == lane.name
        }
        together = [component for component in components if component[1] & models]
        components = [component for component in components if not component[1] & models]
        lanes = [name for names, _ in together for name in names]
        components.append(([*lanes, lane.name], models.union(*(group for _, group in together))))
    cores = {lane.name: max(1, len(lane.cores)) for lane in base.lanes}
    for names, models in components:
        limits = [scaled[model].limits for model in models if model in scaled]
        held_cores = sum(cores[name] for name in names)
        most = max((limit.cores_max for limit in limits), default=min(cores[n] for n in names))
        least = min((limit.cores_min for limit in limits), default=most)
        choices = tuple(_some(least, most)) if least < most else ()
        yield LaneGroup(tuple(names), frozenset(models), most, choices, held_cores)


def _some(least: int, most: int) -> Iterator[int]:
    """Yield `least`, doubled as long as it is below `most`; then `most`."""
    while least < most:
        yield least
        least *= 2
    yield most
