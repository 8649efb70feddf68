"""What stands between two stages of a pipeline: crops of a frame, from the detector's answer to the
start of the next model.

One frame of 1216 × 1216 pixels in a frame arena, raw and as JPEG; a worker with the example `brand`
on a core of its own. What a detector yields, 96 boxes of which 12 are vehicles above the score, is
chosen from, made into a request of 12 crops of 64 × 64 and handed over: that is the loop's time.
The hop is all that a request of one crop takes, less its time in the model and in its outputs; the
way back is in it.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass

import numpy as np

from bench.machine import CACHE, cores, pin
from bench.measurement import Figure, Options, Result, at_most
from slacktide.domain import BatchFinished, PoolId, Replica
from slacktide.domain.crops import BoxChoice, Glue
from slacktide.domain.pipelines import Edge
from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.hand_over.tensor_io import encode_strings
from slacktide.executors.pictures import encode_jpeg
from slacktide.executors.ports import BatchOrder, CropPayload, ModelSource, TensorRef
from slacktide.executors.process import ProcessExecutor
from slacktide.lab.examples import make_repository
from slacktide.lab.examples.road_users import FRAME
from slacktide.lab.examples.street import Street
from slacktide.models.calls.input_check import InputCheck
from slacktide.models.repository.settings import ModelSettings
from slacktide.server.stage_outputs import StageArrays, chosen_boxes

CROPS, BOXES = 12, 96


@dataclass(slots=True)
class Times:
    """Of batches of one kind, seconds."""

    loop: list[float]
    hop: list[float]
    cut: list[float]


def run(options: Options) -> Result:
    """1,000 requests of each kind (100 when quick)."""
    pin(cores().client)
    kinds = asyncio.run(measure(100 if options.quick else 1000))
    result = Result("crops", seeds=(1,))

    def figure(name: str, kind: str, part: str, unit: str, limit: float | None = None) -> None:
        scale = 1e6 if unit == "µs" else 1e3
        value = scale * statistics.median(getattr(kinds[kind], part))
        goal = None if limit is None else at_most(limit)
        result.figures.append(Figure(name, value, unit, goal))

    figure("loop, a request of 12 crops", "12 raw", "loop", "µs", 60)
    figure("hop, one crop of a raw frame", "1 raw", "hop", "ms", 1)
    for kind in kinds:
        figure(f"cutting, {kind}", kind, "cut", "ms")
    return result


async def measure(count: int) -> dict[str, Times]:
    """By number and kind of crops, so many requests each; the worker is on the servers' core."""
    make_repository(CACHE / "crops", models=["brand"])
    picture = Street(1).scene(0, FRAME).picture
    jpeg = encode_strings(np.array([encode_jpeg(picture)], object))
    arena, frames = Arena(1 << 20), Arena(1 << 24)
    refs = {}
    for name, data, shape in (
        ("raw", picture.tobytes(), (1, *picture.shape)),
        ("JPEG", jpeg, (1,)),
    ):
        slot = frames.allocate(len(data))
        frames.write(slot.offset, data)
        refs[name] = TensorRef(slot.offset, len(data), shape)
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[object]] = [loop.create_future()]
    path = CACHE / "crops" / "brand" / "1" / "model.onnx"
    executor, opened = ProcessExecutor(), []

    def report(event: object, outputs: object = (), **more: object) -> None:
        opened.append(more.get("opened"))
        waiting[0].set_result(event)

    handle = executor.start(
        Replica(0, PoolId("brand", "1"), "lane", (cores().server,), 32),
        ModelSource("brand", "1", path, path.parent),
        arena,
        report,
    )
    handle.attach(1, frames, Glue())
    await waiting[0]
    check = InputCheck(opened[0].interface, ModelSettings())  # type: ignore[union-attr]
    rng = np.random.default_rng(1)
    low = rng.uniform(0, 0.85, (BOXES, 2))
    boxes = np.concatenate([low, low + rng.uniform(0.03, 0.12, (BOXES, 2))], 1).astype(np.float32)
    specs = (
        TensorSpec("boxes", Datatype.FP32, (-1, BOXES, 4)),
        TensorSpec("scores", Datatype.FP32, (-1, BOXES)),
        TensorSpec("classes", Datatype.INT64, (-1, BOXES)),
    )
    places = {spec.name: place for place, spec in enumerate(specs)}
    edge = Edge("street", "brand", "box", BoxChoice((0,), 0.5))
    kinds = {}
    for name, ref in refs.items():
        for crops in (1, CROPS):
            scores = np.where(np.arange(BOXES) % (BOXES // crops) == 0, 0.9, 0.1)
            arrays = boxes, scores.astype(np.float32), np.zeros(BOXES, np.int64)
            outputs = [((1, *array.shape), array.tobytes()) for array in arrays]
            times = kinds[f"{crops} {name}"] = Times([], [], [])
            for batch in range(count):
                waiting[0] = loop.create_future()
                begin, busy = time.perf_counter(), time.process_time()
                chosen = chosen_boxes(edge, StageArrays(specs, places, outputs)).boxes
                checked = check.crops(chosen, FRAME, FRAME)
                handle.run(BatchOrder(batch, [CropPayload(checked.rows, (ref,), 1, chosen)]))
                busy = time.process_time() - busy
                event = await waiting[0]
                end = time.perf_counter()
                assert isinstance(event, BatchFinished), event
                took = event.timing
                times.loop.append(busy)
                times.hop.append(end - begin - took.infer_s - took.output_s)
                times.cut.append(took.input_s)
    await executor.close()
    return kinds
