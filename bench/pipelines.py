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
from bench.models import Tensors, oip_body
from bench.offer import Offered, offer
from bench.servers import Serving
from slacktide.examples import make_repository
from slacktide.examples.street import Street
from slacktide.workloads import Fixed, Poisson

SIZE = 256
SEED = 1
OUTSTANDING = 8
SHARE = 0.7
ONE = """
stages: {detect: street, brand: brand}
edges: [{from: detect, to: brand, each: box, when: {most: 1}}]
"""
TRAFFIC = """
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

    @classmethod
    def of(cls, lines: list[str]) -> Seen:
        seen, before = cls(), None
        for line in lines:
            kind, *rest = line.split()
            if kind == "freed":
                seen.freed.append(float(rest[1]))
                spent, children = float(rest[2]), int(rest[3])
                if before is not None and children > before[1]:
                    seen.costs.append((spent - before[0]) / (children - before[1]))
                before = spent, children
                continue
            model, at, _, infer, output, *frames = rest
            for frame in frames:
                if frame != "None":
                    one = (model, float(at), float(infer) + float(output))
                    seen.batches.setdefault(int(frame), []).append(one)
        return seen


def run(options: Options) -> Result:
    """1,000 frames one by one, a minute at 0.7 of capacity, 20 times 16 clients that go."""
    count, duration, times = (100, 8.0, 3) if options.quick else (1000, 60.0, 20)
    result = Result("pipelines", seeds=(SEED,))
    root = CACHE / "pipelines"
    pipelines = {"one": ONE, "traffic": TRAFFIC}
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

        def took(model: str) -> tuple[np.ndarray, float]:
            """Seconds of requests one by one, and of the server's CPU for each."""
            path = serving.path_of(model)
            latencies(serving, path, body, count=20)
            busy = _cpu_s(serving.pid)
            found = latencies(serving, path, body, count=count)
            return found, (_cpu_s(serving.pid) - busy) / count

        took("one")
        log()
        alone, _ = took("one")
        hops = [
            1e3 * (back - ready - own)
            for batches in log().batches.values()
            for (first, ready, _), (last, back, own) in pairwise(batches)
            if (first, last) == ("street", "brand")
        ]
        result.figures.append(
            Figure("hop, one crop of 64 × 64, p50", statistics.median(hops), "ms", at_most(1))
        )
        bare = asyncio.run(crops_of_frames(count))["1 raw"]
        ratio = statistics.median(hops) / (1e3 * statistics.median(bare.hop))
        result.figures.append(Figure("hop ÷ that of a crop without a server (crops)", ratio, "×"))
        result.figures.append(
            Figure("hop, p99", float(np.percentile(hops, 99)), "ms", note=f"{len(hops)} hops")
        )
        _, direct = took("street")
        log()
        whole, busy = took("traffic")
        seen = log()
        each = [len(batches) - 1 for batches in seen.batches.values()]
        cost = 1e6 * statistics.median(seen.costs)
        result.figures.append(
            Figure("loop, what pipelines cost a stage's request", cost, "µs", at_most(60))
        )
        if sum(each):
            told = 1e6 * (busy - direct) / statistics.mean(each)
            result.figures.append(Figure("CPU of the server, all told, a stage more", told, "µs"))
        capacity = _capacity(serving, frames, 1.0 if options.quick else 10.0)
        log()
        deadline = 10 * float(np.median(whole))
        load = Offered("traffic", Poisson(SHARE * capacity), Fixed(deadline), "", tuple(frames))
        before = _outcomes(serving)
        answered = offer(serving, [load], duration=duration, warmup=0.0, seed=SEED)
        ended = _outcomes(serving)
        counts = {name: ended[name] - before.get(name, 0) for name in ended}
        complete = counts.get("on_time", 0) / max(1, sum(counts.values()))
        others = ", ".join(f"{n} {name}" for name, n in counts.items() if n and name != "on_time")
        note = f"{SHARE:g} × {capacity:.0f}/s, deadline {1e3 * deadline:.0f} ms; {others}"
        result.figures.append(
            Figure("frames complete in time", complete, "", at_least(0.99), note=note)
        )
        late = answered.models["traffic"].goodput
        result.figures.append(Figure("in time by the client's clock, partial ones too", late, ""))
        gone = [_gone(serving, body, log) for _ in range(times)]
        worst = 1e3 * max(gone)
        result.figures.append(Figure("clients go: all freed, at worst", worst, "ms", at_most(50)))
        result.details["alone_ms"] = 1e3 * float(np.median(alone))
        result.details["whole_ms"] = 1e3 * float(np.median(whole))
    return result


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
    path = serving.path_of("traffic")
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
    (stats,) = serving.fetch("/v2/models/traffic/stats")["model_stats"]
    return dict(stats["outcome_stats"])


def _gone(serving: Serving, body: object, log: FrameLog) -> float:
    """Seconds until 16 frames are freed whose clients go, from the moment they do."""
    path = serving.path_of("traffic")
    request = request_bytes(serving, path, body)  # type: ignore[arg-type]
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
