"""Servers that answer for each other: processes, with a real link between any two of them."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.end_to_end.calls import PATIENCE, ask, infer, slow_call
from tests.end_to_end.test_overload import Clients

SETTINGS = "max_batch: 4\nexecutor: profiled\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """Servers `a`, `b`, … of one repository. Each dials those before it."""

    def __init__(self, program: Any, zoo: Any, names: str) -> None:
        self.programs: dict[str, Any] = {}
        self.metrics: dict[str, int] = {}
        addresses: list[str] = []
        for name in names:
            port, self.metrics[name] = free_port(), free_port()
            self.programs[name] = program(
                zoo.root,
                *("--http-port", 0, "--grpc-port", port, "--cores", 1),
                *("--metrics-port", self.metrics[name]),
                *("--machine", name, *(["--peers", ",".join(addresses)] if addresses else [])),
            )
            addresses.append(f"127.0.0.1:{port}")
            self.programs[name].port("http")  # later ones find the profile

    def grpc(self, name: str) -> str:
        return f"127.0.0.1:{self.programs[name].port('grpc')}"

    def port(self, name: str) -> int:
        return int(self.programs[name].port("http"))

    def peers(self, name: str) -> dict[str, str]:
        """State of each peer, by name."""
        answer = ask(self.port(name), "GET", "/v2/slacktide/peers")
        assert answer.json["machine"] == name
        return {peer["machine"]: peer["state"] for peer in answer.json["peers"]}

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def linked(self) -> None:
        """Wait until each knows all others."""
        for name in self.programs:
            others = dict.fromkeys(self.programs.keys() - {name}, "up")
            self.until(lambda name=name, others=others: self.peers(name) == others)  # type: ignore[misc]

    def metric(self, name: str, family: str, **labels: str) -> float:
        page = ask(self.metrics[name], "GET", "/metrics").body.decode()
        total = 0.0
        for line in page.splitlines():
            if re.match(rf"slacktide_{family}[{{ ]", line) and all(
                f'{key}="{value}"' in line for key, value in labels.items()
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def outcomes(self, name: str) -> float:
        return self.metric(name, "outcomes_total", model="slow")

    def alone(self, name: str) -> float:
        """Seconds of a request alone."""
        answer = infer(self.port(name), "slow", slow_call(report_timing=True))
        return float(answer.json["parameters"]["compute_us"]) * 1e-6

    async def flood(self, name: str, count: int, gap_s: float, timeout_s: float) -> Counter[int]:
        """Send requests on schedule; statuses by number."""
        clients = Clients(self.port(name))
        body = json.dumps(slow_call(timeout=round(timeout_s * 1e6))).encode()
        loop = asyncio.get_running_loop()
        begin, asked = loop.time(), []
        for i in range(count):
            await asyncio.sleep(max(0.0, begin + i * gap_s - loop.time()))
            asked.append(asyncio.create_task(clients.infer("slow", body)))
        statuses = Counter(await asyncio.gather(*asked))
        await clients.close()
        return statuses


@pytest.fixture
def cluster(program: Any, zoo: Any) -> Callable[[str], Cluster]:
    zoo.slow(settings=SETTINGS)
    return lambda names: Cluster(program, zoo, names)


@pytest.mark.slow
def test_three_servers_answer_what_comes_to_one_and_each_request_counts_once(cluster: Any) -> None:
    servers = cluster("abc")
    servers.linked()
    alone = servers.alone("a")
    statuses = asyncio.run(servers.flood("a", 200, alone / 2, 30 * alone))
    assert statuses.total() == 200
    assert statuses[200] > 150
    servers.until(lambda: servers.outcomes("a") == 201)
    sent = servers.metric("a", "forwarded_requests_total", direction="out")
    received = {
        name: servers.metric(name, "forwarded_requests_total", direction="in") for name in "bc"
    }
    assert min(received.values()) > 0
    assert sum(received.values()) == sent
    assert servers.outcomes("b") == servers.outcomes("c") == 0
    assert servers.metric("a", "peer_up", peer="b") == 1
    answer = infer(servers.port("a"), "slow", slow_call(timeout=5_000_000, report_timing=True))
    assert answer.json["parameters"]["machine"] in "abc"


@pytest.mark.slow
def test_servers_that_are_killed_under_load_cost_no_request_its_outcome(cluster: Any) -> None:
    servers = cluster("abc")
    servers.linked()

    async def play() -> Counter[int]:
        flood = asyncio.create_task(servers.flood("a", 300, alone / 2, 30 * alone))
        for name in "bc":
            await asyncio.sleep(50 * alone)
            assert servers.metric("a", "forwarded_requests_total", direction="out") > 0
            servers.programs[name].process.kill()
        return await flood

    alone = servers.alone("a")
    statuses = asyncio.run(play())
    assert statuses.total() == 300
    assert set(statuses) <= {200, 429, 504}
    servers.until(lambda: servers.outcomes("a") == 301)
    servers.until(lambda: servers.peers("a") == {})
    assert servers.metric("a", "peer_up") == 0
