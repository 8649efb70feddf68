"""A whole run, from spec to report."""

from __future__ import annotations

import asyncio
import signal

from slacktide.load.encode import GrpcRequest, HttpRequest
from slacktide.load.http_sender import HttpSender
from slacktide.load.ledger import Ledger
from slacktide.load.outcome import make_report
from slacktide.load.prepare import Prepared, prepare
from slacktide.load.report import Report
from slacktide.load.report.provenance import gather
from slacktide.load.run import Observer, StartClock, drive
from slacktide.load.sender import Sender
from slacktide.load.spec import LoadSpec, Transport


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
    ledger = Ledger(prepared.schedule, send_deadlines=spec.send_deadlines)
    clock = StartClock()
    sender = _sender(prepared, ledger, clock)
    try:
        end = await drive(spec, ledger, sender, clock, progress, stop)
    finally:
        await sender.close()
    rows = [request.rows for request in prepared.requests]
    report = make_report(spec, prepared.schedule, ledger, rows, end, provenance, sender.warnings())
    return report, ledger


def _sender(prepared: Prepared, ledger: Ledger, clock: StartClock) -> Sender:
    spec = prepared.spec
    if spec.target.transport is Transport.HTTP:
        http = [one for one in prepared.requests if isinstance(one, HttpRequest)]
        return HttpSender(spec.target, http, ledger, clock, spec.connections, spec.upload)
    from slacktide.load.grpc_sender import GrpcSender

    grpc = [one for one in prepared.requests if isinstance(one, GrpcRequest)]
    return GrpcSender(spec.target, grpc, ledger, clock, spec.connections)


def _packages(spec: LoadSpec) -> tuple[str, ...]:
    wire = "httptools" if spec.target.transport is Transport.HTTP else "grpcio"
    return ("numpy", "uvloop", wire)
