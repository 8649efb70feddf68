"""Assigns models to lanes of cores or devices, and builds the base plan. Pure.

- A device, such as `cuda:1`, is one lane, shared by all its models with one replica each.
- A model that states `cores` gets its own lane; models that name the same `lane` share one and must
  agree on its size.
- If `cores` or `replicas` is a range, the lane is *scaled*: it starts at the smallest size, and a
  planner resizes it. Scaled lanes compete for the cores set aside for them.
- The other models share the cores that are left when all scaled lanes have their largest size, and
  at least one core. These cores are split into as many lanes as the model with the most replicas
  wants, at most one lane per core. A model with r replicas is on the r lanes with the fewest
  replicas.
- If one model of a lane states a `window`, all must, and the lane has a timetable.

Core sets are always disjoint.

A lane is named after its device, model or `lane` setting, or is `shared`; several such lanes are
numbered, as in `shared/0`. Model names contain no colon or slash, so lane names are unique.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from slacktide.domain import Deployment, LaneSpec, ModelWindow, Plan, Route, Timetable
from slacktide.models.repository.fields import WindowSettings
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.versions import LoadedVersion
from slacktide.planning import Stated
from slacktide.planning.scaling.scaled_state import ScaledModel
from slacktide.planning.scaling.view import ScalingLimits
from slacktide.profiles import session_sizes

SHARED = "shared"
"""Name of the lane that models without cores of their own share. If that lane is split: `shared/0`,
`shared/1`, …"""


class LaneError(ValueError):
    """Raised when `model` does not fit on the machine."""

    def __init__(self, model: str, message: str) -> None:
        super().__init__(message)
        self.model = model


@dataclass(frozen=True, slots=True)
class ScaledLane:
    """One or more equal lanes whose size or number changes while they serve."""

    name: str
    models: tuple[str, ...]
    """Models on the lane; they agree on its limits."""
    limits: ScalingLimits
    """`batch_max` is 1 here; each model has its own."""

    @property
    def session_sizes(self) -> tuple[int, ...]:
        """Core counts for which a replica has a session."""
        return session_sizes(self.limits.cores_min, self.limits.cores_max)

    def threads(self, settings: ModelSettings) -> tuple[int, ...]:
        """Return the threads of each session of a replica with these settings."""
        return self.session_sizes if settings.sessions == "ladder" else self.session_sizes[-1:]


@dataclass(frozen=True, slots=True)
class Layout:
    """Lanes, and the lanes of each model."""

    lanes: tuple[LaneSpec, ...]
    """All lanes; the scaled lanes are as few and as small as their limits allow."""
    lanes_of: Mapping[str, tuple[str, ...]]
    scaled: tuple[ScaledLane, ...] = ()
    spare: tuple[int, ...] = ()
    """Processor numbers that scaled lanes share, including those in `lanes`."""
    unscaled: tuple[int, ...] = ()
    """All other processor numbers."""
    warnings: Mapping[str, str] = field(default_factory=dict)
    """Warnings, by model, about cores that the machine lacks; only with `allow_fewer`."""

    def scaled_lane(self, model: str) -> ScaledLane | None:
        """Return the scaled lane of `model`; None if its lanes are fixed."""
        return next((lane for lane in self.scaled if model in lane.models), None)

    def core_sets(self, model: str) -> tuple[tuple[int, ...], ...]:
        """Return the core sets on which to measure a model: the cores of one of its lanes, or for
        scaled lanes one set per session size, if necessary with cores of other lanes. On an
        accelerator the only set is empty."""
        lane = self.scaled_lane(model)
        if lane is None:
            place = next(spec for spec in self.lanes if spec.name in self.lanes_of[model])
            return (place.cores,)
        cores = (*self.spare, *self.unscaled)
        return tuple(cores[:size] for size in lane.session_sizes)


def assign_lanes(
    models: Mapping[str, ModelSettings],
    cores: Sequence[int],
    *,
    allow_fewer: bool = False,
    remedy: str = "use --allow-fewer-cores to serve it with those",
) -> Layout:
    """Divide `cores` (processor numbers, ascending) among `models`. If a model asks for more cores
    than exist, raises LaneError, whose message ends in `remedy`; with `allow_fewer` the model gets
    the existing cores and a warning instead."""
    total = len(cores)
    free = list(cores)
    lanes: list[LaneSpec] = []
    lanes_of: dict[str, tuple[str, ...]] = {}
    warnings: dict[str, str] = {}
    scaled: list[ScaledLane] = []
    unsized: list[ScaledLane] = []
    for name in sorted(models):
        if not models[name].on_cpu:
            lanes_of[name] = (models[name].device,)
    lanes.extend(LaneSpec(device, (), device) for device in sorted({*chain(*lanes_of.values())}))
    for name, conflict in lane_conflicts(models).items():
        raise LaneError(name, conflict)
    for label, names in _owners(models).items():
        settings = models[names[0]]
        limits, warning = _limits(names[0], settings, total)
        if warning is not None and not allow_fewer:
            raise LaneError(names[0], f"{warning}; {remedy}")
        if warning is not None:
            warnings.update(dict.fromkeys(names, warning))
        lane = ScaledLane(label, names, limits)
        if settings.cores is None:
            unsized.append(lane)
        elif settings.scaled:
            scaled.append(lane)
        else:
            lanes_of.update(_own_lanes(lane, free, total, lanes))
    sharing = [name for name in sorted(models) if _shares(models[name])]
    shared_count = _left_by(scaled, len(free)) if unsized or sharing else 0
    shared, spare = free[:shared_count], free[shared_count:]
    remaining = list(spare)
    for lane in scaled:
        lanes_of.update(_own_lanes(lane, remaining, total, lanes))
    for lane in unsized:
        copies = lane.limits.replicas_min
        share = max(1, len(shared) // copies)
        whole = replace(lane, limits=ScalingLimits(share, share, copies, copies))
        lanes_of.update(_own_lanes(whole, shared, total, lanes))
    if sharing:
        if not shared:
            raise LaneError(sharing[0], f"no core is left: other models claim all {total}")
        lanes_of.update(_share(sharing, models, shared, lanes))
    used_cores = tuple(core for core in cores if core not in spare)
    lanes = [replace(lane, timetable=_timetable(lane.name, models, lanes_of)) for lane in lanes]
    return Layout(tuple(lanes), lanes_of, tuple(scaled), tuple(spare), used_cores, warnings)


def _timetable(
    lane: str, models: Mapping[str, ModelSettings], lanes_of: Mapping[str, Sequence[str]]
) -> Timetable | None:
    """Return the windows of the models on `lane`; None if they state none. Raises LaneError."""
    windows: list[tuple[str, WindowSettings]] = []
    without = ""
    for name in sorted(name for name in models if lane in lanes_of[name]):
        window = models[name].window
        if window is None:
            without = name
        elif models[name].scaled:
            raise LaneError(name, "window: not allowed with a range of cores or replicas")
        else:
            windows.append((name, window))
    if not windows:
        return None
    first, period = windows[0][0], windows[0][1].every
    if without:
        raise LaneError(without, f"window: required, as model {first!r} on the lane has one")
    windows.sort(key=lambda named_window: named_window[1].start)
    ends, before = 0.0, first
    for name, window in windows:
        if window.every != period:
            raise LaneError(name, f"window.every: expected that of model {first!r} on the lane")
        if window.start < ends:
            raise LaneError(name, f"window: overlaps that of model {before!r} on the lane")
        ends, before = window.end, name
    return Timetable(
        period, tuple(ModelWindow(name, window.start, window.end) for name, window in windows)
    )


def _shares(settings: ModelSettings) -> bool:
    """Whether the model runs on the shared lanes."""
    return settings.on_cpu and settings.cores is None and settings.lane is None


def lane_conflicts(models: Mapping[str, ModelSettings]) -> dict[str, str]:
    """Return, by model, why it cannot share its lane with an earlier model."""
    return {
        name: f"lane {label!r}: differs from model {names[0]!r} in cores, replicas or scaling"
        for label, names in _owners(models).items()
        for name in names
        if _size(models[name]) != _size(models[names[0]])
    }


def _owners(models: Mapping[str, ModelSettings]) -> dict[str, tuple[str, ...]]:
    """Return the models of each lane by its name, without the lanes shared by default."""
    owners: dict[str, tuple[str, ...]] = {}
    for name in sorted(models):
        settings = models[name]
        if settings.on_cpu and not _shares(settings):
            label = settings.lane or name
            owners[label] = (*owners.get(label, ()), name)
    return owners


def _size(settings: ModelSettings) -> object:
    """Return the settings that models on one lane must agree on."""
    policy = settings.scaling_policy if settings.scaled else None
    return settings.cores, settings.replicas, policy


def _limits(name: str, settings: ModelSettings, total: int) -> tuple[ScalingLimits, str | None]:
    """Return the limits of a model's lanes on `total` cores; and, if they are below the settings, a
    warning that names the field. Raises LaneError."""
    copies = settings.replicas
    if settings.cores is None:
        return ScalingLimits(1, total, copies.min, copies.max), None
    least, most = settings.cores.min, settings.cores.max or total
    shortage = None
    if max(least, most) > total:
        # Name the minimum first: a smaller maximum would not help.
        field, needed = ("cores.min", least) if least > total else ("cores.max", most)
        field = "cores" if settings.cores.fixed else field
        shortage = f"{field}: needs {needed} cores, but the server may use only {total}"
        least, most = min(least, total), min(most, total)
    fewest, many = copies.min, copies.max
    if copies.fixed:  # replicas divide `cores`; with a range, each has `cores`
        if most < fewest:
            raise LaneError(name, f"cores: expected at least {fewest}, one per replica, got {most}")
        least, most = max(1, least // fewest), most // fewest
    elif many * least > total:
        field, needed = (
            ("replicas.min", fewest) if fewest * least > total else ("replicas.max", many)
        )
        short = (
            f"{field}: needs {needed * least} cores ({needed} replicas with {least}), "
            f"but the server may use only {total}"
        )
        if shortage is None and needed == fewest:  # `allow_fewer` cannot help here
            raise LaneError(name, short)
        shortage = shortage or short
        many = max(fewest, total // least)
    return ScalingLimits(least, most, fewest, many), shortage


def _left_by(scaled: Sequence[ScaledLane], free: int) -> int:
    """Return how many of `free` cores go to models that state none: the cores that scaled lanes
    cannot use even together, but at least one if scaled lanes can spare it."""
    least = sum(lane.limits.replicas_min * lane.limits.cores_min for lane in scaled)
    most = sum(lane.limits.replicas_max * lane.limits.cores_max for lane in scaled)
    return max(0, free - most, min(1, free - least))


def _own_lanes(
    lane: ScaledLane, free: list[int], total: int, lanes: list[LaneSpec]
) -> dict[str, tuple[str, ...]]:
    """Take the lane's smallest size from `free`. Returns its models' lanes. Raises LaneError."""
    count, size = lane.limits.replicas_min, lane.limits.cores_min
    if count * size > len(free):
        raise LaneError(
            lane.models[0], f"cores: needs {count * size}, but only {len(free)} of {total} are free"
        )
    names = _numbered(f"own/{SHARED}" if lane.name == SHARED else lane.name, count)
    for name in names:
        lanes.append(LaneSpec(name, tuple(free[:size])))
        del free[:size]
    return dict.fromkeys(lane.models, names)


def _numbered(label: str, count: int) -> tuple[str, ...]:
    return (label,) if count == 1 else tuple(f"{label}/{i}" for i in range(count))


def _share(
    sharing: Sequence[str],
    models: Mapping[str, ModelSettings],
    free: Sequence[int],
    lanes: list[LaneSpec],
) -> dict[str, tuple[str, ...]]:
    """Split the free cores into equal lanes, and spread the models over them."""
    count = min(len(free), max(models[name].replicas.min for name in sharing))
    names = _numbered(SHARED, count)
    share = len(free) // count
    for i, lane in enumerate(names):
        # The last lane gets the remainder.
        last = None if i == count - 1 else (i + 1) * share
        lanes.append(LaneSpec(lane, tuple(free[i * share : last])))
    load = dict.fromkeys(names, 0)
    lanes_of = {}
    for name in sharing:
        chosen = sorted(names, key=lambda lane: load[lane])[: models[name].replicas.min]
        for lane in chosen:
            load[lane] += 1
        lanes_of[name] = tuple(sorted(chosen))
    return lanes_of


class PlanBuilder:
    """Builds the base plan of all versions that have replicas."""

    def __init__(
        self,
        cores: tuple[int, ...],
        *,
        allow_fewer: bool = False,
        scaling_policy: tuple[str, Mapping[str, object]] | None = None,
    ) -> None:
        """`cores`: processor numbers that lanes may use. `allow_fewer`: see `assign_lanes`.
        `scaling_policy`, with its options, replaces the policy of every scaled model."""
        self._cores = cores
        self._scaling_policy = scaling_policy
        self._allow_fewer = allow_fewer
        self._versions: list[LoadedVersion] = []
        self._layout = Layout((), {})

    def layout_with(self, name: str, settings: ModelSettings) -> Layout:
        """Return the layout with model `name` in these settings. Raises LaneError."""
        return self._assign_lanes({**self._settings(), name: settings})

    def add(self, versions: Sequence[LoadedVersion]) -> None:
        """Add versions of one model. Raises LaneError if other models took their cores since
        `layout_with`."""
        first = versions[0]
        self._layout = self.layout_with(first.name, first.definition.settings)
        self._versions.extend(versions)

    def remove(self, versions: Collection[LoadedVersion]) -> None:
        """Remove versions. Raises LaneError only if the layout was invalid before."""
        self._versions = [version for version in self._versions if version not in versions]
        self._layout = self._assign_lanes(self._settings())

    def plan(self) -> Plan:
        """Return the base plan, with as few and as small scaled lanes as their limits allow."""
        deployments = []
        routes = []
        for version in self._versions:
            most = version.batch_cap
            for lane in self._layout.lanes_of[version.name]:
                # The variants planner chooses among all variants; without it, the first loaded
                # variants stay.
                planned = version.family is not None and version.family.planner != "none"
                pools = (pool for pool in version.pools if planned or pool.at_first)
                deployments += [Deployment(pool.id, lane, most) for pool in pools]
            routes.append(Route(version.name, version.pool.id, version=version.pin))
        return Plan(self._layout.lanes, tuple(deployments), tuple(routes))

    def stated(self) -> Stated:
        """Return the statements of models to planners, by name: scaling, variants and early exits.
        Models that state none of these are left out."""
        stated: dict[str, tuple[object, ...]] = {}
        for version in self._versions:
            parts: list[object] = [] if version.family is None else [version.family]
            lane = self._layout.scaled_lane(version.name)
            if lane is not None:
                stated_policy = version.definition.settings.scaling_policy
                policy, options = self._scaling_policy or stated_policy
                limits = replace(lane.limits, batch_max=version.batch_cap)
                parts.append(ScaledModel(limits, policy, options))
            exits = version.definition.settings.exits
            if exits is not None:
                only = exits.class_numbers(version.definition.labels)
                parts.append(replace(exits.stated, whole_model_only=only))
            if parts:
                stated[version.name] = tuple(parts)
        return stated

    def _assign_lanes(self, models: Mapping[str, ModelSettings]) -> Layout:
        return assign_lanes(models, self._cores, allow_fewer=self._allow_fewer)

    def _settings(self) -> dict[str, ModelSettings]:
        return {version.name: version.definition.settings for version in self._versions}
