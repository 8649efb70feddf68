"""Every test of the contract runs over HTTP on both kinds of event loops, over gRPC with its stock
client, and over frames of HTTP/2."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import pytest
import uvloop
from tests.frontends.contract.grpc_speakers import GrpcSpeaker, Http2Speaker
from tests.frontends.contract.http_speaker import HttpSpeaker
from tests.frontends.contract.speaker import Speaker

Run = Callable[[Coroutine[Any, Any, None]], None]


class Protocol(NamedTuple):
    kind: type[Speaker]
    run: Run


PROTOCOLS = {
    "http": Protocol(HttpSpeaker, uvloop.run),
    "http-asyncio": Protocol(HttpSpeaker, asyncio.run),
    "grpc": Protocol(GrpcSpeaker, uvloop.run),
    "http2": Protocol(Http2Speaker, uvloop.run),
}


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> Protocol:
    return PROTOCOLS[request.param]


@pytest.fixture(autouse=True)
def run(protocol: Protocol) -> Run:
    """Runs the test's coroutine (`tests/conftest.py`)."""
    return protocol.run


@pytest.fixture
def speak(protocol: Protocol) -> Callable[..., AbstractAsyncContextManager[Speaker]]:
    """Starts a server. `authorize` and `clock` are options of the server, all else are settings."""

    def start(**limits: Any) -> AbstractAsyncContextManager[Speaker]:
        options = {name: limits.pop(name) for name in ("authorize", "clock") if name in limits}
        return protocol.kind.start(options=options, **limits)

    return start
