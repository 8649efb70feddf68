"""The client library against whole servers: families, restarts, links on which nothing passes."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slacktide.client import (
    AioConnection,
    AioSession,
    ClientError,
    ClientSession,
    FrameReply,
    FrameResult,
    connect,
)
from slacktide.client.images import EncodedImage
from slacktide.lab.netem import LinkProcess
from slacktide.lab.workloads import BandwidthTrace, TraceLink

FRAME = np.full((240, 320, 3), 90, np.uint8)
FAMILY = """
slo: 20s
variants:
  sizes: [32, 64, 128]
  accuracy: {"32": 0.3, "64": 0.5, "128": 0.8}
"""
SLOW = {"slo": 20.0, "rate": 10}
PATIENCE = 60.0


def until(
    session: ClientSession, wanted: Callable[[FrameReply], bool], pause: float = 0.02
) -> list[FrameReply]:
    """Replies to frames sent one after the other until one is as wanted."""
    replies: list[FrameReply] = []
    end = time.monotonic() + PATIENCE
    while not replies or not wanted(replies[-1]):
        assert time.monotonic() < end, [reply.outcome for reply in replies[-5:]]
        replies.append(session.submit(FRAME).result(PATIENCE))
        time.sleep(pause)
    return replies


def test_frames_of_a_session_are_answered_by_the_variant_that_is_advised(zoo, serve):
    zoo.sight(settings=FAMILY)
    zoo.matmul()
    with serve(zoo) as house:
        with connect(house.grpc, "sight", **SLOW, name="gate") as session:
            replies = until(session, lambda reply: reply.outcome.size == 128)
            for reply in replies:
                outcome = reply.outcome
                assert outcome.result is FrameResult.ANSWERED
                assert reply.outputs["mean"] == pytest.approx([90], abs=2)
                assert reply.outputs["side"] == [int(outcome.variant)]
            assert session.advice is not None
            assert session.advice.variant == "128"
            (page,) = house.get("/v2/slacktide/sessions").json["sessions"]
            assert (page["name"], page["variant"]) == ("gate", "128")
        house.until(lambda app: not len(app.data.sessions), "the session has ended")
        with pytest.raises(ClientError, match=r"NOT_FOUND.*nothing"):
            connect(house.grpc, "nothing", **SLOW)
        with pytest.raises(ClientError, match="model 'matmul' has no image input"):
            connect(house.grpc, "matmul", **SLOW)


def test_a_corrupt_frame_fails_alone(zoo, serve, monkeypatch):
    zoo.sight(settings=FAMILY)
    with serve(zoo) as house, connect(house.grpc, "sight", **SLOW) as session:
        until(session, lambda reply: reply.on_time)
        with monkeypatch.context() as patched:
            patched.setattr(
                "slacktide.client.aio.encode",
                lambda *given, **named: EncodedImage(b"\xff\xd8 no JPEG at all", 64, 64),
            )
            outcome = session.submit(FRAME).result(PATIENCE).outcome
        assert outcome.result is FrameResult.REFUSED
        assert "JPEG" in outcome.detail
        assert session.submit(FRAME).result(PATIENCE).on_time


@pytest.mark.slow
def test_a_server_that_is_killed_is_found_again_when_it_is_back(zoo, program):
    zoo.sight(settings=FAMILY)
    first = program(zoo.root, "--http-port", 0, "--grpc-port", 0, "--metrics-port", 0)
    port = first.port("grpc")
    with connect(f"127.0.0.1:{port}", "sight", slo=2.0, rate=10, connect_s=30) as session:
        until(session, lambda reply: reply.on_time)
        first.process.send_signal(signal.SIGKILL)
        gone = until(session, lambda reply: not reply.on_time)[-1].outcome
        assert gone.result in (FrameResult.LOST, FrameResult.DROPPED)
        program(zoo.root, "--http-port", 0, "--grpc-port", port, "--metrics-port", 0)
        until(session, lambda reply: reply.on_time)


@pytest.mark.slow
def test_while_a_link_carries_nothing_the_fallback_runs(zoo, serve):
    zoo.sight(settings=FAMILY)
    trace = BandwidthTrace([0.0, 3.0, 9.0], [2e6, 0.0, 2e6])

    def own(image: np.ndarray) -> dict[str, Any]:
        return {"mean": image.mean((0, 1, 2), keepdims=True)}

    async def results(session: AioSession, wanted: FrameResult) -> list[FrameResult]:
        answers: list[FrameResult] = []
        async with asyncio.timeout(PATIENCE):
            while wanted not in answers[-1:]:
                answers.append((await session.submit(FRAME)).outcome.result)
                await asyncio.sleep(0.05)
        return answers

    async def main(address: str) -> None:
        host, _, port = address.rpartition(":")
        async with (
            LinkProcess(TraceLink(trace, rtt=0.01), host, int(port)) as link,
            AioConnection(f"127.0.0.1:{link.port}") as connection,
        ):
            link.begin(time.monotonic())
            session = await connection.open("sight", slo=1.0, rate=10, fallback=own)
            async with session:
                await results(session, FrameResult.ANSWERED)
                await results(session, FrameResult.FALLBACK)
                await results(session, FrameResult.ANSWERED)

    with serve(zoo) as house:
        asyncio.run(main(house.grpc))
