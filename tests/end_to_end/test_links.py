"""A real server behind a link: stock clients notice nothing but the time, and so do loads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from slacktide.lab.load.build import build_spec
from slacktide.lab.load.generate import run_load_sync
from slacktide.lab.netem import LinkProcess
from slacktide.lab.workloads import BandwidthTrace, TraceLink

WAY = TraceLink(BandwidthTrace([0, 0.05, 0.1], [2e6, 0.0, 1e6]), rtt=0.01)
TEXTS = np.array([[bytes([number]) * 9_000] for number in range(5)], dtype=np.object_)


def ask(module: Any, address: str) -> bytes:
    """Everything that is in a stock client's answer."""
    with module.InferenceServerClient(address) as client:
        given = module.InferInput("x", [5, 1], "BYTES")
        given.set_data_from_numpy(TEXTS)
        answer = client.infer("text", [given], request_id="one")
        message = answer.get_response()
        response = (
            message.SerializeToString() if hasattr(message, "SerializeToString") else repr(message)
        )
        return repr((response, answer.as_numpy("y").tolist())).encode()


async def over(way: TraceLink, address: str, ask: Callable[[str], bytes]) -> tuple[bytes, Any]:
    host, _, port = address.rpartition(":")
    async with LinkProcess(way, host, int(port)) as link:
        link.begin(time.monotonic())
        answer = await asyncio.to_thread(ask, f"127.0.0.1:{link.port}")
    return answer, link.carried


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_stock_client_gets_the_same_bytes(house: Any, protocol: str) -> None:
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    address = getattr(house, protocol)
    begin = time.monotonic()
    answer, carried = asyncio.run(over(WAY, address, lambda there: ask(module, there)))
    taken = time.monotonic() - begin
    assert answer == ask(module, address)
    assert carried.bytes_there > 45_000 < carried.bytes_back
    assert taken >= WAY.deliver(45_000, sent=0.0).complete_at + WAY.way_back


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_load_over_a_link_is_answered_in_time(house: Any, protocol: str) -> None:
    spec = build_spec(
        f"{protocol}://{getattr(house, protocol)}",
        model="matmul",
        arrivals="constant:40",
        duration="500ms",
        deadline="20s",
        link="4Mbit/s",
        rtt="10ms",
    )
    report = run_load_sync(spec)
    assert report.total.reasons == {"on_time": 20}
    assert report.errors == {}
    assert report.network is not None
    assert report.total.latency is not None
    assert report.network.p50 >= 0.010
    assert report.total.latency.p50 >= 0.010
