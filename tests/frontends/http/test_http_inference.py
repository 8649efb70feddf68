"""Inference over HTTP: stock clients, parameters, refusals, compression, bad bodies."""

from __future__ import annotations

import asyncio
import gc
import gzip
import ssl
import threading
import zlib

import numpy as np
import orjson
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
import trustme
from tests.frontends.doubles import refusing
from tests.frontends.http.http_client import binary, post, serve

from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype
from slacktide.frontends.http import protocol
from slacktide.frontends.http.messages import ClientRequest
from slacktide.frontends.settings import HttpSettings
from slacktide.frontends.unpacking import Unpacker
from slacktide.wire import oip_json
from slacktide.wire.calls import CallContext, InferCall, InferReply, OutputValue
from slacktide.wire.raw_tensors import encode_strings

VALUES = np.arange(12, dtype="f4").reshape(3, 4)


def json_body(**more: object) -> bytes:
    tensor = {"name": "x", "shape": [3, 4], "datatype": "FP32", "data": VALUES.tolist()}
    return orjson.dumps({"inputs": [tensor], **more})


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
async def test_the_stock_client_gets_its_tensors_back(binary_in, binary_out, compression):
    def ask(port: int) -> None:
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            tensor = triton.InferInput("x", [3, 4], "FP32")
            tensor.set_data_from_numpy(VALUES, binary_data=binary_in)
            result = client.infer(
                "m",
                [tensor],
                model_version="1",
                outputs=[triton.InferRequestedOutput("x", binary_data=binary_out)],
                request_id="seven",
                request_compression_algorithm=compression,
                response_compression_algorithm=compression,
            )
            np.testing.assert_array_equal(result.as_numpy("x"), VALUES)
            assert result.get_response()["id"] == "seven"
            assert result.get_response()["model_version"] == "1"

    async with serve(HttpSettings(compress_min_bytes=1)) as front_end:
        await asyncio.to_thread(ask, front_end.server.port)
        assert front_end.log[-1].request_id == "seven"
        assert (front_end.log[-1].model, front_end.log[-1].outcome.reason) == ("m", Reason.ON_TIME)


async def test_the_stock_client_over_tls():
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    large = np.arange(200_000, dtype="f4")

    async with serve() as front_end:
        await front_end.server.close()
        await front_end.server.start("127.0.0.1", 0, ssl=context)
        async with triton_aio.InferenceServerClient(
            f"127.0.0.1:{front_end.server.port}", ssl=True, ssl_context=trusting
        ) as client:
            for values in (large[:3], large):
                tensor = triton_aio.InferInput("x", list(values.shape), "FP32")
                tensor.set_data_from_numpy(values)
                result = await client.infer("m", [tensor])
                np.testing.assert_array_equal(result.as_numpy("x"), values)


async def test_raw_binary_requests_have_no_name():
    async with serve() as front_end:
        raw = post(b"\x01\x02\x03", "Inference-Header-Content-Length: 0")
        answer = await front_end.ask(raw)
        assert answer.status == 200
        assert answer.body.endswith(b"\x01\x02\x03")
        call, (tensor,) = front_end.data.calls[0].infer, front_end.data.tensors[0]
        assert (call.inputs[0].name, tensor) == ("", b"\x01\x02\x03")


async def test_versions_and_encoded_names_reach_the_data_plane():
    async with serve() as front_end:
        path = "/v2/models/my%20m%C3%B6del/versions/3/infer?ignored=1"
        await front_end.ask(post(json_body(), path=path))
        call = front_end.data.calls[0].infer
        assert (call.model, call.version) == ("my mödel", "3")


# ------------------------------------------------------------------------------- refusals


async def test_the_rest_of_a_refused_upload_is_passed_over():
    async with serve() as front_end:
        front_end.data.refusal = refusing(Reason.BEHIND_WORK)(InferCall("m", None, "", []))
        client = await front_end.connect()
        client.send(post(length=200_000))
        assert (await client.answer()).status == 429
        front_end.data.refusal = None
        client.send(bytes(200_000) + post(json_body()))
        assert (await client.answer()).status == 200


BAD_BODIES = {
    "no json": (b"{", []),
    "empty": (b"", []),
    "deep": (b"[" * 5000, []),
    "header beyond the body": (b"{}", ["Inference-Header-Content-Length: 3"]),
    "header negative": (b"{}", ["Inference-Header-Content-Length: -1"]),
    "header no number": (b"{}", ["Inference-Header-Content-Length: two"]),
    "timeout negative": (json_body(parameters={"timeout": -1}), []),
    "timeout a word": (json_body(parameters={"timeout": "soon"}), []),
    "priority": (json_body(parameters={"priority": 9}), []),
    "timeout header": (json_body(), ["x-request-timeout-seconds: nan"]),
    "work hint header": (json_body(), ["slacktide-work-hint: much"]),
    "broken gzip": (b"not gzip", ["Content-Encoding: gzip"]),
    "cut gzip": (gzip.compress(json_body())[:-9], ["Content-Encoding: gzip"]),
    "padded gzip": (gzip.compress(json_body()) + b"x", ["Content-Encoding: gzip"]),
    "raw deflate": (zlib.compress(json_body())[2:-4], ["Content-Encoding: deflate"]),
}


@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("case", BAD_BODIES)
async def test_bad_bodies_are_400_and_counted_once(case, announced):
    content, headers = BAD_BODIES[case]

    async with serve() as front_end:
        client = await front_end.connect()
        raw = post(content, *headers)
        if announced and content:
            client.send(raw[:-1])
            await front_end.until(lambda: front_end.data.announced or front_end.data.refused)
            client.send(raw[-1:])
        else:
            client.send(raw)
        answer = await client.answer()
        assert answer.status == 400
        assert "Traceback" not in answer.json["error"]
        assert [reason for _, reason, _ in front_end.data.refused] == [Reason.BAD_INPUT]
        assert front_end.log[-1].outcome.reason is Reason.BAD_INPUT
        assert front_end.data.calls == []
        assert all(len(call.steps) == 2 for call in front_end.data.announced)
        client.send(post(json_body()))
        assert (await client.answer()).status == 200


def long_json(values: int) -> bytes:
    tensor = {"name": "x", "datatype": "INT32", "shape": [values], "data": list(range(values))}
    return orjson.dumps({"inputs": [tensor]})


@pytest.mark.parametrize("slo", [True, False])
@pytest.mark.parametrize("headers", [[], ["x-request-timeout-seconds: 2"]])
async def test_long_json_with_a_deadline_is_urgent(monkeypatch, slo, headers):
    urgencies = []
    real = Unpacker.binary_form

    def spy(self, body, length, client, *, urgent):
        urgencies.append(urgent)
        return real(self, body, length, client, urgent=urgent)

    monkeypatch.setattr(Unpacker, "binary_form", spy)

    async with serve() as front_end:
        front_end.data.slo = slo
        assert (await front_end.ask(post(long_json(60_000), *headers))).status == 200
        assert urgencies == [slo or bool(headers)]


async def test_a_client_that_leaves_while_its_body_is_unpacked_is_forgotten():
    async with serve() as front_end:
        client = await front_end.connect()
        client.send(post(long_json(60_000)))
        budget = front_end.context.unpacker._budget
        await front_end.until(lambda: budget.bytes_in_use)
        client.close()
        await front_end.data.until(lambda: bool(front_end.data.cancelled))
        assert [reason for _, reason in front_end.data.cancelled] == [Reason.DISCONNECTED]
        await front_end.until(lambda: not budget.bytes_in_use)
        assert front_end.data.calls == []


async def test_long_answers_in_json_are_written_a_piece_in_a_turn(monkeypatch):
    written = []
    real = orjson.dumps

    def spy(document, **options):
        if isinstance(document, np.ndarray):
            written.append(len(document))
        return real(document, **options)

    monkeypatch.setattr(orjson, "dumps", spy)
    values = np.linspace(0, 1, 50_000, dtype=np.float32)
    head = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [50_000]}]}
    head["inputs"][0]["parameters"] = {"binary_data_size": values.nbytes}
    text = orjson.dumps(head)

    async with serve() as front_end:
        line = f"Inference-Header-Content-Length: {len(text)}"
        answer = await front_end.ask(post(text + values.tobytes(), line))
        assert answer.status == 200
        assert np.array_equal(np.array(answer.json["outputs"][0]["data"], np.float32), values)
        assert sum(written) == 50_000
        assert max(written) <= oip_json.LONG_VALUES


async def test_long_answers_of_strings_in_json_are_written_a_piece_in_a_turn(monkeypatch):
    written = []
    real = orjson.dumps

    def spy(document, **options):
        if isinstance(document, list):
            written.append(sum(map(len, document)))
        return real(document, **options)

    monkeypatch.setattr(orjson, "dumps", spy)
    strings = ["\0é,\u2028" * (number % 7 * 20) for number in range(9000)]
    tensors = [
        ("x", encode_strings([text.encode() for text in strings])),
        ("y", encode_strings([b"\xff" * 20] * 9000)),  # JSON cannot say these
        ("z", encode_strings([b"z"] * 9000)),
    ]
    head = {
        "inputs": [
            {
                "name": name,
                "datatype": "BYTES",
                "shape": [9000],
                "parameters": {"binary_data_size": len(data)},
            }
            for name, data in tensors
        ],
        "outputs": [{"name": name} for name in "zyx"],
    }
    text = real(head)

    async with serve() as front_end:
        line = f"Inference-Header-Content-Length: {len(text)}"
        tail = b"".join(data for _, data in tensors)
        answer = await front_end.ask(post(text + tail, line))
        assert answer.status == 200
        length = int(answer.headers["inference-header-content-length"])
        outputs = orjson.loads(answer.body[:length])["outputs"]
        assert [output["name"] for output in outputs] == ["z", "y", "x"]
        assert outputs[0]["data"] == ["z"] * 9000
        assert outputs[2]["data"] == strings
        assert answer.body[length:] == tensors[1][1]
        assert max(written) <= oip_json.LONG_STRINGS


async def test_answers_are_compressed_beside_the_loop(monkeypatch):
    threads = []
    real = protocol.compressed

    def spy(response, encoding):
        threads.append(threading.current_thread())
        return real(response, encoding)

    monkeypatch.setattr(protocol, "compressed", spy)

    async with serve() as front_end:
        answer = await front_end.ask(post(*binary(bytes(50_000)), "Accept-Encoding: gzip"))
        assert answer.headers["content-encoding"] == "gzip"
        assert len(threads) == 1
        assert threads[0] is not threading.main_thread()


async def test_much_json_is_413():
    async with serve(HttpSettings(max_json_bytes=50)) as front_end:
        assert (await front_end.ask(post(json_body()))).status == 413


async def test_unknown_codings_are_501_naming_ours():
    async with serve() as front_end:
        answer = await front_end.ask(post(json_body(), "Content-Encoding: br"))
        assert answer.status == 501
        assert answer.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("gzip", "gzip"),
        ("deflate, br", "deflate"),
        ("br", None),
        ("gzip;q=0, deflate;q=0.5", "deflate"),
        ("*", "gzip"),
        ("identity", None),
    ],
)
async def test_long_answers_are_compressed_as_asked(accept, chosen):
    async with serve() as front_end:
        for size, long in ((10, False), (100_000, True)):
            content, line = binary(bytes(size))
            answer = await front_end.ask(post(content, line, f"Accept-Encoding: {accept}"))
            plain = answer.body
            if long and chosen:
                assert answer.headers["content-encoding"] == chosen
                plain = zlib.decompress(answer.body, 31 if chosen == "gzip" else 15)
            else:
                assert "content-encoding" not in answer.headers
            header = int(answer.headers["inference-header-content-length"])
            assert plain[header:] == bytes(size)


async def test_a_bug_in_the_data_plane_is_500_without_details():
    async with serve() as front_end:
        cut = OutputValue("y", Datatype.FP32, (1,), b"cut")
        outcome = Outcome(Reason.ON_TIME, 0.0)
        front_end.data.answer = lambda call: InferReply(outcome, "m", "1", "", [cut])
        answer = await front_end.ask(post(json_body()))
        assert (answer.status, answer.json) == (500, {"error": "internal error"})


async def test_a_refusal_before_the_body_names_its_caller():
    async with serve(HttpSettings(max_request_bytes=1)) as front_end:
        answer = await front_end.ask(post(json_body(), "Traceparent: 00-a-b-01"))
        assert answer.status == 413
        (context,) = front_end.data.refused_from
        assert context.traceparent == "00-a-b-01"
        assert context.first_byte > 0.0


@pytest.mark.parametrize(
    "kind", ["json", "binary", "long answer", "unpacked", "bad", "refused", "left"]
)
def test_a_finished_request_leaves_nothing_to_the_garbage_collector(kind):
    """What only a cycle holds stays until the collector comes: megabytes between its rounds."""
    long = {"name": "x", "shape": [1 << 15], "datatype": "UINT8", "data": [1] * (1 << 15)}
    data, line = binary(b"ab")
    raw = {
        "binary": post(data, line),
        "bad": post(b"{"),
        "long answer": post(orjson.dumps({"inputs": [long]})),
        "unpacked": post(gzip.compress(json_body()), "Content-Encoding: gzip"),
        "left": post(long_json(600_000)),  # so long that it is seen being unpacked
    }.get(kind, post(json_body()))

    async def body():
        async with serve() as front_end:
            if kind == "refused":
                front_end.data.answer = refusing(Reason.QUEUE_FULL)
            client = await front_end.connect()
            state, budget = front_end.data, front_end.context.unpacker._budget
            for _ in range(3):
                client.send(raw)
                if kind == "left":  # its client, while its body is unpacked
                    await front_end.until(lambda: budget.bytes_in_use)
                    client.close()
                    await front_end.until(
                        lambda: not (budget.bytes_in_use or front_end.context.connections)
                    )
                    client = await front_end.connect()
                else:
                    await client.answer()
            for kept in (state.calls, state.announced, state.refused_from):
                kept.clear()
            left = [request for request in of_requests() if id(request) not in others]
            client.close()
            assert left == []

    def of_requests() -> list[object]:
        return [
            candidate
            for candidate in gc.get_objects()
            if isinstance(candidate, ClientRequest | CallContext)
        ]

    gc.collect()
    kept_by_others = of_requests()  # held here, so that none of their ids is given again
    others = set(map(id, kept_by_others))
    gc.disable()
    try:
        asyncio.run(body())
    finally:
        gc.enable()
