"""ModelInfer over real sockets: conversion, statuses, deadlines, cancellation, announcements."""

from __future__ import annotations

import asyncio
import time

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import uvloop
from tests.frontends.doubles import decode_response

from slacktide.domain import Outcome, OutcomeKind, Reason
from slacktide.domain.tensors import Datatype
from slacktide.frontends.settings import GrpcSettings
from slacktide.frontends.unpacking import DIRECT_BYTES
from slacktide.wire import grpc_codec
from slacktide.wire.bulk_fields import MAX_FIELDS
from slacktide.wire.calls import InferCall, InferReply, InputTensor, OutputValue
from slacktide.wire.grpc_messages import encode_call
from slacktide.wire.parameters import BYTES_HEADER, MODEL_KEY
from slacktide.wire.proto.messages import InferParameter, ModelInferRequest
from slacktide.wire.status import STATUS, status_of


def call(id: str = "7", model: str = "m", **parameters: bool | float | str) -> InferCall:
    data = np.arange(4, dtype=np.float32).tobytes()
    tensor = InputTensor("x", Datatype.FP32, (1, 4), data)
    return InferCall(model, None, id, [tensor], ["x"], dict(parameters))


async def failure(awaitable) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value


def trailing(error: grpc.aio.AioRpcError) -> dict[str, str]:
    return dict(error.trailing_metadata() or ())


def test_a_call_comes_back_with_id_version_and_raw_outputs(fakes):
    async def main():
        async with fakes.serving() as server, fakes.channel(server) as channel:
            return decode_response(await fakes.infer_method(channel)(encode_call(call())))

    head, raw = uvloop.run(main())
    assert (head.model_name, head.model_version, head.id) == ("m", "1", "7")
    assert [(o.name, o.datatype, list(o.shape)) for o in head.outputs] == [("x", "FP32", [1, 4])]
    assert np.frombuffer(raw[0], np.float32).tolist() == [0, 1, 2, 3]


def test_outputs_come_in_the_order_they_were_asked_for(fakes):
    def both(_: InferCall) -> InferReply:
        outputs = [
            OutputValue(name, Datatype.UINT8, (1,), name.encode()) for name in ("a", "b", "c")
        ]
        return InferReply(Outcome(Reason.ON_TIME, 0.0), "m", "1", "", outputs)

    async def main():
        data = fakes.FakeDataPlane(answer=both)
        asked = call()
        asked.outputs = ["c", "a", "b"]
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            return decode_response(await fakes.infer_method(channel)(encode_call(asked)))

    head, raw = uvloop.run(main())
    assert [output.name for output in head.outputs] == ["c", "a", "b"]
    assert [bytes(entry) for entry in raw] == [b"c", b"a", b"b"]


def test_parameters_of_metadata_and_message_reach_the_data_plane(fakes):
    metadata = (
        ("slacktide-application", "camera"),
        ("slacktide-work-hint", "12"),
        ("slacktide-late", "discard"),
        ("traceparent", "00-" + "a" * 32 + "-" + "b" * 16 + "-01"),
        ("x-request-id", "r-1"),
    )

    async def main():
        data = fakes.FakeDataPlane()
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            before = time.monotonic()
            sent = call(work_hint=3, timeout=5000, triton_enable_empty_final_response=True)
            await fakes.infer_method(channel)(encode_call(sent), metadata=metadata)
            return data.calls[0].infer, data.calls[0].context, before

    got, context, before = uvloop.run(main())
    assert got.parameters == {
        "application": "camera",
        "work_hint": 3,
        "late": "discard",
        "timeout": 5000,
        "triton_enable_empty_final_response": True,
    }
    assert context.traceparent == "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    assert context.request_id == "r-1"
    assert (context.client, context.transport) == ("127.0.0.1", "grpc")
    assert before <= context.first_byte <= time.monotonic()


@pytest.mark.parametrize(
    ("timeout", "headers", "lowest", "highest"),
    [
        (None, (), None, None),
        (9.2e8, (), None, None),
        (20.0, (), 0.0, 21.0),
        (20.0, (("x-request-timeout-seconds", "5"),), 5.0, 5.0),
        (20.0, (("x-envoy-expected-rq-timeout-ms", "60000"),), 0.0, 21.0),
        (None, (("x-envoy-expected-rq-timeout-ms", "60000"),), 60.0, 60.0),
    ],
)
def test_the_budget_is_the_smallest_that_the_transport_names(
    fakes, timeout, headers, lowest, highest
):
    async def main():
        data = fakes.FakeDataPlane()
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            await fakes.infer_method(channel)(
                encode_call(call()), timeout=timeout, metadata=headers
            )
            return data.calls[0].context.transport_budget_s

    budget = uvloop.run(main())
    if lowest is None:
        assert budget is None
    else:
        assert lowest <= budget <= highest


WITHOUT_RESULT = [
    reason for reason in Reason if reason.kind not in (OutcomeKind.SERVED, OutcomeKind.LATE)
]


@pytest.mark.parametrize("strict", [False, True])
def test_every_reason_ends_in_its_status(fakes, strict):
    async def main():
        data = fakes.FakeDataPlane()
        settings = GrpcSettings(triton_strict=strict)
        seen = {}
        async with fakes.serving(data, settings=settings) as server, fakes.channel(server) as ch:
            for reason in [*WITHOUT_RESULT, Reason.AFTER_DEADLINE]:
                data.answer = fakes.refusing(reason, f"because of {reason.label}")
                error = await failure(fakes.infer_method(ch)(encode_call(call())))
                seen[reason] = (error.code().name, error.details(), trailing(error))
        return seen

    for reason, (code, details, metadata) in uvloop.run(main()).items():
        assert code == status_of(reason, has_result=False, triton_strict=strict).grpc
        assert details == f"because of {reason.label}"
        assert metadata["slacktide-reason"] == reason.label
        assert "retry-after" not in metadata
    assert STATUS[Reason.BEHIND_WORK].grpc == "RESOURCE_EXHAUSTED"


def test_a_refusal_says_when_to_come_back(fakes):
    async def main():
        data = fakes.FakeDataPlane(answer=fakes.refusing(Reason.QUEUE_FULL, "full", 0.25))
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            return trailing(await failure(fakes.infer_method(channel)(encode_call(call()))))

    metadata = uvloop.run(main())
    assert metadata["retry-after"] == "1"
    assert metadata["grpc-retry-pushback-ms"] == "250"


def test_a_refusal_says_how_much_time_was_short(fakes):
    refused = fakes.refusing(Reason.BEHIND_WORK, "busy")(call())
    refused.outcome = Outcome(Reason.BEHIND_WORK, 0.0, budget_s=0.05, needed_s=0.01)

    async def main():
        data = fakes.FakeDataPlane(answer=lambda call: refused)
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            return trailing(await failure(fakes.infer_method(channel)(encode_call(call()))))

    metadata = uvloop.run(main())
    assert (metadata["slacktide-budget-us"], metadata["slacktide-needed-us"]) == ("50000", "10000")
    assert "slacktide-queue-us" not in metadata


def bad(**changes) -> bytes:
    request = ModelInferRequest(model_name="m")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    for name, value in changes.items():
        if name == "raw":
            request.raw_input_contents.extend(value)
        elif name == "parameters":
            for key, parameter in value.items():
                request.inputs[0].parameters[key].CopyFrom(parameter)
        else:
            setattr(request.inputs[0], name, value)
    return request.SerializeToString()


def typed(values: int, **changes) -> ModelInferRequest:
    request = ModelInferRequest(model_name="m", id="t", **changes)
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[values])
    tensor.contents.fp32_contents.extend(range(values))
    return request


@pytest.mark.replaces_parts
@pytest.mark.parametrize("announced", [False, True])
def test_long_typed_contents_are_read_beside_the_loop(fakes, monkeypatch, announced):
    read = []
    real = grpc_codec.parse_head

    def spy(head, raw):
        read.append(len(head))
        return real(head, raw)

    monkeypatch.setattr(grpc_codec, "parse_head", spy)

    async def main():
        data = fakes.FakeDataPlane()
        good = typed(50_000).SerializeToString()
        wrong = typed(50_000)
        wrong.inputs[0].shape[0] = 50_001
        metadata = ((BYTES_HEADER, str(len(good))), (MODEL_KEY, "m")) if announced else ()
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            infer = fakes.infer_method(channel)
            _, raw = decode_response(await infer(good, metadata=metadata))
            refused = await failure(infer(wrong.SerializeToString(), metadata=metadata))
        assert np.array_equal(np.frombuffer(raw[0], np.float32), np.arange(50_000))
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "expected 50001 values, got 50000" in refused.details()
        steps = [call.steps for call in data.announced]
        assert steps == [["announce", "submit"], ["announce", "refuse bad_input"]][: 2 * announced]
        assert [row[:2] for row in data.refused] == [("m", Reason.BAD_INPUT)]
        assert max(read) < DIRECT_BYTES

    uvloop.run(main())


def test_a_message_of_countless_fields_is_refused_before_they_are_walked(fakes):
    async def main():
        data = fakes.FakeDataPlane()
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            message = b"\x0a\x01m" + b"\x10\x00" * 1_000_000
            return await failure(fakes.infer_method(channel)(message))

    error = uvloop.run(main())
    assert error.code() is grpc.StatusCode[STATUS[Reason.TOO_LARGE].grpc]
    assert f"more than {MAX_FIELDS} fields" in error.details()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"\xff\xff\xff", "malformed"),
        (b"\x0a\x02\xff\xff", "not a ModelInferRequest"),
        (bad(raw=[b"1234"]), "raw_input_contents[0]: expected 16 bytes"),
        (bad(raw=[bytes(16), b""]), "raw_input_contents: expected one entry for each of 1"),
        (bad(), "inputs[0].contents.fp32_contents: expected 4 values, got 0"),
        (bad(datatype="FP31", raw=[b""]), "inputs[0].datatype: expected one of"),
        (
            bad(parameters={"shared_memory_region": InferParameter(string_param="r")}),
            "shared memory is not supported",
        ),
    ],
)
def test_bad_messages_are_refused_with_the_field_named(fakes, message, words):
    async def main():
        data = fakes.FakeDataPlane()
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            error = await failure(fakes.infer_method(channel)(message))
            return data, error

    data, error = uvloop.run(main())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in error.details()
    assert "/" not in error.details()
    assert data.calls == []
    # What could be parsed is counted against its model.
    assert [row[:2] for row in data.refused] == (
        [("m", Reason.BAD_INPUT)] if b"\x01m" in message else []
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("slacktide-network-us", "-1"),
        ("slacktide-late", "never"),
        ("x-request-timeout-seconds", "nan"),
    ],
)
def test_bad_metadata_is_refused_by_name(fakes, key, value):
    async def main():
        async with fakes.serving() as server, fakes.channel(server) as channel:
            method = fakes.infer_method(channel)
            return await failure(method(encode_call(call()), metadata=((key, value),)))

    error = uvloop.run(main())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(key)


def test_a_call_without_a_message_is_refused(fakes):
    async def main():
        async with fakes.serving() as server, fakes.channel(server) as channel:
            method = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
            return await failure(method(iter(())))

    error = uvloop.run(main())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "no message" in error.details()


def test_a_message_that_does_not_come_is_given_up(fakes):
    async def main():
        settings = GrpcSettings(body_timeout_s=0.05)
        async with fakes.serving(settings=settings) as server, fakes.channel(server) as channel:
            stream = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")()
            return await stream.code(), await stream.details()

    code, details = uvloop.run(main())
    assert code is grpc.StatusCode.CANCELLED
    assert details == "the message did not arrive in time"


def test_a_message_over_the_limit_ends_alone(fakes):
    async def main():
        settings = GrpcSettings(max_request_bytes=100_000)
        async with fakes.serving(settings=settings) as server, fakes.channel(server) as channel:
            method = fakes.infer_method(channel)
            large = call()
            large.inputs[0].shape = (1, 50_000)
            large.inputs[0].data = bytes(200_000)
            error = await failure(method(encode_call(large)))
            head, _ = decode_response(await method(encode_call(call())))
            return error, head.id

    error, id = uvloop.run(main())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert id == "7"


def test_messages_far_over_the_default_limit_of_grpc_pass(fakes):
    async def main():
        large = call()
        large.inputs[0].shape = (5, 2**20)
        large.inputs[0].data = np.arange(5 * 2**20, dtype=np.float32).tobytes()
        async with fakes.serving() as server, fakes.channel(server) as channel:
            _, raw = decode_response(await fakes.infer_method(channel)(encode_call(large)))
            return bytes(raw[0]) == large.inputs[0].data

    assert uvloop.run(main())


def test_a_cancelled_call_is_cancelled_in_the_data_plane(fakes):
    async def main():
        data = fakes.FakeDataPlane(holds=True)
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            pending = fakes.infer_method(channel)(encode_call(call()))
            await data.until(lambda: "7" in data.held_ids)
            pending.cancel()
            await data.until(lambda: bool(data.cancelled))
            return data.cancelled

    assert uvloop.run(main()) == [("7", Reason.CLIENT_CANCELLED)]


def test_a_call_past_its_grpc_deadline_is_cancelled_too(fakes):
    async def main():
        data = fakes.FakeDataPlane(holds=True)
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            method = fakes.infer_method(channel)
            error = await failure(method(encode_call(call()), timeout=0.2))
            await data.until(lambda: bool(data.cancelled))
            return error.code(), data.cancelled

    code, cancelled = uvloop.run(main())
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    (said,) = cancelled  # whose clock is first
    assert said in {("7", Reason.CLIENT_CANCELLED), ("7", Reason.EXPIRED)}


def test_a_client_that_goes_away_cancels_its_calls(fakes):
    async def main():
        data = fakes.FakeDataPlane(holds=True)
        async with fakes.serving(data) as server:
            async with fakes.channel(server) as channel:
                pending = fakes.infer_method(channel)(encode_call(call()))
                await data.until(lambda: "7" in data.held_ids)
            await data.until(lambda: bool(data.cancelled))
            with pytest.raises(asyncio.CancelledError):
                await pending
            return data.cancelled

    assert uvloop.run(main()) == [("7", Reason.CLIENT_CANCELLED)]


def test_a_bug_in_the_data_plane_shows_nothing_of_itself(fakes, caplog):
    async def main():
        data = fakes.FakeDataPlane(bug=RuntimeError("/secret/path"))
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            return await failure(fakes.infer_method(channel)(encode_call(call())))

    error = uvloop.run(main())
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "internal error"
    assert "/secret/path" in caplog.text


# ---- announced calls


def announcement(message: bytes, **changes: str) -> tuple[tuple[str, str], ...]:
    metadata = {"slacktide-bytes": str(len(message)), "slacktide-model": "m"}
    metadata.update({name.replace("_", "-"): value for name, value in changes.items()})
    return tuple(metadata.items())


def test_an_announced_call_is_known_before_its_message(fakes):
    async def main():
        data = fakes.FakeDataPlane()
        message = encode_call(call())
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            method = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
            stream = method(metadata=announcement(message, slacktide_application="camera"))
            await data.until(lambda: bool(data.announced))
            calls_before = len(data.calls)
            await stream.write(message)
            await stream.done_writing()
            head, _ = decode_response(await stream)
            return data, calls_before, head

    data, calls_before, head = uvloop.run(main())
    (told,) = data.announced
    assert (told.model, told.version, told.length) == ("m", None, len(encode_call(call())))
    assert told.parameters == {"application": "camera"}
    assert told.context.client == "127.0.0.1"
    assert calls_before == 0
    assert told.steps == ["announce", "submit"]
    assert data.calls[0].infer.inputs[0].data == call().inputs[0].data
    assert head.id == "7"


def test_a_bug_behind_an_announcement_ends_it(fakes):
    async def main():
        data = fakes.FakeDataPlane(bug=RuntimeError("/secret/path"))
        message = encode_call(call())
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            pending = fakes.infer_method(channel)(message, metadata=announcement(message))
            return await failure(pending), data.announced[0].steps

    error, steps = uvloop.run(main())
    assert error.code() is grpc.StatusCode.INTERNAL
    assert steps == ["announce", "cancel runtime_error"]


def test_an_announced_call_may_be_refused_before_its_message(fakes):
    async def main():
        refusal = fakes.refusing(Reason.BEHIND_WORK, "busy")(call())
        data = fakes.FakeDataPlane(refusal=refusal)
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            method = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
            stream = method(metadata=announcement(b"x" * 10))
            return await stream.code(), await stream.details(), data.calls

    code, details, calls = uvloop.run(main())
    assert (code, details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
    assert calls == []


@pytest.mark.parametrize(
    ("changes", "announced", "words"),
    [
        ({"slacktide_bytes": "8"}, True, "slacktide-bytes"),
        ({"slacktide_model": "other"}, True, "slacktide-model"),
        ({"slacktide_model_version": "3"}, True, "slacktide-model"),
        ({"slacktide_bytes": "-1"}, False, "slacktide-bytes"),
        ({"slacktide_bytes": "99999999999"}, False, "slacktide-bytes: expected at most"),
    ],
)
def test_announcements_that_lie_are_refused(fakes, changes, announced, words):
    async def main():
        data = fakes.FakeDataPlane()
        message = encode_call(call())
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            method = fakes.infer_method(channel)
            error = await failure(method(message, metadata=announcement(message, **changes)))
            return data, error

    data, error = uvloop.run(main())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in error.details()
    steps = [call.steps for call in data.announced]
    assert steps == ([["announce", "refuse bad_input"]] if announced else [])
    assert data.calls == []
    assert len(data.refused) == 1


def test_a_cancelled_announcement_is_taken_back(fakes):
    async def main():
        data = fakes.FakeDataPlane()
        async with fakes.serving(data) as server, fakes.channel(server) as channel:
            method = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
            stream = method(metadata=announcement(b"x" * 10))
            await data.until(lambda: bool(data.announced))
            stream.cancel()
            await data.until(lambda: bool(data.cancelled))
            return data.announced[0].steps

    assert uvloop.run(main()) == ["announce", "cancel no_body"]


def test_an_announcement_without_a_body_in_time_is_taken_back(fakes):
    async def main():
        data = fakes.FakeDataPlane()
        settings = GrpcSettings(body_timeout_s=0.05)
        async with fakes.serving(data, settings=settings) as server, fakes.channel(server) as ch:
            method = ch.stream_unary("/inference.GRPCInferenceService/ModelInfer")
            stream = method(metadata=announcement(b"x" * 10))
            await stream.code()
            return data.announced[0].steps

    assert uvloop.run(main()) == ["announce", "cancel no_body"]


# ---- stock clients


def triton_inputs():
    tensor = triton.InferInput("x", [2, 4], "FP32")
    tensor.set_data_from_numpy(np.arange(8, dtype=np.float32).reshape(2, 4))
    return [tensor]


def test_the_stock_asyncio_client_infers(fakes):
    async def main():
        data = fakes.FakeDataPlane()
        async with (
            fakes.serving(data) as server,
            triton_aio.InferenceServerClient(f"127.0.0.1:{server.port}") as client,
        ):
            result = await client.infer(
                "m",
                triton_inputs(),
                outputs=[triton_aio.InferRequestedOutput("x")],
                request_id="a",
                priority=2,
                timeout=5_000_000,
                parameters={"application": "camera", "work_hint": 3.5},
                client_timeout=10.0,
            )
            return data.calls[0].infer, result.as_numpy("x"), result.get_response().id

    got, output, id = uvloop.run(main())
    assert got.parameters == {
        "priority": 2,
        "timeout": 5_000_000,
        "application": "camera",
        "work_hint": 3.5,
    }
    assert output.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert id == "a"


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
def test_the_stock_synchronous_client_infers(fakes, algorithm):
    def ask(port: int) -> list[list[float]]:
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            result = client.infer("m", triton_inputs(), compression_algorithm=algorithm)
            return result.as_numpy("x").tolist()

    async def main():
        async with fakes.serving() as server:
            return await asyncio.to_thread(ask, server.port)

    assert uvloop.run(main()) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_strings_and_refusals_reach_the_stock_client(fakes):
    words = np.array([b"a", b"", "ümlaut".encode()], dtype=object)

    def ask(port: int):
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            tensor = triton.InferInput("x", [3], "BYTES")
            tensor.set_data_from_numpy(words)
            result = client.infer("m", [tensor]).as_numpy("x")
            with pytest.raises(triton.InferenceServerException) as caught:
                client.infer("none", triton_inputs())
            return result.tolist(), caught.value

    async def main():
        data = fakes.FakeDataPlane()
        known = fakes.echo
        unknown = fakes.refusing(Reason.NOT_FOUND, "unknown model: 'none'")
        data.answer = lambda call: (known if call.model == "m" else unknown)(call)
        async with fakes.serving(data) as server:
            return await asyncio.to_thread(ask, server.port)

    result, error = uvloop.run(main())
    assert result == words.tolist()
    assert error.status() == "StatusCode.NOT_FOUND"
    assert error.message() == "unknown model: 'none'"
