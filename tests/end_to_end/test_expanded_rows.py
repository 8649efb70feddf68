"""Functions that return more or fewer rows, read and write text, and see the frame: as stages, and
called directly."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.end_to_end.streets import (
    HEIGHT,
    SEEN,
    SIDE,
    WIDTH,
    ask_frame,
    colour,
    crops,
    detector,
    frame,
    outputs,
    pipeline,
)

from slacktide.domain.crops import Glue
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.crops import CropGatherer, FrameArenas
from slacktide.executors.hand_over.tensor_io import TensorError
from slacktide.executors.pictures import encode_jpeg
from slacktide.executors.ports import CropPayload, Payload, TensorRef

CODE = """
import time
import numpy as np

def split(text):
    words = [line.split() for line in text]
    flat = [word for line in words for word in line]
    rows = [row for row, line in enumerate(words) for _ in line]
    lengths = np.array([len(word) for word in flat], np.float32)
    wrong = {"raise", "hang", "outside", "falling", "few", "many", "huge", "number", "surrogate"}
    match "".join(wrong.intersection(flat)):
        case "raise": raise RuntimeError("no")
        case "hang": time.sleep(1000)
        case "outside": rows[-1] = len(text)
        case "falling": rows[0] = rows[-1] + 1
        case "few": rows = rows[1:]
        case "many": return ["a"] * 2000, np.ones(2000, np.float32), [0] * 2000
        case "huge": return np.array(["a" * (65 << 20)], object), lengths[:1], rows[:1]
        case "number": flat[0] = 3
        case "surrogate": flat[0] = chr(0xd800)
    return flat, lengths, rows

def shout(word):
    return np.array([each.upper() for each in word], object)

def corners(frame, boxes):
    sizes = np.array([picture.shape[:2] for picture in frame], np.int32)
    return sizes, np.array([int(picture[1, 2, 0]) for picture in frame], np.int32)

def paint(crop, bright, mean):
    return np.full((3, 3, 3), int(bright) if abs(mean.mean() - bright) < 1 else 0, np.uint8)

def slices(image):
    return np.repeat(image, 5, 0), np.repeat(np.arange(len(image)), 5)

def darken(image, bright):
    return (image // 2), bright.astype(np.int64)
"""
MODELS = {
    "split": """
  takes: {text: {datatype: BYTES, shape: [-1]}}
  gives: {word: {datatype: BYTES, shape: [-1]}, lengths: {datatype: FP32, shape: [-1]}}
  rows: expand
""",
    "shout": """
  takes: {word: {datatype: BYTES, shape: [-1]}}
  gives: {loud: {datatype: BYTES, shape: [-1]}}
""",
    "corners": """
  takes: {frame: frame, boxes: {datatype: FP32, shape: [-1, -1, 4]}}
  gives: {size: {datatype: INT32, shape: [-1, 2]}, pixel: {datatype: INT32, shape: [-1]}}
""",
    "slices": f"""
  takes: {{image: {{datatype: UINT8, shape: [-1, {HEIGHT}, {WIDTH}, 3]}}}}
  gives: {{image: {{datatype: UINT8, shape: [-1, {HEIGHT}, {WIDTH}, 3]}}}}
  rows: expand
""",
    "darken": f"""
  takes:
    image: {{datatype: UINT8, shape: [-1, {SIDE}, {SIDE}, 3]}}
    bright: {{datatype: FP32, shape: [-1]}}
  gives:
    image: {{datatype: UINT8, shape: [-1, {SIDE}, {SIDE}, 3]}}
    seen: {{datatype: INT64, shape: [-1]}}
""",
}
WORDS = """
slo: 20s
stages: {split: split, shout: shout, long: shout}
edges:
  - {from: split, to: shout}
  - {from: split, to: long, when: {score: 4}, scores: lengths}
"""
SLICED = """
slo: 20s
stages: {slices: slices, detect: few, look: colour, again: colour}
edges:
  - {from: slices, to: detect}
  - {from: detect, to: look, each: box, when: {score: 0.5}}
  - {from: look, to: again, each: crop}
"""
FRAMES = """
slo: 20s
stages:
  detect: detector
  look: colour
  corners: corners
  dark: darken
  again: colour
  paint: {model: colour, crop: {function: paint, takes: [bright, mean]}}
edges:
  - {from: detect, to: look, each: box, when: {score: 0.5}}
  - {from: detect, to: corners}
  - {from: detect, to: dark, each: box, when: {score: 0.5}}
  - {from: look, to: dark, tensors: {bright: bright}}
  - {from: dark, to: again}
  - {from: detect, to: paint, each: box, when: {score: 0.5}}
  - {from: look, to: paint}
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("expanded")
    zoo = zoo_at(folder / "repository")
    detector(zoo)
    colour(zoo, settings="max_batch: 8\n")
    for name, text in MODELS.items():
        (zoo.root / name).mkdir()
        settings = f"max_batch: 4\nfunction:\n  name: {name}{text}"
        (zoo.root / name / "slacktide.yaml").write_text(settings)
    detector(zoo, "few", settings="max_batch: 2\n")
    pipeline(zoo, "words", WORDS)
    pipeline(zoo, "sliced", SLICED)
    pipeline(zoo, "frames", FRAMES)
    (folder / "row_functions.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        with serve(
            zoo, control_port=0, glue={n: f"row_functions:{n}" for n in (*MODELS, "paint")}
        ) as served:
            yield served


def ask(house: Any, model: str, *texts: str) -> Any:
    return house.infer(model, house.call_of({"text": ("BYTES", [len(texts)], list(texts))}))


def test_rows_that_a_function_adds_are_batched_and_chosen_as_rows_of_their_own(house: Any) -> None:
    answer = outputs(ask(house, "words", "to be or not", "", "that question"))
    assert answer["split.word"].tolist() == ["to", "be", "or", "not", "that", "question"]
    assert answer["split.rows"].tolist() == [0, 0, 0, 0, 2, 2]
    assert answer["shout.loud"].tolist() == ["TO", "BE", "OR", "NOT", "THAT", "QUESTION"]
    assert answer["long.loud"].tolist() == ["THAT", "QUESTION"]
    assert answer["long.rows"].tolist() == [4, 5]


def test_parents_count_from_the_first_row_of_the_whole_call(house: Any) -> None:
    texts = [f"{number} {'again ' * (number % 3)}" for number in range(11)]  # three batches
    expected = [number for number in range(11) for _ in range(1 + number % 3)]
    for model, name in (("split", "rows"), ("words", "split.rows")):
        assert outputs(ask(house, model, *texts))[name].tolist() == expected


def test_a_call_may_end_without_any_row(house: Any) -> None:
    answer = outputs(ask(house, "words", "", " "))
    assert answer["split.rows"].tolist() == answer["shout.loud"].tolist() == []


def counted(house: Any, model: str) -> tuple[int, int]:
    """Rows and batches so far."""
    (stats,) = house.get(f"/v2/models/{model}/stats").json["model_stats"]
    return int(stats["inference_count"]), int(stats["execution_count"])


def test_rows_of_one_page_share_batches(house: Any) -> None:
    rows, batches = counted(house, "shout")
    answer = outputs(ask(house, "words", "a b c d e f g h"))
    assert answer["shout.loud"].tolist() == [*"ABCDEFGH"]
    assert counted(house, "shout") == (rows + 8, batches + 2)  # of four rows at most


def test_members_of_one_batch_get_their_own_rows(house: Any) -> None:
    spare = house.spawn(ask, house, "words", "some other client")
    assert outputs(ask(house, "words", "a b"))["split.word"].tolist() == ["a", "b"]
    assert outputs(spare.result())["shout.loud"].tolist() == ["SOME", "OTHER", "CLIENT"]


def test_boxes_count_from_the_first_row_of_the_detector(house: Any) -> None:
    answer = outputs(ask_frame(house, frame(*SEEN), "sliced"))
    boxes = answer["detect.boxes"].shape[1]
    expected = [boxes * row + at for row in range(5) for at in (1, 2, 0)]
    assert answer["look.rows"].tolist() == expected
    assert answer["again.rows"].tolist() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise", "the function 'split' raised RuntimeError: no"),
        ("outside", "returned 1 as 'rows', expected numbers of rows in ascending order, 0 to 0"),
        ("falling a b", "returned 1 before 0 as 'rows', expected numbers of rows in ascending"),
        ("few a", "returned 2 rows as 'word', but 1 parents as 'rows'"),
        ("many", "returned 2000 rows for one, expected at most 1000"),
        ("huge", "returned too much text as 'word', expected at most 64 MiB in a batch"),
        ("number", "returned int within 'word', expected text"),
        ("surrogate", "returned text as 'word' that is not UTF-8"),
    ],
)
def test_wrong_rows_and_texts_name_the_function_and_its_output(
    house: Any, text: str, message: str
) -> None:
    beside = house.spawn(ask, house, "words", "another call")
    answer = ask(house, "words", text)
    assert answer.status == 500
    assert "the function 'split'" in answer.json["error"]
    assert message in answer.json["error"]
    assert outputs(beside.result())["shout.loud"].tolist() == ["ANOTHER", "CALL"]


@pytest.mark.slow
def test_a_function_that_hangs_comes_back(house: Any) -> None:
    with house.taken_to_hang_after(1.5):
        assert "hung and was killed" in ask(house, "words", "hang").json["error"]
    assert outputs(ask(house, "words", "a b"))["split.word"].tolist() == ["a", "b"]


def test_a_frame_may_be_a_jpeg_and_clients_may_send_their_own(house: Any) -> None:
    image = frame(seed=4)
    jpeg = base64.b64encode(encode_jpeg(image)).decode()
    answer = outputs(house.infer("frames", house.call_of({"image": ("BYTES", [1], [jpeg])})))
    assert answer["corners.size"].tolist() == [list(image.shape[:2])]
    assert abs(answer["corners.pixel"][0] - int(image[1, 2, 0])) < 60
    pair = np.stack([image[:20], image[20:40]])
    tensors = {
        "frame": ("UINT8", list(pair.shape), pair.ravel().tolist()),
        "boxes": ("FP32", [2, 1, 4], [0.0] * 8),
    }
    direct = outputs(house.infer("corners", house.call_of(tensors)))
    assert direct["size"].tolist() == [[20, image.shape[1]]] * 2
    assert direct["pixel"].tolist() == pair[:, 1, 2, 0].tolist()


def test_frames_of_unlike_sizes_share_a_batch() -> None:
    """As the worker makes it."""
    pictures = [np.full((size, 5, 3), size, np.uint8) for size in (4, 7)]
    data = b"".join(picture.tobytes() for picture in pictures)
    frames, start, members = FrameArenas(), 0, []
    frames.attach(3, memoryview(data), Glue())
    for picture in pictures:
        ref = TensorRef(start, picture.nbytes, (1, *picture.shape))
        members.append(CropPayload(2, (ref, TensorRef(0, 0, (2,))), 3, b""))
        start += picture.nbytes
    specs = (
        TensorSpec("frame", Datatype.UINT8, (-1, -1, -1, 3)),
        TensorSpec("n", Datatype.FP32, (-1,)),
    )
    gatherer = CropGatherer(
        frames, ModelInterface(specs, (), 8), [None, None], None, {}, None, "frame"
    )
    joined, _, faults = gatherer.gather(members, memoryview(b""), 0)
    assert not faults
    assert [picture.shape[0] for picture in joined] == [4, 4, 7, 7]
    with pytest.raises(TensorError, match="cannot share a batch with others"):
        gatherer.gather([*members, Payload(1, ())], memoryview(b""), 0)


def test_crops_and_rows_stay_together_over_many_batches(house: Any) -> None:
    boxes = [(7 * at, 60 + 5 * at, 7 * at + 60, 130 + 5 * at, 200 + at, 1) for at in range(20)]
    image = frame(*boxes, seed=3)
    answer = outputs(ask_frame(house, image, "frames"))
    expected = crops(image, *reversed(boxes))
    assert (answer["dark.image"] == expected // 2).all()
    for stage, of in (("dark.seen", "look.bright"), ("paint.bright", "look.bright")):
        assert answer[stage].astype(int).tolist() == answer[of].astype(int).tolist()
    assert len(set(answer["look.bright"].astype(int).tolist())) > 5
    assert answer["paint.rows"].tolist() == answer["look.rows"].tolist()


def test_a_stage_sees_the_frame_and_a_join_gets_crops_beside_rows(house: Any) -> None:
    for seed in (1, 2):
        image = frame(*SEEN, seed=seed)
        answer = outputs(ask_frame(house, image, "frames"))
        assert answer["corners.size"].tolist() == [[HEIGHT, image.shape[1]]]
        assert answer["corners.pixel"].tolist() == [int(image[1, 2, 0])]
        expected = crops(image, *(SEEN[at] for at in (1, 2, 0)))
        assert (answer["dark.image"] == expected // 2).all()
        assert answer["dark.seen"].tolist() == answer["look.bright"].astype(int).tolist()
        assert answer["dark.rows"].tolist() == answer["look.rows"].tolist() == [1, 2, 0]
        np.testing.assert_allclose(answer["again.mean"], (expected // 2).mean((1, 2)), atol=1e-2)
