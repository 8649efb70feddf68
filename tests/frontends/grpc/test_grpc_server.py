"""The server around the methods: gate, access log, TLS, ports, draining."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import socket

import grpc
import grpc.aio
import pytest
import trustme
import uvloop

from slacktide.domain import Reason
from slacktide.domain.tensors import Datatype
from slacktide.frontends.grpc import GrpcServer
from slacktide.frontends.ports import EndpointGroup
from slacktide.frontends.security import TlsFiles, Verdict
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


def test_every_method_of_all_services_is_served(fakes):
    server = GrpcServer(fakes.FakeDataPlane(), fakes.FakeControlPlane())
    assert set(server.methods) == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_passes_the_gate_before_its_message_is_read(fakes, method):
    async def main():
        data, control = fakes.FakeDataPlane(), fakes.FakeControlPlane()
        asked = []

        def authorize(group, metadata):
            asked.append((group, metadata.get(b"authorization")))
            return DENIED

        async with (
            fakes.serving(data, control, authorize=authorize) as server,
            fakes.channel(server) as channel,
        ):
            stream = channel.stream_stream(method)(metadata=(("authorization", "Bearer x"),))
            code, details = await stream.code(), await stream.details()
        return asked, code, details, (data.calls, data.announced, control.loads, control.unloads)

    asked, code, details, effects = uvloop.run(main())
    assert asked == [(GROUPS[method.rpartition("/")[2]], b"Bearer x")]
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert details == DENIED.value
    assert effects == ([], [], [], [])


def test_an_open_gate_lets_calls_pass(fakes):
    async def main():
        async with (
            fakes.serving(authorize=lambda group, metadata: Verdict.PASS) as server,
            fakes.channel(server) as channel,
        ):
            return await fakes.infer_method(channel)(message())

    assert uvloop.run(main())


def test_the_access_log_has_a_line_for_every_call(fakes):
    async def main():
        data = fakes.FakeDataPlane()
        lines = []
        async with (
            fakes.serving(data, access_log=lines.append) as server,
            fakes.channel(server) as channel,
        ):
            method = fakes.infer_method(channel)
            await method(message("good"))
            data.answer = fakes.refusing(Reason.QUEUE_FULL)
            with pytest.raises(grpc.aio.AioRpcError):
                await method(message("busy"))
            data.holds = True
            pending = method(message("gone"))
            await data.until(lambda: "gone" in data.held_ids)
            pending.cancel()
            await data.until(lambda: bool(data.cancelled))
        return lines

    lines = uvloop.run(main())
    assert [(line.request_id, line.status) for line in lines] == [
        ("good", "OK"),
        ("busy", "RESOURCE_EXHAUSTED"),
        ("gone", "CANCELLED"),
    ]
    reasons = [line.outcome and line.outcome.reason for line in lines]
    assert reasons == [Reason.ON_TIME, Reason.QUEUE_FULL, None]
    for line in lines:
        assert line.method == f"/{INFERENCE_SERVICE}/ModelInfer"
        assert (line.client, line.target) == ("127.0.0.1", "m")
        assert line.seconds >= 0


def test_a_call_without_a_message_is_logged_with_the_id_of_its_metadata(fakes):
    async def main():
        lines = []
        async with (
            fakes.serving(access_log=lines.append) as server,
            fakes.channel(server) as channel,
        ):
            method = channel.stream_unary(f"/{INFERENCE_SERVICE}/ModelInfer")
            call = method(metadata=(("x-request-id", "early"),))
            await call.done_writing()
            await call.code()
        return lines

    (line,) = uvloop.run(main())
    assert (line.request_id, line.status) == ("early", "INVALID_ARGUMENT")


def test_a_drained_server_answers_what_is_in_flight_and_takes_no_more(fakes):
    async def main():
        data = fakes.FakeDataPlane(holds=True)
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            method = fakes.infer_method(channel)
            pending = asyncio.ensure_future(method(message("a")))
            await data.until(lambda: "a" in data.held_ids)
            draining = asyncio.create_task(server.drain(20))
            async with fakes.channel(server) as late:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await fakes.infer_method(late)(message("b"))
            data.release("a")
            answer = await pending
            await draining
            return answer, caught.value.code(), data.cancelled

    answer, code, cancelled = uvloop.run(main())
    assert answer
    # A connection that crosses with the shutdown is cancelled by grpc-core.
    assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert cancelled == []


def test_after_the_grace_calls_are_cancelled(fakes):
    async def main():
        data = fakes.FakeDataPlane(holds=True)
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            pending = asyncio.ensure_future(fakes.infer_method(channel)(message("a")))
            await data.until(lambda: "a" in data.held_ids)
            await server.drain(0.05)
            with pytest.raises(grpc.aio.AioRpcError):
                await pending
            await data.until(lambda: bool(data.cancelled))
            return data.cancelled

    assert uvloop.run(main()) == [("a", Reason.CLIENT_CANCELLED)]


def test_an_address_that_cannot_be_had_is_told_as_a_plain_socket_would(fakes):
    async def main():
        async with fakes.serving() as server:
            second = GrpcServer(fakes.FakeDataPlane(), fakes.FakeControlPlane())
            with pytest.raises(OSError, match="Address already in use") as in_use:
                await second.start("127.0.0.1", server.port)
            with pytest.raises(OSError, match="Cannot assign requested address") as elsewhere:
                await second.start("192.0.2.1", 0)
            with pytest.raises(socket.gaierror):
                await second.start("no-such-host.invalid", 0)
            return second.port, in_use.value.errno, elsewhere.value.errno

    assert uvloop.run(main()) == (0, errno.EADDRINUSE, errno.EADDRNOTAVAIL)


def test_tls(fakes, tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    client = authority.issue_cert("client.example")
    root = authority.cert_pem.bytes()

    async def call(port: int, credentials: grpc.ChannelCredentials) -> bytes:
        async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
            return await fakes.infer_method(channel)(message())

    async def main():
        files = TlsFiles(tmp_path / "cert", tmp_path / "key", tmp_path / "ca")
        certificate.cert_chain_pems[0].write_to_path(files.certificate)
        certificate.private_key_pem.write_to_path(files.key)
        files.client_ca.write_bytes(root)
        server = GrpcServer(fakes.FakeDataPlane(), fakes.FakeControlPlane())
        await server.start("127.0.0.1", 0, files.context("h2"))
        try:
            known = grpc.ssl_channel_credentials(
                root, client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()
            )
            answer = await call(server.port, known)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(server.port, grpc.ssl_channel_credentials(root))
            return answer, caught.value.code()
        finally:
            await server.close()

    answer, code = uvloop.run(main())
    assert answer
    assert code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    "field", [field.name for field in dataclasses.fields(GrpcSettings) if field.type != "bool"]
)
def test_settings_must_be_positive(field):
    with pytest.raises(ValueError, match=field):
        GrpcSettings(**{field: 0})


def test_many_clients_at_once(fakes):
    async def main():
        async with fakes.serving() as server:

            async def client(number: int) -> list[bytes]:
                async with fakes.channel(server) as channel:
                    method = fakes.infer_method(channel)
                    return await asyncio.gather(
                        *(method(message(f"{number}.{call}")) for call in range(20))
                    )

            return await asyncio.gather(*(client(number) for number in range(8)))

    answers = uvloop.run(main())
    assert sum(map(len, answers)) == 160
    assert len({answer for row in answers for answer in row}) == 160


# ---- limits


def separate_channel(server: GrpcServer, **options: object) -> grpc.aio.Channel:
    """A channel with a connection of its own; by default, channels of one process share."""
    pool = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", pool, **options)


def test_connections_beyond_the_limit_are_closed(fakes):
    async def main():
        settings = GrpcSettings(max_connections=1)
        async with (
            fakes.serving(settings=settings) as server,
            separate_channel(server) as first,
            separate_channel(server) as second,
        ):
            answer = await fakes.infer_method(first)(message())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await fakes.infer_method(second)(message())
            return answer, caught.value.code()

    answer, code = uvloop.run(main())
    assert answer
    assert code is grpc.StatusCode.UNAVAILABLE


def test_a_connection_has_no_more_calls_than_its_limit(fakes):
    async def main():
        data = fakes.FakeDataPlane(holds=True)
        settings = GrpcSettings(max_concurrent_calls=2)
        async with fakes.serving(data, settings=settings) as server, fakes.channel(server) as ch:
            method = fakes.infer_method(ch)
            calls = [asyncio.ensure_future(method(message(str(n)))) for n in range(6)]
            for call in calls:
                call.add_done_callback(lambda _: data.changed.set())
            most = 0
            while not all(call.done() for call in calls):
                await data.until(lambda: data.held or all(call.done() for call in calls))
                most = max(most, len(data.held))
                for id in data.held_ids:
                    data.release(id)
            return most, await asyncio.gather(*calls, return_exceptions=True)

    most, ends = uvloop.run(main())
    assert 1 <= most <= 2
    # One that crosses with the limit, or with the end of another, may be refused instead.
    refused = [end for end in ends if isinstance(end, grpc.aio.AioRpcError)]
    assert all(end.code() is grpc.StatusCode.UNAVAILABLE for end in refused)
    assert len(ends) - len(refused) >= 2


def test_metadata_beyond_the_limit_is_refused(fakes):
    async def main():
        settings = GrpcSettings(max_metadata_bytes=2048)
        async with fakes.serving(settings=settings) as server, fakes.channel(server) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await fakes.infer_method(channel)(message(), metadata=(("x-long", "y" * 5000),))
            return caught.value.code()

    assert uvloop.run(main()) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_compressed_message_is_limited_by_what_it_inflates_to(fakes):
    async def main():
        settings = GrpcSettings(max_request_bytes=100_000)
        async with (
            fakes.serving(settings=settings) as server,
            separate_channel(server, compression=grpc.Compression.Gzip) as channel,
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await fakes.infer_method(channel)(bytes(3_000_000))
            return caught.value.code()

    assert uvloop.run(main()) is grpc.StatusCode.RESOURCE_EXHAUSTED
