"""`LearntTimes`: learnt corrections of profiles, stored across restarts.

    REPOSITORY/tiny_mlp/1/profile.<hardware>.learnt.json

A correction belongs to the profile beside it: if the model file, the hardware or the profile
changes, the correction is void. It is written when the version is unloaded, when the server stops,
and every minute if predictions have changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from slacktide.domain.tensors import ModelInterface, image_input
from slacktide.models.repository.errors import RepositoryError
from slacktide.models.repository.profile_store import ProfileStore
from slacktide.models.repository.repository import ModelDefinition
from slacktide.models.repository.settings import ModelSettings
from slacktide.profiles import (
    ClassedTimes,
    LatencyTable,
    ProfileError,
    ProfileRecord,
    ShapedTimes,
    fit_latency,
)
from slacktide.profiles.variant_times import table_at

if TYPE_CHECKING:
    from slacktide.models.profile_cache import ProfiledModel
    from slacktide.models.versions import LoadedVersion

log = logging.getLogger("slacktide.profiles")

PoolTimes: TypeAlias = ClassedTimes | ShapedTimes

SAVE_S = 60.0
"""Interval between saves of changed predictions, in seconds."""


def is_shaped(interface: ModelInterface, settings: ModelSettings) -> bool:
    """Whether work varies with the shapes of requests: an input has a free axis that is neither the
    batch axis nor padded, and no work hint is declared."""
    if settings.work_hint is not None:
        return False
    padding = None if settings.pads is None else settings.pads.fitting(interface)
    padded = {} if padding is None else {name: pad.axis for name, pad in padding.inputs.items()}
    first = 1 if interface.batches else 0
    return any(
        size < 0 and axis != padded.get(spec.name)
        for spec in interface.inputs
        for axis, size in enumerate(spec.shape)
        if axis >= first
    )


def times_of(profile: ProfiledModel, settings: ModelSettings, image_size: int = 0) -> PoolTimes:
    """Return a profile's predictions without corrections, for images of `image_size` pixels unless
    it is 0. Raises ProfileError if the profile lacks the size."""
    record, interface = profile.record, profile.interface
    if profile.guess:
        return ShapedTimes(record.table, ())
    if image_size:
        return ClassedTimes(size_table(record, interface, image_size))
    if is_shaped(interface, settings):
        reference = tuple(record.shapes[spec.name] for spec in interface.inputs)
        return ShapedTimes(record.table, reference, record.sizes)
    return ClassedTimes(
        record.table, latency=lambda cores: fit_latency(record.table, cores, record.sizes).latency
    )


def size_table(record: ProfileRecord, interface: ModelInterface, image_size: int) -> LatencyTable:
    """Return the table for images of `image_size` pixels height and width. Raises ProfileError."""
    image = image_input(interface)
    reference = tuple(record.shapes[spec.name] for spec in interface.inputs)
    sized = (image_size, image_size, 3)
    row = tuple(sized if i == image else shape for i, shape in enumerate(reference))
    return table_at(record.table, reference, record.sizes, row)


class LearntTimes:
    """Finds and saves learnt corrections."""

    def __init__(self, store: ProfileStore) -> None:
        self._store = store
        self._warned: set[str] = set()
        """Versions for which the log has warned that corrections cannot be stored."""

    def times(self, definition: ModelDefinition, profile: ProfiledModel) -> PoolTimes:
        """Return predictions of a profile with its stored corrections. Blocks: reads files. Bad
        files are ignored."""

        def fresh() -> PoolTimes:
            return times_of(profile, definition.settings, definition.image_size)

        if profile.key is None or not _learns(definition):
            return fresh()
        document = self._store.find(definition, profile.key, "learnt")
        if document is None:
            return fresh()
        if document.get("record") != _digest(profile.record):
            log.info("%s: ignoring the corrections of an earlier profile", definition.name)
            return fresh()
        return _restored(fresh, document, f"{definition.name}:{definition.version}")

    async def save(self, versions: Iterable[LoadedVersion]) -> None:
        """Write predictions that changed since the last save. Logs files that cannot be written."""
        for pool in [pool for version in versions for pool in version.pools]:
            version, definition = pool.version, pool.definition
            profile, revision = pool.profile, pool.times.revision
            if profile is None or profile.key is None or not _learns(definition):
                continue
            if not pool.times.batches or pool.saved_revision == revision:
                continue
            pool.saved_revision = revision
            content = learnt(profile.record, pool.times)
            try:
                await asyncio.to_thread(
                    self._store.save, definition, profile.key, content, "learnt"
                )
            except (RepositoryError, ValueError) as error:
                name = f"{version.name}:{version.version}"
                if name not in self._warned:
                    self._warned.add(name)
                    log.warning("learnt corrections of %s cannot be stored: %s", name, error)

    async def keep(self, versions: Callable[[], Iterable[LoadedVersion]]) -> None:
        """Save every minute, until cancelled."""
        while True:
            await asyncio.sleep(SAVE_S)
            await self.save(versions())


def _learns(definition: ModelDefinition) -> bool:
    """Whether measured times are the model's own; a `profiled` replica only simulates the model."""
    return definition.settings.executor != "profiled"


def learnt(record: ProfileRecord, times: PoolTimes) -> dict[str, Any]:
    """Return as JSON how `times` have been corrected since `record` was measured
    (docs/internals/profile-files.md)."""
    point = times.point if isinstance(times, ClassedTimes) else None
    return {
        "record": _digest(record),
        "correction": None if point is None or not point.batches else point.export(),
        "learnt": times.export(),
    }


def _restored(fresh: Callable[[], PoolTimes], document: dict[str, Any], name: str) -> PoolTimes:
    """Return predictions with stored corrections; without them if they cannot be read."""
    times = fresh()
    try:
        if isinstance(times, ClassedTimes) and document.get("correction") is not None:
            times.point.load(document["correction"])
        times.load(document.get("learnt"))
    except (ProfileError, TypeError, ValueError, KeyError, OverflowError) as error:
        log.warning("learnt corrections of %s are ignored: %s", name, error)
        return fresh()
    return times


def _digest(record: ProfileRecord) -> str:
    plain = json.dumps(record.to_dict(), sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()
