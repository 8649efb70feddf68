"""The part of a plan that may change its size: groups of models and the lanes they share.

A *base plan* says which pools there are, where they sit at first and which routes lead to them. Of
the lanes of scaled models the autoscaler owns number and cores, and the batch caps of what sits
there; everything else stays as the base has it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from slacktide.domain import Deployment, LaneSpec, Plan, PoolId


@dataclass(frozen=True, slots=True)
class Group:
    """Scaled models on the same lanes: these have one size for all of them."""

    models: tuple[str, ...]
    lanes: tuple[str, ...]
    """As in the base plan."""
    deployments: tuple[Deployment, ...]
    """What sits on each of the lanes, as stated for the first that has it."""

    def lane_names(self, taken: Collection[str], count: int) -> list[str]:
        """So many more names for lanes of this group, none of them in `taken`."""
        names: list[str] = []
        candidates = list(self.lanes)
        number = 1
        while len(names) < count:
            if not candidates:
                candidates.append(f"{self.lanes[0]}+{number}")
                number += 1
            name = candidates.pop(0)
            if name not in taken:
                names.append(name)
        return names


def groups_of(base: Plan, scaled: Collection[str]) -> tuple[Group, ...]:
    """The groups of `base` in which there are models of `scaled`, in the order of its lanes."""
    cpu = {lane.name for lane in base.lanes if lane.device == "cpu"}
    on: dict[str, set[str]] = {}
    for deployment in base.deployments:
        if deployment.lane in cpu:
            on.setdefault(deployment.lane, set()).add(deployment.pool.model)
    found: list[tuple[set[str], list[str]]] = []
    for lane in base.lanes:
        models = on.get(lane.name, set())
        if not models & set(scaled):
            continue
        touching = [group for group in found if group[0] & models]
        found = [group for group in found if not group[0] & models]
        merged = (set(models), [lane.name])
        for group in touching:
            merged = (merged[0] | group[0], group[1] + merged[1])
        found.append(merged)
    return tuple(_group(base, models & set(scaled), lanes) for models, lanes in found)


def _group(base: Plan, models: set[str], lanes: Sequence[str]) -> Group:
    stated: dict[PoolId, Deployment] = {}
    for deployment in base.deployments:
        if deployment.lane in lanes:
            stated.setdefault(deployment.pool, deployment)
    return Group(tuple(sorted(models)), tuple(lanes), tuple(stated.values()))


@dataclass(frozen=True, slots=True)
class Sized:
    """A group as it is to be."""

    group: Group
    lanes: Mapping[str, int]
    """Their names, and the generation of the replicas there."""
    caps: Mapping[PoolId, int]
    """Most rows in a batch; what the base states where a pool is not named."""


def resized(base: Plan, groups: Sequence[Sized], cores: Mapping[str, tuple[int, ...]]) -> Plan:
    """`base` with its groups as given, and every CPU lane on its `cores`; lanes without are left
    out."""
    elastic = {lane for sized in groups for lane in sized.group.lanes}
    lanes = [
        lane if lane.device != "cpu" else replace(lane, cores=cores[lane.name])
        for lane in base.lanes
        if lane.name not in elastic
    ]
    deployments = [one for one in base.deployments if one.lane not in elastic]
    for sized in groups:
        for name, generation in sized.lanes.items():
            if name not in cores:
                continue
            lanes.append(LaneSpec(name, cores[name]))
            deployments.extend(
                Deployment(
                    one.pool,
                    name,
                    min(one.max_batch, sized.caps.get(one.pool, one.max_batch)),
                    generation,
                )
                for one in sized.group.deployments
            )
    return Plan(tuple(lanes), tuple(deployments), base.routes)
