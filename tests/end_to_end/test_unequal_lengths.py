"""Texts of unequal length through a whole server: padded together, answered as if alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc
import tritonclient.http

from slacktide.lab.examples import example
from slacktide.lab.examples.sentences import VOCABULARY

LENGTHS = (5, 33, 1, 60, 12, 33, 48, 2)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    """A server with the text encoder, and `spin` on the same lane to keep it busy."""
    zoo = zoo_at(tmp_path_factory.mktemp("reader") / "repository")
    zoo.spin(settings="max_batch: 8\n")
    zoo.matmul()
    folder: Path = zoo.root / "text"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(example("text").onnx())
    settings = example("text").extras()["slacktide.yaml"]
    # First come, first served: other policies batch as the profile says, and that is measured here.
    (folder / "slacktide.yaml").write_bytes(settings + b"\nscheduler: fifo\n")
    with serve(zoo) as house:
        yield house


@pytest.fixture(scope="module")
def alone() -> Any:
    """What onnxruntime says of a text by itself: logits and embedding."""
    session = onnxruntime.InferenceSession(example("text").onnx())

    def run(ids: Any) -> Any:
        return session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})

    return run


def texts(seed: int, lengths: tuple[int, ...] = LENGTHS) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, len(VOCABULARY), (1, length), np.int64) for length in lengths]


def ask(module: Any, address: str, ids: Any, *, mask: bool, **how: Any) -> Any:
    """(logits, embedding, rows of its batch) by one of Triton's clients."""
    given = []
    arrays = {"input_ids": ids, **({"attention_mask": np.ones_like(ids)} if mask else {})}
    for name, array in arrays.items():
        tensor = module.InferInput(name, list(array.shape), "INT64")
        tensor.set_data_from_numpy(array)
        given.append(tensor)
    with module.InferenceServerClient(address) as client:
        parameters = {"report_timing": True}
        result = client.infer("text", given, parameters=parameters, timeout=30_000_000, **how)
    response = result.get_response()
    if isinstance(response, dict):
        rows = response["parameters"]["batch_size"]
    else:
        rows = response.parameters["batch_size"].int64_param
    return result.as_numpy("logits"), result.as_numpy("embedding"), rows


@pytest.mark.parametrize(
    ("module", "protocol"), [(tritonclient.http, "http"), (tritonclient.grpc, "grpc")]
)
def test_unequal_texts_share_a_batch_and_do_not_notice(
    module: Any, protocol: str, reader: Any, alone: Any
) -> None:
    ids = texts(7)
    address = getattr(reader, protocol)
    asked: list[Future[Any]] = []
    with reader.hold():
        for number, text in enumerate(ids):
            asked.append(reader.spawn(ask, module, address, text, mask=number % 2 == 0))
        reader.queued("text", len(ids))
    sizes = []
    for text, future in zip(ids, asked, strict=True):
        *answer, rows = future.result()
        sizes.append(rows)
        for output, wanted in zip(answer, alone(text), strict=True):
            np.testing.assert_allclose(output, wanted, atol=1e-4)
    assert max(sizes) > 2  # no two batches of one length are that large
    reader.settle()


def test_hints_and_applications_reach_the_engine(reader: Any) -> None:
    """The hint is the length, whatever the client claims; the application is what it says."""
    ids = texts(8, (21, 9))
    headers = {"slacktide-application": "short", "slacktide-work-hint": "1e9"}
    with reader.hold():
        asked = [
            reader.spawn(
                ask, tritonclient.http, reader.http, ids[0], mask=False, headers=dict(headers)
            ),
            reader.spawn(
                ask, tritonclient.grpc, reader.grpc, ids[1], mask=False, headers=dict(headers)
            ),
        ]
        reader.queued("text", 2)
        hints = reader.look(
            lambda app: sorted(
                (request.work_hint, request.application, request.signature)
                for pool, held in app.engine.state.pools.items()
                if pool.model == "text"
                for request in held.scheduler.pending()
            )
        )
        assert hints == [(9.0, "short", ((), ())), (21.0, "short", ((), ()))]
    for future in asked:
        future.result()
    reader.settle()


def test_a_text_longer_than_the_model_takes_is_refused_at_the_door(reader: Any) -> None:
    call = reader.call_of({"input_ids": ("INT64", [1, 513], [3] * 513)})
    answer = reader.infer("text", call)
    assert answer.status == 400
    assert answer.error == "input 'input_ids' shape[1]: expected at most 512, got 513"
    config = reader.get("/v2/models/text/config").json
    assert [given.get("optional", False) for given in config["input"]] == [False, True]
