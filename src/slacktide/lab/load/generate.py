"""Carries out a whole load run, from spec to report."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import numpy as np

from slacktide.lab.load.discover import discover
from slacktide.lab.load.encode import (
    GrpcRequest,
    HttpRequest,
    grpc_tensors,
    http_json,
    http_tensors,
)
from slacktide.lab.load.http_sender import HttpSender
from slacktide.lab.load.report import (
    Percentiles,
    Provenance,
    Report,
    StreamScore,
    Window,
    percentiles,
)
from slacktide.lab.load.report.provenance import gather
from slacktide.lab.load.request_log import ENDINGS, LinkModel, RequestLog
from slacktide.lab.load.run import Observer, Pacer, RunEnd, Sender, StartClock
from slacktide.lab.load.schedule import Purpose, Schedule, generator, make_schedule
from slacktide.lab.load.spec import (
    LoadError,
    LoadSpec,
    LoadSpecError,
    RandomPayload,
    Stream,
    Target,
    Transport,
    describe,
    require_grpc,
)
from slacktide.lab.load.tensors import RemoteModel, Tensors, file_tensors, random_tensors
from slacktide.lab.netem import LinkError, LinkProcess

Request = HttpRequest | GrpcRequest


@dataclass(frozen=True, slots=True)
class Prepared:
    """A load run that is ready to start."""

    spec: LoadSpec
    schedule: Schedule
    requests: tuple[Request, ...]
    """Encoded payloads of all streams, in the order of the schedule's indices; all of one type."""


async def prepare(spec: LoadSpec) -> Prepared:
    """Ask the server about the models, encode all payloads, and draw the schedule. Raises
    LoadError."""
    served: dict[tuple[str, str | None], RemoteModel] = {}
    requests: list[Request] = []
    counts = []
    for number, stream in enumerate(spec.streams):
        key = (stream.model, stream.version)
        if key not in served:
            served[key] = await discover(spec.target, *key)
        encoded = _encode(spec, stream, number, served[key])
        requests += encoded
        counts.append(len(encoded))
    schedule = make_schedule(spec, counts)
    return Prepared(spec, schedule, tuple(requests))


def _encode(spec: LoadSpec, stream: Stream, number: int, model: RemoteModel) -> list[Request]:
    http = spec.target.transport is Transport.HTTP

    def encode(tensors: Tensors) -> Request:
        return http_tensors(spec.target, stream, tensors) if http else grpc_tensors(stream, tensors)

    payload = stream.payload
    if isinstance(payload, RandomPayload):
        rng = generator(spec.seed, Purpose.CONTENTS, number)
        return [encode(tensors) for tensors in random_tensors(stream, model, payload, rng)]
    encoded: list[Request] = []
    for path in payload.paths:
        if path.suffix != ".json":
            encoded.append(encode(file_tensors(path, model)))
        elif http:
            encoded.append(http_json(spec.target, stream, path, batches=model.batches))
        else:
            raise LoadSpecError("payload", f"{path.name}: a .json body needs an http:// target")
    return encoded


async def run_load(
    spec: LoadSpec, progress: Observer | None = None, *, stop: asyncio.Event | None = None
) -> Report:
    """Carry out `spec` and return its report. `progress` is called about four times a second.
    Setting `stop` ends the run early; the report then covers the requests sent. Raises LoadError if
    the run cannot start."""
    report, _ = await carry_out(await prepare(spec), progress, stop)
    return report


def run_load_sync(spec: LoadSpec, progress: Observer | None = None) -> Report:
    """Call `run_load` on a new event loop. The first Ctrl-C (or SIGTERM) ends the run with a report
    of the requests sent; the second raises KeyboardInterrupt."""
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
) -> tuple[Report, RequestLog]:
    """Carry out a prepared run. Return its report, and the log of every request."""
    spec = prepared.spec
    wire = "httptools" if spec.target.transport is Transport.HTTP else "grpcio"
    provenance = await asyncio.to_thread(gather, ("numpy", "uvloop", wire))
    link_model = LinkModel.of(spec, [request.nbytes for request in prepared.requests])
    log = RequestLog(prepared.schedule, send_deadlines=spec.send_deadlines, link=link_model)
    clock = StartClock()
    async with _link(spec) as link:
        target = spec.target
        if link is not None:
            target = replace(target, via=("127.0.0.1", link.port))
        sender = _sender(prepared, target, log, clock)
        try:
            clock.restart()
            if link is not None:
                link.begin(clock.origin)
            end = await Pacer(spec, log, sender, clock, progress).run(stop or asyncio.Event())
        finally:
            await sender.close()
    warnings = sender.warnings()
    if link is not None:
        warnings += link.warnings(spec.lateness_warning)
    rows = [request.rows for request in prepared.requests]
    report = make_report(spec, prepared.schedule, log, rows, end, provenance, warnings)
    return report, log


@asynccontextmanager
async def _link(spec: LoadSpec) -> AsyncIterator[LinkProcess | None]:
    """Yield the proxy process that emulates the run's link; None without a link. Raises
    LoadError."""
    if spec.link is None:
        yield None
        return
    host, port = spec.target.host, spec.target.port
    try:
        async with LinkProcess(spec.link, host, port, shared=spec.shared_link) as link:
            yield link
    except LinkError as error:
        raise LoadError(f"--link: {error}") from None


def _sender(prepared: Prepared, target: Target, log: RequestLog, clock: StartClock) -> Sender:
    spec, over_link = prepared.spec, prepared.spec.link is not None
    if target.transport is Transport.HTTP:
        http = [request for request in prepared.requests if isinstance(request, HttpRequest)]
        return HttpSender(
            target, http, log, clock, spec.connections, spec.upload, over_link=over_link
        )
    require_grpc()
    from slacktide.lab.load.grpc_sender import GrpcSender

    grpc = [request for request in prepared.requests if isinstance(request, GrpcRequest)]
    return GrpcSender(target, grpc, log, clock, spec.connections, over_link=over_link)


def make_report(
    spec: LoadSpec,
    schedule: Schedule,
    log: RequestLog,
    rows: Sequence[int],
    end: RunEnd,
    provenance: Provenance,
    warnings: Sequence[str] = (),
) -> Report:
    """Score the requests sent after the warm-up. `rows[p]`: rows of payload p. Every submitted
    request must have ended."""
    window = Window(spec.warmup, max(spec.warmup, end.sent_until) - spec.warmup)
    sent = slice(0, log.submitted)
    sends, stream_of = schedule.due[sent], schedule.stream[sent]
    columns = (
        sends,
        log.latency(),
        np.array(rows, dtype=np.int64)[schedule.payload[sent]],
        log.endings(),
    )
    scores = [StreamScore(ENDINGS, window) for _ in spec.streams]
    for number, score in enumerate(scores):
        score.add(*(column[stream_of == number] for column in columns))
    total = scores[0].merged(scores[1:])
    inside = (sends >= window.start) & (sends < window.end)
    lateness, network = percentiles(log.lateness()[inside]), log.network()[inside]
    return Report(
        kind="load",
        title=spec.title or f"load on {spec.target.url}",
        seed=spec.seed,
        configuration=describe(spec),
        provenance=provenance,
        warmup_s=window.start,
        duration_s=window.duration,
        total=total.report("total"),
        streams=tuple(
            score.report(stream.label, stream.model, stream.application)
            for stream, score in zip(spec.streams, scores, strict=True)
        ),
        lateness=lateness,
        network=percentiles(network[np.isfinite(network)]),
        timeline=total.timeline(),
        interrupted=end.interrupted,
        warnings=(*_lateness_warning(spec, lateness), *warnings),
        errors=log.errors(),
    )


def _lateness_warning(spec: LoadSpec, lateness: Percentiles | None) -> tuple[str, ...]:
    if lateness is None or lateness.p99 <= spec.lateness_warning:
        return ()
    return (
        f"the load generator was late: {lateness.p99 * 1e3:.1f} ms at p99 (threshold: "
        f"{spec.lateness_warning * 1e3:g} ms). Latencies include this, so the server looks "
        "slower than it is; give the generator its own core or lower the rate",
    )
