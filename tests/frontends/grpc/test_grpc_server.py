"""The server around the methods: gate, access log, TLS, ports, draining."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest
import trustme
from tests.frontends.doubles import FakeControlPlane, FakeDataPlane
from tests.frontends.grpc.grpc_client import channel_to, infer_method, serving

from slacktide.domain.tensors import Datatype
from slacktide.frontends.common.security import TlsFiles, Verdict
from slacktide.frontends.grpc import GrpcServer
from slacktide.frontends.ports import EndpointGroup
from slacktide.frontends.settings import GrpcSettings
from slacktide.wire.calls import InferCall, InputTensor
from slacktide.wire.grpc_messages import encode_call
from slacktide.wire.proto.messages import (
    FRAME_SERVICE,
    HEALTH_SERVICE,
    INFERENCE_SERVICE,
    REFLECTION_SERVICE,
    service_methods,
)

DENIED = Verdict.NO_TOKEN

GROUPS = {
    "ServerLive": EndpointGroup.HEALTH,
    "ServerReady": EndpointGroup.HEALTH,
    "ModelReady": EndpointGroup.HEALTH,
    "Check": EndpointGroup.HEALTH,
    "Watch": EndpointGroup.HEALTH,
    "ServerMetadata": EndpointGroup.METADATA,
    "ModelMetadata": EndpointGroup.METADATA,
    "ModelConfig": EndpointGroup.CONFIG,
    "ModelStatistics": EndpointGroup.STATISTICS,
    "ModelInfer": EndpointGroup.INFERENCE,
    "ModelStreamInfer": EndpointGroup.INFERENCE,
    "StreamFrames": EndpointGroup.INFERENCE,
    "RepositoryIndex": EndpointGroup.REPOSITORY,
    "RepositoryModelLoad": EndpointGroup.CONTROL,
    "RepositoryModelUnload": EndpointGroup.CONTROL,
    "SystemSharedMemoryStatus": EndpointGroup.SHARED_MEMORY,
    "SystemSharedMemoryRegister": EndpointGroup.SHARED_MEMORY,
    "SystemSharedMemoryUnregister": EndpointGroup.SHARED_MEMORY,
    "CudaSharedMemoryStatus": EndpointGroup.SHARED_MEMORY,
    "CudaSharedMemoryRegister": EndpointGroup.SHARED_MEMORY,
    "CudaSharedMemoryUnregister": EndpointGroup.SHARED_MEMORY,
    "TraceSetting": EndpointGroup.TRACE,
    "LogSettings": EndpointGroup.LOGGING,
    "ServerReflectionInfo": EndpointGroup.METADATA,
}
METHODS = [
    f"/{service}/{name}"
    for service in (INFERENCE_SERVICE, FRAME_SERVICE, HEALTH_SERVICE, REFLECTION_SERVICE)
    for name in service_methods(service)
]
METHODS.append("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")


def message(id: str = "7") -> bytes:
    tensor = InputTensor("x", Datatype.FP32, (1, 4), bytes(16))
    return encode_call(InferCall("m", None, id, [tensor]))


def test_every_method_of_all_services_is_served():
    server = GrpcServer(FakeDataPlane(), FakeControlPlane())
    assert set(server.methods) == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
async def test_every_method_passes_the_gate_before_its_message_is_read(method):
    data, control = FakeDataPlane(), FakeControlPlane()
    checks = []

    def authorize(group, metadata):
        checks.append((group, metadata.get(b"authorization")))
        return DENIED

    async with (
        serving(data, control, authorize=authorize) as server,
        channel_to(server) as channel,
    ):
        stream = channel.stream_stream(method)(metadata=(("authorization", "Bearer x"),))
        code, details = await stream.code(), await stream.details()
    effects = (data.calls, data.announced, control.loads, control.unloads)
    assert checks == [(GROUPS[method.rpartition("/")[2]], b"Bearer x")]
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert details == DENIED.value
    assert effects == ([], [], [], [])


async def test_a_call_without_a_message_is_logged_with_the_id_of_its_metadata():
    lines = []
    async with (
        serving(access_log=lines.append) as server,
        channel_to(server) as channel,
    ):
        method = channel.stream_unary(f"/{INFERENCE_SERVICE}/ModelInfer")
        call = method(metadata=(("x-request-id", "early"),))
        await call.done_writing()
        await call.code()
    (line,) = lines
    assert (line.request_id, line.status) == ("early", "INVALID_ARGUMENT")


async def test_tls(tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    client = authority.issue_cert("client.example")
    root = authority.cert_pem.bytes()

    async def call(port: int, credentials: grpc.ChannelCredentials) -> bytes:
        async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
            return await infer_method(channel)(message())

    files = TlsFiles(tmp_path / "cert", tmp_path / "key", tmp_path / "ca")
    certificate.cert_chain_pems[0].write_to_path(files.certificate)
    certificate.private_key_pem.write_to_path(files.key)
    files.client_ca.write_bytes(root)
    server = GrpcServer(FakeDataPlane(), FakeControlPlane())
    await server.start("127.0.0.1", 0, files.context("h2"))
    try:
        trusted = grpc.ssl_channel_credentials(
            root, client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()
        )
        assert await call(server.port, trusted)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(server.port, grpc.ssl_channel_credentials(root))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        await server.close()


async def test_many_clients_at_once():
    async with serving() as server:

        async def client(number: int) -> list[bytes]:
            async with channel_to(server) as channel:
                method = infer_method(channel)
                return await asyncio.gather(
                    *(method(message(f"{number}.{call}")) for call in range(20))
                )

        answers = await asyncio.gather(*(client(number) for number in range(8)))
    assert sum(map(len, answers)) == 160
    assert len({answer for row in answers for answer in row}) == 160


# ---- limits


async def test_a_connection_has_no_more_calls_than_its_limit():
    data = FakeDataPlane(holds=True)
    settings = GrpcSettings(max_concurrent_calls=2)
    async with serving(data, settings=settings) as server, channel_to(server) as ch:
        method = infer_method(ch)
        calls = [asyncio.ensure_future(method(message(str(n)))) for n in range(6)]
        for call in calls:
            call.add_done_callback(lambda _: data.changed.set())
        most = 0
        while not all(call.done() for call in calls):
            await data.until(lambda: data.held or all(call.done() for call in calls))
            most = max(most, len(data.held))
            for id in data.held_ids:
                data.release(id)
        ends = await asyncio.gather(*calls, return_exceptions=True)
    assert 1 <= most <= 2
    # One that crosses with the limit, or with the end of another, may be refused instead.
    refused = [end for end in ends if isinstance(end, grpc.aio.AioRpcError)]
    assert all(end.code() is grpc.StatusCode.UNAVAILABLE for end in refused)
    assert len(ends) - len(refused) >= 2


async def test_metadata_beyond_the_limit_is_refused():
    settings = GrpcSettings(max_metadata_bytes=2048)
    async with serving(settings=settings) as server, channel_to(server) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer_method(channel)(message(), metadata=(("x-long", "y" * 5000),))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
