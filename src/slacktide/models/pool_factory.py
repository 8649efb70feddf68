"""`ModelPoolFactory`: gives the engine a scheduler and times for each version that is deployed."""

from __future__ import annotations

from collections.abc import Mapping

from slacktide.domain import PoolId
from slacktide.engine.ports import PoolParts, PoolView
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.versions import Catalog
from slacktide.recording import Recorder, export_times
from slacktide.scheduling import PoolRecipe


class ModelPoolFactory:
    """The engine's `PoolFactory`, by the models' settings."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        scheduler: str | None = None,
        options: Mapping[str, object] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """`scheduler` with its `options`: a policy for every model, whatever its settings say (for
        comparisons)."""
        self._catalog = catalog
        self._scheduler = scheduler
        self._options = dict(options or {})
        self._recorder = recorder

    def parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        """See `PoolFactory`. Raises KeyError if the version is not loaded."""
        loaded = self._catalog.loaded(pool)
        version, times = loaded.version, loaded.times
        recipe = self._recipe(version.definition.settings)
        if self._recorder is not None:
            self._recorder.opened(pool, max_batch, recipe, lambda: export_times(times))
        return recipe.parts(
            times,
            max_batch=max_batch,
            view=view,
            counts=version.counters.samples,
            failed=version.fail,
        )

    def _recipe(self, settings: ModelSettings) -> PoolRecipe:
        options: dict[str, object]
        if self._scheduler is not None:
            name, options = self._scheduler, dict(self._options)
        else:
            name = settings.scheduler.name
            options = settings.scheduler.spelt_out()
        if settings.queue_limit is not None:
            options["max_queue"] = settings.queue_limit
        return PoolRecipe(name, options, settings.share, settings.profiling.online)
