"""Load reports (ORCA) in answers, as Envoy, gRPC and other balancers read them."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from tests.frontends.doubles import FakeDataPlane
from tests.frontends.grpc.grpc_client import INFER, framed, message, raw

FORMAT = "endpoint-load-metrics-format"


def utilization(message: bytes) -> float:
    """Field 9 of an OrcaLoadReport with no other field."""
    assert message[0] == 9 << 3 | 1
    (value,) = struct.unpack("<d", message[1:])
    return float(value)


def value_of(header: str) -> float:
    style, _, text = header.partition(" ")
    if style == "JSON":
        return float(json.loads(text)["application_utilization"])
    if style == "BIN":
        return utilization(base64.b64decode(text))
    assert style == "TEXT"
    name, _, number = text.partition("=")
    assert name == "application_utilization"
    return float(number)


@pytest.mark.parametrize("style", ["TEXT", "json", "BIN"])
def test_a_client_that_asks_over_http_is_told_the_load(house: Any, style: str) -> None:
    answer = house.infer("matmul", house.matmul_call(), {FORMAT: style})
    assert answer.status == 200
    assert answer.headers["endpoint-load-metrics"].startswith(style.upper())
    assert value_of(answer.headers["endpoint-load-metrics"]) >= 0.0
    refused = house.infer("nobody", house.matmul_call(), {FORMAT: style})
    assert refused.status == 404
    assert "endpoint-load-metrics" in refused.headers


def test_clients_that_do_not_ask_or_ask_for_what_is_not_known_are_not_told(house: Any) -> None:
    for headers in ({}, {FORMAT: "XML"}):
        answer = house.infer("matmul", house.matmul_call(), headers)
        assert "endpoint-load-metrics" not in answer.headers


@pytest.mark.parametrize("asks", [False, True])
async def test_a_client_that_asks_over_grpc_is_told_in_the_trailers(asks: bool) -> None:
    async with raw(FakeDataPlane()) as client:
        fields = ((FORMAT.encode(), b"BIN"),) if asks else ()
        client.ask(1, INFER, *fields)
        client.give(1, framed(message()))
        client.ask(3, INFER, *fields)
        client.give(3, b"")
        for id, status in ((1, 0), (3, 3)):
            assert (await client.status(id))[0] == status
            assert ("endpoint-load-metrics-bin" in client.fields[id]) is asks
            if asks:
                value = client.fields[id]["endpoint-load-metrics-bin"]
                padded = value + "=" * (-len(value) % 4)
                assert utilization(base64.b64decode(padded)) == 0.75


async def test_with_the_flag_every_answer_over_grpc_tells_it() -> None:
    async with raw(FakeDataPlane(), {"load_reports": True}) as client:
        client.ask(1)
        client.give(1, framed(message()))
        assert (await client.status(1))[0] == 0
        assert "endpoint-load-metrics-bin" in client.fields[1]


def test_with_the_flag_every_answer_over_http_tells_it(zoo: Any, serve: Any) -> None:
    zoo.matmul()
    with serve(zoo, load_reports=True) as house:
        house.look(lambda app: setattr(app.data, "offered", lambda: 0.5))
        answer = house.infer("matmul", house.matmul_call())
        assert value_of(answer.headers["endpoint-load-metrics"]) == 0.5
