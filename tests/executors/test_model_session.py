"""Opening models: interfaces, batch axes, and files that must not be opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.executors.hand_over.arena import Slot
from slacktide.executors.model_runner import ModelRunner
from slacktide.executors.onnx_file import OnnxFile
from slacktide.executors.onnx_runtime import ModelError, ProviderMissingError
from slacktide.executors.ports import ModelSource
from slacktide.executors.session import ModelSession


def opened(source: ModelSource) -> ModelSession:
    session = ModelSession.open(source, threads=1)
    session.warm_up()
    return session


def refusal(source: ModelSource) -> str:
    """Why the model is refused; never with a path."""
    with pytest.raises(ModelError) as failure:
        opened(source)
    text = str(failure.value)
    assert str(source.path.parent) not in text
    assert "/1/" not in text
    return text


def test_the_batch_axis_is_read_off_the_model(models, kit) -> None:
    interface = opened(kit.source(models.matmul())).interface
    assert interface.inputs == (TensorSpec("x", Datatype.FP32, (-1, 4)),)
    assert interface.outputs == (TensorSpec("y", Datatype.FP32, (-1, 3)),)
    assert interface.max_batch == 32


def test_a_stated_limit_holds_and_zero_says_no_axis(models, kit) -> None:
    assert opened(kit.source(models.matmul(), max_batch=5)).interface.max_batch == 5
    assert opened(kit.source(models.matmul(), max_batch=0)).interface.max_batch == 0


def test_no_batch_axis(models, kit) -> None:
    path = models.total()
    interface = opened(kit.source(path)).interface
    assert (interface.max_batch, interface.outputs[0].shape) == (0, ())
    assert refusal(kit.source(path, max_batch=4)) == (
        "max_batch is 4, but the model has no batch axis: the first axis of 'y' is not free"
    )


def test_an_axis_that_only_looks_like_one_is_found_by_the_warm_up(models, kit) -> None:
    path = kit.save(
        models.path("folded"),
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [kit.value("x", TensorProto.FLOAT, ["n", 4])],
        [kit.value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([-1, 2]), "shape")],
    )
    interface = opened(kit.source(path)).interface
    assert interface.max_batch == 0
    assert "a batch of 1 fails: output 'y' does not have one row" in refusal(
        kit.source(path, max_batch=8)
    )


def test_a_model_that_cannot_do_the_stated_batch_is_refused(models, kit) -> None:
    # Reshaped to (1, 4) · (max(x) · 0 + 1): one row, which no shape inference can see.
    constants = {"zero": 0.0, "one": 1.0, "form": [1, 4]}
    path = kit.save(
        models.path("single"),
        [
            helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
            helper.make_node("Mul", ["m", "zero"], ["z"]),
            helper.make_node("Add", ["z", "one"], ["rows"]),
            helper.make_node("Cast", ["rows"], ["rows64"], to=TensorProto.INT64),
            helper.make_node("Mul", ["form", "rows64"], ["shape"]),
            helper.make_node("Reshape", ["x", "shape"], ["y"]),
        ],
        [kit.value("x", TensorProto.FLOAT, ["n", 4])],
        [kit.value("y", TensorProto.FLOAT, ["n", 4])],
        [
            numpy_helper.from_array(
                np.array(v, np.float32 if isinstance(v, float) else np.int64), name
            )
            for name, v in constants.items()
        ],
    )
    assert opened(kit.source(path)).interface.max_batch == 0
    assert "max_batch is 4, but a batch of 2 fails" in refusal(kit.source(path, max_batch=4))


def test_a_model_that_refuses_synthetic_inputs_is_served_all_the_same(models, kit) -> None:
    path = kit.save(
        models.path("picky"),
        [
            helper.make_node("Sub", ["i", "one"], ["j"]),
            helper.make_node("Gather", ["w", "j"], ["y"]),
        ],
        [kit.value("i", TensorProto.INT64, ["n"])],
        [kit.value("y", TensorProto.FLOAT, ["n", 3])],
        [
            numpy_helper.from_array(kit.WEIGHT, "w"),
            numpy_helper.from_array(np.array(100), "one"),
        ],
    )
    assert opened(kit.source(path)).interface.max_batch == 32


def test_warm_up_shapes_fill_free_axes(models, kit) -> None:
    path = models.identity(TensorProto.FLOAT, ("height", 3))
    assert opened(kit.source(path, warmup_shapes={"x": (7, 3)})).interface.max_batch == 32
    assert "expected a shape that fits [-1, 3], got [7]" in refusal(
        kit.source(path, warmup_shapes={"x": (7,)})
    )


@pytest.mark.parametrize(
    ("kind", "datatype"),
    [
        (TensorProto.BOOL, Datatype.BOOL),
        (TensorProto.UINT8, Datatype.UINT8),
        (TensorProto.UINT64, Datatype.UINT64),
        (TensorProto.INT16, Datatype.INT16),
        (TensorProto.FLOAT16, Datatype.FP16),
        (TensorProto.DOUBLE, Datatype.FP64),
        (TensorProto.BFLOAT16, Datatype.BF16),
    ],
)
def test_datatypes_pass_through(kind: int, datatype: Datatype, models, kit, arena) -> None:
    session = opened(kit.source(models.identity(kind)))
    assert session.interface.inputs[0].datatype is datatype
    single, two = (np.ones((n, 2), datatype.dtype) for n in (1, 2))
    result = session.run(
        [kit.put(arena, single), kit.put(arena, two)], arena.view(Slot(0, 1 << 16))
    )
    assert result.inputs.rows == [1, 2]
    assert result.arrays[0].dtype == datatype.dtype
    assert np.array_equal(result.arrays[0], np.ones((3, 2), datatype.dtype))


def test_types_that_cannot_be_served_are_named(models, kit) -> None:
    sequence = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    path = kit.save(
        models.path("sequence"),
        [helper.make_node("SequenceConstruct", ["x"], ["y"])],
        [kit.value("x", TensorProto.FLOAT, ["n"])],
        [sequence],
    )
    assert "output 'y' is a seq(tensor(float)), which cannot be served" in refusal(kit.source(path))


def zip_map(path: Path) -> Path:
    """What skl2onnx makes of a classifier: probabilities as a list of maps, one for each row."""
    float_map = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    graph = helper.make_graph(
        [helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_value_info("y", helper.make_sequence_type_proto(float_map))],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def test_a_classifier_of_scikit_learn_answers_its_scores_as_a_tensor(tmp_path: Path, kit) -> None:
    path = zip_map(tmp_path / "m" / "1" / "model.onnx")
    session = opened(kit.source(path))
    (output,) = session.interface.outputs
    assert (output.shape, session.interface.max_batch) == ((-1, 2), 32)
    assert OnnxFile(path, path.parent).interface(None) == session.interface


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x08\x09"])
def test_broken_files(content: bytes, tmp_path: Path, kit) -> None:
    path = tmp_path / "1" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(content)
    assert refusal(kit.source(path)).startswith("not an ONNX model")


def test_missing_files_folders_and_unknown_operators(models, tmp_path: Path, kit) -> None:
    assert refusal(kit.source(tmp_path / "model.onnx")) == "the model file is missing"
    assert "cannot be read" in refusal(kit.source(tmp_path, root=tmp_path.parent))
    path = kit.save(
        models.path("unknown"),
        [helper.make_node("NoSuchOperator", ["x"], ["y"])],
        [kit.value("x", TensorProto.FLOAT, ["n"])],
        [kit.value("y", TensorProto.FLOAT, ["n"])],
    )
    assert "NoSuchOperator" in refusal(kit.source(path))


def external(path: Path, location: str, *, nested: bool = False) -> Path:
    """A model whose weight lies in another file; `nested`: in an attribute of a subgraph."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 3])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    if nested:
        inner = helper.make_graph(
            [helper.make_node("Constant", [], ["z"], value=weight)],
            "inner",
            [],
            [helper.make_tensor_value_info("z", TensorProto.FLOAT, [4, 3])],
        )
        branch = helper.make_node("If", ["c"], ["w2"], then_branch=inner, else_branch=inner)
        graph = helper.make_graph([branch, node], "g", inputs, outputs)
    else:
        graph = helper.make_graph([node], "g", inputs, outputs, [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True)
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_inside_the_folder_is_fine(tmp_path: Path, kit, arena) -> None:
    path = external(tmp_path / "m" / "1" / "model.onnx", "weights/w.bin")
    (path.parent / "weights").mkdir()
    (path.parent / "weights" / "w.bin").write_bytes(kit.WEIGHT.tobytes())
    session = opened(kit.source(path))
    x = np.ones((2, 4), np.float32)
    result = session.run([kit.put(arena, x)], arena.view(Slot(0, 4096)))
    assert np.allclose(result.arrays[0], x @ kit.WEIGHT)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("way", ["dots", "absolute", "link", "linked folder"])
def test_external_data_may_not_leave_the_folder(
    way: str, nested: bool, tmp_path: Path, kit
) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(kit.WEIGHT.tobytes())
    places = {
        "dots": "../../secret.bin",
        "absolute": str(secret),
        "link": "w.bin",
        "linked folder": "weights/secret.bin",
    }
    path = external(tmp_path / "m" / "1" / "model.onnx", places[way], nested=nested)
    (path.parent / "w.bin").symlink_to(secret)
    (path.parent / "weights").symlink_to(tmp_path)
    reason = "is a link to another folder" if "link" in way else "is a link out of the folder"
    assert refusal(kit.source(path)) == f"the external data of tensor 'w' {reason}"


@pytest.mark.parametrize("place", [".ssh/key", ".w.bin", "sub/.w.bin"])
def test_external_data_may_not_be_hidden(place: str, tmp_path: Path, kit) -> None:
    """A model that is one file may lie in a home folder, among its owner's secrets."""
    path = external(tmp_path / "m" / "1" / "model.onnx", place)
    (path.parent / place).parent.mkdir(exist_ok=True)
    (path.parent / place).write_bytes(kit.WEIGHT.tobytes())
    assert refusal(kit.source(path)) == "the external data of tensor 'w' is a hidden file"


def test_external_data_that_is_missing_and_model_files_that_lead_out(tmp_path: Path, kit) -> None:
    path = external(tmp_path / "m" / "1" / "model.onnx", "w.bin")
    assert refusal(kit.source(path)) == "the external data of tensor 'w' is missing"
    for version, nowhere in (("2", "n" * 3000), ("3", "a\0b")):
        other = external(tmp_path / "m" / version / "model.onnx", nowhere)
        assert refusal(kit.source(other)) == "the external data of tensor 'w' is missing"
    os.mkfifo(path.parent / "w.bin")
    assert refusal(kit.source(path)) == "the external data of tensor 'w' is not a regular file"
    link = tmp_path / "n" / "1" / "model.onnx"
    link.parent.mkdir(parents=True)
    link.symlink_to(path)
    assert refusal(kit.source(link)) == "the model file is a link out of its folder"


def test_helpers_write_valid_models(models) -> None:
    for path in (models.matmul(), models.gather(), models.spin(), models.total()):
        onnx.checker.check_model(str(path))
    assert models.spin().is_file()


@pytest.mark.parametrize("device", ["cuda:0", "cuda:999"])
def test_a_missing_gpu_is_reported_with_the_line_that_asks_for_it(
    models, kit, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    source = kit.source(models.matmul(), device_origin="m/config.pbtxt, line 6, instance_group")
    with pytest.raises(ProviderMissingError) as missing:
        ModelSession.open(source, threads=1, device=device)
    assert "is requested, but" in str(missing.value)
    assert "(m/config.pbtxt, line 6, instance_group); choose the CPU there" in str(missing.value)


def test_a_model_and_its_data_behind_links_into_a_folder_of_blobs(models, kit) -> None:
    """Hugging Face's cache: ONNX Runtime looks for data beside the path that it opens."""
    path = models.matmul()
    expected = onnx.load(str(path)).SerializeToString()
    onnx.save(
        onnx.load(str(path)),
        str(path),
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=0,
    )
    blobs = path.parent.parent / "blobs"
    blobs.mkdir()
    for number, file in enumerate((path, path.with_name("model.onnx_data"))):
        file.rename(blobs / str(number))
        file.symlink_to(f"../blobs/{number}")
    source = kit.source(path, root=blobs)
    session = opened(source)
    assert session.interface.inputs == (TensorSpec("x", Datatype.FP32, (-1, 4)),)
    file = OnnxFile(source.path, source.root)
    file.check_rules()
    assert file.opened == path
    assert file.with_weights().SerializeToString() == expected


def claims_one_row(kit: Any, path: Path, operator: str, **attributes: Any) -> Path:
    """A model of any number of rows whose file says that its output has one."""
    saved: Path = kit.save(
        path,
        [helper.make_node(operator, ["x"], ["y"], **attributes)],
        [kit.value("x", TensorProto.FLOAT, ["n", 3])],
        [kit.value("y", TensorProto.FLOAT, [1, 3])],
    )
    return saved


def test_an_output_that_claims_one_row_is_tried_with_two(models: Any, kit: Any) -> None:
    path = claims_one_row(kit, models.path("rows"), "Abs")
    session = opened(kit.source(path))
    assert session.interface.max_batch == 32
    assert session.interface.outputs[0].shape == (-1, 3)
    assert OnnxFile(path, path.parent).interface(None) == session.interface
    assert opened(kit.source(path, max_batch=4)).interface.max_batch == 4
    assert opened(kit.source(path, max_batch=0)).interface.outputs[0].shape == (1, 3)
    whole = opened(kit.source(path, warmup_shapes={"x": (2, 3)}))  # stated with its rows
    assert whole.interface.max_batch == 0


def test_an_output_that_has_one_row_has_no_batch_axis(models: Any, kit: Any) -> None:
    path = claims_one_row(kit, models.path("mean"), "ReduceMean", axes=[0], keepdims=1)
    session = opened(kit.source(path))
    assert session.interface.max_batch == 0
    assert session.interface.outputs[0].shape == (1, 3)
    assert session.row_shapes == {"x": (1, 3)}
    message = "max_batch is 4, but a batch of 2 fails: output 'y' does not have one row"
    assert message in refusal(kit.source(path, max_batch=4))


def test_larger_batches_warm_up_while_there_is_time(
    models: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    infer = ModelRunner.infer

    def counted(runner: ModelRunner, feeds: Any, *options: Any) -> Any:
        rows.append(len(feeds["x"]))
        return infer(runner, feeds, *options)

    monkeypatch.setattr(ModelRunner, "infer", counted)
    assert opened(kit.source(models.matmul(), warm_up_s=0.0)).interface.max_batch == 32
    assert max(rows) == 2
    opened(kit.source(models.matmul(), warm_up_s=60.0))
    assert max(rows) == 32


def test_outputs_that_are_not_exposed_are_not_computed(models: Any, kit: Any) -> None:
    nodes = [helper.make_node("Abs", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["left_over"])]
    values = [kit.value(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "y", "left_over")]
    path = kit.save(models.path("two"), nodes, values[:1], values[1:])
    session = opened(kit.source(path, expose=("y",)))
    assert [spec.name for spec in session.interface.outputs] == ["y"]
    file = OnnxFile(path, path.parent, expose=("y",))
    assert [node.op_type for node in file.model.graph.node] == ["Abs"]
    assert file.interface(None) == session.interface
    message = "expose: the model has no output 'z'; it has y, left_over"
    assert refusal(kit.source(path, expose=("z",))) == message
