"""Streams of frames against a whole server, by clients that know only the .proto files."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import pytest

import slacktide
from slacktide.wire.proto import messages as m

METHOD = f"/{m.FRAME_SERVICE}/StreamFrames"
FAMILY = """
slo: 20s
variants:
  sizes: [32, 64, 128]
  accuracy: {"32": 0.3, "64": 0.5, "128": 0.8}
"""
ROW = np.array([[1, 0, 0, 0]], "<f4").tobytes()


class Client:
    """One session over a stock channel."""

    def __init__(self, channel: grpc.Channel, model: str, **terms: Any) -> None:
        self._sent: SimpleQueue[bytes | None] = SimpleQueue()
        call = channel.stream_stream(METHOD)
        self.call = call(iter(self._sent.get, None), timeout=30)
        self.model = model
        stated = {"rate": 10.0, "slo_ms": 5_000.0, **terms}
        self.send(hello=m.Hello(model=model, **stated))

    def send(self, **message: Any) -> None:
        self._sent.put(m.ClientMessage(**message).SerializeToString())

    def frame(self, id: int, *, announced: bool = True, **announcement: Any) -> None:
        """One row for `matmul`."""
        if announced:
            stated = {"bytes": len(ROW), **announcement}
            self.send(announcement=m.Announcement(id=id, **stated))
        request = m.ModelInferRequest(model_name=self.model, raw_input_contents=[ROW])
        request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
        self.send(frame=m.Frame(id=id, request=request))

    def picture(self, id: int, **parameters: str) -> Any:
        """The answer to an image for a family."""
        request = m.ModelInferRequest(model_name=self.model, raw_input_contents=[bytes(4800)])
        request.inputs.add(name="image", datatype="UINT8", shape=[1, 40, 40, 3])
        for name, value in parameters.items():
            request.parameters[name].string_param = value
        self.send(announcement=m.Announcement(id=id, bytes=4800))
        self.send(frame=m.Frame(id=id, request=request))
        return next(
            message for kind, message in iter(lambda: self.read(1)[0], None) if kind == "answer"
        )

    def end(self) -> None:
        self._sent.put(None)

    def read(self, count: int) -> list[tuple[str, Any]]:
        messages = []
        for _ in range(count):
            message = m.ServerMessage.FromString(next(self.call))
            kind = str(message.WhichOneof("message"))
            messages.append((kind, getattr(message, kind)))
        return messages


@pytest.fixture
def channel(house: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(house.grpc) as opened:
        yield opened


def sessions(house: Any) -> list[dict[str, Any]]:
    return list(house.get("/v2/slacktide/sessions").json["sessions"])


def gone(house: Any) -> None:
    house.until(lambda app: not len(app.data.sessions), "every session has ended")


def test_frames_are_acknowledged_and_answered_and_the_session_is_on_the_page(house, channel):
    client = Client(channel, "matmul", name="gate")
    ((kind, welcome),) = client.read(1)
    assert (kind, welcome.input, list(welcome.variants)) == ("welcome", "", [])
    assert welcome.advice.mapped
    for id in range(1, 4):
        client.frame(id, age_us=1_000)
    client.frame(4, announced=False)
    messages = client.read(8)
    assert sorted(message.id for kind, message in messages if kind == "acknowledgement") == [
        1,
        2,
        3,
        4,
    ]
    answers = [message for kind, message in messages if kind == "answer"]
    assert sorted(answer.id for answer in answers) == [1, 2, 3, 4]
    for answer in answers:
        values = np.frombuffer(answer.response.raw_output_contents[0], "<f4")
        assert values == pytest.approx(house.WEIGHT[0])
        assert answer.server_us > 0
    (page,) = sessions(house)
    assert (page["id"], page["name"], page["model"]) == (welcome.session, "gate", "matmul")
    assert (page["frames"], page["answered"], page["missed"]) == (4, 4, 0)
    client.end()
    assert list(client.call) == []
    assert client.call.code() is grpc.StatusCode.OK
    gone(house)
    assert sessions(house) == []


def test_a_frame_that_names_a_variant_is_answered_by_it(zoo, serve):
    """Not by the one to which the planner has mapped its session, which answers the others."""
    zoo.sight(settings=FAMILY)
    with serve(zoo) as house, grpc.insecure_channel(house.grpc) as channel:
        client = Client(channel, "sight", slo_ms=20_000.0)
        client.read(1)
        numbers = itertools.count(1)
        until = time.monotonic() + 60.0
        for wanted, parameters in (("128", {}), ("32", {"variant": "32"}), ("128", {})):
            while (answer := client.picture(next(numbers), **parameters)).variant != wanted:
                assert time.monotonic() < until, answer
            side = np.frombuffer(answer.response.raw_output_contents[1], "<f4")
            assert side == int(wanted)
        client.end()


def test_the_engine_sees_the_session_as_the_client(house, channel):
    with house.hold("spin"):
        client = Client(channel, "matmul")
        ((_, welcome),) = client.read(1)
        client.frame(1)
        house.until(
            lambda app: any(
                getattr(entry.request, "client", "") == welcome.session
                for entry in app.engine.state.request_table.entries.values()
                if entry.request is not None
            ),
            "a request of the session waits",
        )
    assert [kind for kind, _ in client.read(2)] == ["acknowledgement", "answer"]
    client.end()
    gone(house)


def test_an_announcement_without_frame_ends_at_its_deadline(house, channel):
    client = Client(channel, "matmul", slo_ms=200.0)
    client.read(1)
    client.send(announcement=m.Announcement(id=1, bytes=50_000))
    ((kind, answer),) = client.read(1)
    assert (kind, answer.id) == ("answer", 1)
    assert answer.refusal.reason in ("expired", "hopeless")
    client.frame(2)
    assert [message.id for _, message in client.read(2)] == [2, 2]
    client.end()
    gone(house)


def test_a_frame_that_is_too_old_is_refused_before_it_is_here(house, channel):
    client = Client(channel, "matmul", slo_ms=100.0)
    client.read(1)
    client.frame(1, age_us=4_000_000_000)  # a clock gone wrong, or a lie
    messages = client.read(2)
    assert sorted(kind for kind, _ in messages) == ["acknowledgement", "answer"]
    (answer,) = (message for kind, message in messages if kind == "answer")
    assert answer.refusal.reason
    assert not answer.HasField("response")
    client.end()
    gone(house)


def test_bad_frames_fail_alone(house, channel):
    client = Client(channel, "matmul")
    client.read(1)
    request = m.ModelInferRequest(model_name="matmul", raw_input_contents=[b"12"])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    client.send(frame=m.Frame(id=1, request=request))
    client.send(announcement=m.Announcement(id=2, bytes=10**15))
    messages = client.read(3)
    refused = {message.id: message.refusal.reason for kind, message in messages if kind == "answer"}
    assert refused == {1: "bad_input", 2: "too_large"}
    client.frame(3)
    assert [message.id for _, message in client.read(2)] == [3, 3]
    client.end()
    gone(house)


def test_an_unknown_model_and_a_bad_hello_end_the_stream(house, channel):
    for terms, code in (
        ({"model": "nothing"}, grpc.StatusCode.NOT_FOUND),
        ({"model": "matmul", "rate": float("nan")}, grpc.StatusCode.INVALID_ARGUMENT),
    ):
        client = Client(channel, **terms)
        with pytest.raises(grpc.RpcError) as error:
            client.read(1)
        assert error.value.code() is code
        client.end()
    assert sessions(house) == []


def test_cut_streams_leave_nothing_behind(house, channel):
    for number in range(20):
        client = Client(channel, "matmul")
        client.read(1)
        client.send(announcement=m.Announcement(id=1, bytes=100_000))
        client.frame(2)
        if number % 2:
            client.read(2)
        client.call.cancel()
        client.end()
    gone(house)
    house.good()


def test_many_sessions_on_one_connection_are_all_served(house, channel):
    clients = [Client(channel, "matmul", rate=2.0) for _ in range(100)]
    for client in clients:
        client.frame(1)
    for client in clients:
        kinds = sorted(kind for kind, _ in client.read(3))
        assert kinds == ["acknowledgement", "answer", "welcome"]
    assert len(sessions(house)) == 100
    for client in clients:
        client.end()
    gone(house)


STOCK = """
import queue, sys
import grpc
from slacktide.wire.proto import frames_pb2 as f, frames_pb2_grpc, inference_pb2 as i

sent = queue.SimpleQueue()
sent.put(f.ClientMessage(hello=f.Hello(model="matmul", rate=5, slo_ms=5000, bytes_per_s=1e6)))
sent.put(f.ClientMessage(announcement=f.Announcement(id=9, bytes=16)))
request = i.ModelInferRequest(model_name="matmul")
request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
request.raw_input_contents.append(bytes(16))
sent.put(f.ClientMessage(frame=f.Frame(id=9, bytes_per_s=2e6, request=request)))
with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = frames_pb2_grpc.FrameServiceStub(channel)
    kinds = []
    for message in stub.StreamFrames(iter(sent.get, None), timeout=30):
        kinds.append(message.WhichOneof("message"))
        if kinds[-1] == "answer":
            assert message.answer.id == 9, message
            assert len(message.answer.response.raw_output_contents[0]) == 12
            sent.put(None)
print(",".join(kinds))
"""


def test_a_client_generated_from_the_proto_files_is_served(house, tmp_path: Path):
    from grpc_tools import protoc

    root = Path(slacktide.__file__).parent.parent
    protos = sorted((root / "slacktide" / "wire" / "proto").glob("*.proto"))
    target = [f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
    assert protoc.main(["protoc", f"-I{root}", *target, *map(str, protos)]) == 0
    for folder in ("slacktide", "slacktide/wire", "slacktide/wire/proto"):
        (tmp_path / folder / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", STOCK, house.grpc],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "welcome,acknowledgement,answer"
    gone(house)


def test_metrics_have_sums_and_no_labels_of_sessions(house, channel):
    client = Client(channel, "matmul", name="secret-name")
    client.frame(1)
    client.read(3)
    page = house.ask(house.server.metrics_port, "GET", "/metrics").body.decode()
    assert "slacktide_client_sessions 1\n" in page
    assert "slacktide_frames_on_time_total " in page
    assert "secret-name" not in page
    client.end()
    gone(house)
    assert json.dumps(sessions(house)) == "[]"
