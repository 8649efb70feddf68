"""Pooling leaves out the padding, wherever it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.pooling import Pooler
from slacktide.executors.ports import PoolingSource

VALUES = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
RIGHT = np.array([[1, 1, 0, 0], [1, 1, 1, 1]])
LEFT = RIGHT[:, ::-1]


def model(*outputs: TensorSpec, mask: bool = True) -> ModelInterface:
    names = ("input_ids", "attention_mask")[: 1 + mask]
    inputs = tuple(TensorSpec(name, Datatype.INT64, (-1, -1)) for name in names)
    return ModelInterface(inputs, outputs or (spec(),), 8)


def spec(name: str = "hidden", *axes: int, datatype: Datatype = Datatype.FP32) -> TensorSpec:
    return TensorSpec(name, datatype, axes or (-1, -1, 3))


def pool(kind: str, mask: Any, values: Any = VALUES, *, normalize: bool = False) -> Any:
    pooler = Pooler(PoolingSource(kind, normalize, "attention_mask"), model())
    (pooled,) = pooler.pool([values], {"attention_mask": mask})
    assert pooled.dtype == np.float32
    return pooled.tolist()


def test_each_kind_takes_the_tokens_of_the_text_alone() -> None:
    assert pool("mean", RIGHT) == [VALUES[0, :2].mean(0).tolist(), VALUES[1].mean(0).tolist()]
    assert pool("mean", LEFT) == [VALUES[0, 2:].mean(0).tolist(), VALUES[1].mean(0).tolist()]
    assert pool("cls", RIGHT) == VALUES[:, 0].tolist()
    assert pool("cls", LEFT) == [VALUES[0, 2].tolist(), VALUES[1, 0].tolist()]
    assert pool("last", RIGHT) == [VALUES[0, 1].tolist(), VALUES[1, 3].tolist()]
    assert pool("last", LEFT) == VALUES[:, 3].tolist()
    assert pool("mean", np.float32(RIGHT), VALUES.astype(np.float16)) == pool("mean", RIGHT)


def test_padding_may_hold_any_number() -> None:
    """Some models make NaN of positions that see no token."""
    for padding in (np.nan, np.inf):
        values = np.where(LEFT[..., None], VALUES, padding).astype(np.float32)
        for kind in ("mean", "cls", "last"):
            assert pool(kind, LEFT, values) == pool(kind, LEFT)


def test_vectors_are_scaled_to_one_and_zeros_stay() -> None:
    first, second = pool("cls", RIGHT, VALUES * [[[0]], [[1]]], normalize=True)
    assert first == [0, 0, 0]
    assert np.linalg.norm(second) == pytest.approx(1)


def test_a_model_without_a_mask_has_no_padding() -> None:
    pooler = Pooler(PoolingSource("mean", False, "attention_mask"), model(mask=False))
    (pooled,) = pooler.pool([VALUES], {})
    assert pooled.tolist() == VALUES.mean(1).tolist()


def test_its_output_replaces_the_models() -> None:
    classes, last = spec("logits", -1, 5), spec("last_hidden_state", -1, -1, 7)
    pooler = Pooler(PoolingSource("cls", False, ""), model(spec(), classes, last))
    assert pooler.output is last
    assert pooler.outputs == (TensorSpec("embedding", Datatype.FP32, (-1, 7)),)
    assert Pooler(PoolingSource("", True, ""), model(spec(), classes)).output is classes


def test_outputs_that_cannot_be_pooled_are_named() -> None:
    with pytest.raises(ModelError, match=r"pooling: expected .*, got logits \[-1, 5\]$"):
        Pooler(PoolingSource("mean", False, ""), model(spec("logits", -1, 5)))
    with pytest.raises(ModelError, match="choose one by 'expose'"):
        Pooler(PoolingSource("mean", False, ""), model(spec("a"), spec("b")))
    with pytest.raises(ModelError, match=r"normalize: expected .* \[rows, features\]"):
        Pooler(PoolingSource("", True, ""), model(spec("ids", -1, 3, datatype=Datatype.INT64)))
    pooler = Pooler(PoolingSource("mean", False, "attention_mask"), model())
    with pytest.raises(ModelError, match="expected a length of 4 as of 'attention_mask', got 2"):
        pooler.pool([VALUES[:, :2]], {"attention_mask": RIGHT})
