"""`LoadedVersion`: a version that is loading or serving, its pools, and `Catalog`: which there are.

What requests were checked against, and where their payloads lie, belongs to the version; what runs
them belongs to a pool. So a waiting request could move between the pools of one version.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from slacktide.domain import PoolId
from slacktide.domain.crops import Glue
from slacktide.domain.tensors import ModelInterface
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.ports import ModelSource, ReplicaHandle, SessionSize
from slacktide.models.calls.input_blocklist import InputBlocklist
from slacktide.models.calls.input_check import InputCheck
from slacktide.models.calls.model_counters import ModelCounters
from slacktide.models.learnt import PoolTimes
from slacktide.models.profile_cache import ProfiledModel
from slacktide.models.repository.interface import config_json
from slacktide.models.repository.repository import ModelDefinition
from slacktide.models.repository.triton.translate import PLATFORM
from slacktide.planning.variants import Family

if TYPE_CHECKING:
    from slacktide.models.pipeline_version import PipelineVersion

log = logging.getLogger("slacktide.models")

RouteT = TypeVar("RouteT", covariant=True)

UNLOADED = "unloaded"
"""Why a version is absent that a client, or the program around the server, has unloaded."""

IDLE_S = 5.0
"""Seconds without a call after which a version's payload memory is given back."""


class VersionState(Enum):
    """States of the repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class CallRoutes(Protocol[RouteT]):
    """Gives calls their way to an engine, by what kind of version answers them."""

    def of_model(self) -> RouteT: ...

    def of_pipeline(self, version: PipelineVersion) -> RouteT: ...


@dataclass(slots=True, eq=False)
class LoadedExits:
    """What is known of the early exits of a pool's model. Until a manifest of ramps was read or
    learnt, no request may leave early."""

    outputs: tuple[str, ...]
    """Of the model, in its order."""
    revision: int = 0
    """Of the ramps; 0: there are none yet."""
    names: tuple[str, ...] = ()
    """Tensors at which the model may be left, front to end."""
    refusal: str = ""
    """Why the model is served as it is; empty: it is not."""
    _made: frozenset[int] = frozenset()
    """Indices of the outputs that ramps make."""

    def learnt(self, revision: int, names: tuple[str, ...], outputs: Container[str]) -> None:
        """These are its ramps from now on, and the outputs that they make."""
        self.revision, self.names, self.refusal = revision, names, ""
        self._made = frozenset(index for index, name in enumerate(self.outputs) if name in outputs)

    def makes(self, outputs: Iterable[int]) -> bool:
        """Whether ramps make all of these outputs."""
        return self._made.issuperset(outputs)

    def name(self, position: int | None) -> str:
        """The tensor at a position, its number where the name is not known; none: the end."""
        if position is None:
            return ""
        return self.names[position] if position < len(self.names) else str(position)


@dataclass(slots=True, eq=False)
class LoadedPool:
    """One of the engine's pools: a model file, how long its batches take, and its replicas."""

    id: PoolId
    version: LoadedVersion = field(repr=False)
    definition: ModelDefinition = field(repr=False)
    """Of its variant; the version's own where there is but one pool."""
    source: ModelSource
    times: PoolTimes
    cores: int = 1
    """Of a lane it serves on, at least; 1 on an accelerator."""
    size: int = 0
    """What a request asks for that wants this variant: the side of its images in pixels, or its
    place among the files, from 1; 0: it is none."""
    at_first: bool = True
    """Whether it is deployed before a planner decides."""
    sessions: Sequence[SessionSize] = ()
    """Of the replica that came up last."""
    replicas_up: set[int] = field(default_factory=set)
    known: ProfiledModel | None = None
    """What its times rest on."""
    saved: int | None = None
    """The revision of its times that was stored last."""
    handles: dict[int, ReplicaHandle] = field(default_factory=dict)
    """Its replicas, by number, until they are stopped or lost."""
    drifting: bool = False  # the log's last word on batch times
    exits: LoadedExits | None = None
    """None: its settings state no early exits."""

    @property
    def variant(self) -> str:
        """Which of its version's pools this is; empty for the only one."""
        return self.id.variant


@dataclass(slots=True, eq=False)
class LoadedVersion:
    """One version of one model, loaded once. Its pools share everything here."""

    platform: ClassVar[str] = PLATFORM
    """As Triton names it."""

    name: str
    version: str
    generation: int
    """Counts the loads of the server: no two have the same."""
    definition: ModelDefinition
    interface: ModelInterface
    arena: Arena
    check: InputCheck
    counters: ModelCounters
    state: VersionState = VersionState.LOADING
    reason: str = ""
    """Why it is unavailable."""
    failed: bool = False
    """For good: it stays unavailable until it is loaded anew."""
    family: Family | None = None
    """Its variants, in the order of its pools; None: it has none."""
    pools: list[LoadedPool] = field(default_factory=list)
    """At least one once it is complete (`add_pool`); of a family smallest first."""
    exits: LoadedExits | None = None
    """Of its only pool."""
    stages: Mapping[str, LoadedVersion] = field(default_factory=dict)
    """Versions of the stages' models, by stage, if it is a pipeline; else empty."""
    frames: dict[int, tuple[Arena, Glue]] = field(default_factory=dict)
    """Arenas of frames that its replicas cut crops out of, by the number that they know."""
    main: int = 0
    """The pool that serves it until a planner decides, by number."""
    dependence: str = ""
    """Why requests do not share a batch, although the model has a batch axis."""
    in_flight: int = 0
    """Calls that have not been answered."""
    blocklist: InputBlocklist = field(default_factory=InputBlocklist)
    cleanup: Callable[[], None] | None = None
    """Deletes files that are here for this load only; blocks. Other versions may share it."""
    _drained: asyncio.Event | None = None
    """Set when the last call leaves; None: nothing waits for that."""
    _retired: bool = False
    _left_at: float = 0.0
    _idle: asyncio.TimerHandle | None = None
    pin: str = field(init=False)
    """What requests name as their version, so that they stay with this very load of it: a version
    that is loaded anew never gets requests that were checked against the old one."""
    penalty: float = field(init=False)
    """Of a request that states no priority: 2^(3 − priority)."""

    def __post_init__(self) -> None:
        self.pin = f"{self.version}.{self.generation}"
        self.penalty = float(2.0 ** (3 - self.definition.settings.priority))

    def add_pool(
        self,
        source: ModelSource,
        times: PoolTimes,
        *,
        cores: int = 1,
        definition: ModelDefinition | None = None,
        known: ProfiledModel | None = None,
    ) -> LoadedPool:
        """Have one pool more serve the version, of the variant of `definition` if that names one.
        The engine learns of it with a plan."""
        variant, size = "", 0
        if definition is not None and definition.variant:
            variant, size = definition.variant, definition.image_size or len(self.pools) + 1
        id = PoolId(self.name, self.version, variant, self.generation)
        model = definition or self.definition
        if model.settings.exits is not None:  # no family has them
            self.exits = LoadedExits(tuple(spec.name for spec in self.interface.outputs))
        self.pools.append(LoadedPool(id, self, model, source, times, cores, size, known=known))
        self.pools[-1].exits = self.exits
        return self.pools[-1]

    def attach(self, number: int, frames: Arena, glue: Glue) -> None:
        """Have all replicas take crops of frames in this arena, those that start later, too."""
        self.frames[number] = (frames, glue)
        for pool in self.pools:
            for handle in pool.handles.values():
                handle.attach(number, frames, glue)

    def detach(self, number: int) -> None:
        """Let go of that arena, once no crop of its frames waits or runs."""
        del self.frames[number]
        for pool in self.pools:
            for handle in pool.handles.values():
                handle.detach(number)

    def route(self, routes: CallRoutes[RouteT]) -> RouteT:
        """Return the way of its calls to an engine."""
        return routes.of_model()

    def config(self) -> dict[str, Any]:
        """Return its configuration as Triton's ModelConfig."""
        return config_json(self.definition, self.interface)

    @property
    def pool(self) -> LoadedPool:
        """The main one: deadlines and prices of requests go by its times."""
        return self.pools[self.main]

    @property
    def front(self) -> LoadedVersion:
        """The version that runs what a client sends: of a pipeline, that of its source."""
        return self

    @property
    def rest_s(self) -> float:
        """Seconds that stages behind the front take, where it is a pipeline."""
        return 0.0

    @property
    def is_up(self) -> bool:
        """Whether it answers, and a pool has a replica: of a family one variant is enough."""
        return self.state is VersionState.READY and any(pool.replicas_up for pool in self.pools)

    def rescue_of(self, pool: LoadedPool) -> tuple[str, ...]:
        """Smaller variants that may answer what would be too late here, most accurate first."""
        settings = self.definition.settings.variants
        if settings is None or not settings.rescue:
            return ()
        return tuple(
            reversed([smaller.variant for smaller in self.pools[: self.pools.index(pool)]])
        )

    def enter(self) -> None:
        self.in_flight += 1

    def leave(self) -> None:
        self.in_flight -= 1
        if self.in_flight:
            return
        self._left_at = time.monotonic()
        if self._drained is not None:
            self._drained.set()
        if self._retired:
            self._close()
        elif self._idle is None:  # one timer for many calls: it looks again when it fires
            self._wait_for_idleness(IDLE_S)

    def _wait_for_idleness(self, seconds: float) -> None:
        self._idle = asyncio.get_running_loop().call_later(seconds, self._maybe_trim)

    def _maybe_trim(self) -> None:
        self._idle = None
        if self.in_flight:
            return  # the last of these calls sets it again
        idle_left = self._left_at + IDLE_S - time.monotonic()
        if idle_left > 0.0:
            self._wait_for_idleness(idle_left)
        else:
            self.arena.trim()

    def retire(self) -> None:
        """Let go of the payloads: now, or when the last call has left. Uploads that are still
        coming in write there."""
        self._retired = True
        if not self.in_flight:
            self._close()

    def _close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self.arena.close()

    async def drained(self) -> None:
        """Return once no call is in flight."""
        while self.in_flight:
            drained = self._drained = self._drained or asyncio.Event()
            drained.clear()
            await drained.wait()

    def limit_batch(self, rows: int) -> None:
        """Batches, and so requests, have at most so many rows from now on."""
        self.interface = replace(self.interface, max_batch=rows)
        self.check = InputCheck(
            self.interface,
            self.definition.settings,
            any_image=self.family is not None,
            client_shapes=self.definition.client_shapes,
        )

    @property
    def batch_cap(self) -> int:
        """Most rows in a batch of several requests; a single request may have more. Not while it
        loads: pools admit requests of so many rows as their first plan."""
        alone = self.dependence and self.state is not VersionState.LOADING
        return 1 if alone else max(1, self.interface.max_batch)

    def fail(self, reason: str) -> None:
        """Out of service for good, because of what it runs under, not of what it is."""
        self.failed = True
        self.state, self.reason = VersionState.UNAVAILABLE, reason
        log.error("%s:%s is unavailable: %s", self.name, self.version, reason)

    def ready(self) -> None:
        """In service, unless it has failed for good."""
        if not self.failed:
            self.state, self.reason = VersionState.READY, ""

    @property
    def p99_alone(self) -> float:
        """Seconds that one row takes, 99 times in 100."""
        return self.pool.times.of(1, self.pool.cores).p99

    @property
    def expected_alone(self) -> float:
        """Seconds that one row takes, as a rule."""
        return self.pool.times.of(1, self.pool.cores).expected


@dataclass(slots=True)
class Absent:
    """A version that could not be loaded, or was unloaded."""

    state: VersionState
    reason: str


class Catalog:
    """Versions by model and number. Exactly one generation of a version answers."""

    def __init__(self, expected: Iterable[str] = ()) -> None:
        """`expected`: the models that are there at the start."""
        self._serving: dict[str, dict[str, LoadedVersion]] = {}
        self._latest: dict[str, LoadedVersion] = {}
        self._pools: dict[PoolId, LoadedPool] = {}
        self._absent: dict[str, dict[str, Absent]] = {}
        self.expect(expected)

    def expect(self, names: Iterable[str]) -> None:
        """These models, and no others, are there at the start. None has been tried."""
        self.expected = frozenset(names)
        """Models that were there at the start: readiness goes by them."""
        self.loading = set(self.expected)
        """Those of them that have neither come up nor failed yet."""

    def add(self, version: LoadedVersion) -> None:
        """Known to its replicas from now on; not answering yet."""
        self._pools.update({pool.id: pool for pool in version.pools})

    def pool(self, id: PoolId) -> LoadedPool | None:
        return self._pools.get(id)

    def loaded(self, id: PoolId) -> LoadedPool:
        """Raises KeyError if there is no such."""
        if id not in self._pools:
            raise KeyError(f"{id} is not loaded")
        return self._pools[id]

    def serve(self, name: str, versions: Mapping[str, LoadedVersion]) -> None:
        """`versions` answer for `name` from now on; none: the model is gone."""
        self._absent.pop(name, None)
        if versions:
            self._serving[name] = dict(versions)
            self._latest[name] = versions[max(versions, key=int)]
        else:
            self._serving.pop(name, None)
            self._latest.pop(name, None)

    def mark_absent(self, name: str, version: str, state: VersionState, reason: str) -> None:
        """Say in the index why a version does not serve."""
        self._absent.setdefault(name, {})[version] = Absent(state, reason)

    def forget(self, version: LoadedVersion) -> None:
        """Its last replica is gone."""
        for pool in version.pools:
            self._pools.pop(pool.id, None)

    def find(self, name: str, version: str | None) -> LoadedVersion | None:
        """The version that answers; the latest if none is named."""
        if version is None:
            return self._latest.get(name)
        return self._serving.get(name, {}).get(version)

    def absence(self, name: str, version: str | None) -> str | None:
        """Why a version that was tried does not serve; None if it never was tried."""
        tried = self._absent.get(name, {})
        if version is not None:
            return tried[version].reason if version in tried else None
        return next((absent.reason for absent in tried.values()), None)

    def serving(self, name: str) -> Mapping[str, LoadedVersion]:
        return self._serving.get(name, {})

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._serving))

    def absent(self) -> Mapping[str, Mapping[str, Absent]]:
        return self._absent

    def all(self) -> tuple[LoadedVersion, ...]:
        """Every version that has replicas, also those on their way in or out, and pipelines."""
        all_versions = dict.fromkeys(pool.version for pool in self._pools.values())
        for versions in self._serving.values():
            all_versions.update(dict.fromkeys(versions.values()))
        return tuple(all_versions)
