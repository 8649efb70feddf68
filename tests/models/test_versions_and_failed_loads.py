"""Payload memory of a version over its life, and loads that fail in ways nobody foresaw."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slacktide.domain import Deployment, Route
from slacktide.domain.tensors import ModelInterface
from slacktide.executors.hand_over.arena import Arena, MemoryBudget
from slacktide.models import versions as versions_module
from slacktide.models.calls.model_counters import ModelCounters
from slacktide.models.core_layout import PlanBuilder
from slacktide.models.model_manager import ModelManager, ModelManagerSettings, machine_reason
from slacktide.models.profile_cache import ProfileCache
from slacktide.models.repository.profile_store import ProfileStore
from slacktide.models.repository.repository import ListedModel, ModelDefinition
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.versions import Catalog, LoadedVersion, VersionState
from slacktide.planning.variants import Family, FamilyVariant
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.server.control_plane import ServerControlPlane
from slacktide.wire.errors import ControlError

NOTHING: Any = None


def loaded() -> LoadedVersion:
    times = CorrectedTimes(LatencyTable.flat(0.01, max_batch=4))
    definition = ModelDefinition("m", "1", Path(), Path(), ModelSettings(), {})
    version = LoadedVersion(
        "m", "1", 0, definition, NOTHING, Arena(1 << 20), NOTHING, ModelCounters()
    )
    version.add_pool(NOTHING, times)
    return version


def test_pools_of_a_version_share_its_payloads_counters_and_pin() -> None:
    version = loaded()
    version.state = VersionState.READY
    small = version.definition.of_variant("128")
    other = version.add_pool(NOTHING, version.pool.times, definition=small)
    catalog = Catalog()
    catalog.add(version)
    assert catalog.all() == (version,)
    assert [catalog.loaded(pool.id).version for pool in version.pools] == [version, version]
    assert str(other.id) == "m:1@128"
    version.pool.replicas_up.add(0)
    assert version.is_up, "one pool is enough"
    other.replicas_up.add(1)
    assert version.is_up
    version.definition = SimpleNamespace(settings=ModelSettings())
    version.interface = ModelInterface((), (), 4)
    builder = PlanBuilder((0,))
    builder.add([version])
    plan = builder.plan()
    assert plan.deployments == tuple(Deployment(p.id, "shared", 4) for p in version.pools)
    assert plan.routes == (Route("m", version.pool.id, version=version.pin),)
    version.main, version.pools[0].at_first = 1, False
    assert builder.plan().deployments == (Deployment(other.id, "shared", 4),)
    version.family = Family((FamilyVariant("a", 0.5), FamilyVariant("128", 0.6)))
    assert len(builder.plan().deployments) == 2, "the planner of variants chooses among all"
    assert builder.stated() == {"m": (version.family,)}
    version.family = None
    assert builder.plan().routes == (Route("m", other.id, version=version.pin),)
    catalog.forget(version)
    assert catalog.all() == ()
    assert catalog.pool(other.id) is None
    version.retire()


async def test_payload_memory_is_given_back_once_a_version_is_idle(monkeypatch):
    monkeypatch.setattr(versions_module, "IDLE_S", 0.0)

    version = loaded()
    version.enter()
    slot = version.arena.allocate(1 << 18)
    version.arena.view(slot)[:] = b"x" * (1 << 18)
    version.arena.free(slot)
    version.leave()
    async with asyncio.timeout(20):
        while version.arena._touched:
            await asyncio.sleep(0)
    assert bytes(version.arena.view(slot)[:1]) == b"\0"
    version.retire()


async def test_payloads_stay_until_the_last_call_has_left_a_retired_version():
    version = loaded()
    version.enter()
    slot = version.arena.allocate(64)
    version.retire()
    version.arena.view(slot)[:1] = b"x"
    version.leave()
    assert version.arena.fd < 0
    assert version.arena.trim() == 0


class Unreadable:
    """A repository of one name that nothing can be read of."""

    def scan(self) -> tuple[Any, ...]:
        return (ListedModel("odd"),)

    def pipeline(self, name: str) -> None:
        return None

    def read(self, name: str, *, config_override: str | None = None) -> tuple[Any, ...]:
        raise RuntimeError("nobody foresaw this")


async def test_an_unforeseen_error_is_one_models_and_readiness_asks_for_those_of_the_start():
    catalog = Catalog()
    repository: Any = Unreadable()
    manager = ModelManager(
        ModelManagerSettings((0,)),
        catalog,
        ProfileCache(ProfileStore()),
        {},
        MemoryBudget(1 << 20),
        NOTHING,
        NOTHING,
    )
    control = ServerControlPlane(catalog, manager, repository, broken=asyncio.Event())
    control.started = True
    cleaned: list[str] = []
    with pytest.raises(ControlError, match="unexpected RuntimeError"):
        await manager.load(repository, "later", cleanup=lambda: cleaned.append("later"))
    assert cleaned == ["later"]
    assert catalog.absence("later", None) is not None
    assert control.ready()
    await manager.load_all(repository)
    assert catalog.absence("odd", "1") is not None
    assert not control.ready()


def test_a_lack_of_the_machine_is_told_in_a_sentence():
    assert machine_reason(MemoryError()) == "out of memory"
    assert machine_reason(OSError(errno.EMFILE, "Too many open files")) == (
        "the server has no file descriptor left; raise the limit on open files (ulimit -n)"
    )
    assert machine_reason(OSError(errno.ENOSPC, "No space left", "/a/path")) == "No space left"
