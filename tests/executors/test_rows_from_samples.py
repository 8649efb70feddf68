"""What rows for warm-up and profiling hold: constants, samples, or else random numbers."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from slacktide.domain.padding import PaddedInput, Padding
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.hand_over.arena import Arena, Slot
from slacktide.executors.hand_over.tensor_io import decode_strings, encode_strings
from slacktide.executors.ports import ModelSource
from slacktide.executors.sample_rows import MOST_BYTES, read_archive, read_requests
from slacktide.executors.synthetic_inputs import SyntheticRows
from slacktide.lab.examples.catalog import Samples

IMAGE = TensorSpec("image", Datatype.FP32, (-1, 2, -1))
TEXT = TensorSpec("text", Datatype.BYTES, (-1, 1))
RATE = TensorSpec("rate", Datatype.INT16, (-1,))
MODEL = ModelInterface((IMAGE, TEXT, RATE), (), 8)
SINGLE = ModelInterface((TensorSpec("x", Datatype.INT64, (-1, 2)),), (), 0)

Arrays = dict[str, NDArray[Any]]


def source(**stated: Any) -> ModelSource:
    return ModelSource("m", "1", Path("m.onnx"), Path(), **stated)


def rows_of(interface: ModelInterface = MODEL, **stated: Any) -> SyntheticRows:
    return SyntheticRows(interface, source(**stated))


def some(rows: SyntheticRows, count: int, first: int = 0) -> Arrays:
    return rows.arrays(rows.shapes(), count, np.random.default_rng(1), first=first)


@pytest.fixture
def archive(tmp_path: Path) -> Any:
    """archive(image=…, text=…) -> an .npz file."""

    def write(**arrays: Any) -> Path:
        path = tmp_path / "rows.npz"
        np.savez_compressed(path, **arrays)
        return path

    return write


def test_samples_are_taken_in_turn(archive: Any) -> None:
    image = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    path = archive(image=image, text=np.array([["a"], ["bé"], ["c"]]))
    rows = rows_of(samples=path, values={"rate": -3})
    assert rows.shapes() == {"image": (2, 2), "text": (1,), "rate": ()}
    arrays = some(rows, 2, first=2)
    assert np.array_equal(arrays["image"], image[[2, 0]])
    assert arrays["text"].tolist() == [["c"], ["a"]]
    assert arrays["rate"].tolist() == [-3, -3]
    longer = rows.arrays({**rows.shapes(), "image": (2, 7)}, 2, np.random.default_rng(1))
    assert longer["image"].shape == (2, 2, 7)


def test_a_file_of_labelled_requests_serves_as_samples_if_its_rows_have_one_shape(
    archive: Any,
) -> None:
    interface = ModelInterface((TensorSpec("image", Datatype.FP32, (-1, -1)),), (), 8)
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    labels = np.array([0, 1])
    whole = archive(**{"image": rows, "image.shapes": np.array([[3], [3]]), "labels": labels})
    assert [*read_archive(whole, interface)] == ["image"]
    cut = archive(**{"image": rows, "image.shapes": np.array([[3], [2]])})
    with pytest.raises(ValueError, match="samples: expected rows of 'image' of one shape"):
        read_archive(cut, interface)


def test_payloads_hold_the_same(archive: Any) -> None:
    path = archive(text=np.array([[b"a"], [b"b"]]), rate=np.array([5, 6], ">i2"))
    rows = rows_of(samples=path, warmup_shapes={"image": (2, 3)})
    arena = Arena(1 << 20)
    payloads = rows.payloads(rows.shapes(), arena, generator=np.random.default_rng(1))
    words, rates = [], []
    for payload in payloads[:3]:
        image, text, rate = payload.tensors
        assert (image.shape, text.shape, rate.shape) == ((1, 2, 3), (1, 1), (1,))
        words += decode_strings(bytes(arena.view(Slot(text.offset, text.nbytes))))
        rates += np.frombuffer(bytes(arena.view(Slot(rate.offset, rate.nbytes))), "<i2").tolist()
    assert (words, rates) == (["a", "b", "a"], [5, 6, 5])
    arena.close()


def test_a_sample_of_a_model_without_a_batch_axis_is_a_request(archive: Any) -> None:
    rows = rows_of(SINGLE, samples=archive(x=np.arange(6).reshape(3, 2)))
    assert rows.shapes() == {"x": (3, 2)}
    assert some(rows, 1)["x"].tolist() == [[[0, 1], [2, 3], [4, 5]]]


def test_rows_of_raw_bytes_as_triton_has_them(tmp_path: Path) -> None:
    numbers, words = tmp_path / "numbers", tmp_path / "words"
    numbers.write_bytes(np.arange(5, dtype="<f4").tobytes())
    words.write_bytes(encode_strings(np.array(["né"], object)))
    rows = rows_of(warmup_shapes={"image": (2, 2)}, sample_rows={"image": numbers, "text": words})
    arrays = some(rows, 2)
    assert arrays["image"].tolist() == [[[0, 1], [2, 3]]] * 2
    assert arrays["text"].tolist() == [["né"], ["né"]]
    with pytest.raises(ValueError, match=r"^samples\.rows\.image: state inputs\.image\.shape"):
        rows_of(sample_rows={"image": numbers})
    with pytest.raises(ValueError, match=r"image: numbers: expected 24 bytes for shape \[2, 3\]"):
        rows_of(warmup_shapes={"image": (2, 3)}, sample_rows={"image": numbers})
    with pytest.raises(ValueError, match=r"^samples\.rows\.text: numbers: a BYTES element"):
        rows_of(sample_rows={"text": numbers})
    words.write_bytes(words.read_bytes() * 2)
    with pytest.raises(ValueError, match=r"words: expected 1 elements, got 2"):
        rows_of(sample_rows={"text": words})


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"imag": np.zeros((1, 2, 2))}, "array 'imag' of rows.npz: no such input"),
        ({"image": np.zeros((1, 2, 2))}, "'image' of rows.npz: expected float32, got float64"),
        ({"image": np.zeros((1, 3, 2), "f4")}, "expected a shape that fits [-1, 2, -1], got [1, 3"),
        ({"image": np.zeros((2, 2), "f4")}, "expected a shape that fits [-1, 2, -1], got [2, 2]"),
        ({"image": np.zeros((0, 2, 2), "f4")}, "expected at least one row, got shape [0, 2, 2]"),
        ({"text": np.array([[b"\xff"]])}, "array 'text' of rows.npz: expected text, got |S1"),
        ({"text": np.ones((1, 1))}, "expected text, got float64"),
        ({"text": np.array([["a"]], object)}, "expected an .npz file without objects"),
        (
            {"image": np.zeros((2, 2, 2), "f4"), "rate": np.zeros(3, "i2")},
            ("expected as many rows for each input in rows.npz, got {'image': 2, 'rate': 3}"),
        ),
    ],
)
def test_samples_that_do_not_fit_are_named(arrays: Arrays, message: str, archive: Any) -> None:
    with pytest.raises(ValueError, match=r"^samples: ") as caught:
        rows_of(samples=archive(**arrays))
    assert message in str(caught.value)


def test_a_truncated_file_of_samples(archive: Any, tmp_path: Path) -> None:
    whole = archive(image=np.zeros((2, 2, 300), "f4")).read_bytes()
    cut = tmp_path / "cut.npz"
    for end in (0, 1, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:end])
        with pytest.raises(ValueError, match=r"^samples: cut\.npz: expected an \.npz file"):
            rows_of(samples=cut)
    with pytest.raises(ValueError, match=r"^samples: gone: cannot be read: No such file"):
        rows_of(samples=tmp_path / "gone")


def test_a_huge_file_of_samples_is_not_unpacked(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as entries:
        entries.writestr("image.npy", bytes(MOST_BYTES + 1))
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(ValueError, match="arrays: 1, bytes: 67108865; at most"):
        rows_of(samples=bomb)
    with bomb.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(ValueError, match=r"^samples: bomb\.npz: expected at most 67108864 bytes"):
        rows_of(samples=bomb)
    with pytest.raises(ValueError, match=r"^samples\.rows\.rate: bomb\.npz: expected at most"):
        rows_of(sample_rows={"rate": bomb})


def test_a_header_that_promises_more_than_there_is(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    for shape in ((1, 2, 2**40), (1, 2, -2), (2**62, 2, 2)):
        stream = io.BytesIO()
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        with zipfile.ZipFile(path, "w") as entries:
            entries.writestr("image.npy", stream.getvalue() + bytes(64))
        with pytest.raises(ValueError, match=r"^samples: "):
            rows_of(samples=path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rate", 40000, "inputs.rate.value: expected INT16, got 40000"),
        ("rate", 1.5, "expected INT16, got 1.5"),
        ("rate", True, "expected INT16, got True"),
        ("rate", "8", "expected INT16, got '8'"),
        ("rate", 10**400, "expected INT16, got 1000"),
        ("image", 1e39, "inputs.image.value: expected FP32, got 1e+39"),
        ("image", 10**400, "expected FP32, got 1000"),
        ("text", 5, "inputs.text.value: expected text, got 5"),
    ],
)
def test_a_value_beyond_the_datatype_is_named(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"^inputs\.\w+\.value: ") as caught:
        rows_of(values={name: value})
    assert message in str(caught.value)


@pytest.mark.parametrize("datatype", [kind for kind in Datatype if kind is not Datatype.BYTES])
def test_every_datatype_has_constants(datatype: Datatype) -> None:
    interface = ModelInterface((TensorSpec("x", datatype, (3,)),), (), 0)
    (constant,) = some(rows_of(interface, values={"x": 1}), 1)["x"]
    expected = 0x3F80 if datatype is Datatype.BF16 else 1  # the upper half of 1.0
    assert constant.tolist() == [expected] * 3
    assert constant.dtype == datatype.dtype
    for huge in (1e300, 2):
        if huge == 1e300 and datatype is not Datatype.FP64:
            with pytest.raises(ValueError, match=f"expected {datatype.wire_name}, got"):
                rows_of(interface, values={"x": huge})


def test_statements_that_contradict_each_other_are_named(archive: Any) -> None:
    path = archive(image=np.zeros((1, 2, 5), "f4"))
    with pytest.raises(
        ValueError, match=r"have shape \[2, 5\], but inputs\.image\.shape is \[2, 4"
    ):
        rows_of(samples=path, warmup_shapes={"image": (2, 4)})
    with pytest.raises(ValueError, match=r"^inputs\.image\.value: not allowed with its samples"):
        rows_of(samples=path, values={"image": 1.0})
    with pytest.raises(ValueError, match=r"^inputs\.image\.shapes: expected a shape that fits"):
        rows_of(more_shapes=({"image": (3, 5)},))
    with pytest.raises(ValueError, match=r"^input 'image': a row of shape .* takes"):
        rows_of(more_shapes=({"image": (2, 1 << 30)},))
    both = Padding({"image": PaddedInput(2), "other": PaddedInput(1)}, {})
    other = TensorSpec("other", Datatype.FP32, (-1, -1))
    path = archive(image=np.zeros((1, 2, 5), "f4"), other=np.zeros((1, 4), "f4"))
    with pytest.raises(ValueError, match=r"^samples: expected one length for all padded inputs"):
        rows_of(ModelInterface((IMAGE, other), (), 8), samples=path, padding=both)


def test_a_row_of_all_inputs_has_a_bound() -> None:
    specs = tuple(TensorSpec(name, Datatype.UINT8, (-1, -1)) for name in ("a", "b"))
    shapes = {"a": (600 << 20,), "b": (500 << 20,)}
    with pytest.raises(ValueError, match=r"^input 'a': a row .* above 1073741824 with all"):
        rows_of(ModelInterface(specs, (), 8), warmup_shapes=shapes)
    words = ModelInterface((TensorSpec("t", Datatype.BYTES, (-1, -1)),), (), 8)
    with pytest.raises(ValueError, match=r"^input 't': a row of shape \[33554432\] takes"):
        rows_of(words, warmup_shapes={"t": (1 << 25,)})


def test_a_stated_row_that_does_not_run_is_called_so() -> None:
    interface = ModelInterface((TensorSpec("x", Datatype.FP32, (-1, -1)),), (), 8)
    source = ModelSource("m", "1", Path("m.onnx"), Path(), warmup_shapes={"x": (3,)})
    (message,) = SyntheticRows(interface, source).assumptions({"x": (3,)}, "Concat fails")
    assert message.startswith("the stated row does not run (Concat fails): ")


def test_requests_have_their_own_shapes_back(archive: Any) -> None:
    image = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    path = archive(
        **{"image.shapes": np.array([[2, 1], [2, 4], [2, 2]])},
        image=image,
        text=np.array([["a"], ["b"], ["c"]]),
        rate=np.array([5, 6, 7], np.int16),
        labels=np.array([1, 0, 1]),
    )
    first, second, third = read_requests(path, MODEL)
    np.testing.assert_array_equal(first["image"], image[:1, :, :1])
    np.testing.assert_array_equal(second["image"], image[1:2])
    assert third["image"].shape == (1, 2, 2)
    assert [request["rate"].tolist() for request in (first, second, third)] == [[5], [6], [7]]
    assert third["text"].tolist() == [["c"]]


def test_written_example_samples_are_read(tmp_path: Path) -> None:
    interface = ModelInterface((TensorSpec("input_ids", Datatype.INT64, (-1, -1)),), (), 8)
    rows = tuple({"input_ids": np.arange(size)[None]} for size in (3, 1, 5))
    Samples(rows, np.array([0, 1, 0])).write(tmp_path / "texts.npz")
    ids = [
        request["input_ids"].tolist()
        for request in read_requests(tmp_path / "texts.npz", interface)
    ]
    assert ids == [[[0, 1, 2]], [[0]], [[0, 1, 2, 3, 4]]]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rate": None}, "samples: rows.npz has no array 'rate'"),
        ({"more": np.zeros(2)}, "array 'more' of rows.npz: no such input"),
        ({"rate": np.zeros(3, np.int16)}, "expected as many rows for each input"),
        ({"image.shapes": np.array([[2, 3], [2, 2]])}, r"'image.shapes' .* at most \[2, 2\]"),
        ({"image.shapes": np.array([[-1, 2], [2, 2]])}, "'image.shapes'"),
        ({"image.shapes": np.array([2, 2])}, "'image.shapes'"),
        ({"image.shapes": np.zeros((2, 2))}, "'image.shapes' .* expected whole numbers"),
    ],
)
def test_requests_that_are_not_the_models_are_refused(
    archive: Any, changed: Arrays, message: str
) -> None:
    arrays = {
        "image": np.zeros((2, 2, 2), np.float32),
        "text": np.array([["a"], ["b"]]),
        "rate": np.zeros(2, np.int16),
    }
    arrays = {name: array for name, array in {**arrays, **changed}.items() if array is not None}
    with pytest.raises(ValueError, match=message):
        read_requests(archive(**arrays), MODEL)


def test_a_file_that_is_no_archive_is_refused_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "rows.npz").write_bytes(b"no zip")
    for path in (tmp_path / "rows.npz", tmp_path / "absent.npz"):
        with pytest.raises(ValueError, match=r"^samples: \w+\.npz: expected an \.npz") as caught:
            read_requests(path, MODEL)
        assert str(tmp_path) not in str(caught.value)
