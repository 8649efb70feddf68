"""Attacks, one after another, and a canary beside each: what one client's bytes cost another.

The canary asks for a tiny model every 20 ms, or as soon as it has its answer, on one connection
from 127.0.0.1; each attack comes from a process of its own and from 127.0.0.2, aimed at another
model. What is measured is the canary's time less what the server reports as time in its lane: the
worker shares a core with the loop here, and how long the kernel lets it wait is not the loop's
doing. The goal is on the delay: the worst under attack less the median without one.

Memory is that of all the server's processes
(bench/processes.py), and may grow by `--memory-limit` and an allowance for connections, two
processes that read long texts, and what the allocator keeps.

The attacker runs at the lowest priority: it shares a core with the canary, and what it takes from
the canary itself would be told as the server's.

    python -m bench.hostile ATTACK HTTP_PORT GRPC_PORT SECONDS      one attack, by itself
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench import models, servers
from bench.clients import request_bytes
from bench.machine import ROOT, cores, pin, pinned
from bench.measurement import Figure, Options, Result, Table, at_most, format_number
from bench.models import Body
from bench.processes import MemorySampler, memory, tree
from bench.servers import Serving
from slacktide.frontends.http2 import frames as f
from slacktide.lab.examples import example

GOAL_MS = 50.0
INTERVAL = 0.02
MIB = 1 << 20
MEMORY_LIMIT_MIB, ALLOWANCE_MIB = 512, 192
SETTLE = 0.3
"""Seconds of an attack before the canary counts."""
ATTACKER = "127.0.0.2"
INFER = "/v2/models/target/infer"


def run(options: Options) -> Result:
    """Ten seconds of each attack (three when quick)."""
    seconds = 3.0 if options.quick else 10.0
    result = Result("hostile")
    mlp, settings = example("mlp").onnx(), "max_batch: 8\n"
    repository = models.variant_repository(
        "hostile",
        {
            "canary": (mlp, settings),
            "target": (mlp, settings),
            "fragile": (models.fragile(), settings),
        },
    )
    body = models.oip_body(models.requests("mlp", 1)[0])
    body = Body(body.content, {**body.headers, "slacktide-report-timing": "true"})
    pin(cores().client)
    rows = []
    with servers.slacktide(repository, f"--memory-limit={MEMORY_LIMIT_MIB}MiB") as serving:
        request = request_bytes(serving, serving.path_of("canary"), body)
        canary(serving, request, 1.0)
        quiet = canary(serving, request, seconds)
        normal = float(np.median(quiet))
        rows.append(_row("(none)", quiet, memory(tree(serving.pid)), ""))
        resting = memory(tree(serving.pid))
        for name in filter(options.wants, ATTACKS):
            with (
                MemorySampler(serving.pid, 0.1) as sampler,
                attacking(name, serving, seconds) as outcome,
            ):
                time.sleep(SETTLE)
                delays = canary(serving, request, seconds - SETTLE)
            most = max(sampler.samples)
            rows.append(_row(name, delays, most, outcome()))
            delay = (float(delays.max()) - normal) * 1e3
            limit = at_most(round(resting / MIB) + MEMORY_LIMIT_MIB + ALLOWANCE_MIB)
            result.figures += [
                Figure(f"{name}: delay of the canary, worst", delay, "ms", at_most(GOAL_MS)),
                Figure(f"{name}: memory", most / MIB, "MiB", limit),
            ]
            result.details[name] = delays.tolist()
    columns = ("attack", "p50, ms", "p99, ms", "worst, ms", "memory, MiB", "what it was told")
    result.tables.append(Table("canary beside each attack", columns, tuple(rows)))
    return result


def _row(name: str, delays: np.ndarray, most: int, outcome: str) -> tuple[str, ...]:
    figures = (np.median(delays), np.quantile(delays, 0.99), delays.max())
    return (
        name,
        *[format_number(float(figure) * 1e3) for figure in figures],
        f"{most / MIB:.0f}",
        outcome,
    )


def canary(serving: Serving, request: bytes, seconds: float) -> np.ndarray:
    """Seconds that requests took, less those in their lane, shape (requests,)."""
    delays = []
    with socket.create_connection(("127.0.0.1", serving.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            connection.sendall(request)
            answer = b""
            while b"compute_us" not in answer or len(answer) < whole(answer):
                part = connection.recv(1 << 16)
                if not part:
                    raise RuntimeError(
                        f"{serving.name} ended the canary's connection: {answer[:200]!r}"
                    )
                answer += part
            took = time.perf_counter() - begin
            (in_lane,) = re.findall(rb'"compute_us":(\d+)', answer)
            delays.append(took - int(in_lane) / 1e6)
            time.sleep(max(0.0, INTERVAL - took))
    return np.array(delays)


def whole(answer: bytes) -> int:
    """Bytes of the answer that begins so."""
    head = answer.find(b"\r\n\r\n") + 4
    (length,) = re.findall(rb"Content-Length: (\d+)\r", answer[:head])[-1:]
    return head + int(length)


@contextlib.contextmanager
def attacking(name: str, serving: Serving, seconds: float) -> Iterator[Callable[[], str]]:
    """The attack, from a process of its own. The function yielded waits for its end and gives what
    it was told by the server."""
    command = [sys.executable, "-m", "bench.hostile", name]
    command += [str(serving.port), str(serving.grpc_port), str(seconds)]
    process = subprocess.Popen(
        pinned(cores().client, command), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()  # its bodies are made
        yield lambda: process.communicate(timeout=60.0)[0].strip()
    finally:
        process.kill()
        process.wait()


# ── the attacks ──────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Target:
    """What is attacked, until when, and what it said."""

    port: int
    grpc_port: int
    seconds: float
    end: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)

    def begin(self) -> None:
        """All is made that takes time."""
        print(flush=True)
        self.end = time.monotonic() + self.seconds

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.end

    def connect(self) -> socket.socket:
        connection = socket.create_connection(
            ("127.0.0.1", self.port), timeout=5.0, source_address=(ATTACKER, 0)
        )
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def hear(self, connection: socket.socket) -> None:
        """Read what has been answered, and note the status that it begins with."""
        chunk = connection.recv(1 << 20)
        if chunk.startswith(b"HTTP/1.1 "):
            self.outcomes[chunk[9:12].decode()] += 1
        elif not chunk:
            raise ConnectionResetError

    def many(self, count: int, attack: Callable[[socket.socket], None]) -> None:
        """`attack` on each of `count` connections, again and again, each in a thread."""

        def one() -> None:
            while not self.over:
                try:
                    with self.connect() as connection:
                        while not self.over:
                            attack(connection)
                except OSError:
                    self.outcomes["closed"] += 1
                    time.sleep(0.02)

        threads = [threading.Thread(target=one, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.seconds + 5.0)


def post(body: bytes, *headers: str) -> bytes:
    lines = [f"POST {INFER} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


CHUNKED = f"POST {INFER} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


def json_text(values: bytes) -> bytes:
    return b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[%b]}]}' % values


def trailer(target: Target) -> None:
    target.begin()

    def attack(connection: socket.socket) -> None:
        connection.sendall(CHUNKED + b"0\r\nA: ")
        while not target.over:
            connection.sendall(b"a" * 65536)
            time.sleep(1 / 32)  # 2 MiB/s

    target.many(8, attack)


def slow_headers(target: Target) -> None:
    target.begin()

    def attack(connection: socket.socket) -> None:
        connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: t\r\nA: ")
        while not target.over:
            connection.sendall(b"a")
            time.sleep(0.05)

    target.many(100, attack)


def repeated(count: int, gap: float, request: bytes) -> Callable[[Target], None]:
    """`request` on each of `count` connections, an answer awaited, then a pause."""

    def start(target: Target) -> None:
        def attack(connection: socket.socket) -> None:
            connection.sendall(request)
            target.hear(connection)
            time.sleep(gap)

        target.many(count, attack)

    return start


def posting(
    count: int, gap: float, make: Callable[[], tuple[bytes, str]]
) -> Callable[[Target], None]:
    """A body, made before, and a header, in such requests."""

    def start(target: Target) -> None:
        body, header = make()
        request = post(body, header)
        target.begin()
        repeated(count, gap, request)(target)

    return start


def noise_with_zeros(size: int) -> bytes:
    """Compresses to about a hundredth: within the ratio that is allowed."""
    block = random.Random(1).randbytes(80) + bytes(16_000)
    return block * (size // len(block))


def chunks(target: Target) -> None:
    target.begin()

    def attack(connection: socket.socket) -> None:
        connection.sendall(CHUNKED + b"1\r\na\r\n" * 60_000 + b"0\r\n\r\n")
        target.hear(connection)

    target.many(8, attack)


def pipelined(target: Target) -> None:
    target.begin()
    flood = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 500

    def attack(connection: socket.socket) -> None:
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            connection.send(flood)  # in part: what follows need not be HTTP, and is told 400
        with contextlib.suppress(BlockingIOError):
            while True:
                target.hear(connection)
        time.sleep(0.001)

    target.many(8, attack)


def idle(target: Target) -> None:
    target.begin()
    with contextlib.ExitStack() as stack:
        held: list[socket.socket] = []
        while not target.over and len(held) < 1000:
            with contextlib.suppress(OSError):
                held.append(stack.enter_context(target.connect()))
        target.outcomes["held"] = len(held)
        time.sleep(max(0.0, target.end - time.monotonic()))


def coming_and_going(target: Target) -> None:
    target.begin()

    def one() -> None:
        while not target.over:
            with contextlib.suppress(OSError), target.connect():
                target.outcomes["opened"] += 1

    threads = [threading.Thread(target=one, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(target.seconds + 5.0)


def grpc_calls(
    count: int, gap: float, make: Callable[[], bytes], metadata: int = 0
) -> Callable[[Target], None]:
    """A message, made before, in calls on `count` channels."""

    def start(target: Target) -> None:
        import grpc

        message = make()
        extra = tuple((f"x-{n}", "v" * 1000) for n in range(metadata))
        target.begin()

        def one() -> None:
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(f"127.0.0.1:{target.grpc_port}", options) as channel:
                infer: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
                while not target.over:
                    try:
                        infer(message, metadata=extra, timeout=5.0)
                    except grpc.RpcError as error:
                        target.outcomes[error.code().name] += 1
                    time.sleep(gap)

        threads = [threading.Thread(target=one, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(target.seconds + 6.0)

    return start


def typed_message() -> bytes:
    from slacktide.wire.proto.messages import ModelInferRequest

    request = ModelInferRequest(model_name="target")
    tensor = request.inputs.add(name="x", datatype="INT64", shape=[1, 1])
    tensor.contents.int64_contents.extend([1] * (7 * MIB))
    return request.SerializeToString()


def http2(
    count: int, gap: float, make: Callable[[int], bytes], settings: tuple[tuple[int, int], ...] = ()
) -> Callable[[Target], None]:
    """What `make` gives for the next stream, on each of `count` connections, never waiting for an
    answer; what comes is read and thrown away, unless `settings` say that nothing may come."""

    def start(target: Target) -> None:
        target.port = target.grpc_port
        target.begin()
        streams: dict[socket.socket, Iterator[int]] = {}

        def attack(connection: socket.socket) -> None:
            if connection not in streams:
                streams[connection] = itertools.count(1, 2)
                connection.sendall(f.PREFACE + f.settings(settings))
            connection.sendall(make(next(streams[connection])))
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                if not settings and not connection.recv(1 << 20):
                    raise ConnectionResetError
            connection.setblocking(True)
            time.sleep(gap)

        target.many(count, attack)

    return start


def http2_head(path: str = "ModelInfer") -> bytes:
    """The block of a call's headers."""
    return f.header_block(
        None,
        (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/inference.GRPCInferenceService/" + path.encode()),
            (b"content-type", b"application/grpc"),
        ),
    )


def http2_call(id: int, body: bytes, path: str = "ModelInfer") -> bytes:
    """A whole call, in frames."""
    head = f.frame(f.HEADERS, f.END_HEADERS, id, http2_head(path))
    pieces = [body[at : at + f.FRAME_BYTES] for at in range(0, len(body), f.FRAME_BYTES)]
    return head + b"".join(f.frame(f.DATA, 0, id, piece) for piece in pieces)


def http2_block(id: int, block: bytes) -> bytes:
    """A header block of up to 32 KiB, in two frames."""
    begun, rest = block[: f.FRAME_BYTES], block[f.FRAME_BYTES :]
    return f.frame(f.HEADERS, 0, id, begun) + f.frame(f.CONTINUATION, f.END_HEADERS, id, rest)


def moved_windows(id: int) -> bytes:
    """One of 255 calls that stay open, then SETTINGS with 2,700 initial windows each."""
    if id < 2 * 255:
        return f.frame(f.HEADERS, f.END_HEADERS, id, http2_head("ModelStreamInfer"))
    return f.settings(((f.INITIAL_WINDOW, 1), (f.INITIAL_WINDOW, 2)) * 1350)


HUFFMAN = b"\0\x01x\x7f\x81\x7c" + b"\xff\xff\xff\xea" * 4000
"""A field whose value of 16 KB is in Huffman's code, at its longest."""


def poison(target: Target) -> None:
    """Inputs that end the worker of `fragile`, each another one, over four connections."""
    numbers = itertools.count()
    target.begin()

    def attack(connection: socket.socket) -> None:
        tensor = b'{"name":"d","datatype":"INT64","shape":[1,2],"data":[%d,-2]}' % next(numbers)
        body = b'{"inputs":[%b]}' % tensor
        connection.sendall(post(body).replace(b"/target/", b"/fragile/", 1))
        target.hear(connection)

    target.many(4, attack)


ATTACKS: dict[str, Callable[[Target], None]] = {
    "endless trailer": trailer,
    "slow headers": slow_headers,
    "gzip bombs, 4/s": posting(
        1, 0.25, lambda: (gzip.compress(bytes(64 * MIB)), "Content-Encoding: gzip")
    ),
    "deflate bombs": posting(
        4, 0.0, lambda: (zlib.compress(bytes(64 * MIB)), "Content-Encoding: deflate")
    ),
    "gzip within the ratio": posting(
        4, 0.0, lambda: (gzip.compress(noise_with_zeros(60 * MIB)), "Content-Encoding: gzip")
    ),
    "JSON of 8 MiB": posting(4, 0.0, lambda: (json_text(b"1.5," * 2_090_000 + b"1"), "A: b")),
    "JSON of 8 MiB, nested": posting(
        4, 0.0, lambda: (json_text(b"[1]," * 2_090_000 + b"[1]"), "A: b")
    ),
    "JSON of 100 KiB": posting(8, 0.0, lambda: (json_text(b"[1]," * 25_000 + b"[1]"), "A: b")),
    "JSON of 15 KiB": posting(32, 0.0, lambda: (json_text(b"[1]," * 3_700 + b"[1]"), "A: b")),
    "chunks of a byte": chunks,
    "requests in a pipeline": pipelined,
    "idle connections": idle,
    "connections that come and go": coming_and_going,
    "inputs that crash a worker": poison,
    "gRPC, typed contents": grpc_calls(4, 0.0, typed_message),
    "gRPC, countless fields": grpc_calls(4, 0.0, lambda: b"\x10\x00" * (8 * MIB)),
    "gRPC, metadata": grpc_calls(16, 0.0, lambda: b"", metadata=14),
    "HTTP/2, rapid resets": http2(
        8, 0.0, lambda id: http2_call(id, b"") + f.reset(id, f.ErrorCode.CANCEL)
    ),
    "HTTP/2, PINGs": http2(8, 0.0, lambda id: f.frame(f.PING, 0, 0, bytes(8)) * 500),
    "HTTP/2, endless header blocks": http2(
        8,
        0.0,
        lambda id: (
            f.frame(f.HEADERS, 0, id) + f.frame(f.CONTINUATION, 0, id, bytes(f.FRAME_BYTES)) * 8
        ),
    ),
    "HTTP/2, table sizes": http2(8, 0.0, lambda id: http2_block(id, b"\x20\x3f\xe1\x1f" * 8000)),
    "HTTP/2, moved windows": http2(8, 0.0, moved_windows),
    "HTTP/2, tiny fields": http2(8, 0.0, lambda id: http2_block(id, b"\x40\x01a\0" * 8000)),
    "HTTP/2, Huffman": http2(
        8, 0.0, lambda id: f.frame(f.HEADERS, f.END_HEADERS, id, http2_head() + HUFFMAN[:16_000])
    ),
    "HTTP/2, windows of zero": http2(
        64,
        0.01,
        lambda id: http2_call(id, b"\0\0\0\0\0", "ServerMetadata"),
        ((f.INITIAL_WINDOW, 0),),
    ),
    "HTTP/2, messages begun": http2(
        64, 0.01, lambda id: http2_call(id, b"\0\x03\xff\xff\xff" + bytes(60_000))
    ),
    "HTTP/2, empty messages": http2(
        8, 0.0, lambda id: http2_call(id, bytes(5) * 3000, "ModelStreamInfer")
    ),
}
"""By what they are called; each runs in its own process until its target's time is over."""


def main(arguments: list[str]) -> int:
    name, port, grpc_port, seconds = arguments
    os.nice(19)
    target = Target(int(port), int(grpc_port), float(seconds))
    ATTACKS[name](target)
    print(", ".join(f"{times} × {kind}" for kind, times in target.outcomes.most_common(4)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
