"""`PipelineShelf`: loaded pipelines, and the reasons why others are not loaded.

A pipeline names the loaded versions against which it was checked (`LoadedVersion.pin`). If a model
is reloaded, the pipeline is rebuilt from its new version. If a model is unloaded or no longer fits,
the pipeline stops answering until the model is back. Frames in flight stay with the pipeline object
that took them, which keeps its models loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from slacktide.domain.pipelines import Pipeline
from slacktide.domain.tensors import ModelInterface
from slacktide.models.pipeline_interface import StageTensors, pipeline_interface
from slacktide.models.repository.errors import Problem, RepositoryError, SettingsError
from slacktide.models.repository.pipeline import PipelineDefinition, pipeline_as_model
from slacktide.models.versions import UNLOADED, Catalog, LoadedVersion, VersionState
from slacktide.planning import Stated
from slacktide.planning.pipelines import PlacedPipeline
from slacktide.wire.errors import ControlError

log = logging.getLogger("slacktide.models")

VERSION = "1"
"""Version of every pipeline, since its folder has no versions."""


@dataclass(frozen=True, slots=True)
class LoadedPipeline:
    """A pipeline whose models are loaded and fit together; rebuilt when a model is reloaded."""

    pipeline: Pipeline
    """Its stages name loaded versions (`LoadedVersion.pin`)."""
    interface: ModelInterface
    """Inputs of the source, and `STAGE.OUTPUT` of every stage; shapes include the batch axis."""
    stages: Mapping[str, LoadedVersion]
    """Loaded versions by stage."""
    tensors: Mapping[str, StageTensors]
    """Their inputs and outputs, by stage."""
    slo: float | None = None
    """Deadline of frames that state none, seconds; None: best effort."""
    max_slo: float | None = None
    """Longest deadline of a frame, seconds."""
    version: str = VERSION

    @property
    def name(self) -> str:
        return self.pipeline.name


class PipelineHost(Protocol):
    """Serves pipelines to clients."""

    def serve(self, loaded: LoadedPipeline) -> None:
        """Answer with this pipeline from now on. Frames in flight stay with the previous
        pipeline."""

    def withdraw(self, name: str, reason: str) -> None:
        """Stop answering for this pipeline; the catalog states the reason."""


def accuracy_problems(stage: str, stated: float | None, most: float | None) -> Iterator[Problem]:
    """Yield a problem if a stage cannot be as accurate as stated. `most`: accuracy of its best
    variant; None: it has no variants."""
    message = "not allowed: the model has no variants"
    if most is not None:
        message = f"expected at most {most:g}, the accuracy of the best variant"
    if stated is not None and (most is None or most < stated):
        yield Problem(f"stages.{stage}.accuracy", message)


class PipelineShelf:
    """The pipelines of one server, kept up to date with its models."""

    def __init__(self, catalog: Catalog) -> None:
        self.host: PipelineHost | None = None
        """None: pipelines cannot be loaded."""
        self._catalog = catalog
        self._definitions: dict[str, PipelineDefinition] = {}
        self._loaded: dict[str, LoadedPipeline] = {}

    def knows(self, name: str) -> bool:
        """Whether a pipeline of this name answers, or will once its models are loaded."""
        return name in self._definitions

    def load(
        self,
        definition: PipelineDefinition,
        *,
        wait: bool = False,
        missing: Mapping[str, str] | None = None,
    ) -> None:
        """Load or reload a pipeline. `missing`: why models do not exist, by name. Raises
        ControlError, and SettingsError naming the key if a model is not loaded or does not fit;
        then the old pipeline still answers. With `wait` the new one is loaded once its models
        fit."""
        if self.host is None:
            raise ControlError("unavailable", "this server does not serve pipelines")
        try:
            loaded = self._build(definition, missing)
        except SettingsError:
            if wait:
                self._definitions[definition.name] = definition
            raise
        self._definitions[definition.name] = definition
        self._loaded[definition.name] = loaded
        self.host.serve(loaded)

    def unload(self, name: str) -> tuple[str, ...]:
        """Stop a pipeline. Returns its models that no other pipeline needs."""
        models = self._definitions.pop(name).models
        self._withdraw(name, UNLOADED)
        needed = {model for pipeline in self._definitions.values() for model in pipeline.models}
        return tuple(model for model in models if model not in needed)

    def refresh(self) -> None:
        """Rebuild pipelines whose models were loaded, reloaded or unloaded. Never raises."""
        for name, definition in self._definitions.items():
            stages = definition.pipeline.stages
            now = self._loaded.get(name)
            if now is not None and all(
                self._catalog.find(stage.model, None) is now.stages[stage.name] for stage in stages
            ):
                continue
            try:
                loaded = self._build(definition)
            except RepositoryError as error:
                if now is not None:
                    log.error("pipeline %s is unavailable: %s", name, error)
                self._withdraw(name, str(error))
            else:
                self._loaded[name] = loaded
                if self.host is not None:
                    self.host.serve(loaded)

    def floors(self) -> dict[str, float]:
        """Return the minimum accuracy that pipelines require of variants, by model."""
        floors: dict[str, float] = {}
        for name in self._loaded:
            for stated in self._definitions[name].settings.stages.values():
                if stated.accuracy is not None:
                    floors[stated.model] = max(stated.accuracy, floors.get(stated.model, 0.0))
        return floors

    def stated(self) -> Stated:
        """Return the pipelines to place: those with an `slo`."""
        return {
            name: PlacedPipeline(
                {stage.name: stage.model for stage in loaded.pipeline.stages}, loaded.pipeline
            )
            for name, loaded in self._loaded.items()
            if loaded.pipeline.slo is not None
        }

    def _withdraw(self, name: str, reason: str) -> None:
        if self._loaded.pop(name, None) is not None and self.host is not None:
            self.host.withdraw(name, reason)
        else:
            self._catalog.mark_absent(name, VERSION, VersionState.UNAVAILABLE, reason)

    def _build(
        self, definition: PipelineDefinition, missing: Mapping[str, str] | None = None
    ) -> LoadedPipeline:
        """Build a pipeline from the versions that its models have now. Raises SettingsError."""
        stages: dict[str, LoadedVersion] = {}
        problems = []
        for stage in definition.pipeline.stages:
            model = stage.model
            if self.knows(model) or model == definition.name:
                message = pipeline_as_model(model)
            elif (loaded := self._catalog.find(model, None)) is not None:
                stages[stage.name] = loaded
                continue
            else:
                why = self._catalog.absence(model, None)
                message = f"model {model!r} is not loaded"
                message += f": {why}" if why and why != UNLOADED else ""
                message = (missing or {}).get(model, message)
            problems.append(Problem(f"stages.{stage.name}.model", message))
        for name, version in stages.items():
            family, stated = version.family, definition.settings.stages[name].accuracy
            most = None if family is None else max(v.accuracy for v in family.variants)
            problems += accuracy_problems(name, stated, most)
        if problems:
            raise SettingsError(definition.where, *problems)
        tensors = {
            name: StageTensors.of(version.interface, version.definition.settings)
            for name, version in stages.items()
        }
        labels = {name: version.labels for name, version in stages.items()}
        definition = definition.with_labels(labels)
        interface = pipeline_interface(definition, tensors)
        settings, pipeline = definition.settings, definition.pipeline
        pinned = tuple(
            replace(
                stage,
                version=stages[stage.name].pin,
                sees_frame=bool(tensors[stage.name].frame),
            )
            for stage in pipeline.stages
        )
        graph = replace(pipeline, stages=pinned)
        return LoadedPipeline(graph, interface, stages, tensors, settings.slo, settings.max_slo)
