"""Which cores a model's replicas run on. Pure.

- A model that states `cores` gets a lane of its own; models that name the same `lane` share one and
  must agree on its cores.
- All others share the cores that are left. These are split into as many lanes as the model with
  the most replicas wants (never more than there are cores); a model with r replicas sits on r of
  them, on those with the fewest replicas first.

Core sets are disjoint, always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slacktide.domain import LaneSpec
from slacktide.repository.settings import ModelSettings

SHARED = "shared"
"""Name of the lane that models without cores of their own share; `shared-0` … if it is split."""


class LaneError(ValueError):
    """The models' wishes do not fit the machine. `model` is the one that does not fit."""

    def __init__(self, model: str, message: str) -> None:
        super().__init__(message)
        self.model = model


@dataclass(frozen=True, slots=True)
class Layout:
    """Lanes, and for every model the names of those it sits on."""

    lanes: tuple[LaneSpec, ...]
    places: Mapping[str, tuple[str, ...]]


def lay_out(models: Mapping[str, ModelSettings], cores: Sequence[int]) -> Layout:
    """Divide `cores` (processor numbers, ascending) among `models`. Raises LaneError."""
    free = list(cores)
    lanes: list[LaneSpec] = []
    places: dict[str, tuple[str, ...]] = {}
    owners: dict[str, tuple[str, int, int]] = {}
    sharing = []
    for name in sorted(models):
        settings = models[name]
        if settings.device != "cpu":
            places[name] = tuple(_device_lanes(name, settings, lanes))
        elif settings.cores is None and settings.lane is None:
            sharing.append(name)
        else:
            places[name] = tuple(_own_lanes(name, settings, free, len(cores), lanes, owners))
    if sharing:
        if not free:
            raise LaneError(
                sharing[0], f"no core is left for it: all {len(cores)} are stated by other models"
            )
        places.update(_share(sharing, models, free, lanes))
    return Layout(tuple(lanes), places)


def _own_lanes(
    name: str,
    settings: ModelSettings,
    free: list[int],
    total: int,
    lanes: list[LaneSpec],
    owners: dict[str, tuple[str, int, int]],
) -> list[str]:
    """The lanes of a model that states cores or names a lane."""
    wanted = total
    if settings.cores is not None:
        wanted = settings.cores.max or total
        wanted = max(settings.cores.min, min(wanted, len(free)))
    label = settings.lane or name
    stated = settings.cores.max or 0 if settings.cores is not None else 0
    if label in owners:
        other, before, replicas = owners[label]
        if (stated, settings.replicas) != (before, replicas):
            raise LaneError(
                name, f"lane {label!r}: states other cores or replicas than model {other!r}"
            )
    else:
        if settings.cores is None:
            wanted = len(free)
        if wanted > len(free) or wanted < settings.replicas:
            raise LaneError(
                name,
                f"cores: wants {max(wanted, settings.replicas)}, and {len(free)} of {total} "
                "are free",
            )
        owners[label] = (name, stated, settings.replicas)
        each = wanted // settings.replicas
        for i in range(settings.replicas):
            lane = label if settings.replicas == 1 else f"{label}-{i}"
            lanes.append(LaneSpec(lane, tuple(free[:each])))
            del free[:each]
    if settings.replicas == 1:
        return [label]
    return [f"{label}-{i}" for i in range(settings.replicas)]


def _device_lanes(name: str, settings: ModelSettings, lanes: list[LaneSpec]) -> list[str]:
    """One accelerator lane for each replica; models on the same device and lane name share it."""
    label = settings.lane or settings.device.replace(":", "-")
    names = [label if i == 0 else f"{label}-{i}" for i in range(settings.replicas)]
    present = {lane.name for lane in lanes}
    lanes.extend(LaneSpec(n, (), settings.device) for n in names if n not in present)
    return names


def _share(
    sharing: Sequence[str],
    models: Mapping[str, ModelSettings],
    free: Sequence[int],
    lanes: list[LaneSpec],
) -> dict[str, tuple[str, ...]]:
    """Split what is left into equal lanes, and spread the models over them."""
    count = min(len(free), max(models[name].replicas for name in sharing))
    names = [SHARED] if count == 1 else [f"{SHARED}-{i}" for i in range(count)]
    each = len(free) // count
    for i, lane in enumerate(names):
        # What does not divide goes to the last lane rather than to waste.
        last = None if i == count - 1 else (i + 1) * each
        lanes.append(LaneSpec(lane, tuple(free[i * each : last])))
    load = dict.fromkeys(names, 0)
    places = {}
    for name in sharing:
        chosen = sorted(names, key=lambda lane: load[lane])[: models[name].replicas]
        for lane in chosen:
            load[lane] += 1
        places[name] = tuple(sorted(chosen))
    return places
