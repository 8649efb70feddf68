"""`Router`: finds the route of a method and path. The table is in routes.py."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import httptools

from slacktide.frontends.http.messages import ClientRequest, HttpResponse
from slacktide.frontends.ports import EndpointGroup
from slacktide.wire.errors import BadField

if TYPE_CHECKING:
    from slacktide.frontends.http.infer import InferEndpoint

Handler = Callable[[ClientRequest], HttpResponse | Awaitable[HttpResponse]]
"""Handles a complete request. May raise WireError or ControlError."""


class HttpRoute:
    """An endpoint. In `pattern`, `{name}` stands for a path segment that is a parameter."""

    __slots__ = ("group", "handler", "method", "pattern", "receiver")

    def __init__(
        self, method: str, pattern: str, handler: Handler | InferEndpoint, group: EndpointGroup
    ) -> None:
        self.method = method
        self.pattern = pattern
        self.handler = handler if callable(handler) else None
        self.receiver = None if callable(handler) else handler
        """The endpoint that takes requests from their heads on, instead of a handler."""
        self.group = group


class Match(NamedTuple):
    """The routes of a path by method, and the parameters in the path."""

    routes: Mapping[str, HttpRoute]
    params: Mapping[str, str]


@dataclass(slots=True)
class _Node:
    literal: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    name: str = ""
    routes: dict[str, HttpRoute] = field(default_factory=dict)


_END_OF_AUTHORITY = re.compile(rb"[/?#\\]")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CACHE_SIZE: Final = 1024
_MAX_SEGMENTS: Final = 16


class Router:
    """Finds routes. A literal segment wins over a parameter: `/v2/models/stats` names no model.
    Raises ValueError if routes share a method and path, or name the same parameter differently."""

    def __init__(self, routes: Iterable[HttpRoute]) -> None:
        self._root = _Node()
        self._cache: dict[bytes, Match] = {}
        for route in routes:
            self._add(route)

    def _add(self, route: HttpRoute) -> None:
        node = self._root
        for segment in route.pattern.strip("/").split("/"):
            if segment.startswith("{"):
                name = segment.strip("{}")
                if node.parameter is None:
                    node.parameter, node.name = _Node(), name
                elif node.name != name:
                    raise ValueError(f"{route.pattern}: {name!r} is called {node.name!r} elsewhere")
                node = node.parameter
            else:
                node = node.literal.setdefault(segment, _Node())
        if route.method in node.routes:
            raise ValueError(f"two routes for {route.method} {route.pattern}")
        node.routes[route.method] = route
        if route.method == "GET":
            node.routes["HEAD"] = route  # the connection leaves the body out

    def match(self, target: bytes) -> Match | None:
        """The routes of a request target, without its query; None if the path is unknown. Raises
        BadField if the path is badly encoded."""
        match = self._cache.get(target)
        if match is None:
            match = self._search(_path_of(target))
            if match is not None:
                # Clients repeat a few targets. Clearing bounds the memory that an attacker takes.
                if len(self._cache) >= _CACHE_SIZE:
                    self._cache.clear()
                self._cache[target] = match
        return match

    def hint(self, target: bytes) -> str:
        """The error message for an unknown target: where the endpoint may be."""
        path = _path_of(target)
        if self.match(b"/v2") is None:
            return "not found; this port serves only GET /metrics"
        if path.startswith(b"/metrics"):
            return "not found; metrics are on a separate port (--metrics-port, default 8002)"
        if self.match(b"/v2/models/NAME/infer") is None:
            message = "this port loads models: POST /v2/repository/models/NAME/load"
            return f"not found; inference is on the HTTP port, {message}"
        if path.startswith(b"/v1"):
            message = "this server speaks version 2 of the protocol, whose bodies differ"
            return f"not found; {message}: POST /v2/models/NAME/infer"
        message = "inference is POST /v2/models/NAME/infer, a model GET /v2/models/NAME"
        return f"not found; {message}, the server GET /v2, health GET /v2/health/ready"

    def _search(self, path: bytes) -> Match | None:
        segments = path[1:].split(b"/")
        if len(segments) > _MAX_SEGMENTS:
            return None
        node = self._root
        params: dict[str, str] = {}
        for raw in segments:
            segment = _decoded(raw)
            following = node.literal.get(segment)
            if following is None:
                if node.parameter is None or not segment:
                    return None
                params[node.name] = segment
                following = node.parameter
            node = following
        return Match(node.routes, params) if node.routes else None


def authority_of(target: bytes) -> bytes:
    """Host and port in a target of absolute form (RFC 9112 §3.2.2), else empty. Raises BadField if
    it names a user."""
    if target.startswith(b"/"):
        return b""
    authority = _END_OF_AUTHORITY.split(target.partition(b"://")[2], maxsplit=1)[0]
    if b"@" in authority:
        raise BadField("request target", "a host without user information", authority)
    return authority


def _path_of(target: bytes) -> bytes:
    if not target.startswith(b"/"):
        # A proxy may send the absolute form; other forms (`*`, `host:port`) have no path.
        try:
            parsed: bytes | None = httptools.parse_url(target).path
        except httptools.HttpParserInvalidURLError:
            parsed = None
        return parsed or b"/"
    return target.partition(b"?")[0].partition(b"#")[0]


def _decoded(segment: bytes) -> str:
    if b"%" in segment:
        if _BAD_ESCAPE.search(segment):
            raise BadField("path", "two hexadecimal digits after each %", segment)
        segment = unquote_to_bytes(segment)
    try:
        text = segment.decode()
    except UnicodeDecodeError:
        raise BadField("path", "UTF-8", segment) from None
    if "/" in text or not text.isprintable():
        raise BadField("path", "printable characters and no encoded slash", text)
    return text
