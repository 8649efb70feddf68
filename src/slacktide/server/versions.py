"""`LoadedVersion`: a version that is loading or serving, and `Catalog`: which there are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from slacktide.domain import PoolId
from slacktide.domain.tensors import ModelInterface
from slacktide.executors.arena import Arena
from slacktide.executors.ports import ModelSource
from slacktide.profiles.batch_times import CorrectedTimes
from slacktide.repository.definition import ModelDefinition
from slacktide.server.inputs import InputCheck
from slacktide.server.tally import Tally


class VersionState(Enum):
    """States of the repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(slots=True)
class LoadedVersion:
    """One version of one model, loaded once."""

    pool: PoolId
    definition: ModelDefinition
    source: ModelSource
    interface: ModelInterface
    times: CorrectedTimes
    arena: Arena
    check: InputCheck
    tally: Tally
    state: VersionState = VersionState.LOADING
    reason: str = ""
    """Why it is unavailable."""
    cores: int = 1
    """Of a lane it serves on; 1 on an accelerator."""
    replicas_up: set[int] = field(default_factory=set)
    in_flight: int = 0
    """Calls that have not been answered."""
    _drained: list[asyncio.Future[None]] = field(default_factory=list)

    def enter(self) -> None:
        """One more call is in flight."""
        self.in_flight += 1

    def leave(self) -> None:
        """One call fewer is in flight."""
        self.in_flight -= 1
        if not self.in_flight:
            for waiter in self._drained:
                if not waiter.done():
                    waiter.set_result(None)
            self._drained.clear()

    async def drained(self) -> None:
        """Return once no call is in flight."""
        while self.in_flight:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._drained.append(waiter)
            await waiter

    @property
    def pin(self) -> str:
        """What requests name as their version, so that they stay with this very load of it: a
        version that is loaded anew never gets requests that were checked against the old one."""
        return f"{self.pool.version}.{self.pool.generation}"

    @property
    def p99_alone(self) -> float:
        """Seconds that one row takes, 99 times in 100."""
        return self.times.p99(1, self.cores)

    @property
    def expected_alone(self) -> float:
        """Seconds that one row takes, as a rule."""
        return self.times.expected(1, self.cores)

    @property
    def penalty(self) -> float:
        """Of a request that states no priority: 2^(3 − priority)."""
        return float(2.0 ** (3 - self.definition.settings.priority))

    @property
    def name(self) -> str:
        return self.pool.model

    @property
    def version(self) -> str:
        return self.pool.version


@dataclass(slots=True)
class Absent:
    """A version that could not be loaded, or was unloaded."""

    state: VersionState
    reason: str


class Catalog:
    """Versions by model and number. Exactly one generation of a version answers."""

    def __init__(self) -> None:
        self._serving: dict[str, dict[str, LoadedVersion]] = {}
        self._latest: dict[str, LoadedVersion] = {}
        self._by_pool: dict[PoolId, LoadedVersion] = {}
        self._absent: dict[str, dict[str, Absent]] = {}

    def add(self, version: LoadedVersion) -> None:
        """Known to its replicas from now on; not answering yet."""
        self._by_pool[version.pool] = version

    def by_pool(self, pool: PoolId) -> LoadedVersion | None:
        return self._by_pool.get(pool)

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
        self._by_pool.pop(version.pool, None)

    def find(self, name: str, version: str | None) -> LoadedVersion | None:
        """The version that answers; the latest if none is named."""
        if version is None:
            return self._latest.get(name)
        return self._serving.get(name, {}).get(version)

    def knows(self, name: str) -> bool:
        return name in self._serving or name in self._absent

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
        """Every version that has replicas, also those on their way in or out."""
        return tuple(self._by_pool.values())
