"""The `profiled` executor over the versions of a server: answers from their profiles."""

from __future__ import annotations

from slacktide.domain import Replica
from slacktide.domain.tensors import ModelInterface
from slacktide.executors.ports import ModelSource
from slacktide.executors.profiled import ProfiledExecutor
from slacktide.profiles import CorrectedTimes
from slacktide.server.versions import Catalog


def profiled_executor(catalog: Catalog) -> ProfiledExecutor:
    """Replicas that take as long as their version's profile says, and answer zeros."""

    def times(replica: Replica) -> CorrectedTimes:
        version = catalog.by_pool(replica.pool)
        if version is None:
            raise KeyError(f"{replica.pool} is not loaded")
        # A table of its own: what the server learns must not change what is simulated.
        return CorrectedTimes(version.times.table)

    def interface(source: ModelSource) -> ModelInterface:
        for version in catalog.all():
            if version.source is source:
                return version.interface
        raise KeyError(f"{source.name}:{source.version} is not loaded")

    return ProfiledExecutor(times, interface)
