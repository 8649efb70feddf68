"""What `inputs.NAME.tokenizer`, `pooling` and `normalize` may say, and what follows from them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.stand_ins.tokenizer_files import padding, tokenizer_file, truncation

from slacktide.domain.padding import PaddedInput
from slacktide.executors.cores import available_cores
from slacktide.executors.ports import PoolingSource, TokenSource
from slacktide.executors.spawning import SpawnRequest
from slacktide.models.check import check_repository, try_loading
from slacktide.models.replica_launcher import source_of
from slacktide.models.repository.errors import RepositoryError
from slacktide.models.repository.repository import ModelDefinition, Repository

Builder = Callable[..., Path]
WORDS = ("[pad]", "[cls]", "[unk]", "low", "high", "tide")
TEXT = "inputs: {text: {tokenizer: tokenizer.json}}\n"
FILE = tokenizer_file(WORDS, truncation=truncation(64))


def encoder(
    *, words: int = len(WORDS), length: int | str = "l", masked: bool = True, hidden: bool = False
) -> bytes:
    """A vector of two numbers for each token. `hidden`: the table of tokens is computed, so that
    its size is not in the file."""
    names = ["input_ids", "attention_mask"][: 1 + masked]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["n", length]) for n in names]
    output = helper.make_tensor_value_info("states", TensorProto.FLOAT, ["n", length, 2])
    table = numpy_helper.from_array(np.arange(2 * words, dtype=np.float32).reshape(-1, 2), "table")
    shift = numpy_helper.from_array(np.zeros((1, 2), np.float32), "shift")
    nodes = [helper.make_node("Gather", ["sum" if hidden else "table", "ids"], ["states"])]
    nodes.insert(0, helper.make_node("Add", ["table", "shift"], ["sum"]))
    nodes.insert(0, helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.INT32))
    if masked:
        nodes.append(helper.make_node("Not", ["flags"], ["unused"]))
        nodes.insert(0, helper.make_node("Cast", ["attention_mask"], ["flags"], to=9))
    graph = helper.make_graph(nodes, "g", inputs, [output], [table, shift])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def read(root: Path, add_model: Builder, text: str, file: bytes | None = FILE) -> ModelDefinition:
    folder = add_model("m", yaml=text)
    if file is not None:
        (folder / "tokenizer.json").write_bytes(file)
    return Repository(root).read("m")[0]


def test_a_tokenizer_states_how_its_inputs_are_padded(root: Path, add_model: Builder) -> None:
    file = tokenizer_file(WORDS, truncation=truncation(64), padding=padding(pad_id=3))
    definition = read(root, add_model, TEXT, file)
    pads = definition.settings.pads
    assert pads is not None
    assert pads.inputs == {
        "input_ids": PaddedInput(1, 3),
        "attention_mask": PaddedInput(1, 0, mask=True),
        "token_type_ids": PaddedInput(1, 0),
    }
    assert pads.lengths == (16, 64)
    assert definition.settings.limits.length == 64
    hint = definition.settings.work_hint
    assert hint is not None
    assert hint.input == "input_ids"
    source = source_of(definition)
    ranges = {"input_ids": (0, 5), "attention_mask": (1, 1), "token_type_ids": (0, 0)}
    assert source.tokens == TokenSource("inputs.text.tokenizer", "input_ids", ranges)
    request = SpawnRequest(1, source, (0,), "cpu")
    assert SpawnRequest.decode(request.encode()) == request


def test_stated_settings_win(root: Path, add_model: Builder) -> None:
    text = """\
inputs:
  words: {tokenizer: tokenizer.json, max_length: 9, gives: {input_ids: a, attention_mask: b}}
lengths: [4, 8]
work_hint: rows
pooling: cls
normalize: true
"""
    definition = read(root, add_model, text)
    settings = definition.settings
    assert settings.pads is not None
    assert settings.pads.lengths == (4, 8)
    assert [*settings.pads.inputs] == ["a", "b"]
    assert settings.limits.length == 9
    assert settings.work_hint is not None
    assert settings.work_hint.of == "rows"
    source = source_of(definition)
    assert source.pooling == PoolingSource("cls", True, "b")
    request = SpawnRequest(1, source, (0,), "cpu")
    assert SpawnRequest.decode(request.encode()) == request


@pytest.mark.parametrize(
    ("text", "file", "message"),
    [
        (TEXT, None, "inputs.text.tokenizer: expected a file 'tokenizer.json' in m/1 or m"),
        (TEXT, b"{}", "inputs.text.tokenizer: tokenizer.json: expected a tokenizer.json of"),
        (
            "inputs: {text: {tokenizer: tokenizer.json, gives: [ids]}}",
            FILE,
            "inputs.text.gives: expected input_ids and perhaps attention_mask, token_type_ids,",
        ),
        (
            "inputs: {a: {tokenizer: t.json}, b: {tokenizer: t.json}}",
            FILE,
            "inputs.b.tokenizer: expected one input with 'tokenizer', got it for 'a' too; two "
            "texts of one row are one input with 'pairs: true'",
        ),
        ("inputs: {a: {pairs: true}}", FILE, "inputs.a.pairs: needs 'tokenizer'"),
        (
            "inputs: {a: {tokenizer: t.json, finite: true}}",
            FILE,
            "inputs.a.finite: not allowed with 'tokenizer'",
        ),
        (
            "early_exit: 1%\npooling: mean",
            FILE,
            "early_exit: not allowed with 'pooling' or 'normalize'",
        ),
    ],
)
def test_mistakes_name_their_key(
    root: Path, add_model: Builder, text: str, file: bytes | None, message: str
) -> None:
    with pytest.raises(RepositoryError, match=re.escape(message)):
        read(root, add_model, text, file)


def messages(root: Path) -> list[str]:
    return [f"{finding.severity.value} {finding.message}" for finding in check_repository(root)]


@pytest.mark.parametrize(
    ("model", "text", "file", "message"),
    [
        (
            {"words": 5},
            TEXT,
            FILE,
            "its largest id is 5, but the model knows 5 tokens ('table'): it belongs to another",
        ),
        ({"masked": False}, TEXT, FILE, "inputs.text.gives: the model has no attention_mask"),
        (
            {},
            "inputs: {text: {tokenizer: tokenizer.json, gives: [input_ids, token_type_ids]}}",
            FILE,
            "inputs.text.gives: the model has no input 'token_type_ids'",
        ),
        (
            {},
            "inputs: {text: {tokenizer: tokenizer.json, gives: {input_ids: tokens}}}",
            FILE,
            "inputs.text.gives: the model has no input 'tokens'",
        ),
        (
            {},
            "inputs: {input_ids: {tokenizer: tokenizer.json}}",
            FILE,
            "inputs.input_ids: the model itself has an input of this name",
        ),
        ({}, TEXT, tokenizer_file(WORDS), "inputs.text.max_length: expected the longest text in"),
        ({}, TEXT + "pooling: mean\nnormalize: true", FILE, None),
        ({"length": 8}, TEXT, tokenizer_file(WORDS), None),
        ({"words": 9}, TEXT, FILE, None),
        (
            {},
            TEXT + "normalize: true",
            FILE,
            "normalize: expected an output of floats [rows, features], got states [-1, -1, 2]",
        ),
    ],
)
def test_a_check_compares_the_tokenizer_with_the_model(
    root: Path, add_model: Builder, model: Any, text: str, file: bytes, message: str | None
) -> None:
    folder = add_model("m", yaml=text, data=encoder(**model))
    (folder / "tokenizer.json").write_bytes(file)
    errors = [line for line in messages(root) if line.startswith("error")]
    assert len(errors) == (message is not None), errors
    assert message is None or message in errors[0]


def test_only_the_first_stage_of_a_pipeline_takes_text(root: Path, add_model: Builder) -> None:
    folder = add_model("m", yaml=TEXT, data=encoder())
    (folder / "tokenizer.json").write_bytes(FILE)
    (root / "p").mkdir()
    edge = "{from: a, to: b, tensors: {states: text}}"
    (root / "p" / "pipeline.yaml").write_text(f"stages: {{a: m, b: m}}\nedges: [{edge}]\n")
    expected = "'m' has no input 'text'; only the first stage takes text, from clients"
    assert messages(root) == [f"error p/pipeline.yaml: edges[0].tensors.states: {expected}"]


def test_a_check_proposes_lines_for_models_of_tokens(root: Path, add_model: Builder) -> None:
    add_model("m", data=encoder())
    (note,) = messages(root)
    assert note.startswith("note m/1/model.onnx: inputs 'input_ids' and 'attention_mask' are those")
    assert "inputs: {text: {tokenizer: tokenizer.json}}" in note
    assert "pooling: mean (or cls, last) and normalize: true" in note


@pytest.mark.parametrize(
    ("words", "file", "message"),
    [
        (6, FILE, None),
        (5, FILE, "inputs.text.tokenizer: a row with ids up to its largest, 5, fails: "),
        (
            6,
            tokenizer_file(WORDS, truncation=truncation(8), decoder={"type": "Nonsense"}),
            "inputs.text.tokenizer: the tokenizer cannot be opened: ",
        ),
    ],
)
def test_facts_that_files_do_not_state_are_tried(
    root: Path, add_model: Builder, words: int, file: bytes, message: str | None
) -> None:
    folder = add_model("m", yaml=TEXT + "pooling: mean", data=encoder(words=words, hidden=True))
    (folder / "tokenizer.json").write_bytes(file)
    assert messages(root) == []
    tried = asyncio.run(try_loading(root, available_cores()[:1]))
    errors = [finding.message for finding in tried if finding.severity.value == "error"]
    assert len(errors) == (message is not None), errors
    assert message is None or message in errors[0]
