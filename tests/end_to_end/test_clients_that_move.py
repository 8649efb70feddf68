"""Clients that a server sends to its peers: sessions of cameras, and requests before their body."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.end_to_end.calls import PATIENCE, ask, slow_call
from tests.end_to_end.test_overload import Clients
from tests.end_to_end.test_peers import SETTINGS, Cluster, cluster  # noqa: F401

from slacktide.client import AioConnection, AioSession, FrameReply, FrameResult

FRAME = np.full((64, 64, 3), 90, np.uint8)
CAMERAS = 4


class Cameras:
    """Sessions at one server, each of which sends more than a quarter of what it can do."""

    def __init__(self, servers: Cluster, alone_s: float) -> None:
        self.servers = servers
        self.rate = 1.8 / CAMERAS / alone_s
        self.slo = max(2.0, 20 * alone_s)
        self.replies: list[asyncio.Future[FrameReply]] = []
        self._feeding = True

    async def feed(self, session: AioSession) -> None:
        while self._feeding:
            self.replies.append(session.submit(FRAME))
            await asyncio.sleep(1 / self.rate)

    def at(self, name: str) -> list[dict[str, Any]]:
        """The sessions of a server, as it shows them."""
        answer = ask(self.servers.port(name), "GET", "/v2/slacktide/sessions")
        return list(answer.json["sessions"])

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(2 * PATIENCE):
            while not await asyncio.to_thread(condition):
                await asyncio.sleep(0.05)

    async def play(self) -> None:
        async with AioConnection(self.servers.grpc("a")) as connection:
            sessions = [
                await connection.open("stare", slo=self.slo, rate=self.rate) for _ in range(CAMERAS)
            ]
            feeding = [asyncio.create_task(self.feed(session)) for session in sessions]
            await self.until(lambda: any(row["answered"] > 5 for row in self.at("b")))
            await self.until(lambda: len(self.at("a")) + len(self.at("b")) == CAMERAS)
            before = await self.ended()
            assert before["lost"] == 0
            assert before["answered"] > 0
            self.servers.programs["b"].process.kill()
            await self.until(lambda: len(self.at("a")) == CAMERAS)
            self._feeding = False
            await asyncio.gather(*feeding)
            after = await self.ended()
            assert after["lost"] < self.rate * CAMERAS * (self.slo + 1.0)
            assert (await sessions[0].submit(FRAME)).outcome.result is FrameResult.ANSWERED

    async def ended(self) -> Counter[str]:
        """Outcomes of the frames submitted so far; each has one."""
        replies = await asyncio.gather(*self.replies)
        return Counter(reply.outcome.result.value for reply in replies)


@pytest.mark.slow
def test_sessions_of_a_busy_server_move_to_a_free_one_and_back_when_it_is_killed(
    program: Any, zoo: Any
) -> None:
    zoo.stare(settings="max_batch: 1\nexecutor: profiled\n")
    servers = Cluster(program, zoo, "ab")
    servers.linked()
    document = {
        "inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 64, 64, 3]}],
        "parameters": {"report_timing": True},
    }
    document["inputs"][0]["data"] = [0] * FRAME.size  # type: ignore[index]
    answer = ask(servers.port("a"), "POST", "/v2/models/stare/infer", json.dumps(document))
    alone_s = float(answer.json["parameters"]["compute_us"]) * 1e-6
    asyncio.run(Cameras(servers, alone_s).play())


@pytest.mark.slow
def test_curl_is_sent_to_the_free_server_before_its_body(cluster: Any, tmp_path: Any) -> None:  # noqa: F811
    servers = cluster("ab")
    servers.linked()
    body = json.dumps(slow_call(timeout=60_000_000, report_timing=True)).encode()
    (tmp_path / "body").write_bytes(body)

    def curl() -> tuple[str, str, dict[str, Any]]:
        """Status, number of redirects, and the answer."""
        url = f"http://127.0.0.1:{servers.port('a')}/v2/models/slow/infer"
        command = ["curl", "-sS", "-L", "--max-time", "60", "--data-binary"]
        command += [f"@{tmp_path}/body", "-w", "\n%{http_code} %{num_redirects}"]
        lines = ("Expect: 100-continue", "slacktide-redirect: allow")
        for line in (*lines, "x-request-timeout-seconds: 60"):
            command += ["-H", line]
        output = subprocess.run([*command, url], capture_output=True, check=True).stdout
        answer, _, numbers = output.rpartition(b"\n")
        status, redirects = numbers.decode().split()
        return status, redirects, json.loads(answer)

    async def play() -> tuple[str, str, dict[str, Any]]:
        clients, stays = Clients(servers.port("a")), "slacktide-redirect: followed\r\n"
        held: list[asyncio.Task[int]] = []
        for _ in range(20):  # some take a while, until the others wait
            held += [asyncio.create_task(clients.infer("slow", body, stays)) for _ in range(50)]
            response = await asyncio.to_thread(curl)
            if response[1] == "1":
                break
        assert set(await asyncio.gather(*held)) == {200}
        await clients.close()
        return response

    status, redirects, answer = asyncio.run(play())
    assert (status, redirects) == ("200", "1")
    assert answer["parameters"]["machine"] == "b"
    assert servers.metric("a", "forwarded_requests_total", direction="redirected") == 1
    assert servers.metric("a", "forwarded_requests_total", direction="out") <= 20
    assert servers.outcomes("b") == 1
