"""Everything that is not inference: health, metadata, statistics, loading and unloading."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slacktide._version import COMPILED, __version__
from slacktide.domain import PoolId
from slacktide.domain.tensors import ModelInterface, TensorSpec
from slacktide.frontends.ports import ModelDescription
from slacktide.models.model_manager import ModelManager
from slacktide.models.repository.errors import RepositoryError
from slacktide.models.repository.interface import metadata_shape
from slacktide.models.repository.repository import Repository
from slacktide.models.repository.staging import Staging, split_parameters
from slacktide.models.versions import UNLOADED, Absent, Catalog, LoadedVersion, VersionState
from slacktide.planning.exits import ExitsStatus
from slacktide.planning.pipelines import PlacementStatus
from slacktide.server.calls.data_plane import why_absent
from slacktide.server.settings import ReadyWhen
from slacktide.server.statistics import exit_statistics, model_statistics, stage_statistics
from slacktide.wire.calls import Buffer, Parameter
from slacktide.wire.errors import ControlError

EXTENSIONS = (
    "classification", "model_repository", "model_repository(unload_dependents)",
    "schedule_policy", "model_configuration", "binary_tensor_data", "parameters", "statistics",
)  # fmt: skip
"""Supported extensions, in Triton's order."""

LISTING_S = 1.0
"""Maximum seconds that the index waits for the repository's folder: network disks may stall."""


class ServerControlPlane:
    """The `ControlPlane` of a server."""

    def __init__(
        self,
        catalog: Catalog,
        manager: ModelManager,
        repository: Repository,
        broken: asyncio.Event,
        *,
        ready_when: ReadyWhen = "loaded",
        staging: Staging | None = None,
        sessions: Callable[[], list[dict[str, Any]]] = list,
        peers: Callable[[], dict[str, Any]] = dict,
        exits: Callable[[], Mapping[PoolId, ExitsStatus]] = dict,
        placement: Callable[[], PlacementStatus] | None = None,
    ) -> None:
        """`broken`: set when the engine cannot go on. `staging`: holds models uploaded with load
        calls; None refuses them. `sessions`, `peers`, `exits` and `placement` return the status of
        frame streams, peers, early exits and placed pipelines. `placement` None: pipelines are
        not placed."""
        self.draining = False
        self._ready_when = ready_when
        self._catalog = catalog
        self._models = manager
        self._repository = repository
        self._broken = broken
        self._staging = staging
        self._sessions = sessions
        self._peers = peers
        self._exits = exits
        self._placement = placement
        self._listing: asyncio.Task[tuple[str, ...]] | None = None
        """Lists the repository's folder, for all waiting calls together."""

    # ── health ───────────────────────────────────────────────────────────────────────────────

    def live(self) -> bool:
        """Whether the engine works, whatever the state of the models."""
        return not self._broken.is_set()

    def ready(self) -> bool:
        """Whether the models to load at the start, except unloaded ones, meet `--ready-when`. True
        if there are none. A model loaded later can count as serving, but never as missing."""
        if self.draining or self._broken.is_set():
            return False
        catalog = self._catalog
        expected = [name for name in catalog.expected if catalog.absence(name, None) != UNLOADED]
        if not expected:
            return True
        if self._ready_when == "all":
            return all(self._serves(name, all) for name in expected)
        if self._ready_when == "loaded" and catalog.loading:
            return False
        return any(self._serves(name, any) for name in catalog.names())

    def _serves(self, name: str, enough: Callable[[Iterable[bool]], bool]) -> bool:
        """Whether a model is loaded and `all` or `any` (`enough`) of its versions are up."""
        versions = self._versions(name)
        return bool(versions) and enough(version.is_up for version in versions)

    def model_ready(self, model: str, version: str | None) -> bool:
        loaded = self._catalog.find(model, version)
        return loaded is not None and not self.draining and loaded.is_up

    # ── metadata ─────────────────────────────────────────────────────────────────────────────

    def server_metadata(self) -> dict[str, Any]:
        version = f"{__version__}+compiled" if COMPILED else __version__
        return {"name": "slacktide", "version": version, "extensions": list(EXTENSIONS)}

    def describe(self, model: str, version: str | None) -> ModelDescription:
        loaded = self._find(model, version)
        return ModelDescription(
            loaded.name,
            loaded.version,
            tuple(self._catalog.serving(model)),
            loaded.platform,
            _protocol_interface(loaded.client_interface),
            loaded.labels,
        )

    def config(self, model: str, version: str | None) -> dict[str, Any]:
        return self._find(model, version).config()

    def statistics(self, model: str | None, version: str | None) -> dict[str, Any]:
        if model is None:
            versions = [v for name in self._catalog.names() for v in self._versions(name)]
        elif version is None:
            self._find(model, None)
            versions = self._versions(model)
        else:
            versions = [self._find(model, version)]
        exits = self._exits() if any(loaded.exits is not None for loaded in versions) else {}
        return {
            "model_stats": [
                model_statistics(loaded)
                | (
                    stage_statistics(loaded, self._placement and self._placement())
                    if loaded.stages
                    else exit_statistics(loaded, exits.get(loaded.pool.id))
                )
                for loaded in versions
            ]
        }

    def sessions(self) -> list[dict[str, Any]]:
        return self._sessions()

    def peers(self) -> dict[str, Any]:
        return self._peers()

    # ── repository ───────────────────────────────────────────────────────────────────────────

    async def repository_index(self, ready_only: bool) -> list[dict[str, str]]:
        """Return an entry for each version ever tried. A model never tried has one entry without
        version: LOADING if the server's start will still load it, else only its name."""
        names = () if ready_only else await self._names()
        index = [
            _entry(version.name, version.version, version)
            for version in self._catalog.all()
            if not ready_only or version.state is VersionState.READY
        ]
        if not ready_only:
            absents = self._catalog.absent()
            for name, versions in absents.items():
                index += [_entry(name, version, absent) for version, absent in versions.items()]
            listed = {*absents, *(entry["name"] for entry in index)}
            for name in names:
                if name not in listed:
                    loading = {"state": VersionState.LOADING.value, "reason": ""}
                    waits = name in self._catalog.loading
                    index.append({"name": name, **(loading if waits else {})})
        return sorted(index, key=lambda entry: (entry["name"], entry.get("version", "")))

    async def _names(self) -> tuple[str, ...]:
        """Return the models in the repository; none if its folder is missing or stalls."""
        if self._listing is None or self._listing.done():
            self._listing = asyncio.create_task(asyncio.to_thread(self._repository.names))
        await asyncio.wait((self._listing,), timeout=LISTING_S)
        with contextlib.suppress(RepositoryError):
            return self._listing.result() if self._listing.done() else ()
        return ()

    async def load(self, model: str, parameters: Mapping[str, Parameter | Buffer]) -> None:
        try:
            files, config = split_parameters(parameters)
            repository = self._repository
            if files:
                if self._staging is None:
                    raise ControlError(
                        "forbidden", "uploads are disabled; start the server with --allow-uploads"
                    )
                if config is None:
                    raise ControlError(
                        "bad_input", "parameter 'config': required with uploaded files"
                    )
                staged = await asyncio.to_thread(self._staging.stage, model, files, config)
                await self._models.load(staged.repository(), model, cleanup=staged.discard)
                return
            await self._models.load(repository, model, config_override=config)
        except RepositoryError as error:
            raise ControlError("bad_input", str(error)) from error

    async def unload(self, model: str, *, dependents: bool = False) -> None:
        await self._models.unload(model, dependents=dependents)

    # ── parts ────────────────────────────────────────────────────────────────────────────────

    def _versions(self, name: str) -> list[LoadedVersion]:
        return list(self._catalog.serving(name).values())

    def _find(self, model: str, version: str | None) -> LoadedVersion:
        loaded = self._catalog.find(model, version)
        if loaded is None:
            reason, message = why_absent(self._catalog, model, version)
            raise ControlError(reason.label, message)
        return loaded


def _entry(name: str, version: str, of: LoadedVersion | Absent) -> dict[str, str]:
    return {"name": name, "version": version, "state": of.state.value, "reason": of.reason}


def _protocol_interface(interface: ModelInterface) -> ModelInterface:
    """Return the interface with shapes as in the protocol: a leading −1 if the model batches."""

    def stated(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(spec.name, spec.datatype, metadata_shape(spec, interface)) for spec in specs
        )

    return ModelInterface(stated(interface.inputs), stated(interface.outputs), interface.max_batch)
