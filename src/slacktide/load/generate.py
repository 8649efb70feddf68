"""A whole run, from spec to report."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace

from slacktide.load.encode import GrpcRequest, HttpRequest
from slacktide.load.http_sender import HttpSender
from slacktide.load.ledger import Ledger
from slacktide.load.link_process import LinkProcess
from slacktide.load.outcome import make_report
from slacktide.load.prepare import Prepared, prepare
from slacktide.load.report import Report
from slacktide.load.report.provenance import gather
from slacktide.load.road import Road
from slacktide.load.run import Observer, Sender, StartClock, drive
from slacktide.load.spec import LoadSpec, Target, Transport


async def run_load(
    spec: LoadSpec, progress: Observer | None = None, *, stop: asyncio.Event | None = None
) -> Report:
    """Carry `spec` out and report.

    `progress` is called some four times a second. Setting `stop` ends the run early; the report
    then covers what was done. Raises LoadError if the run cannot start.
    """
    report, _ = await carry_out(await prepare(spec), progress, stop)
    return report


def run_load_sync(spec: LoadSpec, progress: Observer | None = None) -> Report:
    """As `run_load`, on a loop of its own. The first Ctrl-C (or SIGTERM) ends the run with a
    report of what was done; the second raises KeyboardInterrupt."""
    import uvloop

    async def interruptible() -> Report:
        loop, stop, task = asyncio.get_running_loop(), asyncio.Event(), asyncio.current_task()

        def interrupt() -> None:
            if stop.is_set() and task is not None:
                task.cancel()
            stop.set()

        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, interrupt)
        try:
            return await run_load(spec, progress, stop=stop)
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    return uvloop.run(interruptible())


async def carry_out(
    prepared: Prepared, progress: Observer | None = None, stop: asyncio.Event | None = None
) -> tuple[Report, Ledger]:
    """Run what was prepared. The ledger holds every single request."""
    spec = prepared.spec
    provenance = await asyncio.to_thread(gather, _packages(spec))
    road = Road.of(spec, [request.nbytes for request in prepared.requests])
    ledger = Ledger(prepared.schedule, send_deadlines=spec.send_deadlines, road=road)
    clock = StartClock()
    async with _link(spec) as link:
        target = spec.target
        if link is not None:
            target = replace(target, via=("127.0.0.1", link.port))
        sender = _sender(prepared, target, ledger, clock)
        try:
            clock.restart()
            if link is not None:
                link.begin(clock.origin)
            end = await drive(spec, ledger, sender, clock, progress, stop)
        finally:
            await sender.close()
    warnings = sender.warnings()
    if link is not None:
        warnings += link.warnings(spec.lateness_warning)
    rows = [request.rows for request in prepared.requests]
    report = make_report(spec, prepared.schedule, ledger, rows, end, provenance, warnings)
    return report, ledger


def _link(spec: LoadSpec) -> AbstractAsyncContextManager[LinkProcess | None]:
    """What carries the requests of a run; None: nothing stands between."""
    if spec.link is None:
        return nullcontext()
    return LinkProcess(spec.link, spec.target.host, spec.target.port, shared=spec.shared_link)


def _sender(prepared: Prepared, target: Target, ledger: Ledger, clock: StartClock) -> Sender:
    spec, over_link = prepared.spec, prepared.spec.link is not None
    if target.transport is Transport.HTTP:
        http = [one for one in prepared.requests if isinstance(one, HttpRequest)]
        return HttpSender(
            target, http, ledger, clock, spec.connections, spec.upload, over_link=over_link
        )
    from slacktide.load.grpc_sender import GrpcSender

    grpc = [one for one in prepared.requests if isinstance(one, GrpcRequest)]
    return GrpcSender(target, grpc, ledger, clock, spec.connections, over_link=over_link)


def _packages(spec: LoadSpec) -> tuple[str, ...]:
    wire = "httptools" if spec.target.transport is Transport.HTTP else "grpcio"
    return ("numpy", "uvloop", wire)
