"""What the gRPC front end costs beside an empty handler of the stacks it could be built on.

Each row is a server in a process of its own on one core; h2load, on another core, keeps 32 unary
calls in flight, on as many connections or as streams of one. Nothing runs behind the front end:
its data plane answers at once.

    aio empty    grpc.aio, an async handler that is given the parsed message and answers
    sync empty   grpc with a pool of threads, the same handler
    sync hop     the same, but each thread waits until an event loop has answered: what a pool
                 must do before an engine that lives on a loop; one thread for each call in flight
    slacktide    our server: metadata, conversion, data plane, answer

Rows are measured in turn, several times, in the same run; the median counts. CPU time means more
than rates: the machine may be shared. Goal: a quarter of the CPU time of aio empty for small calls.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Thread
from typing import cast

import grpc
import grpc.aio
import uvloop
from google.protobuf.message import Message

from bench.clients import grpc_body, h2load
from bench.machine import ROOT, cores, pin, pinned
from bench.measurement import Figure, Options, Result, Table, at_least, format_number
from bench.servers import Serving
from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype
from slacktide.frontends.grpc import GrpcServer
from slacktide.frontends.ports import ControlPlane, DataPlane
from slacktide.wire.calls import (
    CallContext,
    InferCall,
    InferReply,
    InputTensor,
    OutputValue,
    Parameter,
)
from slacktide.wire.grpc_messages import encode_call, encode_reply
from slacktide.wire.proto.messages import (
    INFERENCE_SERVICE,
    ModelInferRequest,
    ModelInferResponse,
)

ROWS = ("aio empty", "sync empty", "sync hop", "slacktide")


@dataclass(frozen=True)
class Shape:
    """How calls come."""

    payload: int
    streams: int
    """Of each connection."""
    rate_guess: int
    """Calls/s, to choose how many are made."""


SHAPES = {
    "256 B, 32 connections": Shape(256, 1, 8_000),
    "256 B, 32 streams of one": Shape(256, 32, 8_000),
    "150 KB, 32 connections": Shape(150_000, 1, 1_500),
    "600 KB, 32 connections": Shape(600_000, 1, 400),
}
OUTSTANDING = 32
LIMIT = 4.0
METHOD = f"/{INFERENCE_SERVICE}/ModelInfer"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
ANSWER = InferReply(
    Outcome(Reason.ON_TIME, 0.0),
    "mlp",
    "1",
    "",
    [OutputValue("y", Datatype.FP32, (1, 10), bytes(40))],
)


def request(payload_bytes: int) -> bytes:
    """A serialized ModelInferRequest with one FP32 input of that size."""
    tensor = InputTensor("x", Datatype.FP32, (1, payload_bytes // 4), bytes(payload_bytes))
    return encode_call(InferCall("mlp", None, "1", [tensor], ["y"]))


# ---- servers


class InstantPlane:
    """A data plane whose one call copies nothing and answers in the next turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._slots = memoryview(bytearray(32 << 20))
        """Taken in turn, as from an arena."""
        self._at = 0

    def call(self, model: str, version: str | None, context: CallContext) -> InstantPlane:
        return self

    def announce(self, length: int, parameters: Mapping[str, Parameter]) -> memoryview:
        self._at = 0 if self._at + length > len(self._slots) else self._at
        self._at += length
        return self._slots[self._at - length : self._at]

    def submit(self, call: InferCall, reply: Callable[[InferReply], None]) -> None:
        self._call_soon(reply, ANSWER)

    def cancel(self, reason: Reason) -> None:
        pass


class _OneMethod(grpc.GenericRpcHandler):
    def __init__(self, handler: grpc.RpcMethodHandler[ModelInferRequest, Message]) -> None:
        self._handler = handler

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[ModelInferRequest, Message]:
        return self._handler


def handlers(behaviour: Callable[..., object]) -> list[grpc.GenericRpcHandler]:
    """ModelInfer with that behaviour, parsing and serializing as generated code does."""
    handler = grpc.unary_unary_rpc_method_handler(
        behaviour, ModelInferRequest.FromString, ModelInferResponse.SerializeToString
    )
    return [_OneMethod(handler)]


def serve(row: str) -> None:
    """Serve until killed; prints the port."""
    answer = ModelInferResponse.FromString(b"".join(encode_reply(ANSWER)))
    if row == "sync empty":
        serve_pool(lambda _request, _context: answer, threads=8)
    elif row == "sync hop":
        loop = uvloop.new_event_loop()
        Thread(target=loop.run_forever, daemon=True).start()

        def hop(_request: Message, _context: object) -> Message:
            answered: Future[Message] = Future()
            loop.call_soon_threadsafe(answered.set_result, answer)
            return answered.result()

        serve_pool(hop, threads=2 * OUTSTANDING)
    else:
        uvloop.run(serve_loop(row, answer))


def serve_pool(behaviour: Callable[..., object], threads: int) -> None:
    server = grpc.server(ThreadPoolExecutor(threads), handlers(behaviour), options=OPTIONS)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


async def serve_loop(row: str, answer: Message) -> None:
    if row == "slacktide":
        # Only ModelInfer is called, so that neither plane needs its other methods.
        data = cast(DataPlane, InstantPlane(asyncio.get_running_loop()))
        ours = GrpcServer(data, cast(ControlPlane, None))
        await ours.start("127.0.0.1", 0)
        print(ours.port, flush=True)
        await asyncio.Event().wait()

    async def empty(_request: Message, _context: object) -> Message:
        return answer

    server = grpc.aio.server(handlers=handlers(empty), options=OPTIONS)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


# ---- client


@dataclass(frozen=True)
class Sample:
    """One row, once."""

    calls_per_s: float
    server_us: float
    """CPU time of the server per call; below 1e6 / calls_per_s where the client was the limit."""


def measure(row: str, shape: Shape, seconds: float, server_core: int) -> Sample:
    command = [sys.executable, "-m", "bench.grpc_front_end"]
    command += ["--serve", row, "--core", str(server_core)]
    server = subprocess.Popen(
        pinned(server_core, command), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        serving = Serving(row, 0, "", int(server.stdout.readline()), 0.0, server.pid)
        body = grpc_body(request(shape.payload))
        h2load(serving, "mlp", body, count=2_000, streams=shape.streams, grpc=True)
        count = max(2_000, round(shape.rate_guess * seconds))
        before, begin = cpu_seconds(server.pid), time.perf_counter()
        h2load(serving, "mlp", body, count=count, streams=shape.streams, grpc=True)
        taken = time.perf_counter() - begin
        used = cpu_seconds(server.pid) - before
    finally:
        server.kill()
        server.wait()
    return Sample(count / taken, used / count * 1e6)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare(seconds: float, rounds: int) -> dict[str, dict[str, Sample]]:
    """Shape → row → median sample. Clients and servers are pinned."""
    where = cores()
    table: dict[str, dict[str, Sample]] = {}
    for name, shape in SHAPES.items():
        samples: dict[str, list[Sample]] = {row: [] for row in ROWS}
        for _ in range(rounds):
            for row in ROWS:
                samples[row].append(measure(row, shape, seconds, where.server))
        table[name] = {
            row: Sample(
                median(s.calls_per_s for s in row_samples), median(s.server_us for s in row_samples)
            )
            for row, row_samples in samples.items()
        }
    return table


def run(options: Options) -> Result:
    """Five rounds (one short one when quick)."""
    quick = options.quick
    table = compare(seconds=1.0, rounds=1) if quick else compare(seconds=3.0, rounds=5)
    result = Result("grpc_front_end")
    for shape, rows in table.items():
        base = rows["aio empty"]
        ratio = base.server_us / rows["slacktide"].server_us
        goal = at_least(LIMIT) if SHAPES[shape].payload < 1000 else None
        name = f"calls for the CPU of one of an empty aio handler, {shape}"
        result.figures.append(Figure(name, ratio, "×", goal))
        lines = [
            (
                row,
                format_number(sample.calls_per_s),
                format_number(sample.server_us),
                f"{base.server_us / sample.server_us:.2f}",
            )
            for row, sample in rows.items()
        ]
        title = f"{shape}, {OUTSTANDING} in flight, server on one core"
        columns = ("server", "calls/s", "server µs/call", "CPU of aio empty ÷")
        result.tables.append(Table(title, columns, tuple(lines)))
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One server, until killed; prints its port.")
    parser.add_argument("--serve", choices=ROWS, required=True)
    parser.add_argument("--core", type=int, required=True)
    arguments = parser.parse_args()
    pin(arguments.core)
    serve(arguments.serve)
