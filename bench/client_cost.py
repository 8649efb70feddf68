"""What `slacktide.client` costs a camera: CPU beside resizing and encoding, bytes beside images.

A program sends a picture of 1280 × 720 pixels 25 times a second to a family of four sizes whose
model does nothing. Its CPU time is its process's, of which the thread that resizes and encodes has
a part. *Metadata* are the announcements; what stands around the images in their own messages, and
what HTTP/2 and gRPC add to both, are printed apart. A relay on the way counts all bytes of TCP.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
from pathlib import Path
from statistics import median
from typing import Any

import onnx
from onnx import TensorProto, helper

from bench.machine import cores, pinned
from bench.measurement import Figure, Options, Result, at_most
from bench.servers import slacktide

RATE = 25.0
_CLIENT = """
import json, sys, time
import cv2, numpy as np
import slacktide.client.aio as aio
from slacktide.client import connect

port, rate, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
spent = dict.fromkeys("encode image_bytes announcements messages on_time frames".split(), 0)
encode = aio.encode

def timed(*given, **named):
    began = time.thread_time()
    image = encode(*given, **named)
    spent["encode"] += time.thread_time() - began
    return image

class Counted:
    def __init__(self, call, frame):
        self.call, self.frame = call, frame

    async def write(self, message):
        size = message.ByteSize()
        if message.WhichOneof("message") == "announcement":
            spent["announcements"] += size
        else:
            spent["image_bytes"] += len(self.frame.image.data)
            spent["messages"] += size - len(self.frame.image.data)
        await self.call.write(message)

write_frame = aio.StreamTransport._write_frame
aio.StreamTransport._write_frame = lambda self, call, frame: write_frame(
    self, Counted(call, frame), frame
)
aio.encode = timed
small = np.random.default_rng(0).integers(0, 255, (36, 64, 3), np.uint8)
frame = cv2.resize(small, (1280, 720), interpolation=cv2.INTER_CUBIC)
cv2.setNumThreads(1)

def on_reply(reply):
    spent["frames"] += 1
    spent["on_time"] += reply.on_time

with connect(f"127.0.0.1:{port}", "still", slo=0.15, rate=rate, on_reply=on_reply) as session:
    def stream(seconds):
        due = time.monotonic()
        for _ in range(int(rate * seconds)):
            session.submit(frame)
            due += 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))
        time.sleep(0.5)
    stream(3)
    spent = dict.fromkeys(spent, 0)
    print("go", flush=True)
    sys.stdin.readline()
    wall, cpu = time.monotonic(), time.process_time()
    stream(seconds)
    spent["wall"] = time.monotonic() - wall - 0.5
    spent["cpu"] = time.process_time() - cpu
    print(json.dumps(spent), flush=True)
    sys.stdin.readline()
"""


class Relay:
    """Carries connections to `port` and counts the bytes, on a thread of its own."""

    def __init__(self, port: int) -> None:
        self.counts = {"up": 0, "down": 0}
        self.port = 0
        self._to = port
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    async def _start(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection("127.0.0.1", self._to)
        await asyncio.gather(self._carry(near, forth, "up"), self._carry(far, back, "down"))

    async def _carry(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, way: str
    ) -> None:
        while data := await source.read(1 << 16):
            self.counts[way] += len(data)
            target.write(data)
            await target.drain()
        target.close()


def run(options: Options) -> Result:
    """Medians of five rounds of 20 s (one of 8 s when quick)."""
    rounds, seconds = (1, 8.0) if options.quick else (5, 20.0)
    result = Result("client_cost")
    with tempfile.TemporaryDirectory() as folder:
        _make_family(Path(folder) / "still")
        with slacktide(Path(folder)) as server:
            measured = [asyncio.run(_measure(server.grpc_port, seconds)) for _ in range(rounds)]
    goals: dict[str, Any] = {
        "client, % of a core": at_most(5.0),
        "metadata to the server, kbit/s": at_most(4.0),
    }
    for name in measured[0]:
        samples = tuple(round_costs[name] for round_costs in measured)
        result.figures.append(Figure(name, median(samples), "", goals.get(name), samples=samples))
    return result


async def _measure(port: int, seconds: float) -> dict[str, float]:
    relay = Relay(port)
    words = [sys.executable, "-c", _CLIENT, str(relay.port), str(RATE), str(seconds)]
    client = await asyncio.create_subprocess_exec(
        *pinned(cores().client, words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert client.stdin is not None
    assert client.stdout is not None
    await client.stdout.readline()
    before = dict(relay.counts)
    client.stdin.write(b"\n")
    spent = json.loads(await client.stdout.readline())
    after = dict(relay.counts)
    client.stdin.write(b"\n")
    client.stdin.close()
    await client.wait()
    wall = spent["wall"]
    up = after["up"] - before["up"] - spent["image_bytes"]
    up -= spent["announcements"] + spent["messages"]
    return {
        "client, % of a core": 100 * (spent["cpu"] - spent["encode"]) / wall,
        "resizing and encoding, % of a core": 100 * spent["encode"] / wall,
        "metadata to the server, kbit/s": spent["announcements"] * 8e-3 / wall,
        "around images in messages, kbit/s": spent["messages"] * 8e-3 / wall,
        "HTTP/2 and gRPC to the server, kbit/s": up * 8e-3 / wall,
        "all from the server, kbit/s": (after["down"] - before["down"]) * 8e-3 / wall,
        "images, kbit/s": spent["image_bytes"] * 8e-3 / wall,
        "answered on time, %": 100 * spent["on_time"] / max(spent["frames"], 1),
    }


def _make_family(folder: Path) -> None:
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["n", "h", "w", 3])
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, ["n", 4])
    nodes = [
        helper.make_node("Shape", ["image"], ["all"]),
        helper.make_node("Shape", ["image"], ["rows"], start=0, end=1),
        helper.make_node("Concat", ["rows", "one"], ["tiles"], axis=0),
        helper.make_node("Unsqueeze", ["all", "zero"], ["row"]),
        helper.make_node("Tile", ["row", "tiles"], ["shape"]),
    ]
    weights = [
        helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        helper.make_tensor("zero", TensorProto.INT64, [1], [0]),
    ]
    graph = helper.make_graph(nodes, "still", [image], [shape], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "1").mkdir(parents=True)
    onnx.save(model, str(folder / "1" / "model.onnx"))
    (folder / "slacktide.yaml").write_text(
        "slo: 150ms\nvariants:\n  sizes: [128, 256, 416, 608]\n"
        '  accuracy: {"128": 0.3, "256": 0.5, "416": 0.6, "608": 0.7}\n'
    )
