"""A street of tiny models for tests of pipelines: boxes that an image spells out, and the colours
of what is in them; a frame's answer by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from slacktide.domain.crops import crop_extent
from slacktide.executors.images import made_up_image
from slacktide.executors.pictures import resize_into

HEIGHT, WIDTH, SIDE = 48, 64, 8
BOXES = WIDTH // 2
value = helper.make_tensor_value_info


def detector(zoo: Any, name: str = "detector", *, width: int = WIDTH, settings: str = "") -> None:
    """Boxes are written in the first line of an image: six bytes each, of which the last two are
    the score and the class."""
    zoo.save(
        name,
        [
            helper.make_node("Slice", ["image", "zero", "one", "down"], ["line"]),
            helper.make_node("Cast", ["line"], ["x"], to=TensorProto.FLOAT),
            helper.make_node("Reshape", ["x", "shape"], ["said"]),
            helper.make_node("Div", ["said", "most"], ["parts"]),
            helper.make_node("Slice", ["parts", "zero", "four", "last"], ["boxes"]),
            helper.make_node("Gather", ["parts", "at4"], ["scores"], axis=2),
            helper.make_node("Gather", ["said", "at5"], ["kind"], axis=2),
            helper.make_node("Cast", ["kind"], ["classes"], to=TensorProto.INT64),
        ],
        [value("image", TensorProto.UINT8, ["n", HEIGHT, width, 3])],
        [
            value("boxes", TensorProto.FLOAT, ["n", width // 2, 4]),
            value("scores", TensorProto.FLOAT, ["n", width // 2]),
            value("classes", TensorProto.INT64, ["n", width // 2]),
        ],
        [
            numpy_helper.from_array(np.array([0]), "zero"),
            numpy_helper.from_array(np.array([1]), "one"),
            numpy_helper.from_array(np.array([1]), "down"),
            numpy_helper.from_array(np.array([2]), "last"),
            numpy_helper.from_array(np.array([4]), "four"),
            numpy_helper.from_array(np.int64(4), "at4"),
            numpy_helper.from_array(np.int64(5), "at5"),
            numpy_helper.from_array(np.array([-1, width // 2, 6]), "shape"),
            numpy_helper.from_array(np.float32(255), "most"),
        ],
        settings=settings,
    )


def colour(zoo: Any, name: str = "colour", settings: str = "") -> None:
    """The mean colour of a crop, and how bright it is: [rows, 3] and [rows]."""
    zoo.save(
        name,
        [
            helper.make_node("Cast", ["image"], ["x"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2], keepdims=0),
            helper.make_node("ReduceMean", ["x"], ["bright"], axes=[1, 2, 3], keepdims=0),
        ],
        [value("image", TensorProto.UINT8, ["n", SIDE, SIDE, 3])],
        [value("mean", TensorProto.FLOAT, ["n", 3]), value("bright", TensorProto.FLOAT, ["n"])],
        settings=settings,
    )


def frame(*boxes: tuple[int, ...], width: int = WIDTH, seed: int = 1) -> Any:
    """An image with these boxes: (x0, y0, x1, y1, score, class), in 255ths."""
    image = made_up_image(HEIGHT, width, np.random.default_rng(seed))
    line = np.zeros((width // 2, 6), np.uint8)
    line[: len(boxes)] = np.array(boxes, np.uint8).reshape(-1, 6)
    image[0] = line.reshape(width, 3)
    return image


def crops(image: Any, *boxes: tuple[int, ...], margin: float = 0.0) -> Any:
    """What a stage behind gets of them."""
    out = np.empty((len(boxes), SIDE, SIDE, 3), np.uint8)
    for row, box in zip(out, boxes, strict=True):
        parts = np.array(box[:4], np.float32) / np.float32(255)
        extent = crop_extent(parts, image.shape[1], image.shape[0], margin)
        assert extent is not None
        left, top, right, bottom = extent
        resize_into(image[top:bottom, left:right], row)
    return out


CAR, VAN, TREE = 1, 2, 7
DETECTED = ("detect.boxes", "detect.classes")
SEEN = ((10, 20, 90, 120, 200, CAR), (100, 60, 200, 250, 250, VAN), (30, 30, 60, 90, 240, TREE))


STREET = """
slo: 20s
stages:
  detect: {model: detector, classes: [sky, car, van]}
  look: {model: colour, crop: {margin: 0.1}}
  shade: colour
  grade: grade
edges:
  - {from: detect, to: look, each: box, when: {class: [car, van], score: 0.5}}
  - {from: detect, to: shade, each: box}
  - {from: look, to: grade, tensors: {mean: x}}
"""


def street(zoo: Any, grade: str = "") -> None:
    """All of it; `grade`: settings of the last stage's model."""
    detector(zoo)
    colour(zoo, settings="max_batch: 8\n")
    zoo.double("grade", settings=grade)
    pipeline(zoo, "street", STREET)


def pipeline(zoo: Any, name: str, text: str) -> None:
    (zoo.root / name).mkdir(exist_ok=True)
    (zoo.root / name / "pipeline.yaml").write_text(text)


def ask_frame(house: Any, image: Any, name: str = "street", **parameters: Any) -> Any:
    shape = [1, *image.shape]
    call = house.call_of({"image": ("UINT8", shape, image.ravel().tolist())}, **parameters)
    return house.infer(name, call)


def outputs(answer: Any, partial: str | None = None) -> dict[str, Any]:
    """Of an answer that lacks these stages."""
    assert answer.status == 200, answer
    assert answer.json.get("parameters", {}).get("partial") == partial
    return {
        output["name"]: np.array(output["data"]).reshape(output["shape"])
        for output in answer.json["outputs"]
    }


def expected(image: Any) -> dict[str, Any]:
    """By hand: what each model says of what it is to get."""
    at = [1, 0]  # by score; a tree is no vehicle
    cars = crops(image, *(SEEN[place] for place in at), margin=0.1).astype(np.float32)
    all_of = [1, 2, 0]
    road_users = crops(image, *(SEEN[place] for place in all_of)).astype(np.float32)
    return {
        "look.rows": at,
        "look.mean": cars.mean((1, 2)),
        "look.bright": cars.mean((1, 2, 3)),
        "shade.rows": all_of,
        "shade.mean": road_users.mean((1, 2)),
        "shade.bright": road_users.mean((1, 2, 3)),
        "grade.y": 2 * cars.mean((1, 2)),
    }


def agree(tensors: Any, image: Any, lacks: tuple[str, ...] = ()) -> None:
    """What was answered is right, and only these stages are missing."""
    wanted = expected(image)
    missing = {name for name in wanted if name not in tensors}
    assert missing == {name for name in wanted if name.partition(".")[0] in lacks}
    for name in wanted.keys() - missing:
        np.testing.assert_allclose(tensors[name], wanted[name], atol=1e-2, err_msg=name)
    line = image[0].reshape(BOXES, 6)
    np.testing.assert_allclose(tensors["detect.boxes"][0], line[:, :4] / 255, atol=1e-6)
    assert tensors["detect.classes"][0].tolist() == line[:, 5].tolist()
