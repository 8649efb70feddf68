"""Tiny ONNX models, written as folders of a repository."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) / 7

value = helper.make_tensor_value_info


class Zoo:
    """Writes model folders of a repository; each method is one model."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def save(
        self,
        name: str,
        nodes: Sequence[Any],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        weights: Sequence[Any] = (),
        *,
        version: str = "1",
        settings: str = "",
        file: str = "model.onnx",
    ) -> Path:
        graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        path = self.root / name / version / file
        path.parent.mkdir(parents=True, exist_ok=True)
        # In one step: a replica that starts now opens the model that was, or this one.
        written = path.with_suffix(".tmp")
        onnx.save(model, str(written))
        written.replace(path)
        if settings:
            (self.root / name / "slacktide.yaml").write_text(settings)
        return path

    def matmul(
        self, name: str = "matmul", *, scale: float = 1.0, version: str = "1", settings: str = ""
    ) -> Path:
        """y = scale · x W; [rows, 4] → [rows, 3]."""
        return self.save(
            name,
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            [value("x", TensorProto.FLOAT, ["n", 4])],
            [value("y", TensorProto.FLOAT, ["n", 3])],
            [numpy_helper.from_array(WEIGHT * np.float32(scale), "w")],
            version=version,
            settings=settings,
        )

    def double(self, name: str = "double", *, settings: str = "") -> Path:
        """y = 2 x; [rows, 3]."""
        return self.save(
            name,
            [helper.make_node("Add", ["x", "x"], ["y"])],
            [value("x", TensorProto.FLOAT, ["n", 3])],
            [value("y", TensorProto.FLOAT, ["n", 3])],
            settings=settings,
        )

    def heavy(self) -> Path:
        """`matmul` with two megabytes of weights on top."""
        return self.save(
            "heavy",
            [
                helper.make_node("MatMul", ["x", "w"], ["p"]),
                helper.make_node("ReduceMin", ["ballast"], ["zero"], keepdims=0),
                helper.make_node("Add", ["p", "zero"], ["y"]),
            ],
            [value("x", TensorProto.FLOAT, ["n", 4])],
            [value("y", TensorProto.FLOAT, ["n", 3])],
            [
                numpy_helper.from_array(WEIGHT, "w"),
                numpy_helper.from_array(np.zeros(1 << 19, np.float32), "ballast"),
            ],
        )

    def text(self) -> Path:
        """y = x, strings; [rows, 1]."""
        return self.save(
            "text",
            [helper.make_node("Identity", ["x"], ["y"])],
            [value("x", TensorProto.STRING, ["n", 1])],
            [value("y", TensorProto.STRING, ["n", 1])],
        )

    def kept(self) -> Path:
        """Words and numbers that `keep` names, of any number."""
        words, numbers = TensorProto.STRING, TensorProto.FLOAT
        return self.save(
            "kept",
            [
                helper.make_node("Compress", ["word", "keep"], ["words"], axis=0),
                helper.make_node("Compress", ["number", "keep"], ["numbers"], axis=0),
            ],
            [
                value("word", words, ["n"]),
                value("number", numbers, ["n"]),
                value("keep", TensorProto.BOOL, ["n"]),
            ],
            [value("words", words, ["k"]), value("numbers", numbers, ["k"])],
            settings="max_batch: 0\n",
        )

    def total(self) -> Path:
        """A scalar from a vector of any length: no batch axis."""
        return self.save(
            "total",
            [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
            [value("x", TensorProto.FLOAT, ["length"])],
            [value("y", TensorProto.FLOAT, [])],
        )

    def pair(self) -> Path:
        """Two inputs, two outputs: sum and difference; [rows, 2]."""
        return self.save(
            "pair",
            [
                helper.make_node("Add", ["a", "b"], ["sum"]),
                helper.make_node("Sub", ["a", "b"], ["difference"]),
            ],
            [value("a", TensorProto.FLOAT, ["n", 2]), value("b", TensorProto.FLOAT, ["n", 2])],
            [
                value("sum", TensorProto.FLOAT, ["n", 2]),
                value("difference", TensorProto.FLOAT, ["n", 2]),
            ],
        )

    def gather(self) -> Path:
        """Rows of a table of four; an index out of range raises."""
        return self.save(
            "gather",
            [helper.make_node("Gather", ["w", "i"], ["y"])],
            [value("i", TensorProto.INT64, ["n"])],
            [value("y", TensorProto.FLOAT, ["n", 3])],
            [numpy_helper.from_array(WEIGHT, "w")],
        )

    def spin(self, name: str = "spin", *, settings: str = "") -> Path:
        """y = max(x, 0) after max(times) turns of a loop that does nothing more: takes as long as
        its request says, and what a row gets does not depend on the turns of another."""
        return self.save(
            name,
            [
                helper.make_node("ReduceMax", ["times"], ["turns"], keepdims=0),
                helper.make_node("Relu", ["x"], ["positive"]),
                helper.make_node("Loop", ["turns", "", "positive"], ["y"], body=_turn()),
            ],
            [value("x", TensorProto.FLOAT, ["n", 2]), value("times", TensorProto.INT64, ["n"])],
            [value("y", TensorProto.FLOAT, ["n", 2])],
            settings=settings,
        )

    def slow(
        self, name: str = "slow", *, turns: int = 6000, settings: str = "", file: str = "model.onnx"
    ) -> Path:
        """y = x after so many turns: always as slow, so that its profile knows it."""
        return self.save(
            name,
            [helper.make_node("Loop", ["turns", "", "x"], ["y"], body=_turn())],
            [value("x", TensorProto.FLOAT, ["n", 2])],
            [value("y", TensorProto.FLOAT, ["n", 2])],
            [numpy_helper.from_array(np.int64(turns), "turns")],
            settings=settings,
            file=file,
        )

    def stare(self, name: str = "stare", *, turns: int = 6000, settings: str = "") -> Path:
        """`slow` for images: y = the means of two colours."""
        return self.save(
            name,
            [
                helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
                helper.make_node("ReduceMean", ["pixels"], ["means"], axes=[1, 2], keepdims=0),
                helper.make_node("Gather", ["means", "two"], ["x"], axis=1),
                helper.make_node("Loop", ["turns", "", "x"], ["y"], body=_turn()),
            ],
            [value("image", TensorProto.UINT8, ["n", 64, 64, 3])],
            [value("y", TensorProto.FLOAT, ["n", 2])],
            [
                numpy_helper.from_array(np.int64(turns), "turns"),
                numpy_helper.from_array(np.array([0, 1]), "two"),
            ],
            settings=settings,
        )

    def filter(self, name: str = "filter", *, settings: str = "") -> Path:
        """Two convolutions along a free axis: takes the longer, the longer its request is. A row of
        a length that is 3 more than a multiple of 4 does not fit."""
        generator = np.random.default_rng(0)
        first, second = (
            generator.normal(size=shape).astype(np.float32) for shape in ((32, 1, 9), (1, 32, 9))
        )
        return self.save(
            name,
            [
                helper.make_node("Conv", ["x", "first"], ["a"], pads=[4, 4]),
                helper.make_node("Conv", ["a", "second"], ["b"], pads=[4, 4]),
                helper.make_node("Shape", ["x"], ["length"], start=2),
                helper.make_node("Mod", ["length", "four"], ["rest"]),
                helper.make_node("Gather", ["three", "rest"], ["zero"]),
                helper.make_node("Add", ["b", "zero"], ["y"]),
            ],
            [value("x", TensorProto.FLOAT, ["n", 1, "length"])],
            [value("y", TensorProto.FLOAT, ["n", 1, "length"])],
            [
                numpy_helper.from_array(first, "first"),
                numpy_helper.from_array(second, "second"),
                numpy_helper.from_array(np.array([4]), "four"),
                numpy_helper.from_array(np.zeros(3, np.float32), "three"),
            ],
            settings=settings,
        )

    def floats(self, name: str = "floats", *, settings: str = "") -> Path:
        """Mean of pictures as networks take them, FP32 [rows, 3, 24, 24]."""
        return self.save(
            name,
            [helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2, 3], keepdims=0)],
            [value("x", TensorProto.FLOAT, ["n", 3, 24, 24])],
            [value("mean", TensorProto.FLOAT, ["n"])],
            settings=settings,
        )

    def sight(
        self,
        name: str = "sight",
        *,
        file: str = "model.onnx",
        size: int | str = "size",
        shift: float = 0.0,
        settings: str = "",
    ) -> Path:
        """Of an image, its mean colour plus `shift` and the height at which it was run: two
        outputs [rows]. Its size is free unless `size` is a number."""
        return self.save(
            name,
            [
                helper.make_node("Cast", ["image"], ["x"], to=TensorProto.FLOAT),
                helper.make_node("ReduceMean", ["x"], ["m"], axes=[1, 2, 3], keepdims=0),
                helper.make_node("Add", ["m", "shift"], ["mean"]),
                helper.make_node("Shape", ["image"], ["h"], start=1, end=2),
                helper.make_node("Cast", ["h"], ["high"], to=TensorProto.FLOAT),
                helper.make_node("Mul", ["m", "zero"], ["z"]),
                helper.make_node("Add", ["z", "high"], ["side"]),
            ],
            [value("image", TensorProto.UINT8, ["n", size, size, 3])],
            [value("mean", TensorProto.FLOAT, ["n"]), value("side", TensorProto.FLOAT, ["n"])],
            [
                numpy_helper.from_array(np.float32(shift), "shift"),
                numpy_helper.from_array(np.float32(0.0), "zero"),
            ],
            file=file,
            settings=settings,
        )

    def greedy(self, name: str = "greedy", *, settings: str = "") -> Path:
        """A tensor as long as its request says: asks for more memory than there is."""
        fill = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.0])
        return self.save(
            name,
            [
                helper.make_node("Add", ["size", "one"], ["more"]),  # warm-up may ask for nothing
                helper.make_node("ConstantOfShape", ["more"], ["much"], value=fill),
                helper.make_node("ReduceMax", ["much"], ["y"], keepdims=0),
            ],
            [value("size", TensorProto.INT64, [1])],
            [value("y", TensorProto.FLOAT, [])],
            [numpy_helper.from_array(np.ones(1, np.int64), "one")],
            settings=settings,
        )

    def hostile(self) -> dict[str, str]:
        """Models that cannot be served, each in its way; by name, a word of why."""
        row = [value("x", TensorProto.FLOAT, ["n", 4])]
        self.matmul("far", settings='slo: "\\UFFFFFFFF"\n')
        self.matmul("deep", settings="a: " + "[" * 20_000)
        self.matmul("endless", settings="share: " + "9" * 5000 + "\n")
        self.matmul("sixty", settings="share: " + "1:" * 2000 + "1.5\n")
        self.matmul("crowd", settings="cores: 100000\n")
        self.matmul("elsewhere", settings="device: cuda:999\n")
        self.matmul("wide", settings="inputs: {x: {shape: [2147483648]}}\n")
        for name, axis in (("vast", 2**40), ("empty", 0)):
            ends = [value(end, TensorProto.FLOAT, ["n", axis]) for end in ("x", "y")]
            self.save(name, [helper.make_node("Identity", ["x"], ["y"])], ends[:1], ends[1:])
        sizes = numpy_helper.from_array(np.array([25_000_000_000]), "s")
        filled = [
            helper.make_node("ConstantOfShape", ["s"], ["all"]),
            helper.make_node("ReduceMax", ["all"], ["most"], keepdims=0),
            helper.make_node("Add", ["x", "most"], ["y"]),
        ]
        self.save("heap", filled, row, [value("y", TensorProto.FLOAT, ["n", 4])], [sizes])
        outside = self.matmul("outside")
        model = onnx.load(outside)
        (weight,) = model.graph.initializer
        (outside.parent / "w.bin").write_bytes(weight.raw_data)
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, stated in {"location": "w.bin", "offset": "-64", "length": "48"}.items():
            weight.external_data.add(key=key, value=stated)
        outside.write_bytes(model.SerializeToString())
        ahead = self.matmul("ahead")
        model = onnx.load(ahead)
        model.opset_import[0].version = 999
        ahead.write_bytes(model.SerializeToString())
        return {
            "ahead": "pset",
            "far": "far/slacktide.yaml: line 1: expected a valid character",
            "deep": "deep/slacktide.yaml: nested too deeply",
            "endless": "endless/slacktide.yaml: ",
            "sixty": "sixty/slacktide.yaml: ",
            "crowd": "needs 100000 cores",
            "elsewhere": "is requested, but",
            "wide": "[2147483648]",
            "vast": "input 'x': a row of shape [1099511627776] takes 4398046511104 bytes",
            "empty": "input 'x': a row of shape [0] is empty",
            "heap": "out of memory",
            "outside": "external data",
        }

    def divide(self, name: str = "divide", *, settings: str = "") -> Path:
        """y = −2^63 ÷ (d + 1), whole numbers. The quotient by −1 is none, and the processor ends
        a process that asks for it (ONNX Runtime only looks out for 0)."""
        return self.save(
            name,
            [
                helper.make_node("Add", ["d", "one"], ["by"]),  # warm-up divides by 1
                helper.make_node("Div", ["least", "by"], ["y"]),
            ],
            [value("d", TensorProto.INT64, ["n", 2])],
            [value("y", TensorProto.INT64, ["n", 2])],
            [
                numpy_helper.from_array(np.ones(1, np.int64), "one"),
                numpy_helper.from_array(np.array([-(2**63)], np.int64), "least"),
            ],
            settings=settings,
        )

    def broken(self, name: str = "broken", *, version: str = "1") -> Path:
        """A file that is no model."""
        path = self.root / name / version / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"this is no model")
        return path


def _turn() -> Any:
    """One turn of a loop that carries s along."""
    return helper.make_graph(
        [
            *[
                helper.make_node("Relu", [f"s{i}" if i else "s_in"], [f"s{i + 1}"])
                for i in range(12)
            ],
            helper.make_node("Identity", ["s12"], ["s_out"]),
            helper.make_node("Identity", ["c_in"], ["c_out"]),
        ],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("c_in", TensorProto.BOOL, []),
            value("s_in", TensorProto.FLOAT, ["n", 2]),
        ],
        [value("c_out", TensorProto.BOOL, []), value("s_out", TensorProto.FLOAT, ["n", 2])],
    )
