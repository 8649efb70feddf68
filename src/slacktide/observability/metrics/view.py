"""What a scrape looks at: one `VersionView` for each version, engine and catalog side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slacktide.domain import Circuit
from slacktide.engine import Snapshot
from slacktide.engine.ledger import State
from slacktide.engine.placement import ReplicaState
from slacktide.executors.ports import SessionSize
from slacktide.models.model_counters import ModelCounters
from slacktide.models.versions import Catalog, VersionState
from slacktide.profiles import ClassedTimes

WAITING = (State.QUEUED, State.QUARANTINED)


@dataclass(slots=True)
class VersionView:
    """One version. While it is loaded anew, both its loads are counted together: they share a
    counters, and predictions are those of the later one."""

    model: str
    version: str
    counters: ModelCounters
    times: ClassedTimes
    cores: int = 1
    ready: bool = False
    sessions: Sequence[SessionSize] = ()
    """Of one replica."""
    in_flight: int = 0
    payload_bytes: int = 0
    states: Counter[State] = field(default_factory=Counter)
    """Requests that the engine knows, by where they are."""
    replicas: Counter[ReplicaState] = field(default_factory=Counter)
    circuit: Circuit = Circuit.CLOSED

    @property
    def labels(self) -> Mapping[str, str]:
        """Those of its samples."""
        return {"model": self.model, "version": self.version}

    @property
    def waiting(self) -> int:
        """Requests that are here and do not run yet."""
        return sum(self.states[state] for state in WAITING)


def look(catalog: Catalog, snapshot: Snapshot) -> tuple[VersionView, ...]:
    """Every version that has replicas, by model and number."""
    pools, requests = snapshot.pools, snapshot.requests
    views: dict[tuple[str, str], VersionView] = {}
    for loaded in sorted(catalog.all(), key=lambda loaded: loaded.generation):
        key = (loaded.name, loaded.version)
        view = views.get(key)
        if view is None:
            view = views[key] = VersionView(*key, loaded.counters, loaded.pool.times)
        main = loaded.pool
        view.counters, view.times, view.cores = loaded.counters, main.times, main.cores
        view.ready |= loaded.state is VersionState.READY
        view.sessions = main.sessions or view.sessions
        view.in_flight += loaded.in_flight
        view.payload_bytes += loaded.arena.bytes_in_use
        for id in (each.id for each in loaded.pools):
            view.states += requests.get(id, Counter())
            pool = pools.get(id)
            if pool is not None:
                view.replicas.update(replica.state for replica in pool.replicas)
                view.circuit = pool.circuit
    return tuple(views[key] for key in sorted(views))
