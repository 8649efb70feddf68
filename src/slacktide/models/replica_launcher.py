"""`ModelPoolFactory` makes schedulers of pools; `ReplicaLauncher` starts their replicas."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from slacktide.domain import (
    Batch,
    BatchTiming,
    Circuit,
    ExitReport,
    PoolId,
    Replica,
    ReplicaLost,
    TellCircuit,
)
from slacktide.domain.tensors import any_size, named_like
from slacktide.engine import Engine
from slacktide.engine.ports import PoolParts, PoolView
from slacktide.executors.ports import (
    Arranged,
    Executor,
    FeaturesSeen,
    ModelSource,
    OpenedModel,
    PicturesDamaged,
    ReplicaHandle,
    Reporter,
    RowsMismatch,
)
from slacktide.executors.row_check import dependence_warning
from slacktide.models.repository.repository import ModelDefinition
from slacktide.models.versions import Catalog, LoadedPool, VersionState
from slacktide.recording import Recorder
from slacktide.recording.times import export_times
from slacktide.scheduling import PoolRecipe


class ModelPoolFactory:
    """The engine's `PoolFactory`: follows the models' settings."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        scheduler: str | None = None,
        options: Mapping[str, object] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """`scheduler` with its `options` replaces every model's own, for comparisons."""
        self._catalog = catalog
        self._scheduler = scheduler
        self._options = dict(options or {})
        self._recorder = recorder

    def parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        """See `PoolFactory`. Raises KeyError if the version is not loaded."""
        loaded = self._catalog.loaded(pool)
        version, times = loaded.version, loaded.times
        recipe = self._recipe(loaded)
        if self._recorder is not None:
            self._recorder.opened(pool, max_batch, recipe, lambda: export_times(times))
        return recipe.parts(
            times,
            max_batch=max_batch,
            view=view,
            counts=version.counters.samples,
            failed=version.fail,
        )

    def _recipe(self, loaded: LoadedPool) -> PoolRecipe:
        settings = loaded.version.definition.settings
        options: dict[str, object]
        if self._scheduler is not None:
            name, options = self._scheduler, dict(self._options)
        else:
            name = settings.scheduler.name
            options = settings.scheduler.spelt_out()
        if settings.queue_limit is not None:
            options["max_queue"] = settings.queue_limit
        online, rescue = settings.profiling.online, loaded.version.rescue_of(loaded)
        exits = loaded.exits is not None
        return PoolRecipe(name, options, settings.share, online, loaded.size, rescue, exits)


log = logging.getLogger("slacktide.models")


class ReplicaLauncher:
    """The driver's `Launcher`: starts replicas on the executors that models state."""

    def __init__(self, catalog: Catalog, executors: Mapping[str, Executor], engine: Engine) -> None:
        """`executors` by the name in models' settings."""
        self._catalog = catalog
        self._executors = executors
        self._engine = engine
        self._awaited: dict[PoolId, asyncio.Future[str | None]] = {}
        self.plan_again: Callable[[], None] = lambda: None  # called when batches get smaller
        self.learn: Callable[[PoolId, FeaturesSeen], None] = lambda pool, report: None
        """Called with features for learning ramps."""
        self.keep_dependence: Callable[[LoadedPool, str], None] = lambda pool, reason: None
        """Called to store why requests to a model may not share a batch."""

    def await_up(self, pool: PoolId) -> asyncio.Future[str | None]:
        """Return a future whose result is None once all planned replicas of a pool are up, or the
        reason why they cannot be."""
        problem: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._awaited[pool] = problem
        return problem

    def stop_awaiting(self, pool: PoolId) -> None:
        self._awaited.pop(pool, None)

    # ── Launcher ────────────────────────────────────────────────────────────────────────

    def start(self, replica: Replica, report: Reporter) -> ReplicaHandle:
        pool = self._catalog.loaded(replica.pool)
        executor = self._executors[pool.version.definition.settings.executor]
        handle = executor.start(replica, pool.source, pool.version.arena, report)
        pool.handles[replica.id] = handle
        for number, (frames, glue) in pool.version.frame_arenas.items():
            handle.attach(number, frames, glue)
        return handle

    def ready(self, replica: Replica, opened: OpenedModel) -> str | None:
        pool = self._catalog.pool(replica.pool)
        if pool is None:
            return "it is no longer needed"
        version = pool.version
        fits, planned = opened.interface.max_batch, version.interface.max_batch
        interface = replace(opened.interface, max_batch=planned if fits and planned else fits)
        if version.family is not None:
            interface = named_like(interface, version.interface)
        if interface != version.interface and (
            not version.definition.any_image or any_size(interface) != version.interface
        ):
            return "the model's inputs, outputs or batch axis differ from those of its profile"
        if fits < planned:
            name = version.name
            log.warning("%s: memory suffices for batches of %d rows, not %d", name, fits, planned)
            version.limit_batch(fits)
            self.plan_again()
        version.labels = version.definition.labels or opened.labels or version.labels
        pool.replicas_up.add(replica.id)
        if opened.note and pool.sessions != opened.sessions:
            log.warning("%s: %s", version.name, opened.note)
        pool.sessions = opened.sessions
        self._report_if_up(pool)
        return None

    def lost(self, replica: Replica, event: ReplicaLost, *, out_of_memory: bool) -> None:
        pool = self._remove(replica)
        if pool is not None and not event.shared:
            pool.version.counters.crashes += 1
            pool.version.counters.out_of_memory += out_of_memory

    def stopped(self, replica: Replica) -> None:
        pool = self._remove(replica)
        if pool is not None:
            self._report_if_up(pool)

    def _remove(self, replica: Replica) -> LoadedPool | None:
        pool = self._catalog.pool(replica.pool)
        if pool is not None:
            pool.replicas_up.discard(replica.id)
            pool.handles.pop(replica.id, None)
        return pool

    def finished(
        self, batch: Batch, timing: BatchTiming, seconds: float, exits: ExitReport | None = None
    ) -> None:
        pool = self._catalog.pool(batch.replica.pool)
        if pool is not None:
            if exits is not None:
                pool.version.counters.judge(exits, seconds)
            if not batch.solo:
                at_ms = int(time.time() * 1000)
                pool.version.counters.executed(batch.rows, timing, at_ms, pool.variant)
            # The engine processes this batch afterwards, so only earlier batches count here.
            if pool.times.drifted != pool.drifting:
                pool.drifting = not pool.drifting
                how = "differ from the profile" if pool.drifting else "match the profile again"
                log.warning("%s: batch times %s", pool.version.name, how)

    def early_exits(self, replica: Replica, event: Arranged | FeaturesSeen) -> None:
        pool = self._catalog.pool(replica.pool)
        if pool is None or pool.exits is None:
            return
        if isinstance(event, FeaturesSeen):
            self.learn(pool.id, event)
        elif event.detail:
            log.warning("%s: early exits are unchanged: %s", pool.version.name, event.detail)
        elif event.untimed:
            message = "%s: early exits work, but could not be timed: %s"
            log.warning(message, pool.version.name, event.untimed)
        else:
            names = ", ".join(map(pool.exits.name, event.ramps)) or "none"
            log.info("%s: early exits: %s", pool.version.name, names)

    def rows_mismatch(self, replica: Replica, event: RowsMismatch) -> None:
        pool = self._catalog.pool(replica.pool)
        if pool is None or pool.version.dependence:
            return
        pool.version.dependence = event.detail
        log.warning("%s: %s", pool.version.name, dependence_warning(event.detail))
        self.plan_again()
        self.keep_dependence(pool, event.detail)

    def pictures_damaged(self, replica: Replica, event: PicturesDamaged) -> None:
        pool = self._catalog.pool(replica.pool)
        if pool is not None:
            pool.version.counters.damaged_pictures += event.pictures

    def circuit(self, command: TellCircuit) -> None:
        pool = self._catalog.pool(command.pool)
        if pool is None or pool.version.state is VersionState.UNLOADING:
            return
        version = pool.version
        name, reason = f"{version.name}:{version.version}", command.reason
        in_service = {id for id, pool in self._engine.snapshot().pools.items() if pool.in_service}
        has_sibling = any(
            sibling.replicas_up or sibling.id in in_service
            for sibling in version.pools
            if sibling is not pool
        )
        if command.circuit is Circuit.OPEN and has_sibling:
            log.error("%s: variant %s is unavailable: %s", name, pool.variant, reason)
            version.counters.circuit_openings += 1
            self._report_problem(pool.id, reason)
        elif command.circuit is Circuit.OPEN:
            after = "" if command.retry_s is None else f"; next try in {command.retry_s:g} s"
            log.error("%s is unavailable: %s%s", name, reason, after)
            version.counters.circuit_openings += 1
            version.state, version.reason = VersionState.UNAVAILABLE, reason + after
            self._report_problem(pool.id, reason)
        elif version.state is VersionState.UNAVAILABLE:
            log.warning("%s serves again, on trial", name)
            version.ready()
        else:
            log.info("%s passed its trial; all of its replicas start", name)

    def _report_if_up(self, loaded: LoadedPool) -> None:
        """Report a pool as up once all its replicas in the current plan are up. The plan may have
        fewer replicas than when the pool was loaded, and none for a variant that a planner
        removed."""
        needed = self.planned_replicas(loaded.id)
        if needed <= len(loaded.replicas_up) and (needed or loaded.version.family is not None):
            self._report_problem(loaded.id, None)

    def planned_replicas(self, id: PoolId) -> int:
        """Return the number of replicas of a pool in the plan in force."""
        pool = self._engine.snapshot().pools.get(id)
        return 0 if pool is None else sum(replica.staying for replica in pool.replicas)

    def _report_problem(self, pool: PoolId, problem: str | None) -> None:
        awaited = self._awaited.get(pool)
        if awaited is not None and not awaited.done():
            awaited.set_result(problem)


def executor_for_measuring(
    executors: Mapping[str, Executor], definition: ModelDefinition
) -> Executor:
    """Return the executor for measuring: a worker if the settings say `profiled`."""
    name = definition.settings.executor
    return executors["worker" if name == "profiled" else name]


def source_of(definition: ModelDefinition, threads: tuple[int, ...] = ()) -> ModelSource:
    """Return the source from which an executor opens a version or variant. `threads`: numbers of
    threads, each of which gets a session."""
    variants, function = definition.settings.variants, definition.settings.function
    before, after = definition.settings.before, definition.settings.after
    stated = None if function is None else function.source(definition.settings.max_batch)
    return ModelSource(
        definition.name,
        definition.version,
        Path(definition.model_path),
        definition.data_root,
        definition.settings.max_batch,
        definition.settings.providers,
        definition.settings.backend,
        definition.settings.precision,
        definition.warmup_shapes,
        definition.settings.pads,
        threads,
        definition.settings.limits.worker_memory,
        definition.more_shapes,
        definition.values,
        definition.samples,
        definition.sample_rows,
        images=definition.any_image,
        image_size=definition.image_size,
        image_sizes=() if variants is None else variants.sizes,
        image=definition.preprocessing,
        outputs=definition.outputs,
        expose=definition.settings.expose,
        own_exits=definition.own_exits,
        function=stated,
        decode=None if definition.settings.decode is None else definition.settings.decode.source,
        before=None if before is None else before.source,
        after=None if after is None else after.source,
        tokens=None if definition.text is None else definition.text.source,
        pooling=definition.settings.pools,
        labels=definition.label_file,
        device_origin=definition.device_origin,
    )
