"""Pipelines that are loaded: which, of which loads of their models, and why one is not.

A pipeline names the very loads of its models that it was checked against, as requests do
(`LoadedVersion.pin`). Where one of them is loaded anew the pipeline is made anew, of the new load;
where one goes, or fits no more, the pipeline does not answer until it is there again. Frames that
are under way stay with the pipeline that they came to, and its loads stay until they have left.
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
from slacktide.models.repository.pipeline import PipelineDefinition, is_a_pipeline
from slacktide.models.versions import UNLOADED, Catalog, LoadedVersion, VersionState
from slacktide.planning import Stated
from slacktide.planning.pipelines import PlacedPipeline
from slacktide.wire.errors import ControlError

log = logging.getLogger("slacktide.models")

VERSION = "1"
"""Of every pipeline: its folder has none."""


@dataclass(frozen=True, slots=True)
class LoadedPipeline:
    """A pipeline whose models are loaded and fit: made anew whenever one of them is."""

    pipeline: Pipeline
    """Its stages name the loads of their models as versions."""
    interface: ModelInterface
    """What the source takes, and `STAGE.OUTPUT` of every stage; shapes are whole."""
    stages: Mapping[str, LoadedVersion]
    """By the stage's name."""
    slo: float | None = None
    """Seconds that a frame has that states nothing; None: it is best effort."""
    max_slo: float | None = None
    """Seconds that a frame has at most."""
    version: str = VERSION

    @property
    def name(self) -> str:
        return self.pipeline.name


class PipelineHost(Protocol):
    """Where frames come in."""

    def serve(self, loaded: LoadedPipeline) -> None:
        """It answers from now on; frames that are here end with the one before. It stands in the
        catalog under its name."""

    def withdraw(self, name: str, reason: str) -> None:
        """It does not answer any more, and the catalog says why."""


def accuracy_problems(stage: str, stated: float | None, most: float | None) -> Iterator[Problem]:
    """Why a stage cannot be as accurate as is stated, if it cannot. `most`: how accurate its best
    variant is; None: it has no variants."""
    message = "expected none, its model has no variants to choose among"
    if most is not None:
        message = f"expected at most {most:g}, the accuracy of its best variant"
    if stated is not None and (most is None or most < stated):
        yield Problem(f"stages.{stage}.accuracy", message)


class PipelineShelf:
    """The pipelines of one server, kept in step with its models."""

    def __init__(self, catalog: Catalog) -> None:
        self.host: PipelineHost | None = None
        """None: the server takes no frames, and no pipeline can be loaded."""
        self._catalog = catalog
        self._wanted: dict[str, PipelineDefinition] = {}
        self._loaded: dict[str, LoadedPipeline] = {}

    def knows(self, name: str) -> bool:
        """Whether it answers, or is to as soon as its models are there again."""
        return name in self._wanted

    def load(
        self,
        definition: PipelineDefinition,
        *,
        wait: bool = False,
        missing: Mapping[str, str] | None = None,
    ) -> None:
        """Have it answer, or answer anew. `missing`: why there are no such models, by name. Raises
        SettingsError, naming the key, if a model is not loaded or does not fit, and ControlError;
        then what answered before still does, and it is forgotten unless it is to `wait` for its
        models."""
        if self.host is None:
            raise ControlError("unavailable", "pipelines are not served here")
        try:
            loaded = self._made(definition, missing)
        except SettingsError:
            if wait:
                self._wanted[definition.name] = definition
            raise
        self._wanted[definition.name] = definition
        self._loaded[definition.name] = loaded
        self.host.serve(loaded)

    def unload(self, name: str) -> tuple[str, ...]:
        """It answers no more; its models stay. Those that no other pipeline needs."""
        models = self._wanted.pop(name).models
        self._withdraw(name, UNLOADED)
        needed = {model for pipeline in self._wanted.values() for model in pipeline.models}
        return tuple(model for model in models if model not in needed)

    def refresh(self) -> None:
        """Models have come or gone: make the pipelines anew that rest on them. Never raises."""
        for name, definition in self._wanted.items():
            stages = definition.pipeline.stages
            now = self._loaded.get(name)
            if now is not None and all(
                self._catalog.find(stage.model, None) is now.stages[stage.name] for stage in stages
            ):
                continue
            try:
                loaded = self._made(definition)
            except RepositoryError as error:
                if now is not None:
                    log.error("%s does not answer any more: %s", name, error)
                self._withdraw(name, str(error))
            else:
                self._loaded[name] = loaded
                if self.host is not None:
                    self.host.serve(loaded)

    def floors(self) -> dict[str, float]:
        """By model: how accurate its variants are to be; of several pipelines, the most."""
        floors: dict[str, float] = {}
        for name in self._loaded:
            for stated in self._wanted[name].settings.stages.values():
                if stated.accuracy is not None:
                    floors[stated.model] = max(stated.accuracy, floors.get(stated.model, 0.0))
        return floors

    def stated(self) -> Stated:
        """What planners that place pipelines are to know. Those whose frames may take as long as
        they like are not placed."""
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

    def _made(
        self, definition: PipelineDefinition, missing: Mapping[str, str] | None = None
    ) -> LoadedPipeline:
        """Of the loads that there are. Raises SettingsError."""
        stages: dict[str, LoadedVersion] = {}
        problems = []
        for stage in definition.pipeline.stages:
            model = stage.model
            if self.knows(model) or model == definition.name:
                message = is_a_pipeline(model)
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
        models = {
            name: StageTensors(version.interface, version.definition.settings.masks)
            for name, version in stages.items()
        }
        interface = pipeline_interface(definition, models)
        settings, pipeline = definition.settings, definition.pipeline
        pinned = tuple(replace(stage, version=stages[stage.name].pin) for stage in pipeline.stages)
        return LoadedPipeline(
            replace(pipeline, stages=pinned), interface, stages, settings.slo, settings.max_slo
        )
