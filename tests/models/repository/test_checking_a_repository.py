"""`slacktide models check`: real ONNX files, good and bad."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from slacktide.executors.onnx_file import OnnxFile
from slacktide.executors.onnx_runtime import ModelError
from slacktide.lab.examples import example
from slacktide.models.check import Finding, Severity, check_repository
from slacktide.models.plugins import offer_glue
from slacktide.models.repository.repository import Repository

Builder = Callable[..., Path]


def model(
    *,
    batch: int | str = "N",
    op: str = "MatMul",
    domain: str = "",
    opset: int = 17,
    out_batch: int | str | None = None,
    element: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """y = x · W, x of shape (batch, 4)."""
    weights = numpy_helper.from_array(np.ones((4, 2), np.float32), "W")
    x = helper.make_tensor_value_info("x", element, [batch, 4])
    y = helper.make_tensor_value_info("y", element, [batch if out_batch is None else out_batch, 2])
    node = helper.make_node(op, ["x", "W"], ["y"], domain=domain)
    graph = helper.make_graph([node], "g", [x], [y], [weights])
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _messages(root: Path) -> list[str]:
    findings = check_repository(root)
    for finding in findings:
        assert str(root.parent) not in finding.message
    return [f"{finding.severity.value} {finding.message}" for finding in findings]


def test_a_good_repository(root: Path, add_model: Builder) -> None:
    data = model().SerializeToString()
    pbtxt = 'max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 4 }'
    add_model("a", data=data)
    add_model("b", data=data, yaml="max_batch: 8\ninputs: {x: {finite: true}}")
    add_model("c", data=data, pbtxt=pbtxt)
    add_model("d", data=model(batch=3).SerializeToString(), yaml="max_batch: 0")
    assert check_repository(root) == []


@pytest.mark.parametrize(
    ("proto", "yaml", "message"),
    [
        (model(op="MatMull"), "", "No Op registered for MatMull"),
        (model(op="Magic", domain="com.acme"), "", "operators of com.acme need a library"),
        (
            model(batch=3),
            "max_batch: 8",
            "no batch axis: the first axis of 'x' is not free",
        ),
        (
            model(out_batch=2),
            "max_batch: 8",
            "no batch axis: the first axis of 'y' is not free",
        ),
        (
            model(element=TensorProto.COMPLEX64),
            "",
            "tensor(complex64), which cannot be served",
        ),
        (model(), "inputs: {z: {}}", "m/slacktide.yaml: inputs.z: the model has no input 'z'"),
        (onnx.ModelProto(ir_version=10), "", "it has no graph"),
    ],
)
def test_models_that_cannot_be_served(
    root: Path, add_model: Builder, proto: onnx.ModelProto, yaml: str, message: str
) -> None:
    add_model("m", data=proto.SerializeToString(), yaml=yaml)
    (finding,) = _messages(root)
    assert finding.startswith("error m/")
    assert message in finding


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x00" * 100])
def test_files_that_are_no_model(root: Path, add_model: Builder, data: bytes) -> None:
    add_model("m", data=data)
    (message,) = _messages(root)
    assert message.startswith("error m/1/model.onnx: not an ONNX model")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0a1b\nsize 12345\n"


def _zip(member: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(member, b"x")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (POINTER, "a Git LFS pointer; run 'git lfs pull'"),
        (b"../.git/annex/objects/0a/SHA256E-s12--0a1b.onnx", "a git-annex pointer"),
        (b"", "an empty file"),
        (b"\0" * 5000, "a file of zeros; copy or download it again"),
        (b"\xef\xbb\xbf\n<!DOCTYPE html>\n<html><title>Sign in</title>", "an HTML page"),
        (b"<head></head><HTML>", "an HTML page"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "an XML document"),
        (b'{"error": "Repository Not Found"}', "a JSON document"),
        (b"Not Found\n", "a text file"),
        (gzip.compress(b"x", mtime=0), "a gzip file; unpack it first"),
        (lzma.compress(b"x"), "an xz file; unpack it first"),
        (_zip("model.onnx"), "a zip archive; unpack it first"),
        (_zip("archive/data.pkl"), "a PyTorch checkpoint; export the model to ONNX"),
        (b"\x80\x04\x95\x10", "a Python pickle; export the model to ONNX"),
        (b"\x1c\0\0\0TFL3", "a TensorFlow Lite model; export the model to ONNX"),
        (b"\x40\0\0\0\0\0\0\0" + b'{"w":{"dtype":"F32"}}', "a safetensors file"),
    ],
)
def test_a_file_that_stands_where_a_model_was_expected_is_named(
    root: Path, add_model: Builder, data: bytes, kind: str
) -> None:
    add_model("m", data=data)
    (message,) = _messages(root)
    assert message.startswith(f"error m/1/model.onnx: not an ONNX model but {kind}")


def test_a_model_that_is_cut_off_is_named_with_its_size(root: Path, add_model: Builder) -> None:
    data = model().SerializeToString()
    add_model("m", data=data[:-20])
    (message,) = _messages(root)
    assert f"not an ONNX model, or a truncated one ({len(data) - 20} bytes)" in message


def test_a_pointer_in_place_of_weights_or_samples_is_named(root: Path, add_model: Builder) -> None:
    (_external(add_model, _set("length", "100000")) / "weights.bin").write_bytes(POINTER)
    data = model().SerializeToString()
    (add_model("n", data=data, yaml="samples: rows.npz") / "rows.npz").write_bytes(POINTER)
    (add_model("o", data=data, yaml="samples: {rows: {x: row}}") / "row").write_bytes(POINTER[:9])
    weights, archive, row = _messages(root)
    assert "'W' reaches beyond its file: weights.bin is a Git LFS pointer; run" in weights
    assert "samples: rows.npz: expected an .npz file, got a Git LFS pointer; run" in archive
    assert "samples.rows.x: row: expected 16 bytes for shape [4] of FP32, got 9" in row
    assert row.endswith("; the file is a text file")


def test_no_damage_to_a_file_is_worse_than_a_finding(root: Path, add_model: Builder) -> None:
    whole = model().SerializeToString()
    file = add_model("m", data=whole) / "1" / "model.onnx"
    generator = np.random.default_rng(5)
    named = 0
    for _ in range(100):
        damaged = bytearray(whole)
        for place in generator.integers(0, len(whole), 2):
            damaged[place] = generator.integers(0, 256)
        file.write_bytes(damaged)
        named += len(_messages(root))
    assert named > 50


def test_a_type_nobody_knows(root: Path, add_model: Builder) -> None:
    add_model("m", data=model(element=99).SerializeToString())
    (definition,) = Repository(root).read("m")
    with pytest.raises(ModelError, match=r"tensor\(99\), which cannot be served"):
        OnnxFile(definition.model_path, definition.data_root).interface(None)


@pytest.mark.parametrize("limit", [1, 2])
def test_a_stated_batch_needs_a_free_axis(limit: int, root: Path, add_model: Builder) -> None:
    add_model("m", data=model(batch=1).SerializeToString(), yaml=f"max_batch: {limit}")
    (message,) = _messages(root)
    assert f"max_batch is {limit}, but the model has no batch axis" in message


@pytest.mark.parametrize("which", ["input", "output"])
def test_a_rank_left_open_leaves_the_interface_to_the_runtime(
    root: Path, add_model: Builder, which: str
) -> None:
    proto = model()
    getattr(proto.graph, which)[0].type.tensor_type.ClearField("shape")
    add_model("m", data=proto.SerializeToString())
    (definition,) = Repository(root).read("m")
    assert OnnxFile(definition.model_path, definition.data_root).interface(8) is None


def _external(add_model: Builder, edit: Callable[[Any], None] | None = None) -> Path:
    """A model whose weights lie in weights.bin; `edit` may change the tensor's entry."""
    folder = add_model("m") / "1"
    onnx.save(
        model(),
        folder / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    if edit is not None:
        proto = onnx.load(folder / "model.onnx", load_external_data=False)
        edit(proto.graph.initializer[0])
        (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return folder


def _set(key: str, value: str) -> Callable[[Any], None]:
    def edit(tensor: Any) -> None:
        for entry in tensor.external_data:
            if entry.key == key:
                entry.value = value

    return edit


def test_external_data_beside_the_model(root: Path, add_model: Builder) -> None:
    _external(add_model)
    assert check_repository(root) == []


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_set("location", "../../../secret"), "is a link out of the folder"),
        (_set("location", "/etc/passwd"), "is a link out of the folder"),
        (_set("location", ""), "is not a regular file"),
        (_set("location", "nothing.bin"), "is missing"),
        (_set("length", "100000"), "reaches beyond its file"),
        (_set("length", "many"), "reaches beyond its file"),
    ],
)
def test_external_data_that_is_not_there_or_elsewhere(
    root: Path, add_model: Builder, edit: Callable[[Any], None], message: str
) -> None:
    _external(add_model, edit)
    (finding,) = _messages(root)
    assert "external data" in finding
    assert message in finding


def test_external_data_in_a_place_that_is_not_utf_8(root: Path, add_model: Builder) -> None:
    file = _external(add_model) / "model.onnx"
    file.write_bytes(file.read_bytes().replace(b"weights.bin", b"weights\xffbin"))
    (message,) = _messages(root)
    assert "external data" in message
    assert "is missing" in message


def test_external_data_behind_a_link(root: Path, tmp_path: Path, add_model: Builder) -> None:
    folder = _external(add_model)
    (folder / "weights.bin").rename(tmp_path / "elsewhere.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "elsewhere.bin")
    (message,) = _messages(root)
    assert message.endswith("the external data of tensor 'W' is a link to another folder")


def _link(at: Path, target: Path, absolute: bool) -> None:
    at.symlink_to(target if absolute else os.path.relpath(target, at.parent))


def _as_hubs_do(folder: Path, blobs: Path, absolute: bool = False) -> None:
    """Move a model and its data into `blobs`, and leave links where they were."""
    blobs.mkdir()
    for file, blob in (("model.onnx", "0a1b"), ("weights.bin", "2c3d")):
        (folder / file).rename(blobs / blob)
        _link(folder / file, blobs / blob, absolute)


@pytest.mark.parametrize("absolute", [True, False])
def test_a_file_whose_links_lead_into_a_folder_of_blobs(
    root: Path, add_model: Builder, absolute: bool
) -> None:
    """Hugging Face's cache: snapshots/REV/model.onnx and its data are links into blobs/."""
    folder = _external(add_model)
    _as_hubs_do(folder, root / "blobs", absolute)
    assert check_repository(folder / "model.onnx") == []


def test_links_into_blobs_inside_a_repository_and_out_of_it(
    root: Path, tmp_path: Path, add_model: Builder
) -> None:
    folder = _external(add_model)
    _as_hubs_do(folder, root / ".blobs")
    assert check_repository(root) == []
    (root / ".blobs").rename(tmp_path / "blobs")
    (folder / "model.onnx").unlink()
    (folder / "weights.bin").unlink()
    _link(folder / "model.onnx", tmp_path / "blobs" / "0a1b", True)
    _link(folder / "weights.bin", tmp_path / "blobs" / "2c3d", True)
    (message,) = _messages(root)
    assert message == ("error m/1/model.onnx: leads out of the repository through a symbolic link")


def test_a_linked_file_has_its_data_beside_its_name_or_beside_itself_and_nowhere_else(
    root: Path, tmp_path: Path, add_model: Builder
) -> None:
    folder = _external(add_model)
    links = tmp_path / "links"
    links.mkdir()
    link = links / "net.onnx"
    link.symlink_to(folder / "model.onnx")
    assert check_repository(link) == []  # its data beside the file itself
    (folder / "weights.bin").rename(links / "weights.bin")
    assert check_repository(link) == []  # beside the name
    (links / "weights.bin").unlink()
    (finding,) = check_repository(link)
    assert finding.message.endswith("the external data of tensor 'W' is missing")
    (root / "loose.bin").write_bytes(b"x" * 32)
    (folder / "weights.bin").symlink_to(root / "loose.bin")
    (finding,) = check_repository(link)
    assert finding.message.endswith("is a link to another folder")


def test_data_of_a_linked_file_in_a_folder_below_it(root: Path, add_model: Builder) -> None:
    folder = _external(add_model, _set("location", "data/weights.bin"))
    (folder / "data").mkdir()
    (folder / "weights.bin").rename(root / "2c3d")
    (folder / "data" / "weights.bin").symlink_to("../../../2c3d")
    (folder / "model.onnx").rename(root / "0a1b")
    (folder / "model.onnx").symlink_to("../../0a1b")
    assert check_repository(folder / "model.onnx") == []


def test_a_link_to_a_hidden_file_beside_the_name_is_refused(root: Path, add_model: Builder) -> None:
    folder = _external(add_model)
    (folder / ".secret").write_bytes(b"x" * 32)
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to(".secret")
    (message,) = _messages(root)
    assert message.endswith("is a hidden file")


def test_findings_name_the_model_and_are_in_order(root: Path, add_model: Builder) -> None:
    data = model().SerializeToString()
    add_model("c", data=data, yaml="lane: one\ncores: 1")
    add_model("d", data=data, yaml="lane: one\ncores: 2")
    add_model("a", data=data, yaml="sloo: 1s")
    add_model("b", data=data, pbtxt="response_cache { enable: true }", versions=("1", "2"))
    findings = [(finding.model, finding.severity) for finding in check_repository(root)]
    assert findings == [
        ("a", Severity.ERROR),
        ("b", Severity.WARNING),
        ("d", Severity.ERROR),
    ]


def test_an_empty_folder_and_a_models_own(root: Path) -> None:
    (finding,) = check_repository(root)
    assert finding == Finding(
        "", Severity.WARNING, "no models: expected folders such as NAME/1/model.onnx"
    )
    (root / "model.onnx").write_bytes(b"x")
    (finding,) = check_repository(root)
    assert (finding.model, finding.severity) == ("", Severity.ERROR)


def test_rows_that_are_stated_are_held_against_the_model(root: Path, add_model: Builder) -> None:
    data = model().SerializeToString()
    add_model("a", data=data, yaml="inputs: {x: {value: 1.0e+39}}")
    folder = add_model("b", data=data, yaml="samples: rows.npz")
    np.savez(folder / "rows.npz", x=np.ones((2, 4)))
    np.savez(add_model("c", data=data, yaml="samples: rows.npz") / "1" / "rows.npz", y=np.ones(2))
    np.savez(add_model("d", data=data, yaml="samples: rows.npz") / "1" / "rows.npz", x=OK)
    assert _messages(root) == [
        "error a/1/model.onnx: inputs.x.value: expected FP32, got 1e+39",
        "error b/1/model.onnx: samples: array 'x' of rows.npz: expected float32, got float64",
        "error c/1/model.onnx: samples: array 'y' of rows.npz: no such input; the model has x",
    ]


OK = np.ones((2, 4), np.float32)


def test_where_a_model_can_be_left_early(root: Path, add_model: Builder) -> None:
    data = example("residual").onnx()
    positions = "positions: {forbid: [/blocks/blocks.3/Relu_output_0]}"
    add_model("m", data=data, yaml=f"early_exit: {{output: logits, {positions}}}")
    (name,) = [output.name for output in model().graph.output]
    add_model("n", data=model().SerializeToString(), yaml=f"early_exit: {{output: {name}}}")
    add_model("o", data=data, yaml="early_exit: 1%")
    add_model("p", data=data, yaml="early_exit: 1%")
    (root / "p" / "labels.txt").write_text("".join(f"kind {n}\n" for n in range(10)))
    messages = [text for text in _messages(root) if "looks like pictures" not in text]
    assert len([text for text in messages if text.startswith("note p/")]) == 10
    *notes, warning, unnamed = [text for text in messages if not text.startswith("note p/")]
    assert "early_exit: output 'logits' may not hold classes" in unnamed
    assert len(notes) == 9
    first = "/stem/stem.2/Relu_output_0, 128 features, after 1.2% of the multiplications"
    assert notes[0] == f"note m/1/model.onnx: position 0: {first}"
    assert not any("blocks.3" in note for note in notes)
    assert warning == (
        "warning n/1/model.onnx: early_exit: the model has no position for an early exit; "
        "the model is served without early exits"
    )


def _graph(gives: str, takes: str = "x", width: int = 4) -> bytes:
    graph_model = model()
    graph_model.graph.input[0].name = graph_model.graph.node[0].input[0] = takes
    graph_model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = width
    graph_model.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(np.ones((width, 2), np.float32), "W")
    )
    graph_model.graph.output[0].name = graph_model.graph.node[0].output[0] = gives
    return graph_model.SerializeToString()


def test_pipelines_are_held_against_their_models(root: Path, add_model: Builder) -> None:
    add_model("first", data=_graph("z"))
    add_model("second", data=_graph("w", "z", width=2))
    add_model("third", data=_graph("w", "z", width=3))
    add_model("broken", data=b"nonsense")
    add_model("odd", versions=())
    family = "variants: {sizes: [64, 96], accuracy: {'64': 0.4, '96': 0.7}}"
    add_model("sized", yaml=family, data=example("street").onnx())
    stages = {
        "fits": "{a: first, b: second}",
        "gone": "{a: first, b: thrid}",
        "rests": "{a: broken, b: odd}",
        "thin": "{a: first, b: third}",
        "two": "{a: first, b: fits}",
        "vain": "{a: {model: first, accuracy: 0}, b: {model: sized, accuracy: 0.8}}",
    }
    for name, text in stages.items():
        (root / name).mkdir()
        yaml = f"stages: {text}\nedges: [{{from: a, to: b}}]"
        (root / name / "pipeline.yaml").write_text(yaml)
    messages = _messages(root)
    assert [
        message.partition("pipeline.yaml: ")[2]
        for message in messages
        if "pipeline.yaml" in message
    ] == [
        "stages.b.model: there is no model 'thrid' in the repository; did you mean 'third'?",
        "stages.a.model: model 'broken' cannot be served",
        "stages.b.model: model 'odd' cannot be served",
        "edges[0].tensors: expected an output that fits the input 'z', FP32 [-1, 3] "
        "of 'third', got 'z', "
        "FP32 [-1, 2] of 'first'",
        "stages.b.model: expected a model, got the pipeline 'fits'",
        "stages.a.accuracy: not allowed: the model has no variants",
        "stages.b.accuracy: expected at most 0.7, the accuracy of the best variant",
    ]
    assert messages[-1].startswith("error vain/pipeline.yaml: ")


@pytest.mark.parametrize("place", ["settings", "metadata", ""])
def test_pipelines_name_classes_by_labels(root: Path, add_model: Builder, place: str) -> None:
    graph = onnx.load_from_string(_graph("z"))
    if place == "metadata":
        onnx.helper.set_model_props(graph, {"names": "['red', 'green']"})
    settings = "labels: labels.txt\n" if place == "settings" else ""
    add_model("first", data=graph.SerializeToString(), yaml=settings)
    (root / "first/labels.txt").write_text("red\ngreen\n")
    add_model("second", data=_graph("w", "z", width=2))
    (root / "p").mkdir()
    edge = "{from: a, to: b, scores: z, when: {class: green}}"
    (root / "p/pipeline.yaml").write_text(f"stages: {{a: first, b: second}}\nedges: [{edge}]")
    problems = [message for message in _messages(root) if "pipeline.yaml" in message]
    assert bool(problems) == (not place)
    for problem in problems:
        assert "edges[0].when.class[0]: expected 'stages.a.classes' or 'labels'" in problem


@pytest.mark.parametrize(
    ("axes", "metadata", "line"),
    [
        (
            ["n", 3, 640, 640],
            {"task": "detect", "stride": "32", "imgsz": "[640, 640]"},
            "inputs.x.image: ultralytics",
        ),
        ([1, 224, 224, 3], {}, "inputs.x.image: {preset: caffe or mobilenet} (preset: one of"),
        ([1, 3, -1, -1], {}, "inputs.x.image: {preset: …, size: [height, width]} (preset: one"),
        (["n", 4], {}, None),
    ],
)
def test_inputs_that_look_like_pictures_are_named(
    root: Path, add_model: Builder, axes: Any, metadata: dict[str, str], line: str | None
) -> None:
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, axes) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", info[:1], info[1:])
    exported = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    helper.set_model_props(exported, metadata)
    add_model("m", data=exported.SerializeToString())
    notes = [text for text in _messages(root) if "looks like pictures" in text]
    assert len(notes) == (line is not None)
    assert line is None or line in notes[0]
    add_model("n", data=exported.SerializeToString(), yaml="inputs: {x: {image: imagenet}}")
    offer_glue("checked_join", "posixpath:join")
    before = "{name: checked_join, takes: {x: {datatype: FP32, shape: [-1, 3, 64, 64]}}}"
    add_model("o", data=exported.SerializeToString(), yaml=f"before: {before}")
    notes = [text for text in _messages(root) if text.startswith(("note n/", "note o/"))]
    assert not any("looks like pictures" in text for text in notes)


@pytest.mark.parametrize(
    ("producer", "axes", "expected"),
    [
        ("PaddlePaddle", ["n", 3, "h", "w"], "inputs.x.image: paddleocr (pages), "),
        ("PaddlePaddle", ["n", 3, 64, 64], "inputs.x.image: {preset: imagenet} "),
        ("pytorch", ["n", 3, 64, 64], "inputs.x.image: {preset: imagenet} "),
    ],
)
def test_the_exporter_suggests_a_preset(
    root: Path, add_model: Builder, producer: str, axes: Any, expected: str
) -> None:
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, axes) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", info[:1], info[1:])
    exported = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10, producer_name=producer
    )
    add_model("m", data=exported.SerializeToString())
    assert any(expected in text for text in _messages(root))


@pytest.mark.parametrize(
    ("steps", "suggested"),
    [
        ("Softmax", True),
        ("Softmax Identity", True),
        ("Exp Div", True),
        ("Exp Div Identity", True),
        ("Relu", False),
        ("Sigmoid Identity", False),
    ],
)
def test_probabilities_suggest_a_decoder(
    root: Path, add_model: Builder, steps: str, suggested: bool
) -> None:
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 5]) for name in "xy"]
    nodes, names = [], ["x", *(f"t{at}" for at in range(steps.count(" "))), "y"]
    for step, read, written in zip(steps.split(), names, names[1:], strict=False):
        nodes.append(helper.make_node(step, [read] * (2 if step == "Div" else 1), [written]))
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    exported = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    add_model("m", data=exported.SerializeToString())
    line = "state decode: {as: softmax, probabilities: true}, and labels: FILE in slacktide.yaml"
    assert any(line in text for text in _messages(root)) == suggested
    add_model("n", data=exported.SerializeToString(), yaml="decode: softmax")
    assert not any(line in text and text.startswith("note n/") for text in _messages(root))
