"""Cameras on links that change, live: the server and its worker on some cores, the clients and
their links (`netem`) on the others; then the same again in virtual time.

A frame's answer is worth the accuracy of the smaller of the size that was sent and the variant that
ran; a frame that was missed is worth nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from slacktide.domain import percent
from slacktide.executors import busy_warning, pinned
from slacktide.lab.cli.demo.shared import DemoContext, Document, Part, headline, share
from slacktide.lab.cli.demo.simulated_clients import SimulatedCameras
from slacktide.lab.examples import make_repository
from slacktide.lab.examples.street import Street
from slacktide.lab.load.played_frames import Camera, play_frames
from slacktide.lab.reports import TextTable
from slacktide.lab.workloads import BandwidthTrace, TraceLink
from slacktide.lab.workloads.bandwidth import MBIT
from slacktide.planning.variants import FamilyVariant
from slacktide.planning.variants.family import expected_accuracy

SLOWEST, FASTEST = 1.5 * MBIT, 25.0 * MBIT
"""Rates of links are drawn between these, evenly by their logarithm."""
RTT = 0.01
SCENES = 30
"""Different frames of each camera; then they begin again."""
SETTLED_S, NEAR = 2.0, 0.15
"""Seconds after a change of the link, and how near to its rate the server's estimate should be
from then on, as a share of the rate."""
STEPS = 6
"""Columns of the table over time."""


@dataclass(frozen=True, slots=True)
class ClientsRun:
    """Cameras, links and a model, as the flags of the command state them. Times are in seconds."""

    model: str = "street"
    """A family of sizes of one file."""
    repository: Path | None = None
    """None: the example model is made."""
    clients: int = 4
    seconds: float = 60.0
    rate: float = 10.0
    slo: float = 0.15
    change_s: float = 6.0
    seed: int = 1

    @property
    def links(self) -> list[TraceLink]:
        """One for each client; they change one after the other."""
        links = []
        for number in range(self.clients):
            draw = np.random.default_rng((self.seed, number))
            first = self.change_s * (number + 1) / self.clients
            later = np.arange(first, self.seconds + 2.0 * self.change_s, self.change_s)
            rates = np.exp(draw.uniform(np.log(SLOWEST), np.log(FASTEST), len(later) + 1))
            links.append(TraceLink(BandwidthTrace([0.0, *later], rates), RTT))
        return links


def play_clients(run: ClientsRun, context: DemoContext) -> Document:
    """The report, see `clients_report`. Raises ProcessError, LinkError, ClientError,
    RepositoryError, MeasuringError; ends the program if the model is no family of sizes."""
    if run.repository is None:
        make_repository(context.models, models=[run.model])
    repository = run.repository or context.models
    simulation = SimulatedCameras(run, repository)
    context.move(0.0, "drawing what the cameras see")
    films = [
        [street.scene(frame).picture for frame in range(SCENES)]
        for street in map(Street, range(run.seed, run.seed + run.clients))
    ]
    cameras = [
        Camera(f"client {number}", link, film)
        for number, (link, film) in enumerate(zip(run.links, films, strict=True), 1)
    ]
    context.move(0.1, "measuring and loading the model")
    with context.serve(models=repository) as targets, pinned(context.cores[1]):
        context.move(0.2, f"{run.clients} clients for {run.seconds:g} s")
        played = play_frames(
            cameras, targets, run.model, slo=run.slo, rate=run.rate, seconds=run.seconds
        )
        cpu_s = asyncio.run(played)
    with pinned(context.cores[0]):
        asyncio.run(simulation.prepare(films, context.cores[0]))
    simulated = {}
    for place, variant in enumerate((None, *simulation.variants)):
        name = "ours" if variant is None else variant.name
        context.move(0.8 + 0.2 * place / len(simulation.variants), f"simulating {name}")
        simulated[name] = simulation.play(variant)
    report = clients_report(run, cameras, simulation.variants, simulated, cpu_s)
    return report | {"cores": context.cores}


def clients_report(
    run: ClientsRun,
    cameras: Sequence[Camera],
    variants: Sequence[FamilyVariant],
    simulated: Mapping[str, Mapping[str, float]],
    cpu_s: float,
) -> Document:
    """Accuracy is a mean over all frames, rates of links are in bytes per second, instants in
    seconds from the start; `course`: captured at, side sent, variant, seconds to the outcome, on
    time. `cpu_s`: of all clients."""
    clients = [_client(camera, variants) for camera in cameras]
    frames = max(1, sum(client["frames"] for client in clients))
    encoding_s = sum(camera.encoding_s for camera in cameras)
    live = {
        name: sum(client["frames"] * client[name] for client in clients) / frames
        for name in ("missed", "accuracy")
    }
    live |= {
        "near": fmean(client["near"] for client in clients),
        "late_s": max(camera.late_s for camera in cameras),
        "client_cores": (cpu_s - encoding_s) / run.seconds / run.clients,
        "encoding_cores": encoding_s / run.seconds / run.clients,
    }
    parameters = asdict(run)
    del parameters["repository"]
    return {
        "kind": "clients",
        **parameters,
        "variants": [asdict(variant) for variant in variants],
        "clients": clients,
        "live": live,
        "simulated": dict(simulated),
    }


def _client(camera: Camera, variants: Sequence[FamilyVariant]) -> Document:
    outcomes, trace = camera.outcomes, camera.link.trace
    worth = [
        expected_accuracy(variants, outcome.variant, outcome.size or inf) * outcome.on_time
        for outcome in outcomes
    ]
    near = [
        abs(look.estimate / look.rate - 1.0) <= NEAR
        for look in camera.seen
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
        "seen": [look._asdict() for look in camera.seen],
        "course": [
            (at, outcome.size, outcome.variant, outcome.seconds, outcome.on_time)
            for at, outcome in zip(camera.captured, outcomes, strict=True)
        ],
    }


def show_clients(report: Document) -> Iterator[Part]:
    """Two tables and a sentence; a warning in the place of the second, which compares, where other
    programs held the cores."""
    length = report["seconds"] / STEPS
    lines = []
    for client in report["clients"]:
        course = map(partial(_step, client, length), range(STEPS))
        shares = [percent(client[name]) for name in ("missed", "near")]
        lines.append((client["name"], *course, f"{client['accuracy']:.3f}", *shares))
    spans = [f"{step * length:.0f} s" for step in range(STEPS)]
    title = "Side of frames, pixels (median) @ rate of the link, Mbit/s (mean), from …"
    yield TextTable(title, ("live", *spans, "accuracy", "missed", f"± {NEAR:.0%}"), lines)
    live = report["live"]
    if busy_warning(report["cpu_share"]):
        yield headline(report, "")
        yield ""
    else:
        runs = {"live": live}
        runs |= {f"simulated, {name}": run for name, run in report["simulated"].items()}
        lines = [
            (name, f"{run['accuracy']:.3f}", percent(run["missed"])) for name, run in runs.items()
        ]
        title = "The same links: sizes as planned (ours), or one for all"
        yield TextTable(title, ("", "accuracy", "missed"), lines)
    yield (
        f"{len(report['clients'])} clients of {report['rate']:g} frames/s, answers due "
        f"{report['slo'] * 1e3:g} ms after capture; accuracy over all frames, missed ones "
        f"count as 0. ± {NEAR:.0%}: part of the time from {SETTLED_S:g} s after a change of "
        "the link for which the server's estimate was so near. A client took "
        f"{100 * live['client_cores']:.1f} % of a core, and {100 * live['encoding_cores']:.1f} "
        f"% to resize and encode. Links were late by {live['late_s'] * 1e3:.1f} ms at p99."
    )


def _step(client: Mapping[str, Any], length: float, step: int) -> str:
    """Median side of the frames, and mean rate of the link, in one part of the run."""
    begin, end = step * length, (step + 1) * length
    sides = [side for at, side, *_ in client["course"] if begin <= at < end and side]
    rates = [look["rate"] for look in client["seen"] if begin <= look["at"] < end]
    side = f"{median(sides):.0f}" if sides else "–"
    return f"{side} @ {8e-6 * fmean(rates):.1f}" if rates else side
