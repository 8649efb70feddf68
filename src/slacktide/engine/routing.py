"""Which pool serves a request: the narrowest route that matches."""

from __future__ import annotations

from slacktide.domain import Notice, PoolId, Request, Route


class RouteTable:
    """Routes by (model, version), narrowed by client, then application."""

    __slots__ = ("_by_application", "_by_client", "_plain")

    def __init__(self, routes: tuple[Route, ...] = ()) -> None:
        self._plain: dict[tuple[str, str | None], PoolId] = {}
        self._by_application: dict[tuple[str, str | None, str], PoolId] = {}
        self._by_client: dict[tuple[str, str | None, str], PoolId] = {}
        for route in routes:
            key = (route.model, route.version)
            if route.client is not None:
                self._by_client[(*key, route.client)] = route.pool
            elif route.application is not None:
                self._by_application[(*key, route.application)] = route.pool
            else:
                self._plain[key] = route.pool

    def pool_for(self, request: Request | Notice) -> PoolId | None:
        """The pool of the narrowest matching route; None if none matches."""
        model, version = request.model, request.version
        if self._by_client:
            pool = self._by_client.get((model, version, request.client))
            if pool is not None:
                return pool
        if self._by_application:
            pool = self._by_application.get((model, version, request.application))
            if pool is not None:
                return pool
        return self._plain.get((model, version))
