"""What large bodies cost beyond the run, over HTTP and gRPC: lone requests, 150 and 600 KB.

The models do next to nothing, so what a long tensor costs more than a short one is its copies:

    in    loop: from the socket into the request's slot; worker: the run reads it there
    out   worker: from the run's array into shared memory; loop: out of there, and to the socket

All processes of a server run on one core; medians over rounds of CPU time (server and worker), and
p50 by h2load. `copies` are those made in user space, alone: a slot in which a batch of two is
gathered (a batch of one is used where it lies), results as they are left by the worker and as the
server takes them over. `--beside FOLDER` as for `left_in_peace`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from bench import models, servers
from bench.clients import grpc_body, h2load
from bench.machine import cores, pin
from bench.measurement import Figure, Options, Result, Table, at_most, format_number
from bench.processes import cpu_seconds, tree
from bench.servers import Serving
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.output_file import OutputReader, OutputWriter, make_output_file
from slacktide.executors.ports import TensorRef
from slacktide.executors.tensor_io import InputGatherer

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
                found = {name: _measure(up, name, protocol, rounds, count) for name in SIZES}
                _show(protocol, found, result)
    if options.wants("copies"):
        _copies(result)
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
    found: dict[str, list[Costs]] = {name: [] for name in up}
    for turn in range(rounds + 1):
        for name, serving in up.items():
            loop, *workers = tree(serving.pid)
            before = cpu_seconds((loop,)), cpu_seconds(tuple(workers))
            rate = h2load(serving, model, body, count=count, outstanding=1, grpc=grpc)
            after = cpu_seconds((loop,)), cpu_seconds(tuple(workers))
            one, other = ((b - a) / count * 1e6 for a, b in zip(before, after, strict=True))
            if turn:  # the first warms up
                found[name].append((one, other, median(rate.took) * 1e3))
    return found


def _show(protocol: str, found: dict[str, dict[str, list[Costs]]], result: Result) -> None:
    """A table of medians, and what 600 KB cost more than a short body, with the goal."""
    lines = []
    for size, servers_ in found.items():
        for name, rounds in servers_.items():
            middle = [median(values) for values in zip(*rounds, strict=True)]
            lines.append((f"{size}, {name}", *map(format_number, middle)))
            p50 = tuple(each[2] for each in rounds)
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
    whole = tuple(one + other for one, other, _ in found["in 600 KB"]["this one"])
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
    writer.write([array], [1], interface)
    steps: dict[str, Callable[[], object]] = {
        "one input, used where it lies": lambda: gatherer.gather(members[:1], arena),
        "one of two inputs, gathered": lambda: gatherer.gather(members, arena),
        "results, left by the worker": lambda: writer.write([array], [1], interface),
        "results, taken over by the server": lambda: bytes(reader.view(nbytes)[:nbytes]),
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
