"""Payloads: random ones fit the metadata, files are checked against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.lab.load.spec import LoadSpecError, RandomPayload, Stream
from slacktide.lab.load.tensors import RemoteModel, file_tensors, random_tensors
from slacktide.lab.workloads import Constant
from slacktide.wire.raw_tensors import check_raw, split_strings

TEXT = RemoteModel(
    "text",
    (
        TensorSpec("ids", Datatype.INT64, (-1, -1)),
        TensorSpec("mask", Datatype.BOOL, (-1, -1)),
        TensorSpec("scale", Datatype.FP32, (-1, 2)),
    ),
    batches=True,
)
PLAIN = RemoteModel("plain", (TensorSpec("x", Datatype.FP32, (2, -1)),), batches=False)


def stream(**fields: Any) -> Stream:
    return Stream("text", Constant(1.0), **fields)


def draw(source: Stream, model: RemoteModel = TEXT, seed: int = 0, **fields: Any) -> list[Any]:
    return random_tensors(source, model, RandomPayload(**fields), np.random.default_rng(seed))


def test_free_axes_are_one_unless_given() -> None:
    (payload,) = draw(stream(), variety=1)
    assert [tensor.shape for tensor in payload.inputs] == [(1, 1), (1, 1), (1, 2)]


def test_shapes_with_as_many_choices_are_drawn_together() -> None:
    source = stream(shapes={"ids": ((16,), (64,)), "mask": ((16,), (64,))}, rows=(1, 3))
    payloads = draw(source, variety=2)
    assert len(payloads) == 2 * 2 * 2
    shapes = {tuple(tensor.shape for tensor in tensors.inputs) for tensors in payloads}
    assert shapes == {((r, n), (r, n), (r, 2)) for r in (1, 3) for n in (16, 64)}
    assert {tensors.rows for tensors in payloads} == {1, 3}


@given(st.sampled_from(list(Datatype)), st.integers(0, 1000), st.integers(1, 300))
def test_every_datatype_is_laid_out_as_the_wire_wants_it(
    datatype: Datatype, seed: int, integers: int
) -> None:
    model = RemoteModel("any", (TensorSpec("x", datatype, (-1, 3)),), batches=True)
    for payload in draw(stream(rows=(2,)), model, seed, variety=2, integers=integers):
        (tensor,) = payload.inputs
        check_raw(tensor.data, datatype, tensor.shape, "x")


def test_integers_stay_below_their_limit_and_bytes_are_letters() -> None:
    (payload,) = draw(stream(shapes={"ids": ((500,),)}), integers=3, variety=1)
    assert set(np.frombuffer(payload.inputs[0].data, "<i8").tolist()) == {0, 1, 2}
    words = RemoteModel("w", (TensorSpec("w", Datatype.BYTES, (-1,)),), batches=True)
    (payload,) = draw(stream(rows=(4,)), words, variety=1)
    assert all(word.isalpha() for word in split_strings(payload.inputs[0].data, 4))


def test_the_seed_decides_the_contents() -> None:
    first, again, reseeded = draw(stream()), draw(stream()), draw(stream(), seed=1)
    assert [t.inputs[2].data for t in first] == [t.inputs[2].data for t in again]
    assert first[0].inputs[2].data != reseeded[0].inputs[2].data
    assert first[0].inputs[2].data != first[1].inputs[2].data


def test_big_payloads_are_made_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slacktide.lab.load.tensors._MEMORY", 2500)
    big = RemoteModel("big", (TensorSpec("x", Datatype.UINT8, (-1, 1000)),), batches=True)
    assert len(draw(stream(), big, variety=8)) == 2


@pytest.mark.parametrize(
    ("fields", "model", "flag", "complaint"),
    [
        ({"shapes": {"idz": ((1,),)}}, TEXT, "shape", "has no input 'idz'"),
        ({"shapes": {"ids": ((1, 2),)}}, TEXT, "shape", "'ids' of 'text' is ?, got 1x2"),
        ({"shapes": {"scale": ((3,),)}}, TEXT, "shape", "'scale' of 'text' is 2, got 3"),
        ({"rows": (2,)}, PLAIN, "rows", "has no batch axis"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    fields: dict[str, Any], model: RemoteModel, flag: str, complaint: str
) -> None:
    with pytest.raises(LoadSpecError) as caught:
        draw(stream(**fields), model)
    assert caught.value.flag == flag
    assert complaint in str(caught.value)


def test_files_give_their_arrays(tmp_path: Path) -> None:
    arrays = {
        "ids": np.arange(6, dtype=np.int64).reshape(2, 3),
        "mask": np.ones((2, 3), dtype=np.bool_),
        "scale": np.zeros((2, 2), dtype=np.float32),
    }
    path = tmp_path / "one.npz"
    np.savez(path, **arrays)
    tensors = file_tensors(path, TEXT)
    assert tensors.rows == 2
    assert [tensor.name for tensor in tensors.inputs] == ["ids", "mask", "scale"]
    assert tensors.inputs[0].data == arrays["ids"].tobytes()

    single = tmp_path / "x.npy"
    np.save(single, np.asfortranarray(np.arange(8, dtype=np.float32).reshape(2, 4)))
    (tensor,) = file_tensors(single, PLAIN).inputs
    assert np.frombuffer(tensor.data, "<f4").tolist() == list(range(8))


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({}, "no array named 'ids'"),
        ({"ids": np.zeros((1, 1), np.int32)}, "expected int64 (INT64), got int32"),
        ({"ids": np.zeros((0, 1), np.int64)}, "expected at least one row"),
        ({"ids": np.zeros(1, np.int64)}, "expected shape (-1, -1), got (1,)"),
        (
            {"ids": np.zeros((1, 1), np.int64), "mask": np.zeros((2, 1), np.bool_)},
            "expected 1 rows, as in other inputs, got 2",
        ),
        (
            {
                "ids": np.zeros((1, 1), np.int64),
                "mask": np.zeros((1, 1), np.bool_),
                "scale": np.zeros((1, 2), np.float32),
                "more": np.zeros(1),
            },
            "unknown inputs ['more']",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused(
    tmp_path: Path, arrays: dict[str, Any], complaint: str
) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays)
    with pytest.raises(LoadSpecError) as caught:
        file_tensors(path, TEXT)
    assert complaint in str(caught.value)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadSpecError, match="cannot read"):
        file_tensors(tmp_path / "absent.npy", PLAIN)
    text = tmp_path / "text.npy"
    text.write_text("hello")
    with pytest.raises(LoadSpecError, match="holds no arrays"):
        file_tensors(text, PLAIN)
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(LoadSpecError, match="holds no arrays"):
        file_tensors(objects, PLAIN)
    single = tmp_path / "single.npy"
    np.save(single, np.zeros(1))
    with pytest.raises(LoadSpecError, match="has the inputs ids, mask, scale"):
        file_tensors(single, TEXT)
