"""A gRPC server on doubles, and channels to it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.frontends.doubles import FakeCall as FakeCall
from tests.frontends.doubles import FakeControlPlane, FakeDataPlane
from tests.frontends.doubles import echo as echo
from tests.frontends.doubles import refusing as refusing

from slacktide.frontends.grpc import GrpcServer
from slacktide.frontends.settings import GrpcSettings
from slacktide.wire.proto.messages import INFERENCE_SERVICE


@asynccontextmanager
async def serving(
    data: FakeDataPlane | None = None,
    control: FakeControlPlane | None = None,
    settings: GrpcSettings | None = None,
    **options: Any,
) -> AsyncIterator[GrpcServer]:
    """A server on a free port of the loopback."""
    server = GrpcServer(data or FakeDataPlane(), control or FakeControlPlane(), settings, **options)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def channel(server: GrpcServer) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options) as opened:
        yield opened


def infer_method(opened: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    """ModelInfer, bytes to bytes."""
    return opened.unary_unary(f"/{INFERENCE_SERVICE}/ModelInfer")


def stream_method(opened: grpc.aio.Channel) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
    return opened.stream_stream(f"/{INFERENCE_SERVICE}/ModelStreamInfer")


@pytest.fixture
def fakes() -> ModuleType:
    """This file's names: pytest's import mode lets no test import its conftest."""
    return sys.modules[__name__]
