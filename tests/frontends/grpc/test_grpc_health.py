"""grpc.health.v1 with the stock health package's messages."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc

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
def test_check(fakes, service, ready, status):
    async def main():
        control = fakes.FakeControlPlane(is_ready=ready)
        async with fakes.serving(control=control) as server, fakes.channel(server) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(request(service))
            return answer.status

    assert uvloop.run(main()) == status


def test_check_of_an_unknown_service_is_not_found(fakes):
    async def main():
        async with fakes.serving() as server, fakes.channel(server) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await health_pb2_grpc.HealthStub(channel).Check(request("other"))
            return caught.value.code()

    assert uvloop.run(main()) is grpc.StatusCode.NOT_FOUND


def test_watch_tells_every_change_and_ends_when_the_server_drains(fakes):
    async def main():
        control = fakes.FakeControlPlane(is_ready=False)
        async with (
            fakes.serving(control=control, settings=QUICK) as server,
            fakes.channel(server) as channel,
        ):
            watch = health_pb2_grpc.HealthStub(channel).Watch(request())
            seen = [(await watch.read()).status]
            control.is_ready = True
            seen.append((await watch.read()).status)
            draining = asyncio.create_task(server.drain(20))
            seen.append((await watch.read()).status)
            code = await watch.code()
            await draining
            return seen, code

    seen, code = uvloop.run(main())
    assert seen == [NOT_SERVING, SERVING, NOT_SERVING]
    assert code is grpc.StatusCode.OK


def test_watch_of_an_unknown_service_goes_on(fakes):
    async def main():
        async with fakes.serving(settings=QUICK) as server, fakes.channel(server) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(request("other"))
            status = (await watch.read()).status
            open_still = not watch.done()
            watch.cancel()
            return status, open_still

    assert uvloop.run(main()) == (UNKNOWN, True)
