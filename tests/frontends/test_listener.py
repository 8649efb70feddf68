"""Which addresses a port listens on."""

from __future__ import annotations

import asyncio
import socket

import pytest

from slacktide.frontends.http import HttpServer, metrics_routes

NO_IPV6 = not socket.has_dualstack_ipv6()


async def answers(host: str, port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.startswith(b"HTTP/1.1 200")


@pytest.mark.skipif(NO_IPV6, reason="this machine has IPv4 alone")
@pytest.mark.parametrize(
    ("host", "ipv4", "ipv6"),
    [
        ("::", True, True),
        ("*", True, True),
        ("", True, True),
        ("::1", False, True),
        ("127.0.0.1", True, False),
        ("0.0.0.0", True, False),
    ],
)
@pytest.mark.parametrize("uvloop", [True, False])
def test_both_families_share_a_port_where_a_host_stands_for_all(host, ipv4, ipv6, uvloop) -> None:
    async def body() -> None:
        server = HttpServer(metrics_routes(lambda: (200, "text/plain", (b"up 1",))))
        await server.start(host, 0)
        assert await answers("127.0.0.1", server.port) is ipv4
        assert await answers("::1", server.port) is ipv6
        with pytest.raises(OSError, match="in use"):
            await HttpServer(metrics_routes(lambda: (200, "", ()))).start(host, server.port)
        await server.close()

    if uvloop:
        import uvloop as fast

        fast.run(body())
    else:
        asyncio.run(body())
