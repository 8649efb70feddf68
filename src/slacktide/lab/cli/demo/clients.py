"""Cameras on links that change, live: the server and its worker on some cores, the clients and
their links (`netem`) on the others; then the same again in virtual time."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from slacktide.client import AioConnection, AioSession, FrameOutcome, FrameReply
from slacktide.lab.cli.demo.clients_report import clients_report
from slacktide.lab.cli.demo.clients_run import ClientsRun, Picture, Seen
from slacktide.lab.cli.demo.simulated_clients import SimulatedRun, family_of, prepared
from slacktide.lab.examples.street import Street
from slacktide.lab.load.server_process import serving
from slacktide.lab.load.spec import Transport
from slacktide.lab.netem import LinkProcess
from slacktide.lab.workloads import TraceLink

WATCH_S = 0.25
"""Seconds from one look at the server's sessions to the next."""
SCENES = 30
"""Different frames of each camera; then they begin again."""

Move = Callable[[float, str], None]


@dataclass(slots=True)
class Camera:
    """One client, live. Seconds count from the start of the links."""

    name: str
    link: TraceLink
    film: Sequence[Picture]
    captured: list[float] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    """Of the server's page of sessions."""
    encoding_s: float = 0.0
    """CPU time."""
    late_s: float = 0.0
    """By which its link was late itself, at p99: above a few milliseconds it looks slower than it
    is."""
    _replies: list[asyncio.Future[FrameReply]] = field(default_factory=list)

    async def play(self, session: AioSession, run: ClientsRun, origin: float) -> None:
        loop, number = asyncio.get_running_loop(), 0
        while (at := (number + 1) / run.rate) < run.seconds:
            await asyncio.sleep(origin + at - loop.time())
            self.captured.append(at)
            picture = self.film[number % len(self.film)]
            self._replies.append(session.submit(picture, captured_at=origin + at))
            number += 1
        await session.close()

    @property
    def outcomes(self) -> list[FrameOutcome]:
        """Of each captured frame, once the session is closed."""
        return [reply.result().outcome for reply in self._replies]


def run_clients(
    run: ClientsRun, log: Path, move: Move = lambda share, what: None
) -> dict[str, Any]:
    """The report, as JSON values (clients_report.py). `log`: of the server. Raises ProcessError,
    LinkError, ClientError, RepositoryError, MeasuringError; ValueError if the model is no family
    of sizes."""
    family_of(run)
    move(0.0, "drawing what the cameras see")
    films = [
        [street.scene(frame).picture for frame in range(SCENES)]
        for street in map(Street, range(run.seed, run.seed + run.clients))
    ]
    cameras = [
        Camera(f"client {number}", link, film)
        for number, (link, film) in enumerate(zip(run.links, films, strict=True), 1)
    ]
    move(0.1, "measuring and loading the model")
    with serving(run.repository, run.cores[0], log) as targets, _on(run.cores[1]):
        move(0.2, f"{run.clients} clients for {run.seconds:g} s")
        ports = (targets[Transport.GRPC].port, targets[Transport.HTTP].port)
        cpu_s = asyncio.run(_live(run, cameras, *ports))
    with _on(run.cores[0]):
        version = asyncio.run(prepared(run))
    simulation, simulated = SimulatedRun(run, version, films), {}
    for place, variant in enumerate((None, *simulation.variants)):
        name = "ours" if variant is None else variant.name
        move(0.8 + 0.2 * place / len(simulation.variants), f"simulating {name}")
        simulated[name] = simulation.play(variant)
    return clients_report(run, cameras, simulation.variants, simulated, cpu_s)


@contextmanager
def _on(cores: Sequence[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


async def _live(run: ClientsRun, cameras: Sequence[Camera], grpc: int, http: int) -> float:
    """Let the cameras play; CPU seconds of this process meanwhile. Ports of the server."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        links = [
            await stack.enter_async_context(LinkProcess(camera.link, "127.0.0.1", grpc))
            for camera in cameras
        ]
        origin = loop.time()
        plays, connections = [], []
        for camera, link in zip(cameras, links, strict=True):
            link.begin(origin)
            connection = await stack.enter_async_context(AioConnection(f"127.0.0.1:{link.port}"))
            session = await connection.open(
                run.model, slo=run.slo, rate=run.rate, name=camera.name, rgb=True
            )
            connections.append(connection)
            plays.append(camera.play(session, run, origin))
        watch = asyncio.create_task(_watch(cameras, http, origin))
        before = time.process_time()
        await asyncio.gather(*plays)
        used = time.process_time() - before
        watch.cancel()
        for camera, connection in zip(cameras, connections, strict=True):
            encoder = connection._encoder  # its one thread has done nothing else
            camera.encoding_s = await loop.run_in_executor(encoder, time.thread_time)
    for camera, link in zip(cameras, links, strict=True):
        camera.late_s = 0.0 if link.carried is None else link.carried.lateness_p99
    return used


async def _watch(cameras: Sequence[Camera], port: int, origin: float) -> None:
    """Note what the server believes of each link."""
    loop, named = asyncio.get_running_loop(), {camera.name: camera for camera in cameras}

    def page() -> Any:
        with urlopen(f"http://127.0.0.1:{port}/v2/slacktide/sessions", timeout=10.0) as answer:
            return json.load(answer)

    while True:
        sessions = (await asyncio.to_thread(page))["sessions"]
        now = loop.time() - origin
        for each in sessions:
            camera = named[each["name"]]
            true = float(camera.link.trace.rate(now))
            camera.seen.append(Seen(now, true, each["bytes_per_s"], each["size"]))
        await asyncio.sleep(WATCH_S)
