"""A pipeline on one core: what stands between its stages, what it costs the loop, how many frames
are whole at 0.7 of capacity, and how soon a client that goes has taken its frame along.

The detector `street` on frames of 256 × 256 raw pixels; behind it `brand` (64 × 64 crops) and
`clothing` (48 × 48), four crops each. Everything of the server is on one core, clients on another;
the server is `slacktide serve` with a pen (bench/pipeline_server.py).

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
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench import servers
from bench.clients import latencies, read_answer, request_bytes
from bench.crops import measure as crops_of_frames
from bench.machine import CACHE, cores, pin
from bench.measurement import Figure, Options, Result, at_least, at_most
from bench.models import Body, Tensors, oip_body
from bench.offer import Offered, offer
from bench.servers import Serving
from slacktide.examples import make_repository
from slacktide.examples.street import Street
from slacktide.workloads import Fixed, Poisson

SIZE = 256
SEED = 1
OUTSTANDING = 8
SHARE = 0.7
OVER = 1.3
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


@dataclass(slots=True)
class Seen:
    """What the server's log says."""

    batches: dict[int, list[tuple[str, float, float]]] = field(default_factory=dict)
    """By frame: model, when it was reported, seconds of it that are the model's and its outputs."""
    freed: list[float] = field(default_factory=list)
    """When."""
    costs: list[float] = field(default_factory=list)
    """Of frames that came one by one: CPU seconds of the loop for each request of a stage."""
    spent_s: float = 0.0
    """Seconds of batches, shared out among their members."""
    wasted_s: float = 0.0
    """Those of members whose frame had ended."""

    @classmethod
    def of(cls, lines: list[str]) -> Seen:
        seen, before = cls(), None
        ended: dict[str, float] = {}
        for line in lines:
            kind, *rest = line.split()
            if kind == "ended":
                ended[rest[0]] = float(rest[1])
            elif kind == "freed":
                seen.freed.append(float(rest[1]))
                spent, children = float(rest[2]), int(rest[3])
                if before is not None and children > before[1]:
                    seen.costs.append((spent - before[0]) / (children - before[1]))
                before = spent, children
            else:
                model, seconds, _, infer, output, whole, *frames = rest
                at, length = float(seconds), float(whole)
                for frame in frames:
                    share = length / len(frames)
                    seen.spent_s += share
                    seen.wasted_s += share * min(1.0, max(0.0, at - ended.get(frame, at)) / length)
                    if frame != "None":
                        one = (model, at, float(infer) + float(output))
                        seen.batches.setdefault(int(frame), []).append(one)
        return seen


def run(options: Options) -> Result:
    """1,000 frames one by one, two minutes under load, 20 times 16 clients that go."""
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
    frames: list[Tensors] = [{"image": picture} for picture in scenes]
    body = oip_body(frames[0])
    pin(cores().client)
    with _served(root) as (serving, log):
        alone = _one_by_one(serving, log, body, count, result)
        _under_load(serving, log, frames, alone, duration, result)
        gone = [_gone(serving, body, log) for _ in range(times)]
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
        found = latencies(serving, path, body, count=count)
        return float(np.median(found)), (_cpu_s(serving.pid) - busy) / count

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
    seen = log()
    each = [len(batches) - 1 for batches in seen.batches.values()]
    cost = 1e6 * statistics.median(seen.costs)
    figures.append(Figure("loop, what pipelines cost a stage's request", cost, "µs", at_most(60)))
    if sum(each):
        told = 1e6 * (busy - direct) / statistics.mean(each)
        figures.append(Figure("CPU of the server, all told, a stage more", told, "µs"))
    result.details["both_ms"] = 1e3 * whole
    return whole


def _under_load(
    serving: Serving,
    log: FrameLog,
    frames: list[Tensors],
    alone: float,
    duration: float,
    result: Result,
) -> None:
    capacity, deadline = _capacity(serving, frames, duration / 6), 10 * alone
    for share in (SHARE, OVER):
        log()
        before = _outcomes(serving)
        load = Offered("both", Poisson(share * capacity), Fixed(deadline), "", tuple(frames))
        answered = offer(serving, [load], duration=duration, warmup=0.0, seed=SEED)
        seen, ended = log(), _outcomes(serving)
        counts = {name: ended[name] - before.get(name, 0) for name in ended}
        complete = counts.get("on_time", 0) / max(1, sum(counts.values()))
        others = ", ".join(f"{n} {name}" for name, n in counts.items() if n and name != "on_time")
        note = f"{share * capacity:.0f}/s, deadline {1e3 * deadline:.0f} ms; {others}"
        goal = at_least(0.99) if share == SHARE else None
        name = f"at {share:g} × capacity"
        result.figures.append(Figure(f"{name}: complete in time", complete, "", goal, note))
        goodput = answered.models["both"].goodput
        result.figures.append(Figure(f"{name}: in time by the client, partial too", goodput))
        wasted = seen.wasted_s / max(1e-9, seen.spent_s)
        goal = at_most(0.01) if share == OVER else None
        told = Figure(f"{name}: batch seconds of frames that had ended", wasted, "", goal)
        result.figures.append(told)


class FrameLog:
    """Reads what was written since the last call."""

    def __init__(self, path: Path) -> None:
        self._file = path.open()

    def __call__(self) -> Seen:
        return Seen.of(self._file.readlines())


@contextlib.contextmanager
def _served(root: Path) -> Iterator[tuple[Serving, FrameLog]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frames.log"
        path.touch()
        os.environ["BENCH_FRAME_LOG"] = str(path)
        with servers.slacktide(root, module="bench.pipeline_server") as serving:
            yield serving, FrameLog(path)


def _cpu_s(pid: int) -> float:
    """CPU time of one process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _capacity(serving: Serving, frames: list[Tensors], seconds: float) -> float:
    """Frames a second with `OUTSTANDING` always under way."""
    path = serving.path_of("both")
    requests = [request_bytes(serving, path, oip_body(frame)) for frame in frames]
    end = time.perf_counter() + seconds

    def ask(number: int) -> int:
        done = 0
        with socket.create_connection(("127.0.0.1", serving.port)) as connection:
            while time.perf_counter() < end:
                connection.sendall(requests[(number + done) % len(requests)])
                read_answer(connection, serving.name)
                done += 1
        return done

    with ThreadPoolExecutor(OUTSTANDING) as pool:
        return sum(pool.map(ask, range(OUTSTANDING))) / seconds


def _outcomes(serving: Serving) -> dict[str, int]:
    (stats,) = serving.fetch("/v2/models/both/stats")["model_stats"]
    return dict(stats["outcome_stats"])


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
