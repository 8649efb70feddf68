"""Profiles on the profiles: found beside the model, or measured when there is none that fits.

Beside the table lies what the model takes and gives, so that a version whose profile is stored can
be planned before its file has been opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from slacktide.domain.tensors import ModelInterface, image_input
from slacktide.executors.cores import hardware_fingerprint
from slacktide.executors.measuring import Measurement, measure
from slacktide.executors.onnx_file import DEFAULT_MAX_BATCH
from slacktide.executors.ports import Executor, ExitSource, ModelSource, SessionSize
from slacktide.executors.timed_replica import MeasuringError
from slacktide.models.exit_files import exit_source
from slacktide.models.learnt import LearntTimes, size_table
from slacktide.models.repository.errors import RepositoryError
from slacktide.models.repository.profile_store import (
    ProfileKey,
    ProfileStore,
    hash_file,
    model_hash,
)
from slacktide.models.repository.repository import ListedModel, ModelDefinition
from slacktide.profiles import ProfileError, ProfileRecord, busy_note, is_quiet

log = logging.getLogger("slacktide.profiles")

Progress = Callable[[float, str], None]
LEAST_ACCURACY = 1e-6
"""Of a variant that was never right: planners want more than 0."""


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """What is known of a version before it serves."""

    record: ProfileRecord
    interface: ModelInterface
    sessions: tuple[SessionSize, ...] = ()
    """What the replica had that it was measured on."""
    guess: str = ""
    """Why nothing could be measured, and the record is only a guess; empty if it is none."""
    key: ProfileKey | None = None
    """What it was measured for."""
    dependence: str = ""
    """Why requests may not share a batch; empty if nothing is against it."""


@dataclass(frozen=True, slots=True)
class BusyProfile:
    """A profile that was measured while other programs used the cores, and how to measure it."""

    definition: ModelDefinition
    source: ModelSource
    executor: Executor
    cores: Sequence[tuple[int, ...]]
    profiled: ProfiledModel


class ProfileCache:
    """Finds profiles, and has them measured."""

    def __init__(self, store: ProfileStore, *, budget_s: float = 2.0) -> None:
        """`budget_s`: what measuring a version may take when it is loaded without a profile."""
        self._store = store
        self.learnt = LearntTimes(store)
        self.stages: set[str] = set()
        """Models that pipelines name: they keep their batch axis, since pipelines count rows."""
        self._budget_s = budget_s
        self.busy: dict[str, BusyProfile] = {}
        """Profiles in use that are to be measured again, by model, version and variant."""

    async def known(
        self,
        definition: ModelDefinition,
        source: ModelSource,
        executor: Executor,
        core_sets: Sequence[tuple[int, ...]],
    ) -> ProfiledModel:
        """The stored profile if it covers all of `core_sets`; else one measured now on each of them
        (of different sizes; one empty set on an accelerator), and stored. Raises RepositoryError,
        or MeasuringError if the model cannot be run."""
        sets = [cores or (0,) for cores in core_sets]
        counts = [len(cores) for cores in sets]
        label = label_of(definition)
        profiled = await asyncio.to_thread(self.find, definition, counts, source.threads)
        dependence = "" if profiled is None else profiled.dependence
        if profiled is None or (
            dependence
            and profiled.interface.batches == self._drops_axis(definition, profiled.interface)
        ):
            log.info("%s has no profile; measuring", label)
            budget_s = self._budget_s
            profiled = await self.measure(
                definition, source, executor, sets, budget_s=budget_s, dependence=dependence
            )
        self.busy.pop(label, None)
        if note := busy_note(profiled.record.cpu_share):
            log.warning(
                "the profile of %s was %s: its times may be far too long. It is measured again "
                "when the machine and this server are idle",
                *(label, note),
            )
            self.busy[label] = BusyProfile(definition, source, executor, sets, profiled)
        return profiled

    async def measure_again(self, busy: BusyProfile) -> ProfiledModel | None:
        """Measure what has a busy profile, and store it if the machine was quieter; None: it was
        not. May be cancelled. Raises RepositoryError and MeasuringError."""
        definition, record = busy.definition, busy.profiled.record
        if await asyncio.to_thread(self._key, definition) != busy.profiled.key:
            raise MeasuringError("its files have changed since it was loaded")
        dependence = busy.profiled.dependence
        without_axis = dependence and not busy.profiled.interface.batches
        measured = await measure(
            busy.executor,
            replace(busy.source, max_batch=0) if without_axis else busy.source,
            cores=busy.cores,
            device=definition.settings.device,
            budget_s=self._budget_s,
        )
        share = measured.record.cpu_share
        if measured.guess or not (is_quiet(share) or (share or 0.0) > (record.cpu_share or 0.0)):
            return None
        return await self._store_measured(definition, replace(measured, dependence=dependence))

    def stored(self, models: Iterable[ListedModel]) -> set[str]:
        """Names of those beside whose every file lies a profile of this machine; whether it fits is
        not looked at. Blocks: looks for files."""

        def holds(definition: ModelDefinition) -> bool:
            files = tuple(map(definition.of_variant, definition.files)) or (definition,)
            return all(self._store.holds(file, hardware_of(file)) for file in files)

        return {m.name for m in models if m.definitions and all(map(holds, m.definitions))}

    def forget(self, name: str) -> None:
        """A model no longer serves: measure nothing of it again."""
        self.busy = {
            label: profile
            for label, profile in self.busy.items()
            if profile.definition.name != name
        }

    def find(
        self, definition: ModelDefinition, cores: Sequence[int], threads: Sequence[int] = ()
    ) -> ProfiledModel | None:
        """A stored profile for these core counts and sessions; None if none fits. Blocks: reads
        files."""
        key = self._key(definition)
        stored = self._store.find(definition, key)
        if stored is None:
            return None
        try:
            interface = ModelInterface.from_dict(stored["interface"])
            record = ProfileRecord.from_dict(stored["record"])
        except (ProfileError, KeyError, TypeError, ValueError, OverflowError) as error:
            log.warning("profile of %s ignored: %s", definition.where, error)
            return None
        interface = _limited(interface, definition)
        sessions = _sessions(stored.get("sessions"))
        mismatch = record.mismatch(
            cores=cores,
            max_batch=interface.max_batch,
            device=definition.settings.device,
            shapes=definition.warmup_shapes,
            threads=threads,
        )
        if mismatch is None:
            mismatch = _silent_on(definition, record, interface)
        # Files of before there was a content hold for rows of which all is stated.
        as_stated = "content" not in stored and _all_stated(definition, interface)
        if mismatch is None and not (as_stated or stored.get("content") == _content(definition)):
            mismatch = "was measured with other rows or outputs"
        if mismatch is None and definition.settings.max_batch == 0 and interface.batches:
            mismatch = "was measured with a batch axis"
        dependence = "" if definition.settings.max_batch == 0 else stored.get("dependence")
        if mismatch is None and not isinstance(dependence, str):
            mismatch = "was taken before rows were held against each other"
        if mismatch is not None:
            log.info("profile of %s cannot be used: it %s", definition.where, mismatch)
            return None
        return ProfiledModel(record, interface, sessions, key=key, dependence=str(dependence))

    def _drops_axis(self, definition: ModelDefinition, interface: ModelInterface) -> bool:
        """Whether a model whose rows influence each other is served as one without a batch axis, so
        that its first axis may be of any length. Not where anything is stated of its rows."""
        settings, name = definition.settings, definition.name
        stated = (settings.exits, settings.variants, settings.pads, settings.max_batch)
        rows = definition.warmup_shapes or definition.more_shapes
        samples = definition.samples or definition.sample_rows
        states_rows = rows or samples or name in self.stages or image_input(interface) is not None
        return not states_rows and all(setting is None for setting in stated)

    def note_dependence(
        self, definition: ModelDefinition, profile: ProfiledModel, dependence: str
    ) -> None:
        """Keep beside a stored profile why requests may not share a batch. Blocks."""
        self.busy.pop(label_of(definition), None)  # measured again it would be as it was
        if profile.key is None or (stored := self._store.find(definition, profile.key)) is None:
            return
        try:
            self._store.save(definition, profile.key, {**stored, "dependence": dependence})
        except RepositoryError as error:
            log.warning("profile of %s could not be stored: %s", definition.where, error)

    def exit_source(self, definition: ModelDefinition) -> ExitSource | None:
        """Where the early exits of a version are learnt, and what its settings say of them; None:
        it has none. Blocks: may copy files."""
        if definition.settings.exits is None:
            return None
        return exit_source(definition, self._store.exits_folder(definition))

    def accuracies(self, definition: ModelDefinition) -> dict[str, float]:
        """How good variants were found to be (`slacktide profile --accuracy`); none if that was
        never measured for these files. Blocks: reads files."""
        stored = self._store.find(definition, accuracy_key(definition), "accuracy") or {}
        scores = stored.get("accuracy")
        return {
            str(name): max(float(value), LEAST_ACCURACY)
            for name, value in (scores.items() if isinstance(scores, dict) else ())
            if type(value) in (int, float) and 0.0 <= value <= 1.0
        }

    def save_accuracies(self, definition: ModelDefinition, content: Mapping[str, Any]) -> Path:
        """Keep what `accuracies` will find as `content["accuracy"]`. Blocks. Raises
        RepositoryError."""
        return self._store.save(definition, accuracy_key(definition), content, "accuracy")

    async def measure(
        self,
        definition: ModelDefinition,
        source: ModelSource,
        executor: Executor,
        cores: Sequence[tuple[int, ...]],
        *,
        budget_s: float,
        thorough: bool = False,
        progress: Progress | None = None,
        dependence: str = "",
    ) -> ProfiledModel:
        """Measure on each of these core sets, and store what was found. `dependence`: why requests
        may not share a batch, where that is known."""
        run = partial(
            measure,
            executor,
            cores=cores,
            device=definition.settings.device,
            budget_s=budget_s,
            thorough=thorough,
            progress=progress,
        )
        measured = await run(source, check_rows=True)
        dependence = dependence or measured.dependence
        batches = measured.interface.batches
        if dependence and batches and self._drops_axis(definition, measured.interface):
            measured = await run(replace(source, max_batch=0))
        return await self._store_measured(definition, replace(measured, dependence=dependence))

    async def _store_measured(
        self, definition: ModelDefinition, measured: Measurement
    ) -> ProfiledModel:
        interface, dependence = _limited(measured.interface, definition), measured.dependence
        key = await asyncio.to_thread(self._key, definition)
        if measured.guess:
            return ProfiledModel(
                measured.record, interface, measured.sessions, measured.guess, key, dependence
            )
        document = {
            "record": measured.record.to_dict(),
            "interface": measured.interface.to_dict(),
            "content": await asyncio.to_thread(_content, definition),
            "sessions": [list(session) for session in measured.sessions],
            "dependence": measured.dependence,
        }
        try:
            await asyncio.to_thread(self._store.save, definition, key, document)
        except RepositoryError as error:
            log.warning("profile of %s could not be stored: %s", definition.where, error)
        return ProfiledModel(
            measured.record, interface, measured.sessions, key=key, dependence=dependence
        )

    @staticmethod
    def _key(definition: ModelDefinition) -> ProfileKey:
        return ProfileKey(model_hash(definition), hardware_of(definition))


def hardware_of(definition: ModelDefinition) -> str:
    """The machine's fingerprint, and the device where it is an accelerator."""
    device, hardware = definition.settings.device, hardware_fingerprint().digest
    return hardware if device == "cpu" else f"{hardware}-{device}"


def label_of(definition: ModelDefinition) -> str:
    """Model, version and variant, for the log."""
    variant = f"@{definition.variant}" if definition.variant else ""
    return f"{definition.name}:{definition.version}{variant}"


def accuracy_key(definition: ModelDefinition) -> ProfileKey:
    """What accuracies are kept for: the files, on any hardware. Reads files."""
    return ProfileKey(model_hash(definition), "")


def _silent_on(
    definition: ModelDefinition, record: ProfileRecord, interface: ModelInterface
) -> str | None:
    """What is amiss if a profile says nothing of a size at which the model is to run images."""
    variants = definition.settings.variants
    sized = variants is not None and image_input(interface) is not None
    try:
        for size in variants.sizes if variants is not None and sized else ():
            size_table(record, interface, size)
    except ProfileError as error:
        return str(error)
    return None


def _sessions(stored: object) -> tuple[SessionSize, ...]:
    """Of the replica that a profile was measured on; none of earlier files, which do not say."""
    try:
        return tuple(SessionSize(int(session[0]), int(session[1])) for session in stored)  # type: ignore[attr-defined]
    except (TypeError, ValueError, IndexError, KeyError):
        return ()


def _content(definition: ModelDefinition) -> dict[str, Any]:
    """What the rows were made of that a profile is measured with, where the owner says so. Reads
    files."""
    files = {**definition.sample_rows, "": definition.samples}
    hashes = {name: hash_file(path) for name, path in files.items() if path is not None}
    own_exits = {"outputs": sorted(definition.outputs)} if definition.own_exits else {}
    return {"values": definition.values, "samples": hashes, **own_exits}


def _all_stated(definition: ModelDefinition, interface: ModelInterface) -> bool:
    """Whether rows are as the settings or the model say: no axis is free, no content is stated."""
    free = (spec for spec in interface.inputs if -1 in spec.shape[1 if interface.batches else 0 :])
    stated = {name for name, shape in definition.warmup_shapes.items() if -1 not in shape}
    content = definition.values or definition.samples or definition.sample_rows
    return not content and all(spec.name in stated for spec in free)


def _limited(interface: ModelInterface, definition: ModelDefinition) -> ModelInterface:
    """The interface under the batch limit that the settings state now."""
    stated = definition.settings.max_batch
    if interface.batches:
        return replace(interface, max_batch=stated or DEFAULT_MAX_BATCH)
    return interface
