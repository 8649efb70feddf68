"""Texts through a whole server: a tokenizer makes ids of them, of a length that is known."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils
from tests.stand_ins.tokenizer_files import padding, tokenizer_file, truncation

from slacktide.lab.examples import example, sentences

LENGTHS = (5, 33, 2, 60, 12, 33, 48, 3)
SETTINGS = """\
scheduler: fifo
inputs: {text: {tokenizer: tokenizer.json}}
limits: {text: 4KiB}
"""
"""First come, first served: other policies batch as the profile says, and that is measured here."""


def save(root: Path, name: str, settings: str, tokenizer: bytes, model: bytes = b"") -> None:
    folder = root / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(model or example("text").onnx())
    (folder / "slacktide.yaml").write_text(settings)
    (folder / "tokenizer.json").write_bytes(tokenizer)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    """A server with the text encoder, and `spin` on the same lane to keep it busy."""
    zoo = zoo_at(tmp_path_factory.mktemp("texts") / "repository")
    zoo.spin(settings="max_batch: 8\n")
    zoo.matmul()
    save(zoo.root, "reader", SETTINGS, tokenizer_file(truncation=truncation(64)))
    pairs = "inputs: {question: {tokenizer: tokenizer.json, pairs: true, max_length: 20}}\n"
    save(zoo.root, "pairs", pairs, tokenizer_file())
    fixed = "inputs: {text: {tokenizer: tokenizer.json, gives: [input_ids]}}\npooling: last\n"
    save(zoo.root, "fixed", fixed, tokenizer_file(padding=padding(direction="Left")), vectors())
    (zoo.root / "line").mkdir()
    (zoo.root / "line" / "pipeline.yaml").write_text("stages: {first: reader}\n")
    with serve(zoo) as server:
        yield server


def vectors() -> bytes:
    """A vector of two numbers, n and 10 n for the id n, for each of eight tokens of one row."""
    table = np.arange(len(sentences.VOCABULARY), dtype=np.float32)[:, None] * [[1, 10]]
    ids = onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, [1, 8])
    states = onnx.helper.make_tensor_value_info("states", onnx.TensorProto.FLOAT, [1, 8, 2])
    node = onnx.helper.make_node("Gather", ["table", "input_ids"], ["states"])
    weights = [onnx.numpy_helper.from_array(table.astype(np.float32), "table")]
    graph = onnx.helper.make_graph([node], "g", [ids], [states], weights)
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    content: bytes = model.SerializeToString()
    return content


def texts(lengths: tuple[int, ...] = LENGTHS, seed: int = 7) -> list[str]:
    rng = np.random.default_rng(seed)
    return [sentences.text(i % 8, length, rng) for i, length in enumerate(lengths)]


def alone(ids: Any) -> dict[str, Any]:
    """What onnxruntime says of one text."""
    session = onnxruntime.InferenceSession(example("text").onnx())
    row = np.array([ids], np.int64)
    outputs = session.run(None, {"input_ids": row, "attention_mask": np.ones_like(row)})
    return dict(zip((o.name for o in session.get_outputs()), outputs, strict=True))


def ask(module: Any, address: str, rows: list[str], *axes: int) -> tuple[Any, int, float]:
    """Embeddings, rows of the batch and the work hint, by one of Triton's clients."""
    array = np.array([row.encode() for row in rows], object).reshape(len(rows), *axes)
    tensor = module.InferInput("text", list(array.shape), "BYTES")
    tensor.set_data_from_numpy(array)
    with module.InferenceServerClient(address) as client:
        parameters = {"report_timing": True}
        result = client.infer("reader", [tensor], parameters=parameters, timeout=30_000_000)
    response = result.get_response()
    if isinstance(response, dict):
        batch = response["parameters"]["batch_size"]
    else:
        batch = response.parameters["batch_size"].int64_param
    return result.as_numpy("embedding"), batch


@pytest.mark.parametrize(
    ("module", "protocol"), [(tritonclient.http, "http"), (tritonclient.grpc, "grpc")]
)
def test_texts_of_unequal_length_share_a_batch_and_do_not_notice(
    module: Any, protocol: str, house: Any
) -> None:
    rows, address = texts(), getattr(house, protocol)
    with house.hold():
        asked = [
            house.spawn(ask, module, address, [text], *((1,) if number % 2 else ()))
            for number, text in enumerate(rows)
        ]
        house.queued("reader", len(rows))
        hints = house.look(
            lambda app: sorted(
                request.work_hint
                for pool, held in app.engine.state.pools.items()
                if pool.model == "reader"
                for request in held.scheduler.pending()
            )
        )
    assert hints == sorted(float(len(sentences.encode(text))) for text in rows)
    sizes = []
    for text, future in zip(rows, asked, strict=True):
        embedding, batch = future.result()
        sizes.append(batch)
        expected = alone(sentences.encode(text))["embedding"]
        np.testing.assert_allclose(embedding, expected, atol=1e-4)
    assert max(sizes) > 2  # no two batches of one length are that large
    house.settle()


def test_rows_of_one_request_are_padded_together_and_long_ones_cut(house: Any) -> None:
    rows = texts((9, 100, 30))
    embedding, _ = ask(tritonclient.http, house.http, rows)
    for text, row in zip(rows, embedding, strict=True):
        expected = alone(sentences.encode(text)[:64])["embedding"][0]
        np.testing.assert_allclose(row, expected, atol=1e-4)
    house.settle()


def test_a_request_of_many_rows_runs_in_several_batches(house: Any) -> None:
    rows = texts(tuple(range(3, 43)))
    embedding, _ = ask(tritonclient.http, house.http, rows)
    for text, row in zip(rows, embedding, strict=True):
        expected = alone(sentences.encode(text))["embedding"][0]
        np.testing.assert_allclose(row, expected, atol=1e-4)
    house.settle()


def test_a_model_of_one_length_and_row_is_padded_as_the_tokenizer_says(house: Any) -> None:
    """Padding is on the left, so the last place holds the last word."""
    assert house.get("/v2/models/fixed").json["inputs"][0]["shape"] == [-1, 1]
    answer = house.infer("fixed", document("the car", "a bus stopped", "the " * 20, name="text"))
    (output,) = answer.json["outputs"]
    last = [sentences.VOCABULARY.index(word) for word in ("car", "stopped", "the")]
    assert (output["name"], output["shape"]) == ("embedding", [3, 2])
    assert output["data"] == [number for n in last for number in (n, 10 * n)]


def document(*elements: Any, shape: list[int] | None = None, name: str = "text") -> dict[str, Any]:
    shape = shape or [len(elements)]
    tensor = {"name": name, "shape": shape, "datatype": "BYTES", "data": list(elements)}
    return {"inputs": [tensor]}


def test_clients_see_bytes_and_send_plain_strings(house: Any) -> None:
    described = house.get("/v2/models/reader").json["inputs"]
    assert described == [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}]
    (config,) = house.get("/v2/models/reader/config").json["input"]
    assert config == {"name": "text", "data_type": "TYPE_STRING", "dims": [1]}
    (text,) = texts((12,))
    answer = house.infer("reader", document(text)).json
    outputs = {output["name"]: output["data"] for output in answer["outputs"]}
    expected = alone(sentences.encode(text))
    np.testing.assert_allclose(outputs["logits"], expected["logits"][0], atol=1e-4)


def test_clients_may_send_the_ids_themselves(house: Any) -> None:
    ids = [int(token) for token in sentences.encode("the car stopped")]
    tensor = {"name": "input_ids", "shape": [1, len(ids)], "datatype": "INT64", "data": ids}
    answer = house.infer("reader", {"inputs": [tensor]})
    assert answer.status == 200, answer
    sent = house.infer("reader", document("the car stopped")).json["outputs"]
    assert answer.json["outputs"] == sent


def test_pairs_are_rows_of_two_texts(house: Any) -> None:
    assert house.get("/v2/models/pairs").json["inputs"][0]["shape"] == [-1, 2]
    pair = ("the car stopped", "a bus")
    answer = house.infer("pairs", document(*pair, shape=[1, 2], name="question"))
    ids = np.concatenate([sentences.encode(text) for text in pair])
    outputs = {output["name"]: output["data"] for output in answer.json["outputs"]}
    np.testing.assert_allclose(outputs["logits"], alone(ids)["logits"][0], atol=1e-4)
    refused = house.infer("pairs", document("one", name="question"))
    assert refused.error == "input 'question' shape: expected [rows, 2], pairs of texts, got [1]"


def test_the_first_stage_of_a_pipeline_takes_text(house: Any) -> None:
    described = house.get("/v2/models/line").json["inputs"]
    assert described == [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}]
    answer = house.infer("line", document("the car stopped"))
    outputs = {output["name"]: output["data"] for output in answer.json["outputs"]}
    expected = alone(sentences.encode("the car stopped"))["logits"][0]
    np.testing.assert_allclose(outputs["first.logits"], expected, atol=1e-4)
    house.settle()


@pytest.mark.parametrize(
    ("call", "status", "error"),
    [
        (document("a", name="txt"), 400, "inputs: expected the input 'text', got ['txt']"),
        (document("a", "b", shape=[1, 2]), 400, "input 'text' shape: expected [rows] or [rows, 1]"),
        (document("a", shape=[1, 1, 1]), 400, "input 'text' shape: expected [rows] or [rows, 1]"),
        (document(), 400, "input 'text' shape[0]: expected 1 to "),
        (document("a " * 3_000_000), 413, "input 'text': expected texts of at most 4096 bytes"),
    ],
)
def test_bad_texts_name_the_input(house: Any, call: Any, status: int, error: str) -> None:
    answer = house.infer("reader", call)
    assert answer.status == status, answer
    assert error in answer.error
    house.good()
    house.settle()


@pytest.mark.parametrize(
    ("element", "error"),
    [
        (b"\xff\xfe", "input 'text': expected UTF-8, element 1 is not"),
        (b"a " * 5_000_000, r"expected texts of at most 4096 bytes \(limits.text\)"),
    ],
)
def test_bytes_that_are_no_text_are_refused(house: Any, element: bytes, error: str) -> None:
    tensor = tritonclient.http.InferInput("text", [2], "BYTES")
    tensor.set_data_from_numpy(np.array([b"low", element], object))
    with (
        tritonclient.http.InferenceServerClient(house.http) as client,
        pytest.raises(tritonclient.utils.InferenceServerException, match=error),
    ):
        client.infer("reader", [tensor])
    house.settle()


def _process(app: Any) -> Any:
    return app.catalog.find("reader", None).text._process


def _tokenizer(app: Any) -> int:
    return int(_process(app).pid)


def waiting_texts(house: Any, count: int) -> None:
    """Wait until so many requests are with the tokenizer."""
    house.until(lambda app: _process(app).waiting == count, f"{count} texts wait")


def test_time_in_the_tokenizer_counts_against_the_deadline(house: Any) -> None:
    """A text that is tokenized only after its deadline is dropped, and others are not held up."""
    pid = house.look(_tokenizer)
    os.kill(pid, signal.SIGSTOP)
    try:
        headers = {"x-request-timeout-seconds": "0.2"}
        late = house.later("reader", document("the car stopped"), headers)
        left = house.open_call("reader", document("a bus"))
        waiting_texts(house, 2)
        house.good()
        left.close()
        ids = {"name": "input_ids", "shape": [1, 1], "datatype": "INT64", "data": [1]}
        assert house.infer("reader", {"inputs": [ids]}).status == 200
        threshold = house.look(lambda app: app.driver.clock()) + 0.3
        house.until(lambda app: app.driver.clock() > threshold, "the deadline has passed")
    finally:
        os.kill(pid, signal.SIGCONT)
    answer = late.result()
    assert answer.status in (503, 504), answer
    waiting_texts(house, 0)
    house.settle()


def test_an_announced_text_is_dropped_at_its_deadline(house: Any) -> None:
    """The engine knows of it since its headers, so the answer does not wait for the tokenizer."""
    pid = house.look(_tokenizer)
    os.kill(pid, signal.SIGSTOP)
    try:
        body = json.dumps(document("the car stopped")).encode()
        port = int(house.http.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), house.PATIENCE) as connection:
            head = "POST /v2/models/reader/infer HTTP/1.1\r\nHost: localhost\r\n"
            head += f"x-request-timeout-seconds: 1\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode())
            house.until(lambda app: app.driver.in_flight == 1, "the text is announced")
            connection.sendall(body)
            waiting_texts(house, 1)
            answer = connection.recv(4096).decode()
        assert answer.startswith("HTTP/1.1 50"), answer
    finally:
        os.kill(pid, signal.SIGCONT)
    waiting_texts(house, 0)
    house.settle()


def test_expired_texts_are_dropped_before_they_are_tokenized(house: Any) -> None:
    """As much as may be under way at once is with the tokenizer; the others still wait here."""
    pid = house.look(_tokenizer)
    os.kill(pid, signal.SIGSTOP)
    try:
        under_way = [house.later("reader", document("the car " * 500)) for _ in range(5)]
        waiting_texts(house, 5)
        headers = {"x-request-timeout-seconds": "0.2"}
        late = [house.later("reader", document("the car stopped"), headers) for _ in range(3)]
        waiting_texts(house, 8)
        threshold = house.look(lambda app: app.driver.clock()) + 0.3
        house.until(lambda app: app.driver.clock() > threshold, "the deadline has passed")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [future.result().status for future in under_way] == [200] * 5
    for future in late:
        answer = future.result()
        assert (answer.status, answer.json["reason"]) == (504, "expired")
        # A body that came after its header was announced; the engine then drops the request itself.
        assert "they were not tokenized in time" in answer.error or "its body" in answer.error
    house.settle()


def test_a_tokenizer_that_dies_fails_one_request_alone(house: Any) -> None:
    pid = house.look(_tokenizer)
    os.kill(pid, signal.SIGSTOP)
    waiting = [house.later("reader", document("the car stopped")) for _ in range(3)]
    waiting_texts(house, 3)
    os.kill(pid, signal.SIGKILL)
    statuses = sorted(future.result().status for future in waiting)
    assert statuses == [200, 200, 500]
    assert house.look(_tokenizer) not in (0, pid)
    house.settle()


def test_a_reload_answers_the_texts_that_wait(house: Any) -> None:
    pid = house.look(_tokenizer)
    os.kill(pid, signal.SIGSTOP)
    waiting = house.later("reader", document("the car stopped"))
    waiting_texts(house, 1)
    reload = house.spawn(house.server.load, "reader")
    house.until(lambda app: _tokenizer(app) != pid, "the new load serves")
    os.kill(pid, signal.SIGCONT)
    assert waiting.result().status == 200
    reload.result()
    assert house.infer("reader", document("a bus")).status == 200
    house.settle()
