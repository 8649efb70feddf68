"""A server from start to signal: what `slacktide serve` does once its flags are read."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
from pathlib import Path

from slacktide.cli.output import FELL_SHORT, fail
from slacktide.cluster import PodError
from slacktide.frontends.security import SecurityError
from slacktide.models.repository.errors import RepositoryError
from slacktide.observability.tracing import TracingUnavailable
from slacktide.recording import RecordingError
from slacktide.server.settings import ServerSettings

log = logging.getLogger("slacktide.server")

OTHER_DESCRIPTORS = 256
"""For what is not a connection: workers (a pipe, an arena, shared memory each), files, logs."""


FEWEST_DESCRIPTORS = 64
"""Below these the server does not start: ports, one worker and a few connections need about 40."""


def make_room_for_connections(settings: ServerSettings) -> str | None:
    """Raise this process's limit on open files to what the system allows.

    Returns a sentence for the log if that is too little for `max_connections` on every port. Raises
    ValueError if it is too little to start.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # then it stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft != resource.RLIM_INFINITY and soft < FEWEST_DESCRIPTORS:
        needs = f"and needs at least {FEWEST_DESCRIPTORS} to start"
        raise ValueError(
            f"this process may open {soft} files, {needs}: raise the limit (ulimit -n)"
        )
    ports = (
        settings.http_port,
        settings.grpc_port,
        settings.metrics_port,
        settings.control_port,
    )
    open_ports = len(ports) - ports.count(None)
    needed = open_ports * settings.max_connections + OTHER_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return None
    most = max(1, (soft - OTHER_DESCRIPTORS) // max(1, open_ports))
    return (
        f"this process may open {soft} files, but {settings.max_connections} connections on each "
        f"of {open_ports} ports need {needed}: raise the limit (ulimit -n) or set "
        f"--max-connections to {most} or less"
    )


def _calm_the_collector() -> None:
    """What has been loaded stays; and requests leave little behind that only cycles hold.

    By default Python would look through all of it some hundred times a second under load.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def run(repository: Path, settings: ServerSettings) -> int:
    """Serve until a signal comes; the exit code."""
    import uvloop

    from slacktide.server.app import App

    async def main() -> int:
        code = 0
        app = App(repository, settings)
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()

        def on_signal() -> None:
            if stopping.is_set():
                os._exit(1)  # a second signal: at once
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        if app.credentials.files:
            loop.add_signal_handler(signal.SIGHUP, app.credentials.reload)
        starting = asyncio.create_task(app.start())
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _calm_the_collector()
            broken = asyncio.create_task(app.driver.broken.wait())
            await asyncio.wait({stop, broken}, return_when=asyncio.FIRST_COMPLETED)
            broken.cancel()
            if app.driver.broken.is_set():
                code = FELL_SHORT
            else:
                await app.drain()
        else:
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
        stop.cancel()
        await app.close()
        return code

    try:
        if (shortage := make_room_for_connections(settings)) is not None:
            log.warning(shortage)
        return uvloop.run(main())
    except RepositoryError as error:
        fail(f"{repository}: {error}")
    except (
        OSError,
        PodError,
        RecordingError,
        SecurityError,
        TracingUnavailable,
        ValueError,
    ) as error:
        fail((isinstance(error, OSError) and error.strerror) or str(error))
