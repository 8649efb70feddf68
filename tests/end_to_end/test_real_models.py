"""Six models from outside of this project, from Python packages, asked by stock clients.

bench/pinned_models.py says where they come from and what they need. They are fetched once, so these
tests are marked `network`; `make test-network` runs them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc
import tritonclient.http
from bench.pinned_models import PINNED, PinnedModel, Size, Tensors, lay_out
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from slacktide.domain.padding import PaddedInput, Padding
from slacktide.executors.hand_over.tensor_io import lay_out as lay_out_rows
from slacktide.executors.ports import ModelSource, Payload, TensorRef
from slacktide.executors.session import ModelSession

pytestmark = pytest.mark.network

REQUESTS = [(name, size) for name, model in PINNED.items() for size in (*model.sizes, *model.later)]
NAMES = [f"{name} {PINNED[name].label(size)}" for name, size in REQUESTS]
UNFIT: dict[str, Size] = {
    "detector": (100, 100),
    "recogniser": (224, 224),
    "yolo": (300, 300),
    "vad": (1024,),
}
"""Sizes that the files allow and the networks do not."""
CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    """A server of all of them, each with the key that it needs."""
    root = lay_out(PINNED.values(), tmp_path_factory.mktemp("real"), stated=True)
    with serve(zoo_at(root)) as house:
        yield house


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of nothing but NAME/1/model.onnx."""
    return lay_out(PINNED.values(), tmp_path_factory.mktemp("bare"), stated=False)


@pytest.fixture
def real(running: Any) -> Iterator[Any]:
    """That server; nothing of a test's may be left in it."""
    yield running
    running.settle()


def request_of(model: PinnedModel, size: Size) -> Tensors:
    return model.inputs(size, np.random.default_rng(7))


def expected(model: PinnedModel, inputs: Tensors) -> dict[str, Any]:
    """What ONNX Runtime makes of a request, by output."""
    session = onnxruntime.InferenceSession(model.file(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def ask(real: Any, protocol: str, model: str, inputs: Tensors) -> Any:
    """The answer to Triton's own client."""
    module = CLIENTS[protocol]
    given = []
    for name, tensor in inputs.items():
        field = module.InferInput(name, list(tensor.shape), np_to_triton_dtype(tensor.dtype))
        field.set_data_from_numpy(tensor)
        given.append(field)
    with module.InferenceServerClient(getattr(real, protocol)) as client:
        return client.infer(model, given)


@pytest.mark.parametrize("protocol", CLIENTS)
@pytest.mark.parametrize(("name", "size"), REQUESTS, ids=NAMES)
def test_every_size_is_answered_as_onnx_runtime_answers_it(
    real: Any, name: str, size: Size, protocol: str
) -> None:
    inputs = request_of(PINNED[name], size)
    answer = ask(real, protocol, name, inputs)
    for output, values in expected(PINNED[name], inputs).items():
        np.testing.assert_allclose(answer.as_numpy(output), values, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", PINNED)
def test_a_request_in_plain_json(real: Any, name: str) -> None:
    model = PINNED[name]
    inputs = request_of(model, model.sizes[0])
    tensors = {
        key: (np_to_triton_dtype(tensor.dtype), tensor.shape, tensor.ravel().tolist())
        for key, tensor in inputs.items()
    }
    answer = real.infer(name, real.call_of(tensors))
    assert answer.status == 200, answer.body
    for output in answer.json["outputs"]:
        values = expected(model, inputs)[output["name"]]
        assert output["shape"] == list(values.shape)
        np.testing.assert_allclose(output["data"], values.ravel(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", UNFIT)
def test_a_size_that_the_network_does_not_take_fails_alone_and_is_remembered(
    real: Any, name: str
) -> None:
    model = PINNED[name]
    unfit, good = request_of(model, UNFIT[name]), request_of(model, model.sizes[0])
    with pytest.raises(InferenceServerException, match="the model failed on this request"):
        ask(real, "http", name, unfit)
    with pytest.raises(InferenceServerException, match="the model cannot run"):
        ask(real, "grpc", name, unfit)
    for protocol in CLIENTS:
        assert ask(real, protocol, name, good).get_response() is not None


@pytest.mark.parametrize("protocol", CLIENTS)
@pytest.mark.parametrize(("rate", "samples"), [(16_000, 576), (8_000, 288)])
def test_state_goes_back_and_forth_with_a_scalar_beside_it(
    real: Any, protocol: str, rate: int, samples: int
) -> None:
    """A voice detector: what it remembers is an output, and an input of the next request."""
    model, rng = PINNED["vad"], np.random.default_rng(3)
    state, wanted = np.zeros((2, 1, 128), np.float32), np.zeros((2, 1, 128), np.float32)
    for _ in range(4):
        sound = rng.standard_normal((1, samples), dtype=np.float32)
        given = {"input": sound, "sr": np.array(rate, np.int64)}
        answer = ask(real, protocol, "vad", {**given, "state": state})
        values = expected(model, {**given, "state": wanted})
        np.testing.assert_allclose(answer.as_numpy("output"), values["output"], atol=1e-4)
        state, wanted = answer.as_numpy("stateN"), values["stateN"]
    np.testing.assert_allclose(state, wanted, atol=1e-3)
    assert np.abs(state).max() > 0.0


def test_the_stride_of_a_recogniser_is_found_and_lines_share_a_batch() -> None:
    """It has (width + 3) // 8 positions. Its attention sees the padding, which the note says."""
    model = PINNED["recogniser"]
    padding = Padding({"x": PaddedInput(3)}, {})
    source = ModelSource(
        "r", "1", model.file(), model.file().parent, padding=padding,
        warmup_shapes={"x": (3, 48, 320)},
    )  # fmt: skip
    session = ModelSession.open(source, threads=1)
    session.warm_up()
    assert session.note.startswith("padding changes answers")
    lines = [model.inputs((48, width), np.random.default_rng(width))["x"] for width in (321, 100)]
    refs, at = [], 0
    for line in lines:
        refs.append(Payload(1, (TensorRef(at, line.nbytes, line.shape),)))
        at += line.nbytes
    arena = memoryview(b"".join(line.tobytes() for line in lines))
    result = session.run(refs, arena)
    lengths = result.inputs.lengths
    assert lengths is not None
    (spec,) = session.interface.outputs
    (array,) = result.arrays
    _, parts = lay_out_rows(array, spec, [1, 1], True, lengths)
    alone = [expected(model, {"x": line})[spec.name] for line in lines]
    assert [part.shape for part in parts] == [array.shape for array in alone]


def test_a_bare_folder_serves_or_says_which_key_is_missing(
    bare: Path, zoo_at: Any, serve: Any
) -> None:
    with serve(zoo_at(bare)) as house:
        for name, entry in house.index().items():
            if entry["state"] != "READY":
                assert PINNED[name].key in entry["reason"]
                continue
            for size in PINNED[name].sizes:
                inputs = request_of(PINNED[name], size)
                answer = ask(house, "http", name, inputs)
                for output, values in expected(PINNED[name], inputs).items():
                    result = answer.as_numpy(output)
                    np.testing.assert_allclose(result, values, rtol=1e-3, atol=1e-5)


def checked(root: Path) -> dict[str, str]:
    """What `models check` finds, by model."""
    command = [sys.executable, "-m", "slacktide", "models", "check", str(root), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    findings: dict[str, str] = {}
    for finding in json.loads(done.stdout):
        model = finding["model"]
        findings[model] = findings.get(model, "") + finding["message"]
    return findings


def test_check_names_the_key_of_every_model_that_leaves_sizes_free(
    bare: Path, tmp_path: Path
) -> None:
    findings = checked(bare)
    assert findings.keys() == PINNED.keys() - {"magika"}
    for name, message in findings.items():
        assert PINNED[name].key in message
    assert "inputs.sr.value" in findings["vad"]
    stated = checked(lay_out(PINNED.values(), tmp_path, stated=True))
    assert not any(PINNED[name].key in message for name, message in stated.items())
