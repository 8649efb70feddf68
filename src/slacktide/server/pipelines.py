"""`PipelineService`: which pipelines answer, in the catalog and to the machine above the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable

from slacktide.domain.frames import PipelinesChanged
from slacktide.models.calls.model_counters import ModelCounters
from slacktide.models.pipeline_version import PipelineVersion
from slacktide.models.pipelines import LoadedPipeline
from slacktide.models.versions import Catalog, VersionState

log = logging.getLogger("slacktide.models")


class PipelineService:
    """The `PipelineHost` of a server. Belongs to its loop."""

    def __init__(self, catalog: Catalog, post: Callable[[PipelinesChanged], None]) -> None:
        self._catalog = catalog
        self._post = post
        self._serving: dict[str, PipelineVersion] = {}
        self._counters: dict[str, ModelCounters] = {}
        """They never fall: a pipeline that comes back goes on where it was."""
        self._loads = 0
        self._next_number = 1
        """By which replicas are to know the next arena of frames."""

    def serve(self, loaded: LoadedPipeline) -> None:
        """It answers from now on; frames that are here end with the one before."""
        self._loads += 1
        before = self._serving.get(loaded.name)
        counters = self._counters.setdefault(loaded.name, ModelCounters())
        version = PipelineVersion.of(loaded, self._loads, counters)
        self._next_number = version.attach_frames(self._next_number)
        self._serving[loaded.name] = version
        self._catalog.serve(loaded.name, {version.version: version})
        if before is not None:
            before.withdraw()
        self._tell()
        log.info("pipeline %s is ready (%s)", loaded.name, ", ".join(loaded.pipeline.order))

    def withdraw(self, name: str, reason: str) -> None:
        """It does not answer any more, and the index says why. Of no effect where it did not."""
        version = self._serving.pop(name, None)
        if version is None:
            return
        self._catalog.serve(name, {})
        self._catalog.mark_absent(name, version.version, VersionState.UNAVAILABLE, reason)
        version.withdraw()
        self._tell()

    def _tell(self) -> None:
        self._post(PipelinesChanged(tuple(version.pipeline for version in self._serving.values())))
