"""Sends each camera's frames over a changing link when they are captured; records the outcomes.

Unlike the load generator proper (`run.py`), this module uses sessions: a camera sends frames of the
size that the server advises. A separate process emulates each link (`netem`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slacktide.client import AioConnection, AioSession, FrameOutcome, FrameReply
from slacktide.lab.load.played_calls import get_json
from slacktide.lab.load.spec import Target, Transport
from slacktide.lab.netem import LinkProcess
from slacktide.lab.workloads import TraceLink

WATCH_S = 0.25
"""Seconds between two reads of the server's page of sessions."""

Picture: TypeAlias = NDArray[np.uint8]
"""[height, width, 3], red first."""


class LinkReading(NamedTuple):
    """State of a link, `at` seconds after its start. Rates are in bytes per second."""

    at: float
    rate: float
    estimate: float
    """The server's estimate of `rate`, which is the rate in the link's trace."""
    size: int
    """Side of the image that the server advises, in pixels."""


@dataclass(slots=True)
class Camera:
    """One client. Times are seconds since the start of the links."""

    name: str
    link: TraceLink
    film: Sequence[Picture]
    """Frames that the camera captures, repeated in a loop."""
    captured: list[float] = field(default_factory=list)
    readings: list[LinkReading] = field(default_factory=list)
    """The client's entries on the server's page of sessions, one for each read."""
    encoding_s: float = 0.0
    """CPU time of encoding."""
    late_s: float = 0.0
    """Lateness of the link's emulation at p99. If it exceeds a few milliseconds, the link seems
    slower than its trace."""
    _replies: list[asyncio.Future[FrameReply]] = field(default_factory=list)

    async def play(self, session: AioSession, rate: float, seconds: float, origin: float) -> None:
        loop, number = asyncio.get_running_loop(), 0
        while (at := (number + 1) / rate) < seconds:
            await asyncio.sleep(origin + at - loop.time())
            self.captured.append(at)
            picture = self.film[number % len(self.film)]
            self._replies.append(session.submit(picture, captured_at=origin + at))
            number += 1
        await session.close()

    @property
    def outcomes(self) -> list[FrameOutcome]:
        """Outcome of each captured frame, once the session is closed."""
        return [reply.result().outcome for reply in self._replies]


async def play_frames(
    cameras: Sequence[Camera],
    targets: Mapping[Transport, Target],
    model: str,
    *,
    slo: float,
    rate: float,
    seconds: float,
) -> float:
    """Let each camera send `rate` frames per second, due `slo` seconds after capture. Return the
    CPU seconds that this process used meanwhile. Raises LinkError, ClientError."""
    loop, server = asyncio.get_running_loop(), targets[Transport.GRPC]
    async with AsyncExitStack() as stack:
        links = [
            await stack.enter_async_context(LinkProcess(camera.link, server.host, server.port))
            for camera in cameras
        ]
        origin = loop.time()
        plays, connections = [], []
        for camera, link in zip(cameras, links, strict=True):
            link.begin(origin)
            connection = await stack.enter_async_context(AioConnection(f"127.0.0.1:{link.port}"))
            session = await connection.open(model, slo=slo, rate=rate, name=camera.name, rgb=True)
            connections.append(connection)
            plays.append(camera.play(session, rate, seconds, origin))
        watch = asyncio.create_task(_watch(cameras, targets[Transport.HTTP], origin))
        before = time.process_time()
        await asyncio.gather(*plays)
        used = time.process_time() - before
        watch.cancel()
        for camera, connection in zip(cameras, connections, strict=True):
            encoder = connection._encoder  # its single thread only encodes
            camera.encoding_s = await loop.run_in_executor(encoder, time.thread_time)
    for camera, link in zip(cameras, links, strict=True):
        camera.late_s = 0.0 if link.carried is None else link.carried.lateness_p99
    return used


async def _watch(cameras: Sequence[Camera], server: Target, origin: float) -> None:
    """Record the server's estimate of each link, until cancelled."""
    loop, by_name = asyncio.get_running_loop(), {camera.name: camera for camera in cameras}
    while True:
        page = await asyncio.to_thread(get_json, server, "/v2/slacktide/sessions")
        now = loop.time() - origin
        for session in page["sessions"]:
            camera = by_name[session["name"]]
            rate = float(camera.link.trace.rate(now))
            camera.readings.append(LinkReading(now, rate, session["bytes_per_s"], session["size"]))
        await asyncio.sleep(WATCH_S)
