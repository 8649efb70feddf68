"""`ProfileCache`: finds stored profiles of models, or measures them.

A stored profile includes the model's interface, so that a version can be planned before its file is
opened.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from slacktide.domain.padding import PaddedOutput
from slacktide.domain.tensors import ModelInterface, image_input
from slacktide.executors.agreement import Agreement, find_agreement
from slacktide.executors.cores import hardware_fingerprint
from slacktide.executors.measuring import Measurement, measure
from slacktide.executors.onnx_file import DEFAULT_MAX_BATCH
from slacktide.executors.ports import Executor, ExitSource, ModelSource, SessionSize
from slacktide.executors.timed_replica import MeasuringError
from slacktide.models.backends import candidates, check_agreement
from slacktide.models.bootstrap import Interval
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
"""Accuracy of a variant without correct answers: planners need more than 0."""


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """A version's profile and interface, known before it serves."""

    record: ProfileRecord
    interface: ModelInterface
    sessions: tuple[SessionSize, ...] = ()
    """Sessions of the replica that was measured."""
    guess: str = ""
    """Why the record is a guess; empty if it was measured."""
    key: ProfileKey | None = None
    """Model and hardware that were measured."""
    dependence: str = ""
    """Why requests may not share a batch; empty if they may."""
    needed_s: float = 0.0
    """Approximate budget for measuring everything, if this measurement skipped something."""
    untimed: int = 0
    """See `Measurement`."""
    padded_outputs: Mapping[str, PaddedOutput] = field(default_factory=dict)
    """See `OpenedModel`."""
    agreement: Agreement | None = None
    """How answers differ from those of ONNX Runtime in fp32; None: it is what runs."""


@dataclass(frozen=True, slots=True)
class BusyProfile:
    """A profile measured while other programs used the cores, and how to measure it again."""

    definition: ModelDefinition
    source: ModelSource
    executor: Executor
    cores: Sequence[tuple[int, ...]]
    profiled: ProfiledModel


class MeasuredAccuracies(NamedTuple):
    """Accuracies of variants on labelled images."""

    by_name: dict[str, float]
    differences: dict[tuple[str, str], Interval]
    """95 % interval of a variant's accuracy minus that of a smaller one, by the names of the two
    variants. Variants whose accuracy is stated have none."""


class ProfileCache:
    """Finds profiles and measures missing ones."""

    def __init__(self, store: ProfileStore, *, budget_s: float = 2.0) -> None:
        """`budget_s`: seconds that measuring a version may take when it loads without a profile."""
        self._store = store
        self.learnt = LearntTimes(store)
        self.stages: set[str] = set()
        """Models used by pipelines. They keep their batch axis, because pipelines count rows."""
        self.budget_s = budget_s
        self.busy: dict[str, BusyProfile] = {}
        """Profiles in use that will be measured again, by model, version and variant."""

    async def find_or_measure(
        self,
        definition: ModelDefinition,
        source: ModelSource,
        executor: Executor,
        core_sets: Sequence[tuple[int, ...]],
    ) -> ProfiledModel:
        """Return the stored profile if it covers all `core_sets`; else measure and store one. The
        sets have different sizes; an accelerator has one empty set. Raises RepositoryError, and
        MeasuringError if the model cannot run."""
        sets = [cores or (0,) for cores in core_sets]
        counts = [len(cores) for cores in sets]
        label = label_of(definition)
        profiled = await asyncio.to_thread(self.find, definition, counts, source.threads)
        dependence = "" if profiled is None else profiled.dependence
        if profiled is None or (
            dependence
            and profiled.interface.batches == self._drops_axis(definition, profiled.interface)
        ):
            log.info("%s has no profile: measuring one", label)
            budget_s = self.budget_s
            profiled = await self.measure(
                definition, source, executor, sets, budget_s=budget_s, dependence=dependence
            )
            if profiled.needed_s:
                batches = ", ".join(map(str, profiled.record.skipped))
                parts = [f"batches of {batches} rows"] if batches else []
                if profiled.untimed:
                    parts.append(f"{profiled.untimed} stated sizes of rows")
                log.warning(
                    "%s: %s were not measured, because they take too long for %g s; their times "
                    "are extrapolated. To measure them: slacktide profile %s --budget %ds",
                    *(label, " and ".join(parts), budget_s, definition.path),
                    math.ceil(profiled.needed_s),
                )
        self.busy.pop(label, None)
        if note := busy_note(profiled.record.cpu_share):
            log.warning(
                "the profile of %s was %s: its times may be far too long. It is measured "
                "again when the machine and this server are idle",
                *(label, note),
            )
            self.busy[label] = BusyProfile(definition, source, executor, sets, profiled)
        return profiled

    async def measure_again(self, busy: BusyProfile) -> ProfiledModel | None:
        """Measure a busy profile again and store it; None if the machine was no quieter. May be
        cancelled. Raises RepositoryError and MeasuringError."""
        definition, record = busy.definition, busy.profiled.record
        if await asyncio.to_thread(self._key, definition) != busy.profiled.key:
            raise MeasuringError("its files changed after it was loaded")
        dependence = busy.profiled.dependence
        without_axis = dependence and not busy.profiled.interface.batches
        measured = await measure(
            busy.executor,
            replace(busy.source, max_batch=0) if without_axis else busy.source,
            cores=busy.cores,
            device=definition.settings.device,
            budget_s=self.budget_s,
        )
        share = measured.record.cpu_share
        if measured.guess or not (is_quiet(share) or (share or 0.0) > (record.cpu_share or 0.0)):
            return None
        measured = replace(measured, dependence=dependence)
        return await self._store_measured(definition, measured, busy.profiled.agreement)

    def stored(self, models: Iterable[ListedModel]) -> set[str]:
        """Return the models whose files all have a profile of this machine, whether or not it still
        fits. Blocks: looks for files."""

        def holds(definition: ModelDefinition) -> bool:
            files = tuple(map(definition.of_variant, definition.files)) or (definition,)
            return all(
                self._store.holds(file, hardware_of(file))
                for listed in files
                for file in candidates(listed)
            )

        return {m.name for m in models if m.definitions and all(map(holds, m.definitions))}

    def forget(self, name: str) -> None:
        """Drop the planned measurements of a model that no longer serves."""
        self.busy = {
            label: profile
            for label, profile in self.busy.items()
            if profile.definition.name != name
        }

    def find(
        self, definition: ModelDefinition, cores: Sequence[int], threads: Sequence[int] = ()
    ) -> ProfiledModel | None:
        """Return a stored profile for these core counts and sessions; None if none fits. Blocks:
        reads files."""
        key = self._key(definition)
        stored = self._store.find(definition, key)
        if stored is None:
            return None
        try:
            interface = ModelInterface.from_dict(stored["interface"])
            record = ProfileRecord.from_dict(stored["record"])
            compared = stored.get("agreement")
            agreement = None if compared is None else Agreement(**compared)
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
            mismatch = _size_mismatch(definition, record, interface)
        # Older files without `content` fit models whose rows are fully stated.
        as_stated = "content" not in stored and _all_stated(definition, interface)
        if mismatch is None and not (as_stated or stored.get("content") == _content(definition)):
            mismatch = "was measured with other rows or outputs"
        if mismatch is None and definition.settings.max_batch == 0 and interface.batches:
            mismatch = "was measured with a batch axis"
        dependence = "" if definition.settings.max_batch == 0 else stored.get("dependence")
        if mismatch is None and not isinstance(dependence, str):
            mismatch = "was measured without a check whether rows influence each other"
        if mismatch is not None:
            log.info("profile of %s cannot be used: it %s", definition.where, mismatch)
            return None
        padded = _padded_outputs(stored.get("padded_outputs"))
        return ProfiledModel(
            record,
            interface,
            sessions,
            key=key,
            dependence=str(dependence),
            padded_outputs=padded,
            agreement=agreement,
        )

    def _drops_axis(self, definition: ModelDefinition, interface: ModelInterface) -> bool:
        """Whether a model with dependent rows should lose its batch axis, so that the first axis
        may have any length. False if the settings state anything about rows."""
        settings, name = definition.settings, definition.name
        stated = (settings.exits, settings.variants, settings.pads, settings.max_batch)
        rows = definition.warmup_shapes or definition.more_shapes
        samples = definition.samples or definition.sample_rows
        states_rows = rows or samples or name in self.stages or image_input(interface) is not None
        return not states_rows and all(setting is None for setting in stated)

    def note_dependence(
        self, definition: ModelDefinition, profile: ProfiledModel, dependence: str
    ) -> None:
        """Store with a profile why requests may not share a batch. Blocks."""
        self.busy.pop(label_of(definition), None)  # measuring again would erase the reason
        if profile.key is None or (stored := self._store.find(definition, profile.key)) is None:
            return
        try:
            self._store.save(definition, profile.key, {**stored, "dependence": dependence})
        except RepositoryError as error:
            log.warning("profile of %s could not be stored: %s", definition.where, error)

    def exit_source(self, definition: ModelDefinition) -> ExitSource | None:
        """Return the folder and settings of a version's early exits; None if it has none. Blocks:
        may copy files."""
        if definition.settings.exits is None:
            return None
        return exit_source(definition, self._store.exits_folder(definition))

    def accuracies(self, definition: ModelDefinition) -> MeasuredAccuracies:
        """Return what `slacktide profile --accuracy` measured; empty if these files were never
        measured. Blocks: reads files."""
        settings = definition.settings.variants
        stated = {} if settings is None else settings.accuracy
        stored = self._store.find(definition, accuracy_key(definition), "accuracy") or {}
        scores, differences = stored.get("accuracy"), stored.get("differences")
        by_name = {
            str(name): max(float(value), LEAST_ACCURACY)
            for name, value in (scores.items() if isinstance(scores, dict) else ())
            if type(value) in (int, float) and 0.0 <= value <= 1.0
        }
        intervals = {
            (name, smaller): (ends[0], ends[1])
            for name, pairs in (differences.items() if isinstance(differences, dict) else ())
            for smaller, ends in (pairs.items() if isinstance(pairs, dict) else ())
            if isinstance(ends, list) and [*map(type, ends)] == [float, float]
        }
        measured = {pair: ends for pair, ends in intervals.items() if not {*pair} & stated.keys()}
        return MeasuredAccuracies(by_name, measured)

    def save_accuracies(self, definition: ModelDefinition, content: Mapping[str, Any]) -> Path:
        """Store accuracies (`content["accuracy"]`). Blocks. Raises RepositoryError."""
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
        """Measure on each of these core sets, and store the profile. `dependence`: why requests may
        not share a batch, if known."""
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
        agreement = None
        if source.differs and not measured.guess:
            agreement = await find_agreement(executor, source, cores=cores[-1], budget_s=budget_s)
            if not math.isfinite(agreement.error):  # which no file can hold
                check_agreement(definition, agreement)
        measured = replace(measured, dependence=dependence)
        return await self._store_measured(definition, measured, agreement)

    async def _store_measured(
        self, definition: ModelDefinition, measured: Measurement, agreement: Agreement | None
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
            "padded_outputs": {
                name: asdict(output) for name, output in measured.padded_outputs.items()
            },
        }
        if agreement is not None:
            document["agreement"] = asdict(agreement)
        try:
            await asyncio.to_thread(self._store.save, definition, key, document)
        except RepositoryError as error:
            log.warning("profile of %s could not be stored: %s", definition.where, error)
        return ProfiledModel(
            measured.record,
            interface,
            measured.sessions,
            "",
            key,
            dependence,
            measured.needed_s,
            measured.untimed,
            measured.padded_outputs,
            agreement,
        )

    @staticmethod
    def _key(definition: ModelDefinition) -> ProfileKey:
        return ProfileKey(model_hash(definition), hardware_of(definition))


def hardware_of(definition: ModelDefinition) -> str:
    """Return the machine's fingerprint, followed by the device if it is an accelerator, and by the
    backend and precision unless they are the default."""
    settings, parts = definition.settings, [hardware_fingerprint().digest]
    if not settings.on_cpu:
        parts.append(settings.device)
    if (settings.backend, settings.precision) != ("onnxruntime", "fp32"):
        parts += [settings.backend, settings.precision]
    return "-".join(parts)


def label_of(definition: ModelDefinition) -> str:
    """Return model, version and variant, for the log."""
    variant = f"@{definition.variant}" if definition.variant else ""
    return f"{definition.name}:{definition.version}{variant}"


def accuracy_key(definition: ModelDefinition) -> ProfileKey:
    """Return the key for accuracies: they depend on the files, and on how images are prepared and
    outputs decoded, not on hardware. Reads files."""
    digest = model_hash(definition)
    files = [definition.of_variant(name) for name in definition.files] or [definition]
    stated = [around_model(file) for file in files]
    if any(stated):
        whole = f"{digest} {json.dumps(stated, sort_keys=True)}"
        digest = hashlib.sha256(whole.encode()).hexdigest()
    return ProfileKey(digest, "")


def _size_mismatch(
    definition: ModelDefinition, record: ProfileRecord, interface: ModelInterface
) -> str | None:
    """Return an error about an image size of the model that a profile lacks; None if it has all."""
    variants = definition.settings.variants
    sized = variants is not None and image_input(interface) is not None
    try:
        for size in variants.sizes if variants is not None and sized else ():
            size_table(record, interface, size)
    except ProfileError as error:
        return str(error)
    return None


def _sessions(stored: object) -> tuple[SessionSize, ...]:
    """Return stored sessions; none for older files, which lack them."""
    try:
        return tuple(SessionSize(int(session[0]), int(session[1])) for session in stored)  # type: ignore[attr-defined]
    except (TypeError, ValueError, IndexError, KeyError):
        return ()


def _padded_outputs(stored: object) -> dict[str, PaddedOutput]:
    """Return the stored strides of padded outputs; none for older files, which lack them."""
    try:
        return {name: PaddedOutput.from_dict(pad) for name, pad in stored.items()}  # type: ignore[attr-defined]
    except (TypeError, ValueError, KeyError, AttributeError):
        return {}


def _content(definition: ModelDefinition) -> dict[str, Any]:
    """Return what is stated about the content of the rows to measure. Reads files."""
    files = {**definition.sample_rows, "": definition.samples}
    hashes = {name: hash_file(path) for name, path in files.items() if path is not None}
    content: dict[str, Any] = {"values": definition.values, "samples": hashes}
    if definition.own_exits:
        content["outputs"] = sorted(definition.outputs)
    if definition.settings.expose:
        content["expose"] = sorted(definition.settings.expose)
    return content | around_model(definition)


def around_model(definition: ModelDefinition) -> dict[str, Any]:
    """Return what is stated about preparing images and decoding outputs."""
    content: dict[str, Any] = {}
    if (stated := definition.preprocessing) is not None:
        content["image"] = asdict(stated)
    if (text := definition.text) is not None:
        content["tokens"] = {name: [*ends] for name, ends in text.source.ranges.items()}
    if (pooling := definition.settings.pools) is not None:
        content["pooling"] = asdict(pooling)
    if (decode := definition.settings.decode) is not None:
        content["decode"] = decode.model_dump(mode="json")
    for key in ("before", "after"):
        if (function := getattr(definition.settings, key)) is not None:
            content[key] = function.model_dump(mode="json")
    return content


def _all_stated(definition: ModelDefinition, interface: ModelInterface) -> bool:
    """Whether settings or model fix all shapes of rows, and no content is stated."""
    free = (spec for spec in interface.inputs if -1 in spec.shape[1 if interface.batches else 0 :])
    stated = {name for name, shape in definition.warmup_shapes.items() if -1 not in shape}
    content = definition.values or definition.samples or definition.sample_rows
    return not content and all(spec.name in stated for spec in free)


def _limited(interface: ModelInterface, definition: ModelDefinition) -> ModelInterface:
    """Return the interface with the batch limit of the current settings."""
    stated = definition.settings.max_batch
    if interface.batches and all(spec.shape[:1] != (1,) for spec in interface.inputs):
        return replace(interface, max_batch=stated or DEFAULT_MAX_BATCH)
    return interface
