"""Loads, reloads and unloads models without losing a request.

A reload starts the new version's replicas beside the old ones, then sends new requests to the new
version; the old one answers its requests in flight and stops. A request stays with the loaded
version that checked it (`LoadedVersion.pin`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

from slacktide.domain import Plan
from slacktide.executors.hand_over.arena import Arena, MemoryBudget
from slacktide.executors.hand_over.loop_watch import patience
from slacktide.executors.ports import Executor
from slacktide.executors.timed_replica import MeasuringError
from slacktide.models.calls.input_check import InputCheck
from slacktide.models.calls.model_counters import ModelCounters
from slacktide.models.core_layout import LaneError, Layout, PlanBuilder
from slacktide.models.exit_learner import RampLearner
from slacktide.models.families import at_first, first_route, prepare_version
from slacktide.models.pipelines import PipelineShelf
from slacktide.models.profile_cache import ProfileCache
from slacktide.models.replica_launcher import ReplicaLauncher, executor_for_measuring
from slacktide.models.repository.errors import NotFoundError, RepositoryError
from slacktide.models.repository.pipeline import PipelineDefinition
from slacktide.models.repository.repository import ListedModel, ModelDefinition, Repository
from slacktide.models.text_inputs import TextInput
from slacktide.models.versions import UNLOADED, Catalog, LoadedPool, LoadedVersion, VersionState
from slacktide.planning import ModelBounds, Stated
from slacktide.planning.planner import also, stated_as
from slacktide.planning.variants import Family
from slacktide.wire.errors import ControlError

log = logging.getLogger("slacktide.models")

AT_ONCE = 4
"""Number of models with a stored profile that load concurrently when the server starts."""
GIVE_WAY_S = 20.0
"""Seconds after which a load no longer delays the next loads."""
_ARENA_LIMIT = 1 << 34
"""Bytes of address space for each version's payloads; the memory budget is the real limit."""


@dataclass(frozen=True, slots=True)
class ModelManagerSettings:
    cores: tuple[int, ...]
    """Processor numbers that lanes may use."""
    allow_fewer_cores: bool = False
    """Whether a model that asks for more cores than exist is served with fewer."""
    drain_s: float = 30.0
    """Maximum seconds for an unloaded version to answer its requests in flight."""
    start_s: float = 330.0
    """Maximum seconds for a version to start on all its lanes: a little more than the engine's
    limit for a replica, so that the engine's reason is reported."""
    places: bool = False
    """Whether one of the driver's planners places pipelines."""
    scaling_policy: tuple[str, Mapping[str, object]] | None = None
    """Scaling policy with options for every scaled model; None: each model's own."""


class PlanTarget(Protocol):
    """Receives plans: the driver of this process."""

    def apply(self, base: Plan, stated: Stated) -> None:
        """Put a plan in force now: `base` as changed by the planners of the models in `stated`.
        Raises ControlError if that fails."""


class ModelManager:
    """Manages all models of one server."""

    def __init__(
        self,
        settings: ModelManagerSettings,
        catalog: Catalog,
        profiles: ProfileCache,
        executors: Mapping[str, Executor],
        budget: MemoryBudget,
        driver: PlanTarget,
        launcher: ReplicaLauncher,
        learner: RampLearner | None = None,
    ) -> None:
        """`executors` by the name in models' settings. `learner`: learns ramps of early exits;
        None: ramps are neither learnt nor used."""
        self.pipelines = PipelineShelf(catalog)
        self._settings = settings
        self._catalog = catalog
        self._profiles = profiles
        self._executors = executors
        self._budget = budget
        self._driver = driver
        self._launcher = launcher
        self._learner = learner
        self._turn = asyncio.Lock()
        self._names: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._generation = 0
        self._plan_builder = PlanBuilder(
            settings.cores,
            allow_fewer=settings.allow_fewer_cores,
            scaling_policy=settings.scaling_policy,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._floors: dict[str, float] = {}
        """Minimum accuracy that pipelines require of a model's variants, by model."""

    # ── load and unload ──────────────────────────────────────────────────────────────────────

    async def load(
        self,
        repository: Repository,
        name: str,
        *,
        config_override: str | None = None,
        cleanup: Callable[[], None] | None = None,
    ) -> None:
        """Load or reload a model's versions. The old ones serve until the new ones are up.

        `cleanup` (which may block and be called twice) deletes uploaded files, once the versions
        are retired or cannot be loaded. Raises ControlError; then the old versions still serve.
        """

        async def work() -> None:
            async with self._in_turn(name):
                try:
                    await self._try(repository, name, config_override, cleanup)
                except BaseException:
                    if cleanup is not None:
                        await asyncio.to_thread(cleanup)
                    raise

        await self._finish(work())

    async def load_all(self, repository: Repository) -> None:
        """Load every model. A model that fails is unavailable, and the index states the reason.

        Models with a stored profile come first, `AT_ONCE` at a time. Models without one are then
        measured one by one so that they do not disturb each other. Pipelines come last. A load that
        takes longer than `GIVE_WAY_S` continues beside the next loads.
        """
        async with asyncio.TaskGroup() as group, self._turn:
            models = await asyncio.to_thread(repository.scan)
            self._catalog.expect(listed.name for listed in models)
            for listed in models:
                if listed.pipeline is not None:
                    self._profiles.stages.update(listed.pipeline.models)
            stored = await asyncio.to_thread(self._profiles.stored, models)
            phases = (
                ([m for m in models if m.pipeline is None and m.name in stored], AT_ONCE),
                ([m for m in models if m.pipeline is None and m.name not in stored], 1),
                ([m for m in models if m.pipeline is not None], 1),
            )
            for phase, at_once in phases:
                await self._load_several(group, repository, phase, at_once)

    async def _load_several(
        self,
        group: asyncio.TaskGroup,
        repository: Repository,
        models: Sequence[ListedModel],
        at_once: int,
    ) -> None:
        """Load `models`, `at_once` at a time. Returns once each is done or overdue."""
        running: dict[asyncio.Task[None], float] = {}
        for listed in models:
            await self._wait_for_room(running, at_once)
            task = group.create_task(self._load_listed(repository, listed))
            running[task] = time.monotonic() + GIVE_WAY_S
        await self._wait_for_room(running, 1)

    @staticmethod
    async def _wait_for_room(running: dict[asyncio.Task[None], float], at_once: int) -> None:
        """Wait until fewer than `at_once` loads run. Done or overdue loads no longer count."""
        while len(running) >= at_once:
            first = min(running.values())
            timeout = max(0.0, first - time.monotonic())
            done, _ = await asyncio.wait(
                running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            for task, overdue_at in list(running.items()):
                if task in done or overdue_at <= time.monotonic():
                    del running[task]

    async def _load_listed(self, repository: Repository, listed: ListedModel) -> None:
        """Load a scanned model. Raises nothing: failures go to the log and the index."""
        try:
            if listed.problem is not None:
                if (cause := listed.problem.__cause__) is not None:  # an unexpected error
                    log.error("reading %s", listed.name, exc_info=cause)
                self._load_error(listed.name, str(listed.problem))
            else:
                async with self._lock_of(listed.name):
                    with contextlib.suppress(ControlError):
                        await self._try(repository, listed.name)
        finally:
            self._catalog.loading.discard(listed.name)

    async def refresh(self, name: str) -> None:
        """Reload a model with the definitions of its last load, because its profile has changed.
        Raises ControlError; then the old versions still serve."""

        async def work() -> None:
            async with self._in_turn(name):
                before = tuple(self._catalog.serving(name).values())
                cleanup = next((version.cleanup for version in before if version.cleanup), None)
                for version in before:
                    version.cleanup = None  # its files stay
                try:
                    if before:
                        await self._load(name, [v.definition for v in before], cleanup)
                except (RepositoryError, LaneError, MeasuringError, OSError) as error:
                    raise ControlError("unavailable", str(error)) from error
                finally:
                    for version in self._catalog.serving(name).values():
                        version.cleanup = cleanup

        await self._finish(work())

    async def unload(self, name: str, *, dependents: bool = False) -> None:
        """Answer a model's requests in flight, then unload it. `dependents`: also unload a
        pipeline's models that no other pipeline needs. Raises ControlError if it is not loaded."""

        async def work() -> None:
            is_pipeline = self.pipelines.knows(name)
            async with self._in_turn(name) if is_pipeline else self._lock_of(name):
                if self.pipelines.knows(name):
                    models = self.pipelines.unload(name)
                    self._pipelines_changed()
                    for model in models:
                        async with self._lock_of(model):
                            if dependents and self._catalog.serving(model):
                                await self._unload(model)
                elif self._catalog.serving(name):
                    await self._unload(name)
                else:
                    raise ControlError("not_found", f"model {name!r} is not loaded")

        await self._finish(work())

    async def _unload(self, name: str) -> None:
        retiring = tuple(self._catalog.serving(name).values())
        self._profiles.forget(name)
        self._catalog.serve(name, {})
        for version in retiring:
            version.state = VersionState.UNLOADING
            self._catalog.mark_absent(name, version.version, VersionState.UNAVAILABLE, UNLOADED)
        self.pipelines.refresh()
        await self._profiles.learnt.save(retiring)  # before an upload's folder is deleted
        await self._retire(retiring)

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Finish the work even if the client leaves, because nothing would undo half a load."""
        await asyncio.shield(self._start(work))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _lock_of(self, name: str) -> asyncio.Lock:
        """Return the lock for loading and unloading `name`."""
        return self._names.setdefault(name, asyncio.Lock())

    @contextlib.asynccontextmanager
    async def _in_turn(self, name: str) -> AsyncIterator[None]:
        """Lock `name` once earlier loads have ended or are overdue (`GIVE_WAY_S`)."""
        await self._turn.acquire()
        with contextlib.ExitStack() as turn:
            turn.callback(self._turn.release)
            timer = asyncio.get_running_loop().call_later(GIVE_WAY_S, turn.close)
            turn.callback(timer.cancel)
            async with self._lock_of(name):
                yield

    async def _try(
        self,
        repository: Repository,
        name: str,
        config_override: str | None = None,
        cleanup: Callable[[], None] | None = None,
    ) -> None:
        """Load a model; log and index a failure. Raises only ControlError."""
        definitions: Sequence[ModelDefinition] = ()
        try:
            pipeline = await asyncio.to_thread(repository.pipeline, name)
            self._check_kind(name, is_pipeline=pipeline is not None)
            if pipeline is not None:
                await self._load_pipeline(repository, pipeline, config_override)
                return
            definitions = await asyncio.to_thread(
                repository.read, name, config_override=config_override
            )
            await self._load(name, definitions, cleanup)
        except (RepositoryError, LaneError, MeasuringError) as error:
            kind = "not_found" if isinstance(error, NotFoundError) else "bad_input"
            raise self._load_error(name, str(error), definitions, kind=kind) from error
        except ControlError as error:
            raise self._load_error(name, str(error), definitions, kind=error.kind) from error
        except (OSError, MemoryError) as error:
            raise self._load_error(name, machine_reason(error), definitions) from error
        except Exception as error:  # an error of ours must not stop other models
            log.exception("loading %s", name)
            reason = f"unexpected {type(error).__name__}; see the log"
            raise self._load_error(name, reason, definitions) from error

    def _check_kind(self, name: str, *, is_pipeline: bool) -> None:
        """Raise ControlError if a serving model would become a pipeline, or a pipeline a model."""
        was_pipeline = self.pipelines.knows(name)
        if is_pipeline != was_pipeline and (was_pipeline or self._catalog.serving(name)):
            serves = "pipeline" if was_pipeline else "model"
            raise ControlError("bad_input", f"a {serves} with this name is loaded; unload it first")

    async def _load_pipeline(
        self, repository: Repository, pipeline: PipelineDefinition, config_override: str | None
    ) -> None:
        """Load a pipeline, and first those of its models that are not loaded yet. Raises
        RepositoryError and ControlError."""
        if config_override is not None:
            raise ControlError("bad_input", "parameter 'config': cannot be used for a pipeline")
        missing: dict[str, str] = {}
        self._profiles.stages.update(pipeline.models)
        at_start = pipeline.name in self._catalog.loading  # its models were tried before
        for model in pipeline.models:
            if self._catalog.serving(model) or self.pipelines.knows(model):
                continue
            if hindrance := await asyncio.to_thread(repository.stage_model_problem, model):
                missing[model] = hindrance
            elif not at_start:
                async with self._lock_of(model):
                    with contextlib.suppress(ControlError):  # logged, and in the index
                        await self._try(repository, model)
        self.pipelines.load(pipeline, wait=at_start, missing=missing)
        self._pipelines_changed()

    async def _load(
        self, name: str, definitions: Sequence[ModelDefinition], cleanup: Callable[[], None] | None
    ) -> None:
        begin = time.monotonic()
        for warning in definitions[0].warnings:
            log.warning("%s: %s", name, warning)
        layout = self._plan_builder.layout_with(name, definitions[0].settings)
        if name in layout.warnings:
            log.warning("%s: %s; the model gets all of them", name, layout.warnings[name])
        await self._profiles.learnt.save(self._catalog.serving(name).values())
        prepared: list[LoadedVersion] = []
        try:
            for definition in definitions:
                prepared.append(await self._prepare(definition, layout))
        except BaseException:
            for version in prepared:
                version.close()
            raise
        try:
            await self._bring_up(prepared)
            for version in prepared:
                if version.failed:
                    raise ControlError("unavailable", version.reason)
        except BaseException:
            await self._retire(prepared)
            raise
        seconds = time.monotonic() - begin
        replaced = tuple(self._catalog.serving(name).values())
        for version in prepared:
            version.ready()
            version.counters.load_s = seconds
            version.cleanup = cleanup
        self._catalog.serve(name, {version.version: version for version in prepared})
        self.pipelines.refresh()
        if any(version.dependence for version in prepared):
            self.apply()
        self._pipelines_changed()
        versions = ", ".join(version.version for version in prepared)
        log.info("%s is ready (version %s, %.2f s)", name, versions, seconds)
        if self._learner is not None:
            for pool in (version.pool for version in prepared if version.exits is not None):
                await self._learner.begin(pool)
        for version in replaced:
            version.state = VersionState.UNLOADING
        await self._retire(replaced)

    async def _prepare(self, definition: ModelDefinition, layout: Layout) -> LoadedVersion:
        lane = layout.scaled_lane(definition.name)
        threads = () if lane is None else lane.threads(definition.settings)
        executor = executor_for_measuring(self._executors, definition)
        core_sets = layout.core_sets(definition.name)
        prepared = await prepare_version(definition, threads, core_sets, executor, self._profiles)
        for warning in prepared.warnings:
            log.warning("%s: %s", definition.name, warning)
        self._generation += 1
        limit = min(definition.settings.limits.memory or _ARENA_LIMIT, _ARENA_LIMIT)
        try:
            arena = Arena(
                limit, name=f"{definition.name}:{definition.version}", budget=self._budget
            )
        except OSError as error:
            raise ControlError("unavailable", str(error.strerror)) from None
        if arena.limit < limit:
            log.warning(
                "%s: the limit on address space (ulimit -v) leaves %d MiB for "
                "payloads, instead of %d",
                *(definition.name, arena.limit >> 20, limit >> 20),
            )
        before = self._catalog.find(definition.name, definition.version)
        version = LoadedVersion(
            definition.name,
            definition.version,
            self._generation,
            definition,
            prepared.interface,
            arena,
            InputCheck(
                prepared.interface,
                definition.settings,
                any_image=definition.any_image,
                client_shapes=definition.client_shapes,
            ),
            # Counters never fall: a reloaded version continues those of the old one.
            before.counters if before is not None else ModelCounters(),
            family=prepared.family,
            dependence=prepared.dependence,
        )
        cores = len(core_sets[0]) or 1
        for part in prepared.pools:
            version.add_pool(
                part.source,
                part.times,
                cores=cores,
                definition=part.definition,
                profile=part.profile,
            )
        if prepared.family is not None:
            version.main = first_route(prepared.pools, cores, definition.settings.slo)
            for pool, loaded in zip(
                version.pools, at_first(prepared.family, version.main), strict=True
            ):
                pool.at_first = loaded
            log.info(
                "%s: variants %s; %s at first",
                *(definition.name, ", ".join(pool.variant for pool in version.pools)),
                version.pool.variant,
            )
        if definition.text is not None:
            version.text = TextInput(definition.text, prepared.interface, self._budget)
            try:
                await version.text.start()
            except BaseException:
                version.close()
                raise
        return version

    async def _bring_up(self, versions: Sequence[LoadedVersion]) -> None:
        """Deploy versions and wait for them. Raises ControlError if one does not start."""
        for version in versions:
            self._catalog.add(version)
        self._plan_builder.add(versions)
        pools = [pool.id for version in versions for pool in version.pools]
        starting = {pool: self._launcher.await_up(pool) for pool in pools}
        try:
            self.apply()
            async with patience(self._settings.start_s):
                for pool, waiting in starting.items():
                    # A family's plan need not start all of its files.
                    unplanned = not waiting.done() and not self._launcher.planned_replicas(pool)
                    problem = None if unplanned else await waiting
                    if problem is not None:
                        named = f"variant {pool.variant}: {problem}" if pool.variant else problem
                        raise ControlError("unavailable", named)
        except TimeoutError:
            reason = f"did not start within {self._settings.start_s:g} s"
            raise ControlError("unavailable", reason) from None
        finally:
            for pool in pools:
                self._launcher.stop_awaiting(pool)

    def keep_dependence(self, pool: LoadedPool, reason: str) -> None:
        """Store with the profile why requests may not share a batch."""
        if pool.profile is not None:
            note = partial(self._profiles.note_dependence, pool.definition, pool.profile, reason)
            self._start(asyncio.to_thread(note))

    async def _retire(self, versions: Sequence[LoadedVersion]) -> None:
        """Wait until `versions` have answered their requests, then stop their replicas."""
        if not versions:
            return
        try:
            async with asyncio.timeout(self._settings.drain_s):
                for version in versions:
                    await version.drained()
        except TimeoutError:
            log.warning("%s did not finish within %g s", versions[0].name, self._settings.drain_s)
        self._plan_builder.remove(versions)
        self.apply()
        for version in versions:
            self._catalog.forget(version)
            if self._learner is not None and version.exits is not None:
                self._learner.forget(version.pool.id)
            # Running batches may still read payloads: the last view releases the memory.
            version.retire()
        for cleanup in {version.cleanup for version in versions if version.cleanup is not None}:
            await asyncio.to_thread(cleanup)

    def apply(self) -> None:
        """Put the current deployment in force. Raises ControlError if that fails."""
        pipelines = self.pipelines.stated() if self._settings.places else {}
        stated: dict[str, object] = {**self._plan_builder.stated(), **pipelines}
        self._floors = self.pipelines.floors()
        for model, family in stated_as(Family, stated).items():
            least = self._floors.get(model, 0.0)
            enough = [variant.name for variant in family.variants if variant.accuracy >= least]
            if least and enough:
                stated[model] = also(stated[model], ModelBounds(smallest=enough[0]))
        self._driver.apply(self._plan_builder.plan(), stated)

    def _pipelines_changed(self) -> None:
        """Plan again after pipelines were loaded, reloaded or unloaded."""
        if self._settings.places or self.pipelines.floors() != self._floors:
            self.apply()

    def _load_error(
        self,
        name: str,
        reason: str,
        definitions: Sequence[ModelDefinition] = (),
        *,
        kind: str = "unavailable",
    ) -> ControlError:
        """Log and index why `name` could not be loaded. Returns the error to raise."""
        reason = reason.removeprefix(f"{name}: ")
        log.error("%s could not be loaded: %s", name, reason)
        # Index only names of models: clients may ask for any name.
        if not self._catalog.serving(name) and kind != "not_found":
            # Until settings are read the versions are unknown: use version 1.
            for version in [definition.version for definition in definitions] or ["1"]:
                self._catalog.mark_absent(name, version, VersionState.UNAVAILABLE, reason)
        return ControlError(kind, f"failed to load {name!r}: {reason}")


def machine_reason(error: OSError | MemoryError) -> str:
    """Return the reason that the system gives, without paths."""
    if isinstance(error, MemoryError):
        return "out of memory"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "the server has no file descriptor left; raise the limit on open files (ulimit -n)"
    return error.strerror or type(error).__name__
