"""A pipeline's frames summed up, as a document and as tables. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from slacktide.lab.cli.demo.mechanisms import Acted
from slacktide.lab.cli.demo.shared import Document, Part, headline, levels, milliseconds, share
from slacktide.lab.examples.street import KINDS
from slacktide.lab.reports import TextTable

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
    """The right answers; None: the box shows none of which that could be said."""


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
    acted: Sequence[Acted] = (),
) -> Document:
    """`capacity` in frames per second, `played` by load as a part of it. Seconds are from due to
    answered. `stats`: of the server at the end."""
    judged = [frame for frames in played.values() for frame in frames]
    complete = [frame for frame in judged if frame.reason == "complete"]
    shown = max(complete, key=lambda frame: len(frame.boxes), default=JudgedFrame(0.0, ""))
    return {
        "kind": "pipeline",
        **asdict(run),
        "slo": slo,
        "capacity": capacity,
        "loads": [_load(load, load * capacity, frames) for load, frames in played.items()],
        "right": _right(judged),
        "shown": [box._asdict() for box in shown.boxes[:SHOWN]],
        "server": stats.get("stage_stats", []),
        "acted": [asdict(entry) for entry in acted],
    }


def _load(load: float, rate: float, frames: Sequence[JudgedFrame]) -> Document:
    count = max(1, len(frames))
    reasons = Counter(frame.reason for frame in frames)
    answered = [frame for frame in frames if frame.reason in ANSWERED]
    missing = Counter(stage for frame in answered for stage in frame.missing)
    slack: dict[str, list[float]] = defaultdict(list)
    for frame in answered:
        for stage, seconds in frame.slack.items():
            slack[stage].append(seconds)
    return {
        "load": load,
        "rate": rate,
        "frames": len(frames),
        **{name: reasons.pop(name, 0) / count for name in ANSWERED},
        "refused": {reason: number / count for reason, number in reasons.items()},
        "missing": {stage: number / count for stage, number in missing.items()},
        "seconds": levels([frame.seconds for frame in answered], p50=50, p99=99) or None,
        "slack": {stage: levels(slack[stage], p50=50, p5=5) for stage in sorted(slack)},
        "boxes": sum(len(frame.boxes) for frame in answered) / count,
    }


def _right(frames: Sequence[JudgedFrame]) -> dict[str, float]:
    """By stage, the share of boxes of which what it says is so."""
    right: dict[str, list[bool]] = defaultdict(list)
    for box in (box for frame in frames for box in frame.boxes):
        for stage, true in box.true.items():
            if true is not None:
                right[stage].append(box.said[stage] == true)
    return {stage: share(flags) for stage, flags in right.items()}


def show_pipeline(report: Document) -> Iterator[Part]:
    """A headline or why there is none, three tables and what they rest on."""
    loads = report["loads"]
    heaviest = max(loads, key=lambda load: load["load"])
    in_time = heaviest["complete"] + heaviest["partial"]
    sentence = (
        f"At {heaviest['load']:g} x capacity {in_time:.0%} of the frames were answered within "
        f"{report['slo']}: {heaviest['complete']:.0%} by all stages, {heaviest['partial']:.0%} "
        "by some."
    )
    yield headline(report, sentence)
    behind = sorted({*report["right"], *(stage for load in loads for stage in load["missing"])})
    lines = []
    for load in loads:
        shares = [load[name] for name in ANSWERED] + [sum(load["refused"].values())]
        shares += [load["missing"].get(stage, 0.0) for stage in behind]
        lines.append((
            f"{load['load']:g} x",
            f"{load['rate']:.1f}",
            *(f"{100 * part:.1f}" for part in shares),
            *(milliseconds(load["seconds"], level) for level in ("p50", "p99")),
        ))  # fmt: skip
    without = [f"no {stage}" for stage in behind]
    title = "Frames in %, some without a stage; milliseconds to the answer"
    headings = ("load", "sent/s", *ANSWERED, "refused", *without, "median", "p99")
    yield TextTable(title, headings, lines)
    lines = [
        (
            stage,
            *(
                milliseconds(load["slack"].get(stage), level)
                for load in loads
                for level in ("p50", "p5")
            ),
        )
        for stage in sorted({stage for load in loads for stage in load["slack"]})
    ]
    title = "Slack by stage: milliseconds left of its part of the deadline, median and p5"
    spans = [f"{load['load']:g} x{level}" for load in loads for level in ("", ", p5")]
    yield TextTable(title, ("stage", *spans), lines)
    lines = [
        (
            " ".join(f"{edge:.3f}" for edge in box["box"]),
            KINDS[box["kind"]],
            *(_said(box["said"].get(stage), box["true"].get(stage)) for stage in behind),
        )
        for box in report["shown"]
    ]
    title = "One frame: boxes, and what was said of each (what is so, where that is something else)"
    yield TextTable(title, ("box", "kind", *behind), lines, words=2)
    if report["acted"]:
        lines = [tuple(map(str, entry.values())) for entry in report["acted"]]
        headings = ("", "where", "times", "what")
        yield TextTable("What acted, how often", headings, lines, words=4)
    right = ", ".join(f"{stage} {share:.0%}" for stage, share in report["right"].items())
    yield (
        f"{report['pipeline']}, {len(report['cores'][0])} core(s) for the server and all its "
        f"workers: {report['capacity']:.1f} frames/s with {loads[0]['boxes']:.1f} boxes each that "
        f"are looked at. Right, of all boxes on a road user: {right or '–'}. What cannot "
        "be in time is dropped by the scheduler of its stage; the frame is answered with the "
        "rest."
    )


def _said(said: str | None, true: str | None) -> str:
    if said is None:
        return "–"
    return said if said == true else f"{said} ({true or 'no road user'})"
