"""Which cores or device a model's replicas run on, and the plan that follows. Pure.

- A device, such as `cuda:1`, is one lane, shared by all models on it: each has one replica there.
- A model that states `cores` gets a lane of its own; models that name the same `lane` share one and
  must agree on its size.
- Where cores or replicas have a range, the lane is *scaled*: it starts as small as it may be, and a
  planner decides from then on. Scaled lanes compete for the cores set aside for them.
- All others share what is left: what the scaled lanes could not use together, at least one core.
  That is split into as many lanes as the model with the most replicas wants (never more than there
  are cores); a model with r replicas sits on r of them, on those with the fewest replicas first.
- Where models on a lane state a `window`, all of them do, and the lane has a timetable.

Core sets are disjoint, always.

A lane is called what it is: `cuda:1`, `shared`, or the model or `lane` that it belongs to; one of
several has a number, as `shared/0`. No name of a model holds a colon or a slash, so no two lanes
share a name.
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
"""Name of the lane that models without cores of their own share; `shared/0` … if it is split."""


class LaneError(ValueError):
    """The models do not fit the machine. `model` is the one that does not."""

    def __init__(self, model: str, message: str) -> None:
        super().__init__(message)
        self.model = model


@dataclass(frozen=True, slots=True)
class ScaledLane:
    """A lane, or several alike, whose size or number changes while it serves."""

    name: str
    models: tuple[str, ...]
    """Those that sit on it; they agree on its limits."""
    limits: ScalingLimits
    """Its `batch_max` is 1: that is the models' own business."""

    @property
    def session_sizes(self) -> tuple[int, ...]:
        """The sizes for which a replica has sessions."""
        return session_sizes(self.limits.cores_min, self.limits.cores_max)

    def threads(self, settings: ModelSettings) -> tuple[int, ...]:
        """Threads of each session that a replica of a model with these settings has."""
        return self.session_sizes if settings.sessions == "ladder" else self.session_sizes[-1:]


@dataclass(frozen=True, slots=True)
class Layout:
    """Lanes, and for every model the names of those it sits on."""

    lanes: tuple[LaneSpec, ...]
    """Scaled ones as few and as small as they may be."""
    lanes_of: Mapping[str, tuple[str, ...]]
    scaled: tuple[ScaledLane, ...] = ()
    spare: tuple[int, ...] = ()
    """Processor numbers that the scaled lanes share, those they have in `lanes` included."""
    others: tuple[int, ...] = ()
    """All other processor numbers."""
    warnings: Mapping[str, str] = field(default_factory=dict)
    """By model: what it asked for beyond the machine, where that is allowed."""

    def scaled_lane(self, model: str) -> ScaledLane | None:
        """The scaled lane that `model` sits on; None if its lanes stay as they are."""
        return next((lane for lane in self.scaled if model in lane.models), None)

    def core_sets(self, model: str) -> tuple[tuple[int, ...], ...]:
        """Sets to measure a model on: what its lanes have; where they are scaled, one of each size
        for which a replica has a session, if need be with cores of others. Empty on an
        accelerator."""
        lane = self.scaled_lane(model)
        if lane is None:
            place = next(spec for spec in self.lanes if spec.name in self.lanes_of[model])
            return (place.cores,)
        cores = (*self.spare, *self.others)
        return tuple(cores[:size] for size in lane.session_sizes)


def assign_lanes(
    models: Mapping[str, ModelSettings],
    cores: Sequence[int],
    *,
    allow_fewer: bool = False,
    remedy: str = "--allow-fewer-cores serves it with those",
) -> Layout:
    """Divide `cores` (processor numbers, ascending) among `models`. Raises LaneError.
    `allow_fewer`: a model that asks for more than the machine has gets what there is, and a
    warning; otherwise the error ends in `remedy`."""
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
            raise LaneError(
                sharing[0], f"no core is left for it: all {total} are stated by other models"
            )
        lanes_of.update(_share(sharing, models, shared, lanes))
    used_cores = tuple(core for core in cores if core not in spare)
    lanes = [replace(lane, timetable=_timetable(lane.name, models, lanes_of)) for lane in lanes]
    return Layout(tuple(lanes), lanes_of, tuple(scaled), tuple(spare), used_cores, warnings)


def _timetable(
    lane: str, models: Mapping[str, ModelSettings], lanes_of: Mapping[str, Sequence[str]]
) -> Timetable | None:
    """The windows of the models on `lane`; None where they state none. Raises LaneError."""
    windows: list[tuple[str, WindowSettings]] = []
    without = ""
    for name in sorted(name for name in models if lane in lanes_of[name]):
        window = models[name].window
        if window is None:
            without = name
        elif models[name].scaled:
            raise LaneError(name, "window: expected none where cores or replicas have a range")
        else:
            windows.append((name, window))
    if not windows:
        return None
    first, period = windows[0][0], windows[0][1].every
    if without:
        raise LaneError(without, f"window: expected one, as model {first!r} on its lane has one")
    windows.sort(key=lambda named_window: named_window[1].start)
    ends, before = 0.0, first
    for name, window in windows:
        if window.every != period:
            raise LaneError(name, f"window.every: expected that of model {first!r} on its lane")
        if window.start < ends:
            raise LaneError(name, f"window: overlaps that of model {before!r} on its lane")
        ends, before = window.end, name
    return Timetable(
        period, tuple(ModelWindow(name, window.start, window.end) for name, window in windows)
    )


def _shares(settings: ModelSettings) -> bool:
    """Whether the model sits on the lanes of those that state nothing."""
    return settings.on_cpu and settings.cores is None and settings.lane is None


def lane_conflicts(models: Mapping[str, ModelSettings]) -> dict[str, str]:
    """By model: why it cannot share the lane that it names with an earlier one."""
    return {
        name: f"lane {label!r}: states other cores, replicas or scaling than model {names[0]!r}"
        for label, names in _owners(models).items()
        for name in names
        if _size(models[name]) != _size(models[names[0]])
    }


def _owners(models: Mapping[str, ModelSettings]) -> dict[str, tuple[str, ...]]:
    """The models of each lane that only those have which name it, by its name."""
    owners: dict[str, tuple[str, ...]] = {}
    for name in sorted(models):
        settings = models[name]
        if settings.on_cpu and not _shares(settings):
            label = settings.lane or name
            owners[label] = (*owners.get(label, ()), name)
    return owners


def _size(settings: ModelSettings) -> object:
    """What models on one lane must agree on."""
    policy = settings.scaling_policy if settings.scaled else None
    return settings.cores, settings.replicas, policy


def _limits(name: str, settings: ModelSettings, total: int) -> tuple[ScalingLimits, str | None]:
    """How large and how many the lanes of a model may be on `total` cores, and a warning, naming
    the field, if that is less than it asks for. Raises LaneError."""
    copies = settings.replicas
    if settings.cores is None:
        return ScalingLimits(1, total, copies.min, copies.max), None
    least, most = settings.cores.min, settings.cores.max or total
    shortage = None
    if max(least, most) > total:
        # The least is to blame first: a smaller most would not do.
        field, needed = ("cores.min", least) if least > total else ("cores.max", most)
        field = "cores" if settings.cores.fixed else field
        shortage = f"{field}: needs {needed} cores, but the server may use only {total}"
        least, most = min(least, total), min(most, total)
    fewest, many = copies.min, copies.max
    if copies.fixed:  # which divide the cores; where their number varies, each has so many
        if most < fewest:
            raise LaneError(name, f"cores: needs {fewest} for so many replicas, but states {most}")
        least, most = max(1, least // fewest), most // fewest
    elif many * least > total:
        field, needed = (
            ("replicas.min", fewest) if fewest * least > total else ("replicas.max", many)
        )
        short = (
            f"{field}: needs {needed * least} cores, {least} for each of {needed}, but the server "
            f"may use only {total}"
        )
        if shortage is None and needed == fewest:  # with fewer cores it could not be served
            raise LaneError(name, short)
        shortage = shortage or short
        many = max(fewest, total // least)
    return ScalingLimits(least, most, fewest, many), shortage


def _left_by(scaled: Sequence[ScaledLane], free: int) -> int:
    """How many of `free` cores go to models that state none: what the others could not use
    together, and one if they can do with less."""
    least = sum(lane.limits.replicas_min * lane.limits.cores_min for lane in scaled)
    most = sum(lane.limits.replicas_max * lane.limits.cores_max for lane in scaled)
    return max(0, free - most, min(1, free - least))


def _own_lanes(
    lane: ScaledLane, free: list[int], total: int, lanes: list[LaneSpec]
) -> dict[str, tuple[str, ...]]:
    """Take its least from `free`; the lanes of its models. Raises LaneError."""
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
    """Split what is left into equal lanes, and spread the models over them."""
    count = min(len(free), max(models[name].replicas.min for name in sharing))
    names = _numbered(SHARED, count)
    share = len(free) // count
    for i, lane in enumerate(names):
        # What does not divide goes to the last lane rather than to waste.
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
    """The versions that have replicas, and the plan that follows."""

    def __init__(
        self,
        cores: tuple[int, ...],
        *,
        allow_fewer: bool = False,
        scaling_policy: tuple[str, Mapping[str, object]] | None = None,
    ) -> None:
        """`cores`: processor numbers that lanes may use. `allow_fewer`: see `assign_lanes`.
        `scaling_policy`, with its options: for every scaled model, whatever its settings say."""
        self._cores = cores
        self._scaling_policy = scaling_policy
        self._allow_fewer = allow_fewer
        self._versions: list[LoadedVersion] = []
        self._layout = Layout((), {})

    def layout_with(self, name: str, settings: ModelSettings) -> Layout:
        """The lanes once model `name` is there with these settings. Raises LaneError."""
        return self._assign_lanes({**self._settings(), name: settings})

    def add(self, versions: Sequence[LoadedVersion]) -> None:
        """`versions` of one model have replicas from now on. Raises LaneError, for want of cores
        that other models have got since `layout_with`."""
        first = versions[0]
        self._layout = self.layout_with(first.name, first.definition.settings)
        self._versions.extend(versions)

    def remove(self, versions: Collection[LoadedVersion]) -> None:
        """These have none any more. Raises LaneError, never while they fitted before."""
        self._versions = [version for version in self._versions if version not in versions]
        self._layout = self._assign_lanes(self._settings())

    def plan(self) -> Plan:
        """What the engine is to have, scaled lanes as few and as small as they may be."""
        deployments = []
        routes = []
        for version in self._versions:
            most = version.batch_cap
            for lane in self._layout.lanes_of[version.name]:
                # The variants planner chooses among all of them; without it, these stay.
                planned = version.family is not None and version.family.planner != "none"
                pools = (pool for pool in version.pools if planned or pool.at_first)
                deployments += [Deployment(pool.id, lane, most) for pool in pools]
            routes.append(Route(version.name, version.pool.id, version=version.pin))
        return Plan(self._layout.lanes, tuple(deployments), tuple(routes))

    def stated(self) -> Stated:
        """How models are scaled, of which variants they are, and how they are left early, by name;
        those of which nothing is stated are not named."""
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
                parts.append(exits.stated)
            if parts:
                stated[version.name] = tuple(parts)
        return stated

    def _assign_lanes(self, models: Mapping[str, ModelSettings]) -> Layout:
        return assign_lanes(models, self._cores, allow_fewer=self._allow_fewer)

    def _settings(self) -> dict[str, ModelSettings]:
        return {version.name: version.definition.settings for version in self._versions}
