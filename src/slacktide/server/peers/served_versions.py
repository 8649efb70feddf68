"""`ServedVersions`: the model versions of this server that peers may use, as of the last hello.

Two servers may answer for each other if they serve the same files with the same settings under the
same name. They compare digests of files and settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable

from slacktide.models.profile_cache import around_model
from slacktide.models.versions import Catalog, LoadedVersion


def digest_of(version: LoadedVersion) -> str:
    """The hash of a version's files and of the settings that decide its answers; empty if its files
    were not hashed."""
    files = []
    for pool in version.pools:
        if pool.profile is None or pool.profile.key is None:
            return ""
        files.append((pool.variant, pool.profile.key.model_hash, around_model(pool.definition)))
    interface = version.interface.to_dict()
    del interface["max_batch"]
    whole = json.dumps([interface, files], sort_keys=True, default=str)
    return hashlib.sha256(whole.encode()).hexdigest()


class ServedVersions:
    """The versions in the catalog, apart from pipelines."""

    def __init__(self, catalog: Catalog, digest: Callable[[LoadedVersion], str]) -> None:
        self.digests: dict[str, str] = {}
        """Digests by `model:version`. Versions without a digest are left out."""
        self._catalog = catalog
        self._digest = digest
        self._loads: dict[str, tuple[str, str]] = {}
        """Pin (`LoadedVersion.pin`) and digest of each version."""

    def update(self) -> bool:
        """Read the catalog again. Returns whether digests have changed."""
        loads = {}
        for name in self._catalog.names():
            for version in self._catalog.serving(name).values():
                if not version.stages:
                    label, pin = label_of(version), version.pin
                    load = self._loads.get(label)
                    is_same = load is not None and load[0] == pin
                    loads[label] = load if load and is_same else (pin, self._digest(version))
        self._loads = loads
        return self._note({label: digest for label, (_, digest) in loads.items() if digest})

    def withdraw(self) -> bool:
        """Stop offering any version. Returns whether any was offered."""
        self._loads = {}
        return self._note({})

    def _note(self, digests: dict[str, str]) -> bool:
        before, self.digests = self.digests, digests
        return digests != before

    def is_current(self, version: LoadedVersion) -> bool:
        """Whether `update` has seen this load of the version, and not an earlier load."""
        load = self._loads.get(label_of(version))
        return load is not None and load[0] == version.pin


def label_of(version: LoadedVersion) -> str:
    """`model:version`."""
    return f"{version.name}:{version.version}"


def models_of(labels: Iterable[str]) -> frozenset[str]:
    """The models in these labels."""
    return frozenset([label.rpartition(":")[0] for label in labels])
