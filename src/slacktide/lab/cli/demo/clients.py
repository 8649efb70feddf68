"""Live demo of cameras on changing links. Server and worker run on some cores, clients and their
links (`netem`) on the others.

The accuracy of a frame's answer is that of the smaller of two sizes: the size sent, and the input
size of the variant that ran. A missed frame has accuracy 0.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from statistics import fmean, median
from typing import Any

import numpy as np

from slacktide.domain import percent
from slacktide.executors import pinned
from slacktide.lab.cli.demo.shared import DemoContext, Document, Part, share
from slacktide.lab.examples import make_repository
from slacktide.lab.examples.street import Street
from slacktide.lab.load.played_frames import Camera, play_frames
from slacktide.lab.reports import TextTable
from slacktide.lab.workloads import BandwidthTrace, TraceLink
from slacktide.lab.workloads.bandwidth import MBIT
from slacktide.models.repository import Repository
from slacktide.planning.variants import FamilyVariant
from slacktide.planning.variants.family import expected_accuracy

MODEL = "street"
SLOWEST, FASTEST = 1.5 * MBIT, 25.0 * MBIT
"""Bounds of link rates, which are drawn uniformly on a logarithmic scale."""
RTT = 0.01
SCENES = 30
"""Number of different frames of each camera, repeated in a loop."""
SETTLED_S, NEAR = 2.0, 0.15
"""Seconds after a change of the link, and the relative error of the server's estimate that is
acceptable from then on."""
STEPS = 6
"""Columns of the table over time."""


@dataclass(frozen=True, slots=True)
class ClientsRun:
    """Cameras and links. Times are in seconds."""

    clients: int = 4
    seconds: float = 60.0
    rate: float = 10.0
    """Frames per second of each camera."""
    slo: float = 0.15
    change_s: float = 6.0
    """Seconds between two changes of a link's rate."""
    seed: int = 1

    @property
    def links(self) -> list[TraceLink]:
        """One link for each client; their changes are staggered."""
        links = []
        for number in range(self.clients):
            draw = np.random.default_rng((self.seed, number))
            first = self.change_s * (number + 1) / self.clients
            later = np.arange(first, self.seconds + 2.0 * self.change_s, self.change_s)
            rates = np.exp(draw.uniform(np.log(SLOWEST), np.log(FASTEST), len(later) + 1))
            links.append(TraceLink(BandwidthTrace([0.0, *later], rates), RTT))
        return links

    @property
    def cameras(self) -> list[Camera]:
        """One camera for each client, with its own link and street."""
        cameras = []
        for number, link in enumerate(self.links):
            street = Street(self.seed + number)
            film = [street.scene(frame).picture for frame in range(SCENES)]
            cameras.append(Camera(f"client {number + 1}", link, film))
        return cameras


def play_clients(run: ClientsRun, context: DemoContext) -> Document:
    """Return the report of `clients_report`. Raises ProcessError, LinkError, ClientError."""
    context.move(0.0, "drawing the cameras' pictures")
    make_repository(context.models, models=[MODEL])
    cameras, variants = run.cameras, stated_variants(context)
    context.move(0.2, "measuring and loading the model")
    with context.serve() as targets, pinned(context.cores[1]):
        context.move(0.3, f"{run.clients} clients for {run.seconds:g} s")
        played = play_frames(
            cameras, targets, MODEL, slo=run.slo, rate=run.rate, seconds=run.seconds
        )
        cpu_s = asyncio.run(played)
    return clients_report(run, cameras, variants, cpu_s)


def stated_variants(context: DemoContext) -> list[FamilyVariant]:
    """Return the model's variants as its settings state them."""
    *_, definition = Repository(context.models).read(MODEL)
    variants = definition.settings.variants
    assert variants is not None, "the example is a family"
    return [FamilyVariant(name, worth, int(name)) for name, worth in variants.accuracy.items()]


def clients_report(
    run: ClientsRun, cameras: Sequence[Camera], variants: Sequence[FamilyVariant], cpu_s: float
) -> Document:
    """Return the report. Accuracy is a mean over all frames, link rates are in bytes per second,
    instants in seconds from the start. `course`: (captured at, side sent, variant, seconds to the
    outcome, on time). `cpu_s`: CPU seconds of all clients."""
    clients = [_client(camera, variants) for camera in cameras]
    frames = sum(client["frames"] for client in clients)
    missed, accuracy = (
        sum(client["frames"] * client[name] for client in clients) / max(1, frames)
        for name in ("missed", "accuracy")
    )
    encoding_s = sum(camera.encoding_s for camera in cameras)
    return {
        "kind": "clients",
        "headline": (
            f"{percent(missed)} of {frames} frames were missed while sizes followed the links; "
            f"accuracy over all frames {accuracy:.3f}."
        ),
        **asdict(run),
        "clients": clients,
        "live": {
            "missed": missed,
            "accuracy": accuracy,
            "near": fmean(client["near"] for client in clients),
            "late_s": max(camera.late_s for camera in cameras),
            "client_cores": (cpu_s - encoding_s) / run.seconds / run.clients,
            "encoding_cores": encoding_s / run.seconds / run.clients,
        },
    }


def _client(camera: Camera, variants: Sequence[FamilyVariant]) -> Document:
    outcomes, trace = camera.outcomes, camera.link.trace
    worth = [
        expected_accuracy(variants, outcome.variant, outcome.size or inf) * outcome.on_time
        for outcome in outcomes
    ]
    near = [
        abs(look.estimate / look.rate - 1.0) <= NEAR
        for look in camera.readings
        if look.at - trace.starts[trace.starts <= look.at][-1] >= SETTLED_S
    ]
    return {
        "name": camera.name,
        "frames": len(outcomes),
        "missed": share([not outcome.on_time for outcome in outcomes]),
        "accuracy": sum(worth) / max(1, len(worth)),
        "results": Counter(outcome.result.value for outcome in outcomes),
        "near": share(near),
        "link": list(zip(trace.starts.tolist(), trace.rates.tolist(), strict=True)),
        "seen": [look._asdict() for look in camera.readings],
        "course": [
            (at, outcome.size, outcome.variant, outcome.seconds, outcome.on_time)
            for at, outcome in zip(camera.captured, outcomes, strict=True)
        ],
    }


def show_clients(report: Document) -> Iterator[Part]:
    """Yield a table over time, and the conditions of the run."""
    length, live = report["seconds"] / STEPS, report["live"]
    lines = []
    for client in report["clients"]:
        course = [_step(client, step * length, (step + 1) * length) for step in range(STEPS)]
        shares = [percent(client[name]) for name in ("missed", "near")]
        lines.append((client["name"], *course, f"{client['accuracy']:.3f}", *shares))
    spans = [f"{step * length:.0f} s" for step in range(STEPS)]
    title = "Median frame side in pixels @ mean link rate in Mbit/s, from …"
    yield TextTable(title, ("", *spans, "accuracy", "missed", f"± {NEAR:.0%}"), lines)
    yield (
        f"Each client sends {report['rate']:g} frames/s; answers are due "
        f"{report['slo'] * 1e3:g} ms after capture. Accuracy is a mean over all frames; missed "
        f"frames count as 0. ± {NEAR:.0%}: how often the server's estimate of the link was within "
        f"this range, not counting the first {SETTLED_S:g} s after each change. A client used "
        f"{100 * live['client_cores']:.1f} % of a core, and {100 * live['encoding_cores']:.1f} % "
        "to resize and encode. The emulation delivered data "
        f"{live['late_s'] * 1e3:.1f} ms too late at p99."
    )


def _step(client: Mapping[str, Any], begin: float, end: float) -> str:
    """Return median side of the frames and mean rate of the link in one part of the run."""
    sides = [side for at, side, *_ in client["course"] if begin <= at < end and side]
    rates = [look["rate"] for look in client["seen"] if begin <= look["at"] < end]
    side = f"{median(sides):.0f}" if sides else "–"
    return f"{side} @ {8e-6 * fmean(rates):.1f}" if rates else side
