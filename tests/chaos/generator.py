"""The generator of a chaos run: each request as planned, over HTTP and gRPC, and its story."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence

import grpc
import grpc.aio
import numpy as np
from account import Story
from plan import Manner, PlannedCall
from victim import AUTHORIZATION, PATIENCE, TOKEN, Victim

from slacktide.frontends.grpc.metadata import REASON_KEY
from slacktide.wire.proto import messages

FOREVER = 10**12
_FRESH = 20.0
"""Seconds for which a connection is kept that nothing is asked on."""
_NOT_RETRIED = (("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Generator:
    """Sends what is planned, when it is planned, however the server does."""

    def __init__(self, victim: Victim) -> None:
        self.stories: list[Story] = []
        self._victim = victim
        self._free: deque[tuple[float, Stream]] = deque()

    async def run(self, calls: Sequence[PlannedCall]) -> None:
        """Until every request has its story."""
        address = f"127.0.0.1:{self._victim.ports['grpc']}"
        began = time.monotonic()
        async with grpc.aio.insecure_channel(address, options=_NOT_RETRIED) as channel:
            self._method = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            tasks = []
            for call in calls:
                await asyncio.sleep(max(0.0, began + call.at - time.monotonic()))
                tasks.append(asyncio.create_task(self._one(call)))
            await asyncio.gather(*tasks)
        while self._free:
            self._free.popleft()[1][1].close()

    async def _one(self, call: PlannedCall) -> None:
        story = Story(call.id, call.model, call.manner.value)
        self.stories.append(story)
        grpc_call = call.manner in (Manner.GRPC, Manner.GRPC_DEADLINE, Manner.GRPC_CANCEL)
        try:
            async with asyncio.timeout(2 * PATIENCE):
                await (self._grpc if grpc_call else self._http)(call, story)
        except TimeoutError:
            story.fault = "the connection stayed open without an answer"
        except (OSError, EOFError, ValueError) as error:
            story.fault = f"the connection broke: {error!r}"

    # ── HTTP ─────────────────────────────────────────────────────────────────────────────────

    async def _http(self, call: PlannedCall, story: Story) -> None:
        head, body = self._request(call)
        half = len(body) // 2
        reader, writer = stream = await self._connection()
        kept = False
        try:
            if call.manner in (Manner.HALF, Manner.STALL):
                await _send(writer, head + body[:half])
                await asyncio.sleep(call.wait)
                if call.manner is Manner.HALF:
                    story.left = True
                    return
                await _send(writer, body[half:])
            else:
                await _send(writer, head + body)
            if call.manner is Manner.RESET:
                story.left = True
                await asyncio.sleep(call.wait)
                linger = struct.pack("ii", 1, 0)
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                return
            story.complete = True
            if call.manner is Manner.VANISH:
                story.left = True
                answer = asyncio.ensure_future(_read(reader))
                await asyncio.wait([answer], timeout=call.wait)
                if not answer.done():
                    writer.write_eof()
                with contextlib.suppress(EOFError, OSError):
                    self._judge(call, story, *(await answer))
                return
            self._judge(call, story, *(await _read(reader)))
            kept = True
        finally:
            if kept:
                self._free.append((time.monotonic(), stream))
            else:
                writer.close()

    async def _connection(self) -> Stream:
        """One over which the server has answered: it has been let in."""
        while self._free:
            since, stream = self._free.popleft()
            if time.monotonic() - since < _FRESH and not stream[0].at_eof():
                return stream
            stream[1].close()
        while True:
            with contextlib.suppress(EOFError, OSError):
                port = self._victim.ports["http"]
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.transport.set_write_buffer_limits(0)
                await _send(writer, b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                status, _ = await _read(reader)
                if status == 200:
                    return reader, writer
                writer.close()
            await asyncio.sleep(0.05)  # full: a flood passes

    def _request(self, call: PlannedCall) -> tuple[bytes, bytes]:
        parameters: dict[str, object] = {}
        if call.timeout is not None:
            parameters["timeout"] = round(call.timeout * 1e6)
        document = {"id": call.id, "parameters": parameters, "inputs": _inputs(call)}
        body = json.dumps(document).encode() + b" " * call.padding
        lines = [f"POST /v2/models/{call.model}/infer HTTP/1.1", "Host: localhost"]
        lines += [f"Authorization: Bearer {TOKEN}", f"X-Request-Id: {call.id}"]
        if call.manner is Manner.CHUNKED:
            lines.append("Transfer-Encoding: chunked")
            size = max(1, len(body) // 3)
            pieces = [body[i : i + size] for i in range(0, len(body), size)]
            body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
            body += b"0\r\n\r\n"
        else:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n", body

    def _judge(self, call: PlannedCall, story: Story, status: int, body: bytes) -> None:
        story.answer = str(status)
        if status != 200:
            return
        document = json.loads(body)
        if document.get("id") != call.id:
            story.fault = f"got the answer of {document.get('id')}"
        self._check(call, story, document["outputs"][0]["data"])

    def _check(self, call: PlannedCall, story: Story, values: Sequence[float]) -> None:
        """Each answer depends on what its request held."""
        expected = _expected(call, self._victim.weight)
        if expected is None or not np.allclose(values, expected, rtol=1e-4):
            story.fault = f"was answered with {list(values)[:4]}, expected {expected}"

    # ── gRPC ─────────────────────────────────────────────────────────────────────────────────

    async def _grpc(self, call: PlannedCall, story: Story) -> None:
        request = messages.ModelInferRequest(model_name=call.model, id=call.id)
        if call.timeout is not None:
            request.parameters["timeout"].int64_param = round(call.timeout * 1e6)
        for written in _inputs(call):
            tensor = request.inputs.add()
            tensor.name, tensor.datatype = written["name"], written["datatype"]
            tensor.shape.extend(written["shape"])
            kind = np.float32 if written["datatype"] == "FP32" else np.int64
            request.raw_input_contents.append(np.array(written["data"], kind).tobytes())
        own = call.manner is Manner.GRPC_DEADLINE
        running = self._method(
            request.SerializeToString(),
            metadata=(("authorization", AUTHORIZATION["Authorization"]), ("x-request-id", call.id)),
            timeout=max(0.005, call.wait) if own else None,
        )
        story.left = call.manner is not Manner.GRPC
        if call.manner is Manner.GRPC_CANCEL:
            await asyncio.wait([asyncio.ensure_future(running.code())], timeout=call.wait)
            running.cancel()
        status = (await running.code()).name
        if status == "CANCELLED" and call.manner is Manner.GRPC_CANCEL:
            return
        trailing = dict(await running.trailing_metadata() or ())
        if status == "DEADLINE_EXCEEDED" and own and REASON_KEY not in trailing:
            return
        story.answer, story.complete = status, True
        if status == "OK":
            answer = messages.ModelInferResponse.FromString(await running)
            if answer.id != call.id:
                story.fault = f"got the answer of {answer.id}"
            self._check(call, story, np.frombuffer(answer.raw_output_contents[0], np.float32))


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Returns once the system has all of it."""
    writer.write(data)
    await writer.drain()


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of one answer. Raises EOFError if there is none."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    (length,) = [
        int(line.partition(b":")[2])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length:")
    ]
    return status, await reader.readexactly(length)


def _inputs(call: PlannedCall) -> list[dict[str, object]]:
    if call.model in ("quick", "coming", "late", "chain"):
        data = [call.value, 0, 0, 0]
        return [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": data}]
    if call.model == "picky":  # every third is out of range: the model raises
        return [{"name": "i", "datatype": "INT64", "shape": [1], "data": [_row(call)]}]
    turns = FOREVER if call.model == "hanging" else call.turns
    return [
        {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [call.value, 1]},
        {"name": "times", "datatype": "INT64", "shape": [1], "data": [turns]},
    ]


def _row(call: PlannedCall) -> int:
    return 0 if call.value % 3 else 99


def _expected(call: PlannedCall, weight: Sequence[float]) -> list[float] | None:
    """What it is to be answered with; None if it cannot be."""
    if call.model in ("quick", "coming", "late", "chain"):
        return [call.value * factor for factor in weight]
    if call.model == "picky":
        return list(weight) if _row(call) == 0 else None
    return None if call.model == "hanging" else [float(call.value), 1.0]
