"""grpc.health.v1 with the stock health package's messages."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.frontends.doubles import FakeControlPlane
from tests.frontends.grpc.grpc_client import channel_to, serving

from slacktide.frontends.settings import GrpcSettings

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
QUICK = GrpcSettings(health_poll_s=0.01)


def request(service: str = "") -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


@pytest.mark.parametrize(
    ("service", "ready", "status"),
    [
        ("", True, SERVING),
        ("", False, NOT_SERVING),
        ("inference.GRPCInferenceService", True, SERVING),
        ("inference.GRPCInferenceService", False, NOT_SERVING),
        ("m", False, SERVING),
        ("loading", True, NOT_SERVING),
    ],
)
async def test_check(service, ready, status):
    control = FakeControlPlane(is_ready=ready)
    async with serving(control=control) as server, channel_to(server) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(request(service))
        assert answer.status == status


async def test_check_of_an_unknown_service_is_not_found():
    async with serving() as server, channel_to(server) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(channel).Check(request("other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watch_tells_every_change_and_ends_when_the_server_drains():
    control = FakeControlPlane(is_ready=False)
    async with (
        serving(control=control, settings=QUICK) as server,
        channel_to(server) as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(request())
        statuses = [(await watch.read()).status]
        control.is_ready = True
        statuses.append((await watch.read()).status)
        draining = asyncio.create_task(server.drain(20))
        statuses.append((await watch.read()).status)
        code = await watch.code()
        await draining
    assert statuses == [NOT_SERVING, SERVING, NOT_SERVING]
    assert code is grpc.StatusCode.OK


async def test_watch_of_an_unknown_service_goes_on():
    async with serving(settings=QUICK) as server, channel_to(server) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(request("other"))
        status = (await watch.read()).status
        open_still = not watch.done()
        watch.cancel()
        assert (status, open_still) == (UNKNOWN, True)
