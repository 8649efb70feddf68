"""`slacktide models check DIR`: finds errors in a repository without serving it.

Files are read first. Then each model is opened, warmed up and run in a worker process, with the
code that measures profiles. So the check refuses what a load would refuse (too little memory, a
missing device), and a crashing model ends only a worker. Nothing is stored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from slacktide.domain.preprocessing import PRESETS, as_pictures, looks_like_pictures, preset_for
from slacktide.domain.tensors import ModelInterface, TensorSpec, any_size
from slacktide.executors.agreement import find_agreement
from slacktide.executors.decoders.decoder import make_decoder
from slacktide.executors.decoders.labels import find_labels, names_in
from slacktide.executors.measuring import Measurement, measure
from slacktide.executors.measuring_sizes import MOST_SIZES
from slacktide.executors.onnx_file import OnnxFile
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.pooling import make_pooler
from slacktide.executors.ports import ModelSource
from slacktide.executors.process import ProcessExecutor
from slacktide.executors.row_check import dependence_warning
from slacktide.executors.synthetic_inputs import SyntheticRows, assumptions_of
from slacktide.executors.timed_replica import MeasuringError
from slacktide.exits.errors import ExitError
from slacktide.models.backends import check_agreement, fastest
from slacktide.models.core_layout import LaneError, assign_lanes, lane_conflicts
from slacktide.models.exit_samples import positions_of
from slacktide.models.families import accuracies, check_alike, model_files, worth_serving
from slacktide.models.model_manager import machine_reason
from slacktide.models.pipeline_interface import StageTensors, pipeline_interface
from slacktide.models.pipelines import accuracy_problems
from slacktide.models.profile_cache import ProfileCache
from slacktide.models.replica_launcher import source_of
from slacktide.models.repository.errors import (
    ModelFileError,
    Problem,
    RepositoryError,
    SettingsError,
    as_repository_error,
)
from slacktide.models.repository.interface import check_interface
from slacktide.models.repository.pipeline import PipelineDefinition
from slacktide.models.repository.profile_store import ProfileStore
from slacktide.models.repository.repository import ListedModel, ModelDefinition, Repository
from slacktide.models.repository.settings import ROLES, ModelSettings
from slacktide.models.repository.settings_file import SETTINGS_FILE
from slacktide.models.repository.single_model import open_repository
from slacktide.models.text_inputs import TextInput

_BUDGET_S = 0.01
"""Time budget for measuring, in seconds: enough to run one row."""


class Severity(Enum):
    ERROR = "error"
    """The model cannot be served."""
    WARNING = "warning"
    """The model can be served, but perhaps not as its owner expects."""
    NOTE = "note"
    """Information, such as positions for early exits."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of the check. `message` names the file relative to the repository."""

    model: str
    """Name of the model; empty for the repository."""
    severity: Severity
    message: str


def check_repository(root: Path) -> list[Finding]:
    """Check folders, settings, config.pbtxt and ONNX files of every model, and the stages of every
    pipeline; `root` may be one ONNX file. Returns findings sorted by model, and raises nothing.
    Loads onnx."""
    try:
        repository = open_repository(root)
        listed = repository.scan()
    except RepositoryError as error:
        return [Finding("", Severity.ERROR, str(RepositoryError("", *error.problems)))]
    if not listed:
        return [Finding("", Severity.WARNING, repository.without_models())]
    findings = [finding for model in listed for finding in _model(model)]
    by_name = {model.name: model for model in listed}
    for listed_model in listed:
        if listed_model.pipeline is not None:
            findings += _pipeline(listed_model.pipeline, repository, by_name)
    settings = {model.name: model.definitions[0].settings for model in listed if model.definitions}
    for name, conflict in lane_conflicts(settings).items():
        message = f"{name}/{SETTINGS_FILE}: {conflict}"
        findings.append(Finding(name, Severity.ERROR, message))
    return sorted(findings, key=lambda finding: finding.model)


def _model(listed: ListedModel) -> Iterator[Finding]:
    if listed.problem is not None:
        yield Finding(listed.name, Severity.ERROR, str(listed.problem))
    for number, definition in enumerate(listed.definitions):
        if number == 0:  # the same for every version
            for warning in definition.warnings:
                yield Finding(listed.name, Severity.WARNING, warning)
        yield from _version(definition)


def _pipeline(
    pipeline: PipelineDefinition, repository: Repository, listed: Mapping[str, ListedModel]
) -> Iterator[Finding]:
    """Check a pipeline, except for its models."""
    stages: dict[str, StageTensors] = {}
    labels: dict[str, Sequence[str]] = {}
    problems: list[Problem] = []
    unknown = False
    for stage in pipeline.pipeline.stages:
        problem_text = repository.stage_model_problem(stage.model)
        listed_model = listed.get(stage.model)
        if not problem_text and (listed_model is None or not listed_model.definitions):
            problem_text = f"model {stage.model!r} cannot be served"
        elif listed_model is not None and not problem_text:
            model = listed_model.definitions[-1]  # the latest version answers
            try:
                with as_repository_error(model.where):
                    interface, metadata, _ = _declared(model_files(model)[0])
            except RepositoryError:
                problem_text = f"model {stage.model!r} cannot be served"
            else:
                labels[stage.name] = model.labels or names_in(metadata)
                unknown = unknown or interface is None
                family = model.settings.variants
                if interface is not None:
                    interface = any_size(interface) if model.any_image else interface
                    stages[stage.name] = StageTensors.of(interface, model.settings)
                stated = pipeline.settings.stages[stage.name].accuracy
                most = None
                if family is not None:  # unstated accuracies are unknown here
                    most = max(family.accuracy.get(variant, 1.0) for variant in family.names)
                problems += accuracy_problems(stage.name, stated, most)
        if problem_text:
            problems.append(Problem(f"stages.{stage.name}.model", problem_text))
    try:
        if problems:
            raise SettingsError(pipeline.where, *problems)
        pipeline = pipeline.with_labels(labels)
        if unknown:
            message = f"{pipeline.where}: could not check tensors of undeclared rank"
            yield Finding(pipeline.name, Severity.WARNING, message)
        else:
            pipeline_interface(pipeline, stages)
    except SettingsError as error:
        for problem in error.problems:
            message = f"{pipeline.where}: {problem}"
            yield Finding(pipeline.name, Severity.ERROR, message)


def _version(definition: ModelDefinition) -> Iterator[Finding]:
    first: tuple[ModelDefinition, ModelInterface] | None = None
    for file in model_files(definition):
        try:
            with as_repository_error(file.where):
                interface, metadata, hints = _declared(file)
                if interface is None:
                    message = "could not check inputs or outputs of undeclared rank"
                    yield Finding(file.name, Severity.WARNING, f"{file.where}: {message}")
                    continue
                for warning in check_interface(file, interface):
                    yield Finding(file.name, Severity.WARNING, warning)
                try:
                    SyntheticRows(interface, source_of(file))
                except ValueError as error:
                    raise ModelFileError(file.where, str(error)) from None
                if first is not None:
                    check_alike(file, interface, *first)
                first = first or (file, interface)
                yield from _pictures(file, interface, metadata, hints)
                yield from _texts(file, interface)
                yield from _head(file, interface, metadata, hints)
                yield from _positions(file)
        except RepositoryError as error:
            yield Finding(file.name, Severity.ERROR, str(error))
    variants = definition.settings.variants
    if variants is not None:
        measured = ProfileCache(ProfileStore()).accuracies(definition)
        accuracy, assumed = accuracies(variants, measured.by_name)
        dropped = worth_serving(accuracy, measured.differences)[1]
        for note in (*assumed, *dropped):
            message = f"{definition.name}/{SETTINGS_FILE}: {note}"
            yield Finding(definition.name, Severity.WARNING, message)


class _Hints(NamedTuple):
    """Facts in a file about its origin."""

    exporter: str = ""
    """Names of program and graph, in lower case."""
    probabilities: frozenset[str] = frozenset()
    """Outputs that a softmax makes."""


def _likely(spec: TensorSpec, metadata: dict[str, str], exporter: str) -> str:
    """The value of `image` that a file's origin suggests. Its owner should compare it with the
    training."""
    if preset := preset_for(metadata):
        return preset
    sides = spec.shape[1:3] if spec.shape[3] in (1, 3) else spec.shape[2:]
    if "paddle" in exporter and max(sides) < 0:
        return "paddleocr (pages), {preset: paddleocr, size: [48, 320]} (lines of text)"
    size = "" if min(sides) > 0 else ", size: [height, width]"
    likely = "imagenet" if any(name in exporter for name in ("paddle", "torch")) else "…"
    likely = "caffe or mobilenet" if spec.shape[3] in (1, 3) else likely
    choices = f"(preset: one of {', '.join(PRESETS)}, or state the keys)"
    return f"{{preset: {likely}{size}}} {choices}"


def _pictures(
    definition: ModelDefinition, interface: ModelInterface, metadata: dict[str, str], hints: _Hints
) -> Iterator[Finding]:
    """Yield a note on the setting that declares an input as pictures, if it looks like pictures."""
    settings = definition.settings
    if definition.preprocessing or settings.function or settings.before:
        return
    inputs = [spec for spec in interface.inputs if looks_like_pictures(spec)]
    if len(inputs) != 1:
        return
    (spec,) = inputs
    choice = _likely(spec, metadata, hints.exporter)
    name = f'"{spec.name}"' if ":" in spec.name else spec.name
    message = (
        f"input {spec.name!r}, {spec.datatype.wire_name} {list(spec.shape)}, looks like pictures; "
        f"to take JPEG and pixels of any size, state in {SETTINGS_FILE} (docs/images.md) "
        f"inputs.{name}.image: {choice}"
    )
    yield Finding(definition.name, Severity.NOTE, f"{definition.where}: {message}")


def _texts(definition: ModelDefinition, interface: ModelInterface) -> Iterator[Finding]:
    """Yield a note on the lines that let clients send text, if the inputs look like tokens."""
    names = {spec.name for spec in interface.inputs}
    settings = definition.settings
    if definition.text is not None or not {*ROLES[:2]} <= names or settings.masks:
        return
    message = (
        f"inputs {ROLES[0]!r} and {ROLES[1]!r} are those of a tokenizer; for text from clients add "
        "its tokenizer.json and, in "
        f"{SETTINGS_FILE} (docs/text.md), inputs: {{text: {{tokenizer: tokenizer.json}}}}"
    )
    vectors = [spec for spec in interface.outputs if len(spec.shape) == 3]
    if vectors and settings.pools is None:
        name = vectors[0].name
        message += f"; for a vector instead of {name!r} also pooling: mean (or cls, last) and "
        message += "normalize: true, as the model was trained"
    yield Finding(definition.name, Severity.NOTE, f"{definition.where}: {message}")


_DECODED_TASKS = {"detect": "yolo", "classify": "{as: softmax, probabilities: true}"}
"""Decoders for the tasks that Ultralytics writes into files."""


def _head(
    definition: ModelDefinition,
    interface: ModelInterface,
    metadata: Mapping[str, str],
    hints: _Hints,
) -> Iterator[Finding]:
    """Yield a note on the setting that decodes the outputs, if the file says what they are."""
    decoder = _DECODED_TASKS.get(metadata.get("task", ""))
    reason = f"the file's task is {metadata.get('task')!r}"
    if decoder is None and len(interface.outputs) == 1:
        (spec,) = interface.outputs
        if spec.name in hints.probabilities and len(spec.shape) == 2 and spec.shape[1] > 1:
            decoder = "{as: softmax, probabilities: true}"
            reason = f"output {spec.name!r} holds probabilities of {spec.shape[1]} classes"
    settings = definition.settings
    if decoder is not None and settings.decode is None and settings.function is None:
        labels = "" if names_in(metadata) or definition.label_file else ", and labels: FILE"
        message = (
            f"{reason}; to have raw outputs decoded, state decode: {decoder}{labels} in "
            f"{SETTINGS_FILE} (docs/decoders.md)"
        )
        yield Finding(definition.name, Severity.NOTE, f"{definition.where}: {message}")


def _positions(definition: ModelDefinition) -> Iterator[Finding]:
    """Yield the exit positions of a model whose settings state early exits."""
    name, where = definition.name, definition.where
    if definition.settings.exits is None or definition.own_exits:
        return
    try:
        file = OnnxFile(definition.model_path, definition.data_root)
        for position in positions_of(definition, file.model).positions:
            share = f"after {position.cost:.1%} of the multiplications"
            shape = f"{position.tensor}, {position.features} features"
            message = f"position {position.number}: {shape}, {share}"
            yield Finding(name, Severity.NOTE, f"{where}: {message}")
    except ExitError as error:
        message = f"{where}: early_exit: {error}; the model is served without early exits"
        yield Finding(name, Severity.WARNING, message)


def _declared(
    definition: ModelDefinition,
) -> tuple[ModelInterface | None, dict[str, str], _Hints]:
    """Return the interface that a model file declares (None if it is incomplete), its metadata, and
    hints. Raises ModelFileError."""
    function, variants = definition.settings.function, definition.settings.variants
    image = definition.preprocessing
    if function is not None:
        return function.interface(definition.settings.max_batch), {}, _Hints()
    try:
        file = OnnxFile(
            definition.model_path,
            definition.data_root,
            definition.outputs,
            definition.own_exits,
            definition.settings.expose,
        )
        file.check_rules()
        if domains := file.custom_domains():
            raise ModelError(f"operators of {', '.join(domains)} need a library that is not loaded")
        tokens = None if definition.text is None else definition.text.source
        one_row = image is not None or tokens is not None
        interface = file.interface(definition.settings.max_batch, one_row=one_row)
        file.check_vocabulary(tokens)
        if interface is not None:
            interface = make_pooler(definition.settings.pools, interface)[1]
        decode, outputs = definition.settings.decode, None
        specs = () if interface is None else interface.outputs
        spells = decode is not None and decode.spells
        labels = find_labels(
            definition.label_file, file.metadata, specs, decodes=decode is not None, spells=spells
        )
        if decode is not None and interface is not None:
            outputs = make_decoder(decode.source, interface, labels).outputs
        if image is not None and interface is not None:
            sizes = () if variants is None else variants.sizes
            interface = as_pictures(interface, file.preprocessing(image, interface, sizes))
        before, after = definition.settings.before, definition.settings.after
        if after is not None:
            outputs = after.source.tensors.outputs
        if outputs is not None and interface is not None:
            interface = replace(interface, outputs=outputs)
        if before is not None and interface is not None:
            interface = replace(interface, inputs=before.source.tensors.inputs)
        graph = file.model.graph
        hints = _Hints(f"{file.model.producer_name} {graph.name}".lower(), _probabilities(graph))
        return interface, file.metadata, hints
    except ModelError as error:
        raise ModelFileError(definition.where, str(error)) from None


def _probabilities(graph: Any) -> frozenset[str]:
    """Outputs of a graph that a softmax makes, as one node or written out as exp(x) ÷ sum."""
    producers = {name: node for node in graph.node for name in node.output}
    names = set()
    for output in graph.output:
        node = producers.get(output.name)
        while node is not None and node.op_type in ("Identity", "Cast"):
            node = producers.get(node.input[0])
        if node is not None and node.op_type == "Div":
            node = producers.get(node.input[0])
        if node is not None and node.op_type in ("Softmax", "Exp"):
            names.add(output.name)
    return frozenset(names)


async def try_loading(
    root: Path, cores: Sequence[int], *, skip: Collection[str] = ()
) -> list[Finding]:
    """Load each model except `skip` on these `cores`. Returns an error for each model that fails,
    and warnings about assumptions. Models share the cores in the order of their names, as at the
    start of a server. Raises RepositoryError if the folder cannot be read."""
    findings: list[Finding] = []
    fitting: dict[str, ModelSettings] = {}
    executor, profiles = ProcessExecutor(), ProfileCache(ProfileStore())
    try:
        for listed in open_repository(root).scan():
            if listed.name in skip or not listed.definitions:
                continue
            try:
                beside = {**fitting, listed.name: listed.definitions[0].settings}
                layout = assign_lanes(beside, cores)
                lane = layout.scaled_lane(listed.name)
                core_sets = [core_set or (0,) for core_set in layout.core_sets(listed.name)]
                counts = [len(core_set) for core_set in core_sets]
                files = (file for version in listed.definitions for file in model_files(version))
                for definition in files:
                    threads = () if lane is None else lane.threads(definition.settings)
                    source = source_of(definition, threads)
                    warnings = []
                    if source.image_sizes and profiles.find(definition, counts, threads) is None:
                        findings.append(Finding(listed.name, Severity.WARNING, _unmeasured(source)))
                    timing = partial(_timed, executor, threads=threads, core_sets=core_sets)
                    _, timed, note = await fastest(definition, timing)
                    findings += _notes(definition, note)
                    await _try_tokenizer(definition, timed.interface)
                    if timed.dependence:
                        warnings.append(dependence_warning(timed.dependence))
                    shapes = timed.record.shapes
                    if source.images:
                        source = replace(source, warmup_shapes=shapes)
                    warnings += assumptions_of(source, timed.interface, shapes, timed.guess)
                    for warning in warnings:
                        message = f"{definition.where}: {warning}"
                        findings.append(Finding(listed.name, Severity.WARNING, message))
            except (LaneError, RepositoryError) as error:
                message = f"{listed.name}/{SETTINGS_FILE}: {error}"
                findings.append(Finding(listed.name, Severity.ERROR, message))
            except (MeasuringError, OSError, MemoryError) as error:
                why = str(error) if isinstance(error, MeasuringError) else machine_reason(error)
                message = f"{definition.where}: {why}"
                findings.append(Finding(listed.name, Severity.ERROR, message))
            else:
                fitting = beside
    finally:
        await executor.close()
    return findings


def _notes(definition: ModelDefinition, note: str) -> list[Finding]:
    """A finding with this note, if there is one."""
    message = f"{definition.where}: {note}"
    return [Finding(definition.name, Severity.NOTE, message)] if note else []


async def _timed(
    executor: ProcessExecutor,
    definition: ModelDefinition,
    *,
    threads: tuple[int, ...],
    core_sets: Sequence[tuple[int, ...]],
) -> Measurement:
    """Measure a model briefly, and compare its answers with those of ONNX Runtime in fp32. Raises
    MeasuringError if it does not run, or its answers differ too much."""
    source = source_of(definition, threads)
    timed = await measure(
        executor,
        source,
        cores=core_sets,
        device=definition.settings.device,
        budget_s=_BUDGET_S,
        check_rows=True,
    )
    if source.differs and not timed.guess:
        agreement = await find_agreement(executor, source, cores=core_sets[-1], budget_s=_BUDGET_S)
        check_agreement(definition, agreement)
    return timed


async def _try_tokenizer(definition: ModelDefinition, interface: ModelInterface) -> None:
    """Open a model's tokenizer, if it has one. Raises ModelFileError."""
    if definition.text is not None:
        with contextlib.closing(TextInput(definition.text, interface)) as text:
            await text.start()


def _unmeasured(source: ModelSource) -> str:
    """Return a sentence about a family that has no profile of this machine."""
    how = "times are measured when the model is loaded"
    if len(source.image_sizes) > MOST_SIZES:
        how += f", at {MOST_SIZES} of {len(source.image_sizes)} sizes; the others are estimated"
        how += " from these"
    name = source.path.name
    return f"{source.name}/{source.version}/{name}: no profile of this machine; {how}"
