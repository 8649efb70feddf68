"""Makes the plan, engine, hardware and requests of a `Simulation` from a valid `Scenario`.

Finds the faults that a check of the file alone cannot find: texts that do not parse, profiles that
are missing or too small, bad traces, lanes that do not fit. Errors name the place and the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from slacktide.domain import Deployment, Plan, PoolId, Route, Signature
from slacktide.lab.load.traces import read_lengths, read_trace
from slacktide.lab.simulation.exit_tables import TableExits, read_exit_table
from slacktide.lab.simulation.oracle_slack import OracleSlackOptions
from slacktide.lab.simulation.scenario.cell_reader import CellReader
from slacktide.lab.simulation.scenario.families import ClientGroup, ServedFamily
from slacktide.lab.simulation.scenario.profiles import (
    PaddedProfile,
    Profile,
    TableProfile,
    by_length,
    padded,
    read_profile,
    stated,
)
from slacktide.lab.simulation.scenario.reading import Cell
from slacktide.lab.simulation.scenario.sections import (
    Application,
    SimulatedClientSection,
    SimulatedModel,
)
from slacktide.lab.simulation.scenario.traffic import ClientLink, Traffic
from slacktide.lab.simulation.scenario.world import ServedExits, ServedModel, World
from slacktide.lab.workloads import (
    Arrivals,
    ConstantLink,
    Deadlines,
    Fixed,
    Lengths,
    TraceLink,
    parse_arrivals,
    parse_deadlines,
    parse_lengths,
)
from slacktide.lab.workloads.arrivals import check_size
from slacktide.models import LaneError, admit_name, assign_lanes
from slacktide.models.repository import (
    ModelDefinition,
    ModelSettings,
    validation_problems,
)
from slacktide.models.repository.settings_file import Path as Place
from slacktide.models.repository.settings_file import ValidationProblem
from slacktide.planning.scaling import ScaledModel
from slacktide.planning.variants import Family, FamilyVariant
from slacktide.profiles import ProfileError, ProfileRecord
from slacktide.scheduling import PoolRecipe

T = TypeVar("T")

_VERSION = "1"


def build(cell: Cell) -> World:
    """Return the world of one cell. Raises ScenarioError for the first fault."""
    return _Builder(cell).world()


class _Builder(CellReader):
    def world(self) -> World:
        scenario = self._scenario
        profiles = {name: self._profile(name, model) for name, model in scenario.models.items()}
        settings = {
            name: self._settings(name, model, profiles[name][1])
            for name, model in scenario.models.items()
        }
        try:
            remedy = "'cores' of the scenario gives it more"
            layout = assign_lanes(settings, range(scenario.cores), remedy=remedy)
        except LaneError as error:
            raise self._refuse(("models", error.model), str(error)) from None
        sizes = {lane.name: len(lane.cores) for lane in layout.lanes}
        models: dict[str, ServedModel] = {}
        limits = {name: lane.limits for lane in layout.scaled for name in lane.models}
        deployments, routes = [], []
        for name in scenario.models:
            cores = min(sizes[lane] for lane in layout.lanes_of[name])
            most = limits[name].cores_max if name in limits else cores
            models[name] = self._model(name, profiles[name][0], settings[name], (cores, most))
            family = scenario.models[name].variants
            pools = [PoolId(name, _VERSION, variant) for variant in family or ("",)]
            routes.append(Route(name, pools[0]))
            for lane in layout.lanes_of[name]:
                deployments += [Deployment(p, lane, models[name].max_batch) for p in pools]
        streams = tuple(
            self._stream(name, application, models[application.model])
            for name, application in scenario.applications.items()
        )
        self._check_used(models, streams)
        plan = Plan(layout.lanes, tuple(deployments), tuple(routes))
        scaled = {
            name: ScaledModel(
                replace(limits[name], batch_max=models[name].max_batch),
                *settings[name].scaling_policy,
            )
            for name in limits
        }
        return World(
            plan,
            models,
            streams,
            scenario.length,
            tuple(range(scenario.cores)),
            scaled,
            scenario.start_s,
            scenario.resize_s,
            self._families(),
            tuple(self._group(name, group) for name, group in scenario.clients.items()),
            {
                name: self._exits(name, model)
                for name, model in scenario.models.items()
                if model.exits
            },
        )

    # ── families and their clients ───────────────────────────────────────────────────────────

    def _families(self) -> dict[str, ServedFamily]:
        families = {}
        for name, model in self._scenario.models.items():
            if model.variants:
                with self._named(("models", name, "variants")):
                    profiles = {
                        key: stated(variant.latency) for key, variant in model.variants.items()
                    }
                members = tuple(
                    FamilyVariant(key, variant.accuracy, variant.size)
                    for key, variant in model.variants.items()
                )
                for variant, larger in pairwise(members):
                    if not (variant.size < larger.size and variant.accuracy < larger.accuracy):
                        why = f"expected size and accuracy to rise from {variant.name!r}"
                        raise self._refuse(("models", name, "variants", larger.name), why)
                family = Family(members, options=model.variants_planner)
                families[name] = ServedFamily(family, profiles)
        return families

    def _exits(self, name: str, model: SimulatedModel) -> ServedExits:
        assert model.exits is not None
        table = read_exit_table(self._path(model.exits))
        exits = ServedExits(table, None if model.early_exit is None else model.early_exit.stated)
        with self._named(("models", name, "exits")):
            TableExits(exits.table, exits.stated)
        return exits

    def _group(self, name: str, section: SimulatedClientSection) -> ClientGroup:
        bandwidth = section.link.bandwidth
        if section.link.trace is None:
            assert bandwidth is not None
            return ClientGroup(name, section, None, bandwidth)
        trace, _ = self._trace(("clients", name, "link", "trace"), section.link.trace)
        return ClientGroup(name, section, trace, trace.mean)

    # ── models ───────────────────────────────────────────────────────────────────────────────

    def _profile(self, name: str, model: SimulatedModel) -> tuple[Profile, ModelDefinition | None]:
        """Return the profile of a model, and its definition if the model has a folder."""
        place = ("models", name)
        if model.padded is not None:
            with self._named((*place, "padded")):
                return padded(model.padded, learned=model.predictions == "learned"), None
        if model.latency is not None:
            with self._named((*place, "latency")):
                return stated(model.latency), None
        if model.profile is not None:
            with self._named((*place, "profile")):
                return read_profile(self._path(model.profile)), None
        if model.exits is not None:
            with self._named((*place, "exits")):
                table = read_exit_table(self._path(model.exits))
                return TableProfile(ProfileRecord(table.times, {})), None
        if model.variants:
            with self._named((*place, "variants")):
                return stated(next(iter(model.variants.values())).latency), None
        assert model.folder is not None
        with self._named((*place, "folder")):
            return self._stored(self._path(model.folder), self._sizes(model))

    def _sizes(self, model: SimulatedModel) -> list[int]:
        """Return the fewest and the most cores of the model's lane; a single number if equal."""
        machine = self._scenario.cores
        if model.cores is None:
            return [machine]
        return sorted({model.cores.min, model.cores.max or machine})

    def _stored(self, folder: Path, cores: list[int]) -> tuple[TableProfile, ModelDefinition]:
        """Return the stored profile of the model in `folder`, and the model's definition."""
        from slacktide.models.profile_cache import ProfileCache
        from slacktide.models.repository import ProfileStore, Repository

        definition = Repository(folder.parent).read(folder.name)[-1]
        stored = ProfileCache(ProfileStore()).find(definition, cores)
        if stored is None:
            sizes = " and ".join(map(str, cores))
            raise ProfileError(
                f"{folder.name} has no stored profile for {sizes} cores of this machine; "
                "run slacktide profile first, or name a file with 'profile'"
            )
        return TableProfile(stored.record), definition

    def _settings(
        self, name: str, model: SimulatedModel, definition: ModelDefinition | None
    ) -> ModelSettings:
        """Return the settings in the model's folder, overridden by the scenario."""
        try:
            stated = {"cores": model.cores, "replicas": model.replicas, "scaling": model.scaling}
            ModelSettings.model_validate(stated, context={"imports": True})  # admitted before
        except ValidationError as error:
            problems = validation_problems(error, ModelSettings)
            model_problems = (
                ValidationProblem(("models", name, *problem.path), problem.message)
                for problem in problems
            )
            raise self._cell.positions.error(*model_problems) from None
        folder = definition.settings if definition is not None else None
        changes: dict[str, object] = {
            "device": "cpu",
            "lane": model.lane,
            "replicas": model.replicas,
            "cores": model.cores,
            "scaling": model.scaling,
            "scheduler": self._scenario.scheduler,
        }
        if folder is not None and "scheduler" in folder.model_fields_set:
            changes["scheduler"] = folder.scheduler
        if model.scheduler is not None:
            changes["scheduler"] = model.scheduler
        if model.share is not None:
            changes["share"] = model.share
        if model.window is not None:
            changes["window"] = model.window
        return (folder or ModelSettings()).model_copy(update=changes)

    def _model(
        self, name: str, profile: Profile, settings: ModelSettings, sizes: tuple[int, int]
    ) -> ServedModel:
        """Return the model ready to deploy. `sizes`: the fewest and the most cores it may have."""
        cores = sizes[0]
        stated = self._scenario.models[name].max_batch
        max_batch = stated or profile.largest
        if cores != sizes[1] and isinstance(profile, PaddedProfile):
            why = f"expected a number, not a range: {name!r} takes the same time on any cores"
            raise self._refuse(("models", name, "cores"), why)
        for cores in reversed(sizes):
            missing = profile.misses(max_batch, cores)
            if missing is None:
                continue
            at_cores = profile.misses(1, cores) is not None
            key = "cores" if at_cores else "max_batch"
            raise self._refuse(("models", name, key), f"the profile of {name!r} {missing}")
        if isinstance(profile, TableProfile):
            profile = replace(profile, shaped=self._stated(name, "shapes"))
        profile = self._by_length(name, profile, cores)
        scheduler = self._scheduler(name, profile, settings)
        return ServedModel(profile, scheduler, max_batch, cores, settings)

    def _stated(self, name: str, key: str) -> bool:
        """Return whether any application of this model states `key`."""
        owned = (a for a in self._scenario.applications.values() if a.model == name)
        return any(getattr(application, key) for application in owned)

    def _by_length(self, name: str, profile: Profile, cores: int) -> Profile:
        """Turn a measured profile into one by length if requests have lengths."""
        model = self._scenario.models[name]
        measured = model.latency is None and isinstance(profile, TableProfile)
        if not (measured and self._stated(name, "lengths")):
            return profile
        assert isinstance(profile, TableProfile)
        return by_length(
            profile,
            cores,
            profiled_length=model.profiled_length,
            learned=model.predictions == "learned",
        )

    def _scheduler(
        self, name: str, profile: Profile, settings: ModelSettings
    ) -> PoolRecipe | OracleSlackOptions:
        choice = settings.scheduler
        if not isinstance(choice.options, OracleSlackOptions):
            exits = self._scenario.models[name].early_exit is not None
            return PoolRecipe(choice.name, choice.spelt_out(), settings.share, exits=exits)
        rows = {
            row
            for application in self._scenario.applications.values()
            if application.model == name
            for row in application.rows
        }
        if not isinstance(profile, PaddedProfile) or rows - {1}:
            has_scheduler = self._scenario.models[name].scheduler is not None
            place: Place = ("models", name, "scheduler") if has_scheduler else ("scheduler",)
            why = f"oracle_slack: expected a padded model with requests of one row, got {name!r}"
            raise self._refuse(place, why)
        return choice.options

    # ── applications ─────────────────────────────────────────────────────────────────────────

    def _stream(self, name: str, application: Application, model: ServedModel) -> Traffic:
        place = ("applications", name)
        with self._named((*place, "arrivals")):
            admit = partial(admit_name, imports=self._cell.imports)
            arrivals: Arrivals = parse_arrivals(
                application.arrivals, self._from_file(read_trace), admit
            )
            check_size(self._scenario.length, arrivals.mean_rate(self._scenario.length))
        lengths = self._lengths(name, application, model)
        signatures = self._signatures(name, application, model)
        alone = model.profile.p99_alone(lengths, model.cores, signatures)
        return Traffic(
            name=name,
            model=application.model,
            arrivals=arrivals,
            lengths=lengths,
            rows=application.rows,
            deadlines=self._deadlines(name, application, model, alone),
            patience=max(1.0, 10.0 * alone),
            penalty=application.penalty,
            hint=application.hint,
            link=self._link(name, application),
            notice=application.notice,
            signatures=signatures or ((),),
        )

    def _signatures(
        self, name: str, application: Application, model: ServedModel
    ) -> tuple[Signature, ...]:
        """Return the signatures of the application's requests; empty if shapes do not matter."""
        with self._named(("applications", name, "shapes")):
            if application.shapes and not isinstance(model.profile, TableProfile):
                raise ProfileError("expected none: a padded model has lengths, not shapes")
            if isinstance(model.profile, TableProfile) and model.profile.shaped:
                reference = tuple(model.profile.record.shapes.values())
                return model.profile.signatures(application.shapes or reference[:1])
        return ()

    def _link(self, name: str, application: Application) -> ClientLink | None:
        section = application.link
        if section is None:
            return None
        place = ("applications", name, "link")
        if section.trace is None:
            assert section.bandwidth is not None
            link = ConstantLink(section.bandwidth, section.rtt)
            return ClientLink(link, section.payload, section.shared)
        trace, offset = self._trace((*place, "trace"), section.trace)
        if not trace.mean:
            why = "expected a trace with some bandwidth, got only outages"
            raise self._refuse((*place, "trace"), why)
        return ClientLink(TraceLink(trace, section.rtt, offset), section.payload, section.shared)

    def _lengths(self, name: str, application: Application, model: ServedModel) -> Lengths | None:
        place = ("applications", name, "lengths")
        padded_model = isinstance(model.profile, PaddedProfile)
        if application.lengths is None:
            if padded_model:
                why = f"requests of model {application.model!r} have lengths: expected 'lengths'"
                raise self._refuse(place[:-1], why)
            return None
        if not padded_model:
            why = f"the table of model {application.model!r} does not depend on lengths"
            raise self._refuse(place, f"expected none, or a model with 'padded': {why}")
        with self._named(place):
            return parse_lengths(application.lengths, self._from_file(read_lengths))

    def _deadlines(
        self, name: str, application: Application, model: ServedModel, alone: float
    ) -> Deadlines | None:
        slo = application.slo
        if slo is None:
            stated = model.settings.slo
            return None if stated is None else Fixed(stated)
        if slo.p99_alone is not None:
            return Fixed(slo.p99_alone * alone)
        assert slo.within is not None
        with self._named(("applications", name, "slo")):
            return parse_deadlines(slo.within)

    def _check_used(self, models: Mapping[str, ServedModel], streams: tuple[Traffic, ...]) -> None:
        """Refuse a padded model without applications: its times depend on their lengths."""
        used_models = {stream.model for stream in streams}
        for name, model in models.items():
            if isinstance(model.profile, PaddedProfile) and name not in used_models:
                raise self._refuse(("models", name), "expected an application that uses it")

    def _from_file(self, read: Callable[[str], T]) -> Callable[[str], T]:
        """Return a function that calls `read` with paths relative to the scenario's folder."""
        return lambda text: read(str(self._cell.folder / text))
