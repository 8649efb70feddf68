"""What the files state against what the model has; and what the endpoints then tell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.models.core_layout import lane_conflicts
from slacktide.models.repository.errors import InterfaceMismatchError
from slacktide.models.repository.interface import check_interface, config_json, metadata_shape
from slacktide.models.repository.repository import ModelDefinition, Repository
from slacktide.models.repository.triton.messages import parse_json

Define = Callable[..., ModelDefinition]

BATCHED = ModelInterface(
    inputs=(
        TensorSpec("image", Datatype.FP32, (-1, 3, -1, -1)),
        TensorSpec("ids", Datatype.INT64, (-1, 4)),
    ),
    outputs=(TensorSpec("scores", Datatype.FP32, (-1, 10)), TensorSpec("n", Datatype.BYTES, (-1,))),
    max_batch=8,
)
SINGLE = ModelInterface(
    (TensorSpec("x", Datatype.FP32, (2, 4)),), (TensorSpec("y", Datatype.FP32, (2,)),), 0
)

GOOD = """
max_batch_size: 8
input [
  { name: "image" data_type: TYPE_FP32 dims: [ 3, 224, -1 ] },
  { name: "ids" data_type: TYPE_INT64 dims: [ 4 ] }
]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 10 ] } ]
"""


def test_agreement(define: Define) -> None:
    definition = define(pbtxt=GOOD, yaml="inputs: {image: {shape: [3, 8, 8], finite: true}}")
    assert check_interface(definition, BATCHED) == (
        "m/config.pbtxt: output 'n' is not listed, but is served anyway",
    )


def test_nothing_stated_agrees_with_everything(define: Define) -> None:
    definition = define()
    assert check_interface(definition, BATCHED) == check_interface(definition, SINGLE) == ()


def test_an_output_of_one_row_is_said_to_prevent_batches(define: Define) -> None:
    x = TensorSpec("x", Datatype.FP32, (-1, 4))
    summary = ModelInterface((x,), (TensorSpec("y", Datatype.FP32, (1, 4)),), 0)
    (warning,) = check_interface(define(), summary)
    assert "output 'y' is declared with one row" in warning


RESHAPED = GOOD.replace(
    "output [",
    'output [ { name: "n" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } },',
).replace("dims: [ 4 ]", "dims: [ 2, 2 ] reshape { shape: [ 4 ] }")


def test_a_reshape_that_the_model_agrees_with(define: Define) -> None:
    """Triton has no other way to say one number a row."""
    definition = define(pbtxt=RESHAPED)
    assert definition.client_shapes == {"ids": (2, 2)}
    assert check_interface(definition, BATCHED) == (
        "m/config.pbtxt: output 'n' keeps the model's shape [] (without batch axis) instead of "
        "dims [1]",
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("shape: [ ]", "shape: [ 1 ]", "output[0].reshape.shape: expected [] for 'n', got [1]"),
        ("dims: [ 1 ]", "dims: [ 2 ]", "output[0].reshape.shape: expected as many elements as dim"),
        ("[ 2, 2 ]", "[ 5 ]", "input[1].reshape.shape: expected as many elements as dims [5], got"),
        ("shape: [ 4 ]", "shape: [ 2 ]", "input[1].reshape.shape: expected [4] for 'ids', got [2]"),
    ],
)
def test_a_reshape_that_the_model_does_not_agree_with(
    define: Define, old: str, new: str, message: str
) -> None:
    assert old in RESHAPED
    with pytest.raises(InterfaceMismatchError) as caught:
        check_interface(define(pbtxt=RESHAPED.replace(old, new)), BATCHED)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"image"', '"imgae"', "input[0].name: the model has no input 'imgae'; did you mean 'imag"),
        ("TYPE_INT64", "TYPE_INT32", "input[1].data_type: expected TYPE_INT64 for 'ids', got"),
        ("[ 3, 224, -1 ]", "[ 1, 224, -1 ]", "input[0].dims: expected [3, -1, -1] for 'image'"),
        ("[ 3, 224, -1 ]", "[ -1, 3, 224, 224 ]", "leave out the batch axis"),
        ("[ 10 ]", "[ 11 ]", "output[0].dims: expected [10] for 'scores', got [11]"),
        (
            ',\n  { name: "ids" data_type: TYPE_INT64 dims: [ 4 ] }',
            "",
            "input 'ids' of the model is missing",
        ),
        ("max_batch_size: 8", "max_batch_size: 4", "max_batch: expected 8 as in the model, got 4"),
    ],
)
def test_disagreement_with_config_pbtxt(define: Define, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(InterfaceMismatchError) as caught:
        check_interface(define(pbtxt=GOOD.replace(old, new)), BATCHED)
    assert message in str(caught.value)
    assert str(caught.value).startswith("m/config.pbtxt: ")


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        (
            "inputs: {imgae: {}}",
            "inputs.imgae: the model has no input 'imgae'; did you mean 'image'",
        ),
        ("inputs: {image: {shape: [1, 2, 2]}}", "inputs.image.shape: expected a shape that fits"),
        ("inputs: {image: {shape: [3, 2]}}", "inputs.image.shape: expected a shape that fits"),
        ("inputs: {ids: {finite: true}}", "inputs.ids.finite: INT64 is always finite"),
        ("max_batch: 0", "max_batch: expected 8 as in the model, got 0"),
        ("early_exit: {primary: id}", "early_exit.primary: the model has no input 'id'"),
        ("early_exit: {output: logit}", "early_exit.output: the model has no output 'logit'"),
    ],
)
def test_disagreement_with_slacktide_yaml(define: Define, yaml: str, message: str) -> None:
    with pytest.raises(InterfaceMismatchError) as caught:
        check_interface(define(yaml=yaml), BATCHED)
    assert message in str(caught.value)
    assert str(caught.value).startswith("m/slacktide.yaml: ")


TEXT = ModelInterface(
    inputs=(
        TensorSpec("ids", Datatype.UINT8, (-1, -1)),
        TensorSpec("mask", Datatype.INT64, (-1, -1)),
        TensorSpec("words", Datatype.BYTES, (-1, -1)),
        TensorSpec("table", Datatype.FP32, (-1, 4, -1)),
    ),
    outputs=(
        TensorSpec("states", Datatype.FP32, (-1, -1, 8)),
        TensorSpec("y", Datatype.FP32, (-1,)),
    ),
    max_batch=8,
)


def test_padding_that_the_model_allows(define: Define) -> None:
    yaml = """
        inputs: {ids: {pad: {value: 255, mask: mask}}, table: {pad: {axis: 2, value: -1.5}}}
        outputs: {states: {pad: {}}}
        work_hint: {input: table, axis: 2}
    """
    definition = define(yaml=yaml)
    assert check_interface(definition, TEXT) == ()
    inputs = config_json(definition, TEXT)["input"]
    assert [tensor.get("optional", False) for tensor in inputs] == [False, True, False, False]


def test_padding_without_effect_is_warned_of(define: Define) -> None:
    (warning,) = check_interface(define(yaml="inputs: {ids: {pad: {}}}"), TEXT)
    assert warning.startswith("m/slacktide.yaml: inputs.ids.pad has no effect without a mask")


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        (
            "inputs: {idz: {pad: {}}}",
            "inputs.idz: the model has no input 'idz'; did you mean 'ids'",
        ),
        ("inputs: {words: {pad: {}}}", "inputs.words.pad.axis: BYTES cannot be padded"),
        ("inputs: {table: {pad: {}}}", "inputs.table.pad.axis: axis 1 has the fixed length 4"),
        ("inputs: {ids: {pad: {axis: 2}}}", "inputs.ids.pad.axis: expected 1 to 1 (axis 0 is the"),
        (
            "inputs: {ids: {pad: {value: -1}}}",
            "inputs.ids.pad.value: expected UINT8",
        ),
        (
            "inputs: {ids: {pad: {value: 256}}}",
            "inputs.ids.pad.value: expected UINT8",
        ),
        (
            "inputs: {ids: {pad: {value: 0.5}}}",
            "inputs.ids.pad.value: expected UINT8",
        ),
        (
            "inputs: {table: {pad: {axis: 2, value: 1.0e+39}}}",
            "inputs.table.pad.value: expected FP32",
        ),
        (
            "inputs: {ids: {pad: {mask: masc}}}",
            "inputs.ids.pad.mask: the model has no input 'masc'; did you mean 'mask'?",
        ),
        (
            "inputs: {ids: {pad: {mask: table}}}",
            (
                "inputs.ids.pad.mask: expected numbers of shape [-1, -1], got 'table': "
                "FP32 [-1, 4, -1]"
            ),
        ),
        (
            "inputs: {ids: {pad: {mask: mask}}, mask: {pad: {}}}",
            "inputs.mask.pad: masks are always padded with 0",
        ),
        (
            "inputs: {ids: {pad: {mask: mask}}}\noutputs: {state: {pad: {}}}",
            "outputs.state: the model has no output 'state'; did you mean 'states'?",
        ),
        (
            "inputs: {ids: {pad: {mask: mask}}}\noutputs: {states: {pad: {axis: 2}}}",
            "outputs.states.pad.axis: axis 2 has the fixed length 8",
        ),
        (
            "inputs: {ids: {pad: {mask: mask}}}\noutputs: {y: {pad: {}}}",
            "outputs.y.pad.axis: it has no axis besides that of rows",
        ),
        (
            "work_hint: {input: tokens, axis: 1}",
            "work_hint.input: the model has no input 'tokens'; valid: ids, mask, words, table",
        ),
        ("work_hint: {input: ids, axis: 2}", "work_hint.axis: 'ids' has axes 0 to 1"),
    ],
)
def test_padding_that_the_model_does_not_allow(define: Define, yaml: str, message: str) -> None:
    with pytest.raises(InterfaceMismatchError) as caught:
        check_interface(define(yaml=yaml), TEXT)
    assert message in str(caught.value)


def test_nothing_is_padded_without_a_batch_axis(define: Define) -> None:
    with pytest.raises(InterfaceMismatchError, match=r"inputs.x.pad: the model has no batch axis"):
        check_interface(define(yaml="inputs: {x: {pad: {}}}\npadding: exact"), SINGLE)


def test_the_config_endpoint(define: Define) -> None:
    assert config_json(define(), BATCHED) == {
        "name": "m",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 8,
        "input": [
            {"name": "image", "data_type": "TYPE_FP32", "dims": [3, -1, -1]},
            {"name": "ids", "data_type": "TYPE_INT64", "dims": [4]},
        ],
        "output": [
            {"name": "scores", "data_type": "TYPE_FP32", "dims": [10]},
            {"name": "n", "data_type": "TYPE_STRING", "dims": []},
        ],
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
        "default_model_filename": "model.onnx",
        "dynamic_batching": {
            "priority_levels": 5,
            "default_priority_level": 3,
            "default_queue_policy": {"allow_timeout_override": True},
        },
    }


def test_the_config_endpoint_tells_what_is_in_effect_and_keeps_the_rest(define: Define) -> None:
    pbtxt = """
        parameters { key: "a" value { string_value: "b" } }
        model_warmup { name: "w" inputs { key: "x" value { dims: [ 2, 4 ] } } }
        dynamic_batching { max_queue_delay_microseconds: 7 }
    """
    yaml = """
        versions: [1]
        device: cuda:1
        replicas: 2
        scheduler: {name: fifo, max_delay: 2ms, preferred: [4], timeout: 1s, max_queue: 5}
    """
    definition = define(pbtxt=pbtxt, yaml=yaml)
    config = config_json(definition, BATCHED)
    assert config["parameters"] == {"a": {"string_value": "b"}}
    assert config["model_warmup"] == [{"name": "w", "inputs": {"x": {"dims": [2, 4]}}}]
    assert config["version_policy"] == {"specific": {"versions": [1]}}
    assert config["instance_group"] == [{"count": 1, "kind": "KIND_GPU", "gpus": [1]}]
    assert config["dynamic_batching"] == {
        "priority_levels": 5,
        "default_priority_level": 3,
        "max_queue_delay_microseconds": 2000,
        "preferred_batch_size": [4],
        "default_queue_policy": {
            "allow_timeout_override": True,
            "max_queue_size": 5,
            "timeout_action": "REJECT",
            "default_timeout_microseconds": 1_000_000,
        },
    }
    assert "dynamic_batching" not in config_json(definition, SINGLE)


def test_the_config_endpoint_answers_with_a_true_model_config(define: Define) -> None:
    config = config_json(define(pbtxt=GOOD, yaml="versions: all"), BATCHED)
    again = parse_json(json.dumps(config), where="")
    assert again["input"] == config["input"]
    assert again["max_batch_size"] == 8
    assert again["version_policy"] == {"all": {}}


def test_metadata_shapes_lead_with_the_batch_axis(define: Define) -> None:
    assert metadata_shape(BATCHED.inputs[0], BATCHED) == (-1, 3, -1, -1)
    fixed = TensorSpec("x", Datatype.FP32, (1, 4))
    assert metadata_shape(fixed, ModelInterface((fixed,), (), 1)) == (-1, 4)
    assert metadata_shape(SINGLE.inputs[0], SINGLE) == (2, 4)


def test_models_that_name_a_lane_must_agree_on_it(
    root: Path, add_model: Callable[..., Path]
) -> None:
    add_model("a", yaml="lane: one\ncores: 2")
    add_model("b", yaml="lane: one\ncores: 2", versions=("1", "2"))
    add_model("c", yaml="lane: one\ncores: {min: 1, max: 2}")
    add_model("d", yaml="lane: two")
    settings = {m.name: m.definitions[0].settings for m in Repository(root).scan()}
    assert lane_conflicts(settings) == {
        "c": "lane 'one': differs from model 'a' in cores, replicas or scaling"
    }
