"""`World`: one cell of a scenario's grid, ready to run with any seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn

from slacktide.domain import Plan, PoolId, Request
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.simulation.acting import SimulatedClients
from slacktide.lab.simulation.exit_tables import ExitTable, TableExits
from slacktide.lab.simulation.items import Item, rng_for
from slacktide.lab.simulation.oracle_slack import KAPPAS, OracleSlack, OracleSlackOptions
from slacktide.lab.simulation.scenario.families import (
    ClientGroup,
    ServedFamily,
    frame_reporter,
    without_frames,
)
from slacktide.lab.simulation.scenario.profiles import PaddedProfile, Profile, Training
from slacktide.lab.simulation.scenario.reading import ScenarioError
from slacktide.lab.simulation.scenario.traffic import Traffic, requests, training
from slacktide.lab.simulation.world.driver import Answered, Simulation
from slacktide.lab.simulation.world.hardware import ByPool, Execution
from slacktide.models.repository import ModelSettings
from slacktide.planning import Planner
from slacktide.planning.exits import ExitsPlanner, StatedExits
from slacktide.planning.scaling import ScaledModel, ScalingPlanner
from slacktide.planning.variants import VariantsPlanner
from slacktide.runtime import Watch
from slacktide.scheduling import PoolRecipe

PLAN_S = 0.02
"""Simulated duration of a planner's search off the event loop, in seconds."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model, ready to deploy."""

    profile: Profile
    scheduler: PoolRecipe | OracleSlackOptions
    max_batch: int
    cores: int
    """Cores of its smallest lane."""
    settings: ModelSettings
    """The model's settings for lanes, and the SLO from its folder."""


@dataclass(frozen=True, slots=True)
class ServedExits:
    """Exit table of a model, and its `stated` early-exit policy; None: all rows run to the end."""

    table: ExitTable
    stated: StatedExits | None


@dataclass(frozen=True, slots=True)
class World:
    """One cell, ready to be run with any seed."""

    plan: Plan
    models: Mapping[str, ServedModel]
    streams: tuple[Traffic, ...]
    length: float
    """Seconds of arrivals, including the warm-up."""
    cores: tuple[int, ...] = ()
    """Cores of the machine."""
    scaled: Mapping[str, ScaledModel] = field(default_factory=dict)
    """Models whose cores or replicas may change; `plan` is then the base plan."""
    start_s: float = 0.0
    resize_s: float = 0.0
    families: Mapping[str, ServedFamily] = field(default_factory=dict)
    clients: tuple[ClientGroup, ...] = ()
    exits: Mapping[str, ServedExits] = field(default_factory=dict)

    @property
    def kappas(self) -> tuple[float, ...]:
        """Deferral discounts κ to try, of which the best run counts: several if an `oracle_slack`
        scheduler states none."""
        policies = [model.scheduler for model in self.models.values()]
        free = any(
            isinstance(p, OracleSlackOptions) and p.deferral_discount is None for p in policies
        )
        return KAPPAS if free else KAPPAS[:1]

    def simulation(
        self,
        seed: int,
        *,
        answered: Answered | None = None,
        watch: Watch | None = None,
        kappa: float = KAPPAS[0],
        begin: float = 0.0,
    ) -> Simulation:
        """Return a new run, whose replicas are up at `begin`."""
        stated: dict[str, object] = dict(self.scaled)
        for name, served in self.families.items():
            scaled = self.scaled.get(name)
            stated[name] = served.family if scaled is None else (scaled, served.family)
        planners: list[Planner] = [ScalingPlanner(self.cores)] if self.scaled else []
        if self.families:
            planners.append(VariantsPlanner())
        early = {name: exits for name, exits in self.exits.items() if exits.stated is not None}
        for name, exits in early.items():
            stated[name] = (stated[name], exits.stated) if name in stated else exits.stated
        if early:
            planners.append(ExitsPlanner())
        simulation = Simulation(
            self.engine(seed, kappa),
            self.plan,
            self.execution(seed),
            answered=without_frames(answered) if answered and self.clients else answered,
            watch=watch,
            begin=begin - self.start_s,
            start_s=self.start_s,
            resize_s=self.resize_s,
            planners=planners,
            stated=stated,
            job_s=PLAN_S,
            exits={name: TableExits(exits.table, exits.stated) for name, exits in early.items()},
        )
        if self.clients:
            clients = [
                client
                for group in self.clients
                for client in group.clients(
                    self.families[group.section.model], length=self.length, seed=seed
                )
            ]
            note = None if answered is None else frame_reporter(answered)
            simulation.join(SimulatedClients(clients, simulation.put_turn, recorded=note))
        return simulation

    def slower(self, factor: float) -> World:
        """Return this world on a machine on which batches take `factor` times as long."""
        models = {
            name: replace(model, profile=model.profile.slower(factor))
            for name, model in self.models.items()
        }
        return replace(self, models=models)

    def engine(self, seed: int, kappa: float = KAPPAS[0]) -> Engine:
        """Return a new engine that makes pools as the plan asks for them."""

        def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
            model = self.models[pool.model]
            model_training = Training({}, {})
            if isinstance(model.profile, PaddedProfile):
                model_streams = [traffic for traffic in self.streams if traffic.model == pool.model]
                model_training = training(model_streams, duration=self.length, seed=seed)
            served = self.families.get(pool.model)
            times = self._profile(pool).times(model_training, model.cores)
            if isinstance(model.scheduler, PoolRecipe):
                parts = model.scheduler.parts(
                    times, max_batch=max_batch, view=view, failed=partial(_stop, pool.model)
                )
                if served is None:
                    return parts
                sizes = {variant.name: variant.size for variant in served.family.variants}
                smaller = served.family.smaller(pool.variant)
                return replace(parts, size=sizes[pool.variant], rescue=smaller)
            assert isinstance(model.profile, PaddedProfile)
            options = model.scheduler
            if options.deferral_discount is None:
                options = replace(options, deferral_discount=kappa)
            oracle = OracleSlack(
                model.profile.latency,
                mean_length=model_training.mean,
                max_batch=max_batch,
                times=times,
                view=view,
                options=options,
            )
            return PoolParts(oracle, times, model.settings.share)

        return Engine(parts)

    def execution(self, seed: int) -> Execution:
        """Return the simulated hardware of all pools."""
        pools = {
            deployment.pool: deployment.pool.variant or deployment.pool.model
            for deployment in self.plan.deployments
        }
        return ByPool(
            {
                pool: self._profile(pool).execution(rng_for(seed, f"batch times of {name}"))
                for pool, name in pools.items()
            }
        )

    def _profile(self, pool: PoolId) -> Profile:
        family = self.families.get(pool.model)
        return self.models[pool.model].profile if family is None else family.profiles[pool.variant]

    def items(self, seed: int) -> Iterator[Item]:
        """Yield the requests in order of time."""
        for arriving in requests(self.streams, duration=self.length, seed=seed):
            exits = self.exits.get(arriving.model) if isinstance(arriving, Request) else None
            if isinstance(arriving, Request) and exits is not None and exits.stated is not None:
                session, frame = exits.table.frame(arriving.id)
                arriving = replace(arriving, session=session, frame=frame)
            yield arriving


def _stop(model: str, message: str) -> NoReturn:
    """End the run of a scheduler that broke its contract: its figures would mean nothing."""
    raise ScenarioError([f"models.{model}: {message}"])
