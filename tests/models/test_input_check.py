"""Inputs held against their model: every fault named by its field."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slacktide.domain import Reason
from slacktide.domain.crops import Glue
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.models.calls import input_check
from slacktide.models.calls.input_check import InputCheck
from slacktide.models.repository.settings import ModelSettings
from slacktide.wire.calls import InputTensor
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.raw_tensors import encode_strings

IMAGE = TensorSpec("image", Datatype.FP32, (-1, 3, 2))
WORDS = TensorSpec("words", Datatype.INT64, (-1, -1))
SCORES = TensorSpec("scores", Datatype.FP32, (-1, 4))
LABEL = TensorSpec("label", Datatype.BYTES, (-1, 1))


def check_for(*inputs, max_batch=4, **settings):
    interface = ModelInterface(tuple(inputs), (SCORES, LABEL), max_batch)
    return InputCheck(interface, ModelSettings.model_validate(settings))


def tensor(name, array):
    datatype = {"f4": Datatype.FP32, "i8": Datatype.INT64, "u1": Datatype.UINT8}[
        array.dtype.str[1:]
    ]
    return InputTensor(name, datatype, array.shape, array.tobytes())


def image(rows=1, name="image"):
    return tensor(name, np.zeros((rows, 3, 2), "<f4"))


def words(rows=1, length=5):
    return tensor("words", np.zeros((rows, length), "<i8"))


def test_rows_signature_and_size_of_fitting_inputs():
    checked = check_for(IMAGE, WORDS).check([image(2), words(2, 7)])
    assert (checked.rows, checked.signature) == (2, ((3, 2), (7,)))
    assert checked.nbytes == 2 * 24 + 2 * 56


@pytest.mark.parametrize(("max_batch", "axes"), [(4, (-1,)), (0, (2,))])
def test_an_input_may_be_sent_in_the_shape_that_its_configuration_reshapes(max_batch, axes):
    spec = TensorSpec("x", Datatype.FP32, axes)
    interface = ModelInterface((spec,), (SCORES,), max_batch)
    shape = (1,) if max_batch else (2, 1)
    check = InputCheck(interface, ModelSettings(), client_shapes={"x": shape})
    plain = check.check([tensor("x", np.zeros(2, "<f4"))])
    sent = check.check([tensor("x", np.zeros((2, 1), "<f4"))])
    assert [tensor.shape for tensor in sent.tensors] == [(2,)]
    assert (sent.rows, sent.signature) == (plain.rows, plain.signature)
    with pytest.raises(BadField, match="input 'x' shape"):
        check.check([tensor("x", np.zeros((2, 2), "<f4"))])


def test_order_follows_the_model():
    checked = check_for(IMAGE, WORDS).check([words(), image()])
    assert [t.name for t in checked.tensors] == ["image", "words"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "inputs: expected the input 'image'"),
        ([image(name="img")], r"inputs\[0\].name: expected one of 'image', got 'img'"),
        ([image(), image()], "each input once"),
        ([tensor("image", np.zeros((1, 3, 2), "u1"))], "'image' datatype: expected FP32, got"),
        ([tensor("image", np.zeros((1, 3, 3), "<f4"))], r"'image' shape: expected \[-1, 3, 2\]"),
        ([tensor("image", np.zeros((3, 2), "<f4"))], "'image' shape"),
        ([tensor("image", np.zeros((), "<f4"))], "'image' shape"),
        ([image(rows=129)], r"'image' shape\[0\]: expected 1 to 128 rows, got 129"),
        ([image(rows=0)], r"'image' shape\[0\]: expected 1 to 128 rows, got 0"),
        (
            [InputTensor("image", Datatype.FP32, (1, 3, 2), b"x" * 23)],
            "'image' data: expected 24 bytes for shape",
        ),
    ],
)
def test_faults_are_named_by_field(inputs, message):
    with pytest.raises(BadField, match=message) as caught:
        check_for(IMAGE).check(inputs)
    assert caught.value.reason is Reason.BAD_INPUT


def test_inputs_must_agree_on_rows():
    with pytest.raises(
        BadField, match=r"'words' shape\[0\]: expected 2 rows as in the other inputs"
    ):
        check_for(IMAGE, WORDS).check([image(2), words(3)])


def test_a_model_without_batch_axis_takes_one_row_and_any_free_shape():
    check = check_for(TensorSpec("x", Datatype.FP32, (-1, 2)), max_batch=0)
    checked = check.check([tensor("x", np.zeros((9, 2), "<f4"))])
    assert (checked.rows, checked.signature) == (1, ((9, 2),))


def test_limits_of_the_settings_hold():
    with pytest.raises(BadField, match="1 to 2 rows"):
        check_for(IMAGE, limits={"rows": 2}).check([image(3)])
    with pytest.raises(BadField, match="at most 30 bytes") as caught:
        check_for(IMAGE, limits={"payload": 30}).check([image(2)])
    assert caught.value.reason is Reason.TOO_LARGE


def test_remembered_forms_equal_fresh_checks_and_are_bounded(monkeypatch):
    monkeypatch.setattr(input_check, "MOST_FORMS", 3)
    check, fresh = check_for(IMAGE, WORDS, work_hint="bytes"), check_for(IMAGE, WORDS)
    for length in (1, 2, 3, 4, 1, 4):
        given = [image(2), words(2, length)]
        checked = check.check(given)
        assert checked == replace(fresh.check(given), work_hint=float(checked.nbytes))
        assert checked.tensors is given
        with pytest.raises(BadField, match="'words' data"):
            check.check([image(2), replace(words(2, length), data=b"")])
    assert 0 < len(check._checked_forms) <= 3


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_must_be_finite_where_the_model_says_so(value):
    bad = np.zeros((1, 3, 2), "<f4")
    bad[0, 1, 1] = value
    check_for(IMAGE).check([tensor("image", bad)])
    strict = check_for(IMAGE, inputs={"image": {"finite": True}})
    strict.check([image()])
    with pytest.raises(BadField, match="'image' data: expected finite numbers"):
        strict.check([tensor("image", bad)])


@pytest.mark.parametrize(("raw", "finite"), [(0x3F80, True), (0x7F80, False), (0x7FC0, False)])
def test_bfloat16_is_read_by_its_bits(raw, finite):
    check = check_for(TensorSpec("x", Datatype.BF16, (-1, 1)), inputs={"x": {"finite": True}})
    tensor = InputTensor("x", Datatype.BF16, (1, 1), np.array([raw], "<u2").tobytes())
    if finite:
        assert check.check([tensor]).rows == 1
    else:
        with pytest.raises(BadField, match="finite"):
            check.check([tensor])


class TestRawRequests:
    """The whole body is the one input, batch 1."""

    def raw(self, data):
        return [InputTensor("", Datatype.UINT8, (), data)]

    def test_name_type_and_shape_follow_from_the_model(self):
        (taken,) = check_for(IMAGE).check(self.raw(b"\0" * 24)).tensors
        assert (taken.name, taken.datatype, taken.shape) == ("image", Datatype.FP32, (1, 3, 2))

    def test_one_free_axis_follows_from_the_length(self):
        (taken,) = check_for(WORDS).check(self.raw(b"\0" * 40)).tensors
        assert taken.shape == (1, 5)

    def test_a_wrong_length_is_refused(self):
        with pytest.raises(BadField, match="24 bytes"):
            check_for(IMAGE).check(self.raw(b"\0" * 25))

    @pytest.mark.parametrize(
        "specs", [(IMAGE, WORDS), (LABEL,), (TensorSpec("x", Datatype.FP32, (-1, -1, -1)),)]
    )
    def test_a_raw_body_that_does_not_fit_is_refused(self, specs):
        with pytest.raises(BadField, match="a JSON header"):
            check_for(*specs).check(self.raw(b"\0" * 24))


def label(*elements):
    return InputTensor("label", Datatype.BYTES, (len(elements), 1), encode_strings(elements))


@pytest.mark.parametrize(
    "elements",
    [(b"", b"plain"), ("grün".encode(), b"x" * 200), ("é".encode() * 3, b"abcdef")],
)
def test_strings_in_utf_8_pass(elements):
    assert check_for(LABEL).check([label(*elements)]).rows == 2


@pytest.mark.parametrize(
    ("elements", "at"),
    [((b"\xff", b"a"), 0), ((b"a" * 150, b"\xc3"), 1), ((b"\xc3", b"\xa9"), 0)],
)
def test_a_string_that_is_not_utf_8_is_named(elements, at):
    with pytest.raises(WireError, match=f"input 'label': expected UTF-8, element {at} is not"):
        check_for(LABEL).check([label(*elements)])


def test_wanted_outputs_by_position():
    check = check_for(IMAGE)
    assert check.check_outputs([]) == (0, 1)
    assert check.check_outputs(["label", "scores"]) == (1, 0)
    with pytest.raises(BadField, match=r"outputs\[1\].name: expected one of 'scores', 'label'"):
        check.check_outputs(["label", "logits"])


IDS = TensorSpec("ids", Datatype.INT64, (-1, -1))
MASK = TensorSpec("mask", Datatype.INT64, (-1, -1))
PAD = {"inputs": {"ids": {"pad": {"mask": "mask"}}}}


def ids(length, rows=1, name="ids"):
    return tensor(name, np.zeros((rows, length), "<i8"))


def test_unequal_lengths_share_a_signature_where_they_are_padded():
    check = check_for(IDS, MASK, IMAGE, **PAD)
    short, long = (check.check([ids(n), ids(n, name="mask"), image()]) for n in (3, 9))
    assert short.signature == long.signature == ((), (), (3, 2))
    plain = check_for(IDS, MASK, IMAGE)
    assert plain.check([ids(3), ids(3, name="mask"), image()]).signature == ((3,), (3,), (3, 2))


def test_free_axes_that_are_not_padded_stay_in_the_signature():
    grid = TensorSpec("grid", Datatype.FP32, (-1, -1, -1))
    check = check_for(grid, inputs={"grid": {"pad": {"axis": 2}}}, padding="exact")
    checked = check.check([tensor("grid", np.zeros((1, 5, 7), "<f4"))])
    assert checked.signature == ((5,),)


def test_without_a_mask_or_the_owners_word_lengths_stay_apart():
    checked = check_for(IDS, inputs={"ids": {"pad": {}}}).check([ids(3)])
    assert checked.signature == ((3,),)


def test_a_request_too_large_to_be_multiplied_keeps_its_shapes():
    check = check_for(IDS, MASK, **PAD)  # of four rows at most
    most = (64 << 20) // 4 // 16
    fits = check.check([ids(most)])
    assert fits.signature == ((), ())
    over = check.check([ids(most + 1)])
    assert over.signature == ((most + 1,), (most + 1,))


def test_a_mask_that_is_left_out_counts_as_well():
    byte = TensorSpec("ids", Datatype.UINT8, (-1, -1))
    check = check_for(byte, MASK, **PAD)
    most = (64 << 20) // 4 // 9
    fits, over = (check.check([tensor("ids", np.zeros((1, n), "u1"))]) for n in (most, most + 1))
    assert fits.signature == ((), ())
    assert over.signature == ((most + 1,), (most + 1,))


def test_no_mask_is_made_for_what_has_a_length_but_no_elements():
    grid = TensorSpec("ids", Datatype.INT64, (-1, -1, -1))
    huge = InputTensor("ids", Datatype.INT64, (1, 1 << 40, 0), b"")
    with pytest.raises(BadField, match="inputs: expected the input 'mask'"):
        check_for(grid, MASK, **PAD).check([huge])


def test_a_mask_may_be_left_out():
    checked = check_for(IDS, MASK, **PAD).check([ids(5, rows=2)])
    assert [t.shape for t in checked.tensors] == [(2, 5), (2, 5)]
    assert (checked.rows, checked.nbytes, len(checked.tensors[1].data)) == (2, 80, 0)
    with pytest.raises(BadField, match="inputs: expected the input 'mask'"):
        check_for(IDS, MASK).check([ids(5)])
    with pytest.raises(BadField, match="inputs: expected the input 'ids'"):
        check_for(IDS, MASK, **PAD).check([ids(5, name="mask")])


def test_a_mask_that_is_sent_must_have_its_bytes():
    empty = InputTensor("mask", Datatype.INT64, (1, 5), b"")
    with pytest.raises(BadField, match="'mask' data: expected 40 bytes for shape"):
        check_for(IDS, MASK, **PAD).check([ids(5), empty])


def test_a_request_has_one_length():
    with pytest.raises(BadField, match=r"'mask' shape\[1\]: expected 5 as in 'ids', got 4"):
        check_for(IDS, MASK, **PAD).check([ids(5), ids(4, name="mask")])


def test_a_request_longer_than_the_model_takes_spoils_no_batch():
    check = check_for(IDS, MASK, limits={"length": 5}, **PAD)
    check.check([ids(5)])
    with pytest.raises(BadField, match=r"'ids' shape\[1\]: expected at most 5, got 6") as caught:
        check.check([ids(6)])
    assert caught.value.reason is Reason.BAD_INPUT


@pytest.mark.parametrize(
    ("declared", "hint"),
    [
        (None, None),
        ("rows", 2.0),
        ("bytes", 2 * 7 * 8.0),
        ({"input": "ids", "axis": 1}, 7.0),
    ],
)
def test_declared_hints_are_read_off_the_request(declared, hint):
    settings = {} if declared is None else {"work_hint": declared}
    assert check_for(IDS, **settings).check([ids(7, rows=2)]).work_hint == hint


def pixels(height, width):
    return TensorSpec("image", Datatype.UINT8, (-1, height, width, 3))


def boxes(*rows):
    return np.array(rows, np.float32).tobytes()


WIDE, HIGH = (0.0, 0.0, 1.0, 0.25), (0.25, 0.0, 0.5, 1.0)


def test_crops_are_as_the_model_takes_them():
    fixed = check_for(pixels(8, 6)).crops(boxes(WIDE, HIGH), 200, 100)
    assert (fixed.rows, fixed.signature, fixed.nbytes) == (2, ((8, 6, 3),), 2 * 8 * 6 * 3)
    pad = {"image": {"pad": {"axis": 2}}}
    hint = {"input": "image", "axis": 2}
    padded = check_for(
        pixels(32, -1), inputs=pad, lengths=[16, 64], work_hint=hint, padding="exact"
    )
    both, single = (padded.crops(boxes(*chosen), 200, 100) for chosen in ([HIGH, WIDE], [HIGH]))
    assert both.signature == single.signature == ((32, 3),)
    assert (both.work_hint, single.work_hint) == (64.0, 4.0)
    assert padded.crops(boxes(HIGH), 200, 100, Glue(0.5)).work_hint == 8.0
    own = check_for(pixels(-1, -1)).crops(boxes(WIDE), 200, 100)
    assert own.signature == ((50, 100, 3),)
    sized = InputCheck(ModelInterface((pixels(-1, -1),), (), 4), ModelSettings(), any_image=True)
    assert sized.crops(boxes(WIDE), 200, 100).signature == ()
    with pytest.raises(BadField, match="1 to 128 rows, got 129"):
        padded.crops(boxes(*[WIDE] * 129), 200, 100)
    with pytest.raises(BadField, match="1 to 128 rows, got 0"):
        padded.crops(boxes(), 200, 100)
    with pytest.raises(TypeError, match="no input for images only"):
        check_for(IMAGE).crops(boxes(WIDE), 200, 100)
    with pytest.raises(TypeError, match="no input for images only"):
        check_for(WORDS).crops(boxes(WIDE), 200, 100)
    beside = check_for(WORDS, pixels(8, 6)).crops(boxes(WIDE), 200, 100)
    assert beside.signature == ((8, 6, 3),)
