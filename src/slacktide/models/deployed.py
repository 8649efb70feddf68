"""`Deployed`: the versions that have replicas, the lanes they are on, and the plan that follows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from slacktide.domain import Deployment, Plan, PoolId, Route
from slacktide.models.lanes import Layout, lay_out
from slacktide.models.repository import ModelSettings
from slacktide.models.versions import LoadedVersion
from slacktide.planning.scaling.autoscaler import ScaledModel


class Deployed:
    """Changed by the fleet alone, which then hands the plan to the engine."""

    def __init__(self, cores: tuple[int, ...], *, allow_fewer: bool = False) -> None:
        """`cores`: processor numbers that lanes may use. `allow_fewer`: see `lay_out`."""
        self._cores = cores
        self._allow_fewer = allow_fewer
        self._versions: list[LoadedVersion] = []
        self._layout = Layout((), {})

    def layout_with(self, name: str, settings: ModelSettings) -> Layout:
        """The lanes once model `name` is there with these settings. Raises LaneError."""
        return self._lay_out({**self._settings(), name: settings})

    def add(self, versions: Sequence[LoadedVersion], layout: Layout) -> None:
        """`versions` have replicas from now on, on the lanes of `layout`."""
        self._layout = layout
        self._versions.extend(versions)

    def remove(self, pools: Collection[PoolId]) -> None:
        """These have none any more. Raises LaneError, never while they fitted before."""
        self._versions = [v for v in self._versions if v.pool not in pools]
        self._layout = self._lay_out(self._settings())

    def plan(self) -> Plan:
        """What the engine is to have, scaled lanes as few and as small as they may be."""
        deployments = []
        routes = []
        for version in self._versions:
            for lane in self._layout.places[version.name]:
                deployments.append(
                    Deployment(version.pool, lane, max(1, version.interface.max_batch))
                )
            routes.append(Route(version.name, version.pool, version=version.pin))
        return Plan(self._layout.lanes, tuple(deployments), tuple(routes))

    def scaled(self) -> dict[str, ScaledModel]:
        """How models are scaled, by name; those that are not are not named."""
        found: dict[str, ScaledModel] = {}
        for version in self._versions:
            lane = self._layout.scaled_lane(version.name)
            if lane is not None:
                planner, options = version.definition.settings.planner
                limits = replace(lane.limits, batch_max=max(1, version.interface.max_batch))
                found[version.name] = ScaledModel(limits, planner, options)
        return found

    def _lay_out(self, models: Mapping[str, ModelSettings]) -> Layout:
        return lay_out(models, self._cores, allow_fewer=self._allow_fewer)

    def _settings(self) -> dict[str, ModelSettings]:
        return {version.name: version.definition.settings for version in self._versions}
