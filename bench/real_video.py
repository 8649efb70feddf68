"""Early exits and remembered answers on a real surveillance camera: what they save, who is missed.

The video is `vtest.avi` (795 frames, 10 a second) of Debian's package opencv-doc (Apache-2.0),
fetched by apt. Four places of 160 × 160 pixels where people walk are cameras of their own. The
network is EfficientNet-Lite0 (Apache-2.0, as in exits_of_others.py) with one more layer, which
turns its 1,000 logits into two classes, nobody and somebody: ridge regression on the first 300
frames, where somebody is there if enough pixels differ from the median of these frames. Ramps are
learnt from the same frames. The 495 others are played as four camera sessions, by our client:

    whole       to the model without exits
    exits       `early_exit: {accuracy_loss: 1%, mode: shrink}`
    memory      the same, with `remember`

*Right* are answers equal to those of the whole model, to which every frame is sent before, one at a
time. An *entry* is a change of a camera's answer from
nobody to somebody; it is *caught* if the answer is right in that frame or in one of the next two.

`capacity` plays the same frames in virtual time, all cameras in turn: the highest load at which 99
% are on time, with exits ÷ without.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import peers, servers
from bench.machine import CACHE, cores, pin
from bench.measurement import Figure, Options, Result, Table, at_least
from bench.peers import PeerMissingError
from slacktide.client import AioConnection
from slacktide.exits import RampLearning, find_positions, judged_rows, with_features
from slacktide.lab.simulation import ExitTable
from slacktide_papers.apparate.experiments import AUTO, SHRINK, VANILLA, ExitCell
from slacktide_papers.apparate.play import play as play_cell
from slacktide_papers.apparate.setting import TableFile
from slacktide_papers.apparate.stage_times import measured, opened

FOLDER = CACHE / "real_video"
VIDEO = "usr/share/doc/opencv-doc/examples/data/vtest.avi"
SHA256 = "45cddc9490be69345cbdab64ca583be65987e864ca408038e648db99e10516cf"
SIDE, RATE = 160, 10.0
PLACES = {
    "left": (30, 120),
    "path": (190, 130),
    "right": (600, 230),
    "gate": (600, 50),
}
"""Upper left corner of each camera's picture."""
LEARNT = 300
"""First frames, from which the last layer and ramps are learnt."""
DIFFERS, SOMEBODY = 40, 0.015
"""Difference of a pixel from an empty place (of 255), and the share of such pixels if somebody is
there."""
RIDGE = 300.0
CAUGHT_WITHIN = 2
BATCH = 16
SLO_S = 0.25
MEMORY = "memory"
SETTINGS = """
inputs: {images: {image: {preset: mobilenet, resize: squash, crop: 1}}}
"""
EXITS = {
    "whole": "",
    "exits": "early_exit: {accuracy_loss: 1%, mode: shrink, output: classes}\n",
    "memory": "early_exit: {accuracy_loss: 1%, mode: shrink, output: classes, remember: {}}\n",
}

Array = NDArray[Any]


def run(options: Options) -> Result:
    """Play the video to each copy of the model; `--quick` plays a third of it."""
    result = Result("real_video")
    try:
        crops = video_crops()
        network = peers_network()
    except PeerMissingError as error:
        result.remarks.append(str(error))
        return result
    last = LEARNT + 165 if options.quick else crops.shape[1]
    model = with_last_layer(crops[:, :LEARNT], network)
    if options.wants("capacity"):
        show_capacity(result, model, crops)
    if not any(map(options.wants, EXITS)):
        return result
    repository = make_repository(crops[:, :LEARNT], model)
    answers, figures = {}, {}
    pin(cores().client)
    with servers.slacktide(repository, "--profile-budget", "1s", everywhere=True) as serving:
        port, played = serving.grpc_port, crops[:, LEARNT:last]
        truth, _ = asyncio.run(play(port, "whole", played, waits=True))
        for name in filter(options.wants, EXITS):
            answers[name], figures[name] = asyncio.run(play(port, name, played))
            figures[name]["stats"] = serving.fetch(f"/v2/models/{name}/stats")
    show(result, truth, answers, figures)
    return result


def video_crops() -> Array:
    """The cameras' pictures [cameras, frames, side, side, 3]. Raises PeerMissingError."""
    key = hashlib.sha256(repr((SIDE, PLACES)).encode()).hexdigest()[:8]
    file = FOLDER / f"crops-{key}.npy"
    if not file.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            video = _fetch_video(Path(folder))
            corners = [f"{x},{y}" for x, y in PLACES.values()]
            script = str(peers.HERE / "video_crops.py")
            crops_file = Path(folder) / "crops.npy"
            command = [str(peers.python("video")), script, str(video), str(SIDE), str(crops_file)]
            done = subprocess.run([*command, *corners], capture_output=True, text=True, check=False)
            if done.returncode:
                raise PeerMissingError(f"video: {done.stderr.strip().splitlines()[-1:]}")
            crops_file.replace(file)
    crops: Array = np.load(file)
    return crops


def _fetch_video(folder: Path) -> Path:
    """Unpack the video of opencv-doc. Raises PeerMissingError."""
    try:
        for command in (["apt-get", "download", "opencv-doc"], ["dpkg", "-x", "DEB", "."]):
            words = [str(next(folder.glob("*.deb"))) if w == "DEB" else w for w in command]
            subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=300.0)
    except (OSError, subprocess.SubprocessError, StopIteration) as error:
        raise PeerMissingError(f"opencv-doc cannot be fetched by apt-get: {error}") from None
    video = folder / VIDEO
    if hashlib.sha256(video.read_bytes()).hexdigest() != SHA256:
        raise PeerMissingError(f"opencv-doc: {VIDEO} is another one")
    return video


def peers_network() -> Path:
    """EfficientNet-Lite0. Raises PeerMissingError."""
    file = FOLDER / "efficientnet-lite0.onnx"
    if not file.exists():
        partial = file.with_suffix(".part")
        peers.efficientnet(partial)
        partial.replace(file)
    return file


def with_last_layer(crops: Array, network: Path) -> Any:
    """The network with the last layer, learnt from the first frames `crops`."""
    import onnx
    from onnx import helper, numpy_helper

    session = opened(network.read_bytes())
    rows = normalised(resized(in_turn(crops)))
    parts = [rows[at : at + BATCH] for at in range(0, len(rows), BATCH)]
    logits = np.concatenate([session.run(None, {"images": part})[0] for part in parts])
    weights, bias = last_layer(logits, somebody(crops).T.ravel())
    model = onnx.load(str(network))
    graph = model.graph
    graph.initializer.extend(
        [numpy_helper.from_array(weights, "last/w"), numpy_helper.from_array(bias, "last/b")]
    )
    graph.node.append(helper.make_node("Gemm", ["logits", "last/w", "last/b"], ["classes"]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("classes", onnx.TensorProto.FLOAT, ["n", 2]))
    return model


def make_repository(crops: Array, model: Any) -> Path:
    """Copies of the model, with ramps where exits are on. `crops`: the first frames."""
    import onnx

    repository = FOLDER / "models"
    shutil.rmtree(repository, ignore_errors=True)
    samples = FOLDER / "samples.npz"
    np.savez(samples, images=in_turn(crops))
    for name, exits in EXITS.items():
        folder = repository / name
        (folder / "1").mkdir(parents=True)
        onnx.save(model, str(folder / "1" / "model.onnx"))
        (folder / "slacktide.yaml").write_text(SETTINGS + exits)
        if exits:
            command = [sys.executable, "-m", "slacktide", "exits", "add", str(folder)]
            subprocess.run([*command, "--data", str(samples)], check=True, capture_output=True)
    return repository


def exit_table(model: Any, crops: Array) -> ExitTable:
    """The answers of ramps, learnt from the first frames, to the frames after them."""
    graph = find_positions(model, output="classes")
    session = opened(with_features(model, graph).SerializeToString())
    places = graph.positions
    learning = RampLearning([place.tensor for place in places], [place.cost for place in places])
    names = [*(f"exits/features/{place.number}" for place in places), "exits/logits"]
    rows, learnt = in_turn(crops), LEARNT * len(crops)
    judged, ramps = [], ()
    for at in range(0, len(rows), BATCH):
        if at == learnt // BATCH * BATCH:
            ramps = learning.train() or ()
        images = normalised(resized(rows[at : at + BATCH]))
        *pooled, logits = session.run(names, {"images": images})
        if not ramps:
            learning.trainer.add(pooled, logits)
            continue
        pairs = zip(ramps, pooled, strict=True)
        answers = logits.argmax(axis=1)
        judged.append(
            [judged_rows(ramp.logits(part) / ramp.temperature, answers) for ramp, part in pairs]
        )
    columns = [[batch[at] for batch in judged] for at in range(len(places))]
    unsure, agrees = (
        np.stack([np.concatenate([getattr(part, of) for part in column]) for column in columns], 1)
        for of in ("uncertainty", "agrees")
    )
    return ExitTable(
        title="real video",
        rate=RATE * len(crops),
        positions=tuple(place.tensor for place in places),
        uncertainty=unsure.astype(np.float32),
        agrees=agrees,
        agreement=np.array([ramp.agreement for ramp in ramps]),
        **measured(model, graph, {"images": normalised(resized(rows[-1:]))}),
    )


def show_capacity(result: Result, model: Any, crops: Array) -> None:
    """The highest load with 99 % on time, as a multiple of full batches' throughput."""
    path = FOLDER / "exit-table.npz"
    exit_table(model, crops).save(path)
    file = TableFile.of("real video", path)
    rows, loads = [], {}
    for contender in (VANILLA, SHRINK, AUTO):
        cell = ExitCell(*(file.name, contender, 1, file.digest, "slack"), on_time=0.99, table=path)
        played = play_cell(cell)
        loads[contender.label] = played.load
        shares = (f"{share:.1%}" for share in (played.agreement, played.exits))
        rows.append((contender.label, f"{played.load:.2f}", *shares))
    for label in (SHRINK.label, AUTO.label):
        ratio = loads[label] / loads[VANILLA.label]
        result.figures.append(Figure(f"capacity: {label} ÷ without", ratio, "×", at_least(1.3)))
    headings = ("", "load", "right", "answers by ramps")
    result.tables.append(Table("capacity in virtual time", headings, tuple(rows)))


def in_turn(crops: Array) -> Array:
    """Pictures [frames × cameras, …] in their order of arrival."""
    return crops.swapaxes(0, 1).reshape(-1, *crops.shape[2:])


def normalised(pictures: Array) -> Array:
    """The network's input for pictures of its size, as the preset `mobilenet` makes it."""
    return pictures.transpose(0, 3, 1, 2) / np.float32(127.5) - 1


def resized(crops: Array) -> Array:
    """Pictures of the network's size [n, 224, 224, 3], as uint8."""
    from PIL import Image

    size, kind = (224, 224), Image.Resampling.BILINEAR
    return np.stack([np.asarray(Image.fromarray(crop).resize(size, kind)) for crop in crops])


def somebody(crops: Array) -> Array:
    """Whether somebody is in each picture [cameras, frames], by its difference from the median."""
    present = []
    for camera in crops:
        empty = np.median(camera[::10], axis=0)
        apart = np.abs(camera.astype(np.int16) - empty).max(-1) > DIFFERS
        present.append(apart.mean((1, 2)) > SOMEBODY)
    return np.array(present)


def last_layer(logits: Array, present: Array) -> tuple[Array, Array]:
    """Weights [1000, 2] and bias [2] by ridge regression on standardised logits."""
    mean, scale = logits.mean(0), logits.std(0) + 1e-6
    rows = np.c_[(logits - mean) / scale, np.ones(len(logits))]
    target = np.where(present, 1.0, -1.0)
    weights = np.linalg.solve(rows.T @ rows + RIDGE * np.eye(rows.shape[1]), rows.T @ target)
    column, bias = weights[:-1] / scale, weights[-1] - mean @ (weights[:-1] / scale)
    # Steeper, so that a softmax is sure where the regression is.
    pair = 4.0 * np.c_[-column, column]
    return pair.astype(np.float32), (4.0 * np.array([-bias, bias])).astype(np.float32)


async def play(
    port: int, model: str, crops: Array, *, waits: bool = False
) -> tuple[Array, dict[str, Any]]:
    """Send every camera's frames as sessions: at their rate, or each when the one before it is
    answered. Returns the class of each answer [cameras, frames], −1 for none, and latencies."""
    answers = np.full(crops.shape[:2], -1)
    seconds: list[float] = []

    async def camera(connection: AioConnection, number: int) -> None:
        pending = []
        slo = 5.0 if waits else SLO_S
        async with await connection.open(model, slo=slo, rate=RATE, rgb=True) as session:
            begin = time.monotonic() + number / (RATE * len(crops))
            for at, crop in enumerate(crops[number]):
                if not waits:
                    await asyncio.sleep(begin + at / RATE - time.monotonic())
                pending.append(asyncio.ensure_future(session.submit(crop)))
                if waits:
                    await pending[-1]
            for at, reply in enumerate(await asyncio.gather(*pending)):
                if reply.on_time:
                    answers[number, at] = int(reply.outputs["classes"].argmax())
                    seconds.append(reply.outcome.seconds)

    async with AioConnection(f"127.0.0.1:{port}") as connection:
        await asyncio.gather(*(camera(connection, number) for number in range(len(crops))))
    p25, p50, p99 = np.percentile(seconds, (25, 50, 99))
    return answers, {"p25": p25, "p50": p50, "p99": p99, "answered": len(seconds)}


def entries(answers: Array) -> list[tuple[int, int]]:
    """Camera and frame of each change from nobody to somebody."""
    cameras, frames = np.nonzero((answers[:, 1:] == 1) & (answers[:, :-1] == 0))
    return [(int(camera), int(frame) + 1) for camera, frame in zip(cameras, frames, strict=True)]


def caught(truth: Array, answers: Array) -> float:
    """Share of the entries of `truth` that are answered right within `CAUGHT_WITHIN` frames."""
    caught_changes = [
        bool((answers[camera, frame : frame + CAUGHT_WITHIN + 1] == 1).any())
        for camera, frame in entries(truth)
    ]
    return float(np.mean(caught_changes)) if caught_changes else 1.0


def show(
    result: Result, truth: Array, answers: Mapping[str, Array], figures: Mapping[str, Any]
) -> None:
    """A row for each copy of the model. `truth`: the whole model's answers."""
    rows = []
    for name, given in answers.items():
        numbers, compared = figures[name], (given >= 0) & (truth >= 0)
        right = float((given == truth)[compared].mean())
        stats = numbers["stats"]
        exits = stats["model_stats"][0].get("exit_stats", {}) if "model_stats" in stats else {}
        rows.append(_cells(name, numbers, right, entries(given), caught(truth, given), exits))
        if name != "whole":
            result.figures += [
                Figure(f"{name}: right", right, "", at_least(0.99)),
                Figure(f"{name}: entries caught", caught(truth, given), "", at_least(0.9)),
            ]
            if "whole" in figures:
                ratio = numbers["p50"] / figures["whole"]["p50"]
                result.figures.append(Figure(f"{name}: p50 ÷ whole", ratio, "×"))
    left = "by memory, by ramps"
    headings = ("", "answered", "p25, p50, p99 ms", "right", "entries", "caught", left)
    text = f"four cameras, {len(entries(truth))} entries by the whole model"
    result.tables.append(Table(text, headings, tuple(rows)))


def _cells(
    name: str,
    numbers: Mapping[str, Any],
    right: float,
    entered: Sequence[tuple[int, int]],
    share: float,
    exits: Mapping[str, Any],
) -> tuple[str, ...]:
    times = ", ".join(f"{1e3 * numbers[level]:.1f}" for level in ("p25", "p50", "p99"))
    by_ramp = {ramp["tensor"]: ramp["request_count"] for ramp in exits.get("ramps", ())}
    left = f"{by_ramp.pop(MEMORY, 0)}, {sum(by_ramp.values())}"
    cells = (f"{right:.3f}", str(len(entered)), f"{share:.2f}", left)
    return (name, str(numbers["answered"]), times, *cells)
