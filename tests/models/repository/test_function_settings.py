"""What `function` may say in slacktide.yaml, and what it may not stand beside."""

from __future__ import annotations

from pathlib import Path

import pytest

from slacktide.domain.tensors import Datatype
from slacktide.models.plugins import offer_glue
from slacktide.models.replica_launcher import source_of
from slacktide.models.repository.errors import RepositoryError
from slacktide.models.repository.repository import ModelDefinition, Repository

STATED = """
function:
  name: settings_join
  takes: {a: {datatype: FP32, shape: [-1, 3]}, b: {datatype: INT64, shape: [-1]}}
  gives: {c: {datatype: BOOL, shape: [-1]}}
"""


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    offer_glue("settings_join", "posixpath:join")


def read(folder: Path, text: str) -> ModelDefinition:
    (folder / "m").mkdir(exist_ok=True)
    (folder / "m" / "slacktide.yaml").write_text(text)
    (definition,) = Repository(folder).read("m")
    return definition


def test_a_folder_with_settings_alone_is_a_model_of_version_1(tmp_path: Path) -> None:
    definition = read(tmp_path, STATED)
    assert (definition.version, definition.where) == ("1", "m/slacktide.yaml")
    source = source_of(definition)
    assert source.function is not None
    assert source.function.target == "posixpath:join"
    assert definition.settings.function is not None
    interface = definition.settings.function.interface(None)
    assert [spec.name for spec in interface.inputs] == ["a", "b"]
    assert interface.outputs[0].datatype is Datatype.BOOL
    assert interface.batches
    assert source.function.interface == interface.to_dict()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (STATED + "file: other.onnx\n", "file: not allowed with 'function'"),
        (STATED + "variants: [32, 64]\n", "variants: not allowed with 'function'"),
        (STATED + "backend: openvino\n", "backend: not allowed with 'function'"),
        (STATED + "early_exit: 1%\n", "early_exit: not allowed with 'function'"),
        (STATED + "versions: all\n", "versions: not allowed with 'function'"),
        (STATED + "device: cuda\n", "device: expected 'cpu' with 'function'"),
        (STATED + "executor: in_process\n", "executor: expected 'worker' with 'function'"),
        (STATED.replace("[-1]", "[2]") + "max_batch: 4\n", "max_batch"),
        (STATED.replace("BOOL", "TEXT"), "function.gives.c.datatype"),
        (STATED.replace("[-1]", "[2]") + "  rows: expand\n", "function.rows: expected a free"),
        (STATED.replace("c:", "rows:") + "  rows: expand\n", "function.gives.rows: this name"),
        (STATED + "  rows: fewer\n", "function.rows: expected 'expand'"),
        (STATED.replace("{datatype: FP32, shape: [-1, 3]}", "picture"), "function.takes.a"),
        (
            STATED.replace("{datatype: FP32, shape: [-1, 3]}", "frame").replace(
                "{datatype: INT64, shape: [-1]}", "frame"
            ),
            "function.takes: expected 'frame' for at most one",
        ),
        (STATED.replace("[-1, 3]", "[-2, 3]"), "function.takes.a.shape"),
        (STATED.replace("settings_join", "settings_joy"), "did you mean 'settings_join'"),
        (STATED.replace("settings_join", "posixpath:join"), "function.name: expected the name"),
        ("function: {name: settings_join, takes: {}, gives: {}}", "function.takes"),
    ],
)
def test_an_impossible_function_names_its_key(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(RepositoryError) as caught:
        read(tmp_path, text)
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("m/slacktide.yaml")


def test_a_function_may_take_the_frame_and_text_and_expand_rows(tmp_path: Path) -> None:
    text = STATED.replace("{datatype: FP32, shape: [-1, 3]}", "frame").replace("BOOL", "BYTES")
    source = source_of(read(tmp_path, text + "  rows: expand\n")).function
    assert source is not None
    assert (source.name, source.frame, source.expands) == ("settings_join", "a", True)
    assert source.interface["inputs"][0]["shape"] == [-1, -1, -1, 3]
    assert [output["name"] for output in source.interface["outputs"]] == ["c", "rows"]


BEFORE = "before: {name: settings_join, takes: {t: {datatype: BYTES, shape: [-1]}}}\n"
AFTER = "after: {name: settings_join, gives: {y: {datatype: BOOL, shape: [-1]}}}\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (STATED + BEFORE, "before: not allowed with 'function'"),
        (STATED + AFTER, "after: not allowed with 'function'"),
        (BEFORE + "variants: [32, 64]\n", "before: not allowed with 'variants'"),
        (AFTER + "early_exit: 1%\n", "after: not allowed with 'early_exit'"),
        (AFTER + "executor: in_process\n", "executor: expected 'worker' with 'after'"),
        (BEFORE + "inputs: {x: {image: imagenet}}\n", "inputs.x.image: not allowed with 'before'"),
        (BEFORE.replace("settings_join", "os:system"), "before.name: expected the name of a glue"),
        (BEFORE.replace("{datatype: BYTES, shape: [-1]}", "frame"), "before.takes.t"),
        (AFTER.replace("gives", "takes"), "after.takes: unknown key"),
    ],
)
def test_a_function_that_cannot_stand_around_a_model_names_its_key(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(RepositoryError) as caught:
        read(tmp_path, text)
    assert complaint in str(caught.value)


PYTHON = """
backend: "python"
max_batch_size: 8
input { name: "a" data_type: TYPE_FP32 dims: [3] }
input { name: "b" data_type: TYPE_STRING dims: [-1] }
output { name: "c" data_type: TYPE_BOOL dims: [1] }
instance_group { kind: KIND_CPU count: 2 }
parameters { key: "class" value { string_value: "settings_join" } }
"""


def read_config(folder: Path, text: str) -> ModelDefinition:
    (folder / "m" / "1").mkdir(parents=True, exist_ok=True)
    (folder / "m" / "1" / "model.py").write_text("raise SystemExit\n")
    (folder / "m" / "config.pbtxt").write_text(text)
    (definition,) = Repository(folder).read("m")
    return definition


def test_a_model_of_the_python_backend_is_what_the_operator_registered(tmp_path: Path) -> None:
    definition = read_config(tmp_path, PYTHON)
    assert (definition.version, definition.where, definition.model_path.name) == (
        "1",
        "m/config.pbtxt",
        "config.pbtxt",
    )
    source = source_of(definition).function
    assert source is not None
    assert (source.name, source.target) == ("settings_join", "posixpath:join")
    assert [(s.datatype, s.shape) for s in source.tensors.inputs] == [
        (Datatype.FP32, (-1, 3)),
        (Datatype.BYTES, (-1, -1)),
    ]
    assert (source.tensors.outputs[0].shape, source.tensors.max_batch) == ((-1, 1), 8)
    assert definition.settings.replicas.min == 2
    assert any("m/1: is not read" in warning for warning in definition.warnings)
    offer_glue("m", "posixpath:split")
    unnamed = PYTHON.partition("parameters")[0].replace("max_batch_size: 8", "")
    source = source_of(read_config(tmp_path, unnamed)).function
    assert source is not None
    assert (source.target, source.tensors.max_batch) == ("posixpath:split", 0)
    assert source.tensors.inputs[0].shape == (3,)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            '"settings_join"',
            '"settings_joy"',
            "backend: is served by the function or class registered as 'settings_joy', but there "
            "is none (slacktide serve --glue settings_joy=MODULE:CLASS); did you mean 'settings_jo",
        ),
        ('"settings_join"', '"os:system"', "registered as 'os:system', but there is none"),
        ("output {", "sequence_batching {} #", "sequence_batching"),
        ("output {", "#", "output: expected all tensors with 'backend: python'"),
        ("data_type: TYPE_BOOL", "", "function.gives.c.datatype"),
        ("KIND_CPU", "KIND_GPU", "expected 'cpu' with 'function'"),
    ],
)
def test_missing_fields_of_the_python_backend_are_named(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    with pytest.raises(RepositoryError) as caught:
        read_config(tmp_path, PYTHON.replace(old, new))
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("m/config.pbtxt")


def test_a_version_folder_beside_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    with pytest.raises(RepositoryError, match="m/1: not allowed with 'function'"):
        read(tmp_path, STATED)
