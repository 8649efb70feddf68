"""The process of the proxy; `link_process.py` starts it, and says what the two tell each other."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict

import orjson
import uvloop

from slacktide.load.link_process import LONGEST_LINE, Order
from slacktide.load.link_proxy import LinkProxy


def main() -> None:
    """Carry connections until the input ends."""
    order = Order(**orjson.loads(sys.stdin.buffer.readline()))
    uvloop.run(_carry(order))


async def _carry(order: Order) -> None:
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    proxy = LinkProxy(order.link, order.host, order.to_port, shared=order.shared)
    async with proxy:
        _say({"port": proxy.port})
        while line := await reader.readline():
            proxy.begin(orjson.loads(line)["origin"])
    _say(asdict(proxy.carried()))


def _say(document: object) -> None:
    sys.stdout.write(orjson.dumps(document).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
