"""Clients of the closed loop: `h2load` for requests/s, a single blocking socket for latencies."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bench.machine import CACHE, cores, pinned
from bench.models import Body
from bench.servers import Serving

OUTSTANDING = 32


class ToolMissingError(Exception):
    """A program that this machine lacks; the text says how to get it."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What h2load saw."""

    per_second: float
    failed: int
    """Requests without a 2xx answer."""
    took: tuple[float, ...]
    """Seconds of each, where they were counted."""


def h2load(
    serving: Serving,
    model: str,
    body: Body,
    *,
    seconds: float = 0.0,
    count: int | None = None,
    outstanding: int = OUTSTANDING,
    streams: int = 1,
    grpc: bool = False,
) -> Rate:
    """Requests/s with `outstanding` requests always under way, `streams` on a connection (of
    HTTP/2), from the clients' core: for so many `seconds`, or `count` of them (then with the time
    that each took).

    Raises ToolMissingError, RuntimeError if nothing came back.
    """
    tool = shutil.which("h2load")
    if tool is None:
        raise ToolMissingError("h2load is missing: apt-get install nghttp2-client")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.NamedTemporaryFile(dir=CACHE, suffix=".body") as file,
        tempfile.NamedTemporaryFile(dir=CACHE, suffix=".log") as log,
    ):
        file.write(body.content)
        file.flush()
        shape = ["-c", str(outstanding // streams), "-m", str(streams)]
        command = [tool, "-t", "1", *shape, "-d", file.name]
        if count is None:
            command += ["-D", _ms(seconds), "--warm-up-time", _ms(max(0.3, seconds / 5))]
        else:
            command += ["-n", str(count), f"--log-file={log.name}"]
        command += [] if grpc else ["--h1"]
        for name, value in body.headers.items():
            command += ["-H", f"{name}: {value}"]
        if grpc:
            url = f"http://127.0.0.1:{serving.grpc_port}/inference.GRPCInferenceService/ModelInfer"
        else:
            url = serving.url(model)
        done = subprocess.run(
            pinned(cores().client, [*command, url]), capture_output=True, text=True, check=True
        )
        took = tuple(int(line.split()[2]) / 1e6 for line in log)
    rate = re.search(r"finished in .*?, ([0-9.]+) req/s", done.stdout)
    codes = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", done.stdout)
    errors = re.search(r"(\d+) failed, (\d+) errored, (\d+) timeout", done.stdout)
    if rate is None or codes is None or int(codes[1]) == 0:
        raise RuntimeError(f"{serving.name}: h2load got no answers:\n{done.stdout}{done.stderr}")
    failed = sum(int(codes[group]) for group in (2, 3, 4))
    failed += 0 if errors is None else int(errors[2]) + int(errors[3])
    return Rate(float(rate[1]), failed, took)


def grpc_body(message: bytes) -> Body:
    """A gRPC message as h2load must be given it: with its five bytes of frame."""
    framed = b"\0" + len(message).to_bytes(4, "big") + message
    return Body(framed, {"content-type": "application/grpc", "te": "trailers"})


def latencies(
    serving: Serving, path: str, body: Body, *, count: int, host: str = "127.0.0.1"
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Seconds of `count` requests, one after another on one connection, shape (count,).

    A blocking socket: nothing on this side adds to what is measured but the system calls.
    """
    request = request_bytes(serving, path, body, host=host)
    seconds = np.empty(count)
    with socket.create_connection((host, serving.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index in range(count):
            begin = time.perf_counter()
            connection.sendall(request)
            read_answer(connection, serving.name)
            seconds[index] = time.perf_counter() - begin
    return seconds


def request_bytes(serving: Serving, path: str, body: Body, *, host: str = "127.0.0.1") -> bytes:
    """A whole POST, as it goes over the wire."""
    headers: Mapping[str, str] = {
        "Host": f"{host}:{serving.port}",
        **body.headers,
        "Content-Length": str(len(body.content)),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body.content


def settle(serving: Serving, path: str, body: Body, *, within: float, limit: float = 60.0) -> None:
    """Wait until a single request is answered `within` seconds: until a queue that an earlier run
    has left is gone. Raises RuntimeError if that takes more than `limit` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        try:
            if float(latencies(serving, path, body, count=1)[0]) <= within:
                return
        except (OSError, RuntimeError):  # refused, or cut off: still busy
            pass
        time.sleep(0.1)
    raise RuntimeError(f"{serving.name} has not come to rest within {limit:g} s")


def read_answer(connection: socket.socket, name: str) -> None:
    """Read one whole answer. Raises RuntimeError unless it is 200 with a stated length."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(1 << 16)
        if not part:
            raise RuntimeError(f"{name} closed the connection")
        received += part
    head, _, rest = received.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    if not head.startswith(b"HTTP/1.1 200") or length is None:
        raise RuntimeError(f"{name} answered {head[:80]!r} {rest[:200]!r}")
    left = int(length[1]) - len(rest)
    while left > 0:
        left -= len(connection.recv(1 << 16))


def _ms(seconds: float) -> str:
    """h2load takes whole numbers with a unit."""
    return f"{round(seconds * 1e3)}ms"
