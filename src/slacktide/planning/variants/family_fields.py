"""`FamilyFields`: what a plan has of one family: deployments, routes, and what clients send.

Routes and inputs of a session stay the very objects that they were while its variant does: plans
with a thousand sessions come often, and are compared with the one before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from slacktide.domain import Deployment, InputSize, Plan, PoolId, Route
from slacktide.planning.variants.update import resident

if TYPE_CHECKING:
    from slacktide.planning.variants.planned_family import PlannedFamily


class FamilyFields:
    """Of one family. Decides nothing: which variant lanes and sessions have is its state's."""

    def __init__(self, state: PlannedFamily) -> None:
        self._state = state
        self.caps: dict[PoolId, int] = {}
        """Largest batches in the base plan, of all pools of the family."""
        self._routes: dict[str, dict[str | None, Route]] = {}
        """By session and version, as they were last."""
        self._inputs: dict[str, InputSize] = {}

    def rebase(self, caps: Mapping[PoolId, int]) -> None:
        """There is another base plan, with these pools."""
        self.caps = dict(caps)
        self._routes.clear()

    def forget(self, id: str) -> None:
        """A session has gone."""
        self._routes.pop(id, None)
        self._inputs.pop(id, None)

    def filled(
        self,
        model: str,
        draft: Plan,
        lanes: Mapping[str, int],
        up: Collection[tuple[str, PoolId]],
    ) -> Plan:
        """`draft` with the fields of this family. `lanes`: their generations; `up`: where replicas
        of which pools are."""
        # Where a route of others leads, something serves.
        stated = {
            route.pool
            for route in draft.routes
            if route.model == model and (route.client, route.application) != (None, None)
        }
        placed: list[Deployment] = []
        for lane, generation in lanes.items():
            on = dict(self._resident(lane, up)) | dict.fromkeys(sorted(stated), True)
            for pool, serves in on.items():
                cap = self.caps[pool]
                placed.append(Deployment(pool, lane, cap, generation, standby=not serves))
        deployed = {one.pool for one in placed if not one.standby}
        serving = (
            deployed if self._state.family.switches_free else deployed & {pool for _, pool in up}
        )
        routes: list[Route] = []
        others: list[Route] = []
        for route in draft.routes:
            if route.model == model and route.client is None and route.application is None:
                routes += self._routes_of(route, serving, deployed)
            else:
                others.append(route)
        return replace(
            draft,
            deployments=(*(one for one in draft.deployments if one.pool.model != model), *placed),
            routes=(*others, *routes),
            inputs=(*draft.inputs, *self._inputs_of(model)),
        )

    def _resident(
        self, lane: str, up: Collection[tuple[str, PoolId]]
    ) -> Iterator[tuple[PoolId, bool]]:
        """The pools that are to be on a lane, and whether they serve there."""
        state = self._state
        family, own = state.family, state.lanes[lane]
        for pools in self._loads():
            serving: Collection[int] = {own}
            if family.switches_free:
                chosen: Collection[int] = pools
                lanes = state.options.lanes
                if lanes == "auto":
                    turns = state.answer is not None and state.answer.turns is not None
                    lanes = "smaller" if turns else "own"
                # What is asked for by name or size is served, and without sessions all there is.
                serving = {own, *(at for at, one in state.requests.items() if one.expected)}
                if not state.mapped:
                    serving = pools
                elif lanes != "own":
                    most = {"smallest": 0, "smaller": own, "all": len(state.sides)}[lanes]
                    serving = {*serving, *range(most + 1)}
            else:
                sizes = [each.nbytes for each in family.variants]
                chosen = resident(own, sizes, most=family.resident, budget=family.memory)
                if own + 1 in pools and own + 1 not in state.learnt.seconds and len(chosen) == 2:
                    chosen = (own, own + 1)  # else it would never be known
                old = [at for at, pool in pools.items() if (lane, pool) in up]
                if old and own not in old:  # what is up serves until its own variant is
                    nearest = min(old, key=lambda at: abs(at - own))
                    serving = {nearest, own}
                    chosen = list(dict.fromkeys((own, nearest, *chosen)))[: max(2, family.resident)]
            for at in sorted(chosen):
                if at in pools:
                    yield pools[at], at in serving

    def _loads(self) -> list[dict[int, PoolId]]:
        """Pools by variant, of each load of each version."""
        found: dict[tuple[str, int], dict[int, PoolId]] = {}
        for pool in self.caps:
            number = self._state.number.get(pool.variant)
            if number is not None:
                found.setdefault((pool.version, pool.generation), {})[number] = pool
        return list(found.values())

    def _routes_of(
        self, plain: Route, serving: Collection[PoolId], deployed: Collection[PoolId]
    ) -> list[Route]:
        """The plain route, and those of sessions beside it: to what serves of this load, or to what
        will."""
        state, beside = self._state, plain.pool._replace
        pools = [beside(variant=each.name) for each in state.family.variants]
        there = [at for at, pool in enumerate(pools) if pool in serving]
        there = there or [at for at, pool in enumerate(pools) if pool in deployed]
        if not there:
            return [plain]
        # The variant or the next smaller one that serves, or else the smallest of all.
        led = [
            pools[max([one for one in there if one <= at], default=there[0])]
            for at in range(len(pools))
        ]
        led_to = state.number.get(plain.pool.variant, 0) if state.plain is None else state.plain
        led_to = state.allowed(led_to)
        found = [replace(plain, pool=led[led_to])]
        for id, variant in state.mapped.items():
            pool = led[max(variant, 0)]
            known = self._routes.setdefault(id, {})
            route = known.get(plain.version)
            if route is None or route.pool != pool:
                route = known[plain.version] = Route(plain.model, pool, plain.version, client=id)
            found.append(route)
        return found

    def _inputs_of(self, model: str) -> list[InputSize]:
        state = self._state
        names = [each.name for each in state.family.variants] + [""]
        found = []
        for id, variant in state.mapped.items():
            one = self._inputs.get(id)
            if one is None or one.variant != names[variant]:
                one = self._inputs[id] = InputSize(model, id, names[variant])
            found.append(one)
        return found
