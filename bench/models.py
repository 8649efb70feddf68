"""Models and bodies that every benchmarked server gets, and onnxruntime alone beside them.

Repositories and bodies lie under .cache/bench and are made once. A *raw body* is what servers
without a protocol of their own are sent: the input tensors of one row behind one another, nothing
else; free axes are found from its length (bench/peers/raw_model.py reads them).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from bench.machine import CACHE, ROOT, cores, pinned
from slacktide.domain.tensors import Datatype
from slacktide.lab.examples import make_inputs, make_repository
from slacktide.profiles import LatencyTable

Tensors = Mapping[str, NDArray[Any]]
"""One request of one row, by input name."""

WIRE_SEED = 11
"""Of the inputs that are sent; weights and samples have seeds of their own."""
HOP_FLOATS = 150_000 // 4
_DATATYPES = {
    datatype.dtype: datatype
    for datatype in Datatype
    if datatype not in (Datatype.BF16, Datatype.BYTES)
}


def example_repository() -> Path:
    """The four example models, as `slacktide models make` writes them."""
    root = CACHE / "models"
    make_repository(root)
    return root


def model_file(name: str) -> Path:
    """The ONNX file of an example model, or of `deep`."""
    if name == DEEP:
        return variant_repository("deep", {DEEP: (deep_model(), "")}) / DEEP / "1" / "model.onnx"
    return example_repository() / name / "1" / "model.onnx"


DEEP = "deep"
"""The weight-bound network with its middle layer `DEEP_LAYERS` times: as weight-bound, but slow, so
that what serving costs and how finely a loop keeps time matter little."""
DEEP_LAYERS = 16


def deep_model() -> bytes:
    """`dense` with one layer in a row `DEEP_LAYERS` times; nodes share its weights in the file."""
    import onnx
    from onnx import helper

    model = onnx.load(model_file("dense"))
    nodes = list(model.graph.node)
    at = next(i for i, node in enumerate(nodes) if "weight2" in node.input)
    values = "values1"
    chain = []
    for number in range(DEEP_LAYERS):
        sums = f"deep_sums{number}"
        chain.append(helper.make_node("Gemm", [values, "weight1", "bias1"], [sums]))
        values = f"deep_values{number}"
        chain.append(helper.make_node("Relu", [sums], [values]))
    nodes[at].input[0] = values
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:at], *chain, *nodes[at:]])
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


TEXT_TOKENS = 44
"""Length of every text sent: what its profile is measured at. Times that vary with the input are
the subject of `variable_length`."""


def requests(name: str, count: int) -> tuple[Tensors, ...]:
    """Inputs of an example model or `deep`, the same on every call; texts all of one length."""
    rows = make_inputs("dense" if name == DEEP else name, count, WIRE_SEED).requests
    if name != "text":
        return rows
    return tuple({key: _cut(tensor) for key, tensor in request.items()} for request in rows)


def _cut(tokens: np.ndarray) -> np.ndarray:
    """(1, n) tokens repeated or cut to (1, TEXT_TOKENS)."""
    return np.resize(tokens, (*tokens.shape[:-1], TEXT_TOKENS))


def raw_body(tensors: Tensors) -> bytes:
    """The tensors behind one another, in the order of the model's inputs."""
    return b"".join(np.ascontiguousarray(tensor).tobytes() for tensor in tensors.values())


@dataclass(frozen=True, slots=True)
class Body:
    """An HTTP body and the headers that belong to it."""

    content: bytes
    headers: Mapping[str, str]


def oip_body(tensors: Tensors) -> Body:
    """An Open Inference Protocol request with binary tensors, both ways."""
    header = orjson.dumps(
        {
            "inputs": [
                {
                    "name": name,
                    "shape": tensor.shape,
                    "datatype": _DATATYPES[tensor.dtype].wire_name,
                    "parameters": {"binary_data_size": tensor.nbytes},
                }
                for name, tensor in tensors.items()
            ],
            "parameters": {"binary_data_output": True},
        }
    )
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(header)),
    }
    return Body(header + raw_body(tensors), headers)


def json_body(tensors: Tensors) -> Body:
    """The same request in plain JSON: for servers that read no binary tensors over HTTP."""
    inputs = [
        {
            "name": name,
            "shape": tensor.shape,
            "datatype": _DATATYPES[tensor.dtype].wire_name,
            "data": tensor.ravel().tolist(),
        }
        for name, tensor in tensors.items()
    ]
    return Body(orjson.dumps({"inputs": inputs}), {"Content-Type": "application/json"})


def grpc_message(model: str, tensors: Tensors) -> bytes:
    """A serialized ModelInferRequest with raw contents."""
    from slacktide.wire.calls import InferCall, InputTensor
    from slacktide.wire.grpc_messages import encode_call

    inputs = [
        InputTensor(name, _DATATYPES[tensor.dtype], tensor.shape, tensor.tobytes())
        for name, tensor in tensors.items()
    ]
    return encode_call(InferCall(model, None, "", inputs))


def npz_files(name: str, inputs: Sequence[Tensors]) -> tuple[Path, ...]:
    """`inputs`, each in a file of its own below `name`, for the load generator."""
    folder = CACHE / "inputs" / name
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, tensors in enumerate(inputs):
        path = folder / f"{number}.npz"
        np.savez(path, allow_pickle=False, **tensors)  # anew: what is sent may have changed
        paths.append(path)
    return tuple(paths)


def variant_repository(name: str, models: Mapping[str, tuple[bytes, str]]) -> Path:
    """A repository of models given as (ONNX file, slacktide.yaml), by name."""
    root = CACHE / name
    for model, (content, settings) in models.items():
        folder = root / model
        (folder / "1").mkdir(parents=True, exist_ok=True)
        for path, text in (
            (folder / "1" / "model.onnx", content),
            (folder / "slacktide.yaml", settings.encode()),
        ):
            if not path.exists() or path.read_bytes() != text:
                path.write_bytes(text)
    return root


def hop_model(floats: int = HOP_FLOATS, answered: int = 10, *, strings: bool = False) -> bytes:
    """A model that does next to nothing: what is left is the way. It takes so many floats (150 KB)
    and answers with those at the beginning, or with one of them `answered` times. Or so many
    `strings`."""
    import onnx
    from onnx import TensorProto, helper

    if answered > floats:
        numbers, node = {"rows": [1, answered]}, "Expand"
    else:
        numbers, node = {"start": [0], "stop": [answered], "axis": [1]}, "Slice"
    constants = [
        helper.make_tensor(name, TensorProto.INT64, [len(value)], value)
        for name, value in numbers.items()
    ]
    kind = TensorProto.STRING if strings else TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(node, ["values", *numbers], ["first"])],
        "hop",
        [helper.make_tensor_value_info("values", kind, ["batch", floats])],
        [helper.make_tensor_value_info("first", kind, ["batch", answered])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


@dataclass(frozen=True, slots=True)
class BareTimes:
    """What onnxruntime alone takes, by batch size: seconds of single runs, CPU and wall."""

    samples: Mapping[int, tuple[float, ...]]

    @property
    def alone(self) -> float:
        """Median seconds of a batch of one row."""
        return float(np.median(self.samples[1]))

    @property
    def capacity(self) -> float:
        """Rows/s of a closed loop at batch 1."""
        return len(self.samples[1]) / sum(self.samples[1])

    def median(self, rows: int) -> float:
        return float(np.median(self.samples[rows]))

    def table(self) -> LatencyTable:
        """As a profile."""
        return LatencyTable.from_samples({(n, 1): times for n, times in self.samples.items()})


def measure_bare(name: str, sizes: Sequence[int], seconds: float) -> BareTimes:
    """Run an example model in onnxruntime alone, on the servers' core, for about `seconds`.

    Sizes take turns, so that a machine that slows down slows all of them.
    """
    arguments = [name, str(seconds), *map(str, sizes)]
    command = pinned(cores().server, [sys.executable, "-m", "bench.models", *arguments])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    return BareTimes({int(size): tuple(times) for size, times in document.items()})


def _bare_loop(name: str, seconds: float, sizes: Sequence[int]) -> dict[int, list[float]]:
    import time

    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        str(model_file(name)), options, providers=["CPUExecutionProvider"]
    )
    from slacktide.lab.examples import Samples

    inputs = Samples(requests(name, 64), None)
    # Each run takes the next samples, not always the first.
    variety = {
        size: [inputs.batch(first, first + size) for first in range(0, 65 - size, size)]
        for size in sizes
    }
    outputs = [output.name for output in session.get_outputs()]
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for size in sizes:
        session.run(outputs, variety[size][0])
    begin = time.perf_counter()
    turn = 0
    while time.perf_counter() - begin < seconds or turn < 3:
        for size in sizes:
            # Small batches more often: their times are needed most precisely.
            for repeat in range(max(1, 8 // size)):
                feeds = variety[size][(turn + repeat) % len(variety[size])]
                start = time.perf_counter()
                session.run(outputs, feeds)
                times[size].append(time.perf_counter() - start)
        turn += 1
    return times


if __name__ == "__main__":
    print(json.dumps(_bare_loop(sys.argv[1], float(sys.argv[2]), list(map(int, sys.argv[3:])))))


def fragile() -> bytes:
    """y = −2^63 ÷ (d + 1), whole numbers, [rows, 2]: d = −2 asks for a quotient that there is not,
    and the processor ends the process."""
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [
            helper.make_node("Add", ["d", "one"], ["by"]),
            helper.make_node("Div", ["least", "by"], ["y"]),
        ],
        "fragile",
        [helper.make_tensor_value_info("d", TensorProto.INT64, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, ["n", 2])],
        [
            numpy_helper.from_array(np.ones(1, np.int64), "one"),
            numpy_helper.from_array(np.array([-(2**63)], np.int64), "least"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content
