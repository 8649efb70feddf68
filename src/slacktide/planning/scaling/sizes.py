"""`LaneSizes`: from what scaled models want to a plan: how many lanes, how many cores, and which.

A base plan says which pools there are, where they sit at first and which routes lead to them. Of
the lanes of scaled models the number and cores change, and the batch caps of what sits there.

- Models that share lanes are a *group*: they have one size, the most replicas and the most cores
  that any of them wants.
- Lanes that serve stay; a lane more is opened with its least or not yet.
- `core_allocator` says which lane gets what: first what is not scaled and the fewest lanes of every
  group, then the rest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slacktide.domain import Deployment, LaneSpec, Plan, PoolId
from slacktide.engine import Snapshot
from slacktide.planning.scaling.core_allocator import Claim, CoreAllocator, shares
from slacktide.planning.scaling.view import ScalingLimits, ScalingTarget


@dataclass(frozen=True, slots=True)
class ScalingRequest:
    """What is asked for one model."""

    limits: ScalingLimits
    target: ScalingTarget | None
    """None: its policy has not been asked yet, and it keeps what it has."""
    pressure: float = 0.0
    """See `core_allocator`."""


@dataclass(frozen=True, slots=True)
class ScalingGroup:
    """Scaled models on the same lanes."""

    models: tuple[str, ...]
    lanes: tuple[str, ...]
    """As in the base plan."""
    deployments: tuple[Deployment, ...]
    """What sits on each of the lanes, as stated for the first that has it."""

    def lane_names(self, used_names: Collection[str], count: int) -> list[str]:
        """So many more names for lanes of this group, none of them in `used_names`."""
        free = [name for name in self.lanes if name not in used_names][:count]
        number = 1
        while len(free) < count:
            name = f"{self.lanes[0]}+{number}"
            number += 1
            if name not in used_names:
                free.append(name)
        return free


def groups_of(base: Plan, scaled: Collection[str]) -> tuple[ScalingGroup, ...]:
    """The groups of `base` in which there are models of `scaled`, in the order of its lanes."""
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
    """Keeps a base plan's groups, and the lanes that have come of them."""

    def __init__(self, cores: Sequence[int]) -> None:
        """`cores`: processor numbers that lanes may have."""
        self.groups: tuple[ScalingGroup, ...] = ()
        self.short = False
        """Whether a lane got fewer cores than its share, since others still hold them."""
        self._allocator = CoreAllocator(cores)
        self._lanes: dict[ScalingGroup, dict[str, int]] = {}
        """Lanes of each group under the latest plan, and the generation of their replicas."""

    def rebase(self, base: Plan, scaled: Collection[str]) -> None:
        """Go on from `base`; groups that stay on the lanes that are stated keep those they have."""
        before = {group.lanes: lanes for group, lanes in self._lanes.items()}
        generations = {name: at for lanes in before.values() for name, at in lanes.items()}
        self.groups = groups_of(base, scaled)
        self._lanes = {
            group: before.get(group.lanes)
            or {name: generations.get(name, 0) for name in group.lanes}
            for group in self.groups
        }

    def group_of(self, model: str) -> ScalingGroup | None:
        """The group of a model; None: no lane has it."""
        return next((group for group in self.groups if model in group.models), None)

    def lanes(self, group: ScalingGroup) -> tuple[str, ...]:
        """Names of its lanes under the latest plan."""
        return tuple(self._lanes[group])

    def plan(
        self,
        base: Plan,
        wishes: Mapping[str, ScalingRequest],
        snapshot: Snapshot,
        *,
        borrowing: bool = False,
    ) -> Plan:
        """`base` with the lanes of its groups sized as `wishes` say, as far as cores go.
        `borrowing`: what has no lane yet need not wait for the cores that others give up; a replica
        more of a model that has one does."""
        elastic = {lane for group in self.groups for lane in group.lanes}
        sizes = {
            group: self._wanted(base, group, [wishes[name] for name in group.models], snapshot)
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
        """Cores by lane, for those of `claims` that are met. `borrowers`: lanes that need not wait
        for the cores that others give up."""
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
        for claim in claims:  # a lane is opened with its least or not yet
            if claim.lane not in holdings and len(cores.get(claim.lane, ())) < claim.least:
                cores.pop(claim.lane, None)
        self.short = any(len(cores.get(lane, ())) < count for lane, count in counts.items())
        return cores

    def _deployments(
        self, group: ScalingGroup, targets: Mapping[str, ScalingTarget | None], snapshot: Snapshot
    ) -> Iterator[Deployment]:
        """Replicas of the group on all of its lanes, in batches as its targets cap them."""
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

    def _wanted(
        self, base: Plan, group: ScalingGroup, wishes: Sequence[ScalingRequest], snapshot: Snapshot
    ) -> dict[str, int]:
        """Cores wanted for each lane that the group is to have, those that stay first."""
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
        """The lanes that the group gets, and the generation of the replicas there."""
        anew = any(target.restart for target in targets.values() if target is not None)
        generations = {}
        for name in names:
            if name in cores:
                lane = snapshot.lanes.get(name)
                changed = lane is not None and len(lane.target) != len(cores[name])
                generations[name] = self._lanes[group].get(name, 0) + (anew and changed)
        return generations


def _placed(sizes: Mapping[ScalingGroup, Collection[str]], snapshot: Snapshot) -> set[str]:
    """Lanes that can wait for cores: those in force, and the others of their models."""
    placed = {lane.name for lane in snapshot.lanes.values() if not lane.leaving}
    for names in sizes.values():
        if not placed.isdisjoint(names):
            placed.update(names)
    return placed


def _claims_of(
    sizes: Mapping[ScalingGroup, Mapping[str, int]], wishes: Mapping[str, ScalingRequest]
) -> list[Claim]:
    """What the lanes of groups claim: first the fewest that each group must have."""
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
