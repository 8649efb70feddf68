"""`Sizing`: from wishes to a plan: how many lanes there are, of how many cores, and which.

- The wishes of models that share lanes are made one: the most replicas, the most cores.
- Lanes that serve stay; a lane more is opened with its least or not yet.
- The core ledger says who gets what (`ledger.py`): first what is not scaled and the fewest lanes of
  everybody, then what else is wished for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from slacktide.domain import Plan
from slacktide.engine import Engine
from slacktide.planning.scaling.elastic import Group, Sized, groups_of, resized
from slacktide.planning.scaling.ledger import Claim, CoreLedger, Holding, shares
from slacktide.planning.scaling.view import ScalingLimits, Wish
from slacktide.planning.scaling.views import holds_up, pools_of


@dataclass(frozen=True, slots=True)
class Asked:
    """What one model asks for."""

    limits: ScalingLimits
    wish: Wish | None
    """None: it has not been asked yet, and keeps what it has."""
    pressure: float = 0.0
    """See `ledger`."""


class Sizing:
    """Keeps a base plan and the lanes that have come of it. Reads the engine, changes nothing."""

    def __init__(self, engine: Engine, cores: Sequence[int]) -> None:
        """`cores`: processor numbers that lanes may have."""
        self.groups: tuple[Group, ...] = ()
        """Scaled models and the lanes they share."""
        self.short = False
        """Whether a lane got fewer cores than its share, for others have not let go of theirs."""
        self._engine = engine
        self._ledger = CoreLedger(cores)
        self._base = Plan()
        self._lanes: dict[Group, dict[str, int]] = {}
        """Lanes of each group under the latest plan, and the generation of their replicas."""

    def rebase(self, base: Plan, scaled: Collection[str]) -> None:
        """Go on from `base`; groups that stay keep their lanes."""
        before = {group.lanes[0]: lanes for group, lanes in self._lanes.items()}
        self._base = base
        self.groups = groups_of(base, scaled)
        self._lanes = {
            group: before.get(group.lanes[0], dict.fromkeys(group.lanes, 0))
            for group in self.groups
        }

    def lanes(self, group: Group) -> tuple[str, ...]:
        """Names of its lanes under the latest plan."""
        return tuple(self._lanes[group])

    def plan(self, models: Mapping[str, Asked], *, borrowing: bool = False) -> Plan:
        """The base plan, sized as the scaled `models` ask as far as the ledger allows.

        `borrowing`: what has no lane yet need not wait for the cores that others give up; a
        replica more of a model that has one does.
        """
        state = self._engine.state
        elastic = {lane for group in self.groups for lane in group.lanes}
        claims = [
            Claim(lane.name, len(lane.cores), len(lane.cores), math.inf)
            for lane in self._base.lanes
            if lane.device == "cpu" and lane.name not in elastic
        ]
        # Lanes in force, and the others of their models: these can wait.
        placed = {lane.name for lane in state.lanes.values() if not lane.removed}
        first: list[Claim] = []
        further: list[Claim] = []
        for group in self.groups:
            own = [models[name] for name in group.models]
            wanted = self._wanted(group, own)
            pressed = max(asked.pressure for asked in own)
            least = max(asked.limits.cores_min for asked in own)
            fewest = max(asked.limits.replicas_min for asked in own)
            if not placed.isdisjoint(wanted):
                placed.update(wanted)
            for number, (lane, size) in enumerate(wanted.items()):
                claim = Claim(lane, least, max(least, size), pressed)
                (first if number < fewest else further).append(claim)
        claims += first + further
        given = shares(claims, len(self._ledger))
        order = sorted((one for one in claims if one.lane in given), key=lambda one: -one.pressure)
        holdings = {
            lane.name: Holding(lane.cores, lane.target, lane.held, lane.removed)
            for lane in state.lanes.values()
            if lane.device == "cpu"
        }
        cores = self._ledger.cores_for(
            {one.lane: given[one.lane] for one in order},
            holdings,
            preferred={lane.name: lane.cores for lane in self._base.lanes},
            borrowing=[one.lane for one in order if borrowing and one.lane not in placed],
        )
        for claim in claims:  # a lane is opened with its least or not yet
            if claim.lane not in holdings and len(cores.get(claim.lane, ())) < claim.least:
                cores.pop(claim.lane, None)
        self.short = any(len(cores.get(lane, ())) < count for lane, count in given.items())
        sized = [self._sized(group, models, cores) for group in self.groups]
        for each in sized:
            self._lanes[each.group] = dict(each.lanes)
        return resized(self._base, sized, cores)

    def _wanted(self, group: Group, models: Sequence[Asked]) -> dict[str, int]:
        """Cores wished for each lane that the group is to have, those that stay first."""
        state, lanes = self._engine.state, self._lanes[group]
        wishes = [asked.wish for asked in models if asked.wish is not None]
        base = {lane.name: len(lane.cores) for lane in self._base.lanes}
        if not wishes:
            return {
                name: len(state.lanes[name].target) if name in state.lanes else base.get(name, 1)
                for name in lanes
            }
        serving = {n for n in lanes if n in state.lanes and holds_up(state.lanes[n])}
        names = sorted(lanes, key=lambda name: name not in serving)
        count = max(wish.replicas for wish in wishes)
        names = names[:count]
        names += group.lane_names(names, count - len(names))
        return {
            name: max(
                wish.cores if name in serving else wish.start_cores or wish.cores for wish in wishes
            )
            for name in names
        }

    def _sized(
        self, group: Group, models: Mapping[str, Asked], cores: Mapping[str, tuple[int, ...]]
    ) -> Sized:
        state, before = self._engine.state, self._lanes[group]
        wishes = {name: wish for name in group.models if (wish := models[name].wish)}
        anew = any(wish.restart for wish in wishes.values())
        lanes = {}
        for name in self._wanted(group, [models[name] for name in group.models]):
            if name in cores:
                lane = state.lanes.get(name)
                changed = lane is not None and len(lane.target) != len(cores[name])
                lanes[name] = before.get(name, 0) + (anew and changed)
        caps = {
            pool.id: wish.batch
            for name, wish in wishes.items()
            for pool in pools_of(self._engine, name)
        }
        return Sized(group, lanes, caps)
