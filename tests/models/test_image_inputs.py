"""What may come as an image: JPEG or pixels, judged before anything is decoded."""

from __future__ import annotations

import base64
import json
import math
import struct

import numpy as np
import pytest

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec, image_input
from slacktide.executors.images import made_up_image
from slacktide.executors.jpeg_elements import element_picture, jpeg_elements
from slacktide.executors.pictures import encode_jpeg
from slacktide.models import image_inputs
from slacktide.models.calls.input_check import InputCheck
from slacktide.models.repository.settings import ModelSettings
from slacktide.wire.calls import InputTensor
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.oip_json import parse_infer
from slacktide.wire.raw_tensors import encode_strings

FREE = TensorSpec("image", Datatype.UINT8, (-1, -1, -1, 3))
FIXED = TensorSpec("image", Datatype.UINT8, (-1, 24, 32, 3))
SCALE = TensorSpec("scale", Datatype.FP32, (-1, -1))
SCORES = TensorSpec("scores", Datatype.FP32, (-1, 4))
JPEG = encode_jpeg(made_up_image(60, 80, np.random.default_rng(0)))


def interface_of(*inputs: TensorSpec, max_batch: int = 4) -> ModelInterface:
    return ModelInterface(inputs, (SCORES,), max_batch)


def check_for(*inputs: TensorSpec, any_image: bool = False, **settings) -> InputCheck:
    model = ModelSettings.model_validate(settings)
    return InputCheck(interface_of(*inputs), model, any_image=any_image)


def jpegs(*elements: bytes, shape=None) -> InputTensor:
    return InputTensor("image", Datatype.BYTES, shape or (len(elements),), encode_strings(elements))


def pixels(*shape: int, datatype: Datatype = Datatype.UINT8) -> InputTensor:
    return InputTensor("image", datatype, shape, bytes(math.prod(shape) * datatype.itemsize))


def scales(rows: int = 1) -> InputTensor:
    return InputTensor("scale", Datatype.FP32, (rows, 2), bytes(8 * rows))


@pytest.mark.parametrize(
    ("inputs", "index"),
    [
        ([FREE], 0),
        ([SCALE, FIXED], 1),
        ([FREE, FIXED], None),
        ([TensorSpec("image", Datatype.UINT8, (-1, -1, 32, 3))], None),
        ([TensorSpec("image", Datatype.FP32, (-1, -1, -1, 3))], None),
        ([TensorSpec("image", Datatype.UINT8, (-1, -1, -1, 4))], None),
        ([TensorSpec("image", Datatype.UINT8, (-1, 3, 3))], None),
    ],
)
def test_which_input_takes_images(inputs, index) -> None:
    assert image_input(interface_of(*inputs)) == index
    assert image_input(interface_of(*inputs, max_batch=0)) is None


def test_requests_of_a_family_batch_whatever_their_sizes() -> None:
    check = check_for(FREE, any_image=True)
    for _ in range(2):  # the second is known by its form
        raw = check.check([pixels(2, 48, 100, 3)])
        assert (raw.rows, raw.signature, raw.image_size) == (2, (), 100)
    jpeg = check.check([jpegs(JPEG)])
    assert (jpeg.rows, jpeg.signature, jpeg.image_size) == (1, (), 0)
    both = check_for(SCALE, FREE, any_image=True)
    assert both.check([scales(), jpegs(JPEG)]).signature == ((2,),)
    files = check_for(FIXED, any_image=True)
    signatures = {files.check([sent]).signature for sent in (jpegs(JPEG), pixels(1, 9, 9, 3))}
    assert signatures == {((24, 32, 3),)}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "something else"),
        (b"GIF89a", "GIF; send JPEG"),
        (b"II*\0", "TIFF; send JPEG"),
        (b"data:image/jpeg;base64,", "a data: URI"),
    ],
)
@pytest.mark.parametrize("spec", [FREE, FIXED])
def test_a_whole_body_that_is_no_jpeg_is_called_what_it_is(body, kind, spec) -> None:
    with pytest.raises(WireError, match=f"body: expected a JPEG, .* got {kind}"):
        check_for(spec, any_image=True).check([InputTensor("", Datatype.UINT8, (), body)])


def test_a_model_of_one_size_takes_jpeg_beside_its_own_pixels() -> None:
    fixed = check_for(FIXED)
    assert fixed.check([jpegs(JPEG, JPEG)]).signature == ((24, 32, 3),)
    assert fixed.check([jpegs(JPEG, shape=(1, 1))]).rows == 1
    assert fixed.check([pixels(1, 24, 32, 3)]).image_size == 0
    with pytest.raises(BadField, match=r"shape: expected '?\[-1, 24, 32, 3\]"):
        fixed.check([pixels(1, 24, 30, 3)])
    stated = check_for(FREE, inputs={"image": {"shape": [40, 50, 3]}})
    assert stated.check([jpegs(JPEG)]).signature == ((40, 50, 3),)
    assert stated.check([pixels(1, 40, 50, 3)]).signature == ((40, 50, 3),)
    assert stated.check([pixels(1, 7, 5, 3)]).signature == ((7, 5, 3),)
    with pytest.raises(WireError, match=r"state inputs\.image\.shape in the model"):
        check_for(FREE).check([jpegs(JPEG)])


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (jpegs(JPEG, shape=(1, 1, 1)), r"input 'image' shape: expected \[rows\], a JPEG for each"),
        (jpegs(JPEG, shape=(2,)), "input 'image': expected 2 strings"),
        (jpegs(*[JPEG] * 129), "1 to 128 rows"),
        (jpegs(JPEG, b"GIF89a"), "image': expected a JPEG as element 1, got GIF; send JPEG, or"),
        (jpegs(JPEG, b"text"), "image': expected a JPEG as element 1, got something else"),
        (jpegs(JPEG[:100]), "expected a JPEG as element 0, got a truncated one"),
        (jpegs(b"/9j/ is not base64"), "as element 0, got base64 with white space"),
        (jpegs(b"data:image/jpeg;base64,/9j/"), "as element 0, got a data: URI; send only"),
        (pixels(1, 101, 100, 3), r"at most 10000 pixels \(limits.pixels\), got 100 × 101"),
        (pixels(1, 0, 5, 3), r"shape: expected \[rows, height, width, 3\]"),
        (pixels(1, 5, 5, 4), r"shape: expected \[rows, height, width, 3\]"),
        (pixels(5, 5, 3), r"shape: expected \[rows, height, width, 3\]"),
        (pixels(1, 5, 5, 3, datatype=Datatype.FP32), "datatype: expected UINT8, or BYTES for JPEG"),
        (InputTensor("image", Datatype.UINT8, (1, 5, 5, 3), bytes(74)), "data: expected 75 bytes"),
    ],
)
def test_faults_are_named(tensor: InputTensor, message: str) -> None:
    check = check_for(FREE, any_image=True, limits={"pixels": 10_000})
    with pytest.raises(WireError, match=message.replace("expected [", "expected '?[")):
        check.check([tensor])


def test_the_size_of_a_jpeg_is_limited_before_it_is_decoded() -> None:
    at = JPEG.index(b"\xff\xc0") + 5
    bomb = JPEG[:at] + b"\xff\xff\xff\xff" + JPEG[at + 4 :]
    with pytest.raises(WireError, match=r"52428800 pixels \(limits.pixels\), got 65535 × 65535"):
        check_for(FIXED).check([jpegs(JPEG, bomb)])


def test_json_holds_a_jpeg_in_base64() -> None:
    text = base64.b64encode(JPEG).decode()
    document = {
        "inputs": [{"name": "image", "datatype": "BYTES", "shape": [2], "data": [text] * 2}]
    }
    call, _ = parse_infer("m", None, json.dumps(document).encode(), None)
    checked = check_for(FIXED).check(call.inputs)
    assert [
        element_picture(jpeg_element) for jpeg_element in jpeg_elements(checked.tensors[0].data)
    ] == [JPEG] * 2


def test_a_raw_body_may_be_a_jpeg() -> None:
    body = memoryview(JPEG)
    checked = check_for(FIXED).check([InputTensor("", Datatype.UINT8, (len(JPEG),), body)])
    assert checked.tensors[0].datatype is Datatype.BYTES
    assert (checked.tensors[0].shape, checked.rows) == ((1,), 1)
    assert checked.tensors[0].data is body  # however long it is, it is not copied


def large(width: int, height: int, *, progressive: bool = False) -> bytes:
    """A small file that states this size."""
    at = JPEG.index(b"\xff\xc0")
    size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    kind = b"\xff\xc2" if progressive else b"\xff\xc0"
    return JPEG[:at] + kind + JPEG[at + 2 : at + 5] + size + JPEG[at + 9 :]


def test_decoding_is_charged_by_pixels_and_components() -> None:
    check = check_for(FIXED)

    def charge(*pictures: bytes) -> float:
        return check.check([jpegs(*pictures)]).decoding

    assert charge(JPEG) == charge(large(1000, 1000)) == 0.0  # as the models learn it
    half, whole = charge(large(6000, 4000)), charge(large(8000, 6000))
    assert 0.01 < half < whole < 0.2
    assert charge(JPEG, large(8000, 6000), large(6000, 4000)) == pytest.approx(half + whole)
    assert charge(large(6000, 4000, progressive=True)) > 3 * half
    assert charge(base64.b64encode(large(6000, 4000))) == pytest.approx(half, rel=0.01)
    assert charge(large(6000, 4000) + bytes(8 << 20)) > half + 0.02  # so are long files
    assert check.check([pixels(1, 24, 32, 3)]).decoding == 0.0


def test_png_and_webp_are_charged_more_than_jpeg() -> None:
    check = check_for(FIXED)
    size = struct.pack(">II", 8000, 6000)
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + size + bytes(60)
    canvas = (7999 | 5999 << 24).to_bytes(6, "little")
    webp = b"RIFF0000WEBPVP8X" + bytes(8) + canvas + bytes(60)
    jpeg, *others = (
        check.check([jpegs(picture)]).decoding for picture in (large(8000, 6000), png, webp)
    )
    assert others == pytest.approx([6 * jpeg, 5 * jpeg], rel=0.05)
    small = png.replace(size, struct.pack(">II", 400, 400))
    assert check.check([jpegs(small)]).decoding == 0.0


def test_without_a_decoder_jpeg_is_refused_and_pixels_are_not(monkeypatch) -> None:
    monkeypatch.setattr(image_inputs, "decodes_jpeg", lambda: False)
    check = check_for(FREE, any_image=True)
    assert check.check([pixels(1, 8, 8, 3)]).image_size == 8
    with pytest.raises(WireError, match=r"pip install 'slacktide\[images\]'"):
        check.check([jpegs(JPEG)])


@pytest.mark.parametrize(
    ("inputs", "options", "largest"),
    [
        ([FIXED], {}, 128 * 24 * 32 * 3),
        ([FIXED, TensorSpec("scale", Datatype.FP32, (-1, 2))], {}, 128 * (24 * 32 * 3 + 8)),
        ([FIXED], {"limits": {"rows": 2}}, 2 * 24 * 32 * 3),
        ([FIXED], {"limits": {"payload": 1000}}, 1000),
        ([FREE], {}, 4 * 3 * 52_428_800),
        ([FREE], {"limits": {"payload": 1000}}, 1000),
        ([SCALE], {}, 0),
        ([TensorSpec("text", Datatype.BYTES, (-1, 1))], {}, 0),
    ],
)
def test_fixed_shapes_bound_a_body(inputs, options, largest) -> None:
    assert check_for(*inputs, **options).largest == largest


def test_pixels_of_any_size_are_bounded_by_their_limit() -> None:
    check = check_for(FREE, any_image=True, limits={"pixels": 10_000})
    assert check.largest == 128 * 30_000
