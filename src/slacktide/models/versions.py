"""`LoadedVersion`, a version that is loading or serving, its pools, and the `Catalog` of versions.

The check of requests and the memory of payloads belong to the version; replicas belong to a pool.
So a waiting request can move between the pools of one version.
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
from slacktide.exits import SessionNumbers
from slacktide.models.calls.input_blocklist import InputBlocklist
from slacktide.models.calls.input_check import InputCheck
from slacktide.models.calls.model_counters import ModelCounters
from slacktide.models.learnt import PoolTimes
from slacktide.models.profile_cache import ProfiledModel
from slacktide.models.repository.interface import config_json
from slacktide.models.repository.repository import ModelDefinition
from slacktide.models.repository.triton.translate import PLATFORM
from slacktide.models.text_inputs import TextInput
from slacktide.planning.variants import Family

if TYPE_CHECKING:
    from slacktide.models.pipeline_version import PipelineVersion

log = logging.getLogger("slacktide.models")

RouteT = TypeVar("RouteT", covariant=True)

UNLOADED = "unloaded"
"""Reason given for a version that a client or the embedding program unloaded."""

IDLE_S = 5.0
"""Seconds without a call after which a version's payload memory is trimmed."""


class VersionState(Enum):
    """States of the repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class CallRoutes(Protocol[RouteT]):
    """The routes of calls to the engine: one for all models, one for each pipeline."""

    def of_model(self) -> RouteT: ...

    def of_pipeline(self, version: PipelineVersion) -> RouteT: ...


@dataclass(slots=True, eq=False)
class LoadedExits:
    """Early exits of a pool's model. Until a manifest of ramps has been read or learnt, no request
    may leave early."""

    outputs: tuple[str, ...]
    """The outputs for clients, in order."""
    decoded: bool = False
    """Whether a decoder makes all outputs from the outputs of ramps."""
    revision: int = 0
    """Revision of the ramps; 0 if there are none yet."""
    names: tuple[str, ...] = ()
    """Tensors at which requests may leave, front to end."""
    refusal: str = ""
    """Why the model is served without early exits; empty if it is served with them."""
    sessions: SessionNumbers | None = None
    """Sessions of its requests, if answers are remembered."""
    _ramp_outputs: frozenset[int] = frozenset()
    """Indices of the outputs that ramps make."""

    def learnt(self, revision: int, names: tuple[str, ...], outputs: Container[str]) -> None:
        """Set new ramps and the outputs that they make."""
        self.revision, self.names, self.refusal = revision, names, ""
        self._ramp_outputs = frozenset(
            index for index, name in enumerate(self.outputs) if name in outputs
        )

    def frame(self, client: str, session: str) -> tuple[int, int]:
        """Return `Request.session` and `Request.frame` of a request that arrives. `session`: its
        name among the client's sessions; empty: it has none."""
        if self.sessions is None or not session:
            return 0, 0
        return self.sessions.next_frame(f"{client}\n{session}")

    def makes(self, outputs: Iterable[int]) -> bool:
        """Whether a request for these outputs may leave early."""
        return self.decoded or self._ramp_outputs.issuperset(outputs)

    def name(self, position: int | None) -> str:
        """Return the tensor at a position, or its number if unnamed; empty for None, the end."""
        if position is None:
            return ""
        return self.names[position] if position < len(self.names) else str(position)


@dataclass(slots=True, eq=False)
class LoadedPool:
    """One of the engine's pools: a model file, its batch times and its replicas."""

    id: PoolId
    version: LoadedVersion = field(repr=False)
    definition: ModelDefinition = field(repr=False)
    """Definition of the pool's variant; the version's definition if it is the only pool."""
    source: ModelSource
    times: PoolTimes
    cores: int = 1
    """Fewest cores of its lanes; 1 on an accelerator."""
    size: int = 0
    """Number by which requests select this variant: the side of its images in pixels, or its place
    among the files, from 1. 0: the pool is not a variant."""
    at_first: bool = True
    """Whether to deploy it before a planner decides."""
    sessions: Sequence[SessionSize] = ()
    """Sessions of the last replica that came up."""
    replicas_up: set[int] = field(default_factory=set)
    profile: ProfiledModel | None = None
    """The profile that its times are based on."""
    saved_revision: int | None = None
    """Revision of its times that was stored last."""
    handles: dict[int, ReplicaHandle] = field(default_factory=dict)
    """Its replicas, by number, until they are stopped or lost."""
    drifting: bool = False  # the state logged last
    exits: LoadedExits | None = None
    """None if its settings state no early exits."""

    @property
    def variant(self) -> str:
        """Name of its variant; empty for the only pool."""
        return self.id.variant


@dataclass(slots=True, eq=False)
class LoadedVersion:
    """One version of a model, loaded once: a reload makes a new object. All of its pools share
    these fields."""

    platform: ClassVar[str] = PLATFORM
    """Platform of the model in Triton's protocol."""

    name: str
    version: str
    generation: int
    """Number of the load, unique in the server."""
    definition: ModelDefinition
    interface: ModelInterface
    arena: Arena
    check: InputCheck
    counters: ModelCounters
    state: VersionState = VersionState.LOADING
    reason: str = ""
    """Why it is unavailable."""
    failed: bool = False
    """Whether it stays unavailable until it is reloaded."""
    family: Family | None = None
    """Its variants, in the order of its pools; None if it has none."""
    pools: list[LoadedPool] = field(default_factory=list)
    """One or more, added by `add_pool`; a family's smallest first. A pipeline has none."""
    exits: LoadedExits | None = None
    """Early exits of its only pool."""
    stages: Mapping[str, LoadedVersion] = field(default_factory=dict)
    """Versions of the stages' models, by stage, if it is a pipeline; else empty."""
    frame_arenas: dict[int, tuple[Arena, Glue]] = field(default_factory=dict)
    """Arenas from which its replicas cut crops, by number."""
    main: int = 0
    """Index of the pool that serves until a planner decides."""
    text: TextInput | None = None
    """Turns texts into the first inputs of `interface`; None if it has no tokenizer."""
    labels: tuple[str, ...] = ()
    """Names of its classes, once a replica has reported them."""
    dependence: str = ""
    """Why requests must not share a batch although the model has a batch axis."""
    in_flight: int = 0
    """Number of calls without an answer."""
    blocklist: InputBlocklist = field(default_factory=InputBlocklist)
    cleanup: Callable[[], None] | None = None
    """Deletes the files uploaded for this load. Blocks. Several versions may share it."""
    _drained: asyncio.Event | None = None
    """Set when the last call leaves; None if nothing waits for this."""
    _retired: bool = False
    _idle_since: float = 0.0
    _trim_timer: asyncio.TimerHandle | None = None
    pin: str = field(init=False)
    """The version that its requests name in the engine. It identifies this load, so that a reloaded
    version never gets requests checked against the old one."""
    penalty: float = field(init=False)
    """Penalty of a request without stated priority: 2^(3 − priority)."""

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
        profile: ProfiledModel | None = None,
    ) -> LoadedPool:
        """Add a pool, for the variant of `definition` if it names one. The engine gets it with the
        next plan."""
        variant, size = "", 0
        if definition is not None and definition.variant:
            variant, size = definition.variant, definition.image_size or len(self.pools) + 1
        id = PoolId(self.name, self.version, variant, self.generation)
        model = definition or self.definition
        if model.settings.exits is not None:  # families have no early exits
            names = tuple(spec.name for spec in self.interface.outputs)
            self.exits = LoadedExits(names, decoded=model.settings.decode is not None)
            if model.settings.exits.remember is not None and source.exits is not None:
                rows_inputs = [
                    spec.name for spec in self.interface.inputs if spec.name != source.exits.mask
                ]
                if len(rows_inputs) == 1:
                    self.exits.sessions = SessionNumbers()
                else:
                    message = "%s: answers are not remembered, because it has several inputs"
                    log.warning(message, self.name)
        self.pools.append(LoadedPool(id, self, model, source, times, cores, size, profile=profile))
        self.pools[-1].exits = self.exits
        return self.pools[-1]

    def attach(self, number: int, frames: Arena, glue: Glue) -> None:
        """Let all replicas, including later ones, cut crops from frames in this arena."""
        self.frame_arenas[number] = (frames, glue)
        for pool in self.pools:
            for handle in pool.handles.values():
                handle.attach(number, frames, glue)

    def detach(self, number: int) -> None:
        """Release an attached arena. Call it once no crop of its frames waits or runs."""
        del self.frame_arenas[number]
        for pool in self.pools:
            for handle in pool.handles.values():
                handle.detach(number)

    def route(self, routes: CallRoutes[RouteT]) -> RouteT:
        """Return the route of its calls to the engine."""
        return routes.of_model()

    def config(self) -> dict[str, Any]:
        """Return its configuration as Triton's ModelConfig."""
        return config_json(self.definition, self.client_interface, self.labels)

    @property
    def client_interface(self) -> ModelInterface:
        """Its interface as clients see it: with texts in place of ids."""
        return self.interface if self.text is None else self.text.shown(self.interface)

    @property
    def pool(self) -> LoadedPool:
        """The main pool, whose times decide deadlines and prices of requests."""
        return self.pools[self.main]

    @property
    def front(self) -> LoadedVersion:
        """The version that gets the client's tensors: the source's if it is a pipeline."""
        return self

    @property
    def rest_s(self) -> float:
        """Seconds that a pipeline's stages behind the front take; 0 for a model."""
        return 0.0

    @property
    def is_up(self) -> bool:
        """Whether it is ready and has a replica; one variant of a family is enough."""
        return self.state is VersionState.READY and any(pool.replicas_up for pool in self.pools)

    def rescue_of(self, pool: LoadedPool) -> tuple[str, ...]:
        """Smaller variants that may answer requests that are too late for `pool`, best first."""
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
        self._idle_since = time.monotonic()
        if self._drained is not None:
            self._drained.set()
        if self._retired:
            self._close()
        elif self._trim_timer is None:  # one timer for many calls: it checks again when it fires
            self._wait_for_idleness(IDLE_S)

    def _wait_for_idleness(self, seconds: float) -> None:
        self._trim_timer = asyncio.get_running_loop().call_later(seconds, self._maybe_trim)

    def _maybe_trim(self) -> None:
        self._trim_timer = None
        if self.in_flight:
            return  # the last call sets the timer again
        idle_left = self._idle_since + IDLE_S - time.monotonic()
        if idle_left > 0.0:
            self._wait_for_idleness(idle_left)
        else:
            self.arena.trim()

    def retire(self) -> None:
        """Release payload memory once no call is in flight; until then bodies may arrive in it."""
        self._retired = True
        if not self.in_flight:
            self._close()

    def _close(self) -> None:
        if self._trim_timer is not None:
            self._trim_timer.cancel()
            self._trim_timer = None
        self.close()

    def close(self) -> None:
        """Release payload memory and end the tokenizer."""
        self.arena.close()
        if self.text is not None:
            self.text.close()

    async def drained(self) -> None:
        """Return once no call is in flight."""
        while self.in_flight:
            drained = self._drained = self._drained or asyncio.Event()
            drained.clear()
            await drained.wait()

    def limit_batch(self, rows: int) -> None:
        """Set the maximum number of rows of batches and requests."""
        self.interface = replace(self.interface, max_batch=rows)
        self.check = InputCheck(
            self.interface,
            self.definition.settings,
            any_image=self.definition.any_image,
            client_shapes=self.definition.client_shapes,
        )

    @property
    def batch_cap(self) -> int:
        """Maximum rows in a batch of several requests; a single request may have more. Dependent
        rows reduce it to 1, except while loading, because the first plan limits single requests
        too."""
        alone = self.dependence and self.state is not VersionState.LOADING
        return 1 if alone else max(1, self.interface.max_batch)

    def fail(self, reason: str) -> None:
        """Take the version out of service until it is reloaded, because of its environment."""
        self.failed = True
        self.state, self.reason = VersionState.UNAVAILABLE, reason
        log.error("%s:%s is unavailable: %s", self.name, self.version, reason)

    def ready(self) -> None:
        """Put the version into service, unless it has failed for good."""
        if not self.failed:
            self.state, self.reason = VersionState.READY, ""

    @property
    def p99_alone(self) -> float:
        """99th percentile, in seconds, of the time of a batch of one row."""
        return self.pool.times.of(1, self.pool.cores).p99

    @property
    def expected_alone(self) -> float:
        """Expected seconds of a batch of one row."""
        return self.pool.times.of(1, self.pool.cores).expected


@dataclass(slots=True)
class Absent:
    """A version that failed to load or was unloaded."""

    state: VersionState
    reason: str


class Catalog:
    """Versions by model and number. Only one load of a version answers at a time."""

    def __init__(self, expected: Iterable[str] = ()) -> None:
        """`expected`: models that load when the server starts."""
        self._serving: dict[str, dict[str, LoadedVersion]] = {}
        self._latest: dict[str, LoadedVersion] = {}
        self._pools: dict[PoolId, LoadedPool] = {}
        self._absent: dict[str, dict[str, Absent]] = {}
        self.expect(expected)

    def expect(self, names: Iterable[str]) -> None:
        """Set the models that load when the server starts, none of them tried yet."""
        self.expected = frozenset(names)
        """Models that load when the server starts; they decide readiness."""
        self.loading = set(self.expected)
        """Models in `expected` that have neither loaded nor failed yet."""

    def add(self, version: LoadedVersion) -> None:
        """Make a version's pools known. It does not answer yet."""
        self._pools.update({pool.id: pool for pool in version.pools})

    def pool(self, id: PoolId) -> LoadedPool | None:
        return self._pools.get(id)

    def loaded(self, id: PoolId) -> LoadedPool:
        """Return a pool. Raises KeyError if it is not loaded."""
        if id not in self._pools:
            raise KeyError(f"{id} is not loaded")
        return self._pools[id]

    def serve(self, name: str, versions: Mapping[str, LoadedVersion]) -> None:
        """Let `versions` answer for `name`; if empty, the model is gone."""
        self._absent.pop(name, None)
        if versions:
            self._serving[name] = dict(versions)
            self._latest[name] = versions[max(versions, key=int)]
        else:
            self._serving.pop(name, None)
            self._latest.pop(name, None)

    def mark_absent(self, name: str, version: str, state: VersionState, reason: str) -> None:
        """Set the index entry of a version that does not serve."""
        self._absent.setdefault(name, {})[version] = Absent(state, reason)

    def forget(self, version: LoadedVersion) -> None:
        """Remove a version's pools after its last replica has stopped."""
        for pool in version.pools:
            self._pools.pop(pool.id, None)

    def find(self, name: str, version: str | None) -> LoadedVersion | None:
        """Return the version that answers; the latest if `version` is None."""
        if version is None:
            return self._latest.get(name)
        return self._serving.get(name, {}).get(version)

    def absence(self, name: str, version: str | None) -> str | None:
        """Return why a tried version does not serve; None if it was never tried."""
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
        """Return all pipelines and versions with pools, including those loading or unloading."""
        all_versions = dict.fromkeys(pool.version for pool in self._pools.values())
        for versions in self._serving.values():
            all_versions.update(dict.fromkeys(versions.values()))
        return tuple(all_versions)
