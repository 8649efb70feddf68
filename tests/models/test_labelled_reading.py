"""Labelled images: each format, what is refused with its place, and images from files."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from slacktide.models.accuracy import Boxes
from slacktide.models.labelled.images import DataError, LabelledImage
from slacktide.models.labelled.pictures import load_picture, picture_size
from slacktide.models.labelled.reading import read_labels

BOX = [0.1, 0.2, 0.3, 0.4]


def folder(root: Path, *lines: Any) -> Path:
    (root / "images").mkdir(exist_ok=True)
    np.save(root / "images" / "0.npy", np.zeros((4, 4, 3), np.uint8))
    picture(root / "images" / "1.jpg")
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (root / "labels.jsonl").write_text("\n".join(text) + "\n")
    return root


def detected(**more: Any) -> dict[str, Any]:
    return {"image": "images/0.npy", "boxes": [BOX], "classes": [2], **more}


def test_boxes_and_labels_are_read(tmp_path: Path) -> None:
    lines = (detected(), "", detected(boxes=[], classes=[], night=1))
    images = read_labels(folder(tmp_path, *lines)).images
    assert [labelled_image.where for labelled_image in images] == [
        "labels.jsonl line 1",
        "labels.jsonl line 3",
    ]
    first, second = (labelled_image.truth for labelled_image in images)
    assert isinstance(first, Boxes)
    assert isinstance(second, Boxes)
    assert first.boxes.tolist() == [BOX]
    assert first.classes.tolist() == [2]
    assert second.boxes.shape == (0, 4)
    (labelled,) = read_labels(folder(tmp_path, {"image": "images/1.jpg", "label": 7})).images
    assert labelled.truth == 7


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "labels.jsonl: expected 1 to 100000 images, got none"),
        (["{"], "labels.jsonl line 1: expected a JSON object"),
        (["[" * 100_000], "labels.jsonl line 1: expected a JSON object"),
        (["[]"], "labels.jsonl line 1: expected keys and values, got []"),
        ([{"label": 1}], "labels.jsonl line 1: expected a key 'image'"),
        (
            [detected(image="images/0.gif")],
            "line 1: image: expected a .jpg, .jpeg, .npy, .png, .bmp or",
        ),
        ([detected(image="images/9.npy")], "image: there is no file 'images/9.npy' in the data"),
        ([detected(image="../out.npy")], "image: there is no file '../out.npy' in the data"),
        ([detected(image="link.npy")], "image: there is no file 'link.npy' in the data"),
        ([detected(image="a\0b.npy")], "image: expected a path, got 'a"),
        ([{"image": "images/0.npy"}], "expected 'label', or the lists 'boxes' and 'classes'"),
        (
            [{"image": "images/0.npy", "label": -1}],
            "label: expected greater than or equal to 0, got -1",
        ),
        ([{"image": "images/0.npy", "label": True}], "label: expected a whole number"),
        ([{"image": "images/0.npy", "label": 1.0}], "label: expected a whole number"),
        ([detected(classes=[])], "expected a class for each box, got 1 boxes and 0 classes"),
        (
            [detected(boxes=[BOX] * 5000, classes=[0] * 5000)],
            "boxes: expected at most 4096, got 5000",
        ),
        (
            [detected(), detected(boxes=[[1, 2, 3]])],
            "line 2: boxes[0][1]: expected less than or equal to 1",
        ),
        ([detected(boxes=[[0.3, 0.2, 0.1, 0.4]])], "boxes[0]: expected [left, top, right, bottom]"),
        (
            [detected(boxes=[[0, 0, 304, 208]])],
            "boxes[0][2]: expected less than or equal to 1, got 304",
        ),
        (
            ['{"image": "images/0.npy", "boxes": [[0,0,NaN,1]], "classes": [0]}'],
            "boxes[0][2]: expected a finite",
        ),
        ([detected(classes=["car"])], "classes[0]: expected a whole number, got 'car'"),
        ([detected(), {"image": "images/0.npy", "label": 1}], "line 2: expected 'label' in every"),
        ([detected(boxes=[], classes=[])], "labels.jsonl: no image has a box"),
    ],
)
def test_faults_of_labels_are_named_by_line(tmp_path: Path, lines: list[Any], message: str) -> None:
    np.save(tmp_path / "out.npy", np.zeros((4, 4, 3), np.uint8))
    data = tmp_path / "data"
    data.mkdir()
    os.symlink(tmp_path / "out.npy", data / "link.npy")
    with pytest.raises(DataError) as caught:
        read_labels(folder(data, *lines))
    assert message in str(caught.value)


def test_a_folder_without_labels_is_told_what_there_may_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected labels\.jsonl, data\.yaml, annotations/instan"):
        read_labels(tmp_path)
    (tmp_path / "labels.jsonl").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"^labels\.jsonl: expected UTF-8"):
        read_labels(tmp_path)


def test_pixels_are_sent_as_they_are_and_files_as_bytes(tmp_path: Path) -> None:
    first, second = read_labels(folder(tmp_path, detected(), detected(image="images/1.jpg"))).images
    assert load_picture(first) == (bytes(48), (1, 4, 4, 3))
    jpeg = second.path.read_bytes()
    assert load_picture(second) == (len(jpeg).to_bytes(4, "little") + jpeg, (1,))


@pytest.mark.parametrize(
    "array", [np.zeros((4, 4)), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)]
)
def test_an_array_that_is_no_image_is_refused(tmp_path: Path, array: Any) -> None:
    (image,) = read_labels(folder(tmp_path, detected())).images
    np.save(image.path, array)
    with pytest.raises(DataError, match=r"line 1: 0\.npy: expected uint8 \[height, width, 3\]"):
        load_picture(image)
    image.path.write_bytes(b"no array")
    with pytest.raises(DataError, match=r"0\.npy: expected uint8"):
        load_picture(image)
    np.save(image.path, np.array([{"an": "object"}]), allow_pickle=True)
    with pytest.raises(DataError, match=r"0\.npy: expected uint8"):
        load_picture(image)


# ── COCO ─────────────────────────────────────────────────────────────────────────────────────────


def picture(path: Path, width: int = 40, height: int = 20, colour: int = 90) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((height, width, 3), 0, np.uint8)
    pixels[: height // 2] = colour
    if path.suffix == ".npy":
        np.save(path, pixels)
    else:
        assert cv2.imwrite(str(path), pixels)
    return path


def coco(root: Path, **changed: Any) -> Path:
    """A set of two images and two categories, whose ids are far apart."""
    for name in ("a.jpg", "b.png"):
        picture(root / "images" / name)
    document = {
        "images": [
            {"id": 5, "file_name": "a.jpg", "width": 40, "height": 20},
            {"id": 2, "file_name": "b.png"},
        ],
        "annotations": [
            {"id": 1, "image_id": 5, "category_id": 90, "bbox": [10, 5, 20, 10], "iscrowd": 0},
            {"id": 2, "image_id": 5, "category_id": 7, "bbox": [0, 0, 40, 20], "iscrowd": 1},
        ],
        "categories": [{"id": 90, "name": "Dog"}, {"id": 7, "name": "cat"}],
        **changed,
    }
    file = root / "annotations" / "instances_val.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(document))
    return file


def test_coco_is_read_from_its_folder_and_from_its_file(tmp_path: Path) -> None:
    file = coco(tmp_path)
    for path in (tmp_path, file):
        labelled = read_labels(path)
        first, second = labelled.images
        assert isinstance(first.truth, Boxes)
        assert isinstance(second.truth, Boxes)
        assert first.truth.boxes.tolist() == [[0.25, 0.25, 0.75, 0.75], [0, 0, 1, 1]]
        assert first.truth.classes.tolist() == [1, 0], "in the order of ids"
        assert first.truth.crowds is not None
        assert first.truth.crowds.tolist() == [False, True]
        assert second.truth.boxes.shape == (0, 4)
        assert labelled.class_names == {0: "cat", 1: "Dog"}
    labelled = read_labels(tmp_path, ["dog", "fish", "CAT"])
    assert isinstance(labelled.images[0].truth, Boxes)
    assert labelled.images[0].truth.classes.tolist() == [0, 2], "by the model's labels"
    assert labelled.class_names[2] == "CAT"


@pytest.mark.parametrize("layout", ["val", "images/val", "."])
def test_coco_images_lie_where_exporters_put_them(tmp_path: Path, layout: str) -> None:
    coco(tmp_path)
    shutil.move(tmp_path / "images", tmp_path / "moved")
    (tmp_path / layout).mkdir(parents=True, exist_ok=True)
    for name in ("a.jpg", "b.png"):
        shutil.move(tmp_path / "moved" / name, tmp_path / layout / name)
    assert len(read_labels(tmp_path).images) == 2


def box(**changed: Any) -> dict[str, Any]:
    return {
        "annotations": [{"id": 1, "image_id": 5, "category_id": 7, "bbox": [0, 0, 9, 9], **changed}]
    }


def images_of(**changed: Any) -> dict[str, Any]:
    return {"images": [{"id": 5, "file_name": "a.jpg", "width": 40, "height": 20, **changed}]}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (box(category_id=8), "annotations[0]: there is no category with id 8"),
        (box(category_id=[1]), "annotations[0].category_id: expected a whole number, got [1]"),
        (box(image_id=3), "annotations[0]: there is no image with id 3"),
        (box(bbox=[0, 0, 9]), "bbox: expected [left, top, width, height] in pixels, got [0.0, 0"),
        (box(bbox=[0, 0, -1, 9]), "bbox: expected [left, top, width, height]"),
        (box(bbox=[0, 0, float("nan"), 9]), "bbox[2]: expected a finite number, got nan"),
        ({"annotations": []}, "annotations: expected at least 1, got none"),
        (box(iscrowd=1), "no image has a box"),
        ({"annotations": {}}, "annotations: expected a valid array, got {}"),
        (
            {"categories": [{"id": 7}, {"id": 90, "name": "x"}]},
            "categories[0]: expected a key 'name'",
        ),
        (
            {"categories": [{"id": 7, "name": "a"}] * 2},
            "categories: expected each id once",
        ),
        ({"images": 3}, "images: expected a valid array, got 3"),
        (images_of(file_name="c.jpg"), "image with id 5: file_name: there is no file 'c.jpg'"),
        (images_of(file_name="../out.jpg"), "../out.jpg' in the data"),
        (images_of(file_name="link.jpg"), "file_name: there is no file"),
        (images_of(file_name="/etc/passwd"), "file_name: expected a .jpg"),
        (images_of(file_name=None), "images[0].file_name: expected a string, got nothing"),
        (images_of(file_name="a\0.jpg"), "file_name: expected a path, got 'a"),
        (
            images_of(width=20, height=40),
            "expected 40 and 20, the size of the upright image, got 20",
        ),
    ],
)
def test_faults_in_coco_are_named(tmp_path: Path, changed: Any, message: str) -> None:
    picture(tmp_path / "out.jpg")
    root = tmp_path / "data"
    (root / "images").mkdir(parents=True)
    os.symlink(tmp_path / "out.jpg", root / "images" / "link.jpg")
    coco(root, **changed)
    with pytest.raises(DataError) as caught:
        read_labels(root)
    assert str(caught.value).startswith("annotations/instances_val.json: ")
    assert message in str(caught.value)


def test_labels_that_the_model_does_not_have_are_named(tmp_path: Path) -> None:
    coco(tmp_path)
    with pytest.raises(DataError) as caught:
        read_labels(tmp_path, ["dogs", "cat"])
    assert (
        "annotations[0]: category 'Dog' is none of the model's labels; did you "
        "mean 'dogs'?" in str(caught.value)
    )


def test_of_several_files_one_is_to_be_stated(tmp_path: Path) -> None:
    coco(tmp_path).with_name("instances_train.json").write_text("{}")
    with pytest.raises(DataError, match=r"instances_train\.json, .*_val\.json: expected one file"):
        read_labels(tmp_path)


def test_a_rotated_image_has_its_upright_size(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.jpg")
    data, exif = path.read_bytes(), Image.Exif()
    exif[0x112] = 6
    Image.open(io.BytesIO(data)).save(path, exif=exif)
    assert picture_size(path, "") == (20, 40)


# ── YOLO ─────────────────────────────────────────────────────────────────────────────────────────


def yolo(root: Path, text: str, *lines: str, split: str = "images/val") -> Path:
    picture(root / split / "a.jpg")
    picture(root / split / "b.webp")
    labels = root / split.replace("images", "labels")
    labels.mkdir(parents=True, exist_ok=True)
    (labels / "a.txt").write_text("\n".join(lines) + "\n")
    (root / "data.yaml").write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("names: [cat, dog]\nval: images/val\n", "images/val"),
        ("names:\n  0: cat\n  1: dog\nnc: 2\ntest: images/val\ntrain: images/t\n", "images/val"),
        ("path: ../sets/mine\nnames: [cat, dog]\nval: ../valid/images\n", "valid/images"),
        ("path: inner\nnames: [cat, dog]\nval: [images/x]\n", "inner/images/x"),
        ("names: [cat, dog]\nval: /images/val\n", "images/val"),
    ],
)
def test_yolo_is_read(tmp_path: Path, text: str, split: str) -> None:
    lines = ("1 0.5 0.5 0.5 0.25", "", "0 0.1 0.2 0.3 0.2 0.3 0.6 0.1 0.6")
    labelled = read_labels(yolo(tmp_path, text, *lines, split=split))
    first, second = labelled.images
    assert first.where == f"{split.replace('images', 'labels')}/a.txt"
    assert isinstance(first.truth, Boxes)
    assert first.truth.boxes == pytest.approx(np.array([[0.25, 0.375, 0.75, 0.625],
                                                        [0.1, 0.2, 0.3, 0.6]]))  # fmt: skip
    assert first.truth.classes.tolist() == [1, 0]
    assert isinstance(second.truth, Boxes)
    assert not len(second.truth.classes)
    assert labelled.class_names == {0: "cat", 1: "dog"}
    mapped = read_labels(tmp_path / "data.yaml", ["dog", "cat"]).images[0].truth
    assert isinstance(mapped, Boxes)
    assert mapped.classes.tolist() == [0, 1]


@pytest.mark.parametrize("place", ["val.txt", "lists/val.txt"])
def test_a_split_of_yolo_may_be_a_list_of_images(tmp_path: Path, place: str) -> None:
    root = yolo(tmp_path, f"path: /data/mine\nnames: [cat, dog]\nval: ./{place}\n", LINE)
    up = "../" * place.count("/")
    picture(root / "images/val/c.jpg")
    (root / place).parent.mkdir(exist_ok=True)
    # With a byte order mark, which editors on Windows write.
    (root / place).write_text(f"\ufeff./{up}images/val/c.jpg\n\n{up}images/val/a.jpg\n")
    labelled = read_labels(root)
    assert [image.path.name for image in labelled.images] == ["c.jpg", "a.jpg"]
    assert [image.where for image in labelled.images] == ["labels/val/c.txt", "labels/val/a.txt"]
    assert [len(image.truth.classes) for image in labelled.images] == [0, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "images/val/a.jpg\nimages/val/z.jpg\n",
            "v.txt line 2: there is no file 'images/val/z.jpg'",
        ),
        ("/home/me/a.jpg\n", "v.txt line 1: there is no file '/home/me/a.jpg' in the data"),
        ("../a.jpg\n", "v.txt line 1: there is no file '../a.jpg' in the data"),
        ("images/val/a.gif\n", "v.txt line 1: expected a .jpg, .jpeg, .npy, .png, .bmp or .webp"),
        ("a\0.jpg\n", "v.txt line 1: expected a path, got"),
        ("", "data.yaml: val: expected 1 to 100000 images, got none"),
        ("a.jpg\n" * 100_001, "v.txt: expected at most 100000 lines"),
        (None, "data.yaml: val: there is no file 'v.txt' in the data"),
    ],
)
def test_faults_in_a_list_of_images_are_named(
    tmp_path: Path, lines: str | None, message: str
) -> None:
    picture(tmp_path / "a.jpg")
    root = tmp_path / "data"
    if lines is not None:
        root.mkdir()
        (root / "v.txt").write_text(lines)
    with pytest.raises(DataError) as caught:
        read_labels(yolo(root, "names: [cat]\nval: v.txt\n", LINE))
    assert message in str(caught.value)


GOOD = "names: [cat, dog]\nval: images/val\n"
LINE = "0 0.5 0.5 0.5 0.5"


@pytest.mark.parametrize(
    ("text", "lines", "message"),
    [
        ("names: [", [LINE], "data.yaml line 1: expected YAML"),
        ("3", [LINE], "data.yaml: expected 'names', and 'val', 'test' or 'train'"),
        ("val: images/val", [LINE], "data.yaml: names: expected a list of names, or names of 0"),
        ("names: {1: cat}\nval: x", [LINE], "data.yaml: names: expected a list of names"),
        ("names: [cat]", [LINE], "expected a folder of images as 'val', 'test' or 'train'"),
        (
            "names: [cat]\nval: {}\ntest: [[1]]",
            [LINE],
            "test: expected the name of a folder",
        ),
        ("names: [cat]\nval: images/x", [LINE], "val: there is no folder 'images/x' in the data"),
        ("names: [cat]\nval: outside", [LINE], "val: there is no folder 'outside' in the data"),
        (GOOD, ["2 0.5 0.5 0.5 0.5"], "a.txt line 1: expected the number of a class below 2 first"),
        (GOOD, [LINE, "cat 0.5"], "a.txt line 2: expected the number of a class below 2 first"),
        (
            GOOD,
            ["0 0.5 0.5 304 208"],
            "height in fractions, got '0 0.5",
        ),
        (GOOD, ["0 0.5 0.5 nan 0.1"], "line 1: expected class, and centre x"),
        (
            GOOD,
            ["0 0.5 0.5 0.5"],
            "expected class, and centre x, y, width and height in fractions, got '0 0.5 0.5",
        ),
        (
            GOOD,
            ["0 " + "0.5 " * 7],
            "expected class, and centre x, y, width and height in fractions",
        ),
        (GOOD, [LINE] * 5000, "a.txt: expected at most 4096 lines"),
        (GOOD, [], "data.yaml: val: no image has a box"),
    ],
)
def test_faults_in_yolo_are_named(
    tmp_path: Path, text: str, lines: list[str], message: str
) -> None:
    (tmp_path / "out").mkdir()
    root = tmp_path / "data"
    root.mkdir()
    os.symlink(tmp_path / "out", root / "outside")
    with pytest.raises(DataError) as caught:
        read_labels(yolo(root, text, *lines))
    assert message in str(caught.value)


def test_lists_that_hold_each_other_many_times_are_never_spelt_out(tmp_path: Path) -> None:
    bomb = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))
    for last in ("names: [cat]\nval: [*a29]", "names: [*a29]\nval: x",
                 "names: [cat]\npath: *a29\nval: x"):  # fmt: skip
        text = f"a0: &a0 [x]\n{bomb}\n{last}"
        with pytest.raises(DataError) as caught:
            read_labels(yolo(tmp_path, text, LINE))
        assert len(str(caught.value)) < 200


# ── folders ──────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    for name in (
        "dog/1.bmp",
        "cat/0.jpg",
        "cat/deep/2.npy",
        "ant/3.png",
        ".git/4.png",
        "dog/._5.png",
    ):
        picture(tmp_path / name)
    (tmp_path / "cat" / "notes.txt").touch()

    def classes(*labels: str) -> dict[str, object]:
        images = read_labels(tmp_path, labels).images
        return {str(image.path.relative_to(tmp_path)): image.truth for image in images}

    assert classes() == {"ant/3.png": 0, "cat/0.jpg": 1, "cat/deep/2.npy": 1, "dog/1.bmp": 2}
    assert read_labels(tmp_path).class_names == {0: "ant", 1: "cat", 2: "dog"}
    by_label = classes("Dog", "Cat", "Bee", "Ant")
    assert [by_label[name] for name in ("ant/3.png", "cat/0.jpg", "dog/1.bmp")] == [3, 1, 0]
    assert classes("x", "y", "z") == classes()
    with pytest.raises(DataError, match=r"dog: folder 'dog' is none of the model's labels"):
        classes("ant", "cat")
    with pytest.raises(DataError, match="expected 2 folders at most"):
        classes("x", "y")


def test_names_of_files_reach_no_terminal_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "cat" / "\x1b[2J\udcff.png"
    path.parent.mkdir()
    path.symlink_to("/etc/passwd")
    with pytest.raises(DataError) as caught:
        read_labels(tmp_path)
    assert str(caught.value).startswith(r"cat/\x1b[2J\udcff.png: there is no file")
    assert str(caught.value).isprintable()


def test_folders_without_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match="expected 1 to 100000 images, got none"):
        read_labels(tmp_path)


def test_another_file_is_told_what_it_may_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a \.json, \.yaml or \.jsonl file, or a folder"):
        read_labels(picture(tmp_path / "a.jpg"))


# ── images ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
def test_files_that_workers_decode_are_sent_as_they_are(tmp_path: Path, kind: str) -> None:
    path = picture(tmp_path / f"a.{kind}", 31, 17)
    assert picture_size(path, "") == (31, 17)
    data, shape = load_picture(LabelledImage(path, "", 0))
    assert shape == (1,)
    assert data[4:] == path.read_bytes()


def test_a_bmp_is_decoded_here(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.bmp", 31, 17)
    assert picture_size(path, "") == (31, 17)
    data, shape = load_picture(LabelledImage(path, "", 0))
    assert shape == (1, 17, 31, 3)
    pixels = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
    assert data == pixels.tobytes()
    upside_down = path.read_bytes()
    path.write_bytes(upside_down[:22] + (-17).to_bytes(4, "little", signed=True) + upside_down[26:])
    assert picture_size(path, "") == (31, 17)
    assert load_picture(LabelledImage(path, "", 0))[0] == pixels[::-1].tobytes()
    path.write_bytes(upside_down[:30])
    with pytest.raises(DataError, match=r"a\.bmp: cannot be decoded"):
        load_picture(LabelledImage(path, "", 0))


def test_the_suffix_of_a_picture_does_not_count(tmp_path: Path) -> None:
    picture(tmp_path / "a.bmp").rename(tmp_path / "a.png")
    assert load_picture(LabelledImage(tmp_path / "a.png", "", 0))[1] == (1, 20, 40, 3)
    (tmp_path / "b.png").write_bytes(b"II*\0 a TIFF, which OpenCV would decode")
    with pytest.raises(DataError, match=r"line 3: b\.png: expected JPEG, PNG, WebP or BMP"):
        load_picture(LabelledImage(tmp_path / "b.png", "line 3", 0))


def test_huge_images_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.png")
    data = path.read_bytes()
    path.write_bytes(data[:16] + (100_000).to_bytes(4, "big") * 2 + data[24:])
    with pytest.raises(DataError, match=r"a\.png: expected 1 to \d+ pixels, got 100000 × 100000"):
        load_picture(LabelledImage(path, "", 0))
    path = picture(tmp_path / "a.bmp")
    path.write_bytes(path.read_bytes()[:18] + bytes(8) + path.read_bytes()[26:])
    with pytest.raises(DataError, match=r"a\.bmp: expected 1 to \d+ pixels, got 0 × 0"):
        picture_size(path, "")


def test_libraries_that_are_missing_are_named(tmp_path: Path, monkeypatch: Any) -> None:
    coco(tmp_path)
    monkeypatch.setattr("slacktide.models.labelled.images.load_opencv", lambda: None)
    with pytest.raises(DataError, match=r"need OpenCV: pip install 'slacktide\[images\]'"):
        read_labels(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr("slacktide.models.labelled.images.can_score_boxes", lambda: False)
    with pytest.raises(DataError, match=r"pycocotools: pip install 'slacktide\[accuracy\]'"):
        read_labels(tmp_path)
