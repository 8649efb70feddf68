"""What came of a pipeline's frames, as a document and as tables. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from slacktide.executors.core_probe import busy_warning
from slacktide.lab.examples.street import KINDS
from slacktide.lab.reports import TextTable, rich_table

if TYPE_CHECKING:
    from slacktide.lab.cli.demo.pipeline import PipelineRun

ANSWERED = ("complete", "partial", "late")
SHOWN = 6
"""Boxes of the frame that is shown."""


class Judged(NamedTuple):
    """One box that stages were asked of."""

    box: tuple[float, ...]
    """x0, y0, x1, y1 in fractions of the frame."""
    kind: int
    """Index into KINDS."""
    said: Mapping[str, str]
    """By stage."""
    true: Mapping[str, str | None]
    """The same; None: the box shows none of which that could be said."""


class JudgedFrame(NamedTuple):
    """One frame, as its client saw it."""

    seconds: float
    """From when it was due to leave its client."""
    reason: str
    """`complete`, `partial`, `late`, or why it was refused."""
    missing: tuple[str, ...] = ()
    """Stages that were not answered."""
    slack: Mapping[str, float] = {}
    """By stage, seconds that were left of its own part of the deadline."""
    boxes: tuple[Judged, ...] = ()


def pipeline_report(
    run: PipelineRun,
    slo: str,
    capacity: float,
    played: Mapping[float, Sequence[JudgedFrame]],
    stats: Mapping[str, Any],
    acted: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """JSON values. `capacity` in frames per second, `played` by load as a part of it. Shares are 0
    to 1, seconds from due to answered. `stats`: of the server at the end. `acted`: what each
    mechanism did (mechanisms.py)."""
    loads = [_load(load, load * capacity, frames) for load, frames in played.items()]
    complete = [
        frame for frames in played.values() for frame in frames if frame.reason == "complete"
    ]
    shown = max(complete, key=lambda frame: len(frame.boxes), default=None)
    return {
        "kind": "pipeline",
        **asdict(run),
        "slo": slo,
        "capacity": capacity,
        "loads": loads,
        "right": _right([frame for frames in played.values() for frame in frames]),
        "shown": [] if shown is None else [each._asdict() for each in shown.boxes[:SHOWN]],
        "server": stats.get("stage_stats", []),
        "acted": list(acted),
    }


def _load(load: float, rate: float, frames: Sequence[JudgedFrame]) -> dict[str, Any]:
    count = max(1, len(frames))
    reasons = Counter(frame.reason for frame in frames)
    answered = [frame for frame in frames if frame.reason in ANSWERED]
    slack: dict[str, list[float]] = {}
    for frame in answered:
        for stage, seconds in frame.slack.items():
            slack.setdefault(stage, []).append(seconds)
    missing = Counter(stage for frame in answered for stage in frame.missing)
    return {
        "load": load,
        "rate": rate,
        "frames": len(frames),
        **{name: reasons.pop(name, 0) / count for name in ANSWERED},
        "refused": {reason: each / count for reason, each in reasons.items()},
        "missing": {stage: each / count for stage, each in missing.items()},
        "seconds": _levels([frame.seconds for frame in answered], (50, 99)),
        "slack": {stage: _levels(each, (50, 5)) for stage, each in sorted(slack.items())},
        "boxes": sum(len(frame.boxes) for frame in answered) / count,
    }


def _levels(values: Sequence[float], levels: tuple[int, ...]) -> dict[str, float] | None:
    if not values:
        return None
    return {f"p{level}": float(np.percentile(values, level)) for level in levels}


def _right(frames: Sequence[JudgedFrame]) -> dict[str, float]:
    """By stage, the share of boxes of which what it says is so."""
    right: dict[str, list[bool]] = {}
    for each in (box for frame in frames for box in frame.boxes):
        for stage, true in each.true.items():
            if true is not None:
                right.setdefault(stage, []).append(each.said[stage] == true)
    return {stage: sum(each) / len(each) for stage, each in right.items()}


def show_pipeline(report: Mapping[str, Any], out: Console) -> None:
    """A headline or why there is none, three tables and what they rest on."""
    heaviest = max(report["loads"], key=lambda each: each["load"])
    in_time = heaviest["complete"] + heaviest["partial"]
    headline = (
        f"At {heaviest['load']:g} x capacity {in_time:.0%} of the frames were answered within "
        f"{report['slo']}: {heaviest['complete']:.0%} by all stages, {heaviest['partial']:.0%} "
        "by some."
    )
    out.print(Text(busy_warning(report["cpu_share"]) or headline, style="bold"))
    stages = sorted({stage for each in report["loads"] for stage in each["slack"]})
    lost = {stage for each in report["loads"] for stage in each["missing"]}
    behind = sorted({*report["right"], *lost})
    lines = []
    for each in report["loads"]:
        seconds = each["seconds"] or {}
        lines.append((
            f"{each['load']:g} x",
            f"{each['rate']:.1f}",
            *(_share(each[name]) for name in ANSWERED),
            _share(sum(each["refused"].values())),
            *(_share(each["missing"].get(stage, 0.0)) for stage in behind),
            *(_ms(seconds, level) for level in ("p50", "p99")),
        ))  # fmt: skip
    title = "Frames in %, some without a stage; milliseconds to the answer"
    without = [f"no {stage}" for stage in behind]
    headings = ("load", "sent/s", *ANSWERED, "refused", *without, "median", "p99")
    out.print(rich_table(TextTable(title, headings, lines, words=1)))
    lines = [
        (stage, *(_ms(each["slack"].get(stage) or {}, level) for each in report["loads"]
                  for level in ("p50", "p5")))
        for stage in stages
    ]  # fmt: skip
    title = "Slack by stage: milliseconds left of its part of the deadline, median and p5"
    headings = ("stage", *(
        f"{each['load']:g} x{what}" for each in report["loads"] for what in ("", ", p5")
    ))  # fmt: skip
    out.print(rich_table(TextTable(title, headings, lines, words=1)))
    lines = [
        (
            " ".join(f"{edge:.3f}" for edge in each["box"]),
            KINDS[each["kind"]],
            *(_told(each["said"].get(stage), each["true"].get(stage)) for stage in behind),
        )
        for each in report["shown"]
    ]
    title = "One frame: boxes, and what was said of each (what is so, where that is something else)"
    out.print(rich_table(TextTable(title, ("box", "kind", *behind), lines, words=2)))
    if report["acted"]:
        lines = [
            (each["mechanism"], each["stage"], f"{each['count']}", each["told"])
            for each in report["acted"]
        ]
        title = "What acted, how often"
        out.print(rich_table(TextTable(title, ("", "where", "times", "what"), lines, words=4)))
    right = ", ".join(f"{stage} {share:.0%}" for stage, share in report["right"].items())
    first = report["loads"][0]
    out.print(
        Text(
            f"{report['pipeline']}, {len(report['cores'][0])} core(s) for the server and all its "
            f"workers: {report['capacity']:.1f} frames/s with {first['boxes']:.1f} boxes each that "
            f"are looked at. Right, of all boxes on a road user: {right or '–'}. What cannot "
            "be in time is dropped by the scheduler of its stage; the frame is answered with the "
            "rest."
        )
    )


def _share(share: float) -> str:
    return f"{100 * share:.1f}"


def _ms(seconds: Mapping[str, float], level: str) -> str:
    return f"{1e3 * seconds[level]:.0f}" if level in seconds else "–"


def _told(said: str | None, true: str | None) -> str:
    if said is None:
        return "–"
    return said if said == true else f"{said} ({true or 'no road user'})"
