"""What large bodies cost beyond the run, over HTTP and gRPC: lone requests, 150 and 600 KB.

The models do next to nothing, so what a long tensor costs more than a short one is its copies:

    in    loop: from the socket into the request's slot; worker: the run reads it there
    out   worker: from the run's array into shared memory; loop: out of there, and to the socket

All processes of a server run on one core; medians over rounds of CPU time (server and worker), and
p50 by h2load. `copies` are those made in user space, alone: a slot in which a batch of two is
gathered (a batch of one is used where it lies), results as they are left by the worker and as the
server takes them over. `turns` is the longest turn of a loop, in CPU time, while it takes over an
answer of 60 MB of numbers or 30 MB of strings, and what the answer takes beyond the run. `--beside
FOLDER` as for `left_in_peace`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import uvloop

from bench import models, servers
from bench.clients import grpc_body, h2load
from bench.machine import cores, pin
from bench.measurement import Figure, Options, Result, Table, at_most, format_number
from bench.processes import cpu_seconds, tree
from bench.servers import Serving
from slacktide.domain import BatchFinished, BatchTiming, PoolId, Replica
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.hand_over.output_file import OutputReader, OutputWriter, make_output_file
from slacktide.executors.hand_over.protocol import FinishedMessage
from slacktide.executors.hand_over.tensor_io import InputGatherer, encode_strings
from slacktide.executors.ports import BatchOrder, ModelSource, Payload, Report, TensorRef
from slacktide.executors.process import ProcessExecutor

SIZES = {"short": 1, "in 150 KB": 37_500, "in 600 KB": 150_000, "out 600 KB": 1}
ANSWERED = {"out 600 KB": 150_000}
LIMIT_US = 500.0
Costs = tuple[float, float, float]
"""CPU µs of the server's process and of the worker, and the p50 in ms, of a request."""


def run(options: Options) -> Result:
    """Seven rounds (three short ones when quick), some three minutes with one beside."""
    rounds, count = (3, 100) if options.quick else (7, 400)
    pin(cores().client)
    result = Result("large_bodies")
    contents = {
        name.replace(" ", "_"): (models.hop_model(floats, ANSWERED.get(name, 1)), "max_batch: 4\n")
        for name, floats in SIZES.items()
    }
    with contextlib.ExitStack() as stack:
        up: dict[str, Serving] = {}
        for number, folder in enumerate(("", *options.beside)):
            repository = models.variant_repository(f"bodies{number}", contents)
            serving = stack.enter_context(servers.slacktide(repository, source=folder))
            up[folder or "this one"] = serving
        for protocol in ("HTTP", "gRPC"):
            if options.wants(protocol):
                costs = {name: _measure(up, name, protocol, rounds, count) for name in SIZES}
                _show(protocol, costs, result)
    if options.wants("copies"):
        _copies(result)
    if options.wants("turns"):
        uvloop.run(_turns(result, 5 if options.quick else 20))
    return result


def _measure(
    up: dict[str, Serving], size: str, protocol: str, rounds: int, count: int
) -> dict[str, list[Costs]]:
    """Rounds by server."""
    model, grpc = size.replace(" ", "_"), protocol == "gRPC"
    tensors = {"values": np.ones((1, SIZES[size]), np.float32)}
    body = models.oip_body(tensors)
    if grpc:
        body = grpc_body(models.grpc_message(model, tensors))
    costs: dict[str, list[Costs]] = {name: [] for name in up}
    for turn in range(rounds + 1):
        for name, serving in up.items():
            loop, *workers = tree(serving.pid)
            before = cpu_seconds((loop,)), cpu_seconds(tuple(workers))
            rate = h2load(serving, model, body, count=count, outstanding=1, grpc=grpc)
            after = cpu_seconds((loop,)), cpu_seconds(tuple(workers))
            server_us, worker_us = (
                (b - a) / count * 1e6 for a, b in zip(before, after, strict=True)
            )
            if turn:  # the first warms up
                costs[name].append((server_us, worker_us, median(rate.took) * 1e3))
    return costs


def _show(protocol: str, costs: dict[str, dict[str, list[Costs]]], result: Result) -> None:
    """A table of medians, and what 600 KB cost more than a short body, with the goal."""
    lines = []
    for size, servers_ in costs.items():
        for name, rounds in servers_.items():
            middle = [median(values) for values in zip(*rounds, strict=True)]
            lines.append((f"{size}, {name}", *map(format_number, middle)))
            p50 = tuple(costs_of_round[2] for costs_of_round in rounds)
            if size != "short" and name != "this one":
                base = servers_["this one"]
                ratios = tuple(a[2] / b[2] for a, b in zip(base, rounds, strict=True))
                figure = f"{protocol} {size}: p50 ÷ {name}"
                result.figures.append(Figure(figure, median(ratios), "×", samples=ratios))
            elif size != "short":
                result.figures.append(
                    Figure(f"{protocol} {size}: p50", median(p50), "ms", samples=p50)
                )
    columns = ("request", "server, µs", "worker, µs", "p50, ms")
    result.tables.append(Table(f"Lone requests over {protocol}", columns, tuple(lines)))
    whole = tuple(
        server_us + worker_us for server_us, worker_us, _ in costs["in 600 KB"]["this one"]
    )
    name = f"{protocol} in 600 KB: CPU of a request"
    result.figures.append(Figure(name, median(whole), "µs", at_most(LIMIT_US), samples=whole))


def _copies(result: Result) -> None:
    """CPU µs of the copies of 600 KB in user space."""
    floats = 150_000
    nbytes = 4 * floats
    arena = memoryview(bytearray(2 * nbytes))
    spec = TensorSpec("values", Datatype.FP32, (-1, floats))
    interface = ModelInterface((spec,), (spec,), 4)
    gatherer = InputGatherer(spec)
    members = [TensorRef(at * nbytes, nbytes, (1, floats)) for at in range(2)]
    fd = make_output_file()
    writer, reader = OutputWriter(fd), OutputReader(fd)
    array = np.ones((1, floats), np.float32)
    runs = writer.write([array], [1], interface)
    message = FinishedMessage(0, BatchTiming(), writer.file_bytes, 1, runs)
    steps: dict[str, Callable[[], object]] = {
        "one input, used where it lies": lambda: gatherer.gather(members[:1], arena),
        "one of two inputs, gathered": lambda: gatherer.gather(members, arena),
        "results, left by the worker": lambda: writer.write([array], [1], interface),
        "results, taken over by the server": lambda: reader.take(message),
    }
    lines = []
    for name, step in steps.items():
        step()
        taken = []
        for _ in range(200):
            begin = time.thread_time()
            step()
            taken.append((time.thread_time() - begin) * 1e6 / (2 if "of two" in name else 1))
        lines.append((name, format_number(median(taken))))
    reader.close()
    result.tables.append(Table("Copies of 600 KB in user space", ("copy", "µs"), tuple(lines)))


async def _turns(result: Result, rounds: int) -> None:
    number = np.ones(1, np.float32).tobytes()
    string = encode_strings(np.array(["x" * 996], object))
    for name, model, data in (
        ("60 MB of numbers", models.hop_model(1, 15_000_000), number),
        ("30 MB of strings", models.hop_model(1, 30_000, strings=True), string),
    ):
        folder = name.replace(" ", "_")
        root = models.variant_repository("turns", {folder: (model, "")})
        turns, extra = await _longest_turns(root / folder / "1" / "model.onnx", data, rounds)
        result.figures += [
            Figure(f"turns: {name}, longest", median(turns), "ms", at_most(5.0), samples=turns),
            Figure(f"turns: {name}, beyond the run", median(extra), "ms", samples=extra),
        ]


async def _longest_turns(
    file: Path, data: bytes, rounds: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """By batch, in ms: CPU time of the loop's longest turn, and time until the report beyond the
    run. The worker is on another core."""
    arena = Arena(1 << 16)
    slot = arena.allocate(len(data))
    arena.view(slot)[:] = data
    reports: list[Report] = []

    def report(event: Report, *_: object, **__: object) -> None:
        reports.append(event)

    executor = ProcessExecutor()
    replica = Replica(0, PoolId("m", "1"), "lane", (cores().server,), 1)
    source = ModelSource(name="m", version="1", path=file, root=file.parent)
    handle = executor.start(replica, source, arena, report)
    while not reports:
        await asyncio.sleep(0.01)
    payload = Payload(1, (TensorRef(slot.offset, slot.nbytes, (1, 1)),))
    turns, extra = [], []
    for batch in range(rounds + 1):
        reports.clear()
        begin, last, longest = time.perf_counter(), time.thread_time(), 0.0
        handle.run(BatchOrder(batch, [payload]))
        while not reports:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now
        end = time.perf_counter()
        finished = reports.pop()
        assert isinstance(finished, BatchFinished), finished
        if batch:  # the first maps the worker's file
            run = finished.timing
            turns.append(longest * 1e3)
            extra.append((end - begin - run.input_s - run.infer_s - run.output_s) * 1e3)
    await executor.close()
    arena.close()
    return tuple(turns), tuple(extra)
