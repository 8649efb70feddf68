"""`LaneSizes`: turns the targets of scaled models into a plan: lanes, their cores, and batch caps.

A base plan has the pools, their first lanes, and the routes. `LaneSizes` changes the lanes of
scaled models: their number, their cores, and the batch caps of the replicas on them.

- Models that share lanes are a *group* of one size: the most replicas and the most cores that any
  of them asks for.
- Lanes that serve stay. A new lane waits until it can open with its least cores.
- `core_allocator` divides the cores: first among lanes that are not scaled and the minimum lanes of
  every group, then among the other lanes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slacktide.domain import Deployment, LaneSpec, Plan, PoolId
from slacktide.engine import Snapshot
from slacktide.planning.lanes.core_allocator import Claim, CoreAllocator, shares

if TYPE_CHECKING:  # avoids an import cycle
    from slacktide.planning.scaling.view import ScalingLimits, ScalingTarget


@dataclass(frozen=True, slots=True)
class ScalingRequest:
    """The request of one model's policy."""

    limits: ScalingLimits
    target: ScalingTarget | None
    """None: the policy has not been asked yet, and the model keeps its size."""
    pressure: float = 0.0
    """See `core_allocator`."""


@dataclass(frozen=True, slots=True)
class ScalingGroup:
    """Scaled models on the same lanes."""

    models: tuple[str, ...]
    lanes: tuple[str, ...]
    """Lanes, named as in the base plan."""
    deployments: tuple[Deployment, ...]
    """Deployments on each lane, as the base plan states them for the first lane that has them."""

    def lane_names(self, used_names: Collection[str], count: int) -> list[str]:
        """Return `count` names for more lanes of this group, none of them in `used_names`."""
        free = [name for name in self.lanes if name not in used_names][:count]
        number = 1
        while len(free) < count:
            name = f"{self.lanes[0]}+{number}"
            number += 1
            if name not in used_names:
                free.append(name)
        return free


def groups_of(base: Plan, scaled: Collection[str]) -> tuple[ScalingGroup, ...]:
    """Return the groups of `base` with models in `scaled`, in the order of its lanes."""
    cpu = {lane.name for lane in base.lanes if lane.device == "cpu"}
    on: dict[str, set[str]] = {}
    for deployment in base.deployments:
        if deployment.lane in cpu:
            on.setdefault(deployment.lane, set()).add(deployment.pool.model)
    components: list[tuple[set[str], list[str]]] = []
    for lane in base.lanes:
        models = on.get(lane.name, set())
        if not models & set(scaled):
            continue
        touching = [group for group in components if group[0] & models]
        components = [group for group in components if not group[0] & models]
        merged = (set(models), [lane.name])
        for group in touching:
            merged = (merged[0] | group[0], group[1] + merged[1])
        components.append(merged)
    return tuple(_group(base, models & set(scaled), lanes) for models, lanes in components)


def _group(base: Plan, models: set[str], lanes: Sequence[str]) -> ScalingGroup:
    stated: dict[PoolId, Deployment] = {}
    for deployment in base.deployments:
        if deployment.lane in lanes:
            stated.setdefault(deployment.pool, deployment)
    return ScalingGroup(tuple(sorted(models)), tuple(lanes), tuple(stated.values()))


class LaneSizes:
    """The groups of a base plan, and their present lanes."""

    def __init__(self, cores: Sequence[int]) -> None:
        """`cores`: processor numbers that lanes may have."""
        self.groups: tuple[ScalingGroup, ...] = ()
        self.short = False
        """Whether a lane got fewer cores than its share because others still hold them."""
        self._allocator = CoreAllocator(cores)
        self._lanes: dict[ScalingGroup, dict[str, int]] = {}
        """Generation of the replicas on each lane of a group, in the last plan."""

    def rebase(self, base: Plan, scaled: Collection[str]) -> None:
        """Continue from `base`. Groups whose stated lanes stay keep their present lanes."""
        before = {group.lanes: lanes for group, lanes in self._lanes.items()}
        generations = {name: at for lanes in before.values() for name, at in lanes.items()}
        self.groups = groups_of(base, scaled)
        self._lanes = {
            group: before.get(group.lanes)
            or {name: generations.get(name, 0) for name in group.lanes}
            for group in self.groups
        }

    def group_of(self, model: str) -> ScalingGroup | None:
        """Return the group of a model; None: no lane has it."""
        return next((group for group in self.groups if model in group.models), None)

    def lanes(self, group: ScalingGroup) -> tuple[str, ...]:
        """Return the names of a group's lanes in the last plan."""
        return tuple(self._lanes[group])

    def plan(
        self,
        base: Plan,
        wishes: Mapping[str, ScalingRequest],
        snapshot: Snapshot,
        *,
        borrowing: bool = False,
    ) -> Plan:
        """Return `base` with the lanes of its groups sized as `wishes` ask, as far as there are
        cores. `borrowing`: whether a group without a lane gets one immediately, on cores that
        others will soon give up. Groups that have lanes always wait for the cores of further
        replicas."""
        elastic = {lane for group in self.groups for lane in group.lanes}
        sizes = {
            group: self._lane_cores(base, group, [wishes[name] for name in group.models], snapshot)
            for group in self.groups
        }
        claims = [
            Claim(lane.name, len(lane.cores), len(lane.cores), math.inf)
            for lane in base.lanes
            if lane.device == "cpu" and lane.name not in elastic
        ]
        claims += _claims_of(sizes, wishes)
        placed = _placed(sizes, snapshot)
        borrowers = {claim.lane for claim in claims} - placed if borrowing else set[str]()
        cores = self._divide(base, claims, snapshot, borrowers)
        lanes = [
            lane if lane.device != "cpu" else replace(lane, cores=cores[lane.name])
            for lane in base.lanes
            if lane.name not in elastic
        ]
        deployments = [
            deployment for deployment in base.deployments if deployment.lane not in elastic
        ]
        for group, names in sizes.items():
            targets = {name: wishes[name].target for name in group.models}
            self._lanes[group] = self._generations(group, names, targets, cores, snapshot)
            lanes += [LaneSpec(name, cores[name]) for name in self._lanes[group]]
            deployments += self._deployments(group, targets, snapshot)
        return replace(base, lanes=tuple(lanes), deployments=tuple(deployments))

    def _divide(
        self, base: Plan, claims: Sequence[Claim], snapshot: Snapshot, borrowers: Collection[str]
    ) -> dict[str, tuple[int, ...]]:
        """Return the cores of each lane whose claim is met. `borrowers`: lanes that do not wait for
        cores that others give up."""
        counts = shares(claims, len(self._allocator))
        order = [claim for claim in claims if claim.lane in counts]
        order.sort(key=lambda claim: -claim.pressure)
        holdings = {name: lane for name, lane in snapshot.lanes.items() if lane.device == "cpu"}
        cores = self._allocator.cores_for(
            {claim.lane: counts[claim.lane] for claim in order},
            holdings,
            preferred={lane.name: lane.cores for lane in base.lanes},
            borrowing=[claim.lane for claim in order if claim.lane in borrowers],
        )
        for claim in claims:  # a lane waits until it can open with its least cores
            if claim.lane not in holdings and len(cores.get(claim.lane, ())) < claim.least:
                cores.pop(claim.lane, None)
        self.short = any(len(cores.get(lane, ())) < count for lane, count in counts.items())
        return cores

    def _deployments(
        self, group: ScalingGroup, targets: Mapping[str, ScalingTarget | None], snapshot: Snapshot
    ) -> Iterator[Deployment]:
        """Yield the replicas of a group on all its lanes, with the batch caps of its targets."""
        caps = {
            pool.id: target.batch
            for name, target in targets.items()
            if target is not None
            for pool in snapshot.serving(name)
        }
        for lane, generation in self._lanes[group].items():
            for deployment in group.deployments:
                cap = min(deployment.max_batch, caps.get(deployment.pool, deployment.max_batch))
                yield Deployment(deployment.pool, lane, cap, generation)

    def _lane_cores(
        self, base: Plan, group: ScalingGroup, wishes: Sequence[ScalingRequest], snapshot: Snapshot
    ) -> dict[str, int]:
        """Return the target cores of each lane of a group, lanes that stay first."""
        snapshots, lanes = snapshot.lanes, self._lanes[group]
        targets = [wish.target for wish in wishes if wish.target is not None]
        if not targets:
            stated = {lane.name: len(lane.cores) for lane in base.lanes}
            return {
                name: len(snapshots[name].target) if name in snapshots else stated.get(name, 1)
                for name in lanes
            }
        serving = {name for name in lanes if name in snapshots and snapshots[name].serves}
        names = sorted(lanes, key=lambda name: name not in serving)
        count = max(target.replicas for target in targets)
        names = names[:count]
        names += group.lane_names(names, count - len(names))
        return {
            name: max(
                target.cores if name in serving else target.start_cores or target.cores
                for target in targets
            )
            for name in names
        }

    def _generations(
        self,
        group: ScalingGroup,
        names: Collection[str],
        targets: Mapping[str, ScalingTarget | None],
        cores: Mapping[str, Sequence[int]],
        snapshot: Snapshot,
    ) -> dict[str, int]:
        """Return the generation of the replicas on each lane that the group gets."""
        anew = any(target.restart for target in targets.values() if target is not None)
        generations = {}
        for name in names:
            if name in cores:
                lane = snapshot.lanes.get(name)
                changed = lane is not None and len(lane.target) != len(cores[name])
                generations[name] = self._lanes[group].get(name, 0) + (anew and changed)
        return generations


def _placed(sizes: Mapping[ScalingGroup, Collection[str]], snapshot: Snapshot) -> set[str]:
    """Return the lanes that can wait for cores: present lanes, and other lanes of their groups."""
    placed = {lane.name for lane in snapshot.lanes.values() if not lane.leaving}
    for names in sizes.values():
        if not placed.isdisjoint(names):
            placed.update(names)
    return placed


def _claims_of(
    sizes: Mapping[ScalingGroup, Mapping[str, int]], wishes: Mapping[str, ScalingRequest]
) -> list[Claim]:
    """Return the claims of all lanes of groups, those of each group's minimum lanes first."""
    first: list[Claim] = []
    further: list[Claim] = []
    for group, names in sizes.items():
        requests = [wishes[name] for name in group.models]
        pressure = max(request.pressure for request in requests)
        least = max(request.limits.cores_min for request in requests)
        fewest = max(request.limits.replicas_min for request in requests)
        for number, (lane, size) in enumerate(names.items()):
            claim = Claim(lane, least, max(least, size), pressure)
            (first if number < fewest else further).append(claim)
    return first + further
