"""A pipeline on one core: what stands between its stages, what it costs the loop, how many frames
are whole at 0.7 of capacity, and how soon a client that goes has taken its frame along.

The detector `street` on frames of 256 × 256 raw pixels; behind it `brand` (64 × 64 crops) and
`clothing` (48 × 48), four crops each. Everything of the server is on one core, clients on another;
the server is `slacktide serve` with a pen (bench/pipeline_server.py).

Under load (bench/pipeline_load.py) the simulator is asked the same from the server's recording.

A hop runs from the detector's report to the classifier's, less the time in the model and of its
outputs: cutting the one crop and the classifier's way back are in it. What pipelines cost the loop
is the time in `Frames` and in the driver's half of it, without that of the engine, of batches and
of replies, which any request has; all told is the server's CPU time for a frame, less that for a
request to the detector alone, over its other stages' requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import statistics
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench.clients import latencies, request_bytes
from bench.crops import measure as crops_of_frames
from bench.frame_log import FrameLog
from bench.machine import CACHE, cores, pin
from bench.measurement import Figure, Options, Result, at_most
from bench.models import Body, Tensors, oip_body
from bench.pipeline_load import SEED, Load, measured_capacity, served, sweep
from bench.servers import Serving
from slacktide.lab.examples import make_repository
from slacktide.lab.examples.street import Street

SIZE = 256
ONE = """
stages: {detect: street, brand: brand}
edges: [{from: detect, to: brand, each: box, when: {most: 1}}]
"""
BOTH = """
stages: {detect: street, brand: brand, coat: clothing}
edges:
  - {from: detect, to: brand, each: box, when: {score: 0.3, most: 4}}
  - {from: detect, to: coat, each: box, when: {score: 0.3, most: 4}}
"""


def run(options: Options) -> Result:
    """1,000 frames one by one, 20 times 16 clients that go, five minutes under load."""
    count, duration, times = (100, 8.0, 3) if options.quick else (1000, 60.0, 20)
    result = Result("pipelines", seeds=(SEED,))
    root = CACHE / "pipelines"
    pipelines = {"one": ONE, "both": BOTH}
    for name in pipelines:  # they are no examples, and would be refused
        shutil.rmtree(root / name, ignore_errors=True)
    make_repository(root, models=["street", "brand", "clothing"])
    for name, text in pipelines.items():
        (root / name).mkdir(exist_ok=True)
        (root / name / "pipeline.yaml").write_text(text)
    scenes = [Street(SEED).scene(10 * number, SIZE).picture[None] for number in range(16)]
    frames: tuple[Tensors, ...] = tuple({"image": picture} for picture in scenes)
    body = oip_body(frames[0])
    pin(cores().client)
    with served(root) as (serving, log):
        alone = _one_by_one(serving, log, body, count, result)
        capacity = measured_capacity(serving, "both", frames, duration / 6)
        gone = [_gone(serving, body, log) for _ in range(times)]
    sweep(root, Load("both", frames, capacity, 10 * alone, duration), result)
    worst = 1e3 * max(gone)
    result.figures.append(Figure("clients go: all freed, at worst", worst, "ms", at_most(50)))
    return result


def _one_by_one(serving: Serving, log: FrameLog, body: Body, count: int, result: Result) -> float:
    """Seconds that a frame of `both` takes alone."""

    def took(model: str) -> tuple[float, float]:
        """Seconds of a request, and of the server's CPU for it."""
        path = serving.path_of(model)
        latencies(serving, path, body, count=20)
        log()
        busy = _cpu_s(serving.pid)
        seconds = latencies(serving, path, body, count=count)
        return float(np.median(seconds)), (_cpu_s(serving.pid) - busy) / count

    figures = result.figures
    took("one")  # its first requests are not as fast as the rest
    result.details["one_ms"] = 1e3 * took("one")[0]
    hops = [
        1e3 * (back - ready - own)
        for batches in log().batches.values()
        for (first, ready, _), (last, back, own) in pairwise(batches)
        if (first, last) == ("street", "brand")
    ]
    hop = statistics.median(hops)
    figures.append(Figure("hop, one crop of 64 × 64, p50", hop, "ms", at_most(1)))
    bare = 1e3 * statistics.median(asyncio.run(crops_of_frames(count))["1 raw"].hop)
    figures.append(Figure("hop ÷ that of a crop without a server", hop / bare, "×"))
    figures.append(Figure("hop, p99", float(np.percentile(hops, 99)), "ms"))
    _, direct = took("street")
    whole, busy = took("both")
    batch_log = log()
    further = [len(batches) - 1 for batches in batch_log.batches.values()]
    cost = 1e6 * statistics.median(batch_log.costs)
    figures.append(Figure("loop, what pipelines cost a stage's request", cost, "µs", at_most(60)))
    if sum(further):
        per_stage = 1e6 * (busy - direct) / statistics.mean(further)
        figures.append(Figure("CPU of the server, all told, a stage more", per_stage, "µs"))
    result.details["both_ms"] = 1e3 * whole
    return whole


def _cpu_s(pid: int) -> float:
    """CPU time of one process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _gone(serving: Serving, body: Body, log: FrameLog) -> float:
    """Seconds until 16 frames are freed whose clients go, from the moment they do."""
    path = serving.path_of("both")
    request = request_bytes(serving, path, body)
    log()
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", serving.port)))
            for _ in range(16)
        ]
        for connection in connections:
            connection.sendall(request)
        while not log().batches:  # one of them runs
            time.sleep(0.0005)
    gone = time.perf_counter()
    freed: list[float] = []
    while len(freed) < 1 or time.perf_counter() - gone < 0.3:
        freed += log().freed
        time.sleep(0.005)
    return max(0.0, max(freed) - gone)
