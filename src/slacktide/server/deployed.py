"""`Deployed`: the versions that have replicas, the lanes they are on, and the plan that follows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slacktide.domain import Deployment, Plan, PoolId, Route
from slacktide.repository import ModelSettings
from slacktide.server.lanes import Layout, lay_out
from slacktide.server.versions import LoadedVersion


class Deployed:
    """Changed by the fleet alone, which then hands the plan to the engine."""

    def __init__(self, cores: tuple[int, ...]) -> None:
        """`cores`: processor numbers that lanes may use."""
        self._cores = cores
        self._versions: list[LoadedVersion] = []
        self._layout = Layout((), {})

    def places(self, model: str) -> tuple[str, ...]:
        """Names of the lanes that `model` sits on; none if it is not deployed."""
        return self._layout.places.get(model, ())

    def layout_with(self, name: str, settings: ModelSettings) -> Layout:
        """The lanes once model `name` is there with these settings. Raises LaneError."""
        return lay_out({**self._settings(), name: settings}, self._cores)

    def add(self, versions: Sequence[LoadedVersion], layout: Layout) -> None:
        """`versions` have replicas from now on, on the lanes of `layout`."""
        self._layout = layout
        self._versions.extend(versions)

    def remove(self, pools: Collection[PoolId]) -> None:
        """These have none any more. Raises LaneError, never while they fitted before."""
        self._versions = [v for v in self._versions if v.pool not in pools]
        self._layout = lay_out(self._settings(), self._cores)

    def plan(self) -> Plan:
        """What the engine is to have."""
        deployments = []
        routes = []
        for version in self._versions:
            for lane in self._layout.places[version.name]:
                deployments.append(
                    Deployment(version.pool, lane, max(1, version.interface.max_batch))
                )
            routes.append(Route(version.name, version.pool, version=version.pin))
        return Plan(self._layout.lanes, tuple(deployments), tuple(routes))

    def _settings(self) -> dict[str, ModelSettings]:
        return {version.name: version.definition.settings for version in self._versions}
