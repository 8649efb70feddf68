"""Loads, reloads and unloads models without losing a request.

Load before unload: the new version's replicas come up beside the old one's; then new requests go to
the new one; the old one answers what it has, and goes. Requests stay with the very load of a
version that they were checked against (`LoadedVersion.pin`).

The fleet also is what the driver starts replicas through (`Launcher`) and where the engine gets a
pool's scheduler and times from.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from slacktide.domain import (
    Batch,
    BatchTiming,
    Deployment,
    LaneSpec,
    Plan,
    PlanChanged,
    PoolId,
    Replica,
    Route,
)
from slacktide.engine.ports import PoolParts, PoolView
from slacktide.executors.arena import Arena
from slacktide.executors.budget import MemoryBudget
from slacktide.executors.ports import Executor, ModelSource, Ready, ReplicaHandle, Report
from slacktide.executors.timed_replica import MeasuringError
from slacktide.profiles import BatchLatency, ClassedTimes, ProfileRecord, fit_latency
from slacktide.recording import Recorder, export_times
from slacktide.repository import (
    ModelDefinition,
    ModelSettings,
    Repository,
    RepositoryError,
    check_interface,
)
from slacktide.repository.errors import NotFoundError
from slacktide.scheduling import PoolRecipe
from slacktide.server.driver import Driver
from slacktide.server.inputs import InputCheck
from slacktide.server.lanes import LaneError, Layout, lay_out
from slacktide.server.ports import ControlError
from slacktide.server.shelf import ProfileShelf
from slacktide.server.tally import Tally
from slacktide.server.versions import Catalog, LoadedVersion, VersionState

log = logging.getLogger("slacktide.models")

_ARENA_LIMIT = 1 << 34
"""Bytes of address space for each version's payloads; the memory budget is the real limit."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How models are loaded."""

    cores: tuple[int, ...]
    """Processor numbers that lanes may use."""
    drain_s: float = 30.0
    """Longest that an unloaded version may take to answer what it has, seconds."""
    start_s: float = 330.0
    """Longest that a version may take to come up on all of its lanes, seconds; a little more than
    the engine gives one replica, so that its reason is the one that is told."""
    scheduler: str | None = None
    """A policy for every model, whatever its settings say (for comparisons)."""
    scheduler_options: Mapping[str, object] | None = None


class Fleet:
    """Every model of one server."""

    def __init__(
        self,
        settings: FleetSettings,
        catalog: Catalog,
        shelf: ProfileShelf,
        executors: Mapping[str, Executor],
        budget: MemoryBudget,
        *,
        recorder: Recorder | None = None,
    ) -> None:
        """`executors` by the name that a model's settings give."""
        self._settings = settings
        self._catalog = catalog
        self._shelf = shelf
        self._executors = executors
        self._budget = budget
        self._recorder = recorder
        self._lock = asyncio.Lock()
        self._driver: Driver | None = None
        self._generation = 0
        self._deployed: list[LoadedVersion] = []
        self._layout = Layout((), {})
        self._starting: dict[PoolId, asyncio.Future[str | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def attach(self, driver: Driver) -> None:
        """The driver that this fleet serves; once, before anything is loaded."""
        self._driver = driver

    @property
    def driver(self) -> Driver:
        assert self._driver is not None
        return self._driver

    @property
    def lanes(self) -> tuple[LaneSpec, ...]:
        return self._layout.lanes

    # ── load and unload ──────────────────────────────────────────────────────────────────────

    async def load(
        self,
        repository: Repository,
        name: str,
        *,
        config_override: str | None = None,
        cleanup: Callable[[], None] | None = None,
    ) -> None:
        """Load a model's versions, or load them anew; the old ones serve until these are up.

        `cleanup` (it may block, and be called twice) deletes what the load has come with: once the
        versions are retired, or when they cannot be loaded. Raises ControlError; then what served
        before still serves.
        """

        async def work() -> None:
            async with self._lock:
                try:
                    await self._try(repository, name, config_override, cleanup)
                except BaseException:
                    if cleanup is not None:
                        await asyncio.to_thread(cleanup)
                    raise

        await self._to_its_end(work())

    async def load_all(self, repository: Repository) -> None:
        """Load every model; one that cannot be loaded is unavailable, with the reason."""
        async with self._lock:
            models = await asyncio.to_thread(repository.scan)
            self._catalog.expected = frozenset(listed.name for listed in models)
            for listed in models:
                if listed.problem is not None:
                    self._failed(listed.name, str(listed.problem))
                    continue
                with contextlib.suppress(ControlError):  # logged, and in the index
                    await self._try(repository, listed.name)

    async def unload(self, name: str) -> None:
        """Answer what the model has, then let it go. Raises ControlError if it is not loaded."""

        async def work() -> None:
            async with self._lock:
                old = tuple(self._catalog.serving(name).values())
                if not old:
                    raise ControlError("not_found", f"model {name!r} is not loaded")
                self._catalog.serve(name, {})
                for version in old:
                    version.state = VersionState.UNLOADING
                    self._catalog.mark_absent(
                        name, version.version, VersionState.UNAVAILABLE, "unloaded"
                    )
                await self._retire(old)

        await self._to_its_end(work())

    async def _to_its_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Do all of it, even if whoever asked has gone: half a load would never be undone."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def _try(
        self,
        repository: Repository,
        name: str,
        config_override: str | None = None,
        cleanup: Callable[[], None] | None = None,
    ) -> None:
        """Load, and log and index why if that fails. Raises ControlError, nothing else."""
        definitions: Sequence[ModelDefinition] = ()
        try:
            definitions = await asyncio.to_thread(
                repository.read, name, config_override=config_override
            )
            await self._load(name, definitions, cleanup)
        except (RepositoryError, LaneError, MeasuringError) as error:
            raise self._failed(name, str(error), definitions, kind=_kind_of(error)) from error
        except ControlError as error:
            raise self._failed(name, str(error), definitions, kind=error.kind) from error
        except Exception as error:  # a fault of ours: the other models shall serve all the same
            log.exception("loading %s", name)
            reason = f"unexpected {type(error).__name__}; the log says more"
            raise self._failed(name, reason, definitions) from error

    async def _load(
        self,
        name: str,
        definitions: Sequence[ModelDefinition],
        cleanup: Callable[[], None] | None,
    ) -> None:
        begin = time.monotonic()
        for warning in definitions[0].warnings:
            log.warning("%s: %s", name, warning)
        layout = self._lay_out(name, definitions[0].settings)
        new: list[LoadedVersion] = []
        try:
            for definition in definitions:
                new.append(await self._prepare(definition, layout))
        except BaseException:
            for version in new:
                version.arena.close()
            raise
        try:
            await self._bring_up(new, layout)
        except BaseException:
            await self._retire(new)
            raise
        seconds = time.monotonic() - begin
        old = tuple(self._catalog.serving(name).values())
        for version in new:
            version.state = VersionState.READY
            version.tally.load_s = seconds
            version.cleanup = cleanup
        self._catalog.serve(name, {version.version: version for version in new})
        versions = ", ".join(version.version for version in new)
        log.info("%s is ready (version %s, %.2f s)", name, versions, seconds)
        for version in old:
            version.state = VersionState.UNLOADING
        await self._retire(old)

    def _lay_out(self, name: str, settings: ModelSettings) -> Layout:
        models = {version.name: version.definition.settings for version in self._deployed}
        models[name] = settings
        return lay_out(models, self._settings.cores)

    async def _prepare(self, definition: ModelDefinition, layout: Layout) -> LoadedVersion:
        source = source_of(definition)
        executor = self._executor(definition)
        lane = next(spec for spec in layout.lanes if spec.name in layout.places[definition.name])
        known = await self._shelf.known(definition, source, executor, lane.cores)
        for warning in check_interface(definition, known.interface):
            log.warning("%s: %s", definition.name, warning)
        self._generation += 1
        pool = PoolId(definition.name, definition.version, generation=self._generation)
        limit = definition.settings.limits.memory
        before = self._catalog.find(definition.name, definition.version)
        return LoadedVersion(
            pool,
            definition,
            source,
            known.interface,
            ClassedTimes(known.record.table, latency=partial(_latency, known.record)),
            Arena(min(limit or _ARENA_LIMIT, _ARENA_LIMIT), name=str(pool), budget=self._budget),
            InputCheck(known.interface, definition.settings),
            # Counters never fall: a version that is loaded again goes on where it was.
            before.tally if before is not None else Tally(),
            cores=len(lane.cores) or 1,
        )

    async def _bring_up(self, new: Sequence[LoadedVersion], layout: Layout) -> None:
        """Deploy and wait. Raises ControlError if a version does not come up."""
        loop = asyncio.get_running_loop()
        for version in new:
            self._catalog.add(version)
            self._starting[version.pool] = loop.create_future()
        self._layout = layout
        self._deployed.extend(new)
        try:
            self._apply()
            async with asyncio.timeout(self._settings.start_s):
                for version in new:
                    problem = await self._starting[version.pool]
                    if problem is not None:
                        raise ControlError("unavailable", problem)
        except TimeoutError:
            reason = f"it was not up within {self._settings.start_s:g} s"
            raise ControlError("unavailable", reason) from None
        finally:
            for version in new:
                self._starting.pop(version.pool, None)

    async def _retire(self, old: Sequence[LoadedVersion]) -> None:
        """Wait until `old` have answered what they have, then stop their replicas."""
        if not old:
            return
        try:
            async with asyncio.timeout(self._settings.drain_s):
                for version in old:
                    await version.drained()
        except TimeoutError:
            log.warning("%s did not finish within %g s", old[0].name, self._settings.drain_s)
        gone = {version.pool for version in old}
        self._deployed = [v for v in self._deployed if v.pool not in gone]
        models = {version.name: version.definition.settings for version in self._deployed}
        self._layout = lay_out(models, self._settings.cores)
        self._apply()
        for version in old:
            self._catalog.forget(version)
            # Running batches may still read the payloads; the mapping goes with its last view.
            version.retire()
        for cleanup in {version.cleanup for version in old if version.cleanup is not None}:
            await asyncio.to_thread(cleanup)

    def _apply(self) -> None:
        """Tell the engine what is deployed now."""
        deployments = []
        routes = []
        for version in self._deployed:
            for lane in self._layout.places[version.name]:
                deployments.append(
                    Deployment(version.pool, lane, max(1, version.interface.max_batch))
                )
            routes.append(Route(version.name, version.pool, version=version.pin))
        plan = Plan(self._layout.lanes, tuple(deployments), tuple(routes))
        self.driver.post(PlanChanged(plan))
        self.driver.flush()

    def _failed(
        self,
        name: str,
        reason: str,
        definitions: Sequence[ModelDefinition] = (),
        *,
        kind: str = "unavailable",
    ) -> ControlError:
        """Log and index why `name` could not be loaded; the error to raise."""
        log.error("%s could not be loaded: %s", name, reason)
        # A name that is no model's is not kept: clients may ask for any.
        if not self._catalog.serving(name) and kind != "not_found":
            # Versions are known once the settings could be read; else the first stands for all.
            for version in [definition.version for definition in definitions] or ["1"]:
                self._catalog.mark_absent(name, version, VersionState.UNAVAILABLE, reason)
        return ControlError(kind, f"failed to load {name!r}: {reason}")

    def _executor(self, definition: ModelDefinition) -> Executor:
        name = definition.settings.executor
        # A profile is measured on the real thing: `profiled` gets one from a worker.
        return self._executors["worker" if name == "profiled" else name]

    # ── the engine's pools ───────────────────────────────────────────────────────────────────

    def pool_parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        """The engine's `PoolFactory`."""
        version = self._version(pool)
        recipe = self._recipe(version.definition.settings)
        if self._recorder is not None:
            times = version.times
            self._recorder.opened(pool, max_batch, recipe, lambda: export_times(times))
        return recipe.parts(
            version.times, max_batch=max_batch, view=view, counts=version.tally.samples
        )

    def _recipe(self, settings: ModelSettings) -> PoolRecipe:
        options: dict[str, object]
        if self._settings.scheduler is not None:
            name = self._settings.scheduler
            options = dict(self._settings.scheduler_options or {})
        else:
            name = settings.scheduler.name
            options = settings.scheduler.model_dump(exclude={"name"}, exclude_none=True)
        if settings.queue_limit is not None:
            options["max_queue"] = settings.queue_limit
        return PoolRecipe(name, options, settings.share, settings.profiling.online)

    # ── Launcher ─────────────────────────────────────────────────────────────────────────────

    def start(self, replica: Replica, report: Callable[[Report], None]) -> ReplicaHandle:
        """See `Launcher.start`."""
        version = self._version(replica.pool)
        executor = self._executors[version.definition.settings.executor]
        return executor.start(replica, version.source, version.arena, report)

    def ready(self, replica: Replica, report: Ready) -> str | None:
        """See `Launcher.ready`."""
        version = self._catalog.by_pool(replica.pool)
        if version is None:
            return "it is no longer wanted"
        if report.interface != version.interface:
            return "the model's inputs, outputs or batch axis are not those of its profile"
        version.replicas_up.add(replica.id)
        waiting = self._starting.get(replica.pool)
        places = self._layout.places.get(replica.pool.model, ())
        if waiting is not None and not waiting.done() and len(version.replicas_up) >= len(places):
            waiting.set_result(None)
        return None

    def lost(self, replica: Replica, detail: str) -> None:
        """See `Launcher.lost`."""
        version = self._catalog.by_pool(replica.pool)
        if version is None:
            return
        version.replicas_up.discard(replica.id)
        version.tally.crashes += 1
        # Whether the engine gives the version up is known once it has handled the loss.
        asyncio.get_running_loop().call_soon(self._note_state, version, detail)

    def stopped(self, replica: Replica) -> None:
        """See `Launcher.stopped`."""
        version = self._catalog.by_pool(replica.pool)
        if version is not None:
            version.replicas_up.discard(replica.id)

    def _note_state(self, version: LoadedVersion, detail: str) -> None:
        pool = self.driver.engine.state.pools.get(version.pool)
        if pool is None or pool.down_reason is None:
            return
        version.state = VersionState.UNAVAILABLE
        version.reason = pool.down_reason
        log.error("%s:%s is unavailable: %s", version.name, version.version, pool.down_reason)
        waiting = self._starting.get(version.pool)
        if waiting is not None and not waiting.done():
            waiting.set_result(pool.down_reason)

    def finished(self, batch: Batch, timing: BatchTiming, seconds: float) -> None:
        """See `Launcher.finished`."""
        version = self._catalog.by_pool(batch.replica.pool)
        if version is not None:
            was = version.times.drifted
            if not batch.sample:
                version.tally.executed(batch.rows, timing, int(time.time() * 1000))
            if version.times.drifted != was:
                log.warning("%s: batch times drift from the profile", version.name)

    def _version(self, pool: PoolId) -> LoadedVersion:
        version = self._catalog.by_pool(pool)
        if version is None:
            raise KeyError(f"{pool} is not loaded")
        return version


def _latency(record: ProfileRecord, cores: int) -> BatchLatency:
    """c0 and c1 of what was measured."""
    return fit_latency(record.table, cores, record.lengths).latency


def source_of(definition: ModelDefinition) -> ModelSource:
    """What an executor needs to open a version."""
    return ModelSource(
        definition.name,
        definition.version,
        Path(definition.model_path),
        definition.data_root,
        definition.settings.max_batch,
        definition.settings.provider_names,
        definition.warmup_shapes,
        definition.settings.pads,
    )


def _kind_of(error: Exception) -> str:
    return "not_found" if isinstance(error, NotFoundError) else "bad_input"
