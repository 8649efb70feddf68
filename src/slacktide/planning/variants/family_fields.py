"""`FamilyFields`: writes the fields of one family: deployments, routes, and input sizes of clients.

Routes and inputs of a session stay the same objects while its variant stays: plans with a thousand
sessions come often, and each is compared with the one before.
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
    """Writer of one family. The state decides the variants of lanes and sessions."""

    def __init__(self, state: PlannedFamily) -> None:
        self._state = state
        self.caps: dict[PoolId, int] = {}
        """Largest batch of each pool of the family in the base plan."""
        self._routes: dict[str, dict[str | None, Route]] = {}
        """Routes of the last plan, by session and version."""
        self._inputs: dict[str, InputSize] = {}

    def rebase(self, caps: Mapping[PoolId, int]) -> None:
        """Take the largest batches of a new base plan."""
        self.caps = dict(caps)
        self._routes.clear()

    def forget(self, id: str) -> None:
        """Forget a session that has gone."""
        self._routes.pop(id, None)
        self._inputs.pop(id, None)

    def write(
        self, model: str, plan: Plan, lanes: Mapping[str, int], up: Collection[tuple[str, PoolId]]
    ) -> Plan:
        """Return `plan` with the fields of this family. `lanes`: their generations; `up`: (lane,
        pool) of the replicas that serve."""
        # Pools that other routes lead to must serve.
        stated = {
            route.pool
            for route in plan.routes
            if route.model == model and (route.client, route.application) != (None, None)
        }
        placed: list[Deployment] = []
        for lane, generation in lanes.items():
            on = dict(self._resident(lane, up)) | dict.fromkeys(sorted(stated), True)
            for pool, serves in on.items():
                cap = self.caps[pool]
                placed.append(Deployment(pool, lane, cap, generation, standby=not serves))
        deployed = {deployment.pool for deployment in placed if not deployment.standby}
        serving = (
            deployed if self._state.family.switches_free else deployed & {pool for _, pool in up}
        )
        routes: list[Route] = []
        other_routes: list[Route] = []
        for route in plan.routes:
            if route.model == model and route.client is None and route.application is None:
                routes += self._routes_of(route, serving, deployed)
            else:
                other_routes.append(route)
        return replace(
            plan,
            deployments=(
                *(deployment for deployment in plan.deployments if deployment.pool.model != model),
                *placed,
            ),
            routes=(*other_routes, *routes),
            inputs=(*plan.inputs, *self._inputs_of(model)),
        )

    def _resident(
        self, lane: str, up: Collection[tuple[str, PoolId]]
    ) -> Iterator[tuple[PoolId, bool]]:
        """Yield the pools of a lane, and whether they serve there."""
        state = self._state
        family, running = state.family, state.lanes[lane]
        for pools in self._loads():
            serving: Collection[int] = {running}
            if family.switches_free:
                chosen: Collection[int] = pools
                lanes = state.options.lanes
                if lanes == "auto":
                    turns = state.answer is not None and state.answer.turns is not None
                    lanes = "smaller" if turns else "own"
                # Requested variants serve; without sessions, all do.
                serving = {running, *(at for at, calls in state.requests.items() if calls.expected)}
                if not state.mapped:
                    serving = pools
                elif lanes != "own":
                    most = {"smallest": 0, "smaller": running, "all": len(state.sides)}[lanes]
                    serving = {*serving, *range(most + 1)}
            else:
                sizes = [variant.nbytes for variant in family.variants]
                chosen = resident(running, sizes, most=family.resident, budget=family.memory)
                larger = running + 1
                if larger in pools and larger not in state.learnt.seconds and len(chosen) == 2:
                    chosen = (running, larger)  # or it would never be measured
                up_variants = [at for at, pool in pools.items() if (lane, pool) in up]
                if up_variants and running not in up_variants:
                    # A variant that is up serves until the lane's own variant is up.
                    nearest = min(up_variants, key=lambda at: abs(at - running))
                    serving = {nearest, running}
                    chosen = list(dict.fromkeys((running, nearest, *chosen)))
                    chosen = chosen[: max(2, family.resident)]
            for at in sorted(chosen):
                if at in pools:
                    yield pools[at], at in serving

    def _loads(self) -> list[dict[int, PoolId]]:
        """Return pools by variant, for each load of each version."""
        loads: dict[tuple[str, int], dict[int, PoolId]] = {}
        for pool in self.caps:
            number = self._state.number.get(pool.variant)
            if number is not None:
                loads.setdefault((pool.version, pool.generation), {})[number] = pool
        return list(loads.values())

    def _routes_of(
        self, plain: Route, serving: Collection[PoolId], deployed: Collection[PoolId]
    ) -> list[Route]:
        """Return the plain route and the routes of sessions. They lead to pools that were loaded
        together with the pool of the plain route and that serve or, if none of them serves, will
        serve."""
        state, beside = self._state, plain.pool._replace
        pools = [beside(variant=variant.name) for variant in state.family.variants]
        ready = [at for at, pool in enumerate(pools) if pool in serving]
        ready = ready or [at for at, pool in enumerate(pools) if pool in deployed]
        if not ready:
            return [plain]
        # To the variant, to the next smaller one that serves, or to the smallest that serves.
        led = [
            pools[max([variant for variant in ready if variant <= at], default=ready[0])]
            for at in range(len(pools))
        ]
        led_to = state.number.get(plain.pool.variant, 0) if state.plain is None else state.plain
        led_to = state.allowed(led_to)
        routes = [replace(plain, pool=led[led_to])]
        for id, variant in state.mapped.items():
            pool = led[max(variant, 0)]
            cache = self._routes.setdefault(id, {})
            route = cache.get(plain.version)
            if route is None or route.pool != pool:
                route = cache[plain.version] = Route(plain.model, pool, plain.version, client=id)
            routes.append(route)
        return routes

    def _inputs_of(self, model: str) -> list[InputSize]:
        state = self._state
        names = [variant.name for variant in state.family.variants] + [""]
        inputs = []
        for id, variant in state.mapped.items():
            input_size = self._inputs.get(id)
            if input_size is None or input_size.variant != names[variant]:
                input_size = self._inputs[id] = InputSize(model, id, names[variant])
            inputs.append(input_size)
        return inputs
