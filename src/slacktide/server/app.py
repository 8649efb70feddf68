"""`App`: assembles a server, and shuts it down in order.

Shutdown: readiness fails; after a delay the listeners close; requests in flight are answered; then
replicas stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slacktide._version import __version__
from slacktide.cluster import FolderLock, PodAllocator, PodClient, PodName
from slacktide.domain import Replica
from slacktide.domain.tensors import ModelInterface
from slacktide.engine import Engine, EngineSettings
from slacktide.executors.allocator import CpuAllocator, choose_allocator
from slacktide.executors.cores import available_cores
from slacktide.executors.hand_over.arena import MemoryBudget
from slacktide.executors.in_process import InProcessExecutor, ProfiledExecutor
from slacktide.executors.ports import Executor
from slacktide.executors.process import ProcessExecutor
from slacktide.frontends.common.security import Credentials
from slacktide.frontends.ports import DataPlane, PeerHost
from slacktide.models.exit_learner import RampLearner
from slacktide.models.model_manager import ModelManager, ModelManagerSettings
from slacktide.models.plugins import warn_of_mismatches
from slacktide.models.profile_cache import ProfileCache
from slacktide.models.replica_launcher import ModelPoolFactory, ReplicaLauncher
from slacktide.models.repository.profile_store import ProfileStore
from slacktide.models.repository.single_model import SingleModel, open_repository
from slacktide.models.repository.staging import Staging
from slacktide.models.versions import Catalog
from slacktide.observability.logs import AccessLogger
from slacktide.observability.metrics import Metrics
from slacktide.observability.metrics.families import MetricFamily
from slacktide.observability.metrics.own import peer_families
from slacktide.observability.observers import Observers, RequestObserver
from slacktide.observability.tracing import RequestTracer, open_tracer
from slacktide.planning import Planner
from slacktide.planning.exits import ExitsPlanner
from slacktide.planning.pipelines import ServerPipelinesPlanner, make_placement
from slacktide.planning.scaling import ScalingPlanner
from slacktide.planning.variants import VariantsPlanner
from slacktide.profiles import CorrectedTimes
from slacktide.recording import Recorder
from slacktide.server.calls.data_plane import ClientLimits, ServerDataPlane
from slacktide.server.calls.driver import Driver
from slacktide.server.control_plane import ServerControlPlane
from slacktide.server.front_ends import FrontEnds
from slacktide.server.offered import OfferedShare
from slacktide.server.pipelines import PipelineService
from slacktide.server.quiet_profiler import QuietProfiler
from slacktide.server.settings import ServerSettings
from slacktide.server.takeover import TakeoverPort, find_predecessor
from slacktide.wire.parameters import LOOK_ALIKES

if TYPE_CHECKING:
    from slacktide.server.peers.service import PeerService

log = logging.getLogger("slacktide.server")

_SHOWN = 8
"""Maximum number of unavailable models named in the log line at the start."""


class App:
    """One server on the running event loop: `start`, then `drain` and `close`."""

    def __init__(
        self,
        repository: Path,
        settings: ServerSettings,
        parts: ServerParts | None = None,
        *,
        take_over: bool = False,
    ) -> None:
        """`take_over`: take over from the server that holds the state folder, and give way to the
        next server, which sets `superseded`; then call `drain`. Raises ValueError, SecurityError or
        TracingUnavailable for unusable settings, and RepositoryError if the repository does not
        exist."""
        if take_over and settings.state_dir is None:
            raise ValueError("--take-over: needs --state-dir, which the running server has, too")
        self.settings = settings
        self.superseded = asyncio.Event()
        self._takes_over = take_over
        self._takeover_port: TakeoverPort | None = None
        self._parts = ServerParts() if parts is None else parts
        # Unusable files must be found before anything listens.
        self.repository = open_repository(repository, settings.state_dir)
        self.credentials = Credentials(
            settings.token_file,
            settings.tls_files,
            settings.peer_token_file,
            frozenset(name.lower() for name in settings.peer_names),
        )
        self._folder = contextlib.ExitStack()
        self._watching: tuple[asyncio.Task[None], ...] = ()
        self._lock: FolderLock | None = None
        self._tracer: RequestTracer | None = None
        if settings.trace_endpoint is not None:
            self._tracer = open_tracer(
                settings.trace_endpoint, triton_strict=settings.triton_strict
            )

    async def start(self) -> None:
        """Listen, then load the models. Returns when each model serves or has failed.

        Raises OSError if a port or the state folder cannot be used, or if no model is ready to take
        over, RecordingError if the recording cannot be written, PodError if the pod to resize
        cannot be read, SecurityError for certificates and RepositoryError for the repository. After
        an error, nothing is left running. After a cancellation, call `close`.
        """
        settings = self.settings
        if settings.state_dir is not None:
            _require_writable(settings.state_dir)
        warn_of_mismatches()
        limit = settings.memory_limit
        per_client = settings.client_memory_limit or limit // 2
        budget = MemoryBudget(limit, per_client)
        self.catalog = Catalog(self.repository.names())
        core_access = await asyncio.to_thread(open_cores, settings, self._parts.cpu_allocator)
        self._pod = core_access.pod
        self._executors: Mapping[str, Executor] = {
            "worker": ProcessExecutor(core_access.allocator),
            "in_process": InProcessExecutor(),
            "profiled": profiled_executor(self.catalog),
            **self._parts.executors,
        }
        worker = self._executors["worker"]
        engine_settings = EngineSettings()
        self.recorder: Recorder | None = None
        if settings.record is not None:
            self.recorder = Recorder(settings.record, engine_settings, limit=settings.record_limit)
        profiles = self._profiles = ProfileCache(
            ProfileStore(settings.state_dir), budget_s=settings.profile_budget_s
        )
        pools = ModelPoolFactory(
            self.catalog,
            scheduler=settings.scheduler,
            options=settings.scheduler_options,
            recorder=self.recorder,
        )
        self.engine = Engine(pools.parts, engine_settings)
        self.scaling = ScalingPlanner(core_access.numbers)
        self.variants = VariantsPlanner(stopwatch=time.perf_counter, report=_report_unmapped)
        launcher = ReplicaLauncher(self.catalog, self._executors, self.engine)
        self.exits = ExitsPlanner()
        self.placement: ServerPipelinesPlanner | None = None
        # The order of planners: placement of pipelines, lanes, variants, early exits.
        planners: list[Planner] = [self.scaling, self.variants, self.exits]
        if settings.placement != "none":
            self.placement = ServerPipelinesPlanner(
                make_placement(settings.placement, settings.placement_options, on_one_server=True),
                lambda: self.driver.runtime.frames,
                cores=len(core_access.numbers),
                exits=self.exits.status,
                stopwatch=time.perf_counter,
                report=lambda text: log.info("%s", text),
            )
            planners.insert(0, self.placement)
        self.driver = Driver(self.engine, launcher, planners=planners, recorder=self.recorder)
        self.learner = RampLearner(self.driver.post)
        launcher.learn = self.learner.add_features
        self.models = ModelManager(
            ModelManagerSettings(
                cores=core_access.numbers,
                allow_fewer_cores=settings.allow_fewer_cores,
                drain_s=settings.drain_timeout_s,
                places=self.placement is not None,
                scaling_policy=None
                if settings.scaling_policy is None
                else (settings.scaling_policy, settings.scaling_policy_options),
            ),
            self.catalog,
            profiles,
            self._executors,
            budget,
            self.driver,
            launcher,
            self.learner,
        )
        launcher.plan_again = self.models.apply
        launcher.keep_dependence = self.models.keep_dependence
        self.data = ServerDataPlane(
            self.driver,
            self.catalog,
            ClientLimits(
                requests=settings.max_in_flight_per_client, arriving=max(1, per_client // 4)
            ),
            Observers(*([] if self._tracer is None else [self._tracer]), *self._parts.observers),
            look_alikes={} if settings.ignore_unknown_parameters else LOOK_ALIKES,
            max_sessions=settings.max_sessions,
        )
        self.models.pipelines.host = PipelineService(self.catalog, self.driver.post)
        self.offered = OfferedShare(
            self.catalog, self.engine, self.driver.clock, self.data.loop.call_later
        )
        self.data.offered = self.offered.share
        self._peers = open_peers(settings, self.data, self.credentials)
        self.control = ServerControlPlane(
            self.catalog,
            self.models,
            self.repository,
            self.driver.broken,
            ready_when=settings.ready_when,
            staging=self._staging(),
            sessions=self.data.sessions.describe,
            peers=self._peers.status,
            exits=self.exits.status,
            placement=None if self.placement is None else self.placement.status,
        )
        metrics = Metrics(
            self.catalog,
            self.driver.runtime,
            budget,
            self.scaling,
            self.variants,
            self.exits,
            self.driver.replicas.resizes,
            self.data.sessions.sums,
            placement=self.placement,
            process_executor=worker if isinstance(worker, ProcessExecutor) else None,
            pod=core_access.pod,
            recorder=self.recorder,
            offered=self.offered.share,
            peers=self._peers.families,
        )
        access = None
        if settings.access_log or settings.access_log_health:
            access = AccessLogger(health=settings.access_log_health)
        self.front_ends = FrontEnds(
            settings,
            self._peers.plane,
            self.control,
            metrics,
            self.credentials,
            access,
            self.driver.coalescing.arrival_clock,
            budget,
            self._peers.dialler,
        )
        if settings.exposed:
            log.warning(
                "listening on %s without TLS and without a token: every client that can reach "
                "this machine can use the server",
                settings.host,
            )
        if settings.control_exposed:
            log.warning(
                "the control port listens on %s without a token: every client that can reach it "
                "can load models",
                settings.control_host,
            )
        if isinstance(self.repository, SingleModel):
            log.info(
                "serving %s as model %s with default settings; its profile is stored in %s",
                *(self.repository.file, self.repository.model, self.repository.profile_folder),
            )
        try:
            has_loaded = await self._open_ports()
            self._watching = (asyncio.create_task(self.credentials.watch()),)
            self.offered.start()
            await self._peers.start(self.front_ends)
            if not has_loaded:
                await self.models.load_all(self.repository)
        except Exception:
            await self.close()
            raise
        self._watching += (
            asyncio.create_task(self._profiles.learnt.keep(self.catalog.all)),
            asyncio.create_task(
                QuietProfiler(profiles, self.models, lambda: self.driver.requests).run()
            ),
        )
        self._report_models(self.front_ends.addresses())

    async def _open_ports(self) -> bool:
        """Lock the state folder and listen. Returns whether models are loaded: before a takeover,
        they are loaded first."""
        folder = self.settings.state_dir
        predecessor = None
        if folder is not None and self._takes_over:
            predecessor = find_predecessor(folder)
        if predecessor is not None:
            try:
                log.info("loading models, to take over from the server that runs")
                await self.models.load_all(self.repository)
                if not self.control.ready():
                    self._report_models("no port")
                    raise OSError("--take-over: not ready, so the running server goes on")
                await self.front_ends.start(predecessor.sockets)
                await predecessor.stop()
            finally:
                predecessor.close()
        if folder is not None:
            self._lock = _locked(folder)
        if predecessor is None:
            await self.front_ends.start()
        if self._lock is not None:
            self._lock.write(**self._description())
        if folder is not None and self._takes_over:
            self._takeover_port = TakeoverPort(folder, self.front_ends.descriptors, self._give_way)
        return predecessor is not None

    def _give_way(self) -> None:
        if self._lock is not None:
            self._lock.release()
        self.superseded.set()

    def _report_models(self, addresses: str) -> None:
        """Log how many models serve, why others do not, and where to connect."""
        catalog, expected = self.catalog, sorted(self.catalog.expected)
        failed = [
            f"{name} ({catalog.absence(name, None) or 'unloaded'})"
            for name in expected
            if not catalog.serving(name)
        ]
        if not expected:
            log.warning("%s: %s", self.repository.root, self.repository.without_models())
            log.info("ready: %s", addresses)
            return
        text = f"serving {len(expected) - len(failed)} of {len(expected)} models"
        if failed:
            remainder = f" and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
            text += f"; unavailable: {', '.join(failed[:_SHOWN])}{remainder}"
        if not self.control.ready():
            rule = f"--ready-when {self.settings.ready_when}"
            log.warning("listening on %s, not ready (%s): %s", addresses, rule, text)
            return
        log.log(logging.WARNING if failed else logging.INFO, "%s", text)
        log.info("ready: %s", addresses)

    def _staging(self) -> Staging | None:
        if not self.settings.allow_uploads:
            return None
        folder = self._folder.enter_context(
            tempfile.TemporaryDirectory(prefix="slacktide-", dir=self.settings.state_dir)
        )
        return Staging(Path(folder))

    def _description(self) -> dict[str, object]:
        """The document that a supervisor reads in the lock of the state folder."""
        settings = self.settings
        return {
            "release": __version__,
            "machine": settings.machine,
            "host": self.front_ends.local_host,
            "ports": self.front_ends.ports(),
            "tls": settings.tls is not None,
            "drain_s": settings.drain_delay_s + settings.drain_timeout_s,
        }

    async def drain(self) -> None:
        """Fail readiness, stop listening, and answer requests in flight."""
        is_superseded = self.superseded.is_set()
        self.control.draining = not is_superseded  # a successor keeps the addresses ready
        self._peers.drain()
        await asyncio.sleep(0.0 if is_superseded else self.settings.drain_delay_s)
        log.info("draining: %d requests in flight", self.driver.in_flight)
        await self.front_ends.drain(self.settings.drain_timeout_s, is_superseded=is_superseded)

    async def close(self) -> None:
        """Stop everything now and refuse requests in flight. Safe after a failed start."""
        if hasattr(self, "front_ends"):
            await self._close_parts()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.shutdown)
        self._folder.close()
        if self._lock is not None:
            self._lock.release()

    async def _close_parts(self) -> None:
        self.data.draining = True
        if self._takeover_port is not None:
            self._takeover_port.close()
        for task in self._watching:
            task.cancel()
        await self._peers.close()
        await self.front_ends.close()
        await self._profiles.learnt.save(self.catalog.all())
        self.driver.close()
        await self.learner.close()
        self.data.overload.report()
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close)
        for version in self.catalog.all():
            if version.text is not None:
                version.text.close()
        for executor in self._executors.values():
            await executor.close()
        if self._pod is not None:
            await self._pod.close()


class NoPeers:
    """Stands in for the `PeerService` of a server without peers."""

    dialler: PeerHost | None = None

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane

    async def start(self, front_ends: FrontEnds) -> None: ...

    def drain(self) -> None: ...

    async def close(self) -> None: ...

    def families(self) -> Iterable[MetricFamily]:
        return peer_families()

    def status(self) -> dict[str, Any]:
        return {}


def open_peers(
    settings: ServerSettings, data: ServerDataPlane, credentials: Credentials
) -> PeerService | NoPeers:
    """Return the service that links the server to its peers. Without peers, its modules are not
    loaded."""
    if not settings.has_peers:
        return NoPeers(data)
    from slacktide.server.peers.service import PeerService

    return PeerService(settings, data, credentials)


def _report_unmapped(model: str, unmapped: int, sessions: int) -> None:
    if unmapped:
        log.warning(
            "%s: %d of %d sessions are not mapped to a variant: no time is left for their frames",
            *(model, unmapped, sessions),
        )
    else:
        log.info("%s: all %d sessions are mapped to a variant", model, sessions)


def _require_writable(folder: Path) -> None:
    """Create the state folder if needed. Raises OSError naming the setting."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            error.errno, f"--state-dir {folder}: cannot be written: {error.strerror}"
        ) from None


def _locked(folder: Path) -> FolderLock:
    """Lock the state folder for this server. Raises OSError naming the setting and the holder."""
    lock = FolderLock(folder / "lock")
    try:
        lock.acquire(release=__version__)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        advice = "give each server a state folder of its own"
        raise OSError(error.errno, f"--state-dir {error.strerror}; {advice}") from None
    return lock


def profiled_executor(catalog: Catalog) -> ProfiledExecutor:
    """Return an executor whose replicas take the time in their profile and answer zeros."""

    def times(replica: Replica) -> CorrectedTimes:
        # Separate times: what the server learns must not change the simulation.
        return CorrectedTimes(catalog.loaded(replica.pool).times.table)

    def interface(replica: Replica) -> ModelInterface:
        return catalog.loaded(replica.pool).version.interface

    return ProfiledExecutor(times, interface)


EXECUTORS = ("worker", "in_process", "profiled")
"""Executor names that a model's settings may contain."""


@dataclass(frozen=True, slots=True)
class ServerParts:
    """Objects from the program that embeds a server, called only on the server's loop. Raises
    ValueError for an unknown executor name, TypeError for objects of the wrong kind."""

    executors: Mapping[str, Executor] = field(default_factory=dict)
    """Executors that replace the server's own, by name. The server closes them."""
    cpu_allocator: CpuAllocator | None = None
    """Gives worker processes their cores, instead of the allocator named in the settings."""
    observers: Sequence[RequestObserver] = ()
    """Notified of every answered request."""

    def __post_init__(self) -> None:
        for name, executor in self.executors.items():
            if name not in EXECUTORS:
                expected = " or ".join(EXECUTORS)
                raise ValueError(f"executors: expected {expected}, got {name!r}")
            _require_methods(f"executors: {name}", "an Executor", executor, "start", "close")
        if self.cpu_allocator is not None:
            allocator = self.cpu_allocator
            _require_methods("cpu_allocator", "a CpuAllocator", allocator, "grant", "forget")
        for observer in self.observers:
            _require_methods("observers", "a RequestObserver", observer, "answered")


def _require_methods(where: str, expected: str, part: object, *methods: str) -> None:
    missing = [name for name in methods if not callable(getattr(part, name, None))]
    if missing:
        kind = type(part).__name__
        raise TypeError(f"{where}: expected {expected}, got {kind} without {', '.join(missing)}")


@dataclass(frozen=True, slots=True)
class MachineCores:
    """Cores and their allocator on this machine."""

    numbers: tuple[int, ...]
    """Processors that lanes may use, ascending."""
    allocator: CpuAllocator
    pod: PodAllocator | None = None
    """The allocator, if it resizes the server's pod."""


def open_cores(settings: ServerSettings, allocator: CpuAllocator | None = None) -> MachineCores:
    """Return the cores and their allocator; `allocator` replaces the one that settings name. May
    call a Kubernetes API server; raises PodError if that fails."""
    if allocator is not None:
        machine_cores = MachineCores(available_cores()[: settings.cores], allocator)
    elif settings.cpu_allocator == "kubernetes":
        pod = PodAllocator(PodClient(PodName.from_environment()), overhead=settings.pod_overhead)
        pod.start()
        # Ignore the quota: it will grow.
        machine_cores = MachineCores(
            tuple(sorted(os.sched_getaffinity(0)))[: settings.cores], pod, pod
        )
    else:
        share = settings.core_share if settings.cpu_allocator == "cgroup" else None
        machine_cores = MachineCores(available_cores()[: settings.cores], choose_allocator(share))
    if settings.cores is not None and len(machine_cores.numbers) < settings.cores:
        log.warning(
            "--cores %d: affinity and quota limit this process to %d cores, which models get",
            *(settings.cores, len(machine_cores.numbers)),
        )
    return machine_cores
