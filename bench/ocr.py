"""OCR as one pipeline beside the package whose models it serves: lines, throughput, deadlines.

`slacktide models make DIR --real` writes the pipeline `ocr`: detector, direction, recogniser. The
reference is rapidocr-onnxruntime 1.4.4 (Apache-2.0) itself, in a process on the server's core.

Package, pipeline, and the pipeline's models behind hand-written asyncio code are measured in turn.
Throughputs and ratios are medians of rounds; then the server, its clients and the glue share the
core that the package has. For answers and deadlines clients have a core of their own.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import servers
from bench.machine import ROOT, cores, pin, pinned
from bench.measurement import Figure, at_least, at_most
from bench.pinned_models import CACHE
from bench.printed import pictures
from slacktide.lab.examples.zoo import OCR, make_zoo

Array = NDArray[Any]
SEED = 73
Line = tuple[list[list[float]], str]
"""Corners in pixels, and text."""
KINDS = ("labels", "pages", "scans", "turned")
COUNT, QUICK = 16, 3
ROUNDS, SECONDS, QUICK_SECONDS = 5, 12.0, 4.0
SENDERS = 4
PACKAGES = ("rapidocr-onnxruntime==1.4.4", "pyclipper==1.4.0", "shapely==2.2.0", "tqdm", "six")
SHOWN = ROOT / ".cache" / "ocr.png"
ENDS = ("complete", "partial", "late", "refused")
"""Ends of a request with a deadline; `partial`: the lines were found, but not read."""
LOAD, DEADLINES = 0.5, (4.0, 0.6)
"""Share of the throughput that is offered, and deadlines in median times of a lone page."""


# ── the package, our pipeline, and glue ──────────────────────────────────────────────────────


def _package() -> subprocess.Popen[str]:
    """The package in a process of its own. A line with files and seconds is answered with its
    lines of text, and with pictures per second."""
    folder = CACHE / "rapidocr"
    if not (folder / "rapidocr_onnxruntime").exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*install, "--target", str(folder), *PACKAGES], check=True)
    command = pinned(cores().server, [sys.executable, "-c", _ALONE, str(folder)])
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)


_ALONE = """
import json, sys, time
sys.path.append(sys.argv[1])
from rapidocr_onnxruntime import RapidOCR
reader = RapidOCR(intra_op_num_threads=1, inter_op_num_threads=1)
for request in sys.stdin:
    files, seconds = json.loads(request)
    contents, lines, count = [open(file, "rb").read() for file in files], [], 0
    begin = time.perf_counter()
    while count < len(files) if not seconds else time.perf_counter() - begin < seconds:
        answer = reader(contents[count % len(files)])[0]
        lines.append([(corners, text) for corners, text, _ in answer or ()])
        count += 1
    print(json.dumps([lines, count / (time.perf_counter() - begin)]), flush=True)
"""


def _asked(package: subprocess.Popen[str], files: Sequence[Path], seconds: float) -> Any:
    assert package.stdin is not None
    assert package.stdout is not None
    package.stdin.write(json.dumps([[str(file) for file in files], seconds]) + "\n")
    package.stdin.flush()
    return json.loads(package.stdout.readline())


class Reader:
    """A client of the pipeline."""

    def __init__(self, port: int) -> None:
        import tritonclient.http as triton

        self._triton, self._client = triton, triton.InferenceServerClient(f"127.0.0.1:{port}")

    def read(self, picture: bytes, timeout_s: float = 0.0) -> tuple[list[Line] | None, bool]:
        """Lines in reading order, None if the text is missing; and whether there is an answer."""
        image = self._triton.InferInput("x", [1], "BYTES")
        image.set_data_from_numpy(np.array([picture], object))
        names = ("detector.quads", "recogniser.rows", "recogniser.text")
        outputs = [self._triton.InferRequestedOutput(name) for name in names]
        limit = {"timeout": int(1e6 * timeout_s)} if timeout_s else {}
        try:
            answer = self._client.infer(OCR, [image], outputs=outputs, **limit)
        except self._triton.InferenceServerException:
            return None, False
        quads, rows, texts = (answer.as_numpy(name) for name in names)
        if texts is None:
            return None, True
        corners, ordered = quads[0] * _size(picture), sorted(zip(rows, texts, strict=True))
        return [(corners[row].tolist(), text.decode()) for row, text in ordered], True


async def _glue(client: Any, picture: bytes) -> list[str]:
    """Read a picture by hand-written calls of the pipeline's three models."""
    import cv2
    import tritonclient.http.aio as triton

    cv2.setNumThreads(1)

    async def ask(model: str, pixels: Array) -> Any:
        datatype = "BYTES" if pixels.dtype == object else "UINT8"
        tensor = triton.InferInput("x", list(pixels.shape), datatype)
        tensor.set_data_from_numpy(pixels)
        return await client.infer(model, [tensor])

    async def read(quad: Array) -> str:
        across, down = (int(np.linalg.norm(quad[0] - quad[at])) for at in (1, 3))
        corners = np.float32([(0, 0), (across, 0), (across, down), (0, down)])
        warp = cv2.getPerspectiveTransform(quad, corners)
        crop = cv2.warpPerspective(whole, warp, (across, down), flags=cv2.INTER_CUBIC)
        crop = np.rot90(crop) if down >= 1.5 * across else crop
        crop = np.ascontiguousarray(crop)[None]
        turned = await ask("direction", crop)
        if turned.as_numpy("classes")[0, 0] == 1 and turned.as_numpy("scores")[0, 0] > 0.9:
            crop = np.ascontiguousarray(crop[:, ::-1, ::-1])
        return str((await ask("recogniser", crop)).as_numpy("text")[0].decode())

    whole = cv2.imdecode(np.frombuffer(picture, np.uint8), 1)[:, :, ::-1].copy()
    detection = await ask("detector", np.array([picture], object))
    quads = detection.as_numpy("quads")[0] * _size(picture)
    return list(await asyncio.gather(*[read(np.float32(quad)) for quad in quads]))


def _glue_per_second(port: int, contents: Sequence[bytes], seconds: float) -> float:
    import tritonclient.http.aio as triton

    async def send(client: Any, number: int, end: float) -> int:
        count = 0
        while time.perf_counter() < end:
            await _glue(client, contents[(number + SENDERS * count) % len(contents)])
            count += 1
        return count

    async def run() -> float:
        async with triton.InferenceServerClient(f"127.0.0.1:{port}", conn_limit=64) as client:
            begin = time.perf_counter()
            tasks = [send(client, number, begin + seconds) for number in range(SENDERS)]
            return sum(await asyncio.gather(*tasks)) / (time.perf_counter() - begin)

    return asyncio.run(run())


def _per_second(port: int, contents: Sequence[bytes], seconds: float) -> float:
    begin, counts = time.perf_counter(), [0] * SENDERS

    def send(number: int) -> None:
        reader = Reader(port)
        while time.perf_counter() < begin + seconds:
            reader.read(contents[(number + SENDERS * counts[number]) % len(contents)])
            counts[number] += 1

    run_senders(send)
    return sum(counts) / (time.perf_counter() - begin)


def run_senders(send: Callable[[int], None], count: int = SENDERS) -> None:
    """Call `send` with the numbers 0 to count − 1, each in a thread, until all have ended."""
    threads = [threading.Thread(target=send, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _size(picture: bytes) -> tuple[int, int]:
    """Width and height of a PNG."""
    return int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])


def _alike(lines: Sequence[Line], references: Sequence[Line]) -> int:
    """How many of the references have the text of the line that lies nearest."""
    if not lines:
        return 0
    centres = np.array([np.mean(corners, 0) for corners, _ in lines])
    nearest = [int(np.abs(centres - np.mean(c, 0)).sum(1).argmin()) for c, _ in references]
    texts = [lines[at][1].replace(" ", "") for at in nearest]
    pairs = zip(texts, references, strict=True)
    return sum(text == reference[1].replace(" ", "") for text, reference in pairs)


def measure(*, quick: bool) -> Iterator[Figure]:
    """Lines, throughput, and answers under deadlines."""
    count, seconds = (QUICK, QUICK_SECONDS) if quick else (COUNT, SECONDS)
    package = _package()
    try:
        with tempfile.TemporaryDirectory() as folder:
            files = _written(count, Path(folder))
            make_zoo(Path(folder) / "models", CACHE, models=[OCR])
            with servers.slacktide(Path(folder) / "models") as serving:
                yield from _agreement(package, serving.port, files)
                yield from _throughput(package, serving.port, [*chain(*files.values())], seconds)
                yield from _deadlines(serving.port, files, 2 * seconds)
    finally:
        package.kill()
        package.wait()


def _written(count: int, folder: Path) -> dict[str, list[Path]]:
    """Pictures of each kind as files."""
    import cv2

    from bench.real_pictures import photographs

    small = [p for p in photographs() if p.shape[:2] in ((191, 384), (172, 448))]
    sheets = [cv2.resize(sheet, None, fx=3, fy=3) for sheet in small]
    files: dict[str, list[Path]] = {}
    for kind in KINDS:
        for number, content in enumerate(pictures(kind, count, sheets)):
            file = folder / f"{kind}{number}.png"
            file.write_bytes(content)
            files.setdefault(kind, []).append(file)
    return files


def _agreement(
    package: subprocess.Popen[str], port: int, files: dict[str, list[Path]]
) -> Iterator[Figure]:
    reader, same, total = Reader(port), 0, 0
    for kind, paths in files.items():
        references = _asked(package, paths, 0)[0]
        lines = [reader.read(path.read_bytes())[0] or [] for path in paths]
        alike = sum(map(_alike, lines, references))
        count = sum(map(len, references))
        same, total = same + alike, total + count
        yield Figure(
            f"ocr, {kind}: lines as the package's", alike / max(1, count), "", at_least(0.95)
        )
        if kind == "pages":
            _draw(paths[0], lines[0])
    yield Figure("ocr: lines as the package's", same / total, "", at_least(0.95), f"of {total}")


def _throughput(
    package: subprocess.Popen[str], port: int, files: list[Path], seconds: float
) -> Iterator[Figure]:
    contents = [file.read_bytes() for file in files]
    rounds = []
    pin(cores().server)
    for _ in range(ROUNDS):
        ours = _per_second(port, contents, seconds)
        rounds.append(
            (ours, _asked(package, files, seconds)[1], _glue_per_second(port, contents, seconds))
        )
    pin(cores().client)
    ours, alone, glue = np.array(rounds).T
    yield Figure("ocr: pictures", float(np.median(ours)), "/s", None, "", tuple(ours))
    for name, others, goal in (("the package", alone, 0.95), ("asyncio glue", glue, 1.2)):
        ratios = tuple(ours / others)
        note = f"{np.median(others):.2f} /s"
        yield Figure(f"ocr ÷ {name}", float(np.median(ratios)), "", at_least(goal), note, ratios)


def _deadlines(port: int, files: dict[str, list[Path]], seconds: float) -> Iterator[Figure]:
    """Two clients, of labels and of pages, with Poisson arrivals and one deadline."""
    contents = [
        path.read_bytes()
        for pair in zip(files["labels"], files["pages"], strict=True)
        for path in pair
    ]
    reader, times = Reader(port), []
    for content in contents:
        begin = time.perf_counter()
        reader.read(content)
        times.append(time.perf_counter() - begin)
    typical = float(np.median(times[1::2]))
    rate = LOAD / float(np.mean(times))
    count = max(8, int(rate * seconds))
    for factor in DEADLINES:
        ends = _ends(port, contents, rate, factor * typical, count)
        note = ", ".join(f"{ends.count(end)} {end}" for end in ENDS)
        name = f"deadline {factor:g} × the time of a page"
        in_time = (ends.count("complete") + ends.count("partial")) / count
        if factor == max(DEADLINES):  # the other one is too short for some pictures
            yield Figure(f"ocr, {name}: answers in time", in_time, "", at_least(0.95), note)
        late = ends.count("late") / count
        yield Figure(f"ocr, {name}: late answers", late, "", at_most(0.05), note)


def _ends(port: int, contents: Sequence[bytes], rate: float, slo: float, count: int) -> list[str]:
    """How each of `count` Poisson arrivals ended: see ENDS."""
    due = np.random.default_rng(SEED).exponential(1 / rate, count).cumsum()
    begin, ends = time.perf_counter() + 0.1, ["refused"] * count

    def send(number: int) -> None:
        client = Reader(port)
        for at in range(number, count, SENDERS):
            left = begin + due[at] - time.perf_counter()
            time.sleep(max(0.0, left))
            allowed = max(0.001, slo + min(0.0, left))
            lines, answered = client.read(contents[at % len(contents)], allowed)
            if answered:
                ends[at] = "partial" if lines is None else "complete"
                if time.perf_counter() > begin + due[at] + slo:
                    ends[at] = "late"

    run_senders(send)
    return ends


def _draw(file: Path, lines: Sequence[Line]) -> None:
    """Write the picture with the boxes of its lines, and their text beside it."""
    import cv2

    picture = cv2.imread(str(file))
    beside = np.full_like(picture, 255)
    for corners, text in lines:
        points = np.array(corners, np.int32)
        cv2.polylines(picture, [points], isClosed=True, color=(0, 140, 0), thickness=2)
        place = (int(points[0, 0]), int(points[3, 1]))
        cv2.putText(beside, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.6, (0, 0, 0), 1, cv2.LINE_AA)
    SHOWN.parent.mkdir(exist_ok=True)
    cv2.imwrite(str(SHOWN), np.hstack([picture, beside]))
