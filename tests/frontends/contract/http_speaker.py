"""The contract over HTTP/1.1."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import orjson
import tritonclient.http
import tritonclient.http.aio
from tests.frontends.contract.speaker import PACK, Exchange, Message, Planes, Reply, Speaker
from tests.frontends.http.http_client import Client, post

from slacktide.domain import Reason
from slacktide.domain.tensors import Datatype
from slacktide.frontends.http import HttpServer, inference_routes
from slacktide.frontends.settings import HttpSettings
from slacktide.frontends.unpacking import Unpacker
from slacktide.wire import oip_json
from slacktide.wire.calls import InferCall, OutputValue


def encode(call: InferCall, text: bool) -> tuple[bytes, list[str]]:
    """Body of an inference request, and the header lines that it needs."""
    inputs: list[dict[str, Any]] = []
    for tensor in call.inputs:
        entry = {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype.name}
        if text:
            entry["data"] = np.frombuffer(tensor.data, np.float32).tolist()
        else:
            entry["parameters"] = {"binary_data_size": len(tensor.data)}
        inputs.append(entry)
    document = {
        "id": call.id,
        "parameters": {"binary_data_output": True} | call.parameters,
        "inputs": inputs,
        "outputs": [{"name": name} for name in call.outputs],
    }
    head = orjson.dumps(document)
    if text:
        return head, []
    tail = b"".join(bytes(tensor.data) for tensor in call.inputs)
    return head + tail, [f"Inference-Header-Content-Length: {len(head)}"]


class HttpExchange(Exchange):
    def __init__(self, client: Client, body: bytes) -> None:
        self.client, self.body, self.length = client, body, len(body)

    async def finish(self) -> None:
        self.client.send(self.body)

    async def leave(self, how: str) -> None:
        if how == "cancel":
            self.client.reset()
        else:
            self.client.close()

    async def reply(self) -> Reply:
        try:
            answer = await self.client.answer()
        except (asyncio.IncompleteReadError, ConnectionError):
            return Reply(499, "the connection has ended")
        if answer.status != 200:
            document = answer.json
            assert document.get("reason") == answer.headers.get("slacktide-reason")
            numbers = {name: value for name, value in document.items() if name.endswith("_us")}
            return Reply(answer.status, document["error"], answer.headers, numbers)
        at = int(answer.headers["inference-header-content-length"])
        head, outputs = orjson.loads(answer.body[:at]), []
        for output in head["outputs"]:
            end = at + output["parameters"]["binary_data_size"]
            datatype, shape = Datatype[output["datatype"]], tuple(output["shape"])
            outputs.append(OutputValue(output["name"], datatype, shape, answer.body[at:end]))
            at = end
        version = head["model_version"]
        return Reply(200, "", answer.headers, {}, head.get("id", ""), version, outputs)


class HttpSpeaker(Speaker):
    transport = "http"
    abandoned = Reason.DISCONNECTED
    settings = HttpSettings
    parser = (oip_json, "load_object")
    stock = tritonclient.http
    stock_aio = tritonclient.http.aio

    @staticmethod
    def make_server(planes: Planes, settings: Any = None, **options: Any) -> HttpServer:
        unpacker = Unpacker()
        routes = inference_routes(*planes, settings or HttpSettings(), unpacker)
        return HttpServer(routes, settings, unpacker=unpacker, **options)

    async def open(self, message: Message) -> Exchange:
        call = message.call
        body, lines = encode(call, message.text)
        if message.encoding:
            body = PACK[message.encoding](body)
            lines.append(f"Content-Encoding: {message.encoding}")
        lines += [f"{name}: {value}" for name, value in message.fields.items()]
        version = "" if call.version is None else f"/versions/{call.version}"
        path = f"/v2/models/{call.model}{version}/infer"
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port))
        self.clients.append(client)
        client.send(post(b"", *lines, path=path, length=len(body)))
        return HttpExchange(client, body)

    async def close(self) -> None:
        for client in self.clients:
            client.close()
