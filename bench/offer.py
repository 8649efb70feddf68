"""The open loop: the same arrivals to any server, judged by the client's clock.

A thin cover of `slacktide.lab.load`: servers of the Open Inference Protocol are told each deadline,
the others are sent raw bodies; both are judged alike, from the intended send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import uvloop

from bench.clients import settle
from bench.models import Body, Tensors, npz_files, oip_body, raw_body, requests
from bench.servers import Serving
from bench.yardstick import Arrivals as YardstickArrivals
from slacktide.lab.load.encode import HttpRequest, common_headers, format_head
from slacktide.lab.load.generate import Prepared, carry_out, prepare
from slacktide.lab.load.request_log import ENDING_OF, ENDINGS, RequestLog, Result
from slacktide.lab.load.schedule import Purpose, Schedule, generator, make_schedule
from slacktide.lab.load.spec import FilePayload, LoadSpec, RandomPayload, Stream, Target, Transport
from slacktide.lab.workloads import Arrivals, Deadlines

BODIES = 16
"""Different inputs per model."""
CONNECTIONS = 1024
CHANNELS = 4
"""Over gRPC, each with as many calls at once as the server lets it have."""
PATIENCE = 2.0
"""Seconds after its deadline at which a request is given up by its client."""

_REFUSALS = tuple(ENDING_OF[result] for result in (Result.OVERLOADED, Result.UNAVAILABLE))


@dataclass(frozen=True, slots=True)
class Offered:
    """One application's load of one model."""

    model: str
    arrivals: Arrivals
    deadlines: Deadlines
    application: str = ""
    """Whom the requests are from; several may ask one model."""
    inputs: tuple[Tensors, ...] = ()
    """What they send; empty: the model's usual `requests`."""

    @property
    def label(self) -> str:
        """As the run's results are named."""
        return f"{self.model}/{self.application}" if self.application else self.model


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of one load's requests, warm-up left out."""

    submitted: int
    goodput: float
    endings: Mapping[str, int]
    latency_p50_ms: float
    """Of answers, late ones included."""
    latency_p99_ms: float
    refusals: int
    refusal_p99_ms: float
    """From the intended send to a refusal (429, 503); 0 without any."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run against one server."""

    models: Mapping[str, Answered]
    """By `Offered.label`: the model, if nothing else tells loads apart."""
    lateness_p99_ms: float
    """Of the client itself."""
    complaints: Mapping[str, int] = field(default_factory=dict)


def offer(
    serving: Serving,
    load: Sequence[Offered],
    *,
    duration: float,
    warmup: float,
    seed: int,
    transport: Transport = Transport.HTTP,
    upload: float = 0.0,
) -> Run:
    """Send `load` to `serving` on time and wait for every answer. Bodies follow their headers
    `upload` seconds later. Raises LoadError."""
    oip = serving.name == "slacktide"
    grpc = transport is Transport.GRPC
    inputs = [offered.inputs or requests(offered.model, BODIES) for offered in load]
    streams = [
        Stream(
            offered.model,
            offered.arrivals,
            offered.deadlines,
            application=offered.application,
            payload=FilePayload(npz_files(offered.label, own)) if oip else RandomPayload(),
        )
        for offered, own in zip(load, inputs, strict=True)
    ]
    spec = LoadSpec(
        target=Target(transport, "127.0.0.1", serving.grpc_port if grpc else serving.port),
        streams=tuple(streams),
        duration=duration,
        warmup=warmup,
        seed=seed,
        connections=CHANNELS if grpc else CONNECTIONS,
        patience=PATIENCE,
        upload=upload,
    )
    if oip:
        return uvloop.run(_carry_out(spec))
    raw = [
        _raw_request(spec.target, serving.path_of(offered.model), raw_body(tensors))
        for offered, own in zip(load, inputs, strict=True)
        for tensors in own
    ]
    schedule = make_schedule(spec, [len(own) for own in inputs])
    return uvloop.run(_carry_out(spec, Prepared(spec, schedule, tuple(raw))))


def _raw_request(target: Target, path: str, body: bytes) -> HttpRequest:
    """A body for any HTTP server, as it is: it carries no deadline, and is judged all the same."""
    sizes = {"Content-Type": "application/octet-stream", "Content-Length": str(len(body))}
    head = format_head("POST", path, {**common_headers(target), **sizes})
    return HttpRequest(head + body, b"", 1, len(head))


def rest(serving: Serving, models: Sequence[str], alone: float) -> None:
    """Wait until `serving` has nothing left of an earlier run: single requests are as fast as
    they should be, `alone` seconds and a little. Raises RuntimeError."""
    for model in models:
        tensors = requests(model, 1)[0]
        if serving.name == "slacktide":
            body = oip_body(tensors)
        else:
            body = Body(raw_body(tensors), {"Content-Type": "application/octet-stream"})
        settle(serving, serving.path_of(model), body, within=3.0 * alone + 0.02)


def planned(load: Offered, *, length: float, seed: int, number: int = 0) -> YardstickArrivals:
    """The arrivals that `offer` sends for stream `number` of a run, for the yardstick."""
    due = load.arrivals.times(length, generator(seed, Purpose.ARRIVALS, number))
    allowance = load.deadlines.draw(due.size, generator(seed, Purpose.DEADLINES, number))
    return YardstickArrivals(due, allowance)


async def sent(spec: LoadSpec, prepared: Prepared | None = None) -> tuple[Schedule, RequestLog]:
    """Send it all and wait for every answer: what was due when, and what became of it. Raises
    LoadError."""
    prepared = prepared or await prepare(spec)
    _, log = await carry_out(prepared)
    return prepared.schedule, log


async def _carry_out(spec: LoadSpec, prepared: Prepared | None = None) -> Run:
    schedule, log = await sent(spec, prepared)
    endings, latency = log.endings(), log.latency()
    scored = schedule.due >= spec.warmup
    answered = {}
    for number, stream in enumerate(spec.streams):
        mine = scored & (schedule.stream == number)
        ended, took = endings[mine], latency[mine]
        answers = took[ended <= 1]
        refusals = took[np.isin(ended, _REFUSALS)]
        answered[stream.label] = Answered(
            submitted=int(mine.sum()),
            goodput=float((ended == 0).mean()) if mine.any() else 1.0,
            endings={ENDINGS[i].label: int((ended == i).sum()) for i in np.unique(ended)},
            latency_p50_ms=_percentile_ms(answers, 50),
            latency_p99_ms=_percentile_ms(answers, 99),
            refusals=refusals.size,
            refusal_p99_ms=_percentile_ms(refusals, 99),
        )
    lateness = _percentile_ms(log.lateness()[scored], 99)
    return Run(answered, lateness, log.errors())


def _percentile_ms(seconds: np.ndarray[tuple[int], np.dtype[np.float64]], level: float) -> float:
    return float(np.percentile(seconds, level)) * 1e3 if seconds.size else 0.0
