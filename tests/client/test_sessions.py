"""Sessions over real sockets, against a small server with faults on request."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import cv2
import grpc
import numpy as np
import pytest
import trustme
from tests.client.fake_server import FakeServer

from slacktide.client import (
    AioConnection,
    ClientError,
    FrameReply,
    FrameResult,
    ServerConnection,
    connect,
)

FRAME = np.random.default_rng(0).integers(0, 255, (480, 640, 3), np.uint8)
SLOW = {"slo": 20.0, "rate": 10}
"""No machine is too busy for these."""


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


def jpeg_in(data: bytes) -> np.ndarray:
    """The image in a BYTES element."""
    return cv2.imdecode(np.frombuffer(data[4:], np.uint8), cv2.IMREAD_COLOR)


def test_frames_are_encoded_as_advised_and_answered(server):
    with connect(server.target, "street", **SLOW, name="gate") as session:
        replies = [session.submit(FRAME, tag=n).result(30) for n in range(4)]
        assert session.advice is not None
        assert session.bytes_per_s > 0
    assert [reply.tag for reply in replies] == [0, 1, 2, 3]
    assert {reply.outcome.result for reply in replies} == {FrameResult.ANSWERED}
    assert all(reply.on_time for reply in replies)
    for reply, data in zip(replies, server.frames, strict=True):
        assert reply.outputs["nbytes"].tolist() == [[len(data)]]
        assert jpeg_in(data).shape[0] == reply.outcome.size
    assert replies[-1].outcome.size == 256
    assert replies[-1].outcome.variant == "256"
    hello = server.hellos[0]
    assert (hello.model, hello.rate, hello.slo_ms, hello.name) == ("street", 10, 20_000, "gate")


@pytest.mark.parametrize(
    ("keeps_shape", "short_side", "sides"),
    [
        (False, 0.0, (256, 256)),
        (True, 0.0, (120, 256)),  # letterbox
        (True, 1.0, (256, 546)),  # short_side, height
        (True, 1 / 0.875, (293, 624)),  # cover, with a crop
        (True, 1 / 0.8, (300, 640)),  # never enlarged
    ],
)
def test_frames_have_the_shape_that_the_model_sees(server, keeps_shape, short_side, sides):
    server.keeps_shape, server.short_side = keeps_shape, short_side
    with connect(server.target, "street", **SLOW) as session:
        replies = [session.submit(np.zeros((300, 640, 3), np.uint8)).result(30) for _ in range(4)]
    assert replies[-1].outcome.size == 256
    assert jpeg_in(server.frames[-1]).shape[:2] == sides


def test_colours_arrive_as_they_were(server):
    blue = np.zeros((480, 640, 3), np.uint8)
    blue[..., 0] = 255  # as OpenCV has it
    with connect(server.target, "street", **SLOW) as session:
        session.submit(blue).result(30)
    with connect(server.target, "street", **SLOW, rgb=True) as session:
        session.submit(blue[..., ::-1]).result(30)
    for data in server.frames:
        assert np.abs(jpeg_in(data).mean((0, 1)) - (255, 0, 0)).max() < 4


def test_replies_can_be_iterated_during_the_stream_and_after_it(server):
    with connect(server.target, "street", **SLOW) as session:
        replies = []
        for number in range(10):
            session.submit(FRAME, tag=number)
            replies += session.ready()
    replies += session.replies()
    assert sorted(reply.tag for reply in replies) == list(range(10))
    assert list(session.replies()) == list(session.ready()) == []


def test_replies_can_be_called_back_and_a_fault_in_the_callback_is_logged(server, caplog):
    replies: list[FrameReply] = []

    def on_reply(reply: FrameReply) -> None:
        replies.append(reply)
        raise RuntimeError("mine")

    with connect(server.target, "street", **SLOW, on_reply=on_reply) as session:
        for number in range(3):
            session.submit(FRAME, tag=number)
    assert sorted(reply.tag for reply in replies) == [0, 1, 2]
    assert "on_reply failed" in caplog.text


def test_many_sessions_share_a_connection_and_threads_may_submit(server):
    with ServerConnection(server.target) as shared:
        sessions = [shared.open("street", **SLOW) for _ in range(5)]
        replies: list[FrameReply] = []

        def feed(number: int) -> None:
            for _ in range(4):
                replies.append(sessions[number].submit(FRAME, tag=number).result(30))

        threads = [threading.Thread(target=feed, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for session in sessions:
            session.close()
    assert Counter(reply.tag for reply in replies) == dict.fromkeys(range(5), 4)
    assert all(reply.on_time for reply in replies)
    assert len(server.hellos) == 5
    assert len(server.peers) == 1


async def test_an_async_session(server):
    async with (
        AioConnection(server.target) as connection,
        await connection.open("street", **SLOW) as session,
    ):
        replies = await asyncio.gather(*(session.submit(FRAME) for _ in range(3)))
        assert all(reply.on_time for reply in replies)


def test_an_idle_session_is_kept_alive(server):
    with connect(server.target, "street", **SLOW) as session:
        session.submit(FRAME).result(30)
        for _ in range(300):
            if len(server.hellos) >= 2:
                break
            threading.Event().wait(0.05)
        assert session.submit(FRAME).result(30).on_time
    assert len(server.hellos) >= 2
    assert len(server.metadata) == 1


@pytest.mark.slow
def test_a_server_that_restarts_is_found_again(server):
    with connect(server.target, "street", slo=2.0, rate=10) as session:
        assert session.submit(FRAME).result(30).on_time
        server.silent = True
        waiting = session.submit(FRAME)
        server.stop()
        server.silent = False
        assert waiting.result(30).outcome.result in (FrameResult.LOST, FrameResult.DROPPED)
        server.restart()
        results = [session.submit(FRAME).result(30).outcome.result for _ in range(10)]
    assert FrameResult.ANSWERED in results


def test_the_fallback_runs_while_the_server_is_gone(server):
    def own(image: np.ndarray) -> dict[str, np.ndarray]:
        return {"mean": image.mean()}

    server.stop()
    with connect(server.target, "street", **SLOW, fallback=own, connect_s=0.2) as session:
        reply = session.submit(FRAME).result(30)
        assert reply.outcome.result is FrameResult.FALLBACK
        assert reply.outputs["mean"] == FRAME.mean()
        server.restart()
        results = [session.submit(FRAME).result(30).outcome.result for _ in range(60)]
        while FrameResult.ANSWERED not in results[-1:]:
            results.append(session.submit(FRAME).result(30).outcome.result)


def test_a_fallback_that_fails_says_so(server):
    def broken(image: np.ndarray) -> dict[str, np.ndarray]:
        raise RuntimeError("no memory")

    server.refusal = "expired"
    with connect(server.target, "street", **SLOW, fallback=broken) as session:
        outcome = session.submit(FRAME).result(30).outcome
    assert outcome.result is FrameResult.REFUSED
    assert outcome.detail == "expired; fallback: RuntimeError: no memory"


def test_a_refused_frame_and_a_corrupt_answer_leave_the_stream_alone(server):
    with connect(server.target, "street", **SLOW) as session:
        server.refusal = "behind_work"
        refused = session.submit(FRAME).result(30).outcome
        server.refusal, server.corrupt = "", True
        corrupt = session.submit(FRAME).result(30).outcome
        server.corrupt = False
        assert session.submit(FRAME).result(30).on_time
    assert (refused.result, refused.detail) == (FrameResult.REFUSED, "behind_work")
    assert corrupt.result is FrameResult.REFUSED
    assert "malformed answer" in corrupt.detail
    assert len(server.metadata) == 1


def test_a_frame_that_is_no_image_is_named_and_disturbs_nothing(server):
    with connect(server.target, "street", **SLOW) as session:
        for wrong in (None, FRAME[..., 0], FRAME.astype(float), FRAME[:0]):
            with pytest.raises(ValueError, match="image: "):
                session.submit(wrong)
        assert session.submit(FRAME).result(30).on_time


def test_closing_at_once_gives_every_frame_its_reply(server):
    server.silent = True
    session = connect(server.target, "street", **SLOW)
    futures = [session.submit(FRAME) for _ in range(5)]
    assert not futures[0].cancel()
    session.close(drain=False)
    session.close()
    assert [future.result(5).outcome.result for future in futures] == [FrameResult.DROPPED] * 5
    with pytest.raises(ClientError, match="closed"):
        session.submit(FRAME)


def test_an_error_in_the_block_does_not_wait_for_answers(server):
    server.silent = True

    def interrupted() -> None:
        with connect(server.target, "street", **SLOW) as session:
            futures.append(session.submit(FRAME))
            raise KeyboardInterrupt

    futures: list = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert futures[0].result(0).outcome.detail == "the client was closed"
    assert not [thread for thread in threading.enumerate() if thread.name == "slacktide-client"]


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("code", [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT])
def test_a_refused_session_is_an_error_that_says_why(server, streams, code):
    server.hello_fails, server.streams = code, streams
    with pytest.raises(ClientError, match=f"{code.name}: no model 'nothing'"):
        connect(server.target, "nothing", **SLOW)


def test_no_server_is_an_error_that_names_it(server):
    server.stop()
    with pytest.raises(ClientError, match=rf"{server.target}: no session within 0.3 s"):
        connect(server.target, "street", **SLOW, connect_s=0.3)


@pytest.mark.parametrize(
    ("target", "model", "options", "named"),
    [
        ("http://x:1", "m", {}, "target"),
        ("host", "m", {}, "target"),
        ("127.0.0.1:1", "", {}, "model"),
        ("127.0.0.1:1", "m", {"slo": 0.0}, "slo"),
        ("127.0.0.1:1", "m", {"rate": "many"}, "rate"),
        ("127.0.0.1:1", "m", {"floor": 2.0}, "floor"),
        ("127.0.0.1:1", "m", {"quality": 0}, "quality"),
        ("127.0.0.1:1", "m", {"sizes": ("small",)}, "sizes"),
        ("127.0.0.1:1", "m", {"deadline": 3}, "deadline"),
        ("127.0.0.1:1", "m", {"ca_file": "/nowhere.pem"}, "ca_file"),
    ],
)
def test_bad_arguments_are_named(target, model, options, named):
    with pytest.raises(ClientError, match=named):
        connect(target, model, **{"slo": 0.1, "rate": 10, **options})


def test_a_token_is_sent(server):
    with connect(server.target, "street", **SLOW, token="secret") as session:
        session.submit(FRAME).result(30)
    assert server.metadata[0]["authorization"] == "Bearer secret"


def test_the_connection_may_be_encrypted(tmp_path):
    authority = trustme.CA()
    key = authority.issue_cert("127.0.0.1")
    chain = b"".join(blob.bytes() for blob in key.cert_chain_pems)
    credentials = grpc.ssl_server_credentials([(key.private_key_pem.bytes(), chain)])
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with (
        FakeServer(credentials) as server,
        connect(server.target, "street", **SLOW, ca_file=tmp_path / "ca.pem") as session,
    ):
        assert session.submit(FRAME).result(30).on_time


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    for _ in range(3_000):
        if condition():
            return
        threading.Event().wait(0.01)
    pytest.fail("it never came to pass")


def test_a_session_follows_its_server_to_another_with_its_token_and_terms(server):
    with FakeServer() as other:
        server.moves_to = other.target
        with connect(server.target, "street", **SLOW, token="secret", name="gate") as session:
            replies = [session.submit(FRAME).result(30)]
            until(lambda: len(other.hellos) > 0 and server.open_streams == 0)
            replies += [session.submit(FRAME).result(30) for _ in range(4)]
            assert (server.open_streams, other.open_streams) == (0, 1)
        assert all(reply.on_time for reply in replies)
        assert (len(server.frames), len(other.frames)) == (1, 4)
        assert other.metadata[0]["authorization"] == "Bearer secret"
        hello = other.hellos[0]
        assert (hello.model, hello.rate, hello.slo_ms, hello.name) == ("street", 10, 20_000, "gate")
        until(lambda: other.open_streams == 0)


def test_answers_of_the_first_server_arrive_after_the_move(server):
    with FakeServer() as other, connect(server.target, "street", **SLOW) as session:
        server.moves_to = other.target
        session.submit(FRAME).result(30)
        server.delay = 1.0  # the session has yet to connect: the first server gets this one
        waiting = session.submit(FRAME)
        until(lambda: len(other.hellos) > 0)
        second = session.submit(FRAME).result(30)
        first = waiting.result(30)
        assert first.on_time
        assert second.on_time
        until(lambda: server.open_streams == 0)
    assert len(server.frames) + len(other.frames) == 3


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:1", "", "host", "unix:/tmp/socket:80", "h:1/x", "[::1]", "h:1\n", "a b:1"],
)
def test_a_session_stays_if_the_address_cannot_be_followed(server, address):
    server.moves_to = address
    with connect(server.target, "street", **SLOW) as session:
        replies = [session.submit(FRAME).result(30) for _ in range(5)]
    assert all(reply.on_time for reply in replies)
    assert len(server.metadata) == 1


@pytest.mark.parametrize("code", [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAUTHENTICATED])
def test_a_session_stays_if_the_other_server_refuses_it(server, code):
    with FakeServer() as other, connect(server.target, "street", **SLOW) as session:
        other.hello_fails = code
        server.moves_to = other.target
        session.submit(FRAME).result(30)
        until(lambda: len(other.metadata) > 0)
        assert all(session.submit(FRAME).result(30).on_time for _ in range(5))
        assert server.open_streams == 1
    assert other.frames == []


def test_a_session_that_does_not_follow_stays(server):
    with FakeServer() as other:
        server.moves_to = other.target
        with connect(server.target, "street", **SLOW, follow=False) as session:
            assert all(session.submit(FRAME).result(30).on_time for _ in range(5))
        assert other.metadata == []


def test_a_session_goes_back_when_the_server_that_it_followed_to_is_lost(server):
    with FakeServer() as other, connect(server.target, "street", slo=5.0, rate=10) as session:
        server.moves_to = other.target
        session.submit(FRAME).result(30)
        until(lambda: len(other.hellos) > 0 and server.open_streams == 0)
        server.moves_to = ""
        other.stop()
        until(lambda: server.open_streams == 1)
        assert session.submit(FRAME).result(30).on_time
        assert len(server.frames) == 2


def test_an_encrypted_session_does_not_follow_to_a_server_without_encryption(tmp_path):
    authority = trustme.CA()
    key = authority.issue_cert("127.0.0.1")
    chain = b"".join(blob.bytes() for blob in key.cert_chain_pems)
    credentials = grpc.ssl_server_credentials([(key.private_key_pem.bytes(), chain)])
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with (
        FakeServer(credentials) as server,
        FakeServer(credentials) as other,
        FakeServer() as plain,
        connect(server.target, "street", **SLOW, ca_file=tmp_path / "ca.pem") as session,
    ):
        server.moves_to = plain.target
        assert all(session.submit(FRAME).result(30).on_time for _ in range(3))
        assert plain.metadata == []
        server.moves_to = other.target
        for _ in range(100):  # until the attempt without encryption has failed
            assert session.submit(FRAME).result(30).on_time
            if other.frames:
                break
        assert other.frames
        assert plain.metadata == []


def test_what_waits_cannot_be_called_on_the_thread_that_it_waits_for(server):
    errors = []

    def on_reply(reply: FrameReply) -> None:
        with pytest.raises(ClientError, match="on_reply") as caught:
            session.close()
        errors.append(caught.value)

    session = connect(server.target, "street", **SLOW, on_reply=on_reply)
    session.submit(FRAME).result(30)
    session.close()
    assert len(errors) == 1


def test_a_plain_server_gets_pixels_of_the_given_sizes(server):
    server.streams = False
    with connect(server.target, "street", **SLOW, sizes=(128, 256)) as session:
        replies = [session.submit(FRAME).result(30) for _ in range(6)]
    assert all(reply.on_time for reply in replies)
    assert [reply.outcome.size for reply in replies] == [128, *[256] * 5]
    spec = server.last.inputs[0]
    assert (spec.name, spec.datatype, list(spec.shape)) == ("image", "UINT8", [1, 256, 256, 3])
    assert 0 < server.last.parameters["timeout"].int64_param <= 20_000_000
    pixels = np.frombuffer(server.frames[-1], np.uint8).reshape(256, 256, 3)
    assert pixels[..., ::-1].mean() == pytest.approx(FRAME.mean(), abs=1)


def test_a_plain_model_of_a_fixed_size_gets_that_size_and_one_of_strings_gets_jpeg(server):
    server.streams = False
    server.image_input = ("pixels", "UINT8", [-1, 96, 160, 3])
    with connect(server.target, "street", **SLOW) as session:
        assert session.submit(FRAME).result(30).on_time
    assert list(server.last.inputs[0].shape) == [1, 96, 160, 3]
    server.image_input = ("jpeg", "BYTES", [-1, 1])
    with connect(server.target, "street", **SLOW) as session:
        assert session.submit(FRAME).result(30).on_time
    assert list(server.last.inputs[0].shape) == [1, 1]
    assert jpeg_in(server.frames[-1]).shape == FRAME.shape


def test_a_plain_model_without_an_image_is_an_error_that_says_what_it_has(server):
    server.streams = False
    server.image_input = ("x", "FP32", [-1, 3, 224, 224])
    with pytest.raises(ClientError, match=r"expected one input.*got x FP32"):
        connect(server.target, "street", **SLOW)


def test_a_plain_server_that_refuses_or_restarts(server):
    server.streams = False
    with connect(server.target, "street", slo=2.0, rate=10) as session:
        server.refusal = "busy"
        outcome = session.submit(FRAME).result(30).outcome
        assert (outcome.result, outcome.detail) == (
            FrameResult.REFUSED,
            "resource_exhausted: busy",
        )
        server.refusal = ""
        server.stop()
        assert not session.submit(FRAME).result(30).on_time
        server.restart()
        results = [session.submit(FRAME).result(30).outcome.result for _ in range(10)]
    assert FrameResult.ANSWERED in results


def test_importing_the_client_loads_no_server_and_no_heavy_library():
    script = """
import sys
import slacktide.client
heavy = {"grpc", "cv2", "onnx", "onnxruntime", "google.protobuf", "slacktide.server"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_missing_extra_is_said(monkeypatch):
    lacking = {"grpc", "cv2"}
    monkeypatch.setitem(sys.modules, "grpc", None)  # to import it raises
    monkeypatch.setattr(
        "slacktide.client.images.find_spec", lambda name: None if name in lacking else name
    )
    both = "grpcio and OpenCV are missing; install them with"
    with pytest.raises(ClientError, match=rf"{both}: pip install 'slacktide\[client\]'"):
        connect("127.0.0.1:1", "street", **SLOW)
    lacking.remove("grpc")
    with pytest.raises(ClientError, match=r"^OpenCV is missing; install it with: pip"):
        connect("127.0.0.1:1", "street", **SLOW)
