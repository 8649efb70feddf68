"""`PipelineService`: starts and ends the service of pipelines."""

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
    """The `PipelineHost` of a server: tells catalog and engine which pipelines answer."""

    def __init__(self, catalog: Catalog, post: Callable[[PipelinesChanged], None]) -> None:
        self._catalog = catalog
        self._post = post
        self._serving: dict[str, PipelineVersion] = {}
        self._counters: dict[str, ModelCounters] = {}
        """Counters by pipeline. They are kept across reloads, so that they never fall."""
        self._loads = 0
        self._next_number = 1
        """Number that replicas will use for the next arena of frames."""

    def serve(self, loaded: LoadedPipeline) -> None:
        """Answer with this pipeline from now on. Frames in flight stay with the previous
        pipeline."""
        self._loads += 1
        before = self._serving.get(loaded.name)
        counters = self._counters.setdefault(loaded.name, ModelCounters())
        version = PipelineVersion.of(loaded, self._loads, counters)
        self._next_number = version.attach_frames(self._next_number)
        self._serving[loaded.name] = version
        self._catalog.serve(loaded.name, {version.version: version})
        if before is not None:
            before.withdraw()
        self._publish()
        log.info("pipeline %s is ready (%s)", loaded.name, ", ".join(loaded.pipeline.order))

    def withdraw(self, name: str, reason: str) -> None:
        """Stop serving a pipeline; the index states the reason. No effect if it is not served."""
        version = self._serving.pop(name, None)
        if version is None:
            return
        self._catalog.serve(name, {})
        self._catalog.mark_absent(name, version.version, VersionState.UNAVAILABLE, reason)
        version.withdraw()
        self._publish()

    def _publish(self) -> None:
        self._post(PipelinesChanged(tuple(version.pipeline for version in self._serving.values())))
