"""One client for every protocol: a contract test states its calls in the words of `Speaker`.

Each exchange has a connection of its own. A status is a number over HTTP and a name over gRPC, so a
test compares with a pair: `reply.status in (429, "RESOURCE_EXHAUSTED")`.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Self

import numpy as np
from tests.frontends.doubles import QUICK, FakeControlPlane, FakeDataPlane

from slacktide.domain import Reason
from slacktide.domain.tensors import Datatype
from slacktide.frontends.listener import Listener
from slacktide.frontends.ports import AccessRecord
from slacktide.frontends.settings import FrontEndSettings
from slacktide.wire.calls import InferCall, InputTensor, OutputValue

PACK = {"gzip": gzip.compress, "deflate": zlib.compress}
Planes = tuple[FakeDataPlane, FakeControlPlane]


def infer_call(id: str = "7", nbytes: int = 16, **fields: Any) -> InferCall:
    """A call with one tensor of `nbytes` bytes, float32."""
    data = np.arange(nbytes // 4, dtype=np.float32).tobytes()
    tensor = InputTensor("x", Datatype.FP32, (1, nbytes // 4), data)
    return InferCall(**{"model": "m", "version": None, "id": id, "inputs": [tensor]} | fields)


@dataclass(frozen=True)
class Message:
    """A call and how it is sent."""

    call: InferCall
    fields: Mapping[str, str] = field(default_factory=dict)
    """Headers or metadata."""
    encoding: str = ""
    """`gzip` or `deflate` packs the body."""
    text: bool = False
    """The tensor is JSON or typed contents, not raw bytes."""


@dataclass
class Reply:
    """An answer, whichever protocol brought it."""

    status: int | str
    message: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Headers, or metadata of both ends of a gRPC call."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The microseconds that a refusal states, such as `budget_us`."""
    id: str = ""
    version: str = ""
    outputs: list[OutputValue] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        return self.status in (200, "OK")


class Exchange(ABC):
    """A call under way."""

    length: int
    """Bytes of its body."""

    @abstractmethod
    async def finish(self) -> None:
        """Send what has not been sent of the body."""

    @abstractmethod
    async def leave(self, how: str) -> None:
        """Give up: `cancel` the call as the protocol has it, or `close` the connection."""

    @abstractmethod
    async def reply(self) -> Reply: ...


class Speaker(ABC):
    """A running server on doubles, and what clients say to it."""

    transport: str
    abandoned: Reason
    """Reason of a call whose client has left."""
    settings: type[FrontEndSettings]
    parser: tuple[ModuleType, str]
    """Function that parses text; long text never reaches it on the event loop."""
    stock: ModuleType
    stock_aio: ModuleType

    def __init__(self, settings: FrontEndSettings, **options: Any) -> None:
        self.data, self.control = FakeDataPlane(), FakeControlPlane()
        self.log: list[AccessRecord] = []
        planes = self.data, self.control
        self.server = self.make_server(planes, settings, access_log=self.log.append, **options)
        self.clients: list[Any] = []
        """To close at the end."""

    @staticmethod
    @abstractmethod
    def make_server(planes: Planes, settings: Any = None, **options: Any) -> Listener: ...

    @classmethod
    @asynccontextmanager
    async def start(cls, *, options: Mapping[str, Any], **limits: Any) -> AsyncIterator[Self]:
        """A server whose settings are `limits`, with short ticks, and a speaker to it."""
        speaker = cls(cls.settings(**QUICK | limits), **options)
        await speaker.server.start("127.0.0.1", 0)
        try:
            yield speaker
        finally:
            await speaker.close()
            await speaker.server.close()

    @abstractmethod
    async def open(self, message: Message) -> Exchange:
        """Send the head and the beginning of the body of a call."""

    @abstractmethod
    async def close(self) -> None:
        """Close every connection."""

    async def begin(self, call: InferCall, **how: Any) -> Exchange:
        return await self.open(Message(call, **how))

    async def send(self, call: InferCall, **how: Any) -> Exchange:
        exchange = await self.begin(call, **how)
        await exchange.finish()
        return exchange

    async def ask(self, call: InferCall, **how: Any) -> Reply:
        return await (await self.send(call, **how)).reply()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for a state of the server that it does not announce."""
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.001)

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def steps(self) -> list[list[str]]:
        """Steps of every announced call."""
        return [call.steps for call in self.data.announced]
