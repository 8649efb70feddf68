"""Prepares a version to be loaded: its pool, or the pools of a family's variants.

Variants that are sizes of one file share its profile; a law over sizes gives the times for each.
Variants that are files each have a profile, and the same interface except for image sizes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from slacktide.domain.tensors import (
    ModelInterface,
    TensorSpec,
    any_size,
    image_input,
    named_like,
)
from slacktide.executors.measuring import warm_up_s
from slacktide.executors.ports import Executor, ModelSource
from slacktide.executors.row_check import dependence_warning
from slacktide.executors.synthetic_inputs import assumptions_of
from slacktide.executors.timed_replica import MeasuringError
from slacktide.models.backends import (
    NOTICEABLE,
    candidates,
    check_agreement,
    fastest,
    speed_ratio,
)
from slacktide.models.bootstrap import Interval
from slacktide.models.learnt import PoolTimes
from slacktide.models.profile_cache import (
    ProfileCache,
    ProfiledModel,
    label_of,
)
from slacktide.models.replica_launcher import source_of
from slacktide.models.repository.errors import InterfaceMismatchError, Problem
from slacktide.models.repository.interface import check_interface
from slacktide.models.repository.repository import ModelDefinition
from slacktide.models.repository.variants import VariantSettings
from slacktide.planning.variants import Family, FamilyVariant

log = logging.getLogger("slacktide.models")

_LOADED_PER_BYTE = 1.5
"""Session memory per byte of a file not yet measured: ONNX Runtime keeps some weights twice."""


@dataclass(frozen=True, slots=True)
class PreparedPool:
    """Arguments of `LoadedVersion.add_pool` for one pool."""

    definition: ModelDefinition
    source: ModelSource
    profile: ProfiledModel
    times: PoolTimes


@dataclass(frozen=True, slots=True)
class PreparedVersion:
    """A version that is ready to deploy."""

    interface: ModelInterface
    """Interface for clients. Images may have any size if the model is a family, or declares its
    input as pictures."""
    pools: tuple[PreparedPool, ...]
    """Pools of the variants, smallest first, or the only pool."""
    family: Family | None
    warnings: tuple[str, ...]
    dependence: str = ""
    """Why requests may not share a batch although the model has a batch axis."""


def model_files(definition: ModelDefinition) -> tuple[ModelDefinition, ...]:
    """Return a definition for each file: the version, or its variants with files."""
    return tuple(map(definition.of_variant, definition.files)) or (definition,)


def profiled_files(definition: ModelDefinition) -> tuple[ModelDefinition, ...]:
    """Return each definition that has its own profile: its files, with each backend to try."""
    files = model_files(definition)
    return tuple([candidate for file in files for candidate in candidates(file)])


async def prepare_version(
    definition: ModelDefinition,
    threads: tuple[int, ...],
    core_sets: Sequence[tuple[int, ...]],
    executor: Executor,
    profiles: ProfileCache,
) -> PreparedVersion:
    """Find or measure the profiles of a version, compare its files, and choose the variants worth
    serving. `executor` measures, on `core_sets`. Raises RepositoryError naming the file, and
    MeasuringError."""
    settings = definition.settings.variants
    names = ("",) if settings is None else settings.names

    async def profile_of(file: ModelDefinition) -> ProfiledModel:
        timed = source_of(file, threads)
        profile = await profiles.find_or_measure(file, timed, executor, core_sets)
        check_agreement(file, profile.agreement)
        return profile

    precisions: Precisions = {}
    warnings: list[str] = []
    dependence = ""
    family: Family | None = None
    if settings is not None:
        measured = await asyncio.to_thread(profiles.accuracies, definition)
        precisions, dropped = await _precisions(definition, profile_of)
        warnings += dropped
        by_name = {**_agreements(precisions), **measured.by_name}
        accuracy, assumed = accuracies(settings, by_name)
        if settings.precisions:
            accuracy = {name: accuracy[name] for name in precisions}
        names, dropped = worth_serving(accuracy, measured.differences)
        warnings += [*assumed, *dropped]
    profiled: dict[str, tuple[str, ProfiledModel]] = {}
    """Backends and profiles by variant; image sizes of one file share one, under an empty name."""
    pools: list[PreparedPool] = []
    for name in names:
        variant = definition.of_variant(name) if name else definition
        key = variant.variant if variant.files else ""
        if key not in profiled:
            file = definition if variant.image_size else variant
            try:
                file, profile, note = precisions.get(name) or await fastest(file, profile_of)
            except MeasuringError as error:
                named = f"{variant.where}: {error}" if variant.files else str(error)
                raise MeasuringError(named, permanent=error.permanent) from error
            if note:
                log.info("%s: %s", label_of(file), note)
            timed = source_of(file, threads)
            profiled[key] = file.settings.backend, profile
            if profile.dependence:
                warnings.append(dependence_warning(profile.dependence))
                dependence = profile.dependence if profile.interface.batches else dependence
            warnings += check_interface(file, profile.interface)
            if pools:
                check_alike(
                    variant, profile.interface, pools[0].definition, pools[0].profile.interface
                )
            shapes, guess = profile.record.shapes, profile.guess
            if definition.any_image and not guess:
                timed = replace(timed, warmup_shapes=shapes)  # do not report image sizes as assumed
            if profile.interface.batches or not profile.dependence:
                warnings += await asyncio.to_thread(
                    assumptions_of, timed, profile.interface, shapes, guess
                )
        backend, profile = profiled[key]
        variant = variant.with_backend(backend)
        source = source_of(variant, threads)
        times = await asyncio.to_thread(profiles.learnt.times, variant, profile)
        # Replicas warm up with the measured row and strides, and need not search for them again.
        batch = source.max_batch if profile.interface.batches else 0
        if profile.dependence and profile.interface.batches and definition.name in profiles.stages:
            # Rows of one frame must not influence each other either.
            batch, profile = 1, replace(profile, interface=replace(profile.interface, max_batch=1))
        row = row_shapes(profile, variant.image_size)
        exits = await asyncio.to_thread(profiles.exit_source, variant)
        warm_s = warm_up_s(profiles.budget_s, source)
        source = replace(source, warmup_shapes=row, max_batch=batch, exits=exits, warm_up_s=warm_s)
        if source.padding is not None:
            padding = replace(source.padding, detected_outputs=profile.padded_outputs)
            source = replace(source, padding=padding)
        pools.append(PreparedPool(variant, source, profile, times))
    interface = pools[0].profile.interface
    if definition.any_image:
        interface = any_size(interface)
    if settings is not None:
        most = min(pool.profile.interface.max_batch for pool in pools)
        interface = replace(interface, max_batch=most)
        family = _family_of(settings, accuracy, dict(zip(names, pools, strict=True)))
    return PreparedVersion(
        interface, tuple(pools), family, tuple(dict.fromkeys(warnings)), dependence
    )


Precisions = dict[str, tuple[ModelDefinition, ProfiledModel, str]]
"""Results of `fastest`, by precision."""


async def _precisions(
    definition: ModelDefinition, profile_of: Callable[[ModelDefinition], Awaitable[ProfiledModel]]
) -> tuple[Precisions, list[str]]:
    """Profile a family's precisions. Returns those that can be served, and a sentence about each
    other one. Raises MeasuringError if none can."""
    settings = definition.settings.variants
    names = () if settings is None else settings.precisions
    served: Precisions = {}
    notes = []
    for name in names:
        try:
            served[name] = await fastest(definition.of_variant(name), profile_of)
        except MeasuringError as error:
            if name == names[-1] and not served:
                raise
            notes.append(f"variants: {name!r} is not served: {error}")
    for precision, better in itertools.combinations([*served], 2):
        if precision not in served:
            continue
        tables = (served[key][1].record.table for key in (better, precision))
        if speed_ratio(*tables) < NOTICEABLE:
            notes.append(f"variants: {precision!r} is not served: it is no faster than {better!r}")
            del served[precision]
    return served, notes


def _agreements(precisions: Precisions) -> dict[str, float]:
    """Return the accuracy of each precision as far as it is known: the share of answers that are
    those of the file's own precision, estimated from few rows (rule of succession). So without
    labelled data no precision counts as equal to the file's own."""
    shares = {}
    for name, (_, profile, _) in precisions.items():
        agreement = profile.agreement
        if name == "fp32":
            shares[name] = 1.0
        elif agreement is not None and agreement.top1 is not None:
            shares[name] = (agreement.top1 * agreement.rows + 1.0) / (agreement.rows + 2.0)
    return shares


def _family_of(
    settings: VariantSettings, accuracy: Mapping[str, float], pools: Mapping[str, PreparedPool]
) -> Family:
    """Return the variants in `pools` as planners see them. A served variant that measured worse
    than a smaller one counts as equal, since the interval of their difference includes 0."""
    rising = accumulate((accuracy[name] for name in pools), max)
    return Family(
        tuple(
            FamilyVariant(
                name,
                value,
                pool.definition.image_size,
                _nbytes(settings, pool) if pool.definition.files else 0,
            )
            for (name, pool), value in zip(pools.items(), rising, strict=True)
        ),
        settings.planner_name,
        settings.planner_options,
        settings.resident,
        settings.lane_memory,
    )


def accuracies(
    settings: VariantSettings, measured: Mapping[str, float]
) -> tuple[dict[str, float], list[str]]:
    """Return the accuracy of each variant: stated, `measured`, or interpolated between neighbours,
    and a sentence about interpolated ones."""
    stated = {name: settings.accuracy.get(name, measured.get(name)) for name in settings.names}
    places = {i: value for i, value in enumerate(stated.values()) if value is not None}
    at, values = [-1, *places, len(stated)], [0.0, *places.values(), 1.0]
    filled = {name: float(np.interp(i, at, values)) for i, name in enumerate(stated)}
    unknown = [name for name, value in stated.items() if value is None]
    if not unknown:
        return filled, []
    return filled, [
        f"variants: the accuracy of {', '.join(unknown)} is unknown, and is assumed to rise in "
        "this order; state variants.accuracy, or measure it with slacktide profile --accuracy"
    ]


def worth_serving(
    accuracy: Mapping[str, float], differences: Mapping[tuple[str, str], Interval] | None = None
) -> tuple[tuple[str, ...], list[str]]:
    """Return the variants to serve, smallest first, and a sentence about each other variant.

    A variant is left out if a smaller variant that is served is better by the whole interval of
    their measured `differences`. Without an interval, it is left out if the smaller variant is at
    least as accurate."""
    served: list[str] = []
    notes = []
    for name, value in accuracy.items():
        for smaller in sorted(served, key=accuracy.__getitem__, reverse=True):
            better = f"that of the smaller {smaller!r}, {accuracy[smaller]:.3g}"
            low, high = (differences or {}).get((name, smaller), (math.nan, math.nan))
            if high < 0.0:
                reason = f"below {better}, by {-high:.3g} to {-low:.3g} (95 %)"
            elif math.isnan(high) and value <= accuracy[smaller]:
                reason = f"not above {better}"
            else:
                continue
            notes.append(
                f"variants: {name!r} is not served: its accuracy, {value:.3g}, is {reason}"
            )
            break
        else:
            served.append(name)
    return tuple(served), notes


def first_route(pools: Sequence[PreparedPool], cores: int, slo: float | None) -> int:
    """Return the index of the pool that serves until a planner decides: the most accurate one whose
    99th percentile for one row is at most half of `slo`, else the smallest."""
    most = math.inf if slo is None else slo / 2
    within = [i for i, pool in enumerate(pools) if pool.times.of(1, cores).p99 <= most]
    return max(within, default=0)


def at_first(family: Family, route: int) -> tuple[bool, ...]:
    """Return which variants to load before a planner decides: all if they share one copy; otherwise
    the variant at `route`, the smallest one, and as many near `route` as fit into a lane's
    memory."""
    if family.switches_free:
        return (True,) * len(family.variants)
    order = sorted(range(len(family.variants)), key=lambda i: (i != route, i != 0, abs(i - route)))
    chosen: set[int] = set()
    used = 0
    for index in order[: family.resident]:
        used += family.variants[index].nbytes
        if chosen and family.memory is not None and used > family.memory:
            break
        chosen.add(index)
    return tuple(index in chosen for index in range(len(family.variants)))


def row_shapes(profile: ProfiledModel, image_size: int) -> dict[str, tuple[int, ...]]:
    """Return a row's shapes by input, with images of `image_size` pixels; 0: as profiled."""
    shapes = dict(profile.record.shapes)
    index = image_input(profile.interface)
    if image_size and index is not None:
        shapes[profile.interface.inputs[index].name] = (image_size, image_size, 3)
    return shapes


def check_alike(
    definition: ModelDefinition, mine: ModelInterface, first: ModelDefinition, peer: ModelInterface
) -> None:
    """Raise InterfaceMismatchError, naming the file, unless two variants have the same tensors; a
    single input or output may have another name."""
    mine = named_like(mine, peer)
    pairs = {
        "inputs": (_describe(any_size(mine).inputs), _describe(any_size(peer).inputs)),
        "outputs": (_describe(mine.outputs), _describe(peer.outputs)),
        "batch axis": ("one" if mine.batches else "none", "one" if peer.batches else "none"),
    }
    problems = [
        Problem(kind, f"expected {first_specs} as in {first.where}, got {own_specs}")
        for kind, (own_specs, first_specs) in pairs.items()
        if own_specs != first_specs
    ]
    if problems:
        raise InterfaceMismatchError(definition.where, *problems)


def _describe(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{s.name!r} {s.datatype.wire_name} {list(s.shape)}" for s in specs)


def _nbytes(settings: VariantSettings, pool: PreparedPool) -> int:
    """Return the bytes of one loaded copy: stated, measured, or estimated from its file."""
    name = pool.definition.variant
    measured = sum(session.nbytes for session in pool.profile.sessions)
    if name in settings.memory or measured:
        return settings.memory.get(name, measured)
    return max(1, round(_LOADED_PER_BYTE * pool.source.path.stat().st_size))
