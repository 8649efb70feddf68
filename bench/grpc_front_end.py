"""What the gRPC front end costs beside an empty handler of the stacks it could be built on.

Each row is a server in a process of its own on one core; the client, on another core, keeps 32
unary calls in flight. Nothing runs behind the front end: its data plane answers at once.

    aio empty    grpc.aio, an async handler that is given the parsed message and answers
    sync empty   grpc with a pool of threads, the same handler
    sync hop     the same, but each thread waits until an event loop has answered: what a pool
                 must do before an engine that lives on a loop; one thread for each call in flight
    slacktide    our server: metadata, conversion, data plane, answer

Rows are measured in turn, several times, in the same run; the median counts. Ratios mean more than
rates: the machine may be shared. Goal: slacktide ≥ 0.7 × aio empty.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
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

from bench.machine import ROOT, cores, pin, pinned
from bench.measurement import Figure, Options, Result, Table, at_least, format_number
from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype
from slacktide.frontends.grpc import GrpcServer
from slacktide.frontends.ports import ControlPlane, DataPlane
from slacktide.wire.calls import CallContext, InferCall, InferReply, InputTensor, OutputValue
from slacktide.wire.grpc_messages import encode_call, encode_reply
from slacktide.wire.proto.messages import (
    INFERENCE_SERVICE,
    ModelInferRequest,
    ModelInferResponse,
)

ROWS = ("aio empty", "sync empty", "sync hop", "slacktide")
PAYLOADS = {"256 B": 256, "150 KB": 150_000}
OUTSTANDING = 32
LIMIT = 0.7
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

    def call(self, model: str, version: str | None, context: CallContext) -> InstantPlane:
        return self

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
    answer = ModelInferResponse.FromString(encode_reply(ANSWER))
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


async def drive(port: int, message: bytes, seconds: float) -> tuple[int, float]:
    """(calls answered, seconds taken) with OUTSTANDING calls in flight."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", OPTIONS) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
        await call(message)
        start = time.perf_counter()
        answered = 0

        async def one_after_another() -> None:
            nonlocal answered
            while time.perf_counter() - start < seconds:
                await call(message)
                answered += 1

        await asyncio.gather(*(one_after_another() for _ in range(OUTSTANDING)))
        return answered, time.perf_counter() - start


def measure(row: str, payload_bytes: int, seconds: float, server_core: int) -> Sample:
    command = [sys.executable, "-m", "bench.grpc_front_end"]
    command += ["--serve", row, "--core", str(server_core)]
    server = subprocess.Popen(
        pinned(server_core, command), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        message = request(payload_bytes)
        uvloop.run(drive(port, message, seconds / 5))
        before = cpu_seconds(server.pid)
        answered, taken = uvloop.run(drive(port, message, seconds))
        used = cpu_seconds(server.pid) - before
    finally:
        server.kill()
        server.wait()
    return Sample(answered / taken, used / answered * 1e6)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare(seconds: float, rounds: int) -> dict[str, dict[str, Sample]]:
    """Payload → row → median sample. The client is pinned here, servers pin themselves."""
    where = cores()
    pin(where.client)
    table: dict[str, dict[str, Sample]] = {}
    for payload, size in PAYLOADS.items():
        samples: dict[str, list[Sample]] = {row: [] for row in ROWS}
        for _ in range(rounds):
            for row in ROWS:
                samples[row].append(measure(row, size, seconds, where.server))
        table[payload] = {
            row: Sample(median(s.calls_per_s for s in got), median(s.server_us for s in got))
            for row, got in samples.items()
        }
    return table


def run(options: Options) -> Result:
    """Five rounds (one short one when quick)."""
    quick = options.quick
    table = compare(seconds=1.0, rounds=1) if quick else compare(seconds=3.0, rounds=5)
    result = Result("grpc_front_end")
    for payload, rows in table.items():
        base = rows["aio empty"].calls_per_s
        ratio = rows["slacktide"].calls_per_s / base
        name = f"front end ÷ empty aio handler, {payload} per call"
        result.figures.append(Figure(name, ratio, "×", at_least(LIMIT)))
        lines = [
            (
                row,
                format_number(sample.calls_per_s),
                format_number(sample.server_us),
                f"{sample.calls_per_s / base:.2f}",
            )
            for row, sample in rows.items()
        ]
        title = f"{payload} per call, {OUTSTANDING} in flight, server on one core"
        columns = ("server", "calls/s", "server µs/call", "× aio empty")
        result.tables.append(Table(title, columns, tuple(lines)))
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One server, until killed; prints its port.")
    parser.add_argument("--serve", choices=ROWS, required=True)
    parser.add_argument("--core", type=int, required=True)
    arguments = parser.parse_args()
    pin(arguments.core)
    serve(arguments.serve)
