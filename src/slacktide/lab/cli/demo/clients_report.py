"""What came of the cameras, as a document and as tables. Pure.

A frame's answer is worth the accuracy of the smaller of the size that was sent and the variant that
ran; a frame that was missed is worth nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import inf
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from slacktide.client import FrameOutcome
from slacktide.domain.units import percent
from slacktide.executors.core_probe import busy_warning
from slacktide.lab.cli.demo.clients_run import ClientsRun
from slacktide.lab.reports import TextTable, rich_table
from slacktide.planning.variants import FamilyVariant
from slacktide.planning.variants.family import expected_accuracy

if TYPE_CHECKING:
    from slacktide.lab.cli.demo.clients import Camera

SETTLED_S, NEAR = 2.0, 0.15
"""So long after a change the server's estimate should be so near to the true rate."""


def clients_report(
    run: ClientsRun,
    cameras: Sequence[Camera],
    variants: Sequence[FamilyVariant],
    simulated: Mapping[str, Mapping[str, float]],
    cpu_s: float,
) -> dict[str, Any]:
    """JSON values. Shares are 0 to 1, accuracy is a mean over all frames, rates of links are in
    bytes per second, instants in seconds from the start; `course`: captured at, side sent,
    variant, seconds to the outcome, on time. `cpu_s`: of all clients."""
    clients = [_client(camera, variants) for camera in cameras]
    frames = max(1, sum(each["frames"] for each in clients))
    encoding_s = sum(camera.encoding_s for camera in cameras)
    return {
        "kind": "clients",
        **{key: value for key, value in asdict(run).items() if key != "repository"},
        "variants": [asdict(each) for each in variants],
        "clients": clients,
        "live": {
            **{
                name: sum(each["frames"] * each[name] for each in clients) / frames
                for name in ("missed", "accuracy")
            },
            "near": fmean(each["near"] for each in clients),
            "late_s": max(camera.late_s for camera in cameras),
            "client_cores": (cpu_s - encoding_s) / run.seconds / run.clients,
            "encoding_cores": encoding_s / run.seconds / run.clients,
        },
        "simulated": dict(simulated),
    }


def _client(camera: Camera, variants: Sequence[FamilyVariant]) -> dict[str, Any]:
    outcomes, trace = camera.outcomes, camera.link.trace
    near = [
        abs(each.estimate / each.rate - 1.0) <= NEAR
        for each in camera.seen
        if each.at - trace.starts[trace.starts <= each.at][-1] >= SETTLED_S
    ]
    frames = max(1, len(outcomes))
    return {
        "name": camera.name,
        "frames": len(outcomes),
        "missed": sum(not each.on_time for each in outcomes) / frames,
        "accuracy": sum(_worth(each, variants) for each in outcomes) / frames,
        "results": Counter(each.result.value for each in outcomes),
        "near": fmean(near) if near else 0.0,
        "link": list(zip(trace.starts.tolist(), trace.rates.tolist(), strict=True)),
        "seen": [asdict(each) for each in camera.seen],
        "course": [
            (at, each.size, each.variant, each.seconds, each.on_time)
            for at, each in zip(camera.captured, outcomes, strict=True)
        ],
    }


def _worth(outcome: FrameOutcome, variants: Sequence[FamilyVariant]) -> float:
    if not outcome.on_time:
        return 0.0
    return expected_accuracy(variants, outcome.variant, outcome.size or inf)


def show_clients(report: Mapping[str, Any], out: Console) -> None:
    """Two tables and a sentence; a warning in the place of the second, which compares, where other
    programs held the cores."""
    warning = busy_warning(report["cpu_share"])
    steps = 6
    length = report["seconds"] / steps
    lines = []
    for client in report["clients"]:
        course = []
        for step in range(steps):
            at = (step * length, (step + 1) * length)
            sides = [side for t, side, *_ in client["course"] if at[0] <= t < at[1] and side]
            rates = [one["rate"] for one in client["seen"] if at[0] <= one["at"] < at[1]]
            side = f"{median(sides):.0f}" if sides else "–"
            course.append(f"{side} @ {8e-6 * fmean(rates):.1f}" if rates else side)
        shares = [percent(client[name]) for name in ("missed", "near")]
        lines.append((client["name"], *course, f"{client['accuracy']:.3f}", *shares))
    spans = [f"{step * length:.0f} s" for step in range(steps)]
    title = "Side of frames, pixels (median) @ rate of the link, Mbit/s (mean), from …"
    headings = ("live", *spans, "accuracy", "missed", f"± {NEAR:.0%}")
    out.print(rich_table(TextTable(title, headings, lines, words=1)))
    live = report["live"]
    found = {"live": live, **{f"simulated, {k}": v for k, v in report["simulated"].items()}}
    lines = [(k, f"{v['accuracy']:.3f}", percent(v["missed"])) for k, v in found.items()]
    title = "The same links: sizes as planned (ours), or one for all"
    table = rich_table(TextTable(title, ("", "accuracy", "missed"), lines, words=1))
    out.print(Text(f"{warning}\n", style="bold") if warning else table)
    out.print(
        Text(
            f"{len(report['clients'])} clients of {report['rate']:g} frames/s, answers due "
            f"{report['slo'] * 1e3:g} ms after capture; accuracy over all frames, missed ones "
            f"count as 0. ± {NEAR:.0%}: part of the time from {SETTLED_S:g} s after a change of "
            "the link for which the server's estimate was so near. A client took "
            f"{100 * live['client_cores']:.1f} % of a core, and {100 * live['encoding_cores']:.1f} "
            f"% to resize and encode. Links were late by {live['late_s'] * 1e3:.1f} ms at p99."
        )
    )
