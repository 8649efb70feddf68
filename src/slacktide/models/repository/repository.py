"""`Repository`: a folder of model folders, read into definitions.

    REPOSITORY/
      tiny_mlp/                 a model, named after its folder
        slacktide.yaml          optional
        config.pbtxt            optional
        1/model.onnx            a version; the highest is served by default
        1/profile.….json        written by the profiler
      traffic/                  a pipeline of models
        pipeline.yaml

A broken model does not stop the others: `scan` lists it with its problem. Nothing here opens an
ONNX file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slacktide.domain.options import OptionError
from slacktide.domain.preprocessing import StatedPreprocessing
from slacktide.domain.suggestions import escaped, shown, suggestion
from slacktide.executors.decoders.labels import MOST_LABEL_BYTES, parse_labels
from slacktide.executors.tokenizer_file import MOST_TOKENIZER_BYTES, tokenizer_facts
from slacktide.exits.own_exits import OwnExit
from slacktide.models.repository.errors import (
    FolderError,
    NotFoundError,
    Problem,
    RepositoryError,
    SettingsError,
    as_repository_error,
)
from slacktide.models.repository.paths import (
    PathKind,
    check_name,
    is_name,
    is_version,
    read_bounded,
    resolve,
    unreadable,
)
from slacktide.models.repository.pipeline import (
    PIPELINE_FILE,
    PipelineDefinition,
    parse_pipeline,
    pipeline_as_model,
)
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.repository.settings_file import (
    MAX_SETTINGS_BYTES,
    SETTINGS_FILE,
    merge,
    parse_settings,
    warn_unused,
)
from slacktide.models.repository.text import DeclaredText, with_text
from slacktide.models.repository.triton.messages import (
    CONFIG_FILE,
    MAX_CONFIG_BYTES,
    line_of_gpu,
    parse_json,
    parse_text,
)
from slacktide.models.repository.triton.translate import translate
from slacktide.models.repository.yaml_text import parse_yaml_lines


@dataclass(frozen=True, slots=True)
class ModelDefinition:
    """A version to serve. Its files were found and read, but the model was not run."""

    name: str
    version: str
    folder: Path
    """Folder of its profile, if writable: the version's folder with links followed, or a folder
    below the state folder for a single file."""
    model_path: Path
    """The model file, in a folder without links. The file may be a link to a file inside the
    repository. For a function, the file that names it."""
    settings: ModelSettings
    """Settings in effect: slacktide.yaml over config.pbtxt over the defaults."""
    config: Mapping[str, Any]
    """Plain data of config.pbtxt or the load call's `config`; empty if there is none."""
    warnings: tuple[str, ...] = ()
    """Sentences for the log, once per model."""
    single_file: bool = False
    """Whether the model is a single file. Most other files next to it do not belong to it."""
    samples: Path | None = None
    """The .npz file that `samples` names, links followed."""
    sample_rows: Mapping[str, Path] = field(default_factory=dict)
    """Files of `samples.rows`, by input."""
    text: DeclaredText | None = None
    """The input whose texts a tokenizer turns into inputs of the file."""
    label_file: Path | None = None
    """The file that `labels` names, links followed."""
    labels: tuple[str, ...] = ()
    """Names in that file."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Model files by variant, unless variants are `sizes`. The first file is `model_path`."""
    device_origin: str = ""
    """File, line and key that select a GPU; empty on the CPU."""
    variant: str = ""
    """Variant that this definition describes (`of_variant`); empty: the whole model."""

    def of_variant(self, name: str) -> ModelDefinition:
        """Return the definition of one variant."""
        if name not in self.files:
            return replace(self, variant=name)
        assert self.settings.variants is not None
        stated = self.settings.variants.files.get(name)
        decode = None if stated is None else stated.decode
        backend = None if stated is None else stated.backend
        precision = None if stated is None else stated.precision
        if name in self.settings.variants.precisions:
            precision = name
        update = {
            "file": self.settings.file if stated is None else stated.file,
            "decode": decode or self.settings.decode,
            "backend": backend or self.settings.backend,
            "precision": precision or self.settings.precision,
        }
        settings = self.settings.model_copy(update=update)
        return replace(self, variant=name, model_path=self.files[name], settings=settings)

    def with_backend(self, name: str) -> ModelDefinition:
        """Return the definition with another `backend`."""
        return replace(self, settings=self.settings.model_copy(update={"backend": name}))

    @property
    def image_size(self) -> int:
        """Side in pixels of the variant's images; 0: as in its file."""
        return int(self.variant) if self.variant and not self.files else 0

    @property
    def preprocessing(self) -> StatedPreprocessing | None:
        """How pictures become an input of the file; None if that is not declared."""
        variants = self.settings.variants
        stated = None if variants is None else variants.files.get(self.variant)
        if stated is not None and stated.image is not None:
            return stated.image.stated("")
        return self.settings.preprocessing

    @property
    def any_image(self) -> bool:
        """Whether clients may send images of any size, which are resized."""
        return self.settings.variants is not None or self.settings.preprocessing is not None

    @property
    def own_exits(self) -> tuple[OwnExit, ...]:
        """The early exits that the model itself has, front to end."""
        stated = self.settings.early_exit
        return () if stated is None else stated.own_exits

    @property
    def outputs(self) -> dict[str, str]:
        """Clients' names of outputs by their names in the file, for a depth or a model with its own
        exits; empty: all outputs under their own names."""
        variants = self.settings.variants
        if self.own_exits:
            return {name: name for name in self.own_exits[0].outputs}
        if variants is not None and self.variant in variants.files:
            names = variants.files[self.variant].output_names
            return {output: name for name, output in names.items()}
        if variants is None or self.variant not in variants.depths:
            return {}
        named = tuple(variants.depths.values())[-1]
        return dict(zip(variants.depths[self.variant], named, strict=True))

    @property
    def where(self) -> str:
        """The model file relative to the repository, for messages."""
        if self.single_file:
            return self.model_path.name
        if self.settings.function is not None:
            return f"{self.name}/{self.model_path.name}"
        return f"{self.name}/{self.version}/{self.settings.file}"

    @property
    def path(self) -> Path:
        """Path that `slacktide profile` takes: the model's folder, or the single file."""
        if self.single_file:
            return self.model_path
        is_function = self.settings.function is not None
        return self.model_path.parent if is_function else self.model_path.parent.parent

    @property
    def data_root(self) -> Path:
        """Folder of the model file, links followed."""
        return self.model_path.resolve().parent

    @property
    def client_shapes(self) -> dict[str, tuple[int, ...]]:
        """Row shapes that clients may send instead of the model's, by input: `dims` beside
        `reshape` in config.pbtxt."""
        stated = self.config.get("input", [])
        return {
            tensor["name"]: tuple(tensor.get("dims", ()))
            for tensor in stated
            if "reshape" in tensor
        }

    @property
    def warmup_shapes(self) -> dict[str, tuple[int, ...]]:
        """Stated typical shapes by input, without the batch axis; −1: open."""
        stated = self.settings.inputs.items()
        return {
            name: spec.shapes[0] if spec.shape is None else spec.shape
            for name, spec in stated
            if spec.shape is not None or spec.shapes
        }

    @property
    def more_shapes(self) -> tuple[dict[str, tuple[int, ...]], ...]:
        """Further shapes to profile, each as `warmup_shapes`."""
        stated = {name: spec.shapes for name, spec in self.settings.inputs.items() if spec.shapes}
        return tuple(
            dict(zip(stated, together, strict=True))
            for together in zip(*stated.values(), strict=True)
        )

    @property
    def values(self) -> dict[str, bool | int | float | str]:
        """Constants by input, for warm-up and profiling."""
        inputs = self.settings.inputs
        return {name: spec.value for name, spec in inputs.items() if spec.value is not None}


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A scanned folder: its definitions, its pipeline, or its problem."""

    name: str
    definitions: tuple[ModelDefinition, ...] = ()
    """The versions to serve, in ascending order."""
    problem: RepositoryError | None = None
    pipeline: PipelineDefinition | None = None


class Repository:
    """The models under one folder. It has no state: every call reads the files."""

    _single_file = False

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> tuple[str, ...]:
        """Return the sorted names of model folders, valid or not. Leaves out plain files, hidden
        folders, and folders that start with `_` or lack any sign of a model. Raises FolderError and
        UnreadableError."""
        names = tuple(sorted(self._entries()))
        self._refuse_bare_model(names)
        return names

    def scan(self) -> tuple[ListedModel, ...]:
        """Return every model with its definitions or its problem. Raises the errors of `names`."""
        return tuple(self._list(name) for name in self.names())

    def read(
        self, model: str, *, config_override: str | None = None
    ) -> tuple[ModelDefinition, ...]:
        """Return the versions of `model` to serve, one or more, ascending. `config_override`: the
        `config` of a load call (JSON), instead of config.pbtxt. Raises RepositoryError."""
        folder = self._model_folder(model)
        if self._has(model, PIPELINE_FILE):
            raise FolderError(model, f"expected a model, got a pipeline (it holds {PIPELINE_FILE})")
        own_where, config_where = f"{model}/{SETTINGS_FILE}", f"{model}/{CONFIG_FILE}"
        document = self._optional(model, SETTINGS_FILE, MAX_SETTINGS_BYTES, parse_settings)
        if config_override is not None:
            config_where = f"{model}: parameter 'config'"
            config = parse_json(config_override, where=config_where)
        else:
            config = self._optional(model, CONFIG_FILE, MAX_CONFIG_BYTES, parse_text)
        translation = translate(config, model=model, where=config_where)
        settings = merge(document, translation, own_where=own_where, config_where=config_where)
        unused = warn_unused(settings, translation, where=config_where)
        origin = "" if settings.on_cpu else self._device_origin(model, document, config_where)
        variants = settings.variants
        stated = variants is not None and bool(variants.files)
        files = {} if variants is None else variants.model_files(settings.file)
        if stated:
            settings = settings.model_copy(update={"file": next(iter(files.values()))})
        available = tuple(self._versions(model, folder))
        function_file = SETTINGS_FILE if "function" in document else CONFIG_FILE
        if settings.function is not None and available:
            unused += _unread(f"{model}/{available[0]}", settings.function.name, function_file)
        chosen = ("1",) if settings.function else settings.versions.choose(available)
        if not chosen:
            advice = _advice(model, folder)
            expected = "expected a version folder such as '1', found none"
            raise NotFoundError(model, expected + advice)
        texts = self._texts(model, chosen, settings, own_where)
        label_files = {
            version: self._beside(model, version, "labels", settings.labels) for version in chosen
        }
        return tuple(
            ModelDefinition(
                model,
                version,
                *(
                    (folder, resolve(self.root, model, function_file, kind=PathKind.FILE))
                    if settings.function
                    else self._place(model, version, settings.file, stated=stated)
                ),
                settings=with_text(settings, texts.get(version)),
                config=config,
                device_origin=origin,
                warnings=translation.warnings + unused,
                single_file=self._single_file,
                samples=self._beside(model, version, "samples", settings.samples.file),
                sample_rows={
                    name: path
                    for name, file in settings.samples.rows.items()
                    if (path := self._beside(model, version, "samples", file, "warmup")) is not None
                },
                text=texts.get(version),
                label_file=label_files[version],
                labels=self._labels(label_files[version], own_where, config, settings),
                files={
                    name: self._place(model, version, file, stated=stated)[1]
                    for name, file in files.items()
                },
            )
            for version in chosen
        )

    def pipeline(self, name: str) -> PipelineDefinition | None:
        """Return the pipeline of this name; None if it is a model. Raises RepositoryError."""
        folder = self._model_folder(name)
        if not self._has(name, PIPELINE_FILE):
            return None
        where = f"{name}/{PIPELINE_FILE}"
        for file in (SETTINGS_FILE, CONFIG_FILE):
            if self._has(name, file):
                raise FolderError(f"{name}/{file}", f"not allowed with {PIPELINE_FILE}")
        if versions := sorted(self._versions(name, folder)):
            expected = f"not allowed with {PIPELINE_FILE}: a pipeline has no versions"
            raise FolderError(f"{name}/{versions[0]}", expected)
        with as_repository_error(where):
            real = resolve(self.root, name, PIPELINE_FILE, kind=PathKind.FILE)
            data = read_bounded(real, MAX_SETTINGS_BYTES, where=where)
            settings = parse_pipeline(data, where=where)
            return PipelineDefinition(name, settings, settings.pipeline(name))

    def stage_model_problem(self, name: str) -> str:
        """Return why a pipeline's stage cannot refer to `name`; empty for any model, even a broken
        one. Raises the errors of `names`."""
        if self._has(name, PIPELINE_FILE):
            return pipeline_as_model(name)
        names = self.names()
        if name in names:
            return ""
        models = [candidate for candidate in names if not self._has(candidate, PIPELINE_FILE)]
        hint = suggestion(name, models, noun="known")
        return f"there is no model {name!r} in the repository; {hint}"

    def _device_origin(self, model: str, document: Mapping[str, Any], config_where: str) -> str:
        """Return the place that states a GPU, such as `m/config.pbtxt, line 4, instance_group`."""
        key = next((key for key in ("device", "providers") if key in document), "")
        if not key and config_where != f"{model}/{CONFIG_FILE}":
            return f"{config_where}, instance_group"
        where = f"{model}/{SETTINGS_FILE if key else CONFIG_FILE}"
        real = resolve(self.root, *where.split("/"), kind=PathKind.FILE)
        data = read_bounded(real, MAX_CONFIG_BYTES, where=where)
        line = parse_yaml_lines(data.decode("utf-8-sig"))[1][(key,)] if key else line_of_gpu(data)
        return f"{where}, line {line}, {key or 'instance_group'}"

    def _has(self, name: str, file: str) -> bool:
        return os.path.lexists(self.root / name / file)

    def _place(
        self, model: str, version: str, file: str, *, stated: bool = False
    ) -> tuple[Path, Path]:
        """Return a version's folder and model file. `stated`: whether settings name the file."""
        folder = resolve(self.root, model, version, kind=PathKind.FOLDER)
        try:
            resolve(self.root, model, version, file, kind=PathKind.FILE)
            return folder, folder / file
        except NotFoundError as error:
            onnx_files = _onnx(folder)
            if stated or not onnx_files or os.path.lexists(folder / file):
                raise
            advice = f"rename {shown(onnx_files[0])} to {file}"
            if is_name(onnx_files[0]):
                advice += f", or state 'file: {onnx_files[0]}' in {model}/{SETTINGS_FILE}"
            raise NotFoundError(error.where, f"no such file; {advice}") from None

    def _texts(
        self, model: str, versions: Sequence[str], settings: ModelSettings, where: str
    ) -> dict[str, DeclaredText]:
        """Return the text input of each version, if there is one, with the facts of its tokenizer's
        file. Raises RepositoryError."""
        texts: dict[str, DeclaredText] = {}
        for version in versions if settings.text else ():
            assert settings.text is not None
            name, section = settings.text
            key = f"inputs.{name}.tokenizer"
            path = self._beside(model, version, key, section.tokenizer)
            assert path is not None
            data = read_bounded(path, MOST_TOKENIZER_BYTES, where=f"{model}/{section.tokenizer}")
            try:
                facts = tokenizer_facts(data)
            except ValueError as error:
                raise SettingsError(where, Problem(key, f"{section.tokenizer}: {error}")) from None
            texts[version] = DeclaredText.of(name, section, facts, path, settings.limits.text)
        return texts

    def _labels(
        self, path: Path | None, where: str, config: Mapping[str, Any], settings: ModelSettings
    ) -> tuple[str, ...]:
        """Return the labels of the model. Raises SettingsError, also if settings name classes that
        are no labels."""
        labels = self._read_labels(path, where, config, settings)
        try:
            if settings.exits is not None:
                settings.exits.class_numbers(labels)
        except OptionError as error:
            ((field, problem),) = error.problems
            raise SettingsError(where, Problem(f"early_exit.{field}", problem)) from None
        return labels

    def _read_labels(
        self, path: Path | None, where: str, config: Mapping[str, Any], settings: ModelSettings
    ) -> tuple[str, ...]:
        """Return the labels in the stated file, else in the file that config.pbtxt names, if it is
        readable; none if labels are characters. Raises SettingsError."""
        if settings.decode is not None and settings.decode.spells:
            return ()
        try:
            if path is not None:
                return parse_labels(read_bounded(path, MOST_LABEL_BYTES, where=where))
        except ValueError as error:
            raise SettingsError(where, Problem("labels", str(error))) from None
        names = {tensor.get("label_filename") for tensor in config.get("output", [])} - {None, ""}
        if len(names) != 1:
            return ()
        file = (where.partition("/")[0], names.pop())
        with suppress(RepositoryError, ValueError):  # Triton reads other files too
            label_path = resolve(self.root, *file, kind=PathKind.FILE)
            return parse_labels(read_bounded(label_path, MOST_LABEL_BYTES, where=where))
        return ()

    def _beside(
        self, model: str, version: str, key: str, file: str | None, *below: str
    ) -> Path | None:
        """Return a file that `key` names, in the folder of the version or the model, or in
        `below`."""
        if file is None:
            return None
        folders = [(model, version), (model,), *((model, folder) for folder in below)]
        for folder in folders:
            if os.path.lexists(self.root.joinpath(*folder, file)):
                return resolve(self.root, *folder, file, kind=PathKind.FILE)
        places = " or ".join("/".join(folder) for folder in folders)
        raise NotFoundError(model, f"{key}: expected a file {file!r} in {places}, found none")

    def _list(self, name: str) -> ListedModel:
        try:
            with as_repository_error(name):
                if (pipeline := self.pipeline(name)) is not None:
                    return ListedModel(name, pipeline=pipeline)
                return ListedModel(name, self.read(name))
        except RepositoryError as problem:
            return ListedModel(name, problem=problem)

    def _entries(self) -> Iterator[str]:
        try:
            for entry in self.root.iterdir():
                # List broken links so that they are reported.
                if (
                    entry.name[0] not in "._"
                    and not os.path.isfile(entry)
                    and _may_be_a_model(entry)
                ):
                    yield escaped(entry.name)
        except FileNotFoundError:
            raise NotFoundError("", "expected a repository folder, found none") from None
        except NotADirectoryError:
            raise FolderError("", "expected a repository folder, got a file") from None
        except OSError as error:
            raise unreadable("", error) from None

    def _refuse_bare_model(self, names: tuple[str, ...]) -> None:
        """Raise FolderError if the root is the folder of a model or version, a common mistake."""
        files = [SETTINGS_FILE, CONFIG_FILE, PIPELINE_FILE, "model.onnx"]
        signs = [name for name in files if os.path.exists(self.root / name)]
        versions = (name for name in names if is_version(name))
        signs += [v for v in versions if os.path.exists(self.root / v / "model.onnx")]
        if not signs:
            return
        if "model.onnx" in signs:
            advice = "move it to NAME/1/model.onnx, or name the file itself to serve only that file"
        else:
            advice = "serve its parent folder"
        raise FolderError("", f"this is a model's folder (it holds {signs[0]}): {advice}")

    def _model_folder(self, model: str) -> Path:
        check_name(model)
        try:
            return resolve(self.root, model, kind=PathKind.FOLDER)
        except NotFoundError:
            if os.path.lexists(self.root / model):  # a broken link
                raise
            raise self._unknown(model) from None

    def _unknown(self, model: str) -> NotFoundError:
        names = (name for name in self.names() if is_name(name))
        return NotFoundError("", f"no model {model!r}; {suggestion(model, names, noun='known')}")

    def _optional(
        self, model: str, file: str, limit: int, parse: Callable[..., Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Parse a file; empty if there is none."""
        where = f"{model}/{file}"
        with as_repository_error(where):
            try:
                real = resolve(self.root, model, file, kind=PathKind.FILE)
            except NotFoundError:
                if os.path.lexists(self.root / model / file):  # a broken link
                    raise
                return {}
            return parse(read_bounded(real, limit, where=where), where=where)

    def _versions(self, model: str, folder: Path) -> Iterator[str]:
        """Yield version folders and skip others, as Triton does."""
        try:
            yield from (e.name for e in folder.iterdir() if is_version(e.name) and not e.is_file())
        except OSError as error:
            raise unreadable(model, error) from None

    def without_models(self) -> str:
        """Return the message for a repository without models."""
        examples = [shown(name) for name in _onnx(self.root)[:1]]
        advice = "".join(f"; move {path} there, or serve only that file" for path in examples)
        return f"no models: expected folders such as NAME/1/model.onnx{advice}"


def _advice(model: str, folder: Path) -> str:
    """Return a hint for a model's folder without versions."""
    for name in _onnx(folder):
        if is_version(model):
            return f"; if {model} is a version folder, serve the folder that contains its model"
        return f"; move {shown(name)} to {model}/1/model.onnx"
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if _onnx(path / "1"):
                return f"; {model} contains models itself, such as {shown(f'{model}/{path.name}')}"
    return ""


_SIGNS = frozenset({".onnx", ".pbtxt", ".yaml", ".yml"})
"""Endings of files that suggest a model, valid or not."""


def _unread(folder: str, function: str, named_in: str) -> tuple[str, ...]:
    """Return a warning about a version's folder beside a function. Triton needs such a folder;
    raises FolderError if the function is not named in Triton's file."""
    if named_in == SETTINGS_FILE:
        where = f"{folder.partition('/')[0]}/{SETTINGS_FILE}"
        raise FolderError(folder, f"not allowed with 'function' in {where}")
    return (f"{folder}: is not read, since the registered {function!r} answers",)


def _may_be_a_model(folder: Path) -> bool:
    """Whether a folder counts as a model, valid or not. Links count. Empty or unreadable folders
    count if their name is valid, unlike `lost+found`. Other folders need a sign of a model."""
    if folder.is_symlink():
        return True
    try:
        names = os.listdir(folder)
    except OSError:
        return is_name(folder.name)
    below = (name for name in names if (folder / name).is_dir())
    return (
        any(is_version(name) or Path(name).suffix.lower() in _SIGNS for name in names)
        or any(_onnx(folder / name) or (folder / name / "1").is_dir() for name in below)
        or (not names and is_name(folder.name))
    )


def _onnx(folder: Path) -> list[str]:
    """Return the names of ONNX files in a folder, for hints."""
    try:
        return sorted(e.name for e in folder.iterdir() if e.suffix == ".onnx" and e.is_file())
    except OSError:
        return []
