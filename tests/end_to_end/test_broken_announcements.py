"""Clients that announce a body and stall, lie about its length, or send it byte by byte."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from threading import Event
from typing import Any

import grpc
import pytest

from slacktide.domain import Reason

SECONDS = 30.0


@pytest.fixture
def sockets(house: Any) -> Iterator[list[socket.socket]]:
    """Connections that the test leaves open; closed at its end."""
    opened: list[socket.socket] = []
    yield opened
    for connection in opened:
        connection.close()


def send(house: Any, sockets: list[socket.socket], body: bytes, length: int, *lines: str) -> Any:
    """A request for `matmul` whose headers say `length`, with `body` behind them."""
    head = [
        "POST /v2/models/matmul/infer HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {length}",
        *lines,
    ]
    connection = socket.create_connection(("127.0.0.1", house.server.http_port), SECONDS)
    connection.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
    sockets.append(connection)
    return connection


def body_of(house: Any) -> bytes:
    return json.dumps(house.matmul_call()).encode()


def answered(house: Any, count: int = 20) -> None:
    """Honest clients with deadlines are all served on time."""
    before = house.counts("matmul").get("on_time", 0)
    asked = [house.later("matmul", house.matmul_call(timeout=5_000_000)) for _ in range(count)]
    assert [future.result().status for future in asked] == [200] * count
    assert house.counts("matmul")["on_time"] == before + count


def announced(house: Any, count: int) -> None:
    """Wait until so many bodies are known to be on their way."""
    house.until(
        lambda app: (
            sum(
                entry.state.name == "ANNOUNCED"
                for entry in app.engine.state.request_table.entries.values()
            )
            == count
        ),
        f"{count} requests are announced",
    )


@pytest.mark.slow
def test_bodies_that_stall_hold_up_nobody(house: Any, sockets: list[socket.socket]) -> None:
    for _ in range(25):
        send(house, sockets, b"", 1000, "x-request-timeout-seconds: 600")
    announced(house, 25)
    answered(house)
    announced(house, 25)
    for connection in sockets:
        connection.close()
    announced(house, 0)


def test_a_stalled_body_is_given_up_at_its_deadline(
    house: Any, sockets: list[socket.socket]
) -> None:
    body = body_of(house)
    before = house.counts("matmul").get("expired", 0)
    timeout = "x-request-timeout-seconds: 0.05"
    connection = send(house, sockets, body[:1], len(body), timeout)
    house.until(
        lambda app: (
            app.engine.state.request_table.counts["matmul"].by_reason.get(Reason.EXPIRED, 0)
            > before
        ),
        "the request is given up",
    )
    connection.sendall(body[1:])  # its body comes after all: nothing runs for it
    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 504 ")


def test_a_body_longer_than_announced_is_a_second_request(
    house: Any, sockets: list[socket.socket]
) -> None:
    body = body_of(house)
    connection = send(house, sockets, body + b"surplus \r\n\r\n", len(body))
    with connection.makefile("rb") as stream:
        assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
        assert b"HTTP/1.1 400 " in stream.read()
    answered(house)


def test_a_body_shorter_than_announced_is_waited_for_by_nobody_else(
    house: Any, sockets: list[socket.socket]
) -> None:
    body = body_of(house)
    connection = send(house, sockets, body[:5], len(body) + 100, "x-request-timeout-seconds: 600")
    connection.sendall(body[5:])
    announced(house, 1)
    answered(house)
    connection.close()
    announced(house, 0)


def test_a_body_that_trickles_holds_up_nobody_and_is_answered_in_the_end(
    house: Any, sockets: list[socket.socket]
) -> None:
    body = body_of(house)
    connection = send(house, sockets, body[:1], len(body))
    announced(house, 1)
    for at in range(1, len(body)):
        connection.sendall(body[at : at + 1])
        if at % 20 == 0:
            answered(house, 3)
    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")


def test_announced_calls_over_grpc_that_stall_hold_up_nobody(house: Any) -> None:
    metadata = (("slacktide-bytes", "1000"), ("slacktide-model", "matmul"))
    over = Event()

    def nothing() -> Iterator[bytes]:
        over.wait()
        yield from ()

    with grpc.insecure_channel(house.grpc) as channel:
        method = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
        calls = [method.future(nothing(), metadata=metadata) for _ in range(10)]
        announced(house, 10)
        answered(house)
        for call in calls:
            call.cancel()
        over.set()
        announced(house, 0)
