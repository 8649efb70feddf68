"""What is tried where a model leaves axes free: conventions, by really running a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.onnx_file import OnnxFile
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.row_candidates import candidate_rows
from slacktide.executors.session import ModelSession
from slacktide.executors.synthetic_inputs import row_bytes

Shapes = list[dict[str, tuple[int, ...]]]


def tried(max_batch: int, sizes: Any = (), names: Any = None, **inputs: tuple[int, ...]) -> Shapes:
    specs = tuple(TensorSpec(name, Datatype.FP32, shape) for name, shape in inputs.items())
    interface = ModelInterface(specs, (), max_batch)
    axes = {spec.name: interface.row_axes(spec) for spec in specs}
    names = names or {name: [None] * len(shape) for name, shape in axes.items()}
    return candidate_rows(interface, axes, names, sizes)


def test_nothing_is_tried_where_nothing_is_free() -> None:
    assert tried(8, x=(-1, 3, 224, 224)) == []


def test_images_are_tried_by_common_sizes() -> None:
    squares = [(224, 224), (320, 320), (640, 640), (48, 320), (32, 320), (1, 1)]
    assert tried(8, x=(-1, 3, -1, -1)) == [{"x": (3, h, w)} for h, w in squares]
    assert tried(8, x=(-1, -1, -1, 1)) == [{"x": (h, w, 1)} for h, w in squares]
    assert tried(0, x=(1, 4, -1, -1)) == [{"x": (1, 4, h, w)} for h, w in squares]
    free = [{"x": (3, h, w)} for h, w in squares[:-1]] + [{"x": (1, 1, 1)}]
    assert tried(8, x=(-1, -1, -1, -1)) == free


def test_sizes_named_by_the_file_come_first_and_a_fixed_height_is_a_line() -> None:
    candidates = tried(8, [(416, 416)], x=(-1, 3, -1, -1))
    assert candidates[:2] == [{"x": (3, 416, 416)}, {"x": (3, 224, 224)}]
    widths = [candidate["x"][2] for candidate in tried(8, x=(-1, 3, 48, -1))]
    assert widths == [320, 224, 640, 1]
    assert tried(8, x=(-1, 3, 512, -1))[0] == {"x": (3, 512, 512)}


def test_other_free_axes_are_sequences_and_those_of_one_name_are_one() -> None:
    assert tried(8, ids=(-1, -1), mask=(-1, -1)) == [
        {"ids": (128,), "mask": (128,)},
        {"ids": (128,), "mask": (1,)},
        {"ids": (1,), "mask": (128,)},
        {"ids": (512,), "mask": (512,)},
        {"ids": (512,), "mask": (1,)},
        {"ids": (1,), "mask": (512,)},
        {"ids": (1,), "mask": (1,)},
    ]
    names = {"ids": ["length"], "mask": ["length"]}
    assert tried(8, names=names, ids=(-1, -1), mask=(-1, -1)) == [
        {"ids": (128,), "mask": (128,)},
        {"ids": (512,), "mask": (512,)},
        {"ids": (1,), "mask": (1,)},
    ]


def test_rows_of_a_model_without_a_batch_axis_are_one() -> None:
    candidates = tried(0, input=(-1, -1), state=(2, -1, 128), sr=())
    assert candidates[:2] == [
        {"input": (1, 128), "state": (2, 128, 128), "sr": ()},
        {"input": (1, 128), "state": (2, 1, 128), "sr": ()},
    ]
    names = {"input": ["Batch", "rows"], "state": [None, "batch", None]}
    candidates = tried(0, names=names, input=(-1, -1), state=(2, -1, 128))
    assert candidates == [{"input": (1, 1), "state": (2, 1, 128)}]


axes = st.lists(st.sampled_from((-1, -1, 1, 3, 4, 48, 224)), max_size=5).map(tuple)


@given(st.lists(axes, min_size=1, max_size=12), st.sampled_from((0, 8)))
def test_any_interface_has_few_small_candidates_that_fit(
    shapes: list[tuple[int, ...]], max_batch: int
) -> None:
    shapes = [(-1, *shape) for shape in shapes] if max_batch else shapes
    candidates = tried(max_batch, **{f"x{number}": shape for number, shape in enumerate(shapes)})
    assert len(candidates) <= 32
    assert (candidates == []) == all(-1 not in shape[bool(max_batch) :] for shape in shapes)
    for row in candidates:
        for number, shape in enumerate(shapes):
            own = shape[bool(max_batch) :]
            shape_tried = row[f"x{number}"]
            assert len(shape_tried) == len(own)
            assert all(
                n == size or (n < 0 < size) for n, size in zip(own, shape_tried, strict=True)
            )
    for row in candidates[:-1]:
        spec = TensorSpec("x", Datatype.FP32, ())
        assert sum(row_bytes(spec, shape) for shape in row.values()) <= 64 << 20


# In a session


def opened(source: Any) -> ModelSession:
    session = ModelSession.open(source, threads=1)
    session.warm_up()
    return session


def refusal(source: Any) -> str:
    with pytest.raises(ModelError) as failure:
        opened(source)
    return str(failure.value)


def joined(models: Any, kit: Any, *, batch: int | str = "n") -> Any:
    """Halves an image and concatenates it with a quarter of it, enlarged: multiples of 4 only."""
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    return kit.save(
        models.path("joined"),
        [
            helper.make_node("MaxPool", ["x"], ["half"], **pool),
            helper.make_node("MaxPool", ["half"], ["quarter"], **pool),
            helper.make_node("Resize", ["quarter", "", "scales"], ["again"]),
            helper.make_node("Concat", ["half", "again"], ["y"], axis=1),
        ],
        [kit.value("x", TensorProto.FLOAT, [batch, 3, None, None])],
        [kit.value("y", TensorProto.FLOAT, [batch, 6, None, None])],
        [numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")],
    )


def test_the_first_row_that_runs_is_the_one(models: Any, kit: Any) -> None:
    session = opened(kit.source(joined(models, kit), max_batch=2))
    assert (session.row_shapes, session.cold) == ({"x": (3, 224, 224)}, "")
    stated = opened(kit.source(joined(models, kit), warmup_shapes={"x": (3, 8, 4)}, max_batch=2))
    assert stated.row_shapes == {"x": (3, 8, 4)}
    fixed = opened(kit.source(joined(models, kit, batch=1)))
    assert fixed.row_shapes == {"x": (1, 3, 224, 224)}
    assert not fixed.interface.batches


def test_where_none_runs_the_model_is_cold_and_says_why(models: Any, kit: Any) -> None:
    source = kit.source(joined(models, kit), warmup_shapes={"x": (3, 6, 6)})
    session = opened(source)
    assert session.row_shapes == {"x": (3, 6, 6)}
    assert "Concat" in session.cold
    assert session.interface.max_batch == 32


def test_the_model_runs_its_own_samples_or_is_refused(models: Any, kit: Any, tmp_path: Any) -> None:
    samples = tmp_path / "rows.npz"
    np.savez(samples, x=np.ones((2, 3, 8, 8), np.float32))
    session = opened(kit.source(joined(models, kit), samples=samples))
    assert (session.row_shapes, session.cold) == ({"x": (3, 8, 8)}, "")
    np.savez(samples, x=np.ones((2, 3, 6, 6), np.float32))
    message = refusal(kit.source(joined(models, kit), samples=samples))
    assert message.startswith("samples: a row fails: ")
    np.savez(samples, x=np.ones((2, 3, 6, 6)))
    message = refusal(kit.source(joined(models, kit), samples=samples))
    assert message == "samples: array 'x' of rows.npz: expected float32, got float64"


def test_a_batch_of_inputs_above_the_bound_is_no_batch(
    models: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slacktide.executors.model_runner.MOST_ROW_BYTES", 1000)
    path = models.identity(TensorProto.UINT8, ("length",))
    session = opened(kit.source(path, warmup_shapes={"x": (400,)}))
    assert session.interface.max_batch == 2
    assert session.cold == ""


def test_sizes_that_a_file_names(models: Any, kit: Any) -> None:
    sizes = numpy_helper.from_array(np.array([1, 3, 96, 160]), "sizes")
    path = kit.save(
        models.path("resized"),
        [
            helper.make_node("Resize", ["x", "", "", "sizes"], ["a"]),
            helper.make_node("Constant", [], ["more"], value=sizes),
            helper.make_node("Resize", ["a", "", "", "more"], ["y"]),
        ],
        [kit.value("x", TensorProto.FLOAT, [1, 3, None, None])],
        [kit.value("y", TensorProto.FLOAT, [1, 3, None, None])],
        [sizes],
    )
    file = OnnxFile(path, path.parent)
    assert file.image_sizes() == [(96, 160)]
    for text, sizes_named in (("[320, 416]", [(320, 416), (96, 160)]), ("[32000, 1]", [(96, 160)])):
        entry = file._model.metadata_props.add()
        entry.key, entry.value = "imgsz", text
        assert file.image_sizes() == sizes_named
        file._model.metadata_props.pop()
    assert opened(kit.source(path)).row_shapes == {"x": (1, 3, 96, 160)}
