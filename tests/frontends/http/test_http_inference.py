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
from tritonclient.utils import InferenceServerException

from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype
from slacktide.frontends.http import protocol
from slacktide.frontends.http.messages import ClientRequest
from slacktide.frontends.settings import HttpSettings
from slacktide.frontends.unpacking import DIRECT_BYTES, Unpacker
from slacktide.wire import oip_json
from slacktide.wire.calls import CallContext, InferReply, OutputValue
from slacktide.wire.raw_tensors import encode_strings

VALUES = np.arange(12, dtype="f4").reshape(3, 4)


def json_body(**more: object) -> bytes:
    tensor = {"name": "x", "shape": [3, 4], "datatype": "FP32", "data": VALUES.tolist()}
    return orjson.dumps({"inputs": [tensor], **more})


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_the_stock_client_gets_its_tensors_back(serve, binary_in, binary_out, compression):
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

    async def body():
        async with serve(HttpSettings(compress_min_bytes=1)) as here:
            await asyncio.to_thread(ask, here.server.port)
            assert here.log[-1].request_id == "seven"
            assert (here.log[-1].model, here.log[-1].outcome.reason) == ("m", Reason.ON_TIME)

    asyncio.run(body())


def test_the_asyncio_client_and_strings(run, serve):
    async def body():
        async with (
            serve() as here,
            triton_aio.InferenceServerClient(f"127.0.0.1:{here.server.port}") as client,
        ):
            strings = np.array([b"a", b"\xff\x00", b""], object)
            tensor = triton_aio.InferInput("s", [3], "BYTES")
            tensor.set_data_from_numpy(strings)
            result = await client.infer("m", [tensor])
            assert result.as_numpy("s").tolist() == strings.tolist()

    run(body())


def test_the_stock_client_over_tls(serve):
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    large = np.arange(200_000, dtype="f4")

    async def body():
        async with serve() as here:
            await here.server.close()
            await here.server.start("127.0.0.1", 0, ssl=context)
            async with triton_aio.InferenceServerClient(
                f"127.0.0.1:{here.server.port}", ssl=True, ssl_context=trusting
            ) as client:
                for values in (large[:3], large):
                    tensor = triton_aio.InferInput("x", list(values.shape), "FP32")
                    tensor.set_data_from_numpy(values)
                    result = await client.infer("m", [tensor])
                    np.testing.assert_array_equal(result.as_numpy("x"), values)

    asyncio.run(body())


def test_headers_become_parameters_and_context(serve, post):
    headers = [
        "slacktide-application: cam",
        "slacktide-late: discard",
        "slacktide-network-us: 1500",
        "x-envoy-expected-rq-timeout-ms: 250",
        "x-request-timeout-seconds: 2",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "x-request-id: edge-1",
    ]

    async def body():
        async with serve() as here:
            before = here.context.clock()
            await here.ask(post(json_body(parameters={"late": "deliver"}), *headers))
            call, context = here.data.calls[0].infer, here.data.calls[0].context
            assert call.parameters == {
                "application": "cam",
                "late": "deliver",
                "network_us": 1500.0,
            }
            assert context.transport_budget_s == pytest.approx(0.25)
            assert context.traceparent.startswith("00-0af7")
            assert context.request_id == "edge-1"
            assert before <= context.first_byte <= here.context.clock()

    asyncio.run(body())


def test_raw_binary_requests_have_no_name(serve, post):
    async def body():
        async with serve() as here:
            raw = post(b"\x01\x02\x03", "Inference-Header-Content-Length: 0")
            answer = await here.ask(raw)
            assert answer.status == 200
            assert answer.body.endswith(b"\x01\x02\x03")
            call, (tensor,) = here.data.calls[0].infer, here.data.tensors[0]
            assert (call.inputs[0].name, tensor) == ("", b"\x01\x02\x03")

    asyncio.run(body())


def test_versions_and_encoded_names_reach_the_data_plane(serve, post):
    async def body():
        async with serve() as here:
            path = "/v2/models/my%20m%C3%B6del/versions/3/infer?ignored=1"
            await here.ask(post(json_body(), path=path))
            call = here.data.calls[0].infer
            assert (call.model, call.version) == ("my mödel", "3")

    asyncio.run(body())


# ------------------------------------------------------------------------------- refusals

STATUSES = {
    Reason.BEHIND_WORK: (429, 503),
    Reason.MEMORY_LIMIT: (429, 503),
    Reason.EXPIRED: (504, 503),
    Reason.UNAVAILABLE: (503, 503),
    Reason.CRASHED: (500, 500),
    Reason.BAD_INPUT: (400, 400),
    Reason.NOT_FOUND: (404, 404),
    Reason.AFTER_DEADLINE: (504, 503),
}


@pytest.mark.parametrize("reason", STATUSES)
@pytest.mark.parametrize("strict", [False, True])
def test_outcomes_become_statuses(serve, post, refuse_with, reason, strict):
    async def body():
        async with serve(HttpSettings(triton_strict=strict)) as here:
            here.data.answer = refuse_with(reason, "because", 0.2)
            answer = await here.ask(post(json_body()))
            assert answer.status == STATUSES[reason][strict]
            assert answer.json == {"error": "because", "reason": reason.label}
            assert here.log[-1].outcome.reason is reason
            assert answer.headers["slacktide-reason"] == reason.label
            if answer.status == 429:
                assert answer.headers["retry-after"] == "1"

    asyncio.run(body())


def test_the_stock_client_reads_the_reason(serve, refuse_with):
    def ask(port: int) -> str:
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            tensor = triton.InferInput("x", [3, 4], "FP32")
            tensor.set_data_from_numpy(VALUES)
            with pytest.raises(InferenceServerException) as caught:
                client.infer("m", [tensor])
            return str(caught.value)

    async def body():
        async with serve() as here:
            here.data.answer = refuse_with(Reason.QUEUE_FULL, "the queue is full")
            assert "the queue is full" in await asyncio.to_thread(ask, here.server.port)

    asyncio.run(body())


def test_an_announcement_refused_is_answered_before_the_body(serve, post):
    async def body():
        async with serve() as here:
            outcome = Outcome(
                Reason.BEHIND_WORK, at=0.0, budget_s=0.05, needed_s=0.0123456, wait_s=0.1
            )
            here.data.refusal = InferReply(
                outcome, "m", "1", "", None, "too much ahead", retry_after_s=2.5
            )
            client = await here.connect()
            client.send(post(length=200_000))
            answer = await client.answer()
            assert (answer.status, answer.headers["retry-after"]) == (429, "3")
            assert answer.headers["slacktide-reason"] == "behind_work"
            numbers = {"budget_us": 50_000, "needed_us": 12_346, "queue_us": 100_000}
            assert answer.json == {"error": "too much ahead", "reason": "behind_work", **numbers}
            here.data.refusal = None
            client.send(bytes(200_000) + post(json_body()))
            assert (await client.answer()).status == 200
            client.close()

    asyncio.run(body())


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
def test_bad_bodies_are_400_and_counted_once(serve, post, case, announced):
    content, headers = BAD_BODIES[case]

    async def body():
        async with serve() as here:
            client = await here.connect()
            raw = post(content, *headers)
            if announced and content:
                client.send(raw[:-1])
                await here.until(lambda: here.data.announced or here.data.refused)
                client.send(raw[-1:])
            else:
                client.send(raw)
            answer = await client.answer()
            assert answer.status == 400
            assert "Traceback" not in answer.json["error"]
            assert [reason for _, reason, _ in here.data.refused] == [Reason.BAD_INPUT]
            assert here.log[-1].outcome.reason is Reason.BAD_INPUT
            assert here.data.calls == []
            assert all(len(call.steps) == 2 for call in here.data.announced)
            client.send(post(json_body()))
            assert (await client.answer()).status == 200
            client.close()

    asyncio.run(body())


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bombs_are_413_and_never_unpacked(serve, post, encoding):
    zeros = bytes(5_000_000)
    bomb = gzip.compress(zeros) if encoding == "gzip" else zlib.compress(zeros)

    async def body():
        async with serve(HttpSettings(max_request_bytes=1_000_000)) as here:
            answer = await here.ask(post(bomb, f"Content-Encoding: {encoding}"))
            assert answer.status == 413
            assert [reason for _, reason, _ in here.data.refused] == [Reason.TOO_LARGE]

    asyncio.run(body())


def long_json(values: int) -> bytes:
    tensor = {"name": "x", "datatype": "INT32", "shape": [values], "data": list(range(values))}
    return orjson.dumps({"inputs": [tensor]})


@pytest.mark.replaces_parts
@pytest.mark.parametrize("packed", [False, True])
def test_long_json_is_never_read_on_the_loop(serve, post, monkeypatch, packed):
    read = []
    real = oip_json.load_object

    def spy(data, what="body"):
        read.append(len(data))
        return real(data, what)

    monkeypatch.setattr(oip_json, "load_object", spy)
    text = long_json(60_000)
    headers = ["Content-Encoding: gzip"] if packed else []

    async def body():
        async with serve() as here:
            answer = await here.ask(post(gzip.compress(text) if packed else text, *headers))
            assert answer.status == 200
            assert answer.json["outputs"][0]["data"] == list(range(60_000))
            bad = text.replace(b",77,", b",7.7,")
            refused = await here.ask(post(gzip.compress(bad) if packed else bad, *headers))
            assert refused.status == 400
            assert refused.json["error"].startswith("inputs[0].data: expected integers")
            assert [reason for _, reason, _ in here.data.refused] == [Reason.BAD_INPUT]
            assert max(read) < DIRECT_BYTES

    asyncio.run(body())


@pytest.mark.parametrize("slo", [True, False])
@pytest.mark.parametrize("headers", [[], ["x-request-timeout-seconds: 2"]])
def test_long_json_with_a_deadline_is_urgent(serve, post, monkeypatch, slo, headers):
    urgencies = []
    real = Unpacker.binary_form

    def spy(self, body, length, client, *, urgent):
        urgencies.append(urgent)
        return real(self, body, length, client, urgent=urgent)

    monkeypatch.setattr(Unpacker, "binary_form", spy)

    async def body():
        async with serve() as here:
            here.data.slo = slo
            assert (await here.ask(post(long_json(60_000), *headers))).status == 200
            assert urgencies == [slo or bool(headers)]

    asyncio.run(body())


def refused_for(reason):
    def answer(call):
        outcome = Outcome(reason, 1.0, budget_s=0.01)
        return InferReply(outcome, call.model, "1", call.id, None, "no")

    return answer


def test_a_refusal_for_lack_of_time_states_what_reading_took(serve, post):
    async def body():
        async with serve() as here:
            here.data.answer = refused_for(Reason.SHORTER_THAN_ALONE)
            for text, is_read in ((long_json(60_000), True), (long_json(10), False)):
                answer = await here.ask(post(text))
                assert answer.status == 504
                assert (answer.json.get("read_us", 0) > 0) is is_read
                assert ("send binary data" in answer.json["error"]) is is_read
            here.data.answer = refused_for(Reason.RUNTIME_ERROR)
            assert "read_us" not in (await here.ask(post(long_json(60_000)))).json

    asyncio.run(body())


def test_a_client_that_leaves_while_its_body_is_unpacked_is_forgotten(serve, post, binary):
    async def body():
        async with serve() as here:
            client = await here.connect()
            client.send(post(long_json(60_000)))
            budget = here.context.unpacker._budget
            await here.until(lambda: budget.bytes_in_use)
            client.close()
            await here.data.until(lambda: bool(here.data.cancelled))
            assert [reason for _, reason in here.data.cancelled] == [Reason.DISCONNECTED]
            await here.until(lambda: not budget.bytes_in_use)
            assert here.data.calls == []

    asyncio.run(body())


def test_long_answers_in_json_are_written_a_piece_in_a_turn(serve, post, monkeypatch):
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

    async def body():
        async with serve() as here:
            line = f"Inference-Header-Content-Length: {len(text)}"
            answer = await here.ask(post(text + values.tobytes(), line))
            assert answer.status == 200
            assert np.array_equal(np.array(answer.json["outputs"][0]["data"], np.float32), values)
            assert sum(written) == 50_000
            assert max(written) <= oip_json.LONG_VALUES

    asyncio.run(body())


def test_long_answers_of_strings_in_json_are_written_a_piece_in_a_turn(serve, post, monkeypatch):
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

    async def body():
        async with serve() as here:
            line = f"Inference-Header-Content-Length: {len(text)}"
            tail = b"".join(data for _, data in tensors)
            answer = await here.ask(post(text + tail, line))
            assert answer.status == 200
            length = int(answer.headers["inference-header-content-length"])
            outputs = orjson.loads(answer.body[:length])["outputs"]
            assert [output["name"] for output in outputs] == ["z", "y", "x"]
            assert outputs[0]["data"] == ["z"] * 9000
            assert outputs[2]["data"] == strings
            assert answer.body[length:] == tensors[1][1]
            assert max(written) <= oip_json.LONG_STRINGS

    asyncio.run(body())


def test_answers_are_compressed_beside_the_loop(serve, post, binary, monkeypatch):
    threads = []
    real = protocol.compressed

    def spy(response, encoding):
        threads.append(threading.current_thread())
        return real(response, encoding)

    monkeypatch.setattr(protocol, "compressed", spy)

    async def body():
        async with serve() as here:
            answer = await here.ask(post(*binary(bytes(50_000)), "Accept-Encoding: gzip"))
            assert answer.headers["content-encoding"] == "gzip"
            assert len(threads) == 1
            assert threads[0] is not threading.main_thread()

    asyncio.run(body())


def test_black_frames_are_inflated_as_far_as_their_model_takes_them(serve, post, binary):
    data, line = binary(bytes(3_000_000))
    packed = gzip.compress(data)
    text = orjson.dumps({"inputs": [{"name": "x", "datatype": "UINT8", "shape": [900_000]}]})
    text = gzip.compress(text[:-3] + b',"data":[' + b"0," * 899_999 + b"0]}]}")

    async def body():
        async with serve() as here:
            headers = (line, "Content-Encoding: gzip")
            assert (await here.ask(post(packed, *headers))).status == 413
            here.data.largest["m"] = 3_000_000
            assert (await here.ask(post(packed, *headers))).status == 200
            assert (await here.ask(post(text, "Content-Encoding: gzip"))).status == 200
            here.data.largest["m"] = 90_000
            assert (await here.ask(post(packed, *headers))).status == 413

    asyncio.run(body())


def test_much_json_is_413(serve, post):
    async def body():
        async with serve(HttpSettings(max_json_bytes=50)) as here:
            assert (await here.ask(post(json_body()))).status == 413

    asyncio.run(body())


def test_unknown_codings_are_501_naming_ours(serve, post):
    async def body():
        async with serve() as here:
            answer = await here.ask(post(json_body(), "Content-Encoding: br"))
            assert answer.status == 501
            assert answer.headers["accept-encoding"] == "gzip, deflate"

    asyncio.run(body())


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
def test_long_answers_are_compressed_as_asked(serve, post, binary, accept, chosen):
    async def body():
        async with serve() as here:
            for size, long in ((10, False), (100_000, True)):
                content, line = binary(bytes(size))
                answer = await here.ask(post(content, line, f"Accept-Encoding: {accept}"))
                plain = answer.body
                if long and chosen:
                    assert answer.headers["content-encoding"] == chosen
                    plain = zlib.decompress(answer.body, 31 if chosen == "gzip" else 15)
                else:
                    assert "content-encoding" not in answer.headers
                header = int(answer.headers["inference-header-content-length"])
                assert plain[header:] == bytes(size)

    asyncio.run(body())


def test_a_bug_in_the_data_plane_is_500_without_details(serve, post):
    async def body():
        async with serve() as here:
            cut = OutputValue("y", Datatype.FP32, (1,), b"cut")
            outcome = Outcome(Reason.ON_TIME, 0.0)
            here.data.answer = lambda call: InferReply(outcome, "m", "1", "", [cut])
            answer = await here.ask(post(json_body()))
            assert (answer.status, answer.json) == (500, {"error": "internal error"})

    asyncio.run(body())


def test_a_bug_behind_an_upload_ends_it(serve, post):
    async def body():
        async with serve() as here:
            here.data.bug = RuntimeError("/secret/path")
            raw = post(json_body())
            client = await here.connect()
            client.send(raw[:-1])
            await here.data.until(lambda: bool(here.data.announced))
            client.send(raw[-1:])
            assert (await client.answer()).status == 500
            assert here.data.announced[0].steps[-1].startswith("cancel")
            client.close()

    asyncio.run(body())


def test_what_is_refused_before_its_body_is_told_with_its_caller(serve, post):
    async def body():
        async with serve(HttpSettings(max_request_bytes=1)) as here:
            answer = await here.ask(post(json_body(), "Traceparent: 00-a-b-01"))
            assert answer.status == 413
            (context,) = here.data.refused_from
            assert context.traceparent == "00-a-b-01"
            assert context.first_byte > 0.0

    asyncio.run(body())


def test_datatypes_are_handed_on(serve, post):
    async def body():
        async with serve() as here:
            await here.ask(post(json_body()))
            call = here.data.calls[0].infer
            assert call.inputs[0].datatype is Datatype.FP32
            assert here.data.tensors[0] == [VALUES.tobytes()]

    asyncio.run(body())


@pytest.mark.parametrize(
    "kind", ["json", "binary", "long answer", "unpacked", "bad", "refused", "left"]
)
def test_a_finished_request_leaves_nothing_to_the_garbage_collector(
    serve, post, binary, refuse_with, kind
):
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
        async with serve() as here:
            if kind == "refused":
                here.data.answer = refuse_with(Reason.QUEUE_FULL)
            client = await here.connect()
            seen, budget = here.data, here.context.unpacker._budget
            for _ in range(3):
                client.send(raw)
                if kind == "left":  # its client, while its body is unpacked
                    await here.until(lambda: budget.bytes_in_use)
                    client.close()
                    await here.until(lambda: not (budget.bytes_in_use or here.context.connections))
                    client = await here.connect()
                else:
                    await client.answer()
            for kept in (seen.calls, seen.announced, seen.refused_from):
                kept.clear()
            left = [one for one in of_requests() if id(one) not in others]
            client.close()
            assert left == []

    def of_requests() -> list[object]:
        return [one for one in gc.get_objects() if isinstance(one, ClientRequest | CallContext)]

    gc.collect()
    kept_by_others = of_requests()  # held here, so that none of their ids is given again
    others = set(map(id, kept_by_others))
    gc.disable()
    try:
        asyncio.run(body())
    finally:
        gc.enable()
