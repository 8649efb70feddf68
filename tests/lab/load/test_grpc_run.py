"""Whole runs over gRPC against a fake server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
import trustme

from slacktide.lab.load import spec
from slacktide.lab.load.discover import discover
from slacktide.lab.load.generate import run_load as run_whole
from slacktide.lab.load.spec import (
    FilePayload,
    LoadError,
    LoadSpecError,
    Target,
    TargetError,
    Transport,
)
from slacktide.lab.workloads import ConstantLink, Fixed
from slacktide.wire.calls import InferCall
from slacktide.wire.grpc_messages import read_request
from slacktide.wire.proto.messages import (
    INFERENCE_SERVICE,
    ModelConfigResponse,
    ModelInferResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
)

Kit = Any
Script = Callable[[int, InferCall, grpc.aio.ServicerContext], Awaitable[None]]


async def answer_at_once(number: int, call: InferCall, context: grpc.aio.ServicerContext) -> None:
    return


class FakeGrpcServer:
    """Serves model `m` with one input; aborting is up to the script."""

    def __init__(
        self,
        script: Script = answer_at_once,
        *,
        config: bool = True,
        tls: grpc.ServerCredentials | None = None,
    ) -> None:
        self.script = script
        self.tls = tls
        self.config = config
        self.calls: list[InferCall] = []
        self.remaining: list[float | None] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self.cancelled = 0

    async def __aenter__(self) -> FakeGrpcServer:
        handlers = {
            "ModelMetadata": grpc.unary_unary_rpc_method_handler(self._describe),
            "ModelConfig": grpc.unary_unary_rpc_method_handler(self._configure),
            "ModelInfer": grpc.unary_unary_rpc_method_handler(self._infer),
        }
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(INFERENCE_SERVICE, handlers),)
        )
        if self.tls is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self._server.add_secure_port("127.0.0.1:0", self.tls)
        await self._server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.stop(None)

    @property
    def target(self) -> Target:
        return Target(Transport.GRPC, "127.0.0.1", self.port)

    async def _describe(self, message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if ModelMetadataRequest.FromString(message).name != "m":
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown model")
        tensor = ModelMetadataResponse.TensorMetadata(name="x", datatype="FP32", shape=[-1, 4])
        return ModelMetadataResponse(name="m", versions=["1"], inputs=[tensor]).SerializeToString()

    async def _configure(self, message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if not self.config:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no configuration")
        response = ModelConfigResponse()
        response.config.max_batch_size = 8  # type: ignore[attr-defined]  # typed as Message
        return response.SerializeToString()

    async def _infer(self, message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        call = read_request(message).call({})
        self.calls.append(call)
        self.remaining.append(context.time_remaining())
        self.metadata.append(dict(context.invocation_metadata() or ()))
        try:
            await self.script(len(self.calls) - 1, call, context)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return ModelInferResponse(model_name="m").SerializeToString()


class Relay:
    """Carries connections to a port of the loopback until it is cut."""

    def __init__(self, port: int) -> None:
        self._far_port = port
        self._transports: list[asyncio.Transport] = []

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break every connection and refuse further ones, as after the death of the server."""
        self._server.close()
        for transport in self._transports:
            transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._transports.append(writer.transport)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._far_port)
        self._transports.append(far_writer.transport)
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


@pytest.mark.parametrize("config", [True, False])
async def test_requests_say_what_they_should(kit: Kit, config: bool) -> None:
    async with FakeGrpcServer(config=config) as server:
        spec = kit.spec(
            server.target, rows=(2,), application="cam", priority=2, deadlines=Fixed(3.0)
        )
        report, _ = await kit.run(spec)
    assert report.total.reasons == {"on_time": 10}
    assert report.total.rows_on_time == 20
    assert "grpcio" in report.provenance.versions
    assert len(server.calls) == 10
    for call, remaining in zip(server.calls, server.remaining, strict=True):
        timeout = call.parameters.pop("timeout")
        assert isinstance(timeout, int)
        assert 0 < timeout <= 3_000_000
        assert call.parameters == {"application": "cam", "priority": 2}
        assert call.inputs[0].shape == (2, 4)
        assert remaining is None or remaining > 1e6  # the transport says nothing of its own


async def test_best_effort_and_secret_deadlines_send_no_timeout(kit: Kit) -> None:
    async with FakeGrpcServer() as server:
        await kit.run(kit.spec(server.target, deadlines=None))
        await kit.run(kit.spec(server.target, send_deadlines=False))
        calls = server.calls
    assert len(calls) == 20
    assert all("timeout" not in call.parameters for call in calls)


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected", "overloaded"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "dropped", "timed_out"),
        (grpc.StatusCode.UNAVAILABLE, "rejected", "unavailable"),
        (grpc.StatusCode.INVALID_ARGUMENT, "rejected", "bad_request"),
        (grpc.StatusCode.INTERNAL, "failed", "server_error"),
        (grpc.StatusCode.CANCELLED, "failed", "server_error"),
    ],
)
async def test_statuses_become_outcomes(
    kit: Kit, code: grpc.StatusCode, kind: str, reason: str
) -> None:
    async def refuse(number: int, call: InferCall, context: grpc.aio.ServicerContext) -> None:
        await context.abort(code, "no room")

    async with FakeGrpcServer(refuse) as server:
        report, _ = await kit.run(kit.spec(server.target))
    assert report.total.reasons == {reason: 10}
    assert report.total.outcomes[kind] == 10
    assert report.errors == {f"{reason}: {code.name} no room": 10}


async def test_a_server_that_is_gone_is_a_transport_error_not_a_refusal(kit: Kit) -> None:
    """A server that stops in order may still cancel its calls, so its connections are cut."""

    async def hold(number: int, call: InferCall, context: grpc.aio.ServicerContext) -> None:
        if number == 3:
            relay.cut()
        await asyncio.Event().wait()

    async with FakeGrpcServer(hold) as server, Relay(server.port) as relay:
        report, _ = await kit.run(kit.spec(Target(Transport.GRPC, "127.0.0.1", relay.port)))
        assert len(server.calls) >= 4
    assert report.total.reasons == {"transport_error": 10}


async def test_patience_ends_and_the_server_sees_a_cancellation(kit: Kit) -> None:
    async def never(number: int, call: InferCall, context: Any) -> None:
        await asyncio.Event().wait()

    async with FakeGrpcServer(never) as server:
        spec = kit.spec(server.target, deadlines=Fixed(0.02), patience=0.3)
        report, _ = await kit.run(spec)
        # On a busy machine a request may be given up before it is there.
        while server.cancelled < len(server.calls):
            await asyncio.sleep(0.001)
        assert server.cancelled >= 1
    assert report.total.reasons == {"gave_up": 10}


async def test_several_channels_and_a_token(kit: Kit) -> None:
    async with FakeGrpcServer() as server:
        target = Target(Transport.GRPC, "127.0.0.1", server.port, token="hush")
        report, _ = await kit.run(kit.spec(target, connections=3))
    assert report.goodput == 1.0
    assert {metadata["authorization"] for metadata in server.metadata} == {"Bearer hush"}


async def test_over_a_link_each_message_is_announced(kit: Kit) -> None:
    async with FakeGrpcServer() as server:
        link = ConstantLink(200_000.0, rtt=0.01)
        spec = kit.spec(
            server.target, link=link, application="cam", version="3", deadlines=Fixed(3.0)
        )
        report, ledger = await kit.run(spec)
    assert report.total.reasons == {"on_time": 10}
    assert report.network is not None
    assert report.network.p50 >= 0.01
    for call, metadata in zip(server.calls, server.metadata, strict=True):
        timeout = call.parameters["timeout"]
        assert isinstance(timeout, int)
        assert 0 < timeout <= 2_990_000
        assert float(metadata["x-request-timeout-seconds"]) * 1e6 == pytest.approx(timeout, abs=2)
        assert metadata["slacktide-model"] == "m"
        assert metadata["slacktide-model-version"] == "3"
        assert metadata["slacktide-application"] == "cam"
        assert 50 < int(metadata["slacktide-bytes"]) < 500
    assert np.all(ledger.latency() >= 0.01)


async def test_tls(kit: Kit, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca_file)
    tls = grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)])

    async with FakeGrpcServer(tls=tls) as server:
        target = Target(Transport.GRPC, "127.0.0.1", server.port, tls=True)
        report, _ = await kit.run(kit.spec(replace(target, ca_file=ca_file)))
        over_link = kit.spec(replace(target, ca_file=ca_file), link=ConstantLink(1e6))
        assert (await kit.run(over_link))[0].goodput == 1.0
        with pytest.raises(TargetError, match="cannot read"):
            await run_whole(kit.spec(replace(target, ca_file=tmp_path / "absent")))
        assert report.goodput == 1.0


async def test_a_run_that_cannot_start_says_why(kit: Kit, tmp_path: Any) -> None:
    body = tmp_path / "body.json"
    body.write_text('{"inputs": []}')

    async with FakeGrpcServer() as server:
        target = server.target
        with pytest.raises(TargetError, match="NOT_FOUND: unknown model"):
            await run_whole(kit.spec(target, model="other"))
        with pytest.raises(LoadSpecError, match="needs an http:// target"):
            await run_whole(kit.spec(target, payload=FilePayload((body,))))
    with pytest.raises(TargetError, match="UNAVAILABLE"):
        await run_whole(kit.spec(target))


def test_without_grpcio_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(spec, "find_spec", lambda name: None)
    target = Target(Transport.GRPC, "127.0.0.1", 1)
    with pytest.raises(LoadError, match=r"pip install 'slacktide\[grpc-client\]'"):
        asyncio.run(discover(target, "m", None))
